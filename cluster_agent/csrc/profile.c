#include "profile.h"

#include <stdlib.h>
#include <string.h>

int profile_reserve(profile_t *profile, int32_t count)
{
    if (count <= profile->capacity)
        return 0;
    int32_t capacity = profile->capacity ? profile->capacity : 64;
    while (capacity < count)
        capacity *= 2;
    step_t *steps = realloc(profile->steps, (size_t)capacity * sizeof *steps);
    if (!steps)
        return -1;
    profile->steps = steps;
    profile->capacity = capacity;
    return 0;
}

int64_t profile_earliest(const profile_t *profile, const claim_t *claim)
{
    const step_t *steps = profile->steps;
    int32_t begin = 0;

    for (int32_t i = 0; i < profile->count; i++) {
        if (steps[i].free < claim->width || steps[i].uw < claim->uw)
            begin = i + 1;
        else if (i + 1 == profile->count || steps[i + 1].from_s - steps[begin].from_s >= claim->length_s)
            return steps[begin].from_s;
    }
    return INT64_MAX; /* more watts than the last cap allows; the caller has sorted out who is wider than the machine */
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
    if (profile_reserve(profile, profile->count + 2) < 0)
        return -1;
    int32_t first = split(profile, from_s);
    int32_t end = split(profile, from_s + claim->length_s);
    for (int32_t i = first; i < end; i++)
        profile->steps[i].free -= sign * claim->width;
    for (int32_t i = first; claim->uw && i < end; i++)
        profile->steps[i].uw -= profile->steps[i].uw == NO_CAP ? 0 : sign * claim->uw;
    return 0;
}
