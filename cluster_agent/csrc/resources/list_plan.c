/*
 * List schedules, many of them: a local search over orders asks for the cost of each order it tries.
 *
 * Time jumps from one expected end, or change of the cap, to the next, and at each of these every job that still waits
 * is tried in the order of the list, exactly as a pass of the scheduler would (nodes.c): the same nodes. So the starts
 * that are due now are those of a pass with this order. Most jobs are refused by a compare: of watts, or of what all
 * nodes together have free, which bounds what one has. Cost: O(ends x (waiting jobs + running jobs)) compares, and
 * O(nodes) for each job that passes them.
 */
#include "resources/list_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "resources/list_plan_inside.h"

/* Ours: what a job that never starts is taken to wait, ten years. Orders in which it starts are better. */
#define NEVER_WAIT_S 315360000.0

/* A job that runs in the schedule. */
typedef struct {
    int64_t end_s;
    int64_t uw;
    const int64_t *need;
    const placed_t *placed;
    int32_t count;
} runs_t;

/* Ours: so many requests that no nodes had room for are remembered. */
enum { REFUSED = 8 };

struct list_plan {
    memory_t memory;
    list_situation_t of;
    int64_t *room;     /* per node and kind: free at the time that the schedule has come to */
    int64_t all[NODE_KINDS]; /* the same over all nodes */
    runs_t *runs;      /* in the order of starts */
    int32_t n_runs;
    int64_t running_uw;
    int32_t *left;     /* who still waits, in the order of the list */
    int64_t *start_s;
    placed_t *found;   /* of all positions, n_found so far */
    int64_t n_found, *first;
    int32_t *count;
    node_room_t *candidates;
    ask_t refused[REFUSED]; /* of this instant, by nodes, of one component: room only shrinks until the next */
    int32_t n_refused;
};

int64_t list_plan_most_placed(const list_situation_t *of)
{
    const node_model_t *m = &of->model;
    int64_t most = (int64_t)m->n_nodes * (m->component ? m->most_components : 1); /* room to try one more job */
    for (int32_t i = 0; i < list_plan_components(of); i++) /* a component is on no more nodes than it has units */
        most += m->units[i] < m->n_nodes ? m->units[i] : m->n_nodes;
    return most;
}

int32_t list_plan_components(const list_situation_t *of)
{
    int32_t last = of->n_waiting - 1;
    return of->model.component && last >= 0 ? of->model.component[last] + of->model.n_components[last] : of->n_waiting;
}

ask_t list_plan_ask(const list_situation_t *of, int32_t position)
{
    ask_t ask = node_room_ask(&of->model, position);
    ask.uw = of->model.admitted_uw[position];
    ask.length_s = of->span_s[position];
    return ask;
}

list_plan_t *list_plan_new(const list_situation_t *of)
{
    list_plan_t *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->of = *of;
    p->room = column(&p->memory, of->model.n_nodes * NODE_KINDS, sizeof *p->room);
    p->runs = column(&p->memory, of->n_running + list_plan_components(of), sizeof *p->runs);
    p->left = column(&p->memory, of->n_waiting, sizeof *p->left);
    p->start_s = column(&p->memory, of->n_waiting, sizeof *p->start_s);
    p->first = column(&p->memory, of->n_waiting, sizeof *p->first);
    p->count = column(&p->memory, of->n_waiting, sizeof *p->count);
    p->found = column(&p->memory, list_plan_most_placed(of), sizeof *p->found);
    p->candidates = column(&p->memory, of->model.n_nodes, sizeof *p->candidates);
    if (!p->memory.is_short)
        return p;
    list_plan_free(p);
    return NULL;
}

void list_plan_free(list_plan_t *p)
{
    if (p)
        memory_free(&p->memory);
    free(p);
}

/****************************************************************
 * The machine as the schedule goes on
 ****************************************************************/

static void change(list_plan_t *p, const runs_t *one, int sign)
{
    node_room_change(one->need, p->room, one->placed, one->count, sign);
    for (int32_t i = 0; i < one->count; i++)
        for (int32_t kind = 0; kind < NODE_KINDS; kind++)
            p->all[kind] += sign * one->placed[i].count * one->need[kind];
}

