#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/****************************************************************
 * Making and unmaking
 ****************************************************************/

int32_t scheduler_set_power(scheduler_t *s, const power_model_t *model)
{
    power_t *p = s->power = calloc(1, sizeof *p);
    if (!p)
        return -1;
    int32_t n = s->jobs.n_jobs;
    p->model = *model;
    p->interval_first = column(n, sizeof *p->interval_first);
    p->interval_count = column(n, sizeof *p->interval_count);
    p->since_s = column(n, sizeof *p->since_s);
    p->done_s = column(n, sizeof *p->done_s);
    p->level = column(n, sizeof *p->level);
    p->woken = column(n, sizeof *p->woken);
    p->ledger.falls = column(n, sizeof *p->ledger.falls);
    p->ledger.next_s = model->budget.rule == BUDGET_NONE ? INT64_MAX : model->budget.from_s;
    if (!p->interval_first || !p->interval_count || !p->since_s || !p->done_s || !p->level || !p->woken || !p->ledger.falls ||
        placement_init(&p->placement, s->composition.processors) < 0)
        return -1;
    plan_row_t uncapped = {.from_s = INT64_MIN, .cap_uw = NO_CAP, .kept = s->composition.processors};
    return scheduler_plan(s, &uncapped, 1);
}

int32_t scheduler_set_idle_off(scheduler_t *s, const idle_off_t *model)
{
    s->power->nodes = nodes_new(model, s->composition.processors, &s->power->placement);
    return s->power->nodes ? 0 : -1;
}

void power_free(scheduler_t *s)
{
    power_t *p = s->power;
    if (!p)
        return;
    placement_clear(&p->placement);
    free(p->interval_first);
    free(p->interval_count);
    free(p->rows);
    free(p->outlook);
    free(p->available);
    free(p->since_s);
    free(p->done_s);
    free(p->level);
    free(p->woken);
    nodes_free(p->nodes);
    free(p->ledger.falls);
    free(p);
}

/****************************************************************
 * The plan
 ****************************************************************/

int32_t scheduler_plan(scheduler_t *s, const plan_row_t *rows, int32_t n_rows)
{
    power_t *p = s->power;
    size_t n = (size_t)n_rows;
    plan_row_t *copy = malloc(n * sizeof *copy);
    outlook_t *outlook = malloc(n * sizeof *outlook);
    int64_t *available = malloc(n * sizeof *available);
    if (!copy || !outlook || !available) {
        free(copy);
        free(outlook);
        free(available);
        return -1;
    }
    free(p->rows);
    free(p->outlook);
    free(p->available);
    p->rows = memcpy(copy, rows, n * sizeof *copy);
    p->outlook = outlook;
    p->available = available;
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
    for (int32_t k = p->row; k < p->n_rows; k++)
        p->lowest_kept = p->rows[k].kept < p->lowest_kept ? p->rows[k].kept : p->lowest_kept;
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
    return s->power->nodes ? nodes_next(s->power->nodes) : INT64_MAX;
}

void scheduler_settle(scheduler_t *s, int64_t now_s)
{
    if (s->power->nodes)
        nodes_settle(s->power->nodes, now_s);
}

int64_t scheduler_begins(const scheduler_t *s, int32_t job)
{
    return s->power ? s->power->since_s[job] : s->started_s[job];
}

cold_t scheduler_cold(const scheduler_t *s)
{
    return s->power->nodes ? s->power->nodes->now : (cold_t){.off = 0};
}

int64_t scheduler_boots(const scheduler_t *s)
{
    return s->power->nodes ? s->power->nodes->boots : 0;
}

/* What a processor draws more while its node boots, or goes off, than idle; nothing if it is less. */
static int64_t boot_rise_uw(const power_t *p)
{
    int64_t rise_uw = p->nodes->model.boot_uw - p->model.idle_uw;
    return rise_uw > 0 ? rise_uw : 0;
}

