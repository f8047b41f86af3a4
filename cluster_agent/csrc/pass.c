/*
 * A pass: who is the head of the queue, which heads start, and which jobs may start behind a head that cannot.
 *
 * What a job needs, and whether there is room for it, only the resources know (resources_t). So EASY is one loop, on
 * processors, under watts and with configurations. It is fast where most waiting jobs cannot start: an offer bounds the
 * width of jobs that may end after the head's start, and of those that may not, and resources are asked only about jobs
 * within these bounds. On processors alone the bounds are the whole answer. Cost: O(waiting jobs) of a compare or two.
 */
#include <math.h>
#include <string.h>

#include "scheduler_inside.h"

/* Bounded slowdowns count from this run time on (Feitelson et al., JSSPP 1997). */
enum { BSLD_TAU_S = 10 };

/****************************************************************
 * The head
 ****************************************************************/

/* The bounded slowdown that a waiting job would have if it started now. */
static double slowdown_now(const scheduler_t *s, int64_t now_s, const waiting_t *waiting)
{
    int64_t estimate_s = waiting->estimate_s;
    double wait_s = (double)(now_s - s->submit_s[waiting->job]);
    return (wait_s + (double)estimate_s) / (double)(estimate_s > BSLD_TAU_S ? estimate_s : BSLD_TAU_S);
}

/*
 * The guard (ours): of the waiting jobs whose bounded slowdown would pass the bound even if they started now, the one
 * with the highest becomes the head. Equal ones: the first in the queue.
 */
static void guard(scheduler_t *s, int64_t now_s)
{
    double highest = s->composition.guard;
    int32_t place = s->head;

    for (int32_t i = s->head; i < s->tail; i++) {
        double slowdown = slowdown_now(s, now_s, &s->queue[i]);
        if (slowdown > highest) {
            highest = slowdown;
            place = i;
        }
    }
    waiting_t next = s->queue[place];
    memmove(s->queue + s->head + 1, s->queue + s->head, (size_t)(place - s->head) * sizeof next);
    s->queue[s->head] = next;
}

/* Starts heads in turn as long as there is room for them; how many; -1: no memory. */
static int32_t start_heads(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t count = 0;
    for (; s->head < s->tail; s->head++) {
        if (s->has_started[s->queue[s->head].job]) /* a gap */
            continue;
        if (s->composition.guard > 0.0)
            guard(s, now_s);
        int started = s->phases.resources->start_head(s, now_s, &s->queue[s->head]);
        if (started <= 0)
            return started < 0 ? -1 : count;
        starts[count++] = s->queue[s->head].job;
    }
    return count;
}

/****************************************************************
 * Behind the head
 ****************************************************************/

/* Whether a job of this width and expected run time cannot start; then no job can that is wider or longer. */
static inline int asks_too_much(const offer_t *offer, int32_t width, int64_t estimate_s)
{
    return __builtin_expect(width > offer->widest, 1) || (estimate_s > offer->late_s && width > offer->widest_late) ||
           (double)width * (double)least(estimate_s, offer->late_s) > offer->most_area;
}

/* The shortest-first list has the head and jobs that have started as well; the head's kind is refused with it. */
static inline int is_out(const scheduler_t *s, const waiting_t *next, const waiting_t *head, const kinds_t *kinds)
{
    return s->has_started[next->job] || next->job == head->job ||
           (kinds && kinds->kind_of[next->job] == kinds->kind_of[head->job]);
}

/*
 * Starts who may start, of the jobs from `next` to `end` in this order; or, with kinds, of the first waiting job of each
 * kind: one that starts leaves its place to the next of its kind, and if one may not, none of its kind may.
 */
static inline int32_t start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, const waiting_t *end,
                                   const kinds_t *kinds, offer_t *offer, int32_t *starts)
{
    const waiting_t *head = &s->queue[s->head];
    int32_t count = 0, narrowest = head->width;

    for (;;) {
        const waiting_t *stop = kinds ? kinds->fronts + kinds->n_fronts : end;
        const offer_t bounds = *offer; /* in registers, since most jobs are refused here */
        for (; next < stop && (asks_too_much(&bounds, next->width, next->estimate_s) || is_out(s, next, head, kinds));
             next++)
            narrowest = next->width < narrowest ? next->width : narrowest;
        if (next >= stop)
            break;
        const waiting_t one = *next; /* a start moves the fronts */
        int started = s->phases.resources->start_behind(s, now_s, &one, offer);
        next += !kinds || !started;
        if (started < 0)
            return -1;
        if (!started) {
            narrowest = one.width < narrowest ? one.width : narrowest;
            continue;
        }
        starts[count++] = one.job;
        s->overtook[one.job] = 1;
        if (asks_too_much(offer, s->narrowest, 1)) /* nobody else can start */
            return count;
    }
    s->narrowest = narrowest; /* all were seen */
    return count;
}

