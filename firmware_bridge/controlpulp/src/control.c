/*
 * Our control law: model-based power cap, then thermal PID, then the lowest voltage that carries the clocks.
 *
 * Constants marked "published" are those of the ControlPULP firmware (PID build); the others are ours.
 */
#include "control.h"

#define SET_POINT_MK 353150        /* published: critical 358 K less a margin of 5 K */
#define FALLBACK_MK 353150         /* published: stands in for a failed sensor */
#define PLAUSIBLE_LOW_MK 223150
#define PLAUSIBLE_HIGH_MK 423150   /* published 373 K, which hides the emergency at 390 K from the law; ours is wider */
#define EMERGENCY_IN_MK 368150     /* ours: critical + 10 K (published: 390 K) */
#define EMERGENCY_OUT_MK 352150    /* published */
#define PUBLISHED_EMERGENCY_MK 390150
#define STUCK_SLOTS 4000           /* 2 s without the change of a single millikelvin while the neighbours move */
#define STUCK_MOVE_MK 3000

#define PID_KP_UW_PER_MK 1952      /* published 1.9518 W/K */
#define PID_KI_UW16_PER_MK 591     /* published 73.931 W/(K s) * 500 us, in 1/16 uW */
#define PID_WINDUP_UW16 (50000 * 16) /* published +0.05 W */

#define GUARD_SHIFT 8              /* ours: 1/256 of the cap is left for what the model cannot know */
#define KEEP_SHIFT 7               /* ours: levels are kept while they do at least 127/128 of the best work */
#define IDLE_SHIFT 5               /* ours: and leave at most 1/32 of the budget unspent that others would spend */
#define GAIN_LOW_Q16 (65536 / 2)
#define GAIN_HIGH_Q16 (65536 * 2)

/* ---- start ---- */

void control_init(struct control *c, enum law law)
{
    *c = (struct control){.law = law, .margin_uw = INT32_MAX};
    for (int i = 0; i < CORES; i++)
        c->next.freq_khz[i] = c->in_force.freq_khz[i] = c->measured.freq_khz[i] = FREQ_MIN_KHZ;
    for (int d = 0; d < DOMAINS; d++)
        c->gain_q16[d] = 65536;
    c->budget_uw = 100000000; /* published: 100 W until told */
}

/* ---- temperatures ---- */

/* A failed sensor reads as the hottest sound one of its domain, and never below the published 353 K. */
void control_substitute(struct control *c, const struct sensors *in)
{
    for (int d = 0; d < DOMAINS; d++) {
        int first = d * DOMAIN_CORES, failed = 0;
        int32_t hottest = FALLBACK_MK;
        bool is_failed[DOMAIN_CORES] = {false};
        for (int j = 0; j < DOMAIN_CORES; j++) {
            int32_t reading = in->temperature_mk[first + j];
            if (reading < PLAUSIBLE_LOW_MK || reading > PLAUSIBLE_HIGH_MK) {
                is_failed[j] = true;
            } else if (reading == c->last_reading_mk[first + j]) {
                c->same_reading[first + j] = min32(c->same_reading[first + j] + 1, STUCK_SLOTS);
            } else {
                c->last_reading_mk[first + j] = reading;
                c->same_reading[first + j] = 0;
            }
        }
        int32_t low = INT32_MAX, high = INT32_MIN;
        for (int j = 0; j < DOMAIN_CORES; j++) {
            if (is_failed[j] || c->same_reading[first + j] >= STUCK_SLOTS)
                continue;
            low = min32(low, in->temperature_mk[first + j]);
            high = max32(high, in->temperature_mk[first + j]);
        }
        for (int j = 0; j < DOMAIN_CORES; j++) {
            int32_t reading = in->temperature_mk[first + j];
            bool is_stuck = c->same_reading[first + j] >= STUCK_SLOTS && high > reading + STUCK_MOVE_MK;
            is_failed[j] = is_failed[j] || is_stuck;
            failed += is_failed[j];
        }
        if (failed)
            hottest = max32(hottest, high);
        for (int j = 0; j < DOMAIN_CORES; j++) {
            c->temperature_mk[first + j] = is_failed[j] ? hottest : in->temperature_mk[first + j];
            if (is_failed[j])
                c->reasons[first + j] |= REASON_SENSOR;
            c->leak_factor_q16[first + j] = chip_leak_factor_q16(c->temperature_mk[first + j]);
        }
    }
}

