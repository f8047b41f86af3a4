/* A rate-monotonic executive for three jobs, without preemption: see executive.h. */
#include "executive.h"

static void release(struct executive *e, enum job job)
{
    if (e->ready[job])
        e->overruns[job]++;
    e->ready[job] = true;
}

void executive_tick(struct executive *e)
{
    release(e, JOB_FAST);
    if (e->ticks % TICKS_PER_SLOT == 0) {
        release(e, JOB_CONTROL);
        if (e->polled)
            e->ready[JOB_MESSAGES] = true;
    }
    e->ticks++;
}

void executive_doorbell(struct executive *e)
{
    if (!e->polled)
        e->ready[JOB_MESSAGES] = true;
}

enum job executive_take(struct executive *e)
{
    enum job job = JOB_FAST;
    if (e->ready[JOB_MESSAGES] && e->passed_over >= STARVE_LIMIT)
        job = JOB_MESSAGES;
    while (job < JOBS && !e->ready[job]) /* at most JOBS times */
        job++;
    if (job == JOB_NONE)
        return job;
    if (job == JOB_MESSAGES)
        e->passed_over = 0;
    else if (job == JOB_CONTROL && e->ready[JOB_MESSAGES])
        e->passed_over++;
    e->ready[job] = false;
    e->jobs[job]++;
    return job;
}
