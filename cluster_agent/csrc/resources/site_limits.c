/* What counts for limits and partitions, when reservations are, and when queues are open. See site_limits.h. */
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

int limits_allow(const scheduler_t *s, const waiting_t *one)
{
    const limits_t *given = &s->limited->given;
    const int32_t *counter = given->counter + (int64_t)one->job * given->n_keys;

    for (int32_t k = 0; k < given->n_keys; k++) {
        int32_t at = counter[k];
        if (at < 0 || s->limited->used[at] + (given->counts_jobs[at] ? 1 : s->jobs.width[one->job]) <= given->most[at])
            continue;
        if (one->width <= s->free)
            given->changed[one->job] |= CHANGED_BY_LIMITS;
        return 0;
    }
    return 1;
}

void scheduler_reserve(scheduler_t *s, const booking_t *reserved, int32_t n_reserved)
{
    s->limited->given.reserved = reserved;
    s->limited->given.n_reserved = n_reserved;
}

void scheduler_open(scheduler_t *s, const int32_t *opens, const window_t *windows)
{
    s->limited->given.opens = opens;
    s->limited->given.windows = windows;
}

int64_t reserved_from(const booking_t *one, int64_t now_s)
{
    if (now_s < one->to_s)
        return one->from_s;
    return one->every_s ? one->from_s + ((now_s - one->to_s) / one->every_s + 1) * one->every_s : INT64_MAX;
}

int32_t open_queue(const limits_t *given, int32_t job)
{
    return given->n_open && !(given->n_reserved && given->pool[job]) ? given->open[job] - 1 : -1;
}

window_t window_after(const limits_t *given, int32_t queue, int64_t at_s)
{
    const window_t *windows = given->windows;
    int32_t low = given->opens[queue], high = given->opens[queue + 1] - 1;
    int64_t over_s = at_s - windows[high].to_s, shift_s = over_s < 0 ? 0 : (over_s / WEEK_S + 1) * WEEK_S;

    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (windows[middle].to_s > at_s - shift_s)
            high = middle;
        else
            low = middle + 1;
    }
    return (window_t){windows[low].from_s + shift_s, windows[low].to_s + shift_s};
}

window_t window_behind(const limits_t *given, int32_t queue, int64_t to_s)
{
    window_t window = window_after(given, queue, to_s);
    return (window_t){greatest(window.from_s, to_s), window.to_s};
}

/* When a queue opens next in which a job waits. */
static int64_t next_open(const scheduler_t *s, int64_t now_s)
{
    const limits_t *given = &s->limited->given;
    int64_t next_s = INT64_MAX;
    for (int32_t i = s->head; given->n_open && i < s->tail; i++) {
        int32_t queue = s->has_started[s->queue[i].job] ? -1 : open_queue(given, s->queue[i].job);
        if (queue < 0)
            continue;
        window_t window = window_after(given, queue, now_s);
        if (window.from_s <= now_s)
            window = window_behind(given, queue, window.to_s);
        next_s = least(next_s, window.from_s);
    }
    return next_s;
}

int64_t scheduler_next_reserved(const scheduler_t *s, int64_t now_s)
{
    const limits_t *given = &s->limited->given;
    int64_t next_s = next_open(s, now_s);
    for (int32_t i = 0; i < given->n_reserved; i++) {
        const booking_t *one = &given->reserved[i];
        int64_t from_s = reserved_from(one, now_s), at_s;
        if (one->made_s > now_s)
            at_s = one->made_s;
        else if (one->gone_s <= now_s || from_s == INT64_MAX)
            continue;
        else
            at_s = least(from_s > now_s ? from_s : from_s + one->to_s - one->from_s, one->gone_s);
        next_s = least(next_s, at_s);
    }
    return next_s;
}
