/*
 * In which of its ways a job is to run: the rules of RMAP and of REGALE D2.3, applied in every pass to each waiting job.
 *
 * A way is a row of nodes, watts and time; what all nodes have is one group, so there is room for a row if nodes and
 * watts suffice in sum. What was found for a kind of job, a table or a row is kept until a job starts or ends, so a pass
 * over a long queue costs O(kinds of jobs + rows), and a compare for each job.
 */
#include <math.h>
#include <stdlib.h>

#include "resources/node_inside.h"

enum { UNKNOWN = -2 };

/* Values that stay the same until a job starts or ends. */
typedef struct {
    int64_t version;
    int32_t value;
} known_t;

/* CHOOSE_STOCK: a job of this table whose scale is above `scale` does not start now; `fastest` is the fastest row that
 * fits now. */
typedef struct {
    int64_t version, now_s;
    double scale;
    int32_t fastest;
} reach_t;

struct choices {
    double cluster_w; /* the cap in force */
    int64_t least_uw; /* of any row, and the fewest nodes */
    int32_t least_nodes;
    int32_t *wanted;  /* per kind: the row that its share of the watts pays for on an empty cluster; UNKNOWN */
    known_t *fits;    /* per kind: the fastest row that fits now */
    known_t *after;   /* per row: how many running jobs have to end before there is room, if no cap changes */
    reach_t *reach;   /* per table */
};

const int64_t ONE_PLACE[NODE_KINDS] = {1};

/****************************************************************
 * Making and unmaking
 ****************************************************************/

int choices_new(scheduler_t *s)
{
    const ways_t *w = &s->on_nodes->model.ways;
    int32_t n_rows = w->first[w->n_tables];
    choices_t *c = s->on_nodes->choices = column(&s->memory, 1, sizeof *c);
    if (!c)
        return -1;
    s->phases.correct = correct_at_any_moment;
    s->phases.backfill = BACKFILLS[BACKFILL_EASY];
    c->wanted = column(&s->memory, w->n_kinds, sizeof *c->wanted);
    c->fits = column(&s->memory, w->n_kinds, sizeof *c->fits);
    c->after = column(&s->memory, n_rows, sizeof *c->after);
    c->reach = column(&s->memory, w->n_tables, sizeof *c->reach);
    if (s->memory.is_short)
        return -1;
    c->least_nodes = n_rows ? INT32_MAX : 0;
    c->least_uw = n_rows ? INT64_MAX : 0;
    for (int32_t row = 0; row < n_rows; row++) {
        c->least_nodes = (int32_t)least(c->least_nodes, w->rows[row].nodes);
        c->least_uw = least(c->least_uw, w->rows[row].uw);
    }
    s->phases.resources->begin(s, 0);
    return 0;
}

void choices_cap(scheduler_t *s, int64_t cap_uw)
{
    choices_t *c = s->on_nodes->choices;
    c->cluster_w = cap_uw == NO_CAP ? INFINITY : (double)cap_uw / 1e6;
    for (int32_t kind = 0; kind < s->on_nodes->model.ways.n_kinds; kind++)
        c->wanted[kind] = UNKNOWN;
}

/****************************************************************
 * Room for a row
 ****************************************************************/

static int fits(const configuration_t *row, int64_t nodes, int64_t uw)
{
    return row->nodes <= nodes && row->uw <= uw;
}

static int64_t free_uw(const scheduler_t *s)
{
    return s->on_nodes->cap_uw - s->on_nodes->drawn_uw;
}

/* The engine counts whole seconds. */
static int64_t whole_s(double time_s)
{
    int64_t length_s = (int64_t)ceil(time_s - 1e-9);
    return length_s > 1 ? length_s : 1;
}

static int64_t length_s(const ways_t *w, int32_t job, int32_t row)
{
    return whole_s(w->rows[row].time_s * w->scale[job]);
}

ask_t choices_ask(const scheduler_t *s, int32_t job, int32_t row)
{
    const ways_t *w = &s->on_nodes->model.ways;
    return (ask_t){.units = w->rows[row].nodes, .uw = w->rows[row].uw, .length_s = length_s(w, job, row),
                   .n = 1, .need = ONE_PLACE};
}

int choices_any_fits(const scheduler_t *s)
{
    const choices_t *c = s->on_nodes->choices;
    return s->free >= c->least_nodes && free_uw(s) >= c->least_uw;
}

