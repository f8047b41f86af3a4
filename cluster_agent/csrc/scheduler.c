#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

/* Bounded slowdowns count from this run time on (Feitelson et al., JSSPP 1997). */
enum { BSLD_TAU_S = 10 };

/****************************************************************
 * Making and unmaking
 ****************************************************************/

static size_t places_alike(const scheduler_t *s)
{
    return 2 * (size_t)s->jobs.n_jobs + 1;
}

/* Below 0: no memory. The columns that a composition does not need are empty. */
static int make_columns(scheduler_t *s)
{
    int32_t n = s->jobs.n_jobs;
    int keeps_alike = s->composition.history == HISTORY_SIMILAR;
    void *made[] = {
        s->queue = column(n, sizeof *s->queue),
        s->shortest = column(n, sizeof *s->shortest),
        s->running = column(n, sizeof *s->running),
        s->users = column(s->jobs.n_users, sizeof *s->users),
        s->alike = column(keeps_alike ? n : 0, sizeof *s->alike),
        s->first_alike = column(keeps_alike ? places_alike(s) : 0, sizeof *s->first_alike),
        s->moved = column(s->composition.fixed == FIXED_AT_START ? n : 0, sizeof *s->moved),
        s->submit_s = column(n, sizeof *s->submit_s),
        s->reserved_s = column(n, sizeof *s->reserved_s),
        s->is_reserved = column(n, sizeof *s->is_reserved),
        s->started_s = column(n, sizeof *s->started_s),
        s->estimate_s = column(n, sizeof *s->estimate_s),
        s->first_estimate_s = column(n, sizeof *s->first_estimate_s),
        s->corrections = column(n, sizeof *s->corrections),
        s->overtook = column(n, sizeof *s->overtook),
        s->has_started = column(n, sizeof *s->has_started),
    };
    return is_all_there(made, sizeof made / sizeof *made) ? 0 : -1;
}

static int make_learner(scheduler_t *s)
{
    if (s->composition.estimate != ESTIMATE_LEARNED)
        return 0;
    s->learner = learner_new(&s->composition.learning, &s->jobs);
    return s->learner ? 0 : -1;
}

scheduler_t *scheduler_new(const composition_t *composition, const jobs_t *jobs)
{
    scheduler_t *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->composition = *composition;
    s->jobs = *jobs;
    s->free = composition->processors;
    s->narrowest = INT32_MAX;
    if (make_columns(s) < 0 || profile_reserve(&s->profile, 64) < 0 || make_learner(s) < 0) {
        scheduler_free(s);
        return NULL;
    }
    return s;
}

void scheduler_free(scheduler_t *s)
{
    if (!s)
        return;
    power_free(s);
    priority_free(s);
    moldable_free(s);
    free(s->queue);
    free(s->shortest);
    free(s->running);
    free(s->profile.steps);
    free(s->users);
    free(s->alike);
    free(s->first_alike);
    free(s->moved);
    learner_free(s->learner);
    free(s->submit_s);
    free(s->reserved_s);
    free(s->is_reserved);
    free(s->started_s);
    free(s->estimate_s);
    free(s->first_estimate_s);
    free(s->corrections);
    free(s->overtook);
    free(s->has_started);
    free(s);
}

/****************************************************************
 * The running jobs
 ****************************************************************/

/* The index in `running` of the first job whose expected end is later than `end_s`. */
static int32_t running_after(const scheduler_t *s, int64_t end_s)
{
    int32_t low = 0, high = s->n_running;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (s->running[middle].expected_end_s <= end_s)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void scheduler_running_add(scheduler_t *s, int32_t job)
{
    int64_t end_s = scheduler_expected_end(s, job);
    running_t *place = s->running + running_after(s, end_s);
    memmove(place + 1, place, (size_t)(s->running + s->n_running - place) * sizeof *place);
    *place = (running_t){.expected_end_s = end_s, .job = job, .width = s->jobs.width[job]};
    s->n_running++;
    s->free -= s->jobs.width[job];
    if (s->ways)
        moldable_held(s, job, 1);
}

void scheduler_running_remove(scheduler_t *s, int32_t job)
{
    int32_t i = running_after(s, scheduler_expected_end(s, job));
    do
        i--;
    while (s->running[i].job != job);
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, (size_t)(s->n_running - i) * sizeof *s->running);
    s->free += s->jobs.width[job];
    if (s->ways)
        moldable_held(s, job, -1);
}

