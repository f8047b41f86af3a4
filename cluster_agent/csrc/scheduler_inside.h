/*
 * The inside of the scheduler. power_inside.h: the part that knows watts; resources/node_inside.h: the part that counts
 * nodes. A unit calls only units on lines above its own: they are listed from the bottom up. What is above a unit it
 * reaches by the tables of its phases (phases_t), which composing.c fills in.
 *
 *   memory, caps, fitting_index, node_room, swf
 *   best_effort, events, kinds, learner, meter, placement, profile, ranking, span_line
 *   answering, estimates, idle_nodes, list_plan, priority, score, site_limits
 *   scheduler, serial_plan
 *   given, node_sums, partitions, power, processors, sharing
 *   limited_pass, reserved_pass
 *   pass
 *   budget, choices
 *   nodes, power_ahead
 *   power_pass
 *   composing
 *   replay_foreseen, replay_setup, steps
 *   replay_power
 *   replay_failures
 *   replay
 *   jobs_csv, portfolio, replay_steps
 */
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

enum { STRETCH = 64, WIDTH_CLASSES = 32, LEAST_STRETCHED = 4 * STRETCH };

/* A stretch of the queue, of so many places: no waiting job in it is narrower, and none in or below a class of widths
 * (queue_class) is shorter. */
typedef struct {
    int32_t narrowest;
    int64_t shortest_s[WIDTH_CLASSES];
} stretch_t;

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
    int32_t is_reserved;  /* only with partitions: the head gets a reservation */
    double most_area;     /* until then a job cannot take more processor-seconds, for its joules; INFINITY: no limit */
} offer_t;

/*
 * The phases *admit*, *place* and *idle* of one kind of resources: what a job needs to start, and what there is of it.
 * resources/: processors alone; nodes and watts. power_pass.c: processors and watts. Functions that say so may be NULL.
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
    /* The profile of all that there is without a job: 0, or -1: no memory; only where watts are planned. */
    int (*plan_empty)(scheduler_t *s, int64_t now_s);
    /* Whether there is room for the job now, whatever is reserved; NULL: if enough processors are free. */
    int (*has_room)(scheduler_t *s, int64_t now_s, int32_t job);
    /* What the waiting job would take at this frequency; whether it may run at a lower one, too. */
    int (*claim)(const scheduler_t *s, const waiting_t *waiting, int32_t level, claim_t *claim);
    /* Starts a job whose place begins now: 1; 0: not if running jobs outlive their estimates; -1: no memory. */
    int (*start_placed)(scheduler_t *s, int64_t now_s, int32_t job, int32_t level);
    int (*finish)(scheduler_t *s, int64_t now_s); /* the pass ends: idle nodes go off. 0, or -1: no memory; NULL */
    void (*waits)(scheduler_t *s, const waiting_t *waiting); /* the job waits from now on; NULL */
    void (*leaves)(scheduler_t *s, int32_t job); /* the waiting job is withdrawn; NULL */
    void (*occupy)(scheduler_t *s, int32_t job, int sign);   /* the running job is added (1), taken out (-1); NULL */
    void (*give_back)(scheduler_t *s, int32_t job);          /* it runs no longer; NULL */
    /* The job runs since `started_s` and counts as running from here on: 0, or -1: no memory, or no free processors; and
     * once it has its estimate. NULL */
    int (*adopt)(scheduler_t *s, int64_t started_s, int32_t job, int32_t level);
    void (*adopted)(scheduler_t *s, int32_t job);
    kinds_t *(*kinds)(scheduler_t *s); /* the waiting jobs by kind, where a kind can be refused as a whole; NULL */
    int (*copy)(scheduler_t *to, const scheduler_t *from); /* what running jobs have (steps.h): 0, or -1: no memory; NULL */
    int32_t is_width_all; /* a job that the profile has room for starts: it needs processors, and nothing else */
    /* The first job from `next` on, the head apart, that waits and may start; NULL: an offer bounds widths, which say it. */
    const waiting_t *(*first_likely)(scheduler_t *s, int64_t now_s, const waiting_t *next, const waiting_t *stop);
} resources_t;

typedef int64_t estimate_t(scheduler_t *s, int64_t now_s, int32_t job);
typedef int64_t correct_t(const scheduler_t *s, int32_t job);
/* Starts jobs behind the head, which does not start now. How many; -1: no memory. */
typedef int32_t backfill_t(scheduler_t *s, int64_t now_s, int32_t *starts);

extern estimate_t *const ESTIMATES[];   /* by ESTIMATE_* */
extern correct_t *const CORRECTIONS[];  /* by CORRECT_* */
extern correct_t correct_at_any_moment; /* the estimate is a table's: the job is expected to end at any moment */
extern backfill_t *const BACKFILLS[];   /* by BACKFILL_* */
extern const resources_t PROCESSORS, PARTITIONS, PROCESSORS_AND_WATTS, NODES;

