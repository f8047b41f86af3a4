#include "replay/replay_inside.h"

#include <stdlib.h>
#include <string.h>

/****************************************************************
 * Events to come
 ****************************************************************/

void replay_foresee(replay_t *r, events_t *events, int64_t at_s, int32_t job)
{
    if (events_put(events, (event_t){.at_s = at_s, .number = r->foreseen++, .job = job}) < 0)
        r->has_no_memory = 1;
}

/* When a cap becomes known or a row of the plan begins. */
static int64_t next_power(const replay_t *r)
{
    int64_t row_s = scheduler_next_row(r->scheduler);
    int64_t announced_s = r->announced < r->n_announced ? r->announced_s[r->announced] : INT64_MAX;
    return row_s < announced_s ? row_s : announced_s;
}

static int64_t next_submission(const replay_t *r)
{
    if (r->submitted == r->jobs.n_jobs)
        return INT64_MAX;
    return r->answering ? answering_next(r->answering) : r->submit_s[r->submitted];
}

/* When a job is to start by the record of a warm start. */
static int64_t next_recorded(const replay_t *r)
{
    return r->carried_out < r->n_recorded ? r->recorded[r->carried_out].start_s : INT64_MAX;
}

/****************************************************************
 * Making and unmaking
 ****************************************************************/

replay_t *replay_new(const composition_t *composition, const jobs_t *jobs, const int64_t *submit_s, int32_t batch,
                     int32_t pauses)
{
    replay_t *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    int32_t n = jobs->n_jobs;
    r->jobs = *jobs;
    r->submit_s = submit_s;
    r->batch = batch;
    r->pauses = pauses;
    r->processors = composition->processors;
    r->places = composition->frees_at_estimate;
    r->wake_s = r->pause_s = INT64_MAX;
    r->scheduler = scheduler_new(composition, jobs);
    memory_t *m = &r->memory;
    r->end_s = column(m, n, sizeof *r->end_s);
    r->ended_jobs = column(m, n, sizeof *r->ended_jobs);
    r->starts = column(m, n, sizeof *r->starts);
    r->start_s = column(m, n, sizeof *r->start_s);
    r->interval_first = column(m, n, sizeof *r->interval_first);
    r->interval_count = column(m, n, sizeof *r->interval_count);
    if (!r->scheduler || placement_init(&r->placement, m, composition->processors) < 0 ||
        events_init(&r->ends, m, n) < 0 || events_init(&r->overruns, m, n) < 0) {
        replay_free(r);
        return NULL;
    }
    memset(r->start_s, 0xff, (size_t)n * sizeof *r->start_s); /* -1 */
    memset(r->end_s, 0xff, (size_t)n * sizeof *r->end_s);
    return r;
}

void replay_power_columns(replay_t *r)
{
    int32_t n = r->jobs.n_jobs;
    memory_t *m = &r->memory;
    r->meter = column(m, 1, sizeof *r->meter);
    r->ends.valid = column(m, n, sizeof *r->ends.valid);
    r->overruns.valid = column(m, n, sizeof *r->overruns.valid);
    r->begins.valid = column(m, n, sizeof *r->begins.valid);
    r->kills = column(m, n, sizeof *r->kills);
    r->lost = column(m, n, sizeof *r->lost);
    r->lost_uj = column(m, n, sizeof *r->lost_uj);
}

int32_t replay_set_power(replay_t *r, const power_model_t *model, const int64_t *announced_s, int32_t n_announced)
{
    int32_t n = r->jobs.n_jobs;
    memory_t *m = &r->memory;
    replay_power_columns(r);
    r->announced_s = announced_s;
    r->n_announced = n_announced;
    if (events_init(&r->begins, m, 1) < 0)
        return -1;
    r->now_s = n ? r->submit_s[0] : 0;
    return meter_init(r->meter, m, model, n, r->now_s) < 0 ? -1 : scheduler_set_power(r->scheduler, model);
}

int32_t replay_set_idle_off(replay_t *r, const idle_off_t *model)
{
    r->meter->idle_off = *model;
    return scheduler_set_idle_off(r->scheduler, model);
}

