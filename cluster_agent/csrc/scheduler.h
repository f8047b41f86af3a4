/*
 * The scheduler: which jobs wait, which run and until when, and which start next.
 *
 * It knows no clock and no machine. A loop calls it for each event (a job is submitted, has ended, runs longer than its
 * estimate) and for a pass; jobs that it decides to start count as running at once. Times are whole seconds, as in the
 * job logs. The
 * phases are those of cluster_agent/scheduler/policy_phases.py, and tests/oracle/scheduler.py is the same scheduler
 * in plain Python, against which this one is tested.
 */
#ifndef CLUSTER_SCHEDULER_H
#define CLUSTER_SCHEDULER_H

#include <stdint.h>

#include "resources/site_limits.h"
#include "orders/priority.h"
#include "orders/score.h"
#include "placement.h"
#include "power.h"
#include "resources/node_model.h"

/* estimate: how long a job is taken to run */
#define ESTIMATE_REQUESTED 0
#define ESTIMATE_CLAIRVOYANT 1
#define ESTIMATE_MEAN2 2
#define ESTIMATE_LEARNED 3
#define ESTIMATE_OWN 4 /* own_t */

/* history: whose last two ended jobs ESTIMATE_MEAN2 takes */
#define HISTORY_USER 0
#define HISTORY_SIMILAR 1 /* the user's of the same width and request, once there are two */

/* fixed: from when on ESTIMATE_MEAN2 keeps to an estimate */
#define FIXED_AT_SUBMISSION 0
#define FIXED_AT_START 1

/* correct: the new estimate of a job that runs longer than the last one */
#define CORRECT_REQUESTED 0
#define CORRECT_INCREMENTAL 1
#define CORRECT_DOUBLING 2
#define CORRECT_DOUBLING_CAPPED 3

/* backfill: who may overtake whom */
#define BACKFILL_NONE 0
#define BACKFILL_EASY 1
#define BACKFILL_CONSERVATIVE 2
#define BACKFILL_COMPRESS 3
#define BACKFILL_LIST 4
#define BACKFILL_OWN 5 /* own_t */

/* scan: the order in which jobs behind the head are tried */
#define SCAN_QUEUE 0
#define SCAN_SHORTEST 1

/* ESTIMATE_LEARNED: the variant of features and steps, and the weight of an error */
#define MODEL_THESIS 0
#define MODEL_SC15 1
#define LOSS_LINEAR 0
#define LOSS_SQUARED 1
#define WEIGHT_EQUAL 0
#define WEIGHT_SHORT_WIDE 1
#define WEIGHT_LONG_NARROW 2
#define WEIGHT_SMALL 3
#define WEIGHT_LARGE 4

typedef struct {
    int32_t model;
    int32_t over, under; /* the loss of an estimate that is too long, too short */
    int32_t weight;
} learning_t;

typedef struct {
    int32_t processors;
    int32_t estimate;
    int32_t history;
    int32_t fixed;
    int32_t correct;
    int32_t backfill;
    int32_t scan;
    int32_t frees_at_estimate;   /* a running job's processors count as free from its expected end on, ended or not */
    int32_t passes_if_new_fits;  /* a submission leads to a pass only if the new job fits what is free */
    double shadow;               /* a job that starts is planned to run for so many times its estimate, at most its request */
    learning_t learning;
    double guard;                /* a job whose expected bounded slowdown passes this becomes the head; 0: none does */
} composition_t;

/* The jobs by number 0..n_jobs-1; the columns belong to the caller and outlive the scheduler. */
typedef struct {
    int32_t n_jobs;
    int32_t n_users;
    const int64_t *run_s;     /* read by ESTIMATE_CLAIRVOYANT, and by those that learn once a job has ended */
    const int64_t *request_s;
    const int32_t *width;     /* processors, 1 to composition_t.processors */
    const int32_t *user;      /* 0 to n_users-1 */
    const uint8_t *best_effort; /* 1: it runs on what no other job can use (best_effort.c); NULL: none does */
} jobs_t;

typedef struct scheduler scheduler_t;

/* NULL: no memory. */
scheduler_t *scheduler_new(const composition_t *composition, const jobs_t *jobs);
void scheduler_free(scheduler_t *scheduler);

/* The job joins the queue. Nonzero if this calls for a pass. */
int32_t scheduler_submit(scheduler_t *scheduler, int64_t now_s, int32_t job);

/* The running job has ended. */
void scheduler_end(scheduler_t *scheduler, int32_t job);

/* The running job runs longer than its estimate. Returns its new expected end. */
int64_t scheduler_overrun(scheduler_t *scheduler, int32_t job);

