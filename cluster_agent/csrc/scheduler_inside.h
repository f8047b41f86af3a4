/* The inside of the scheduler. power_inside.h: the part that knows watts. */
#ifndef CLUSTER_SCHEDULER_INSIDE_H
#define CLUSTER_SCHEDULER_INSIDE_H

#include "kinds.h"
#include "learner.h"
#include "profile.h"
#include "scheduler.h"

/*
 * Waiting jobs (kinds.h): the queue keeps them in one array in queue order, from `head` to `tail`. Heads leave at the
 * front without moving the rest, and a pass over the whole queue reads memory in one direction.
 */

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

/* When the head will start, if running jobs end as expected, and what other jobs may take before and next to it. */
typedef struct {
    int64_t at_s;         /* INT64_MAX: it reserves nothing */
    int64_t left_over;    /* processors (with configurations: nodes) that are on then, in addition to the job */
    int64_t left_over_uw;
    /* only on a machine with watts: */
    int32_t narrowest;    /* row of the plan */
    int64_t above_uw;     /* what the cluster will draw with it, less the budget's limit */
    double reserved_j;    /* stored joules that it will need */
    double left_over_j;   /* stored joules that it will not */
    int64_t length_s;     /* how long the head counts in the budget */
} reservation_t;

/* What the head leaves to jobs behind it. The bounds on width exclude most of the jobs that cannot start. */
typedef struct {
    reservation_t reserved;
    int64_t widest;       /* no wider job can start */
    int64_t late_s;       /* a job that runs longer ends after the head is to start, */
    int64_t widest_late;  /* and can be no wider than this */
    int64_t least_uw;     /* the least power of a processor, if it is the same for all jobs; 0: not known */
    double most_area;     /* until then a job cannot take more processor-seconds, for its joules; INFINITY: no limit */
} offer_t;

/*
 * The phases *admit*, *place* and *idle* of one kind of resources: what a job needs to start, and what there is of it.
 * resources/: processors alone; the nodes and watts of one of several configurations; nodes that differ, and watts.
 * power_pass.c: processors and watts. Functions that say so may be NULL.
 */
typedef struct {
    void (*begin)(scheduler_t *s, int64_t now_s); /* a pass begins; NULL */
    void (*look)(scheduler_t *s, int64_t now_s);  /* somebody might start in it; NULL */
    /* Starts the head if there is room for it: 1; 0: there is not; -1: no memory. */
    int (*start_head)(scheduler_t *s, int64_t now_s, const waiting_t *head);
    /* What the head, which does not start now, leaves to others; NULL: there is no head, and no reservation. */
    void (*reserve)(scheduler_t *s, int64_t now_s, const waiting_t *head, offer_t *offer);
    /* Starts the job if it takes nothing from the head, and takes it from the offer. The offer's bounds allow it. */
    int (*start_behind)(scheduler_t *s, int64_t now_s, const waiting_t *next, offer_t *offer);
    /* For a place for everybody; NULL: cannot be planned. The profile of what running jobs leave: 0, or -1: no memory. */
    int (*plan)(scheduler_t *s, int64_t now_s);
    /* What the waiting job would take at this frequency; whether it may run at a lower one, too. */
    int (*claim)(const scheduler_t *s, const waiting_t *waiting, int32_t level, claim_t *claim);
    /* Starts a job whose place begins now: 1; 0: not if running jobs outlive their estimates; -1: no memory. */
    int (*start_placed)(scheduler_t *s, int64_t now_s, int32_t job, int32_t level);
    int (*finish)(scheduler_t *s, int64_t now_s); /* the pass ends: idle nodes go off. 0, or -1: no memory; NULL */
    void (*waits)(scheduler_t *s, const waiting_t *waiting); /* the job waits from now on; NULL */
    void (*leaves)(scheduler_t *s, int32_t job); /* the waiting job is withdrawn; NULL */
    void (*occupy)(scheduler_t *s, int32_t job, int sign);   /* the running job is added (1), taken out (-1); NULL */
    void (*give_back)(scheduler_t *s, int32_t job);          /* it runs no longer; NULL */
    kinds_t *(*kinds)(scheduler_t *s); /* the waiting jobs by kind, where a kind can be refused as a whole; NULL */
} resources_t;

typedef int64_t estimate_t(scheduler_t *s, int64_t now_s, int32_t job);
typedef int64_t correct_t(const scheduler_t *s, int32_t job);
/* Starts jobs behind the head, which does not start now. How many; -1: no memory. */
typedef int32_t backfill_t(scheduler_t *s, int64_t now_s, int32_t *starts);

extern estimate_t *const ESTIMATES[];   /* by ESTIMATE_* */
extern correct_t *const CORRECTIONS[];  /* by CORRECT_* */
extern correct_t correct_at_any_moment; /* the estimate is a table's: the job is expected to end at any moment */
extern backfill_t *const BACKFILLS[];   /* by BACKFILL_* */
extern const resources_t PROCESSORS, PROCESSORS_AND_WATTS, CONFIGURATIONS, UNLIKE_NODES;