static inline int fits_now(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    if (row == NO_ROW || !fits(&s->on_nodes->model.ways.rows[row], s->free, free_uw(s)))
        return 0;
    if (!s->on_nodes->changes)
        return 1;
    const ask_t ask = choices_ask(s, job, row);
    return sums_lacks_s(s, 0, now_s, &ask) == INT64_MAX;
}

int choices_fit_now(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    return fits_now(s, now_s, job, row);
}

static inline int64_t earliest_s(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    const on_nodes_t *u = s->on_nodes;
    known_t *known = &u->choices->after[row];
    if (u->changes) {
        const ask_t ask = choices_ask(s, job, row);
        int32_t ends = 0;
        return sums_earliest_s(s, now_s, &ends, &ask);
    }
    if (known->version != u->version) {
        const configuration_t *one = &u->model.ways.rows[row];
        *known = (known_t){.version = u->version, .value = sums_ends_for(s, 0, one->nodes, one->uw)};
    }
    if (known->value > s->n_running)
        return INT64_MAX;
    return known->value ? s->running[known->value - 1].expected_end_s : now_s;
}

/****************************************************************
 * RMAP's choices (Patki et al., HPDC 2015)
 ****************************************************************/

/* The requested nodes with all cores at the highest cap, or as many of them as the cluster's watts allow. */
static int32_t traditional(const scheduler_t *s, int32_t job)
{
    const ways_t *m = &s->on_nodes->model.ways;
    int32_t found = NO_ROW;
    for (int32_t i = m->first[m->table[job]]; i < m->first[m->table[job] + 1]; i++) {
        const configuration_t *row = &m->rows[i];
        if (row->is_full && row->watts <= s->on_nodes->choices->cluster_w && row->nodes <= m->requested[job] &&
            (found == NO_ROW || row->nodes > m->rows[found].nodes))
            found = i;
    }
    return found;
}

/* The fastest row within watts and nodes; of those as fast up to `near` the one with fewest watts, then nodes.
 * `now_s`: when it has to fit; NO_ROW: it need not. */
static int32_t best(scheduler_t *s, int64_t now_s, int32_t job, double bound_w, int64_t most_nodes)
{
    const ways_t *m = &s->on_nodes->model.ways;
    const configuration_t *row = m->rows + m->first[m->table[job]], *end = m->rows + m->first[m->table[job] + 1];
    const configuration_t *found = NULL;
    double scale = m->scale[job], limit_s = 0.0;
    for (; row < end; row++) {
        if (row->watts > bound_w || row->nodes > most_nodes ||
            (now_s != NO_ROW && !fits_now(s, now_s, job, (int32_t)(row - m->rows))))
            continue;
        if (!found) {
            found = row;
            if (m->near == 0.0)
                break;
            limit_s = (1 + m->near) * (row->time_s * scale);
            continue;
        }
        if (row->time_s * scale > limit_s)
            break;
        if (row->watts != found->watts ? row->watts < found->watts : row->nodes < found->nodes)
            found = row;
    }
    return found ? (int32_t)(found - m->rows) : NO_ROW;
}

static double fair_share_w(const scheduler_t *s, int32_t job)
{
    const ways_t *m = &s->on_nodes->model.ways;
    return m->priority * m->requested[job] / s->composition.processors * s->on_nodes->choices->cluster_w;
}

/* Without `near`, times do not affect which row is best, so jobs of one kind have the same. */
static int32_t wanted(scheduler_t *s, int32_t job)
{
    const ways_t *m = &s->on_nodes->model.ways;
    int32_t *known = &s->on_nodes->choices->wanted[m->kind[job]];
    if (*known == UNKNOWN || m->near != 0.0)
        *known = m->choose == CHOOSE_TRADITIONAL
                     ? traditional(s, job)
                     : best(s, NO_ROW, job, fair_share_w(s, job), s->composition.processors);
    return *known;
}

static int32_t fastest_now(scheduler_t *s, int64_t now_s, int32_t job, double bound_w)
{
    const on_nodes_t *u = s->on_nodes;
    if (u->model.ways.near != 0.0 || u->changes)
        return best(s, u->changes ? now_s : NO_ROW, job, bound_w, s->free);
    known_t *known = &u->choices->fits[u->model.ways.kind[job]];
    if (known->version != u->version)
        *known = (known_t){.version = u->version, .value = best(s, NO_ROW, job, bound_w, s->free)};
    return known->value;
}

