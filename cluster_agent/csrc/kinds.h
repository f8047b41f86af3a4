/* The waiting jobs by kind: those of one kind no pass can tell apart but by their order. Internal to the scheduler. */
#ifndef CLUSTER_KINDS_H
#define CLUSTER_KINDS_H

#include <stdint.h>

typedef struct {
    int64_t request_s, estimate_s;
    int32_t width;
    int32_t lowest;      /* the lowest frequency that it may be given */
    int32_t first, last; /* of its waiting jobs; first is -1 if there is none */
} kind_t;

/* What the first waiting job of a kind is found by. */
typedef struct {
    int64_t estimate_s;
    int32_t job;
    int32_t width;
    int32_t kind;
} front_t;

/*
 * The fronts are in order of number, or of (estimate, number). A pass that goes through them meets all waiting jobs in
 * that order, if it takes out each that it starts and a kind of which one is refused would be refused as a whole: then
 * it looks once at each kind, where there may be a hundred times as many jobs. For users ask for round times, and
 * submit the same job many times.
 */
typedef struct {
    kind_t *kinds;
    int32_t n_kinds;
    int32_t *table;    /* 1 + kind, by hash; 0: none */
    uint64_t mask;
    int32_t *kind_of;  /* per waiting job */
    int32_t *next;     /* per waiting job: the next of its kind, -1: none */
    front_t *fronts;
    int32_t n_fronts;
    int32_t is_shortest_first;
} kinds_t;

/* 0, or -1: no memory. */
int kinds_init(kinds_t *kinds, int32_t n_jobs, int is_shortest_first);
void kinds_clear(kinds_t *kinds);

/* The job waits; of `kind` all but its jobs is read. */
void kinds_add(kinds_t *kinds, int32_t job, const kind_t *kind);

/* The job waits no longer. If it was fronts[i], the front that follows it is fronts[i] now. */
void kinds_take(kinds_t *kinds, int32_t job);

#endif
