/*
 * The doors through which an honest program could leave the twin: mount calls that would show the host's sysfs,
 * procfs, devices or kernel controls, and unmounts that would take the twin's files away.
 *
 * The seccomp filter (kernel_seccomp.c) stops these calls and hands them to us. For each we do one of three things:
 * let the kernel go on (tmpfs, binds, cgroups, everything that leads nowhere), refuse it with the errno that a node's
 * policy would give, or do it ourselves *in the caller's namespace* with the twin's tree in place of the kernel's.
 *
 *     caller: mount("sysfs", "/mnt", "sysfs")
 *     we:     tree = open_tree("/sys", clone)             in our namespace, where /sys is certainly the twin's
 *             setns(caller's), chroot(caller's root), chdir(caller's directory)
 *             move_mount(tree, "/mnt")
 *             setns(ours); answer 0
 *
 * The thread has a root and directory of its own (unshare(CLONE_FS)), which setns(2) asks for. Our namespace is never
 * the command's: whatever a program does to its mounts, our copies of /sys, /proc and /dev stay as they were laid.
 * A procfs belongs to a PID namespace, so a container's is mounted afresh for it, covered with the twin's files in our
 * namespace, and cloned from there.
 *
 * We act with our own rights, so the caller's are checked first: CAP_SYS_ADMIN over its mount namespace. As with all
 * seccomp listeners a hostile program can change its arguments after our look; honest ones do not.
 * Source: seccomp_unotify(2), setns(2), open_tree and move_mount (Linux fs/namespace.c), ioctl_ns(2).
 */
#include "kernel_seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <linux/nsfs.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* linux/mount.h collides with sys/mount.h in glibc before 2.37; numbers are those of Linux, for every architecture. */
enum {
    TREE_CLONE       = 1,
    TREE_CLOEXEC     = O_CLOEXEC,
    RECURSIVE        = 0x8000, /* AT_RECURSIVE */
    MOVE_T_SYMLINKS  = 0x10,
    MOVE_F_EMPTY     = 0x4,
    MOVE_T_EMPTY     = 0x40,
    CREATE           = 6, /* FSCONFIG_CMD_CREATE */
    ATTR_RDONLY      = 1,
    ATTR_NOSUID      = 2,
    ATTR_NODEV       = 4,
    ATTR_NOEXEC      = 8,
    CLOSE_ON_EXEC    = 1,
    ALL_PROPAGATION  = MS_SHARED | MS_PRIVATE | MS_SLAVE | MS_UNBINDABLE,
};

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

#define SYSFS_MAGIC       0x62656572
#define PROC_MAGIC        0x9fa0

/* File systems through which the kernel is controlled; a new mount of one is refused, the laid one stays read-only. */
static const struct {
    const char *type;
    uint32_t magic;
} controls[] = {
    {"debugfs", 0x64626720},    {"tracefs", 0x74726163},   {"efivarfs", 0xde5e81e4}, {"securityfs", 0x73636673},
    {"configfs", 0x62656570},   {"pstore", 0x6165676c},    {"resctrl", 0x7655821},   {"fusectl", 0x65735543},
    {"binfmt_misc", 0x42494e4d}, {"selinuxfs", 0xf97cff8c}, {"bpf", 0xcafe4a11},
};
#define N_CONTROLS (sizeof controls / sizeof controls[0])

typedef struct {
    uint64_t set, clear, propagation, user_ns;
} attributes_t; /* struct mount_attr, Linux 5.12 */

#define KEPT 64 /* ours: so many of all programs' contexts may wait for fsmount, and trees to be attached */

/* One call that waits for its answer. */
typedef struct {
    int listener;
    uint64_t id;
    const __u64 *args;
    int task;
    int *leads; /* whether this thread is the one that waits for calls */
    int *may;   /* what may_mount() has found, -1: not asked yet */
    pthread_mutex_t *turn;
} door_call_t;

