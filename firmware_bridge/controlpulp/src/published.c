/*
 * The published control law (PID build), rebuilt from its description for comparison on the same plant.
 *
 * Sources: the ControlPULP papers (IJPP 2024, arXiv 2306.09501; Energies 17:5778) and the public description of the
 * control firmware. The fuzzy step and the model identification task are left out.
 *
 *     P = (k0 + C f V) V + 0.528        model power of a core, from 0.628 W to 9 W
 *     e = P_measured - P_expected       P_expected: of the decision that was in force meanwhile, taken two slots ago
 *     correction = (1 - a) correction + a e
 *     excess = sum P + correction - cap taken from the cores, by weights 1 / (Tcrit - T)
 *     f of each core by bisection       so that it draws what is left to it at V = 0.3095 max f + 0.07
 *
 * Each core of a domain gets a clock of its own, also without a cap. The voltage that the cores vote for only says how
 * much power they may draw: the one applied is the lowest that carries the fastest core. (80 % of the votes decide, of a
 * domain that is counted as eight cores. A level is requested for a whole domain here, so its nine cores vote alike.)
 */
#include "control.h"

#define MODEL_K0_UW_PER_V 324300
#define MODEL_OFFSET_UW 528040
#define MODEL_IDLE_UW 627807     /* class 0 at 0.4 GHz and 0.5 V, less 0.12 W: what every core keeps */
#define CRITICAL_MK 358000
#define NEAR_CRITICAL_MK 10000   /* closer than this a core has the weight of one that is 5 K below */
#define BISECTION_STEPS 16
#define BISECTION_UW 50000       /* summed over a domain's cores, as is the next */
#define BISECTION_KHZ 50000
#define SLOWEST_FOR_VOLT_KHZ 500000
#define OPEN_SLOTS 36            /* after a change of budget the filter is open: 0.8, falling evenly to 0.08 or 0.04 */

/* ---- its power model ---- */

static int32_t model_at_uw(int32_t capacitance_ff, int32_t freq_khz, int32_t volt_mv)
{
    return chip_dynamic_at_uw(capacitance_ff, freq_khz, volt_mv) + MODEL_K0_UW_PER_V * volt_mv / 1000 + MODEL_OFFSET_UW;
}

static int32_t bounded_uw(const struct control *c, int core, int32_t freq_khz, int32_t level)
{
    return clamp32(model_at_uw(c->capacitance_ff[core], freq_khz, chip_volt_mv[level]), MODEL_IDLE_UW, CORE_MAX_UW);
}

static void adapt(struct control *c, const struct sensors *in, int32_t budget_uw)
{
    for (int i = 0; i < CORES; i++)
        c->capacitance_ff[i] = (int32_t)(((int64_t)c->capacitance_ff[i] * 3 + (int64_t)in->capacitance_ff[i] * 2) / 5);
    if (budget_uw != c->budget_uw) {
        c->budget_uw = budget_uw;
        c->budget_slots = OPEN_SLOTS;
    }
    int32_t expected = c->expected_uw[0];
    c->expected_uw[0] = c->expected_uw[1];
    if (in->power_uw[0] > 0) {
        int32_t error = in->power_uw[0] - expected;
        int32_t at_rest = error > 0 ? 80 : 40; /* thousandths */
        int32_t weight = at_rest + (800 - at_rest) * c->budget_slots / OPEN_SLOTS;
        c->correction_uw += (int32_t)(((int64_t)error - c->correction_uw) * weight / 1000);
    }
    if (c->budget_slots > 0)
        c->budget_slots--;
}

/* ---- power capping ---- */

/* Takes the excess from the cores in at most three passes. A core at its least power drops out. */
static void cap(const struct control *c, int32_t power_uw[CORES], int64_t allowed_uw)
{
    bool is_least[CORES] = {false};
    for (int pass = 0; pass < 3; pass++) {
        int64_t excess = -allowed_uw, weights = 0;
        int32_t weight[CORES];
        for (int i = 0; i < CORES; i++) {
            int32_t margin_mk = CRITICAL_MK - c->temperature_mk[i];
            excess += power_uw[i];
            weight[i] = is_least[i] ? 0 : 1000000000 / (margin_mk < NEAR_CRITICAL_MK ? 5000 : margin_mk);
            weights += weight[i];
        }
        if (excess <= 1000 || weights == 0)
            return;
        for (int i = 0; i < CORES; i++) {
            int64_t left = power_uw[i] - excess * weight[i] / weights;
            is_least[i] = is_least[i] || left <= MODEL_IDLE_UW;
            power_uw[i] = is_least[i] ? MODEL_IDLE_UW : (int32_t)left;
        }
    }
}

