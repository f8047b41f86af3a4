/*
 * A closed loop: submissions that follow from the schedule (cluster_agent/replay/closed_loop.py describes them).
 *
 * The scheduler knows jobs by the order in which they come, which becomes known only here. So a job's columns are
 * copied from its row in the log to its place in the scheduler's tables when it is submitted, and not before.
 */
#ifndef CLUSTER_ANSWERING_H
#define CLUSTER_ANSWERING_H

#include <stdint.h>

#include "memory.h"

/* A column of `size` bytes per row: in the order of the log, and in the order of submission. */
typedef struct {
    const void *log;
    void *table;
    int32_t size;
} moved_t;

/* The columns belong to the caller. */
typedef struct {
    int32_t n_jobs, n_users;
    int32_t queued;         /* each job comes a second after fewer than so many wait; 0: think times */
    const int64_t *submit_s; /* in the log, ascending */
    const int32_t *user;
    const int64_t *gap_s;   /* the job comes so long after the one before it of the same user, */
    const int64_t *think_s; /* or, if this is not -1, after the end of all earlier ones of the same user */
    const int32_t *preceding; /* NULL; or the job comes think_s after the end of this row alone; -1: as in the log */
    int32_t n_moved;
    const moved_t *moved;
    int64_t *submitted_s;   /* when the i-th job came: a column of the table */
} answers_t;

typedef struct answering answering_t;

/* NULL: no memory. */
answering_t *answering_new(struct memory *memory, const answers_t *answers);

/* When the next job comes, as far as that is known; INT64_MAX: never. */
int64_t answering_next(answering_t *answering);

/* It comes now. */
void answering_submit(answering_t *answering, int64_t now_s);

/* A job that came has started; has ended, for good; or has been killed and waits again. */
void answering_started(answering_t *answering, int64_t now_s);
void answering_ended(answering_t *answering, int64_t now_s, int32_t job);
void answering_requeued(answering_t *answering);

/* The replay is over: jobs that never came, since the jobs before them did not start, fill the end of the table. */
void answering_finish(answering_t *answering, int64_t now_s);

#endif
