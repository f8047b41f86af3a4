/*
 * The published control law (PID build), rebuilt from its description for comparison on the same plant.
 *
 * Sources: the ControlPULP papers (IJPP 2024, arXiv 2306.09501; Energies 17:5778) and the public description of the
 * control firmware. The fuzzy step and the model identification task are left out.
 */
#include "control.h"

#define MODEL_K0_UW_PER_V 324300 /* P = (k0 + c f V / 0.81) V + 0.528 */
#define MODEL_OFFSET_UW 528000
#define VOTE_PERCENT 80
#define CRITICAL_MK 358150
#define BISECTION_STEPS 16
#define BISECTION_UW 50000
#define OPEN_SLOTS 36            /* after a change of budget the correction follows at 0.8 */

/* ---- its power model ---- */

static int32_t model_at_uw(int32_t capacitance_ff, int32_t freq_khz, int32_t volt_mv)
{
    return chip_dynamic_at_uw(capacitance_ff, freq_khz, volt_mv) + MODEL_K0_UW_PER_V / 1000 * volt_mv + MODEL_OFFSET_UW;
}

static int32_t bounded_uw(const struct control *c, int core, int32_t freq_khz, int32_t level)
{
    int32_t idle = model_at_uw(c->capacitance_ff[core], FREQ_MIN_KHZ, chip_volt_mv[0]);
    return clamp32(model_at_uw(c->capacitance_ff[core], freq_khz, chip_volt_mv[level]), idle, CORE_MAX_UW);
}

static void adapt(struct control *c, const struct sensors *in, int32_t budget_uw)
{
    for (int i = 0; i < CORES; i++)
        c->capacitance_ff[i] = (int32_t)(((int64_t)c->capacitance_ff[i] * 3 + (int64_t)in->capacitance_ff[i] * 2) / 5);
    if (budget_uw != c->budget_uw) {
        c->budget_uw = budget_uw;
        c->budget_slots = OPEN_SLOTS;
    }
    int64_t model = 0;
    for (int i = 0; i < CORES; i++)
        model += bounded_uw(c, i, c->measured.freq_khz[i], c->measured.level[i / DOMAIN_CORES]);
    if (in->power_uw[0] <= 0)
        return;
    int32_t error = (int32_t)(in->power_uw[0] - model) - c->correction_uw;
    int32_t percent = c->budget_slots > 0 ? 80 : error > 0 ? 8 : 4;
    c->correction_uw += (int32_t)((int64_t)error * percent / 100);
    if (c->budget_slots > 0)
        c->budget_slots--;
}

/* ---- voltage by vote ---- */

/* The highest level that 80 % of the cores voted for, or for one above it. A minority of faster cores is slowed down.
 * */
static int32_t vote(const int32_t target_khz[DOMAIN_CORES])
{
    int32_t votes = 0;
    for (int32_t level = LEVELS - 1; level > 0; level--) {
        for (int j = 0; j < DOMAIN_CORES; j++)
            votes += chip_level_for(target_khz[j]) == level;
        if (votes * 100 >= VOTE_PERCENT * DOMAIN_CORES)
            return level;
    }
    return 0;
}

/* ---- power capping ---- */

/* Reduces the cores' power by the excess, weighted by 1 / (Tcrit - T), in at most three passes. A core at idle power
 * drops out. */
static void cap(const struct control *c, int32_t power_uw[CORES], const int32_t idle_uw[CORES], int32_t budget_uw)
{
    for (int pass = 0; pass < 3; pass++) {
        int64_t excess = (int64_t)c->correction_uw - budget_uw, weights = 0;
        int32_t weight[CORES];
        for (int i = 0; i < CORES; i++) {
            int32_t margin_mk = CRITICAL_MK - c->temperature_mk[i];
            excess += power_uw[i];
            weight[i] = power_uw[i] <= idle_uw[i] ? 0 : 1000000000 / (margin_mk < 10000 ? 5000 : margin_mk);
            weights += weight[i];
        }
        if (excess <= 0 || weights == 0)
            return;
        for (int i = 0; i < CORES; i++)
            power_uw[i] = max32(power_uw[i] - (int32_t)(excess * weight[i] / weights), idle_uw[i]);
    }
}

