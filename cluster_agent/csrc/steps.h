/*
 * A scheduler that is stepped: the caller looks at the queue and at what runs, and says who starts, or in which order a
 * pass is to see the queue. And its copy, which goes on by itself.
 *
 * A copy costs as much as there are waiting and running jobs, however long the log: the columns of the new scheduler are
 * not written at first, except for the rows of these jobs, and a job gets its row when it is submitted. 10,000 waiting
 * jobs take some 0.2 ms. Not with a learner, priorities, configurations, budgets or nodes that go off; with
 * HISTORY_SIMILAR the whole history is copied, and with nodes what is free on each.
 */
#ifndef CLUSTER_STEPS_H
#define CLUSTER_STEPS_H

#include "scheduler.h"

/* What one sees of it. The arrays have n_jobs rows and stay where they are; what
 * they hold, and how much of it counts, changes with each call. */
typedef struct {
    int64_t now_s;
    int64_t free;           /* processors without a job */
    int32_t head, waiting, running, submitted, ended, started; /* jobs; `started`: since the replay was made */
    const void *queue;      /* waiting_t (kinds.h), in queue order, from `head` on */
    const void *runs;       /* running_t (scheduler_inside.h), in order of expected end */
    const int32_t *starts;  /* the started jobs, in the order of the decisions */
    const int64_t *start_s; /* of each job of `starts`, by the job's number */
} seen_t;

/* Once, before anything else. 0, or -1: no memory. */
int32_t scheduler_set_stepped(scheduler_t *scheduler);

void scheduler_look(scheduler_t *scheduler, seen_t *seen);

/* Whether at least two jobs wait, and the narrowest may fit. */
int32_t scheduler_has_choice(const scheduler_t *scheduler);

/*
 * A pass that sees the queue in another order: the jobs at these places of it first, then the others as they are. Those
 * that go on to wait stay in their present order. As scheduler_decide; -2: a place is not in the queue, or is given twice.
 */
int32_t scheduler_decide_in(scheduler_t *scheduler, int64_t now_s, const int32_t *places, int32_t count,
                            int32_t *starts);

/*
 * Starts these waiting jobs one after the other, with watts at this level; -1: at the highest that there is room for.
 * Returns `count`; less: the first that does not wait, or has no room. Then none has started, unless it is watts or nodes
 * that are missing: with these, try several jobs on a copy. -1 as well: no memory.
 */
int32_t scheduler_start_these(scheduler_t *scheduler, int64_t now_s, const int32_t *jobs, int32_t count,
                              int32_t level);

/* With watts: the first row of the plan, counted from the present one, whose cap is below what running jobs draw then if
 * they last to their limits; -1: none. */
int32_t scheduler_exceeds(scheduler_t *scheduler, int64_t now_s);

/* The first `most` waiting jobs: seconds waited, estimate, width, one job after the other; and all that run: expected
 * seconds left (below 0: late), width. */
void scheduler_table(const scheduler_t *scheduler, int64_t now_s, int32_t most, double *waiting, double *running);

struct memory *scheduler_memory(scheduler_t *scheduler);

/*
 * The same jobs wait and run as in `from`, under this composition, whose estimates are those of `from`; `score`: NULL, or
 * its order. `first_s` is the first submission. Blind: jobs run for as long as `from` has estimated. `jobs`: NULL, or a
 * table with those that wait and run in the same rows; then only processors count. NULL: no memory.
 */
scheduler_t *scheduler_copy(const scheduler_t *from, const jobs_t *jobs, const composition_t *composition,
                            const score_t *score, int64_t first_s, int32_t is_blind);

#endif