void replay_set_caps(replay_t *r, const caps_t *caps, int32_t begun)
{
    r->caps = *caps;
    r->caps_begun = begun;
}

int32_t replay_set_sharing(replay_t *r)
{
    r->shares_nodes = 1;
    r->ends.valid = column(&r->memory, r->jobs.n_jobs, sizeof *r->ends.valid);
    r->overruns.valid = column(&r->memory, r->jobs.n_jobs, sizeof *r->overruns.valid);
    return memory_status(&r->memory);
}

void replay_wake(replay_t *r, int64_t at_s)
{
    r->wake_s = at_s;
}

void replay_free(replay_t *r)
{
    if (!r)
        return;
    scheduler_free(r->scheduler);
    memory_free(&r->memory);
    free(r);
}

int32_t replay_answer(replay_t *r, const answers_t *answers)
{
    r->answering = answering_new(&r->memory, answers);
    return r->answering ? 0 : -1;
}

void replay_set_record(replay_t *r, const recorded_t *recorded, int32_t n_recorded, int64_t until_s)
{
    r->recorded = recorded;
    r->n_recorded = n_recorded;
    r->wake_s = until_s;
    scheduler_decides_from(r->scheduler, until_s);
}

void replay_pause_at(replay_t *r, int64_t at_s)
{
    r->pause_s = at_s;
}

/* Partitions have processors of their own, those that fail are known by their numbers, and a pass with reservations
 * counts them only. */
static void place_processors(replay_t *r)
{
    r->places = 1;
    scheduler_place_nobody(r->scheduler);
}

int32_t replay_set_limits(replay_t *r, const limits_t *limits)
{
    int32_t first = 0;
    r->n_parts = limits->n_partitions;
    r->has_reservations = limits->n_reserved > 0 || limits->n_open > 0;
    if (r->n_parts || r->has_reservations)
        place_processors(r);
    r->part_of = limits->partition;
    r->parts = column(&r->memory, r->n_parts, sizeof *r->parts);
    if (!r->parts)
        return -1;
    for (int32_t p = 0; p < r->n_parts; p++) {
        int32_t width = (int32_t)limits->has[2 * p];
        if (placement_init(&r->parts[p], &r->memory, r->processors) < 0)
            return -1;
        r->parts[p].end = r->parts[p].begin; /* nothing is free before it is moved there */
        placement_move(&r->placement, &r->parts[p], first, first + width - 1);
        first += width;
    }
    return scheduler_set_limits(r->scheduler, limits);
}

/****************************************************************
 * The simulated machine
 ****************************************************************/

/* Whether the scheduler gives out processors itself: the policy needs to know them, or there are nodes that differ; or
 * nobody does, with configurations, or where the caller decides. */
static int is_placed(const replay_t *r)
{
    return r->is_stepped || r->caps.n || (r->meter && (!r->places || r->meter->idle_off.cores));
}

/* The processors of the job's partition, or all. */
static placement_t *placement_of(replay_t *r, int32_t job)
{
    return r->n_parts ? &r->parts[r->part_of[job]] : &r->placement;
}

/* The job leaves the machine, but not yet the scheduler. */
static void meter_leaving(replay_t *r, int32_t job)
{
    meter_t *m = r->meter;
    if (r->start_s[job] <= r->now_s)
        meter_stop(m, job, r->jobs.width[job]);
    scheduler_metered(r->scheduler, job, m->job_uj[job] / 1e6);
    if (m->beyond)
        m->beyond -= r->jobs.width[job] - scheduler_width_below(r->scheduler, job, scheduler_row(r->scheduler)->kept);
}

static void has_ended(replay_t *r, int32_t job)
{
    r->end_s[job] = r->now_s;
    r->ended_jobs[r->ended++] = job;
    if (r->answering)
        answering_ended(r->answering, r->now_s, job);
}

static void end_job(replay_t *r, int32_t job)
{
    if (r->meter)
        meter_leaving(r, job);
    scheduler_end(r->scheduler, job);
    if (!is_placed(r))
        placement_give_back(placement_of(r, job), r->placement.intervals + r->interval_first[job], r->interval_count[job]);
    has_ended(r, job);
    r->is_pass_due = 1;
}

