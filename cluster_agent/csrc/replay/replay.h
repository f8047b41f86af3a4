/*
 * The replay of a job log: the event loop with a simulated clock and machine around the scheduler.
 *
 * It does what cluster_agent/scheduler/loop.py does with the clock and machine of cluster_agent/replay/simulated.py,
 * without a call into Python per event.
 */
#ifndef CLUSTER_REPLAY_H
#define CLUSTER_REPLAY_H

#include "answering.h"
#include "meter.h"
#include "placement.h"
#include "scheduler.h"
#include "steps.h"

/* Which events lead to one pass together. */
#define BATCH_INSTANT 0 /* all of one instant: ends, then overruns, then submissions */
#define BATCH_EVENT 1   /* each by itself, at one instant overruns, then submissions, then ends */

#define REPLAY_ENDED 0
#define REPLAY_PAUSED 1      /* as many jobs have ended as requested, or it is time (replay_pause_at) */
#define REPLAY_PASS_DUE 2    /* the caller orders the queue and calls again */
#define REPLAY_POWER_DUE 3   /* a row of the plan begins or a cap becomes known: the caller reacts and calls again */
#define REPLAY_NO_MEMORY (-1)
#define REPLAY_OVERFULL (-2) /* started jobs need more processors than there are, or have not come: a defect */

/* Where replay_run returns REPLAY_PASS_DUE. */
#define PAUSES_NOWHERE 0
#define PAUSES_PASSES 1        /* before each pass */
#define PAUSES_WHERE_ORDERED 2 /* where scheduler_needs_order says so */

typedef struct replay replay_t;

/* submit_s is in ascending order of job number. NULL: no memory. */
replay_t *replay_new(const composition_t *composition, const jobs_t *jobs, const int64_t *submit_s, int32_t batch,
                     int32_t pauses);
void replay_free(replay_t *replay);

/*
 * On a machine with watts: once, before running. `announced_s`, in ascending order, is when caps become known that were
 * not at the first submission; it belongs to the caller. 0, or -1: no memory.
 */
int32_t replay_set_power(replay_t *replay, const power_model_t *model, const int64_t *announced_s, int32_t n_announced);

/* After that: idle nodes go off, and boot when a job needs them. 0, or -1: no memory. */
int32_t replay_set_idle_off(replay_t *replay, const idle_off_t *model);

/* With nodes that differ, or configurations: once, before running. A pass is due whenever another cap than the first
 * `begun` begins. */
void replay_set_caps(replay_t *replay, const caps_t *caps, int32_t begun);

/* With limits or partitions: once, before running. The first partition has the first processors, and so on. 0, or -1: no
 * memory. */
int32_t replay_set_limits(replay_t *replay, const limits_t *limits);

/* Processors `first` to `last` fail at one time and are back at another. */
typedef struct {
    int64_t at_s, back_s;
    int32_t first, last;
} failure_t;

/*
 * Nodes fail: once, before running, on a number of processors without watts. The failures are in order of time and belong
 * to the caller; none begins before the same processors are back. Jobs on them are killed and wait again. `mattered`, a
 * row for each, becomes 1 if it killed a job, or if a job waited before its processors were back. 0, or -1: no memory.
 */
int32_t replay_set_failures(replay_t *replay, const failure_t *failures, int32_t n_failures, uint8_t *mattered);

/* Jobs share nodes: once, before running. 0, or -1: no memory. */
int32_t replay_set_sharing(replay_t *replay);

/* A pass is due at `at_s`, too, in place of what was said before; INT64_MAX: at no such time. */
void replay_wake(replay_t *replay, int64_t at_s);

/* The plan from now on. At REPLAY_POWER_DUE only, and before running. 0 or REPLAY_NO_MEMORY, as the next two. */
int32_t replay_replan(replay_t *replay, const plan_row_t *rows, int32_t n_rows);
/* What is done to running jobs at REPLAY_POWER_DUE. */
int32_t replay_kill(replay_t *replay, int32_t job);
int32_t replay_set_level(replay_t *replay, int32_t job, int32_t level);