static int64_t off_rise_uw(const power_t *p)
{
    int64_t rise_uw = p->nodes->model.switch_off_uw - p->model.idle_uw;
    return rise_uw > 0 ? rise_uw : 0;
}

/*
 * What nodes that are not on draw more than idle ones: in the present row those that are off draw less, as long as
 * nobody boots them; in a later one they may be on again. Nodes that boot for a job count with it.
 */
static int64_t cold_uw(const scheduler_t *s, int64_t now_s, int is_present)
{
    const power_t *p = s->power;
    if (!p->nodes)
        return 0;
    int64_t unclaimed = p->nodes->waking; /* the job for which they booted was killed, and another is on them too */
    for (int32_t i = 0; unclaimed && i < s->n_running; i++)
        if (p->since_s[s->running[i].job] > now_s)
            unclaimed -= p->woken[s->running[i].job];
    int64_t saved_uw = is_present ? p->nodes->now.off * (p->model.idle_uw - p->nodes->model.off_uw) : 0;
    return p->nodes->now.going * off_rise_uw(p) + unclaimed * boot_rise_uw(p) - saved_uw;
}

/****************************************************************
 * Watts and pace
 ****************************************************************/

/* What a processor of the job draws more than an idle one, as planned with. */
static int64_t extra_uw(const power_t *p, int32_t job, int32_t level)
{
    const power_model_t *m = &p->model;
    if (!m->job_plan_uw)
        return m->plan_uw[level] - m->idle_uw;
    double share = (double)(m->plan_uw[level] - m->idle_uw) / (double)(m->plan_uw[0] - m->idle_uw);
    return (int64_t)((double)(m->job_plan_uw[job] - m->idle_uw) * share);
}

/* The lowest frequency at which the job may be started. */
static int32_t lowest_of(const power_t *p, int32_t job)
{
    return p->model.job_lowest ? p->model.job_lowest[job] : p->model.lowest;
}

int64_t scheduler_extra_uw(const scheduler_t *s, int32_t job, int32_t level)
{
    return extra_uw(s->power, job, level);
}

int64_t power_stretched(const power_t *p, int64_t length_s, int32_t level)
{
    /* most jobs are asked about at the highest frequency first, and this is called for each waiting one */
    int64_t long_s = level ? (int64_t)ceil((double)length_s * p->model.slowdown[level] - 1e-9) : length_s;
    return long_s > 1 ? long_s : 1;
}

int64_t scheduler_finish(const scheduler_t *s, int32_t job, int64_t length_s)
{
    const power_t *p = s->power;
    if (!p)
        return s->started_s[job] + length_s;
    double left_s = ((double)length_s - p->done_s[job]) * p->model.slowdown[p->level[job]];
    return p->since_s[job] + (int64_t)ceil(left_s - 1e-9);
}

int64_t power_expected_end(const scheduler_t *s, int32_t job)
{
    return scheduler_finish(s, job, s->estimate_s[job]);
}

int64_t scheduler_held_below(const scheduler_t *s, int32_t job, int64_t kept)
{
    const power_t *p = s->power;
    const interval_t *interval = p->placement.intervals + p->interval_first[job];
    int64_t held = 0;

    if (kept >= s->composition.processors)
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
        beyond += s->running[i].width - scheduler_held_below(s, s->running[i].job, kept);
    return beyond;
}

/* What a processor that is switched off, or being switched, draws in a row. */
static int64_t away_uw(const scheduler_t *s, const plan_row_t *row)
{
    int64_t away = s->composition.processors - row->kept;
    return away ? (row->off_uw + row->switching_uw) / away : 0;
}

/* What the job draws in a row more than the machine without jobs; *is_left_on: it keeps nodes on that should be off. */
static int64_t draw_uw(const scheduler_t *s, int64_t now_s, const plan_row_t *row, int32_t job, int *is_left_on)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    int64_t draw = width * extra_uw(p, job, p->level[job]);
    if (p->nodes && p->since_s[job] > now_s && p->woken[job] * boot_rise_uw(p) > draw)
        draw = p->woken[job] * boot_rise_uw(p);
    if (row->kept < s->composition.processors) {
        int64_t beyond = width - scheduler_held_below(s, job, row->kept);
        draw += beyond * (p->model.idle_uw - away_uw(s, row));
        *is_left_on |= beyond > 0;
    }
    return draw;
}

