/*
 * Best-effort jobs: they run on what no other job can use now, and lose it as soon as one can.
 *
 * Idea. Nothing else of the scheduler knows them: to a pass, estimates, orders and limits their processors are free. So
 * every other job starts when it would start without them. After the pass there are `free` processors without another
 * job. If best-effort jobs have more, those that started last are preempted until the rest fits; who was among them, and
 * fits after all, goes on, the oldest first. Then those that wait start in order of submission, each that fits.
 *
 * Invariant. After a pass `used` <= `free`, and nobody whom it preempted would fit; so nobody is preempted and started
 * in one pass. Cost: O(best-effort jobs) a pass.
 */
#include <string.h>

#include "scheduler_inside.h"
#include "search.h"

int best_effort_new(scheduler_t *s)
{
    int32_t n = s->jobs.n_jobs;
    best_effort_t *b = s->best_effort = column(&s->memory, 1, sizeof *b);
    if (!b)
        return -1;
    b->waiting = column(&s->memory, n, sizeof *b->waiting);
    b->running = column(&s->memory, n, sizeof *b->running);
    b->preempted = column(&s->memory, n, sizeof *b->preempted);
    return memory_status(&s->memory);
}

static void insert(int32_t *jobs, int32_t *count, int32_t at, int32_t job)
{
    memmove(jobs + at + 1, jobs + at, (size_t)((*count)++ - at) * sizeof *jobs);
    jobs[at] = job;
}

/* Whether the job was there. */
static int take_out(int32_t *jobs, int32_t *count, int32_t job)
{
    int32_t at = 0;
    while (at < *count && jobs[at] != job)
        at++;
    if (at == *count)
        return 0;
    memmove(jobs + at, jobs + at + 1, (size_t)(--(*count) - at) * sizeof *jobs);
    return 1;
}

void best_effort_wait(scheduler_t *s, int32_t job)
{
    best_effort_t *b = s->best_effort;
    s->has_started[job] = 0;
    insert(b->waiting, &b->n_waiting, FIRST(i, 0, b->n_waiting, b->waiting[i] > job), job);
}

void best_effort_submit(scheduler_t *s, int64_t now_s, int32_t job)
{
    s->submit_s[job] = now_s;
    s->overtook[job] = 0;
    s->corrections[job] = 0;
    s->estimate_s[job] = s->first_estimate_s[job] = s->jobs.request_s[job];
    best_effort_wait(s, job);
}

void best_effort_run(scheduler_t *s, int64_t started_s, int32_t job)
{
    best_effort_t *b = s->best_effort;
    s->started_s[job] = started_s;
    s->has_started[job] = 1;
    if (s->power) {
        s->level[job] = 0;
        s->since_s[job] = started_s;
        s->done_s[job] = 0;
    }
    insert(b->running, &b->n_running, FIRST(i, 0, b->n_running, s->started_s[b->running[i]] > started_s), job);
    b->used += s->jobs.width[job];
}

void best_effort_leave(scheduler_t *s, int32_t job)
{
    best_effort_t *b = s->best_effort;
    if (take_out(b->running, &b->n_running, job))
        b->used -= s->jobs.width[job];
    else if (take_out(b->waiting, &b->n_waiting, job))
        s->has_started[job] = 1; /* as a job that has left the queue */
}

/* Returns how many processors are left to those that wait. */
static int64_t preempt(scheduler_t *s)
{
    best_effort_t *b = s->best_effort;
    int64_t left = s->free - b->used;
    int32_t kept = b->n_running, was = b->n_running;

    b->n_preempted = 0;
    while (left < 0 && kept > 0)
        left += s->jobs.width[b->running[--kept]];
    for (int32_t i = kept; i < was; i++) {
        int32_t job = b->running[i], width = s->jobs.width[job];
        if (width <= left) {
            left -= width;
            b->running[kept++] = job;
        } else {
            b->used -= width;
            b->preempted[b->n_preempted++] = job;
        }
    }
    b->n_running = kept;
    return left;
}

int32_t scheduler_decide_left(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    best_effort_t *b = s->best_effort;
    int64_t left = preempt(s);
    int32_t count = 0, kept = 0;

    for (int32_t i = 0; left > 0 && i < b->n_waiting; i++) {
        int32_t job = b->waiting[i];
        if (s->jobs.width[job] > left) {
            b->waiting[kept++] = job;
            continue;
        }
        left -= s->jobs.width[job];
        best_effort_run(s, now_s, job);
        starts[count++] = job;
    }
    if (count) { /* what was not looked at moves up */
        int32_t seen = kept + count;
        memmove(b->waiting + kept, b->waiting + seen, (size_t)(b->n_waiting - seen) * sizeof *b->waiting);
        b->n_waiting -= count;
    }
    return count;
}

const int32_t *scheduler_preempted(const scheduler_t *s, int32_t *count)
{
    *count = s->best_effort ? s->best_effort->n_preempted : 0;
    return s->best_effort ? s->best_effort->preempted : NULL;
}
