#include "replay.h"

#include <stdlib.h>
#include <string.h>

/* Something that will happen to a running job. Events of one time happen in the order in which they were foreseen. */
typedef struct {
    int64_t at_s;
    int64_t number;
    int32_t job;
} event_t;

/* A binary heap: no event happens before the one at the index (i - 1) / 2 of its own. */
typedef struct {
    event_t *events;
    int32_t count;
} heap_t;

struct replay {
    jobs_t jobs;
    const int64_t *submit_s;
    int32_t batch, pauses_before_passes;
    scheduler_t *scheduler;
    placement_t placement;

    int64_t now_s;
    heap_t ends, overruns;
    int64_t foreseen;   /* events foreseen so far: numbers them */
    int32_t submitted, ended;
    int64_t passes;
    int32_t is_pass_due;

    int32_t *starts;    /* decided, and not yet placed: from n_placed to n_starts */
    int32_t n_placed, n_starts;
    int64_t *start_s;
    int64_t *interval_first;
    int32_t *interval_count;
};

/****************************************************************
 * Events to come
 ****************************************************************/

static int is_before(const event_t *a, const event_t *b)
{
    return a->at_s != b->at_s ? a->at_s < b->at_s : a->number < b->number;
}

static void foresee(replay_t *r, heap_t *heap, int64_t at_s, int32_t job)
{
    event_t event = {.at_s = at_s, .number = r->foreseen++, .job = job};
    int32_t i = heap->count++;
    while (i > 0 && is_before(&event, &heap->events[(i - 1) / 2])) {
        heap->events[i] = heap->events[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap->events[i] = event;
}

static int32_t take_first(heap_t *heap)
{
    int32_t job = heap->events[0].job;
    event_t last = heap->events[--heap->count];
    int32_t i = 0;
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && is_before(&heap->events[child + 1], &heap->events[child]))
            child++;
        if (!is_before(&heap->events[child], &last))
            break;
        heap->events[i] = heap->events[child];
        i = child;
    }
    heap->events[i] = last;
    return job;
}

static int64_t first_at(const heap_t *heap)
{
    return heap->count ? heap->events[0].at_s : INT64_MAX;
}

static int64_t next_submission(const replay_t *r)
{
    return r->submitted < r->jobs.n_jobs ? r->submit_s[r->submitted] : INT64_MAX;
}

/****************************************************************
 * Making and unmaking
 ****************************************************************/

static void *column(int32_t count, size_t size)
{
    return calloc(count > 0 ? (size_t)count : 1, size);
}

replay_t *replay_new(const composition_t *composition, const jobs_t *jobs, const int64_t *submit_s, int32_t batch,
                     int32_t pauses_before_passes)
{
    replay_t *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    int32_t n = jobs->n_jobs;
    r->jobs = *jobs;
    r->submit_s = submit_s;
    r->batch = batch;
    r->pauses_before_passes = pauses_before_passes;
    r->scheduler = scheduler_new(composition, jobs);
    r->ends.events = column(n, sizeof *r->ends.events);
    r->overruns.events = column(n, sizeof *r->overruns.events);
    r->starts = column(n, sizeof *r->starts);
    r->start_s = column(n, sizeof *r->start_s);
    r->interval_first = column(n, sizeof *r->interval_first);
    r->interval_count = column(n, sizeof *r->interval_count);
    if (!r->scheduler || placement_init(&r->placement, composition->processors) < 0 || !r->ends.events ||
        !r->overruns.events || !r->starts || !r->start_s || !r->interval_first || !r->interval_count) {
        replay_free(r);
        return NULL;
    }
    memset(r->start_s, 0xff, (size_t)n * sizeof *r->start_s); /* -1 */
    return r;
}

void replay_free(replay_t *r)
{
    if (!r)
        return;
    scheduler_free(r->scheduler);
    placement_clear(&r->placement);
    free(r->ends.events);
    free(r->overruns.events);
    free(r->starts);
    free(r->start_s);
    free(r->interval_first);
    free(r->interval_count);
    free(r);
}

/****************************************************************
 * The simulated machine
 ****************************************************************/

