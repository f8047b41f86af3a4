/*
 * Serial schedules of orders, many of them (serial schedule generation: Kelley 1963; Kolisch, EJOR 90, 1996).
 *
 * What is free over time is a line of spans, in each of which nothing changes. Each node has a line, and all nodes
 * together have one, with the watts under the cap. Where the line of all has no room, no nodes have: a job walks along it
 * once, and only where it fits are nodes looked for, over its whole span. A node without room for a unit is looked at
 * again once it has some, and a job without nodes tries again once enough nodes may have more. What is placed only takes,
 * so no job starts before the time at which it would start as the first of the order: there the walk begins, and from
 * these times comes the bound on what the rest of an order costs at least.
 * An order that begins as the one before it keeps the lines of that begin: the others give back what they took.
 * Cost of an order: O(its changed jobs x (spans of all + nodes x spans of a node)); measured in
 * benchmarks/bridi_tables.py.
 */
#include "resources/serial_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resources/list_plan_inside.h"
#include "resources/span_line.h"
#include "search.h"

/* What a job that is placed has found on a node. */
typedef struct {
    int32_t at, end; /* the spans in which the job would begin, and end */
    int64_t fits;    /* units */
    int64_t more_s;  /* only with none: none fit before then */
} look_t;

/* So many more units that a node may have room for, from then on. */
typedef struct {
    int64_t from_s, units;
} more_t;

struct serial_plan {
    memory_t memory;
    list_situation_t of;
    line_t *nodes, all;
    int64_t *first_s;  /* per position: its start as the first of the order */
    int64_t *start_s;
    int64_t *room;     /* per node and kind: the least over a span */
    placed_t *found;   /* of all positions, n_found so far */
    int64_t n_found, *first;
    int32_t *count;
    uint8_t *split, *split_all; /* per row of `found`, and per position: what is split in the line of the node, and of all */
    int32_t *order, n_done;     /* whose jobs are in the lines */
    int64_t *since_s;           /* per place in the order: before when its job could not start */
    node_room_t *candidates;
    look_t *looks;     /* per node */
    more_t *more;      /* per node */
};

/****************************************************************
 * The machine with the running jobs alone
 ****************************************************************/

static int64_t above_0(int64_t amount)
{
    return amount > 0 ? amount : 0;
}

static void give_back(serial_plan_t *p, line_t *line, int64_t at_s, const int64_t *need, int64_t units)
{
    int32_t i = line_split(&p->memory, line, at_s);
    for (; i >= 0 && i < line->count; i++)
        for (int32_t kind = 0; kind < NODE_KINDS; kind++)
            line->spans[i].left[kind] += units * need[kind];
}

static void lines_of_nodes(serial_plan_t *p)
{
    const list_situation_t *of = &p->of;
    for (int32_t node = 0; node < of->model.n_nodes; node++)
        if (line_new(&p->memory, &p->nodes[node], of->now_s, of->free + (int64_t)node * NODE_KINDS) < 0)
            return;
    for (int32_t i = 0; i < of->n_running; i++)
        for (int64_t at = of->placed_first[i]; at < of->placed_first[i + 1]; at++)
            give_back(p, &p->nodes[of->placed[at].node], of->end_s[i], of->running_need + (int64_t)i * NODE_KINDS,
                      of->placed[at].count);
}

/* The sums over the nodes, first as changes. A node that has less than nothing takes nothing from the others. */
static void line_of_all(serial_plan_t *p)
{
    const list_situation_t *of = &p->of;
    const caps_t *caps = &of->model.caps;
    const int64_t none[NODE_KINDS] = {0};
    line_t *all = &p->all;

    if (line_new(&p->memory, all, of->now_s, none) < 0)
        return;
    for (int32_t i = 0; i < of->n_running; i++)
        line_split(&p->memory, all, of->end_s[i]);
    for (int32_t k = caps_after(caps, of->now_s); k < caps->n; k++)
        line_split(&p->memory, all, caps->from_s[k]);
    if (p->memory.is_short)
        return;
    for (int32_t node = 0; node < of->model.n_nodes; node++)
        for (int32_t i = 0; i < p->nodes[node].count; i++) {
            const span_t *span = &p->nodes[node].spans[i];
            span_t *sum = &all->spans[line_at(all, span->from_s)];
            for (int32_t kind = 0; kind < NODE_KINDS; kind++)
                sum->left[kind] += above_0(span->left[kind]) - (i ? above_0(span[-1].left[kind]) : 0);
        }
    for (int32_t i = 0; i < of->n_running; i++) {
        all->spans[0].left[WATTS] -= of->running_uw[i];
        all->spans[line_at(all, of->end_s[i])].left[WATTS] += of->running_uw[i];
    }
    for (int32_t i = 1; i < all->count; i++)
        for (int32_t kind = 0; kind < COLUMNS; kind++)
            all->spans[i].left[kind] += all->spans[i - 1].left[kind];
    for (int32_t i = 0; i < all->count; i++)
        all->spans[i].left[WATTS] += caps_at(caps, all->spans[i].from_s);
}

