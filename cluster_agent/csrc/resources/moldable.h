/*
 * Jobs that can run in several ways: a table of configurations (nodes, cores, watts, time) for each application, and a
 * rule that chooses one at every pass. Processors are nodes then, and the head's reservation is one of
 * nodes and watts. tests/oracle/moldable_scheduler.py is the same in plain Python and says what the rules are.
 */
#ifndef CLUSTER_MOLDABLE_H
#define CLUSTER_MOLDABLE_H

#include "resources/caps.h"

#define CHOOSE_TRADITIONAL 0
#define CHOOSE_NAIVE 1
#define CHOOSE_ADAPTIVE 2
#define CHOOSE_STOCK 3
#define CHOOSE_CORES_ENDTIME 4
#define CHOOSE_ENERGY 5
#define CHOOSE_BY_CALLER 6 /* choose_row does */

/* Times are those of a job with scale 1. */
typedef struct {
    double time_s, watts; /* as the policy knows them */
    double true_time_s;
    int64_t uw;           /* the watts in whole microwatts, rounded up */
    int32_t nodes, cores; /* cores of all its nodes */
    int32_t is_full;      /* all cores of a node at the highest cap */
} configuration_t;

/* The columns belong to the caller. */
typedef struct {
    int32_t choose;
    double th, near, priority, slowdown;
    caps_t caps;
    const configuration_t *rows; /* table t: from first[t] to first[t + 1] - 1, the fastest first */
    const int32_t *first;
    int32_t n_tables, n_kinds;
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
} moldable_t;

#endif
