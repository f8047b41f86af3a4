/*
 * Work: groups of CPUs or GPUs that execute phases with a barrier.
 *
 * Work is counted in wall seconds at the highest clock. CPUs of a group meet at a barrier after each iteration, so the
 * slowest frequency domain delays all. The time from the true end of an iteration to the grid step that notices it is
 * credited to the next iteration. Each GPU alternates kernel and gap (host or transfer time, which no GPU clock scales)
 * by itself, and all meet at the end of a part.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model_internal.h"

/* --- lookups --- */

static int32_t cpu_count(const twin_model_t *m)
{
    return m->node.n_cpus;
}

static int32_t unit_of(const twin_model_t *m, const group_t *group, int32_t i)
{
    return group->shape.on_gpu ? gpu_unit_of(m, group->shape.units[i], group->tenant) : group->shape.units[i];
}

static const twin_part_t *part_of(const group_t *group)
{
    return &group->shape.parts[group->part];
}

static double gap_share(const group_t *group)
{
    return group->shape.on_gpu ? group->shape.phases[part_of(group)->phase].gap_share : 0.0;
}

static double iteration_s(const group_t *group)
{
    return part_of(group)->work_s / part_of(group)->iterations;
}

static double unit_work_s(const group_t *group, int32_t i)
{
    return iteration_s(group) * (1.0 - gap_share(group)) * group->shape.weight[i];
}

/* Whether a unit has something before it that takes time. */
static int is_timed(const twin_model_t *m, int32_t unit)
{
    int32_t state = m->unit_state[unit];

    return state == UNIT_RUN || state == UNIT_GAP || state == UNIT_WAKE;
}

/* --- changes of state --- */

void work_next_step(twin_model_t *m, group_t *group)
{
    int64_t next = NEVER;

    for (int32_t i = 0; i < group->shape.n_units && !group->finished; i++) {
        int32_t unit = unit_of(m, group, i);
        if (!is_timed(m, unit))
            continue;
        double steps = ceil(m->unit_remaining[unit] / (m->unit_rate[unit] * STEP_S) - 1e-9);
        int64_t due = m->unit_since[unit] + (steps < 1.0 ? 1 : (int64_t)steps);
        if (due <= m->step)
            due = m->step + 1;
        if (due < next)
            next = due;
    }
    group->next_step = next;
}

static int is_first_of_core(const twin_model_t *m, int32_t cpu)
{
    int32_t core = m->node.core_of[cpu];

    for (int32_t t = m->first_thread[core]; m->threads[t] != cpu; t++)
        if (m->unit_group[m->threads[t]] == m->unit_group[cpu])
            return 0;
    return 1;
}

/* Call after all states are set. Refreshes each core once, however many of its threads are in the group. */
static void refresh_units(twin_model_t *m, const group_t *group)
{
    for (int32_t i = 0; i < group->shape.n_units; i++) {
        int32_t unit = group->shape.units[i];
        if (group->shape.on_gpu)
            gpu_refresh(m, unit);
        else if (is_first_of_core(m, unit))
            cpu_refresh_core(m, m->node.core_of[unit]);
    }
}

/* Work of one iteration over the mean. All CPUs of a group share it, since they compute one problem; each GPU has its
 * own. */
static double iteration_scale(twin_model_t *m)
{
    double scale = 1.0;

    if (m->node.iteration_jitter > 0)
        scale += m->node.iteration_jitter * model_normal(m);
    return scale > 0.1 ? scale : 0.1;
}

static void enter_kernel(twin_model_t *m, const group_t *group, int32_t i, double scale, double carry_s)
{
    int32_t unit = unit_of(m, group, i);

    m->unit_state[unit] = UNIT_RUN;
    m->unit_phase[unit] = part_of(group)->phase;
    m->unit_since[unit] = m->step;
    m->unit_remaining[unit] = unit_work_s(group, i) * scale;
    if (group->shape.on_gpu) {
        gpu_refresh(m, group->shape.units[i]);
        m->unit_remaining[unit] -= carry_s * m->unit_rate[unit];
        return;
    }
    double wake_s = idle_wake_s(m, m->node.core_of[unit]);
    if (wake_s > 0) {
        m->unit_state[unit] = UNIT_WAKE;
        m->unit_work[unit] = m->unit_remaining[unit];
        m->unit_remaining[unit] = wake_s;
        m->unit_rate[unit] = 1.0;
    }
}

