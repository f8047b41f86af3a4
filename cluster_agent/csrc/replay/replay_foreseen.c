/* What is foreseen of a job that runs: that it outlives its estimate, and that it ends. */
#include "replay/replay_inside.h"

void replay_foresee(replay_t *r, events_t *events, int64_t at_s, int32_t job)
{
    if (events_put(events, (event_t){.at_s = at_s, .number = r->foreseen++, .job = job}) < 0)
        r->has_no_memory = 1;
}

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

void replay_overrun_job(replay_t *r)
{
    int32_t job = events_take(&r->overruns);
    foresee_overrun(r, job, scheduler_overrun(r->scheduler, job));
}