/* Processors a job may be given now. */
static int64_t free_now(const scheduler_t *s, int64_t now_s)
{
    int64_t free = s->free;
    if (s->composition.frees_at_estimate)
        for (int32_t i = 0; i < s->n_running && s->running[i].expected_end_s <= now_s; i++)
            free += s->running[i].width;
    return free;
}

int32_t scheduler_first_ahead(const scheduler_t *s, int64_t now_s)
{
    return s->composition.frees_at_estimate ? running_after(s, now_s) : 0;
}

int64_t scheduler_expected_end(const scheduler_t *s, int32_t job)
{
    return s->power ? power_expected_end(s, job) : s->started_s[job] + s->estimate_s[job];
}

/****************************************************************
 * Estimates and their corrections
 ****************************************************************/

/* The history of jobs of the same user, width and request (HISTORY_SIMILAR). */
static history_t *alike(const scheduler_t *s, int32_t job)
{
    const jobs_t *jobs = &s->jobs;
    uint64_t hash = (uint64_t)jobs->request_s[job] * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
    hash = (hash ^ (uint64_t)jobs->width[job]) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (uint64_t)jobs->user[job]) * 0x9e3779b97f4a7c15u;
    size_t places = places_alike(s), place = (size_t)(hash >> 32) % places;

    while (s->first_alike[place]) {
        int32_t first = s->first_alike[place] - 1;
        if (jobs->user[first] == jobs->user[job] && jobs->width[first] == jobs->width[job] &&
            jobs->request_s[first] == jobs->request_s[job])
            return &s->alike[first];
        place = (place + 1) % places;
    }
    s->first_alike[place] = job + 1;
    return &s->alike[job];
}

static int64_t mean2(const scheduler_t *s, int32_t job)
{
    const history_t *history = &s->users[s->jobs.user[job]];
    int64_t request_s = s->jobs.request_s[job];

    if (s->composition.history == HISTORY_SIMILAR) {
        const history_t *similar = alike(s, job);
        history = similar->ended == 2 ? similar : history;
    }
    return history->ended < 2 ? request_s : least((history->last_s + history->before_last_s) / 2, request_s);
}

static int64_t estimate(scheduler_t *s, int64_t now_s, int32_t job)
{
    switch (s->composition.estimate) {
    case ESTIMATE_CLAIRVOYANT:
        return s->jobs.run_s[job];
    case ESTIMATE_MEAN2:
        return mean2(s, job);
    case ESTIMATE_LEARNED:
        return learner_estimate(s->learner, now_s, job);
    default:
        return s->jobs.request_s[job];
    }
}

static void remember(history_t *history, int64_t run_s)
{
    history->before_last_s = history->last_s;
    history->last_s = run_s;
    history->ended += history->ended < 2;
}

static int is_shorter(const waiting_t *a, const waiting_t *b)
{
    return a->estimate_s != b->estimate_s ? a->estimate_s < b->estimate_s : a->job < b->job;
}

static int by_estimate(const void *a, const void *b)
{
    return is_shorter(a, b) ? -1 : is_shorter(b, a);
}

/* The jobs in `moved`, whose estimates have changed, go to their new places in `shortest`. */
static void move_shortest(scheduler_t *s, int32_t n_moved)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n_shortest; i++)
        if (s->shortest[i].estimate_s == s->estimate_s[s->shortest[i].job])
            s->shortest[kept++] = s->shortest[i];
    qsort(s->moved, (size_t)n_moved, sizeof *s->moved, by_estimate);
    for (int32_t place = s->n_shortest; n_moved > 0;) /* merged from the end, where there is room */
        if (kept > 0 && is_shorter(&s->moved[n_moved - 1], &s->shortest[kept - 1]))
            s->shortest[--place] = s->shortest[--kept];
        else
            s->shortest[--place] = s->moved[--n_moved];
}