/****************************************************************
 * A job's place
 ****************************************************************/

static int fits(const span_t *span, const int64_t *wanted)
{
    for (int32_t kind = 0; kind < COLUMNS; kind++)
        if (wanted[kind] > span->left[kind])
            return 0;
    return 1;
}

/* From when on, `at_s` or later, this is left for so long; span `i` contains `at_s`. INT64_MAX: never. */
static int64_t line_earliest(const line_t *line, int32_t i, int64_t at_s, int64_t length_s, const int64_t *wanted)
{
    for (; i < line->count && line->spans[i].from_s - at_s < length_s; i++)
        if (!fits(&line->spans[i], wanted))
            at_s = i + 1 < line->count ? line->spans[i + 1].from_s : INT64_MAX;
    return at_s;
}

/* What a component takes as so many units. */
static void amount(const ask_t *ask, int32_t component, int64_t units, int64_t uw, int64_t *taken)
{
    for (int32_t kind = 0; kind < NODE_KINDS; kind++)
        taken[kind] = units * ask->need[(int64_t)component * NODE_KINDS + kind];
    taken[WATTS] = uw;
}

/* What the whole job takes. */
static void amount_of_all(const ask_t *ask, int64_t *taken)
{
    int64_t more[COLUMNS];
    amount(ask, 0, ask->each[0], ask->uw, taken);
    for (int32_t k = 1; k < ask->n; k++) {
        amount(ask, k, ask->each[k], 0, more);
        for (int32_t kind = 0; kind < COLUMNS; kind++)
            taken[kind] += more[kind];
    }
}

/* What a span needs to have left for that: of what is not taken it may have less than nothing. */
static void wanted_for(int64_t *taken)
{
    for (int32_t kind = 0; kind < NODE_KINDS; kind++)
        taken[kind] = taken[kind] > 0 ? taken[kind] : INT64_MIN;
}

/* How many units have room on the node from `at_s` on, if it may be more than none. */
static int64_t look(serial_plan_t *p, int32_t node, int64_t at_s, const ask_t *ask, const int64_t *wanted)
{
    const line_t *line = &p->nodes[node];
    look_t *found = &p->looks[node];
    int64_t *room = p->room + (int64_t)node * NODE_KINDS;

    if (found->more_s > at_s)
        return 0;
    found->at = FIRST(i, found->at + 1, line->count, line->spans[i].from_s > at_s) - 1;
    found->more_s = line_earliest(line, found->at, at_s, ask->length_s, wanted);
    if (found->more_s > at_s) {
        memset(room, 0, NODE_KINDS * sizeof *room);
        return found->fits = 0;
    }
    found->end = line_least(line, found->at, at_s + ask->length_s, room);
    return found->fits = node_room_units(room, ask->need, ask->units);
}

/* Finds nodes for the job from `at_s` on; how many: 0, and *missing units, if there is no room. */
static int32_t nodes_at(serial_plan_t *p, int64_t at_s, const ask_t *ask, const int64_t *wanted, int64_t *missing)
{
    node_model_t looked_at = p->of.model;
    int32_t node = 0;
    *missing = ask->units;
    while (node < p->of.model.n_nodes && (*missing > 0 || looked_at.placing != PLACE_FIRST))
        *missing -= look(p, node++, at_s, ask, wanted);
    if (*missing > 0)
        return 0;
    looked_at.n_nodes = node; /* the others are not needed */
    return node_room_find(&looked_at, p->room, ask, NULL, p->candidates, p->found + p->n_found);
}

/* The first time from which on the node may have room for more units than it has now; INT64_MAX: never. */
static int64_t more_from_s(const serial_plan_t *p, int32_t node, const ask_t *ask)
{
    const line_t *line = &p->nodes[node];
    const look_t *found = &p->looks[node];
    int32_t i = found->end;
    if (!found->fits)
        return found->more_s;
    while (node_room_units(line->spans[i].left, ask->need, found->fits + 1) > found->fits)
        i--;
    return i + 1 < line->count ? line->spans[i + 1].from_s : INT64_MAX;
}

/* The job lacks room for so many units; before the time returned no start has it. A node has room for more only once the
 * last span with so little has gone by, and never for more than when all running jobs have ended. */
