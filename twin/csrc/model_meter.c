/*
 * Meters and limits: heat, RAPL energy counters, and package power limits that throttle.
 *
 * A package limit applies to a running average over its window (Intel SDM vol. 3, 15.10.3: PL1 over about a second, PL2
 * over milliseconds). The package may draw the limit plus the part that the average has left unused. A controller
 * lowers the highest clock until the power fits, alternating between two neighbouring clocks as the hardware does.
 */
#include <math.h>

#include "model_internal.h"

#define CONTROL_TICKS 2 /* ours: the controller runs every 2 ms */

/* --- heat --- */

void heat_step(heat_t *heat, const twin_thermal_t *net, double air_k, double power_w, double dt_s)
{
    double to_sink = (heat->die_c - heat->sink_c) / net->die_k_per_w;
    double to_air = (heat->sink_c - (net->ambient_c + air_k)) / net->sink_k_per_w;

    heat->die_c += dt_s * (power_w - to_sink) / net->die_j_per_k;
    heat->sink_c += dt_s * (to_sink - to_air) / net->sink_j_per_k;
}

static void core_heat_tick(twin_model_t *m)
{
    double follow = TICK_S / m->node.core_tau_s;

    if (follow > 1)
        follow = 1;
    for (int32_t c = 0; c < m->node.n_cores; c++) {
        int32_t busy = m->core_busy[c], level = m->shown_level[m->node.domain_of[m->threads[m->first_thread[c]]]];
        double power = m->core_dynamic_w[c] + m->core_leak_w[c];
        double steady = m->heat[m->node.package_of[c]].die_c + m->node.core_k_per_w * power;
        m->core_c[c] += follow * (steady - m->core_c[c]);
        m->core_heat[c] = exp(m->node.leak_per_k * (m->core_c[c] < 125.0 ? m->core_c[c] : 125.0));
        double leak_w = m->level_leak[level] * m->core_heat[c] * (busy ? 1.0 : m->node.idle_leak_share)
                        * m->node.package_scale[m->node.package_of[c]];
        m->core_leak_w[c] = idle_core_w(m, c, leak_w);
        m->dirty[m->node.package_of[c]] = 1;
    }
}

/* --- energy --- */

static double meter_j(const twin_model_t *m, int meter, int32_t package, double elapsed_s)
{
    int32_t i = meter * m->node.n_packages + package;

    return m->meter_j[i] + m->meter_w[i] * elapsed_s;
}

double meter_node_j(const twin_model_t *m, double elapsed_s)
{
    double sum = m->rest_j + m->node.rest_w * elapsed_s;

    for (int32_t i = 0; i < METERS * m->node.n_packages; i++)
        sum += m->meter_j[i] + m->meter_w[i] * elapsed_s;
    for (int32_t g = 0; g < m->node.n_gpus; g++)
        sum += m->gpus[g].energy_j + m->gpus[g].power_w * elapsed_s;
    return sum;
}

double meter_zone_j(const twin_model_t *m, int32_t z, double elapsed_s)
{
    int32_t p = m->zones[z].package;

    switch (m->zones[z].kind) {
    case TWIN_ZONE_CORE:
        return meter_j(m, METER_CORE, p, elapsed_s);
    case TWIN_ZONE_UNCORE:
        return meter_j(m, METER_UNCORE, p, elapsed_s);
    case TWIN_ZONE_DRAM:
        return meter_j(m, METER_DRAM, p, elapsed_s);
    case TWIN_ZONE_PSYS:
        return meter_node_j(m, elapsed_s);
    default:
        return meter_j(m, METER_CORE, p, elapsed_s) + meter_j(m, METER_UNCORE, p, elapsed_s);
    }
}

void meter_energies(const twin_model_t *m, double *out)
{
    double elapsed_s = model_elapsed_s(m);

    for (int32_t p = 0; p < m->node.n_packages; p++)
        for (int meter = 0; meter < METERS; meter++)
            *out++ = meter_j(m, meter, p, elapsed_s);
    for (int32_t g = 0; g < m->node.n_gpus; g++)
        *out++ = m->gpus[g].energy_j + m->gpus[g].power_w * elapsed_s;
    *out = m->rest_j + m->node.rest_w * elapsed_s;
}

/* Energy counters count whole units and wrap at the zone's range. */
static void publish_zones(twin_model_t *m)
{
    for (int32_t z = 0; z < m->node.n_zones; z++) {
        double uj = meter_zone_j(m, z, 0.0) * 1e6 + m->zone_offset_uj[z];
        double whole = floor(uj / m->zones[z].unit_uj) * m->zones[z].unit_uj;
        m->shown_uj[z] = (uint64_t)fmod(whole, m->zones[z].range_uj);
    }
}

/* --- limits --- */

