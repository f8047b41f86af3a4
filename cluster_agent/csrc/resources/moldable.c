#include "resources/moldable.h"

#include <math.h>
#include <stdlib.h>

#include "scheduler_inside.h"

enum { NONE = -1, UNKNOWN = -2 };

/* Values that stay the same until a job starts or ends. */
typedef struct {
    int64_t version;
    int32_t value;
} known_t;

/* Free once so many of the running jobs have ended, in their order; under the cap in force. */
typedef struct {
    int64_t nodes, uw;
} room_t;

/* CHOOSE_STOCK: a job of this table whose scale is above `scale` does not start now; `fastest` is the fastest row that
 * fits now. */
typedef struct {
    int64_t version, now_s;
    double scale;
    int32_t fastest;
} reach_t;

struct ways {
    moldable_t model;
    double cluster_w; /* the cap in force */
    int64_t cluster_uw, free_uw;
    int32_t changes;  /* whether another cap is known to come: then room depends on how long a job runs */
    int64_t least_uw; /* of any configuration, and the fewest nodes */
    int32_t least_nodes;
    int32_t head_row; /* that the head would take, in this pass */
    int64_t version;  /* counts starts and ends */
    int32_t *wanted;  /* per kind: the row that its share of the watts pays for on an empty cluster; UNKNOWN */
    known_t *fits;    /* per kind: the fastest row that fits now */
    known_t *after;   /* per row: how many running jobs have to end before there is room, if no cap changes */
    reach_t *reach;   /* per table */
    room_t *room;     /* by how many have ended, in `room_version` */
    int64_t room_version;
};

/****************************************************************
 * Making and unmaking
 ****************************************************************/

/* The watts in whole microwatts, rounded down. */
static int64_t cap_uw(double watts)
{
    return (int64_t)floor(watts * 1e6 + 1e-3);
}

static void begin(scheduler_t *s, int64_t now_s)
{
    ways_t *w = s->ways;
    int32_t k = caps_after(&s->caps, now_s);
    double watts = s->caps.watts[k ? k - 1 : 0];
    w->changes = k < s->caps.n;
    if (watts == w->cluster_w)
        return;
    w->free_uw += cap_uw(watts) - w->cluster_uw;
    w->cluster_w = watts;
    w->cluster_uw = cap_uw(watts);
    w->version++;
    for (int32_t kind = 0; kind < w->model.n_kinds; kind++)
        w->wanted[kind] = UNKNOWN;
}

int32_t scheduler_set_moldable(scheduler_t *s, const moldable_t *model)
{
    ways_t *w = s->ways = column(&s->memory, 1, sizeof *w);
    if (!w)
        return -1;
    s->phases.resources = &CONFIGURATIONS;
    s->phases.correct = correct_at_any_moment;
    s->phases.backfill = BACKFILLS[BACKFILL_EASY];
    int32_t n_rows = model->first[model->n_tables];
    w->model = *model;
    w->cluster_w = NAN;
    s->caps = model->caps;
    w->wanted = column(&s->memory, model->n_kinds, sizeof *w->wanted);
    w->fits = column(&s->memory, model->n_kinds, sizeof *w->fits);
    w->after = column(&s->memory, n_rows, sizeof *w->after);
    w->reach = column(&s->memory, model->n_tables, sizeof *w->reach);
    w->room = column(&s->memory, s->composition.processors + 1, sizeof *w->room); /* every running job has a node */
    if (s->memory.is_short)
        return -1;
    w->least_nodes = n_rows ? INT32_MAX : 0;
    w->least_uw = n_rows ? INT64_MAX : 0;
    for (int32_t row = 0; row < n_rows; row++) {
        w->least_nodes = (int32_t)least(w->least_nodes, model->rows[row].nodes);
        w->least_uw = least(w->least_uw, model->rows[row].uw);
    }
    begin(s, 0);
    return 0;
}

/****************************************************************
 * Room
 ****************************************************************/

static int fits(const configuration_t *row, int64_t nodes, int64_t uw)
{
    return row->nodes <= nodes && row->uw <= uw;
}

/* The engine counts whole seconds. */
static int64_t whole_s(double time_s)
{
    int64_t length_s = (int64_t)ceil(time_s - 1e-9);
    return length_s > 1 ? length_s : 1;
}

