/* The availability profile: what is expected to be free from when on. Internal to the scheduler. */
#ifndef CLUSTER_PROFILE_H
#define CLUSTER_PROFILE_H

#include <stdint.h>

#include "power.h"

/*
 * Step i says what is available from `from_s` until the next step begins; the last step never ends.
 * Steps are in order of time and the first begins now. So the earliest place for a job is found by one walk, and
 * whatever is placed later can only lower steps: a step once too low for a job stays too low.
 */
typedef struct {
    int64_t from_s;
    int64_t free; /* processors */
    int64_t uw;   /* power under the cap; NO_CAP: as much as anybody wants */
} step_t;

/* What a job takes of it, for how long. */
typedef struct {
    int64_t width, uw, length_s;
} claim_t;

typedef struct {
    step_t *steps;
    int32_t count;
    int32_t capacity;
} profile_t;

/* The earliest time from which the claim can be met; INT64_MAX: never. */
int64_t profile_earliest(const profile_t *profile, const claim_t *claim);

/* Takes the claim from `from_s` on (sign 1), or gives it back (-1). 0, or -1: no memory. */
int profile_take(profile_t *profile, int64_t from_s, const claim_t *claim, int sign);

/* Makes room for `count` steps. 0, or -1: no memory. */
int profile_reserve(profile_t *profile, int32_t count);

#endif
