/*
 * The serial schedule of an order of the waiting jobs: each job in turn gets the earliest start at which it has room
 * over its whole span, next to those before it, so that every job has a reservation. The situation is that of list_plan.
 */
#ifndef CLUSTER_SERIAL_PLAN_H
#define CLUSTER_SERIAL_PLAN_H

#include "resources/list_plan.h"

typedef struct serial_plan serial_plan_t;

/* NULL: no memory. `situation` is read now, its columns as long as the plan is used. */
serial_plan_t *serial_plan_new(const list_situation_t *situation);
void serial_plan_free(serial_plan_t *plan);

/*
 * Makes the schedule of the first `count` positions of an order, which those behind would not change; returns their
 * cost. It stops as soon as that cannot stay below `bound`: then INFINITY. Negative: no memory.
 */
double serial_plan_cost(serial_plan_t *plan, const int32_t *order, int32_t count, double bound);

/* Of a schedule that was not stopped, per position: the start (INT64_MAX: never), and nodes. */
const int64_t *serial_plan_start_s(const serial_plan_t *plan);
const placed_t *serial_plan_placed(const serial_plan_t *plan, int32_t position, int32_t *count);

#endif
