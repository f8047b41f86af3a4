/* How a scheduler is put together from the phases of its composition. It knows all of them, and none knows it. */
#include <stdlib.h>

#include "scheduler_inside.h"

/* Below 0: no memory. The columns that a composition does not need are empty. */
static int make_columns(scheduler_t *s)
{
    int32_t n = s->jobs.n_jobs;
    int keeps_alike = s->composition.history == HISTORY_SIMILAR;
    memory_t *m = &s->memory;
    s->queue = column(m, n, sizeof *s->queue);
    s->stretches = column(m, n / STRETCH + 1, sizeof *s->stretches);
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

static scheduler_t *made(const composition_t *composition, const jobs_t *jobs, const memory_t *unwritten)
{
    scheduler_t *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->memory.is_unwritten = unwritten != NULL;
    if (unwritten)
        memory_share(&s->memory, unwritten);
    s->composition = *composition;
    s->phases = (phases_t){
        .estimate = ESTIMATES[composition->estimate],
        .correct = CORRECTIONS[composition->correct],
        .backfill = BACKFILLS[composition->backfill],
        .resources = &PROCESSORS,
    };
    s->jobs = *jobs;
    s->free = composition->processors;
    s->places_nobody = composition->frees_at_estimate;
    s->narrowest = INT32_MAX;
    s->profile.memory = &s->memory;
    if (make_columns(s) < 0 || profile_reserve(&s->profile, 64) < 0 || make_learner(s) < 0 ||
        (s->jobs.best_effort && best_effort_new(s) < 0)) {
        scheduler_free(s);
        return NULL;
    }
    return s;
}

scheduler_t *scheduler_new(const composition_t *composition, const jobs_t *jobs)
{
    return made(composition, jobs, NULL);
}

scheduler_t *scheduler_unwritten(const composition_t *composition, const jobs_t *jobs, const memory_t *like)
{
    return made(composition, jobs, like);
}
