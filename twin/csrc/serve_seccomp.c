/*
 * The seccomp filter for calls that could reach the host, and the receiving end of perf_event_open(2).
 *
 * The filter stops perf_event_open and the mount calls in the watched process and all its children, and passes them to
 * the owner of the listener (serve_syscalls.c). It refuses calls that would change the host's kernel or make device
 * nodes; every other call goes to the kernel directly. The same calls of another architecture's table (i386 on x86_64,
 * arm on aarch64, all of x32) are not supported and get ENOSYS. When the listener is closed, the kernel itself answers
 * ENOSYS. The listener does not stop a hostile program (memory may change between our check and the kernel's); it keeps
 * honest programs on the emulated node. The kernel refuses a second listener inside (EBUSY).
 * Source: seccomp_unotify(2), Linux Documentation/userspace-api/seccomp_filter.rst.
 */
#include "serve_seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH  AUDIT_ARCH_X86_64
#define FOREIGN_ARCH AUDIT_ARCH_I386
#define X32_BIT      0x40000000
/* perf_event_open, mount, umount, umount2, open_tree, fsopen, fsmount, mount_setattr, open_tree_attr, mknod, mknodat,
 * {init,finit,delete}_module, kexec_load, iopl, ioperm, stime, settimeofday, clock_settime, clock_settime64, adjtimex,
 * clock_adjtime, clock_adjtime64, swapon, swapoff, acct, syslog (arch/x86/entry/syscalls/syscall_32.tbl) */
static const uint32_t foreign_calls[] = {336, 21,  22,  52,  428, 429, 430, 432, 442, 467, 14,  297, 128, 350, 129,
                                         283, 110, 101, 25,  79,  264, 404, 124, 343, 405, 87,  115, 51,  103};
#elif defined(__aarch64__)
#define NATIVE_ARCH  AUDIT_ARCH_AARCH64
#define FOREIGN_ARCH AUDIT_ARCH_ARM
/* the same (arch/arm/tools/syscall.tbl), and kexec_file_load in place of port access */
static const uint32_t foreign_calls[] = {364, 21,  52,  428, 429, 430, 432, 442, 467, 14,  324, 128, 379, 129,
                                         347, 401, 79,  262, 404, 124, 372, 405, 87,  115, 51,  103};
#else
#error "the served twin knows the system call tables of x86_64 and aarch64"
#endif

/* Answered by serve_syscalls.c. */
static const uint32_t watched_calls[] = {
    SYS_perf_event_open, SYS_mount,      SYS_umount2, SYS_open_tree, SYS_fsopen,            SYS_fsmount,           SYS_mount_setattr,
    SYS_adjtimex, SYS_clock_adjtime, SYS_move_mount, SYS_statfs, SYS_fstatfs, SYS_sched_setaffinity, SYS_sched_getaffinity, SYS_getcpu,
};

/* Refused with EPERM, as in containers: they would change the host's kernel or time, or reach its hardware. */
static const uint32_t refused_calls[] = {
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load,
    SYS_settimeofday, SYS_clock_settime, SYS_swapon, SYS_swapoff, SYS_acct,
#ifdef SYS_iopl
    SYS_iopl, SYS_ioperm,
#endif
};

/* ENOSYS; programs fall back to other calls. open_tree_attr(2) (Linux 6.15) combines open_tree and mount_setattr. With
 * rseq(2) (Linux 4.18) the kernel would write the host's CPU number into the program's memory. */
static const uint32_t absent_calls[] = {467, SYS_rseq};

/* Character devices that any program may make: an overlay's whiteout, null, zero, full, random, urandom, tty, console,
 * ptmx, fuse. Device numbers as for mknod(2): major << 8 | minor. */
static const uint32_t harmless_devices[] = {0, 0x103, 0x105, 0x107, 0x108, 0x109, 0x500, 0x501, 0x502, 0xae5};

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND (1UL << 1)
#endif

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS     SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP (1UL << 0)
#endif

#define MAX_FILTER 256
#define COUNT(list) (sizeof(list) / sizeof(list)[0])

typedef struct {
    struct sock_filter code[MAX_FILTER];
    unsigned short size;
} program_t;

static void add(program_t *program, uint16_t code, uint8_t yes, uint8_t no, uint32_t value)
{
    program->code[program->size++] = (struct sock_filter){code, yes, no, value};
}

