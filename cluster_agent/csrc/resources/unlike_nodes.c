/*
 * Nodes that differ, and watts under a cap that changes at known times.
 *
 * A job starts if all its units find room and if, at every instant until its expected end, the watts of the jobs then
 * expected to run and its own stay within the cap then in force. Between changes of the cap the running jobs only become
 * fewer, so the present and these changes are all the instants to look at. Watts are added in the order of starts, so
 * that equal situations give equal sums. Cost of a job tried: O(nodes) + O(changes of the cap in its span x running).
 *
 * Where nodes go off when they are idle, when each is on again follows from the time at which its last job left it, so
 * there are no timers. A job begins once all its nodes are on, and until then counts the watts of those that boot for
 * it, if these are more than its own. What fits is tried for the longest boot, as nodes are chosen later.
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
    /* only where nodes go off */
    int64_t pass_s;
    int64_t longest_s;            /* from the start of a job until its nodes are on; 0: nodes stay on */
    double *boot_w;               /* per job: of the nodes that boot for it */
    int32_t *jobs_on;             /* per node, as the next three */
    int64_t *idle_s;              /* without a job since; -1: since the pass to come */
    int64_t *on_s;                /* when it is on if a job starts in this pass */
    uint8_t *is_cold;             /* whether that is later than now */
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
    if (model->idle_off_s) {
        s->delay_s = column(&s->memory, n, sizeof *s->delay_s);
        u->boot_w = column(&s->memory, n, sizeof *u->boot_w);
        u->jobs_on = column(&s->memory, model->n_nodes, sizeof *u->jobs_on);
        u->idle_s = column(&s->memory, model->n_nodes, sizeof *u->idle_s);
        u->on_s = column(&s->memory, model->n_nodes, sizeof *u->on_s);
        u->is_cold = column(&s->memory, model->n_nodes, sizeof *u->is_cold);
    }
    if (s->memory.is_short)
        return -1;
    for (int32_t node = 0; model->idle_off_s && node < model->n_nodes; node++) {
        u->longest_s = greatest(u->longest_s, model->switch_off_s[node] + model->boot_s[node]);
        u->idle_s[node] = -1;
    }
    memcpy(u->free, model->has, (size_t)n_values * sizeof *u->free);
    return 0;
}

/****************************************************************
 * Watts
 ****************************************************************/

/* The power at `at_s` of the running jobs that are expected to run beyond `end_s`. */
static double watts_of(const scheduler_t *s, int64_t end_s, int64_t at_s)
{
    const nodes_and_watts_t *u = s->unlike;
    double watts = 0.0;
    for (int32_t i = 0; i < u->n_in_order; i++) {
        int32_t job = u->in_order[i];
        if (scheduler_expected_end(s, job) > end_s)
            watts += u->boot_w && scheduler_begins(s, job) > at_s ? fmax(u->model.counted_w[job], u->boot_w[job])
                                                                  : u->model.counted_w[job];
    }
    return watts;
}

static double watts_after(const scheduler_t *s, int64_t at_s)
{
    return watts_of(s, at_s, at_s);
}

static int watts_fit(const scheduler_t *s, int64_t now_s, int64_t estimate_s, double watts)
{
    int64_t end_s = now_s + estimate_s + s->unlike->longest_s;
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
    return u->n_found = node_room_find(model, room, job, u->is_cold, u->candidates, u->found);
}

/* Of the nodes found, those that boot for the job. */
static double boot_watts(const nodes_and_watts_t *u)
{
    double watts = 0.0;
    for (int32_t i = 0; u->is_cold && i < u->n_found; i++)
        if (u->is_cold[u->found[i].node] && !u->jobs_on[u->found[i].node])
            watts += u->model.boot_w[u->found[i].node];
    return watts;
}

/* Nodes go off, or will be on; or jobs have left them. */
static void follow(nodes_and_watts_t *u, int64_t now_s)
{
    const unlike_t *m = &u->model;
    u->pass_s = now_s;
    for (int32_t node = 0; m->idle_off_s && node < m->n_nodes; node++) {
        if (!u->jobs_on[node]) {
            u->idle_s[node] = u->idle_s[node] < 0 ? now_s : u->idle_s[node];
            int64_t goes_s = u->idle_s[node] + m->idle_off_s;
            u->on_s[node] = goes_s >= now_s ? now_s : greatest(goes_s + m->switch_off_s[node], now_s) + m->boot_s[node];
        }
        u->is_cold[node] = u->on_s[node] > now_s;
    }
}

