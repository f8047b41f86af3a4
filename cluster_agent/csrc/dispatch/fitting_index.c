#include "fitting_index.h"

#include <math.h>
#include <stdlib.h>

static int by_time(const void *left, const void *right)
{
    int64_t a = ((const segment_t *)left)->from, b = ((const segment_t *)right)->from;
    return (a > b) - (a < b);
}

static int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }
static int64_t at_least(int64_t value, int64_t least) { return value > least ? value : least; }

static int32_t put(segment_t *changes, int32_t n, int64_t from, const int64_t *amount, int sign)
{
    changes[n] = (segment_t){.from = from};
    for (int k = 0; k < FITTING_RESOURCES; k++)
        changes[n].change[k] = sign * amount[k];
    return n + 1;
}

/* Where something changes between `first` and `end`: as many changes as were put, in order of time. */
static int32_t changes_of(const reserved_t *reserved, int32_t n_reserved, const desired_t *desired, int32_t n_desired,
                          int64_t first, int64_t end, segment_t *changes)
{
    static const int64_t nothing[FITTING_RESOURCES];
    int32_t n = put(changes, 0, first, nothing, 1);
    for (int32_t i = 0; i < n_reserved; i++) {
        if (reserved[i].to <= first || reserved[i].from >= end)
            continue;
        n = put(changes, n, at_least(reserved[i].from, first), reserved[i].amount, 1);
        n = put(changes, n, at_most(reserved[i].to, end), reserved[i].amount, -1);
    }
    for (int32_t i = 1; i < n_desired; i++)
        if (desired[i].from > first && desired[i].from < end)
            n = put(changes, n, desired[i].from, nothing, 1);
    qsort(changes, (size_t)n, sizeof *changes, by_time);
    return n;
}

/* Joins the changes of one instant, and writes how often the unit fits from each on. Returns how many are left. */
static int32_t join(segment_t *segments, int32_t n, const desired_t *desired, int32_t n_desired,
                    const int64_t *capacity, const int64_t *need, int64_t end)
{
    int64_t up[FITTING_RESOURCES] = {0};
    int32_t made = 0, step = 0;
    for (int32_t i = 0; i < n; i++) {
        for (int k = 0; k < FITTING_RESOURCES; k++)
            up[k] += segments[i].change[k];
        if (i + 1 < n && segments[i + 1].from == segments[i].from)
            continue;
        int64_t from = segments[i].from;
        if (from >= end)
            break;
        while (step + 1 < n_desired && desired[step + 1].from <= from)
            step++;
        segment_t *one = &segments[made++];
        *one = (segment_t){.from = from, .profile = INFINITY, .capacity = INFINITY};
        for (int k = 0; k < FITTING_RESOURCES; k++)
            if (need[k] > 0) {
                int64_t most = at_most(desired[step].desired[k], capacity[k]);
                one->profile = fmin(one->profile, (double)(most - up[k]) / (double)need[k]);
                one->capacity = fmin(one->capacity, (double)(capacity[k] - up[k]) / (double)need[k]);
            }
    }
    return made;
}

/* The segments of a window that may still be its minimum, by rising value: the first is the minimum. */
typedef struct {
    int32_t *at, head, tail;
} minima_t;

static void enter(minima_t *minima, const segment_t *segments, int32_t i, int is_profile)
{
    double value = is_profile ? segments[i].profile : segments[i].capacity;
    while (minima->tail > minima->head) {
        const segment_t *before = &segments[minima->at[minima->tail - 1]];
        if ((is_profile ? before->profile : before->capacity) < value)
            break;
        minima->tail--;
    }
    minima->at[minima->tail++] = i;
}

static void leave(minima_t *minima, int32_t from)
{
    while (minima->at[minima->head] < from)
        minima->head++;
}

/* Writes what fits, unless it goes on as the one before. */
static int32_t add(fitting_t *out, int32_t made, fitting_t one)
{
    if (made > 0) {
        fitting_t *before = &out[made - 1];
        if (before->to == one.from && before->profile == one.profile && before->capacity == one.capacity) {
            before->to = one.to;
            return made;
        }
    }
    out[made] = one;
    return made + 1;
}

int32_t fitting_index(const reserved_t *reserved, int32_t n_reserved, const desired_t *desired, int32_t n_desired,
                      const int64_t *capacity, const unit_t *unit, int within, int64_t enough, segment_t *scratch,
                      int32_t *minima, fitting_t *out)
{
    int64_t end = unit->last - 1 + unit->length, found = 0;
    int32_t n = changes_of(reserved, n_reserved, desired, n_desired, unit->first, end, scratch);
    n = join(scratch, n, desired, n_desired, capacity, unit->need, end);

    minima_t profile = {minima, 0, 0}, room = {minima + n, 0, 0};
    int32_t made = 0, from = 0, to = 0; /* the window has segments [from, to) */
    for (int64_t slot = unit->first; slot < unit->last && found < enough;) {
        for (; to < n && scratch[to].from < slot + unit->length; to++) {
            enter(&profile, scratch, to, 1);
            enter(&room, scratch, to, 0);
        }
        while (from + 1 < n && scratch[from + 1].from <= slot)
            from++;
        leave(&profile, from);
        leave(&room, from);
        int64_t next = unit->last; /* where a segment leaves the window, or the next one enters it */
        if (from + 1 < n)
            next = at_most(next, scratch[from + 1].from);
        if (to < n)
            next = at_most(next, scratch[to].from - unit->length + 1);
        fitting_t one = {slot, next, scratch[profile.at[profile.head]].profile, scratch[room.at[room.head]].capacity};
        if (one.capacity >= 1 && (!within || one.profile >= 1)) {
            made = add(out, made, one);
            found += next - slot;
        }
        slot = next;
    }
    return made;
}
