/*
 * Kernel functions that the served twin needs and Python lacks: performance counters that look like perf_event_open(2)
 * descriptors, the seccomp listener that intercepts that call, and a few mount calls.
 *
 * A counter descriptor is a file of a FUSE file system that is not attached to any directory. FUSE brings read(2) and
 * ioctl(2) to us, and the kernel handles close, dup and fork, so only the *opening* call must be intercepted. The loop
 * that answers is in C and runs without the GIL, since a sweep of 96 CPUs makes 96 round trips.
 */
#ifndef TWIN_SERVE_H
#define TWIN_SERVE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LARGEST_GROUP 64 /* most members of one group, with the leader (ours; the kernel limits a read to 16 KiB) */

/* Source of the counts: functions of model.h. Several threads call them. */
typedef struct {
    void (*counters)(void *model, int64_t *counts); /* [n_cpus][n_columns], cumulative */
    int64_t (*zone_uj)(void *model, int32_t zone); /* wraps */
    double (*traffic_gb)(void *model, int32_t package);
    void *model;
    int32_t n_cpus, n_columns;
    int32_t reference_column; /* counts at `reference_hz` while the CPU is busy */
    double reference_hz;
} counter_source_t;

enum event_kind {
    EVENT_COUNTER, /* a hardware event of one emulated CPU */
    EVENT_CLOCK,   /* cpu-clock or task-clock of an emulated CPU: runs whenever it is enabled */
    EVENT_ZERO,    /* a software event of an emulated CPU that the host lacks, so no real task runs on it */
    EVENT_KERNEL,  /* a software event of the real kernel, member of a group that we serve */
    EVENT_ENERGY,  /* a powercap zone, counted in units of 2^-32 J as the kernel's RAPL PMU does */
    EVENT_TRAFFIC, /* lines of 64 bytes between a package and its memory */
    EVENT_TASK,    /* a hardware event of a task: model counts in proportion to the CPU time it really used */
};

/* The fault of one hardware event of one CPU, from twin/faults/active.py. */
enum counter_fault_kind {
    COUNTER_WELL,
    COUNTER_MISSING, /* a read returns 0 bytes, as for an event in error state */
    COUNTER_STUCK,   /* keeps showing its value of this moment */
    COUNTER_SHOWS,   /* shows `shown` */
};

typedef struct {
    int32_t kind, delay_us;
    int64_t shown;
} counter_fault_t;

typedef struct {
    int32_t kind;    /* enum event_kind */
    int32_t cpu;     /* emulated CPU; -1: any on which the task runs */
    int32_t task;    /* thread id, or -1: whole CPU */
    int32_t column;  /* EVENT_COUNTER, EVENT_TASK: column of the model's counts; EVENT_ENERGY: the zone;
                        EVENT_TRAFFIC: the package */
    int32_t real_fd; /* EVENT_KERNEL: the real event; EVENT_TASK: the task's real task-clock; else -1. Taken over */
    int32_t disabled;
    uint64_t leader; /* id of the group's leader, 0: none */
    uint64_t read_format;
    int64_t range_uj; /* EVENT_ENERGY */
    double scale;     /* EVENT_COUNTER, EVENT_TASK, EVENT_TRAFFIC: counts per count of the source; 0: 1 */
} event_spec_t;

typedef struct event_table event_table_t;

event_table_t *events_new(counter_source_t source);
int64_t events_spare(event_table_t *table); /* id of an event whose file can be opened in advance, or -errno */
int64_t events_open(event_table_t *table, const event_spec_t *spec, uint64_t spare); /* id > 1, or -errno; 0: no spare */
int events_real_fd(event_table_t *table, uint64_t id);                            /* -1: none or no such event */
int64_t events_read(event_table_t *table, uint64_t id, uint64_t *out, size_t size); /* bytes, or -errno */
int events_ioctl(event_table_t *table, uint64_t id, uint32_t command, uint64_t argument, uint64_t *out);
void events_release(event_table_t *table, uint64_t id);
int events_exist(event_table_t *table, uint64_t id);
int events_count(event_table_t *table);
int32_t events_delay_us(event_table_t *table, uint64_t id);
void events_set_fault(event_table_t *table, int32_t cpu, int32_t column, counter_fault_t fault);

