#include "score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

/* Jobs that are worked out together: so many that a step costs little by itself, and their numbers stay near. */
enum { BLOCK = 64 };

struct scores {
    score_t model;
    score_step_t *steps;
    int64_t first_s; /* the first submission */
    int32_t has_begun;
    double *rank;    /* per job, minus its score; only where time changes none */
};

int32_t scheduler_set_score(scheduler_t *s, const score_t *model)
{
    scores_t *scores = s->scores = column(&s->memory, 1, sizeof *scores);
    if (!scores)
        return -1;
    scores->model = *model;
    /* with FIXED_AT_START estimates of waiting jobs change */
    scores->model.follows_time |= s->composition.fixed == FIXED_AT_START;
    scores->steps = column(&s->memory, model->n_steps, sizeof *scores->steps);
    scores->rank = column(&s->memory, scores->model.follows_time ? 0 : s->jobs.n_jobs, sizeof *scores->rank);
    if (!s->ranking.ranked && ranking_new(s) < 0)
        return -1;
    memcpy(scores->steps, model->steps, (size_t)model->n_steps * sizeof *scores->steps);
    return 0;
}

/****************************************************************
 * The formula
 ****************************************************************/

static void push(const scheduler_t *s, int64_t now_s, const score_step_t *step, const waiting_t *waiting, int32_t count,
                 double *top)
{
    switch (step->op) {
    case SCORE_NUMBER:
        for (int32_t i = 0; i < count; i++)
            top[i] = step->number;
        break;
    case SCORE_WAIT:
        for (int32_t i = 0; i < count; i++)
            top[i] = (double)(now_s - s->submit_s[waiting[i].job]);
        break;
    case SCORE_ESTIMATE:
        for (int32_t i = 0; i < count; i++)
            top[i] = (double)waiting[i].estimate_s;
        break;
    case SCORE_REQUEST:
        for (int32_t i = 0; i < count; i++)
            top[i] = (double)s->jobs.request_s[waiting[i].job];
        break;
    case SCORE_WIDTH:
        for (int32_t i = 0; i < count; i++)
            top[i] = (double)waiting[i].width;
        break;
    default: /* SCORE_SUBMIT */
        for (int32_t i = 0; i < count; i++)
            top[i] = (double)(s->submit_s[waiting[i].job] - s->scores->first_s);
    }
}

static void change(int32_t op, int32_t count, double *top)
{
    switch (op) {
    case SCORE_NEGATE:
        for (int32_t i = 0; i < count; i++)
            top[i] = -top[i];
        break;
    case SCORE_LOG:
        for (int32_t i = 0; i < count; i++)
            top[i] = log(top[i]);
        break;
    case SCORE_LOG2:
        for (int32_t i = 0; i < count; i++)
            top[i] = log2(top[i]);
        break;
    case SCORE_LOG10:
        for (int32_t i = 0; i < count; i++)
            top[i] = log10(top[i]);
        break;
    case SCORE_SQRT:
        for (int32_t i = 0; i < count; i++)
            top[i] = sqrt(top[i]);
        break;
    case SCORE_SQUARE:
        for (int32_t i = 0; i < count; i++)
            top[i] *= top[i];
        break;
    default: /* SCORE_CUBE */
        for (int32_t i = 0; i < count; i++)
            top[i] *= top[i] * top[i];
    }
}

static void join(int32_t op, int32_t count, double *under, const double *top)
{
    switch (op) {
    case SCORE_ADD:
        for (int32_t i = 0; i < count; i++)
            under[i] += top[i];
        break;
    case SCORE_SUBTRACT:
        for (int32_t i = 0; i < count; i++)
            under[i] -= top[i];
        break;
    case SCORE_MULTIPLY:
        for (int32_t i = 0; i < count; i++)
            under[i] *= top[i];
        break;
    case SCORE_DIVIDE:
        for (int32_t i = 0; i < count; i++)
            under[i] /= top[i];
        break;
    case SCORE_POWER:
        for (int32_t i = 0; i < count; i++)
            under[i] = pow(under[i], top[i]);
        break;
    case SCORE_LEAST:
        for (int32_t i = 0; i < count; i++)
            under[i] = fmin(under[i], top[i]);
        break;
    default: /* SCORE_GREATEST */
        for (int32_t i = 0; i < count; i++)
            under[i] = fmax(under[i], top[i]);
    }
}

/* The scores of at most BLOCK jobs that wait one after the other. */
static void work_out(const scheduler_t *s, int64_t now_s, const waiting_t *waiting, int32_t count, double *scores)
{
    double stack[SCORE_DEPTH][BLOCK];
    int32_t depth = 0;

    for (int32_t step = 0; step < s->scores->model.n_steps; step++) {
        const score_step_t *one = &s->scores->steps[step];
        if (one->op < SCORE_NEGATE)
            push(s, now_s, one, waiting, count, stack[depth++]);
        else if (one->op < SCORE_ADD)
            change(one->op, count, stack[depth - 1]);
        else {
            depth--;
            join(one->op, count, stack[depth - 1], stack[depth]);
        }
    }
    memcpy(scores, stack[0], (size_t)count * sizeof *scores);
}

/****************************************************************
 * The order
 ****************************************************************/

static inline double rank_of_score(double score)
{
    return isnan(score) ? -INFINITY : -score;
}

void score_submitted(scheduler_t *s, int64_t now_s, const waiting_t *waiting)
{
    scores_t *scores = s->scores;
    double score;

    if (!scores->has_begun)
        scores->first_s = now_s;
    scores->has_begun = 1;
    if (scores->model.follows_time)
        return;
    work_out(s, now_s, waiting, 1, &score);
    scores->rank[waiting->job] = rank_of_score(score);
}

static double known_rank(const scheduler_t *s, int64_t now_s, const waiting_t *waiting)
{
    (void)now_s;
    return s->scores->rank[waiting->job];
}

void score_order(scheduler_t *s, int64_t now_s)
{
    const scores_t *scores = s->scores;
    ranked_t *ranked = s->ranking.ranked;
    const waiting_t *queue = s->queue + s->head;
    int32_t count = s->tail - s->head;

    if (!scores->model.follows_time && s->ranking.n_ordered > 0) {
        ranking_new_ones(s, now_s, known_rank);
        return;
    }
    for (int32_t from = 0; from < count; from += BLOCK) {
        double block[BLOCK];
        int32_t size = count - from < BLOCK ? count - from : BLOCK;
        if (scores->model.follows_time)
            work_out(s, now_s, queue + from, size, block);
        for (int32_t i = 0; i < size; i++) {
            double rank = scores->model.follows_time ? rank_of_score(block[i]) : scores->rank[queue[from + i].job];
            ranked[from + i] = (ranked_t){.rank = rank, .waiting = queue[from + i]};
        }
    }
    ranking_all(s);
}

void score_all(scheduler_t *s, int64_t first_s)
{
    scores_t *scores = s->scores;
    scores->first_s = first_s;
    scores->has_begun = 1;
    for (int32_t from = s->head; !scores->model.follows_time && from < s->tail; from += BLOCK) {
        double block[BLOCK];
        int32_t size = s->tail - from < BLOCK ? s->tail - from : BLOCK;
        work_out(s, first_s, s->queue + from, size, block); /* it goes by no time */
        for (int32_t i = 0; i < size; i++)
            scores->rank[s->queue[from + i].job] = rank_of_score(block[i]);
    }
}

void scheduler_order(scheduler_t *s, int64_t now_s)
{
    if (!s->scores)
        return;
    score_order(s, now_s);
    s->ranking.n_ordered = s->composition.guard > 0.0 ? 0 : s->tail - s->head;
}