/* What the PID takes from a core's power: zero or negative, never below its idle power. */
int32_t control_thermal_uw(struct control *c, int core, int32_t power_uw, int32_t idle_uw)
{
    int32_t error_mk = clamp32(SET_POINT_MK - c->temperature_mk[core], -200000, 200000);
    if ((error_mk > -1000 && error_mk < 0) || (error_mk > 0 && error_mk < 2500))
        error_mk = error_mk * 7 / 10; /* published: softer near the set-point */
    int32_t integral = c->integral_uw16[core] + PID_KI_UW16_PER_MK * error_mk;
    integral = clamp32(integral, -(power_uw * 12), PID_WINDUP_UW16); /* published: not below 0.75 of the power */
    c->integral_uw16[core] = integral;
    int32_t out = PID_KP_UW_PER_MK * error_mk + integral / 16;
    return clamp32(out, -max32(power_uw - idle_uw, 0), 0);
}

void control_emergency(struct control *c, int core)
{
    int32_t enter = c->law == LAW_PUBLISHED ? PUBLISHED_EMERGENCY_MK : EMERGENCY_IN_MK;
    if (c->temperature_mk[core] >= enter)
        c->emergency[core] = 1;
    else if (c->temperature_mk[core] <= EMERGENCY_OUT_MK)
        c->emergency[core] = 0;
    if (c->emergency[core]) {
        c->next.freq_khz[core] = FREQ_MIN_KHZ;
        c->reasons[core] |= REASON_EMERGENCY;
    }
}

/* ---- adaptation ---- */

/*
 * Published: 0.6 old + 0.4 new. Ours: a rise of more than a sixteenth counts at once, since it costs watts at once; a
 * smaller one is taken for noise, whose peaks would otherwise hold the estimate up.
 */
static void adapt_capacitance(struct control *c, const struct sensors *in)
{
    for (int i = 0; i < CORES; i++) {
        int32_t old = c->capacitance_ff[i], new = in->capacitance_ff[i];
        int32_t filtered = (int32_t)(((int64_t)old * 3 + (int64_t)new * 2) / 5);
        bool is_jump = new > old + old / 16, is_close = new - old < 16 && old - new < 16;
        c->capacitance_ff[i] = is_jump || is_close ? new : filtered; /* the division would stop short of a close value */
    }
}

/*
 * Measured over modelled power of the slot before, per domain, as a gain: an error in capacitance or leakage scales
 * with the operating point, so a gain learnt at one cap holds at the next, where an additive correction would not.
 */
static void adapt_gain(struct control *c, const struct sensors *in)
{
    int64_t model[DOMAINS], all = 0;
    bool has_rails = true;
    for (int d = 0; d < DOMAINS; d++) {
        model[d] = 0;
        for (int i = d * DOMAIN_CORES; i < (d + 1) * DOMAIN_CORES; i++) {
            if (in->capacitance_ff[i] == 0)
                model[d] += CORE_IDLE_UW;
            else
                model[d] += chip_dynamic_uw(in->capacitance_ff[i], c->measured.freq_khz[i], c->measured.level[d]) +
                            chip_leak_uw(c->leak_factor_q16[i], c->measured.level[d]);
        }
        all += model[d];
        has_rails = has_rails && in->power_uw[1 + d] > 0;
    }
    if (c->disturbed || (!has_rails && in->power_uw[0] <= 0))
        return;
    for (int d = 0; d < DOMAINS; d++) {
        int64_t measured = has_rails ? in->power_uw[1 + d] : in->power_uw[0];
        int64_t modelled = has_rails ? model[d] : all;
        if (modelled <= 0)
            continue;
        int64_t ratio = measured * 65536 / modelled;
        int32_t seen = ratio > GAIN_HIGH_Q16 ? GAIN_HIGH_Q16 : clamp32((int32_t)ratio, GAIN_LOW_Q16, GAIN_HIGH_Q16);
        int32_t delta = seen - c->gain_q16[d];
        c->gain_q16[d] += delta > 0 ? delta / 4 : delta / 8; /* ours: an underestimate is corrected faster */
    }
}

/* ---- power cap ---- */

