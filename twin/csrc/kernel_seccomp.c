/*
 * The seccomp listener on perf_event_open(2), and the real call for what is to stay real.
 *
 * The filter stops this one call in the watched process and all its children and hands it to the holder of the
 * listener; every other call passes in the kernel without a detour. Calls of another architecture's table (i386 on
 * x86_64, arm on aarch64, x32) cannot be carried over, so their perf_event_open gets ENOSYS: never the real counters.
 * With the listener closed the kernel itself answers ENOSYS. The listener is no wall against a hostile program
 * (memory may change between our look and the kernel's): it keeps honest programs on the emulated counters.
 * Source: seccomp_unotify(2), Linux Documentation/userspace-api/seccomp_filter.rst.
 */
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH  AUDIT_ARCH_X86_64
#define FOREIGN_ARCH AUDIT_ARCH_I386
#define FOREIGN_CALL 336
#define X32_CALL     (0x40000000 | 298)
#elif defined(__aarch64__)
#define NATIVE_ARCH  AUDIT_ARCH_AARCH64
#define FOREIGN_ARCH AUDIT_ARCH_ARM
#define FOREIGN_CALL 364
#define X32_CALL     0xffffffff
#else
#error "the served twin knows the system call tables of x86_64 and aarch64"
#endif

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND (1UL << 1)
#endif

#define FIELD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, name))
#define IF_NOT(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (skip))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, (action))

int seccomp_install(void)
{
    struct sock_filter program[] = {
        FIELD(arch),
        IF_NOT(NATIVE_ARCH, 5),
        FIELD(nr),
        IF_NOT(SYS_perf_event_open, 1),
        RETURN(SECCOMP_RET_USER_NOTIF),
        IF_NOT(X32_CALL, 5),
        RETURN(SECCOMP_RET_ERRNO | ENOSYS),
        IF_NOT(FOREIGN_ARCH, 3),
        FIELD(nr),
        IF_NOT(FOREIGN_CALL, 1),
        RETURN(SECCOMP_RET_ERRNO | ENOSYS),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof program[0], program};
    /* Killable: a signal must not make the caller ask twice for what it already got. Linux 5.19. */
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    if (listener < 0 && errno == EINVAL)
        listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    return listener < 0 ? -errno : (int)listener;
}

/****************************************************************
 * Questions
 ****************************************************************/

int seccomp_receive(int listener, perf_call_t *call)
{
    struct seccomp_notif notice;
    for (;;) {
        struct pollfd wait = {listener, POLLIN, 0};
        if (poll(&wait, 1, -1) < 0 && errno != EINTR)
            return -errno;
        if (wait.revents & (POLLHUP | POLLERR | POLLNVAL))
            return 0; /* the last watched process is gone */
        if (!(wait.revents & POLLIN))
            continue;
        memset(&notice, 0, sizeof notice);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notice) == 0)
            break;
        if (errno != EINTR && errno != ENOENT) /* ENOENT: the caller died between poll and here */
            return -errno;
    }
    *call = (perf_call_t){.id = notice.id,
                          .caller = (int32_t)notice.pid,
                          .attr_address = notice.data.args[0],
                          .task = (int32_t)notice.data.args[1],
                          .cpu = (int32_t)notice.data.args[2],
                          .group_fd = (int32_t)notice.data.args[3],
                          .flags = notice.data.args[4]};
    return 1;
}

