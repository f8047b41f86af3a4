#include <string.h>

#include "scheduler_inside.h"

int profile_reserve(profile_t *profile, int32_t count)
{
    if (count <= profile->capacity)
        return 0;
    int32_t capacity = profile->capacity ? profile->capacity : 64;
    while (capacity < count)
        capacity *= 2;
    step_t *steps = resized(profile->memory, profile->steps, capacity, sizeof *steps);
    if (!steps)
        return -1;
    profile->steps = steps;
    profile->capacity = capacity;
    return 0;
}

/* Before this a job that takes `uw`, `need_uj` in all, cannot begin, since at_s has only so many joules stored. */
static int64_t not_before(int64_t at_s, wide_t stored_uj, int64_t uw, wide_t need_uj)
{
    return stored_uj < 0 ? at_s : stored_uj >= need_uj ? INT64_MIN : at_s - (int64_t)(stored_uj / uw);
}

/* In how many seconds from `from_uj` on, at this power, so much is stored. */
static int64_t fills_in(wide_t from_uj, wide_t to_uj, int64_t uw)
{
    return (int64_t)((to_uj - from_uj + uw - 1) / uw);
}

/*
 * The first whole second t from which the joules suffice. A time v with m(v) joules stored asks that min(v - t, limit)
 * times the power be at most m(v): t >= v - m(v) / power where m(v) is less than all that the job takes, t > v where m(v)
 * is below 0. In a step this bound is linear in v, so it is highest at an end of the step, or where m rises past 0 or
 * past what the job takes and the bound falls away.
 */
static int64_t paid_from(const profile_t *profile, const claim_t *claim)
{
    wide_t need_uj = (wide_t)claim->uw * claim->limit_s, stored_uj = profile->stored_uj;
    int64_t from_s = profile->steps[0].from_s;
    for (int32_t i = 0; i < profile->count && profile->steps[i].from_s < profile->budget_s; i++) {
        const step_t *step = &profile->steps[i];
        int64_t next_s = i + 1 < profile->count && step[1].from_s < profile->budget_s ? step[1].from_s : profile->budget_s;
        wide_t next_uj = stored_uj + (wide_t)step->spare_uw * (next_s - step->from_s);
        from_s = greatest(from_s, not_before(step->from_s, stored_uj, claim->uw, need_uj));
        if (stored_uj < 0 && next_uj >= 0)
            from_s = greatest(from_s, step->from_s + fills_in(stored_uj, 0, step->spare_uw));
        if (stored_uj < need_uj && next_uj >= need_uj)
            from_s = greatest(from_s, step->from_s + fills_in(stored_uj, need_uj, step->spare_uw) - claim->limit_s);
        stored_uj = next_uj;
    }
    return greatest(from_s, not_before(profile->budget_s, stored_uj, claim->uw, need_uj));
}

/* No claim can use the first step of these that has too few processors, nor one behind it. */
static void cut(profile_t *profile, int32_t first, int32_t end)
{
    for (int32_t i = first; i < end; i++)
        if (profile->steps[i].free < profile->narrowest)
            profile->count = end = i + 1;
}

int64_t profile_earliest(profile_t *profile, const claim_t *claim)
{
    const step_t *steps = profile->steps;
    const claim_t *looked = &profile->looked;
    int is_more = claim->width >= looked->width && claim->uw >= looked->uw && claim->length_s >= looked->length_s &&
                  claim->limit_s >= looked->limit_s;
    int32_t begin = is_more ? profile->found : 0;

    profile->looked = *claim;
    profile->found = profile->count;
    profile->paid_s = steps[0].from_s < profile->budget_s ? paid_from(profile, claim) : steps[0].from_s;
    while (begin + 1 < profile->count && steps[begin + 1].from_s <= profile->paid_s)
        begin++;
    for (int32_t i = begin; i < profile->count; i++) {
        int64_t from_s = greatest(steps[begin].from_s, profile->paid_s);
        if (steps[i].free < claim->width || steps[i].uw < claim->uw)
            begin = i + 1;
        else if (i + 1 == profile->count || steps[i + 1].from_s - from_s >= claim->length_s) {
            profile->found = begin;
            return from_s;
        }
    }
    return INT64_MAX; /* more watts than the last cap allows; the caller has sorted out who is wider than the machine */
}

void profile_begin(profile_t *profile, int64_t narrowest)
{
    profile->narrowest = narrowest;
    profile->looked = (claim_t){.width = INT64_MAX};
    cut(profile, 0, profile->count);
}

/* The index of the step that begins at `at_s`, which is made by splitting the one that holds it. */
static int32_t split(profile_t *profile, int64_t at_s)
{
    int32_t low = 0, high = profile->count; /* the last step with from_s <= at_s is in [low, high) */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (profile->steps[middle].from_s <= at_s)
            low = middle;
        else
            high = middle;
    }
    step_t *step = &profile->steps[low];
    if (step->from_s == at_s)
        return low;
    memmove(step + 2, step + 1, (size_t)(profile->count - low - 1) * sizeof *step);
    step[1] = *step;
    step[1].from_s = at_s;
    profile->count++;
    return low + 1;
}

int profile_take(profile_t *profile, int64_t from_s, const claim_t *claim, int sign)
{
    if (profile_reserve(profile, profile->count + 3) < 0)
        return -1;
    int32_t first = split(profile, from_s);
    int32_t end = split(profile, from_s + claim->length_s);
    int64_t lowest = INT64_MAX;
    for (int32_t i = first; i < end; i++)
        lowest = least(lowest, profile->steps[i].free -= sign * claim->width);
    profile->lowest = lowest;
    for (int32_t i = first; claim->uw && i < end; i++)
        profile->steps[i].uw -= profile->steps[i].uw == NO_CAP ? 0 : sign * claim->uw;
    if (from_s < profile->budget_s) {
        end = split(profile, from_s + claim->limit_s);
        for (int32_t i = first; i < end; i++)
            profile->steps[i].spare_uw -= sign * claim->uw;
    }
    if (lowest < profile->narrowest)
        cut(profile, first, end);
    if (sign < 0)
        profile->looked.width = INT64_MAX;
    return 0;
}
