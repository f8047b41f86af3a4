/* The command line. */
#include "kernels.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WRONG_USE = 2, FIRST_CPU = 7, MOST_STEPS = 256 };

static const char USAGE[] =
    "Usage: nodectl-kernels KERNEL WIDTH BYTES STEPS PROGRESS PARENT CPU...\n"
    "       nodectl-kernels widths\n"
    "\n"
    "Runs a kernel of `nodectl calibrate` (fma, stream, chase, mix), one thread on each CPU, until its standard input\n"
    "ends, and verifies the result. WIDTH: one of `widths`, or - for the widest. BYTES: memory of a thread. STEPS:\n"
    "multiply-adds of a mix for each number. PROGRESS: number of an open file that gets 128 bytes for each thread, which\n"
    "begin with its units. PARENT: number of the process that starts this one, with which it ends.\n"
    "\n"
    "Exit status: 0 done; 1 a CPU computed wrongly, or could not begin; 2 wrong use.\n";

static int misused(const char *what, const char *which)
{
    fprintf(stderr, "nodectl-kernels: %s%s\n", what, which);
    return WRONG_USE;
}

static bool whole(const char *text, long long most, long long *value)
{
    char *end;

    errno = 0;
    *value = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *value >= 0 && *value <= most;
}

static const kernel_t *kernel_named(const char *name)
{
    static const kernel_t *const ALL[] = {&FMA_KERNEL, &STREAM_KERNEL, &CHASE_KERNEL, &MIX_KERNEL};

    for (size_t i = 0; i < sizeof ALL / sizeof ALL[0]; i++)
        if (strcmp(ALL[i]->name, name) == 0)
            return ALL[i];
    return NULL;
}

/* Signals as any program has them from a shell: who starts us may have blocked some. */
static void take_signals(void)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
}

/* One worker for each CPU, each with its own slot, of the first worker's kind. */
static worker_t *workers_on(char **cpus, int n, const worker_t *kind, unsigned char *slots)
{
    worker_t *workers = calloc((size_t)n, sizeof *workers);

    for (int i = 0; workers != NULL && i < n; i++) {
        long long cpu;
        if (!whole(cpus[i], 1 << 20, &cpu)) {
            misused("no CPU: ", cpus[i]);
            return NULL;
        }
        workers[i] = *kind;
        workers[i].cpu = (int)cpu;
        workers[i].slot = (uint64_t *)(slots + (size_t)i * SLOT_BYTES);
    }
    return workers;
}

int main(int argc, char **argv)
{
    worker_t kind = {0};
    long long bytes, steps, progress, parent;

    take_signals();
    if (argc == 2 && strcmp(argv[1], "widths") == 0) {
        loops_print();
        return 0;
    }
    if (argc <= FIRST_CPU) {
        fputs(USAGE, stderr);
        return WRONG_USE;
    }
    kind.kernel = kernel_named(argv[1]);
    kind.loops = loops_named(strcmp(argv[2], "-") == 0 ? "" : argv[2]);
    if (kind.kernel == NULL)
        return misused("no kernel: ", argv[1]);
    if (kind.loops == NULL)
        return misused("this CPU has no vectors of this width: ", argv[2]);
    if (!whole(argv[3], 1LL << 46, &bytes) || !whole(argv[4], MOST_STEPS, &steps) || !whole(argv[5], 1 << 20, &progress)
        || !whole(argv[6], 1LL << 31, &parent))
        return misused("no number, or too large, in: ", "BYTES STEPS PROGRESS PARENT");
    kind.bytes = (size_t)bytes;
    kind.steps = (int)steps;
    int n = argc - FIRST_CPU;
    unsigned char *slots = mmap(NULL, (size_t)n * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, (int)progress, 0);
    if (slots == MAP_FAILED)
        return misused("PROGRESS: ", strerror(errno));
    worker_t *workers = workers_on(argv + FIRST_CPU, n, &kind, slots);
    if (workers == NULL)
        return WRONG_USE;
    run_t run = {n, workers, (pid_t)parent};
    int status = run_kernel(&run);
    free(workers);
    return status;
}
