/* What the watts of all jobs stay within, as it changes at known times. */
#ifndef CLUSTER_CAPS_H
#define CLUSTER_CAPS_H

#include <stdint.h>

/* Each cap is in force until the next begins, the first from the start. The columns belong to the caller. */
typedef struct {
    int32_t n; /* at least one */
    const int64_t *from_s; /* ascending */
    const double *watts;
} caps_t;

/* The first change after `now_s`, as an index; the cap in force is the one before it. */
int32_t caps_after(const caps_t *caps, int64_t now_s);

#endif
