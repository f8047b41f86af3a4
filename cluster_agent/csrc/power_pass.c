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
            if (ends_after(p->limit_s[job], now_s) > at_s)
                headroom -= power_draw_uw(s, now_s, row, job, &is_left_on);
            if (ends_after(s->running[i].expected_end_s, now_s) > at_s)
                expected -= power_draw_uw(s, now_s, row, job, &is_expected_on);
        }
        outlook->headroom_uw = headroom - (is_left_on ? row->bonus_uw : 0);
        outlook->expected_uw = expected - (is_expected_on ? row->bonus_uw : 0);
    }
    s->free_in_pass = p->outlook[p->row].free;
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

/* First on nodes that are on, as far as they suffice. */
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
 * Starts the job. If nodes will be switched off later, a job that ends before takes the highest processors that it may,
 * so that those which stay on are left for longer jobs.
 */
static int start(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need)
{
    power_t *p = s->power;
    int64_t limit_s = now_s + need->delay_s + power_stretched(p, s->jobs.request_s[job], level);
    int64_t begins_s = now_s, kept = p->rows[narrowest_row(p, p->row, limit_s)].kept;
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
    p->extra_uw[job] = width * extra_uw(p, job, level);
    p->running_uw += p->extra_uw[job];
    scheduler_start_at(s, now_s, job, level, begins_s);
    if (has_kinds(s))
        kinds_take(&p->kinds, job);
    budget_started(s, need->busy_uw + need->wake_uw);
    int64_t expected_s = scheduler_expected_end(s, job);
    limit_s = p->limit_s[job] = scheduler_finish(s, job, s->jobs.request_s[job]);
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

/* Power that so many processors will need, at a time of the search for a reservation, since nodes that are off now
 * boot. */
static int64_t will_wake_uw(const power_t *p, int64_t width)
{
    if (!p->nodes)
        return 0;
    int64_t cold = width - (p->available[p->row] - p->outlook[p->row].cold);
    return cold > 0 ? cold * (p->model.idle_uw - p->nodes->model.off_uw) : 0;
}

/* What will be left under the cap of a row from at_s on, when running jobs draw `running_uw`. */
static int64_t left_uw(const power_t *p, int32_t k, int64_t at_s, int64_t running_uw, int64_t present_cold_uw)
{
    const plan_row_t *at = &p->rows[k];
    if (!p->model.asks_watts || at->cap_uw == NO_CAP)
        return NO_CAP;
    if (at->from_s >= at_s)
        return p->outlook[k].expected_uw;
    int64_t cold_uw = k == p->row ? present_cold_uw : 0;
    return at->cap_uw - at->idle_uw - at->off_uw - at->switching_uw - cold_uw - running_uw;
}

/* A point of the search for a reservation: its time (found.at_s), and what will be drawn and stored then. */
typedef struct {
    reservation_t found;
    int64_t width, least_uw; /* what the head needs at its lowest frequency */
    int32_t row;      /* the plan's, at that time */
    int32_t ended;    /* so many of the running jobs are expected to have ended */
    int64_t running_uw, drawn_uw, present_cold_uw;
    double stored_j;
} search_t;

/* Whether the job will fit from the search's time on at this level, if running jobs end as expected. */
static int will_fit(const scheduler_t *s, int32_t job, int32_t level, search_t *at)
{
    const power_t *p = s->power;
    reservation_t *found = &at->found;
    int64_t width = s->jobs.width[job], busy_uw = width * extra_uw(p, job, level);
    int64_t end_s = found->at_s + power_stretched(p, s->jobs.request_s[job], level);

    found->left_over_uw = NO_CAP;
    for (int32_t k = at->row; k < p->n_rows && (k == at->row || p->rows[k].from_s < end_s); k++) {
        if (width > p->available[k])
            return 0;
        int64_t most_uw = left_uw(p, k, found->at_s, at->running_uw, at->present_cold_uw);
        if (most_uw == NO_CAP)
            continue;
        int64_t needed_uw = busy_uw + (k == p->row ? will_wake_uw(p, width) : 0);
        if (needed_uw > most_uw)
            return 0;
        found->left_over_uw = least(most_uw - needed_uw, found->left_over_uw);
    }
    found->narrowest = narrowest_row(p, at->row, end_s);
    found->left_over = p->available[found->narrowest] - width;
    return 1;
}

/* Whether the head will fit before `next_s` in processors, watts and joules; the highest frequency that does. */
static int head_will_fit(scheduler_t *s, int64_t now_s, int32_t head, int64_t next_s, search_t *at)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[head], at_s = at->found.at_s;

    if (at_s == now_s && !p->ledger.is_open) /* now it does not fit, unless it lacks only joules */
        return 0;
    if (width > p->available[at->row] || at->least_uw > left_uw(p, at->row, at_s, at->running_uw, at->present_cold_uw))
        return 0;
    for (int32_t level = 0; level <= lowest_of(p, head); level++) {
        int64_t head_uw = width * extra_uw(p, head, level) + will_wake_uw(p, width);
        if (will_fit(s, head, level, at) &&
            budget_will_allow(s, now_s, head, level, head_uw, at->drawn_uw, at->stored_j, next_s, &at->found) &&
            (at->found.at_s == at_s || will_fit(s, head, level, at))) /* again where it waits for joules */
            return 1;
        at->found.at_s = at_s;
    }
    return 0;
}

