/*
 * Running a model: the event loop, locking, reads and actuations.
 *
 * A run keeps the mutex for at most 1 ms of model time, then lets waiting callers in.
 */
#define _POSIX_C_SOURCE 200809L
#include <sched.h>
#include <string.h>
#include <time.h>

#include "model_internal.h"

#define NOISE_TICKS 50 /* ours: counter noise changes every 50 ms */

/* --- time --- */

static void flush(twin_model_t *m)
{
    double dt = model_elapsed_s(m);

    m->flushed_step = m->step;
    for (int32_t i = 0; i < (TWIN_EVENTS + 1) * m->node.n_cpus; i++)
        m->count[i] += m->rate[i] * dt;
    for (int32_t i = 0; i < METERS * m->node.n_packages; i++)
        m->meter_j[i] += m->meter_w[i] * dt;
    for (int32_t c = 0; c < m->node.n_cores; c++) {
        m->core_j[c] += (m->core_dynamic_w[c] + m->core_leak_w[c]) * dt;
        m->core_gb[c] += m->core_traffic[c] * dt;
    }
    m->rest_j += m->node.rest_w * dt;
    for (int32_t g = 0; g < m->node.n_gpus; g++) {
        gpu_t *gpu = &m->gpus[g];
        gpu->energy_j += gpu->power_w * dt;
        gpu->kernel_s += gpu->kernel_rate * dt;
        gpu->memory_s += gpu->memory_rate * dt;
        gpu->occupancy_s += gpu->occupancy_rate * dt;
        gpu->sm_s += gpu->sm_rate * dt;
        gpu->fp_s += gpu->fp_rate * dt;
        gpu->gap_s += gpu->gap_rate * dt;
    }
}

/* After any change: new sums, and the next step at which something happens. */
void model_settle(twin_model_t *m)
{
    int64_t next = (m->step / TICK_STEPS + 1) * TICK_STEPS;

    turbo_share(m);
    bandwidth_share(m);
    cpu_refresh_packages(m);
    for (int32_t g = 0; g < m->n_groups; g++) {
        group_t *group = &m->groups[g];
        if (group->is_stale)
            work_next_step(m, group);
        group->is_stale = 0;
        if (group->next_step < next)
            next = group->next_step;
    }
    if (m->next_domain_step < next)
        next = m->next_domain_step > m->step ? m->next_domain_step : m->step + 1;
    m->next_step = next;
}

void model_events(twin_model_t *m)
{
    flush(m);
    work_events(m);
    cpu_apply_due(m);
    if (m->step % TICK_STEPS == 0) {
        int64_t tick = m->step / TICK_STEPS, govern = (int64_t)(m->node.governor_s / TICK_S + 0.5);
        meter_tick(m);
        gpu_tick(m);
        if (tick % govern == 0)
            cpu_govern(m);
        if (tick % NOISE_TICKS == 0)
            cpu_noise(m);
    }
    model_settle(m);
}

static void run_to(twin_model_t *m, int64_t target)
{
    while (m->step < target) {
        m->step = m->next_step < target ? m->next_step : target;
        if (m->step == m->next_step)
            model_events(m);
    }
}

/* --- locking --- */

static int64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t due_step(const twin_model_t *m)
{
    return (monotonic_ns() - m->origin_ns) / TWIN_STEP_NS;
}

/* If the model follows real time, it is advanced to now. */
static void enter(twin_model_t *m)
{
    atomic_fetch_add(&m->waiting, 1);
    pthread_mutex_lock(&m->mutex);
    atomic_fetch_sub(&m->waiting, 1);
    if (m->following)
        run_to(m, due_step(m));
}

static void leave(twin_model_t *m)
{
    pthread_mutex_unlock(&m->mutex);
}

static void let_others_in(twin_model_t *m)
{
    pthread_mutex_unlock(&m->mutex);
    while (atomic_load(&m->waiting) > 0)
        sched_yield();
    pthread_mutex_lock(&m->mutex);
}

void twin_model_advance(twin_model_t *m, int64_t steps)
{
    enter(m);
    gpu_poll(m);
    int64_t end = m->step + steps;
    while (m->step < end) {
        run_to(m, end - m->step > TICK_STEPS ? m->step + TICK_STEPS : end);
        if (atomic_load(&m->waiting) > 0)
            let_others_in(m);
    }
    leave(m);
}

void twin_model_follow(twin_model_t *m, int64_t duration_ns)
{
    const struct timespec nap = {0, 1000000};
    int64_t end = monotonic_ns() + duration_ns;

    pthread_mutex_lock(&m->mutex);
    if (!m->following) {
        m->origin_ns = monotonic_ns() - m->step * TWIN_STEP_NS;
        m->following = 1;
    }
    while (m->following && monotonic_ns() < end) {
        int64_t target = due_step(m);
        while (m->step < target) {
            run_to(m, target - m->step > TICK_STEPS ? m->step + TICK_STEPS : target);
            if (atomic_load(&m->waiting) > 0)
                let_others_in(m);
        }
        pthread_mutex_unlock(&m->mutex);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&m->mutex);
    }
    pthread_mutex_unlock(&m->mutex);
}

