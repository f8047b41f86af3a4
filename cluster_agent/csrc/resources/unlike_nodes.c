/*
 * Nodes that differ, and watts under a cap that changes at known times.
 *
 * A job starts if all its units find room and if, at every instant until its expected end, the watts of the jobs then
 * expected to run and its own stay within the cap then in force. Between changes of the cap the running jobs only become
 * fewer, so the present and these changes are all the instants to look at. Watts are added in the order of starts, so
 * that equal situations give equal sums. Cost of a job tried: O(nodes) + O(changes of the cap in its span x running).
 */
#include "resources/unlike_nodes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resources/node_room.h"
#include "scheduler_inside.h"

struct nodes_and_watts {
    unlike_t model;
    int64_t *free, *spare, *room; /* per node and kind: now; next to the head; next to both, while a job is tried */
    double spare_w;               /* next to the head */
    int32_t *in_order;            /* the running jobs in the order of their starts */
    int32_t n_in_order;
    double running_w;             /* their watts */
    node_room_t *candidates;
    placed_t *found;              /* for the job that is tried: n_found nodes */
    int32_t n_found;
    placed_t *placed;             /* of all jobs that were started */
    int64_t n_placed, capacity;
    int64_t *first;               /* per job, in `placed` */
    int32_t *count;
};

/****************************************************************
 * Making and unmaking
 ****************************************************************/

int32_t scheduler_set_unlike(scheduler_t *s, const unlike_t *model)
{
    nodes_and_watts_t *u = s->unlike = column(&s->memory, 1, sizeof *u);
    if (!u)
        return -1;
    int32_t n = s->jobs.n_jobs, n_values = model->n_nodes * NODE_KINDS;
    s->phases.resources = &UNLIKE_NODES;
    u->model = *model;
    s->caps = model->caps;
    u->free = column(&s->memory, n_values, sizeof *u->free);
    u->spare = column(&s->memory, n_values, sizeof *u->spare);
    u->room = column(&s->memory, n_values, sizeof *u->room);
    u->in_order = column(&s->memory, n, sizeof *u->in_order);
    u->candidates = column(&s->memory, model->n_nodes, sizeof *u->candidates);
    u->found = column(&s->memory, model->n_nodes, sizeof *u->found);
    u->first = column(&s->memory, n, sizeof *u->first);
    u->count = column(&s->memory, n, sizeof *u->count);
    if (s->memory.is_short)
        return -1;
    memcpy(u->free, model->has, (size_t)n_values * sizeof *u->free);
    return 0;
}

/****************************************************************
 * Watts
 ****************************************************************/

/* The power of the running jobs that are expected to run beyond `at_s`. */
static double watts_after(const scheduler_t *s, int64_t at_s)
{
    const nodes_and_watts_t *u = s->unlike;
    double watts = 0.0;
    for (int32_t i = 0; i < u->n_in_order; i++)
        if (scheduler_expected_end(s, u->in_order[i]) > at_s)
            watts += u->model.counted_w[u->in_order[i]];
    return watts;
}

static int watts_fit(const scheduler_t *s, int64_t now_s, int64_t end_s, double watts)
{
    const caps_t *caps = &s->caps;
    int32_t k = caps_after(caps, now_s);
    if (s->unlike->running_w + watts > caps->watts[k ? k - 1 : 0])
        return 0;
    for (; k < caps->n && caps->from_s[k] < end_s; k++)
        if (watts_after(s, caps->from_s[k]) + watts > caps->watts[k])
            return 0;
    return 1;
}

/* The least that the running jobs leave under the caps from `at_s` until `end_s`. */
static double spare_watts(const scheduler_t *s, int64_t at_s, int64_t end_s)
{
    const caps_t *caps = &s->caps;
    int32_t k = caps_after(caps, at_s);
    double spare_w = caps->watts[k ? k - 1 : 0] - watts_after(s, at_s);
    for (; k < caps->n && caps->from_s[k] < end_s; k++)
        spare_w = fmin(spare_w, caps->watts[k] - watts_after(s, caps->from_s[k]));
    return spare_w;
}

/****************************************************************
 * Nodes
 ****************************************************************/

/* Finds nodes for all units, those of a plan if it has chosen them. How many these are; 0: there is no room, or a plan
 * keeps the job waiting. */
static int32_t place(nodes_and_watts_t *u, const int64_t *room, int32_t job)
{
    const unlike_t *model = &u->model;
    if (model->is_deferred && model->is_deferred[job])
        return u->n_found = 0;
    if (model->is_deferred && model->planned_count[job])
        return u->n_found = node_room_as_chosen(model, room, job, model->planned + model->planned_first[job],
                                                model->planned_count[job], u->found);
    return u->n_found = node_room_find(model, room, job, u->candidates, u->found);
}

/* What the job has, or will have, on these nodes is added to `room` (1) or taken from it (-1). */
static void change(const nodes_and_watts_t *u, int64_t *room, int32_t job, const placed_t *placed, int32_t count, int sign)
{
    node_room_change(u->model.need + (int64_t)job * NODE_KINDS, room, placed, count, sign);
}

