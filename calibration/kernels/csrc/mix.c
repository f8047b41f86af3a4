/*
 * Reads an array and does `steps` multiply-adds with each number: steps / 4 floating-point operations per byte. Unit:
 * a floating-point operation.
 *
 * The sum of the bits of what comes out does not depend on the order of adding, and so not on the width of vectors. It
 * is known from the same steps in plain C over one tile, which the array repeats.
 */
#include "kernels.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 16384 }; /* numbers */

static size_t length(const worker_t *worker)
{
    size_t chunks = worker->bytes / (CHUNK * sizeof(double));

    return (chunks > 0 ? chunks : 1) * CHUNK;
}

static bool prepare(worker_t *worker)
{
    size_t n = length(worker);
    double *x = memory_for(n * sizeof(double));
    uint64_t sum = 0;

    if (x == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        x[i] = number_between_1_and_2(i % TILE);
    for (int i = 0; i < TILE; i++) {
        double end = number_after(number_between_1_and_2((uint64_t)i), worker->steps, worker->loops->is_fused);
        uint64_t bits;
        memcpy(&bits, &end, sizeof bits);
        sum += bits;
    }
    worker->memory = x;
    worker->expected = sum * (CHUNK / TILE);
    return true;
}

static void block(worker_t *worker)
{
    uint64_t sum = worker->loops->mix((const double *)worker->memory + worker->place, CHUNK, worker->steps);

    if (sum != worker->expected) {
        snprintf(worker->wrong, sizeof worker->wrong, "%s mix of %d steps, from number %llu: sum %llx instead of %llx",
                 worker->loops->name, worker->steps, (unsigned long long)worker->place, (unsigned long long)sum,
                 (unsigned long long)worker->expected);
        return;
    }
    worker->place = (worker->place + CHUNK) % length(worker);
    worker->units += 2u * (uint64_t)worker->steps * CHUNK;
}

const kernel_t MIX_KERNEL = {"mix", prepare, block, NULL};