static int64_t length_s(const ways_t *w, int32_t job, int32_t row)
{
    return whole_s(w->model.rows[row].time_s * w->model.scale[job]);
}

static const room_t *room_by_ends(scheduler_t *s)
{
    ways_t *w = s->ways;
    if (w->room_version == w->version)
        return w->room;
    w->room[0] = (room_t){.nodes = s->free, .uw = w->free_uw};
    for (int32_t i = 0; i < s->n_running; i++)
        w->room[i + 1] = (room_t){.nodes = w->room[i].nodes + s->running[i].width,
                                  .uw = w->room[i].uw + w->model.rows[w->model.row[s->running[i].job]].uw};
    w->room_version = w->version;
    return w->room;
}

/* How many running jobs have ended by `at_s`, of which `ends` are known to. */
static int32_t ended_by(const scheduler_t *s, int64_t at_s, int32_t ends)
{
    while (ends < s->n_running && s->running[ends].expected_end_s <= at_s)
        ends++;
    return ends;
}

/* The nodes that are free at `at_s`, when so many running jobs have ended, and the least watts from then to `end_s`.
 * Between changes of the cap the running jobs only become fewer, so these are all the instants to look at. */
static room_t room_over(scheduler_t *s, int32_t ends, int64_t at_s, int64_t end_s)
{
    const room_t *by_ends = room_by_ends(s);
    const caps_t *caps = &s->caps;
    room_t found = by_ends[ends];
    int32_t k = caps_after(caps, at_s);
    found.uw += cap_uw(caps->watts[k ? k - 1 : 0]) - s->ways->cluster_uw;
    for (; k < caps->n && caps->from_s[k] < end_s; k++) {
        ends = ended_by(s, caps->from_s[k], ends);
        found.uw = least(found.uw, by_ends[ends].uw + cap_uw(caps->watts[k]) - s->ways->cluster_uw);
    }
    return found;
}

/* The first instant at which a job that starts at `at_s` in this row has no room; INT64_MAX: it has room until its end. */
static int64_t lacks_room_s(scheduler_t *s, int32_t ends, int64_t at_s, int32_t job, int32_t row)
{
    const room_t *by_ends = room_by_ends(s);
    const ways_t *w = s->ways;
    const configuration_t *one = &w->model.rows[row];
    const caps_t *caps = &s->caps;
    int64_t end_s = at_s + length_s(w, job, row);
    int32_t k = caps_after(caps, at_s);
    if (!fits(one, by_ends[ends].nodes, by_ends[ends].uw + cap_uw(caps->watts[k ? k - 1 : 0]) - w->cluster_uw))
        return at_s;
    for (; k < caps->n && caps->from_s[k] < end_s; k++) {
        ends = ended_by(s, caps->from_s[k], ends);
        if (one->uw > by_ends[ends].uw + cap_uw(caps->watts[k]) - w->cluster_uw)
            return caps->from_s[k];
    }
    return INT64_MAX;
}

static int fits_now(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    return row != NONE && fits(&s->ways->model.rows[row], s->free, s->ways->free_uw) &&
           (!s->ways->changes || lacks_room_s(s, 0, now_s, job, row) == INT64_MAX);
}

/* No start by an instant without room is possible, so the search goes on behind it: it sees each change once. */
static int64_t earliest_under_changes(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    int64_t at_s = now_s, lacks_s;
    for (int32_t ends = 0; at_s < INT64_MAX && (lacks_s = lacks_room_s(s, ends, at_s, job, row)) < INT64_MAX;
         ends = ended_by(s, at_s, ends)) {
        if (lacks_s > at_s)
            ends = ended_by(s, lacks_s, ends);
        at_s = greatest(at_s, scheduler_next_change(s, lacks_s, ends)); /* jobs that are late end at any moment */
    }
    return at_s;
}

static inline int64_t earliest_s(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    ways_t *w = s->ways;
    known_t *known = &w->after[row];
    if (w->changes)
        return earliest_under_changes(s, now_s, job, row);
    if (known->version != w->version) {
        const room_t *room = room_by_ends(s);
        int32_t low = 0, high = s->n_running + 1;
        while (low < high) {
            int32_t middle = low + (high - low) / 2;
            if (fits(&w->model.rows[row], room[middle].nodes, room[middle].uw))
                high = middle;
            else
                low = middle + 1;
        }
        *known = (known_t){.version = w->version, .value = low};
    }
    if (known->value > s->n_running)
        return INT64_MAX;
    return known->value ? s->running[known->value - 1].expected_end_s : now_s;
}