void replay_end_early(replay_t *r, int32_t job)
{
    events_forget(&r->ends, job);
    events_forget(&r->overruns, job);
    if (!r->meter) {
        end_job(r, job);
        return;
    }
    events_forget(&r->begins, job);
    end_job(r, job);
    r->kills[job]++;
    r->lost_uj[job] = r->meter->job_uj[job];
    r->lost[job] += (r->now_s - r->start_s[job]) * r->jobs.width[job];
}

/****************************************************************
 * Nodes that fail
 ****************************************************************/

int32_t replay_set_failures(replay_t *r, const failure_t *failures, int32_t n_failures, uint8_t *mattered)
{
    int32_t n = r->jobs.n_jobs;
    memory_t *m = &r->memory;
    r->failures = failures;
    r->n_failures = n_failures;
    place_processors(r);
    r->mattered = mattered;
    r->ends.valid = column(m, n, sizeof *r->ends.valid);
    r->overruns.valid = column(m, n, sizeof *r->overruns.valid);
    r->kills = column(m, n, sizeof *r->kills);
    r->lost = column(m, n, sizeof *r->lost);
    r->running = column(m, n, sizeof *r->running);
    r->away = column(m, n_failures, sizeof *r->away);
    if (placement_init(&r->absent, m, (int32_t)r->processors) < 0)
        return -1;
    r->absent.end = r->absent.begin;
    return memory_status(m);
}

/* When the next processors fail or are back. */
static int64_t next_failure(const replay_t *r)
{
    int64_t at_s = r->failed < r->n_failures ? r->failures[r->failed].at_s : INT64_MAX;
    for (int32_t i = 0; i < r->n_away; i++)
        if (r->failures[r->away[i]].back_s < at_s)
            at_s = r->failures[r->away[i]].back_s;
    return at_s;
}

static int is_on(const replay_t *r, int32_t job, const failure_t *one)
{
    const interval_t *on = r->placement.intervals + r->interval_first[job];
    for (int32_t i = 0; i < r->interval_count[job]; i++)
        if (on[i].first <= one->last && on[i].last >= one->first)
            return 1;
    return 0;
}

/* The running job is killed and waits again. */
static void lose_job(replay_t *r, int32_t job)
{
    if (r->meter) {
        meter_leaving(r, job);
        r->lost_uj[job] = r->meter->job_uj[job]; /* all runs until now were lost */
    }
    scheduler_lose(r->scheduler, job);
    placement_give_back(&r->placement, r->placement.intervals + r->interval_first[job], r->interval_count[job]);
    r->ends.valid[job] = r->overruns.valid[job] = -1;
    r->kills[job]++;
    r->lost[job] += (r->now_s - r->start_s[job]) * r->jobs.width[job];
    r->start_s[job] = -1;
    if (r->answering)
        answering_requeued(r->answering);
}

static void fail(replay_t *r)
{
    const failure_t *one = &r->failures[r->failed];
    int32_t count = scheduler_running(r->scheduler, r->running);
    for (int32_t i = 0; i < count; i++)
        if (is_on(r, r->running[i], one)) {
            lose_job(r, r->running[i]);
            r->mattered[r->failed] = 1;
        }
    scheduler_take_away(r->scheduler, placement_move(&r->placement, &r->absent, one->first, one->last));
    r->away[r->n_away++] = r->failed++;
}

/* Processors whose failures are over. */
static void take_back(replay_t *r)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < r->n_away; i++) {
        const failure_t *one = &r->failures[r->away[i]];
        if (one->back_s > r->now_s)
            r->away[kept++] = r->away[i];
        else
            scheduler_take_away(r->scheduler, -placement_move(&r->absent, &r->placement, one->first, one->last));
    }
    r->n_away = kept;
}

/* All failures of the instant, after those that end; jobs wait again in the order of their numbers. A node that was back
   before its jobs were known to be lost fails and is back at once. */
