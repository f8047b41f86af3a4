#include "scheduler_inside.h"

/* When enough processors are expected to be free for the head, which does not fit now, and what it leaves over then. */
static int64_t reserve_head(const scheduler_t *s, int64_t now_s, int64_t free, int64_t *left_over)
{
    int64_t width = s->queue[s->head].width, reserved_s = INT64_MAX, expected = free;

    *left_over = 0;
    for (int32_t i = scheduler_first_ahead(s, now_s); i < s->n_running; i++) {
        int64_t end_s = ends_after(s->running[i].expected_end_s, now_s);
        if (end_s > reserved_s) /* not at once: all that ends at that time adds to what is left over */
            break;
        expected += s->running[i].width;
        if (expected >= width) {
            reserved_s = end_s;
            *left_over = expected - width;
        }
    }
    return reserved_s;
}

/*
 * EASY (Lifka 1995; Mu'alem and Feitelson 2001): the head, which does not fit, gets the earliest time at which enough
 * processors are expected to be free. Another job may start now if it ends by then, or if it fits into what the head
 * will leave over.
 */
static int32_t backfill_easy(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts)
{
    const waiting_t *head = &s->queue[s->head];
    int64_t left_over, reserved_s = reserve_head(s, now_s, free, &left_over);
    int shortest_first = s->composition.scan == SCAN_SHORTEST;
    const waiting_t *next = shortest_first ? s->shortest : head + 1;
    const waiting_t *end = shortest_first ? s->shortest + s->n_shortest : s->queue + s->tail;
    int32_t count = 0, narrowest = head->width;
    for (; next < end; next++) {
        int ends_in_time = next->estimate_s <= reserved_s - now_s;
        /* the shortest-first list has the head and jobs that have started as well */
        if (next->width > free || (!ends_in_time && next->width > left_over) || s->has_started[next->job] ||
            next->job == head->job) {
            narrowest = next->width < narrowest ? next->width : narrowest;
            continue;
        }
        starts[count++] = next->job;
        s->overtook[next->job] = 1;
        scheduler_start(s, now_s, next->job);
        free -= next->width;
        if (!ends_in_time) /* it runs on next to the head */
            left_over -= next->width;
        if (free < s->narrowest) /* nobody else fits */
            break;
    }
    if (next >= end) /* all were seen, so this is the narrowest that waits */
        s->narrowest = narrowest;
    return count;
}

/* List scheduling (Graham 1966): every job that fits starts, even past jobs that wait before it. */
static int32_t backfill_list(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts)
{
    int32_t count = 0, narrowest = s->queue[s->head].width, i;
    for (i = s->head + 1; i < s->tail && free >= s->narrowest; i++) {
        const waiting_t *next = &s->queue[i];
        if (next->width > free) {
            narrowest = next->width < narrowest ? next->width : narrowest;
            continue;
        }
        starts[count++] = next->job;
        s->overtook[next->job] = 1;
        scheduler_start(s, now_s, next->job);
        free -= next->width;
    }
    if (i == s->tail)
        s->narrowest = narrowest;
    return count;
}

/* What is free from now on if every running job ends as expected. 0, or -1: no memory. */
static int plan_running(scheduler_t *s, int64_t now_s, int64_t free)
{
    profile_t *profile = &s->profile;
    if (profile_reserve(profile, s->n_running + 1) < 0)
        return -1;
    profile->count = 1;
    profile->steps[0] = (step_t){.from_s = now_s, .free = free};
    for (int32_t i = scheduler_first_ahead(s, now_s); i < s->n_running; i++) {
        step_t *last = &profile->steps[profile->count - 1];
        int64_t end_s = ends_after(s->running[i].expected_end_s, now_s);
        if (last->from_s < end_s) {
            last[1] = (step_t){.from_s = end_s, .free = last->free};
            last++;
            profile->count++;
        }
        last->free += s->running[i].width;
    }
    return 0;
}

/*
 * Conservative backfilling, planned again in every pass (Mu'alem and Feitelson 2001; Glesser 2016 §2): each waiting job
 * in turn gets the earliest place that delays no job before it. Only places that begin now matter: once fewer
 * processors are free now than the narrowest of the remaining jobs needs, those need no place.
 */
static int32_t backfill_conservative(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts)
{
    profile_t *profile = &s->profile;
    if (plan_running(s, now_s, free) < 0)
        return -1;

    int32_t count = 0, narrowest = INT32_MAX, i;
    for (i = s->head; i < s->tail && profile->steps[0].free >= s->narrowest; i++) {
        const waiting_t *next = &s->queue[i];
        int64_t from_s = profile_earliest(profile, next->width, next->estimate_s);
        if (profile_take(profile, from_s, next->estimate_s, next->width) < 0)
            return -1;
        if (from_s == now_s) {
            starts[count++] = next->job;
            s->overtook[next->job] = 1;
            scheduler_start(s, now_s, next->job);
        } else if (next->width < narrowest) {
            narrowest = next->width;
        }
    }
    if (i == s->tail)
        s->narrowest = narrowest;
    return count;
}

/*
 * Conservative backfilling that keeps its reservations (Mu'alem and Feitelson 2001, §2): in every pass each job in turn
 * gives up its place and takes the earliest one that all other places allow. So a place only moves forward, as long as
 * estimates are upper bounds. A place whose time has passed, since a job before it ran longer, is void.
 */
static int32_t backfill_compress(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts)
{
    profile_t *profile = &s->profile;
    if (plan_running(s, now_s, free) < 0)
        return -1;
    for (int32_t i = s->head; i < s->tail; i++) {
        const waiting_t *next = &s->queue[i];
        s->is_reserved[next->job] &= s->reserved_s[next->job] >= now_s;
        if (s->is_reserved[next->job] &&
            profile_take(profile, s->reserved_s[next->job], next->estimate_s, next->width) < 0)
            return -1;
    }

    int32_t count = 0;
    for (int32_t i = s->head; i < s->tail; i++) {
        const waiting_t *next = &s->queue[i];
        if (s->is_reserved[next->job] &&
            profile_take(profile, s->reserved_s[next->job], next->estimate_s, -next->width) < 0)
            return -1;
        int64_t from_s = profile_earliest(profile, next->width, next->estimate_s);
        if (profile_take(profile, from_s, next->estimate_s, next->width) < 0)
            return -1;
        s->reserved_s[next->job] = from_s;
        s->is_reserved[next->job] = 1;
        if (from_s == now_s) {
            starts[count++] = next->job;
            s->overtook[next->job] = i > s->head;
            scheduler_start(s, now_s, next->job);
        }
    }
    return count;
}

int32_t backfill_jobs(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts)
{
    switch (s->composition.backfill) {
    case BACKFILL_EASY:
        return backfill_easy(s, now_s, free, starts);
    case BACKFILL_LIST:
        return backfill_list(s, now_s, free, starts);
    case BACKFILL_CONSERVATIVE:
        return backfill_conservative(s, now_s, free, starts);
    case BACKFILL_COMPRESS:
        return backfill_compress(s, now_s, free, starts);
    default:
        return 0;
    }
}