struct doors {
    int listener;
    perf_answer_t count;
    void *count_to;
    int mounts_ns, pid_ns;  /* ours */
    char tree[PATH_MAX], spare[PATH_MAX], empty[PATH_MAX];
    char **covers; /* paths below /proc, ended by NULL */
    dev_t tree_device, run_device, sysfs_device;
    pthread_mutex_t spare_lock;
    pthread_mutex_t turn; /* of the thread that waits for the next call */
    int contexts[KEPT], trees[KEPT]; /* the last that fsopen(2) and fsmount(2) were answered with, round and round */
    unsigned next_context, next_tree;
};

/* A handler gives 0 (done), -errno, GO_ON (the kernel does it) or ANSWERED (with a descriptor). */
enum { GO_ON = 1, ANSWERED = 2 };

static int open_of(int task, const char *what, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", task, what);
    return open(path, flags | O_CLOEXEC);
}

/****************************************************************
 * The caller
 ****************************************************************/

/* 0 if `address` holds a string of less than `size` bytes. Read page by page: the next page may not exist. */
static int read_string(const door_call_t *call, uint64_t address, char *text, size_t size)
{
    size_t got = 0;
    if (!address)
        return -EFAULT;
    while (got < size) {
        size_t page = 4096 - ((address + got) & 4095), want = page < size - got ? page : size - got;
        ssize_t count = task_memory(call->task, address + got, text + got, want);
        if (count <= 0)
            return -EFAULT;
        if (memchr(text + got, 0, (size_t)count))
            return 0;
        got += (size_t)count;
    }
    return -ENAMETOOLONG;
}

