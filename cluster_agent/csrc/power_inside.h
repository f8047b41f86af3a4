/* The inside of the scheduler that knows watts: power.c, power_pass.c, power_ahead.c and budget.c. */
#ifndef CLUSTER_POWER_INSIDE_H
#define CLUSTER_POWER_INSIDE_H

#include <math.h>

#include "idle_nodes.h"
#include "placement.h"
#include "scheduler_inside.h"

/* What a pass knows of one row of the plan. */
typedef struct {
    int64_t free;        /* free processors that the plan leaves on in this row */
    int64_t cold;        /* those of them whose node is off, going off or booting */
    int64_t headroom_uw; /* under the cap, at the beginning of the row, with all jobs running to their limits */
    int64_t expected_uw; /* the same, with all jobs ending as expected */
} outlook_t;

/* A running job in a budget: at its time limit the cluster's power falls by this much. */
typedef struct {
    int64_t limit_s, extra_uw;
} fall_t;

/* The needs of a job that was refused for its joules. */
typedef struct {
    int64_t busy_uw, length_s;
} refusal_t;

enum { MOST_REFUSALS = 8 };

/* The state of a budget. Stored joules: what was left below the limit at the last reading, and by plan since then. */
typedef struct {
    int is_open;
    double read_j, since_j;
    int64_t read_s, next_s; /* the last reading and the next */
    int64_t pass_s;      /* the last pass, since when the cluster draws, as planned, */
    int64_t drawn_uw;
    fall_t *falls;       /* of the running jobs, in order */
    int32_t n_falls;     /* -1: to be made */
    refusal_t refusals[MOST_REFUSALS]; /* of this pass, the latest that no other one implies */
    int32_t n_refusals;
} ledger_t;

/* What a job that starts now needs in addition to its processors. */
typedef struct {
    int64_t delay_s;     /* until its nodes have booted, at the latest */
    int64_t busy_uw;     /* its highest power above idle */
    int64_t wake_uw;     /* what nodes that boot for it no longer save by being off */
} need_t;

/* What the scheduler knows on a machine with watts. */
struct power {
    power_model_t model;
    placement_t placement;
    int64_t *interval_first;
    int32_t *interval_count;
    int32_t *highest;    /* of each job's processors */
    plan_row_t *rows;
    outlook_t *outlook;
    int64_t *available;  /* per row, during the search for a reservation */
    int32_t n_rows, row; /* `row` is the present one */
    int64_t lowest_kept; /* of the present and all later rows */
    int32_t is_level;    /* they keep equally many */
    int64_t *limit_s;    /* when it is ended at the latest, at its present frequency */
    int64_t *extra_uw;   /* planned power above idle; of running jobs */
    int64_t running_uw;  /* the sum of those */
    int64_t *later_uw;   /* as they count in later rows; extra_uw itself, unless they can be lowered for these */
    int64_t running_later_uw; /* only if they can */
    int64_t *metered_uw; /* only if it meters: the model's job_plan_uw, of running jobs what they were seen to draw */
    uint8_t *is_metered;
    int32_t n_beyond;    /* running jobs on nodes that should be off in the present row */
    int64_t *woken;      /* processors of nodes that boot for the job, until it begins */
    uint8_t *has_handed_over; /* its processors are others', although it is not known to have ended */
    nodes_t *nodes;      /* only where idle nodes go off */
    kinds_t kinds;       /* the waiting jobs, if has_kinds */
    ledger_t ledger;
};

/* The power above idle of a processor whose node boots or goes off; 0 if it is below idle. */
static inline int64_t boot_rise_uw(const power_t *p)
{
    int64_t rise_uw = p->nodes->model.boot_uw - p->model.idle_uw;
    return rise_uw > 0 ? rise_uw : 0;
}

static inline int64_t off_rise_uw(const power_t *p)
{
    int64_t rise_uw = p->nodes->model.switch_off_uw - p->model.idle_uw;
    return rise_uw > 0 ? rise_uw : 0;
}

/* The planned power of a processor of the job above an idle one. */
static inline int64_t extra_uw(const power_t *p, int32_t job, int32_t level)
{
    const power_model_t *m = &p->model;
    if (!m->job_plan_uw)
        return m->plan_uw[level] - m->idle_uw;
    double share = (double)(m->plan_uw[level] - m->idle_uw) / (double)(m->plan_uw[0] - m->idle_uw);
    return (int64_t)((double)(m->job_plan_uw[job] - m->idle_uw) * share);
}

/* Whether waiting jobs are kept by kind: not if each has watts of its own, if the queue has another order or the caller
 * gives it one, or if estimates change while jobs wait. */
static inline int has_kinds(const scheduler_t *s)
{
    return !s->is_stepped && !s->power->model.job_plan_uw && scheduler_is_in_order(s);
}

/* The lowest frequency at which the job may be started. */
static inline int32_t lowest_of(const power_t *p, int32_t job)
{
    return p->model.job_lowest ? p->model.job_lowest[job] : p->model.lowest;
}

static inline int64_t power_stretched(const power_t *p, int64_t length_s, int32_t level)
{
    /* level 0 first: it is the usual case, and this is called for each waiting job */
    int64_t long_s = level ? (int64_t)ceil((double)length_s * p->model.slowdown[level] - 1e-9) : length_s;
    return long_s > 1 ? long_s : 1;
}