void twin_model_unfollow(twin_model_t *m)
{
    enter(m);
    m->following = 0;
    leave(m);
}

/* --- instruments --- */

int64_t twin_model_time_ns(twin_model_t *m)
{
    enter(m);
    int64_t now = m->origin_ns + m->step * TWIN_STEP_NS;
    leave(m);
    return now;
}

int64_t twin_model_age_ns(twin_model_t *m)
{
    enter(m);
    int64_t age = m->step * TWIN_STEP_NS;
    leave(m);
    return age;
}

void twin_model_counters(twin_model_t *m, int64_t *out)
{
    enter(m);
    double elapsed = model_elapsed_s(m);
    for (int32_t cpu = 0; cpu < m->node.n_cpus; cpu++)
        for (int e = 0; e < TWIN_EVENTS; e++) {
            int32_t i = e * m->node.n_cpus + cpu;
            *out++ = (int64_t)(m->count[i] + m->rate[i] * elapsed);
        }
    leave(m);
}

void twin_model_busy_us(twin_model_t *m, int64_t *busy, int64_t *idle)
{
    enter(m);
    double elapsed = model_elapsed_s(m), now = (double)m->step * STEP_S;
    for (int32_t cpu = 0; cpu < m->node.n_cpus; cpu++) {
        int32_t i = TWIN_EVENTS * m->node.n_cpus + cpu;
        double busy_s = m->count[i] + m->rate[i] * elapsed;
        busy[cpu] = (int64_t)(busy_s * 1e6);
        idle[cpu] = (int64_t)((now - busy_s) * 1e6);
    }
    leave(m);
}

double twin_model_core_j(twin_model_t *m, int32_t core)
{
    enter(m);
    double j = m->core_j[core] + (m->core_dynamic_w[core] + m->core_leak_w[core]) * model_elapsed_s(m);
    leave(m);
    return j;
}

double twin_model_traffic_gb(twin_model_t *m, int32_t package)
{
    enter(m);
    double elapsed = model_elapsed_s(m), gb = 0;
    for (int32_t c = 0; c < m->node.n_cores; c++)
        if (m->node.package_of[c] == package)
            gb += m->core_gb[c] + m->core_traffic[c] * elapsed;
    leave(m);
    return gb;
}

double twin_model_core_gb(twin_model_t *m, int32_t core)
{
    enter(m);
    double gb = m->core_gb[core] + m->core_traffic[core] * model_elapsed_s(m);
    leave(m);
    return gb;
}

int32_t twin_model_idle_state(twin_model_t *m, int32_t core)
{
    enter(m);
    int32_t state = m->node.n_idle > 0 ? m->idle_state[core] : -1;
    leave(m);
    return state;
}

void twin_model_idle_us(twin_model_t *m, int32_t core, int64_t *out)
{
    enter(m);
    for (int32_t state = 0; state < m->node.n_idle; state++)
        out[state] = (int64_t)(idle_state_s(m, core, state) * 1e6 + 0.5);
    leave(m);
}

int64_t twin_model_zone_uj(twin_model_t *m, int32_t zone)
{
    enter(m);
    int64_t uj = (int64_t)m->shown_uj[zone];
    leave(m);
    return uj;
}

void twin_model_set_zone_uj(twin_model_t *m, int32_t zone, double uj)
{
    enter(m);
    m->zone_offset_uj[zone] += uj - (double)m->shown_uj[zone];
    m->shown_uj[zone] = (uint64_t)uj;
    leave(m);
}

double twin_model_domain_khz(twin_model_t *m, int32_t domain)
{
    enter(m);
    double khz = m->node.label_khz[m->shown_level[domain]];
    leave(m);
    return khz;
}

double twin_model_uncore_khz(twin_model_t *m, int32_t package)
{
    enter(m);
    double khz = m->uncore_now_khz[package];
    leave(m);
    return khz;
}

double twin_model_core_c(twin_model_t *m, int32_t core)
{
    enter(m);
    double c = m->core_c[core];
    leave(m);
    return c;
}

double twin_model_package_c(twin_model_t *m, int32_t package)
{
    enter(m);
    double hottest = m->heat[package].die_c;
    for (int32_t c = 0; c < m->node.n_cores; c++)
        if (m->node.package_of[c] == package && m->core_c[c] > hottest)
            hottest = m->core_c[c];
    leave(m);
    return hottest;
}

double twin_model_memory_c(twin_model_t *m, int32_t package)
{
    enter(m);
    double c = m->memory_c[package];
    leave(m);
    return c;
}

