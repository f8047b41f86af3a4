/*
 * Life of a model: memory, the event loop, locking, reads and actuations.
 *
 * A run holds the mutex for at most 1 ms of model time and then lets waiting callers through.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model_internal.h"

#define NOISE_TICKS 50 /* ours: counter noise is drawn anew each 50 ms */

/* --- random numbers: splitmix64 --- */

double model_uniform(twin_model_t *m)
{
    uint64_t z = (m->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double model_normal(twin_model_t *m)
{
    double sum = -2.0;

    for (int i = 0; i < 4; i++)
        sum += model_uniform(m);
    return sum * 1.7320508075688772; /* variance of four uniforms is 1/3 */
}

/* --- time --- */

double model_elapsed_s(const twin_model_t *m)
{
    return (double)(m->step - m->flushed_step) * STEP_S;
}

void model_flush(twin_model_t *m)
{
    double dt = model_elapsed_s(m);

    m->flushed_step = m->step;
    for (int32_t i = 0; i < (TWIN_EVENTS + 1) * m->node.n_cpus; i++)
        m->count[i] += m->rate[i] * dt;
    for (int32_t i = 0; i < METERS * m->node.n_packages; i++)
        m->meter_j[i] += m->meter_w[i] * dt;
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
static void settle(twin_model_t *m)
{
    int64_t next = (m->step / TICK_STEPS + 1) * TICK_STEPS;

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

static void events(twin_model_t *m)
{
    model_flush(m);
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
    settle(m);
}

static void run_to(twin_model_t *m, int64_t target)
{
    while (m->step < target) {
        m->step = m->next_step < target ? m->next_step : target;
        if (m->step == m->next_step)
            events(m);
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

/* A caller that follows real time finds the model at the present step. */
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

void twin_model_set_domain(twin_model_t *m, int32_t d, double min_khz, double max_khz, double set_khz, int32_t governor)
{
    enter(m);
    m->min_khz[d] = min_khz;
    m->max_khz[d] = max_khz;
    m->set_khz[d] = set_khz;
    m->governor[d] = governor;
    cpu_request(m, d);
    settle(m);
    leave(m);
}

void twin_model_set_limit(twin_model_t *m, int32_t zone, int32_t constraint, double limit_w, double window_s)
{
    enter(m);
    m->zones[zone].limit_w[constraint] = limit_w;
    m->zones[zone].window_s[constraint] = window_s;
    leave(m);
}

void twin_model_enable_zone(twin_model_t *m, int32_t zone, int32_t enabled)
{
    enter(m);
    m->zones[zone].enabled = enabled;
    leave(m);
}

int twin_model_start(twin_model_t *m, int32_t n_groups, const twin_group_t *groups, double noise)
{
    enter(m);
    m->counter_noise = noise;
    model_flush(m);
    int failed = work_start(m, n_groups, groups);
    settle(m);
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

/* --- memory --- */

/* One block for all arrays: the same list is walked twice, first to measure, then to hand out. */
typedef struct {
    char *base;
    size_t used;
} arena_t;

static void *slice(arena_t *arena, size_t count, size_t size)
{
    void *at = arena->base == NULL ? NULL : arena->base + arena->used;

    arena->used += (count * size + 63) & ~(size_t)63;
    return at;
}

#define ARRAY(field, count) field = slice(arena, (size_t)(count), sizeof *(field))

static void lay_out(twin_model_t *m, arena_t *arena, const twin_node_t *node)
{
    const int32_t cpus = node->n_cpus, cores = node->n_cores, packages = node->n_packages;
    const int32_t domains = node->n_domains, levels = node->n_levels, zones = node->n_zones, gpus = node->n_gpus;
    const int32_t units = cpus + gpus, parts = METERS * packages + gpus + 1;

    ARRAY(m->count, (TWIN_EVENTS + 1) * cpus);
    ARRAY(m->rate, (TWIN_EVENTS + 1) * cpus);
    ARRAY(m->noise, 3 * cpus);
    ARRAY(m->threads, cpus);
    ARRAY(m->first_thread, cores + 1);
    ARRAY(m->core_dynamic_w, cores);
    ARRAY(m->core_leak_w, cores);
    ARRAY(m->core_traffic, cores);
    ARRAY(m->core_c, cores);
    ARRAY(m->core_heat, cores);
    ARRAY(m->core_busy, cores);
    ARRAY(m->first_cpu, domains);
    ARRAY(m->next_cpu, cpus);
    ARRAY(m->level, domains);
    ARRAY(m->wanted_level, domains);
    ARRAY(m->shown_level, domains);
    ARRAY(m->governor, domains);
    ARRAY(m->domain_package, domains);
    ARRAY(m->due_step, domains);
    ARRAY(m->min_khz, domains);
    ARRAY(m->max_khz, domains);
    ARRAY(m->set_khz, domains);
    ARRAY(m->domain_busy_s, cpus);
    ARRAY(m->meter_w, METERS * packages);
    ARRAY(m->meter_j, METERS * packages);
    ARRAY(m->tick_j, packages);
    ARRAY(m->tick_w, packages);
    ARRAY(m->cap_hz, packages);
    ARRAY(m->cap_carry, packages);
    ARRAY(m->cap_level, packages);
    ARRAY(m->dirty, packages);
    ARRAY(m->heat, packages);
    ARRAY(m->zones, zones);
    ARRAY(m->average_w, zones * TWIN_CONSTRAINTS);
    ARRAY(m->shown_uj, zones);
    ARRAY(m->zone_offset_uj, zones);
    ARRAY(m->zone_tick_j, zones);
    ARRAY(m->zone_w, zones);
    ARRAY(m->gpus, gpus);
    ARRAY(m->unit_group, units);
    ARRAY(m->unit_state, units);
    ARRAY(m->unit_phase, units);
    ARRAY(m->unit_left, units);
    ARRAY(m->unit_remaining, units);
    ARRAY(m->unit_rate, units);
    ARRAY(m->unit_since, units);
    ARRAY(m->work_energy, parts);
    ARRAY(m->end_energy, parts);
    ARRAY(m->level_leak, levels);
}

static void copy_node(twin_model_t *m, arena_t *arena, const twin_node_t *node)
{
#define COPY(field, count) \
    do { \
        void *to = slice(arena, (size_t)(count), sizeof *node->field); \
        if (to != NULL) \
            m->node.field = memcpy(to, node->field, (size_t)(count) * sizeof *node->field); \
    } while (0)
    COPY(core_of, node->n_cpus);
    COPY(domain_of, node->n_cpus);
    COPY(package_of, node->n_cores);
    COPY(clock_hz, node->n_levels);
    COPY(volt, node->n_levels);
    COPY(label_khz, node->n_levels);
    for (int32_t g = 0; g < node->n_gpus; g++) {
        const twin_gpu_card_t *card = &node->cards[g];
        size_t size = (size_t)card->n_levels * sizeof(double);
        void *khz = slice(arena, size, 1), *idle = slice(arena, size, 1);
        if (khz == NULL)
            continue;
        m->gpus[g].card = *card;
        m->gpus[g].clock_khz = memcpy(khz, card->clock_khz, size);
        m->gpus[g].idle_w = memcpy(idle, card->idle_w, size);
    }
}

static void link_cpus(twin_model_t *m)
{
    int32_t at = 0;

    for (int32_t core = 0; core < m->node.n_cores; core++) {
        m->first_thread[core] = at;
        for (int32_t cpu = 0; cpu < m->node.n_cpus; cpu++)
            if (m->node.core_of[cpu] == core)
                m->threads[at++] = cpu;
    }
    m->first_thread[m->node.n_cores] = at;
    for (int32_t d = 0; d < m->node.n_domains; d++)
        m->first_cpu[d] = -1;
    for (int32_t cpu = m->node.n_cpus - 1; cpu >= 0; cpu--) {
        int32_t d = m->node.domain_of[cpu];
        m->next_cpu[cpu] = m->first_cpu[d];
        m->first_cpu[d] = cpu;
        m->domain_package[d] = m->node.package_of[m->node.core_of[cpu]];
    }
}

static void start_cold(twin_model_t *m)
{
    const twin_node_t *node = &m->node;
    int32_t top = node->n_levels - 1;

    for (int32_t l = 0; l <= top; l++)
        m->level_leak[l] = (node->leak_k0_w + node->leak_k1_w_per_v * node->volt[l])
                           * exp(node->leak_per_v * node->volt[l] + node->leak_offset);
    for (int32_t i = 0; i < 3 * node->n_cpus; i++)
        m->noise[i] = 1.0;
    for (int32_t d = 0; d < node->n_domains; d++) {
        m->level[d] = m->wanted_level[d] = m->shown_level[d] = top;
        m->min_khz[d] = node->label_khz[0];
        m->max_khz[d] = m->set_khz[d] = node->label_khz[top];
        m->due_step[d] = NEVER;
    }
    for (int32_t p = 0; p < node->n_packages; p++) {
        m->heat[p].die_c = m->heat[p].sink_c = node->thermal.ambient_c;
        m->cap_hz[p] = node->clock_hz[top];
        m->cap_level[p] = top;
    }
    for (int32_t c = 0; c < node->n_cores; c++) {
        m->core_c[c] = node->thermal.ambient_c;
        m->core_heat[c] = exp(node->leak_per_k * m->core_c[c]);
    }
    for (int32_t u = 0; u < node->n_cpus + node->n_gpus; u++)
        m->unit_group[u] = -1;
    for (int32_t g = 0; g < node->n_gpus; g++) {
        gpu_t *gpu = &m->gpus[g];
        gpu->heat.die_c = gpu->heat.sink_c = gpu->card.thermal.ambient_c + 5.0;
        gpu->level = gpu->card.idle_level;
        gpu->lock_step = NEVER;
        gpu->noise = 1.0;
        gpu->limit_w = m->shared->gpu[g].power_limit_default_mw * 1e-3;
        gpu->shown_w = gpu->idle_w[gpu->level];
        gpu->kernel_step = -(int64_t)(10.0 / STEP_S);
        gpu->lock_seq = m->shared->gpu[g].lock_seq;
        gpu->limit_seq = m->shared->gpu[g].limit_seq;
    }
    m->next_domain_step = NEVER;
    m->next_step = TICK_STEPS;
}

twin_model_t *twin_model_new(const twin_node_t *node, twin_gpus_t *gpus)
{
    twin_model_t *m = calloc(1, sizeof *m);
    arena_t arena = {NULL, 0};

    if (m == NULL)
        return NULL;
    m->node = *node;
    lay_out(m, &arena, node);
    copy_node(m, &arena, node);
    m->store = arena.base = calloc(1, arena.used);
    if (m->store == NULL || pthread_mutex_init(&m->mutex, NULL) != 0) {
        free(m->store);
        free(m);
        return NULL;
    }
    arena.used = 0;
    lay_out(m, &arena, node);
    copy_node(m, &arena, node);
    m->shared = gpus;
    m->random = node->seed;
    m->origin_ns = node->origin_ns;
    memcpy(m->zones, node->zones, (size_t)node->n_zones * sizeof(twin_zone_t));
    link_cpus(m);
    start_cold(m);
    for (int32_t z = 0; z < node->n_zones; z++)
        m->zone_offset_uj[z] = m->zones[z].start_uj;
    for (int32_t core = 0; core < node->n_cores; core++)
        cpu_refresh_core(m, core);
    settle(m);
    events(m); /* step 0: every sensor shows something */
    return m;
}

void twin_model_free(twin_model_t *m)
{
    if (m == NULL)
        return;
    work_free(m);
    pthread_mutex_destroy(&m->mutex);
    free(m->store);
    free(m);
}