/* A job of the user has ended: the new estimate of those that wait (FIXED_AT_START). */
static void estimate_anew(scheduler_t *s, int32_t user)
{
    int32_t n_moved = 0;
    for (int32_t i = s->head; i < s->tail; i++) {
        waiting_t *waiting = &s->queue[i];
        if (s->jobs.user[waiting->job] != user)
            continue;
        int64_t estimate_s = mean2(s, waiting->job);
        if (estimate_s == waiting->estimate_s)
            continue;
        waiting->estimate_s = s->estimate_s[waiting->job] = s->first_estimate_s[waiting->job] = estimate_s;
        s->moved[n_moved++] = *waiting;
    }
    if (n_moved && s->composition.scan == SCAN_SHORTEST)
        move_shortest(s, n_moved);
}

static void learn(scheduler_t *s, int32_t job)
{
    remember(&s->users[s->jobs.user[job]], s->jobs.run_s[job]);
    if (s->composition.history == HISTORY_SIMILAR)
        remember(alike(s, job), s->jobs.run_s[job]);
    if (s->learner)
        learner_ended(s->learner, job);
    if (s->composition.estimate == ESTIMATE_MEAN2 && s->composition.fixed == FIXED_AT_START)
        estimate_anew(s, s->jobs.user[job]);
}

/* For how long a job that starts is planned to run. */
static int64_t planned(const scheduler_t *s, int32_t job)
{
    double run_s = s->composition.shadow * (double)s->estimate_s[job];
    return run_s < (double)s->jobs.request_s[job] ? (int64_t)run_s : s->jobs.request_s[job];
}

/* Tsafrir, Etzion, Feitelson 2007, §3.3: each step replaces the one before, and the request is the limit. */
static const int64_t INCREMENTS_S[] = {60,       5 * 60,   15 * 60,   30 * 60,   3600,      2 * 3600,
                                       5 * 3600, 10 * 3600, 20 * 3600, 50 * 3600, 100 * 3600};

/* The estimate of a running job that runs longer than its last estimate. */
static int64_t corrected(const scheduler_t *s, int32_t job)
{
    int64_t estimate_s = s->estimate_s[job], request_s = s->jobs.request_s[job];
    size_t corrections = (size_t)s->corrections[job];

    if (s->ways) /* the table's times are taken as true: it is expected to end at any moment */
        return estimate_s + 1;
    switch (s->composition.correct) {
    case CORRECT_INCREMENTAL:
        if (corrections < sizeof INCREMENTS_S / sizeof *INCREMENTS_S)
            return least(s->first_estimate_s[job] + INCREMENTS_S[corrections], request_s);
        return request_s;
    case CORRECT_DOUBLING:
        return 2 * estimate_s;
    case CORRECT_DOUBLING_CAPPED:
        return least(2 * estimate_s, request_s);
    default:
        return request_s;
    }
}

int64_t scheduler_overrun(scheduler_t *s, int32_t job)
{
    scheduler_running_remove(s, job);
    s->estimate_s[job] = corrected(s, job);
    s->corrections[job]++;
    scheduler_running_add(s, job);
    return scheduler_expected_end(s, job);
}

/****************************************************************
 * The queue
 ****************************************************************/

static int32_t sweep(const scheduler_t *s, waiting_t *waiting, int32_t from, int32_t to)
{
    int32_t kept = from;
    for (int32_t i = from; i < to; i++)
        if (!s->has_started[waiting[i].job])
            waiting[kept++] = waiting[i];
    return kept;
}

/* Jobs that no longer wait leave gaps in the arrays of those that do. At most so many gaps stay. */
static void close_gaps(scheduler_t *s, int32_t bearable)
{
    if (s->tail - s->head - s->n_waiting > bearable)
        s->tail = sweep(s, s->queue, s->head, s->tail);
    if (s->n_shortest - s->n_waiting > bearable)
        s->n_shortest = sweep(s, s->shortest, 0, s->n_shortest);
    if (!s->n_waiting)
        s->narrowest = INT32_MAX;
}

