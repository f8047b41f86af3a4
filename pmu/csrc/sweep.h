/*
 * One call that reads every counter group of a node, and one that reads every kept sysfs file.
 *
 * Python adds only about 1 us to a read. What matters more is that the interpreter's lock is free meanwhile: during a
 * sweep of hundreds of CPUs (each read of another CPU's counters interrupts it) the other threads of the agent may run.
 */
#ifndef PMU_SWEEP_H
#define PMU_SWEEP_H

#include <stdint.h>

#define GROUP_EVENTS 8 /* ours: more than EVENTS has, and more than most PMUs can count at once */

/*
 * Events of one CPU that are counted over the same time, so that their ratios are exact. A group that shares its
 * counters with others runs only part of the time; the kernel then gives `running` < `enabled` and the caller has to
 * extrapolate. Scaling the totals would make a count fall whenever the shares change, so each interval is scaled by
 * itself and added to `total`, which therefore never runs backwards.
 */
typedef struct {
    int32_t fd;                    /* the leader, whose read gives all; below 0: not open */
    int32_t row;                   /* of the output matrix */
    int32_t n_events;
    int32_t error;                 /* errno of the last sweep, 0 if it gave values */
    int32_t is_scaled;             /* the last interval was extrapolated */
    int32_t column[GROUP_EVENTS];  /* of the output matrix, leader first */
    uint64_t raw[GROUP_EVENTS];    /* as the kernel gave it last */
    uint64_t total[GROUP_EVENTS];
    uint64_t enabled_ns, running_ns;
    int64_t moved_ns;              /* CLOCK_MONOTONIC when `enabled` was last seen to move */
} perf_group_t;

typedef struct {
    int32_t fd;    /* below 0: not open */
    int32_t error; /* errno of the last sweep, 0 if it gave a value */
} kept_file_t;

/* A counting event on one CPU, not yet enabled if it leads (group_fd < 0). The descriptor, or -errno. */
int perf_open(uint32_t type, uint64_t config, int32_t cpu, int32_t group_fd);

/* Starts all events of a group at once. 0 or -errno. */
int perf_enable(int32_t leader_fd);

/* Fills out[row][column] with totals, `missing` where a group gave none. `out` has n_rows x n_columns cells. */
void sweep_groups(perf_group_t *groups, int32_t n_groups, int64_t *out, int32_t n_rows, int32_t n_columns,
                  int64_t missing);

/* Fills out[i] with the decimal number in file at[i], `missing` where there is none. `at` NULL: file i. */
void sweep_files(kept_file_t *files, const int32_t *at, int32_t n_files, int64_t *out, int64_t missing);

/* Sleeps to an instant of CLOCK_MONOTONIC. 0 or errno (EINTR: a signal came first). */
int sleep_until(int64_t deadline_ns);

#endif
