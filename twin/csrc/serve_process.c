/*
 * Small system calls that Python lacks: ending with the parent, renaming, namespaces, mounts, file system types.
 */
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sched.h>
#include <unistd.h>

#include "nodectl_progress.h"

int process_die_with(int32_t parent, int signal)
{
    if (prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0))
        return -errno;
    return getppid() == parent ? 0 : -ESRCH; /* the parent may have ended before the call */
}

int process_rename(const char *name)
{
    return prctl(PR_SET_NAME, name, 0, 0, 0) ? -errno : 0;
}

int process_use_one_arena(void)
{
    return mallopt(M_ARENA_MAX, 1) ? 0 : -EINVAL;
}

void process_report(uint64_t units)
{
    nodectl_progress_tick(units);
}

int64_t filesystem_type(const char *path)
{
    struct statfs status;
    return statfs(path, &status) ? -errno : (int64_t)status.f_type;
}

int namespaces_leave(int flags)
{
    return unshare(flags) ? -errno : 0;
}

int mount_at(const char *source, const char *target, const char *type, uint64_t flags, const char *options)
{
    return mount(source, target, type, flags, options) ? -errno : 0;
}

int unmount_at(const char *target, int flags)
{
    return umount2(target, flags) ? -errno : 0;
}

int mount_read_only(const char *point)
{
    enum { RECURSIVE = 0x8000, READ_ONLY = 1 };
    struct {
        uint64_t set, clear, propagation, user_ns;
    } attributes = {.set = READ_ONLY}; /* struct mount_attr, Linux 5.12 */
    return syscall(SYS_mount_setattr, AT_FDCWD, point, RECURSIVE, &attributes, sizeof attributes) ? -errno : 0;
}
