/*
 * GPUs: kernel rate, power, and the sensors that NVML shows.
 *
 * Board power per level is a table of the phase, valid at the temperature at which this power settles; leakage changes
 * it in proportion to the distance from that temperature.
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "model_internal.h"

#define NOISE_MEMORY 0.9 /* ours: per 50 ms */
#define PCIE_KBPS 10e6   /* ours: transfers in a gap, half of a gen-4 x16 link */

/* --- rates --- */

/* What one program adds to the activity of its card, and how fast it is. */
static void refresh_unit(twin_model_t *m, gpu_t *gpu, int32_t unit, double use)
{
    const twin_phase_t *phase = unit_phase_of(m, unit);
    int32_t level = gpu->level, state = m->unit_state[unit];

    if (state == UNIT_RUN) {
        m->unit_rate[unit] = unit_table(m, unit, TWIN_GPU_RATE)[level];
        if (gpu->lock_max_mhz == 0)
            m->unit_rate[unit] *= 1.0 - phase->free_loss;
        m->unit_rate[unit] *= use;
        gpu->kernel_rate = 1.0;
        gpu->memory_rate += use * unit_table(m, unit, TWIN_DRAM_ACTIVE)[level] * gpu->noise;
        gpu->occupancy_rate += use * phase->occupancy * gpu->noise;
        gpu->sm_rate += use * phase->sm_active;
        gpu->fp_rate += phase->fp_active * m->unit_rate[unit];
    } else {
        m->unit_rate[unit] = state == UNIT_GAP ? 1.0 : 0.0;
        double gap_rate = state == UNIT_GAP ? 1.0 : 0.0, kernel_rate = gap_rate * phase->gap_active;
        gpu->gap_rate = gap_rate > gpu->gap_rate ? gap_rate : gpu->gap_rate;
        gpu->kernel_rate = kernel_rate > gpu->kernel_rate ? kernel_rate : gpu->kernel_rate;
        gpu->memory_rate += kernel_rate * unit_table(m, unit, TWIN_DRAM_ACTIVE)[level] * gpu->noise;
    }
    m->groups[m->unit_group[unit]].is_stale = 1;
}

void gpu_refresh(twin_model_t *m, int32_t g)
{
    gpu_t *gpu = &m->gpus[g];
    int32_t units[TWIN_TENANTS], running[TWIN_TENANTS], n_running = 0, n = gpu_units(m, g, units);
    double use[TWIN_TENANTS];

    gpu->kernel_rate = gpu->memory_rate = gpu->occupancy_rate = gpu->sm_rate = gpu->fp_rate = gpu->gap_rate = 0;
    if (n == 0) {
        gpu->power_w = gpu_card_w(gpu, gpu->idle_w[gpu->level], gpu->idle_w[gpu->level]);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        if (m->unit_state[units[i]] == UNIT_RUN || m->unit_state[units[i]] == UNIT_GAP)
            unit_settle(m, units[i]);
        if (m->unit_state[units[i]] == UNIT_RUN)
            running[n_running++] = units[i];
    }
    gpu_share(m, g, gpu->level, running, n_running, use);
    for (int32_t i = 0; i < n_running; i++)
        refresh_unit(m, gpu, running[i], use[i]);
    double ready_w = 0, mean_w = 0; /* of the programs between their kernels */
    for (int32_t i = 0; i < n; i++) {
        if (m->unit_state[units[i]] == UNIT_RUN)
            continue;
        refresh_unit(m, gpu, units[i], 1.0);
        double gap_w = unit_table(m, units[i], TWIN_GAP_W)[gpu->level];
        ready_w = gap_w > ready_w ? gap_w : ready_w;
        mean_w = unit_table(m, units[i], TWIN_MEAN_W)[gpu->level] > mean_w
                     ? unit_table(m, units[i], TWIN_MEAN_W)[gpu->level] : mean_w;
    }
    gpu->memory_rate = gpu->memory_rate < 1.0 ? gpu->memory_rate : 1.0;
    double table_w = ready_w;
    if (n_running > 0) {
        table_w = gpu_table_w(m, TWIN_KERNEL_W, gpu->level, running, n_running, use);
        mean_w = gpu_table_w(m, TWIN_MEAN_W, gpu->level, running, n_running, use);
    }
    gpu->power_w = gpu_card_w(gpu, table_w, mean_w) * gpu->power_noise;
}

