/*
 * CPU clocks, and the work rates, counter rates and power of the cores that follow from them.
 *
 * The requests and the governor of a cpufreq policy give a level. A domain (the CPUs of one clock) may have several
 * policies: the hardware takes the highest of their levels, whether their CPUs are busy or idle (Linux
 * Documentation/admin-guide/pm/intel_pstate.rst, "Coordination of P-State Limits"; that idle ones count: ours). The
 * clock follows after the actuation latency. A package cap (power limit or heat) lowers the applied level without
 * delay. Threads of one core share its throughput and clock, but each has its own counters.
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

/* `share`: of the core's throughput; `pace`: over that without waiting for others' traffic. The time lost is stall. */
static void run_rates(twin_model_t *m, int32_t cpu, double share, double pace, double hz, double to[TWIN_EVENTS + 1])
{
    const int32_t n = m->node.n_cpus, level = m->shown_level[m->node.domain_of[cpu]];
    double stall = unit_table(m, cpu, TWIN_STALL_SHARE)[level] * m->noise[n + cpu];

    if (pace < 1.0) {
        stall = 1.0 - (1.0 - stall) * pace;
        share *= pace;
    }
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

/*
 * What a running thread asks of the memory, for bandwidth_share(); 0 of others. A thread needs at least the time in
 * which its bytes pass through its core. Returns its pace, at most 1, by the uncore's clock and by how the bandwidth
 * was shared last. `waiting`: the share of its time at the uncore's highest clock, alone.
 */
static double demand_memory(twin_model_t *m, int32_t cpu, double gbs, double waiting)
{
    int32_t core = m->node.core_of[cpu];
    double slower = m->memory_slower[m->node.package_of[core]], pace = 1.0;

    if (slower > 1.0) {
        pace = 1.0 / (1.0 - waiting + slower * waiting);
        waiting *= slower * pace;
        gbs *= pace;
    }
    if (m->node.core_gbs <= 0)
        return pace;
    if (waiting < gbs / m->node.core_gbs)
        waiting = gbs / m->node.core_gbs;
    if (waiting > 1.0)
        waiting = 1.0;
    if (gbs != m->demand_gbs[cpu] || waiting != m->demand_share[cpu]) {
        m->demand_gbs[cpu] = gbs;
        m->demand_share[cpu] = waiting;
        m->demand_changed[m->node.package_of[core]] = 1;
    }
    return gbs > 0 ? pace / (1.0 - waiting + m->core_stretch[core] * waiting) : pace;
}

/* What the threads of a core add up to. */
typedef struct {
    double activity, gbs, host_gbs;
    int32_t busy, license, hosts; /* threads that run or poll; the widest vectors; whether programs of the host run */
} core_sum_t;

static void run_thread(twin_model_t *m, int32_t cpu, double share, double to[TWIN_EVENTS + 1], core_sum_t *sum)
{
    int32_t level = m->shown_level[m->node.domain_of[cpu]];
    group_t *group = &m->groups[m->unit_group[cpu]];
    const twin_phase_t *phase = unit_phase_of(m, cpu);
    double rate = unit_table(m, cpu, TWIN_RATE)[level], gbs = unit_table(m, cpu, TWIN_TRAFFIC_GBS)[level] * share;

    unit_settle(m, cpu);
    double pace = demand_memory(m, cpu, gbs, phase->memory_s * rate);
    m->unit_rate[cpu] = rate * share / group->shape.nominal_share * pace;
    group->is_stale = 1;
    run_rates(m, cpu, share, pace, m->node.clock_hz[level], to);
    sum->activity += phase->activity * share;
    sum->gbs += gbs * pace;
    if (phase->license > sum->license)
        sum->license = phase->license;
}

static void idle_thread(const twin_model_t *m, int32_t cpu, double hz, double to[TWIN_EVENTS + 1], core_sum_t *sum)
{
    double load = m->load[cpu];

    loaded_rates(m, load, hz, to);
    sum->activity += 0.3 * m->node.tick_share + LOAD_ACTIVITY * load; /* ours */
    sum->host_gbs += LOAD_MISSES * hz * load * 64e-9;
    sum->hosts |= load > 0;
}

/* Takes over the sums; notes what turbo_share() and bandwidth_share() depend on. */
static void keep_sum(twin_model_t *m, int32_t core, const core_sum_t *sum)
{
    int32_t p = m->node.package_of[core], was_busy = m->core_busy[core] > 0;

    if ((sum->busy > 0) != was_busy || sum->license != m->core_license[core] || sum->hosts != m->core_hosts[core])
        m->activity_changed[p] = 1;
    if (sum->host_gbs != m->host_gbs[core])
        m->demand_changed[p] = 1;
    m->core_busy[core] = sum->busy;
    m->core_license[core] = sum->license;
    idle_note(m, core, sum->busy == 0 && !sum->hosts);
    m->core_hosts[core] = sum->hosts;
    m->host_gbs[core] = sum->host_gbs;
    m->core_traffic[core] = sum->gbs + sum->host_gbs;
}

void cpu_refresh_core(twin_model_t *m, int32_t core)
{
    int32_t first = m->first_thread[core], end = m->first_thread[core + 1];
    int32_t level = m->shown_level[m->node.domain_of[m->threads[first]]];
    double hz = m->node.clock_hz[level], volt = m->node.volt[level];
    core_sum_t sum = {0};

    for (int32_t t = first; t < end; t++)
        sum.busy += is_busy(m, m->threads[t]);
    double share = sum.busy > 1 ? m->node.smt_throughput / sum.busy : 1.0;

    for (int32_t t = first; t < end; t++) {
        int32_t cpu = m->threads[t];
        double to[TWIN_EVENTS + 1];
        if (m->unit_state[cpu] != UNIT_RUN)
            demand_memory(m, cpu, 0, 0);
        if (m->unit_state[cpu] == UNIT_RUN) {
            run_thread(m, cpu, share, to, &sum);
        } else if (is_busy(m, cpu)) {
            spin_rates(m, share, hz, to);
            sum.activity += m->node.spin_activity * share;
        } else {
            idle_thread(m, cpu, hz, to, &sum);
        }
        set_rates(m, cpu, to);
    }
    keep_sum(m, core, &sum);
    double scale = m->node.package_scale[m->node.package_of[core]];
    double leak_share = sum.busy ? 1.0 : m->node.idle_leak_share;
    m->core_dynamic_w[core] = m->node.dynamic_w * volt * volt * hz * sum.activity * scale;
    m->core_leak_w[core] = idle_core_w(m, core, m->level_leak[level] * m->core_heat[core] * leak_share * scale);
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
            idle_uncore_w(m) + (busy > 0 ? m->node.uncore_busy_w : 0.0) + m->node.uncore_w_per_gbs * traffic
            + m->uncore_more_w[p];
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

/* The level that a policy's governor requests, within the limits: performance takes the highest, powersave the lowest,
 * userspace rounds up (CPUFREQ_RELATION_L), the dynamic one keeps the last choice of cpu_govern(). */
static int32_t requested_level(const twin_model_t *m, int32_t p)
{
    int32_t low = cpu_level_at_least(m, m->min_khz[p]), high = cpu_level_at_most(m, m->max_khz[p]), level = high;

    if (m->governor[p] == TWIN_POWERSAVE)
        level = low;
    else if (m->governor[p] == TWIN_USERSPACE)
        level = cpu_level_at_least(m, m->set_khz[p]);
    else if (m->governor[p] == TWIN_DYNAMIC)
        level = m->policy_level[p];
    if (level < low)
        level = low;
    return level > high ? high : level;
}

static int32_t highest_request(const twin_model_t *m, int32_t d)
{
    int32_t level = 0;

    for (int32_t p = m->first_policy[d]; p >= 0; p = m->next_policy[p])
        if (m->policy_level[p] > level)
            level = m->policy_level[p];
    return level;
}

static void show(twin_model_t *m, int32_t d)
{
    int32_t cap = m->cap_level[m->domain_package[d]];
    int32_t level = m->level[d] < cap ? m->level[d] : cap;

    if (level > m->turbo_level[d])
        level = m->turbo_level[d];
    if (level == m->shown_level[d])
        return;
    m->shown_level[d] = level;
    for (int32_t cpu = m->first_cpu[d]; cpu >= 0; cpu = m->next_cpu[cpu]) {
        int32_t core = m->node.core_of[cpu];
        if (m->threads[m->first_thread[core]] == cpu)
            cpu_refresh_core(m, core);
    }
}

/*
 * The step at which a clock requested now is in force. Firmware that takes requests on a grid of instants (AMD since
 * Zen 2: each millisecond) takes them at the next one and then needs a fixed time, longer to a lower clock: measured
 * latencies are uniform over the interval, above that time (data: cpu-epyc-rome).
 */
static int64_t switch_step(const twin_model_t *m, int32_t d, int32_t level)
{
    double now = (double)m->step * STEP_S, first = m->update_s[m->domain_package[d]], interval = m->node.update_s;

    if (interval <= 0)
        return m->step + (int64_t)ceil(m->node.latency_s / STEP_S - 1e-9);
    double wait = now <= first ? 0 : ceil((now - first) / interval - 1e-9);
    double then = first + wait * interval + (level < m->level[d] ? m->node.switch_down_s : m->node.switch_up_s);
    int64_t step = (int64_t)floor(then / STEP_S + 0.5);
    return step > m->step ? step : m->step + 1;
}

void cpu_request(twin_model_t *m, int32_t p)
{
    int32_t d = m->policy_domain[p], level;

    m->policy_level[p] = requested_level(m, p);
    level = highest_request(m, d);
    if (level == m->wanted_level[d] && (m->due_step[d] != NEVER || level == m->level[d]))
        return;
    m->wanted_level[d] = level;
    m->due_step[d] = level == m->level[d] ? NEVER : switch_step(m, d, level);
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

/* The share of the governor's interval in which the busiest CPU of each policy was busy. */
static void measure_busy(twin_model_t *m)
{
    const double *busy = m->count + TWIN_EVENTS * m->node.n_cpus;

    for (int32_t p = 0; p < m->node.n_policies; p++)
        m->policy_busy[p] = 0;
    for (int32_t cpu = 0; cpu < m->node.n_cpus; cpu++) {
        double share = (busy[cpu] - m->governed_busy_s[cpu]) / m->node.governor_s;
        double *most = &m->policy_busy[m->node.policy_of[cpu]];
        m->governed_busy_s[cpu] = busy[cpu];
        if (share > *most)
            *most = share;
    }
}

/* Dynamic governors: next = 1.25 * fmax * utilisation of the policy's busiest CPU, where utilisation is scaled by the
 * clock it was measured at (Linux Documentation/scheduler/schedutil.rst). Hardware that chooses by itself takes no more
 * than its energy preference lets it (twin_model_prefer). */
void cpu_govern(twin_model_t *m)
{
    measure_busy(m);
    for (int32_t d = 0; d < m->node.n_domains; d++) {
        int is_governed = 0;
        for (int32_t p = m->first_policy[d]; p >= 0; p = m->next_policy[p]) {
            if (m->governor[p] != TWIN_DYNAMIC)
                continue;
            double khz = 1.25 * m->policy_busy[p] * m->node.label_khz[m->shown_level[d]];
            int32_t wanted = cpu_level_at_least(m, khz), most = cpu_level_at_most(m, m->preferred_khz[p]);
            m->policy_level[p] = wanted < most ? wanted : most;
            m->policy_level[p] = requested_level(m, p);
            is_governed = 1;
        }
        int32_t level = is_governed ? highest_request(m, d) : m->wanted_level[d];
        if (is_governed && (level != m->wanted_level[d] || (level != m->level[d] && m->due_step[d] == NEVER))) {
            m->wanted_level[d] = level;
            m->due_step[d] = m->node.update_s > 0 ? switch_step(m, d, level) : m->step + 1;
            if (m->due_step[d] < m->next_domain_step)
                m->next_domain_step = m->due_step[d];
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
