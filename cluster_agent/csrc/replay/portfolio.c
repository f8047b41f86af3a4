#include "replay/portfolio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay_inside.h"
#include "scheduler_inside.h"

/* Bounded slowdowns count from this run time on (Feitelson et al., JSSPP 1997). */
enum { SHORTEST_S = 10 };

/* Ours: with fewer jobs ended than this, run times are as estimated. */
enum { LEAST_ENDED = 16 };

struct portfolio {
    portfolio_model_t model;
    scores_t **scores; /* of each member; NULL: it has none */
    int32_t in_force;
    int64_t passes;    /* in which there was a choice, after a change of the scheduler's */
    int64_t changes;   /* the scheduler's, at the pass before */
    int64_t first_s;   /* the first pass, and so the first submission */
    int32_t has_begun, is_other;
    look_t *looks;
    double *costs;
    int64_t n_looks, room;
    /* at a look: */
    waiting_t *as_is, *as_submitted; /* the queue as it is, and in the order of submission */
    double *sums;                    /* per member */
    /* Those that wait and run, in their rows, and behind all rows, from s->jobs.n_jobs on, those that come. */
    jobs_t jobs;
    int64_t *submit_s, *run_s, *request_s, *estimate_s;
    int32_t *width, *user;
    int32_t *place; /* of each that comes, in arrivals_t */
    own_t own;      /* the estimates of those that come */
};

/****************************************************************
 * How long jobs run
 ****************************************************************/

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): the number after this one. */
static uint64_t mixed(uint64_t number)
{
    number += 0x9e3779b97f4a7c15u;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
    return number ^ (number >> 31);
}

/* The run time of a job that has run for `done_s`, above that; 0: of those that ended, none ran so far beyond its
 * estimate. Equal for all members. */
static int64_t drawn_s(const scheduler_t *s, int32_t draw, int32_t job, int64_t done_s)
{
    const portfolio_t *p = s->portfolio;
    const shares_t *shares = s->shares;
    int32_t known = (int32_t)least(shares->n_ended, MOST_SHARES), longer = 0;
    double estimate_s = (double)s->first_estimate_s[job], least_share = (double)(done_s + 1) / estimate_s;
    for (int32_t i = 0; i < known; i++)
        longer += shares->share[i] >= least_share;
    int is_away = s->first_estimate_s[job] > s->jobs.request_s[job]; /* a node without a job, in a live partition */
    if (known < LEAST_ENDED || !longer || is_away)
        return 0;
    uint64_t number = mixed(mixed(mixed(p->model.seed ^ (uint64_t)p->n_looks) ^ (uint64_t)draw) ^ (uint64_t)job);
    int32_t chosen = (int32_t)(number % (uint64_t)longer), i = 0;
    for (; shares->share[i] < least_share || chosen--; i++)
        ;
    int64_t run_s = (int64_t)ceil(shares->share[i] * estimate_s);
    return greatest(least(run_s, s->jobs.request_s[job]), done_s + 1);
}

static void draw_run_times(const scheduler_t *s, int64_t now_s, int32_t draw)
{
    portfolio_t *p = s->portfolio;
    int64_t *run_s = p->run_s;
    for (int32_t i = s->head; i < s->tail; i++) {
        int32_t job = s->queue[i].job;
        int64_t longer_s = s->shares ? drawn_s(s, draw, job, 0) : 0;
        run_s[job] = longer_s ? longer_s : s->queue[i].estimate_s;
    }
    for (int32_t i = 0; i < s->n_running; i++) {
        int32_t job = s->running[i].job;
        int64_t done_s = now_s - scheduler_begins(s, job), estimate_s = s->first_estimate_s[job];
        int64_t longer_s = s->shares ? drawn_s(s, draw, job, greatest(done_s, 0)) : 0;
        /* who has outlived its first estimate runs for as long as is expected by now */
        run_s[job] = longer_s ? longer_s : estimate_s > done_s ? estimate_s : s->estimate_s[job];
    }
    for (int32_t row = s->jobs.n_jobs; row < p->jobs.n_jobs; row++) { /* who has not ended runs for as long as here */
        const arrival_t *arrival = &s->arrivals->arrival[p->place[row]];
        run_s[row] = arrival->run_s ? arrival->run_s : greatest(run_s[arrival->job], 1);
    }
}

/****************************************************************
 * Who waits, runs and comes
 ****************************************************************/

/* What is known of a job that waits or runs. */
static void know(const scheduler_t *s, int32_t job)
{
    portfolio_t *p = s->portfolio;
    p->submit_s[job] = s->submit_s[job];
    p->request_s[job] = s->jobs.request_s[job];
    p->width[job] = s->jobs.width[job];
    p->user[job] = s->jobs.user[job];
}