/* Naive's choice if it can start; else the fastest that can, if it is fast enough. */
static int32_t adaptive(scheduler_t *s, int64_t now_s, int32_t job)
{
    const ways_t *m = &s->on_nodes->model.ways;
    int32_t later = wanted(s, job);
    double bound_w = fair_share_w(s, job), free_w = (double)free_uw(s) / 1e6;
    if (later == NO_ROW || (bound_w <= free_w && fits_now(s, now_s, job, later)))
        return later;
    int32_t now = fastest_now(s, now_s, job, bound_w < free_w ? bound_w : free_w);
    if (now == NO_ROW)
        return later;
    double time_s = m->rows[now].time_s * m->scale[job];
    return time_s <= (1 + m->th) * (double)s->jobs.request_s[job] ? now : later;
}

/****************************************************************
 * Choices by the end, waiting included (REGALE D2.3, section 3.1)
 ****************************************************************/

typedef struct {
    double score;
    int64_t end_s; /* from now */
    int32_t row;
} scored_t;

static int is_better(const ways_t *m, const scored_t *a, const scored_t *b)
{
    if (b->row == NO_ROW || a->score != b->score)
        return b->row == NO_ROW || a->score < b->score;
    if (a->end_s != b->end_s)
        return a->end_s < b->end_s;
    return m->rows[a->row].nodes < m->rows[b->row].nodes;
}

/* The row with the lowest score among those that end within `limit_s`; the score is the end, cores x end, or joules. */
static scored_t least_score(scheduler_t *s, int64_t now_s, int32_t job, int32_t choose, double limit_s)
{
    const ways_t *m = &s->on_nodes->model.ways;
    scored_t found = {.row = NO_ROW};
    for (int32_t i = m->first[m->table[job]]; i < m->first[m->table[job] + 1]; i++) {
        int64_t run_s = length_s(m, job, i);
        if ((double)run_s > limit_s || (choose == CHOOSE_STOCK && found.row != NO_ROW && run_s > found.end_s))
            break; /* who runs for longer ends later */
        int64_t start_s = earliest_s(s, now_s, job, i);
        if (start_s == INT64_MAX)
            continue;
        scored_t one = {.row = i, .end_s = start_s - now_s + run_s};
        if ((double)one.end_s > limit_s)
            continue;
        one.score = choose == CHOOSE_STOCK           ? (double)one.end_s
                    : choose == CHOOSE_CORES_ENDTIME ? (double)(m->rows[i].cores * one.end_s)
                                                     : m->rows[i].time_s * m->scale[job] * m->rows[i].watts;
        if (is_better(m, &one, &found))
            found = one;
    }
    return found;
}

static int32_t by_end(scheduler_t *s, int64_t now_s, int32_t job)
{
    const ways_t *m = &s->on_nodes->model.ways;
    if (m->choose != CHOOSE_ENERGY)
        return least_score(s, now_s, job, m->choose, INFINITY).row;
    scored_t first = least_score(s, now_s, job, CHOOSE_STOCK, INFINITY);
    if (first.row == NO_ROW)
        return NO_ROW;
    return least_score(s, now_s, job, CHOOSE_ENERGY, m->slowdown * (double)first.end_s).row;
}

/****************************************************************
 * For a pass
 ****************************************************************/

int32_t choices_row(scheduler_t *s, int64_t now_s, int32_t job)
{
    const ways_t *m = &s->on_nodes->model.ways;
    if (m->choose == CHOOSE_BY_CALLER)
        return m->choose_row(m->context, now_s, job, s->free, free_uw(s));
    if (m->choose > CHOOSE_ADAPTIVE)
        return by_end(s, now_s, job);
    return m->choose == CHOOSE_ADAPTIVE ? adaptive(s, now_s, job) : wanted(s, job);
}

static int starts_now(scheduler_t *s, int64_t now_s, int32_t job)
{
    return fits_now(s, now_s, job, choices_row(s, now_s, job));
}

void choices_start(scheduler_t *s, int32_t job, int32_t row)
{
    ways_t *m = &s->on_nodes->model.ways;
    m->row[job] = row;
    m->width[job] = m->rows[row].nodes;
    m->run_s[job] = whole_s(m->rows[row].true_time_s * m->scale[job]);
    s->estimate_s[job] = length_s(m, job, row);
}