int seccomp_is_waiting(int listener, uint64_t id)
{
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

static ssize_t read_memory(int32_t task, uint64_t address, void *to, size_t size)
{
    struct iovec local = {to, size}, remote = {(void *)(uintptr_t)address, size};
    return process_vm_readv(task, &local, 1, &remote, 1, 0);
}

/* The rules of perf_copy_attr in kernel/events/core.c: size 0 is the first version; longer than known must be zero. */
int seccomp_read_attr(int listener, const perf_call_t *call, perf_attr_t *attr)
{
    struct perf_event_attr known;
    uint32_t head[2];
    memset(attr, 0, sizeof *attr);
    memset(&known, 0, sizeof known);

    if (read_memory(call->caller, call->attr_address, head, sizeof head) != sizeof head)
        return -EFAULT;
    attr->size = head[1] ? head[1] : PERF_ATTR_SIZE_VER0;
    if (attr->size < PERF_ATTR_SIZE_VER0 || attr->size > sizeof attr->raw)
        return -E2BIG;
    if (read_memory(call->caller, call->attr_address, attr->raw, attr->size) != (ssize_t)attr->size)
        return -EFAULT;
    for (size_t i = sizeof known; i < attr->size; i++)
        if (attr->raw[i])
            return -E2BIG;
    /* Only now is it sure that the memory was the caller's and not that of a later process with its number. */
    if (!seccomp_is_waiting(listener, call->id))
        return -ESRCH;

    memcpy(&known, attr->raw, attr->size < sizeof known ? attr->size : sizeof known);
    attr->type = known.type;
    attr->config = known.config;
    attr->config1 = known.config1;
    attr->config2 = known.config2;
    attr->sample_period = known.sample_period;
    attr->read_format = known.read_format;
    attr->disabled = known.disabled;
    attr->inherit = known.inherit;
    attr->pinned = known.pinned;
    attr->exclusive = known.exclusive;
    attr->exclude_kernel = known.exclude_kernel;
    attr->freq = known.freq;
    attr->enable_on_exec = known.enable_on_exec;
    attr->precise = known.precise_ip;
    return 0;
}

/****************************************************************
 * Answers
 ****************************************************************/

static int send_answer(int listener, struct seccomp_notif_resp *response)
{
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, response) ? -errno : 0;
}

int seccomp_answer_fd(int listener, uint64_t id, int fd, int close_on_exec)
{
    struct seccomp_notif_addfd request = {.id = id,
                                          .flags = SECCOMP_ADDFD_FLAG_SEND,
                                          .srcfd = (uint32_t)fd,
                                          .newfd_flags = close_on_exec ? O_CLOEXEC : 0};
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &request) < 0 ? -errno : 0;
}

int seccomp_answer_error(int listener, uint64_t id, int error)
{
    struct seccomp_notif_resp response = {.id = id, .error = -error};
    return send_answer(listener, &response);
}

int seccomp_answer_kernel(int listener, uint64_t id)
{
    struct seccomp_notif_resp response = {.id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    return send_answer(listener, &response);
}

/****************************************************************
 * The real call
 ****************************************************************/

static int open_real(struct perf_event_attr *attr, int32_t task, int32_t cpu, int32_t group_fd)
{
    long fd = syscall(SYS_perf_event_open, attr, task, cpu, group_fd, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

int perf_open_real(const perf_attr_t *attr, int32_t task, int32_t cpu, int32_t group_fd, int disabled)
{
    struct perf_event_attr real;
    memset(&real, 0, sizeof real);
    memcpy(&real, attr->raw, attr->size < sizeof real ? attr->size : sizeof real);
    real.size = sizeof real;
    real.disabled = disabled != 0;
    real.read_format = task >= 0 ? PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING : 0;
    return open_real(&real, task, cpu, group_fd);
}

int perf_open_task_clock(const perf_attr_t *attr, int32_t task, int32_t cpu, int32_t group_fd, int disabled)
{
    struct perf_event_attr clock;
    memset(&clock, 0, sizeof clock);
    clock.size = sizeof clock;
    clock.type = PERF_TYPE_SOFTWARE;
    clock.config = PERF_COUNT_SW_TASK_CLOCK;
    clock.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    clock.disabled = disabled != 0;
    clock.inherit = attr->inherit != 0;
    clock.enable_on_exec = attr->enable_on_exec != 0;
    return open_real(&clock, task, cpu, group_fd);
}

/* A software event that leads a group: the one call that every twin serves, whatever its machine counts. */
int perf_probe(void)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.read_format = PERF_FORMAT_GROUP;
    return open_real(&attr, -1, 0, -1);
}
