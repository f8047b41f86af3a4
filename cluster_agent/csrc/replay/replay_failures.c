/* Nodes that fail: their jobs are lost and wait again, and their processors are away until the failure is over. */
#include "replay/replay_inside.h"

int32_t replay_set_failures(replay_t *r, const failure_t *failures, int32_t n_failures, uint8_t *mattered)
{
    int32_t n = r->jobs.n_jobs;
    memory_t *m = &r->memory;
    r->failures = failures;
    r->n_failures = n_failures;
    r->mattered = mattered;
    replay_preemptible(r);
    r->running = column(m, n, sizeof *r->running);
    r->away = column(m, n_failures, sizeof *r->away);
    if (placement_init(&r->absent, m, (int32_t)r->processors) < 0)
        return -1;
    r->absent.end = r->absent.begin;
    return memory_status(m);
}

int64_t replay_next_failure(const replay_t *r)
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

/* Its run is lost, and its processors are free. */
static void leave(replay_t *r, int32_t job)
{
    if (r->meter) {
        replay_meter_leaving(r, job);
        r->lost_uj[job] = r->meter->job_uj[job]; /* all runs until now were lost */
    }
    placement_give_back(&r->placement, r->placement.intervals + r->interval_first[job], r->interval_count[job]);
    r->ends.valid[job] = r->overruns.valid[job] = -1;
    r->kills[job]++;
    r->lost[job] += (r->now_s - r->start_s[job]) * r->jobs.width[job];
    r->start_s[job] = -1;
    if (r->answering)
        answering_requeued(r->answering);
}

/* The running job is killed and waits again. */
static void lose_job(replay_t *r, int32_t job)
{
    leave(r, job);
    scheduler_lose(r->scheduler, job);
}

void replay_preempt(replay_t *r)
{
    int32_t count;
    const int32_t *jobs = scheduler_preempted(r->scheduler, &count);
    for (int32_t i = 0; i < count; i++) {
        leave(r, jobs[i]);
        scheduler_requeue(r->scheduler, jobs[i]);
    }
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

void replay_follow_failures(replay_t *r)
{
    take_back(r);
    while (r->failed < r->n_failures && r->failures[r->failed].at_s <= r->now_s)
        fail(r);
    take_back(r);
    r->is_pass_due = 1;
}
