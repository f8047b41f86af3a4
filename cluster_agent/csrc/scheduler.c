#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

/****************************************************************
 * Making and unmaking
 ****************************************************************/

/* Below 0: no memory. The columns that a composition does not need are empty. */
static int make_columns(scheduler_t *s)
{
    int32_t n = s->jobs.n_jobs;
    int keeps_alike = s->composition.history == HISTORY_SIMILAR;
    memory_t *m = &s->memory;
    s->queue = column(m, n, sizeof *s->queue);
    s->shortest = column(m, n, sizeof *s->shortest);
    s->running = column(m, n, sizeof *s->running);
    s->users = column(m, s->jobs.n_users, sizeof *s->users);
    s->alike = column(m, keeps_alike ? n : 0, sizeof *s->alike);
    s->first_alike = column(m, keeps_alike ? estimates_places_alike(s) : 0, sizeof *s->first_alike);
    s->moved = column(m, s->composition.fixed == FIXED_AT_START ? n : 0, sizeof *s->moved);
    s->submit_s = column(m, n, sizeof *s->submit_s);
    s->reserved_s = column(m, n, sizeof *s->reserved_s);
    s->is_reserved = column(m, n, sizeof *s->is_reserved);
    s->started_s = column(m, n, sizeof *s->started_s);
    s->estimate_s = column(m, n, sizeof *s->estimate_s);
    s->first_estimate_s = column(m, n, sizeof *s->first_estimate_s);
    s->corrections = column(m, n, sizeof *s->corrections);
    s->overtook = column(m, n, sizeof *s->overtook);
    s->has_started = column(m, n, sizeof *s->has_started);
    return memory_status(m);
}

static int make_learner(scheduler_t *s)
{
    if (s->composition.estimate != ESTIMATE_LEARNED)
        return 0;
    s->learner = learner_new(&s->memory, &s->composition.learning, &s->jobs);
    return s->learner ? 0 : -1;
}

scheduler_t *scheduler_new(const composition_t *composition, const jobs_t *jobs)
{
    scheduler_t *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->composition = *composition;
    s->phases = (phases_t){
        .estimate = ESTIMATES[composition->estimate],
        .correct = CORRECTIONS[composition->correct],
        .backfill = BACKFILLS[composition->backfill],
        .resources = &PROCESSORS,
    };
    s->jobs = *jobs;
    s->free = composition->processors;
    s->narrowest = INT32_MAX;
    s->profile.memory = &s->memory;
    if (make_columns(s) < 0 || profile_reserve(&s->profile, 64) < 0 || make_learner(s) < 0) {
        scheduler_free(s);
        return NULL;
    }
    return s;
}

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
    if (s->phases.resources->occupy)
        s->phases.resources->occupy(s, job, 1);
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
    return s->power || s->delay_s ? scheduler_finish(s, job, s->estimate_s[job]) : s->started_s[job] + s->estimate_s[job];
}