/* The jobs of the last hours come again, in the same order and at the same intervals. */
static void come_again(const scheduler_t *s, int64_t now_s)
{
    portfolio_t *p = s->portfolio;
    const arrivals_t *arrivals = s->arrivals;
    int64_t later_s = p->model.length_s, newest = arrivals->n_submitted, next = greatest(newest - MOST_ARRIVALS, 0);
    for (; next < newest; next++) {
        const arrival_t *arrival = &arrivals->arrival[next % MOST_ARRIVALS];
        if (arrival->submit_s + later_s <= now_s)
            continue;
        int32_t row = p->jobs.n_jobs++;
        p->place[row] = (int32_t)(next % MOST_ARRIVALS);
        p->submit_s[row] = arrival->submit_s + later_s;
        p->request_s[row] = arrival->request_s;
        p->estimate_s[row] = arrival->estimate_s;
        p->width[row] = arrival->width;
        p->user[row] = arrival->user;
    }
}

static void know_all(const scheduler_t *s, int64_t now_s)
{
    portfolio_t *p = s->portfolio;
    p->jobs.n_jobs = s->jobs.n_jobs;
    for (int32_t i = s->head; i < s->tail; i++)
        know(s, s->queue[i].job);
    for (int32_t i = 0; i < s->n_running; i++)
        know(s, s->running[i].job);
    if (s->arrivals)
        come_again(s, now_s);
}

static int64_t estimate_of(void *context, int64_t now_s, int32_t job)
{
    const portfolio_t *p = context;
    (void)now_s;
    return p->estimate_s[job];
}

/****************************************************************
 * A future
 ****************************************************************/

/* The queue is in the order of submission, and nobody has a place. */
static void in_submission_order(scheduler_t *s, const waiting_t *as_submitted)
{
    int32_t count = s->tail - s->head;
    memcpy(s->queue + s->head, as_submitted, (size_t)count * sizeof *s->queue);
    for (int32_t i = 0; i < count; i++)
        s->is_reserved[as_submitted[i].job] = 0;
    s->is_reordered = 0;
    s->ranking.n_ordered = 0;
    scheduler_fill_stretches(s, s->head, s->tail);
}

/* This moment under a member, without estimates that change. NULL: no memory. */
static replay_t *future(const scheduler_t *from, int64_t now_s, int32_t member)
{
    portfolio_t *p = from->portfolio;
    composition_t composition = p->model.members[member].composition;
    composition.estimate = ESTIMATE_OWN;
    composition.history = HISTORY_USER;
    composition.fixed = FIXED_AT_SUBMISSION;
    replay_t *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    jobs_t all = p->jobs;
    all.n_jobs = from->jobs.n_jobs + (from->arrivals ? MOST_ARRIVALS : 0); /* columns of one size are used again */
    r->jobs = p->jobs;
    r->submit_s = p->submit_s;
    r->processors = composition.processors;
    r->is_stepped = r->is_blind = 1; /* processors need no numbers */
    r->wake_s = INT64_MAX;
    r->pause_s = now_s + p->model.length_s;
    r->now_s = now_s;
    r->submitted = from->jobs.n_jobs;
    r->is_pass_due = 1;
    r->scheduler = scheduler_copy(from, &all, &composition, p->model.members[member].score, p->first_s, 1);
    memory_t *m = &r->memory;
    m->is_unwritten = 1;
    if (r->scheduler)
        memory_share(m, scheduler_memory(r->scheduler));
    r->end_s = column(m, all.n_jobs, sizeof *r->end_s);
    r->ended_jobs = column(m, all.n_jobs, sizeof *r->ended_jobs);
    r->starts = column(m, all.n_jobs, sizeof *r->starts);
    r->start_s = column(m, all.n_jobs, sizeof *r->start_s);
    if (!r->scheduler || events_init(&r->ends, m, all.n_jobs) < 0 || events_init(&r->overruns, m, all.n_jobs) < 0) {
        replay_free(r);
        return NULL;
    }
    r->scheduler->jobs.run_s = p->run_s;
    r->scheduler->own = &p->own;
    p->own.n_ended = 0;
    if (member != p->in_force)
        in_submission_order(r->scheduler, p->as_submitted);
    for (int32_t i = 0; i < from->n_running; i++)
        replay_foresee_end(r, from->running[i].job);
    return r;
}

