#include "power_inside.h"

static void count_free(scheduler_t *s, int64_t now_s, int32_t k)
{
    power_t *p = s->power;
    outlook_t *outlook = &p->outlook[k];
    int64_t kept = p->rows[k].kept;

    outlook->cold = 0;
    if (kept >= s->composition.processors) {
        outlook->free = scheduler_free_now(s, now_s);
        outlook->cold = p->nodes ? p->nodes->n_cold : 0;
        return;
    }
    if (p->nodes)
        outlook->cold = placement_free_below(&p->nodes->cold, kept);
    outlook->free = placement_free_below(&p->placement, kept) + outlook->cold;
}

/*
 * What is free and what is left under the caps, now and at the beginning of each later row. For a policy that does not
 * check watts the headroom is unlimited, also where a cap is exceeded.
 */
static void look_out(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    for (int32_t k = p->row; k < p->n_rows; k++) {
        const plan_row_t *row = &p->rows[k];
        outlook_t *outlook = &p->outlook[k];
        int64_t at_s = greatest(row->from_s, now_s);
        count_free(s, now_s, k);
        if (row->cap_uw == NO_CAP || !p->model.asks_watts) {
            outlook->headroom_uw = outlook->expected_uw = NO_CAP;
            continue;
        }
        if (k == p->row) {
            outlook->headroom_uw = outlook->expected_uw = row->cap_uw - scheduler_plan_uw(s, now_s);
            continue;
        }
        int is_left_on = 0, is_expected_on = 0;
        int64_t empty_uw = row->idle_uw + row->off_uw + row->switching_uw + power_cold_uw(s, now_s, 0);
        int64_t headroom = row->cap_uw - empty_uw, expected = headroom;
        for (int32_t i = 0; i < s->n_running; i++) {
            int32_t job = s->running[i].job;
            int64_t limit_s = p->limit_s[job], expected_s = s->running[i].expected_end_s;
            if (p->model.rescales) {
                limit_s = power_ends_by(s, job, s->jobs.request_s[job]);
                expected_s = power_ends_by(s, job, s->estimate_s[job]);
            }
            if (ends_after(limit_s, now_s) > at_s)
                headroom -= power_draw_uw(s, now_s, row, job, &is_left_on);
            if (ends_after(expected_s, now_s) > at_s)
                expected -= power_draw_uw(s, now_s, row, job, &is_expected_on);
        }
        outlook->headroom_uw = headroom - (is_left_on ? row->bonus_uw : 0);
        outlook->expected_uw = expected - (is_expected_on ? row->bonus_uw : 0);
    }
    s->free_in_pass = p->outlook[p->row].free;
}

/* When the job ends that begins at `begins_s` and takes length_s at the highest frequency; at the latest in later rows. */
static int64_t ends_by(const power_t *p, int64_t begins_s, int32_t job, int64_t length_s, int32_t level)
{
    if (p->model.rescales)
        return power_lowered_end(p, begins_s, 0.0, length_s, level, lowest_of(p, job));
    return begins_s + power_stretched(p, length_s, level);
}

