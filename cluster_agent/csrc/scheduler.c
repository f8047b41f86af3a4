#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"
#include "search.h"

void scheduler_free(scheduler_t *s)
{
    if (!s)
        return;
    memory_free(&s->memory);
    free(s);
}

/****************************************************************
 * The running jobs
 ****************************************************************/

/* The index in `running` of the first job whose expected end is later than `end_s`. */
static int32_t running_after(const scheduler_t *s, int64_t end_s)
{
    return FIRST(i, 0, s->n_running, s->running[i].expected_end_s > end_s);
}

void scheduler_running_add(scheduler_t *s, int32_t job)
{
    int64_t end_s = scheduler_expected_end(s, job);
    running_t *place = s->running + running_after(s, end_s);
    memmove(place + 1, place, (size_t)(s->running + s->n_running - place) * sizeof *place);
    *place = (running_t){.expected_end_s = end_s, .job = job, .width = s->jobs.width[job]};
    s->n_running++;
    s->free -= s->jobs.width[job];
    if (s->phases.resources->occupy)
        s->phases.resources->occupy(s, job, 1);
    if (s->limited)
        limits_count(s, job, 1);
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
    if (s->phases.resources->occupy)
        s->phases.resources->occupy(s, job, -1);
    if (s->limited)
        limits_count(s, job, -1);
}

void scheduler_leave(scheduler_t *s, int32_t job)
{
    scheduler_running_remove(s, job);
    if (s->phases.resources->give_back)
        s->phases.resources->give_back(s, job);
}

int64_t scheduler_free_now(const scheduler_t *s, int64_t now_s)
{
    int64_t free = s->free;
    if (s->composition.frees_at_estimate)
        for (int32_t i = 0; i < s->n_running && s->running[i].expected_end_s <= now_s; i++)
            free += s->running[i].width;
    return free;
}

int64_t scheduler_next_change(const scheduler_t *s, int64_t at_s, int32_t ended)
{
    int32_t k = caps_after(&s->caps, at_s);
    return least(ended < s->n_running ? s->running[ended].expected_end_s : INT64_MAX,
                 k < s->caps.n ? s->caps.from_s[k] : INT64_MAX);
}

void scheduler_set_caps(scheduler_t *s, const caps_t *caps)
{
    s->caps = *caps;
}

int32_t scheduler_first_ahead(const scheduler_t *s, int64_t now_s)
{
    return s->composition.frees_at_estimate ? running_after(s, now_s) : 0;
}

int64_t scheduler_expected_end(const scheduler_t *s, int32_t job)
{
    return s->since_s ? scheduler_finish(s, job, s->estimate_s[job]) : s->started_s[job] + s->estimate_s[job];
}

int64_t scheduler_begins(const scheduler_t *s, int32_t job)
{
    return s->since_s ? s->since_s[job] : s->started_s[job];
}

int64_t scheduler_finish(const scheduler_t *s, int32_t job, int64_t length_s)
{
    if (!s->done_s)
        return scheduler_begins(s, job) + length_s;
    double slower = s->stretch ? s->stretch[job] : s->slowdown[s->level[job]];
    double left_s = ((double)length_s - s->done_s[job]) * slower;
    return s->since_s[job] + (int64_t)ceil(left_s - 1e-9);
}

