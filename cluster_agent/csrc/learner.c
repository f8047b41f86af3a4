#include "learner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

/* Not in the thesis; from the published configurations of its simulator. */
static const double ETA = 5000.0;
static const double LAMBDA = 4e9;

static const double DAY_S = 86400.0, WEEK_S = 7 * 86400.0, TWO_PI = 6.283185307179586;

enum { MOST_FEATURES = 20, MOST_TERMS = 231, HISTORY = 3, NOBODY = -1 };

/* What is known of a user. A job's number is that of its last end; `running` begins a list through the jobs. */
typedef struct {
    int32_t last[HISTORY]; /* jobs, the last to end first; NOBODY: fewer have ended */
    int32_t running;
    int64_t n_ended, last_end_s;
    double run_sum_s, width_sum;
} user_t;

/* A job's place in the list of its user's running jobs. */
typedef struct {
    int32_t before, after;
} place_t;

struct learner {
    learning_t learning;
    jobs_t jobs;
    int32_t n_features, n_terms;
    user_t *users;

    /* per job */
    int64_t *submit_s, *start_s;
    place_t *places;
    double (*features)[MOST_FEATURES]; /* as they were at the submission */

    /* the model, per term: weight, largest value so far, sum of squared slopes (Ross et al. 2013) */
    double weight[MOST_TERMS], scale[MOST_TERMS], slopes[MOST_TERMS];
    double norm; /* the sum over all fits of the terms' squares in units of their scales */
    int64_t fits;
};

/****************************************************************
 * Making and unmaking
 ****************************************************************/

learner_t *learner_new(memory_t *memory, const learning_t *learning, const jobs_t *jobs)
{
    learner_t *l = column(memory, 1, sizeof *l);
    if (!l)
        return NULL;
    l->learning = *learning;
    l->jobs = *jobs;
    l->n_features = learning->model == MODEL_SC15 ? 18 : 20;
    l->n_terms = learning->model == MODEL_SC15 ? 157 : 231;
    l->users = column(memory, jobs->n_users, sizeof *l->users);
    l->submit_s = column(memory, jobs->n_jobs, sizeof *l->submit_s);
    l->start_s = column(memory, jobs->n_jobs, sizeof *l->start_s);
    l->places = column(memory, jobs->n_jobs, sizeof *l->places);
    l->features = column(memory, jobs->n_jobs, sizeof *l->features);
    if (memory->is_short)
        return NULL;
    for (int32_t i = 0; i < jobs->n_users; i++)
        l->users[i] = (user_t){.last = {NOBODY, NOBODY, NOBODY}, .running = NOBODY};
    return l;
}

/****************************************************************
 * Features
 ****************************************************************/

/* The user's running jobs, without those started in this very second. */
typedef struct {
    double count, width, elapsed_s, longest_s;
} present_t;

static present_t present(const learner_t *l, const user_t *user, int64_t now_s)
{
    present_t now = {0};
    for (int32_t job = user->running; job != NOBODY; job = l->places[job].after) {
        if (l->start_s[job] == now_s)
            continue;
        double elapsed_s = (double)(now_s - l->start_s[job]);
        now.count += 1;
        now.width += l->jobs.width[job];
        now.elapsed_s += elapsed_s;
        now.longest_s = elapsed_s > now.longest_s ? elapsed_s : now.longest_s;
    }
    return now;
}

static double mean(double sum, int64_t count)
{
    return count ? sum / (double)count : 0.0;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0.0;
}

