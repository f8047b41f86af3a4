#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

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
    p->ledger.falls = column(n, sizeof *p->ledger.falls);
    p->ledger.next_s = model->budget.rule == BUDGET_NONE ? INT64_MAX : model->budget.from_s;
    if (!p->interval_first || !p->interval_count || !p->since_s || !p->done_s || !p->level || !p->ledger.falls ||
        placement_init(&p->placement, s->composition.processors) < 0)
        return -1;
    plan_row_t uncapped = {.from_s = INT64_MIN, .cap_uw = NO_CAP, .kept = s->composition.processors};
    return scheduler_plan(s, &uncapped, 1);
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
}

int64_t scheduler_next_row(const scheduler_t *s)
{
    const power_t *p = s->power;
    return p->row + 1 < p->n_rows ? p->rows[p->row + 1].from_s : INT64_MAX;
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
static int64_t draw_uw(const scheduler_t *s, const plan_row_t *row, int32_t job, int *is_left_on)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    int64_t draw = width * extra_uw(p, job, p->level[job]);
    if (row->kept < s->composition.processors) {
        int64_t beyond = width - scheduler_held_below(s, job, row->kept);
        draw += beyond * (p->model.idle_uw - away_uw(s, row));
        *is_left_on |= beyond > 0;
    }
    return draw;
}

int64_t scheduler_plan_uw(const scheduler_t *s)
{
    const plan_row_t *row = scheduler_row(s);
    int64_t drawn = row->idle_uw + row->off_uw + row->switching_uw;
    int is_left_on = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        drawn += draw_uw(s, row, s->running[i].job, &is_left_on);
    return drawn + (is_left_on ? row->bonus_uw : 0);
}

/****************************************************************
 * What happens to running jobs
 ****************************************************************/

void power_give_back(scheduler_t *s, int32_t job)
{
    power_t *p = s->power;
    placement_give_back(&p->placement, p->placement.intervals + p->interval_first[job], p->interval_count[job]);
}

void scheduler_kill(scheduler_t *s, int32_t job)
{
    scheduler_running_remove(s, job);
    power_give_back(s, job);
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
    p->done_s[job] += (double)(now_s - p->since_s[job]) / p->model.slowdown[p->level[job]];
    p->since_s[job] = now_s;
    p->level[job] = level;
    scheduler_running_add(s, job);
}

/****************************************************************
 * A pass
 ****************************************************************/

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
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
        outlook->free = row->kept < s->composition.processors ? placement_free_below(&p->placement, row->kept) : s->free;
        if (row->cap_uw == NO_CAP || !p->model.asks_watts) {
            outlook->headroom_uw = outlook->expected_uw = NO_CAP;
            continue;
        }
        int is_left_on = 0, is_expected_on = 0;
        int64_t headroom = row->cap_uw - row->idle_uw - row->off_uw - row->switching_uw, expected = headroom;
        for (int32_t i = 0; i < s->n_running; i++) {
            int32_t job = s->running[i].job;
            int64_t limit_s = scheduler_finish(s, job, s->jobs.request_s[job]);
            if (k == p->row || later(limit_s, now_s + 1) > at_s)
                headroom -= draw_uw(s, row, job, &is_left_on);
            if (k == p->row || later(s->running[i].expected_end_s, now_s + 1) > at_s)
                expected -= draw_uw(s, row, job, &is_expected_on);
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

/* May the job start now at this level, and stay under every cap if it runs to its limit? */
static int is_admissible(const scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job], needed_uw = width * extra_uw(p, job, level);

    if (width > p->outlook[p->row].free || (p->model.asks_watts && needed_uw > p->outlook[p->row].headroom_uw))
        return 0;
    if (p->row + 1 == p->n_rows)
        return 1;
    int64_t end_s = now_s + power_stretched(p, s->jobs.request_s[job], level);
    for (int32_t k = p->row + 1; k < p->n_rows && p->rows[k].from_s < end_s; k++)
        if (width > p->outlook[k].free || (p->model.asks_watts && needed_uw > p->outlook[k].headroom_uw))
            return 0;
    return 1;
}

/* The highest frequency at which the job may start now; -1: none. */
static int32_t admit(scheduler_t *s, int64_t now_s, int32_t job)
{
    const power_t *p = s->power;
    for (int32_t level = 0; level <= lowest_of(p, job); level++)
        if (is_admissible(s, now_s, job, level) && budget_allows_head(s, now_s, job, level))
            return level;
    return -1;
}

/*
 * Starts the job. Where nodes will be switched off later, a job that ends before takes the highest processors it may
 * have, so that those which stay on are left for longer ones.
 */