int64_t scheduler_plan_uw(const scheduler_t *s, int64_t now_s)
{
    const plan_row_t *row = scheduler_row(s);
    int64_t drawn = row->idle_uw + row->off_uw + row->switching_uw + cold_uw(s, now_s, 1);
    int is_left_on = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        drawn += draw_uw(s, now_s, row, s->running[i].job, &is_left_on);
    return drawn + (is_left_on ? row->bonus_uw : 0);
}

/****************************************************************
 * What happens to running jobs
 ****************************************************************/

void power_give_back(scheduler_t *s, int32_t job)
{
    power_t *p = s->power;
    const interval_t *intervals = p->placement.intervals + p->interval_first[job];
    if (p->nodes)
        nodes_give_back(p->nodes, intervals, p->interval_count[job]);
    else
        placement_give_back(&p->placement, intervals, p->interval_count[job]);
}

void scheduler_kill(scheduler_t *s, int64_t now_s, int32_t job)
{
    scheduler_running_remove(s, job);
    power_give_back(s, job);
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
    if (now_s > p->since_s[job]) { /* else its nodes are still booting */
        p->done_s[job] += (double)(now_s - p->since_s[job]) / p->model.slowdown[p->level[job]];
        p->since_s[job] = now_s;
    }
    p->level[job] = level;
    scheduler_running_add(s, job);
}

/****************************************************************
 * A pass
 ****************************************************************/

static void count_free(scheduler_t *s, int32_t k)
{
    power_t *p = s->power;
    outlook_t *outlook = &p->outlook[k];
    int64_t kept = p->rows[k].kept;

    outlook->cold = 0;
    if (kept >= s->composition.processors) {
        outlook->free = s->free;
        outlook->cold = p->nodes ? p->nodes->n_cold : 0;
        return;
    }
    if (p->nodes)
        outlook->cold = placement_free_below(&p->nodes->cold, kept);
    outlook->free = placement_free_below(&p->placement, kept) + outlook->cold;
}

/*
 * What is free and what is left under the caps, now and at the beginning of each later row. A policy that asks for no
 * watts has all it wants, also where a cap is exceeded.
 */
static void look_out(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    for (int32_t k = p->row; k < p->n_rows; k++) {
        const plan_row_t *row = &p->rows[k];
        outlook_t *outlook = &p->outlook[k];
        int64_t at_s = later(row->from_s, now_s);
        count_free(s, k);
        if (row->cap_uw == NO_CAP || !p->model.asks_watts) {
            outlook->headroom_uw = outlook->expected_uw = NO_CAP;
            continue;
        }
        int is_left_on = 0, is_expected_on = 0;
        int64_t empty_uw = row->idle_uw + row->off_uw + row->switching_uw + cold_uw(s, now_s, k == p->row);
        int64_t headroom = row->cap_uw - empty_uw, expected = headroom;
        for (int32_t i = 0; i < s->n_running; i++) {
            int32_t job = s->running[i].job;
            int64_t limit_s = scheduler_finish(s, job, s->jobs.request_s[job]);
            if (k == p->row || later(limit_s, now_s + 1) > at_s)
                headroom -= draw_uw(s, now_s, row, job, &is_left_on);
            if (k == p->row || later(s->running[i].expected_end_s, now_s + 1) > at_s)
                expected -= draw_uw(s, now_s, row, job, &is_expected_on);
        }
        outlook->headroom_uw = headroom - (is_left_on ? row->bonus_uw : 0);
        outlook->expected_uw = expected - (is_expected_on ? row->bonus_uw : 0);
    }
}