/* A start before a warm start. */
typedef struct {
    int64_t start_s;
    int32_t job, level;
} recorded_t;

/*
 * A warm start: once, before running. Until `until_s`, when a pass is due and the policy begins to decide, jobs start as
 * `recorded`, which is in order of time and belongs to the caller (scheduler_carry_out).
 */
void replay_set_record(replay_t *replay, const recorded_t *recorded, int32_t n_recorded, int64_t until_s);

/* replay_run returns before the first event at or after `at_s`; INT64_MAX: it does not. */
void replay_pause_at(replay_t *replay, int64_t at_s);

/* Runs until `until_ended` jobs have ended in all, or a pass is due, or nothing is left to happen. REPLAY_*. */
int32_t replay_run(replay_t *replay, int32_t until_ended);

int64_t replay_now(const replay_t *replay); /* the time of the last event, s */

/* Closed loop: once, before running. `answers` is read now, its columns as long as the replay runs. 0, or -1: no memory. */
int32_t replay_answer(replay_t *replay, const answers_t *answers);

scheduler_t *replay_scheduler(replay_t *replay);

/*
 * Steps: the caller decides. Only with BATCH_INSTANT, not in a closed loop or a warm start, and of what steps.h says. Once,
 * before anything else; without watts processors have no numbers then. 0, or -1: no memory.
 */
int32_t replay_set_stepped(replay_t *replay);

/* Where replay_step stops: at each pass at which somebody waits; only where there is a choice, and the policy's own pass
 * decides elsewhere; nowhere: the policy decides; at each pass, whoever waits. And where replay_wake says, but nowhere. */
#define STEP_PASSES 0
#define STEP_CHOICES 1
#define STEP_NOWHERE 2
#define STEP_INSTANTS 3

void replay_look(replay_t *replay, seen_t *seen);

/* On to the next decision: REPLAY_PASS_DUE, or REPLAY_ENDED, REPLAY_PAUSED (replay_pause_at) or an error, with all that
 * is seen then; or REPLAY_POWER_DUE, as in replay_run. Who was not started waits on. */
int32_t replay_step(replay_t *replay, int32_t where, seen_t *seen);

/* At a decision: scheduler_decide_in, scheduler_start_these. `seen` is written if they succeed. */
int32_t replay_decide_in(replay_t *replay, const int32_t *places, int32_t count, seen_t *seen);
int32_t replay_start_these(replay_t *replay, const int32_t *jobs, int32_t count, int32_t level, seen_t *seen);

/* At a decision: this running job ends now, before its time, and does not wait again. */
void replay_cut(replay_t *replay, int32_t job, seen_t *seen);

/* The same moment in a replay of its own: scheduler_copy. `started` and `starts` are its own starts. Blind: no job is
 * submitted any more, no cap becomes known, and all run for as long as estimated. NULL: no memory. */
replay_t *replay_copy(const replay_t *from, const composition_t *composition, const score_t *score, int32_t is_blind);

/* What has happened so far; columns of n_jobs, in the replay's memory. */
typedef struct {
    int64_t now_s, passes;
    int32_t submitted, ended;  /* how many jobs */
    const int32_t *ended_jobs; /* these, in the order of their ends */
    const int64_t *start_s;    /* when it began to run (once nodes had booted); -1: it has not */
    const int64_t *end_s;      /* -1: it has not ended */
    decisions_t decisions;     /* with the processors of all jobs */
    /* only with power: */
    const int32_t *kills;
    const int64_t *lost;       /* processor-seconds of runs that were killed, */
    const double *lost_uj;     /* and their joules */
    const double *job_uj;
    const power_step_t *steps; /* the cluster's watts */
    int64_t n_steps;
} replayed_t;

replayed_t replay_so_far(const replay_t *replay);

/* Only with power: the cluster's joules by then; no event comes before. */
joules_t replay_joules(const replay_t *replay, int64_t at_s);

#endif