static void follow_failures(replay_t *r)
{
    take_back(r);
    while (r->failed < r->n_failures && r->failures[r->failed].at_s <= r->now_s)
        fail(r);
    take_back(r);
    r->is_pass_due = 1;
}

/****************************************************************
 * Jobs that run
 ****************************************************************/

/* When the running job will end; after a change of frequency, whose end is rounded, not before the next second. */
static int64_t ends_at(const replay_t *r, int32_t job)
{
    int64_t end_s = scheduler_finish(r->scheduler, job, r->jobs.run_s[job]);
    return end_s > r->now_s ? end_s : r->now_s + 1;
}

static void foresee_overrun(replay_t *r, int32_t job, int64_t expected_end_s)
{
    if (expected_end_s > r->now_s && expected_end_s < ends_at(r, job))
        replay_foresee(r, &r->overruns, expected_end_s, job);
}

void replay_foresee_end(replay_t *r, int32_t job)
{
    replay_foresee(r, &r->ends, ends_at(r, job), job);
    foresee_overrun(r, job, scheduler_expected_end(r->scheduler, job));
}

/* It waits again: among the starts that the caller of a step sees, each job is once. */
static void forget_start(replay_t *r, int32_t job)
{
    int32_t i = 0;
    while (r->is_stepped && i < r->n_starts && r->starts[i] != job)
        i++;
    if (r->is_stepped && i < r->n_starts)
        memmove(r->starts + i, r->starts + i + 1, (size_t)(--r->n_starts - i) * sizeof *r->starts);
}

int32_t replay_kill(replay_t *r, int32_t job)
{
    int requeues = r->meter->model.requeues;
    meter_leaving(r, job);
    scheduler_kill(r->scheduler, r->now_s, job);
    r->ends.valid[job] = r->overruns.valid[job] = r->begins.valid[job] = -1;
    r->kills[job]++;
    r->lost_uj[job] = r->meter->job_uj[job]; /* all runs until now were killed */
    if (r->start_s[job] < r->now_s)
        r->lost[job] += (r->now_s - r->start_s[job]) * r->jobs.width[job];
    if (!requeues) {
        has_ended(r, job);
        return 0;
    }
    r->start_s[job] = -1;
    forget_start(r, job);
    if (r->answering)
        answering_requeued(r->answering);
    return 0;
}

int32_t replay_set_level(replay_t *r, int32_t job, int32_t level)
{
    int has_begun = r->start_s[job] <= r->now_s;
    if (has_begun)
        meter_stop(r->meter, job, r->jobs.width[job]);
    scheduler_set_level(r->scheduler, r->now_s, job, level);
    if (has_begun)
        meter_start(r->meter, job, r->jobs.width[job], level);
    r->overruns.valid[job] = -1;
    replay_foresee_end(r, job);
    return r->has_no_memory ? REPLAY_NO_MEMORY : 0;
}

/* Jobs whose partners have come or gone run faster or slower from now on. */
static void follow_partners(replay_t *r)
{
    int32_t count;
    const int32_t *jobs = scheduler_repaced(r->scheduler, r->now_s, &count);
    for (int32_t i = 0; i < count; i++) {
        events_forget(&r->overruns, jobs[i]);
        replay_foresee_end(r, jobs[i]);
    }
}

/* A row of the plan begins, or a cap becomes known: counts the jobs on nodes that should be off. */
static void follow_plan(replay_t *r)
{
    scheduler_advance(r->scheduler, r->now_s);
    r->is_beyond_known = 0;
    while (r->announced < r->n_announced && r->announced_s[r->announced] <= r->now_s)
        r->announced++;
}

int32_t replay_replan(replay_t *r, const plan_row_t *rows, int32_t n_rows)
{
    if (scheduler_plan(r->scheduler, rows, n_rows) < 0)
        return REPLAY_NO_MEMORY;
    follow_plan(r);
    return 0;
}

static int32_t meter_now(replay_t *r)
{
    const plan_row_t *row = scheduler_row(r->scheduler);
    if (!r->is_beyond_known)
        r->meter->beyond = scheduler_beyond(r->scheduler);
    r->is_beyond_known = 1;
    r->meter->cold = scheduler_cold(r->scheduler);
    return meter_look(r->meter, row, r->processors) < 0 ? REPLAY_NO_MEMORY : 0;
}

