/* The replay, for its own files: the loop (replay.c), and steps and copies (replay_steps.c). */
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

/* The scheduler has started the next job of `starts`. */
void replay_start_job(replay_t *r);

/* The job leaves machine and scheduler, and what was foreseen of it does not happen. */
void replay_end_early(replay_t *r, int32_t job);

/* The columns of a replay with power. */
void replay_power_columns(replay_t *r);

#endif