int32_t scheduler_submit(scheduler_t *s, int64_t now_s, int32_t job)
{
    waiting_t waiting = {.estimate_s = estimate(s, now_s, job), .job = job, .width = s->jobs.width[job]};

    s->submit_s[job] = now_s;
    if (s->ranks)
        priority_submitted(s, now_s);
    s->estimate_s[job] = s->first_estimate_s[job] = waiting.estimate_s;
    s->queue[s->tail++] = waiting;
    s->n_waiting++;
    if (waiting.width < s->narrowest)
        s->narrowest = waiting.width;
    if (s->composition.scan == SCAN_SHORTEST) {
        int32_t low = 0, high = s->n_shortest;
        while (low < high) {
            int32_t middle = low + (high - low) / 2;
            if (s->shortest[middle].estimate_s <= waiting.estimate_s)
                low = middle + 1;
            else
                high = middle;
        }
        memmove(s->shortest + low + 1, s->shortest + low, (size_t)(s->n_shortest - low) * sizeof *s->shortest);
        s->shortest[low] = waiting;
        s->n_shortest++;
    }
    if (s->power)
        power_waits(s, &waiting);
    return !s->composition.passes_if_new_fits || waiting.width <= free_now(s, now_s);
}

void scheduler_end(scheduler_t *s, int32_t job)
{
    if (s->ranks)
        priority_ended(s, job);
    scheduler_running_remove(s, job);
    if (s->power)
        power_give_back(s, job);
    learn(s, job);
}

/* A job that ran waits again, in its order of submission. */
void scheduler_requeue(scheduler_t *s, int32_t job)
{
    waiting_t waiting = {.estimate_s = s->first_estimate_s[job], .job = job, .width = s->jobs.width[job]};
    int32_t i;

    close_gaps(s, 0);
    s->n_waiting++;
    s->estimate_s[job] = waiting.estimate_s;
    s->has_started[job] = 0;
    for (i = s->head; i < s->tail && s->queue[i].job < job; i++)
        ;
    if (s->head > 0) {
        i--;
        memmove(s->queue + s->head - 1, s->queue + s->head, (size_t)(i - s->head + 1) * sizeof *s->queue);
        s->head--;
    } else {
        memmove(s->queue + i + 1, s->queue + i, (size_t)(s->tail - i) * sizeof *s->queue);
        s->tail++;
    }
    s->queue[i] = waiting;
    if (s->ranks)
        s->ranks->n_ordered = 0;
    if (waiting.width < s->narrowest)
        s->narrowest = waiting.width;
    if (s->composition.scan == SCAN_SHORTEST) {
        for (i = s->n_shortest++; i > 0 && is_shorter(&waiting, &s->shortest[i - 1]); i--)
            s->shortest[i] = s->shortest[i - 1];
        s->shortest[i] = waiting;
    }
    if (s->power)
        power_waits(s, &waiting);
}

int32_t scheduler_queue(const scheduler_t *s, int32_t *queued)
{
    int32_t count = 0;
    for (int32_t i = s->head; i < s->tail; i++)
        if (!s->has_started[s->queue[i].job])
            queued[count++] = s->queue[i].job;
    return count;
}

void scheduler_reorder(scheduler_t *s, const int32_t *queued)
{
    s->is_reordered = 1;
    close_gaps(s, 0);
    for (int32_t i = s->head; i < s->tail; i++) {
        int32_t job = queued[i - s->head];
        s->queue[i] =
            (waiting_t){.estimate_s = s->estimate_s[job], .job = job, .width = s->jobs.width[job]};
    }
}

/****************************************************************
 * A pass
 ****************************************************************/

static void runs(scheduler_t *s, int64_t now_s, int32_t job)
{
    s->started_s[job] = now_s;
    s->has_started[job] = 1;
    scheduler_running_add(s, job);
    if (s->learner)
        learner_started(s->learner, now_s, job);
}

void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job)
{
    if (s->composition.shadow > 1.0)
        s->estimate_s[job] = planned(s, job);
    runs(s, now_s, job);
}

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