/****************************************************************
 * RMAP's choices (Patki et al., HPDC 2015)
 ****************************************************************/

/* The requested nodes with all cores at the highest cap, or as many of them as the cluster's watts allow. */
static int32_t traditional(const ways_t *w, int32_t job)
{
    const moldable_t *m = &w->model;
    int32_t found = NONE;
    for (int32_t i = m->first[m->table[job]]; i < m->first[m->table[job] + 1]; i++) {
        const configuration_t *row = &m->rows[i];
        if (row->is_full && row->watts <= w->cluster_w && row->nodes <= m->requested[job] &&
            (found == NONE || row->nodes > m->rows[found].nodes))
            found = i;
    }
    return found;
}

/* The fastest row within watts and nodes; of those as fast up to `near` the one with fewest watts, then nodes.
 * `now_s`: when it has to fit; NONE: it need not. */
static int32_t best(scheduler_t *s, int64_t now_s, int32_t job, double bound_w, int64_t most_nodes)
{
    const moldable_t *m = &s->ways->model;
    double scale = m->scale[job], limit_s = 0.0;
    int32_t found = NONE;
    for (int32_t i = m->first[m->table[job]]; i < m->first[m->table[job] + 1]; i++) {
        const configuration_t *row = &m->rows[i];
        if (row->watts > bound_w || row->nodes > most_nodes || (now_s != NONE && !fits_now(s, now_s, job, i)))
            continue;
        if (found == NONE) {
            found = i;
            if (m->near == 0.0)
                break;
            limit_s = (1 + m->near) * (row->time_s * scale);
            continue;
        }
        if (row->time_s * scale > limit_s)
            break;
        const configuration_t *other = &m->rows[found];
        if (row->watts != other->watts ? row->watts < other->watts : row->nodes < other->nodes)
            found = i;
    }
    return found;
}

static double fair_share_w(const scheduler_t *s, int32_t job)
{
    const moldable_t *m = &s->ways->model;
    return m->priority * m->requested[job] / s->composition.processors * s->ways->cluster_w;
}

/* Without `near`, times do not affect which row is best, so jobs of one kind have the same. */
static int32_t wanted(scheduler_t *s, int32_t job)
{
    ways_t *w = s->ways;
    const moldable_t *m = &w->model;
    int32_t *known = &w->wanted[m->kind[job]];
    if (*known == UNKNOWN || m->near != 0.0)
        *known = m->choose == CHOOSE_TRADITIONAL
                     ? traditional(w, job)
                     : best(s, NONE, job, fair_share_w(s, job), s->composition.processors);
    return *known;
}

static int32_t fastest_now(scheduler_t *s, int64_t now_s, int32_t job, double bound_w)
{
    ways_t *w = s->ways;
    if (w->model.near != 0.0 || w->changes)
        return best(s, w->changes ? now_s : NONE, job, bound_w, s->free);
    known_t *known = &w->fits[w->model.kind[job]];
    if (known->version != w->version)
        *known = (known_t){.version = w->version, .value = best(s, NONE, job, bound_w, s->free)};
    return known->value;
}

/* Naive's choice if it can start; else the fastest that can, if it is fast enough. */
static int32_t adaptive(scheduler_t *s, int64_t now_s, int32_t job)
{
    const ways_t *w = s->ways;
    int32_t later = wanted(s, job);
    double bound_w = fair_share_w(s, job), free_w = (double)w->free_uw / 1e6;
    if (later == NONE || (bound_w <= free_w && fits_now(s, now_s, job, later)))
        return later;
    int32_t now = fastest_now(s, now_s, job, bound_w < free_w ? bound_w : free_w);
    if (now == NONE)
        return later;
    double time_s = w->model.rows[now].time_s * w->model.scale[job];
    return time_s <= (1 + w->model.th) * (double)s->jobs.request_s[job] ? now : later;
}

/****************************************************************
 * Choices by the end, waiting included (REGALE D2.3, section 3.1)
 ****************************************************************/

typedef struct {
    double score;
    int64_t end_s; /* from now */
    int32_t row;
} scored_t;

static int is_better(const ways_t *w, const scored_t *a, const scored_t *b)
{
    if (b->row == NONE || a->score != b->score)
        return b->row == NONE || a->score < b->score;
    if (a->end_s != b->end_s)
        return a->end_s < b->end_s;
    return w->model.rows[a->row].nodes < w->model.rows[b->row].nodes;
}

