#include <math.h>
#include <stdlib.h>

#include "power_inside.h"

/****************************************************************
 * The ledger
 ****************************************************************/

int64_t scheduler_next_reading(const scheduler_t *s)
{
    return s->power->ledger.next_s;
}

double budget_stored_j(const scheduler_t *s)
{
    return s->power->ledger.read_j + s->power->ledger.since_j;
}

store_t scheduler_store(const scheduler_t *s)
{
    const ledger_t *l = &s->power->ledger;
    return (store_t){.is_open = l->is_open,
                     .stored_j = budget_stored_j(s),
                     .read_s = l->read_s,
                     .at_s = l->pass_s,
                     .drawn_uw = l->drawn_uw};
}

void scheduler_read_joules(scheduler_t *s, int64_t now_s, int64_t drawn_uj)
{
    const budget_t *budget = &s->power->model.budget;
    ledger_t *l = &s->power->ledger;

    if (l->is_open)
        l->read_j += ((double)budget->limit_uw * (double)(now_s - l->read_s) - (double)drawn_uj) / 1e6;
    l->is_open = now_s < budget->to_s;
    l->next_s = l->is_open ? least(now_s + budget->tick_s, budget->to_s) : INT64_MAX;
    l->since_j = 0.0;
    l->read_s = l->pass_s = now_s;
}

void scheduler_restore_joules(scheduler_t *s, int64_t now_s, double stored_j)
{
    scheduler_read_joules(s, now_s, 0);
    s->power->ledger.read_j = stored_j;
    s->power->ledger.drawn_uw = scheduler_plan_uw(s, now_s);
}

void budget_pass(scheduler_t *s, int64_t now_s)
{
    power_t *p = s->power;
    ledger_t *l = &p->ledger;
    if (!l->is_open)
        return;
    l->since_j += (double)(p->model.budget.limit_uw - l->drawn_uw) * (double)(now_s - l->pass_s) / 1e6;
    l->pass_s = now_s;
    l->drawn_uw = scheduler_plan_uw(s, now_s);
    l->n_falls = -1;
    l->n_refusals = 0;
}

void budget_started(scheduler_t *s, int64_t uw)
{
    s->power->ledger.drawn_uw += uw;
    s->power->ledger.n_falls = -1;
}

/****************************************************************
 * What a start takes
 ****************************************************************/

static int by_limit(const void *a, const void *b)
{
    int64_t x = ((const fall_t *)a)->limit_s, y = ((const fall_t *)b)->limit_s;
    return (x > y) - (x < y);
}

static void list_falls(scheduler_t *s, int64_t now_s)
{
    ledger_t *l = &s->power->ledger;
    int is_in_order = 1;
    for (int32_t i = 0; i < s->n_running; i++) {
        int32_t job = s->running[i].job;
        int64_t limit_s = ends_after(s->power->limit_s[job], now_s);
        l->falls[i] = (fall_t){.limit_s = limit_s, .extra_uw = s->power->extra_uw[job]};
        is_in_order &= i == 0 || l->falls[i - 1].limit_s <= l->falls[i].limit_s;
    }
    l->n_falls = s->n_running;
    if (!is_in_order) /* in order if jobs are expected to run for their whole walltime */
        qsort(l->falls, (size_t)l->n_falls, sizeof *l->falls, by_limit);
}

/* The joules above the limit until the window ends, if all jobs run to their limits, with `wake_uw` more from now on
 * and `needed_uw` more until `limit_s`. Stops as soon as the sum is above `most_j`. */
static double path_j(scheduler_t *s, int64_t now_s, int64_t wake_uw, int64_t needed_uw, int64_t limit_s, double most_j)
{
    ledger_t *l = &s->power->ledger;
    const budget_t *budget = &s->power->model.budget;
    int64_t above_uw = l->drawn_uw + wake_uw + needed_uw - budget->limit_uw;
    double found_j = 0.0;
    int32_t i = 0;
    if (above_uw > 0 && l->n_falls < 0)
        list_falls(s, now_s);
    while (above_uw > 0 && now_s < budget->to_s && found_j <= most_j) {
        int64_t next_s = least(limit_s > now_s ? limit_s : INT64_MAX, i < l->n_falls ? l->falls[i].limit_s : INT64_MAX);
        next_s = least(next_s, budget->to_s);
        found_j += joules(above_uw, next_s - now_s);
        now_s = next_s;
        above_uw -= now_s == limit_s ? needed_uw : 0;
        for (; i < l->n_falls && l->falls[i].limit_s <= now_s; i++)
            above_uw -= l->falls[i].extra_uw;
    }
    return found_j;
}