/* The core is awake: the unit begins its work, of which the part of the step since then is done. */
static void wake(twin_model_t *m, int32_t unit, double over_s)
{
    m->unit_state[unit] = UNIT_RUN;
    m->unit_remaining[unit] = m->unit_work[unit];
    m->unit_since[unit] = m->step;
    cpu_refresh_core(m, m->node.core_of[unit]);
    m->unit_remaining[unit] -= over_s * m->unit_rate[unit];
}

static void start_iteration(twin_model_t *m, group_t *group, double carry_s)
{
    double scale = iteration_scale(m);

    group->n_waiting = 0;
    for (int32_t i = 0; i < group->shape.n_units; i++) {
        enter_kernel(m, group, i, scale, carry_s);
        m->unit_left[unit_of(m, group, i)] = part_of(group)->iterations;
    }
    if (group->shape.on_gpu)
        return;
    refresh_units(m, group);
    turbo_share(m);
    bandwidth_share(m);
    for (int32_t i = 0; i < group->shape.n_units; i++) {
        int32_t unit = unit_of(m, group, i);
        m->unit_remaining[unit] -= carry_s * m->unit_rate[unit];
    }
}

static void mark_energy(const twin_model_t *m, double out[3])
{
    double cpu = 0, gpu = 0, elapsed = model_elapsed_s(m);

    for (int32_t i = 0; i < METERS * m->node.n_packages; i++)
        cpu += m->meter_j[i] + m->meter_w[i] * elapsed;
    for (int32_t g = 0; g < m->node.n_gpus; g++)
        gpu += m->gpus[g].energy_j + m->gpus[g].power_w * elapsed;
    out[0] = cpu;
    out[1] = gpu;
    out[2] = cpu + gpu + m->rest_j + m->node.rest_w * elapsed;
}

static void account(const twin_model_t *m, const group_t *group, double row[4])
{
    double now[3];

    mark_energy(m, now);
    row[0] += (double)(m->step - group->mark_step) * STEP_S;
    for (int k = 0; k < 3; k++)
        row[1 + k] += now[k] - group->mark_j[k];
}

static void close_phase(twin_model_t *m, group_t *group)
{
    account(m, group, group->phase_s + 4 * part_of(group)->phase);
    group->mark_step = m->step;
    mark_energy(m, group->mark_j);
}

static void stop_group(twin_model_t *m, group_t *group)
{
    if (group->finished)
        return;
    close_phase(m, group);
    group->finished = 1;
    group->end_step = m->step;
    group->next_step = NEVER;
    for (int32_t i = 0; i < group->shape.n_units; i++) {
        int32_t unit = unit_of(m, group, i);
        m->unit_state[unit] = UNIT_IDLE;
        m->unit_rate[unit] = 0;
    }
    refresh_units(m, group);
}

static void end_workload_if_done(twin_model_t *m)
{
    int counted = 0;

    for (int32_t g = 0; g < m->n_groups; g++) {
        if (m->groups[g].shape.repeat == 0)
            continue;
        counted++;
        if (!m->groups[g].finished)
            return;
    }
    if (counted == 0 || m->finished)
        return;
    m->finished = 1;
    m->work_end_step = m->step;
    meter_energies(m, m->end_energy);
    for (int32_t g = 0; g < m->n_groups; g++)
        stop_group(m, &m->groups[g]);
}

/* Starts the next iteration, part or round. */
static void pass_barrier(twin_model_t *m, group_t *group, double carry_s)
{
    const twin_part_t *part = part_of(group);
    int32_t iterations = group->shape.on_gpu ? 1 : part->iterations;
    int32_t next = group->part;

    group->base_s += part->work_s / iterations;
    if (++group->iteration >= iterations) {
        group->iteration = 0;
        if (++next >= group->shape.n_parts) {
            next = 0;
            if (++group->rounds >= group->shape.repeat && group->shape.repeat > 0) {
                stop_group(m, group);
                end_workload_if_done(m);
                return;
            }
        }
        if (group->shape.parts[next].phase != part->phase)
            close_phase(m, group);
        group->part = next;
    }
    start_iteration(m, group, carry_s);
}

