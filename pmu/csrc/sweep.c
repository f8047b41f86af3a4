#include "sweep.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * Ours: the time for which an event is enabled grows with every nanosecond while its CPU is online. If it has not
 * changed for longer than this, the CPU was taken offline, and its counts are not valid.
 */
#define OFFLINE_NS 5000000

#define NUMBER_BYTES 32 /* a 64-bit number, its sign and a newline, with room to spare */

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/****************************************************************
 * Counters (perf_event_open(2))
 ****************************************************************/

int perf_open(uint32_t type, uint64_t config, int32_t cpu, int32_t group_fd)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = type;
    attr.config = config;
    attr.disabled = group_fd < 0; /* members follow their leader */
    attr.read_format = PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    long fd = syscall(SYS_perf_event_open, &attr, -1, cpu, group_fd, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

int perf_enable(int32_t leader_fd)
{
    return ioctl(leader_fd, PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP) < 0 ? -errno : 0;
}

static uint64_t extrapolated(uint64_t counted, uint64_t enabled_ns, uint64_t running_ns)
{
    if (enabled_ns == running_ns)
        return counted;
    return (uint64_t)((double)counted * (double)enabled_ns / (double)running_ns);
}

/* Reads one group and updates its totals. errno, or 0. */
static int read_group(perf_group_t *group, int64_t now_ns)
{
    struct {
        uint64_t n_events, enabled_ns, running_ns, value[GROUP_EVENTS];
    } now;

    if (group->fd < 0)
        return group->error ? group->error : EBADF;
    ssize_t size = read(group->fd, &now, sizeof now);
    if (size < 0)
        return errno;
    if (size == 0) /* the kernel could not keep the group on its PMU (PERF_EVENT_STATE_ERROR) */
        return ENODATA;
    if (size < (ssize_t)(3 * sizeof(uint64_t)) || now.n_events != (uint64_t)group->n_events)
        return EIO;

    uint64_t enabled_ns = now.enabled_ns - group->enabled_ns;
    uint64_t running_ns = now.running_ns - group->running_ns;
    if (enabled_ns == 0) {
        if (now_ns - group->moved_ns > OFFLINE_NS)
            return ENODEV;
        return 0; /* two sweeps within one tick of the clock */
    }
    group->moved_ns = now_ns;
    if (running_ns == 0) /* other events used the counters all the time; the next interval covers this one too */
        return EAGAIN;
    group->is_scaled = enabled_ns != running_ns;
    for (int i = 0; i < group->n_events; i++) {
        group->total[i] += extrapolated(now.value[i] - group->raw[i], enabled_ns, running_ns);
        group->raw[i] = now.value[i];
    }
    group->enabled_ns = now.enabled_ns;
    group->running_ns = now.running_ns;
    return 0;
}

void sweep_groups(perf_group_t *groups, int32_t n_groups, int64_t *out, int32_t n_rows, int32_t n_columns,
                  int64_t missing)
{
    for (int64_t cell = 0; cell < (int64_t)n_rows * n_columns; cell++)
        out[cell] = missing;
    int64_t now_ns = monotonic_ns();
    for (int32_t g = 0; g < n_groups; g++) {
        perf_group_t *group = &groups[g];
        group->error = read_group(group, now_ns);
        if (group->error)
            continue;
        int64_t *row = out + (int64_t)group->row * n_columns;
        for (int i = 0; i < group->n_events; i++)
            row[group->column[i]] = (int64_t)group->total[i];
    }
}

/****************************************************************
 * Kept files
 ****************************************************************/

/* Parses one decimal number, with nothing but blanks after it. errno, or 0. */
static int parse_number(const char *text, ssize_t size, int64_t *number)
{
    ssize_t at = 0;
    int is_negative = size > 0 && text[0] == '-';
    uint64_t limit = (uint64_t)INT64_MAX, value = 0;

    at += is_negative;
    ssize_t first = at;
    for (; at < size && text[at] >= '0' && text[at] <= '9'; at++) {
        uint64_t digit = (uint64_t)(text[at] - '0');
        if (value > (limit - digit) / 10)
            return ERANGE;
        value = value * 10 + digit;
    }
    if (at == first)
        return size == 0 ? ENODATA : EINVAL;
    for (; at < size; at++)
        if (text[at] != '\n' && text[at] != ' ' && text[at] != '\0')
            return EINVAL;
    *number = is_negative ? -(int64_t)value : (int64_t)value;
    return 0;
}

void sweep_files(kept_file_t *files, const int32_t *at, int32_t n_files, int64_t *out, int64_t missing)
{
    char text[NUMBER_BYTES];
    for (int32_t i = 0; i < n_files; i++) {
        kept_file_t *file = &files[at ? at[i] : i];
        out[i] = missing;
        if (file->fd < 0) /* never opened: keeps the errno of open(2) */
            continue;
        ssize_t size = pread(file->fd, text, sizeof text, 0);
        file->error = size < 0 ? errno : parse_number(text, size, &out[i]);
    }
}

/****************************************************************
 * Time
 ****************************************************************/

int sleep_until(int64_t deadline_ns)
{
    if (deadline_ns <= 0)
        return 0;
    struct timespec deadline = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL);
}