/* First on nodes that are on, as far as they suffice. */
static need_t need_of(const scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    need_t need = {.busy_uw = width * extra_uw(p, job, level)};
    if (!p->nodes)
        return need;
    int64_t limit_s = now_s + power_stretched(p, s->jobs.request_s[job], level);
    const outlook_t *own = &p->outlook[power_narrowest_row(p, p->row, limit_s)];
    if (width <= own->free - own->cold)
        return need;
    need.delay_s = nodes_ready_s(p->nodes, now_s) - now_s;
    own = &p->outlook[power_narrowest_row(p, p->row, limit_s + need.delay_s)];
    int64_t cores = p->nodes->model.cores;
    int64_t woken = (width - (own->free - own->cold) + cores - 1) / cores * cores;
    need.busy_uw = greatest(need.busy_uw, woken * boot_rise_uw(p));
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
    int64_t end_s = ends_by(p, now_s + need->delay_s, job, s->jobs.request_s[job], level);
    int64_t busy_uw = power_later_uw(s, job, need->busy_uw);
    for (int32_t k = p->row + 1; k < p->n_rows && p->rows[k].from_s < end_s; k++)
        if (width > p->outlook[k].free || (p->model.asks_watts && busy_uw > p->outlook[k].headroom_uw))
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
 * Starts the job. If nodes will be switched off later, a job that ends before takes the highest processors that it may,
 * so that those which stay on are left for longer jobs.
 */
static int start(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need)
{
    power_t *p = s->power;
    int64_t limit_s = ends_by(p, now_s + need->delay_s, job, s->jobs.request_s[job], level);
    int64_t begins_s = now_s, kept = p->rows[power_narrowest_row(p, p->row, limit_s)].kept;
    int32_t width = s->jobs.width[job];

    p->interval_first[job] = p->placement.n_intervals;
    /* else processors are given out by whoever sees jobs end and nodes fail, or handed over here */
    p->interval_count[job] = s->places_nobody && !p->nodes ? 0 : take(p, width, kept);
    if (p->interval_count[job] < 0)
        return -1;
    p->has_handed_over[job] = 0;
    p->highest[job] = power_highest(p->placement.intervals + p->interval_first[job], p->interval_count[job]);
    /* after the start: by how much these have risen */
    int64_t present_uw = power_cold_uw(s, now_s, 1), later_uw = power_cold_uw(s, now_s, 0);
    if (p->nodes)
        nodes_take(p->nodes, now_s, p->placement.intervals + p->interval_first[job], p->interval_count[job], &begins_s,
                   &p->woken[job]);
    power_count(s, job, level);
    scheduler_start_at(s, now_s, job, level, begins_s);
    if (has_kinds(s))
        kinds_take(&p->kinds, job);
    budget_started(s, need->busy_uw + need->wake_uw);
    int64_t expected_s = scheduler_expected_end(s, job);
    limit_s = p->limit_s[job] = scheduler_finish(s, job, s->jobs.request_s[job]);
    if (p->model.rescales) {
        limit_s = power_ends_by(s, job, s->jobs.request_s[job]);
        expected_s = power_ends_by(s, job, s->estimate_s[job]);
    }
    present_uw = power_cold_uw(s, now_s, 1) - present_uw;
    later_uw = power_cold_uw(s, now_s, 0) - later_uw;
    for (int32_t k = p->row; k < p->n_rows; k++) {
        outlook_t *outlook = &p->outlook[k];
        if (p->nodes)
            count_free(s, now_s, k);
        else
            outlook->free -= scheduler_width_below(s, job, p->rows[k].kept);
        if (outlook->headroom_uw == NO_CAP)
            continue;
        int is_left_on = 0;
        int64_t drawn_uw = power_draw_uw(s, now_s, &p->rows[k], job, &is_left_on);
        int64_t rise_uw = k == p->row ? present_uw : later_uw;
        outlook->headroom_uw -= rise_uw + (k == p->row || p->rows[k].from_s < limit_s ? drawn_uw : 0);
        outlook->expected_uw -= rise_uw + (k == p->row || p->rows[k].from_s < expected_s ? drawn_uw : 0);
    }
    s->free_in_pass = p->outlook[p->row].free;
    return 0;
}

/* Of the processors that the job would take now, those that are on in `row`. */
static int64_t taken_in(const scheduler_t *s, int64_t now_s, int32_t job, int32_t level, int64_t delay_s, int32_t row)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job];
    int32_t own = power_narrowest_row(p, p->row, ends_by(p, now_s + delay_s, job, s->jobs.request_s[job], level));
    if (p->rows[own].kept <= p->rows[row].kept)
        return width;
    const outlook_t *all = &p->outlook[own], *on = &p->outlook[row];
    int64_t warm = all->free - all->cold, from_cold = greatest(width - warm, 0);
    return greatest(width - from_cold - (warm - (on->free - on->cold)), 0) +
           greatest(from_cold - (all->cold - on->cold), 0);
}