/* The row with the fewest processors on among those that begin before `end_s`, the first of equals. */
static int32_t narrowest_row(const power_t *p, int32_t from, int64_t end_s)
{
    int32_t narrowest = from;
    for (int32_t k = from + 1; k < p->n_rows && p->rows[k].from_s < end_s; k++)
        if (p->rows[k].kept < p->rows[narrowest].kept)
            narrowest = k;
    return narrowest;
}

/* On nodes that are on as far as there are any. */
static need_t need_of(const scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    need_t need = {.busy_uw = width * extra_uw(p, job, level)};
    if (!p->nodes)
        return need;
    int64_t limit_s = now_s + power_stretched(p, s->jobs.request_s[job], level);
    const outlook_t *own = &p->outlook[narrowest_row(p, p->row, limit_s)];
    if (width <= own->free - own->cold)
        return need;
    need.delay_s = nodes_ready_s(p->nodes, now_s) - now_s;
    own = &p->outlook[narrowest_row(p, p->row, limit_s + need.delay_s)];
    int64_t cores = p->nodes->model.cores;
    int64_t woken = (width - (own->free - own->cold) + cores - 1) / cores * cores;
    need.busy_uw = later(need.busy_uw, woken * boot_rise_uw(p));
    need.wake_uw = woken * (p->model.idle_uw - p->nodes->model.off_uw);
    return need;
}

/* May the job start now at this level, and stay under every cap if it runs to its limit? */
static int is_admissible(const scheduler_t *s, int64_t now_s, int32_t job, int32_t level, need_t *need)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];

    if (width > p->outlook[p->row].free)
        return 0;
    *need = need_of(s, now_s, job, level);
    if (p->model.asks_watts && need->busy_uw + need->wake_uw > p->outlook[p->row].headroom_uw)
        return 0;
    if (p->row + 1 == p->n_rows)
        return 1;
    int64_t end_s = now_s + need->delay_s + power_stretched(p, s->jobs.request_s[job], level);
    for (int32_t k = p->row + 1; k < p->n_rows && p->rows[k].from_s < end_s; k++)
        if (width > p->outlook[k].free || (p->model.asks_watts && need->busy_uw > p->outlook[k].headroom_uw))
            return 0;
    return 1;
}

/* The highest frequency at which the job may start now; -1: none. */
static int32_t admit(scheduler_t *s, int64_t now_s, int32_t job, need_t *need)
{
    const power_t *p = s->power;
    for (int32_t level = 0; level <= lowest_of(p, job); level++)
        if (is_admissible(s, now_s, job, level, need) && budget_allows_head(s, now_s, job, level, need))
            return level;
    return -1;
}

/* Free processors below `kept`, those whose node is on first. How many intervals; below 0: no memory. */
static int32_t take(power_t *p, int32_t width, int64_t kept)
{
    int is_early = p->lowest_kept < kept;
    if (!p->nodes)
        return is_early ? placement_take_highest(&p->placement, width, kept) : placement_take(&p->placement, width);
    int64_t warm = p->nodes->n_cold ? placement_free_below(&p->placement, kept) : width;
    int32_t first = warm < width ? (int32_t)warm : width, rest = width - first;
    int32_t count = is_early ? placement_take_highest(&p->placement, first, kept) : placement_take(&p->placement, first);
    if (count < 0 || !rest)
        return count;
    placement_t *cold = &p->nodes->cold;
    int32_t more = is_early ? placement_take_highest(cold, rest, kept) : placement_take(cold, rest);
    p->nodes->n_cold -= rest;
    return more < 0 || placement_hand_over(cold, &p->placement, more) < 0 ? -1 : count + more;
}

/*
 * Starts the job. Where nodes will be switched off later, a job that ends before takes the highest processors it may
 * have, so that those which stay on are left for longer ones.
 */
