/*
 * Programs that share a card: how fast each one is, and what they draw together.
 *
 * Three ways to share. Each is emulated: no such pair was measured on the cards that the machine files describe.
 *
 *   MIG        a program has the SMs of its compute instance, and shares the memory slices of its GPU instance
 *   MPS        it has up to its share of the card's SMs, all together at most all of them; the memory is everybody's
 *   by time    one program's kernels at a time: n programs whose kernels want to run get 1/n each, and a gap of one is
 *              another's gain. What switching costs is not in it.
 *
 * Speed. A part s of the SMs is to kernels what a clock lower by s is, so the table of the program's speed by clock says
 * what it costs; kernels that fill only a part of the SMs (`sm_active`) need no more than that part. Then memory:
 * a program that is served d of the card's bandwidth at full speed gets its fair share of it (max-min), and
 *
 *     use = min(rate(f * min(1, s / sm_active)) / rate(f), bandwidth / d)
 *
 * Watts. What is ready to work draws the same however little of it is used; what a kernel adds goes with its speed:
 *
 *     W = max(W of gaps) + sum(use * (W of kernels - W of gaps)),      the table's own where one program has it all.
 *
 * O(tenants^2) for each change of one of them; at most eight.
 */
#include <math.h>

#include "model_internal.h"

#define LEAST_SHARE 1e-3 /* ours: of an instance that is gone under its program */

int32_t gpu_unit_of(const twin_model_t *m, int32_t g, int32_t tenant)
{
    return m->node.n_cpus + g * TWIN_TENANTS + tenant;
}

int32_t gpu_units(const twin_model_t *m, int32_t g, int32_t units[TWIN_TENANTS])
{
    int32_t n = 0;

    for (int32_t tenant = 0; tenant < TWIN_TENANTS; tenant++) {
        int32_t unit = gpu_unit_of(m, g, tenant);
        if (m->unit_group[unit] >= 0 && m->unit_state[unit] != UNIT_IDLE)
            units[n++] = unit;
    }
    return n;
}

int gpu_has_work(const twin_model_t *m, int32_t g)
{
    int32_t units[TWIN_TENANTS];

    return gpu_units(m, g, units) > 0;
}

static const twin_group_t *shape_of(const twin_model_t *m, int32_t unit)
{
    return &m->groups[m->unit_group[unit]].shape;
}

/* --- SMs --- */

/* Speed at `share` of a level's clock, over that at the level; below the lowest clock it goes with the clock. */
static double slowed(const gpu_t *gpu, const double *rate, int32_t level, double share)
{
    double khz = gpu->clock_khz[level] * share;
    int32_t above = 0;

    while (above < level && gpu->clock_khz[above] < khz)
        above++;
    if (above == 0)
        return rate[0] * khz / gpu->clock_khz[0] / rate[level];
    double low = gpu->clock_khz[above - 1], high = gpu->clock_khz[above];
    return (rate[above - 1] + (rate[above] - rate[above - 1]) * (khz - low) / (high - low)) / rate[level];
}

static double sm_share(const twin_model_t *m, int32_t g, int32_t unit, double mps_sum)
{
    const twin_group_t *shape = shape_of(m, unit);

    if (shape->instance >= 0) {
        const twin_instance_t *compute = &m->shared->gpu[g].compute[shape->instance][shape->compute];
        return compute->slices > 0 ? compute->sm_ppm * 1e-6 : LEAST_SHARE;
    }
    return mps_sum > 1.0 ? shape->mps_share / mps_sum : shape->mps_share;
}

/* --- memory --- */

/* Gives each its fair share: those that want less than an even part leave the rest to the others. */
static void fair(double capacity, const double *wanted, const int32_t *pool, int32_t which, int32_t n, double *given)
{
    int32_t left = 0, served = -1;

    for (int32_t i = 0; i < n; i++) {
        given[i] = pool[i] == which ? -1.0 : given[i];
        left += pool[i] == which;
    }
    while (left > 0 && served != 0) {
        double part = capacity / left;
        served = 0;
        for (int32_t i = 0; i < n; i++) {
            if (pool[i] != which || given[i] >= 0 || wanted[i] > part)
                continue;
            given[i] = wanted[i];
            capacity -= wanted[i];
            left--;
            served++;
        }
    }
    for (int32_t i = 0; i < n; i++)
        if (pool[i] == which && given[i] < 0)
            given[i] = capacity / left;
}

static void share_memory(const twin_model_t *m, int32_t g, int32_t level, const int32_t *units, int32_t n, double *use)
{
    double wanted[TWIN_TENANTS], given[TWIN_TENANTS];
    int32_t pool[TWIN_TENANTS];

    for (int32_t i = 0; i < n; i++) {
        wanted[i] = use[i] * unit_table(m, units[i], TWIN_DRAM_ACTIVE)[level];
        pool[i] = shape_of(m, units[i])->instance;
        given[i] = -1.0;
    }
    for (int32_t i = 0; i < n; i++) {
        double capacity = pool[i] < 0 ? 1.0 : m->shared->gpu[g].instances[pool[i]].size / 8.0;
        if (given[i] < 0)
            fair(capacity > 0 ? capacity : LEAST_SHARE, wanted, pool, pool[i], n, given);
        if (given[i] < wanted[i])
            use[i] *= given[i] / wanted[i];
    }
}

/* --- both --- */

void gpu_share(const twin_model_t *m, int32_t g, int32_t level, const int32_t *units, int32_t n, double *use)
{
    double mps_sum = 0;
    int32_t in_turn = 0, is_whole = 1;

    for (int32_t i = 0; i < n; i++) {
        const twin_group_t *shape = shape_of(m, units[i]);
        mps_sum += shape->instance < 0 ? shape->mps_share : 0;
        in_turn += shape->instance < 0 && shape->mps_share == 0;
    }
    for (int32_t i = 0; i < n; i++) {
        const twin_group_t *shape = shape_of(m, units[i]);
        if (shape->instance < 0 && shape->mps_share == 0) {
            use[i] = 1.0 / (in_turn + (mps_sum > 0)); /* those of MPS have one turn together */
            continue;
        }
        double share = sm_share(m, g, units[i], mps_sum), active = unit_phase_of(m, units[i])->sm_active;
        share = active > 0 && share < active ? share / active : share < 1.0 && active <= 0 ? share : 1.0;
        use[i] = share < 1.0 ? slowed(&m->gpus[g], unit_table(m, units[i], TWIN_GPU_RATE), level, share) : 1.0;
        if (in_turn > 0)
            use[i] /= in_turn + 1;
        is_whole = 0;
    }
    if (!is_whole)
        share_memory(m, g, level, units, n, use);
}

double gpu_table_w(const twin_model_t *m, int32_t row, int32_t level, const int32_t *units, int32_t n, const double *use)
{
    double base_w = 0, more_w = 0;

    if (n == 1 && use[0] == 1.0)
        return unit_table(m, units[0], row)[level];
    for (int32_t i = 0; i < n; i++) {
        double gap_w = unit_table(m, units[i], TWIN_GAP_W)[level];
        base_w = gap_w > base_w ? gap_w : base_w;
        more_w += use[i] * (unit_table(m, units[i], row)[level] - gap_w);
    }
    return base_w + more_w;
}
