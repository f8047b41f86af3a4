/* Partitions of processors and memory: a job needs so much of both, in its own partition. As processors.c otherwise. */
#include "resources/site_limits_inside.h"

static amounts_t *free_of(const scheduler_t *s, int32_t job)
{
    return &s->limited->free[s->limited->given.partition[job]];
}

static int64_t kib_of(const scheduler_t *s, int32_t job)
{
    return s->limited->given.memory_kib[job];
}

static int start_head(scheduler_t *s, int64_t now_s, const waiting_t *head)
{
    const amounts_t *free = free_of(s, head->job);
    if (head->width > free->processors)
        return 0;
    if (kib_of(s, head->job) > free->kib) {
        s->limited->given.changed[head->job] |= CHANGED_BY_MEMORY;
        return 0;
    }
    scheduler_start(s, now_s, head->job);
    return 1;
}

/* When enough of both are expected to be free for the head, and what it leaves over then. */
static void reserve(scheduler_t *s, int64_t now_s, const waiting_t *head, offer_t *offer)
{
    limited_t *l = s->limited;
    int32_t job = head->job, part = l->given.partition[job], has_processors = 0;
    amounts_t expected = l->free[part];
    int64_t kib = kib_of(s, job), at_s = INT64_MAX;

    l->spare_kib = INT64_MAX;
    offer->widest = offer->widest_late = expected.processors;
    for (int32_t i = 0; offer->is_reserved && i < s->n_running; i++) {
        int64_t end_s = ends_after(s->running[i].expected_end_s, now_s);
        if (end_s > at_s)
            break;
        if (l->given.partition[s->running[i].job] != part)
            continue;
        expected.processors += s->running[i].width;
        expected.kib += kib_of(s, s->running[i].job);
        if (expected.processors < head->width || expected.kib < kib) {
            has_processors |= expected.processors >= head->width;
            continue;
        }
        at_s = end_s;
        offer->widest_late = expected.processors - head->width;
        l->spare_kib = expected.kib - kib;
    }
    if (has_processors)
        l->given.changed[job] |= CHANGED_BY_MEMORY;
    offer->reserved.at_s = at_s;
    offer->late_s = at_s == INT64_MAX ? INT64_MAX : at_s - now_s;
}

static int start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, offer_t *offer)
{
    limited_t *l = s->limited;
    int64_t kib = kib_of(s, next->job);
    int is_late = next->estimate_s > offer->late_s;

    if (kib > free_of(s, next->job)->kib || (is_late && kib > l->spare_kib)) {
        l->given.changed[next->job] |= CHANGED_BY_MEMORY;
        return 0;
    }
    scheduler_start(s, now_s, next->job);
    offer->widest = free_of(s, next->job)->processors;
    if (is_late) {
        offer->widest_late -= next->width;
        l->spare_kib -= kib;
    }
    return 1;
}

const resources_t PARTITIONS = {
    .start_head = start_head,
    .reserve = reserve,
    .start_behind = start_behind,
    .start_placed = scheduler_start_placed,
};
