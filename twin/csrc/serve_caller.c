/*
 * The caller of a stopped system call: its memory and descriptors, its rights over mounts, and paths as it sees them.
 * See serve_internal.h.
 */
#include "serve_internal.h"

#include <linux/capability.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>

int task_open(int task, const char *what, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", task, what);
    return open(path, flags | O_CLOEXEC);
}

/* Copies a string; 0, or -ENAMETOOLONG from `size` bytes on. Reads page by page, since the next page may not exist. */
int caller_string(const watched_call_t *call, uint64_t address, char *text, size_t size)
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

int is_same_file(int a, int b)
{
    struct stat one, other;
    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

/* Effective capabilities (capget(2)); none if the caller has ended. */
uint64_t task_capabilities(int task)
{
    struct __user_cap_header_struct who = {_LINUX_CAPABILITY_VERSION_3, task};
    struct __user_cap_data_struct words[2] = {{0, 0, 0}, {0, 0, 0}};
    return syscall(SYS_capget, &who, words) ? 0 : (uint64_t)words[1].effective << 32 | words[0].effective;
}

/* The caller's thread group, of which pidfd_getfd(2) can get descriptors; -1 if the caller has ended. */
static int process_of(int task)
{
    char text[4096];
    int status = task_open(task, "status", O_RDONLY);
    ssize_t size = status < 0 ? -1 : read(status, text, sizeof text - 1);
    close(status);
    text[size < 0 ? 0 : size] = 0;
    const char *line = strstr(text, "\nTgid:");
    return line ? atoi(line + 6) : -1;
}

/* A copy of the caller's descriptor. */
int caller_fd(const watched_call_t *call, int fd)
{
    int process = (int)syscall(SYS_pidfd_open, process_of(call->task), 0);
    int copy = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    close(process);
    return copy;
}

int place_read(const watched_call_t *call, uint64_t address, place_t *place)
{
    int number;
    char more;
    place->fd = AT_FDCWD;
    int error = caller_string(call, address, place->path, sizeof place->path);
    if (error || (sscanf(place->path, "/proc/self/fd/%d%c", &number, &more) != 1 &&
                  sscanf(place->path, "/proc/thread-self/fd/%d%c", &number, &more) != 1 &&
                  sscanf(place->path, "/dev/fd/%d%c", &number, &more) != 1))
        return error;
    place->fd = caller_fd(call, number);
    place->path[0] = 0;
    return place->fd < 0 ? -EBADF : 0;
}

int place_open(const place_t *place, int flags)
{
    return *place->path ? open(place->path, flags | O_PATH | O_CLOEXEC) : dup(place->fd);
}

void place_close(const place_t *place)
{
    if (place->fd >= 0)
        close(place->fd);
}

int place_is_relative(const place_t *place)
{
    return *place->path && *place->path != '/';
}

/* CAP_SYS_ADMIN over the mount namespace: effective, and in a user namespace that owns it or is above its owner. */
static int has_rights(const watched_call_t *call)
{
    if (!(task_capabilities(call->task) >> CAP_SYS_ADMIN & 1))
        return 0;
    int users = task_open(call->task, "ns/user", O_RDONLY), mounts = task_open(call->task, "ns/mnt", O_RDONLY);
    int owner = ioctl(mounts, NS_GET_USERNS), found = 0;
    while (owner >= 0 && !(found = is_same_file(owner, users))) {
        int above = ioctl(owner, NS_GET_PARENT);
        close(owner);
        owner = above;
    }
    close(owner);
    close(mounts);
    close(users);
    return found;
}

int caller_may_mount(const watched_call_t *call)
{
    if (*call->may < 0)
        *call->may = has_rights(call);
    return *call->may;
}

void caller_leave(const syscall_server_t *server)
{
    if (setns(server->mounts_ns, CLONE_NEWNS))
        abort(); /* never serve the next caller in this one's namespace */
}

int caller_process(const watched_call_t *call, int number)
{
    enum { PID_FROM_PIDNS = 0x8004b706 }; /* NS_GET_PID_FROM_PIDNS of linux/nsfs.h, Linux 6.11 */
    struct stat ours, theirs;
    if (number == 0 || number == call->task)
        return call->task;
    int pids = number < 0 ? -1 : task_open(call->task, "ns/pid", O_RDONLY), found = -ESRCH;
    if (pids >= 0 && fstat(pids, &theirs) == 0 && stat("/proc/self/ns/pid", &ours) == 0)
        found = ours.st_ino == theirs.st_ino ? number : ioctl(pids, (unsigned)PID_FROM_PIDNS, number);
    if (pids >= 0)
        close(pids);
    return found > 0 ? found : -ESRCH;
}

void caller_may_hang(const watched_call_t *call)
{
    if (*call->leads)
        pthread_mutex_unlock(call->turn);
    *call->leads = 0;
}

/* Enters the caller's mount namespace and root, with `from_here` also its directory. Call caller_leave() afterwards,
 * unless this fails. A path lookup may hang, so first lets another thread wait for calls. */
int caller_enter(const syscall_server_t *server, const watched_call_t *call, int from_here)
{
    caller_may_hang(call);
    caller_may_mount(call); /* before entering: the caller's /proc shows it under another number or not at all */
    int mounts = task_open(call->task, "ns/mnt", O_RDONLY);
    int root = task_open(call->task, "root", O_PATH), here = task_open(call->task, "cwd", O_PATH);
    int error = 0;
    if (mounts < 0 || root < 0 || here < 0 || !seccomp_is_waiting(call->listener, call->id))
        error = -ESRCH;
    else if (setns(mounts, CLONE_NEWNS) || fchdir(root) || chroot(".") || (from_here && fchdir(here)))
        error = -errno; /* such as ENOTCONN: the caller's directory is on a FUSE file system that has ended */
    close(mounts);
    close(root);
    close(here);
    if (error)
        caller_leave(server);
    return error;
}