static int start(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need)
{
    power_t *p = s->power;
    int64_t limit_s = now_s + need->delay_s + power_stretched(p, s->jobs.request_s[job], level);
    int64_t begins_s = now_s, kept = p->rows[narrowest_row(p, p->row, limit_s)].kept;
    int32_t width = s->jobs.width[job];

    p->interval_first[job] = p->placement.n_intervals;
    p->interval_count[job] = take(p, width, kept);
    if (p->interval_count[job] < 0)
        return -1;
    int64_t present_uw = cold_uw(s, now_s, 1), later_uw = cold_uw(s, now_s, 0); /* from here on what they rise by */
    if (p->nodes)
        nodes_take(p->nodes, now_s, p->placement.intervals + p->interval_first[job], p->interval_count[job], &begins_s,
                   &p->woken[job]);
    p->level[job] = level;
    p->since_s[job] = begins_s;
    p->done_s[job] = 0;
    scheduler_start(s, now_s, job);
    budget_started(s, need->busy_uw + need->wake_uw);
    int64_t expected_s = scheduler_expected_end(s, job);
    limit_s = scheduler_finish(s, job, s->jobs.request_s[job]);
    present_uw = cold_uw(s, now_s, 1) - present_uw;
    later_uw = cold_uw(s, now_s, 0) - later_uw;
    for (int32_t k = p->row; k < p->n_rows; k++) {
        outlook_t *outlook = &p->outlook[k];
        if (p->nodes)
            count_free(s, k);
        else
            outlook->free -= scheduler_held_below(s, job, p->rows[k].kept);
        if (outlook->headroom_uw == NO_CAP)
            continue;
        int is_left_on = 0;
        int64_t drawn_uw = draw_uw(s, now_s, &p->rows[k], job, &is_left_on);
        int64_t rise_uw = k == p->row ? present_uw : later_uw;
        outlook->headroom_uw -= rise_uw + (k == p->row || p->rows[k].from_s < limit_s ? drawn_uw : 0);
        outlook->expected_uw -= rise_uw + (k == p->row || p->rows[k].from_s < expected_s ? drawn_uw : 0);
    }
    return 0;
}

/* What so many processors, at a time of a search for a reservation, will need of what nodes save that are off now. */
static int64_t will_wake_uw(const power_t *p, int64_t width)
{
    if (!p->nodes)
        return 0;
    int64_t cold = width - (p->available[p->row] - p->outlook[p->row].cold);
    return cold > 0 ? cold * (p->model.idle_uw - p->nodes->model.off_uw) : 0;
}

/*
 * Whether the job will fit from `at_s` at this level, if running jobs end as expected. `expected_uw` is the cluster
 * without the machine's own watts at at_s.
 */
static int will_fit(const scheduler_t *s, int32_t job, int32_t level, int32_t row, int64_t running_uw,
                    int64_t present_cold_uw, reservation_t *found)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job], busy_uw = width * extra_uw(p, job, level);
    int64_t end_s = found->at_s + power_stretched(p, s->jobs.request_s[job], level);

    found->left_over_uw = NO_CAP;
    for (int32_t k = row; k < p->n_rows && (k == row || p->rows[k].from_s < end_s); k++) {
        const plan_row_t *at = &p->rows[k];
        if (width > p->available[k])
            return 0;
        if (!p->model.asks_watts || at->cap_uw == NO_CAP)
            continue;
        int64_t left_uw = at->from_s >= found->at_s
                              ? p->outlook[k].expected_uw
                              : at->cap_uw - at->idle_uw - at->off_uw - at->switching_uw -
                                    (k == p->row ? present_cold_uw : 0) - running_uw;
        int64_t needed_uw = busy_uw + (k == p->row ? will_wake_uw(p, width) : 0);
        if (needed_uw > left_uw)
            return 0;
        if (left_uw - needed_uw < found->left_over_uw)
            found->left_over_uw = left_uw - needed_uw;
    }
    found->narrowest = narrowest_row(p, row, end_s);
    found->left_over = p->available[found->narrowest] - width;
    return 1;
}