/* --- events --- */

/* A unit has no work left: returns 1 if it now waits at the barrier. */
static int unit_done(twin_model_t *m, group_t *group, int32_t i, double over_s)
{
    int32_t unit = unit_of(m, group, i);
    double gap = iteration_s(group) * gap_share(group);

    if (m->unit_state[unit] == UNIT_WAKE) {
        wake(m, unit, over_s);
        return 0;
    }
    if (m->unit_state[unit] == UNIT_RUN && gap > 0) {
        m->unit_state[unit] = UNIT_GAP;
        m->unit_remaining[unit] = gap - over_s;
        m->unit_since[unit] = m->step;
        gpu_refresh(m, group->shape.units[i]);
        return 0;
    }
    if (group->shape.on_gpu && --m->unit_left[unit] > 0) {
        enter_kernel(m, group, i, iteration_scale(m), over_s);
        return 0;
    }
    m->unit_state[unit] = UNIT_WAIT;
    if (group->shape.on_gpu)
        gpu_refresh(m, group->shape.units[i]);
    else
        cpu_refresh_core(m, m->node.core_of[unit]);
    return 1;
}

static void group_event(twin_model_t *m, group_t *group)
{
    double carry_s = INFINITY;

    for (int32_t i = 0; i < group->shape.n_units; i++) {
        int32_t unit = unit_of(m, group, i);
        if (!is_timed(m, unit))
            continue;
        double rate = m->unit_rate[unit];
        unit_settle(m, unit);
        if (m->unit_remaining[unit] > rate * STEP_S * 1e-6)
            continue;
        double over_s = -m->unit_remaining[unit] / rate;
        if (unit_done(m, group, i, over_s)) {
            group->n_waiting++;
            if (over_s < carry_s)
                carry_s = over_s;
        }
    }
    if (group->n_waiting == group->shape.n_units)
        pass_barrier(m, group, carry_s > 0 ? carry_s : 0);
    group->is_stale = 1;
}

void work_events(twin_model_t *m)
{
    for (int32_t g = 0; g < m->n_groups; g++)
        if (m->groups[g].next_step <= m->step)
            group_event(m, &m->groups[g]);
}

/* --- start and end --- */

static void *take(char **store, const void *from, size_t size)
{
    void *to = *store;

    memcpy(to, from, size);
    *store += (size + 15) & ~(size_t)15;
    return to;
}

static size_t room(size_t size)
{
    return (size + 15) & ~(size_t)15;
}

static int copy_group(const twin_model_t *m, group_t *group, const twin_group_t *from)
{
    size_t n_levels = (size_t)(from->on_gpu ? m->gpus[0].card.n_levels : m->node.n_levels);
    size_t table = sizeof(double) * TWIN_TABLES * n_levels;
    size_t n_units = (size_t)from->n_units, n_phases = (size_t)from->n_phases, n_parts = (size_t)from->n_parts;
    char *store = calloc(1, room(n_units * sizeof(int32_t)) + room(n_units * sizeof(double))
                                + room(n_phases * sizeof(twin_phase_t)) + room(n_parts * sizeof(twin_part_t))
                                + n_phases * room(table) + room(n_phases * 4 * sizeof(double)));

    memset(group, 0, sizeof *group);
    group->store = store;
    if (store == NULL)
        return -1;
    group->shape = *from;
    group->shape.units = take(&store, from->units, n_units * sizeof(int32_t));
    group->shape.weight = take(&store, from->weight, n_units * sizeof(double));
    group->shape.parts = take(&store, from->parts, n_parts * sizeof(twin_part_t));
    twin_phase_t *phases = take(&store, from->phases, n_phases * sizeof(twin_phase_t));
    for (size_t p = 0; p < n_phases; p++)
        phases[p].tables = take(&store, phases[p].tables, table);
    group->shape.phases = phases;
    group->phase_s = (double *)store;
    for (size_t p = 0; p < n_parts; p++)
        group->total_s += from->parts[p].work_s * from->repeat;
    return 0;
}

