/*
 * Run times learned online: a linear model of degree-2 features of a job, fitted to each job as it ends (Gaussier,
 * Glesser, Reis, Trystram, SC'15; Glesser, PhD thesis, 2016, ch. 7). Internal to the scheduler.
 *
 * tests/oracle/learner.py is the same in NumPy and defines the features and losses; a test checks that both
 * are equal to the bit. All sums are taken one by one in the order of their index.
 */
#ifndef CLUSTER_LEARNER_H
#define CLUSTER_LEARNER_H

#include "memory.h"
#include "scheduler.h"

typedef struct learner learner_t;

/* NULL: no memory. */
learner_t *learner_new(memory_t *memory, const learning_t *learning, const jobs_t *jobs);

/* The job is submitted: its run time by the model, 1 s to its request. */
int64_t learner_estimate(learner_t *learner, int64_t now_s, int32_t job);

void learner_started(learner_t *learner, int64_t now_s, int32_t job);

/* The running job has ended: the model is fitted to it, and the history of its user has one more. */
void learner_ended(learner_t *learner, int32_t job);

/* The job runs no more, and nothing is learned from it. */
void learner_killed(learner_t *learner, int32_t job);

#endif
