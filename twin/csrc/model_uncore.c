/*
 * The uncore's clock: the part of a processor between its cores and the memory, with a clock of its own.
 *
 * Law. While a core of its package is active the uncore runs at its upper limit, otherwise at its lower one (ours:
 * hardware chooses by traffic and power too). A power limit of the package lowers it: to the lowest clock below
 * uncore_cap_low_w, not at all from uncore_cap_high_w on, linearly between, in steps of 100 MHz. Of the time that a core
 * waits for memory, the share `uncore_wait` goes with the inverse of this clock u, so that time is
 *
 *     1 + uncore_wait (top / u - 1)
 *
 * times as long. A package draws uncore_clock_w ((u / top)^2 - 1) more than at the top clock. All are fitted to two
 * Skylake-SP under caps (benchmarks/twin_uncore.py).
 *
 * Cost. O(cores of the package) for each change of this clock.
 */
#include <math.h>

#include "model_internal.h"

#define STEP_KHZ 100000.0

/* The lowest of the package's power limits in force; INFINITY without one. */
static double limit_w(const twin_model_t *m, int32_t package)
{
    double least = m->node.package_limit_w > 0 ? m->node.package_limit_w : INFINITY;

    for (int32_t z = 0; z < m->node.n_zones; z++) {
        const twin_zone_t *zone = &m->zones[z];
        if (zone->kind != TWIN_ZONE_PACKAGE || zone->package != package || !zone->enabled)
            continue;
        for (int c = 0; c < TWIN_CONSTRAINTS; c++)
            if (zone->limit_w[c] > 0 && zone->limit_w[c] < least)
                least = zone->limit_w[c];
    }
    return least;
}

/* The highest clock that the package's power limits leave. */
static double capped_khz(const twin_model_t *m, int32_t package)
{
    double low = m->node.uncore_cap_low_w, high = m->node.uncore_cap_high_w, w = limit_w(m, package);

    if (w >= high)
        return m->node.uncore_khz;
    double share = w > low ? (w - low) / (high - low) : 0.0;
    double khz = m->node.uncore_min_khz + share * (m->node.uncore_khz - m->node.uncore_min_khz);
    return floor(khz / STEP_KHZ + 0.5) * STEP_KHZ;
}

void uncore_follow(twin_model_t *m, int32_t package, int32_t is_active)
{
    double low = m->uncore_min_khz[package], high = m->uncore_max_khz[package], top = m->node.uncore_khz;
    double capped = capped_khz(m, package), khz = is_active || low > high ? high : low;

    if (khz > capped)
        khz = capped;
    if (top <= 0 || khz == m->uncore_now_khz[package])
        return;
    m->uncore_now_khz[package] = khz;
    m->uncore_more_w[package] = m->node.uncore_clock_w * (khz / top * (khz / top) - 1.0);
    m->memory_slower[package] = 1.0 + m->node.uncore_wait * (top / khz - 1.0);
    m->dirty[package] = 1;
    for (int32_t core = m->first_core[package]; core < m->first_core[package + 1]; core++)
        cpu_refresh_core(m, core);
}