/* The job takes the nodes found, or leaves those that it had (-1). */
static void occupy_nodes(const scheduler_t *s, int32_t job, int sign)
{
    nodes_and_watts_t *u = s->unlike;
    const placed_t *placed = u->placed + u->first[job];
    for (int32_t i = 0; u->model.idle_off_s && i < u->count[job]; i++) {
        int32_t node = placed[i].node;
        u->jobs_on[node] += sign;
        u->idle_s[node] = -1;
        if (sign > 0)
            s->delay_s[job] = greatest(s->delay_s[job], u->on_s[node] - u->pass_s);
    }
}

/* What the job has, or will have, on these nodes is added to `room` (1) or taken from it (-1). */
static void change(const nodes_and_watts_t *u, int64_t *room, int32_t job, const placed_t *placed, int32_t count, int sign)
{
    node_room_change(u->model.need + (int64_t)job * NODE_KINDS, room, placed, count, sign);
}

/* The job takes the nodes found. 1, or -1: no memory. */
static int take(scheduler_t *s, int32_t job)
{
    nodes_and_watts_t *u = s->unlike;
    if (u->n_placed + u->n_found > u->capacity) {
        int64_t capacity = 2 * u->capacity + u->n_found + 1024;
        placed_t *placed = resized(&s->memory, u->placed, capacity, sizeof *placed);
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
    double boot_w = boot_watts(u);
    if (u->boot_w)
        u->boot_w[job] = boot_w;
    u->running_w += fmax(u->model.admitted_w[job], boot_w);
    occupy_nodes(s, job, 1);
    return 1;
}

/* Starts the job on the nodes found. 1, or -1: no memory. */
static int start(scheduler_t *s, int64_t now_s, int32_t job)
{
    if (take(s, job) < 0)
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
    occupy_nodes(s, job, -1);
}

/* Whether the watts of nodes that boot for the job fit, if they are more than its own. */
static int boots_fit(const scheduler_t *s, int64_t now_s, int64_t estimate_s, double watts)
{
    double boot_w = boot_watts(s->unlike);
    return boot_w <= watts || watts_fit(s, now_s, estimate_s, boot_w);
}

/****************************************************************
 * A pass
 ****************************************************************/

static void begin(scheduler_t *s, int64_t now_s)
{
    s->free_in_pass = INT64_MAX; /* a job need not have cores */
    s->unlike->running_w = watts_of(s, INT64_MIN, now_s);
    follow(s->unlike, now_s);
}

static int start_head(scheduler_t *s, int64_t now_s, const waiting_t *head)
{
    nodes_and_watts_t *u = s->unlike;
    double watts = u->model.admitted_w[head->job];
    if (!watts_fit(s, now_s, head->estimate_s, watts) || !place(u, u->free, head->job) ||
        !boots_fit(s, now_s, head->estimate_s, watts))
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
        u->spare_w = spare_watts(s, at_s, at_s + head->estimate_s + u->longest_s) - watts;
        if (u->spare_w < 0 || !place(u, u->spare, head->job))
            continue;
        u->spare_w -= fmax(boot_watts(u) - watts, 0.0);
        if (u->spare_w < 0)
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
    int is_late = next->estimate_s + u->longest_s > offer->late_s;

    if (!watts_fit(s, now_s, next->estimate_s, watts) || (is_late && watts > u->spare_w))
        return 0;
    for (int32_t i = 0; is_late && i < u->model.n_nodes * NODE_KINDS; i++)
        u->room[i] = least(u->free[i], u->spare[i]);
    if (!place(u, is_late ? u->room : u->free, next->job) || !boots_fit(s, now_s, next->estimate_s, watts))
        return 0;
    watts = fmax(watts, boot_watts(u));
    if (is_late && watts > u->spare_w)
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
    return take(s, job) < 0 ? -1 : 0;
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