/* The 20 features of the thesis, in its order. */
static void features_of_the_thesis(const learner_t *l, int64_t now_s, int32_t job, double *x)
{
    const user_t *user = &l->users[l->jobs.user[job]];
    present_t running = present(l, user, now_s);
    double width = l->jobs.width[job], mean_width = mean(user->width_sum, user->n_ended), last_s[HISTORY];
    double day = TWO_PI * fmod((double)now_s, DAY_S) / DAY_S, week = TWO_PI * fmod((double)now_s, WEEK_S) / WEEK_S;

    for (int i = 0; i < HISTORY; i++)
        last_s[i] = user->last[i] == NOBODY ? 0.0 : (double)l->jobs.run_s[user->last[i]];
    int64_t ended = user->n_ended;
    x[0] = (double)l->jobs.request_s[job];
    x[1] = last_s[0];
    x[2] = last_s[1];
    x[3] = last_s[2];
    x[4] = mean(last_s[0] + last_s[1], ended < 2 ? ended : 2);
    x[5] = mean(last_s[0] + last_s[1] + last_s[2], ended < 3 ? ended : 3);
    x[6] = mean(user->run_sum_s, ended);
    x[7] = width;
    x[8] = mean_width;
    x[9] = ratio(width, mean_width);
    x[10] = ratio(running.width, running.count);
    x[11] = running.count;
    x[12] = running.longest_s;
    x[13] = running.elapsed_s;
    x[14] = running.width;
    x[15] = ended ? (double)(now_s - user->last_end_s) : 0.0;
    x[16] = cos(day);
    x[17] = sin(day);
    x[18] = cos(week);
    x[19] = sin(week);
}

/*
 * The 18 features of the campaign's simulator. A past run time is there the longer of that job's run time and the time
 * since its submission, at most the present job's request; without a past job it is that request.
 */
static void features_of_sc15(const learner_t *l, int64_t now_s, int32_t job, double *x)
{
    const user_t *user = &l->users[l->jobs.user[job]];
    present_t running = present(l, user, now_s);
    double request_s = (double)l->jobs.request_s[job], width = l->jobs.width[job], last_s[HISTORY];
    double day = TWO_PI * fmod((double)now_s, DAY_S) / DAY_S, week = TWO_PI * fmod((double)now_s, WEEK_S) / WEEK_S;

    for (int i = 0; i < HISTORY; i++) {
        int32_t past = user->last[i];
        last_s[i] = request_s;
        if (past != NOBODY) {
            int64_t age_s = now_s - l->submit_s[past], run_s = l->jobs.run_s[past];
            last_s[i] = fmin(request_s, (double)(run_s > age_s ? run_s : age_s));
        }
    }
    double mean2_s = user->n_ended == 1 ? last_s[0] : 0.5 * (last_s[0] + last_s[1]);
    x[0] = last_s[0];
    x[1] = last_s[1];
    x[2] = last_s[2];
    x[3] = request_s;
    x[4] = mean2_s;
    x[5] = user->n_ended < 3 ? mean2_s : 0.33 * (last_s[0] + last_s[1] + last_s[2]);
    x[6] = mean(user->run_sum_s, user->n_ended);
    x[7] = user->last_end_s ? (double)(now_s - user->last_end_s) : 0.0;
    x[8] = ratio(width, mean(user->width_sum, user->n_ended));
    x[9] = running.width;
    x[10] = running.elapsed_s;
    x[11] = running.count;
    x[12] = running.longest_s;
    x[13] = cos(day);
    x[14] = sin(day);
    x[15] = cos(week);
    x[16] = sin(week);
    x[17] = width;
}

/* 1, the features, their products in pairs, their squares. The simulator forms no pair with its last two features. */
static void terms(const learner_t *l, const double *x, double *term)
{
    int32_t n = l->n_features, paired = l->learning.model == MODEL_SC15 ? n - 2 : n, count = 0;

    term[count++] = 1.0;
    for (int32_t i = 0; i < n; i++)
        term[count++] = x[i];
    for (int32_t i = 0; i < paired; i++)
        for (int32_t j = i + 1; j < paired; j++)
            term[count++] = x[i] * x[j];
    for (int32_t i = 0; i < n; i++)
        term[count++] = x[i] * x[i];
}

/****************************************************************
 * The model
 ****************************************************************/

static double value(const learner_t *l, const double *term)
{
    double sum = 0.0;
    for (int32_t i = 0; i < l->n_terms; i++)
        sum += l->weight[i] * term[i];
    return sum;
}

