/*
 * What a site adds to a number of processors: partitions, memory, limits of what users or queues may run at once,
 * reservations, and windows of queues.
 *
 * A job runs on the processors of its partition, which has its own queue, head and reservation. Memory is a second amount
 * of each partition. A job over a limit is not eligible: it is passed over until others of its user or queue have ended.
 * Cost of a pass: O(partitions x waiting jobs), as nobody is passed over by stretches. A reservation keeps processors
 * free in its intervals, for its own jobs alone, and a job of a queue with windows starts and ends in one of them, unless
 * it has a reservation (../reserved_pass.c); neither goes with partitions and memory.
 */
#ifndef CLUSTER_LIMITS_H
#define CLUSTER_LIMITS_H

#include <stdint.h>

/* Why a job's row of `changed` is not 0. */
#define CHANGED_BY_PARTITIONS 1 /* it waited while there was room elsewhere, or started past a job of another partition */
#define CHANGED_BY_LIMITS 2     /* it was passed over while there was room for it */
#define CHANGED_BY_MEMORY 4     /* it waited, or has a later reservation, for memory */
#define CHANGED_BY_RESERVATIONS 8 /* it waited while there was room, since that is reserved or its own is not open */
#define CHANGED_BY_WINDOWS 16 /* others went past it, since its queue is closed, or will be before it ends */

/* A reservation: so many processors are for its jobs alone from `from_s` to `to_s`, and again after each `every_s`. */
typedef struct {
    int64_t from_s, to_s;
    int64_t every_s;        /* 0: once */
    int64_t made_s, gone_s; /* known from then on, and until it is deleted */
    int64_t width;
} booking_t;

/* Jobs of its queue may run from `from_s` to `to_s`. */
typedef struct {
    int64_t from_s, to_s;
} window_t;

/* The columns belong to the caller. */
typedef struct {
    int32_t n_partitions;      /* 0: the machine is one, and without memory */
    const int64_t *has;        /* per partition: processors; KiB, INT64_MAX where they are not counted */
    const int32_t *partition;  /* per job */
    const int64_t *memory_kib; /* per job, of all its processors */
    int32_t n_counters;        /* of what may run at once */
    const int64_t *most;       /* per counter */
    const uint8_t *counts_jobs; /* per counter: jobs, else their processors */
    int32_t n_keys;
    const int32_t *counter;    /* per job and key: where it counts; -1: nowhere */
    int32_t n_reserved;
    const booking_t *reserved;
    const int32_t *pool;       /* per job, only with reservations: 1 + its reservation; 0: it has none */
    int32_t n_open;            /* queues with windows */
    const int32_t *opens;      /* per queue, and one more: its first one in `windows` */
    const window_t *windows;   /* in order of time, apart; after a queue's last one those of its last week come again */
    const int32_t *open;       /* per job, only with windows: 1 + its queue; 0: it may run at any time */
    uint8_t *changed;          /* per job, filled in */
} limits_t;

#endif