static void read_joules(replay_t *r)
{
    scheduler_read_joules(r->scheduler, r->now_s, r->meter->unread_uj);
    r->meter->unread_uj = 0;
    r->meter->is_read = scheduler_next_reading(r->scheduler) < INT64_MAX;
    r->is_pass_due = 1;
}

/* Nodes go off, or are off or on: then their jobs begin. */
static void switch_nodes(replay_t *r)
{
    while (events_first(&r->begins) <= r->now_s) {
        int32_t job = events_take(&r->begins);
        meter_start(r->meter, job, r->jobs.width[job], scheduler_level(r->scheduler, job));
    }
    scheduler_settle(r->scheduler, r->now_s);
    r->is_pass_due = 1;
}

static void overrun_job(replay_t *r)
{
    int32_t job = events_take(&r->overruns);
    foresee_overrun(r, job, scheduler_overrun(r->scheduler, job));
}

static void submit_job(replay_t *r)
{
    if (r->is_stepped && r->meter) /* a copy's columns may have anything */
        r->kills[r->submitted] = 0, r->lost[r->submitted] = 0, r->meter->job_uj[r->submitted] = 0.0;
    if (r->answering)
        answering_submit(r->answering, r->now_s);
    r->is_pass_due |= scheduler_submit(r->scheduler, r->now_s, r->submitted++);
}

void replay_start_job(replay_t *r)
{
    int32_t job = r->starts[r->n_starts++];
    if (r->answering)
        answering_started(r->answering, r->now_s);
    r->start_s[job] = scheduler_begins(r->scheduler, job);
    if (r->meter && r->start_s[job] > r->now_s)
        replay_foresee(r, &r->begins, r->start_s[job], job);
    else if (r->meter)
        meter_start(r->meter, job, r->jobs.width[job], scheduler_level(r->scheduler, job));
    replay_foresee_end(r, job);
}

/* At the end of an instant: the jobs that were started at it. How many; below 0: one has not come, or has no room. */
static int32_t carry_out(replay_t *r)
{
    int32_t count = 0;
    for (; next_recorded(r) <= r->now_s; count++) {
        const recorded_t *one = &r->recorded[r->carried_out++];
        r->starts[r->n_starts] = one->job;
        if (one->job >= r->submitted || scheduler_carry_out(r->scheduler, r->now_s, one->job, one->level) < 0)
            return REPLAY_OVERFULL;
        replay_start_job(r);
    }
    return count;
}

static int32_t pass(replay_t *r)
{
    int32_t count = scheduler_decide(r->scheduler, r->now_s, r->starts + r->n_starts);
    if (count < 0)
        return REPLAY_NO_MEMORY;
    for (int32_t i = 0; i < count; i++)
        replay_start_job(r);
    if (r->shares_nodes)
        follow_partners(r);
    r->passes++;
    r->is_pass_due = 0;
    for (int32_t i = 0; i < r->n_away && scheduler_waiting(r->scheduler); i++)
        r->mattered[r->away[i]] = 1;
    return 0;
}

/* Gives processors to the jobs decided at this instant, after all jobs that end at it have given theirs back. */
static int32_t place(replay_t *r)
{
    if (is_placed(r)) {
        r->n_starts = r->is_stepped ? r->n_starts : 0;
        return 0;
    }
    for (; r->n_placed < r->n_starts; r->n_placed++) {
        int32_t job = r->starts[r->n_placed];
        r->interval_first[job] = r->placement.n_intervals;
        placement_t *placement = placement_of(r, job);
        int32_t count = placement_take(placement, r->jobs.width[job]);
        if (count > 0 && placement != &r->placement && placement_hand_over(placement, &r->placement, count) < 0)
            count = -1;
        if (count < 0)
            return count == -1 ? REPLAY_NO_MEMORY : REPLAY_OVERFULL;
        r->interval_count[job] = count;
    }
    if (r->n_failures) /* a job may start again */
        r->n_placed = r->n_starts = 0;
    return 0;
}