double twin_model_power_w(twin_model_t *m, int32_t kind, int32_t package)
{
    enter(m);
    const int32_t n = m->node.n_packages;
    double w = 0;
    for (int32_t p = 0; p < n; p++) {
        if (kind != TWIN_ZONE_PSYS && p != package)
            continue;
        if (kind == TWIN_ZONE_PACKAGE || kind == TWIN_ZONE_CORE || kind == TWIN_ZONE_PSYS)
            w += m->meter_w[METER_CORE * n + p];
        if (kind == TWIN_ZONE_PACKAGE || kind == TWIN_ZONE_UNCORE || kind == TWIN_ZONE_PSYS)
            w += m->meter_w[METER_UNCORE * n + p];
        if (kind == TWIN_ZONE_DRAM || kind == TWIN_ZONE_PSYS)
            w += m->meter_w[METER_DRAM * n + p];
    }
    if (kind == TWIN_ZONE_PSYS) {
        w += m->node.rest_w;
        for (int32_t g = 0; g < m->node.n_gpus; g++)
            w += m->gpus[g].power_w;
    }
    leave(m);
    return w;
}

/* --- actuators --- */

void twin_model_set_policy(twin_model_t *m, int32_t p, double min_khz, double max_khz, double set_khz, int32_t governor)
{
    enter(m);
    m->min_khz[p] = min_khz;
    m->max_khz[p] = max_khz;
    m->set_khz[p] = set_khz;
    m->governor[p] = governor;
    cpu_request(m, p);
    model_settle(m);
    leave(m);
}

void twin_model_prefer(twin_model_t *m, int32_t policy, double khz)
{
    enter(m);
    m->preferred_khz[policy] = khz;
    leave(m);
}

void twin_model_set_air(twin_model_t *m, double warmer_k)
{
    enter(m);
    m->air_k = warmer_k;
    leave(m);
}

/* The uncore's clock goes with the power limits. */
static void follow_limits(twin_model_t *m)
{
    if (m->node.uncore_cap_high_w <= 0)
        return;
    flush(m);
    for (int32_t p = 0; p < m->node.n_packages; p++)
        m->activity_changed[p] = 1;
    model_settle(m);
}

void twin_model_set_limit(twin_model_t *m, int32_t zone, int32_t constraint, double limit_w, double window_s)
{
    enter(m);
    m->zones[zone].limit_w[constraint] = limit_w;
    m->zones[zone].window_s[constraint] = window_s;
    follow_limits(m);
    leave(m);
}

void twin_model_enable_zone(twin_model_t *m, int32_t zone, int32_t enabled)
{
    enter(m);
    m->zones[zone].enabled = enabled;
    follow_limits(m);
    leave(m);
}

void twin_model_set_idle(twin_model_t *m, int32_t core, uint32_t enabled)
{
    enter(m);
    m->idle_enabled[core] = enabled;
    leave(m);
}

void twin_model_set_uncore(twin_model_t *m, int32_t package, double min_khz, double max_khz)
{
    enter(m);
    flush(m);
    m->uncore_min_khz[package] = min_khz;
    m->uncore_max_khz[package] = max_khz;
    m->activity_changed[package] = 1;
    model_settle(m);
    leave(m);
}

void twin_model_set_load(twin_model_t *m, const double *share)
{
    enter(m);
    flush(m);
    for (int32_t cpu = 0; cpu < m->node.n_cpus; cpu++) {
        double load = share[cpu] < 0 ? 0 : share[cpu] > 1 ? 1 : share[cpu];
        if (load == m->load[cpu])
            continue;
        m->load[cpu] = load;
        cpu_refresh_core(m, m->node.core_of[cpu]);
    }
    model_settle(m);
    leave(m);
}

int twin_model_start(twin_model_t *m, int32_t n_groups, const twin_group_t *groups, double noise)
{
    enter(m);
    m->counter_noise = noise;
    flush(m);
    int failed = work_start(m, n_groups, groups);
    model_settle(m);
    leave(m);
    return failed;
}

/* --- truth --- */

int twin_model_finished(twin_model_t *m)
{
    enter(m);
    int finished = m->finished;
    leave(m);
    return finished;
}

double twin_model_node_j(twin_model_t *m)
{
    enter(m);
    double joules = meter_node_j(m, model_elapsed_s(m));
    leave(m);
    return joules;
}

void twin_model_parts(twin_model_t *m, double *out)
{
    enter(m);
    meter_energies(m, out);
    leave(m);
}

void twin_model_energy(twin_model_t *m, double *out)
{
    enter(m);
    int32_t n = METERS * m->node.n_packages + m->node.n_gpus + 1;
    if (m->finished)
        memcpy(out, m->end_energy, (size_t)n * sizeof(double));
    else
        meter_energies(m, out);
    for (int32_t i = 0; i < n; i++)
        out[i] -= m->work_energy[i];
    leave(m);
}

void twin_model_progress(twin_model_t *m, int32_t group, twin_progress_t *out)
{
    enter(m);
    work_progress(m, group, out);
    leave(m);
}

void twin_model_phases(twin_model_t *m, int32_t group, double *out)
{
    enter(m);
    work_phases(m, group, out);
    leave(m);
}