/* Starts heads in turn as long as they fit; how many. */
static int32_t start_heads(scheduler_t *s, int64_t now_s, int64_t *free, int32_t *starts)
{
    int32_t count = 0;
    for (;;) {
        if (s->composition.guard > 0.0 && s->head < s->tail)
            guard(s, now_s);
        if (s->head == s->tail || s->queue[s->head].width > *free)
            return count;
        *free -= s->queue[s->head].width;
        starts[count++] = s->queue[s->head].job;
        scheduler_start(s, now_s, s->queue[s->head++].job);
    }
}

/* A pass in processors alone: heads in turn, then whoever may start behind them. How many start; -1: no memory. */
static int32_t decide_processors(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts)
{
    int keeps_places = s->composition.backfill == BACKFILL_COMPRESS; /* its reservations start the heads, too */
    int32_t count = keeps_places ? 0 : start_heads(s, now_s, &free, starts);
    if (!keeps_places && (s->tail - s->head <= 1 || free <= 0))
        return count;
    int32_t backfilled = backfill_jobs(s, now_s, free, starts + count);
    return backfilled < 0 ? -1 : count + backfilled;
}

/* A pass in processors and watts. */
static int32_t decide_power(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t in_turn = 0, backfilled = power_decide(s, now_s, starts, &in_turn);
    return backfilled < 0 ? -1 : in_turn + backfilled;
}

/* Takes the started jobs out of the queue. */
static int32_t leave_queue(scheduler_t *s, int32_t count, int32_t most_gaps)
{
    s->n_waiting -= count;
    close_gaps(s, most_gaps);
    return count;
}

static int32_t decide(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int64_t free = free_now(s, now_s);

    if (s->ways)
        return leave_queue(s, moldable_decide(s, now_s, starts), 0);
    if (s->power)
        power_begin_pass(s, now_s);
    if (s->ranks)
        priority_charge(s, now_s);
    /* nobody fits, however many wait; but reservations are compressed in each pass */
    if (free < s->narrowest && s->composition.backfill != BACKFILL_COMPRESS)
        return 0;
    if (s->ranks)
        priority_order(s, now_s);
    int32_t count = s->power ? decide_power(s, now_s, starts) : decide_processors(s, now_s, free, starts);
    if (count < 0)
        return -1;
    leave_queue(s, count, s->power && !s->ranks && !s->is_reordered ? (s->n_waiting - count) / 4 : 0);
    if (s->ranks) /* the guard puts jobs where their priorities do not */
        s->ranks->n_ordered = s->composition.guard > 0.0 ? 0 : s->tail - s->head;
    return count;
}

int32_t scheduler_decide(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t count = decide(s, now_s, starts);
    return s->power && power_idle(s, now_s) < 0 ? -1 : count;
}

/****************************************************************
 * What only a live partition does
 ****************************************************************/

void scheduler_adopt(scheduler_t *s, int64_t submitted_s, int64_t started_s, int64_t estimate_s, int32_t job)
{
    int64_t estimated_s = estimate(s, submitted_s, job);

    s->submit_s[job] = submitted_s;
    s->estimate_s[job] = s->first_estimate_s[job] = estimate_s > 0 ? estimate_s : estimated_s;
    if (estimate_s > 0)
        runs(s, started_s, job);
    else
        scheduler_start(s, started_s, job);
}

void scheduler_withdraw(scheduler_t *s, int32_t job)
{
    if (s->has_started[job]) {
        scheduler_running_remove(s, job);
        if (s->learner)
            learner_killed(s->learner, job);
        return;
    }
    s->has_started[job] = 1; /* as a job that has left the queue */
    s->n_waiting--;
    close_gaps(s, 0);
    if (s->ranks)
        s->ranks->n_ordered = 0;
}

/****************************************************************
 * The record
 ****************************************************************/

const int64_t *scheduler_decided(const scheduler_t *s)
{
    return s->started_s;
}

const int64_t *scheduler_first_estimates(const scheduler_t *s)
{
    return s->first_estimate_s;
}

const int32_t *scheduler_corrections(const scheduler_t *s)
{
    return s->corrections;
}

const uint8_t *scheduler_overtook(const scheduler_t *s)
{
    return s->overtook;
}