/* The search begins. */
static search_t search_now(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    for (int32_t k = p->row; k < p->n_rows; k++)
        p->available[k] = p->outlook[k].free;
    return (search_t){
        .found = {.at_s = now_s},
        .row = p->row,
        .ended = scheduler_first_ahead(s, now_s),
        .running_uw = p->running_uw,
        .drawn_uw = p->ledger.drawn_uw,
        .present_cold_uw = power_cold_uw(s, now_s, 1),
        .stored_j = budget_stored_j(s),
    };
}

static int64_t next_row(const power_t *p, const search_t *at)
{
    return at->row + 1 < p->n_rows ? p->rows[at->row + 1].from_s : INT64_MAX;
}

/* When the next of the running jobs ends. */
static int64_t next_end(const scheduler_t *s, int64_t now_s, const search_t *at)
{
    return at->ended < s->n_running ? ends_after(s->running[at->ended].expected_end_s, now_s) : INT64_MAX;
}

/*
 * Moves the search to `to_s`, and on from end to end before `change_s` while the head lacks processors or watts: joules
 * are stored, jobs end, rows of the plan begin.
 */
static void search_from(scheduler_t *s, int64_t now_s, int64_t to_s, int64_t change_s, search_t *at)
{
    power_t *p = s->power;
    int64_t most_uw = left_uw(p, at->row, INT64_MAX, at->least_uw, at->present_cold_uw);
    const int64_t *available = &p->available[at->row];

    do {
        if (p->ledger.is_open)
            at->stored_j += (double)(p->model.budget.limit_uw - at->drawn_uw) * (double)(to_s - at->found.at_s) / 1e6;
        at->found.at_s = to_s;
        for (; next_end(s, now_s, at) <= to_s && at->ended < s->n_running; at->ended++) {
            const running_t *one = &s->running[at->ended];
            at->running_uw -= p->extra_uw[one->job];
            at->drawn_uw -= p->extra_uw[one->job];
            for (int32_t k = p->row; k < p->n_rows; k++) { /* most rows leave all on: the job's columns are not read */
                int is_all_on = p->rows[k].kept >= s->composition.processors;
                p->available[k] += is_all_on ? one->width : scheduler_width_below(s, one->job, p->rows[k].kept);
            }
        }
        to_s = next_end(s, now_s, at);
    } while ((at->width > *available || at->running_uw > most_uw) && to_s < change_s);
    while (next_row(p, at) <= at->found.at_s)
        at->row++;
}

