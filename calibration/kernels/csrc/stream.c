/*
 * Triad over three arrays: x[n] = x[n-1] - x[n-2], written over x[n-3]. Unit: a byte, 24 for each number written, as
 * STREAM counts: what the program reads and writes, not what a cache fetches before it is written.
 *
 * With whole numbers below 2^51 this is exact, and comes back after six passes: x[n+3] = -x[n]. So each pass changes
 * every number, an error stays, and at the end all of them are known.
 */
#include "kernels.h"

#include <stdio.h>

enum { CHUNK = 8192 }; /* numbers */

static size_t length(const worker_t *worker)
{
    size_t chunks = worker->bytes / (3 * CHUNK * sizeof(double));

    return (chunks > 0 ? chunks : 1) * CHUNK;
}

/* x[n] of number i. The first passes have n = 2; before it, n is -1, 0 and 1. */
static double known(uint64_t n, size_t i)
{
    int64_t x0 = (int64_t)(number_mixed(i) >> 14), x1 = (int64_t)(number_mixed(~(uint64_t)i) >> 14);
    int64_t six[] = {x0, x1, x1 - x0, -x0, -x1, x0 - x1};

    return (double)six[n % 6];
}

static bool prepare(worker_t *worker)
{
    size_t n = length(worker);
    double *x = memory_for(3 * n * sizeof(double));

    if (x == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        x[i] = known(0, i);
        x[n + i] = known(1, i);
        x[2 * n + i] = known(5, i); /* n = -1 */
    }
    worker->memory = x;
    worker->place = 2 * n; /* passes times numbers, and numbers of this pass */
    return true;
}

static void block(worker_t *worker)
{
    size_t n = length(worker), at = worker->place % n;
    uint64_t pass = worker->place / n;
    double *x = worker->memory;

    worker->loops->triad(x + pass % 3 * n + at, x + (pass + 2) % 3 * n + at, x + (pass + 1) % 3 * n + at, CHUNK);
    worker->place += CHUNK;
    worker->units += 3u * sizeof(double) * CHUNK;
}

static void verify(worker_t *worker)
{
    size_t n = length(worker), at = worker->place % n;
    uint64_t pass = worker->place / n;
    const double *x = worker->memory;

    for (int array = 0; array < 3; array++) {
        /* the pass that has last written to this array's numbers; six are added, since 0 has none before it */
        uint64_t written = pass + 6 - (pass + 3 - (uint64_t)array) % 3;
        for (size_t i = 0; i < n; i++) {
            double right = known(written == pass + 6 && i >= at ? written - 3 : written, i);
            if (x[(size_t)array * n + i] != right) {
                snprintf(worker->wrong, sizeof worker->wrong, "%s triad, pass %llu, number %zu: %a instead of %a",
                         worker->loops->name, (unsigned long long)pass, i, x[(size_t)array * n + i], right);
                return;
            }
        }
    }
}

const kernel_t STREAM_KERNEL = {"stream", prepare, block, verify};