/* Until all have started, or time is over. 0, or -1: no memory. */
static int run_future(replay_t *r)
{
    int32_t status, until;
    do {
        until = r->ended + 1;
        status = replay_run(r, until);
    } while (status == REPLAY_PAUSED && r->ended >= until &&
             (scheduler_waiting(r->scheduler) || r->submitted < r->jobs.n_jobs));
    return status < 0 ? -1 : 0;
}

/* The sum with what this job costs, or the most. */
static double with(double sum, const portfolio_t *p, const replay_t *r, int32_t job)
{
    int64_t start_s = r->scheduler->has_started[job] ? r->start_s[job] : r->pause_s;
    double wait_s = (double)(start_s - p->submit_s[job]), run_s = (double)p->run_s[job];
    if (p->model.objective == OBJECTIVE_SLOWDOWN)
        return sum + fmax((wait_s + run_s) / fmax(run_s, SHORTEST_S), 1.0);
    return p->model.objective == OBJECTIVE_WAIT ? sum + wait_s : fmax(sum, wait_s);
}

/* What the future costs, over the jobs that waited and that came. */
static double cost(const scheduler_t *s, const replay_t *r)
{
    const portfolio_t *p = s->portfolio;
    double sum = 0.0;
    for (int32_t i = 0; i < s->n_waiting; i++)
        sum = with(sum, p, r, p->as_submitted[i].job);
    for (int32_t row = s->jobs.n_jobs; row < r->submitted; row++)
        sum = with(sum, p, r, row);
    double jobs = (double)(s->n_waiting + r->submitted - s->jobs.n_jobs);
    return p->model.objective == OBJECTIVE_LONGEST ? sum : sum / jobs;
}

/****************************************************************
 * A look
 ****************************************************************/

/* Finds the order of submission of the waiting jobs. */
static void order_by_submission(scheduler_t *s)
{
    portfolio_t *p = s->portfolio;
    int32_t count = s->tail - s->head;
    size_t bytes = (size_t)count * sizeof *s->queue;
    memcpy(p->as_is, s->queue + s->head, bytes);
    for (int32_t i = 0; i < count; i++)
        s->ranking.ranked[i] = (ranked_t){.rank = -(double)s->submit_s[p->as_is[i].job], .waiting = p->as_is[i]};
    ranking_all(s);
    memcpy(p->as_submitted, s->queue + s->head, bytes);
    memcpy(s->queue + s->head, p->as_is, bytes);
}

/* The member that costs least; -1: no memory. `costs` gets the means. */
static int32_t look(scheduler_t *s, int64_t now_s, double *costs)
{
    portfolio_t *p = s->portfolio;
    int32_t draws = p->model.draws > 0 ? p->model.draws : 1, best = p->in_force;

    for (int32_t member = 0; member < p->model.n_members; member++)
        p->sums[member] = 0.0;
    know_all(s, now_s);
    for (int32_t draw = 0; draw < draws; draw++) {
        draw_run_times(s, now_s, draw);
        for (int32_t member = 0; member < p->model.n_members; member++) {
            replay_t *r = future(s, now_s, member);
            int status = r ? run_future(r) : -1;
            p->sums[member] += status < 0 ? 0.0 : cost(s, r);
            replay_free(r);
            if (status < 0)
                return -1;
        }
    }
    for (int32_t member = 0; member < p->model.n_members; member++) {
        costs[member] = p->sums[member] / draws;
        best = p->sums[member] < p->sums[best] ? member : best;
    }
    return best;
}

/* The member that acted from here on in the replay that is repeated. */
static int32_t repeated(portfolio_t *p, int64_t now_s, double *costs)
{
    for (int32_t member = 0; member < p->model.n_members; member++)
        costs[member] = NAN;
    const look_t *next = p->n_looks < p->model.n_recorded ? &p->model.recorded[p->n_looks] : NULL;
    p->is_other |= !next || next->at_s != now_s;
    return next ? next->member : p->in_force;
}

/* From now on the member orders the queue and backfills. */
static void act(scheduler_t *s, int32_t member)
{
    portfolio_t *p = s->portfolio;
    const composition_t *its = &p->model.members[member].composition;
    p->in_force = member;
    s->composition.backfill = its->backfill;
    s->composition.scan = its->scan;
    s->composition.guard = its->guard;
    s->phases.backfill = BACKFILLS[its->backfill];
    s->scores = p->scores[member];
    in_submission_order(s, p->as_submitted);
    if (s->scores)
        score_all(s, p->first_s);
    s->n_shortest = 0;
    if (its->scan != SCAN_SHORTEST)
        return;
    s->n_shortest = s->n_waiting;
    memcpy(s->shortest, p->as_submitted, (size_t)s->n_waiting * sizeof *s->shortest);
    qsort(s->shortest, (size_t)s->n_waiting, sizeof *s->shortest, by_shortest);
}