void work_free(twin_model_t *m)
{
    for (int32_t g = 0; g < m->n_groups; g++)
        free(m->groups[g].store);
    free(m->groups);
    m->groups = NULL;
    m->n_groups = 0;
}

static void vacate(twin_model_t *m)
{
    for (int32_t g = 0; g < m->n_groups; g++)
        stop_group(m, &m->groups[g]);
    work_free(m);
    for (int32_t u = 0; u < cpu_count(m) + m->node.n_gpus * TWIN_TENANTS; u++)
        m->unit_group[u] = -1;
}

/* The first place that is free on all cards of the group. The caller starts at most TWIN_TENANTS on a card. */
static int32_t free_tenant(const twin_model_t *m, const group_t *group)
{
    int32_t tenant = 0;

    for (int32_t i = 0; i < group->shape.n_units && tenant < TWIN_TENANTS - 1; i++)
        if (m->unit_group[gpu_unit_of(m, group->shape.units[i], tenant)] >= 0) {
            tenant++;
            i = -1;
        }
    return tenant;
}

int work_start(twin_model_t *m, int32_t n_groups, const twin_group_t *groups)
{
    group_t *fresh = calloc((size_t)(n_groups > 0 ? n_groups : 1), sizeof(group_t));

    if (fresh == NULL)
        return -1;
    for (int32_t g = 0; g < n_groups; g++)
        if (copy_group(m, &fresh[g], &groups[g]) != 0) {
            for (int32_t k = 0; k <= g; k++)
                free(fresh[k].store);
            free(fresh);
            return -1;
        }
    vacate(m);
    m->groups = fresh;
    m->n_groups = n_groups;
    m->finished = 0;
    m->work_step = m->step;
    meter_energies(m, m->work_energy);
    for (int32_t g = 0; g < n_groups; g++) {
        group_t *group = &m->groups[g];
        group->start_step = group->mark_step = m->step;
        group->tenant = group->shape.on_gpu ? free_tenant(m, group) : 0;
        mark_energy(m, group->mark_j);
        for (int32_t i = 0; i < group->shape.n_units; i++)
            m->unit_group[unit_of(m, group, i)] = g;
    }
    for (int32_t g = 0; g < n_groups; g++) {
        start_iteration(m, &m->groups[g], 0.0);
        m->groups[g].is_stale = 1;
    }
    return 0;
}

/* --- truth --- */

static double unit_progress(const twin_model_t *m, const group_t *group, int32_t i)
{
    int32_t unit = unit_of(m, group, i);
    double whole = iteration_s(group), gap = whole * gap_share(group), work = unit_work_s(group, i);
    double left = m->unit_remaining[unit] - m->unit_rate[unit] * (double)(m->step - m->unit_since[unit]) * STEP_S;
    double done = group->shape.on_gpu ? (part_of(group)->iterations - m->unit_left[unit]) * whole : 0.0;

    if (m->unit_state[unit] == UNIT_RUN)
        return done + (work - left) / work * (whole - gap);
    if (m->unit_state[unit] == UNIT_GAP)
        return done + whole - left;
    if (m->unit_state[unit] == UNIT_WAKE)
        return 0.0;
    return group->shape.on_gpu ? part_of(group)->work_s : whole;
}

void work_progress(const twin_model_t *m, int32_t g, twin_progress_t *out)
{
    const group_t *group = &m->groups[g];
    double partial = 0;

    for (int32_t i = 0; i < group->shape.n_units && !group->finished; i++)
        partial += unit_progress(m, group, i) / group->shape.n_units;
    out->elapsed_s = (double)((group->finished ? group->end_step : m->step) - group->start_step) * STEP_S;
    out->done_s = group->base_s + partial;
    out->total_s = group->total_s;
    out->finished = group->finished;
}

void work_phases(const twin_model_t *m, int32_t g, double *out)
{
    const group_t *group = &m->groups[g];

    memcpy(out, group->phase_s, (size_t)group->shape.n_phases * 4 * sizeof(double));
    if (!group->finished)
        account(m, group, out + 4 * part_of(group)->phase);
}
