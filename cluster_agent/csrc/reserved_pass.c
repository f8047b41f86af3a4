/*
 * A pass with reservations or windows of queues: the common jobs on what no reservation keeps, then the jobs of each
 * reservation on its own.
 *
 * Both are the same walk over a profile of free processors. That of the common jobs loses what is reserved in each
 * interval to come, so a job whose walltime reaches into one finds its place before or behind it. That of a reservation
 * has processors in its intervals alone, so its jobs begin and end in them. Walltimes count, and not estimates: a
 * reservation is a promise, and only walltimes are bounds. EASY keeps the place of the first job that cannot start,
 * conservative backfilling those of all, list scheduling none.
 *
 * Where the policy plans watts, the profile has them too: what running jobs leave under each cap until their limits. A
 * reservation keeps for each of its processors what a busy one draws at the lowest frequency, and running jobs of it
 * count with what they draw above that. Its own jobs may take all watts that are left. A job starts at the highest
 * frequency at which its place begins now, and keeps the earliest place of all its frequencies.
 *
 * A job of a queue with windows finds its place in one of them: the earliest in the first that is long enough, or in
 * later ones. While it cannot start for its window alone it stands in nobody's way: the next job is the head. But the
 * first such job of each queue keeps its place, too, unless scheduling is by list, or it would be delayed for ever by
 * others that are open all day.
 * Cost: O(steps) for each running and each waiting job, and reservations times that; windows until the place times that.
 */
#include <string.h>

#include "power_inside.h"
#include "resources/site_limits_inside.h"

enum { IS_CLOSED = 2 };

static int32_t pool_of(const scheduler_t *s, int32_t job)
{
    return s->limited->given.n_reserved ? s->limited->given.pool[job] : 0;
}

static int is_known(const booking_t *one, int64_t now_s)
{
    return one->made_s <= now_s && now_s < one->gone_s && reserved_from(one, now_s) < INT64_MAX;
}

int reserved_is_any(const scheduler_t *s, int64_t now_s)
{
    const limits_t *given = &s->limited->given;
    for (int32_t i = 0; i < given->n_reserved; i++)
        if (is_known(&given->reserved[i], now_s))
            return 1;
    for (int32_t i = s->head; (given->n_reserved || given->n_open) && i < s->tail; i++) {
        int32_t job = s->queue[i].job;
        if (!s->has_started[job] && (pool_of(s, job) || open_queue(given, job) >= 0))
            return 1;
    }
    return 0;
}

static int plans_watts(const scheduler_t *s)
{
    return s->power && s->power->model.asks_watts;
}

/* The watts that a reservation keeps for so many processors. */
static int64_t kept_uw(const scheduler_t *s, int64_t width)
{
    const power_model_t *m = &s->power->model;
    return width * (m->plan_uw[m->lowest] - m->idle_uw);
}

/* Takes the claim from the profile in the intervals of the reservation: the next one, and all that begin before
 * `until_s`. 0, or -1: no memory. */
static int reserve(scheduler_t *s, const booking_t *one, int64_t now_s, int64_t until_s, claim_t claim)
{
    int64_t from_s = reserved_from(one, now_s), length_s = one->to_s - one->from_s;
    if (!is_known(one, now_s))
        return 0;
    do {
        int64_t begins_s = greatest(from_s, now_s);
        claim.length_s = from_s + length_s - begins_s;
        if (profile_take(&s->profile, begins_s, &claim, 1) < 0)
            return -1;
        from_s += one->every_s;
    } while (one->every_s && from_s < until_s);
    return 0;
}

/* What there is without jobs and reservations, with processors or without. 0, or -1: no memory. */
static int plan_empty(scheduler_t *s, int64_t now_s, int has_processors)
{
    profile_t *profile = &s->profile;
    int64_t all = has_processors ? s->free : 0;

    for (int32_t i = 0; i < s->n_running && has_processors; i++)
        all += s->running[i].width;
    if (plans_watts(s)) {
        if (s->phases.resources->plan_empty(s, now_s) < 0)
            return -1;
    } else if (profile_reserve(profile, 1) < 0) {
        return -1;
    } else {
        profile->count = 1;
        profile->steps[0] = (step_t){.from_s = now_s};
    }
    for (int32_t i = 0; i < profile->count; i++)
        profile->steps[i].free = all;
    profile_begin(profile, INT64_MIN);
    return 0;
}

/* What the running job takes of the pool's profile. */
static claim_t taken_by(const scheduler_t *s, int64_t now_s, const running_t *one, int32_t pool)
{
    int32_t own = pool_of(s, one->job);
    int64_t end_s = ends_after(scheduler_finish(s, one->job, s->jobs.request_s[one->job]), now_s);
    claim_t claim = {.width = own == pool ? one->width : 0, .length_s = end_s - now_s};

    if (plans_watts(s))
        claim.uw = s->power->extra_uw[one->job];
    if (claim.uw && own && own != pool && is_known(&s->limited->given.reserved[own - 1], now_s))
        claim.uw = greatest(claim.uw - kept_uw(s, one->width), 0);
    return claim;
}