/* How much more than its power each core of a domain would draw at these clocks; returns the sum without signs. */
static int64_t excess_at(const struct control *c, int first, const int32_t freq[], const int32_t power[], int32_t over[])
{
    int32_t fastest = SLOWEST_FOR_VOLT_KHZ;
    int64_t sum = 0;
    for (int j = 0; j < DOMAIN_CORES; j++)
        fastest = max32(fastest, freq[j]);
    int32_t volt_mv = 70 + (int32_t)((int64_t)fastest * 3095 / 10000000);
    for (int j = 0; j < DOMAIN_CORES; j++) {
        over[j] = model_at_uw(c->capacitance_ff[first + j], freq[j], volt_mv) - power[first + j];
        sum += over[j] > 0 ? over[j] : -over[j];
    }
    return sum;
}

/* Where each core's clock lies. One that is above its power at the lowest clock, or below it at its target, stays there. */
static void bracket(const struct control *c, int first, int32_t target_khz, const int32_t power[], int32_t low[],
                    int32_t high[])
{
    int32_t at_low[DOMAIN_CORES], at_high[DOMAIN_CORES];
    for (int j = 0; j < DOMAIN_CORES; j++) {
        low[j] = FREQ_MIN_KHZ;
        high[j] = target_khz;
    }
    excess_at(c, first, high, power, at_high);
    excess_at(c, first, low, power, at_low);
    for (int j = 0; j < DOMAIN_CORES; j++) {
        if (at_low[j] > 0 && at_high[j] > 0)
            high[j] = low[j];
        else if (at_low[j] <= 0 && at_high[j] <= 0)
            low[j] = high[j];
    }
}

/* The clocks of a domain by bisection of all at once: the voltage follows the fastest of the present guesses. */
static void bisect(const struct control *c, int first, int32_t target_khz, const int32_t power[], int32_t freq[])
{
    int32_t low[DOMAIN_CORES], high[DOMAIN_CORES], over[DOMAIN_CORES];
    bracket(c, first, target_khz, power, low, high);
    for (int step = 0; step < BISECTION_STEPS; step++) {
        int64_t width = 0;
        for (int j = 0; j < DOMAIN_CORES; j++) {
            freq[j] = low[j] + (high[j] - low[j]) / 2;
            width += high[j] - freq[j];
        }
        if (excess_at(c, first, freq, power, over) <= BISECTION_UW || width <= BISECTION_KHZ)
            return;
        for (int j = 0; j < DOMAIN_CORES; j++) {
            if (low[j] == high[j])
                continue;
            *(over[j] > 0 ? &high[j] : &low[j]) = freq[j];
        }
    }
}

/* ---- one slot ---- */

/* What the cores of a domain would draw at their target and the voltage for it; the sum of it. */
static int64_t ask_domain(struct control *c, int d, int32_t target_khz, int32_t power[CORES])
{
    int64_t wanted = 0;
    for (int i = d * DOMAIN_CORES; i < (d + 1) * DOMAIN_CORES; i++) {
        power[i] = bounded_uw(c, i, target_khz, chip_level_for(target_khz));
        if (power[i] == CORE_MAX_UW)
            c->reasons[i] |= REASON_CORE_POWER;
        wanted += power[i];
    }
    return wanted;
}

/* The domain's next clocks and voltage, and what its cores are expected to draw. */
static int64_t settle_domain(struct control *c, int d, int32_t target_khz, const int32_t power[CORES])
{
    int first = d * DOMAIN_CORES;
    int32_t freq[DOMAIN_CORES], fastest = FREQ_MIN_KHZ;
    int64_t expected = 0;
    bisect(c, first, target_khz, power, freq);
    for (int j = 0; j < DOMAIN_CORES; j++) {
        c->next.freq_khz[first + j] = clamp32(freq[j], FREQ_MIN_KHZ, FREQ_MAX_KHZ);
        control_emergency(c, first + j);
        fastest = max32(fastest, c->next.freq_khz[first + j]);
    }
    c->next.level[d] = chip_level_for(fastest);
    for (int i = first; i < first + DOMAIN_CORES; i++)
        expected += bounded_uw(c, i, c->next.freq_khz[i], c->next.level[d]);
    return expected;
}

void published_step(struct control *c, const struct sensors *in, const struct demand *want)
{
    int32_t power[CORES];
    int64_t wanted = 0, expected = 0;
    adapt(c, in, want->cap_uw[0] ? want->cap_uw[0] : INT32_MAX);
    int64_t allowed = (int64_t)c->budget_uw - c->correction_uw;
    for (int d = 0; d < DOMAINS; d++)
        wanted += ask_domain(c, d, want->target_khz[d], power);
    cap(c, power, allowed);
    for (int i = 0; i < CORES; i++) {
        int32_t out = control_thermal_uw(c, i, power[i], MODEL_IDLE_UW);
        if (out < 0)
            c->reasons[i] |= REASON_THERMAL;
        if (wanted > allowed)
            c->reasons[i] |= REASON_PACKAGE_CAP;
        power[i] += out;
    }
    for (int d = 0; d < DOMAINS; d++)
        expected += settle_domain(c, d, want->target_khz[d], power);
    c->expected_uw[1] = (int32_t)expected;
    c->margin_uw = want->cap_uw[0] ? (int32_t)(allowed - expected) : INT32_MAX;
}