static int is_same(int a, int b)
{
    struct stat one, other;
    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

/* Effective capabilities (capget(2)); none if the caller is gone. */
static uint64_t capabilities_of(int task)
{
    struct __user_cap_header_struct who = {_LINUX_CAPABILITY_VERSION_3, task};
    struct __user_cap_data_struct words[2] = {{0, 0, 0}, {0, 0, 0}};
    return syscall(SYS_capget, &who, words) ? 0 : (uint64_t)words[1].effective << 32 | words[0].effective;
}

/* The thread group, whose descriptors can be fetched; -1 if the caller is gone. */
static int process_of(int task)
{
    char text[4096];
    int status = open_of(task, "status", O_RDONLY);
    ssize_t size = status < 0 ? -1 : read(status, text, sizeof text - 1);
    close(status);
    text[size < 0 ? 0 : size] = 0;
    const char *line = strstr(text, "\nTgid:");
    return line ? atoi(line + 6) : -1;
}

/* The caller's descriptor, as one of ours. */
static int fetch(const door_call_t *call, int fd)
{
    int process = (int)syscall(SYS_pidfd_open, process_of(call->task), 0);
    int copy = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    close(process);
    return copy;
}

/* A path as the caller gave it. Runtimes name places by descriptor, and "/proc/self" is not us: then `fd` is ours. */
typedef struct {
    char path[PATH_MAX];
    int fd;
} place_t;

static int read_place(const door_call_t *call, uint64_t address, place_t *place)
{
    int number;
    char more;
    place->fd = AT_FDCWD;
    int error = read_string(call, address, place->path, sizeof place->path);
    if (error || (sscanf(place->path, "/proc/self/fd/%d%c", &number, &more) != 1 &&
                  sscanf(place->path, "/proc/thread-self/fd/%d%c", &number, &more) != 1 &&
                  sscanf(place->path, "/dev/fd/%d%c", &number, &more) != 1))
        return error;
    place->fd = fetch(call, number);
    place->path[0] = 0;
    return place->fd < 0 ? -EBADF : 0;
}

static int open_place(const place_t *place, int flags)
{
    return *place->path ? open(place->path, flags | O_PATH | O_CLOEXEC) : dup(place->fd);
}

static void close_place(const place_t *place)
{
    if (place->fd >= 0)
        close(place->fd);
}

/* CAP_SYS_ADMIN over the mount namespace: effective, and in a user namespace that owns it or is above its owner. */
static int has_rights(const door_call_t *call)
{
    if (!(capabilities_of(call->task) >> CAP_SYS_ADMIN & 1))
        return 0;
    int users = open_of(call->task, "ns/user", O_RDONLY), mounts = open_of(call->task, "ns/mnt", O_RDONLY);
    int owner = ioctl(mounts, NS_GET_USERNS), found = 0;
    while (owner >= 0 && !(found = is_same(owner, users))) {
        int above = ioctl(owner, NS_GET_PARENT);
        close(owner);
        owner = above;
    }
    close(owner);
    close(mounts);
    close(users);
    return found;
}

static int may_mount(const door_call_t *call)
{
    if (*call->may < 0)
        *call->may = has_rights(call);
    return *call->may;
}

static void leave(const doors_t *doors)
{
    if (setns(doors->mounts_ns, CLONE_NEWNS))
        abort(); /* never serve the next caller with this one's eyes */
}

static int is_relative(const place_t *place)
{
    return *place->path && *place->path != '/';
}

/* See paths as the caller does, if `from_here` also those from its directory. To be left again, unless it fails. A
 * lookup may take for ever, so another thread waits for calls meanwhile. */
static int enter(const doors_t *doors, const door_call_t *call, int from_here)
{
    if (*call->leads)
        pthread_mutex_unlock(call->turn);
    *call->leads = 0;
    may_mount(call); /* now: within, /proc is the caller's, and its number there another one or nobody's */
    int mounts = open_of(call->task, "ns/mnt", O_RDONLY);
    int root = open_of(call->task, "root", O_PATH), here = open_of(call->task, "cwd", O_PATH);
    int error = 0;
    if (mounts < 0 || root < 0 || here < 0 || !seccomp_is_waiting(call->listener, call->id))
        error = -ESRCH;
    else if (setns(mounts, CLONE_NEWNS) || fchdir(root) || chroot(".") || (from_here && fchdir(here)))
        error = -errno; /* such as ENOTCONN: the caller's directory is of a FUSE file system that has ended */
    close(mounts);
    close(root);
    close(here);
    if (error)
        leave(doors);
    return error;
}

/****************************************************************
 * The twin's trees
 ****************************************************************/

static int clone_at(int at, const char *path)
{
    int flags = TREE_CLONE | TREE_CLOEXEC | RECURSIVE | (*path ? 0 : AT_EMPTY_PATH);
    int tree = (int)syscall(SYS_open_tree, at, path, flags);
    return tree < 0 ? -errno : tree;
}

static int clone_tree(const char *path)
{
    return clone_at(AT_FDCWD, path);
}

static int put(int tree, int at, const char *target)
{
    int flags = MOVE_F_EMPTY | (*target ? MOVE_T_SYMLINKS : MOVE_T_EMPTY);
    return syscall(SYS_move_mount, tree, "", at, target, flags) ? -errno : 0;
}

/* Lay the twin's files over a fresh procfs, in our namespace, and clone the whole. Takes `procfs` over. */
static int cover_procfs(doors_t *doors, int procfs)
{
    char from[2 * PATH_MAX], to[2 * PATH_MAX];
    pthread_mutex_lock(&doors->spare_lock);
    int result = put(procfs, AT_FDCWD, doors->spare);
    close(procfs);
    if (!result) {
        for (char **cover = doors->covers; *cover && !result; cover++) {
            snprintf(from, sizeof from, "%s%s", doors->tree, *cover);
            snprintf(to, sizeof to, "%s%s", doors->spare, *cover + strlen("/proc"));
            int tree = clone_tree(from);
            result = tree < 0 ? tree : put(tree, AT_FDCWD, to);
            if (tree >= 0)
                close(tree);
            if (result == -ENOENT)
                result = 0; /* this procfs has no such file ("subset=pid"), or this host has none */
        }
        if (!result)
            result = clone_tree(doors->spare);
        umount2(doors->spare, MNT_DETACH);
    }
    pthread_mutex_unlock(&doors->spare_lock);
    return result;
}

/* In a process that shares our memory and descriptors. */
static int open_procfs(void *result)
{
    *(int *)result = (int)syscall(SYS_fsopen, "proc", CLOSE_ON_EXEC);
    if (*(int *)result < 0)
        *(int *)result = -errno;
    return 0;
}

/* A context for the caller's PID namespace. Only a process within can open it, and setns(2) puts a child there. */
static int procfs_context(doors_t *doors, const door_call_t *call)
{
    enum { STACK = 64 * 1024 };
    int pids = open_of(call->task, "ns/pid", O_RDONLY), context = -ESRCH;
    int is_ours = pids >= 0 && is_same(pids, doors->pid_ns);
    char *stack = pids < 0 || is_ours ? NULL : malloc(STACK);
    if (is_ours)
        open_procfs(&context);
    else if (stack && setns(pids, CLONE_NEWPID) == 0) {
        int child = clone(open_procfs, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_FILES, &context);
        if (child < 0)
            context = -errno;
        else
            waitpid(child, NULL, __WALL);
        if (setns(doors->pid_ns, CLONE_NEWPID))
            abort();
    }
    free(stack);
    close(pids);
    return context;
}

static int procfs_tree(doors_t *doors, const door_call_t *call)
{
    int context = procfs_context(doors, call), procfs = -1, error = 0;
    if (context < 0)
        return context;
    if (syscall(SYS_fsconfig, context, CREATE, NULL, NULL, 0) ||
        (procfs = (int)syscall(SYS_fsmount, context, CLOSE_ON_EXEC, 0)) < 0)
        error = -errno;
    close(context);
    return error ? error : cover_procfs(doors, procfs);
}

/* The tree that stands for a new mount of this type. */
static int stand_in(doors_t *doors, const door_call_t *call, const char *type)
{
    if (!strcmp(type, "sysfs"))
        return clone_tree("/sys");
    if (!strcmp(type, "devtmpfs"))
        return clone_tree("/dev");
    return procfs_tree(doors, call);
}

static int has_stand_in(const char *type)
{
    return !strcmp(type, "sysfs") || !strcmp(type, "devtmpfs") || !strcmp(type, "proc");
}

static int is_control_type(const char *type)
{
    for (size_t i = 0; i < N_CONTROLS; i++)
        if (!strcmp(type, controls[i].type))
            return 1;
    return 0;
}

static int is_control(int fd)
{
    struct statfs status;
    for (size_t i = 0; fstatfs(fd, &status) == 0 && i < N_CONTROLS; i++)
        if ((uint32_t)status.f_type == controls[i].magic)
            return 1;
    return 0;
}

static uint64_t attributes_of(uint64_t mount_flags)
{
    return (mount_flags & MS_RDONLY ? ATTR_RDONLY : 0) | (mount_flags & MS_NOSUID ? ATTR_NOSUID : 0) |
           (mount_flags & MS_NODEV ? ATTR_NODEV : 0) | (mount_flags & MS_NOEXEC ? ATTR_NOEXEC : 0);
}

/* On all mounts of a tree: the twin's files are mounts of their own, and "read-only" is meant for them too. */
static int set_attributes(int tree, uint64_t set)
{
    attributes_t attributes = {.set = set};
    if (!set)
        return 0;
    return syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | RECURSIVE, &attributes, sizeof attributes) ? -errno : 0;
}