/* Processes and mounts; 0 or -errno. */
int process_die_with(int32_t parent, int signal); /* -ESRCH: that parent has ended already */
int process_rename(const char *name);
/* Keeps malloc(3) to its main arena. For others glibc reads /sys/devices/system/cpu/online and
 * /proc/sys/vm/overcommit_memory, at moments of its own: a process that serves these files would wait for itself. */
int process_use_one_arena(void);
/* Reports to the node's agent that this many more units of work are finished, as any program would
 * (nodectl_progress.h). */
void process_report(uint64_t units);
int64_t filesystem_type(const char *path); /* statfs f_type */
int namespaces_leave(int flags); /* unshare(2) */
int mount_at(const char *source, const char *target, const char *type, uint64_t flags, const char *options);
int unmount_at(const char *target, int flags);
int mount_read_only(const char *point); /* with all mounts below it */

/* The file system of counters, which no path shows. The caller closes both descriptors. -errno on failure. */
int fuse_mount(const char *name, int *device_fd, int *mount_fd);
int fuse_attach(int mount_fd, const char *target);   /* mounts it there too, without device nodes; 0 or -errno */
void fuse_serve(event_table_t *table, int device_fd); /* returns when the file system has ended */
int fuse_open_counter(int mount_fd, uint64_t id);     /* descriptor of an event's file, or -errno */

/* Opens these files for a process that serves them itself, so that it may be killed at any moment. It lives as long as
 * the process. NULL and errno if it cannot start. */
typedef struct opener opener_t;

opener_t *opener_start(int mount_fd);
int opener_open(opener_t *opener, uint64_t id); /* as fuse_open_counter; from any thread */

/* A call of perf_event_open(2) by another process. */
typedef struct {
    uint64_t id;
    int32_t caller; /* thread id */
    int32_t task, cpu, group_fd;
    uint64_t flags;
    uint64_t attr_address;
    uint64_t capabilities; /* the caller's effective ones */
} perf_call_t;

typedef void (*perf_answer_t)(void *to, perf_call_t *call);

/* The fields of perf_event_attr that we use; `size` counts the bytes in `raw`. */
typedef struct {
    uint32_t type, size;
    uint64_t config, config1, config2, sample_period, read_format;
    int32_t disabled, inherit, pinned, exclusive, exclude_kernel, freq, enable_on_exec, precise;
    uint8_t raw[256];
} perf_attr_t;

int seccomp_install(void); /* in the process to be watched; listener descriptor or -errno */
int seccomp_read_attr(int listener, const perf_call_t *call, perf_attr_t *attr); /* 0 or -errno for the caller */
int seccomp_is_waiting(int listener, uint64_t id);
int seccomp_answer_fd(int listener, uint64_t id, int fd, int close_on_exec);
int seccomp_answer_error(int listener, uint64_t id, int error);
int seccomp_answer_kernel(int listener, uint64_t id); /* let the real kernel do it */

/* The other calls of the watched processes: mounts, statfs(2) and CPU affinity, answered with the twin's trees and CPUs
 * (serve_internal.h). */
typedef struct {
    const char *tree, *spare;   /* in our mount namespace: where the twin's files are served; an empty directory */
    const char *empty;          /* a sysfs without files, mounted below the twin's */
    const char **covers;        /* [n_covers] files of /proc that the twin replaces */
    int32_t n_covers;
    uint64_t tree_device;       /* st_dev of `tree` */
    const int32_t *node_of;     /* [n_cpus] NUMA node of each emulated CPU */
    int32_t n_cpus;
} syscall_plan_t;

typedef struct syscall_server syscall_server_t;

/* Passes each perf_event_open to `answer`, on the thread that received it. */
syscall_server_t *syscall_server_new(int listener, perf_answer_t answer, void *to, const syscall_plan_t *plan);
/* In several threads. 0: all watched processes have ended, or -errno. */
int syscall_server_run(syscall_server_t *server);

/* The real perf_event_open of `raw` with other switches; fd or -errno. */
int perf_open_real(const perf_attr_t *attr, int32_t task, int32_t cpu, int32_t group_fd, int disabled);
int perf_open_task_clock(const perf_attr_t *attr, int32_t task, int32_t cpu, int32_t group_fd, int disabled);
/* As perf_open_real, but of an event that never counts or samples, and reports no process or mapping. */
int perf_open_silent(const perf_attr_t *attr, int32_t task, int32_t cpu);
int perf_probe(void); /* opens a counter of a kind that is always served, as any program would */

#endif