/* The row with the lowest score among those that end within `limit_s`; the score is the end, cores x end, or joules. */
static scored_t least_score(scheduler_t *s, int64_t now_s, int32_t job, int32_t choose, double limit_s)
{
    const ways_t *w = s->ways;
    const moldable_t *m = &w->model;
    scored_t found = {.row = NONE};
    for (int32_t i = m->first[m->table[job]]; i < m->first[m->table[job] + 1]; i++) {
        int64_t run_s = length_s(w, job, i);
        if ((double)run_s > limit_s || (choose == CHOOSE_STOCK && found.row != NONE && run_s > found.end_s))
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
        if (is_better(w, &one, &found))
            found = one;
    }
    return found;
}

static int32_t by_end(scheduler_t *s, int64_t now_s, int32_t job)
{
    const moldable_t *m = &s->ways->model;
    if (m->choose != CHOOSE_ENERGY)
        return least_score(s, now_s, job, m->choose, INFINITY).row;
    scored_t first = least_score(s, now_s, job, CHOOSE_STOCK, INFINITY);
    if (first.row == NONE)
        return NONE;
    return least_score(s, now_s, job, CHOOSE_ENERGY, m->slowdown * (double)first.end_s).row;
}

/****************************************************************
 * A pass
 ****************************************************************/

static int32_t choose(scheduler_t *s, int64_t now_s, int32_t job)
{
    const moldable_t *m = &s->ways->model;
    if (m->choose == CHOOSE_BY_CALLER)
        return m->choose_row(m->context, now_s, job, s->free, s->ways->free_uw);
    if (m->choose > CHOOSE_ADAPTIVE)
        return by_end(s, now_s, job);
    return m->choose == CHOOSE_ADAPTIVE ? adaptive(s, now_s, job) : wanted(s, job);
}

/* The row in which the job can start, if that is the chosen one; else NONE. */
static int32_t starts_now(scheduler_t *s, int64_t now_s, int32_t job)
{
    int32_t row = choose(s, now_s, job);
    return fits_now(s, now_s, job, row) ? row : NONE;
}

static void start(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    moldable_t *m = &s->ways->model;
    m->row[job] = row;
    m->width[job] = m->rows[row].nodes;
    m->run_s[job] = whole_s(m->rows[row].true_time_s * m->scale[job]);
    s->estimate_s[job] = length_s(s->ways, job, row);
    scheduler_start(s, now_s, job);
}

static void look_for_reach(scheduler_t *s, int64_t now_s, int32_t job, reach_t *reach)
{
    ways_t *w = s->ways;
    const moldable_t *m = &w->model;
    int32_t first = m->first[m->table[job]], end = m->first[m->table[job] + 1], now = first;
    while (now < end && !fits(&m->rows[now], s->free, w->free_uw))
        now++;
    *reach = (reach_t){.version = w->version, .now_s = now_s, .scale = now < end ? INFINITY : 0.0, .fastest = now};
    for (int32_t i = first; i < now && now < end; i++) {
        int64_t start_s = earliest_s(s, now_s, job, i);
        double delay_s = (double)(start_s - now_s), gain = m->rows[now].time_s - m->rows[i].time_s;
        if (start_s < INT64_MAX && gain > 0.0 && (delay_s + 1.001) / gain < reach->scale)
            reach->scale = (delay_s + 1.001) / gain;
    }
}

/*
 * Whether the job certainly does not start now, without a look at each row. For CHOOSE_STOCK, where every pass would
 * look at the rows of a long queue. The fastest row that fits now loses against a row that fits after a delay if that
 * row is faster by more than the delay; by how much it is faster is the job's scale times the difference in the table.
 * One second is added for rounding. A row that fits now and does not lose takes as many whole seconds as the fastest;
 * one of these must leave the head what is reserved for it.
 */
