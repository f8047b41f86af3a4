/*
 * The twin's trees that replace the kernel's sysfs, procfs and devices, and in which tree a path is.
 * See serve_internal.h.
 */
#include "serve_internal.h"

#include <sched.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>

enum { MOVE_T_SYMLINKS = 0x10, MOVE_F_EMPTY = 0x4, MOVE_T_EMPTY = 0x40, CREATE = 6 /* FSCONFIG_CMD_CREATE */ };

#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

#define SYSFS_MAGIC       0x62656572
#define PROC_MAGIC        0x9fa0

/* File systems that control the kernel. A new mount of one is refused; the existing mount stays read-only. */
static const struct {
    const char *type;
    uint32_t magic;
} controls[] = {
    {"debugfs", 0x64626720},    {"tracefs", 0x74726163},   {"efivarfs", 0xde5e81e4}, {"securityfs", 0x73636673},
    {"configfs", 0x62656570},   {"pstore", 0x6165676c},    {"resctrl", 0x7655821},   {"fusectl", 0x65735543},
    {"binfmt_misc", 0x42494e4d}, {"selinuxfs", 0xf97cff8c}, {"bpf", 0xcafe4a11},
};
#define N_CONTROLS (sizeof controls / sizeof controls[0])

/****************************************************************
 * The trees
 ****************************************************************/

int tree_clone_at(int at, const char *path)
{
    int flags = TREE_CLONE | TREE_CLOEXEC | RECURSIVE | (*path ? 0 : AT_EMPTY_PATH);
    int tree = (int)syscall(SYS_open_tree, at, path, flags);
    return tree < 0 ? -errno : tree;
}

int tree_clone(const char *path)
{
    return tree_clone_at(AT_FDCWD, path);
}

int tree_attach(int tree, int at, const char *target)
{
    int flags = MOVE_F_EMPTY | (*target ? MOVE_T_SYMLINKS : MOVE_T_EMPTY);
    return syscall(SYS_move_mount, tree, "", at, target, flags) ? -errno : 0;
}

/* Mounts the twin's files over a new procfs, in our namespace, and clones the whole. Closes `procfs`. */
static int tree_cover_procfs(syscall_server_t *server, int procfs)
{
    char from[2 * PATH_MAX], to[2 * PATH_MAX];
    pthread_mutex_lock(&server->spare_lock);
    int result = tree_attach(procfs, AT_FDCWD, server->spare);
    close(procfs);
    if (!result) {
        for (char **cover = server->covers; *cover && !result; cover++) {
            snprintf(from, sizeof from, "%s%s", server->tree, *cover);
            snprintf(to, sizeof to, "%s%s", server->spare, *cover + strlen("/proc"));
            int tree = tree_clone(from);
            result = tree < 0 ? tree : tree_attach(tree, AT_FDCWD, to);
            if (tree >= 0)
                close(tree);
            if (result == -ENOENT)
                result = 0; /* this procfs has no such file ("subset=pid"), or this host has none */
        }
        if (!result)
            result = tree_clone(server->spare);
        umount2(server->spare, MNT_DETACH);
    }
    pthread_mutex_unlock(&server->spare_lock);
    return result;
}

/* Runs in a process that shares our memory and descriptors. */
static int open_procfs(void *result)
{
    *(int *)result = (int)syscall(SYS_fsopen, "proc", CLOSE_ON_EXEC);
    if (*(int *)result < 0)
        *(int *)result = -errno;
    return 0;
}

/* A context for a procfs of the caller's PID namespace. Only a process inside can open it; setns(2) puts a child there.
 * */
int tree_procfs_context(syscall_server_t *server, const watched_call_t *call)
{
    enum { STACK = 64 * 1024 };
    int pids = task_open(call->task, "ns/pid", O_RDONLY), context = -ESRCH;
    int is_ours = pids >= 0 && is_same_file(pids, server->pid_ns);
    char *stack = pids < 0 || is_ours ? NULL : malloc(STACK);
    if (is_ours)
        open_procfs(&context);
    else if (stack && setns(pids, CLONE_NEWPID) == 0) {
        int child = clone(open_procfs, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_FILES, &context);
        if (child < 0)
            context = -errno;
        else
            waitpid(child, NULL, __WALL);
        if (setns(server->pid_ns, CLONE_NEWPID))
            abort();
    }
    free(stack);
    close(pids);
    return context;
}