/*
 * Adds a job that runs already, since `started_s`: a job found at a restart, or the placeholder of a node that is away.
 * It is expected to run for `estimate_s`, or for the policy's estimate if that is 0. With watts it runs at `level`; -1:
 * it draws no more than idle processors. 0, or -1: no memory, or fewer processors are free.
 */
int32_t scheduler_adopt(scheduler_t *scheduler, int64_t submitted_s, int64_t started_s, int64_t estimate_s, int32_t job,
                        int32_t level);

/*
 * A job that has run and ended before: its estimates and priorities learn from it. `joules`: what it took; below 0: not
 * metered. Such jobs come first, in the order of their ends. 0, or -1 as scheduler_adopt.
 */
int32_t scheduler_past(scheduler_t *scheduler, int64_t submitted_s, int64_t started_s, int64_t ended_s, double joules,
                       int32_t job);

/* Once, before anything else: a warm start. Before `from_s` a pass starts nobody, and scheduler_carry_out does. */
void scheduler_decides_from(scheduler_t *scheduler, int64_t from_s);

/*
 * The waiting job starts now, as recorded; with watts at this level, and while there is no cap and no budget; on the
 * nodes chosen for it, if nodes differ. Not with configurations. 0, or -1: no memory, or no room.
 */
int32_t scheduler_carry_out(scheduler_t *scheduler, int64_t now_s, int32_t job, int32_t level);

/* Removes the job, waiting or running, without learning from it. */
void scheduler_withdraw(scheduler_t *scheduler, int32_t job);

/* One pass: writes the jobs that start now, in the order of decision, and returns how many (-1: no memory). `starts`
 * holds n_jobs. */
int32_t scheduler_decide(scheduler_t *scheduler, int64_t now_s, int32_t *starts);

/* The part of a pass that is for best-effort jobs, where nothing else has happened than that one of them was submitted or
 * has ended: else passes that other jobs would not have might change their order. As scheduler_decide. */
int32_t scheduler_decide_left(scheduler_t *scheduler, int64_t now_s, int32_t *starts);

/* The best-effort jobs that the last pass has preempted, *count of them: they run no longer, and wait once
 * scheduler_requeue is called. */
const int32_t *scheduler_preempted(const scheduler_t *scheduler, int32_t *count);

int64_t scheduler_expected_end(const scheduler_t *scheduler, int32_t job);

/* The queue in its order, best-effort jobs last: writes the jobs and returns how many. `queued` holds n_jobs. */
int32_t scheduler_queue(const scheduler_t *scheduler, int32_t *queued);

/*
 * An order that the caller works out, before a pass.
 *
 * Whether it matters: two jobs or more wait, and, if all it has answered are scores, one of them may fit. Scores do not
 * depend on the order before; places may, so those are worked out for each pass.
 */
int32_t scheduler_needs_order(scheduler_t *scheduler, int64_t now_s);

int32_t scheduler_waiting(const scheduler_t *scheduler);

/*
 * The waiting jobs, n of them, in their order, as columns with room for `room` rows: `wide` gets submit_s, which is the
 * caller's column of all jobs, request_s and the estimate, s; `narrow` gets job, width and user.
 */
void scheduler_columns(const scheduler_t *scheduler, const int64_t *submit_s, int32_t n, int64_t room, int64_t *wide,
                       int32_t *narrow);

/* The lowest score is served first, equal ones in order of submission, what is no number last. One score for each row of
 * scheduler_columns. 0, or -1: no memory. */
int32_t scheduler_order_by(scheduler_t *scheduler, const double *scores);

/* Rows of scheduler_columns in the order in which they are served. 0; -1: no memory; ORDER_NONE: not each row once, and
 * the order is as it was. */
#define ORDER_NONE (-2)
int32_t scheduler_order_at(scheduler_t *scheduler, const int64_t *rows);

/* Phases that are functions of the caller, to whom all of this belongs. */
typedef struct {
    void *context;
    /* ESTIMATE_OWN: for how long the job, which is submitted now, is taken to run, s. */
    int64_t (*estimate)(void *context, int64_t now_s, int32_t job);
    /* BACKFILL_OWN, where the head cannot start, and another job may: writes the jobs that start, which are among
     * scheduler_columns of `waiting` rows, the head the first, and fit into the free processors, and returns how many. */
    int32_t (*backfill)(void *context, int64_t now_s, int32_t waiting, int32_t running, int64_t free, int32_t *starts);
    int32_t *ended; /* has room for all jobs: those that have ended, in this order, */
    int32_t n_ended; /* and how many */
} own_t;

/* Once, before anything else. */
void scheduler_set_own(scheduler_t *scheduler, own_t *own);

