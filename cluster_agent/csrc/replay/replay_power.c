/* A replay with watts: what the plan of caps, the meter and nodes that go off or boot mean to its jobs. */
#include "replay/replay_inside.h"

#include <string.h>

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

/****************************************************************
 * The plan, the meter and nodes that switch
 ****************************************************************/

void replay_follow_plan(replay_t *r)
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
    replay_follow_plan(r);
    return 0;
}

int32_t replay_meter_now(replay_t *r)
{
    const plan_row_t *row = scheduler_row(r->scheduler);
    if (!r->is_beyond_known)
        r->meter->beyond = scheduler_beyond(r->scheduler);
    r->is_beyond_known = 1;
    r->meter->cold = scheduler_cold(r->scheduler);
    return meter_look(r->meter, row, r->processors) < 0 ? REPLAY_NO_MEMORY : 0;
}

void replay_read_joules(replay_t *r)
{
    scheduler_read_joules(r->scheduler, r->now_s, r->meter->unread_uj);
    r->meter->unread_uj = 0;
    r->meter->is_read = scheduler_next_reading(r->scheduler) < INT64_MAX;
    r->is_pass_due = 1;
}

void replay_switch_nodes(replay_t *r)
{
    while (events_first(&r->begins) <= r->now_s) {
        int32_t job = events_take(&r->begins);
        meter_start(r->meter, job, r->jobs.width[job], scheduler_level(r->scheduler, job));
    }
    scheduler_settle(r->scheduler, r->now_s);
    r->is_pass_due = 1;
}

/****************************************************************
 * Jobs under caps
 ****************************************************************/

void replay_meter_leaving(replay_t *r, int32_t job)
{
    meter_t *m = r->meter;
    if (r->start_s[job] <= r->now_s)
        meter_stop(m, job, r->jobs.width[job]);
    scheduler_metered(r->scheduler, job, m->job_uj[job] / 1e6);
    if (m->beyond)
        m->beyond -= r->jobs.width[job] - scheduler_width_below(r->scheduler, job, scheduler_row(r->scheduler)->kept);
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
    replay_meter_leaving(r, job);
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
