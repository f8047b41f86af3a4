/* The inside of the scheduler. power_inside.h: the part that knows watts. */
#ifndef CLUSTER_SCHEDULER_INSIDE_H
#define CLUSTER_SCHEDULER_INSIDE_H

#include "column.h"
#include "learner.h"
#include "priority.h"
#include "profile.h"
#include "scheduler.h"

/*
 * A waiting job. The queue keeps these in one array in queue order, from `head` to `tail`: heads leave at the front
 * without moving the rest, and a pass over the whole queue reads memory in one direction.
 */
typedef struct {
    int64_t estimate_s;
    int32_t job;
    int32_t width;
} waiting_t;

/* A running job. The array is in order of expected end, so the free processors at any later time are a prefix sum. */
typedef struct {
    int64_t expected_end_s;
    int32_t job;
    int32_t width;
} running_t;

/* The history of a user, or of similar jobs, for ESTIMATE_MEAN2. */
typedef struct {
    int64_t last_s, before_last_s;
    int32_t ended; /* 0, 1 or 2 (or more) */
} history_t;

/* Only on a machine with watts (power_inside.h). */
typedef struct power power_t;

/* Only with jobs that can run in several ways (moldable.h). */
typedef struct ways ways_t;

/* Decayed usage, in units of `base` half-lives after the first submission. */
typedef struct {
    double *of_user;
    double most; /* the highest usage over share */
} usage_t;

typedef struct {
    int64_t started_s;
    int32_t job;
} ended_t;

typedef struct {
    double priority;
    waiting_t waiting;
} ranked_t;

/* Only with priorities (priority.h). */
typedef struct {
    priority_t model;
    int64_t first_s;
    int32_t has_begun;
    double base;
    usage_t cpu, energy;
    ended_t *ended;       /* since the last pass, not yet charged */
    int32_t n_ended;
    int32_t is_charged;   /* whether a user was charged since the last order */
    int32_t n_ordered;    /* the first so many of the queue are in the last order */
    double *metered_j, *charged_j; /* per job, all its runs */
    uint8_t *is_metered;
    double *factor;       /* per user, valid in the pass that known_in says */
    int64_t *known_in;
    int64_t pass;
    ranked_t *ranked, *merged;
} ranks_t;

struct scheduler {
    composition_t composition;
    jobs_t jobs;
    power_t *power;
    ranks_t *ranks;
    ways_t *ways;

    waiting_t *queue;    /* in queue order */
    int32_t head, tail;
    int32_t n_waiting;   /* fewer than from head to tail where the scheduler that knows watts leaves gaps */
    int32_t is_reordered; /* the order is not that of submission: scheduler_reorder has been called */
    waiting_t *shortest; /* the same jobs by (estimate, arrival); only with SCAN_SHORTEST */
    int32_t n_shortest;
    int32_t narrowest;   /* a lower bound of the widths of waiting jobs */

    running_t *running;
    int32_t n_running;
    int64_t free;        /* processors without a running job; below 0 while jobs run on, with frees_at_estimate */
    profile_t profile;

    history_t *users;
    history_t *alike;    /* only with HISTORY_SIMILAR, as the next: of similar jobs, by the number of the first */
    int32_t *first_alike; /* a hash table of these numbers + 1; twice as many places as jobs and one, so one is free */
    waiting_t *moved;    /* room for jobs whose estimates change, only with FIXED_AT_START */
    learner_t *learner; /* only with ESTIMATE_LEARNED */

    /* per job */
    int64_t *submit_s;
    int64_t *reserved_s; /* where BACKFILL_COMPRESS has placed it; meaningful if is_reserved */
    uint8_t *is_reserved;
    int64_t *started_s;
    int64_t *estimate_s;
    int64_t *first_estimate_s;
    int32_t *corrections;
    uint8_t *overtook;
    uint8_t *has_started; /* set during a pass, so that the arrays of waiting jobs can be swept once, later */
};

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t greatest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The expected end of a job that is overdue and still runs: the next instant at the earliest. */
static inline int64_t ends_after(int64_t expected_end_s, int64_t now_s)
{
    return greatest(expected_end_s, now_s + 1);
}

/* scheduler.c */
void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job);
void scheduler_running_add(scheduler_t *s, int32_t job);
void scheduler_running_remove(scheduler_t *s, int32_t job);
void scheduler_requeue(scheduler_t *s, int32_t job);
/* The first running job whose processors do not yet count as free. */
int32_t scheduler_first_ahead(const scheduler_t *s, int64_t now_s);

/* backfill.c: starts jobs behind the head, which does not fit the `free` processors. How many; -1: no memory. */
int32_t backfill_jobs(scheduler_t *s, int64_t now_s, int64_t free, int32_t *starts);

/* priority.c */
void priority_free(scheduler_t *s);
void priority_submitted(scheduler_t *s, int64_t now_s);
void priority_ended(scheduler_t *s, int32_t job); /* or was killed */
void priority_charge(scheduler_t *s, int64_t now_s);
void priority_order(scheduler_t *s, int64_t now_s);

/* moldable.c */
void moldable_free(scheduler_t *s);
void moldable_held(scheduler_t *s, int32_t job, int sign); /* the running job takes its watts (1), or gives them back (-1) */
int32_t moldable_decide(scheduler_t *s, int64_t now_s, int32_t *starts);

/* power.c */
void power_free(scheduler_t *s);
int64_t power_expected_end(const scheduler_t *s, int32_t job);
void power_waits(scheduler_t *s, const waiting_t *waiting);
void power_give_back(scheduler_t *s, int32_t job);

/* power_pass.c */
/* A pass begins: updates nodes and budget to now. */
void power_begin_pass(scheduler_t *s, int64_t now_s);
/* A pass without its last step, the sweep of the queue: *in_turn of the jobs that start were heads. -1: no memory. */
int32_t power_decide(scheduler_t *s, int64_t now_s, int32_t *starts, int32_t *in_turn);
/* The last step of a pass: idle nodes go off. 0, or -1: no memory. */
int power_idle(scheduler_t *s, int64_t now_s);

#endif
