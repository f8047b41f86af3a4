/* The inside of the scheduler, for scheduler.c and power_pass.c. */
#ifndef CLUSTER_SCHEDULER_INSIDE_H
#define CLUSTER_SCHEDULER_INSIDE_H

#include "column.h"
#include "learner.h"
#include "nodes.h"
#include "placement.h"
#include "priority.h"
#include "profile.h"
#include "scheduler.h"

/*
 * A waiting job. The queue keeps these in one array in queue order, from `head` to `tail`: heads leave at the front
 * without moving the rest, and a pass over the whole queue reads memory in one direction.
 */
typedef struct {
    int64_t estimate_s;
    int32_t job;
    int32_t width;
} waiting_t;

/* A running job. The array is in order of expected end, so the free processors at any later time are a prefix sum. */
typedef struct {
    int64_t expected_end_s;
    int32_t job;
    int32_t width;
} running_t;

/* What ESTIMATE_MEAN2 knows of a user. */
typedef struct {
    int64_t last_s, before_last_s;
    int32_t ended; /* 0, 1 or 2 (or more) */
} history_t;

/* What a pass knows of one row of the plan. */
typedef struct {
    int64_t free;        /* free processors that the plan leaves on in this row */
    int64_t cold;        /* those of them whose node is off, going off or booting */
    int64_t headroom_uw; /* under the cap, at the beginning of the row, with all jobs running to their limits */
    int64_t expected_uw; /* the same, with all jobs ending as expected */
} outlook_t;

/* A running job as a budget sees it: at its limit the cluster draws so much less. */
typedef struct {
    int64_t limit_s, extra_uw;
} fall_t;

/* What a budget knows. Stored is what was left below the limit at the last reading and, as planned, since. */
typedef struct {
    int is_open;
    double read_j, since_j;
    int64_t read_s, next_s; /* the last reading and the next */
    int64_t pass_s;      /* the last pass, since when the cluster draws, as planned, */
    int64_t drawn_uw;
    fall_t *falls;       /* of the running jobs, in order */
    int32_t n_falls;     /* -1: to be made */
} ledger_t;

/* When the head will start, if running jobs end as expected, and what others may take until then and beside it. */
typedef struct {
    int64_t at_s;        /* INT64_MAX: the job will not fit as long as the plan holds */
    int32_t narrowest;   /* row */
    int64_t left_over;   /* processors that are on in that row, beside the job */
    int64_t left_over_uw;
    double reserved_j;   /* stored joules that it will need */
    double left_over_j;  /* stored joules that it will not */
    int64_t above_uw;    /* what the cluster will draw with it, less the budget's limit */
    int64_t length_s;    /* for how long the budget cares */
} reservation_t;

/* What a job that starts now asks for, besides its processors. */
typedef struct {
    int64_t delay_s;     /* until its nodes have booted, at the latest */
    int64_t busy_uw;     /* more than its processors draw idle, at most */
    int64_t wake_uw;     /* what nodes that boot for it have saved by being off, and will not from now on */
} need_t;

/* Only on a machine with watts. */
typedef struct {
    power_model_t model;
    placement_t placement;
    int64_t *interval_first;
    int32_t *interval_count;
    plan_row_t *rows;
    outlook_t *outlook;
    int64_t *available;  /* per row, during the search for a reservation */
    int32_t n_rows, row; /* `row` is the present one */
    int64_t lowest_kept; /* of the present and all later rows */
    /* Each job's pace: until since_s it has done done_s seconds of its run at the highest frequency. */
    int64_t *since_s;
    double *done_s;
    int32_t *level;
    int64_t *woken;      /* processors of nodes that boot for the job, until since_s */
    nodes_t *nodes;      /* only where idle nodes go off */
    ledger_t ledger;
} power_t;

/* Decayed usage, in units of `base` half-lives after the first submission. */
typedef struct {
    double *of_user;
    double most; /* the highest usage over share */
} usage_t;

typedef struct {
    int64_t started_s;
    int32_t job;
} ended_t;

typedef struct {
    double priority;
    waiting_t waiting;
} ranked_t;