/* What the running jobs of the pool leave of what it has. 0, or -1: no memory. */
static int plan(scheduler_t *s, int64_t now_s, int64_t until_s, int32_t pool)
{
    const limits_t *given = &s->limited->given;

    if (plan_empty(s, now_s, !pool) < 0)
        return -1;
    for (int32_t i = 0; i < given->n_reserved; i++) {
        const booking_t *one = &given->reserved[i];
        int is_own = pool == i + 1;
        claim_t claim = {.width = is_own ? -one->width : pool ? 0 : one->width};
        claim.uw = plans_watts(s) && !is_own ? kept_uw(s, one->width) : 0;
        if ((claim.width || claim.uw) && reserve(s, one, now_s, until_s, claim) < 0)
            return -1;
    }
    for (int32_t i = 0; i < s->n_running; i++) {
        claim_t claim = taken_by(s, now_s, &s->running[i], pool);
        if ((claim.width || claim.uw) && profile_take(&s->profile, now_s, &claim, 1) < 0)
            return -1;
    }
    return 0;
}

/* The earliest time in the window from which the claim can be met until it closes; INT64_MAX: none. */
static int64_t earliest_in(const profile_t *profile, const claim_t *claim, window_t window)
{
    const step_t *steps = profile->steps;
    int64_t at_s = greatest(window.from_s, steps[0].from_s);

    for (int32_t i = 0; i < profile->count && at_s + claim->length_s <= window.to_s; i++) {
        int64_t next_s = i + 1 < profile->count ? steps[i + 1].from_s : INT64_MAX;
        if (next_s <= at_s)
            continue;
        if (steps[i].free < claim->width || steps[i].uw < claim->uw)
            at_s = greatest(at_s, least(next_s, window.to_s));
        else if (next_s - at_s >= claim->length_s)
            return at_s;
    }
    return INT64_MAX;
}

/* The same in the first of the queue's windows where it can be met; beyond the last step all weeks are alike. */
static int64_t earliest_open(const scheduler_t *s, const claim_t *claim, int32_t queue)
{
    const profile_t *profile = &s->profile;
    int64_t now_s = profile->steps[0].from_s, last_s = profile->steps[profile->count - 1].from_s + 2 * WEEK_S;
    window_t window = window_after(&s->limited->given, queue, now_s);

    for (; window.from_s <= last_s; window = window_behind(&s->limited->given, queue, window.to_s)) {
        int64_t at_s = earliest_in(profile, claim, window);
        if (at_s < INT64_MAX)
            return at_s;
    }
    return INT64_MAX;
}

/* Where the claim finds its place; INT64_MAX: nowhere. */
static int64_t earliest(scheduler_t *s, const claim_t *claim, int32_t job)
{
    int32_t queue = open_queue(&s->limited->given, job);
    return queue < 0 ? profile_earliest(&s->profile, claim) : earliest_open(s, claim, queue);
}

/* What the job takes at this frequency until its walltime; whether it may run at a lower one, too. */
static int claim_until_limit(const scheduler_t *s, const waiting_t *one, int32_t level, claim_t *claim)
{
    *claim = (claim_t){.width = one->width, .length_s = s->jobs.request_s[one->job]};
    if (!plans_watts(s))
        return 0;
    int is_lower = s->phases.resources->claim(s, one, level, claim);
    claim->length_s = claim->limit_s;
    return is_lower;
}

/* A place, and what the job takes there. */
typedef struct {
    int64_t at_s; /* INT64_MAX: nowhere */
    claim_t claim;
    int started; /* 1; 0: it does not; -1: no memory */
} found_t;

/* The earliest place of the job, at the highest frequency that has it. If it `may_start`, it does so at the highest at
 * which its place begins now. */
static found_t find(scheduler_t *s, int64_t now_s, const waiting_t *one, int may_start)
{
    found_t found = {.at_s = INT64_MAX};
    int is_lower = 1;

    for (int32_t level = 0; !found.started && is_lower; level++) {
        claim_t claim;
        is_lower = claim_until_limit(s, one, level, &claim);
        int64_t at_s = earliest(s, &claim, one->job);
        if (may_start && at_s == now_s && one->width <= s->free) /* jobs may outlive their walltimes */
            found.started = s->phases.resources->start_placed(s, now_s, one->job, level);
        if (at_s < found.at_s || found.started) {
            found.at_s = at_s;
            found.claim = claim;
        }
    }
    return found;
}

/* Starts the job if its place begins now: 1; 0: it does not, and the place is kept for it if so wanted; -1: no memory. */
static int place(scheduler_t *s, int64_t now_s, const waiting_t *one, int keeps_place)
{
    found_t found = find(s, now_s, one, 1);
    int is_taken = found.started || (keeps_place && found.at_s < INT64_MAX);
    if (found.started >= 0 && is_taken && profile_take(&s->profile, found.at_s, &found.claim, 1) < 0)
        return -1;
    return found.started;
}

