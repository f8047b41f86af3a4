/*
 * The watts and joules of a replay: what the cluster draws as a step function, and who the joules belong to. A job is
 * charged with all its processors draw; what is left is the joules of processors without a job, of nodes that are off,
 * and of switching. So jobs, idle, off and switching make up the cluster. Internal to the replay.
 */
#ifndef CLUSTER_METER_H
#define CLUSTER_METER_H

#include "memory.h"
#include "power.h"

typedef struct {
    int64_t at_s, drawn_uw, cap_uw;
} power_step_t;

typedef struct {
    double cluster_uj, idle_uj, off_uj, switching_uj;
} joules_t;

typedef struct {
    struct memory *memory;
    power_model_t model;
    int64_t at_s;          /* metered until here */
    int64_t busy_uw;       /* of all running jobs */
    int64_t busy, beyond;  /* their processors; those of them where nodes should be off */
    int64_t idle_uw, off_uw, switching_uw;
    idle_off_t idle_off;   /* all 0: nodes stay on */
    cold_t cold;
    joules_t joules;
    int is_read;           /* whether somebody reads */
    int64_t unread_uj;     /* what the cluster has drawn since the last reading */
    double *job_uj;
    int64_t *since_s;      /* each running job is metered until here */
    int64_t *drawn_uw;     /* each running job draws this */
    power_step_t *steps;
    int64_t n_steps, capacity;
} meter_t;

/* 0, or -1: no memory. */
int meter_init(meter_t *meter, struct memory *memory, const power_model_t *model, int32_t n_jobs, int64_t from_s);

/* The same so far, but for the columns of jobs and the steps before the last. 0, or -1: no memory. */
int meter_copy(meter_t *meter, struct memory *memory, const meter_t *from, int32_t n_jobs);

/* Of a job that ran before, or may: its row, in a copy. */
void meter_copy_job(meter_t *meter, const meter_t *from, int32_t job);

/* Time passes until `now_s` as things are. */
void meter_pass(meter_t *meter, int64_t now_s);

/* The job begins to run, goes on at another level, or has ended; to be called after meter_pass. */
void meter_start(meter_t *meter, int32_t job, int64_t width, int32_t level);
void meter_stop(meter_t *meter, int32_t job, int64_t width);

/* What holds from now on. `processors` are the machine's. 0, or -1: no memory. */
int meter_look(meter_t *meter, const plan_row_t *row, int64_t processors);

#endif