/* The weight of an error: gamma of the thesis. */
static double importance(const learner_t *l, int32_t job)
{
    double q = l->jobs.width[job], p = (double)l->jobs.run_s[job];
    switch (l->learning.weight) {
    case WEIGHT_SHORT_WIDE:
        return 5.0 + log(q / p);
    case WEIGHT_LONG_NARROW:
        return 5.0 + log(p / q);
    case WEIGHT_SMALL:
        return 11.0 + log(1.0 / (p * q));
    case WEIGHT_LARGE:
        return 1.0 + log(q * p);
    default:
        return 1.0;
    }
}

/* The slope of the loss in the weight of a term, for an error that counts for `gamma`. */
static double slope(const learning_t *learning, double gamma, double error_s, double term)
{
    int32_t loss = error_s > 0.0 ? learning->over : learning->under;
    if (loss == LOSS_SQUARED)
        return gamma * (2.0 * term * error_s);
    return error_s > 0.0 ? gamma * term : error_s < 0.0 ? -gamma * term : 0.0;
}

/* Normalised adaptive gradient descent: one step (Ross, Mineiro, Langford, Normalized online learning, UAI 2013). */
static void fit(learner_t *l, int32_t job)
{
    double term[MOST_TERMS];
    terms(l, l->features[job], term);

    double norm = 0.0;
    for (int32_t i = 0; i < l->n_terms; i++) {
        double size = fabs(term[i]);
        if (size > l->scale[i]) {
            l->weight[i] *= l->scale[i] / size;
            l->scale[i] = size;
        }
        if (l->scale[i] > 0.0)
            norm += term[i] * term[i] / (l->scale[i] * l->scale[i]);
    }
    l->norm += norm;
    l->fits++;

    /* the campaign's simulator counts every fit but the first twice */
    double count = (double)(l->learning.model == MODEL_SC15 ? 2 * l->fits - 1 : l->fits);
    double gamma = importance(l, job), error_s = value(l, term) - (double)l->jobs.run_s[job];
    for (int32_t i = 0; i < l->n_terms; i++) {
        double g = slope(&l->learning, gamma, error_s, term[i]) + LAMBDA * l->weight[i];
        l->slopes[i] += g * g;
        if (l->slopes[i] > 0.0)
            l->weight[i] -= ETA * g / (sqrt(l->norm * l->slopes[i] / count) * l->scale[i]);
    }
}

/****************************************************************
 * What happens
 ****************************************************************/

int64_t learner_estimate(learner_t *l, int64_t now_s, int32_t job)
{
    double term[MOST_TERMS];

    l->submit_s[job] = now_s;
    if (l->learning.model == MODEL_SC15)
        features_of_sc15(l, now_s, job, l->features[job]);
    else
        features_of_the_thesis(l, now_s, job, l->features[job]);
    terms(l, l->features[job], term);
    double estimate_s = fabs(value(l, term)), request_s = (double)l->jobs.request_s[job];
    if (!(estimate_s < request_s)) /* so that no cast overflows, and a model that diverged falls back to the request */
        return l->jobs.request_s[job];
    return estimate_s < 1.0 ? 1 : (int64_t)estimate_s;
}

void learner_started(learner_t *l, int64_t now_s, int32_t job)
{
    user_t *user = &l->users[l->jobs.user[job]];

    l->start_s[job] = now_s;
    l->places[job] = (place_t){.before = NOBODY, .after = user->running};
    if (user->running != NOBODY)
        l->places[user->running].before = job;
    user->running = job;
}

void learner_killed(learner_t *l, int32_t job)
{
    user_t *user = &l->users[l->jobs.user[job]];
    place_t place = l->places[job];

    if (place.before != NOBODY)
        l->places[place.before].after = place.after;
    else
        user->running = place.after;
    if (place.after != NOBODY)
        l->places[place.after].before = place.before;
}

void learner_ended(learner_t *l, int32_t job)
{
    user_t *user = &l->users[l->jobs.user[job]];

    learner_killed(l, job);
    user->last[2] = user->last[1];
    user->last[1] = user->last[0];
    user->last[0] = job;
    user->n_ended++;
    user->run_sum_s += (double)l->jobs.run_s[job];
    user->width_sum += l->jobs.width[job];
    user->last_end_s = l->start_s[job] + l->jobs.run_s[job];
    fit(l, job);
}
