/* The availability profile: how many processors are expected to be free from when on. Internal to the scheduler. */
#ifndef CLUSTER_PROFILE_H
#define CLUSTER_PROFILE_H

#include <stdint.h>

/*
 * Step i says that `free` processors are available from `from_s` until the next step begins; the last step never ends.
 * Steps are in order of time and the first begins now. So the earliest place for a job is found by one walk, and
 * whatever is placed later can only lower steps: a step once too low for a job stays too low.
 */
typedef struct {
    int64_t from_s;
    int64_t free;
} step_t;

typedef struct {
    step_t *steps;
    int32_t count;
    int32_t capacity;
} profile_t;

/* The earliest time from which `width` processors are free for `length_s`. */
int64_t profile_earliest(const profile_t *profile, int64_t width, int64_t length_s);

/* Takes `width` processors from `from_s` for `length_s`. 0, or -1: no memory. */
int profile_take(profile_t *profile, int64_t from_s, int64_t length_s, int64_t width);

/* Makes room for `count` steps. 0, or -1: no memory. */
int profile_reserve(profile_t *profile, int32_t count);

#endif