/* Before a pass: whose order and backfilling it follows. 0, or -1: no memory. */
typedef int choose_t(scheduler_t *s, int64_t now_s);

/* The phases that a policy is made of. */
typedef struct {
    estimate_t *estimate;
    correct_t *correct;
    backfill_t *backfill;
    choose_t *choose; /* NULL: there is no portfolio */
    const resources_t *resources;
} phases_t;

/* Only on a machine with watts (power_inside.h). */
typedef struct power power_t;

/* Only with jobs that are counted on nodes (resources/node_inside.h), */
typedef struct on_nodes on_nodes_t;
/* and that can run in several ways. */
typedef struct choices choices_t;

/* Only with limits or partitions (site_limits_inside.h). */
typedef struct limited limited_t;

/* Only with several members to choose from (replay/portfolio.h). */
typedef struct portfolio portfolio_t;

/* Only where some jobs are best-effort (best_effort.c). */
typedef struct {
    int32_t *waiting, *running; /* in order of submission, and of start */
    int32_t n_waiting, n_running;
    int64_t used;       /* processors of those that run; `free` has them, too */
    int32_t *preempted; /* by the last pass */
    int32_t n_preempted;
} best_effort_t;

enum { MOST_SHARES = 256 }; /* ours */

/* Run times of the jobs that ended last, as shares of their first estimates; once it is full the oldest goes first. */
typedef struct {
    double share[MOST_SHARES];
    int64_t n_ended;
} shares_t;

enum { MOST_ARRIVALS = 8192 }; /* ours */

/* A job that was submitted. */
typedef struct {
    int64_t submit_s, request_s, estimate_s;
    int64_t run_s; /* 0: it has not ended */
    int32_t job, width, user;
} arrival_t;

/* The last ones; once there are so many the oldest goes first. */
typedef struct {
    arrival_t arrival[MOST_ARRIVALS];
    int64_t n_submitted;
    int32_t *place; /* per job, of the last time that a job with this number came */
} arrivals_t;

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

/* What scheduler_order_by and scheduler_order_at have been given so far. */
enum { ANSWERED_NOTHING, ANSWERED_SCORES, ANSWERED_PLACES };

typedef double rank_t(const scheduler_t *s, int64_t now_s, const waiting_t *waiting);

struct scheduler {
    memory_t memory;
    composition_t composition;
    phases_t phases;
    jobs_t jobs;
    power_t *power;
    void (*decisions)(const scheduler_t *s, decisions_t *found); /* adds what was chosen for each job; NULL */
    ranks_t *ranks;
    scores_t *scores;
    ranking_t ranking;
    int32_t answered; /* ANSWERED_*: by an order that the caller works out */
    own_t *own; /* only with these */
    on_nodes_t *on_nodes;
    caps_t caps; /* only with these */
    portfolio_t *portfolio;
    limited_t *limited;
    best_effort_t *best_effort;
    shares_t *shares; /* only where run times are drawn */
    arrivals_t *arrivals; /* only where they come again */
    int64_t changes;  /* submissions, ends, kills and corrected estimates */
    int64_t decides_from_s; /* only in a warm start: passes before that start nobody */

    waiting_t *queue;    /* in queue order */
    int32_t head, tail;
    int32_t n_waiting;   /* fewer than from head to tail where the scheduler that knows watts leaves gaps */
    int32_t is_reordered; /* the order is not that of submission: the caller has given another */
    int32_t places_nobody; /* processors are given out by the caller; without nodes that go off */
    int32_t is_stepped;   /* a pass may see the queue in an order that the caller gives (steps.h) */
    stretch_t *stretches; /* of the queue; valid if scheduler_has_stretches and is_stretched */
    int32_t is_stretched; /* the queue was long enough for them to be worth keeping */
    waiting_t *shortest; /* the same jobs by (estimate, arrival); only with SCAN_SHORTEST */
    int32_t n_shortest;
    int32_t narrowest;   /* a lower bound of the widths of waiting jobs */
    waiting_t *kept;     /* the queue in its own order, during a pass that sees it in another; room for n_kept */
    int32_t n_kept;

    running_t *running;
    int32_t n_running;
    int64_t free;        /* processors without a running job that is not best-effort; below 0 while jobs run on, with frees_at_estimate */
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
    int64_t *estimate_s;
    int64_t *first_estimate_s;
    int32_t *corrections;
    uint8_t *overtook;
    /* Its pace: until since_s, when it begins or its frequency has changed, it has done done_s seconds of its run at the
     * highest frequency. Only where a job can begin later than it starts; the others only with frequencies, or shared nodes, too. */
    int64_t *since_s;
    double *done_s;
    int32_t *level;
    const double *slowdown; /* per level */
    double *stretch; /* in place of both where jobs share nodes: how many times as long as alone its work takes now */
    uint8_t *has_started; /* set during a pass, so that the arrays of waiting jobs can be swept once, later */
};

