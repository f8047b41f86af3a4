/* What counts for limits and partitions. See site_limits.h. */
#include "resources/site_limits_inside.h"

void limits_count(scheduler_t *s, int32_t job, int sign)
{
    limited_t *l = s->limited;
    const limits_t *given = &l->given;
    const int32_t *counter = given->counter + (int64_t)job * given->n_keys;

    for (int32_t k = 0; k < given->n_keys; k++)
        if (counter[k] >= 0)
            l->used[counter[k]] += sign * (given->counts_jobs[counter[k]] ? 1 : s->jobs.width[job]);
    if (given->n_partitions) {
        amounts_t *free = &l->free[given->partition[job]];
        free->processors -= sign * s->jobs.width[job];
        free->kib -= sign * given->memory_kib[job];
    }
}

int limits_allow(const scheduler_t *s, int32_t job)
{
    const limits_t *given = &s->limited->given;
    const int32_t *counter = given->counter + (int64_t)job * given->n_keys;

    for (int32_t k = 0; k < given->n_keys; k++) {
        int32_t at = counter[k];
        if (at >= 0 && s->limited->used[at] + (given->counts_jobs[at] ? 1 : s->jobs.width[job]) > given->most[at])
            return 0;
    }
    return 1;
}
