/*
 * Room on nodes: which of them take a job's units, and how what is free changes. Internal to the scheduler and to
 * list_plan, so that a planned start has the nodes that the scheduler would choose.
 */
#ifndef CLUSTER_NODE_ROOM_H
#define CLUSTER_NODE_ROOM_H

#include "resources/node_model.h"

/* What a job takes if it starts in one of its ways. */
typedef struct {
    int64_t units, uw, length_s;
    int32_t n;              /* components, which start together */
    const int64_t *each;    /* per component, units; NULL: there is one */
    const int64_t *need;    /* and kind: of one unit */
    const uint64_t *within; /* groups of nodes that it may be on, as bits; 0: all. NULL: each may be on all */
} ask_t;

/* A node that has room for some units, and what decides which comes first. */
typedef struct {
    int64_t blocked, cores; /* 0 with PLACE_FIRST */
    int32_t is_cold;
    int64_t fits;
    int32_t node;
} node_room_t;

/* How many units have room, `most` at most. */
int64_t node_room_units(const int64_t *room, const int64_t *need, int64_t most);

/* The components of a job of the model: units, needs and groups; watts and length are the caller's. */
ask_t node_room_ask(const node_model_t *model, int32_t job);

/*
 * Finds nodes for all units, component after component, each next to those before it; `found` has them in this order,
 * and how many these are is returned; 0: there is no room. It has n_nodes places for each component, and `candidates`
 * has n_nodes. `room` is as before when it returns. `is_cold`: per node, whether it is off or boots; NULL: none is.
 */
int32_t node_room_find(const node_model_t *model, int64_t *room, const ask_t *ask, const uint8_t *is_cold,
                       node_room_t *candidates, placed_t *found);

/* The same for nodes that somebody has chosen, in this order: `count`, or 0. */
int32_t node_room_as_chosen(int64_t *room, const ask_t *ask, const placed_t *chosen, int32_t count, placed_t *found);

/* The nodes of a component: how many of the `count` that the components from this one on have. */
int32_t node_room_of(const ask_t *ask, int32_t component, const placed_t *placed, int32_t count);

/* What a unit needs is added to `room` (1) or taken from it (-1), for all units on these nodes; of one component, */
void node_room_change(const int64_t *need, int64_t *room, const placed_t *placed, int32_t count, int sign);
/* and of all. */
void node_room_change_all(const ask_t *ask, int64_t *room, const placed_t *placed, int32_t count, int sign);

#endif
