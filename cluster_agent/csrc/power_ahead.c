/* When jobs will have processors, watts and joules: the search for a reservation, and the plan of all that is left. */
#include "power_inside.h"

/* Power that so many processors will need, at a time of the search for a reservation, since nodes that are off now
 * boot. */
static int64_t will_wake_uw(const power_t *p, int64_t width)
{
    if (!p->nodes)
        return 0;
    int64_t cold = width - (p->available[p->row] - p->outlook[p->row].cold);
    return cold > 0 ? cold * (p->model.idle_uw - p->nodes->model.off_uw) : 0;
}

/* A point of the search for a reservation: its time (found.at_s), and what will be drawn and stored then. */
typedef struct {
    reservation_t found;
    int64_t width, least_uw; /* what the head needs at its lowest frequency */
    int32_t row;      /* the plan's, at that time */
    int32_t ended;    /* so many of the running jobs are expected to have ended */
    int64_t running_uw, running_later_uw, drawn_uw, present_cold_uw;
    double stored_j;
} search_t;

/* What the running jobs that are left will draw at the point of the search. */
static int64_t running_uw(const power_t *p, const search_t *at)
{
    return at->row == p->row || !p->model.rescales ? at->running_uw : at->running_later_uw;
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

/* Whether the job will fit from the search's time on at this level, if running jobs end as expected. */
static int will_fit(const scheduler_t *s, int32_t job, int32_t level, search_t *at)
{
    const power_t *p = s->power;
    reservation_t *found = &at->found;
    int64_t width = s->jobs.width[job], busy_uw = width * extra_uw(p, job, level);
    int64_t end_s = found->at_s + power_stretched(p, s->jobs.request_s[job], p->model.rescales ? lowest_of(p, job) : level);

    found->left_over_uw = NO_CAP;
    for (int32_t k = at->row; k < p->n_rows && (k == at->row || p->rows[k].from_s < end_s); k++) {
        if (width > p->available[k])
            return 0;
        int64_t most_uw = left_uw(p, k, found->at_s, running_uw(p, at), at->present_cold_uw);
        if (most_uw == NO_CAP)
            continue;
        int64_t needed_uw = k == p->row ? busy_uw + will_wake_uw(p, width) : power_later_uw(s, job, busy_uw);
        if (needed_uw > most_uw)
            return 0;
        found->left_over_uw = least(most_uw - needed_uw, found->left_over_uw);
    }
    found->narrowest = power_narrowest_row(p, at->row, end_s);
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
    if (width > p->available[at->row] || at->least_uw > left_uw(p, at->row, at_s, running_uw(p, at), at->present_cold_uw))
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
        .running_later_uw = p->running_later_uw,
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
            if (p->model.rescales)
                at->running_later_uw -= p->later_uw[one->job];
            at->drawn_uw -= p->extra_uw[one->job];
            for (int32_t k = p->row; k < p->n_rows; k++) { /* most rows leave all on: the job's columns are not read */
                int is_all_on = p->rows[k].kept >= s->composition.processors;
                p->available[k] += is_all_on ? one->width : scheduler_width_below(s, one->job, p->rows[k].kept);
            }
        }
        to_s = next_end(s, now_s, at);
    } while ((at->width > *available || running_uw(p, at) > most_uw) && to_s < change_s);
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
reservation_t power_earliest(scheduler_t *s, int64_t now_s, int32_t head)
{
    power_t *p = s->power;
    search_t at = search_now(s, now_s);
    at.width = s->jobs.width[head];
    at.least_uw = power_lowest_uw(s, head);
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

/* Processors that the plan leaves on, watts under each cap that is known, and joules of an open budget, as running jobs
 * are expected to end. Nodes that are off when they are idle count as idle; what they do when a job starts is looked at
 * when one does. */
int power_plan(scheduler_t *s, int64_t now_s)
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

/* The same without a job, on a machine whose nodes all stay on. */
int power_plan_empty(scheduler_t *s, int64_t now_s)
{
    const power_t *p = s->power;
    profile_t *profile = &s->profile;

    if (profile_reserve(profile, p->n_rows) < 0)
        return -1;
    profile->count = 0;
    for (int32_t k = p->row; k < p->n_rows; k++)
        profile->steps[profile->count++] = (step_t){
            .from_s = greatest(p->rows[k].from_s, now_s),
            .uw = left_uw(p, k, INT64_MAX, 0, 0),
        };
    return 0;
}
