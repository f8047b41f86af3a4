#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "power_inside.h"

/****************************************************************
 * Making and unmaking
 ****************************************************************/

/* Jobs have watts of their own, at first all the machine's. 0, or -1: no memory. */
static int meter_jobs(scheduler_t *s)
{
    power_t *p = s->power;
    p->metered_uw = column(&s->memory, s->jobs.n_jobs, sizeof *p->metered_uw);
    p->is_metered = column(&s->memory, s->jobs.n_jobs, sizeof *p->is_metered);
    if (!p->metered_uw || !p->is_metered)
        return -1;
    for (int32_t job = 0; job < s->jobs.n_jobs; job++)
        p->metered_uw[job] = p->model.plan_uw[0];
    p->model.job_plan_uw = p->metered_uw;
    return 0;
}

int power_new(scheduler_t *s, const power_model_t *model)
{
    memory_t *m = &s->memory;
    power_t *p = s->power = column(m, 1, sizeof *p);
    if (!p)
        return -1;
    int32_t n = s->jobs.n_jobs;
    *p = (power_t){.model = *model};
    p->ledger.next_s = model->budget.rule == BUDGET_NONE ? INT64_MAX : model->budget.from_s;
    p->ledger.read_j = model->budget.stored_j;
    p->interval_first = column(m, n, sizeof *p->interval_first);
    p->interval_count = column(m, n, sizeof *p->interval_count);
    p->highest = column(m, n, sizeof *p->highest);
    s->since_s = column(m, n, sizeof *s->since_s);
    s->done_s = column(m, n, sizeof *s->done_s);
    s->level = column(m, n, sizeof *s->level);
    s->slowdown = model->slowdown;
    s->decisions = power_decisions;
    p->limit_s = column(m, n, sizeof *p->limit_s);
    p->extra_uw = column(m, n, sizeof *p->extra_uw);
    p->later_uw = model->rescales ? column(m, n, sizeof *p->later_uw) : p->extra_uw;
    p->woken = column(m, n, sizeof *p->woken);
    p->has_handed_over = column(m, n, sizeof *p->has_handed_over);
    p->ledger.falls = column(m, n, sizeof *p->ledger.falls);
    if (model->meters && meter_jobs(s) < 0)
        return -1;
    int is_shortest_first = s->composition.scan == SCAN_SHORTEST && s->composition.backfill == BACKFILL_EASY;
    if (placement_init(&p->placement, m, s->composition.processors) < 0 ||
        (!s->is_stepped && kinds_init(&p->kinds, m, n, is_shortest_first) < 0))
        return -1;
    plan_row_t uncapped = {.from_s = INT64_MIN, .cap_uw = NO_CAP, .kept = s->composition.processors};
    return scheduler_plan(s, &uncapped, 1);
}

/* Without nodes that go off, and without a budget. */
int power_copy(scheduler_t *to, const scheduler_t *from)
{
    const power_t *p = from->power;
    if (power_new(to, &p->model) < 0)
        return -1;
    power_t *copy = to->power;
    placement_frees_as(&copy->placement, &p->placement);
    copy->running_uw = p->running_uw;
    copy->running_later_uw = p->running_later_uw;
    for (int32_t i = 0; i < to->n_running; i++) {
        int32_t job = to->running[i].job;
        copy->interval_first[job] = copy->placement.n_intervals;
        copy->interval_count[job] = p->interval_count[job];
        copy->highest[job] = p->highest[job];
        copy->limit_s[job] = p->limit_s[job];
        copy->extra_uw[job] = p->extra_uw[job];
        copy->later_uw[job] = p->later_uw[job];
        if (p->metered_uw) {
            copy->metered_uw[job] = p->metered_uw[job];
            copy->is_metered[job] = p->is_metered[job];
        }
        copy->woken[job] = p->woken[job];
        copy->has_handed_over[job] = p->has_handed_over[job];
        to->since_s[job] = from->since_s[job];
        to->done_s[job] = from->done_s[job];
        to->level[job] = from->level[job];
        const interval_t *taken = p->placement.intervals + p->interval_first[job];
        if (placement_keep(&copy->placement, taken, p->interval_count[job]) < 0)
            return -1;
    }
    if (scheduler_plan(to, p->rows, p->n_rows) < 0)
        return -1;
    scheduler_advance(to, p->rows[p->row].from_s);
    return 0;
}

int32_t scheduler_set_idle_off(scheduler_t *s, const idle_off_t *model)
{
    s->power->nodes = nodes_new(&s->memory, model, s->composition.processors, &s->power->placement);
    return s->power->nodes ? 0 : -1;
}