static inline int is_beyond_reach(scheduler_t *s, int64_t now_s, int32_t job, const reservation_t *reserved)
{
    ways_t *w = s->ways;
    const moldable_t *m = &w->model;
    if (m->choose != CHOOSE_STOCK || w->changes)
        return 0;
    reach_t *reach = &w->reach[m->table[job]];
    if (reach->version != w->version || reach->now_s != now_s)
        look_for_reach(s, now_s, job, reach);
    if (m->scale[job] > reach->scale)
        return 1;
    int64_t run_s = length_s(w, job, reach->fastest);
    int is_late = now_s + run_s > reserved->at_s, end = m->first[m->table[job] + 1];
    for (int32_t i = reach->fastest; is_late && i < end && length_s(w, job, i) == run_s; i++)
        is_late = !fits(&m->rows[i], least(s->free, reserved->left_over), least(w->free_uw, reserved->left_over_uw));
    return is_late;
}

/* With room for the smallest configuration a job of any width may be tried; their widths are not known yet. */
static void bound(const scheduler_t *s, offer_t *offer)
{
    const ways_t *w = s->ways;
    offer->widest = s->free < w->least_nodes || w->free_uw < w->least_uw ? -1 : INT64_MAX;
    offer->widest_late = INT64_MAX;
}

static int start_head(scheduler_t *s, int64_t now_s, const waiting_t *head)
{
    s->ways->head_row = choose(s, now_s, head->job);
    if (!fits_now(s, now_s, head->job, s->ways->head_row))
        return 0;
    start(s, now_s, head->job, s->ways->head_row);
    return 1;
}

/* Whether the job would start if nobody else ran, as far as no other cap is known. */
static int starts_alone(scheduler_t *s, int64_t now_s, int32_t job)
{
    ways_t *w = s->ways;
    if (w->changes)
        return 0;
    int64_t free = s->free, free_uw = w->free_uw;
    s->free = s->composition.processors;
    w->free_uw = w->cluster_uw;
    w->version++;
    int32_t row = starts_now(s, now_s, job);
    s->free = free;
    w->free_uw = free_uw;
    w->version++;
    return row != NONE;
}

/* The head's nodes and watts at the earliest time at which there are both. A head that waits for another row than the
 * chosen one, which never has room, gets the cluster to itself; one that cannot start at these watts has nothing. */
static void reserve(scheduler_t *s, int64_t now_s, const waiting_t *head, offer_t *offer)
{
    ways_t *w = s->ways;
    int32_t row = head ? w->head_row : NONE;
    int64_t at_s = row == NONE ? INT64_MAX : earliest_s(s, now_s, head->job, row);
    bound(s, offer);
    if (at_s == INT64_MAX) {
        if (head && starts_alone(s, now_s, head->job))
            offer->widest = -1;
        return;
    }
    room_t room = room_over(s, ended_by(s, at_s, 0), at_s, at_s + length_s(w, head->job, row));
    offer->reserved.at_s = at_s;
    offer->reserved.left_over = room.nodes - w->model.rows[row].nodes;
    offer->reserved.left_over_uw = room.uw - w->model.rows[row].uw;
}

static int start_behind(scheduler_t *s, int64_t now_s, const waiting_t *next, offer_t *offer)
{
    reservation_t *reserved = &offer->reserved;
    int32_t job = next->job, row = is_beyond_reach(s, now_s, job, reserved) ? NONE : starts_now(s, now_s, job);
    if (row == NONE)
        return 0;
    const configuration_t *one = &s->ways->model.rows[row];
    if (now_s + length_s(s->ways, job, row) > reserved->at_s) { /* it runs on next to the head */
        if (!fits(one, reserved->left_over, reserved->left_over_uw))
            return 0;
        reserved->left_over -= one->nodes;
        reserved->left_over_uw -= one->uw;
    }
    start(s, now_s, job, row);
    bound(s, offer);
    return 1;
}

/* The running job takes its watts (1), or gives them back (-1). */
static void occupy(scheduler_t *s, int32_t job, int sign)
{
    ways_t *w = s->ways;
    w->free_uw -= sign * w->model.rows[w->model.row[job]].uw;
    w->version++;
}

const resources_t CONFIGURATIONS = {
    .begin = begin,
    .start_head = start_head,
    .reserve = reserve,
    .start_behind = start_behind,
    .occupy = occupy,
};

int64_t scheduler_earliest(scheduler_t *s, int64_t now_s, int32_t job, int32_t row)
{
    return earliest_s(s, now_s, job, row);
}

void scheduler_impossible(scheduler_t *s, uint8_t *never)
{
    for (int32_t job = 0; job < s->jobs.n_jobs; job++)
        never[job] = starts_now(s, 0, job) == NONE;
}