/* --- sensors --- */

static int64_t ticks(double seconds)
{
    int64_t n = (int64_t)(seconds / TICK_S + 0.5);

    return n > 0 ? n : 1;
}

/* The power sensor averages over its own window, which is one update period or several. */
static void power_sensor(gpu_t *gpu, int64_t tick)
{
    int64_t update = ticks(gpu->card.power_update_s), window = ticks(gpu->card.power_window_s);

    if (tick == 0)
        return;
    if (window < update) {
        if (tick % update == update - window)
            gpu->window_j = gpu->energy_j;
        if (tick % update == 0)
            gpu->shown_w = (gpu->energy_j - gpu->window_j) / ((double)window * TICK_S);
        return;
    }
    if (tick % update == 0) {
        uint32_t n = (uint32_t)(window / update), head = gpu->ring_head;
        n = n < SENSOR_RING ? n : SENSOR_RING - 1;
        uint32_t oldest = (head + SENSOR_RING - n) % SENSOR_RING;
        gpu->ring_j[head] = gpu->energy_j;
        gpu->shown_w = (gpu->energy_j - gpu->ring_j[oldest]) / ((double)n * (double)update * TICK_S);
        gpu->ring_head = (head + 1) % SENSOR_RING;
    }
}

/* The instantaneous reading is the mean over the last part of each update period, or over the last tick. */
static void instant_sensor(gpu_t *gpu, int64_t tick)
{
    int64_t update = ticks(gpu->card.power_update_s), window = ticks(gpu->card.instant_window_s);

    if (gpu->card.instant_window_s == 0) {
        gpu->instant_w = (gpu->energy_j - gpu->tick_j) / TICK_S;
        return;
    }
    if (tick >= window && tick % update == 0)
        gpu->instant_w = (gpu->energy_j - gpu->instant_window_j) / ((double)window * TICK_S);
    if ((tick + window) % update == 0)
        gpu->instant_window_j = gpu->energy_j;
}

static uint32_t shown_mw(const gpu_t *gpu, double true_w)
{
    double shown_w = gpu_measured_w(gpu, true_w);

    return shown_w > 0 ? (uint32_t)(shown_w * 1e3) : 0;
}

/* The energy counter integrates the same watts. */
static double shown_j(const gpu_t *gpu, int64_t tick)
{
    double joules = gpu->card.power_gain * gpu->energy_j + gpu->card.power_offset_w * ((double)tick * TICK_S);

    return joules > gpu->shown_j ? joules : gpu->shown_j;
}

static uint32_t percent(twin_model_t *m, double share)
{
    double shown = 100.0 * share;

    if (shown > 0.5 && shown < 99.5) /* sampling noise of a part-time load: one or two points */
        shown += 0.9 * model_normal(m);
    shown = floor(shown + 0.5);
    return shown < 0 ? 0 : shown > 100 ? 100 : (uint32_t)shown;
}

static void utilization_sensor(twin_model_t *m, gpu_t *gpu, int64_t tick)
{
    int64_t window = ticks(gpu->card.utilization_window_s);

    if (tick % window != 0)
        return;
    double s = (double)window * TICK_S;
    gpu->shown_gpu_pct = percent(m, (gpu->kernel_s - gpu->window_kernel_s) / s);
    gpu->shown_memory_pct = percent(m, (gpu->memory_s - gpu->window_memory_s) / s);
    gpu->shown_pcie_kbps = (uint32_t)(PCIE_KBPS * (gpu->gap_s - gpu->window_gap_s) / s);
    gpu->window_kernel_s = gpu->kernel_s;
    gpu->window_memory_s = gpu->memory_s;
    gpu->window_gap_s = gpu->gap_s;
}