/* Starts jobs that leave the head what the resources reserve for it, or that just fit, if it reserves nothing. */
static int32_t start_others(scheduler_t *s, int64_t now_s, int reserves, int shortest_first, int32_t *starts)
{
    const resources_t *resources = s->phases.resources;
    offer_t offer = {.reserved = {.at_s = INT64_MAX}, .late_s = INT64_MAX, .most_area = INFINITY};
    const kinds_t *kinds = resources->kinds ? resources->kinds(s) : NULL;

    resources->reserve(s, now_s, reserves ? &s->queue[s->head] : NULL, &offer);
    if (asks_too_much(&offer, s->narrowest, 1))
        return 0;
    if (kinds)
        return start_behind(s, now_s, kinds->fronts, NULL, kinds, &offer, starts);
    if (shortest_first)
        return start_behind(s, now_s, s->shortest, s->shortest + s->n_shortest, NULL, &offer, starts);
    return start_behind(s, now_s, s->queue + s->head + 1, s->queue + s->tail, NULL, &offer, starts);
}

/* EASY (Lifka 1995; Mu'alem and Feitelson 2001): the head gets the earliest time at which there is expected to be room
 * for it. Another job may start now if it ends by then, or if it fits into what the head will leave over. */
static int32_t easy(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    return start_others(s, now_s, 1, s->composition.scan == SCAN_SHORTEST, starts);
}

/* List scheduling (Graham 1966): every job that fits starts, even past jobs that wait before it. */
static int32_t list(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    return start_others(s, now_s, 0, 0, starts);
}

static int32_t nobody(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    (void)s;
    (void)now_s;
    (void)starts;
    return 0;
}

/****************************************************************
 * A place for everybody
 ****************************************************************/

/* Gives the waiting job the earliest place; where it may run at several frequencies, at the highest of those that have
 * it. Starts it if it begins now: 1; 0: it does not; -1: no memory. */
static int place(scheduler_t *s, int64_t now_s, const waiting_t *next)
{
    const resources_t *resources = s->phases.resources;
    profile_t *profile = &s->profile;
    int64_t earliest_s = INT64_MAX;
    claim_t claim, taken;
    int started = 0, is_lower = 1, waits_for_joules = 0;

    for (int32_t level = 0; !started && is_lower; level++) {
        is_lower = resources->claim(s, next, level, &claim);
        int64_t from_s = profile_earliest(profile, &claim);
        if (from_s == now_s)
            started = resources->start_placed(s, now_s, next->job, level);
        if (from_s < earliest_s || started) {
            taken = claim;
            earliest_s = from_s;
            waits_for_joules = from_s > now_s && from_s == profile->paid_s && claim.width <= profile->steps[0].free;
        }
    }
    if (waits_for_joules) /* nothing else happens then */
        profile->wake_s = least(profile->wake_s, earliest_s);
    if (started < 0 || earliest_s == INT64_MAX)
        return started;
    return profile_take(profile, earliest_s, &taken, 1) < 0 ? -1 : started;
}

/*
 * Conservative backfilling, planned again in every pass (Mu'alem and Feitelson 2001; Glesser 2016 §2): each waiting job
 * in turn gets the earliest place that delays no job before it. Only places that begin now matter: once fewer
 * processors are free now than the narrowest of the remaining jobs needs, those need no place.
 */
static int32_t conservative(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    if (s->phases.resources->plan(s, now_s) < 0)
        return -1;

    int32_t count = 0, narrowest = INT32_MAX, i;
    for (i = s->head; i < s->tail && s->profile.steps[0].free >= s->narrowest; i++) {
        const waiting_t next = s->queue[i];
        if (s->has_started[next.job]) /* a gap */
            continue;
        int started = place(s, now_s, &next);
        if (started < 0)
            return -1;
        if (started) {
            starts[count++] = next.job;
            s->overtook[next.job] = 1;
        } else if (next.width < narrowest) {
            narrowest = next.width;
        }
    }
    if (i == s->tail)
        s->narrowest = narrowest;
    return count;
}

/* The places that waiting jobs have kept, but for those whose time has passed. 0, or -1: no memory. */
static int take_kept(scheduler_t *s, int64_t now_s)
{
    for (int32_t i = s->head; i < s->tail; i++) {
        const waiting_t *next = &s->queue[i];
        claim_t claim;
        if (s->has_started[next->job]) /* a gap */
            continue;
        s->is_reserved[next->job] &= s->reserved_s[next->job] >= now_s;
        s->phases.resources->claim(s, next, 0, &claim);
        if (s->is_reserved[next->job] && profile_take(&s->profile, s->reserved_s[next->job], &claim, 1) < 0)
            return -1;
    }
    return 0;
}

