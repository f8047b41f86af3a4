/*
 * A pass: who is the head of the queue, which heads start, and which jobs may start behind a head that cannot.
 *
 * What a job needs, and whether there is room for it, only the resources know (resources_t). So EASY is one loop, on
 * processors, under watts and with configurations. It is fast where most waiting jobs cannot start: an offer bounds the
 * width of jobs that may end after the head's start, and of those that may not, and resources are asked only about jobs
 * within these bounds. On processors alone the bounds are the whole answer. Cost: O(waiting jobs) of a compare or two;
 * where the queue is in order, whole stretches of it are passed over by what their narrowest and shortest jobs need.
 */
#include <math.h>
#include <string.h>

#include "resources/site_limits_inside.h"

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

/* The shortest-first list has the head and jobs that have started as well; the head's kind is refused with it. */
static inline int is_out(const scheduler_t *s, const waiting_t *next, const waiting_t *head, const kinds_t *kinds)
{
    return s->has_started[next->job] || next->job == head->job ||
           (kinds && kinds->kind_of[next->job] == kinds->kind_of[head->job]);
}

/* Where the stretch of the queue ends that has `next`. */
static inline const waiting_t *stretch_end(const scheduler_t *s, const waiting_t *next, const waiting_t *stop)
{
    const waiting_t *end = s->queue + ((next - s->queue) / STRETCH + 1) * STRETCH;
    return end < stop ? end : stop;
}

/* The job at this place of the queue has started. */
static void fill_stretch(scheduler_t *s, int32_t place)
{
    int32_t from = place / STRETCH * STRETCH, to = from + STRETCH;
    scheduler_fill_stretches(s, from > s->head ? from : s->head, to < s->tail ? to : s->tail);
}

/* The queue from the first stretch on that has a job which does not ask too much; from `next` on, which begins one. */
static const waiting_t *pass_over(const scheduler_t *s, const offer_t *offer, const waiting_t *next,
                                  const waiting_t *stop, int32_t *narrowest)
{
    int32_t fits = queue_class(offer->widest), fits_late = queue_class(least(offer->widest, offer->widest_late));
    const stretch_t *stretch = &s->stretches[(next - s->queue) / STRETCH];

    while (next < stop && stretch->shortest_s[fits] > offer->late_s && stretch->shortest_s[fits_late] == INT64_MAX) {
        *narrowest = stretch->narrowest < *narrowest ? stretch->narrowest : *narrowest;
        next = stretch_end(s, next, stop);
        stretch++;
    }
    return next;
}

/* The first job from `next` on that does not ask too much. */
static inline const waiting_t *first_within(const scheduler_t *s, const offer_t bounds, const waiting_t *next,
                                            const waiting_t *stop, const kinds_t *kinds, int in_stretches,
                                            int32_t *narrowest)
{
    const waiting_t *head = &s->queue[s->head];
    int32_t least = *narrowest;

    for (;;) {
        const waiting_t *until = in_stretches ? stretch_end(s, next, stop) : stop;
        for (; next < until && (asks_too_much(&bounds, next->width, next->estimate_s) || is_out(s, next, head, kinds));
             next++)
            least = next->width < least ? next->width : least;
        if (next < until || until == stop)
            break;
        next = pass_over(s, &bounds, next, stop, &least);
    }
    *narrowest = least;
    return next;
}

/*
 * Starts who may start, of the jobs from `next` to `end` in this order; or, with kinds, of the first waiting job of each
 * kind: one that starts leaves its place to the next of its kind, and if one may not, none of its kind may.
 */
