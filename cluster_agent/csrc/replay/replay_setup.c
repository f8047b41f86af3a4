/* Making a replay, its settings, and freeing it. */
#include "replay/replay_inside.h"

#include <stdlib.h>
#include <string.h>

replay_t *replay_new(const composition_t *composition, const jobs_t *jobs, const int64_t *submit_s, int32_t batch,
                     int32_t pauses)
{
    replay_t *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    int32_t n = jobs->n_jobs;
    r->jobs = *jobs;
    r->submit_s = submit_s;
    r->batch = batch;
    r->pauses = pauses;
    r->processors = composition->processors;
    r->places = composition->frees_at_estimate;
    r->wake_s = r->pause_s = INT64_MAX;
    r->scheduler = scheduler_new(composition, jobs);
    memory_t *m = &r->memory;
    r->end_s = column(m, n, sizeof *r->end_s);
    r->ended_jobs = column(m, n, sizeof *r->ended_jobs);
    r->starts = column(m, n, sizeof *r->starts);
    r->start_s = column(m, n, sizeof *r->start_s);
    r->interval_first = column(m, n, sizeof *r->interval_first);
    r->interval_count = column(m, n, sizeof *r->interval_count);
    if (!r->scheduler || placement_init(&r->placement, m, composition->processors) < 0 ||
        events_init(&r->ends, m, n) < 0 || events_init(&r->overruns, m, n) < 0) {
        replay_free(r);
        return NULL;
    }
    if (jobs->best_effort && replay_preemptible(r) < 0) {
        replay_free(r);
        return NULL;
    }
    memset(r->start_s, 0xff, (size_t)n * sizeof *r->start_s); /* -1 */
    memset(r->end_s, 0xff, (size_t)n * sizeof *r->end_s);
    return r;
}

int32_t replay_preemptible(replay_t *r)
{
    int32_t n = r->jobs.n_jobs;
    memory_t *m = &r->memory;
    replay_place_processors(r);
    r->ends.valid = column(m, n, sizeof *r->ends.valid);
    r->overruns.valid = column(m, n, sizeof *r->overruns.valid);
    r->kills = column(m, n, sizeof *r->kills);
    r->lost = column(m, n, sizeof *r->lost);
    return memory_status(m);
}

void replay_set_caps(replay_t *r, const caps_t *caps, int32_t begun)
{
    r->caps = *caps;
    r->caps_begun = begun;
}

int32_t replay_set_sharing(replay_t *r)
{
    r->shares_nodes = 1;
    r->ends.valid = column(&r->memory, r->jobs.n_jobs, sizeof *r->ends.valid);
    r->overruns.valid = column(&r->memory, r->jobs.n_jobs, sizeof *r->overruns.valid);
    return memory_status(&r->memory);
}

void replay_wake(replay_t *r, int64_t at_s)
{
    r->wake_s = at_s;
}

void replay_free(replay_t *r)
{
    if (!r)
        return;
    scheduler_free(r->scheduler);
    memory_free(&r->memory);
    free(r);
}

int32_t replay_answer(replay_t *r, const answers_t *answers)
{
    r->answering = answering_new(&r->memory, answers);
    return r->answering ? 0 : -1;
}

void replay_set_record(replay_t *r, const recorded_t *recorded, int32_t n_recorded, int64_t until_s)
{
    r->recorded = recorded;
    r->n_recorded = n_recorded;
    r->wake_s = until_s;
    scheduler_decides_from(r->scheduler, until_s);
}

void replay_pause_at(replay_t *r, int64_t at_s)
{
    r->pause_s = at_s;
}

void replay_place_processors(replay_t *r)
{
    r->places = 1;
    scheduler_place_nobody(r->scheduler);
}

int32_t replay_set_limits(replay_t *r, const limits_t *limits)
{
    int32_t first = 0;
    r->n_parts = limits->n_partitions;
    r->has_reservations = limits->n_reserved > 0 || limits->n_open > 0;
    if (r->n_parts || r->has_reservations)
        replay_place_processors(r);
    r->part_of = limits->partition;
    r->parts = column(&r->memory, r->n_parts, sizeof *r->parts);
    if (!r->parts)
        return -1;
    for (int32_t p = 0; p < r->n_parts; p++) {
        int32_t width = (int32_t)limits->has[2 * p];
        if (placement_init(&r->parts[p], &r->memory, r->processors) < 0)
            return -1;
        r->parts[p].end = r->parts[p].begin; /* nothing is free before it is moved there */
        placement_move(&r->placement, &r->parts[p], first, first + width - 1);
        first += width;
    }
    return scheduler_set_limits(r->scheduler, limits);
}
