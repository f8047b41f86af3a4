/*
 * statfs(2) and fstatfs(2): the twin's files say that they are the kernel's.
 *
 * The tree is a FUSE file system, and /sys an overlay. Programs that want to be sure of a sysfs (libudev, systemd, perf)
 * compare f_type with SYSFS_MAGIC. Every other path is left to the kernel. Which of the two the tree's file stands for is
 * read from its block size, which in procfs is 1024 (twin/serve/fuse_tree.py). The empty directory of debugfs says that
 * a debugfs is mounted there, as on a node: powertop mounts one else, which is refused, and ends.
 * Source: statfs(2); fs/kernfs/mount.c and fs/proc/root.c; mount options as systemd has them (src/shared/mount-setup.c).
 */
#include "serve_internal.h"

#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

enum { SYSFS_TYPE = 0x62656572, PROC_TYPE = 0x9fa0, DEBUGFS_TYPE = 0x64626720, PROC_BLOCK = 1024, FLAGS_ARE_VALID = 0x20 };

static dev_t device_of(const struct statx *status)
{
    return makedev(status->stx_dev_major, status->stx_dev_minor);
}

/* An overlay shows its own device for directories alone, so a file of /sys is recognised by its directory. */
static int lies_in_sysfs(const syscall_server_t *server, int at)
{
    char path[PATH_MAX];
    struct statx status;
    tree_path(at, path);
    char *name = strrchr(path, '/');
    if (!name || name == path)
        return 0;
    *name = 0;
    return statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, 0, &status) == 0 && device_of(&status) == server->sysfs_device;
}

static int type_of_directory(int at)
{
    static const char debugfs[] = "/kernel/debug";
    char path[PATH_MAX];
    tree_path(at, path);
    size_t size = strlen(path), ending = sizeof debugfs - 1;
    return size > ending && !strcmp(path + size - ending, debugfs) ? DEBUGFS_TYPE : SYSFS_TYPE;
}

/* The f_type that the file should show; 0: the kernel's. Sends no request to the file's own file system. */
static int type_of(const syscall_server_t *server, int at)
{
    struct statx status;
    if (at < 0 || statx(at, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status))
        return 0;
    if (device_of(&status) == server->tree_device)
        return status.stx_blksize == PROC_BLOCK ? PROC_TYPE : SYSFS_TYPE;
    if (device_of(&status) == server->sysfs_device)
        return type_of_directory(at);
    return !S_ISDIR(status.stx_mode) && lies_in_sysfs(server, at) ? SYSFS_TYPE : 0;
}

static int answer_with(const watched_call_t *call, int type)
{
    int page = type == PROC_TYPE ? PROC_BLOCK : 4096;
    struct statfs shown = {.f_type = type,
                           .f_bsize = page,
                           .f_frsize = page,
                           .f_namelen = NAME_MAX,
                           .f_flags = FLAGS_ARE_VALID | ST_NOSUID | ST_NODEV | ST_NOEXEC | ST_RELATIME};
    if (!type)
        return LEAVE_TO_KERNEL;
    if (!seccomp_is_waiting(call->listener, call->id))
        return -EINTR;
    return task_store(call->task, call->args[1], &shown, sizeof shown) == sizeof shown ? 0 : -EFAULT;
}

int judge_statfs(syscall_server_t *server, const watched_call_t *call)
{
    place_t place;
    int type = 0;
    if (place_read(call, call->args[0], &place))
        return LEAVE_TO_KERNEL; /* the kernel returns the error */
    if (!caller_enter(server, call, place_is_relative(&place))) {
        int at = place_open(&place, 0);
        type = type_of(server, at);
        if (at >= 0)
            close(at);
        caller_leave(server);
    }
    place_close(&place);
    return answer_with(call, type);
}

int judge_fstatfs(syscall_server_t *server, const watched_call_t *call)
{
    caller_may_hang(call);
    int at = caller_fd(call, (int)call->args[0]);
    int type = type_of(server, at);
    if (at >= 0)
        close(at);
    return answer_with(call, type);
}