static void end_job(replay_t *r)
{
    int32_t job = take_first(&r->ends);
    scheduler_end(r->scheduler, job);
    placement_give_back(&r->placement, r->placement.intervals + r->interval_first[job], r->interval_count[job]);
    r->ended++;
    r->is_pass_due = 1;
}

static void foresee_overrun(replay_t *r, int32_t job, int64_t expected_end_s)
{
    if (expected_end_s > r->now_s && expected_end_s < r->start_s[job] + r->jobs.run_s[job])
        foresee(r, &r->overruns, expected_end_s, job);
}

static void overrun_job(replay_t *r)
{
    int32_t job = take_first(&r->overruns);
    foresee_overrun(r, job, scheduler_overrun(r->scheduler, job));
}

static void submit_job(replay_t *r)
{
    r->is_pass_due |= scheduler_submit(r->scheduler, r->now_s, r->submitted++);
}

static int32_t pass(replay_t *r)
{
    int32_t count = scheduler_decide(r->scheduler, r->now_s, r->starts + r->n_starts);
    if (count < 0)
        return REPLAY_NO_MEMORY;
    for (int32_t i = 0; i < count; i++) {
        int32_t job = r->starts[r->n_starts + i];
        r->start_s[job] = r->now_s;
        foresee(r, &r->ends, r->now_s + r->jobs.run_s[job], job);
        foresee_overrun(r, job, scheduler_expected_end(r->scheduler, job));
    }
    r->n_starts += count;
    r->passes++;
    r->is_pass_due = 0;
    return 0;
}

/* Gives processors to the jobs decided at this instant, after all that ends at it has given its own back. */
static int32_t place(replay_t *r)
{
    for (; r->n_placed < r->n_starts; r->n_placed++) {
        int32_t job = r->starts[r->n_placed];
        r->interval_first[job] = r->placement.n_intervals;
        int32_t count = placement_take(&r->placement, r->jobs.width[job]);
        if (count < 0)
            return count == -1 ? REPLAY_NO_MEMORY : REPLAY_OVERFULL;
        r->interval_count[job] = count;
    }
    return 0;
}

/****************************************************************
 * The loop
 ****************************************************************/

int32_t replay_run(replay_t *r, int32_t until_ended)
{
    for (;;) {
        if (r->is_pass_due) {
            int32_t status = pass(r);
            if (status < 0)
                return status;
        }
        int64_t submission_s = next_submission(r), end_s = first_at(&r->ends), overrun_s = first_at(&r->overruns);
        int64_t next_s = submission_s < end_s ? submission_s : end_s;
        next_s = overrun_s < next_s ? overrun_s : next_s;
        if (next_s > r->now_s || r->batch == BATCH_INSTANT) {
            int32_t status = place(r);
            if (status < 0)
                return status;
        }
        if (next_s == INT64_MAX)
            return REPLAY_ENDED;
        if (r->ended >= until_ended)
            return REPLAY_PAUSED;
        r->now_s = next_s;
        if (r->batch == BATCH_EVENT) {
            if (overrun_s == next_s)
                overrun_job(r);
            else if (submission_s == next_s)
                submit_job(r);
            else
                end_job(r);
        } else {
            while (first_at(&r->ends) == next_s)
                end_job(r);
            while (first_at(&r->overruns) == next_s)
                overrun_job(r);
            while (next_submission(r) == next_s)
                submit_job(r);
        }
        if (r->is_pass_due && r->pauses_before_passes)
            return REPLAY_PASS_DUE;
    }
}

/****************************************************************
 * The record
 ****************************************************************/

int64_t replay_now(const replay_t *r)
{
    return r->now_s;
}

int32_t replay_ended(const replay_t *r)
{
    return r->ended;
}

int64_t replay_passes(const replay_t *r)
{
    return r->passes;
}

scheduler_t *replay_scheduler(replay_t *r)
{
    return r->scheduler;
}

const int64_t *replay_starts(const replay_t *r)
{
    return r->start_s;
}

const interval_t *replay_intervals(const replay_t *r)
{
    return r->placement.intervals;
}

const int64_t *replay_interval_first(const replay_t *r)
{
    return r->interval_first;
}

const int32_t *replay_interval_count(const replay_t *r)
{
    return r->interval_count;
}