/****************************************************************
 * The plan
 ****************************************************************/

int32_t scheduler_plan(scheduler_t *s, const plan_row_t *rows, int32_t n_rows)
{
    power_t *p = s->power;
    plan_row_t *copy = resized(&s->memory, p->rows, n_rows, sizeof *copy);
    p->rows = copy ? copy : p->rows;
    outlook_t *outlook = resized(&s->memory, p->outlook, n_rows, sizeof *outlook);
    p->outlook = outlook ? outlook : p->outlook;
    int64_t *available = resized(&s->memory, p->available, n_rows, sizeof *available);
    p->available = available ? available : p->available;
    if (!copy || !outlook || !available)
        return -1;
    memcpy(p->rows, rows, (size_t)n_rows * sizeof *copy);
    p->n_rows = n_rows;
    p->row = 0;
    scheduler_advance(s, rows[0].from_s);
    return 0;
}

void scheduler_advance(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    while (p->row + 1 < p->n_rows && p->rows[p->row + 1].from_s <= now_s)
        p->row++;
    p->lowest_kept = INT64_MAX;
    p->is_level = 1;
    for (int32_t k = p->row; k < p->n_rows; k++) {
        p->lowest_kept = p->rows[k].kept < p->lowest_kept ? p->rows[k].kept : p->lowest_kept;
        p->is_level &= p->rows[k].kept == p->rows[p->row].kept;
    }
    p->n_beyond = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        p->n_beyond += p->highest[s->running[i].job] >= p->rows[p->row].kept;
    if (p->nodes)
        nodes_follow(p->nodes, now_s, p->rows[p->row].kept);
}

int64_t scheduler_next_row(const scheduler_t *s)
{
    const power_t *p = s->power;
    return p->row + 1 < p->n_rows ? p->rows[p->row + 1].from_s : INT64_MAX;
}

/****************************************************************
 * Nodes that go off when they are idle
 ****************************************************************/

int64_t scheduler_next_switch(scheduler_t *s)
{
    /* before the scheduler decides none goes off */
    return s->power->nodes ? greatest(nodes_next(s->power->nodes), s->decides_from_s) : INT64_MAX;
}

void scheduler_settle(scheduler_t *s, int64_t now_s)
{
    if (s->power->nodes)
        nodes_settle(s->power->nodes, now_s);
}

cold_t scheduler_cold(const scheduler_t *s)
{
    return s->power->nodes ? s->power->nodes->now : (cold_t){.off = 0};
}

int64_t scheduler_boots(const scheduler_t *s)
{
    return s->power->nodes ? s->power->nodes->boots : 0;
}

int64_t power_cold_uw(const scheduler_t *s, int64_t now_s, int is_present)
{
    const power_t *p = s->power;
    if (!p->nodes)
        return 0;
    int64_t unclaimed = p->nodes->waking; /* of a boot whose job was killed, with another job on the same node */
    for (int32_t i = 0; unclaimed && i < s->n_running; i++)
        if (s->since_s[s->running[i].job] > now_s)
            unclaimed -= p->woken[s->running[i].job];
    int64_t saved_uw = is_present ? p->nodes->now.off * (p->model.idle_uw - p->nodes->model.off_uw) : 0;
    return p->nodes->now.going * off_rise_uw(p) + unclaimed * boot_rise_uw(p) - saved_uw;
}

/****************************************************************
 * Watts and pace
 ****************************************************************/

int64_t scheduler_extra_uw(const scheduler_t *s, int32_t job, int32_t level)
{
    return extra_uw(s->power, job, level);
}

int64_t scheduler_width_below(const scheduler_t *s, int32_t job, int64_t kept)
{
    const power_t *p = s->power;
    const interval_t *interval = p->placement.intervals + p->interval_first[job];
    int64_t held = 0;

    if (p->highest[job] < kept)
        return s->jobs.width[job];
    for (int32_t i = 0; i < p->interval_count[job]; i++, interval++)
        if (interval->first < kept)
            held += (interval->last < kept ? interval->last + 1 : kept) - interval->first;
    return held;
}

int64_t scheduler_beyond(const scheduler_t *s)
{
    int64_t kept = scheduler_row(s)->kept, beyond = 0;
    for (int32_t i = 0; kept < s->composition.processors && i < s->n_running; i++)
        beyond += s->running[i].width - scheduler_width_below(s, s->running[i].job, kept);
    return beyond;
}