/* In BACKFILL_OWN, the jobs that have processors, `running` of them, in order of expected end: that, after now_s, and in
 * `narrow` a column of the jobs and one of their widths. */
void scheduler_runs(const scheduler_t *scheduler, int64_t now_s, int32_t running, int64_t *end_s, int32_t *narrow);

/* Once, before anything else: from then on each pass orders the queue by priority. 0, or -1: no memory. */
int32_t scheduler_set_priority(scheduler_t *scheduler, const priority_t *model);

/* Once, before anything else, and not with priorities: each pass orders the queue by score. 0, or -1: no memory. */
int32_t scheduler_set_score(scheduler_t *scheduler, const score_t *model);

/* Orders the queue by score now, for who looks at it: a pass in which nobody can start does not. */
void scheduler_order(scheduler_t *scheduler, int64_t now_s);

/*
 * Once, before anything else: jobs are counted on nodes, and their watts stay below a cap. Processors are the cores of all
 * nodes. Where jobs can run in several ways processors are nodes, backfilling is EASY in nodes and watts, and nothing
 * else of the composition counts; a job's width and run time, in the columns of jobs_t, become known as it starts. 0, or
 * -1: no memory.
 */
int32_t scheduler_set_nodes(scheduler_t *scheduler, const node_model_t *model);

/* Whether a job of the model would have room on its nodes if nobody else ran: 1, 0, or -1: no memory. */
int32_t scheduler_has_nodes_for(const node_model_t *model, int32_t job);

/* Before anything else: on a machine with watts, too, the caller gives out the processors, as with frees_at_estimate. */
void scheduler_place_nobody(scheduler_t *scheduler);

/* The running job's nodes have failed: it waits again, at its place of the queue. Only on processors. */
void scheduler_lose(scheduler_t *scheduler, int32_t job);

/* So many free processors go away until they come back (below 0). Only on processors that the caller gives out. */
void scheduler_take_away(scheduler_t *scheduler, int64_t processors);

/* Once, before anything else, with FCFS, EASY or list scheduling, where reservations and windows are all that is given also with
 * BACKFILL_CONSERVATIVE. The columns outlive the scheduler. 0, or -1: no memory. */
int32_t scheduler_set_limits(scheduler_t *scheduler, const limits_t *limits);

/* After scheduler_set_limits, at any time: these are all reservations, which may be more than before, and none less. */
void scheduler_reserve(scheduler_t *scheduler, const booking_t *reserved, int32_t n_reserved);

/* The same of the windows of the same queues. */
void scheduler_open(scheduler_t *scheduler, const int32_t *opens, const window_t *windows);

/* When a reservation begins, ends, becomes known or is deleted next, or a queue opens in which a job waits; INT64_MAX:
 * never. Then a pass is due. */
int64_t scheduler_next_reserved(const scheduler_t *scheduler, int64_t now_s);

/* With several ways, in a pass: when the job could start in a row of its table if no other waited; INT64_MAX: never. */
int64_t scheduler_earliest(scheduler_t *scheduler, int64_t now_s, int32_t job, int32_t row);

/* With several ways, while nothing runs: writes for each job whether it could not even start now. */
void scheduler_impossible(scheduler_t *scheduler, uint8_t *never);

/* After that: where the units of a job that was started are, on *count nodes. */
const placed_t *scheduler_placed(const scheduler_t *scheduler, int32_t job, int32_t *count);

/* The same for the running jobs, *count of them in the order of their starts. */
const int32_t *scheduler_in_order(const scheduler_t *scheduler, int32_t *count);

/* Where jobs share nodes, once all of an instant has ended, and after a pass: the running jobs whose partners have
 * changed, *count of them, go on at another speed from now on. */
const int32_t *scheduler_repaced(scheduler_t *scheduler, int64_t now_s, int32_t *count);

/* On nodes: what is free now, NODE_KINDS numbers a node. */
const int64_t *scheduler_room(const scheduler_t *scheduler);

/* The job has these nodes: before scheduler_adopt, or in place of those on which it was started. 0, or -1: no memory. */
int32_t scheduler_place(scheduler_t *scheduler, int32_t job, const placed_t *placed, int32_t count);

/* On nodes: from now on these caps are known, in place of all before. */
void scheduler_set_caps(scheduler_t *scheduler, const caps_t *caps);

/* Before a pass with a plan: the nodes chosen for all jobs that are due in it. They belong to the caller. */
void scheduler_set_chosen(scheduler_t *scheduler, const placed_t *chosen);

/* The joules of the running job so far, if it is metered; to be called before it ends or is killed. */
void scheduler_metered(scheduler_t *scheduler, int32_t job, double joules);

/* Only with priorities: the user's recent usage, as a share of what the machine had to give (processor-seconds). */
double scheduler_used(const scheduler_t *scheduler, int64_t now_s, int32_t user);

