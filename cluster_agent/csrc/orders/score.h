/*
 * An order by a score: a formula of what is known of a waiting job, as a program for a stack of numbers. The lowest score
 * is served first, equal ones in order of submission; a score that is not a number comes last.
 *
 * A formula without the job's wait is worked out once, when the job is submitted; each pass then only puts new jobs in
 * their places. With it all waiting jobs are worked out in each pass that could start somebody, in blocks of numbers.
 */
#ifndef CLUSTER_SCORE_H
#define CLUSTER_SCORE_H

#include <stdint.h>

/* What a step puts on the stack, seconds and processors, */
#define SCORE_NUMBER 0
#define SCORE_WAIT 1
#define SCORE_ESTIMATE 2
#define SCORE_REQUEST 3
#define SCORE_WIDTH 4
#define SCORE_SUBMIT 5 /* since the first submission */
/* and what it puts there in place of the topmost, */
#define SCORE_NEGATE 6
#define SCORE_LOG 7
#define SCORE_LOG2 8
#define SCORE_LOG10 9
#define SCORE_SQRT 10
#define SCORE_SQUARE 11
#define SCORE_CUBE 12
/* or of the two topmost */
#define SCORE_ADD 13
#define SCORE_SUBTRACT 14
#define SCORE_MULTIPLY 15
#define SCORE_DIVIDE 16
#define SCORE_POWER 17
#define SCORE_LEAST 18
#define SCORE_GREATEST 19

/* The most numbers on the stack. */
#define SCORE_DEPTH 16

typedef struct {
    int32_t op;
    double number; /* of SCORE_NUMBER */
} score_step_t;

/* The steps belong to the caller. */
typedef struct {
    int32_t n_steps;
    int32_t follows_time; /* has SCORE_WAIT */
    const score_step_t *steps;
} score_t;

#endif
