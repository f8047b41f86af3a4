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
    const int64_t *need; /* per kind: of one unit */
    uint64_t within;     /* groups of nodes that it may be on, as bits; 0: all */
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

/* Finds nodes for all units; `found` has them, and how many these are is returned; 0: there is no room. Both arrays have
 * n_nodes places. `is_cold`: per node, whether it is off or boots; NULL: none is. */
int32_t node_room_find(const node_model_t *model, const int64_t *room, const ask_t *ask, const uint8_t *is_cold,
                       node_room_t *candidates, placed_t *found);

/* The same for nodes that somebody has chosen: `count`, or 0. */
int32_t node_room_as_chosen(const int64_t *room, const ask_t *ask, const placed_t *chosen, int32_t count,
                            placed_t *found);

/* What a unit needs is added to `room` (1) or taken from it (-1), for all units on these nodes. */
void node_room_change(const int64_t *need, int64_t *room, const placed_t *placed, int32_t count, int sign);

#endif