/* The earliest time, after now, at which the head is expected to fit in processors and in watts. */
static reservation_t reserve(scheduler_t *s, int64_t now_s, int32_t head)
{
    power_t *p = s->power;
    reservation_t found = {.at_s = now_s};
    int32_t row = p->row, ended = 0;
    int64_t running_uw = 0, drawn_uw = p->ledger.drawn_uw, present_cold_uw = cold_uw(s, now_s, 1);
    double stored_j = scheduler_stored_j(s);

    for (int32_t k = row; k < p->n_rows; k++)
        p->available[k] = p->outlook[k].free;
    for (int32_t i = 0; i < s->n_running; i++)
        running_uw += s->running[i].width * extra_uw(p, s->running[i].job, p->level[s->running[i].job]);
    for (;;) {
        int64_t end_s = ended < s->n_running ? later(s->running[ended].expected_end_s, now_s + 1) : INT64_MAX;
        int64_t row_s = row + 1 < p->n_rows ? p->rows[row + 1].from_s : INT64_MAX;
        int64_t next_s = end_s < row_s ? end_s : row_s;
        if (p->ledger.is_open && found.at_s < p->model.budget.to_s && p->model.budget.to_s < next_s)
            next_s = p->model.budget.to_s;
        int may_fit = (found.at_s > now_s || p->ledger.is_open) && s->jobs.width[head] <= p->available[row];
        for (int32_t level = 0; may_fit && level <= lowest_of(p, head); level++) {
            int64_t at_s = found.at_s;
            int64_t head_uw =
                s->jobs.width[head] * extra_uw(p, head, level) + will_wake_uw(p, s->jobs.width[head]);
            if (will_fit(s, head, level, row, running_uw, present_cold_uw, &found) &&
                budget_will_allow(s, now_s, head, level, head_uw, drawn_uw, stored_j, next_s, &found) &&
                (found.at_s == at_s || will_fit(s, head, level, row, running_uw, present_cold_uw, &found)))
                return found;
            found.at_s = at_s;
        }
        if (next_s == INT64_MAX)
            return (reservation_t){.at_s = INT64_MAX};
        if (p->ledger.is_open)
            stored_j += (double)(p->model.budget.limit_uw - drawn_uw) * (double)(next_s - found.at_s) / 1e6;
        found.at_s = next_s;
        for (; ended < s->n_running && later(s->running[ended].expected_end_s, now_s + 1) <= found.at_s; ended++) {
            int32_t job = s->running[ended].job;
            running_uw -= s->running[ended].width * extra_uw(p, job, p->level[job]);
            drawn_uw -= s->running[ended].width * extra_uw(p, job, p->level[job]);
            for (int32_t k = p->row; k < p->n_rows; k++)
                p->available[k] += scheduler_held_below(s, job, p->rows[k].kept);
        }
        while (row + 1 < p->n_rows && p->rows[row + 1].from_s <= found.at_s)
            row++;
    }
}

/* Of the processors that the job would take now, those that are on in `row`. */
static int64_t taken_in(const scheduler_t *s, int64_t now_s, int32_t job, int32_t level, int64_t delay_s, int32_t row)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    int32_t own = narrowest_row(p, p->row, now_s + delay_s + power_stretched(p, s->jobs.request_s[job], level));
    if (p->rows[own].kept <= p->rows[row].kept)
        return width;
    const outlook_t *all = &p->outlook[own], *on = &p->outlook[row];
    int64_t warm = all->free - all->cold, from_cold = later(width - warm, 0);
    return later(width - from_cold - (warm - (on->free - on->cold)), 0) +
           later(from_cold - (all->cold - on->cold), 0);
}

/*
 * Widths and requests for which a pass has found too few joules. Wider and longer jobs need more of them, and each start
 * takes some, so whoever is no narrower and no shorter need not be asked again in that pass. A few tell of most.
 */
enum { MOST_REFUSED = 8 };
typedef struct {
    struct {
        int64_t request_s;
        int32_t width;
    } jobs[MOST_REFUSED];
    int32_t count;
} refused_t;

static int is_refused(const refused_t *refused, int32_t width, int64_t request_s)
{
    for (int32_t i = 0; i < refused->count; i++)
        if (refused->jobs[i].width <= width && refused->jobs[i].request_s <= request_s)
            return 1;
    return 0;
}