static int64_t enough_s(const serial_plan_t *p, const ask_t *ask, int64_t missing)
{
    more_t *more = p->more; /* by time, the earliest that are enough */
    int64_t sum = 0;
    int32_t n = 0;
    for (int32_t node = 0; node < p->of.model.n_nodes; node++) {
        const line_t *line = &p->nodes[node];
        more_t one = {.from_s = more_from_s(p, node, ask)};
        if (one.from_s == INT64_MAX || (sum >= missing && one.from_s >= more[n - 1].from_s))
            continue;
        one.units = node_room_units(line->before[line->n_before - 1].left, ask->need, ask->units) - p->looks[node].fits;
        int32_t at = n++;
        for (; at > 0 && more[at - 1].from_s > one.from_s; at--)
            more[at] = more[at - 1];
        more[at] = one;
        for (sum += one.units; sum - more[n - 1].units >= missing; n--)
            sum -= more[n - 1].units;
    }
    return sum >= missing ? more[n - 1].from_s : INT64_MAX;
}

/* Before when the job must not start; the caller may move it between two orders. */
static int64_t release_s(const serial_plan_t *p, int32_t job)
{
    return p->of.release_s ? p->of.release_s[job] : 0;
}

/* The same for several components: each is looked for next to those before it. */
static int32_t nodes_together(serial_plan_t *p, int64_t at_s, const ask_t *ask)
{
    for (int32_t node = 0; node < p->of.model.n_nodes; node++) {
        const line_t *line = &p->nodes[node];
        line_least(line, line_at(line, at_s), at_s + ask->length_s, p->room + (int64_t)node * NODE_KINDS);
    }
    return node_room_find(&p->of.model, p->room, ask, NULL, p->candidates, p->found + p->n_found);
}

/* When a span begins next, on any node; INT64_MAX: never. There a job with several components tries again. */
static int64_t next_span_s(const serial_plan_t *p, int64_t at_s)
{
    int64_t next_s = INT64_MAX;
    for (int32_t node = 0; node < p->of.model.n_nodes; node++) {
        const line_t *line = &p->nodes[node];
        int32_t i = line_at(line, at_s) + 1;
        if (i < line->count && line->spans[i].from_s < next_s)
            next_s = line->spans[i].from_s;
    }
    return next_s;
}

/* The earliest start from `from_s` on, INT64_MAX: never; its nodes are found. */
static int64_t earliest(serial_plan_t *p, int32_t job, int64_t from_s)
{
    const ask_t ask = list_plan_ask(&p->of, job);
    int64_t in_sum[COLUMNS], on_node[COLUMNS], missing = 0;
    amount_of_all(&ask, in_sum);
    wanted_for(in_sum);
    amount(&ask, 0, 1, INT64_MIN, on_node);
    wanted_for(on_node);
    memset(p->looks, 0, (size_t)p->of.model.n_nodes * sizeof *p->looks);
    if (release_s(p, job) > from_s)
        from_s = release_s(p, job);
    for (; from_s < INT64_MAX; from_s = ask.n > 1 ? next_span_s(p, from_s) : enough_s(p, &ask, missing)) {
        from_s = line_earliest(&p->all, line_at(&p->all, from_s), from_s, ask.length_s, in_sum);
        if (from_s == INT64_MAX || (p->of.until_s && from_s >= p->of.until_s))
            break;
        p->count[job] = ask.n > 1 ? nodes_together(p, from_s, &ask) : nodes_at(p, from_s, &ask, on_node, &missing);
        if (p->count[job])
            return from_s;
    }
    return INT64_MAX;
}

static void take(serial_plan_t *p, int32_t job)
{
    const ask_t ask = list_plan_ask(&p->of, job);
    int64_t from_s = p->start_s[job], to_s = from_s + ask.length_s, taken[COLUMNS];

    amount_of_all(&ask, taken);
    p->split_all[job] = line_take(&p->memory, &p->all, from_s, to_s, taken);
    int64_t i = p->first[job] = p->n_found;
    p->n_found += p->count[job];
    for (int32_t k = 0; k < ask.n; k++)
        for (int64_t end = i + node_room_of(&ask, k, p->found + i, (int32_t)(p->n_found - i)); i < end; i++) {
            amount(&ask, k, p->found[i].count, 0, taken);
            p->split[i] = line_take(&p->memory, &p->nodes[p->found[i].node], from_s, to_s, taken);
        }
}

/* The reverse, of the last job that took. Where two of its components are on one node, the first has split the spans. */
static void give(serial_plan_t *p, int32_t job)
{
    const ask_t ask = list_plan_ask(&p->of, job);
    int64_t from_s = p->start_s[job], to_s = from_s + ask.length_s, taken[COLUMNS];

    amount_of_all(&ask, taken);
    line_give(&p->all, from_s, to_s, taken, p->split_all[job]);
    for (int32_t k = ask.n - 1; k >= 0; k--)
        for (int64_t left = ask.each[k]; left > 0;) {
            const placed_t *one = &p->found[--p->n_found];
            amount(&ask, k, one->count, 0, taken);
            line_give(&p->nodes[one->node], from_s, to_s, taken, p->split[p->n_found]);
            left -= one->count;
        }
}

