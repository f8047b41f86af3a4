/* How long jobs are taken to run: the phases *estimate* and *correct*, and what is remembered of jobs that have ended. */
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

size_t estimates_places_alike(const scheduler_t *s)
{
    return 2 * (size_t)s->jobs.n_jobs + 1;
}

/* The history of jobs of the same user, width and request (HISTORY_SIMILAR). */
static history_t *alike(const scheduler_t *s, int32_t job)
{
    const jobs_t *jobs = &s->jobs;
    uint64_t hash = (uint64_t)jobs->request_s[job] * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
    hash = (hash ^ (uint64_t)jobs->width[job]) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (uint64_t)jobs->user[job]) * 0x9e3779b97f4a7c15u;
    size_t places = estimates_places_alike(s), place = (size_t)(hash >> 32) % places;

    while (s->first_alike[place]) {
        int32_t first = s->first_alike[place] - 1;
        if (jobs->user[first] == jobs->user[job] && jobs->width[first] == jobs->width[job] &&
            jobs->request_s[first] == jobs->request_s[job])
            return &s->alike[first];
        place = (place + 1) % places;
    }
    s->first_alike[place] = job + 1;
    return &s->alike[job];
}

static int64_t mean2(const scheduler_t *s, int32_t job)
{
    const history_t *history = &s->users[s->jobs.user[job]];
    int64_t request_s = s->jobs.request_s[job];

    if (s->composition.history == HISTORY_SIMILAR) {
        const history_t *similar = alike(s, job);
        history = similar->ended == 2 ? similar : history;
    }
    return history->ended < 2 ? request_s : least((history->last_s + history->before_last_s) / 2, request_s);
}

static int64_t requested(scheduler_t *s, int64_t now_s, int32_t job)
{
    (void)now_s;
    return s->jobs.request_s[job];
}

static int64_t clairvoyant(scheduler_t *s, int64_t now_s, int32_t job)
{
    (void)now_s;
    return s->jobs.run_s[job];
}

static int64_t mean_of_two(scheduler_t *s, int64_t now_s, int32_t job)
{
    (void)now_s;
    return mean2(s, job);
}

static int64_t learned(scheduler_t *s, int64_t now_s, int32_t job)
{
    return learner_estimate(s->learner, now_s, job);
}

static int64_t own(scheduler_t *s, int64_t now_s, int32_t job)
{
    return s->own->estimate(s->own->context, now_s, job);
}

estimate_t *const ESTIMATES[] = {
    [ESTIMATE_REQUESTED] = requested,
    [ESTIMATE_CLAIRVOYANT] = clairvoyant,
    [ESTIMATE_MEAN2] = mean_of_two,
    [ESTIMATE_LEARNED] = learned,
    [ESTIMATE_OWN] = own,
};

static void remember(history_t *history, int64_t run_s)
{
    history->before_last_s = history->last_s;
    history->last_s = run_s;
    history->ended += history->ended < 2;
}

int by_shortest(const void *a, const void *b)
{
    return is_shorter(a, b) ? -1 : is_shorter(b, a);
}

/* The jobs in `moved`, whose estimates have changed, go to their new places in `shortest`. */
static void move_shortest(scheduler_t *s, int32_t n_moved)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n_shortest; i++)
        if (s->shortest[i].estimate_s == s->estimate_s[s->shortest[i].job])
            s->shortest[kept++] = s->shortest[i];
    qsort(s->moved, (size_t)n_moved, sizeof *s->moved, by_shortest);
    for (int32_t place = s->n_shortest; n_moved > 0;) /* merged from the end, where there is room */
        if (kept > 0 && is_shorter(&s->moved[n_moved - 1], &s->shortest[kept - 1]))
            s->shortest[--place] = s->shortest[--kept];
        else
            s->shortest[--place] = s->moved[--n_moved];
}

