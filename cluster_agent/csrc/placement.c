#include "placement.h"

#include <string.h>

#include "search.h"

int placement_init(placement_t *p, memory_t *memory, int32_t processors)
{
    int32_t most = processors / 2 + 2; /* with every second processor free there are most intervals */
    /* twice as many, so one of the two sides always has room for all that is given back */
    *p = (placement_t){.memory = memory, .room = 2 * most, .end = processors > 0};
    p->free = column(memory, p->room, sizeof *p->free);
    p->merged = column(memory, most, sizeof *p->merged);
    if (p->free)
        p->free[0] = (interval_t){.first = 0, .last = processors - 1};
    return memory_status(memory);
}

static int append(placement_t *p, interval_t interval)
{
    if (p->n_intervals == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 4096;
        interval_t *intervals = resized(p->memory, p->intervals, capacity, sizeof *intervals);
        if (!intervals)
            return -1;
        p->intervals = intervals;
        p->capacity = capacity;
    }
    p->intervals[p->n_intervals++] = interval;
    return 0;
}

int32_t placement_take(placement_t *p, int32_t width)
{
    int64_t before = p->n_intervals;

    while (width > 0) {
        if (p->begin == p->end)
            return -2;
        interval_t *lowest = &p->free[p->begin];
        interval_t taken = *lowest;
        if (taken.last - taken.first < width) {
            p->begin++;
        } else {
            taken.last = taken.first + width - 1;
            lowest->first = taken.last + 1;
        }
        width -= taken.last - taken.first + 1;
        if (append(p, taken) < 0)
            return -1;
    }
    return (int32_t)(p->n_intervals - before);
}

/* Makes room for `wanted` intervals where free[from] to free[to - 1] are, by moving the shorter side that has room. */
static interval_t *make_room(placement_t *p, int32_t from, int32_t to, int32_t wanted)
{
    int32_t more = wanted - (to - from), left = from - p->begin, right = p->end - to;
    if (more <= p->begin && (left < right || p->end + more > p->room)) {
        memmove(p->free + p->begin - more, p->free + p->begin, (size_t)left * sizeof *p->free);
        p->begin -= more;
        return p->free + from - more;
    }
    memmove(p->free + to + more, p->free + to, (size_t)right * sizeof *p->free);
    p->end += more;
    return p->free + from;
}

int32_t placement_take_highest(placement_t *p, int32_t width, int64_t below)
{
    int64_t before = p->n_intervals;
    int32_t at = p->end; /* the last interval that begins below is before it */

    while (at > p->begin && p->free[at - 1].first >= below)
        at--;
    while (width > 0) {
        if (at == p->begin)
            return -2;
        interval_t *highest = &p->free[at - 1];
        interval_t taken = *highest;
        if (taken.last >= below)
            taken.last = (int32_t)below - 1;
        if (taken.last - taken.first >= width)
            taken.first = taken.last - width + 1;
        width -= taken.last - taken.first + 1;
        if (append(p, taken) < 0)
            return -1;
        interval_t above = {.first = taken.last + 1, .last = highest->last};
        highest->last = taken.first - 1;
        if (highest->last < highest->first) {
            if (above.first <= above.last) {
                *highest = above;
            } else {
                memmove(highest, highest + 1, (size_t)(p->end - at) * sizeof *highest);
                p->end--;
            }
            at--;
        } else if (above.first <= above.last) {
            *make_room(p, at, at, 1) = above; /* then what was wanted has been taken */
        }
    }
    return (int32_t)(p->n_intervals - before);
}

int64_t placement_free_below(const placement_t *p, int64_t below)
{
    int64_t free = 0;
    for (int32_t i = p->begin; i < p->end && p->free[i].first < below; i++)
        free += (p->free[i].last < below ? p->free[i].last + 1 : below) - p->free[i].first;
    return free;
}

/* The index of the first free interval that contains the processor or is after it. */
static int32_t place_of(const placement_t *p, int32_t processor)
{
    return FIRST(i, p->begin, p->end, p->free[i].last >= processor);
}

/* The intervals, which ascend by `step` from `one`, come between free[from] and free[to - 1], or touch these. */
static void merge(placement_t *p, int32_t from, int32_t to, const interval_t *one, int32_t count, int32_t step)
{
    int32_t n = 0, at = from;
    while (at < to || count > 0) {
        interval_t next;
        if (count == 0 || (at < to && p->free[at].first < one->first)) {
            next = p->free[at++];
        } else {
            next = *one;
            one += --count ? step : 0;
        }
        if (n > 0 && p->merged[n - 1].last == next.first - 1)
            p->merged[n - 1].last = next.last;
        else
            p->merged[n++] = next;
    }
    memcpy(make_room(p, from, to, n), p->merged, (size_t)n * sizeof *p->merged);
}

void placement_give_back(placement_t *p, const interval_t *intervals, int32_t count)
{
    int32_t step = count > 1 && intervals[1].first < intervals[0].first ? -1 : 1;
    const interval_t *lowest = step > 0 ? intervals : intervals + count - 1;
    const interval_t *highest = step > 0 ? intervals + count - 1 : intervals;
    int32_t from = place_of(p, lowest->first - 1), to = place_of(p, highest->last + 1);
    to += to < p->end && p->free[to].first == highest->last + 1;
    merge(p, from, to, lowest, count, step);
}

int64_t placement_move(placement_t *from, placement_t *to, int32_t first, int32_t last)
{
    int64_t moved = 0;
    int32_t at = place_of(from, first);
    while (at < from->end && from->free[at].first <= last) {
        interval_t *found = &from->free[at], whole = *found;
        interval_t part = {
            .first = whole.first < first ? first : whole.first,
            .last = whole.last > last ? last : whole.last,
        };
        int is_left = whole.first < part.first, is_right = part.last < whole.last;
        if (is_left)
            found->last = part.first - 1;
        if (is_left && is_right) {
            *make_room(from, at + 1, at + 1, 1) = (interval_t){.first = part.last + 1, .last = whole.last};
        } else if (is_right) {
            found->first = part.last + 1;
        } else if (is_left) {
            at++;
        } else if (at == from->begin) {
            at = ++from->begin;
        } else {
            memmove(found, found + 1, (size_t)(from->end - at - 1) * sizeof *found);
            from->end--;
        }
        placement_give_back(to, &part, 1);
        moved += part.last - part.first + 1;
        if (is_right)
            break;
    }
    return moved;
}

int placement_keep(placement_t *p, const interval_t *intervals, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (append(p, intervals[i]) < 0)
            return -1;
    return 0;
}

int placement_hand_over(placement_t *from, placement_t *to, int32_t count)
{
    from->n_intervals -= count;
    return placement_keep(to, from->intervals + from->n_intervals, count);
}

void placement_frees_as(placement_t *p, const placement_t *from)
{
    p->begin = from->begin;
    p->end = from->end;
    memcpy(p->free + p->begin, from->free + p->begin, (size_t)(p->end - p->begin) * sizeof *p->free);
}
