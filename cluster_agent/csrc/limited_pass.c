/* A pass with limits or partitions: each partition in turn, past jobs that are not eligible. See site_limits.h. */
#include <math.h>

#include "resources/site_limits_inside.h"

enum { PROCESSORS_OF, KIB_OF, AMOUNTS };

int32_t scheduler_set_limits(scheduler_t *s, const limits_t *given)
{
    limited_t *l = s->limited = column(&s->memory, 1, sizeof *l);
    if (!l)
        return -1;
    l->given = *given;
    l->used = column(&s->memory, given->n_counters, sizeof *l->used);
    l->keeps_place = column(&s->memory, given->n_open, sizeof *l->keeps_place);
    l->free = column(&s->memory, given->n_partitions, sizeof *l->free);
    if (given->n_partitions)
        s->phases.resources = &PARTITIONS;
    if (s->memory.is_short)
        return -1;
    for (int32_t p = 0; p < given->n_partitions; p++)
        l->free[p] = (amounts_t){given->has[p * AMOUNTS + PROCESSORS_OF], given->has[p * AMOUNTS + KIB_OF]};
    return 0;
}

static int is_in(const scheduler_t *s, int32_t job, int32_t part)
{
    return !s->has_started[job] && (!s->limited->given.n_partitions || s->limited->given.partition[job] == part);
}

static int64_t free_in(const scheduler_t *s, int32_t part)
{
    return s->limited->given.n_partitions ? s->limited->free[part].processors : s->free;
}

/* It does not start: notes whether that is for want of room in its own partition alone. */
static void refuse(const scheduler_t *s, const waiting_t *one, int32_t part)
{
    if (one->width > free_in(s, part) && one->width <= s->free)
        s->limited->given.changed[one->job] |= CHANGED_BY_PARTITIONS;
}

/* Starts jobs behind the head of the partition. How many; -1: no memory. */
static int32_t start_behind(scheduler_t *s, int64_t now_s, int32_t part, const waiting_t *head, int32_t *starts)
{
    int is_shortest = s->composition.scan == SCAN_SHORTEST, is_easy = s->composition.backfill == BACKFILL_EASY;
    const waiting_t *next = is_shortest ? s->shortest : s->queue + s->head;
    const waiting_t *end = is_shortest ? s->shortest + s->n_shortest : s->queue + s->tail;
    offer_t offer = {.reserved = {.at_s = INT64_MAX}, .late_s = INT64_MAX, .most_area = INFINITY, .is_reserved = is_easy};
    int32_t count = 0;

    s->phases.resources->reserve(s, now_s, is_easy || s->limited->given.n_partitions ? head : NULL, &offer);
    for (; next < end; next++) {
        if (!is_in(s, next->job, part) || next->job == head->job || !limits_allow(s, next))
            continue;
        const waiting_t one = *next;
        int started = asks_too_much(&offer, one.width, one.estimate_s)
                          ? 0
                          : s->phases.resources->start_behind(s, now_s, &one, &offer);
        if (started < 0)
            return -1;
        if (!started) {
            refuse(s, &one, part);
            continue;
        }
        starts[count++] = one.job;
        s->overtook[one.job] = 1;
    }
    return count;
}

static int32_t start_in(scheduler_t *s, int64_t now_s, int32_t part, int32_t *starts)
{
    int32_t count = 0, passed_over = 0;
    for (int32_t i = s->head; i < s->tail; i++) {
        const waiting_t head = s->queue[i];
        if (!is_in(s, head.job, part))
            continue;
        if (!limits_allow(s, &head)) {
            passed_over = 1;
            continue;
        }
        int started = s->phases.resources->start_head(s, now_s, &head);
        if (started < 0)
            return -1;
        if (!started) {
            refuse(s, &head, part);
            int32_t others = s->composition.backfill == BACKFILL_NONE ? 0 : start_behind(s, now_s, part, &head, starts + count);
            return others < 0 ? -1 : count + others;
        }
        starts[count++] = head.job;
        s->overtook[head.job] = (uint8_t)passed_over;
    }
    return count;
}

/* Notes who starts now past a job that waits in another partition. */
static void compare_partitions(const scheduler_t *s, int64_t now_s)
{
    const limits_t *given = &s->limited->given;
    int32_t first = -1, is_mixed = 0;
    for (int32_t i = s->head; i < s->tail; i++) {
        int32_t job = s->queue[i].job, part = given->partition[job];
        if (!s->has_started[job]) {
            is_mixed |= first >= 0 && part != first;
            first = first < 0 ? part : first;
        } else if (s->started_s[job] == now_s && (is_mixed || (first >= 0 && part != first))) {
            given->changed[job] |= CHANGED_BY_PARTITIONS;
        }
    }
}

int32_t limited_pass(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t n = s->limited->given.n_partitions, count = 0;
    for (int32_t part = 0; part < n || part == 0; part++) {
        int32_t more = start_in(s, now_s, part, starts + count);
        if (more < 0)
            return -1;
        count += more;
    }
    if (n > 1)
        compare_partitions(s, now_s);
    return count;
}