/****************************************************************
 * mount(2), umount2(2)
 ****************************************************************/

/* As the caller sees it, as far as its /proc shows it to us; else empty. */
static void path_of(int at, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
}

/* Whether this is where a mount of the device begins. Not a question to the file system, which may hang. */
static int is_root_of(int at, dev_t device)
{
    struct statx status;
    return statx(at, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &status) == 0 &&
           status.stx_attributes & STATX_ATTR_MOUNT_ROOT &&
           makedev(status.stx_dev_major, status.stx_dev_minor) == device;
}

/* Whether this is one of the twin's mounts in its own place. */
static int is_laid(const doors_t *doors, int at)
{
    char path[PATH_MAX];
    path_of(at, path);
    return is_root_of(at, doors->tree_device) && (!strncmp(path, "/sys/", 5) || !strncmp(path, "/proc/", 6));
}

static int mount_new(doors_t *doors, const door_call_t *call, const place_t *target)
{
    char type[64];
    int error = read_string(call, call->args[2], type, sizeof type);
    if (error == -ENAMETOOLONG)
        return GO_ON; /* no type that we know */
    if (error)
        return error == -EFAULT ? GO_ON : error;
    if (is_control_type(type))
        return -EPERM;
    if (!has_stand_in(type) || !may_mount(call))
        return GO_ON;
    int tree = stand_in(doors, call, type);
    if (tree < 0)
        return tree;
    int below = strcmp(type, "sysfs") ? -1 : clone_tree(doors->empty); /* for the line in /proc/mounts */
    error = set_attributes(tree, attributes_of(call->args[3]));
    if (!error && !(error = enter(doors, call, is_relative(target)))) {
        if (below >= 0)
            error = put(below, target->fd, target->path);
        error = error ? error : put(tree, target->fd, target->path);
        leave(doors);
    }
    close(below);
    close(tree);
    return error;
}