int64_t scheduler_overrun(scheduler_t *s, int32_t job)
{
    if (is_best_effort(s, job)) /* nobody plans with its end */
        return scheduler_expected_end(s, job);
    scheduler_running_remove(s, job);
    s->estimate_s[job] = s->phases.correct(s, job);
    s->corrections[job]++;
    s->changes++;
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

void scheduler_fill_stretches(scheduler_t *s, int32_t from, int32_t to)
{
    if (!scheduler_has_stretches(s))
        return;
    if (!s->is_stretched) { /* all are to be made, if the queue is long now */
        from = s->head;
        to = s->tail;
    }
    s->is_stretched = s->tail - s->head >= LEAST_STRETCHED;
    for (int32_t i = from; s->is_stretched && i < to; i++) {
        const waiting_t *one = &s->queue[i];
        stretch_t *stretch = &s->stretches[i / STRETCH];
        if (i % STRETCH == 0 || i == s->head) {
            stretch->narrowest = INT32_MAX;
            for (int32_t k = 0; k < WIDTH_CLASSES; k++)
                stretch->shortest_s[k] = INT64_MAX;
        }
        if (s->has_started[one->job])
            continue;
        stretch->narrowest = one->width < stretch->narrowest ? one->width : stretch->narrowest;
        for (int32_t k = queue_class(one->width); k < WIDTH_CLASSES && stretch->shortest_s[k] > one->estimate_s; k++)
            stretch->shortest_s[k] = one->estimate_s;
    }
}

void scheduler_find_narrowest(scheduler_t *s)
{
    s->narrowest = INT32_MAX;
    for (int32_t i = s->head; i < s->tail; i++)
        if (s->queue[i].width < s->narrowest && !s->has_started[s->queue[i].job])
            s->narrowest = s->queue[i].width;
}

void scheduler_close_gaps(scheduler_t *s, int32_t bearable)
{
    if (s->tail - s->head - s->n_waiting > bearable) {
        s->tail = sweep(s, s->queue, s->head, s->tail);
        scheduler_fill_stretches(s, s->head, s->tail);
    }
    if (s->n_shortest - s->n_waiting > bearable)
        s->n_shortest = sweep(s, s->shortest, 0, s->n_shortest);
    if (!s->n_waiting)
        s->narrowest = INT32_MAX;
}

/* The job waits from now on; the queue has it. */
static void waits(scheduler_t *s, const waiting_t *waiting)
{
    s->estimate_s[waiting->job] = waiting->estimate_s;
    s->n_waiting++;
    s->changes++;
    if (waiting->width < s->narrowest)
        s->narrowest = waiting->width;
    if (s->composition.scan == SCAN_SHORTEST) {
        int32_t i = FIRST(at, 0, s->n_shortest, is_shorter(waiting, &s->shortest[at]));
        memmove(s->shortest + i + 1, s->shortest + i, (size_t)(s->n_shortest++ - i) * sizeof *s->shortest);
        s->shortest[i] = *waiting;
    }
    if (s->phases.resources->waits)
        s->phases.resources->waits(s, waiting);
}

int32_t scheduler_submit(scheduler_t *s, int64_t now_s, int32_t job)
{
    if (is_best_effort(s, job)) {
        best_effort_submit(s, now_s, job);
        return 1;
    }
    waiting_t waiting = {.estimate_s = s->phases.estimate(s, now_s, job), .job = job, .width = s->jobs.width[job]};

    s->submit_s[job] = now_s;
    s->has_started[job] = s->overtook[job] = s->is_reserved[job] = 0;
    s->corrections[job] = 0;
    if (s->ranks)
        priority_submitted(s, now_s);
    if (s->scores)
        score_submitted(s, now_s, &waiting);
    estimates_submitted(s, now_s, &waiting);
    s->first_estimate_s[job] = waiting.estimate_s;
    s->queue[s->tail++] = waiting;
    scheduler_fill_stretches(s, s->tail - 1, s->tail);
    waits(s, &waiting);
    return !s->composition.passes_if_new_fits || waiting.width <= scheduler_free_now(s, now_s);
}

void scheduler_end(scheduler_t *s, int32_t job)
{
    if (is_best_effort(s, job)) {
        best_effort_leave(s, job);
        return;
    }
    if (s->ranks)
        priority_ended(s, job);
    scheduler_leave(s, job);
    s->changes++;
    estimates_learn(s, job);
}

void scheduler_requeue(scheduler_t *s, int32_t job)
{
    if (is_best_effort(s, job)) {
        best_effort_wait(s, job);
        return;
    }
    if (s->composition.estimate == ESTIMATE_MEAN2 && s->composition.fixed == FIXED_AT_START) /* others of its user may have ended since */
        s->first_estimate_s[job] = s->phases.estimate(s, s->submit_s[job], job);
    waiting_t waiting = {.estimate_s = s->first_estimate_s[job], .job = job, .width = s->jobs.width[job]};
    int32_t i;

    scheduler_close_gaps(s, 0);
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
    scheduler_fill_stretches(s, s->head, s->tail);
    s->ranking.n_ordered = 0;
    waits(s, &waiting);
}

void scheduler_lose(scheduler_t *s, int32_t job)
{
    if (is_best_effort(s, job)) {
        best_effort_leave(s, job);
        best_effort_wait(s, job);
        return;
    }
    scheduler_leave(s, job);
    if (s->ranks)
        priority_ended(s, job);
    if (s->learner)
        learner_killed(s->learner, job);
    s->changes++;
    scheduler_requeue(s, job);
}

void scheduler_place_nobody(scheduler_t *s)
{
    s->places_nobody = 1;
}

void scheduler_take_away(scheduler_t *s, int64_t processors)
{
    s->free -= processors;
}

int32_t scheduler_queue(const scheduler_t *s, int32_t *queued)
{
    int32_t count = 0;
    for (int32_t i = s->head; i < s->tail; i++)
        if (!s->has_started[s->queue[i].job])
            queued[count++] = s->queue[i].job;
    for (int32_t i = 0; s->best_effort && i < s->best_effort->n_waiting; i++)
        queued[count++] = s->best_effort->waiting[i];
    return count;
}

int32_t scheduler_waiting(const scheduler_t *s)
{
    return s->n_waiting;
}

/****************************************************************
 * Starts
 ****************************************************************/

/* The start was decided now; on a machine with watts the job runs from `begins_s` on, at this frequency. */
static void runs(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, int64_t begins_s)
{
    if (s->power) {
        s->level[job] = level;
        s->since_s[job] = begins_s;
        s->done_s[job] = 0;
    }
    s->started_s[job] = now_s;
    s->has_started[job] = 1;
    scheduler_running_add(s, job);
    if (s->learner)
        learner_started(s->learner, now_s, job);
}

void scheduler_start_at(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, int64_t begins_s)
{
    if (s->composition.shadow > 1.0)
        s->estimate_s[job] = estimates_planned(s, job);
    runs(s, now_s, job, level, begins_s);
}

void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job)
{
    scheduler_start_at(s, now_s, job, 0, now_s);
}