/* The power of a processor that is switched off, or being switched, in a row. */
static int64_t away_uw(const scheduler_t *s, const plan_row_t *row)
{
    int64_t away = s->composition.processors - row->kept;
    return away ? (row->off_uw + row->switching_uw) / away : 0;
}

int64_t power_lowered_end(const power_t *p, int64_t since_s, double done_s, int64_t length_s, int32_t level,
                          int32_t lowest)
{
    double slower = p->model.slowdown[level];
    int64_t end_s = since_s + (int64_t)ceil(((double)length_s - done_s) * slower - 1e-9);
    if (level >= lowest || p->row + 1 == p->n_rows || end_s <= p->rows[p->row + 1].from_s)
        return end_s;
    int64_t next_s = p->rows[p->row + 1].from_s;
    done_s += (double)(next_s - since_s) / slower;
    return next_s + (int64_t)ceil(((double)length_s - done_s) * p->model.slowdown[lowest] - 1e-9);
}

int64_t power_lowest_uw(const scheduler_t *s, int32_t job)
{
    const power_t *p = s->power;
    return s->jobs.width[job] * extra_uw(p, job, lowest_of(p, job));
}

int64_t power_ends_by(const scheduler_t *s, int32_t job, int64_t length_s)
{
    return power_lowered_end(s->power, s->since_s[job], s->done_s[job], length_s, s->level[job],
                             lowest_of(s->power, job));
}

void power_count(scheduler_t *s, int32_t job, int32_t level)
{
    power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    p->extra_uw[job] = width * extra_uw(p, job, level);
    p->running_uw += p->extra_uw[job];
    if (!p->model.rescales)
        return;
    p->later_uw[job] = width * extra_uw(p, job, (int32_t)greatest(level, lowest_of(p, job)));
    p->running_later_uw += p->later_uw[job];
}

static void discount(power_t *p, int32_t job)
{
    p->running_uw -= p->extra_uw[job];
    if (p->model.rescales)
        p->running_later_uw -= p->later_uw[job];
}

/* What the meter counts (meter.c), as watts of the highest frequency: a microwatt more makes up for rounding. */
void power_meter(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    const power_model_t *m = &p->model;
    for (int32_t i = 0; i < s->n_running; i++) {
        int32_t job = s->running[i].job, level = s->level[job];
        if (p->is_metered[job] || s->started_s[job] >= now_s)
            continue;
        double share = (double)(m->busy_uw[level] - m->idle_uw) / (double)(m->busy_uw[0] - m->idle_uw);
        int64_t drawn_uw = m->job_busy_uw ? (int64_t)((double)(m->job_busy_uw[job] - m->idle_uw) * share)
                                          : m->busy_uw[level] - m->idle_uw;
        double planned = (double)(m->plan_uw[level] - m->idle_uw) / (double)(m->plan_uw[0] - m->idle_uw);
        p->is_metered[job] = 1;
        p->metered_uw[job] = m->idle_uw + (int64_t)ceil((double)drawn_uw / planned) + 1;
        discount(p, job);
        power_count(s, job, level);
    }
}

int64_t power_draw_uw(const scheduler_t *s, int64_t now_s, const plan_row_t *row, int32_t job, int *is_left_on)
{
    const power_t *p = s->power;
    int64_t draw = row == &p->rows[p->row] ? p->extra_uw[job] : p->later_uw[job];
    if (p->nodes && s->since_s[job] > now_s && p->woken[job] * boot_rise_uw(p) > draw)
        draw = p->woken[job] * boot_rise_uw(p);
    if (p->highest[job] >= row->kept) {
        int64_t beyond = s->jobs.width[job] - scheduler_width_below(s, job, row->kept);
        draw += beyond * (p->model.idle_uw - away_uw(s, row));
        *is_left_on = 1;
    }
    return draw;
}

int64_t scheduler_plan_uw(const scheduler_t *s, int64_t now_s)
{
    const plan_row_t *row = scheduler_row(s);
    const power_t *p = s->power;
    int64_t drawn = row->idle_uw + row->off_uw + row->switching_uw + power_cold_uw(s, now_s, 1);
    int is_left_on = 0;
    if (!p->n_beyond && !(p->nodes && p->nodes->waking))
        return drawn + p->running_uw;
    for (int32_t i = 0; i < s->n_running; i++)
        drawn += power_draw_uw(s, now_s, row, s->running[i].job, &is_left_on);
    return drawn + (is_left_on ? row->bonus_uw : 0);
}

/****************************************************************
 * What happens to running jobs
 ****************************************************************/

