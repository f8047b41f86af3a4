#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

/* Usage is rescaled to a later origin, exactly, before it can overflow. */
#define REBASE 512.0

int32_t scheduler_set_priority(scheduler_t *s, const priority_t *model)
{
    memory_t *m = &s->memory;
    ranks_t *r = s->ranks = column(m, 1, sizeof *r);
    if (!r)
        return -1;
    int32_t n = s->jobs.n_jobs, n_users = s->jobs.n_users;
    r->model = *model;
    r->cpu.of_user = column(m, n_users, sizeof *r->cpu.of_user);
    r->energy.of_user = column(m, n_users, sizeof *r->energy.of_user);
    r->factor = column(m, n_users, sizeof *r->factor);
    r->known_in = column(m, n_users, sizeof *r->known_in);
    r->ended = column(m, n, sizeof *r->ended);
    r->metered_j = column(m, n, sizeof *r->metered_j);
    r->charged_j = column(m, n, sizeof *r->charged_j);
    r->is_metered = column(m, n, sizeof *r->is_metered);
    return ranking_new(s);
}

/****************************************************************
 * Usage
 ****************************************************************/

/* Half-lives from the first submission to `now_s`. */
static double half_lives(const ranks_t *r, int64_t now_s)
{
    const priority_t *m = &r->model;
    int64_t since_s = now_s - r->first_s;
    if (m->period_s)
        return (double)(since_s / m->period_s) * ((double)m->period_s / m->half_life_s);
    return (double)since_s / m->half_life_s;
}

static void rebase(usage_t *usage, int32_t n_users)
{
    for (int32_t u = 0; u < n_users; u++)
        usage->of_user[u] = ldexp(usage->of_user[u], -(int)REBASE);
    usage->most = ldexp(usage->most, -(int)REBASE);
}

static void charge(usage_t *usage, const priority_t *m, int32_t user, double amount)
{
    usage->of_user[user] += amount;
    double relative = usage->of_user[user] / m->share[user];
    if (relative > usage->most)
        usage->most = relative;
}

void priority_submitted(scheduler_t *s, int64_t now_s)
{
    ranks_t *r = s->ranks;
    if (!r->has_begun)
        r->first_s = now_s;
    r->has_begun = 1;
}

void priority_ended(scheduler_t *s, int32_t job)
{
    ranks_t *r = s->ranks;
    r->ended[r->n_ended++] = (ended_t){.job = job, .started_s = s->started_s[job]};
}

void priority_past(scheduler_t *s, int64_t ended_s, double joules, int32_t job)
{
    priority_submitted(s, s->submit_s[job]);
    priority_ended(s, job);
    if (joules >= 0.0)
        scheduler_metered(s, job, joules);
    priority_charge(s, ended_s);
}

void scheduler_metered(scheduler_t *s, int32_t job, double joules)
{
    if (!s->ranks)
        return;
    s->ranks->metered_j[job] = joules;
    s->ranks->is_metered[job] = 1;
}

/* Jobs are charged when they have ended, with all they took. */
void priority_charge(scheduler_t *s, int64_t now_s)
{
    ranks_t *r = s->ranks;
    if (!r->n_ended)
        return;
    for (; half_lives(r, now_s) - r->base > REBASE; r->base += REBASE) {
        rebase(&r->cpu, s->jobs.n_users);
        rebase(&r->energy, s->jobs.n_users);
    }
    double weight = exp2(half_lives(r, now_s) - r->base);
    for (int32_t i = 0; i < r->n_ended; i++) {
        int32_t job = r->ended[i].job, user = s->jobs.user[job];
        double processor_s = (double)(now_s - r->ended[i].started_s) * (double)s->jobs.width[job];
        double joules = processor_s * r->model.watts[user];
        if (r->is_metered[job]) { /* an earlier run that was killed has been charged already */
            joules = r->metered_j[job] - r->charged_j[job];
            r->charged_j[job] = r->metered_j[job];
        }
        charge(&r->cpu, &r->model, user, processor_s * weight);
        charge(&r->energy, &r->model, user, joules * weight);
    }
    r->n_ended = 0;
    r->is_charged = 1;
}

/* The processor-seconds that the machine had until now, decayed in the same way. The present period counts in full. */
static double capacity(const scheduler_t *s, int64_t now_s)
{
    const ranks_t *r = s->ranks;
    double had = s->composition.processors, from = exp2(-r->base);
    if (!r->model.period_s)
        return had * (r->model.half_life_s / log(2.0)) * (exp2(half_lives(r, now_s) - r->base) - from);
    double step = (double)r->model.period_s / r->model.half_life_s;
    return had * (double)r->model.period_s * (exp2(half_lives(r, now_s) + step - r->base) - from) / (exp2(step) - 1.0);
}

/* The user's part of that: U. */
static double used(const usage_t *usage, double capacity, int32_t user)
{
    return usage->of_user[user] > 0.0 ? usage->of_user[user] / capacity : 0.0;
}

double scheduler_used(const scheduler_t *s, int64_t now_s, int32_t user)
{
    return used(&s->ranks->cpu, capacity(s, now_s), user);
}

/****************************************************************
 * The order
 ****************************************************************/

/* The contribution of one kind of usage to a user's priority. */
static double past(const priority_t *m, const usage_t *usage, double capacity, int32_t user)
{
    if (m->is_relative)
        return usage->most > 0.0 ? -(usage->of_user[user] / m->share[user] / usage->most) : 0.0;
    return exp2(-(used(usage, capacity, user) / m->share[user]) / m->damping);
}

/* The contribution of a waiting job's user, the same for a whole pass. */
static double factor_of(const scheduler_t *s, int32_t user, double had)
{
    ranks_t *r = s->ranks;
    const priority_t *m = &r->model;
    if (r->known_in[user] != r->pass) {
        r->known_in[user] = r->pass;
        r->factor[user] =
            m->cpu * past(m, &r->cpu, had, user) + m->energy * past(m, &r->energy, had * m->full_w, user);
    }
    return r->factor[user];
}

static double rank(const scheduler_t *s, int64_t now_s, const waiting_t *waiting, double had)
{
    const priority_t *m = &s->ranks->model;
    double priority = 0.0;
    if (m->age != 0.0) {
        double age = (double)(now_s - s->submit_s[waiting->job]) / (double)m->oldest_s;
        priority = m->age * (age < 1.0 ? age : 1.0);
    }
    if (m->size != 0.0)
        priority += m->size * ((double)waiting->width / (double)s->composition.processors);
    return priority + factor_of(s, s->jobs.user[waiting->job], had);
}

/* Only where each usage is relative to the highest. */
static double relative_rank(const scheduler_t *s, int64_t now_s, const waiting_t *waiting)
{
    return rank(s, now_s, waiting, 1.0);
}

void priority_order(scheduler_t *s, int64_t now_s)
{
    ranks_t *r = s->ranks;
    const priority_t *m = &r->model;
    int32_t count = s->tail - s->head;
    const waiting_t *queue = s->queue + s->head;

    if (count < 2)
        return;
    if (!r->is_charged && m->is_relative && m->age == 0.0) { /* time alone changes nothing */
        ranking_new_ones(s, now_s, relative_rank);
        return;
    }
    double had = m->is_relative ? 1.0 : capacity(s, now_s);
    r->is_charged = 0;
    r->pass++;
    for (int32_t i = 0; i < count; i++)
        s->ranking.ranked[i] = (ranked_t){.rank = rank(s, now_s, &queue[i], had), .waiting = queue[i]};
    ranking_all(s);
}