static int start(scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    power_t *p = s->power;
    int64_t limit_s = now_s + power_stretched(p, s->jobs.request_s[job], level);
    int64_t kept = p->rows[narrowest_row(p, p->row, limit_s)].kept;
    int64_t width = s->jobs.width[job], drawn_uw = width * extra_uw(p, job, level);

    p->interval_first[job] = p->placement.n_intervals;
    p->interval_count[job] = p->lowest_kept < kept ? placement_take_highest(&p->placement, (int32_t)width, kept)
                                                   : placement_take(&p->placement, (int32_t)width);
    if (p->interval_count[job] < 0)
        return -1;
    p->level[job] = level;
    p->since_s[job] = now_s;
    p->done_s[job] = 0;
    scheduler_start(s, now_s, job);
    budget_started(s, drawn_uw);
    int64_t expected_s = scheduler_expected_end(s, job);
    for (int32_t k = p->row; k < p->n_rows; k++) {
        outlook_t *outlook = &p->outlook[k];
        outlook->free -= scheduler_held_below(s, job, p->rows[k].kept);
        if (outlook->headroom_uw == NO_CAP)
            continue;
        if (k == p->row || p->rows[k].from_s < limit_s)
            outlook->headroom_uw -= drawn_uw;
        if (k == p->row || p->rows[k].from_s < expected_s)
            outlook->expected_uw -= drawn_uw;
    }
    return 0;
}

/*
 * Whether the job will fit from `at_s` at this level, if running jobs end as expected. `expected_uw` is the cluster
 * without the machine's own watts at at_s.
 */
static int will_fit(const scheduler_t *s, int32_t job, int32_t level, int32_t row, int64_t running_uw,
                    reservation_t *found)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job], needed_uw = width * extra_uw(p, job, level);
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
                              : at->cap_uw - at->idle_uw - at->off_uw - at->switching_uw - running_uw;
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
    int64_t running_uw = 0, drawn_uw = p->ledger.drawn_uw;
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
            if (will_fit(s, head, level, row, running_uw, &found) &&
                budget_will_allow(s, now_s, head, level, drawn_uw, stored_j, next_s, &found) &&
                (found.at_s == at_s || will_fit(s, head, level, row, running_uw, &found)))
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
static int64_t taken_in(const scheduler_t *s, int64_t now_s, int32_t job, int32_t level, int32_t row)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    int32_t own = narrowest_row(p, p->row, now_s + power_stretched(p, s->jobs.request_s[job], level));
    if (p->rows[own].kept <= p->rows[row].kept)
        return width;
    return later(width - (p->outlook[own].free - p->outlook[row].free), 0);
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

    int64_t most_uw = least_uw ? budget_most_uw(s, now_s, &reserved) : NO_CAP;
    most_uw = present->headroom_uw < most_uw ? present->headroom_uw : most_uw;

    if (least_uw && s->narrowest * least_uw > most_uw)
        return 0;
    for (; next < end; next++) {
        int32_t level = -1;
        int64_t taken = 0, needed_uw = 0;
        double cost_j = 0.0;
        int ends_in_time = 0;
        int may_fit = next->width <= present->free && (!least_uw || next->width * least_uw <= most_uw);
        if (may_fit && !s->has_started[next->job] && next->job != head)
            for (int32_t tried = 0; level < 0 && tried <= lowest_of(p, next->job); tried++) {
                if (!is_admissible(s, now_s, next->job, tried))
                    continue;
                ends_in_time = reserved.at_s == INT64_MAX ||
                               power_stretched(p, next->estimate_s, tried) <= reserved.at_s - now_s;
                taken = ends_in_time ? 0 : taken_in(s, now_s, next->job, tried, reserved.narrowest);
                needed_uw = ends_in_time ? 0 : next->width * extra_uw(p, next->job, tried);
                if (taken > reserved.left_over) /* a lower frequency takes no less, and longer */
                    break;
                if ((ends_in_time || needed_uw <= reserved.left_over_uw) &&
                    budget_allows_behind(s, now_s, next, tried, &reserved, ends_in_time, &cost_j))
                    level = tried;
            }
        if (level < 0) {
            if (!s->has_started[next->job])
                narrowest = next->width < narrowest ? next->width : narrowest;
            continue;
        }
        if (start(s, now_s, next->job, level) < 0)
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
        int32_t job = s->queue[s->head].job, level = admit(s, now_s, job);
        if (level < 0)
            break;
        if (start(s, now_s, job, level) < 0)
            return -1;
        starts[(*in_turn)++] = job;
    }
    if (s->composition.backfill != BACKFILL_EASY || s->tail - s->head < 2 ||
        s->power->outlook[s->power->row].free < 1)
        return 0;
    return backfill(s, now_s, starts + *in_turn);
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