void power_waits(scheduler_t *s, const waiting_t *waiting)
{
    kind_t kind = {
        .request_s = s->jobs.request_s[waiting->job],
        .estimate_s = waiting->estimate_s,
        .width = waiting->width,
        .lowest = lowest_of(s->power, waiting->job),
    };
    if (has_kinds(s))
        kinds_add(&s->power->kinds, waiting->job, &kind);
}

void power_leaves(scheduler_t *s, int32_t job)
{
    if (has_kinds(s))
        kinds_take(&s->power->kinds, job);
}

int32_t power_highest(const interval_t *intervals, int32_t count)
{
    int32_t highest = 0;
    for (int32_t i = 0; i < count; i++)
        highest = intervals[i].last > highest ? intervals[i].last : highest;
    return highest;
}

int power_adopt(scheduler_t *s, int64_t started_s, int32_t job, int32_t level)
{
    power_t *p = s->power;
    int32_t width = s->jobs.width[job];
    (void)started_s;
    p->interval_first[job] = p->placement.n_intervals;
    p->interval_count[job] = placement_take(&p->placement, width);
    if (p->interval_count[job] < 0)
        return -1;
    p->has_handed_over[job] = 0;
    p->highest[job] = power_highest(p->placement.intervals + p->interval_first[job], p->interval_count[job]);
    p->n_beyond += p->highest[job] >= p->rows[p->row].kept;
    p->extra_uw[job] = p->later_uw[job] = 0;
    if (level >= 0)
        power_count(s, job, level);
    return 0;
}

void power_adopted(scheduler_t *s, int32_t job)
{
    s->power->limit_s[job] = scheduler_finish(s, job, s->jobs.request_s[job]);
}

static void give_nodes_back(power_t *p, int32_t job)
{
    if (!p->has_handed_over[job])
        nodes_give_back(p->nodes, p->placement.intervals + p->interval_first[job], p->interval_count[job]);
    p->has_handed_over[job] = 1;
}

void power_hand_over(scheduler_t *s, int64_t now_s)
{
    if (s->composition.frees_at_estimate)
        for (int32_t i = 0; i < s->n_running && s->running[i].expected_end_s <= now_s; i++)
            give_nodes_back(s->power, s->running[i].job);
}

void power_give_back(scheduler_t *s, int32_t job)
{
    power_t *p = s->power;
    discount(p, job);
    if (p->metered_uw) { /* if it is killed and begins again it may draw what it likes */
        p->metered_uw[job] = p->model.plan_uw[0];
        p->is_metered[job] = 0;
    }
    p->n_beyond -= p->highest[job] >= p->rows[p->row].kept;
    if (p->nodes)
        give_nodes_back(p, job);
    else if (p->interval_count[job])
        placement_give_back(&p->placement, p->placement.intervals + p->interval_first[job], p->interval_count[job]);
}

void scheduler_kill(scheduler_t *s, int64_t now_s, int32_t job)
{
    scheduler_leave(s, job);
    if (s->power->nodes)
        nodes_date(s->power->nodes, now_s);
    if (s->ranks)
        priority_ended(s, job);
    if (s->learner)
        learner_killed(s->learner, job);
    if (s->power->model.requeues)
        scheduler_requeue(s, job);
}

void scheduler_set_level(scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    power_t *p = s->power;
    scheduler_running_remove(s, job);
    if (now_s > s->since_s[job]) { /* else its nodes are still booting */
        s->done_s[job] += (double)(now_s - s->since_s[job]) / s->slowdown[s->level[job]];
        s->since_s[job] = now_s;
    }
    s->level[job] = level;
    discount(p, job);
    power_count(s, job, level);
    p->limit_s[job] = scheduler_finish(s, job, s->jobs.request_s[job]);
    scheduler_running_add(s, job);
}

/****************************************************************
 * The record
 ****************************************************************/

int32_t scheduler_running(const scheduler_t *s, int32_t *running)
{
    for (int32_t i = 0; i < s->n_running; i++)
        running[i] = s->running[i].job;
    const best_effort_t *b = s->best_effort;
    for (int32_t i = 0; b && i < b->n_running; i++)
        running[s->n_running + i] = b->running[i];
    return s->n_running + (b ? b->n_running : 0);
}

int32_t scheduler_level(const scheduler_t *s, int32_t job)
{
    return s->level[job];
}

const plan_row_t *scheduler_row(const scheduler_t *s)
{
    return &s->power->rows[s->power->row];
}

void power_decisions(const scheduler_t *s, decisions_t *found)
{
    const power_t *p = s->power;
    found->level = s->level;
    found->intervals = p->placement.intervals;
    found->interval_first = p->interval_first;
    found->interval_count = p->interval_count;
}
