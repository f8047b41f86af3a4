/* The loop of a replay: events to come, jobs that start, run and end on the simulated machine, and the record. */
#include "replay/replay_inside.h"

/****************************************************************
 * Events to come
 ****************************************************************/

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

/* The job has been submitted, and calls for a pass (1), or has ended. */
static void call_for_pass(replay_t *r, int32_t job, int32_t is_due)
{
    if (r->jobs.best_effort && r->jobs.best_effort[job])
        r->is_left_due = 1;
    else
        r->is_pass_due |= is_due;
}

static void end_job(replay_t *r, int32_t job)
{
    if (r->meter)
        replay_meter_leaving(r, job);
    scheduler_end(r->scheduler, job);
    if (!is_placed(r))
        placement_give_back(placement_of(r, job), r->placement.intervals + r->interval_first[job], r->interval_count[job]);
    has_ended(r, job);
    call_for_pass(r, job, 1);
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
 * Jobs that run
 ****************************************************************/

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

static void submit_job(replay_t *r)
{
    if (r->is_stepped && r->meter) /* a copy's columns may have anything */
        r->kills[r->submitted] = 0, r->lost[r->submitted] = 0, r->meter->job_uj[r->submitted] = 0.0;
    if (r->answering)
        answering_submit(r->answering, r->now_s);
    int32_t job = r->submitted++;
    call_for_pass(r, job, scheduler_submit(r->scheduler, r->now_s, job));
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
    int32_t *starts = r->starts + r->n_starts;
    int32_t count = r->is_pass_due ? scheduler_decide(r->scheduler, r->now_s, starts)
                                   : scheduler_decide_left(r->scheduler, r->now_s, starts);
    if (count < 0)
        return REPLAY_NO_MEMORY;
    replay_preempt(r);
    for (int32_t i = 0; i < count; i++)
        replay_start_job(r);
    if (r->shares_nodes)
        follow_partners(r);
    r->passes += r->is_pass_due;
    r->is_pass_due = r->is_left_due = 0;
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
    if (r->n_failures || r->jobs.best_effort) /* a job may start again */
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
        .failure_s = r->n_failures && r->ended < r->jobs.n_jobs ? replay_next_failure(r) : INT64_MAX,
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
    }
    if (r->is_pass_due || r->is_left_due) {
        int32_t status = pass(r);
        if (status < 0)
            return status;
    }
    if (r->is_reaction_due) {
        r->is_reaction_due = 0;
        return REPLAY_POWER_DUE;
    }
    return r->has_no_memory || (r->meter && replay_meter_now(r) < 0) ? REPLAY_NO_MEMORY : GO_ON;
}

/* One event by itself, submissions before ends: its pass comes before the next event of the same instant. */
static void take_event(replay_t *r, const next_t *next)
{
    if (next->overrun_s == next->first_s)
        replay_overrun_job(r);
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
        replay_overrun_job(r);
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
        replay_switch_nodes(r); /* with single events, a pass follows only once no estimate is to be corrected */
    if (next->failure_s == r->now_s)
        replay_follow_failures(r);
    if (next->reading_s == r->now_s)
        replay_read_joules(r);
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
        replay_follow_plan(r);
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
