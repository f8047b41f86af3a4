/*
 * Creating and freeing a model: the memory of all its arrays, and its cold state.
 *
 * Problem. A model has more than fifty arrays whose lengths depend on the node (CPUs, cores, clock levels, GPUs). With
 * an allocation for each, every failure path and the destructor would have to know all of them.
 *
 * Idea. All arrays are in one block. The same list of arrays, `lay_out` then `copy_node`, is walked twice: first
 * without a base address, which only measures; then with the block, which assigns each array its address in it.
 *
 *     offset of array k = sum over the arrays before it of (count * size rounded up to 64)     bytes
 *     block             = the same sum over all arrays
 *
 * Invariant. Both walks make the same calls to `slice` in the same order, because counts depend on the caller's node
 * alone. So the block is exactly as long as the second walk needs, and a new array takes one line. The block is zeroed,
 * so everything that `start_cold` does not set begins at 0.
 *
 * Each array begins a multiple of 64 bytes after the start of the block, so it is aligned for every type that the model
 * uses.
 *
 * Cost. Two walks of the list and one allocation; O(bytes) to zero and copy. `link_cpus` is O(cores * CPUs), once.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model_internal.h"

typedef struct {
    char *base;
    size_t used;
} arena_t;

/* The next `count` elements of the block; NULL on the first walk, which only adds up their bytes. */
static void *slice(arena_t *arena, size_t count, size_t size)
{
    void *at = arena->base == NULL ? NULL : arena->base + arena->used;

    arena->used += (count * size + 63) & ~(size_t)63;
    return at;
}

#define ARRAY(field, count) field = slice(arena, (size_t)(count), sizeof *(field))

/* Arrays that the model fills itself. */
static void lay_out(twin_model_t *m, arena_t *arena, const twin_node_t *node)
{
    const int32_t cpus = node->n_cpus, cores = node->n_cores, packages = node->n_packages;
    const int32_t domains = node->n_domains, levels = node->n_levels, zones = node->n_zones, gpus = node->n_gpus;
    const int32_t policies = node->n_policies;
    const int32_t units = cpus + gpus * TWIN_TENANTS, parts = METERS * packages + gpus + 1;

    ARRAY(m->count, (TWIN_EVENTS + 1) * cpus);
    ARRAY(m->rate, (TWIN_EVENTS + 1) * cpus);
    ARRAY(m->load, cpus);
    ARRAY(m->noise, 3 * cpus);
    ARRAY(m->threads, cpus);
    ARRAY(m->first_thread, cores + 1);
    ARRAY(m->core_dynamic_w, cores);
    ARRAY(m->core_leak_w, cores);
    ARRAY(m->core_traffic, cores);
    ARRAY(m->core_c, cores);
    ARRAY(m->core_heat, cores);
    ARRAY(m->memory_c, packages);
    ARRAY(m->core_j, cores);
    ARRAY(m->core_gb, cores);
    ARRAY(m->core_busy, cores);
    ARRAY(m->core_license, cores);
    ARRAY(m->core_hosts, cores);
    ARRAY(m->idle_state, cores);
    ARRAY(m->idle_step, cores);
    ARRAY(m->idle_since, cores);
    ARRAY(m->idle_s, node->n_idle * cores);
    ARRAY(m->idle_enabled, cores);
    ARRAY(m->core_stretch, cores);
    ARRAY(m->host_gbs, cores);
    ARRAY(m->demand_gbs, cpus);
    ARRAY(m->demand_share, cpus);
    ARRAY(m->share_gbs, cpus);
    ARRAY(m->share_memory, cpus);
    ARRAY(m->share_stretch, cpus);
    ARRAY(m->activity_changed, packages);
    ARRAY(m->uncore_min_khz, packages);
    ARRAY(m->uncore_max_khz, packages);
    ARRAY(m->uncore_now_khz, packages);
    ARRAY(m->uncore_more_w, packages);
    ARRAY(m->memory_slower, packages);
    ARRAY(m->demand_changed, packages);
    ARRAY(m->first_core, packages + 1);
    ARRAY(m->first_cpu, domains);
    ARRAY(m->next_cpu, cpus);
    ARRAY(m->level, domains);
    ARRAY(m->wanted_level, domains);
    ARRAY(m->shown_level, domains);
    ARRAY(m->turbo_level, domains);
    ARRAY(m->domain_package, domains);
    ARRAY(m->due_step, domains);
    ARRAY(m->first_policy, domains);
    ARRAY(m->next_policy, policies);
    ARRAY(m->policy_level, policies);
    ARRAY(m->policy_domain, policies);
    ARRAY(m->governor, policies);
    ARRAY(m->min_khz, policies);
    ARRAY(m->max_khz, policies);
    ARRAY(m->set_khz, policies);
    ARRAY(m->preferred_khz, policies);
    ARRAY(m->policy_busy, policies);
    ARRAY(m->governed_busy_s, cpus);
    ARRAY(m->meter_w, METERS * packages);
    ARRAY(m->meter_j, METERS * packages);
    ARRAY(m->tick_j, packages);
    ARRAY(m->tick_w, packages);
    ARRAY(m->cap_hz, packages);
    ARRAY(m->cap_carry, packages);
    ARRAY(m->cap_level, packages);
    ARRAY(m->dirty, packages);
    ARRAY(m->update_s, packages);
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
    ARRAY(m->unit_work, units);
    ARRAY(m->unit_since, units);
    ARRAY(m->work_energy, parts);
    ARRAY(m->end_energy, parts);
    ARRAY(m->level_leak, levels);
}