/****************************************************************
 * The loop
 ****************************************************************/

/* Whether the policy wants to react to jobs that end now. */
static int hears_ends(const replay_t *r)
{
    return r->meter && r->meter->model.reacts_to_ends && scheduler_row(r->scheduler)->cap_uw != NO_CAP;
}

/* Inside the loop only: nothing to return yet. Apart from all REPLAY_*. */
#define GO_ON INT32_MAX

/* When the next event of each kind happens, and the first of them; INT64_MAX: never. */
typedef struct {
    int64_t submission_s, end_s, overrun_s;
    int64_t power_s, reading_s, switch_s; /* of the plan; joules are to be read; nodes go off, or are off or on */
    int64_t failure_s;                    /* nodes fail, or are back */
    int64_t cap_s, wake_s;                /* another cap is in force; the caller wants a pass */
    int64_t reserved_s;                   /* a reservation begins, ends, is made or deleted, or a queue opens */
    int64_t first_s;
} next_t;

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static next_t look_ahead(replay_t *r)
{
    int has_power = r->meter && r->ended < r->jobs.n_jobs; /* without jobs to come it does not matter any more */
    next_t next = {
        .submission_s = next_submission(r),
        .end_s = events_first(&r->ends),
        .overrun_s = events_first(&r->overruns),
        .power_s = has_power ? next_power(r) : INT64_MAX,
        .reading_s = has_power ? scheduler_next_reading(r->scheduler) : INT64_MAX,
        .switch_s = has_power ? scheduler_next_switch(r->scheduler) : INT64_MAX,
        .cap_s = r->caps_begun < r->caps.n && r->ended < r->jobs.n_jobs ? r->caps.from_s[r->caps_begun] : INT64_MAX,
        .wake_s = r->ended < r->jobs.n_jobs ? r->wake_s : INT64_MAX,
        .failure_s = r->n_failures && r->ended < r->jobs.n_jobs ? next_failure(r) : INT64_MAX,
        .reserved_s = r->has_reservations && r->ended < r->jobs.n_jobs ? scheduler_next_reserved(r->scheduler, r->now_s)
                                                                       : INT64_MAX,
    };
    next.first_s = earlier(earlier(next.submission_s, next.end_s), earlier(next.overrun_s, next.power_s));
    next.first_s = earlier(earlier(next.first_s, next.cap_s), earlier(next.reading_s, next.switch_s));
    next.first_s = earlier(earlier(next.first_s, next.wake_s), earlier(next.failure_s, next.reserved_s));
    int64_t recorded_s = next_recorded(r); /* a start of this instant comes last, and so is none of what comes next */
    if (recorded_s > r->now_s)
        next.first_s = earlier(next.first_s, recorded_s);
    return next;
}

/* What must be done before time moves on: the pass, the policy's reaction, the meter's reading. */
static int32_t finish_instant(replay_t *r)
{
    if (r->is_pass_due) {
        int is_due = r->is_order_due; /* the caller orders the queue first; the next call makes the pass */
        r->is_order_due = 0;
        if (is_due && (r->pauses != PAUSES_WHERE_ORDERED || scheduler_needs_order(r->scheduler, r->now_s)))
            return REPLAY_PASS_DUE;
        int32_t status = pass(r);
        if (status < 0)
            return status;
    }
    if (r->is_reaction_due) {
        r->is_reaction_due = 0;
        return REPLAY_POWER_DUE;
    }
    return r->has_no_memory || (r->meter && meter_now(r) < 0) ? REPLAY_NO_MEMORY : GO_ON;
}

/* One event by itself, submissions before ends: its pass comes before the next event of the same instant. */
static void take_event(replay_t *r, const next_t *next)
{
    if (next->overrun_s == next->first_s)
        overrun_job(r);
    else if (next->submission_s == next->first_s)
        submit_job(r);
    else if (next->end_s == next->first_s)
        end_job(r, events_take(&r->ends));
}

