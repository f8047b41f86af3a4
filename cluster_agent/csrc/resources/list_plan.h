/*
 * The list schedule of an order of the waiting jobs: when each would start and where, if no job came and every job took
 * as long as it is expected to. cluster_agent/scheduler/plans/ says what the words mean.
 */
#ifndef CLUSTER_LIST_PLAN_H
#define CLUSTER_LIST_PLAN_H

#include "resources/node_model.h"

/* What it starts from. `model` has the waiting jobs by their position. A running job with several components is as many
 * running jobs, the first of which draws its watts. The columns belong to the caller. */
typedef struct {
    node_model_t model;
    int32_t n_waiting, n_running;
    int64_t now_s;
    const int64_t *free;         /* per node and kind */
    /* per waiting job */
    const int64_t *span_s;       /* how long it is expected to run */
    const double *weight;        /* what a second of its wait costs */
    const int64_t *due_s;        /* only with `late`: a later start costs that, too; NULL: it does not */
    const double *late;
    double end_weight;           /* what each second costs until the last of the schedule's jobs ends */
    const int64_t *release_s;    /* no start is before it; NULL: each may start now */
    int64_t until_s;             /* no start is at or after it; 0: time is long enough for all */
    int32_t is_strict;           /* list_plan: no job overtakes another that is released */
    /* per running job, in the order of their starts */
    const int64_t *end_s;        /* expected */
    const int64_t *running_uw;
    const int64_t *running_need; /* and kind: of one unit */
    const int64_t *placed_first; /* where its nodes begin in `placed`; one more at the end */
    const placed_t *placed;
} list_situation_t;

typedef struct list_plan list_plan_t;

/* NULL: no memory. `situation` is read now, its columns as long as the plan is used. */
list_plan_t *list_plan_new(const list_situation_t *situation);
void list_plan_free(list_plan_t *plan);

/*
 * Makes the schedule of the positions in `order`; returns the sum of what their starts cost. The sum only
 * grows as the schedule is made, so it stops as soon as that cannot stay below `bound`: then INFINITY.
 */
double list_plan_cost(list_plan_t *plan, const int32_t *order, double bound);

/* Of a schedule that was not stopped, per position: the start (INT64_MAX: never), and nodes. */
const int64_t *list_plan_start_s(const list_plan_t *plan);
const placed_t *list_plan_placed(const list_plan_t *plan, int32_t position, int32_t *count);

#endif