static int procfs_tree(syscall_server_t *server, const watched_call_t *call)
{
    int context = tree_procfs_context(server, call), procfs = -1, error = 0;
    if (context < 0)
        return context;
    if (syscall(SYS_fsconfig, context, CREATE, NULL, NULL, 0) ||
        (procfs = (int)syscall(SYS_fsmount, context, CLOSE_ON_EXEC, 0)) < 0)
        error = -errno;
    close(context);
    return error ? error : tree_cover_procfs(server, procfs);
}

/* The tree that replaces a new mount of this type. */
int tree_for_type(syscall_server_t *server, const watched_call_t *call, const char *type)
{
    if (!strcmp(type, "sysfs"))
        return tree_clone("/sys");
    if (!strcmp(type, "devtmpfs"))
        return tree_clone("/dev");
    return procfs_tree(server, call);
}

int tree_replaces_type(const char *type)
{
    return !strcmp(type, "sysfs") || !strcmp(type, "devtmpfs") || !strcmp(type, "proc");
}

/* Sets attributes on all mounts of a tree, since the twin's files in it are mounts of their own. */
int tree_set_attributes(int tree, uint64_t set)
{
    attributes_t attributes = {.set = set};
    if (!set)
        return 0;
    return syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | RECURSIVE, &attributes, sizeof attributes) ? -errno : 0;
}

/****************************************************************
 * In which tree a path is
 ****************************************************************/

/* In which tree `at` is, or -errno: the twin's sysfs (a file system of its own), any procfs, or a sysfs of the kernel.
 * Reads the device without a request to the file system, which may hang. */
int tree_which(const syscall_server_t *server, int at)
{
    struct statx status;
    struct statfs kind;
    if (statx(at, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &status))
        return -errno;
    if (makedev(status.stx_dev_major, status.stx_dev_minor) == server->sysfs_device)
        return TREE_SYSFS;
    if (fstatfs(at, &kind))
        return -errno;
    return kind.f_type == PROC_MAGIC ? TREE_PROCFS : kind.f_type == SYSFS_MAGIC ? TREE_KERNELS_SYSFS : TREE_OTHER;
}

/* The twin's tree for `made`, a new mount of the kernel's. Closes `made`. */
int tree_in_place_of(syscall_server_t *server, int made)
{
    int which = tree_which(server, made);
    if (which == TREE_PROCFS)
        return tree_cover_procfs(server, made);
    close(made);
    return which < 0 ? which : tree_clone(which == TREE_KERNELS_SYSFS ? "/sys" : "/dev");
}

/* The path as the caller sees it; empty if its /proc does not show it. */
void tree_path(int at, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
}

/* Whether this is the root of a mount of the device. Sends no request to the file system, which may hang. */
int tree_is_root(int at, dev_t device)
{
    struct statx status;
    return statx(at, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &status) == 0 &&
           status.stx_attributes & STATX_ATTR_MOUNT_ROOT &&
           makedev(status.stx_dev_major, status.stx_dev_minor) == device;
}

/* Whether this is one of the twin's mounts at its original place. */
int tree_is_own_mount(const syscall_server_t *server, int at)
{
    char path[PATH_MAX];
    tree_path(at, path);
    return tree_is_root(at, server->tree_device) && (!strncmp(path, "/sys/", 5) || !strncmp(path, "/proc/", 6));
}

int tree_is_control_type(const char *type)
{
    for (size_t i = 0; i < N_CONTROLS; i++)
        if (!strcmp(type, controls[i].type))
            return 1;
    return 0;
}

int tree_is_control(int fd)
{
    struct statfs status;
    for (size_t i = 0; fstatfs(fd, &status) == 0 && i < N_CONTROLS; i++)
        if ((uint32_t)status.f_type == controls[i].magic)
            return 1;
    return 0;
}