/* All ends, overruns and submissions of the instant. */
static void take_instant(replay_t *r, const next_t *next)
{
    r->is_reaction_due = next->end_s == next->first_s && hears_ends(r);
    while (events_first(&r->ends) == next->first_s)
        end_job(r, events_take(&r->ends));
    while (events_first(&r->overruns) == next->first_s)
        overrun_job(r);
    while (next_submission(r) == next->first_s)
        submit_job(r);
}

/* Moves time to the first of what comes next, and lets it happen. */
static int32_t move_on(replay_t *r, const next_t *next)
{
    r->now_s = next->first_s;
    if (r->meter) /* what was drawn until now, before anything changes */
        meter_pass(r->meter, r->now_s);
    if (r->batch == BATCH_EVENT)
        take_event(r, next);
    else
        take_instant(r, next);
    if (r->shares_nodes)
        follow_partners(r);
    if (next->switch_s == r->now_s && (r->batch == BATCH_INSTANT || next->overrun_s > r->now_s))
        switch_nodes(r); /* with single events, a pass follows only once no estimate is to be corrected */
    if (next->failure_s == r->now_s)
        follow_failures(r);
    if (next->reading_s == r->now_s)
        read_joules(r);
    r->is_pass_due |= next->reserved_s == r->now_s;
    if (next->cap_s == r->now_s) {
        r->caps_begun++;
        r->is_pass_due = 1;
    }
    if (next->wake_s == r->now_s) {
        r->wake_s = INT64_MAX;
        r->is_pass_due = 1;
    }
    r->is_order_due = r->pauses;
    if (next->power_s == r->now_s) { /* the plan changes: the policy reacts, then comes the pass */
        follow_plan(r);
        r->is_pass_due = 1;
        r->is_reaction_due = 0;
        return REPLAY_POWER_DUE;
    }
    if (r->is_reaction_due && r->meter->model.reacts_to_ends == ENDS_BEFORE_PASS) {
        r->is_reaction_due = 0;
        return REPLAY_POWER_DUE;
    }
    return GO_ON;
}

int32_t replay_run(replay_t *r, int32_t until_ended)
{
    for (;;) {
        int32_t status = finish_instant(r);
        if (status != GO_ON)
            return status;
        next_t next = look_ahead(r);
        if (next.first_s > r->now_s && (status = carry_out(r))) {
            if (status < 0)
                return status;
            continue;
        }
        /* with single events, the machine gives out processors only at the end of the instant */
        if ((next.first_s > r->now_s || r->batch == BATCH_INSTANT) && (status = place(r)) < 0)
            return status;
        if (next.first_s == INT64_MAX) {
            if (r->answering)
                answering_finish(r->answering, r->now_s);
            return REPLAY_ENDED;
        }
        if (r->ended >= until_ended || next.first_s >= r->pause_s)
            return REPLAY_PAUSED;
        if ((status = move_on(r, &next)) != GO_ON)
            return status;
    }
}

int64_t replay_now(const replay_t *r)
{
    return r->now_s;
}

/****************************************************************
 * The record
 ****************************************************************/

scheduler_t *replay_scheduler(replay_t *r)
{
    return r->scheduler;
}

replayed_t replay_so_far(const replay_t *r)
{
    replayed_t found = {
        .now_s = r->now_s,
        .passes = r->passes,
        .submitted = r->submitted,
        .ended = r->ended,
        .ended_jobs = r->ended_jobs,
        .start_s = r->start_s,
        .end_s = r->end_s,
        .decisions = scheduler_decisions(r->scheduler),
        .kills = r->kills,
        .lost = r->lost,
        .lost_uj = r->lost_uj,
    };
    if (!is_placed(r)) {
        found.decisions.intervals = r->placement.intervals;
        found.decisions.interval_first = r->interval_first;
        found.decisions.interval_count = r->interval_count;
    }
    if (r->meter) {
        found.job_uj = r->meter->job_uj;
        found.steps = r->meter->steps;
        found.n_steps = r->meter->n_steps;
    }
    return found;
}

joules_t replay_joules(const replay_t *r, int64_t at_s)
{
    meter_t until = *r->meter;
    if (at_s > until.at_s) /* before the first job nothing is drawn */
        meter_pass(&until, at_s);
    return until.joules;
}