int64_t scheduler_overrun(scheduler_t *s, int32_t job)
{
    scheduler_running_remove(s, job);
    s->estimate_s[job] = s->phases.correct(s, job);
    s->corrections[job]++;
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

void scheduler_close_gaps(scheduler_t *s, int32_t bearable)
{
    if (s->tail - s->head - s->n_waiting > bearable)
        s->tail = sweep(s, s->queue, s->head, s->tail);
    if (s->n_shortest - s->n_waiting > bearable)
        s->n_shortest = sweep(s, s->shortest, 0, s->n_shortest);
    if (!s->n_waiting)
        s->narrowest = INT32_MAX;
}

int32_t scheduler_submit(scheduler_t *s, int64_t now_s, int32_t job)
{
    waiting_t waiting = {.estimate_s = s->phases.estimate(s, now_s, job), .job = job, .width = s->jobs.width[job]};

    s->submit_s[job] = now_s;
    if (s->ranks)
        priority_submitted(s, now_s);
    if (s->scores)
        score_submitted(s, now_s, &waiting);
    s->estimate_s[job] = s->first_estimate_s[job] = waiting.estimate_s;
    s->queue[s->tail++] = waiting;
    s->n_waiting++;
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
    if (s->phases.resources->waits)
        s->phases.resources->waits(s, &waiting);
    return !s->composition.passes_if_new_fits || waiting.width <= scheduler_free_now(s, now_s);
}

void scheduler_end(scheduler_t *s, int32_t job)
{
    if (s->ranks)
        priority_ended(s, job);
    scheduler_running_remove(s, job);
    if (s->phases.resources->give_back)
        s->phases.resources->give_back(s, job);
    estimates_learn(s, job);
}

void scheduler_requeue(scheduler_t *s, int32_t job)
{
    if (s->composition.estimate == ESTIMATE_MEAN2 && s->composition.fixed == FIXED_AT_START) /* others of its user may have ended since */
        s->first_estimate_s[job] = s->phases.estimate(s, s->submit_s[job], job);
    waiting_t waiting = {.estimate_s = s->first_estimate_s[job], .job = job, .width = s->jobs.width[job]};
    int32_t i;

    scheduler_close_gaps(s, 0);
    s->n_waiting++;
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
    s->ranking.n_ordered = 0;
    if (waiting.width < s->narrowest)
        s->narrowest = waiting.width;
    if (s->composition.scan == SCAN_SHORTEST) {
        for (i = s->n_shortest++; i > 0 && is_shorter(&waiting, &s->shortest[i - 1]); i--)
            s->shortest[i] = s->shortest[i - 1];
        s->shortest[i] = waiting;
    }
    if (s->phases.resources->waits)
        s->phases.resources->waits(s, &waiting);
}

int32_t scheduler_queue(const scheduler_t *s, int32_t *queued)
{
    int32_t count = 0;
    for (int32_t i = s->head; i < s->tail; i++)
        if (!s->has_started[s->queue[i].job])
            queued[count++] = s->queue[i].job;
    return count;
}

void scheduler_reorder(scheduler_t *s, const int32_t *queued)
{
    s->is_reordered = 1;
    scheduler_close_gaps(s, 0);
    for (int32_t i = s->head; i < s->tail; i++) {
        int32_t job = queued[i - s->head];
        s->queue[i] =
            (waiting_t){.estimate_s = s->estimate_s[job], .job = job, .width = s->jobs.width[job]};
    }
}

/****************************************************************
 * Starts
 ****************************************************************/

static void runs(scheduler_t *s, int64_t now_s, int32_t job)
{
    s->started_s[job] = now_s;
    s->has_started[job] = 1;
    scheduler_running_add(s, job);
    if (s->learner)
        learner_started(s->learner, now_s, job);
}

void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job)
{
    if (s->composition.shadow > 1.0)
        s->estimate_s[job] = estimates_planned(s, job);
    runs(s, now_s, job);
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
    int64_t estimated_s = s->phases.estimate(s, submitted_s, job);

    if (s->power && power_adopt(s, started_s, job, level) < 0)
        return -1;

    s->submit_s[job] = submitted_s;
    s->estimate_s[job] = s->first_estimate_s[job] = estimate_s > 0 ? estimate_s : estimated_s;
    if (estimate_s > 0)
        runs(s, started_s, job);
    else
        scheduler_start(s, started_s, job);
    if (s->power)
        power_adopted(s, job);
    return 0;
}

int32_t scheduler_past(scheduler_t *s, int64_t submitted_s, int64_t started_s, int64_t ended_s, double joules,
                       int32_t job)
{
    if (scheduler_adopt(s, submitted_s, started_s, 0, job, -1) < 0)
        return -1;
    scheduler_running_remove(s, job);
    if (s->phases.resources->give_back)
        s->phases.resources->give_back(s, job);
    if (s->ranks)
        priority_past(s, ended_s, joules, job);
    estimates_learn(s, job);
    return 0;
}

void scheduler_withdraw(scheduler_t *s, int32_t job)
{
    if (s->has_started[job]) {
        scheduler_running_remove(s, job);
        if (s->phases.resources->give_back)
            s->phases.resources->give_back(s, job);
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
    if (s->power)
        power_decisions(s, &found);
    return found;
}