static refusal_t asked_by(const scheduler_t *s, int32_t job, int32_t level, const need_t *need)
{
    return (refusal_t){need->busy_uw, need->delay_s + power_stretched(s->power, s->jobs.request_s[job], level)};
}

/* In a pass every start takes joules. So a job that needs no fewer watts and no less time than one that was refused for
 * its path is refused, as long as no node is woken. */
int budget_has_refused(const scheduler_t *s, int32_t job, int32_t level, const need_t *need)
{
    const ledger_t *l = &s->power->ledger;
    if (!l->is_open || !l->n_refusals || need->wake_uw)
        return 0;
    refusal_t asked = asked_by(s, job, level, need);
    for (int32_t i = 0; i < l->n_refusals; i++)
        if (l->refusals[i].busy_uw <= asked.busy_uw && l->refusals[i].length_s <= asked.length_s)
            return 1;
    return 0;
}

static void refuse(ledger_t *l, const refusal_t *asked)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < l->n_refusals; i++)
        if (l->refusals[i].busy_uw < asked->busy_uw || l->refusals[i].length_s < asked->length_s)
            l->refusals[kept++] = l->refusals[i];
    kept -= kept == MOST_REFUSALS;
    l->refusals[kept] = *asked;
    l->n_refusals = kept + 1;
}

/* The stored joules that the job needs to start now. */
static double taken_j(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need, double most_j)
{
    const power_t *p = s->power;
    int64_t width = s->jobs.width[job], needed_uw = need->busy_uw + need->wake_uw;
    int64_t length_s = need->delay_s + power_stretched(p, s->jobs.request_s[job], level);
    int64_t above_uw = p->ledger.drawn_uw + needed_uw - p->model.budget.limit_uw;

    if (p->model.budget.test == TEST_PATH)
        return path_j(s, now_s, need->wake_uw, need->busy_uw, now_s + length_s, most_j);
    if (p->model.budget.test == TEST_JOB)
        return joules(above_uw, least(length_s, p->model.budget.to_s - now_s));
    return above_uw > 0 ? joules(needed_uw + width * p->model.idle_uw, length_s) : 0.0;
}

/****************************************************************
 * The rules
 ****************************************************************/

int budget_allows_head(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need)
{
    double stored_j = budget_stored_j(s);
    return !s->power->ledger.is_open || taken_j(s, now_s, job, level, need, stored_j) <= stored_j;
}

int budget_allows_switching(scheduler_t *s, int64_t now_s, int64_t more_uw, int64_t limit_s)
{
    double stored_j = budget_stored_j(s);
    return !s->power->ledger.is_open || path_j(s, now_s, 0, more_uw, limit_s, stored_j) <= stored_j;
}

int budget_will_allow(const scheduler_t *s, int64_t now_s, int32_t head, int32_t level, int64_t head_uw,
                      int64_t drawn_uw, double stored_j, int64_t next_s, reservation_t *found)
{
    const power_t *p = s->power;
    const budget_t *budget = &p->model.budget;

    found->reserved_j = 0.0;
    found->left_over_j = INFINITY;
    if (!p->ledger.is_open || found->at_s >= budget->to_s)
        return 1;
    found->above_uw = drawn_uw + head_uw - budget->limit_uw;
    found->length_s = least(power_stretched(p, s->jobs.request_s[head], level), budget->to_s - found->at_s);
    found->reserved_j = joules(found->above_uw, found->length_s);
    if (stored_j < found->reserved_j || found->at_s == now_s) {
        double fill_uw = (double)(budget->limit_uw - drawn_uw);
        if (fill_uw <= 0.0 && stored_j < found->reserved_j)
            return 0;
        double wait_s = stored_j < found->reserved_j ? ceil((found->reserved_j - stored_j) * 1e6 / fill_uw) : 1.0;
        if (wait_s >= (double)(next_s - found->at_s))
            return 0;
        found->at_s += (int64_t)wait_s;
        stored_j += fill_uw * wait_s / 1e6;
    }
    found->left_over_j = stored_j - found->reserved_j;
    return 1;
}