static void begin(list_plan_t *p, const int32_t *order)
{
    const list_situation_t *of = &p->of;
    memcpy(p->room, of->free, (size_t)of->model.n_nodes * NODE_KINDS * sizeof *p->room);
    memset(p->all, 0, sizeof p->all);
    for (int32_t i = 0; i < of->model.n_nodes * NODE_KINDS; i++)
        p->all[i % NODE_KINDS] += p->room[i];
    for (p->n_runs = 0; p->n_runs < of->n_running; p->n_runs++) {
        int32_t i = p->n_runs;
        p->runs[i] = (runs_t){
            .end_s = of->end_s[i],
            .uw = of->running_uw[i],
            .need = of->running_need + (int64_t)i * NODE_KINDS,
            .placed = of->placed + of->placed_first[i],
            .count = (int32_t)(of->placed_first[i + 1] - of->placed_first[i]),
        };
    }
    p->n_found = 0;
    for (int32_t i = 0; i < of->n_waiting; i++) {
        p->left[i] = order[i];
        p->start_s[i] = INT64_MAX;
        p->count[i] = 0;
    }
}

/* Jobs that have ended by `at_s` leave. */
static void settle(list_plan_t *p, int64_t at_s)
{
    int32_t kept = 0;
    p->running_uw = 0;
    p->n_refused = 0;
    for (int32_t i = 0; i < p->n_runs; i++) {
        if (p->runs[i].end_s <= at_s) {
            change(p, &p->runs[i], 1);
            continue;
        }
        p->running_uw += p->runs[i].uw;
        p->runs[kept++] = p->runs[i];
    }
    p->n_runs = kept;
}

static int64_t drawn_after_uw(const list_plan_t *p, int64_t at_s)
{
    int64_t uw = 0;
    for (int32_t i = 0; i < p->n_runs; i++)
        if (p->runs[i].end_s > at_s)
            uw += p->runs[i].uw;
    return uw;
}

static int watts_fit(const list_plan_t *p, int64_t at_s, int64_t end_s, int64_t uw)
{
    const caps_t *caps = &p->of.model.caps;
    if (p->running_uw + uw > caps_at(caps, at_s))
        return 0;
    for (int32_t k = caps_after(caps, at_s); k < caps->n && caps->from_s[k] < end_s; k++)
        if (drawn_after_uw(p, caps->from_s[k]) + uw > caps->uw[k])
            return 0;
    return 1;
}

/* Whether a request for no more units, each of no more, was refused at this instant. */
static int is_hopeless(const list_plan_t *p, const ask_t *ask)
{
    for (int32_t i = 0; i < p->n_refused; i++) {
        int is_less = ask->n > 1 || ask->units < p->refused[i].units;
        for (int32_t kind = 0; kind < NODE_KINDS; kind++)
            is_less |= ask->need[kind] < p->refused[i].need[kind];
        if (!is_less)
            return 1;
    }
    return 0;
}

/* Whether all nodes together have too little. */
static int is_more_than_all(const list_plan_t *p, const ask_t *ask)
{
    for (int32_t kind = 0; kind < NODE_KINDS; kind++) {
        int64_t wanted = 0;
        for (int32_t k = 0; k < ask->n; k++)
            wanted += ask->need[(int64_t)k * NODE_KINDS + kind] * ask->each[k];
        if (wanted > p->all[kind])
            return 1;
    }
    return 0;
}

static int is_released(const list_situation_t *of, int32_t job, int64_t at_s)
{
    return !of->release_s || of->release_s[job] <= at_s;
}

static int start(list_plan_t *p, int64_t at_s, int32_t job)
{
    const ask_t ask = list_plan_ask(&p->of, job);
    int64_t end_s = at_s + ask.length_s;

    if (!is_released(&p->of, job, at_s))
        return 0;
    if (!watts_fit(p, at_s, end_s, ask.uw))
        return 0;
    if (is_more_than_all(p, &ask) || is_hopeless(p, &ask))
        return 0;
    placed_t *found = p->found + p->n_found;
    int32_t count = node_room_find(&p->of.model, p->room, &ask, NULL, p->candidates, found);
    if (!count) {
        if (p->n_refused < REFUSED && ask.n == 1)
            p->refused[p->n_refused++] = ask;
        return 0;
    }
    p->start_s[job] = at_s;
    p->first[job] = p->n_found;
    p->count[job] = count;
    p->n_found += count;
    for (int32_t k = 0; k < ask.n; k++) {
        int32_t own = node_room_of(&ask, k, found, count);
        p->runs[p->n_runs] = (runs_t){
            .end_s = end_s,
            .uw = k ? 0 : ask.uw,
            .need = ask.need + (int64_t)k * NODE_KINDS,
            .placed = found,
            .count = own,
        };
        change(p, &p->runs[p->n_runs++], -1);
        found += own;
        count -= own;
    }
    p->running_uw += ask.uw;
    return 1;
}

