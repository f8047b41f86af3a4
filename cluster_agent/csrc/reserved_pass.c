/*
 * A pass with reservations: the common jobs on what no reservation keeps, then the jobs of each reservation on its own.
 *
 * Both are the same walk over a profile of free processors. That of the common jobs loses what is reserved in each
 * interval to come, so a job whose walltime reaches into one finds its place before or behind it. That of a reservation
 * has processors in its intervals alone, so its jobs begin and end in them. Walltimes count, and not estimates: a
 * reservation is a promise, and only walltimes are bounds. EASY keeps the place of the first job that cannot start,
 * conservative backfilling those of all, list scheduling none.
 * Cost: O(steps) for each running and each waiting job, and reservations times that.
 */
#include "resources/site_limits_inside.h"

static int32_t pool_of(const scheduler_t *s, int32_t job)
{
    return s->limited->given.pool[job];
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
    for (int32_t i = s->head; given->n_reserved && i < s->tail; i++)
        if (pool_of(s, s->queue[i].job) && !s->has_started[s->queue[i].job])
            return 1;
    return 0;
}

/* Takes the intervals of the reservation from the profile (sign 1), or adds them (-1): the next one, and all that begin
 * before `until_s`. 0, or -1: no memory. */
static int reserve(scheduler_t *s, const booking_t *one, int64_t now_s, int64_t until_s, int sign)
{
    int64_t from_s = reserved_from(one, now_s), length_s = one->to_s - one->from_s;
    if (!is_known(one, now_s))
        return 0;
    do {
        int64_t begins_s = greatest(from_s, now_s);
        claim_t claim = {.width = one->width, .length_s = from_s + length_s - begins_s};
        if (profile_take(&s->profile, begins_s, &claim, sign) < 0)
            return -1;
        from_s += one->every_s;
    } while (one->every_s && from_s < until_s);
    return 0;
}

/* What the running jobs of the pool leave of what it has. 0, or -1: no memory. */
static int plan(scheduler_t *s, int64_t now_s, int64_t until_s, int32_t pool)
{
    const limits_t *given = &s->limited->given;
    profile_t *profile = &s->profile;
    int64_t all = pool ? 0 : s->free;

    for (int32_t i = 0; i < s->n_running && !pool; i++)
        all += s->running[i].width;
    if (profile_reserve(profile, 1) < 0)
        return -1;
    profile->count = 1;
    profile->steps[0] = (step_t){.from_s = now_s, .free = all};
    profile_begin(profile, INT64_MIN);
    for (int32_t i = 0; i < given->n_reserved; i++)
        if ((!pool || pool == i + 1) && reserve(s, &given->reserved[i], now_s, until_s, pool ? -1 : 1) < 0)
            return -1;
    for (int32_t i = 0; i < s->n_running; i++) {
        int32_t job = s->running[i].job;
        int64_t end_s = ends_after(scheduler_begins(s, job) + s->jobs.request_s[job], now_s);
        claim_t claim = {.width = s->running[i].width, .length_s = end_s - now_s};
        if (pool_of(s, job) == pool && profile_take(profile, now_s, &claim, 1) < 0)
            return -1;
    }
    return 0;
}

/* Starts the job if its place begins now: 1; 0: it does not, and the place is kept for it if so wanted; -1: no memory. */
static int place(scheduler_t *s, int64_t now_s, const waiting_t *one, int keeps_place)
{
    claim_t claim = {.width = one->width, .length_s = s->jobs.request_s[one->job]};
    int64_t at_s = profile_earliest(&s->profile, &claim);
    int starts = at_s == now_s && one->width <= s->free; /* jobs may run beyond their walltimes until they are ended */

    if (at_s < INT64_MAX && (starts || keeps_place) && profile_take(&s->profile, at_s, &claim, 1) < 0)
        return -1;
    if (starts)
        scheduler_start(s, now_s, one->job);
    return starts;
}

static int is_in(const scheduler_t *s, const waiting_t *one, int32_t pool)
{
    return !s->has_started[one->job] && pool_of(s, one->job) == pool && limits_allow(s, one);
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
        int is_behind = head >= 0, started = place(s, now_s, &one, keeps_all || (!is_behind && !is_list));
        if (started < 0)
            return -1;
        if (started) {
            starts[count++] = one.job;
            s->overtook[one.job] = (uint8_t)is_behind;
            continue;
        }
        if (one.width <= s->free && (!is_behind || is_list)) /* with EASY it may wait for the head */
            s->limited->given.changed[one.job] |= CHANGED_BY_RESERVATIONS;
        if (is_behind)
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

int32_t reserved_pass(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int64_t longest_s = 0;
    int32_t count = 0;

    for (int32_t i = s->head; i < s->tail; i++)
        longest_s = greatest(longest_s, s->jobs.request_s[s->queue[i].job]);
    for (int32_t pool = 0; pool <= s->limited->given.n_reserved; pool++) {
        int32_t more = plan(s, now_s, now_s + 2 * longest_s, pool) < 0 ? -1 : start_in(s, now_s, pool, starts + count);
        if (more < 0)
            return -1;
        count += more;
    }
    return count;
}