/* The caller's tables: the model keeps copies, so that the caller may free its own. */
static void copy_node(twin_model_t *m, arena_t *arena, const twin_node_t *node)
{
#define COPY(field, count) \
    do { \
        void *to = slice(arena, (size_t)(count), sizeof *node->field); \
        if (to != NULL && (count) > 0) \
            m->node.field = memcpy(to, node->field, (size_t)(count) * sizeof *node->field); \
    } while (0)
    COPY(core_of, node->n_cpus);
    COPY(domain_of, node->n_cpus);
    COPY(policy_of, node->n_cpus);
    COPY(package_of, node->n_cores);
    COPY(clock_hz, node->n_levels);
    COPY(volt, node->n_levels);
    COPY(label_khz, node->n_levels);
    COPY(package_scale, node->n_packages);
    COPY(idle_latency_s, node->n_idle);
    COPY(idle_residency_s, node->n_idle);
    COPY(idle_core_w, node->n_idle);
    COPY(bin_cores, node->n_bins);
    COPY(bin_level, node->n_bins * TWIN_LICENSES);
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

/* Which CPUs belong to a core (a run of `threads`), and which CPUs and policies to a frequency domain (linked lists). */
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
    m->first_core[m->node.n_packages] = m->node.n_cores;
    for (int32_t core = m->node.n_cores - 1; core >= 0; core--) /* cores of a package have successive numbers */
        m->first_core[m->node.package_of[core]] = core;
    for (int32_t d = 0; d < m->node.n_domains; d++)
        m->first_cpu[d] = m->first_policy[d] = -1;
    for (int32_t cpu = m->node.n_cpus - 1; cpu >= 0; cpu--) {
        int32_t d = m->node.domain_of[cpu];
        m->next_cpu[cpu] = m->first_cpu[d];
        m->first_cpu[d] = cpu;
        m->domain_package[d] = m->node.package_of[m->node.core_of[cpu]];
        m->policy_domain[m->node.policy_of[cpu]] = d;
    }
    for (int32_t p = m->node.n_policies - 1; p >= 0; p--) {
        m->next_policy[p] = m->first_policy[m->policy_domain[p]];
        m->first_policy[m->policy_domain[p]] = p;
    }
}

/*
 * An idle node: CPUs at ambient temperature and at their highest clock, GPUs 5 K above ambient at their idle level, no
 * workload and no change of clock pending.
 */
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
        m->level[d] = m->wanted_level[d] = m->shown_level[d] = m->turbo_level[d] = top;
        m->due_step[d] = NEVER;
    }
    for (int32_t p = 0; p < node->n_policies; p++) {
        m->policy_level[p] = top;
        m->min_khz[p] = node->label_khz[0];
        m->max_khz[p] = m->set_khz[p] = m->preferred_khz[p] = node->label_khz[top];
    }
    for (int32_t p = 0; p < node->n_packages; p++) {
        m->heat[p].die_c = m->heat[p].sink_c = node->thermal.ambient_c;
        m->memory_c[p] = node->thermal.ambient_c;
        m->cap_hz[p] = node->clock_hz[top];
        m->cap_level[p] = top;
        m->memory_slower[p] = 1.0;
        m->uncore_min_khz[p] = node->uncore_min_khz;
        m->uncore_max_khz[p] = m->uncore_now_khz[p] = node->uncore_khz;
        m->activity_changed[p] = 1;
        if (node->update_s > 0)
            m->update_s[p] = node->update_s * model_uniform(m);
    }
    for (int32_t c = 0; c < node->n_cores; c++) {
        m->core_c[c] = node->thermal.ambient_c;
        m->core_heat[c] = exp(node->leak_per_k * m->core_c[c]);
        m->core_stretch[c] = 1.0;
        m->idle_state[c] = -1;
        m->idle_enabled[c] = UINT32_MAX;
    }
    for (int32_t u = 0; u < node->n_cpus + node->n_gpus * TWIN_TENANTS; u++)
        m->unit_group[u] = -1;
    for (int32_t g = 0; g < node->n_gpus; g++) {
        gpu_t *gpu = &m->gpus[g];
        gpu->heat.die_c = gpu->heat.sink_c = gpu->card.thermal.ambient_c + 5.0;
        gpu->level = gpu->card.idle_level;
        gpu->lock_step = gpu->awake_step = NEVER;
        gpu->cap_level = gpu->card.n_levels - 1;
        gpu->noise = gpu->power_noise = 1.0;
        gpu->limit_w = m->shared->gpu[g].power_limit_default_mw * 1e-3;
        gpu->shown_w = gpu->idle_w[gpu->level] * gpu->card.power_scale;
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
    model_settle(m);
    model_events(m); /* step 0: every sensor gets its first reading */
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
