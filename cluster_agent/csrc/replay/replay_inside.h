/* The replay, for its own files: events of jobs that run (replay_foreseen.c), settings (replay_setup.c),
 * watts (replay_power.c), nodes that fail (replay_failures.c), the loop (replay.c), and steps and copies
 * (replay_steps.c). */
#ifndef CLUSTER_REPLAY_INSIDE_H
#define CLUSTER_REPLAY_INSIDE_H

#include "events.h"
#include "memory.h"
#include "replay/replay.h"

struct replay {
    memory_t memory;
    jobs_t jobs;
    const int64_t *submit_s;
    int32_t batch, pauses;
    int32_t places; /* on a machine with watts, too, where no nodes go off */
    scheduler_t *scheduler;
    placement_t placement;
    placement_t *parts; /* only with partitions: what is free in each */
    int32_t n_parts;
    int32_t has_reservations;
    const int32_t *part_of;

    int64_t now_s;
    events_t ends, overruns;
    events_t begins;    /* of jobs whose nodes boot; only with power */
    int64_t foreseen;   /* events foreseen so far: numbers them */
    answering_t *answering; /* only in a closed loop */
    const recorded_t *recorded; /* only in a warm start */
    int32_t n_recorded, carried_out;
    int32_t submitted, ended;
    int64_t passes;
    int32_t is_pass_due;
    int32_t is_left_due; /* a pass of best-effort jobs alone */

    const failure_t *failures; /* only where nodes fail */
    uint8_t *mattered;
    int32_t n_failures, failed, n_away; /* `away`: the failures whose processors are not back, n_away of them */
    int32_t *away;
    placement_t absent; /* the processors that have failed, as the free ones of a machine */
    int32_t *running;

    meter_t *meter;     /* only with power */
    const int64_t *announced_s;
    int32_t n_announced, announced;
    int32_t is_order_due, is_reaction_due;
    caps_t caps;        /* only with nodes that differ, or configurations; the first `caps_begun` have begun */
    int32_t caps_begun;
    int32_t shares_nodes;
    int64_t wake_s;     /* when a pass is due without another event; INT64_MAX: never */
    int64_t pause_s;    /* time does not move on to that; INT64_MAX: it does */
    int64_t *end_s;     /* -1: not yet */
    int32_t *ended_jobs;
    int32_t *kills;
    int64_t *lost;      /* processor-seconds of runs that were killed */
    double *lost_uj;    /* their joules */
    int32_t has_no_memory;
    int64_t processors;
    int32_t is_beyond_known;

    int32_t *starts;    /* decided, and not yet placed: from n_placed to n_starts */
    int32_t n_placed, n_starts;
    int32_t is_stepped, is_blind;
    int32_t is_decision; /* the caller decides in place of the pass that is due */
    int64_t *start_s;
    int64_t *interval_first;
    int32_t *interval_count;
};

/* That the job ends, overruns or begins then is to come, unless something happens before. */
void replay_foresee(replay_t *r, events_t *events, int64_t at_s, int32_t job);

/* So is what will happen to a job that runs: that it ends, and before that outlives its estimate. */
void replay_foresee_end(replay_t *r, int32_t job);

/* The next job of `overruns` has outlived its estimate, and may the next one. */
void replay_overrun_job(replay_t *r);

/* The scheduler has started the next job of `starts`. */
void replay_start_job(replay_t *r);

/* The job leaves machine and scheduler, and what was foreseen of it does not happen. */
void replay_end_early(replay_t *r, int32_t job);

/* The columns of runs that end early and wait again, and their processors are known. 0, or -1: no memory. */
int32_t replay_preemptible(replay_t *r);

/* The best-effort jobs that a pass has preempted leave the machine, and wait again. */
void replay_preempt(replay_t *r);

/* The columns of a replay with power. */
void replay_power_columns(replay_t *r);

/* The job leaves the machine, but not yet the scheduler. Only with power. */
void replay_meter_leaving(replay_t *r, int32_t job);

/* A row of the plan begins, or a cap becomes known: counts the jobs on nodes that should be off. */
void replay_follow_plan(replay_t *r);

/* At the end of an instant: what is drawn from now on. REPLAY_NO_MEMORY, or 0. */
int32_t replay_meter_now(replay_t *r);

/* The scheduler hears the joules drawn since the last reading. */
void replay_read_joules(replay_t *r);

/* Nodes go off, or are off or on: then their jobs begin. */
void replay_switch_nodes(replay_t *r);

/* Partitions have processors of their own, those that fail are known by their numbers, and a pass with reservations
 * counts them only. */
void replay_place_processors(replay_t *r);

/* When the next processors fail or are back. */
int64_t replay_next_failure(const replay_t *r);

/* All failures of the instant, after those that end; jobs wait again in the order of their numbers. A node that was back
 * before its jobs were known to be lost fails and is back at once. */
void replay_follow_failures(replay_t *r);

static inline void has_ended(replay_t *r, int32_t job)
{
    r->end_s[job] = r->now_s;
    r->ended_jobs[r->ended++] = job;
    if (r->answering)
        answering_ended(r->answering, r->now_s, job);
}

#endif