/* A control file system stays read-only; "read-only" for a sysfs is meant for the twin's files in it too. */
static int mount_again(doors_t *doors, const door_call_t *call, const place_t *target)
{
    struct stat status;
    int error = enter(doors, call, is_relative(target));
    if (error)
        return error;
    int result = GO_ON, at = open_place(target, 0);
    if (at >= 0 && is_control(at) && !(call->args[3] & MS_RDONLY))
        result = -EPERM;
    else if (at >= 0 && fstat(at, &status) == 0 && status.st_dev == doors->sysfs_device && may_mount(call))
        result = set_attributes(at, attributes_of(call->args[3]));
    close(at);
    leave(doors);
    return result;
}

/* Whether a bind of this alone would show what lies below the twin's files: directories of the sysfs and of a procfs. */
static int lies_over_hosts(const doors_t *doors, int at)
{
    struct stat status;
    struct statfs kind;
    return fstat(at, &status) == 0 && S_ISDIR(status.st_mode) &&
           (status.st_dev == doors->sysfs_device || (fstatfs(at, &kind) == 0 && kind.f_type == PROC_MAGIC));
}

/* "mount --bind /proc DIR" is meant for the whole procfs: a real node has no mounts in it that could be left out. */
static int bind_whole(const doors_t *doors, const door_call_t *call, const place_t *target)
{
    place_t source;
    if (read_place(call, call->args[0], &source))
        return GO_ON;
    int result = enter(doors, call, is_relative(&source) || is_relative(target));
    if (!result) {
        int from = open_place(&source, 0), to = open_place(target, 0), tree = -1;
        result = GO_ON;
        if (to >= 0 && lies_over_hosts(doors, from) && may_mount(call))
            result = (tree = clone_at(from, "")) < 0 ? tree : put(tree, to, "");
        close(tree);
        close(to);
        close(from);
        leave(doors);
    }
    close_place(&source);
    return result;
}

/* Where one of the twin's own mounts was laid, its place stays. */
static int move_place(const doors_t *doors, const door_call_t *call)
{
    place_t source;
    if (read_place(call, call->args[0], &source))
        return GO_ON;
    int result = enter(doors, call, is_relative(&source));
    if (!result) {
        int at = open_place(&source, 0);
        result = is_laid(doors, at) ? -EINVAL : GO_ON;
        close(at);
        leave(doors);
    }
    close_place(&source);
    return result;
}

static int do_mount(doors_t *doors, const door_call_t *call)
{
    place_t target;
    uint64_t flags = call->args[3];
    int result = GO_ON;
    if (read_place(call, call->args[1], &target))
        return GO_ON; /* the kernel says what is wrong with it */
    if (flags & MS_REMOUNT)
        result = mount_again(doors, call, &target);
    else if (flags & MS_BIND)
        result = flags & MS_REC ? GO_ON : bind_whole(doors, call, &target);
    else if (flags & ALL_PROPAGATION)
        result = GO_ON;
    else
        result = flags & MS_MOVE ? move_place(doors, call) : mount_new(doors, call, &target);
    close_place(&target);
    return result;
}

static int is_sysfs_or_procfs(const doors_t *doors, int at)
{
    struct statfs kind;
    return is_root_of(at, doors->sysfs_device) || (fstatfs(at, &kind) == 0 && kind.f_type == PROC_MAGIC);
}

