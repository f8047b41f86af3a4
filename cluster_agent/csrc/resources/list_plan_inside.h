/* What the decoders of orders share (list_plan.c, serial_plan.c). */
#ifndef CLUSTER_LIST_PLAN_INSIDE_H
#define CLUSTER_LIST_PLAN_INSIDE_H

#include "resources/list_plan.h"
#include "resources/node_room.h"

/* At most so many rows of nodes have all waiting jobs together, with room to try one more. */
int64_t list_plan_most_placed(const list_situation_t *situation);

/* How many components have all waiting jobs. */
int32_t list_plan_components(const list_situation_t *situation);

/* What the job at this position asks of nodes. */
ask_t list_plan_ask(const list_situation_t *situation, int32_t position);

/* What it costs that the job at this position starts then; INT64_MAX: never, which counts as ten years. */
double list_plan_cost_of(const list_situation_t *situation, int32_t position, int64_t at_s);

/* What it costs that the last of the jobs ends then; INT64_MAX: one never starts. */
double list_plan_cost_of_end(const list_situation_t *situation, int64_t end_s);

#endif
