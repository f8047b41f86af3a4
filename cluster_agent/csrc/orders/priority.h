/*
 * Priorities of waiting jobs: age, size, and the recent usage of their users, in processor-seconds and in joules.
 *
 * Usage decays. Instead of making all past usage smaller as time passes, a new charge is made larger: usage is kept in
 * units of the first submission, and one factor brings it to the present. So only job ends change it, one user each.
 */
#ifndef CLUSTER_PRIORITY_H
#define CLUSTER_PRIORITY_H

#include <stdint.h>

/* The columns belong to the caller and have one entry per user. */
typedef struct {
    double age, size, cpu, energy; /* weights; the highest sum is served first, equal ones in order of submission */
    int64_t oldest_s;              /* a job that has waited this long has the full age, 1 */
    double half_life_s;
    int64_t period_s;              /* usage decays at the end of each; 0: all the time */
    double damping;
    double full_w;                 /* of a processor, at full load: what joules are shares of */
    int32_t is_relative;           /* a user's factor is -usage / the highest usage, and not 2^(-(U/S)/damping) */
    const double *share;           /* sums to 1 */
    const double *watts;           /* of a processor, for jobs without a meter */
} priority_t;

#endif