static void cap_power(struct control *c, const struct ladder ladders[DOMAINS], const struct demand *want,
                      struct allocation *chosen)
{
    struct allocation held;
    int32_t cap_uw = want->cap_uw[0];
    int32_t budget_uw = cap_uw ? cap_uw - (cap_uw >> GUARD_SHIFT) : INT32_MAX;
    allocate(ladders, budget_uw, chosen);
    if (c->has_allocation && allocate_held(ladders, budget_uw, c->held_level, &held) &&
        held.work_khz >= chosen->work_khz - (chosen->work_khz >> KEEP_SHIFT) &&
        (held.power_uw >= chosen->power_uw || held.power_uw >= budget_uw - (budget_uw >> IDLE_SHIFT)))
        *chosen = held;
    c->margin_uw = cap_uw ? (int32_t)(cap_uw - chosen->power_uw) : INT32_MAX;
    c->has_allocation = true;
    bool is_same = true;
    for (int d = 0; d < DOMAINS; d++) {
        is_same = is_same && c->held_level[d] == chosen->level[d];
        c->held_level[d] = chosen->level[d];
    }
    c->held_slots = is_same ? min32(c->held_slots + 1, INT32_MAX - 1) : 0;
}

static uint16_t why_capped(const struct ladder *l, const struct demand *want, int domain, int32_t freq_khz)
{
    uint16_t why = 0;
    int32_t top = l->freq_khz[l->rungs - 1];
    if (top < want->target_khz[domain])
        why |= REASON_CORE_POWER;
    if (freq_khz < top) {
        bool own = want->cap_uw[1 + domain] && l->power_uw[l->rungs - 1] > l->limit_uw;
        why |= own ? REASON_DOMAIN_CAP : REASON_PACKAGE_CAP;
    }
    return why;
}

/* ---- heat ---- */

/* A core's clock after the PID: what its reduced power allows at the domain's level. */
static int32_t cool(struct control *c, int core, int32_t freq_khz, int32_t level, int32_t gain_q16)
{
    int32_t leak = chip_leak_uw(c->leak_factor_q16[core], level);
    int32_t model = chip_dynamic_uw(c->capacitance_ff[core], freq_khz, level) + leak;
    int32_t idle = chip_dynamic_uw(c->capacitance_ff[core], FREQ_MIN_KHZ, 0) + chip_leak_uw(c->leak_factor_q16[core], 0);
    int32_t power = mul_q16(model, gain_q16);
    int32_t out = control_thermal_uw(c, core, power, mul_q16(idle, gain_q16));
    if (out == 0)
        return freq_khz;
    int32_t allowed = (int32_t)((int64_t)(power + out) * 65536 / gain_q16) - leak;
    c->reasons[core] |= REASON_THERMAL;
    return clamp32(chip_freq_for(allowed, c->capacitance_ff[core], level), FREQ_MIN_KHZ, freq_khz);
}

/* ---- one slot ---- */

static void our_step(struct control *c, const struct sensors *in, const struct demand *want)
{
    struct ladder ladders[DOMAINS];
    struct allocation chosen;
    adapt_capacitance(c, in);
    adapt_gain(c, in);
    for (int d = 0; d < DOMAINS; d++)
        ladder_build(&ladders[d], c, in, d, want->target_khz[d], want->cap_uw[1 + d]);
    cap_power(c, ladders, want, &chosen);
    for (int d = 0; d < DOMAINS; d++) {
        uint16_t why = why_capped(&ladders[d], want, d, chosen.freq_khz[d]);
        int32_t fastest = FREQ_MIN_KHZ;
        for (int i = d * DOMAIN_CORES; i < (d + 1) * DOMAIN_CORES; i++) {
            c->reasons[i] |= why;
            c->next.freq_khz[i] = cool(c, i, chosen.freq_khz[d], chosen.level[d], ladders[d].gain_q16);
            control_emergency(c, i);
            fastest = max32(fastest, c->next.freq_khz[i]);
        }
        c->next.level[d] = chip_level_for(fastest);
    }
}

void control_step(struct control *c, const struct sensors *in, const struct demand *want)
{
    for (int i = 0; i < CORES; i++)
        c->reasons[i] &= c->disturbed ? REASON_BYPASS : 0;
    control_substitute(c, in);
    if (c->safe) {
        for (int i = 0; i < CORES; i++) {
            c->next.freq_khz[i] = FREQ_MIN_KHZ;
            c->reasons[i] |= REASON_SAFE;
        }
        for (int d = 0; d < DOMAINS; d++)
            c->next.level[d] = 0;
    } else if (c->law == LAW_PUBLISHED) {
        published_step(c, in, want);
    } else {
        our_step(c, in, want);
    }
    c->disturbed = false;
}
