/*
 * CPU clocks, and the work rates, counter rates and power of the cores that follow from them.
 *
 * A domain's requests and governor give a wanted level, which the clock follows after the actuation latency. A package
 * cap (power limit or heat) lowers the applied level without delay. Threads of one core share its throughput and clock,
 * but each has its own counters.
 */
#include <math.h>

#include "model_internal.h"

/* Programs of the host: ours. */
#define LOAD_IPC      1.2
#define LOAD_STALLS   0.3
#define LOAD_MISSES   2e-4
#define LOAD_ACTIVITY 0.6

#define NOISE_MEMORY 0.9 /* ours: share of the counter noise kept from one 50 ms interval to the next */

/* --- rates --- */

static void set_rates(twin_model_t *m, int32_t cpu, const double to[TWIN_EVENTS + 1])
{
    for (int e = 0; e <= TWIN_EVENTS; e++)
        m->rate[e * m->node.n_cpus + cpu] = to[e];
}

static void run_rates(twin_model_t *m, int32_t cpu, double share, double hz, double to[TWIN_EVENTS + 1])
{
    const int32_t n = m->node.n_cpus, level = m->shown_level[m->node.domain_of[cpu]];
    double stall = unit_table(m, cpu, TWIN_STALL_SHARE)[level] * m->noise[n + cpu];

    to[TWIN_CYCLES] = hz;
    to[TWIN_REFERENCE] = m->node.tsc_hz;
    to[TWIN_INSTRUCTIONS] = unit_table(m, cpu, TWIN_INSTRUCTIONS_HZ)[level] * share * m->noise[cpu];
    to[TWIN_STALLS] = hz * (stall < 0.98 ? stall : 0.98);
    to[TWIN_MISSES] = unit_table(m, cpu, TWIN_MISSES_HZ)[level] * share * m->noise[2 * n + cpu];
    to[TWIN_EVENTS] = 1.0;
}

static void spin_rates(const twin_model_t *m, double share, double hz, double to[TWIN_EVENTS + 1])
{
    to[TWIN_CYCLES] = hz;
    to[TWIN_REFERENCE] = m->node.tsc_hz;
    to[TWIN_INSTRUCTIONS] = hz * m->node.spin_ipc * share;
    to[TWIN_STALLS] = 0.02 * hz; /* ours: a spinning core hardly waits for data */
    to[TWIN_MISSES] = 0;
    to[TWIN_EVENTS] = 1.0;
}

static void idle_rates(const twin_model_t *m, double hz, double to[TWIN_EVENTS + 1])
{
    double share = m->node.tick_share;

    to[TWIN_CYCLES] = hz * share;
    to[TWIN_REFERENCE] = m->node.tsc_hz * share;
    to[TWIN_INSTRUCTIONS] = 0.6 * hz * share; /* ours: kernel tick code */
    to[TWIN_STALLS] = 0.4 * hz * share;
    to[TWIN_MISSES] = 2e-4 * hz * share;
    to[TWIN_EVENTS] = share;
}

/* A CPU that runs programs of the host for a share of its time (twin_model_set_load), and is idle otherwise. What they
 * execute is not known: an ordinary mix (ours). */
static void loaded_rates(const twin_model_t *m, double load, double hz, double to[TWIN_EVENTS + 1])
{
    const double running[TWIN_EVENTS + 1] = {[TWIN_CYCLES] = hz,
                                             [TWIN_REFERENCE] = m->node.tsc_hz,
                                             [TWIN_INSTRUCTIONS] = LOAD_IPC * hz,
                                             [TWIN_STALLS] = LOAD_STALLS * hz,
                                             [TWIN_MISSES] = LOAD_MISSES * hz,
                                             [TWIN_EVENTS] = 1.0};
    idle_rates(m, hz, to);
    for (int e = 0; e <= TWIN_EVENTS; e++)
        to[e] += load * (running[e] - to[e]);
}

static int is_busy(const twin_model_t *m, int32_t cpu)
{
    if (m->unit_state[cpu] == UNIT_RUN)
        return 1;
    return m->unit_state[cpu] == UNIT_WAIT && m->groups[m->unit_group[cpu]].shape.spins;
}