/* Only with priorities (priority.h). */
typedef struct {
    priority_t model;
    int64_t first_s;
    int32_t has_begun;
    double base;
    usage_t cpu, energy;
    ended_t *ended;       /* since the last pass, not yet charged */
    int32_t n_ended;
    double *metered_j, *charged_j; /* per job, all its runs */
    uint8_t *is_metered;
    double *factor;       /* per user, valid in the pass that known_in says */
    int64_t *known_in;
    int64_t pass;
    ranked_t *ranked, *merged;
} ranks_t;

struct scheduler {
    composition_t composition;
    jobs_t jobs;
    power_t *power;
    ranks_t *ranks;

    waiting_t *queue;    /* in queue order */
    int32_t head, tail;
    waiting_t *shortest; /* the same jobs by (estimate, arrival); only with SCAN_SHORTEST */
    int32_t n_shortest;
    int32_t narrowest;   /* no waiting job is narrower; others may be wider than this */

    running_t *running;
    int32_t n_running;
    int64_t free;        /* processors that no running job holds; below 0 while ends lag behind frees_at_estimate */
    profile_t profile;

    history_t *users;
    learner_t *learner; /* only with ESTIMATE_LEARNED */

    /* per job */
    int64_t *submit_s;
    int64_t *reserved_s; /* where BACKFILL_COMPRESS has placed it; meaningful if is_reserved */
    uint8_t *is_reserved;
    int64_t *started_s;
    int64_t *estimate_s;
    int64_t *first_estimate_s;
    int32_t *corrections;
    uint8_t *overtook;
    uint8_t *has_started; /* set during a pass, so that the arrays of waiting jobs can be swept once at its end */
};

/* scheduler.c, for power_pass.c */
void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job);
void scheduler_running_add(scheduler_t *s, int32_t job);
void scheduler_running_remove(scheduler_t *s, int32_t job);
void scheduler_requeue(scheduler_t *s, int32_t job);

/* power_pass.c, for budget.c */
int64_t power_stretched(const power_t *p, int64_t length_s, int32_t level);

/* budget.c, for power_pass.c */
/* Whether the budget allows the head to start now. */
int budget_allows_head(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need);
/* The same of another job behind a reservation; *cost_j is what it takes of the joules left over. If it is refused and
 * *is_for_all, so would be all that are no narrower and no shorter. */
int budget_allows_behind(scheduler_t *s, int64_t now_s, const waiting_t *waiting, int32_t level, const need_t *need,
                         const reservation_t *reserved, int ends_in_time, double *cost_j, int *is_for_all);
/* Whether there are joules for so much more until `limit_s`. */
int budget_allows_switching(scheduler_t *s, int64_t now_s, int64_t more_uw, int64_t limit_s);
/* Whether from found->at_s, and before `next_s`, there will be joules for the head, which draws head_uw; moves
 * found->at_s to when. */
int budget_will_allow(const scheduler_t *s, int64_t now_s, int32_t head, int32_t level, int64_t head_uw,
                      int64_t drawn_uw, double stored_j, int64_t next_s, reservation_t *found);
void budget_started(scheduler_t *s, int64_t uw);
/* Whether the head leaves joules over for so much until then. */
int budget_leaves_over(const scheduler_t *s, int64_t uw, int64_t seconds, const reservation_t *reserved);
/* No job that draws more than this, from idle, can start behind the reservation. */
int64_t budget_most_uw(const scheduler_t *s, int64_t now_s, const reservation_t *reserved);

/* budget.c, for scheduler.c */
/* A pass begins: what has been stored since the last one. */
void budget_pass(scheduler_t *s, int64_t now_s);

/* priority.c, for scheduler.c and power_pass.c */
void priority_free(scheduler_t *s);
void priority_submitted(scheduler_t *s, int64_t now_s);
void priority_ended(scheduler_t *s, int32_t job); /* or was killed */
void priority_charge(scheduler_t *s, int64_t now_s);
void priority_order(scheduler_t *s, int64_t now_s);

/* power_pass.c, for scheduler.c */
void power_free(scheduler_t *s);
int64_t power_expected_end(const scheduler_t *s, int32_t job);
void power_give_back(scheduler_t *s, int32_t job);
/* The last step of a pass: idle nodes go off. 0, or -1: no memory. */
int power_idle(scheduler_t *s, int64_t now_s);
/* A pass without its last step, the sweep of the queue: *in_turn of the jobs that start were heads. -1: no memory. */
int32_t power_decide(scheduler_t *s, int64_t now_s, int32_t *starts, int32_t *in_turn);

#endif