static void push_sample(twin_gpu_t *shared, uint64_t time_us)
{
    twin_gpu_sample_t *sample = &shared->samples[shared->sample_head % TWIN_SAMPLES];

    sample->time_us = time_us;
    sample->power_mw = shared->power_mw;
    sample->gpu_pct = shared->gpu_pct;
    sample->memory_pct = shared->memory_pct;
    sample->sm_clock_mhz = shared->sm_clock_mhz;
    shared->sample_head = (shared->sample_head + 1) % TWIN_SAMPLES;
}

/* GPM shows the slope of an integral: a stuck share is an integral that goes on with its last slope. */
static void publish_gpm(const twin_model_t *m, gpu_t *gpu, twin_gpu_t *shared, int64_t tick)
{
    const double true_s[GPM_SHARES] = {gpu->kernel_s, gpu->sm_s, gpu->occupancy_s, gpu->memory_s, gpu->fp_s};
    double *const shown_s[GPM_SHARES] = {&shared->gpm_graphics_s, &shared->gpm_sm_active_s, &shared->gpm_sm_occupancy_s,
                                         &shared->gpm_dram_active_s, &shared->gpm_fp_s};
    int64_t window = ticks(gpu->card.utilization_window_s);

    for (int i = 0; i < GPM_SHARES; i++) {
        int is_stuck = (shared->stuck & ((uint32_t)TWIN_READING_GPM_GRAPHICS << i)) != 0;
        if (is_stuck)
            gpu->gpm_astray_s[i] += gpu->gpm_share[i] * TICK_S - (true_s[i] - gpu->gpm_tick_s[i]);
        if (tick % window == 0) {
            if (!is_stuck)
                gpu->gpm_share[i] = (true_s[i] - gpu->gpm_window_s[i]) / ((double)window * TICK_S);
            gpu->gpm_window_s[i] = true_s[i];
        }
        gpu->gpm_tick_s[i] = true_s[i];
        *shown_s[i] = true_s[i] + gpu->gpm_astray_s[i];
    }
    shared->gpm_time_s = (double)m->step * STEP_S;
}

static void publish_tenants(const twin_model_t *m, int32_t g, twin_gpu_t *shared)
{
    int32_t units[TWIN_TENANTS], n = gpu_units(m, g, units);

    shared->memory_used_mib = n > 0 ? 0 : 4; /* ours: an idle card uses 4 MiB */
    for (int32_t i = 0; i < n; i++) {
        const twin_group_t *shape = &m->groups[m->unit_group[units[i]]].shape;
        shared->memory_used_mib += shape->memory_mib;
        shared->tenants[i] = (twin_tenant_t){shape->memory_mib, shape->instance < 0 ? TWIN_WHOLE : (uint32_t)shape->instance,
                                             shape->instance < 0 ? TWIN_WHOLE : (uint32_t)shape->compute};
    }
    shared->n_tenants = (uint32_t)n;
    shared->process_pid = n > 0 ? (uint32_t)getpid() : 0;
}

