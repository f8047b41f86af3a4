/* The availability profile: what is expected to be free from when on. Internal to the scheduler. */
#ifndef CLUSTER_PROFILE_H
#define CLUSTER_PROFILE_H

#include "memory.h"
#include "power.h"

/*
 * Step i says what is available from `from_s` until the next step begins; the last step never ends.
 * Steps are in order of time and the first begins now. So the earliest place for a job is found by one walk, and
 * whatever is placed later can only lower steps: a step once too low for a job stays too low.
 *
 * In the window of a budget the joules stored at a later time are those stored now and, of each step until then, its
 * time times `spare_uw`. A job that would begin at t takes from those at v >= t what it has drawn by then, and none of
 * them may fall below 0 until the window ends. The later t, the less it has drawn by any v, and the fewer v count: the
 * joules suffice from one time on for good (profile.c), and the walk begins there.
 */
typedef struct {
    int64_t from_s;
    int64_t free;     /* processors */
    int64_t uw;       /* power under the cap; NO_CAP: as much as anybody wants */
    int64_t spare_uw; /* until budget_s: the budget's limit less what is drawn */
} step_t;

/* What a job takes of it, for how long; joules until its time limit, so that it need not be ended for them. */
typedef struct {
    int64_t width, uw, length_s, limit_s;
} claim_t;

__extension__ typedef __int128 wide_t; /* microjoules, exact: 64 bits hold ten megawatts for eleven days */

typedef struct {
    memory_t *memory;
    step_t *steps;
    int32_t count;
    int32_t capacity;
    int64_t narrowest; /* no claim is narrower, so the profile ends with the first step that has less free */
    int64_t lowest;    /* the fewest processors free where the last claim was taken */
    claim_t looked;    /* the last claim that was looked at: one that asks no less has no place before step `found` */
    int32_t found;
    int64_t budget_s;  /* the end of the window of a budget; not later than now: none is open */
    wide_t stored_uj;  /* now */
    int64_t paid_s;    /* since when the joules suffice for the last claim that was looked at */
    int64_t wake_s;    /* the first place of a job that now has processors, and joules only then; INT64_MAX: none */
} profile_t;

/* The earliest time from which the claim can be met; INT64_MAX: never. */
int64_t profile_earliest(profile_t *profile, const claim_t *claim);

/* Takes the claim from `from_s` on (sign 1), or gives it back (-1). 0, or -1: no memory. */
int profile_take(profile_t *profile, int64_t from_s, const claim_t *claim, int sign);

/* The steps are those before the first claim. No claim will be narrower than this; INT64_MIN: not known. */
void profile_begin(profile_t *profile, int64_t narrowest);

/* Makes room for `count` steps. 0, or -1: no memory. */
int profile_reserve(profile_t *profile, int32_t count);

#endif