/* The waiting job gives up its place and takes the earliest one. Starts it if it begins now: 1; 0: it does not; -1: no
 * memory. */
static int move_forward(scheduler_t *s, int64_t now_s, const waiting_t *next)
{
    int64_t *reserved_s = &s->reserved_s[next->job];
    claim_t claim;
    s->phases.resources->claim(s, next, 0, &claim);
    if (s->is_reserved[next->job] && profile_take(&s->profile, *reserved_s, &claim, -1) < 0)
        return -1;
    *reserved_s = profile_earliest(&s->profile, &claim);
    s->is_reserved[next->job] = 1;
    if (profile_take(&s->profile, *reserved_s, &claim, 1) < 0)
        return -1;
    return *reserved_s == now_s ? s->phases.resources->start_placed(s, now_s, next->job, 0) : 0;
}

/*
 * Conservative backfilling that keeps its reservations (Mu'alem and Feitelson 2001, §2): in every pass each job in turn
 * gives up its place and takes the earliest one that all other places allow. So a place only moves forward, as long as
 * estimates are upper bounds. A place whose time has passed, since a job before it ran longer, is void. Only where watts
 * are not planned.
 */
static int32_t compress(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    if (s->phases.resources->plan(s, now_s) < 0 || take_kept(s, now_s) < 0)
        return -1;

    int32_t count = 0, first = -1;
    for (int32_t i = s->head; i < s->tail; i++) {
        const waiting_t next = s->queue[i];
        if (s->has_started[next.job])
            continue;
        first = first < 0 ? i : first;
        int started = move_forward(s, now_s, &next);
        if (started < 0)
            return -1;
        if (started) {
            starts[count++] = next.job;
            s->overtook[next.job] = i > first;
        }
    }
    return count;
}

backfill_t *const BACKFILLS[] = {
    [BACKFILL_NONE] = nobody,
    [BACKFILL_EASY] = easy,
    [BACKFILL_CONSERVATIVE] = conservative,
    [BACKFILL_COMPRESS] = compress,
    [BACKFILL_LIST] = list,
};

/****************************************************************
 * The whole pass
 ****************************************************************/

/* Whom the guard puts ahead stays there. So it acts only where something can start, which a lower bound does not say. */
static void find_narrowest(scheduler_t *s)
{
    s->narrowest = INT32_MAX;
    for (int32_t i = s->head; i < s->tail; i++)
        if (s->queue[i].width < s->narrowest)
            s->narrowest = s->queue[i].width;
}

/* Heads in turn, then whoever may start behind them. How many start; -1: no memory. */
static int32_t start_jobs(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int keeps_places = s->composition.backfill == BACKFILL_COMPRESS; /* its reservations start the heads, too */
    int32_t count = keeps_places ? 0 : start_heads(s, now_s, starts);
    int32_t fewest = s->profile.budget_s > now_s ? 1 : 2; /* the head may wait for joules, and wants a pass then */
    if (count < 0 || (!keeps_places && (s->n_waiting - count < fewest || s->free_in_pass <= 0)))
        return count;
    int32_t others = s->phases.backfill(s, now_s, starts + count);
    return others < 0 ? -1 : count + others;
}

static int32_t decide(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    const resources_t *resources = s->phases.resources;
    int has_guard = s->composition.guard > 0.0;

    s->free_in_pass = scheduler_free_now(s, now_s);
    if (resources->begin)
        resources->begin(s, now_s);
    if (s->ranks)
        priority_charge(s, now_s);
    if (now_s < s->decides_from_s)
        return 0;
    /* nobody fits, however many wait; but reservations are compressed in each pass */
    if (has_guard)
        find_narrowest(s);
    if (s->free_in_pass < s->narrowest && s->composition.backfill != BACKFILL_COMPRESS)
        return 0;
    if (s->ranks)
        priority_order(s, now_s);
    if (s->scores)
        score_order(s, now_s);
    if (resources->look)
        resources->look(s, now_s);
    int32_t count = start_jobs(s, now_s, starts);
    if (count < 0)
        return -1;
    s->n_waiting -= count;
    scheduler_close_gaps(s, resources->kinds && resources->kinds(s) ? s->n_waiting / 4 : 0);
    /* the guard puts jobs where their ranks do not */
    s->ranking.n_ordered = has_guard ? 0 : s->tail - s->head;
    return count;
}

int32_t scheduler_decide(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t count = decide(s, now_s, starts);
    const resources_t *resources = s->phases.resources;
    return resources->finish && now_s >= s->decides_from_s && resources->finish(s, now_s) < 0 ? -1 : count;
}