/* What the job takes of the joules that the head leaves over: all of its own if it ends before the head starts; else its
 * own until then, and from then on what the two draw above the limit together. */
static double taken_from_head_j(int64_t now_s, int64_t needed_uw, int64_t length_s, const reservation_t *head,
                                int ends_in_time)
{
    if (ends_in_time)
        return joules(needed_uw, length_s);
    return joules(needed_uw, head->at_s - now_s) +
           (joules(head->above_uw + needed_uw, head->length_s) - joules(head->above_uw, head->length_s));
}

/* Whether these joules pay for what the job makes the node draw above the limit. */
static int pays_above_limit(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need,
                            double payable_j)
{
    refusal_t asked = asked_by(s, job, level, need);
    if (taken_j(s, now_s, job, level, need, payable_j) <= payable_j)
        return 1;
    if (s->power->model.budget.test == TEST_PATH && !need->wake_uw)
        refuse(&s->power->ledger, &asked);
    return 0;
}

int budget_allows_behind(scheduler_t *s, int64_t now_s, int32_t job, int32_t level, const need_t *need,
                         int64_t length_s, const reservation_t *reserved, int ends_in_time, double *cost_j)
{
    const power_t *p = s->power;
    const budget_t *budget = &p->model.budget;
    int64_t needed_uw = need->busy_uw + need->wake_uw;
    int64_t drawn_uw = p->ledger.drawn_uw + needed_uw;
    double stored_j = budget_stored_j(s), reserved_j = 0.0;
    int is_reserved = reserved->at_s < budget->to_s; /* a head that starts after the budget's end needs none of it */

    *cost_j = 0.0;
    if (!p->ledger.is_open)
        return 1;
    if (is_reserved) {
        *cost_j = taken_from_head_j(now_s, needed_uw, length_s, reserved, ends_in_time);
        reserved_j = reserved->reserved_j;
    }
    if (*cost_j > budget_left_over_j(s, reserved))
        return 0;
    if (budget->rule == BUDGET_REDUCEPC) { /* it sets the head's joules aside as watts until the head starts */
        double aside_uw = is_reserved ? reserved_j * 1e6 / (double)(reserved->at_s - now_s) : 0.0;
        return stored_j >= 0.0 && (double)drawn_uw <= (double)budget->limit_uw - aside_uw;
    }
    if (drawn_uw <= budget->limit_uw)
        return stored_j >= 0.0;
    return stored_j >= reserved_j && pays_above_limit(s, now_s, job, level, need, stored_j - reserved_j);
}

double budget_left_over_j(const scheduler_t *s, const reservation_t *reserved)
{
    const power_t *p = s->power;
    return p->ledger.is_open && reserved->at_s < p->model.budget.to_s ? reserved->left_over_j : INFINITY;
}

int64_t budget_most_uw(const scheduler_t *s, int64_t now_s, const reservation_t *reserved)
{
    const power_t *p = s->power;
    const budget_t *budget = &p->model.budget;
    double stored_j = budget_stored_j(s);
    int is_reserved = reserved->at_s < budget->to_s;
    double reserved_j = is_reserved ? reserved->reserved_j : 0.0;
    double left_over_j = budget_left_over_j(s, reserved);

    if (!p->ledger.is_open)
        return NO_CAP;
    if (stored_j < 0.0 || left_over_j < 0.0)
        return -1;
    int64_t below_uw = budget->limit_uw - p->ledger.drawn_uw;
    if (budget->rule == BUDGET_REDUCEPC && is_reserved)
        below_uw -= (int64_t)(reserved_j * 1e6 / (double)(reserved->at_s - now_s)) - 1;
    else if (budget->rule == BUDGET_ENERGYBUD && stored_j >= reserved_j)
        below_uw = stored_j - reserved_j < 1e12 ? below_uw + (int64_t)((stored_j - reserved_j) * 1e6) + 1 : NO_CAP;
    int64_t in_a_second_uw = left_over_j < 1e12 ? (int64_t)(left_over_j * 1e6) + 1 : NO_CAP;
    return least(below_uw, in_a_second_uw);
}