/****************************************************************
 * Making and unmaking
 ****************************************************************/

serial_plan_t *serial_plan_new(const list_situation_t *of)
{
    serial_plan_t *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->of = *of;
    p->nodes = column(&p->memory, of->model.n_nodes, sizeof *p->nodes);
    p->first_s = column(&p->memory, of->n_waiting, sizeof *p->first_s);
    p->start_s = column(&p->memory, of->n_waiting, sizeof *p->start_s);
    p->room = column(&p->memory, of->model.n_nodes * NODE_KINDS, sizeof *p->room);
    p->first = column(&p->memory, of->n_waiting, sizeof *p->first);
    p->count = column(&p->memory, of->n_waiting, sizeof *p->count);
    p->found = column(&p->memory, list_plan_most_placed(of), sizeof *p->found);
    p->split = column(&p->memory, list_plan_most_placed(of), sizeof *p->split);
    p->split_all = column(&p->memory, of->n_waiting, sizeof *p->split_all);
    p->order = column(&p->memory, of->n_waiting, sizeof *p->order);
    p->since_s = column(&p->memory, of->n_waiting, sizeof *p->since_s);
    p->looks = column(&p->memory, of->model.n_nodes, sizeof *p->looks);
    p->more = column(&p->memory, of->model.n_nodes, sizeof *p->more);
    p->candidates = column(&p->memory, of->model.n_nodes, sizeof *p->candidates);
    if (!p->memory.is_short)
        lines_of_nodes(p);
    if (!p->memory.is_short)
        line_of_all(p);
    for (int32_t node = 0; !p->memory.is_short && node < of->model.n_nodes; node++)
        line_keep(&p->memory, &p->nodes[node]);
    if (!p->memory.is_short)
        line_keep(&p->memory, &p->all);
    if (p->memory.is_short) {
        serial_plan_free(p);
        return NULL;
    }
    for (int32_t job = 0; job < of->n_waiting; job++)
        p->first_s[job] = earliest(p, job, of->now_s);
    return p;
}

void serial_plan_free(serial_plan_t *p)
{
    if (p)
        memory_free(&p->memory);
    free(p);
}

/****************************************************************
 * The schedule
 ****************************************************************/

/* The lines as with the first `kept` jobs of their order alone. */
static void go_back(serial_plan_t *p, int32_t kept)
{
    while (kept && p->n_done > kept) {
        int32_t job = p->order[--p->n_done];
        if (p->count[job])
            give(p, job);
    }
    if (kept)
        return;
    for (int32_t node = 0; node < p->of.model.n_nodes; node++)
        line_reset(&p->nodes[node]);
    line_reset(&p->all);
    p->n_done = 0;
    p->n_found = 0;
}

static void place(serial_plan_t *p, int32_t job)
{
    p->start_s[job] = p->first_s[job] < INT64_MAX ? earliest(p, job, p->first_s[job]) : INT64_MAX;
    p->count[job] = p->start_s[job] < INT64_MAX ? p->count[job] : 0;
    if (p->count[job])
        take(p, job);
    p->since_s[p->n_done] = release_s(p, job);
    p->order[p->n_done++] = job;
}

double serial_plan_cost(serial_plan_t *p, const int32_t *order, int32_t count, double bound)
{
    double cost = 0.0, rest = 0.0; /* of those that are placed; the least of those that are not */
    int32_t kept = 0;
    int64_t end_s = p->of.now_s;

    while (kept < count && kept < p->n_done && p->order[kept] == order[kept] &&
           p->since_s[kept] == release_s(p, order[kept]))
        kept++;
    go_back(p, kept);
    for (int32_t i = 0; i < count; i++)
        rest += list_plan_cost_of(&p->of, order[i], p->first_s[order[i]]);
    for (int32_t i = 0; i < count; i++) {
        int32_t job = order[i];
        rest -= list_plan_cost_of(&p->of, job, p->first_s[job]);
        if (i >= kept)
            place(p, job);
        cost += list_plan_cost_of(&p->of, job, p->start_s[job]);
        if (p->memory.is_short)
            return -1.0;
        if (p->start_s[job] == INT64_MAX)
            end_s = INT64_MAX;
        else if (end_s < p->start_s[job] + p->of.span_s[job])
            end_s = p->start_s[job] + p->of.span_s[job];
        if (cost + rest + list_plan_cost_of_end(&p->of, end_s) >= bound)
            return INFINITY;
    }
    return cost + list_plan_cost_of_end(&p->of, end_s);
}

const int64_t *serial_plan_start_s(const serial_plan_t *p)
{
    return p->start_s;
}

const placed_t *serial_plan_placed(const serial_plan_t *p, int32_t position, int32_t *count)
{
    *count = p->count[position];
    return p->found + p->first[position];
}
