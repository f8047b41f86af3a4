/* What the watts of all jobs stay within, as it changes at known times. */
#ifndef CLUSTER_CAPS_H
#define CLUSTER_CAPS_H

#include <stdint.h>

#define NO_CAP INT64_MAX

/* Each cap is in force until the next begins, the first from the start. The columns belong to the caller. */
typedef struct {
    int32_t n; /* at least one */
    const int64_t *from_s; /* ascending */
    const int64_t *uw;
} caps_t;

/* The cap in force. */
int64_t caps_at(const caps_t *caps, int64_t now_s);

/* The first change after `now_s`, as an index; the cap in force is the one before it. */
int32_t caps_after(const caps_t *caps, int64_t now_s);

#endif
