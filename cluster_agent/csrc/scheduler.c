#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

/* Bounded slowdowns count from this run time on (Feitelson et al., JSSPP 1997). */
enum { BSLD_TAU_S = 10 };

/****************************************************************
 * Making and unmaking
 ****************************************************************/

scheduler_t *scheduler_new(const composition_t *composition, const jobs_t *jobs)
{
    scheduler_t *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    int32_t n = jobs->n_jobs;
    s->composition = *composition;
    s->jobs = *jobs;
    s->free = composition->processors;
    s->narrowest = INT32_MAX;
    s->queue = column(n, sizeof *s->queue);
    s->shortest = column(n, sizeof *s->shortest);
    s->running = column(n, sizeof *s->running);
    s->users = column(jobs->n_users, sizeof *s->users);
    s->submit_s = column(n, sizeof *s->submit_s);
    s->reserved_s = column(n, sizeof *s->reserved_s);
    s->is_reserved = column(n, sizeof *s->is_reserved);
    s->started_s = column(n, sizeof *s->started_s);
    s->estimate_s = column(n, sizeof *s->estimate_s);
    s->first_estimate_s = column(n, sizeof *s->first_estimate_s);
    s->corrections = column(n, sizeof *s->corrections);
    s->overtook = column(n, sizeof *s->overtook);
    s->has_started = column(n, sizeof *s->has_started);
    if (!s->queue || !s->shortest || !s->running || !s->users || !s->submit_s || !s->reserved_s || !s->is_reserved || !s->started_s || !s->estimate_s ||
        !s->first_estimate_s || !s->corrections || !s->overtook || !s->has_started ||
        profile_reserve(&s->profile, 64) < 0 ||
        (composition->estimate == ESTIMATE_LEARNED && !(s->learner = learner_new(&composition->learning, jobs)))) {
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
    free(s->queue);
    free(s->shortest);
    free(s->running);
    free(s->profile.steps);
    free(s->users);
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

/* The first place in `running` whose expected end is later than `end_s`. */
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

/* The first running job whose processors are not yet counted by free_now. */
static int32_t first_ahead(const scheduler_t *s, int64_t now_s)
{
    return s->composition.frees_at_estimate ? running_after(s, now_s) : 0;
}

/* A job that is overdue and still there ends at the earliest in the next instant. */
static int64_t ends_after(int64_t expected_end_s, int64_t now_s)
{
    return expected_end_s > now_s ? expected_end_s : now_s + 1;
}

int64_t scheduler_expected_end(const scheduler_t *s, int32_t job)
{
    return s->power ? power_expected_end(s, job) : s->started_s[job] + s->estimate_s[job];
}

/****************************************************************
 * Estimates and their corrections
 ****************************************************************/

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t estimate(scheduler_t *s, int64_t now_s, int32_t job)
{
    const history_t *user = &s->users[s->jobs.user[job]];
    int64_t request_s = s->jobs.request_s[job];

    switch (s->composition.estimate) {
    case ESTIMATE_CLAIRVOYANT:
        return s->jobs.run_s[job];
    case ESTIMATE_MEAN2:
        return user->ended < 2 ? request_s : least((user->last_s + user->before_last_s) / 2, request_s);
    case ESTIMATE_LEARNED:
        return learner_estimate(s->learner, now_s, job);
    default:
        return request_s;
    }
}

static void learn(scheduler_t *s, int32_t job)
{
    history_t *user = &s->users[s->jobs.user[job]];
    user->before_last_s = user->last_s;
    user->last_s = s->jobs.run_s[job];
    user->ended += user->ended < 2;
    if (s->learner)
        learner_ended(s->learner, job);
}

/* Tsafrir, Etzion, Feitelson 2007, §3.3: each step replaces the one before, and the request is the limit. */
static const int64_t INCREMENTS_S[] = {60,       5 * 60,   15 * 60,   30 * 60,   3600,      2 * 3600,
                                       5 * 3600, 10 * 3600, 20 * 3600, 50 * 3600, 100 * 3600};

int64_t scheduler_overrun(scheduler_t *s, int32_t job)
{
    int64_t request_s = s->jobs.request_s[job];
    size_t corrections = (size_t)s->corrections[job]++;

    scheduler_running_remove(s, job);
    switch (s->composition.correct) {
    case CORRECT_INCREMENTAL:
        if (corrections < sizeof INCREMENTS_S / sizeof *INCREMENTS_S)
            s->estimate_s[job] = least(s->first_estimate_s[job] + INCREMENTS_S[corrections], request_s);
        else
            s->estimate_s[job] = request_s;
        break;
    case CORRECT_DOUBLING:
        s->estimate_s[job] *= 2;
        break;
    case CORRECT_DOUBLING_CAPPED:
        s->estimate_s[job] = least(2 * s->estimate_s[job], request_s);
        break;
    default:
        s->estimate_s[job] = request_s;
    }
    scheduler_running_add(s, job);
    return scheduler_expected_end(s, job);
}

/****************************************************************
 * The queue
 ****************************************************************/

int32_t scheduler_submit(scheduler_t *s, int64_t now_s, int32_t job)
{
    waiting_t waiting = {.estimate_s = estimate(s, now_s, job), .job = job, .width = s->jobs.width[job]};

    s->submit_s[job] = now_s;
    if (s->ranks)
        priority_submitted(s, now_s);
    s->estimate_s[job] = s->first_estimate_s[job] = waiting.estimate_s;
    s->queue[s->tail++] = waiting;
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
    if (waiting.width < s->narrowest)
        s->narrowest = waiting.width;
    if (s->composition.scan == SCAN_SHORTEST) {
        for (i = s->n_shortest++; i > 0; i--) {
            const waiting_t *before = &s->shortest[i - 1];
            if (before->estimate_s < waiting.estimate_s ||
                (before->estimate_s == waiting.estimate_s && before->job < job))
                break;
            s->shortest[i] = *before;
        }
        s->shortest[i] = waiting;
    }
}

int32_t scheduler_queue(const scheduler_t *s, int32_t *queued)
{
    for (int32_t i = s->head; i < s->tail; i++)
        queued[i - s->head] = s->queue[i].job;
    return s->tail - s->head;
}

void scheduler_reorder(scheduler_t *s, const int32_t *queued)
{
    for (int32_t i = s->head; i < s->tail; i++) {
        int32_t job = queued[i - s->head];
        s->queue[i] =
            (waiting_t){.estimate_s = s->estimate_s[job], .job = job, .width = s->jobs.width[job]};
    }
}

static int32_t sweep(const scheduler_t *s, waiting_t *waiting, int32_t from, int32_t to)
{
    int32_t kept = from;
    for (int32_t i = from; i < to; i++)
        if (!s->has_started[waiting[i].job])
            waiting[kept++] = waiting[i];
    return kept;
}

/****************************************************************
 * A pass
 ****************************************************************/

void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job)
{
    s->started_s[job] = now_s;
    s->has_started[job] = 1;
    scheduler_running_add(s, job);
    if (s->learner)
        learner_started(s->learner, now_s, job);
}

/* The bounded slowdown that a waiting job would have if it started now. */
static double slowdown_now(const scheduler_t *s, int64_t now_s, const waiting_t *waiting)
{
    int64_t estimate_s = waiting->estimate_s;
    double wait_s = (double)(now_s - s->submit_s[waiting->job]);
    return (wait_s + (double)estimate_s) / (double)(estimate_s > BSLD_TAU_S ? estimate_s : BSLD_TAU_S);
}

/*
 * EASY (Lifka 1995; Mu'alem and Feitelson 2001): the head, which does not fit, gets the earliest time at which enough
 * processors are expected to be free. Another job may start now if it ends by then, or if it fits into what the head
 * will leave over.
 */
static int32_t backfill_easy(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts)
{
    const waiting_t *head = &s->queue[s->head];
    int64_t reserved_s = INT64_MAX, left_over = 0;
    int64_t expected = free;

    for (int32_t i = first_ahead(s, now_s); i < s->n_running; i++) {
        int64_t end_s = ends_after(s->running[i].expected_end_s, now_s);
        if (end_s > reserved_s)
            break;
        expected += s->running[i].width;
        if (expected >= head->width) {
            reserved_s = end_s;
            left_over = expected - head->width;
        }
    }

    int shortest_first = s->composition.scan == SCAN_SHORTEST;
    const waiting_t *next = shortest_first ? s->shortest : head + 1;
    const waiting_t *end = shortest_first ? s->shortest + s->n_shortest : s->queue + s->tail;
    int32_t count = 0, narrowest = head->width;
    for (; next < end; next++) {
        if (next->width > free) {
            narrowest = next->width < narrowest ? next->width : narrowest;
            continue;
        }
        int ends_in_time = next->estimate_s <= reserved_s - now_s;
        if ((!ends_in_time && next->width > left_over) || s->has_started[next->job] || next->job == head->job) {
            narrowest = next->width < narrowest ? next->width : narrowest;
            continue;
        }
        starts[count++] = next->job;
        s->overtook[next->job] = 1;
        scheduler_start(s, now_s, next->job);
        free -= next->width;
        if (!ends_in_time)
            left_over -= next->width;
        if (free < s->narrowest)
            break;
    }
    if (next >= end)
        s->narrowest = narrowest;
    return count;
}

/* List scheduling (Graham 1966): every job that fits starts, whoever waits before it. */
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
    for (int32_t i = first_ahead(s, now_s); i < s->n_running; i++) {
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
 * Conservative backfilling, planned anew in every pass (Mu'alem and Feitelson 2001; Glesser 2016 §2): every waiting
 * job in turn gets the earliest place that delays none before it. Only those whose place is now matter, so the rest
 * need no place once too little is free now for the narrowest of them.
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
 * Conservative backfilling that keeps its reservations (Mu'alem and Feitelson 2001, §2): in every pass each job in
 * turn gives up its place and takes the earliest one beside all others, so a place only moves forward as long as
 * estimates are upper bounds. A place whose time has passed, since a job before it ran on, is void.
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

static int32_t decide(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t count = 0, backfilled = 0;
    int64_t free = free_now(s, now_s);

    int keeps_places = s->composition.backfill == BACKFILL_COMPRESS;
    if (s->power && s->power->nodes)
        nodes_date(s->power->nodes, now_s);
    if (s->power)
        budget_pass(s, now_s);
    if (s->ranks)
        priority_charge(s, now_s);
    if (free < s->narrowest && !keeps_places)
        return 0;
    if (s->ranks)
        priority_order(s, now_s);
    if (s->power)
        backfilled = power_decide(s, now_s, starts, &count);
    while (!s->power && !keeps_places) {
        if (s->composition.guard > 0.0 && s->head < s->tail)
            guard(s, now_s);
        if (s->head == s->tail || s->queue[s->head].width > free)
            break;
        free -= s->queue[s->head].width;
        starts[count++] = s->queue[s->head].job;
        scheduler_start(s, now_s, s->queue[s->head++].job);
    }
    if (keeps_places) {
        backfilled = backfill_compress(s, now_s, free, starts);
    } else if (!s->power && s->tail - s->head > 1 && free > 0) {
        if (s->composition.backfill == BACKFILL_EASY)
            backfilled = backfill_easy(s, now_s, free, starts + count);
        else if (s->composition.backfill == BACKFILL_LIST)
            backfilled = backfill_list(s, now_s, free, starts + count);
        else if (s->composition.backfill == BACKFILL_CONSERVATIVE)
            backfilled = backfill_conservative(s, now_s, free, starts + count);
    }
    if (backfilled < 0)
        return -1;
    if (backfilled)
        s->tail = sweep(s, s->queue, s->head, s->tail);
    if (count + backfilled && s->composition.scan == SCAN_SHORTEST)
        s->n_shortest = sweep(s, s->shortest, 0, s->n_shortest);
    if (s->head == s->tail)
        s->narrowest = INT32_MAX;
    return count + backfilled;
}

int32_t scheduler_decide(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    int32_t count = decide(s, now_s, starts);
    return s->power && power_idle(s, now_s) < 0 ? -1 : count;
}

/****************************************************************
 * What a live partition does besides
 ****************************************************************/

void scheduler_adopt(scheduler_t *s, int64_t submitted_s, int64_t started_s, int64_t estimate_s, int32_t job)
{
    int64_t estimated_s = estimate(s, submitted_s, job);

    s->submit_s[job] = submitted_s;
    s->estimate_s[job] = s->first_estimate_s[job] = estimate_s > 0 ? estimate_s : estimated_s;
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
    s->has_started[job] = 1; /* as one that has left the queue */
    s->tail = sweep(s, s->queue, s->head, s->tail);
    if (s->composition.scan == SCAN_SHORTEST)
        s->n_shortest = sweep(s, s->shortest, 0, s->n_shortest);
    if (s->head == s->tail)
        s->narrowest = INT32_MAX;
}

/****************************************************************
 * The record
 ****************************************************************/

int32_t scheduler_waiting(const scheduler_t *s)
{
    return s->tail - s->head;
}

const int64_t *scheduler_decided(const scheduler_t *s)
{
    return s->started_s;
}

const int64_t *scheduler_submits(const scheduler_t *s)
{
    return s->submit_s;
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
