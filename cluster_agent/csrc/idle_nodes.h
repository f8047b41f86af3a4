/*
 * Nodes that go off when they have been idle for long enough, and boot when a job needs them. Internal to the scheduler.
 */
#ifndef CLUSTER_IDLE_NODES_H
#define CLUSTER_IDLE_NODES_H

#include "memory.h"
#include "placement.h"
#include "power.h"

#define NODE_ON 0
#define NODE_GOING 1 /* off at at_s; with a job on it, it boots then */
#define NODE_OFF 2
#define NODE_BOOTING 3 /* on at at_s */

typedef struct {
    int64_t at_s;  /* of a node that is on and has no job: idle since */
    int32_t used;  /* its processors with a job */
    int32_t state;
} node_t;

/* Nodes `first` to `last`, and a time. */
typedef struct {
    int64_t at_s;
    int32_t first, last;
} span_t;

/* Spans in order of time, spans[begin] to spans[end - 1]. */
typedef struct {
    span_t *spans;
    int32_t begin, end, room;
} spans_t;

/*
 * Nodes go off only as far as those that are on or boot stay as many as the row in force wants. If they are fewer,
 * others boot without a job, and a job may get them while they do.
 *
 * A free processor is warm if its node is on, else cold; the warm ones are in the scheduler's placement. A timer is
 * never stopped. When it is due, a node's own at_s shows whether it has been idle since the timer began. So the end of
 * a job costs one span per interval.
 */
typedef struct {
    memory_t *memory;
    idle_off_t model;
    node_t *nodes;
    placement_t *warm;
    placement_t cold;
    int64_t n_cold;
    int64_t kept;       /* processors that the plan leaves on; the plan switches the other nodes */
    spans_t timers;     /* idle since at_s */
    int32_t n_undated;  /* how many at the end were freed since the last pass */
    spans_t changes;    /* nodes going off and booting */
    int64_t last_off_s; /* when the last node that is going off will be off */
    cold_t now;         /* processors by state */
    int64_t waking;     /* processors of nodes that boot, or will boot once they are off */
    int64_t boots;      /* nodes */
    int64_t n_used;     /* nodes with a job */
    int64_t row;        /* of those that say how many nodes are on: so many have begun */
    int32_t has_no_memory;
} nodes_t;

/* NULL: no memory. All nodes are on, and idle since the first plan. */
nodes_t *nodes_new(memory_t *memory, const idle_off_t *model, int32_t processors, placement_t *warm);

/* When a node goes off or is on or off next; INT64_MAX: never. */
int64_t nodes_next(nodes_t *nodes);

/* Time has come to `now_s`: nodes that are off or on by now. */
void nodes_settle(nodes_t *nodes, int64_t now_s);

/* Processors 0 to kept-1 are on in the plan from now on. */
void nodes_follow(nodes_t *nodes, int64_t now_s, int64_t kept);

/* Nodes that jobs have left since the last pass are idle from now on. */
void nodes_date(nodes_t *nodes, int64_t now_s);

/* A job gets processors. *begins_s: when all their nodes are on; *woken: the processors of nodes that boot for it. */
void nodes_take(nodes_t *nodes, int64_t now_s, const interval_t *intervals, int32_t count, int64_t *begins_s,
                int64_t *woken);

/* A job gives processors back. If a node was booting for this job alone, its boot is cancelled. */
void nodes_give_back(nodes_t *nodes, const interval_t *intervals, int32_t count);

/* At the latest when a job that takes a cold processor now begins. */
int64_t nodes_ready_s(const nodes_t *nodes, int64_t now_s);

/* How many processors' nodes have been idle for long enough. */
int64_t nodes_due(const nodes_t *nodes, int64_t now_s);

/* Switches these off, or makes them wait for the same time again. */
void nodes_go(nodes_t *nodes, int64_t now_s, int is_allowed);

/* Boots nodes, the first ones first, until as many are on as are wanted. */
void nodes_keep(nodes_t *nodes, int64_t now_s);

#endif