/* When anything changes after `at_s`; INT64_MAX: never. */
static int64_t next_change(const list_plan_t *p, int64_t at_s, int32_t n_left)
{
    const caps_t *caps = &p->of.model.caps;
    int32_t k = caps_after(caps, at_s);
    int64_t next_s = k < caps->n ? caps->from_s[k] : INT64_MAX;
    for (int32_t i = 0; i < p->n_runs; i++)
        if (p->runs[i].end_s < next_s)
            next_s = p->runs[i].end_s;
    for (int32_t i = 0; p->of.release_s && i < n_left; i++) {
        int64_t released_s = p->of.release_s[p->left[i]];
        if (released_s > at_s && released_s < next_s)
            next_s = released_s;
    }
    return !p->of.until_s || next_s < p->of.until_s ? next_s : INT64_MAX;
}

/****************************************************************
 * The schedule
 ****************************************************************/

static double wait_s(const list_situation_t *of, int64_t at_s)
{
    return at_s < INT64_MAX ? (double)(at_s - of->now_s) : NEVER_WAIT_S;
}

double list_plan_cost_of(const list_situation_t *of, int32_t position, int64_t at_s)
{
    double late = of->late && at_s > of->due_s[position] ? of->late[position] : 0.0;
    return of->weight[position] * wait_s(of, at_s) + late;
}

double list_plan_cost_of_end(const list_situation_t *of, int64_t end_s)
{
    return of->end_weight > 0.0 ? of->end_weight * wait_s(of, end_s) : 0.0;
}

/* What a plan costs so far: of jobs that have started; the weight of those that wait; when the last one ends. */
typedef struct {
    double cost;
    double waiting;
    int64_t end_s;
} so_far_t;

/* Starts what is due; returns how many of the n_left are left. */
static int32_t start_due(list_plan_t *p, int64_t at_s, int32_t n_left, so_far_t *so_far)
{
    const list_situation_t *of = &p->of;
    int32_t kept = 0;
    int may_start = 1;

    for (int32_t i = 0; i < n_left; i++) {
        int32_t job = p->left[i];
        if (!may_start || !start(p, at_s, job)) {
            p->left[kept++] = job;
            may_start &= !(of->is_strict && is_released(of, job, at_s));
            continue;
        }
        so_far->cost += list_plan_cost_of(of, job, at_s);
        so_far->waiting -= of->weight[job];
        if (at_s + of->span_s[job] > so_far->end_s)
            so_far->end_s = at_s + of->span_s[job];
    }
    return kept;
}

double list_plan_cost(list_plan_t *p, const int32_t *order, double bound)
{
    const list_situation_t *of = &p->of;
    so_far_t so_far = {.end_s = of->now_s};
    double never = 0.0; /* what those cost more that never start */
    int32_t n_left = of->n_waiting;

    begin(p, order);
    for (int32_t i = 0; i < n_left; i++)
        so_far.waiting += of->weight[p->left[i]];
    for (int64_t at_s = of->now_s; n_left > 0;) {
        settle(p, at_s);
        n_left = start_due(p, at_s, n_left, &so_far);
        at_s = next_change(p, at_s, n_left);
        for (int32_t i = 0; of->late && at_s == INT64_MAX && i < n_left; i++)
            never += of->late[p->left[i]];
        double at_least = n_left > 0 ? so_far.cost + so_far.waiting * wait_s(of, at_s) + never : so_far.cost;
        at_least += list_plan_cost_of_end(of, n_left > 0 && at_s > so_far.end_s ? at_s : so_far.end_s);
        if (n_left > 0 && at_least >= bound)
            return INFINITY;
        if (at_s == INT64_MAX)
            return at_least;
    }
    so_far.cost += list_plan_cost_of_end(of, so_far.end_s);
    return so_far.cost < bound ? so_far.cost : INFINITY;
}

const int64_t *list_plan_start_s(const list_plan_t *p)
{
    return p->start_s;
}

const placed_t *list_plan_placed(const list_plan_t *p, int32_t position, int32_t *count)
{
    *count = p->count[position];
    return p->found + p->first[position];
}