static int is_in(const scheduler_t *s, const waiting_t *one, int32_t pool)
{
    return !s->has_started[one->job] && pool_of(s, one->job) == pool && limits_allow(s, one);
}

/* Its queue is closed now, or will be before its walltime is over. */
static int is_closed(const scheduler_t *s, int64_t now_s, int32_t job)
{
    int32_t queue = open_queue(&s->limited->given, job);
    if (queue < 0)
        return 0;
    window_t window = window_after(&s->limited->given, queue, now_s);
    return window.from_s > now_s || now_s + s->jobs.request_s[job] > window.to_s;
}

/* Keeps the place of the first job of each queue that is closed to it, and has one. Whether it is closed; -1: no memory. */
static int wait_for_window(scheduler_t *s, int64_t now_s, const waiting_t *one)
{
    if (!is_closed(s, now_s, one->job))
        return 0;
    s->limited->given.changed[one->job] |= CHANGED_BY_WINDOWS;
    uint8_t *keeps = &s->limited->keeps_place[open_queue(&s->limited->given, one->job)];
    int is_first = !*keeps && s->composition.backfill != BACKFILL_LIST;
    if (!is_first && s->composition.backfill != BACKFILL_CONSERVATIVE)
        return 1;
    found_t found = find(s, now_s, one, 0);
    if (found.at_s == INT64_MAX)
        return 1;
    *keeps = 1;
    return profile_take(&s->profile, found.at_s, &found.claim, 1) < 0 ? -1 : 1;
}

/* 1: it starts; 0: it waits, for reservations if it `is_first`; IS_CLOSED: for a window; -1: no memory. */
static int try_to_start(scheduler_t *s, int64_t now_s, const waiting_t *one, int keeps_place, int is_first)
{
    int closed = wait_for_window(s, now_s, one);
    if (closed)
        return closed < 0 ? -1 : IS_CLOSED;
    int started = place(s, now_s, one, keeps_place);
    int (*has_room)(scheduler_t *s, int64_t now_s, int32_t job) = s->phases.resources->has_room;
    if (!started && one->width <= s->free && is_first && /* with EASY it may wait for the head */
        (!has_room || has_room(s, now_s, one->job)))
        s->limited->given.changed[one->job] |= CHANGED_BY_RESERVATIONS;
    return started;
}

/* How many jobs of the pool start; -1: no memory. */
static int32_t start_in(scheduler_t *s, int64_t now_s, int32_t pool, int32_t *starts)
{
    int is_list = s->composition.backfill == BACKFILL_LIST, keeps_all = s->composition.backfill == BACKFILL_CONSERVATIVE;
    int is_shortest = s->composition.scan == SCAN_SHORTEST;
    int32_t count = 0, head = -1;
    const waiting_t *next = s->queue + s->head, *end = s->queue + s->tail;

    while (next < end) {
        const waiting_t one = *next++;
        if (one.job == head || !is_in(s, &one, pool))
            continue;
        int is_behind = head >= 0, keeps_place = keeps_all || (!is_behind && !is_list);
        int started = try_to_start(s, now_s, &one, keeps_place, !is_behind || is_list);
        if (started < 0)
            return -1;
        if (started == 1) {
            starts[count++] = one.job;
            s->overtook[one.job] = (uint8_t)is_behind;
        }
        if (started || is_behind)
            continue;
        head = one.job;
        if (s->composition.backfill == BACKFILL_NONE)
            break;
        if (is_shortest) {
            next = s->shortest;
            end = s->shortest + s->n_shortest;
        }
    }
    return count;
}

/* Until when reservations matter: a job may wait for another, and then, or for the window after the next one, runs. */
static int64_t matters_until(const scheduler_t *s, int64_t now_s)
{
    int64_t longest_s = 0, opens_s = now_s;

    for (int32_t i = s->head; i < s->tail; i++) {
        int32_t queue = open_queue(&s->limited->given, s->queue[i].job);
        for (int32_t level = 0, is_lower = 1; is_lower; level++) {
            claim_t claim;
            is_lower = claim_until_limit(s, &s->queue[i], level, &claim);
            longest_s = greatest(longest_s, claim.length_s);
        }
        if (queue >= 0) {
            int64_t closes_s = window_after(&s->limited->given, queue, now_s).to_s;
            opens_s = greatest(opens_s, window_behind(&s->limited->given, queue, closes_s).from_s);
        }
    }
    return opens_s + 2 * longest_s;
}

int32_t reserved_pass(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int64_t until_s = matters_until(s, now_s);
    int32_t count = 0;

    memset(s->limited->keeps_place, 0, (size_t)s->limited->given.n_open);
    for (int32_t pool = 0; pool <= s->limited->given.n_reserved; pool++) {
        int32_t more = plan(s, now_s, until_s, pool) < 0 ? -1 : start_in(s, now_s, pool, starts + count);
        if (more < 0)
            return -1;
        count += more;
    }
    return count;
}
