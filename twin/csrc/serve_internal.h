/*
 * The escape paths: what the files that judge the stopped system calls share. serve.h has what Python calls.
 *
 * Source files of twin/csrc/serve*.c, from the bottom up. A file calls files of earlier lines, no others
 * (tests/test_c_units.py compares this list with the compiled objects).
 *
 *   serve_events, serve_process, serve_seccomp
 *   serve_caller, serve_fuse
 *   serve_trees, serve_opener, serve_affinity
 *   serve_mounts, serve_statfs
 *   serve_syscalls
 */
#ifndef TWIN_SERVE_INTERNAL_H
#define TWIN_SERVE_INTERNAL_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "serve_seccomp.h"

/* linux/mount.h collides with sys/mount.h in glibc before 2.37; numbers are those of Linux, for every architecture. */
enum {
    TREE_CLONE       = 1,
    TREE_CLOEXEC     = O_CLOEXEC,
    RECURSIVE        = 0x8000, /* AT_RECURSIVE */
    CLOSE_ON_EXEC    = 1,      /* FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC */
    ATTR_RDONLY      = 1,
    ATTR_NOSUID      = 2,
    ATTR_NODEV       = 4,
    ATTR_NOEXEC      = 8,
};

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

typedef struct {
    uint64_t set, clear, propagation, user_ns;
} attributes_t; /* struct mount_attr, Linux 5.12 */

#define KEPT 64 /* ours: how many contexts wait for fsmount(2), and trees for move_mount(2), over all programs */

/* One call that waits for its answer. */
typedef struct {
    int listener;
    uint64_t id;
    const __u64 *args;
    int task;
    int *leads; /* whether this thread is the one that waits for calls */
    int *may;   /* result of caller_may_mount(); -1: not computed yet */
    pthread_mutex_t *turn;
} watched_call_t;

typedef struct affinity affinity_t;

struct syscall_server {
    int listener;
    perf_answer_t count;
    void *count_to;
    int mounts_ns, pid_ns;  /* ours */
    char tree[PATH_MAX], spare[PATH_MAX], empty[PATH_MAX];
    char **covers; /* paths below /proc, ended by NULL */
    dev_t tree_device, run_device, sysfs_device;
    pthread_mutex_t spare_lock;
    pthread_mutex_t turn; /* of the thread that waits for the next call */
    int contexts[KEPT], trees[KEPT]; /* rings of what fsopen(2), and fsmount(2) and open_tree(2), were answered with */
    unsigned next_context, next_tree;
    affinity_t *affinity;
};

/* A judge_ function returns 0 (done), -errno, LEAVE_TO_KERNEL (the kernel executes the call), or ANSWERED (the caller
 * already has its descriptor). */
enum { LEAVE_TO_KERNEL = 1, ANSWERED = 2 };

/* ---- serve_caller.c: memory, descriptors, rights and paths of the caller ---- */

/* A path as the caller gave it. Container runtimes name places by descriptor ("/proc/self/fd/7"), and our
 * "/proc/self" is not theirs: then `path` is empty and `fd` is our copy of the descriptor. */
typedef struct {
    char path[PATH_MAX];
    int fd;
} place_t;

int task_open(int task, const char *what, int flags); /* /proc/TASK/WHAT */
uint64_t task_capabilities(int task);                 /* effective ones (capget(2)); 0 when the task is gone */
int is_same_file(int a, int b);
int caller_string(const watched_call_t *call, uint64_t address, char *text, size_t size);
int caller_fd(const watched_call_t *call, int fd);    /* the caller's descriptor, as one of ours */
int caller_may_mount(const watched_call_t *call);
int caller_process(const watched_call_t *call, int number); /* a task by the number that the caller uses, or -ESRCH */
void caller_may_hang(const watched_call_t *call); /* lets another thread wait for calls */
int caller_enter(const syscall_server_t *server, const watched_call_t *call, int from_here);
void caller_leave(const syscall_server_t *server);
int place_read(const watched_call_t *call, uint64_t address, place_t *place);
int place_open(const place_t *place, int flags); /* O_PATH */
void place_close(const place_t *place);
int place_is_relative(const place_t *place);

/* ---- serve_trees.c: the twin's trees, and in which tree a path is ---- */

enum tree { TREE_OTHER, TREE_SYSFS, TREE_PROCFS, TREE_KERNELS_SYSFS };

int tree_clone_at(int at, const char *path);
int tree_clone(const char *path);
int tree_attach(int tree, int at, const char *target);
int tree_set_attributes(int tree, uint64_t set);
int tree_procfs_context(syscall_server_t *server, const watched_call_t *call);
int tree_replaces_type(const char *type); /* whether a new mount of this type shows a tree of the twin */
int tree_for_type(syscall_server_t *server, const watched_call_t *call, const char *type);
int tree_in_place_of(syscall_server_t *server, int made);
int tree_which(const syscall_server_t *server, int at);
void tree_path(int at, char path[PATH_MAX]);
int tree_is_root(int at, dev_t device);
int tree_is_own_mount(const syscall_server_t *server, int at);
int tree_is_control_type(const char *type);
int tree_is_control(int fd);

/* ---- serve_mounts.c ---- */

int judge_mount(syscall_server_t *server, const watched_call_t *call);
int judge_umount2(syscall_server_t *server, const watched_call_t *call);
int judge_fsopen(syscall_server_t *server, const watched_call_t *call);
int judge_fsmount(syscall_server_t *server, const watched_call_t *call);
int judge_open_tree(syscall_server_t *server, const watched_call_t *call);
int judge_move_mount(syscall_server_t *server, const watched_call_t *call);
int judge_mount_setattr(syscall_server_t *server, const watched_call_t *call);

/* ---- serve_statfs.c ---- */

int judge_statfs(syscall_server_t *server, const watched_call_t *call);
int judge_fstatfs(syscall_server_t *server, const watched_call_t *call);

/* ---- serve_affinity.c: on which emulated CPUs each task may run ---- */

affinity_t *affinity_new(const int32_t *node_of, int32_t n_cpus);
int judge_setaffinity(syscall_server_t *server, const watched_call_t *call);
int judge_getaffinity(syscall_server_t *server, const watched_call_t *call);
int judge_getcpu(syscall_server_t *server, const watched_call_t *call);

#endif
