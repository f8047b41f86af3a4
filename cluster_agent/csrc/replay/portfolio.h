/*
 * A portfolio: several ways to order the queue and to backfill, of which one is in force until the next look.
 *
 * A look replays the waiting jobs under each member from the present state on. It knows what a scheduler knows. Jobs
 * run for as long as estimated, or for run times that are drawn from how far estimates were off for the jobs that ended
 * last. The jobs of the last hours come again, or none does. Each such future is a copy of the scheduler (steps.h) in a
 * replay of its own, so a member does in it what it would do alone; watts are not counted. Of equal members the one in
 * force stays. Cost: a copy for each member and draw, and the passes until all have started, or the hours are over; on
 * the logs of `benchmarks/portfolio.py` 0.03 to 0.2 ms for four members and a day.
 */
#ifndef CLUSTER_PORTFOLIO_H
#define CLUSTER_PORTFOLIO_H

#include "scheduler.h"

/* What a future costs, over the jobs that wait at the look and that come; who has not started counts as if it started
 * at the end. */
#define OBJECTIVE_SLOWDOWN 0 /* mean bounded slowdown */
#define OBJECTIVE_WAIT 1     /* mean wait, s */
#define OBJECTIVE_LONGEST 2  /* longest wait, s */

/* Of its composition order, backfill, scan and guard count; the rest is the scheduler's own. */
typedef struct {
    composition_t composition;
    const score_t *score; /* NULL: the order of submission */
} member_t;

/* That a member is in force from then on. */
typedef struct {
    int64_t at_s;
    int32_t member;
} look_t;

/* All of it belongs to the caller and outlives the scheduler. */
typedef struct {
    int32_t n_members;
    const member_t *members; /* the first is in force until the first look */
    int32_t every;           /* a look comes at the first of so many passes in which there is a choice */
    int64_t length_s;        /* how far it looks */
    int32_t objective;
    int32_t repeats_arrivals; /* the jobs of the last length_s come again; else none comes */
    int32_t draws;           /* futures of each member; 0: one, with run times as estimated */
    uint64_t seed;
    int32_t keeps;           /* whether all looks are kept, or the last one alone */
    const look_t *recorded;  /* to be repeated without looking; NULL: none are */
    int32_t n_recorded;
} portfolio_model_t;

/* Once, before anything else, and not with an order, nodes, configurations, budgets, or nodes that go off. 0, or -1: no
 * memory. */
int32_t scheduler_set_portfolio(scheduler_t *scheduler, const portfolio_model_t *model);

/* The looks so far. */
typedef struct {
    int64_t count;
    int64_t first;       /* of those that are kept */
    const look_t *looks; /* from `first` on */
    const double *costs; /* of each of them, n_members numbers; NaN: it was repeated */
    int32_t is_other;    /* a look that was recorded was at another time, or there was none */
} looked_t;

looked_t scheduler_looks(const scheduler_t *scheduler);

#endif