static void look_for_reach(scheduler_t *s, int64_t now_s, int32_t job, reach_t *reach)
{
    const ways_t *m = &s->on_nodes->model.ways;
    int32_t first = m->first[m->table[job]], end = m->first[m->table[job] + 1], now = first;
    while (now < end && !fits(&m->rows[now], s->free, free_uw(s)))
        now++;
    *reach = (reach_t){.version = s->on_nodes->version, .now_s = now_s, .scale = now < end ? INFINITY : 0.0, .fastest = now};
    double least_delay_s = s->n_running ? (double)(s->running[0].expected_end_s - now_s) : INFINITY;
    for (int32_t i = first; i < now && now < end; i++) {
        double gain = m->rows[now].time_s - m->rows[i].time_s; /* less from row to row */
        if (gain <= 0.0 || (least_delay_s + 1.001) / gain >= reach->scale)
            break; /* room for these rows comes with an end */
        int64_t start_s = earliest_s(s, now_s, job, i);
        double delay_s = (double)(start_s - now_s);
        if (start_s < INT64_MAX && (delay_s + 1.001) / gain < reach->scale)
            reach->scale = (delay_s + 1.001) / gain;
    }
}

/*
 * For CHOOSE_STOCK, where every pass would look at the rows of a long queue, a job that certainly does not start now is
 * found without a look at each row. The fastest row that fits now loses against a row that fits after a delay if that
 * row is faster by more than the delay; by how much it is faster is the job's scale times the difference in the table.
 * One second is added for rounding. A row that fits now and does not lose takes as many whole seconds as the fastest;
 * one of these must leave the head what is reserved for it.
 */
static int has_reach(const on_nodes_t *u)
{
    return u->model.ways.choose == CHOOSE_STOCK && !u->changes;
}

static inline const reach_t *reach_of(scheduler_t *s, int64_t now_s, int32_t job)
{
    const on_nodes_t *u = s->on_nodes;
    reach_t *reach = &u->choices->reach[u->model.ways.table[job]];
    if (reach->version != u->version || reach->now_s != now_s)
        look_for_reach(s, now_s, job, reach);
    return reach;
}

const waiting_t *choices_first_likely(scheduler_t *s, int64_t now_s, const waiting_t *next, const waiting_t *stop)
{
    const double *scale = s->on_nodes->model.ways.scale;
    int32_t head = s->queue[s->head].job, is_bounded = has_reach(s->on_nodes);
    for (; next < stop; next++) {
        int32_t job = next->job;
        if (!s->has_started[job] && job != head && (!is_bounded || scale[job] <= reach_of(s, now_s, job)->scale))
            break;
    }
    return next;
}

/* Whether all rows that might start now keep the head from what is reserved for it. */
static int is_late(scheduler_t *s, int64_t now_s, int32_t job, int64_t head_s)
{
    const on_nodes_t *u = s->on_nodes;
    const ways_t *m = &u->model.ways;
    int32_t row = reach_of(s, now_s, job)->fastest, end = m->first[m->table[job] + 1];
    if (row == end)
        return 1;
    int64_t run_s = length_s(m, job, row);
    int late = now_s + run_s > head_s;
    for (; late && row < end && length_s(m, job, row) == run_s; row++)
        late = !fits(&m->rows[row], least(s->free, u->spare[0]), least(free_uw(s), u->spare_uw));
    return late;
}

int32_t choices_row_now(scheduler_t *s, int64_t now_s, int32_t job, int64_t head_s)
{
    if (has_reach(s->on_nodes) && is_late(s, now_s, job, head_s))
        return NO_ROW;
    int32_t row = choices_row(s, now_s, job);
    return fits_now(s, now_s, job, row) ? row : NO_ROW;
}

int choices_alone(scheduler_t *s, int64_t now_s, int32_t job)
{
    on_nodes_t *u = s->on_nodes;
    if (u->changes)
        return 0;
    int64_t free = s->free, drawn_uw = u->drawn_uw;
    s->free = s->composition.processors;
    u->drawn_uw = 0;
    u->version++;
    int starts = starts_now(s, now_s, job);
    s->free = free;
    u->drawn_uw = drawn_uw;
    u->version++;
    return starts;
}

int64_t scheduler_earliest(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    return earliest_s(s, now_s, job, row);
}

void scheduler_impossible(scheduler_t *s, uint8_t *never)
{
    for (int32_t job = 0; job < s->jobs.n_jobs; job++)
        never[job] = !starts_now(s, 0, job);
}