/* Room for one look more. 0, or -1: no memory. */
static int make_room(scheduler_t *s)
{
    portfolio_t *p = s->portfolio;
    if (!p->model.keeps || p->n_looks < p->room)
        return 0;
    look_t *looks = resized(&s->memory, p->looks, 2 * p->room, sizeof *looks);
    p->looks = looks ? looks : p->looks;
    double *costs = resized(&s->memory, p->costs, 2 * p->room * p->model.n_members, sizeof *costs);
    p->costs = costs ? costs : p->costs;
    if (!looks || !costs)
        return -1;
    p->room *= 2;
    return 0;
}

static int choose(scheduler_t *s, int64_t now_s)
{
    portfolio_t *p = s->portfolio;
    if (!p->has_begun)
        p->first_s = now_s;
    p->has_begun = 1;
    if (p->changes == s->changes) /* a cap that is only metered begins */
        return 0;
    p->changes = s->changes;
    if (s->n_waiting < 2 || scheduler_free_now(s, now_s) < s->narrowest || p->passes++ % p->model.every)
        return 0;
    scheduler_close_gaps(s, 0);
    order_by_submission(s);
    if (make_room(s) < 0)
        return -1;
    int64_t at = p->model.keeps ? p->n_looks : 0;
    double *costs = p->costs + at * p->model.n_members;
    int32_t member = p->model.recorded ? repeated(p, now_s, costs) : look(s, now_s, costs);
    if (member < 0)
        return -1;
    p->looks[at] = (look_t){.at_s = now_s, .member = member};
    p->n_looks++;
    if (member != p->in_force)
        act(s, member);
    return 0;
}

/****************************************************************
 * Making
 ****************************************************************/

int32_t scheduler_set_portfolio(scheduler_t *s, const portfolio_model_t *model)
{
    memory_t *m = &s->memory;
    int32_t n = s->jobs.n_jobs;
    portfolio_t *p = s->portfolio = column(m, 1, sizeof *p);
    if (!p || scheduler_set_stepped(s) < 0 || (!s->ranking.ranked && ranking_new(s) < 0))
        return -1;
    p->model = *model;
    p->scores = column(m, model->n_members, sizeof *p->scores);
    p->sums = column(m, model->n_members, sizeof *p->sums);
    p->as_is = column(m, n, sizeof *p->as_is);
    p->as_submitted = column(m, n, sizeof *p->as_submitted);
    int32_t all = n + (model->repeats_arrivals ? MOST_ARRIVALS : 0);
    p->submit_s = column(m, all, sizeof *p->submit_s);
    p->run_s = column(m, all, sizeof *p->run_s);
    p->request_s = column(m, all, sizeof *p->request_s);
    p->estimate_s = column(m, all, sizeof *p->estimate_s);
    p->width = column(m, all, sizeof *p->width);
    p->user = column(m, all, sizeof *p->user);
    p->place = column(m, all, sizeof *p->place);
    p->own = (own_t){.context = p, .estimate = estimate_of, .ended = column(m, all, sizeof *p->own.ended)};
    p->jobs = (jobs_t){n, s->jobs.n_users, p->run_s, p->request_s, p->width, p->user, NULL};
    p->room = 1;
    p->looks = column(m, p->room, sizeof *p->looks);
    p->costs = column(m, p->room * model->n_members, sizeof *p->costs);
    if (model->draws > 0)
        s->shares = column(m, 1, sizeof *s->shares);
    if (model->repeats_arrivals) {
        s->arrivals = column(m, 1, sizeof *s->arrivals);
        int32_t *place = column(m, n, sizeof *place);
        if (s->arrivals)
            s->arrivals->place = place;
    }
    if (memory_status(m) < 0)
        return -1;
    for (int32_t member = 0; member < model->n_members; member++) {
        s->scores = NULL;
        if (model->members[member].score && scheduler_set_score(s, model->members[member].score) < 0)
            return -1;
        p->scores[member] = s->scores;
    }
    act(s, 0);
    s->phases.choose = choose;
    return 0;
}

looked_t scheduler_looks(const scheduler_t *s)
{
    const portfolio_t *p = s->portfolio;
    int64_t kept = p->model.keeps ? p->n_looks : p->n_looks > 0;
    return (looked_t){.count = p->n_looks,
                      .first = p->n_looks - kept,
                      .looks = p->looks,
                      .costs = p->costs,
                      .is_other = p->is_other || (p->model.recorded && p->n_looks != p->model.n_recorded)};
}