/* With all that lies in it, and the kernel's own sysfs below, which mount_new put there. */
static int unmount_all(const char *target)
{
    struct statfs kind;
    if (umount2(target, MNT_DETACH))
        return -errno;
    int below = open(target, O_PATH | O_CLOEXEC);
    if (below >= 0 && fstatfs(below, &kind) == 0 && kind.f_type == SYSFS_MAGIC)
        umount2(target, MNT_DETACH);
    close(below);
    return 0;
}

/* A real node has no mounts where the twin's files are laid, and unmounts a sysfs or procfs as one thing. In a copy
 * ("umount -R" after "mount --rbind /sys DIR") they go with the sysfs or procfs in which they lie. */
static int judge_unmount(const doors_t *doors, const door_call_t *call, int at, const char *target)
{
    char path[PATH_MAX];
    path_of(at, path);
    if (is_root_of(at, doors->tree_device))
        return *path && !is_laid(doors, at) && may_mount(call) ? 0 : -EINVAL;
    if (is_root_of(at, doors->run_device) && !strcmp(path, "/run"))
        return -EBUSY;
    int is_lazy = call->args[1] == MNT_DETACH, is_own = !strcmp(path, "/sys") || !strcmp(path, "/proc");
    if ((call->args[1] && !is_lazy) || (is_own && !is_lazy) || !*target || !may_mount(call))
        return GO_ON; /* the run's own are busy, as on any node */
    return is_sysfs_or_procfs(doors, at) ? unmount_all(target) : GO_ON;
}

static int do_unmount(doors_t *doors, const door_call_t *call)
{
    place_t target;
    if (read_place(call, call->args[0], &target))
        return GO_ON;
    int result = enter(doors, call, is_relative(&target));
    if (!result) {
        int at = open_place(&target, call->args[1] & UMOUNT_NOFOLLOW ? O_NOFOLLOW : 0);
        result = at < 0 ? GO_ON : judge_unmount(doors, call, at, target.path);
        close(at);
        leave(doors);
    }
    close_place(&target);
    return result;
}

/****************************************************************
 * fsopen(2), fsmount(2), mount_setattr(2)
 ****************************************************************/

static void keep(doors_t *doors, int *kept, unsigned *next, int fd)
{
    pthread_mutex_lock(&doors->spare_lock);
    int *slot = &kept[(*next)++ % KEPT];
    close(*slot);
    *slot = fd;
    pthread_mutex_unlock(&doors->spare_lock);
}

/* A context that shows, when its mount is made, that it is for the host's. Made by us, so that we know it again. */
static int do_fsopen(doors_t *doors, const door_call_t *call)
{
    char type[64];
    if (read_string(call, call->args[0], type, sizeof type))
        return GO_ON;
    if (is_control_type(type))
        return -EPERM;
    if (!has_stand_in(type) || !may_mount(call))
        return GO_ON;
    int is_proc = !strcmp(type, "proc");
    int context = is_proc ? procfs_context(doors, call) : (int)syscall(SYS_fsopen, type, CLOSE_ON_EXEC);
    if (context < 0)
        return is_proc ? context : -errno;
    int error = seccomp_answer_fd(call->listener, call->id, context, call->args[1] & CLOSE_ON_EXEC);
    if (error)
        close(context);
    else
        keep(doors, doors->contexts, &doors->next_context, context);
    return error ? error : ANSWERED;
}

static int is_kept(doors_t *doors, int context)
{
    int self = getpid(), found = 0;
    pthread_mutex_lock(&doors->spare_lock);
    for (int i = 0; i < KEPT && !found; i++)
        found = doors->contexts[i] >= 0 && syscall(SYS_kcmp, self, self, KCMP_FILE, context, doors->contexts[i]) == 0;
    pthread_mutex_unlock(&doors->spare_lock);
    return found;
}

/* The twin's tree in place of `made`, which is taken over. */
static int twin_of(doors_t *doors, int made)
{
    struct statfs kind;
    int error = fstatfs(made, &kind) ? -errno : 0;
    if (!error && kind.f_type == PROC_MAGIC)
        return cover_procfs(doors, made);
    close(made);
    return error ? error : clone_tree(kind.f_type == SYSFS_MAGIC ? "/sys" : "/dev");
}