/* Not under a cap without an end that is too low for the head even if it runs alone. */
static int can_ever_fit(const power_t *p, const search_t *at)
{
    int can = 0;
    for (int32_t k = p->row; !can && k < p->n_rows; k++)
        can = at->width <= p->rows[k].kept && at->least_uw <= left_uw(p, k, INT64_MAX, 0, at->present_cold_uw);
    return can;
}

/* The earliest time, after now, at which the head is expected to fit in processors and in watts. */
static reservation_t earliest(scheduler_t *s, int64_t now_s, int32_t head)
{
    power_t *p = s->power;
    search_t at = search_now(s, now_s);
    at.width = s->jobs.width[head];
    at.least_uw = at.width * extra_uw(p, head, lowest_of(p, head));
    if (!can_ever_fit(p, &at))
        return (reservation_t){.at_s = INT64_MAX};
    for (;;) {
        int64_t budget_s = p->ledger.is_open && at.found.at_s < p->model.budget.to_s ? p->model.budget.to_s : INT64_MAX;
        int64_t change_s = least(next_row(p, &at), budget_s), next_s = least(next_end(s, now_s, &at), change_s);
        if (head_will_fit(s, now_s, head, next_s, &at))
            return at.found;
        if (next_s == INT64_MAX)
            return (reservation_t){.at_s = INT64_MAX};
        search_from(s, now_s, next_s, change_s, &at);
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
        int64_t length_s = need.delay_s + power_stretched(p, next->estimate_s, level), needed_uw = need.busy_uw + need.wake_uw;
        int ends_in_time = reserved->at_s == INT64_MAX || length_s <= reserved->at_s - now_s;
        int64_t taken = ends_in_time ? 0 : taken_in(s, now_s, job, level, need.delay_s, reserved->narrowest);
        if (taken > reserved->left_over) /* a lower frequency takes as many, for longer */
            return 0;
        if ((!ends_in_time && needed_uw > reserved->left_over_uw) ||
            !budget_allows_behind(s, now_s, job, level, &need, length_s, reserved, ends_in_time, &cost_j))
            continue;
        if (start(s, now_s, job, level, &need) < 0)
            return -1;
        reserved->left_over_j -= cost_j;
        if (!ends_in_time) {
            reserved->left_over -= taken;
            reserved->above_uw += needed_uw;
            reserved->left_over_uw -= reserved->left_over_uw == NO_CAP ? 0 : needed_uw;
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
        offer->reserved = earliest(s, now_s, head->job);
    bound(s, now_s, offer);
}

static void begin(scheduler_t *s, int64_t now_s)
{
    if (s->power->nodes) {
        power_hand_over(s, now_s);
        nodes_date(s->power->nodes, now_s);
    }
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

/* Processors that the plan leaves on, watts under each cap that is known, and joules of an open budget, as running jobs
 * are expected to end. Nodes that are off when they are idle count as idle; what they do when a job starts is looked at
 * when one does. */
static int plan(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    profile_t *profile = &s->profile;
    search_t at = search_now(s, now_s);

    if (profile_reserve(profile, s->n_running + p->n_rows + 1) < 0)
        return -1;
    profile->stored_uj = (wide_t)floor(at.stored_j * 1e6);
    for (profile->count = 0;;) {
        const plan_row_t *row = &p->rows[at.row];
        profile->steps[profile->count++] = (step_t){
            .from_s = at.found.at_s,
            .free = p->available[at.row],
            .uw = left_uw(p, at.row, INT64_MAX, at.running_uw, 0),
            .spare_uw = p->model.budget.limit_uw - row->idle_uw - row->off_uw - row->switching_uw - at.running_uw,
        };
        int64_t next_s = least(next_end(s, now_s, &at), next_row(p, &at));
        if (next_s == INT64_MAX)
            return 0;
        search_from(s, now_s, next_s, next_s, &at);
    }
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
    .plan = plan,
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
