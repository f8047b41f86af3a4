/*
 * A library that the dynamic linker loads into every program of a run (LD_PRELOAD), for the two places where a program
 * reads its CPU without a system call that the seccomp filter could stop:
 *
 *   sched_getcpu(3)      uses the vDSO; here it makes the system call, which gives an emulated CPU.
 *   /proc/PID/status     lies in each process's own directory of procfs, which cannot be covered. Opened for reading, it
 *                        is a copy whose lines Cpus_allowed* and Mems_allowed* name the emulated CPUs and nodes.
 *
 * Statically linked programs, and those that make these calls by themselves, see the host's CPUs here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_CPUS 4096 /* MOST_CPUS of twin/machine.py */
#define WORD_BITS 32   /* the kernel prints masks in words of so many bits */
#define LARGEST   8192 /* ours: more than a status file with masks of 4096 CPUs */

typedef struct {
    uint32_t words[MOST_CPUS / WORD_BITS];
    int n_bits; /* as wide as the kernel would print it */
} bits_t;

static int open_real(int at, const char *path, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

int sched_getcpu(void)
{
    unsigned cpu;
    return syscall(SYS_getcpu, &cpu, NULL, NULL) ? -1 : (int)cpu;
}

/****************************************************************
 * /proc/PID/status
 ****************************************************************/

/* The task that the path of a status file names, 0 for the caller; -1 if it is no such path. */
static int task_of(const char *path)
{
    const char *rest;
    char *end;
    long task = 0;
    if (strncmp(path, "/proc/", 6))
        return -1;
    rest = path + 6;
    if (!strncmp(rest, "self/", 5))
        rest += 5;
    else if (!strncmp(rest, "thread-self/", 12))
        rest += 12;
    else if ((task = strtol(rest, &end, 10)) > 0 && *end == '/')
        rest = end + 1;
    else
        return -1;
    if (!strncmp(rest, "task/", 5)) {
        task = strtol(rest + 5, &end, 10);
        if (task <= 0 || *end != '/')
            return -1;
        rest = end + 1;
    }
    return strcmp(rest, "status") ? -1 : (int)task;
}

/* Reads a list such as "0-3,8" from a file of sysfs; 0 on success. */
static int read_list(const char *path, bits_t *bits)
{
    char text[LARGEST], *at = text, *end;
    int fd = open_real(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[size < 0 ? 0 : size] = 0;
    memset(bits, 0, sizeof *bits);
    while (*at >= '0' && *at <= '9') {
        long low = strtol(at, &end, 10), high = low;
        if (*end == '-')
            high = strtol(end + 1, &end, 10);
        for (long bit = low; bit <= high && bit < MOST_CPUS; bit++)
            bits->words[bit / WORD_BITS] |= 1U << bit % WORD_BITS;
        bits->n_bits = (int)(high < MOST_CPUS ? high : MOST_CPUS - 1) + 1;
        at = *end == ',' ? end + 1 : end;
    }
    return bits->n_bits ? 0 : -1;
}

static int is_set(const bits_t *bits, int bit)
{
    return bit < bits->n_bits && bits->words[bit / WORD_BITS] >> bit % WORD_BITS & 1;
}

/* The two lines of the kernel for a mask (fs/proc/array.c, kernel/cgroup/cpuset.c). */
static void print_lines(FILE *to, const char *name, const bits_t *bits)
{
    fprintf(to, "%s:\t", name);
    for (int word = (bits->n_bits - 1) / WORD_BITS; word >= 0; word--)
        fprintf(to, "%0*x%s", word == (bits->n_bits - 1) / WORD_BITS ? (bits->n_bits - word * WORD_BITS + 3) / 4 : 8,
                bits->words[word], word ? "," : "\n");
    fprintf(to, "%s_list:\t", name);
    const char *comma = "";
    for (int bit = 0; bit < bits->n_bits; bit++) {
        int last = bit;
        if (!is_set(bits, bit))
            continue;
        while (is_set(bits, last + 1))
            last++;
        fprintf(to, last > bit ? "%s%d-%d" : "%s%d", comma, bit, last);
        comma = ",";
        bit = last;
    }
    fputc('\n', to);
}

static void copy_lines(FILE *from, FILE *to, const bits_t *cpus, const bits_t *nodes)
{
    char line[LARGEST];
    while (fgets(line, sizeof line, from)) {
        if (!strncmp(line, "Cpus_allowed:", 13))
            print_lines(to, "Cpus_allowed", cpus);
        else if (!strncmp(line, "Mems_allowed:", 13))
            print_lines(to, "Mems_allowed", nodes);
        else if (strncmp(line, "Cpus_allowed_list:", 18) && strncmp(line, "Mems_allowed_list:", 18))
            fputs(line, to);
    }
}

/* A stream on a copy of the descriptor; NULL if there is none left. */
static FILE *stream(int fd, const char *mode)
{
    int own = dup(fd);
    return own < 0 ? NULL : fdopen(own, mode);
}

/* A copy of the file `real` with other masks, as a descriptor; -1 if anything is missing. */
static int copy_with_masks(int real, int task, int flags)
{
    bits_t cpus, nodes;
    if (read_list("/sys/devices/system/cpu/possible", &cpus) || read_list("/sys/devices/system/node/online", &nodes))
        return -1;
    memset(cpus.words, 0, sizeof cpus.words);
    if (syscall(SYS_sched_getaffinity, task, sizeof cpus.words, cpus.words) < 0)
        return -1;
    int copy = memfd_create("status", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    FILE *from = stream(real, "r"), *to = stream(copy, "w");
    if (from && to)
        copy_lines(from, to, &cpus, &nodes);
    if (from)
        fclose(from);
    if (to)
        fclose(to);
    lseek(copy, 0, SEEK_SET);
    return copy;
}

static int open_here(int at, const char *path, int flags, mode_t mode)
{
    int fd = open_real(at, path, flags, mode), before = errno;
    int task = fd >= 0 && (flags & (O_ACCMODE | O_PATH)) == O_RDONLY ? task_of(path) : -1;
    int copy = task < 0 ? -1 : copy_with_masks(fd, task, flags);
    errno = before;
    if (copy < 0)
        return fd;
    close(fd);
    return copy;
}

/****************************************************************
 * The functions by which programs open a file
 ****************************************************************/

#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...)                            \
    {                                                                     \
        va_list rest;                                                     \
        va_start(rest, flags);                                            \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                     \
        return open_here(AT_FDCWD, path, flags, mode);                    \
    }
#define OPENAT(name)                                                      \
    int name(int at, const char *path, int flags, ...)                    \
    {                                                                     \
        va_list rest;                                                     \
        va_start(rest, flags);                                            \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                     \
        return open_here(at, path, flags, mode);                          \
    }
#define FOPEN(name)                                                                         \
    FILE *name(const char *path, const char *mode)                                          \
    {                                                                                       \
        static FILE *(*next)(const char *, const char *);                                   \
        int fd = *mode == 'r' && task_of(path) >= 0 ? open_here(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0) : -1; \
        if (fd >= 0)                                                                        \
            return fdopen(fd, "r");                                                         \
        if (!next)                                                                          \
            *(void **)&next = dlsym(RTLD_NEXT, #name);                                      \
        return next(path, mode);                                                            \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
