#include "idle_nodes.h"

#include <string.h>

enum { BUSY_S = -2, UNDATED_S = -1 }; /* a node's at_s while it is on: not idle; idle since the pass to come */

/****************************************************************
 * Making and unmaking
 ****************************************************************/

nodes_t *nodes_new(memory_t *memory, const idle_off_t *model, int32_t processors, placement_t *warm)
{
    nodes_t *n = column(memory, 1, sizeof *n);
    if (!n)
        return NULL;
    n->memory = memory;
    n->model = *model;
    n->warm = warm;
    n->last_off_s = INT64_MIN;
    n->nodes = column(memory, processors / model->cores, sizeof *n->nodes);
    if (placement_init(&n->cold, memory, processors) < 0)
        return NULL;
    n->cold.begin = n->cold.end = n->cold.room / 2;
    for (int32_t i = 0; i < processors / model->cores; i++)
        n->nodes[i].at_s = BUSY_S;
    return n;
}

/****************************************************************
 * Spans in order of time
 ****************************************************************/

/* Adds a span, or makes the last one longer; behind all that are not later. */
static void put(nodes_t *n, spans_t *s, int64_t at_s, int32_t first, int32_t last)
{
    if (s->begin < s->end && s->spans[s->end - 1].at_s == at_s && s->spans[s->end - 1].last + 1 == first) {
        s->spans[s->end - 1].last = last;
        return;
    }
    if (s->end == s->room && s->begin > s->room / 2) {
        memmove(s->spans, s->spans + s->begin, (size_t)(s->end - s->begin) * sizeof *s->spans);
        s->end -= s->begin;
        s->begin = 0;
    }
    if (s->end == s->room) {
        int32_t room = s->room ? 2 * s->room : 256;
        span_t *spans = resized(n->memory, s->spans, room, sizeof *spans);
        if (!spans) {
            n->has_no_memory = 1;
            return;
        }
        s->spans = spans;
        s->room = room;
    }
    int32_t i = s->end++;
    for (; at_s != UNDATED_S && i > s->begin && s->spans[i - 1].at_s > at_s; i--)
        s->spans[i] = s->spans[i - 1];
    s->spans[i] = (span_t){.at_s = at_s, .first = first, .last = last};
}

static int is_due(const nodes_t *n, const span_t *span, int32_t i)
{
    return n->nodes[i].state == NODE_ON && n->nodes[i].at_s == span->at_s &&
           ((int64_t)i + 1) * n->model.cores <= n->kept;
}