/* Watts that the limits of a package, its firmware's own among them, allow it now; INFINITY without a limit. */
static double allowance(const twin_model_t *m, int32_t package)
{
    double allowed = m->node.package_limit_w > 0 ? m->node.package_limit_w : INFINITY;

    for (int32_t z = 0; z < m->node.n_zones; z++) {
        const twin_zone_t *zone = &m->zones[z];
        int applies = zone->kind == TWIN_ZONE_PACKAGE ? zone->package == package : zone->kind == TWIN_ZONE_PSYS;
        if (!applies || !zone->enabled)
            continue;
        for (int c = 0; c < TWIN_CONSTRAINTS; c++) {
            if (zone->limit_w[c] <= 0)
                continue;
            double left = 2.0 * zone->limit_w[c] - m->average_w[z * TWIN_CONSTRAINTS + c];
            if (zone->kind == TWIN_ZONE_PSYS) /* packages share the node's surplus or deficit */
                left = m->tick_w[package] + (left - m->zone_w[z]) / m->node.n_packages;
            if (left < allowed)
                allowed = left;
        }
    }
    return allowed;
}

static void average_limits(twin_model_t *m)
{
    for (int32_t z = 0; z < m->node.n_zones; z++)
        for (int c = 0; c < TWIN_CONSTRAINTS; c++) {
            double window = m->zones[z].window_s[c], *average = &m->average_w[z * TWIN_CONSTRAINTS + c];
            *average += (m->zone_w[z] - *average) * (window > TICK_S ? TICK_S / window : 1.0);
        }
}

/* The highest power that the limits allow, less while the package is too hot; what its cores draw by switching. */
static double cooled_w(const twin_model_t *m, int32_t p, double allowed_w, double *dynamic_w)
{
    double hottest = 0, most_w = 0.97 * m->tick_w[p]; /* ours: heat takes 3 % a step until the die is below its limit */

    *dynamic_w = 1e-3;
    for (int32_t c = 0; c < m->node.n_cores; c++)
        if (m->node.package_of[c] == p) {
            *dynamic_w += m->core_dynamic_w[c];
            if (m->core_c[c] > hottest)
                hottest = m->core_c[c];
        }
    return hottest > m->node.throttle_c && allowed_w > most_w ? most_w : allowed_w;
}

/* Moves the package's highest clock towards the one at which it would draw `allowed_w`. */
static void move_cap(twin_model_t *m, int32_t p, double allowed_w, double dynamic_w)
{
    double lowest_hz = m->node.clock_hz[0], highest_hz = m->node.clock_hz[m->node.n_levels - 1];

    if (isinf(allowed_w)) {
        m->cap_hz[p] = highest_hz;
        return;
    }
    double excess = (m->tick_w[p] - allowed_w) / (2.0 * dynamic_w); /* power falls about with the clock's square */
    excess = excess > 0.2 ? 0.2 : excess < -0.2 ? -0.2 : excess;
    m->cap_hz[p] *= 1.0 - 0.3 * excess;
    if (m->cap_hz[p] > highest_hz)
        m->cap_hz[p] = highest_hz;
    if (m->cap_hz[p] < lowest_hz)
        m->cap_hz[p] = lowest_hz;
}

static void cap_package(twin_model_t *m, int32_t p, double allowed_w)
{
    const double *hz = m->node.clock_hz;
    int32_t top = m->node.n_levels - 1, level;
    double dynamic_w, cooler_w = cooled_w(m, p, allowed_w, &dynamic_w);

    move_cap(m, p, cooler_w, dynamic_w);
    for (level = 0; level < top && hz[level + 1] <= m->cap_hz[p];)
        level++;
    if (level < top) { /* between two levels: the upper one for its share of the ticks */
        m->cap_carry[p] += (m->cap_hz[p] - hz[level]) / (hz[level + 1] - hz[level]);
        if (m->cap_carry[p] >= 1.0) {
            m->cap_carry[p] -= 1.0;
            level++;
        }
    }
    if (level != m->cap_level[p]) {
        m->cap_level[p] = level;
        cpu_show_levels(m, p);
    }
}

void meter_tick(twin_model_t *m)
{
    int64_t tick = m->step / TICK_STEPS;

    for (int32_t p = 0; p < m->node.n_packages; p++) {
        double now = meter_j(m, METER_CORE, p, 0) + meter_j(m, METER_UNCORE, p, 0);
        double power = (now - m->tick_j[p]) / TICK_S;
        m->tick_j[p] = now;
        m->tick_w[p] += (power - m->tick_w[p]) * 0.5;
        heat_step(&m->heat[p], &m->node.thermal, m->air_k, power, TICK_S);
        double steady_c = m->node.thermal.ambient_c + m->air_k +
                          m->node.memory_k_per_w * m->meter_w[METER_DRAM * m->node.n_packages + p];
        m->memory_c[p] += TICK_S / m->node.memory_tau_s * (steady_c - m->memory_c[p]);
    }
    idle_tick(m);
    core_heat_tick(m);
    for (int32_t z = 0; z < m->node.n_zones; z++) {
        double now = meter_zone_j(m, z, 0);
        m->zone_w[z] = (now - m->zone_tick_j[z]) / TICK_S;
        m->zone_tick_j[z] = now;
    }
    average_limits(m);
    publish_zones(m);
    if (tick % CONTROL_TICKS == 0)
        for (int32_t p = 0; p < m->node.n_packages; p++)
            cap_package(m, p, allowance(m, p));
}
