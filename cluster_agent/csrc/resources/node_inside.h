/* The inside of the resource that is counted by nodes, from the bottom up: node_sums.c, choices.c, nodes.c. */
#ifndef CLUSTER_NODE_INSIDE_H
#define CLUSTER_NODE_INSIDE_H

#include "resources/node_room.h"
#include "scheduler_inside.h"
#include "search.h"

enum { NO_ROW = -1 };

/* Once so many of the running jobs have ended, in the order of their expected ends. */
typedef struct {
    int64_t nodes;    /* free, where a row says how many; else unknown, and as many as anybody wants */
    int64_t drawn_uw; /* by the others */
} room_t;

/* Where jobs share nodes. */
typedef struct {
    int32_t *on;          /* per node two: the jobs that have a share of it, or none */
    int32_t *noted;       /* the jobs whose partners have changed, n_noted of them, */
    int32_t n_noted;
    uint8_t *is_noted;    /* but for those that have ended since */
} sharing_t;

struct on_nodes {
    node_model_t model;
    int64_t cap_uw, drawn_uw;     /* in force; counted for the running jobs */
    int32_t changes;              /* whether another cap is known to come: then room depends on how long a job runs */
    int64_t version;              /* counts starts, ends, caps, and readings of watts */
    room_t *by_ends;              /* as of by_ends_version */
    int64_t by_ends_version;
    int64_t *free, *spare, *room; /* per node and kind: now; next to the head; next to both, while a job is tried */
    int64_t spare_uw;             /* next to the head */
    int32_t head_row;             /* the way in which the head would start, in this pass */
    int32_t *in_order;            /* the running jobs in the order of their starts; not with several ways */
    int32_t n_in_order;
    node_room_t *candidates;
    placed_t *found;              /* for the job that is tried: n_found nodes */
    int32_t n_found;
    placed_t *placed;             /* of all jobs that were started */
    int64_t n_placed, capacity;
    int64_t *first;               /* per job, in `placed` */
    int32_t *count;
    choices_t *choices;           /* only with several ways to run */
    sharing_t *sharing;           /* only where jobs share nodes */
    /* only where nodes go off */
    int64_t pass_s;
    int64_t longest_s;            /* from the start of a job until its nodes are on; 0: nodes stay on */
    int64_t *boot_uw;             /* per job: of the nodes that boot for it */
    int32_t *jobs_on;             /* per node, as the next three */
    int64_t *idle_s;              /* without a job since; -1: since the pass to come */
    int64_t *on_s;                /* when it is on if a job starts in this pass */
    uint8_t *is_cold;             /* whether that is later than now */
};

/* With how much the running job is counted. */
static inline int64_t counted_uw(const node_model_t *m, int32_t job)
{
    return m->ways.n_tables ? m->ways.rows[m->ways.row[job]].uw : m->counted_uw[job];
}

/* node_sums.c */
const room_t *sums_by_ends(scheduler_t *s);
/* How many running jobs have ended by `at_s`, of which `ends` are known to. */
int32_t sums_ended_by(const scheduler_t *s, int64_t at_s, int32_t ends);
/* The first instant at which a job that starts at `at_s`, when so many running jobs have ended, lacks watts or places;
 * INT64_MAX: it has them until its end. */
int64_t sums_lacks_s(scheduler_t *s, int32_t ends, int64_t at_s, const ask_t *ask);
/* The first start from `at_s` on at which it lacks none; *ends: how many have ended by then. INT64_MAX: never. */
int64_t sums_earliest_s(scheduler_t *s, int64_t at_s, int32_t *ends, const ask_t *ask);
/* The least that the running jobs leave under the caps while a job runs that starts at `at_s`. */
int64_t sums_least_left_uw(scheduler_t *s, int32_t ends, int64_t at_s, const ask_t *ask);

/* Where no cap will change: how many running jobs have to end, of which `ends` have, before it has enough of both; more
 * than run: it never has. */
static inline int32_t sums_ends_for(scheduler_t *s, int32_t ends, int64_t units, int64_t uw)
{
    const room_t *room = sums_by_ends(s);
    int64_t most_uw = s->on_nodes->cap_uw - uw;
    return FIRST(i, ends, s->n_running + 1, room[i].drawn_uw <= most_uw && room[i].nodes >= units);
}

/* sharing.c */
/* 0, or -1: no memory. */
int sharing_new(scheduler_t *s);
/* The job, which has just been given its nodes (1) or loses them (-1), changes how fast others run. */
void sharing_changes(scheduler_t *s, int32_t job, int sign);

/* choices.c */
extern const int64_t ONE_PLACE[NODE_KINDS]; /* what a unit needs of a group */
/* 0, or -1: no memory. */
int choices_new(scheduler_t *s);
/* Another cap is in force. */
void choices_cap(scheduler_t *s, int64_t cap_uw);
ask_t choices_ask(const scheduler_t *s, int32_t job, int32_t row);
/* The row that the job is to take, now or later; NO_ROW. */
int32_t choices_row(scheduler_t *s, int64_t now_s, int32_t job);
/* The same behind a head that starts at `head_s`; NO_ROW as well if it does not start now. */
int32_t choices_row_now(scheduler_t *s, int64_t now_s, int32_t job, int64_t head_s);
/* The first job from `next` on, the head apart, that waits and does not certainly stay waiting. */
const waiting_t *choices_first_likely(scheduler_t *s, int64_t now_s, const waiting_t *next, const waiting_t *stop);
int choices_fit_now(scheduler_t *s, int64_t now_s, int32_t job, int32_t row);
/* Whether the job would start if nobody else ran, as far as no other cap is known. */
int choices_alone(scheduler_t *s, int64_t now_s, int32_t job);
/* The job starts in this row: its width and times are known. */
void choices_start(scheduler_t *s, int32_t job, int32_t row);
/* Whether there is room for the smallest way of any job. */
int choices_any_fits(const scheduler_t *s);

#endif