void cpu_refresh_core(twin_model_t *m, int32_t core)
{
    int32_t first = m->first_thread[core], end = m->first_thread[core + 1], busy = 0;
    int32_t level = m->shown_level[m->node.domain_of[m->threads[first]]];
    double hz = m->node.clock_hz[level], volt = m->node.volt[level], activity = 0, traffic = 0;

    for (int32_t t = first; t < end; t++)
        busy += is_busy(m, m->threads[t]);
    double share = busy > 1 ? m->node.smt_throughput / busy : 1.0;

    for (int32_t t = first; t < end; t++) {
        int32_t cpu = m->threads[t];
        double to[TWIN_EVENTS + 1];
        if (m->unit_state[cpu] == UNIT_RUN) {
            group_t *group = &m->groups[m->unit_group[cpu]];
            unit_settle(m, cpu);
            m->unit_rate[cpu] = unit_table(m, cpu, TWIN_RATE)[level] * share / group->shape.nominal_share;
            group->is_stale = 1;
            run_rates(m, cpu, share, hz, to);
            activity += unit_phase_of(m, cpu)->activity * share;
            traffic += unit_table(m, cpu, TWIN_TRAFFIC_GBS)[level] * share;
        } else if (is_busy(m, cpu)) {
            spin_rates(m, share, hz, to);
            activity += m->node.spin_activity * share;
        } else {
            loaded_rates(m, m->load[cpu], hz, to);
            activity += 0.3 * m->node.tick_share + LOAD_ACTIVITY * m->load[cpu]; /* ours */
            traffic += LOAD_MISSES * hz * m->load[cpu] * 64e-9;
        }
        set_rates(m, cpu, to);
    }
    m->core_busy[core] = busy;
    double scale = m->node.package_scale[m->node.package_of[core]];
    m->core_dynamic_w[core] = m->node.dynamic_w * volt * volt * hz * activity * scale;
    m->core_leak_w[core] = m->level_leak[level] * m->core_heat[core] * (busy ? 1.0 : m->node.idle_leak_share) * scale;
    m->core_traffic[core] = traffic;
    m->dirty[m->node.package_of[core]] = 1;
}

void cpu_refresh_packages(twin_model_t *m)
{
    const int32_t n = m->node.n_packages;

    for (int32_t p = 0; p < n; p++) {
        if (!m->dirty[p])
            continue;
        double core_w = 0, traffic = 0;
        int32_t busy = 0;
        for (int32_t c = 0; c < m->node.n_cores; c++) {
            if (m->node.package_of[c] != p)
                continue;
            core_w += m->core_dynamic_w[c] + m->core_leak_w[c];
            traffic += m->core_traffic[c];
            busy += m->core_busy[c];
        }
        m->meter_w[METER_CORE * n + p] = core_w;
        m->meter_w[METER_UNCORE * n + p] =
            m->node.uncore_idle_w + (busy > 0 ? m->node.uncore_busy_w : 0.0) + m->node.uncore_w_per_gbs * traffic;
        m->meter_w[METER_DRAM * n + p] = m->node.dram_idle_w + m->node.dram_w_per_gbs * traffic;
        m->dirty[p] = 0;
    }
}

/* --- clocks --- */

int32_t cpu_level_at_most(const twin_model_t *m, double khz)
{
    int32_t level = m->node.n_levels - 1;

    while (level > 0 && m->node.label_khz[level] > khz + 0.5)
        level--;
    return level;
}

int32_t cpu_level_at_least(const twin_model_t *m, double khz)
{
    int32_t level = 0;

    while (level < m->node.n_levels - 1 && m->node.label_khz[level] < khz - 0.5)
        level++;
    return level;
}

/* The level that the governor requests, within the limits: performance takes the highest, powersave the lowest,
 * userspace rounds up (CPUFREQ_RELATION_L), the dynamic one keeps the last choice of cpu_govern(). */
static int32_t requested_level(const twin_model_t *m, int32_t d)
{
    int32_t low = cpu_level_at_least(m, m->min_khz[d]), high = cpu_level_at_most(m, m->max_khz[d]), level = high;

    if (m->governor[d] == TWIN_POWERSAVE)
        level = low;
    else if (m->governor[d] == TWIN_USERSPACE)
        level = cpu_level_at_least(m, m->set_khz[d]);
    else if (m->governor[d] == TWIN_DYNAMIC)
        level = m->wanted_level[d];
    if (level < low)
        level = low;
    return level > high ? high : level;
}