/* The job takes the nodes found. 1, or -1: no memory. */
static int take(memory_t *memory, nodes_and_watts_t *u, int32_t job)
{
    if (u->n_placed + u->n_found > u->capacity) {
        int64_t capacity = 2 * u->capacity + u->n_found + 1024;
        placed_t *placed = resized(memory, u->placed, capacity, sizeof *placed);
        if (!placed)
            return -1;
        u->placed = placed;
        u->capacity = capacity;
    }
    u->first[job] = u->n_placed;
    u->count[job] = u->n_found;
    memcpy(u->placed + u->n_placed, u->found, (size_t)u->n_found * sizeof *u->found);
    u->n_placed += u->n_found;
    change(u, u->free, job, u->found, u->n_found, -1);
    u->in_order[u->n_in_order++] = job;
    u->model.counted_w[job] = u->model.admitted_w[job];
    u->running_w += u->model.admitted_w[job];
    return 1;
}

/* Starts the job on the nodes found. 1, or -1: no memory. */
static int start(scheduler_t *s, int64_t now_s, int32_t job)
{
    if (take(&s->memory, s->unlike, job) < 0)
        return -1;
    scheduler_start(s, now_s, job);
    return 1;
}

static void give_back(scheduler_t *s, int32_t job)
{
    nodes_and_watts_t *u = s->unlike;
    int32_t i = 0;
    while (u->in_order[i] != job)
        i++;
    memmove(u->in_order + i, u->in_order + i + 1, (size_t)(--u->n_in_order - i) * sizeof *u->in_order);
    change(u, u->free, job, u->placed + u->first[job], u->count[job], 1);
}

/****************************************************************
 * A pass
 ****************************************************************/

static void begin(scheduler_t *s, int64_t now_s)
{
    (void)now_s;
    s->free_in_pass = INT64_MAX; /* a job need not have cores */
    s->unlike->running_w = watts_after(s, INT64_MIN);
}

static int start_head(scheduler_t *s, int64_t now_s, const waiting_t *head)
{
    nodes_and_watts_t *u = s->unlike;
    if (!watts_fit(s, now_s, now_s + head->estimate_s, u->model.admitted_w[head->job]) || !place(u, u->free, head->job))
        return 0;
    return start(s, now_s, head->job);
}

/* Nodes and watts for the head at the earliest time that expected ends and the cap allow. */
static void reserve(scheduler_t *s, int64_t now_s, const waiting_t *head, offer_t *offer)
{
    nodes_and_watts_t *u = s->unlike;
    double watts = head ? u->model.admitted_w[head->job] : 0.0;
    int32_t ended = 0;

    offer->widest = offer->widest_late = INT64_MAX;
    if (!head)
        return;
    memcpy(u->spare, u->free, (size_t)u->model.n_nodes * NODE_KINDS * sizeof *u->spare);
    for (int64_t at_s = scheduler_next_change(s, now_s, 0); at_s < INT64_MAX; at_s = scheduler_next_change(s, at_s, ended)) {
        for (; ended < s->n_running && s->running[ended].expected_end_s <= at_s; ended++) {
            int32_t job = s->running[ended].job;
            change(u, u->spare, job, u->placed + u->first[job], u->count[job], 1);
        }
        u->spare_w = spare_watts(s, at_s, at_s + head->estimate_s) - watts;
        if (u->spare_w < 0 || !place(u, u->spare, head->job))
            continue;
        change(u, u->spare, head->job, u->found, u->n_found, -1);
        offer->reserved.at_s = at_s;
        offer->late_s = at_s - now_s;
        return;
    }
}

/* A job that is to run into the reservation needs room next to that, too. */
static int start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, offer_t *offer)
{
    nodes_and_watts_t *u = s->unlike;
    double watts = u->model.admitted_w[next->job];
    int is_late = next->estimate_s > offer->late_s;

    if (!watts_fit(s, now_s, now_s + next->estimate_s, watts) || (is_late && watts > u->spare_w))
        return 0;
    for (int32_t i = 0; is_late && i < u->model.n_nodes * NODE_KINDS; i++)
        u->room[i] = least(u->free[i], u->spare[i]);
    if (!place(u, is_late ? u->room : u->free, next->job))
        return 0;
    if (is_late) {
        change(u, u->spare, next->job, u->found, u->n_found, -1);
        u->spare_w -= watts;
    }
    return start(s, now_s, next->job);
}

/* On the nodes chosen, whatever the watts. */
static int start_placed(scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    (void)level;
    return place(s->unlike, s->unlike->free, job) ? start(s, now_s, job) : 0;
}

const resources_t UNLIKE_NODES = {
    .begin = begin,
    .start_head = start_head,
    .reserve = reserve,
    .start_behind = start_behind,
    .start_placed = start_placed,
    .give_back = give_back,
};

/****************************************************************
 * What only a live partition does
 ****************************************************************/

int32_t scheduler_place(scheduler_t *s, int32_t job, const placed_t *placed, int32_t count)
{
    nodes_and_watts_t *u = s->unlike;
    if (s->has_started[job])
        give_back(s, job);
    memcpy(u->found, placed, (size_t)count * sizeof *placed);
    u->n_found = count;
    return take(&s->memory, u, job) < 0 ? -1 : 0;
}

/****************************************************************
 * What only a plan does
 ****************************************************************/

void scheduler_set_chosen(scheduler_t *s, const placed_t *chosen)
{
    s->unlike->model.planned = chosen;
}

/****************************************************************
 * The record
 ****************************************************************/

const placed_t *scheduler_placed(const scheduler_t *s, int32_t job, int32_t *count)
{
    const nodes_and_watts_t *u = s->unlike;
    *count = u->count[job];
    return u->placed + u->first[job];
}

const int32_t *scheduler_in_order(const scheduler_t *s, int32_t *count)
{
    *count = s->unlike->n_in_order;
    return s->unlike->in_order;
}