static void refuse(refused_t *refused, int32_t width, int64_t request_s)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < refused->count; i++)
        if (refused->jobs[i].width < width || refused->jobs[i].request_s < request_s)
            refused->jobs[kept++] = refused->jobs[i];
    kept -= kept == MOST_REFUSED;
    refused->jobs[kept].width = width;
    refused->jobs[kept].request_s = request_s;
    refused->count = kept + 1;
}

/* EASY in processors and watts: who starts before the head may take neither from its reservation. */
static int32_t backfill(scheduler_t *s, int64_t now_s, int32_t *starts)
{
    power_t *p = s->power;
    int32_t head = s->queue[s->head].job;
    if (p->model.asks_watts && !p->model.job_plan_uw &&
        s->narrowest * extra_uw(p, head, p->model.lowest) > p->outlook[p->row].headroom_uw)
        return 0;
    reservation_t reserved = reserve(s, now_s, head);
    int shortest_first = s->composition.scan == SCAN_SHORTEST;
    const waiting_t *next = shortest_first ? s->shortest : s->queue + s->head + 1;
    const waiting_t *end = shortest_first ? s->shortest + s->n_shortest : s->queue + s->tail;
    int32_t count = 0, narrowest = s->jobs.width[head];
    const outlook_t *present = &p->outlook[p->row];
    /* the least that a processor needs, where all jobs are alike: most that cannot start are told by it */
    int64_t least_uw = p->model.asks_watts && !p->model.job_plan_uw ? extra_uw(p, head, p->model.lowest) : 0;

    int asks_once = least_uw && !p->model.lowest && p->ledger.is_open;
    refused_t refused = {.count = 0};
    int32_t refused_late = INT32_MAX; /* the narrowest job that would not end before the reservation and takes too much */
    int is_by_width = p->row + 1 == p->n_rows || !p->nodes; /* what a job takes does not depend on its length */
    int64_t until_s = reserved.at_s == INT64_MAX ? INT64_MAX : reserved.at_s - now_s;
    int64_t most_uw = least_uw ? budget_most_uw(s, now_s, &reserved) : NO_CAP;
    most_uw = present->headroom_uw < most_uw ? present->headroom_uw : most_uw;

    if (least_uw && s->narrowest * least_uw > most_uw)
        return 0;
    for (; next < end; next++) {
        int32_t level = -1;
        int64_t taken = 0, needed_uw = 0;
        need_t need = {.delay_s = 0};
        double cost_j = 0.0;
        int ends_in_time = 0;
        int may_fit = next->width <= present->free && (!least_uw || next->width * least_uw <= most_uw);
        if (may_fit && asks_once)
            may_fit = !is_refused(&refused, next->width, s->jobs.request_s[next->job]) &&
                      (later(next->estimate_s, 1) <= until_s
                           ? budget_leaves_over(s, next->width * least_uw, later(next->estimate_s, 1), &reserved)
                           : next->width < refused_late);
        if (may_fit && !s->has_started[next->job] && next->job != head)
            for (int32_t tried = 0; level < 0 && tried <= lowest_of(p, next->job); tried++) {
                if (!is_admissible(s, now_s, next->job, tried, &need))
                    continue;
                ends_in_time = reserved.at_s == INT64_MAX ||
                               need.delay_s + power_stretched(p, next->estimate_s, tried) <= reserved.at_s - now_s;
                taken = ends_in_time ? 0 : taken_in(s, now_s, next->job, tried, need.delay_s, reserved.narrowest);
                needed_uw = ends_in_time ? 0 : need.busy_uw + need.wake_uw;
                if (taken > reserved.left_over) { /* a lower frequency takes no less, and longer */
                    if (p->row + 1 == p->n_rows && next->width < refused_late)
                        refused_late = next->width;
                    break;
                }
                int has_room = ends_in_time || needed_uw <= reserved.left_over_uw, is_for_all = 0;
                if (has_room && budget_allows_behind(s, now_s, next, tried, &need, &reserved, ends_in_time, &cost_j,
                                                     &is_for_all))
                    level = tried;
                else if (is_by_width && !ends_in_time && !is_for_all && next->width < refused_late)
                    refused_late = next->width;
                else if (asks_once && is_for_all)
                    refuse(&refused, next->width, s->jobs.request_s[next->job]);
            }
        if (level < 0) {
            if (!s->has_started[next->job])
                narrowest = next->width < narrowest ? next->width : narrowest;
            continue;
        }
        if (start(s, now_s, next->job, level, &need) < 0)
            return -1;
        starts[count++] = next->job;
        s->overtook[next->job] = 1;
        reserved.left_over -= taken;
        reserved.left_over_j -= cost_j;
        reserved.above_uw += needed_uw;
        if (reserved.left_over_uw != NO_CAP)
            reserved.left_over_uw -= needed_uw;
        most_uw = least_uw ? budget_most_uw(s, now_s, &reserved) : NO_CAP;
        most_uw = present->headroom_uw < most_uw ? present->headroom_uw : most_uw;
        if (present->free < s->narrowest || (least_uw && s->narrowest * least_uw > most_uw))
            break;
    }
    if (next >= end)
        s->narrowest = narrowest;
    return count;
}

