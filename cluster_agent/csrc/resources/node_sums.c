/*
 * Watts, and the places of a group, in sum: what is left at an instant, from when on a job has enough, and until when.
 *
 * Between changes of the cap the running jobs only become fewer, so the present, their expected ends and these changes are
 * all the instants to look at. Watts are whole microwatts; so what is drawn once so many running jobs have ended is one
 * column, made again after a start or an end. A search walks along it, or by halves where no cap will change.
 */
#include "resources/node_inside.h"

/* What is drawn at `at_s` by nodes that boot for running jobs, beyond what these are counted with. */
static int64_t rise_uw(const scheduler_t *s, int64_t at_s)
{
    const on_nodes_t *u = s->on_nodes;
    int64_t uw = 0;
    for (int32_t i = 0; u->boot_uw && i < u->n_in_order; i++) {
        int32_t job = u->in_order[i];
        if (scheduler_begins(s, job) > at_s)
            uw += greatest(u->boot_uw[job] - u->model.counted_uw[job], 0);
    }
    return uw;
}

const room_t *sums_by_ends(scheduler_t *s)
{
    on_nodes_t *u = s->on_nodes;
    if (u->by_ends_version == u->version)
        return u->by_ends;
    room_t room = {.nodes = u->choices ? s->free : INT64_MAX, .drawn_uw = u->drawn_uw};
    for (int32_t i = 0; i < s->n_running; i++) {
        u->by_ends[i] = room;
        room.nodes += u->choices ? s->running[i].width : 0;
        room.drawn_uw -= counted_uw(&u->model, s->running[i].job);
    }
    u->by_ends[s->n_running] = room;
    u->by_ends_version = u->version;
    return u->by_ends;
}

/* How many running jobs have ended by `at_s`, of which `ends` are known to. */
int32_t sums_ended_by(const scheduler_t *s, int64_t at_s, int32_t ends)
{
    while (ends < s->n_running && s->running[ends].expected_end_s <= at_s)
        ends++;
    return ends;
}

static room_t room_after(scheduler_t *s, int32_t ends)
{
    const on_nodes_t *u = s->on_nodes;
    if (ends) /* else the column need not be made */
        return sums_by_ends(s)[ends];
    return (room_t){.nodes = u->choices ? s->free : INT64_MAX, .drawn_uw = u->drawn_uw};
}

static int64_t left_uw(scheduler_t *s, int32_t ends, int64_t at_s, int64_t cap_uw)
{
    return cap_uw - room_after(s, ends).drawn_uw - rise_uw(s, at_s);
}

int64_t sums_lacks_s(scheduler_t *s, int32_t ends, int64_t at_s, const ask_t *ask)
{
    const caps_t *caps = &s->caps;
    int64_t end_s = at_s + ask->length_s + s->on_nodes->longest_s;
    int32_t k = caps_after(caps, at_s);
    if (ask->units > room_after(s, ends).nodes || ask->uw > left_uw(s, ends, at_s, caps->uw[k ? k - 1 : 0]))
        return at_s;
    for (; k < caps->n && caps->from_s[k] < end_s; k++) {
        ends = sums_ended_by(s, caps->from_s[k], ends);
        if (ask->uw > left_uw(s, ends, caps->from_s[k], caps->uw[k]))
            return caps->from_s[k];
    }
    return INT64_MAX;
}

/* The least that the running jobs leave under the caps from `at_s` until it ends. */
int64_t sums_least_left_uw(scheduler_t *s, int32_t ends, int64_t at_s, const ask_t *ask)
{
    const caps_t *caps = &s->caps;
    int64_t end_s = at_s + ask->length_s + s->on_nodes->longest_s, uw = left_uw(s, ends, at_s, caps_at(caps, at_s));
    for (int32_t k = caps_after(caps, at_s); k < caps->n && caps->from_s[k] < end_s; k++) {
        ends = sums_ended_by(s, caps->from_s[k], ends);
        uw = least(uw, left_uw(s, ends, caps->from_s[k], caps->uw[k]));
    }
    return uw;
}

/* Where no cap will change. */
static int64_t earliest_by_halves_s(scheduler_t *s, int64_t at_s, int32_t *ends, const ask_t *ask)
{
    int32_t ended = sums_ends_for(s, *ends, ask->units, ask->uw);
    if (ended > s->n_running)
        return INT64_MAX;
    at_s = ended > *ends ? s->running[ended - 1].expected_end_s : at_s;
    *ends = sums_ended_by(s, at_s, ended);
    return at_s;
}

/* No start by an instant without room is possible, so the search goes on behind it: it sees each change once. */
int64_t sums_earliest_s(scheduler_t *s, int64_t at_s, int32_t *ends, const ask_t *ask)
{
    if (!s->on_nodes->changes && !s->on_nodes->boot_uw)
        return earliest_by_halves_s(s, at_s, ends, ask);
    for (int64_t lacks_s; at_s < INT64_MAX && (lacks_s = sums_lacks_s(s, *ends, at_s, ask)) < INT64_MAX;) {
        *ends = lacks_s > at_s ? sums_ended_by(s, lacks_s, *ends) : *ends;
        at_s = greatest(at_s, scheduler_next_change(s, lacks_s, *ends)); /* jobs that are late end at any moment */
        *ends = sums_ended_by(s, at_s, *ends);
    }
    return at_s;
}