static int64_t as_wide_as(int64_t width, int64_t uw, int64_t least_uw)
{
    return uw < 0 ? -1 : least_uw > 0 ? least(width, uw / least_uw) : width;
}

static void bound(scheduler_t *s, int64_t now_s, offer_t *offer)
{
    const power_t *p = s->power;
    const outlook_t *present = &p->outlook[p->row];
    const reservation_t *reserved = &offer->reserved;
    int64_t most_uw = offer->least_uw ? least(budget_most_uw(s, now_s, reserved), present->headroom_uw) : NO_CAP;
    offer->widest = as_wide_as(present->free, most_uw, offer->least_uw);
    /* a little too much, so that rounding excludes nobody: the joules of who is left are compared one by one */
    double left_over_uj = budget_left_over_j(s, reserved) * 1e6 * (1.0 + 1e-9);
    offer->most_area = offer->least_uw ? left_over_uj / (double)offer->least_uw : INFINITY;
    offer->late_s = reserved->at_s == INT64_MAX ? INT64_MAX : reserved->at_s - now_s;
    offer->widest_late =
        as_wide_as(p->is_level ? reserved->left_over : present->free, reserved->left_over_uw, offer->least_uw);
}

static int start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, offer_t *offer)
{
    power_t *p = s->power;
    int32_t job = next->job;
    reservation_t *reserved = &offer->reserved;
    for (int32_t level = 0; level <= lowest_of(p, job); level++) {
        need_t need;
        double cost_j = 0.0;
        if (!is_admissible(s, now_s, job, level, &need) || budget_has_refused(s, job, level, &need))
            continue;
        int64_t length_s = ends_by(p, now_s + need.delay_s, job, next->estimate_s, level) - now_s;
        int64_t needed_uw = need.busy_uw + need.wake_uw, late_uw = needed_uw;
        if (p->row + 1 < p->n_rows && reserved->at_s >= p->rows[p->row + 1].from_s)
            late_uw = power_later_uw(s, job, needed_uw);
        int ends_in_time = reserved->at_s == INT64_MAX || length_s <= reserved->at_s - now_s;
        int64_t taken = ends_in_time ? 0 : taken_in(s, now_s, job, level, need.delay_s, reserved->narrowest);
        if (taken > reserved->left_over) /* a lower frequency takes as many, for longer */
            return 0;
        if ((!ends_in_time && late_uw > reserved->left_over_uw) ||
            !budget_allows_behind(s, now_s, job, level, &need, length_s, reserved, ends_in_time, &cost_j))
            continue;
        if (start(s, now_s, job, level, &need) < 0)
            return -1;
        reserved->left_over_j -= cost_j;
        if (!ends_in_time) {
            reserved->left_over -= taken;
            reserved->above_uw += needed_uw;
            reserved->left_over_uw -= reserved->left_over_uw == NO_CAP ? 0 : late_uw;
        }
        bound(s, now_s, offer);
        return 1;
    }
    return 0;
}

/*
 * Whether jobs can be handled by kind, that is, whether a kind can be refused as a whole once one of its jobs is
 * refused. Usually yes, since in a pass processors, watts and joules only become fewer. But if nodes that are on will
 * be switched off later, a job that must boot nodes may take fewer of those that stay.
 */
static int goes_by_kind(const scheduler_t *s)
{
    const power_t *p = s->power;
    return has_kinds(s) && (!p->nodes || p->is_level);
}

static kinds_t *kinds_of(scheduler_t *s)
{
    return goes_by_kind(s) ? &s->power->kinds : NULL;
}

