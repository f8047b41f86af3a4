/*
 * One thread on each CPU, and the main thread, which waits: for the threads to be ready, for the end of standard input,
 * for the parent's death, for a thread that has computed wrongly. SIGTERM ends the process at once, as it does any.
 *
 * Standard output gets "ready" when all threads compute. Standard error gets one line when the status is not 0.
 */
#include "kernels.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARENT_MS = 250 }; /* ours: a parent may die while another process has the other end of our input */

static atomic_bool is_over;
static int notices[2]; /* a byte from each thread when it is ready, and when it has computed wrongly */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool may_begin;

/* ---------------------------------------------------------------- a thread */

static void give_notice(void)
{
    while (write(notices[1], "", 1) < 0 && errno == EINTR)
        ;
}

static void await_begin(void)
{
    pthread_mutex_lock(&lock);
    while (!may_begin)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* The calling thread, before it touches any memory of its kernel. */
static bool pin(int cpu)
{
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *cpus = CPU_ALLOC(cpu + 1);

    if (cpus == NULL)
        return false;
    CPU_ZERO_S(size, cpus);
    CPU_SET_S(cpu, size, cpus);
    bool is_pinned = sched_setaffinity(0, size, cpus) == 0;
    CPU_FREE(cpus);
    return is_pinned;
}

static void *work(void *given)
{
    worker_t *worker = given;

    if (!pin(worker->cpu))
        snprintf(worker->failed, sizeof worker->failed, "no thread can run there");
    else if (!worker->kernel->prepare(worker))
        snprintf(worker->failed, sizeof worker->failed, "no memory: %zu bytes", worker->bytes);
    give_notice();
    await_begin();
    while (!atomic_load_explicit(&is_over, memory_order_relaxed) && worker->wrong[0] == '\0') {
        worker->kernel->block(worker);
        __atomic_store_n(worker->slot, worker->units, __ATOMIC_RELAXED);
    }
    if (worker->wrong[0] == '\0' && worker->kernel->verify != NULL)
        worker->kernel->verify(worker);
    if (worker->wrong[0] != '\0')
        give_notice();
    return NULL;
}

/* ---------------------------------------------------------------- the main thread */

enum event { NOTICE, INPUT_ENDED, ORPHANED };

static enum event next_event(const run_t *run)
{
    struct pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {notices[0], POLLIN, 0}};
    char taken[64];

    while (getppid() == run->parent) {
        if (poll(waits, 2, PARENT_MS) <= 0)
            continue;
        if (waits[0].revents != 0 && read(STDIN_FILENO, taken, sizeof taken) <= 0)
            return INPUT_ENDED;
        if (waits[1].revents != 0 && read(notices[0], taken, 1) == 1)
            return NOTICE;
    }
    return ORPHANED;
}

static int failure(int cpu, const char *what)
{
    fprintf(stderr, "CPU %d: %s\n", cpu, what);
    return 1;
}

static int outcome(const run_t *run)
{
    for (int i = 0; i < run->n_workers; i++)
        if (run->workers[i].wrong[0] != '\0') {
            fprintf(stderr, "CPU %d computed wrongly: %s\n", run->workers[i].cpu, run->workers[i].wrong);
            return 1;
        }
    return 0;
}

static int let_work(run_t *run, const pthread_t *threads)
{
    pthread_mutex_lock(&lock);
    may_begin = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    puts("ready");
    fflush(stdout);
    if (next_event(run) == ORPHANED)
        return 1;
    atomic_store(&is_over, true);
    for (int i = 0; i < run->n_workers; i++)
        pthread_join(threads[i], NULL);
    return outcome(run);
}

int run_kernel(run_t *run)
{
    pthread_t *threads = calloc((size_t)run->n_workers, sizeof *threads);

    if (threads == NULL || pipe(notices) != 0)
        return failure(run->workers[0].cpu, strerror(errno));
    for (int i = 0; i < run->n_workers; i++) {
        int error = pthread_create(&threads[i], NULL, work, &run->workers[i]);
        if (error != 0)
            return failure(run->workers[i].cpu, strerror(error));
    }
    for (int ready = 0; ready < run->n_workers; ready++)
        if (next_event(run) != NOTICE)
            return 0; /* given up before it began: the threads end with the process */
    for (int i = 0; i < run->n_workers; i++)
        if (run->workers[i].failed[0] != '\0')
            return failure(run->workers[i].cpu, run->workers[i].failed);
    int status = let_work(run, threads);
    free(threads);
    return status;
}