/* A job of the user has ended: the new estimate of those that wait (FIXED_AT_START). */
static void estimate_anew(scheduler_t *s, int32_t user)
{
    int32_t n_moved = 0;
    for (int32_t i = s->head; i < s->tail; i++) {
        waiting_t *waiting = &s->queue[i];
        if (s->jobs.user[waiting->job] != user)
            continue;
        int64_t estimate_s = mean2(s, waiting->job);
        if (estimate_s == waiting->estimate_s)
            continue;
        waiting->estimate_s = s->estimate_s[waiting->job] = s->first_estimate_s[waiting->job] = estimate_s;
        s->moved[n_moved++] = *waiting;
    }
    if (n_moved && s->composition.scan == SCAN_SHORTEST)
        move_shortest(s, n_moved);
}

void estimates_submitted(scheduler_t *s, int64_t now_s, const waiting_t *waiting)
{
    arrivals_t *arrivals = s->arrivals;
    if (!arrivals)
        return;
    int32_t job = waiting->job, place = (int32_t)(arrivals->n_submitted++ % MOST_ARRIVALS);
    arrivals->place[job] = place;
    arrivals->arrival[place] = (arrival_t){
        .submit_s = now_s,
        .request_s = s->jobs.request_s[job],
        .estimate_s = waiting->estimate_s,
        .job = job,
        .width = waiting->width,
        .user = s->jobs.user[job],
    };
}

/* How long it ran, for those who look ahead. */
static void note_run_time(scheduler_t *s, int32_t job)
{
    int64_t run_s = s->jobs.run_s[job];
    if (s->shares)
        s->shares->share[s->shares->n_ended++ % MOST_SHARES] = (double)run_s / (double)s->first_estimate_s[job];
    if (!s->arrivals)
        return;
    arrival_t *arrival = &s->arrivals->arrival[s->arrivals->place[job]];
    if (arrival->job == job) /* else it came too long ago */
        arrival->run_s = run_s;
}

void estimates_learn(scheduler_t *s, int32_t job)
{
    remember(&s->users[s->jobs.user[job]], s->jobs.run_s[job]);
    if (s->composition.history == HISTORY_SIMILAR)
        remember(alike(s, job), s->jobs.run_s[job]);
    if (s->learner)
        learner_ended(s->learner, job);
    if (s->own)
        s->own->ended[s->own->n_ended++] = job;
    note_run_time(s, job);
    if (s->composition.estimate == ESTIMATE_MEAN2 && s->composition.fixed == FIXED_AT_START)
        estimate_anew(s, s->jobs.user[job]);
}

/* For how long a job that starts is planned to run. */
int64_t estimates_planned(const scheduler_t *s, int32_t job)
{
    double run_s = s->composition.shadow * (double)s->estimate_s[job];
    return run_s < (double)s->jobs.request_s[job] ? (int64_t)run_s : s->jobs.request_s[job];
}

/* Tsafrir, Etzion, Feitelson 2007, §3.3: each step replaces the one before, and the request is the limit. */
static const int64_t INCREMENTS_S[] = {60,       5 * 60,   15 * 60,   30 * 60,   3600,      2 * 3600,
                                       5 * 3600, 10 * 3600, 20 * 3600, 50 * 3600, 100 * 3600};

static int64_t to_request(const scheduler_t *s, int32_t job)
{
    return s->jobs.request_s[job];
}

static int64_t incremental(const scheduler_t *s, int32_t job)
{
    size_t corrections = (size_t)s->corrections[job];
    if (corrections < sizeof INCREMENTS_S / sizeof *INCREMENTS_S)
        return least(s->first_estimate_s[job] + INCREMENTS_S[corrections], s->jobs.request_s[job]);
    return s->jobs.request_s[job];
}

static int64_t doubling(const scheduler_t *s, int32_t job)
{
    return 2 * s->estimate_s[job];
}

static int64_t doubling_capped(const scheduler_t *s, int32_t job)
{
    return least(2 * s->estimate_s[job], s->jobs.request_s[job]);
}

int64_t correct_at_any_moment(const scheduler_t *s, int32_t job)
{
    return s->estimate_s[job] + 1;
}

correct_t *const CORRECTIONS[] = {
    [CORRECT_REQUESTED] = to_request,
    [CORRECT_INCREMENTAL] = incremental,
    [CORRECT_DOUBLING] = doubling,
    [CORRECT_DOUBLING_CAPPED] = doubling_capped,
};