/*
 * On a machine with watts: once, before anything but limits. From then on the scheduler chooses processors too, since which
 * of them are switched off matters. 0, or -1: no memory. BACKFILL_NONE and BACKFILL_EASY only, and not with
 * frees_at_estimate.
 */
int32_t scheduler_set_power(scheduler_t *scheduler, const power_model_t *model);

/* After scheduler_set_power, before a plan: idle nodes go off. 0, or -1: no memory. */
int32_t scheduler_set_idle_off(scheduler_t *scheduler, const idle_off_t *model);

/* The plan from now on, which replaces the one before. 0, or -1: no memory. */
int32_t scheduler_plan(scheduler_t *scheduler, const plan_row_t *rows, int32_t n_rows);

/* When the next row of the plan begins; INT64_MAX: none. */
int64_t scheduler_next_row(const scheduler_t *scheduler);

/* Time has come to `now_s`: finds the present row of the plan. To be called when a row begins, before a pass. */
void scheduler_advance(scheduler_t *scheduler, int64_t now_s);

/* When a node goes off, or is off or on, next; INT64_MAX: never. Then a pass is due. */
int64_t scheduler_next_switch(scheduler_t *scheduler);

/* Time has come to `now_s` for nodes that were going off or booting. */
void scheduler_settle(scheduler_t *scheduler, int64_t now_s);

/* When the job that was decided to start begins to run: later than that if nodes have to boot. */
int64_t scheduler_begins(const scheduler_t *scheduler, int32_t job);

/* Processors of nodes that are not on since they were idle, and how many nodes have booted. */
cold_t scheduler_cold(const scheduler_t *scheduler);
int64_t scheduler_boots(const scheduler_t *scheduler);

/* When the joules of a budget are to be read next; INT64_MAX: never. */
int64_t scheduler_next_reading(const scheduler_t *scheduler);

/* That time has come: the cluster's joules since the last reading. A pass is due. */
void scheduler_read_joules(scheduler_t *scheduler, int64_t now_s, int64_t drawn_uj);

/* The store of a budget. */
store_t scheduler_store(const scheduler_t *scheduler);

/* After the first reading, or in its place: so many joules are stored at `now_s`; the jobs that run are known. */
void scheduler_restore_joules(scheduler_t *scheduler, int64_t now_s, double stored_j);

/* The planned power of the cluster in the present row: now, or once nodes have booted. */
int64_t scheduler_plan_uw(const scheduler_t *scheduler, int64_t now_s);

/* The running job is ended before its time. It waits again if killed jobs are requeued. */
void scheduler_kill(scheduler_t *scheduler, int64_t now_s, int32_t job);

/* A job that ran waits again, in its order of submission. */
void scheduler_requeue(scheduler_t *scheduler, int32_t job);

/* The running job goes on at another frequency. */
void scheduler_set_level(scheduler_t *scheduler, int64_t now_s, int32_t job, int32_t level);

/* When the running job has run for `length_s`, counted at the highest frequency, if it stays at its present one. */
int64_t scheduler_finish(const scheduler_t *scheduler, int32_t job, int64_t length_s);

/* The planned power of a processor of the job at a level, above an idle one. */
int64_t scheduler_extra_uw(const scheduler_t *scheduler, int32_t job, int32_t level);

/* The running jobs in no order: writes them and returns how many. `running` holds n_jobs. */
int32_t scheduler_running(const scheduler_t *scheduler, int32_t *running);

/* Of the running job's processors, those below `kept`. */
int64_t scheduler_width_below(const scheduler_t *scheduler, int32_t job, int64_t kept);

/* How many processors of running jobs are where nodes should be off in the present row. */
int64_t scheduler_beyond(const scheduler_t *scheduler);

/* What was decided about each job: columns of n_jobs, in the scheduler's memory. */
typedef struct {
    const int64_t *decided_s;        /* when it was to start, with nodes booted first */
    const int64_t *first_estimate_s;
    const int32_t *corrections;
    const uint8_t *overtook;         /* 1: started past an earlier job of the queue */
    /* only with power: */
    const int32_t *level;
    /* The processors of job j are the intervals interval_first[j] to interval_first[j] + interval_count[j] - 1. */
    const interval_t *intervals;
    const int64_t *interval_first;
    const int32_t *interval_count;
} decisions_t;

decisions_t scheduler_decisions(const scheduler_t *scheduler);

/* Only with power: the running job's frequency, and the present row of the plan. */
int32_t scheduler_level(const scheduler_t *scheduler, int32_t job);
const plan_row_t *scheduler_row(const scheduler_t *scheduler);

#endif