/* One clock for a domain by bisection on the model, with V = 0.3095 f + 0.07. */
static int32_t freq_for(const struct control *c, int domain, int64_t power_uw, int32_t high_khz)
{
    int32_t low = FREQ_MIN_KHZ, high = high_khz, freq = high_khz;
    for (int step = 0; step < BISECTION_STEPS; step++) {
        int32_t volt_mv = 70 + (int32_t)((int64_t)freq * 3095 / 10000000);
        int64_t model = 0;
        for (int i = domain * DOMAIN_CORES; i < (domain + 1) * DOMAIN_CORES; i++)
            model += min32(model_at_uw(c->capacitance_ff[i], freq, volt_mv), CORE_MAX_UW);
        if (model > power_uw)
            high = freq;
        else
            low = freq;
        if (model <= power_uw && (power_uw - model < BISECTION_UW || low == high_khz))
            break;
        freq = low + (high - low) / 2;
    }
    return low;
}

/* ---- one slot ---- */

/* The clocks that the domain's common voltage allows, and the power that they would take; the sum of it. */
static int64_t ask_domain(struct control *c, int d, int32_t target_khz, int32_t freq[CORES], int32_t power[CORES],
                          int32_t idle[CORES])
{
    int first = d * DOMAIN_CORES;
    int64_t wanted = 0;
    for (int i = first; i < first + DOMAIN_CORES; i++)
        freq[i] = target_khz;
    int32_t level = vote(&freq[first]);
    for (int i = first; i < first + DOMAIN_CORES; i++) {
        if (freq[i] > chip_freq_khz[level])
            c->reasons[i] |= REASON_VOLTAGE;
        freq[i] = min32(freq[i], chip_freq_khz[level]);
        idle[i] = bounded_uw(c, i, FREQ_MIN_KHZ, 0);
        power[i] = bounded_uw(c, i, freq[i], level);
        wanted += power[i];
    }
    return wanted;
}

/* The domain's next clocks and voltage: one clock for all of its cores if they got less power than they wanted. */
static void settle_domain(struct control *c, int d, const int32_t freq[CORES], const int32_t power[CORES],
                          int64_t wanted)
{
    int first = d * DOMAIN_CORES;
    int64_t sum = 0;
    int32_t fastest = FREQ_MIN_KHZ;
    for (int i = first; i < first + DOMAIN_CORES; i++) {
        sum += power[i];
        fastest = max32(fastest, freq[i]);
    }
    int32_t common = sum < wanted ? freq_for(c, d, sum, fastest) : fastest;
    fastest = FREQ_MIN_KHZ;
    for (int i = first; i < first + DOMAIN_CORES; i++) {
        if (common < freq[i] && !(c->reasons[i] & REASON_THERMAL))
            c->reasons[i] |= REASON_PACKAGE_CAP;
        c->next.freq_khz[i] = clamp32(min32(freq[i], common), FREQ_MIN_KHZ, FREQ_MAX_KHZ);
        control_emergency(c, i);
        fastest = max32(fastest, c->next.freq_khz[i]);
    }
    c->next.level[d] = chip_level_for(fastest);
    for (int i = first; c->margin_uw != INT32_MAX && i < first + DOMAIN_CORES; i++)
        c->margin_uw -= bounded_uw(c, i, c->next.freq_khz[i], c->next.level[d]);
}

void published_step(struct control *c, const struct sensors *in, const struct demand *want)
{
    int32_t freq[CORES], power[CORES], idle[CORES];
    int64_t wanted[DOMAINS];
    adapt(c, in, want->cap_uw[0] ? want->cap_uw[0] : INT32_MAX);
    for (int d = 0; d < DOMAINS; d++)
        wanted[d] = ask_domain(c, d, want->target_khz[d], freq, power, idle);
    cap(c, power, idle, c->budget_uw);
    for (int i = 0; i < CORES; i++) {
        int32_t out = control_thermal_uw(c, i, power[i], idle[i]);
        if (out < 0)
            c->reasons[i] |= REASON_THERMAL;
        power[i] += out;
    }
    c->margin_uw = want->cap_uw[0] ? want->cap_uw[0] - c->correction_uw : INT32_MAX;
    for (int d = 0; d < DOMAINS; d++)
        settle_domain(c, d, freq, power, wanted[d]);
}