/* Where running jobs are lowered: when a job ends at the latest that has done done_s of length_s since since_s, if it
 * has its lowest frequency as soon as the next row begins. Whatever is done to it instead, it ends no later. */
int64_t power_lowered_end(const power_t *p, int64_t since_s, double done_s, int64_t length_s, int32_t level,
                          int32_t lowest);

/* The row with the fewest processors on among those that begin before `end_s`, the first of equals. */
static inline int32_t power_narrowest_row(const power_t *p, int32_t from, int64_t end_s)
{
    int32_t narrowest = from;
    for (int32_t k = from + 1; k < p->n_rows && p->rows[k].from_s < end_s; k++)
        if (p->rows[k].kept < p->rows[narrowest].kept)
            narrowest = k;
    return narrowest;
}

/* What the job draws above idle at its lowest frequency. */
int64_t power_lowest_uw(const scheduler_t *s, int32_t job);

/* With how much the job counts in later rows that counts with busy_uw in the present one. */
static inline int64_t power_later_uw(const scheduler_t *s, int32_t job, int64_t busy_uw)
{
    return s->power->model.rescales ? power_lowest_uw(s, job) : busy_uw;
}

/* power_ahead.c */
/* The earliest time, after now, at which the head is expected to fit in processors and in watts. */
reservation_t power_earliest(scheduler_t *s, int64_t now_s, int32_t head);
/* Fills in the profile of what is left over time. 0, or -1: no memory. */
int power_plan(scheduler_t *s, int64_t now_s);
int power_plan_empty(scheduler_t *s, int64_t now_s);

/* power.c */
int power_new(scheduler_t *s, const power_model_t *model); /* 0, or -1: no memory */
int power_copy(scheduler_t *to, const scheduler_t *from);
void power_waits(scheduler_t *s, const waiting_t *waiting);
void power_leaves(scheduler_t *s, int32_t job);
/* What the job, which runs, draws at its level from now on. */
void power_count(scheduler_t *s, int32_t job, int32_t level);
/* Jobs that began before this pass count with what they draw. */
void power_meter(scheduler_t *s, int64_t now_s);
int power_adopt(scheduler_t *s, int64_t started_s, int32_t job, int32_t level);
void power_adopted(scheduler_t *s, int32_t job);
void power_decisions(const scheduler_t *s, decisions_t *found);
void power_give_back(scheduler_t *s, int32_t job);
/*
 * With frees_at_estimate, before a pass: jobs that are expected to have ended by now end at this instant (the others had
 * their estimates corrected before), and their nodes, which are on, are free. So it is known now who must boot some.
 */
void power_hand_over(scheduler_t *s, int64_t now_s);
/* The highest processor of these intervals. */
int32_t power_highest(const interval_t *intervals, int32_t count);
/*
 * The power above idle of nodes that are not on. In the present row nodes that are off draw less than idle, until a job
 * boots them; in a later row they may be on again. Nodes that boot for a job count with that job.
 */
int64_t power_cold_uw(const scheduler_t *s, int64_t now_s, int is_present);
/* When the running job ends that takes length_s at the highest frequency, at the latest in later rows. */
int64_t power_ends_by(const scheduler_t *s, int32_t job, int64_t length_s);
/* What the job adds in a row to the power without jobs; *is_left_on: it keeps nodes on that should be off. */
int64_t power_draw_uw(const scheduler_t *s, int64_t now_s, const plan_row_t *row, int32_t job, int *is_left_on);

/* budget.c */
double budget_stored_j(const scheduler_t *s); /* below 0: overdrawn */
/* Whether the budget allows the head to start now. */
int budget_allows_head(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need);
/* The same of another job behind a reservation, expected to end after `length_s`; *cost_j is what it takes of the joules
 * left over. */
int budget_allows_behind(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need,
                         int64_t length_s, const reservation_t *reserved, int ends_in_time, double *cost_j);
/* Whether there are joules for so much more until `limit_s`. */
int budget_allows_switching(scheduler_t *s, int64_t now_s, int64_t more_uw, int64_t limit_s);
/* Whether from found->at_s, and before `next_s`, there will be joules for the head, which draws head_uw; moves
 * found->at_s to when. */
int budget_will_allow(const scheduler_t *s, int64_t now_s, int32_t head, int32_t level, int64_t head_uw,
                      int64_t drawn_uw, double stored_j, int64_t next_s, reservation_t *found);
/* Whether this pass has refused a job that needs no more. */
int budget_has_refused(const scheduler_t *s, int32_t job, int32_t level, const need_t *need);
void budget_started(scheduler_t *s, int64_t uw);
/* What the head leaves over of the stored joules; INFINITY if it needs none. */
double budget_left_over_j(const scheduler_t *s, const reservation_t *reserved);
/* No job that draws more than this, from idle, can start behind the reservation. */
int64_t budget_most_uw(const scheduler_t *s, int64_t now_s, const reservation_t *reserved);
/* A pass begins: what has been stored since the last one. */
void budget_pass(scheduler_t *s, int64_t now_s);

#endif