static void publish(twin_model_t *m, int32_t g, int64_t tick)
{
    gpu_t *gpu = &m->gpus[g];
    twin_gpu_t *shared = &m->shared->gpu[g];
    uint64_t time_us = (uint64_t)(m->origin_ns + m->step * TWIN_STEP_NS) / 1000u;
    uint32_t seq = shared->seq, stuck = shared->stuck;

    if (shared->faults & TWIN_GPU_STUCK)
        return;
    shared->seq = seq + 1;
    atomic_thread_fence(memory_order_seq_cst);
    shared->time_us = time_us;
    if (!(stuck & TWIN_READING_ENERGY))
        shared->energy_uj = (uint64_t)(gpu->shown_j * 1e6);
    if (!(stuck & TWIN_READING_SM_CLOCK)) {
        shared->sm_clock_khz = (uint32_t)gpu->clock_khz[gpu->level];
        shared->sm_clock_mhz = shared->sm_clock_khz / 1000u;
    }
    shared->mem_clock_now_mhz = shared->memory_clock_mhz;
    if (!(stuck & TWIN_READING_POWER)) {
        shared->power_mw = shown_mw(gpu, gpu->shown_w);
        shared->power_instant_mw = shown_mw(gpu, gpu->instant_w);
    }
    shared->enforced_limit_mw = (uint32_t)(gpu->limit_w * 1e3 + 0.5);
    if (!(stuck & TWIN_READING_TEMPERATURE))
        shared->temperature_c = (uint32_t)(gpu->heat.die_c + 0.5);
    shared->memory_temperature_c = (uint32_t)(gpu->heat.die_c + gpu->card.memory_over_die_c + 0.5);
    if (!(stuck & TWIN_READING_GPU_UTILIZATION))
        shared->gpu_pct = gpu->shown_gpu_pct;
    if (!(stuck & TWIN_READING_MEMORY_UTILIZATION))
        shared->memory_pct = gpu->shown_memory_pct;
    shared->pcie_tx_kbps = gpu->shown_pcie_kbps / 2;
    shared->pcie_rx_kbps = gpu->shown_pcie_kbps;
    publish_tenants(m, g, shared);
    if (!(stuck & TWIN_READING_EVENT_REASONS))
        shared->throttle_reasons = gpu->reasons;
    shared->violation_power_us = (uint64_t)(gpu->limited_s * 1e6);
    shared->violation_thermal_us = (uint64_t)(gpu->overheated_s * 1e6);
    shared->performance_state = 0; /* P0 idle or not: the only state of V100, A100 and H100 (nvml/clocks.c) */
    publish_gpm(m, gpu, shared, tick);
    if (tick % ticks(gpu->card.power_update_s) == 0)
        push_sample(shared, time_us);
    atomic_thread_fence(memory_order_seq_cst);
    shared->seq = seq + 2;
}

/* The next value of a slowly varying factor about 1. */
static double varied(twin_model_t *m, double factor, double deviation)
{
    return 1.0 + NOISE_MEMORY * (factor - 1.0)
           + deviation * sqrt(1.0 - NOISE_MEMORY * NOISE_MEMORY) * model_normal(m);
}

static void gpu_one_tick(twin_model_t *m, int32_t g, int64_t tick)
{
    gpu_t *gpu = &m->gpus[g];
    double power_w = (gpu->energy_j - gpu->tick_j) / TICK_S;

    if (gpu->kernel_rate > 0)
        gpu->kernel_step = m->step;
    if (gpu->lock_step <= m->step) {
        gpu->lock_min_mhz = gpu->requested_min_mhz;
        gpu->lock_max_mhz = gpu->requested_max_mhz;
        gpu->is_applied = gpu->requested_is_applied;
        gpu->lock_step = NEVER;
    }
    heat_step(&gpu->heat, &gpu->card.thermal, m->air_k, power_w, TICK_S);
    if (tick % ticks(gpu->card.energy_update_s) == 0)
        gpu->shown_j = shown_j(gpu, tick);
    if (tick % 50 == 0)
        gpu->noise = varied(m, gpu->noise, m->counter_noise);
    if (tick % 50 == 0 && gpu->card.power_jitter > 0)
        gpu->power_noise = varied(m, gpu->power_noise, gpu->card.power_jitter);
    power_sensor(gpu, tick);
    instant_sensor(gpu, tick);
    utilization_sensor(m, gpu, tick);
    int32_t level = gpu_choose_level(m, g);
    if (gpu->reasons & GPU_REASON_POWER_CAP)
        gpu->limited_s += TICK_S;
    if (gpu->reasons & GPU_REASON_THERMAL)
        gpu->overheated_s += TICK_S;
    publish(m, g, tick);
    gpu->tick_j = gpu->energy_j;
    gpu->level = level;
    gpu_refresh(m, g);
}

void gpu_tick(twin_model_t *m)
{
    int64_t tick = m->step / TICK_STEPS;

    gpu_poll(m);
    for (int32_t g = 0; g < m->node.n_gpus; g++)
        gpu_one_tick(m, g, tick);
}
