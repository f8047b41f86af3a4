/*
 * One dependent load after the other over all cache lines of the memory. Unit: a load.
 *
 * Line k of the order is at place scatter(k), a bijection of m bits that looks random to a prefetcher. So the order is
 * one cycle, and where a thread is after k loads is known without doing them.
 */
#include "kernels.h"

#include <stdio.h>

enum {
    LOADS = 1024, /* of a block */
#if defined(__x86_64__)
    LINE = 64
#else
    LINE = 128 /* at least a line on most others */
#endif
};

static unsigned bits(const worker_t *worker)
{
    unsigned m = 10;

    while (m < 40 && (size_t)LINE << m < worker->bytes)
        m++;
    return m;
}

/* Each step can be undone: x ^ x >> s, and a product with an odd number modulo 2^m. */
static uint64_t scatter(uint64_t k, unsigned m)
{
    uint64_t mask = ((uint64_t)1 << m) - 1;

    k &= mask;
    for (int round = 0; round < 3; round++) {
        k = k * 0x9E3779B97F4A7C15u & mask;
        k ^= k >> (m + 1) / 2;
    }
    return k;
}

static void *line(const worker_t *worker, uint64_t k)
{
    return (char *)worker->memory + scatter(k, bits(worker)) * LINE;
}

static bool prepare(worker_t *worker)
{
    unsigned m = bits(worker);

    worker->memory = memory_for((size_t)LINE << m);
    if (worker->memory == NULL)
        return false;
    for (size_t i = 0; i < (size_t)LINE << m; i += 4096) /* in order first: pages are taken faster so */
        ((char *)worker->memory)[i] = 0;
    for (uint64_t k = 0; k >> m == 0; k++)
        *(void **)line(worker, k) = line(worker, k + 1);
    return true;
}

static void block(worker_t *worker)
{
    void **at = line(worker, worker->place);

    for (int i = 0; i < LOADS; i += 8) {
        at = *at, at = *at, at = *at, at = *at;
        at = *at, at = *at, at = *at, at = *at;
    }
    worker->place += LOADS;
    if ((void *)at != line(worker, worker->place)) {
        snprintf(worker->wrong, sizeof worker->wrong, "loads %llu to %llu lead to a wrong address",
                 (unsigned long long)(worker->place - LOADS), (unsigned long long)worker->place);
        return;
    }
    worker->units += LOADS;
}

const kernel_t CHASE_KERNEL = {"chase", prepare, block, NULL};