static inline int is_best_effort(const scheduler_t *s, int32_t job)
{
    return s->jobs.best_effort && s->jobs.best_effort[job];
}

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

/* Widths from 2^(k-1) to 2^k - 1 are class k; no job is in class 0. */
static inline int32_t queue_class(int64_t width)
{
    return width < 1 ? 0 : width > INT32_MAX ? WIDTH_CLASSES - 1 : 32 - __builtin_clz((uint32_t)width);
}

/* Whether jobs keep their places in the queue, and their estimates, until they start. */
static inline int scheduler_is_in_order(const scheduler_t *s)
{
    return !s->ranks && !s->scores && !s->is_reordered && !(s->composition.guard > 0.0) &&
           s->composition.fixed == FIXED_AT_SUBMISSION;
}

/* Whether stretches of the queue can be passed over; then it bears gaps, too. */
static inline int scheduler_has_stretches(const scheduler_t *s)
{
    return !s->phases.resources->first_likely && scheduler_is_in_order(s);
}

/* Whether a job of this width and expected run time cannot start; then no job can that is wider or longer. */
static inline int asks_too_much(const offer_t *offer, int32_t width, int64_t estimate_s)
{
    return __builtin_expect(width > offer->widest, 1) || (estimate_s > offer->late_s && width > offer->widest_late) ||
           (double)width * (double)least(estimate_s, offer->late_s) > offer->most_area;
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

/* composing.c */
/* As scheduler_new, with columns that hold anything, and spare ones of `like`. */
scheduler_t *scheduler_unwritten(const composition_t *composition, const jobs_t *jobs, const memory_t *like);

/* best_effort.c */
int best_effort_new(scheduler_t *s); /* 0, or -1: no memory */
void best_effort_submit(scheduler_t *s, int64_t now_s, int32_t job);
void best_effort_wait(scheduler_t *s, int32_t job);  /* it waits again */
void best_effort_run(scheduler_t *s, int64_t started_s, int32_t job);
void best_effort_leave(scheduler_t *s, int32_t job); /* it runs or waits no longer */

/* scheduler.c */
/* The running job runs no longer. */
void scheduler_leave(scheduler_t *s, int32_t job);
/* At the highest frequency, where there are several. */
void scheduler_start(scheduler_t *s, int64_t now_s, int32_t job);
/* At this one, on nodes that have booted by `begins_s`. */
void scheduler_start_at(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, int64_t begins_s);
/* For resources_t, where a job has no frequency and needs what its place has: nothing is left to look at. */
int scheduler_start_placed(scheduler_t *s, int64_t now_s, int32_t job, int32_t level);
void scheduler_running_add(scheduler_t *s, int32_t job);
void scheduler_running_remove(scheduler_t *s, int32_t job);
/* Processors that a job may be given now. */
int64_t scheduler_free_now(const scheduler_t *s, int64_t now_s);
/* The first running job whose processors do not yet count as free. */
int32_t scheduler_first_ahead(const scheduler_t *s, int64_t now_s);
/* When anything changes after `at_s`: the next running job is expected to end, after so many, or the cap changes. */
int64_t scheduler_next_change(const scheduler_t *s, int64_t at_s, int32_t ended);
/* The jobs from one place of the queue to another, that of a stretch's first job or the tail, have changed. Nothing where
 * the queue is not in order. */
void scheduler_fill_stretches(scheduler_t *s, int32_t from, int32_t to);
/* `narrowest` is that of the queue, where it may be a lower bound. */
void scheduler_find_narrowest(scheduler_t *s);
/* Jobs that no longer wait leave gaps in the arrays of those that do. At most so many gaps stay. */
void scheduler_close_gaps(scheduler_t *s, int32_t bearable);

/* site_limits.c */
void limits_count(scheduler_t *s, int32_t job, int sign); /* the job runs (1), or no longer (-1) */

/* limited_pass.c */
int32_t limited_pass(scheduler_t *s, int64_t now_s, int32_t *starts);

/* reserved_pass.c */
int reserved_is_any(const scheduler_t *s, int64_t now_s); /* something is reserved, or a job waits for what was */
int32_t reserved_pass(scheduler_t *s, int64_t now_s, int32_t *starts);

/* estimates.c */
size_t estimates_places_alike(const scheduler_t *s);
int by_shortest(const void *a, const void *b); /* waiting jobs, for qsort */
void estimates_submitted(scheduler_t *s, int64_t now_s, const waiting_t *waiting);
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
void score_all(scheduler_t *s, int64_t first_s); /* the queue was that of another scheduler */

/* orders/priority.c */
void priority_submitted(scheduler_t *s, int64_t now_s);
void priority_ended(scheduler_t *s, int32_t job); /* or was killed */
void priority_past(scheduler_t *s, int64_t ended_s, double joules, int32_t job); /* it ended before all else */
void priority_charge(scheduler_t *s, int64_t now_s);
void priority_order(scheduler_t *s, int64_t now_s);

#endif
