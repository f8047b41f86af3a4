/*
 * The escape paths by which an honest program could leave the twin: mount calls that would show the host's sysfs,
 * procfs, devices or kernel controls, and unmounts that would remove the twin's files.
 *
 * The seccomp filter (serve_seccomp.c) stops these calls and passes them to us. We do one of three things: let the
 * kernel execute the call (tmpfs, binds, cgroups: all that reaches nothing of the host), refuse it with the errno that
 * a node's policy would give, or execute it ourselves *in the caller's namespace* with the twin's tree instead of the
 * kernel's.
 *
 *     caller: mount("sysfs", "/mnt", "sysfs")
 *     we:     tree = open_tree("/sys", clone)             in our namespace, where /sys is certainly the twin's
 *             setns(caller's), chroot(caller's root), chdir(caller's directory)
 *             move_mount(tree, "/mnt")
 *             setns(ours); answer 0
 *
 * setns(2) requires a thread with a root and directory of its own (unshare(CLONE_FS)). Our namespace is never the
 * command's: whatever a program does to its mounts, our copies of /sys, /proc and /dev stay unchanged. A procfs belongs
 * to a PID namespace, so a container gets a new one: we mount it in our namespace, cover it with the twin's files, and
 * clone it.
 *
 * We act with our own rights, so we first check the caller's: CAP_SYS_ADMIN over its mount namespace. As with all
 * seccomp listeners a hostile program can change its arguments after our check; honest ones do not.
 * Source: seccomp_unotify(2), setns(2), open_tree and move_mount (Linux fs/namespace.c), ioctl_ns(2).
 */
#include "serve_internal.h"

#include <linux/capability.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/resource.h>

/* Programs can read the host's time parameters, but not change them. */
static int judge_adjustment(const watched_call_t *call, uint64_t timex)
{
    unsigned modes;
    if (task_memory(call->task, timex, &modes, sizeof modes) != sizeof modes)
        return LEAVE_TO_KERNEL;
    return modes ? -EPERM : LEAVE_TO_KERNEL;
}

/* A limit of descriptors above the hard one. Root may set it on a node (CAP_SYS_RESOURCE); in a container, and so in a
 * twin that is served in one, it may not, and programs for many CPUs end there. Then the limit becomes the highest that
 * this container allows, and the call succeeds. */
static int judge_descriptors(const watched_call_t *call, int is_prlimit)
{
    struct rlimit wanted, now;
    int task = is_prlimit && call->args[0] ? (int)call->args[0] : call->task;
    uint64_t capabilities = task_capabilities(call->task);
    if (task != call->task || capabilities & 1ULL << CAP_SYS_RESOURCE || !(capabilities & 1ULL << CAP_SYS_ADMIN))
        return LEAVE_TO_KERNEL;
    if (task_memory(task, call->args[is_prlimit ? 2 : 1], &wanted, sizeof wanted) != sizeof wanted ||
        prlimit(task, RLIMIT_NOFILE, NULL, &now))
        return LEAVE_TO_KERNEL;
    if (wanted.rlim_max <= now.rlim_max || wanted.rlim_cur > wanted.rlim_max)
        return LEAVE_TO_KERNEL;
    if (!seccomp_is_waiting(call->listener, call->id))
        return -ESRCH;
    wanted.rlim_max = now.rlim_max;
    if (wanted.rlim_cur > now.rlim_max)
        wanted.rlim_cur = now.rlim_max;
    return prlimit(task, RLIMIT_NOFILE, &wanted, NULL) ? -errno : 0;
}

static int judge_prlimit64(syscall_server_t *server, const watched_call_t *call)
{
    (void)server;
    return judge_descriptors(call, 1);
}

static int judge_setrlimit(syscall_server_t *server, const watched_call_t *call)
{
    (void)server;
    return judge_descriptors(call, 0);
}

static void hand_on(const syscall_server_t *server, const watched_call_t *call)
{
    perf_call_t made = {.id = call->id,
                        .caller = call->task,
                        .attr_address = call->args[0],
                        .task = (int32_t)call->args[1],
                        .cpu = (int32_t)call->args[2],
                        .group_fd = (int32_t)call->args[3],
                        .flags = call->args[4],
                        .capabilities = task_capabilities(call->task)};
    server->count(server->count_to, &made);
}