int32_t power_decide(scheduler_t *s, int64_t now_s, int32_t *starts, int32_t *in_turn)
{
    look_out(s, now_s);
    for (*in_turn = 0; s->head < s->tail; s->head++) {
        need_t need;
        int32_t job = s->queue[s->head].job, level = admit(s, now_s, job, &need);
        if (level < 0)
            break;
        if (start(s, now_s, job, level, &need) < 0)
            return -1;
        starts[(*in_turn)++] = job;
    }
    if (s->composition.backfill != BACKFILL_EASY || s->tail - s->head < 2 ||
        s->power->outlook[s->power->row].free < 1)
        return 0;
    return backfill(s, now_s, starts + *in_turn);
}

/* Whether so many processors may draw `rise_uw` more each until `limit_s`. */
static int allows_rise(scheduler_t *s, int64_t now_s, int64_t rise_uw, int64_t limit_s)
{
    power_t *p = s->power;
    if (!rise_uw || !p->model.asks_watts)
        return 1;
    look_out(s, now_s);
    for (int32_t k = p->row; k < p->n_rows && (k == p->row || p->rows[k].from_s < limit_s); k++)
        if (rise_uw > p->outlook[k].headroom_uw)
            return 0;
    return budget_allows_switching(s, now_s, rise_uw, limit_s);
}

int power_idle(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    if (!p->nodes)
        return 0;
    int64_t due = nodes_due(p->nodes, now_s), rise_uw = due * off_rise_uw(p);
    if (due) {
        int is_allowed = allows_rise(s, now_s, rise_uw, now_s + p->nodes->model.switch_off_s);
        nodes_go(p->nodes, now_s, is_allowed);
        if (is_allowed)
            budget_started(s, rise_uw);
    }
    nodes_settle(p->nodes, now_s);
    return p->nodes->has_no_memory ? -1 : 0;
}

/****************************************************************
 * The record
 ****************************************************************/

int32_t scheduler_running(const scheduler_t *s, int32_t *running)
{
    for (int32_t i = 0; i < s->n_running; i++)
        running[i] = s->running[i].job;
    return s->n_running;
}

const int32_t *scheduler_levels(const scheduler_t *s)
{
    return s->power->level;
}

const plan_row_t *scheduler_row(const scheduler_t *s)
{
    return &s->power->rows[s->power->row];
}

const placement_t *scheduler_placement(const scheduler_t *s)
{
    return &s->power->placement;
}

const int64_t *scheduler_interval_first(const scheduler_t *s)
{
    return s->power->interval_first;
}

const int32_t *scheduler_interval_count(const scheduler_t *s)
{
    return s->power->interval_count;
}
