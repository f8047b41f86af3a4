/* The inside of limits, from the bottom up: site_limits.c, partitions.c, ../limited_pass.c,
 * ../reserved_pass.c. */
#ifndef CLUSTER_LIMITS_INSIDE_H
#define CLUSTER_LIMITS_INSIDE_H

#include "scheduler_inside.h"

enum { WEEK_S = 7 * 24 * 3600 };

typedef struct {
    int64_t processors, kib;
} amounts_t;

struct limited {
    limits_t given;
    int64_t *used;     /* per counter, by running jobs */
    amounts_t *free;   /* per partition */
    uint8_t *keeps_place; /* per queue with windows, in a pass: a job that waits for them has one */
    int64_t spare_kib; /* next to the head of the partition that is looked at */
};

/* site_limits.c */
/* Whether the waiting job may start now, as far as limits go; notes what keeps it where there is room. */
int limits_allow(const scheduler_t *s, const waiting_t *one);
/* When the interval of the reservation begins that is not over, the present or the next one; INT64_MAX: none is. */
int64_t reserved_from(const booking_t *one, int64_t now_s);
/* The first window of the queue that closes after this time. */
window_t window_after(const limits_t *given, int32_t queue, int64_t at_s);
/* The same once the window has closed that does so at `to_s`: it opens no earlier, even where a week that is taken again
 * laps over the one before it, as where clocks changed in between. */
window_t window_behind(const limits_t *given, int32_t queue, int64_t to_s);
/* The queue whose windows count for the job; -1: it may run at any time. */
int32_t open_queue(const limits_t *given, int32_t job);

#endif
