/* The search by halves. */
#ifndef CLUSTER_SEARCH_H
#define CLUSTER_SEARCH_H

#include <stdint.h>

/*
 * The first index `at`, from `from` up to `to`, of which `holds` is true; `to` if it is true of none. Once true it has to
 * stay true to the end. `holds` is an expression with `at`, a name of the caller's choice. O(log(to - from)).
 */
#define FIRST(at, from, to, holds)                  \
    __extension__({                                 \
        int32_t low_ = (from), high_ = (to);        \
        while (low_ < high_) {                      \
            int32_t at = low_ + (high_ - low_) / 2; \
            if (holds)                              \
                high_ = at;                         \
            else                                    \
                low_ = at + 1;                      \
        }                                           \
        low_;                                       \
    })

#endif
