/*
 * Machines that are counted by nodes: a job starts if all its units find room, and watts (node_sums.c), until its end.
 * Cost of a job tried: O(changes of the cap in its span), then O(nodes).
 *
 * Where nodes go off when they are idle, when each is on again follows from the time at which its last job left it, so
 * there are no timers. A job begins once all its nodes are on, and until then counts the watts of those that boot for
 * it, if these are more than its own. What fits is tried for the longest boot, as nodes are chosen later.
 */
#include <stdlib.h>
#include <string.h>

#include "resources/node_inside.h"

/****************************************************************
 * Making and unmaking
 ****************************************************************/

int32_t scheduler_set_nodes(scheduler_t *s, const node_model_t *model)
{
    on_nodes_t *u = s->on_nodes = column(&s->memory, 1, sizeof *u);
    if (!u)
        return -1;
    int32_t n = s->jobs.n_jobs, n_values = model->n_nodes * NODE_KINDS;
    s->phases.resources = &NODES;
    *u = (on_nodes_t){.model = *model};
    s->caps = model->caps;
    u->by_ends = column(&s->memory, n + 1, sizeof *u->by_ends);
    u->by_ends_version = -1;
    u->free = column(&s->memory, n_values, sizeof *u->free);
    u->spare = column(&s->memory, n_values, sizeof *u->spare);
    u->room = column(&s->memory, n_values, sizeof *u->room);
    u->in_order = column(&s->memory, n, sizeof *u->in_order);
    u->candidates = column(&s->memory, model->n_nodes, sizeof *u->candidates);
    int64_t most = (int64_t)model->n_nodes * greatest(model->most_components, 1);
    u->found = column(&s->memory, most, sizeof *u->found);
    u->first = column(&s->memory, n, sizeof *u->first);
    u->count = column(&s->memory, n, sizeof *u->count);
    if (model->idle_off_s) {
        s->since_s = column(&s->memory, n, sizeof *s->since_s);
        u->boot_uw = column(&s->memory, n, sizeof *u->boot_uw);
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
    u->cap_uw = -1; /* none has been in force */
    if (model->n_kinds && sharing_new(s) < 0)
        return -1;
    return model->ways.n_tables ? choices_new(s) : 0;
}

int32_t scheduler_has_nodes_for(const node_model_t *model, int32_t job)
{
    const ask_t ask = node_room_ask(model, job);
    memory_t memory = {0};
    int64_t n_values = (int64_t)model->n_nodes * NODE_KINDS;
    int64_t *room = column(&memory, n_values, sizeof *room);
    node_room_t *candidates = column(&memory, model->n_nodes, sizeof *candidates);
    placed_t *found = column(&memory, (int64_t)model->n_nodes * ask.n, sizeof *found);
    int32_t fits = -1;

    if (!memory.is_short) {
        memcpy(room, model->has, (size_t)n_values * sizeof *room);
        fits = node_room_find(model, room, &ask, NULL, candidates, found) > 0;
    }
    memory_free(&memory);
    return fits;
}

/****************************************************************
 * What a job takes
 ****************************************************************/

/* The components of a job, whatever it draws and however long it runs. */
static ask_t components_of(const on_nodes_t *u, int32_t job)
{
    return u->choices ? (ask_t){.n = 1, .need = ONE_PLACE} : node_room_ask(&u->model, job);
}

static ask_t ask_of(const scheduler_t *s, int32_t job, int32_t row)
{
    const node_model_t *m = &s->on_nodes->model;
    if (s->on_nodes->choices)
        return choices_ask(s, job, row);
    ask_t ask = node_room_ask(m, job);
    ask.uw = m->admitted_uw[job];
    ask.length_s = s->estimate_s[job];
    return ask;
}

/****************************************************************
 * Nodes
 ****************************************************************/

/* Whether the job would have room, on a node outside of its groups, if it might be on all nodes. */
static int is_moved(on_nodes_t *u, int64_t *room, const ask_t *ask)
{
    ask_t anywhere = *ask;
    anywhere.within = NULL;
    int32_t count = node_room_find(&u->model, room, &anywhere, u->is_cold, u->candidates, u->found), i = 0;
    for (int32_t k = 0; k < ask->n && count; k++)
        for (int32_t end = i + node_room_of(ask, k, u->found + i, count - i); i < end; i++)
            if (ask->within[k] && !(u->model.group[u->found[i].node] & ask->within[k]))
                return 1;
    return 0;
}

static int is_within(const ask_t *ask)
{
    int is_any = 0;
    for (int32_t k = 0; ask->within && k < ask->n; k++)
        is_any |= ask->within[k] != 0;
    return is_any;
}

/* Finds nodes for all units, those of a plan if it has chosen them. How many these are; 0: there is no room, or a plan
 * keeps the job waiting. */
static int32_t place(on_nodes_t *u, int64_t *room, int32_t job, const ask_t *ask)
{
    const node_model_t *model = &u->model;
    if (model->is_deferred && model->is_deferred[job])
        return u->n_found = 0;
    if (u->choices) { /* all places are one node's */
        u->found[0] = (placed_t){.node = 0, .count = (int32_t)ask->units};
        return u->n_found = ask->units <= room[0];
    }
    if (model->is_deferred && model->planned_count[job])
        return u->n_found = node_room_as_chosen(room, ask, model->planned + model->planned_first[job],
                                                model->planned_count[job], u->found);
    if (is_within(ask) && !model->was_moved[job])
        model->was_moved[job] = is_moved(u, room, ask);
    return u->n_found = node_room_find(model, room, ask, u->is_cold, u->candidates, u->found);
}

/* Whether another component of the job is on the node of this row, above it. */
static int is_again(const on_nodes_t *u, int32_t row)
{
    int32_t i = u->model.component ? 0 : row;
    while (i < row && u->found[i].node != u->found[row].node)
        i++;
    return i < row;
}

/* Of the nodes found, those that boot for the job. */
static int64_t boot_uw(const on_nodes_t *u)
{
    int64_t uw = 0;
    for (int32_t i = 0; u->is_cold && i < u->n_found; i++)
        if (u->is_cold[u->found[i].node] && !u->jobs_on[u->found[i].node] && !is_again(u, i))
            uw += u->model.boot_uw[u->found[i].node];
    return uw;
}

/* Nodes go off, or will be on; or jobs have left them. */
static void follow(on_nodes_t *u, int64_t now_s)
{
    const node_model_t *m = &u->model;
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
    on_nodes_t *u = s->on_nodes;
    const placed_t *placed = u->placed + u->first[job];
    if (u->model.idle_off_s && sign > 0)
        s->since_s[job] = u->pass_s;
    for (int32_t i = 0; u->model.idle_off_s && i < u->count[job]; i++) {
        int32_t node = placed[i].node;
        u->jobs_on[node] += sign;
        u->idle_s[node] = -1;
        if (sign > 0)
            s->since_s[job] = greatest(s->since_s[job], u->on_s[node]);
    }
}

/* The job is on these nodes. 0, or -1: no memory. */
static int keep(scheduler_t *s, int32_t job, const placed_t *nodes, int32_t count)
{
    on_nodes_t *u = s->on_nodes;
    if (u->n_placed + count > u->capacity) {
        int64_t capacity = 2 * u->capacity + count + 1024;
        placed_t *placed = resized(&s->memory, u->placed, capacity, sizeof *placed);
        if (!placed)
            return -1;
        u->placed = placed;
        u->capacity = capacity;
    }
    u->first[job] = u->n_placed;
    u->count[job] = count;
    memcpy(u->placed + u->n_placed, nodes, (size_t)count * sizeof *nodes);
    u->n_placed += count;
    return 0;
}

/* The job takes the nodes found, and is counted with these watts. 1, or -1: no memory. */
static int take(scheduler_t *s, int32_t job, int64_t uw)
{
    on_nodes_t *u = s->on_nodes;
    if (keep(s, job, u->found, u->n_found) < 0)
        return -1;
    const ask_t ask = components_of(u, job);
    node_room_change_all(&ask, u->free, u->found, u->n_found, -1);
    if (!u->choices)
        u->in_order[u->n_in_order++] = job;
    if (u->model.counted_uw)
        u->model.counted_uw[job] = uw;
    if (u->boot_uw)
        u->boot_uw[job] = boot_uw(u);
    occupy_nodes(s, job, 1);
    if (u->sharing)
        sharing_changes(s, job, 1);
    return 1;
}

/* Only where a job has one way to run, and nodes stay on. What is counted for running jobs is the copy's own. */
static int copy(scheduler_t *to, const scheduler_t *from)
{
    const on_nodes_t *u = from->on_nodes;
    if (scheduler_set_nodes(to, &u->model) < 0)
        return -1;
    on_nodes_t *copied = to->on_nodes;
    copied->cap_uw = u->cap_uw;
    memcpy(copied->free, u->free, (size_t)u->model.n_nodes * NODE_KINDS * sizeof *u->free);
    copied->model.counted_uw = column(&to->memory, to->jobs.n_jobs, sizeof *copied->model.counted_uw);
    if (!copied->model.counted_uw)
        return -1;
    for (int32_t i = 0; i < u->n_in_order; i++) {
        int32_t job = copied->in_order[i] = u->in_order[i];
        copied->model.counted_uw[job] = u->model.counted_uw[job];
        if (keep(to, job, u->placed + u->first[job], u->count[job]) < 0)
            return -1;
    }
    copied->n_in_order = u->n_in_order;
    copied->drawn_uw = u->drawn_uw;
    return 0;
}

/* Starts the job on the nodes found, in this row. 1, or -1: no memory. */
static int start(scheduler_t *s, int64_t now_s, int32_t job, int32_t row, const ask_t *ask)
{
    if (take(s, job, ask->uw) < 0)
        return -1;
    if (row != NO_ROW)
        choices_start(s, job, row);
    scheduler_start(s, now_s, job);
    return 1;
}

static void give_back(scheduler_t *s, int32_t job)
{
    on_nodes_t *u = s->on_nodes;
    if (!u->choices) {
        int32_t i = 0;
        while (u->in_order[i] != job)
            i++;
        memmove(u->in_order + i, u->in_order + i + 1, (size_t)(--u->n_in_order - i) * sizeof *u->in_order);
    }
    const ask_t ask = components_of(u, job);
    node_room_change_all(&ask, u->free, u->placed + u->first[job], u->count[job], 1);
    occupy_nodes(s, job, -1);
    if (u->sharing)
        sharing_changes(s, job, -1);
}

/* The running job is counted (1), or no longer (-1). */
static void occupy(scheduler_t *s, int32_t job, int sign)
{
    on_nodes_t *u = s->on_nodes;
    u->drawn_uw += sign * counted_uw(&u->model, job);
    u->version++;
}

/* Whether there is room now, also next to the head if it runs on next to that; the nodes are found. */
static int fits_now(scheduler_t *s, int64_t now_s, int32_t job, const ask_t *ask, int is_late)
{
    on_nodes_t *u = s->on_nodes;
    if ((is_late && ask->uw > u->spare_uw) || (!u->choices && sums_lacks_s(s, 0, now_s, ask) < INT64_MAX))
        return 0; /* what a row asks in sum, choices.c has looked at */
    for (int32_t i = 0; is_late && i < u->model.n_nodes * NODE_KINDS; i++)
        u->room[i] = least(u->free[i], u->spare[i]);
    if (!place(u, is_late ? u->room : u->free, job, ask))
        return 0;
    ask_t boots = *ask; /* with the watts of nodes that boot for the job, if they are more than its own */
    boots.uw = boot_uw(u);
    return boots.uw <= ask->uw || sums_lacks_s(s, 0, now_s, &boots) == INT64_MAX;
}

/****************************************************************
 * A pass
 ****************************************************************/

static void begin(scheduler_t *s, int64_t now_s)
{
    on_nodes_t *u = s->on_nodes;
    int32_t k = caps_after(&s->caps, now_s);
    int64_t cap_uw = s->caps.uw[k ? k - 1 : 0];
    s->free_in_pass = INT64_MAX; /* a job need not have cores */
    u->changes = k < s->caps.n;
    if (u->choices && cap_uw != u->cap_uw)
        choices_cap(s, cap_uw);
    u->version += cap_uw != u->cap_uw;
    u->cap_uw = cap_uw;
    if (u->model.ways.n_tables)
        return;
    u->drawn_uw = 0; /* watts may have been metered since */
    for (int32_t i = 0; i < u->n_in_order; i++)
        u->drawn_uw += u->model.counted_uw[u->in_order[i]];
    u->version++;
    follow(u, now_s);
}

static int start_head(scheduler_t *s, int64_t now_s, const waiting_t *head)
{
    on_nodes_t *u = s->on_nodes;
    int32_t row = u->head_row = u->choices ? choices_row(s, now_s, head->job) : NO_ROW;
    if (u->choices && !choices_fit_now(s, now_s, head->job, row))
        return 0;
    const ask_t ask = ask_of(s, head->job, row);
    return fits_now(s, now_s, head->job, &ask, 0) ? start(s, now_s, head->job, row, &ask) : 0;
}

/* With room for the smallest way to run a job of any width may be tried; their widths are not known yet. */
static void bound(const scheduler_t *s, offer_t *offer)
{
    offer->widest = s->on_nodes->choices && !choices_any_fits(s) ? -1 : INT64_MAX;
    offer->widest_late = INT64_MAX;
}

/* Nodes and watts for the head at the earliest time that expected ends and the cap allow. A head that waits for another
 * row than the chosen one, which never has room, gets the nodes to itself; one that cannot start at these watts has
 * nothing. */
static void reserve(scheduler_t *s, int64_t now_s, const waiting_t *head, offer_t *offer)
{
    on_nodes_t *u = s->on_nodes;
    int32_t ends = 0, given = 0;
    int64_t at_s = now_s;

    bound(s, offer);
    if (!head)
        return;
    if (u->choices && u->head_row == NO_ROW) {
        offer->widest = choices_alone(s, now_s, head->job) ? -1 : offer->widest;
        return;
    }
    const ask_t ask = ask_of(s, head->job, u->head_row);
    memcpy(u->spare, u->free, (size_t)u->model.n_nodes * NODE_KINDS * sizeof *u->spare);
    while ((at_s = sums_earliest_s(s, at_s, &ends, &ask)) < INT64_MAX) {
        for (; given < ends; given++) {
            int32_t job = s->running[given].job;
            const ask_t ended = components_of(u, job);
            node_room_change_all(&ended, u->spare, u->placed + u->first[job], u->count[job], 1);
        }
        u->spare_uw = sums_least_left_uw(s, ends, at_s, &ask) - ask.uw;
        if (place(u, u->spare, head->job, &ask)) {
            u->spare_uw -= greatest(boot_uw(u) - ask.uw, 0);
            if (u->spare_uw >= 0)
                break;
        }
        at_s = scheduler_next_change(s, at_s, ends);
        ends = sums_ended_by(s, at_s, ends);
    }
    if (at_s == INT64_MAX) {
        offer->widest = u->choices && choices_alone(s, now_s, head->job) ? -1 : offer->widest;
        return;
    }
    node_room_change_all(&ask, u->spare, u->found, u->n_found, -1);
    offer->reserved.at_s = at_s;
    offer->late_s = at_s - now_s;
}

static const waiting_t *first_likely(scheduler_t *s, int64_t now_s, const waiting_t *next, const waiting_t *stop)
{
    if (s->on_nodes->choices)
        return choices_first_likely(s, now_s, next, stop);
    while (next < stop && (s->has_started[next->job] || next->job == s->queue[s->head].job))
        next++;
    return next;
}

/* A job that is to run into the reservation needs room next to that, too. */
static int start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, offer_t *offer)
{
    on_nodes_t *u = s->on_nodes;
    int64_t head_s = offer->reserved.at_s;
    int32_t job = next->job, row = u->choices ? choices_row_now(s, now_s, job, head_s) : NO_ROW;
    if (u->choices && row == NO_ROW)
        return 0;
    const ask_t ask = ask_of(s, job, row);
    int is_late = head_s < INT64_MAX && now_s + ask.length_s + u->longest_s > head_s;

    if (!fits_now(s, now_s, job, &ask, is_late))
        return 0;
    int64_t uw = greatest(ask.uw, boot_uw(u));
    if (is_late && uw > u->spare_uw)
        return 0;
    if (is_late) {
        node_room_change_all(&ask, u->spare, u->found, u->n_found, -1);
        u->spare_uw -= uw;
    }
    int started = start(s, now_s, job, row, &ask);
    bound(s, offer);
    return started;
}