/* The phases that a policy is made of. */
typedef struct {
    estimate_t *estimate;
    correct_t *correct;
    backfill_t *backfill;
    const resources_t *resources;
} phases_t;

/* Only on a machine with watts (power_inside.h). */
typedef struct power power_t;

/* Only with jobs that can run in several ways (resources/moldable.h). */
typedef struct ways ways_t;

/* Only with nodes that differ (resources/unlike_nodes.h). */
typedef struct nodes_and_watts nodes_and_watts_t;

/* Decayed usage, in units of `base` half-lives after the first submission. */
typedef struct {
    double *of_user;
    double most; /* the highest usage over share */
} usage_t;

typedef struct {
    int64_t started_s;
    int32_t job;
} ended_t;

/* Only with priorities (orders/priority.h). */
typedef struct {
    priority_t model;
    int64_t first_s;
    int32_t has_begun;
    double base;
    usage_t cpu, energy;
    ended_t *ended;       /* since the last pass, not yet charged */
    int32_t n_ended;
    int32_t is_charged;   /* whether a user was charged since the last order */
    double *metered_j, *charged_j; /* per job, all its runs */
    uint8_t *is_metered;
    double *factor;       /* per user, valid in the pass that known_in says */
    int64_t *known_in;
    int64_t pass;
} ranks_t;

/* Only with a score (orders/score.h). */
typedef struct scores scores_t;

/* The highest rank is served first, equal ones in order of submission. */
typedef struct {
    double rank;
    waiting_t waiting;
} ranked_t;

/* Only with one of these two orders. */
typedef struct {
    int32_t n_ordered; /* the first so many of the queue are in the last order */
    ranked_t *ranked, *merged; /* room for all jobs */
} ranking_t;

typedef double rank_t(const scheduler_t *s, int64_t now_s, const waiting_t *waiting);

struct scheduler {
    memory_t memory;
    composition_t composition;
    phases_t phases;
    jobs_t jobs;
    power_t *power;
    ranks_t *ranks;
    scores_t *scores;
    ranking_t ranking;
    ways_t *ways;
    nodes_and_watts_t *unlike;
    caps_t caps; /* only with one of these two */
    int64_t decides_from_s; /* only in a warm start: passes before that start nobody */

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
    int64_t free_in_pass; /* what a pass may still give; with frees_at_estimate more than `free` */
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
    int64_t *delay_s;    /* from the start until nodes that boot for it are on; only with nodes that differ and go off */
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

static inline int is_shorter(const waiting_t *a, const waiting_t *b)
{
    return a->estimate_s != b->estimate_s ? a->estimate_s < b->estimate_s : a->job < b->job;
}

/* Joules of so many microwatts, 0 if negative. */
static inline double joules(int64_t uw, int64_t seconds)
{
    return uw > 0 ? (double)uw * (double)seconds / 1e6 : 0.0;
}

/* scheduler.c */
void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job);
void scheduler_running_add(scheduler_t *s, int32_t job);
void scheduler_running_remove(scheduler_t *s, int32_t job);
/* Processors that a job may be given now. */
int64_t scheduler_free_now(const scheduler_t *s, int64_t now_s);
/* The first running job whose processors do not yet count as free. */
int32_t scheduler_first_ahead(const scheduler_t *s, int64_t now_s);
/* When anything changes after `at_s`: the next running job is expected to end, after so many, or the cap changes. */
int64_t scheduler_next_change(const scheduler_t *s, int64_t at_s, int32_t ended);
/* Jobs that no longer wait leave gaps in the arrays of those that do. At most so many gaps stay. */
void scheduler_close_gaps(scheduler_t *s, int32_t bearable);

/* estimates.c */
size_t estimates_places_alike(const scheduler_t *s);
void estimates_learn(scheduler_t *s, int32_t job); /* it has ended */
int64_t estimates_planned(const scheduler_t *s, int32_t job);

/* orders/ranking.c */
int ranking_new(scheduler_t *s); /* 0, or -1: no memory */
void ranking_all(scheduler_t *s); /* the queue as `ranked`, which has the waiting jobs in their present order */
/* The queue is in order up to `n_ordered`; each job behind that is moved to its place. */
void ranking_new_ones(scheduler_t *s, int64_t now_s, rank_t *rank);

/* orders/score.c */
void score_submitted(scheduler_t *s, int64_t now_s, const waiting_t *waiting);
void score_order(scheduler_t *s, int64_t now_s);

/* orders/priority.c */
void priority_submitted(scheduler_t *s, int64_t now_s);
void priority_ended(scheduler_t *s, int32_t job); /* or was killed */
void priority_past(scheduler_t *s, int64_t ended_s, double joules, int32_t job); /* it ended before all else */
void priority_charge(scheduler_t *s, int64_t now_s);
void priority_order(scheduler_t *s, int64_t now_s);

/* resources/ */

/* power.c */
/* The job runs since `started_s` and counts as running from here on: 0, or -1: no memory, or no free processors; after
 * it has its estimate, power_adopted. */
int power_adopt(scheduler_t *s, int64_t started_s, int32_t job, int32_t level);
void power_adopted(scheduler_t *s, int32_t job);
void power_decisions(const scheduler_t *s, decisions_t *found);

#endif