static inline int32_t start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, const waiting_t *end,
                                   const kinds_t *kinds, offer_t *offer, int32_t *starts)
{
    const resources_t *resources = s->phases.resources;
    const waiting_t *head = &s->queue[s->head];
    int in_stretches = end == s->queue + s->tail && scheduler_has_stretches(s) && s->is_stretched;
    int32_t count = 0, narrowest = head->width;

    for (;;) {
        const waiting_t *stop = kinds ? kinds->fronts + kinds->n_fronts : end;
        next = resources->first_likely ? resources->first_likely(s, now_s, next, stop)
                                       : first_within(s, *offer, next, stop, kinds, in_stretches, &narrowest);
        if (next >= stop)
            break;
        const waiting_t one = *next; /* a start moves the fronts */
        int started = resources->start_behind(s, now_s, &one, offer);
        next += !kinds || !started;
        if (started < 0)
            return -1;
        if (!started) {
            narrowest = one.width < narrowest ? one.width : narrowest;
            continue;
        }
        starts[count++] = one.job;
        s->overtook[one.job] = 1;
        if (in_stretches)
            fill_stretch(s, (int32_t)(next - s->queue) - 1);
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

/* The caller says who starts. */
static int32_t own(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t waiting = 0, running = s->n_running - scheduler_first_ahead(s, now_s), count = 0;
    if (s->free_in_pass < s->narrowest)
        return 0;
    for (int32_t i = s->head; i < s->tail; i++)
        waiting += !s->has_started[s->queue[i].job];
    int32_t chosen = s->own->backfill(s->own->context, now_s, waiting, running, s->free_in_pass, starts);
    for (int32_t i = 0; i < chosen; i++) {
        int32_t job = starts[i];
        int started = s->phases.resources->start_placed(s, now_s, job, 0);
        if (started < 0)
            return -1;
        if (started)
            starts[count++] = job;
        s->overtook[job] = started;
    }
    return count;
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

/* What a pass knows of the jobs that it has seen and that cannot start now. */
typedef struct {
    int32_t narrowest; /* of all jobs */
    int64_t wider;     /* the narrowest job for which too few processors are free now */
    int64_t until_s;   /* no other one begins earlier */
} refused_t;

/* The first of the waiting jobs from `i` on that might start now. The others lack processors, now or before they end. */
static int32_t next_to_start(const scheduler_t *s, int64_t now_s, int32_t i, refused_t *refused)
{
    const profile_t *profile = &s->profile;
    const step_t *steps = profile->steps, *last = &steps[profile->count - 1];
    int64_t widest = steps[0].free, least_s = profile->budget_s > now_s ? 1 : INT64_MAX; /* it may wait for joules */
    int64_t longest_s = last->free < profile->narrowest ? last->from_s - now_s : INT64_MAX;
    int64_t width = INT64_MAX, most_s = 0; /* of the last who was refused: nobody as wide can run longer */

    for (; i < s->tail; i++) {
        const waiting_t *next = &s->queue[i];
        refused->narrowest = next->width < refused->narrowest ? next->width : refused->narrowest;
        if (next->width > widest) {
            refused->wider = least(refused->wider, next->width);
            continue;
        }
        if (next->estimate_s > longest_s || (next->width >= width && next->estimate_s > most_s) ||
            s->has_started[next->job])
            continue;
        int32_t low = 1;
        while (low < profile->count && steps[low].free >= next->width)
            low++;
        if (low == profile->count || steps[low].from_s - now_s >= least(next->estimate_s, least_s))
            break;
        width = next->width;
        most_s = steps[low].from_s - now_s;
        refused->until_s = least(refused->until_s, low + 1 < profile->count ? steps[low + 1].from_s : INT64_MAX);
    }
    return i;
}

/* Whether the job, which may start now, has ended before any that was refused begins, wherever these find their places.
 * Then neither moves the other. Who was refused since the profile ends too early begins behind its end, and this job does
 * not reach that. */
static int is_before(const scheduler_t *s, int64_t now_s, const waiting_t *next, const refused_t *refused)
{
    const profile_t *profile = &s->profile;
    int32_t i = 1;
    if (!s->phases.resources->is_width_all || now_s + next->estimate_s > refused->until_s)
        return 0;
    while (i < profile->count && profile->steps[i].free < refused->wider)
        i++;
    return refused->wider == INT64_MAX || i == profile->count || now_s + next->estimate_s <= profile->steps[i].from_s;
}

/*
 * Conservative backfilling (Mu'alem and Feitelson 2001; Glesser 2016 §2): each waiting job in turn gets the earliest
 * place that delays no job before it. Almost every job ends early, and that moves many places. So the plan is made again
 * in each pass, but only as far as it decides who starts now. Places only lower the profile: a job that lacks
 * processors before it would end cannot start in this pass, and once that is true of all jobs without a place, nobody
 * needs one. A job that has ended before any of these can begin starts at once, and they need no place for it. And
 * nobody can use a step in which fewer processors are free than the narrowest job needs: the profile ends there, since
 * who finds no place before it takes nothing from who does. Cost: O(waiting jobs) compares, and O(steps) for each place:
 * where 6000 jobs wait on RICC, some 50.
 */
static int32_t conservative(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    profile_t *profile = &s->profile;
    refused_t refused = {INT32_MAX, INT64_MAX, INT64_MAX};
    int32_t count = 0;

    if (s->phases.resources->plan(s, now_s) < 0)
        return -1;
    profile_begin(profile, profile->budget_s > now_s ? INT64_MIN : s->narrowest); /* joules are stored in all steps */
    for (int32_t i = s->head, next = -1, at;; i += at == i) {
        int is_first = 0;
        if (next < i || s->has_started[s->queue[next].job] || profile->lowest < s->queue[next].width) {
            next = next_to_start(s, now_s, next < i ? i : next, &refused);
            is_first = next < s->tail && is_before(s, now_s, &s->queue[next], &refused);
        }
        if (next == s->tail)
            break;
        at = is_first ? next : i;
        const waiting_t one = s->queue[at];
        if (s->has_started[one.job]) /* a gap, or it has started before its turn */
            continue;
        int started = place(s, now_s, &one);
        if (started < 0)
            return -1;
        if (started) {
            starts[count++] = one.job;
            s->overtook[one.job] = 1;
        }
    }
    s->narrowest = refused.narrowest; /* all were seen */
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
    if (s->phases.resources->plan(s, now_s) < 0)
        return -1;
    profile_begin(&s->profile, INT64_MIN);
    if (take_kept(s, now_s) < 0)
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
    [BACKFILL_OWN] = own,
};

/****************************************************************
 * The whole pass
 ****************************************************************/

/* Heads in turn, then whoever may start behind them. How many start; -1: no memory. */
static int32_t start_jobs(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    if (s->limited && reserved_is_any(s, now_s))
        return reserved_pass(s, now_s, starts);
    if (s->limited && (s->limited->given.n_partitions || s->limited->given.n_keys))
        return limited_pass(s, now_s, starts);
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
    if (has_guard) /* whom it puts ahead stays there, so it acts only where somebody can start */
        scheduler_find_narrowest(s);
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
    int bears_gaps = scheduler_has_stretches(s) || (resources->kinds && resources->kinds(s));
    scheduler_close_gaps(s, bears_gaps ? s->n_waiting / 4 : 0);
    /* the guard puts jobs where their ranks do not */
    s->ranking.n_ordered = has_guard ? 0 : s->tail - s->head;
    return count;
}

int32_t scheduler_decide(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    if (s->phases.choose && now_s >= s->decides_from_s && s->phases.choose(s, now_s) < 0)
        return -1;
    int32_t count = decide(s, now_s, starts);
    const resources_t *resources = s->phases.resources;
    if (resources->finish && now_s >= s->decides_from_s && resources->finish(s, now_s) < 0)
        return -1;
    return count < 0 || !s->best_effort ? count : count + scheduler_decide_left(s, now_s, starts + count);
}
