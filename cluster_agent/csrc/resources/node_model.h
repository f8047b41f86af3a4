/*
 * Machines that are counted by nodes, and what their jobs take: so many equal units of cores, GPUs, cards and memory, each
 * on one node, and watts, which together stay below a cap that changes at known times. A job may have several components
 * of such units, which start together; most have one.
 *
 * cluster_agent/scheduler/unlike_nodes/ says what the words mean. Where a job can run in several ways (configurations/),
 * each way is a row of need: nodes, watts and time. Such nodes are alike and are one group, whose places are counted.
 */
#ifndef CLUSTER_NODE_MODEL_H
#define CLUSTER_NODE_MODEL_H

#include "resources/caps.h"

#define NODE_KINDS 5 /* cores, GPUs, MICs, memory, and places: 1 of each node, taken by a job that has it alone */

#define PLACE_FIRST 0 /* nodes in the order of their numbers */
#define PLACE_PACK 1  /* first nodes without an accelerator that the job would block, then the fullest */

#define CHOOSE_TRADITIONAL 0
#define CHOOSE_NAIVE 1
#define CHOOSE_ADAPTIVE 2
#define CHOOSE_STOCK 3
#define CHOOSE_CORES_ENDTIME 4
#define CHOOSE_ENERGY 5
#define CHOOSE_BY_CALLER 6 /* choose_row does */

/* So many units of a job on a node. */
typedef struct {
    int32_t node, count;
} placed_t;

/* A way to run. Times are those of a job with scale 1. */
typedef struct {
    double time_s, watts; /* as the policy knows them */
    double true_time_s;
    int64_t uw;           /* the watts in whole microwatts, rounded up */
    int32_t nodes, cores; /* cores of all its nodes */
    int32_t is_full;      /* all cores of a node at the highest cap */
} configuration_t;

/* The ways to run, and the rule that chooses one of them in every pass (tests/oracle/moldable_scheduler.py says what the
 * rules are). The columns belong to the caller. */
typedef struct {
    int32_t choose;
    double th, near, priority, slowdown;
    const configuration_t *rows; /* table t: from first[t] to first[t + 1] - 1, the fastest first */
    const int32_t *first;
    int32_t n_tables, n_kinds;   /* n_tables 0: each job has one way, its own columns */
    /* per job */
    const int32_t *table, *requested;
    const double *scale;
    const int32_t *kind;         /* jobs of one kind have the same table and request as many nodes */
    /* per job, filled in as it starts */
    int32_t *row, *width;
    int64_t *run_s;
    /* CHOOSE_BY_CALLER: the row that the job should take, -1: none */
    int32_t (*choose_row)(void *context, int64_t now_s, int32_t job, int64_t free_nodes, int64_t free_uw);
    void *context;
} ways_t;

/* The columns belong to the caller. */
typedef struct {
    int32_t n_nodes, placing;      /* with several ways: one group */
    const int64_t *has;            /* per node and kind */
    caps_t caps;
    ways_t ways;
    /* per component, where a job has one way */
    const int64_t *units;
    const int64_t *need;           /* and kind: of one unit */
    const uint64_t *within;        /* the groups of nodes that it may be on; 0: all; NULL: each may be on every node */
    const uint64_t *group;         /* per node: its group, as a bit; only with these */
    int32_t most_components;       /* of a job */
    /* per job */
    const int32_t *component;      /* its first; NULL: each job has one, of its own number */
    const int32_t *n_components;
    const int64_t *admitted_uw;    /* read when the job is tried; may change until it starts */
    int64_t *counted_uw;           /* of running jobs: as admitted, or what the caller has written since */
    uint8_t *was_moved;            /* per job, filled in: whether it waited, or was elsewhere, for that */
    /* Where two jobs may share a node, which has two cores then, its shares (sharing.c). */
    int32_t n_kinds;               /* of jobs; 0: a job is not slowed by others */
    const double *speed;           /* kind by kind of its partner, the last next to nobody; 1: as alone on whole nodes */
    const int32_t *kind;           /* per job */
    int64_t idle_off_s;            /* nodes go off after so long without a job, and boot for the next; 0: they stay on */
    const int64_t *switch_off_s, *boot_s; /* per node, as the next; only where they go off */
    const int64_t *boot_uw;
    /* per job, only with a plan, when the caller writes them before each pass, or with a record */
    const uint8_t *is_deferred;    /* 1: not to start in this pass. NULL: there is neither */
    const int32_t *planned_count;  /* nodes that are chosen; 0: none */
    const int64_t *planned_first;  /* where these begin in `planned` */
    const placed_t *planned;       /* as scheduler_set_chosen says */
} node_model_t;

#endif