/* Gives the program a directory of this tree, which stays here for now; takes `tree` over. A mount's own descriptor
 * cannot be handed over (it is O_PATH). Without its own the tree would be taken apart (dissolve_on_fput in
 * fs/namespace.c), so that stays here until the program must have attached it. */
static int hand_over(doors_t *doors, const door_call_t *call, int tree, int close_on_exec)
{
    int root = openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = root < 0 ? -errno : seccomp_answer_fd(call->listener, call->id, root, close_on_exec);
    close(root);
    if (error)
        close(tree);
    else
        keep(doors, doors->trees, &doors->next_tree, tree);
    return error ? error : ANSWERED;
}

static int do_fsmount(doors_t *doors, const door_call_t *call)
{
    int context = fetch(call, (int)call->args[0]);
    if (context < 0 || !is_kept(doors, context) || !may_mount(call)) {
        close(context);
        return GO_ON;
    }
    int made = (int)syscall(SYS_fsmount, context, CLOSE_ON_EXEC, (unsigned)call->args[2]);
    int tree = made < 0 ? -errno : twin_of(doors, made);
    close(context);
    if (tree < 0)
        return tree;
    int error = set_attributes(tree, call->args[2] & (ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC));
    if (!error)
        return hand_over(doors, call, tree, call->args[1] & CLOSE_ON_EXEC);
    close(tree);
    return error;
}

/* What a path and the descriptor that it starts from name, as O_PATH; to be called between enter() and leave(). */
static int open_from(int base, const place_t *place)
{
    if (is_relative(place))
        return openat(base, place->path, O_PATH | O_CLOEXEC);
    return *place->path ? open(place->path, O_PATH | O_CLOEXEC) : dup(place->fd >= 0 ? place->fd : base);
}

/* As bind_whole() and move_place(), which new programs make of open_tree(2) and move_mount(2). */
static int do_tree(doors_t *doors, const door_call_t *call, int is_move)
{
    place_t place;
    int base = (int)call->args[0], tree = GO_ON;
    if (read_place(call, call->args[1], &place))
        return GO_ON;
    int from_here = is_relative(&place) && base == AT_FDCWD;
    if (base != AT_FDCWD)
        base = fetch(call, base);
    int error = enter(doors, call, from_here);
    if (!error) {
        int at = open_from(base, &place);
        if (is_move)
            tree = is_laid(doors, at) ? -EINVAL : GO_ON;
        else if (lies_over_hosts(doors, at) && may_mount(call))
            tree = clone_at(at, "");
        close(at);
        leave(doors);
    }
    close(base);
    close_place(&place);
    if (error || tree < 0 || tree == GO_ON)
        return error ? error : tree;
    return hand_over(doors, call, tree, call->args[2] & TREE_CLOEXEC);
}

static int do_open_tree(doors_t *doors, const door_call_t *call)
{
    int is_whole = !(call->args[2] & TREE_CLONE) || call->args[2] & RECURSIVE;
    return is_whole ? GO_ON : do_tree(doors, call, 0);
}

/* Nobody makes a control file system writable again, nor, by a whole tree, what may lie in it. */
static int do_set_attributes(doors_t *doors, const door_call_t *call)
{
    char target[PATH_MAX];
    attributes_t attributes;
    int flags = (int)call->args[2];
    if (call->args[4] < sizeof attributes ||
        task_memory(call->task, call->args[3], &attributes, sizeof attributes) != sizeof attributes ||
        !(attributes.clear & ATTR_RDONLY) || read_string(call, call->args[1], target, sizeof target))
        return GO_ON;
    if (flags & RECURSIVE)
        return -EPERM;
    int base = (int)call->args[0] == AT_FDCWD ? AT_FDCWD : fetch(call, (int)call->args[0]);
    int error = enter(doors, call, base == AT_FDCWD);
    if (!error) {
        int at = *target ? openat(base, target, O_PATH | O_CLOEXEC) : dup(base);
        error = at >= 0 && is_control(at) ? -EPERM : GO_ON;
        close(at);
        leave(doors);
    }
    close(base);
    return error;
}

/****************************************************************
 * adjtimex(2), clock_adjtime(2)
 ****************************************************************/