/* On the nodes chosen, whatever the watts. */
static int start_placed(scheduler_t *s, int64_t now_s, int32_t job, int32_t level)
{
    (void)level;
    const ask_t ask = ask_of(s, job, NO_ROW);
    return place(s->on_nodes, s->on_nodes->free, job, &ask) ? start(s, now_s, job, NO_ROW, &ask) : 0;
}

/****************************************************************
 * What only a live partition does
 ****************************************************************/

int32_t scheduler_place(scheduler_t *s, int32_t job, const placed_t *placed, int32_t count)
{
    on_nodes_t *u = s->on_nodes;
    if (s->has_started[job])
        give_back(s, job);
    memcpy(u->found, placed, (size_t)count * sizeof *placed);
    u->n_found = count;
    return take(s, job, u->choices ? 0 : u->model.admitted_uw[job]) < 0 ? -1 : 0;
}

/* A job in one of several ways has been given a row before; the nodes of others have been said. */
static int adopt(scheduler_t *s, int64_t started_s, int32_t job, int32_t level)
{
    (void)level;
    if (s->since_s)
        s->since_s[job] = started_s;
    const placed_t all = {.node = 0, .count = s->jobs.width[job]};
    return s->on_nodes->choices ? scheduler_place(s, job, &all, 1) : 0;
}

const resources_t NODES = {
    .begin = begin,
    .start_head = start_head,
    .reserve = reserve,
    .start_behind = start_behind,
    .start_placed = start_placed,
    .occupy = occupy,
    .give_back = give_back,
    .adopt = adopt,
    .copy = copy,
    .first_likely = first_likely,
};

/****************************************************************
 * What only a plan does
 ****************************************************************/

void scheduler_set_chosen(scheduler_t *s, const placed_t *chosen)
{
    s->on_nodes->model.planned = chosen;
}

/****************************************************************
 * The record
 ****************************************************************/

const placed_t *scheduler_placed(const scheduler_t *s, int32_t job, int32_t *count)
{
    const on_nodes_t *u = s->on_nodes;
    *count = u->count[job];
    return u->placed + u->first[job];
}

const int64_t *scheduler_room(const scheduler_t *s)
{
    return s->on_nodes->free;
}

const int32_t *scheduler_in_order(const scheduler_t *s, int32_t *count)
{
    *count = s->on_nodes->n_in_order;
    return s->on_nodes->in_order;
}