int scheduler_start_placed(scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    (void)level;
    scheduler_start(s, now_s, job);
    return 1;
}

/****************************************************************
 * A warm start
 ****************************************************************/

void scheduler_decides_from(scheduler_t *s, int64_t from_s)
{
    s->decides_from_s = from_s;
}

int32_t scheduler_carry_out(scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    const resources_t *resources = s->phases.resources;
    scheduler_close_gaps(s, 0);
    s->overtook[job] = s->queue[s->head].job != job;
    if (resources->begin)
        resources->begin(s, now_s);
    if (resources->look)
        resources->look(s, now_s);
    if (resources->start_placed(s, now_s, job, level) <= 0)
        return -1;
    s->n_waiting--;
    scheduler_close_gaps(s, 0);
    s->ranking.n_ordered = 0;
    return 0;
}

/****************************************************************
 * What only a live partition does
 ****************************************************************/

int32_t scheduler_adopt(scheduler_t *s, int64_t submitted_s, int64_t started_s, int64_t estimate_s, int32_t job,
                        int32_t level)
{
    if (is_best_effort(s, job)) {
        s->submit_s[job] = submitted_s;
        s->estimate_s[job] = s->first_estimate_s[job] = s->jobs.request_s[job];
        best_effort_run(s, started_s, job);
        return 0;
    }
    int64_t estimated_s = s->phases.estimate(s, submitted_s, job);

    if (s->phases.resources->adopt && s->phases.resources->adopt(s, started_s, job, level) < 0)
        return -1;

    s->submit_s[job] = submitted_s;
    s->estimate_s[job] = s->first_estimate_s[job] = estimate_s > 0 ? estimate_s : estimated_s;
    if (estimate_s > 0)
        runs(s, started_s, job, greatest(level, 0), started_s);
    else
        scheduler_start_at(s, started_s, job, greatest(level, 0), started_s);
    if (s->phases.resources->adopted)
        s->phases.resources->adopted(s, job);
    return 0;
}

int32_t scheduler_past(scheduler_t *s, int64_t submitted_s, int64_t started_s, int64_t ended_s, double joules,
                       int32_t job)
{
    if (is_best_effort(s, job)) /* nothing is learned from it */
        return 0;
    if (scheduler_adopt(s, submitted_s, started_s, 0, job, -1) < 0)
        return -1;
    scheduler_leave(s, job);
    if (s->ranks)
        priority_past(s, ended_s, joules, job);
    estimates_learn(s, job);
    return 0;
}

void scheduler_withdraw(scheduler_t *s, int32_t job)
{
    if (is_best_effort(s, job)) {
        best_effort_leave(s, job);
        return;
    }
    if (s->has_started[job]) {
        scheduler_leave(s, job);
        if (s->learner)
            learner_killed(s->learner, job);
        return;
    }
    s->has_started[job] = 1; /* as a job that has left the queue */
    if (s->phases.resources->leaves)
        s->phases.resources->leaves(s, job);
    s->n_waiting--;
    scheduler_close_gaps(s, 0);
    s->ranking.n_ordered = 0;
}

/****************************************************************
 * Phases of the caller
 ****************************************************************/

void scheduler_set_own(scheduler_t *s, own_t *own)
{
    s->own = own;
}

void scheduler_runs(const scheduler_t *s, int64_t now_s, int32_t running, int64_t *end_s, int32_t *narrow)
{
    const running_t *first = s->running + s->n_running - running;
    for (int32_t i = 0; i < running; i++) {
        end_s[i] = ends_after(first[i].expected_end_s, now_s);
        narrow[i] = first[i].job;
        narrow[running + i] = first[i].width;
    }
}

/****************************************************************
 * The record
 ****************************************************************/

decisions_t scheduler_decisions(const scheduler_t *s)
{
    decisions_t found = {
        .decided_s = s->started_s,
        .first_estimate_s = s->first_estimate_s,
        .corrections = s->corrections,
        .overtook = s->overtook,
    };
    if (s->decisions)
        s->decisions(s, &found);
    return found;
}
