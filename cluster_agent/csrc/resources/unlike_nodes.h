/*
 * Nodes that differ: a job needs so many equal units of cores, GPUs, cards and memory, each on one node, and the watts of
 * all jobs stay below a cap that changes at known times. cluster_agent/scheduler/unlike_nodes/ says what the words mean.
 */
#ifndef CLUSTER_UNLIKE_NODES_H
#define CLUSTER_UNLIKE_NODES_H

#include "resources/caps.h"

#define NODE_KINDS 5 /* cores, GPUs, MICs, memory, and places: 1 of each node, taken by a job that has it alone */

#define PLACE_FIRST 0 /* nodes in the order of their numbers */
#define PLACE_PACK 1  /* first nodes without an accelerator that the job would block, then the fullest */

/* So many units of a job on a node. */
typedef struct {
    int32_t node, count;
} placed_t;

/* The columns belong to the caller. */
typedef struct {
    int32_t n_nodes, placing;
    const int64_t *has;        /* per node and kind */
    caps_t caps;
    /* per job */
    const int64_t *units;
    const int64_t *need;       /* and kind: of one unit */
    const double *admitted_w;  /* read when the job is tried; may change until it starts */
    double *counted_w;         /* of running jobs: as admitted, or what the caller has written since */
    int64_t idle_off_s;        /* nodes go off after so long without a job, and boot for the next; 0: they stay on */
    const int64_t *switch_off_s, *boot_s; /* per node, as the next; only where they go off */
    const double *boot_w;
    /* per job, only with a plan, when the caller writes them before each pass, or with a record */
    const uint8_t *is_deferred;    /* 1: not to start in this pass. NULL: there is neither */
    const int32_t *planned_count;  /* nodes that are chosen; 0: none */
    const int64_t *planned_first;  /* where these begin in `planned` */
    const placed_t *planned;       /* as scheduler_set_chosen says */
} unlike_t;

#endif