static void show(twin_model_t *m, int32_t d)
{
    int32_t cap = m->cap_level[m->domain_package[d]];
    int32_t level = m->level[d] < cap ? m->level[d] : cap;

    if (level == m->shown_level[d])
        return;
    m->shown_level[d] = level;
    for (int32_t cpu = m->first_cpu[d]; cpu >= 0; cpu = m->next_cpu[cpu]) {
        int32_t core = m->node.core_of[cpu];
        if (m->threads[m->first_thread[core]] == cpu)
            cpu_refresh_core(m, core);
    }
}

void cpu_request(twin_model_t *m, int32_t d)
{
    int32_t level = requested_level(m, d);

    if (level == m->wanted_level[d] && (m->due_step[d] != NEVER || level == m->level[d]))
        return;
    m->wanted_level[d] = level;
    m->due_step[d] = level == m->level[d] ? NEVER : m->step + (int64_t)ceil(m->node.latency_s / STEP_S - 1e-9);
    m->next_domain_step = NEVER;
    for (int32_t k = 0; k < m->node.n_domains; k++)
        if (m->due_step[k] < m->next_domain_step)
            m->next_domain_step = m->due_step[k];
}

void cpu_apply_due(twin_model_t *m)
{
    if (m->next_domain_step > m->step)
        return;
    m->next_domain_step = NEVER;
    for (int32_t d = 0; d < m->node.n_domains; d++) {
        if (m->due_step[d] <= m->step) {
            m->due_step[d] = NEVER;
            m->level[d] = m->wanted_level[d];
            show(m, d);
        } else if (m->due_step[d] < m->next_domain_step) {
            m->next_domain_step = m->due_step[d];
        }
    }
}

void cpu_show_levels(twin_model_t *m, int32_t package)
{
    for (int32_t d = 0; d < m->node.n_domains; d++)
        if (m->domain_package[d] == package)
            show(m, d);
}

/* Dynamic governors: next = 1.25 * fmax * utilisation of the busiest CPU, where utilisation is scaled by the clock it
 * was measured at (Linux Documentation/scheduler/schedutil.rst). */
void cpu_govern(twin_model_t *m)
{
    const double *busy = m->count + TWIN_EVENTS * m->node.n_cpus;
    double fmax = m->node.label_khz[m->node.n_levels - 1], interval = m->node.governor_s;

    for (int32_t d = 0; d < m->node.n_domains; d++) {
        double most = 0;
        for (int32_t cpu = m->first_cpu[d]; cpu >= 0; cpu = m->next_cpu[cpu]) {
            double share = (busy[cpu] - m->domain_busy_s[cpu]) / interval;
            m->domain_busy_s[cpu] = busy[cpu];
            if (share > most)
                most = share;
        }
        if (m->governor[d] != TWIN_DYNAMIC)
            continue;
        double khz = 1.25 * most * m->node.label_khz[m->shown_level[d]];
        int32_t was = m->wanted_level[d];
        m->wanted_level[d] = cpu_level_at_least(m, khz < fmax ? khz : fmax);
        int32_t level = requested_level(m, d);
        m->wanted_level[d] = was;
        if (level != was || (level != m->level[d] && m->due_step[d] == NEVER)) {
            m->wanted_level[d] = level;
            m->due_step[d] = m->step + 1;
            m->next_domain_step = m->step + 1;
        }
    }
}

/* --- counter noise --- */

void cpu_noise(twin_model_t *m)
{
    const int32_t n = m->node.n_cpus;
    double fresh = m->counter_noise * sqrt(1.0 - NOISE_MEMORY * NOISE_MEMORY);

    if (m->counter_noise <= 0)
        return;
    for (int32_t i = 0; i < 3 * n; i++)
        m->noise[i] = 1.0 + NOISE_MEMORY * (m->noise[i] - 1.0) + fresh * model_normal(m);
    for (int32_t core = 0; core < m->node.n_cores; core++)
        cpu_refresh_core(m, core);
}