static void load(program_t *program, size_t offset)
{
    add(program, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

static void give(program_t *program, uint32_t action)
{
    add(program, BPF_RET | BPF_K, 0, 0, action);
}

/* If the loaded word is one of the values, take this action. */
static void give_if_in(program_t *program, const uint32_t *values, size_t count, uint32_t action)
{
    for (size_t i = 0; i < count; i++) {
        add(program, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, values[i]);
        give(program, action);
    }
}

/* If the loaded word is `value`, run `body`, which ends in a return; else go on behind it. */
static void append_if(program_t *program, uint32_t value, const program_t *body)
{
    add(program, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)body->size, value);
    memcpy(program->code + program->size, body->code, body->size * sizeof *body->code);
    program->size = (unsigned short)(program->size + body->size);
}

/* mknod(2), mknodat(2): the kernel makes files, pipes, sockets and harmless devices; EPERM for other devices. */
static void judge_mknod(program_t *program, uint32_t call, size_t mode, size_t device)
{
    enum { FILE_TYPE = 0170000, CHARACTER = 0020000, BLOCK = 0060000 };
    size_t high = offsetof(struct seccomp_data, args[0]) + 8 * device + 4;
    program_t body = {.size = 0};
    load(&body, offsetof(struct seccomp_data, args[0]) + 8 * mode);
    add(&body, BPF_ALU | BPF_AND | BPF_K, 0, 0, FILE_TYPE);
    add(&body, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, BLOCK);
    give(&body, SECCOMP_RET_ERRNO | EPERM);
    add(&body, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, CHARACTER);
    give(&body, SECCOMP_RET_ALLOW);
    load(&body, high);
    add(&body, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 0);
    give(&body, SECCOMP_RET_ERRNO | EPERM);
    load(&body, high - 4);
    give_if_in(&body, harmless_devices, COUNT(harmless_devices), SECCOMP_RET_ALLOW);
    give(&body, SECCOMP_RET_ERRNO | EPERM);
    append_if(program, call, &body);
}

/* syslog(2): the kernel's log may be read; to clear it or to set the console's level (kernel.printk) gives EPERM. */
static void judge_syslog(program_t *program)
{
    static const uint32_t changing[] = {4, 5, 6, 7, 8}; /* SYSLOG_ACTION_READ_CLEAR ... _CONSOLE_LEVEL */
    program_t body = {.size = 0};
    load(&body, offsetof(struct seccomp_data, args[0]));
    give_if_in(&body, changing, COUNT(changing), SECCOMP_RET_ERRNO | EPERM);
    give(&body, SECCOMP_RET_ALLOW);
    append_if(program, SYS_syslog, &body);
}

/* setrlimit(2) and prlimit64(2) that set the limit of descriptors are answered by serve_syscalls.c; others pass. */
static void watch_limits(program_t *program, uint32_t call, size_t resource, int is_prlimit)
{
    program_t body = {.size = 0};
    load(&body, offsetof(struct seccomp_data, args[0]) + 8 * resource);
    add(&body, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, RLIMIT_NOFILE);
    give(&body, SECCOMP_RET_ALLOW);
    for (size_t half = 0; is_prlimit && half < 2; half++) { /* it only reads if the address of the new limit is 0 */
        load(&body, offsetof(struct seccomp_data, args[2]) + 4 * half);
        add(&body, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 0);
        give(&body, SECCOMP_RET_USER_NOTIF);
    }
    give(&body, is_prlimit ? SECCOMP_RET_ALLOW : SECCOMP_RET_USER_NOTIF);
    append_if(program, call, &body);
}

/*
 * The filter. It allows a call that is in none of the lists by its number alone. So the kernel caches the result and
 * skips the filter (seccomp's action cache, Linux 5.11): such calls cost nothing extra.
 */
int seccomp_install(void)
{
    program_t native = {.size = 0}, program = {.size = 0};
    load(&native, offsetof(struct seccomp_data, nr));
#ifdef X32_BIT
    add(&native, BPF_JMP | BPF_JSET | BPF_K, 0, 1, X32_BIT);
    give(&native, SECCOMP_RET_ERRNO | ENOSYS); /* as a kernel without x32 */
#endif
    give_if_in(&native, watched_calls, COUNT(watched_calls), SECCOMP_RET_USER_NOTIF);
    give_if_in(&native, refused_calls, COUNT(refused_calls), SECCOMP_RET_ERRNO | EPERM);
    give_if_in(&native, absent_calls, COUNT(absent_calls), SECCOMP_RET_ERRNO | ENOSYS);
    judge_syslog(&native);
    judge_mknod(&native, SYS_mknodat, 2, 3);
#ifdef SYS_mknod
    judge_mknod(&native, SYS_mknod, 1, 2);
#endif
    watch_limits(&native, SYS_prlimit64, 1, 1);
#ifdef SYS_setrlimit
    watch_limits(&native, SYS_setrlimit, 0, 0);
#endif
    give(&native, SECCOMP_RET_ALLOW);

    load(&program, offsetof(struct seccomp_data, arch));
    append_if(&program, NATIVE_ARCH, &native);
    load(&program, offsetof(struct seccomp_data, nr));
    give_if_in(&program, foreign_calls, COUNT(foreign_calls), SECCOMP_RET_ERRNO | ENOSYS);
    give(&program, SECCOMP_RET_ALLOW);

    struct sock_fprog filter = {program.size, program.code};
    /* Killable: otherwise a signal would restart a call that we have already answered. Linux 5.19. */
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    if (listener < 0 && errno == EINVAL)
        listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    if (listener < 0)
        return -errno;
    /* Wakes our thread on the caller's CPU, since the caller waits anyway. From Linux 6.6; earlier kernels are slower.
     * */
    ioctl((int)listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
    return (int)listener;
}

/****************************************************************
 * Questions
 ****************************************************************/

int seccomp_next(int listener, struct seccomp_notif *call)
{
    for (;;) {
        memset(call, 0, sizeof *call);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, call) == 0)
            return 1;
        struct pollfd watched = {listener, 0, 0};
        if (errno == ENOENT && poll(&watched, 1, 0) > 0)
            return 0; /* the last watched process has ended */
        if (errno != EINTR && errno != ENOENT) /* ENOENT: this caller died meanwhile */
            return -errno;
    }
}

