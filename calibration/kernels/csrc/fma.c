/* Independent chains of multiply-adds in registers. Unit: a floating-point operation; a multiply-add is two. */
#include "kernels.h"

#include <stdio.h>

static bool prepare(worker_t *worker)
{
    (void)worker;
    return true;
}

static void block(worker_t *worker)
{
    const loops_t *loops = worker->loops;
    double ends[MOST_CHAINS * MOST_LANES];

    loops->multiply_add(ends);
    for (int chain = 0; chain < loops->chains; chain++) {
        double known = number_known_end(chain, loops->is_fused);
        for (int lane = 0; lane < loops->lanes; lane++)
            if (ends[chain * loops->lanes + lane] != known) {
                snprintf(worker->wrong, sizeof worker->wrong, "%s multiply-adds, chain %d, lane %d: %a instead of %a",
                         loops->name, chain, lane, ends[chain * loops->lanes + lane], known);
                return;
            }
    }
    worker->units += 2u * STEPS * (uint64_t)(loops->chains * loops->lanes);
}

const kernel_t FMA_KERNEL = {"fma", prepare, block, NULL};