/* EASY in processors and watts: jobs that start before the head may take neither from its reservation. */
static void reserve(scheduler_t *s, int64_t now_s, const waiting_t *head, offer_t *offer)
{
    const power_t *p = s->power;
    if (p->model.asks_watts && !p->model.job_plan_uw)
        offer->least_uw = extra_uw(p, s->queue[s->head].job, p->model.lowest);
    if (s->narrowest * offer->least_uw > p->outlook[p->row].headroom_uw) {
        offer->widest = -1;
        return;
    }
    if (head)
        offer->reserved = power_earliest(s, now_s, head->job);
    bound(s, now_s, offer);
}

static void begin(scheduler_t *s, int64_t now_s)
{
    if (s->power->nodes) {
        power_hand_over(s, now_s);
        nodes_date(s->power->nodes, now_s);
    }
    if (s->power->model.meters)
        power_meter(s, now_s);
    budget_pass(s, now_s);
    s->profile.budget_s = s->power->ledger.is_open ? s->power->model.budget.to_s : now_s;
    s->profile.wake_s = INT64_MAX;
}

static int start_head(scheduler_t *s, int64_t now_s, const waiting_t *head)
{
    need_t need;
    int32_t level = admit(s, now_s, head->job, &need);
    if (level < 0)
        return 0;
    return start(s, now_s, head->job, level, &need) < 0 ? -1 : 1;
}

static int claim(const scheduler_t *s, const waiting_t *waiting, int32_t level, claim_t *claim)
{
    const power_t *p = s->power;
    claim->width = waiting->width;
    claim->uw = waiting->width * extra_uw(p, waiting->job, level);
    claim->length_s = power_stretched(p, waiting->estimate_s, level);
    claim->limit_s = power_stretched(p, s->jobs.request_s[waiting->job], level);
    return level < lowest_of(p, waiting->job);
}

/* Caps and budget are kept even if it and all running jobs run to their limits. */
static int start_placed(scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    need_t need;
    if (!is_admissible(s, now_s, job, level, &need) || !budget_allows_head(s, now_s, job, level, &need))
        return 0;
    return start(s, now_s, job, level, &need) < 0 ? -1 : 1;
}

static int has_room(scheduler_t *s, int64_t now_s, int32_t job)
{
    need_t need;
    return admit(s, now_s, job, &need) >= 0;
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

static int finish(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    if (p->ledger.is_open) /* a pass follows each reading */
        p->ledger.next_s = least(p->ledger.next_s, s->profile.wake_s);
    if (!p->nodes)
        return 0;
    int64_t due = nodes_due(p->nodes, now_s), rise_uw = due * off_rise_uw(p);
    if (due) {
        int is_allowed = allows_rise(s, now_s, rise_uw, now_s + p->nodes->model.switch_off_s);
        nodes_go(p->nodes, now_s, is_allowed);
        if (is_allowed)
            budget_started(s, rise_uw);
    }
    nodes_keep(p->nodes, now_s);
    nodes_settle(p->nodes, now_s);
    return p->nodes->has_no_memory ? -1 : 0;
}

const resources_t PROCESSORS_AND_WATTS = {
    .begin = begin,
    .look = look_out,
    .start_head = start_head,
    .reserve = reserve,
    .start_behind = start_behind,
    .plan = power_plan,
    .plan_empty = power_plan_empty,
    .has_room = has_room,
    .claim = claim,
    .start_placed = start_placed,
    .finish = finish,
    .waits = power_waits,
    .give_back = power_give_back,
    .kinds = kinds_of,
    .leaves = power_leaves,
    .adopt = power_adopt,
    .adopted = power_adopted,
    .copy = power_copy,
};

int32_t scheduler_set_power(scheduler_t *s, const power_model_t *model)
{
    if (s->phases.resources != &PARTITIONS) /* whose policies do not know watts: the meter has those of their jobs */
        s->phases.resources = &PROCESSORS_AND_WATTS;
    return power_new(s, model);
}