/* The host's time can be asked for, and not be changed. */
static int judge_adjustment(const door_call_t *call, uint64_t timex)
{
    unsigned modes;
    if (task_memory(call->task, timex, &modes, sizeof modes) != sizeof modes)
        return GO_ON;
    return modes ? -EPERM : GO_ON;
}

/****************************************************************
 * The loop
 ****************************************************************/

static void hand_on(const doors_t *doors, const door_call_t *call)
{
    perf_call_t made = {.id = call->id,
                        .caller = call->task,
                        .attr_address = call->args[0],
                        .task = (int32_t)call->args[1],
                        .cpu = (int32_t)call->args[2],
                        .group_fd = (int32_t)call->args[3],
                        .flags = call->args[4],
                        .capabilities = capabilities_of(call->task)};
    doors->count(doors->count_to, &made);
}

static void answer(doors_t *doors, const struct seccomp_notif *notice, int *leads)
{
    int may = -1;
    door_call_t call = {.listener = doors->listener,
                        .id = notice->id,
                        .args = notice->data.args,
                        .task = (int)notice->pid,
                        .leads = leads,
                        .may = &may,
                        .turn = &doors->turn};
    int result = GO_ON;
    switch (notice->data.nr) {
    case SYS_perf_event_open:
        hand_on(doors, &call);
        return;
    case SYS_mount:
        result = do_mount(doors, &call);
        break;
    case SYS_umount2:
        result = do_unmount(doors, &call);
        break;
    case SYS_open_tree:
        result = do_open_tree(doors, &call);
        break;
    case SYS_move_mount:
        result = do_tree(doors, &call, 1);
        break;
    case SYS_adjtimex:
        result = judge_adjustment(&call, call.args[0]);
        break;
    case SYS_clock_adjtime:
        result = judge_adjustment(&call, call.args[1]);
        break;
    case SYS_fsopen:
        result = do_fsopen(doors, &call);
        break;
    case SYS_fsmount:
        result = do_fsmount(doors, &call);
        break;
    case SYS_mount_setattr:
        result = do_set_attributes(doors, &call);
        break;
    }
    if (result == GO_ON)
        seccomp_answer_kernel(doors->listener, notice->id);
    else if (result != ANSWERED)
        seccomp_answer_error(doors->listener, notice->id, -result);
}

doors_t *doors_new(int listener, perf_answer_t count, void *to, const doors_plan_t *plan)
{
    struct stat status;
    doors_t *doors = calloc(1, sizeof *doors);
    if (!doors)
        return NULL;
    doors->listener = listener;
    doors->count = count;
    doors->count_to = to;
    doors->mounts_ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    doors->pid_ns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    snprintf(doors->tree, sizeof doors->tree, "%s", plan->tree);
    snprintf(doors->spare, sizeof doors->spare, "%s", plan->spare);
    snprintf(doors->empty, sizeof doors->empty, "%s", plan->empty);
    doors->covers = calloc((size_t)plan->n_covers + 1, sizeof *doors->covers);
    for (int i = 0; doors->covers && i < plan->n_covers; i++)
        doors->covers[i] = strdup(plan->covers[i]);
    doors->tree_device = plan->tree_device;
    doors->run_device = stat("/run", &status) ? 0 : status.st_dev;
    doors->sysfs_device = stat("/sys", &status) ? 0 : status.st_dev;
    pthread_mutex_init(&doors->spare_lock, NULL);
    pthread_mutex_init(&doors->turn, NULL);
    for (int i = 0; i < KEPT; i++)
        doors->contexts[i] = doors->trees[i] = -1;
    return doors;
}

int doors_serve(doors_t *doors)
{
    struct seccomp_notif notice;
    int result = 1, leads = 0;
    if (unshare(CLONE_FS))
        return -errno;
    while (result == 1) {
        if (!leads)
            pthread_mutex_lock(&doors->turn);
        leads = 1;
        result = seccomp_next(doors->listener, &notice);
        if (result == 1)
            answer(doors, &notice, &leads);
    }
    pthread_mutex_unlock(&doors->turn);
    return result;
}
