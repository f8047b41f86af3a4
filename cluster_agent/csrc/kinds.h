/* The waiting jobs by kind: jobs of one kind differ, for a pass, only in their order. Internal to the scheduler. */
#ifndef CLUSTER_KINDS_H
#define CLUSTER_KINDS_H

#include "memory.h"

/* A waiting job. */
typedef struct {
    int64_t estimate_s;
    int32_t job;
    int32_t width;
} waiting_t;

typedef struct {
    int64_t request_s, estimate_s;
    int32_t width;
    int32_t lowest;      /* the lowest frequency that it may be given */
    int32_t first, last; /* of its waiting jobs; first is -1 if there is none */
} kind_t;

/*
 * The fronts, one per kind, are in order of number, or of (estimate, number). A pass over the fronts meets all waiting
 * jobs in that order, provided that it removes each job that it starts, and each kind of which it refuses a job (then
 * it would refuse all of that kind). So it looks once at each kind, of which there may be a hundred times fewer than
 * jobs: users request round times, and submit the same job many times.
 */
typedef struct {
    kind_t *kinds;
    int32_t n_kinds;
    int32_t *table;    /* 1 + kind, by hash; 0: none */
    uint64_t mask;
    int32_t *kind_of;  /* per waiting job */
    int32_t *next;     /* per waiting job: the next of its kind, -1: none */
    waiting_t *fronts; /* the first waiting job of each kind that has one */
    int32_t n_fronts;
    int32_t is_shortest_first;
} kinds_t;

/* 0, or -1: no memory. */
int kinds_init(kinds_t *kinds, memory_t *memory, int32_t n_jobs, int is_shortest_first);

/* The job waits from now on. All of `kind` is read, except its jobs. */
void kinds_add(kinds_t *kinds, int32_t job, const kind_t *kind);

/* The job no longer waits. If it was fronts[i], the front after it is fronts[i] now. */
void kinds_take(kinds_t *kinds, int32_t job);

#endif
