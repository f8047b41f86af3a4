/* The managed processor: see plant.h. */
#include "plant.h"

#include <math.h>
#include <stddef.h>

#define DOMAIN_CORES (PULP_CORES / PULP_DOMAINS)
#define FREQ_MAX_GHZ 3.66
#define TRACE_STEPS 10

static const double level_volt[] = {0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 1.00, 1.05, 1.10, 1.15, 1.20};
static const double level_ghz[] = {1.35, 1.60, 1.80, 2.00, 2.20, 2.40, 2.60, 2.75, 2.90, 3.05, 3.20, 3.35, 3.45, 3.55, 3.66};

/* ---- power, as published ---- */

double pulp_core_power_w(double capacitance, double freq_ghz, double volt, double temperature_c)
{
    if (capacitance == 0)
        return 0.3; /* a core that has finished */
    double growth = (4507.748 * volt + 29.903 * fmin(temperature_c, 125.0) - 6033.035) / 1000.0;
    return (0.32429 * volt + 0.52804) * exp(growth) + capacitance * freq_ghz * volt * volt / 0.81;
}

static double core_power_w(const pulp_plant_t *p, int core)
{
    double volt = p->volt_mv[core / DOMAIN_CORES] / 1000.0, ghz = p->freq_khz[core] / 1e6, c = p->capacitance[core];
    if (c == 0)
        return 0.3;
    double idle = pulp_core_power_w(c, 0.0, volt, p->state_c[core]);
    return idle * p->leak_factor[core] + c * ghz * volt * volt / 0.81 * p->dynamic_factor[core];
}

static int is_unsafe(double volt, double ghz)
{
    for (size_t i = 0; i < sizeof level_volt / sizeof *level_volt; i++)
        if (volt <= level_volt[i] + 1e-9)
            return ghz > level_ghz[i] + 1e-9;
    return 0;
}

/* ---- sensors ---- */

static double uniform(pulp_plant_t *p)
{
    p->noise ^= p->noise << 13; /* xorshift64 (Marsaglia 2003) */
    p->noise ^= p->noise >> 7;
    p->noise ^= p->noise << 17;
    return (double)(p->noise >> 11) / 9007199254740992.0;
}

/* The sum of twelve uniform numbers less six: standard deviation one, without a logarithm. */
double pulp_gauss(pulp_plant_t *p)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++)
        sum += uniform(p);
    return sum;
}

static double noisy(pulp_plant_t *p, double value, double deviation)
{
    return deviation > 0 ? value + deviation * pulp_gauss(p) : value;
}

static void read_temperatures(pulp_plant_t *p)
{
    for (int i = 0; i < PULP_CORES; i++) {
        double kelvin = noisy(p, p->state_c[i] + 273.15, p->temperature_noise_k);
        p->temperature_mk[i] = pulp_shown(p, i, (int32_t)lrint(kelvin * 1e3), p->temperature_mk[i]);
    }
}

static void read_power(pulp_plant_t *p, double steps)
{
    for (int d = 0; d <= PULP_DOMAINS; d++) {
        double watts = noisy(p, p->power_sum_w[d] / steps, p->power_noise * p->power_sum_w[d] / steps);
        p->power_uw[d] = pulp_shown(p, 2 * PULP_CORES + d, (int32_t)lrint(watts * 1e6), p->power_uw[d]);
        p->power_sum_w[d] = 0;
    }
}

static void read_activity(pulp_plant_t *p)
{
    for (int i = 0; i < PULP_CORES; i++) {
        double c = p->capacitance[i] / 0.81 * 1e6;
        int32_t truth = c > 0 ? (int32_t)lrint(fmax(noisy(p, c, p->capacitance_noise * c), 1.0)) : 0;
        p->capacitance_ff[i] = pulp_shown(p, PULP_CORES + i, truth, p->capacitance_ff[i]);
    }
}

/* ---- one step ---- */

static void heat(pulp_plant_t *p, const double watts[PULP_CORES])
{
    double next[PULP_STATES];
    for (int r = 0; r < PULP_STATES; r++) {
        double sum = 0;
        for (int32_t k = p->row_start[r]; k < p->row_start[r + 1]; k++)
            sum += p->entry[k] * p->state_c[p->column[k]];
        next[r] = sum + (r < PULP_CORES ? p->core_k_per_w[r] * watts[r] : 0);
    }
    next[p->air] += p->ambient_gain * p->ambient_c;
    for (int r = 0; r < PULP_STATES; r++)
        p->state_c[r] = next[r];
}

static void account(pulp_plant_t *p, const double watts[PULP_CORES])
{
    const double step_s = PULP_STEP_NS * 1e-9;
    double sums_w[PULP_DOMAINS + 1] = {0}; /* another process may read power_w: it must never see half a sum */
    for (int i = 0; i < PULP_CORES; i++) {
        double ghz = p->freq_khz[i] / 1e6, share = p->memory_share[i];
        sums_w[1 + i / DOMAIN_CORES] += watts[i];
        sums_w[0] += watts[i];
        if (p->capacitance[i] > 0 && ghz > 0)
            p->work_s[i] += step_s / ((1 - share) * FREQ_MAX_GHZ / ghz + share);
        p->unsafe_steps += is_unsafe(p->volt_mv[i / DOMAIN_CORES] / 1000.0, ghz);
    }
    for (int d = 0; d <= PULP_DOMAINS; d++) {
        p->power_w[d] = sums_w[d];
        p->power_sum_w[d] += sums_w[d];
    }
    p->energy_j += sums_w[0] * step_s;
}

static void step(pulp_plant_t *p)
{
    double watts[PULP_CORES];
    for (int i = 0; i < PULP_CORES; i++)
        watts[i] = core_power_w(p, i);
    account(p, watts);
    heat(p, watts);
    p->steps++;
    p->now_ns += PULP_STEP_NS;
    if (p->steps % 2 == 0)
        read_power(p, 2);
    if (p->steps % 5 == 0)
        read_temperatures(p);
    read_activity(p);
    p->trace_sum_w += p->power_w[0];
    if (p->steps % TRACE_STEPS == 0) {
        if (p->trace_w && p->trace_length < p->trace_size)
            p->trace_w[p->trace_length++] = (float)(p->trace_sum_w / TRACE_STEPS);
        p->trace_sum_w = 0;
    }
}

/* Runs the steps that end at or before `ns`; the rest of the time belongs to the next step. */
void pulp_advance(void *plant, int64_t until_ns)
{
    pulp_plant_t *p = plant;
    if (!p->is_started) {
        p->is_started = 1;
        read_temperatures(p);
        read_activity(p);
    }
    if (until_ns - p->now_ns > p->longest_advance_ns)
        p->longest_advance_ns = until_ns - p->now_ns;
    while (p->now_ns + PULP_STEP_NS <= until_ns)
        step(p);
}
