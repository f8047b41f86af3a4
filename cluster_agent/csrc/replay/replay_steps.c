/* A replay whose caller decides, step by step, and that can be copied. */
#include "replay/replay_inside.h"

#include <stdlib.h>
#include <string.h>

int32_t replay_set_stepped(replay_t *r)
{
    r->is_stepped = 1;
    return scheduler_set_stepped(r->scheduler);
}

void replay_look(replay_t *r, seen_t *seen)
{
    *seen = (seen_t){.now_s = r->now_s, .submitted = r->submitted, .ended = r->ended, .started = r->n_starts,
                     .starts = r->starts, .start_s = r->start_s};
    scheduler_look(r->scheduler, seen);
}

static int stops_here(const replay_t *r, int32_t where, int64_t wake_s)
{
    if (where == STEP_INSTANTS || (where != STEP_NOWHERE && r->now_s == wake_s))
        return 1;
    return where == STEP_CHOICES ? scheduler_has_choice(r->scheduler) : scheduler_waiting(r->scheduler) > 0;
}

int32_t replay_step(replay_t *r, int32_t where, seen_t *seen)
{
    int32_t status;
    int64_t wake_s = r->wake_s;
    if (r->is_decision) /* whatever the caller has decided, this pass is over */
        r->is_pass_due = 0;
    r->pauses = where == STEP_NOWHERE ? PAUSES_NOWHERE : PAUSES_PASSES;
    do
        status = replay_run(r, INT32_MAX);
    while (status == REPLAY_PASS_DUE && !stops_here(r, where, wake_s));
    r->is_decision = status == REPLAY_PASS_DUE;
    r->wake_s = INT64_MAX; /* it was for this step */
    replay_look(r, seen);
    return status;
}

int32_t replay_decide_in(replay_t *r, const int32_t *places, int32_t count, seen_t *seen)
{
    int32_t started = scheduler_decide_in(r->scheduler, r->now_s, places, count, r->starts + r->n_starts);
    for (int32_t i = 0; i < started; i++)
        replay_start_job(r);
    r->passes++;
    replay_look(r, seen);
    return r->has_no_memory ? REPLAY_NO_MEMORY : started;
}

int32_t replay_start_these(replay_t *r, const int32_t *jobs, int32_t count, int32_t level, seen_t *seen)
{
    int32_t good = scheduler_start_these(r->scheduler, r->now_s, jobs, count, level);
    if (good == count && count > 0) {
        memcpy(r->starts + r->n_starts, jobs, (size_t)count * sizeof *jobs);
        for (int32_t i = 0; i < count; i++)
            replay_start_job(r);
    }
    replay_look(r, seen);
    return r->has_no_memory ? REPLAY_NO_MEMORY : good;
}

void replay_cut(replay_t *r, int32_t job, seen_t *seen)
{
    replay_end_early(r, job);
    replay_look(r, seen);
}

/* What will happen, or, blind, what was estimated to. */
static int32_t copy_events(replay_t *to, const replay_t *from)
{
    int32_t *running = to->ended_jobs + to->ended; /* room */
    if (!to->is_blind) {
        events_copy(&to->ends, &from->ends);
        events_copy(&to->overruns, &from->overruns);
        return 0;
    }
    to->n_announced = to->announced;
    to->jobs.run_s = scheduler_decisions(to->scheduler).first_estimate_s;
    to->jobs.n_jobs = to->submitted;
    for (int32_t i = 0, n = scheduler_running(to->scheduler, running); i < n; i++) {
        int64_t end_s = scheduler_expected_end(to->scheduler, running[i]);
        replay_foresee(to, &to->ends, end_s > to->now_s ? end_s : to->now_s + 1, running[i]);
    }
    return to->has_no_memory ? -1 : 0;
}

static int32_t copy_meter(replay_t *to, const replay_t *from)
{
    int32_t n = from->jobs.n_jobs, *jobs = to->ended_jobs + to->ended; /* room */
    memory_t *m = &to->memory;
    to->announced_s = from->announced_s;
    to->n_announced = from->n_announced;
    to->announced = from->announced;
    to->is_reaction_due = from->is_reaction_due;
    replay_power_columns(to);
    if (memory_status(m) < 0 || meter_copy(to->meter, m, from->meter, n) < 0)
        return -1;
    int32_t count = scheduler_running(to->scheduler, jobs);
    count += scheduler_queue(to->scheduler, jobs + count);
    for (int32_t i = 0; i < count; i++) {
        meter_copy_job(to->meter, from->meter, jobs[i]);
        to->start_s[jobs[i]] = from->start_s[jobs[i]];
        to->kills[jobs[i]] = from->kills[jobs[i]];
        to->lost[jobs[i]] = from->lost[jobs[i]];
        to->lost_uj[jobs[i]] = from->lost_uj[jobs[i]];
    }
    return 0;
}

replay_t *replay_copy(const replay_t *from, const composition_t *composition, const score_t *score, int32_t is_blind)
{
    replay_t *to = calloc(1, sizeof *to);
    int32_t n = from->jobs.n_jobs;
    if (!to)
        return NULL;
    to->jobs = from->jobs;
    to->submit_s = from->submit_s;
    to->processors = from->processors;
    to->is_stepped = 1;
    to->is_blind = is_blind || from->is_blind; /* the run times of a blind one are columns of its own */
    to->wake_s = to->pause_s = INT64_MAX;
    to->now_s = from->now_s;
    to->foreseen = from->foreseen;
    to->submitted = from->submitted;
    to->ended = from->ended;
    to->is_pass_due = from->is_pass_due;
    to->is_decision = from->is_decision;
    to->caps = from->caps;
    to->caps_begun = from->caps_begun;
    to->scheduler = scheduler_copy(from->scheduler, NULL, composition, score, n ? from->submit_s[0] : 0, to->is_blind);
    memory_t *m = &to->memory;
    m->is_unwritten = 1;
    if (to->scheduler)
        memory_share(m, scheduler_memory(to->scheduler));
    to->end_s = column(m, n, sizeof *to->end_s);
    to->ended_jobs = column(m, n, sizeof *to->ended_jobs);
    to->starts = column(m, n, sizeof *to->starts);
    to->start_s = column(m, n, sizeof *to->start_s);
    if (!to->scheduler || events_init(&to->ends, m, from->ends.capacity) < 0 ||
        events_init(&to->overruns, m, from->overruns.capacity) < 0 || (from->meter && copy_meter(to, from) < 0) ||
        copy_events(to, from) < 0) {
        replay_free(to);
        return NULL;
    }
    return to;
}