/* How many more nodes are on or boot than are wanted; below 0: so many are missing. */
static int64_t surplus(const nodes_t *n)
{
    const idle_off_t *m = &n->model;
    const kept_on_t *row = n->row ? &m->kept_on[n->row - 1] : NULL;
    int64_t all = n->kept / m->cores, wanted = row ? row->nodes : 0;
    if (row && row->spare && n->n_used + row->spare > wanted)
        wanted = n->n_used + row->spare;
    return all - (n->now.off + n->now.going) / m->cores - (wanted < all ? wanted : all);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t nodes_next(nodes_t *n)
{
    int64_t next_s = n->row < n->model.n_kept_on ? n->model.kept_on[n->row].from_s : INT64_MAX;
    for (; n->timers.begin < n->timers.end; n->timers.begin++) { /* timers whose nodes have all had jobs since */
        span_t *span = &n->timers.spans[n->timers.begin];
        while (span->first <= span->last && !is_due(n, span, span->first))
            span->first++;
        if (span->first <= span->last)
            break;
    }
    if (n->timers.begin < n->timers.end && surplus(n) > 0)
        next_s = earlier(next_s, n->timers.spans[n->timers.begin].at_s + n->model.idle_off_s);
    if (n->changes.begin < n->changes.end)
        next_s = earlier(next_s, n->changes.spans[n->changes.begin].at_s);
    return next_s;
}

/****************************************************************
 * What happens to a node
 ****************************************************************/

static void boot(nodes_t *n, int32_t i, int64_t from_s)
{
    n->nodes[i].state = NODE_BOOTING;
    n->nodes[i].at_s = from_s + n->model.boot_s;
    n->now.booting += n->model.cores;
    n->boots++;
    put(n, &n->changes, n->nodes[i].at_s, i, i);
}

static void be_idle(nodes_t *n, int32_t i, int64_t since_s)
{
    n->nodes[i].at_s = since_s;
    put(n, &n->timers, since_s, i, i);
}

static void make_warm(nodes_t *n, int32_t first, int32_t last)
{
    int32_t cores = n->model.cores;
    n->n_cold -= placement_move(&n->cold, n->warm, first * cores, last * cores + cores - 1);
}

static void begin_rows(nodes_t *n, int64_t now_s)
{
    while (n->row < n->model.n_kept_on && n->model.kept_on[n->row].from_s <= now_s)
        n->row++;
}

void nodes_settle(nodes_t *n, int64_t now_s)
{
    int64_t cores = n->model.cores;
    begin_rows(n, now_s);
    while (n->changes.begin < n->changes.end && n->changes.spans[n->changes.begin].at_s <= now_s) {
        span_t span = n->changes.spans[n->changes.begin++];
        int32_t first_on = span.last + 1; /* of a run of nodes that are on now */
        for (int32_t i = span.first; i <= span.last; i++) {
            node_t *node = &n->nodes[i];
            int is_now = node->at_s == span.at_s, is_on = is_now && node->state == NODE_BOOTING;
            if (is_now && node->state == NODE_GOING) {
                n->now.going -= cores;
                if (node->used) {
                    boot(n, i, span.at_s);
                } else {
                    node->state = NODE_OFF;
                    n->now.off += cores;
                }
            } else if (is_on) {
                node->state = NODE_ON;
                n->now.booting -= cores;
                if (node->used) {
                    node->at_s = BUSY_S;
                    n->waking -= cores;
                } else {
                    nodes_date(n, now_s); /* undated spans stay the last ones */
                    be_idle(n, i, span.at_s);
                }
                first_on = i < first_on ? i : first_on;
            }
            if (first_on <= span.last && (!is_on || i == span.last)) {
                make_warm(n, first_on, is_on ? i : i - 1);
                first_on = span.last + 1;
            }
        }
    }
}

void nodes_follow(nodes_t *n, int64_t now_s, int64_t kept)
{
    int64_t cores = n->model.cores;
    begin_rows(n, now_s);
    nodes_date(n, now_s);
    for (int64_t i = kept / cores; i < n->kept / cores; i++) { /* the plan's from now on */
        node_t *node = &n->nodes[i];
        if (node->used)
            continue;
        n->now.off -= node->state == NODE_OFF ? cores : 0;
        n->now.going -= node->state == NODE_GOING ? cores : 0;
        node->state = NODE_ON;
        node->at_s = BUSY_S;
    }
    if (kept < n->kept)
        make_warm(n, (int32_t)(kept / cores), (int32_t)(n->kept / cores) - 1);
    for (int64_t i = n->kept / cores; i < kept / cores; i++)
        if (!n->nodes[i].used)
            be_idle(n, (int32_t)i, now_s);
    n->kept = kept;
}

void nodes_date(nodes_t *n, int64_t now_s)
{
    for (; n->n_undated; n->n_undated--) {
        span_t *span = &n->timers.spans[n->timers.end - n->n_undated];
        span->at_s = now_s;
        for (int32_t i = span->first; i <= span->last; i++)
            if (n->nodes[i].at_s == UNDATED_S)
                n->nodes[i].at_s = now_s;
    }
}

/****************************************************************
 * Jobs
 ****************************************************************/

int64_t nodes_ready_s(const nodes_t *n, int64_t now_s)
{
    return (n->last_off_s > now_s ? n->last_off_s : now_s) + n->model.boot_s;
}

void nodes_take(nodes_t *n, int64_t now_s, const interval_t *intervals, int32_t count, int64_t *begins_s,
                int64_t *woken)
{
    int32_t cores = n->model.cores;
    *begins_s = now_s;
    *woken = 0;
    for (; count; count--, intervals++)
        for (int32_t i = intervals->first / cores, end = intervals->last / cores; i <= end; i++) {
            node_t *node = &n->nodes[i];
            int32_t first = i * cores, last = first + cores - 1;
            int is_first = !node->used;
            int64_t ready_s = now_s;
            n->n_used += is_first;
            node->used += (last < intervals->last ? last : intervals->last) -
                          (first > intervals->first ? first : intervals->first) + 1;
            if (node->state == NODE_ON) {
                node->at_s = BUSY_S;
                continue;
            }
            if (is_first) {
                *woken += cores;
                n->waking += cores;
            }
            if (node->state == NODE_OFF) {
                n->now.off -= cores;
                boot(n, i, now_s);
            }
            ready_s = node->at_s + (node->state == NODE_GOING ? n->model.boot_s : 0);
            *begins_s = ready_s > *begins_s ? ready_s : *begins_s;
        }
}

/* A job has left the node's last processor. */
static void be_left(nodes_t *n, int32_t i)
{
    node_t *node = &n->nodes[i];
    int32_t cores = n->model.cores;
    n->n_used--;
    if (node->state != NODE_ON) {
        n->waking -= cores;
        n->now.booting -= node->state == NODE_BOOTING ? cores : 0;
    }
    if ((int64_t)(i + 1) * cores > n->kept) {
        n->now.going -= node->state == NODE_GOING ? cores : 0;
        node->state = NODE_ON;
        node->at_s = BUSY_S;
        make_warm(n, i, i);
    } else if (node->state == NODE_BOOTING) {
        node->state = NODE_OFF;
        n->now.off += cores;
    } else if (node->state == NODE_ON) {
        int32_t spans = n->timers.end - n->timers.begin;
        be_idle(n, i, UNDATED_S);
        n->n_undated += n->timers.end - n->timers.begin - spans;
    }
}

/* A job leaves these processors. Whether all their nodes are on. */
static int leave(nodes_t *n, interval_t left)
{
    int32_t cores = n->model.cores, end = left.last / cores;
    int is_warm = 1;
    for (int32_t i = left.first / cores; i <= end; i++) {
        node_t *node = &n->nodes[i];
        int32_t first = i * cores, last = first + cores - 1;
        node->used -= (last < left.last ? last : left.last) - (first > left.first ? first : left.first) + 1;
        if (!node->used)
            be_left(n, i);
        is_warm &= node->state == NODE_ON;
    }
    return is_warm;
}

void nodes_give_back(nodes_t *n, const interval_t *intervals, int32_t count)
{
    int32_t from = 0; /* these are warm and ascend, and are given back together */
    for (int32_t i = 0; i < count; i++) {
        int is_warm = leave(n, intervals[i]);
        if (i > from && (!is_warm || intervals[i].first < intervals[i - 1].first)) {
            placement_give_back(n->warm, intervals + from, i - from);
            from = i;
        }
        if (!is_warm) {
            placement_give_back(&n->cold, &intervals[i], 1);
            n->n_cold += intervals[i].last - intervals[i].first + 1;
            for (int32_t k = intervals[i].first / n->model.cores; k <= intervals[i].last / n->model.cores; k++)
                if (n->nodes[k].state == NODE_ON)
                    make_warm(n, k, k);
            from = i + 1;
        }
    }
    if (from < count)
        placement_give_back(n->warm, intervals + from, count - from);
}

/****************************************************************
 * Idle nodes
 ****************************************************************/

int64_t nodes_due(const nodes_t *n, int64_t now_s)
{
    int64_t due = 0;
    for (int32_t k = n->timers.begin; k < n->timers.end; k++) {
        const span_t *span = &n->timers.spans[k];
        if (span->at_s + n->model.idle_off_s > now_s)
            break;
        for (int32_t i = span->first; i <= span->last; i++)
            due += is_due(n, span, i);
    }
    int64_t most = surplus(n);
    return (due < most ? due : most > 0 ? most : 0) * n->model.cores;
}

void nodes_go(nodes_t *n, int64_t now_s, int is_allowed)
{
    int32_t cores = n->model.cores;
    int64_t most = surplus(n);
    while (most > 0 && n->timers.begin < n->timers.end &&
           n->timers.spans[n->timers.begin].at_s + n->model.idle_off_s <= now_s) {
        span_t span = n->timers.spans[n->timers.begin++];
        for (int32_t i = span.first; i <= span.last; i++) {
            int32_t first = i;
            for (; most > 0 && i <= span.last && is_due(n, &span, i); i++, most--) {
                if (is_allowed) {
                    n->nodes[i].at_s = now_s + n->model.switch_off_s;
                    n->nodes[i].state = NODE_GOING;
                } else {
                    be_idle(n, i, now_s);
                }
            }
            if (i > first && is_allowed) {
                n->last_off_s = now_s + n->model.switch_off_s;
                n->now.going += (int64_t)(i - first) * cores;
                n->n_cold += placement_move(n->warm, &n->cold, first * cores, i * cores - 1);
                put(n, &n->changes, n->last_off_s, first, i - 1);
            }
            if (!most && i <= span.last) { /* the others stay on as long as they are wanted */
                put(n, &n->timers, span.at_s, i, span.last);
                break;
            }
        }
    }
}

void nodes_keep(nodes_t *n, int64_t now_s)
{
    int64_t missing = -surplus(n);
    for (int32_t i = 0; missing > 0 && (int64_t)(i + 1) * n->model.cores <= n->kept; i++)
        if (n->nodes[i].state == NODE_OFF) {
            n->now.off -= n->model.cores;
            boot(n, i, now_s);
            missing--;
        }
}