int seccomp_is_waiting(int listener, uint64_t id)
{
    return ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

ssize_t task_memory(int32_t task, uint64_t address, void *to, size_t size)
{
    struct iovec local = {to, size}, remote = {(void *)(uintptr_t)address, size};
    return process_vm_readv(task, &local, 1, &remote, 1, 0);
}

ssize_t task_store(int32_t task, uint64_t address, const void *from, size_t size)
{
    struct iovec local = {(void *)from, size}, remote = {(void *)(uintptr_t)address, size};
    return process_vm_writev(task, &local, 1, &remote, 1, 0);
}

/* The rules of perf_copy_attr in kernel/events/core.c: size 0 means the first version; bytes beyond the known size must
 * be zero. */
int seccomp_read_attr(int listener, const perf_call_t *call, perf_attr_t *attr)
{
    struct perf_event_attr known;
    uint32_t head[2];
    memset(attr, 0, sizeof *attr);
    memset(&known, 0, sizeof known);

    if (task_memory(call->caller, call->attr_address, head, sizeof head) != sizeof head)
        return -EFAULT;
    attr->size = head[1] ? head[1] : PERF_ATTR_SIZE_VER0;
    if (attr->size < PERF_ATTR_SIZE_VER0 || attr->size > sizeof attr->raw)
        return -E2BIG;
    if (task_memory(call->caller, call->attr_address, attr->raw, attr->size) != (ssize_t)attr->size)
        return -EFAULT;
    for (size_t i = sizeof known; i < attr->size; i++)
        if (attr->raw[i])
            return -E2BIG;
    /* Only now it is certain that the memory was the caller's, not that of a later process with the same number. */
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

int seccomp_answer_value(int listener, uint64_t id, int64_t value)
{
    struct seccomp_notif_resp response = {.id = id, .val = value};
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

int perf_open_silent(const perf_attr_t *attr, int32_t task, int32_t cpu)
{
    struct perf_event_attr silent;
    memset(&silent, 0, sizeof silent);
    memcpy(&silent, attr->raw, attr->size < sizeof silent ? attr->size : sizeof silent);
    silent.size = sizeof silent;
    silent.config = PERF_COUNT_SW_DUMMY;
    silent.mmap = silent.mmap_data = silent.mmap2 = silent.comm = silent.comm_exec = silent.task = 0;
    silent.context_switch = silent.namespaces = silent.ksymbol = silent.bpf_event = silent.cgroup = silent.text_poke = 0;
    return open_real(&silent, task, cpu, -1);
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

/* A software event that leads a group: every twin serves it, whatever its machine counts. */
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