static int judge_adjtimex(syscall_server_t *server, const watched_call_t *call)
{
    (void)server;
    return judge_adjustment(call, call->args[0]);
}

static int judge_clock_adjtime(syscall_server_t *server, const watched_call_t *call)
{
    (void)server;
    return judge_adjustment(call, call->args[1]);
}

static const struct {
    int call;
    int (*judge)(syscall_server_t *server, const watched_call_t *call);
} judges[] = {
    {SYS_mount, judge_mount},
    {SYS_umount2, judge_umount2},
    {SYS_open_tree, judge_open_tree},
    {SYS_move_mount, judge_move_mount},
    {SYS_fsopen, judge_fsopen},
    {SYS_fsmount, judge_fsmount},
    {SYS_mount_setattr, judge_mount_setattr},
    {SYS_adjtimex, judge_adjtimex},
    {SYS_clock_adjtime, judge_clock_adjtime},
    {SYS_prlimit64, judge_prlimit64},
    {SYS_setrlimit, judge_setrlimit},
    {SYS_statfs, judge_statfs},
    {SYS_fstatfs, judge_fstatfs},
    {SYS_sched_setaffinity, judge_setaffinity},
    {SYS_sched_getaffinity, judge_getaffinity},
    {SYS_getcpu, judge_getcpu},
};

static void answer(syscall_server_t *server, const struct seccomp_notif *notice, int *leads)
{
    int may = -1;
    watched_call_t call = {.listener = server->listener,
                        .id = notice->id,
                        .args = notice->data.args,
                        .task = (int)notice->pid,
                        .leads = leads,
                        .may = &may,
                        .turn = &server->turn};
    if (notice->data.nr == SYS_perf_event_open) {
        hand_on(server, &call);
        return;
    }
    int result = LEAVE_TO_KERNEL;
    for (size_t i = 0; i < sizeof judges / sizeof judges[0]; i++)
        if (judges[i].call == notice->data.nr)
            result = judges[i].judge(server, &call);
    if (result == LEAVE_TO_KERNEL)
        seccomp_answer_kernel(server->listener, notice->id);
    else if (result != ANSWERED)
        seccomp_answer_error(server->listener, notice->id, -result);
}

syscall_server_t *syscall_server_new(int listener, perf_answer_t count, void *to, const syscall_plan_t *plan)
{
    struct stat status;
    syscall_server_t *server = calloc(1, sizeof *server);
    if (!server)
        return NULL;
    server->listener = listener;
    server->count = count;
    server->count_to = to;
    server->mounts_ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    server->pid_ns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    snprintf(server->tree, sizeof server->tree, "%s", plan->tree);
    snprintf(server->spare, sizeof server->spare, "%s", plan->spare);
    snprintf(server->empty, sizeof server->empty, "%s", plan->empty);
    server->covers = calloc((size_t)plan->n_covers + 1, sizeof *server->covers);
    for (int i = 0; server->covers && i < plan->n_covers; i++)
        server->covers[i] = strdup(plan->covers[i]);
    server->tree_device = plan->tree_device;
    server->affinity = affinity_new(plan->node_of, plan->n_cpus);
    server->run_device = stat("/run", &status) ? 0 : status.st_dev;
    server->sysfs_device = stat("/sys", &status) ? 0 : status.st_dev;
    pthread_mutex_init(&server->spare_lock, NULL);
    pthread_mutex_init(&server->turn, NULL);
    for (int i = 0; i < KEPT; i++)
        server->contexts[i] = server->trees[i] = -1;
    return server;
}

int syscall_server_run(syscall_server_t *server)
{
    struct seccomp_notif notice;
    int result = 1, leads = 0;
    if (unshare(CLONE_FS))
        return -errno;
    while (result == 1) {
        if (!leads)
            pthread_mutex_lock(&server->turn);
        leads = 1;
        result = seccomp_next(server->listener, &notice);
        if (result == 1)
            answer(server, &notice, &leads);
    }
    pthread_mutex_unlock(&server->turn);
    return result;
}
