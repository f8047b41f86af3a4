/*
 * The replay of a job log: the event loop with a simulated clock and machine around the scheduler.
 *
 * It does what cluster_agent/scheduler/loop.py does with the clock and machine of cluster_agent/replay/simulated.py,
 * without a call into Python per event.
 */
#ifndef CLUSTER_REPLAY_H
#define CLUSTER_REPLAY_H

#include "placement.h"
#include "scheduler.h"

/* Which events lead to one pass together. */
#define BATCH_INSTANT 0 /* all of one instant: ends, then overruns, then submissions */
#define BATCH_EVENT 1   /* each by itself, at one instant overruns, then submissions, then ends */

#define REPLAY_ENDED 0
#define REPLAY_PAUSED 1      /* as many jobs have ended as were asked for */
#define REPLAY_PASS_DUE 2    /* the caller orders the queue and calls again */
#define REPLAY_NO_MEMORY (-1)
#define REPLAY_OVERFULL (-2) /* started jobs need more processors than there are: a defect of the scheduler */

typedef struct replay replay_t;

/* submit_s is in ascending order of job number. NULL: no memory. */
replay_t *replay_new(const composition_t *composition, const jobs_t *jobs, const int64_t *submit_s, int32_t batch,
                     int32_t pauses_before_passes);
void replay_free(replay_t *replay);

/* Runs until `until_ended` jobs have ended in all, or a pass is due, or nothing is left to happen. REPLAY_*. */
int32_t replay_run(replay_t *replay, int32_t until_ended);

int64_t replay_now(const replay_t *replay);
int32_t replay_ended(const replay_t *replay);
int64_t replay_passes(const replay_t *replay);
scheduler_t *replay_scheduler(replay_t *replay);

/* Columns of n_jobs; start_s is -1 for a job that never started. */
const int64_t *replay_starts(const replay_t *replay);
/* The processors of job j are the intervals interval_first[j] to interval_first[j] + interval_count[j] - 1. */
const interval_t *replay_intervals(const replay_t *replay);
const int64_t *replay_interval_first(const replay_t *replay);
const int32_t *replay_interval_count(const replay_t *replay);

#endif
