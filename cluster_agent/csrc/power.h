/*
 * Watts for the scheduler: the power of processors, which caps are in force when, and which nodes are on.
 *
 * Whole microwatts per processor, so that sums are exact and all engines decide the same. The machine's idle, off and
 * shared watts come in the rows of a plan; a job adds the watts of its processors above idle.
 */
#ifndef CLUSTER_POWER_H
#define CLUSTER_POWER_H

#include <stdint.h>

#include "resources/caps.h"

#define ENDS_UNHEARD 0
#define ENDS_BEFORE_PASS 1
#define ENDS_AFTER_PASS 2
/* budget_t: who may draw more than the limit, and how many stored joules such a start needs */
#define BUDGET_NONE 0
#define BUDGET_REDUCEPC 1  /* only the head of the queue; others stay below a limit that leaves the head its joules */
#define BUDGET_ENERGYBUD 2 /* all, but others leave the head its joules */
#define TEST_PATH 0        /* all that it and the running jobs will draw above the limit */
#define TEST_JOB 1         /* what is above the limit now, for as long as the job may run */
#define TEST_WHOLE 2       /* all that the job may draw */

/* Joules for a window, as the watts that use them up evenly. See scheduler/energy_window.py. */
typedef struct {
    int32_t rule, test;
    int64_t from_s, to_s;
    int64_t limit_uw;
    int64_t tick_s;
    double stored_j; /* when the window begins */
} budget_t;

/* What a budget has stored: `stored_j` at the last pass, at_s; from then on `drawn_uw` is drawn, as planned. */
typedef struct {
    int32_t is_open;   /* the window has begun, and is not over */
    double stored_j;   /* below 0: overdrawn */
    int64_t read_s, at_s; /* the last reading; the last pass */
    int64_t drawn_uw;
} store_t;

/* The columns belong to the caller. Levels count from the highest frequency, 0. */
typedef struct {
    int32_t n_levels;
    int32_t lowest;           /* the lowest frequency that a job may be started at */
    int32_t asks_watts;       /* whether a job must fit under the caps; 0: watts are only accounted */
    int32_t requeues;         /* whether a killed job waits again */
    int64_t idle_uw;          /* a processor without a job, its node on */
    const int64_t *busy_uw;   /* a processor with a job at each level, as accounted */
    const int64_t *plan_uw;   /* the same, as planned with */
    const double *slowdown;   /* run time at each level over that at level 0 */
    const int64_t *job_busy_uw, *job_plan_uw; /* per job, a processor at level 0; NULL: as the machine's */
    const int32_t *job_lowest; /* per job, the lowest frequency it may be given; NULL: `lowest` for all */
    int32_t reacts_to_ends;   /* ENDS_*: whether *react* is called when jobs end under a cap */
    int32_t rescales;         /* *react* can lower running jobs to their lowest frequency whenever a row begins */
    int32_t meters;           /* a running job counts with what it draws from the first pass after its start on */
    budget_t budget;
} power_model_t;

/* From `from_s` on so many nodes are on, or booting, whether they have jobs or not, and `spare` more than have jobs. */
typedef struct {
    int64_t from_s, nodes, spare;
} kept_on_t;

/* Nodes that go off when they are idle, and boot when a job needs them. Watts are those of one of a node's processors. */
typedef struct {
    int64_t idle_off_s;       /* after so long, at least 1 */
    int32_t cores;
    int64_t switch_off_s, boot_s;
    int64_t off_uw, switch_off_uw, boot_uw;
    int64_t n_kept_on;
    const kept_on_t *kept_on; /* in order of time; belongs to the caller */
} idle_off_t;

/* Processors of such nodes that are off, going off, and booting. */
typedef struct {
    int64_t off, going, booting;
} cold_t;

/*
 * From `from_s` until the next row: the cap, and the machine without jobs. Processors 0 to kept-1 are on, the others
 * are off or being switched. The rows are in order of time and the first begins now or earlier.
 */
typedef struct {
    int64_t from_s;
    int64_t cap_uw;
    int64_t kept;
    int64_t idle_uw;      /* the processors that are on, idle, and the chassis and racks that are */
    int64_t off_uw;       /* the nodes that are off */
    int64_t switching_uw; /* the nodes being switched */
    int64_t bonus_uw;     /* saved by chassis and racks that are off; lost while a job is left on one of them */
} plan_row_t;

#endif
