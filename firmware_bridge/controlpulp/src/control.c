/*
 * Our control law: what 36 clocks and 4 voltage levels follow from the sensors, once per control slot (500 us).
 *
 * Problem. The package must stay under its power cap and no core may overheat, while the cores do as much work as that
 * allows. Sensors are noisy and may fail, and the power model is never quite right.
 *
 * Idea. A chain of four stages. The model is corrected first (adapt_capacitance, adapt_gain), and
 * sensors that contradict each other lower the targets to a level that needs no sensor (guard.c). Then
 *     1. power cap:  allocate.c chooses a clock and a level per domain by the model           (cap_power)
 *     2. heat:       a PI law per core takes watts from a core above its set-point            (cool)
 *     3. emergency:  a core above 95 C runs at the lowest clock until it is at 79 C           (control_emergency)
 *     4. voltage:    each domain gets the lowest level that carries its fastest core          (our_step)
 *
 *     P = g (C f V^2 1e-6 + k(T) L(V))         power of a core with work, uW; f in kHz, C in fF, V in volts, L in uW
 *     g = measured / modelled power            per domain; corrects errors of C and L
 *     budget = cap (1 - 1/256)                 uW
 *     e = 353150 mK - T                        below 0: too hot; times 0.7 from -1 K to 2.5 K
 *     I = I + Ki e, in [-0.75 P, +0.05 W]      the lower limit keeps heat from switching a core off, the upper one lets
 *                                              a core that was cold for long be slowed down without delay
 *     core power = P + (Kp e + I), not above P and not below its power at the lowest clock and level
 *
 * Invariant. After stage 1 no stage raises a clock or a voltage. So stages 2 to 4 can only lower the power that stage 1
 * fitted into the budget, and none of them has to know the cap. The decision is applied as a whole in the next slot
 * (control.h).
 *
 * Cost. O(36 cores) for stages 2 to 4 and the model, plus that of allocate.c; the same bound in every slot. docs/firmware.md
 * has the cycles of control and fast job together on two cores.
 *
 * Constants marked "published" are those of the ControlPULP firmware (PID build); the others are ours.
 */
#include "control.h"

#define SET_POINT_MK 353150        /* published: critical 358 K less a margin of 5 K */
#define FALLBACK_MK 353150         /* published: lowest substitute for a failed sensor */
#define PLAUSIBLE_LOW_MK 223150
#define PLAUSIBLE_HIGH_MK 423150   /* ours; the published 373 K would hide its own emergency at 390 K */
#define EMERGENCY_IN_MK 368150     /* ours: critical + 10 K (published: 390 K) */
#define EMERGENCY_OUT_MK 352150    /* published */
#define PUBLISHED_EMERGENCY_MK 390150
#define STUCK_SLOTS 4000           /* ours: 2 s without a change of one millikelvin make a sensor suspect */
#define STUCK_MOVE_MK 3000         /* ours: it is stuck if a core of its domain is hotter by more than this */

#define PID_KP_UW_PER_MK 1952      /* published 1.9518 W/K */
#define PID_KI_UW16_PER_MK 591     /* published 73.931 W/(K s) * 500 us, in 1/16 uW */
#define PID_WINDUP_UW16 (50000 * 16) /* published +0.05 W */

#define GUARD_SHIFT 8              /* ours: 1/256 of the cap stays unspent for errors of the model */
#define KEEP_SHIFT 7               /* ours: the last levels are kept if they do at least 127/128 of the best work */
#define IDLE_SHIFT 5               /* ours: and spend at least what the best would, or 31/32 of the budget */
#define GAIN_LOW_Q16 (65536 / 2)   /* ours: the model is off by no more than a factor of two */
#define GAIN_HIGH_Q16 (65536 * 2)

/* ---- start ---- */

void control_init(struct control *c, enum law law, int32_t step_after)
{
    *c = (struct control){.law = law, .margin_uw = INT32_MAX};
    for (int i = 0; i < CORES; i++)
        c->next.freq_khz[i] = c->in_force.freq_khz[i] = c->measured.freq_khz[i] = FREQ_MIN_KHZ;
    for (int d = 0; d < DOMAINS; d++)
        c->gain_q16[d] = 65536;
    guard_init(&c->guard, step_after);
    c->budget_uw = 100000000; /* published: 100 W at start */
    c->budget_slots = 36;     /* published */
    c->expected_uw[0] = c->expected_uw[1] = 72000000; /* published: 2 W a core */
}

/* ---- temperatures ---- */

/*
 * The temperatures that the law uses. A failed sensor gets the highest sound reading of its domain, at least the
 * published 353 K and what the thermal model expects: too high a value costs work, too low a value could cost the chip.
 *
 * Failed means implausible, stuck, or distrusted by the guard (guard.c). A suspect sensor counts as stuck only if a sound one of the domain reads more than
 * 3 K above it: on an idle chip, steady readings are normal.
 */
void control_substitute(struct control *c, const struct sensors *in)
{
    for (int d = 0; d < DOMAINS; d++) {
        int first = d * DOMAIN_CORES, failed = 0;
        int32_t hottest = FALLBACK_MK;
        bool is_failed[DOMAIN_CORES] = {false};
        /* which readings are implausible, and for how many slots each has been the same */
        for (int j = 0; j < DOMAIN_CORES; j++) {
            int32_t reading = in->temperature_mk[first + j];
            if (reading < PLAUSIBLE_LOW_MK || reading > PLAUSIBLE_HIGH_MK) {
                is_failed[j] = true;
            } else if (reading == c->last_reading_mk[first + j]) {
                c->same_reading[first + j] = min32(c->same_reading[first + j] + 1, STUCK_SLOTS);
                is_failed[j] = guard_distrusts(&c->guard, first + j, true);
            } else {
                is_failed[j] = guard_distrusts(&c->guard, first + j, false);
                c->last_reading_mk[first + j] = reading;
                c->same_reading[first + j] = 0;
            }
        }
        /* the highest reading that is beyond suspicion */
        int32_t high = INT32_MIN;
        for (int j = 0; j < DOMAIN_CORES; j++) {
            if (is_failed[j] || c->same_reading[first + j] >= STUCK_SLOTS)
                continue;
            high = max32(high, in->temperature_mk[first + j]);
        }
        /* a suspect one is stuck if a sound one is hotter */
        for (int j = 0; j < DOMAIN_CORES; j++) {
            int32_t reading = in->temperature_mk[first + j];
            bool is_stuck = c->same_reading[first + j] >= STUCK_SLOTS && high > reading + STUCK_MOVE_MK;
            is_failed[j] = is_failed[j] || is_stuck;
            failed += is_failed[j];
        }
        if (failed)
            hottest = max32(max32(hottest, high), guard_expected_mk(&c->guard));
        /* what the law works with */
        for (int j = 0; j < DOMAIN_CORES; j++) {
            c->guard.has_failed[first + j] = is_failed[j];
            c->temperature_mk[first + j] = is_failed[j] ? hottest : in->temperature_mk[first + j];
            if (is_failed[j])
                c->reasons[first + j] |= REASON_SENSOR;
            c->leak_factor_q16[first + j] = chip_leak_factor_q16(c->temperature_mk[first + j]);
        }
    }
}

/*
 * Heat: the change of a core's power, uW; 0 or negative, and the core keeps at least its idle power. Proportional and
 * integral part only.
 */
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

/* Lowest clock from the moment a core is too hot until it has cooled down well below that (hysteresis). */
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
 * Published: 0.6 old + 0.4 new. Ours: a rise of more than a sixteenth is taken over at once, since it costs watts at
 * once. Smaller rises may be noise and are filtered; if they were taken over, the estimate would follow the peaks of
 * the noise.
 */
static void adapt_capacitance(struct control *c, const struct sensors *in)
{
    for (int i = 0; i < CORES; i++) {
        int32_t old = c->capacitance_ff[i], new = in->capacitance_ff[i];
        int32_t filtered = (old * 3 + new * 2) / 5; /* chip_bound_readings: 4 000 000 at most */
        bool is_jump = new > old + old / 16, is_close = new - old < 16 && old - new < 16;
        c->capacitance_ff[i] = is_jump || is_close ? new : filtered; /* integer division would never reach it */
    }
}

/*
 * What the model says of the slot that the power readings are of, uW: cores with work, and idle ones. Also the guard's
 * view of each core's power, filtered. Returns the leakage of the cores with work.
 */
static int64_t model_power(struct control *c, const struct sensors *in, int64_t busy_uw[DOMAINS],
                           int64_t idle_uw[DOMAINS])
{
    int64_t leak_uw = 0;
    for (int d = 0; d < DOMAINS; d++) {
        busy_uw[d] = idle_uw[d] = 0;
        for (int i = d * DOMAIN_CORES; i < (d + 1) * DOMAIN_CORES; i++) {
            int32_t core = CORE_IDLE_UW;
            if (in->capacitance_ff[i] == 0) {
                idle_uw[d] += core;
            } else {
                int32_t leak = chip_leak_uw(c->leak_factor_q16[i], c->measured.level[d]);
                core = chip_dynamic_uw(in->capacitance_ff[i], c->measured.freq_khz[i], c->measured.level[d]) + leak;
                busy_uw[d] += core;
                leak_uw += leak;
            }
            c->guard.core_uw[i] += (mul_q16(core, c->gain_q16[d]) - c->guard.core_uw[i]) >> 5;
        }
    }
    return leak_uw;
}

/*
 * The gain of each domain: measured over modelled power of the cores with work, averaged. An idle core draws a known
 * power that no gain changes (allocate.c), so it is taken off both. Without a power sensor for every domain, all get the
 * ratio of the package. A domain without work teaches nothing.
 *
 * Why a gain and not an offset: an error in capacitance or leakage grows with the operating point, so a factor that was
 * learned at one cap is right at the next one too.
 */
static void adapt_gain(struct control *c, const struct sensors *in, const int64_t busy_uw[DOMAINS],
                       const int64_t idle_uw[DOMAINS])
{
    int64_t all_busy = 0, all_idle = 0;
    bool has_rails = true;
    for (int d = 0; d < DOMAINS; d++) {
        all_busy += busy_uw[d];
        all_idle += idle_uw[d];
        has_rails = has_rails && in->power_uw[1 + d] > 0;
    }
    if (c->disturbed || (!has_rails && in->power_uw[0] <= 0))
        return;
    for (int d = 0; d < DOMAINS; d++) {
        int64_t measured = has_rails ? in->power_uw[1 + d] - idle_uw[d] : in->power_uw[0] - all_idle;
        int64_t modelled = has_rails ? busy_uw[d] : all_busy;
        if (modelled <= 0)
            continue;
        uint32_t ratio = measured > 0 ? divide((uint64_t)measured << 16, (uint32_t)modelled) : 0;
        int32_t seen = ratio > GAIN_HIGH_Q16 ? GAIN_HIGH_Q16 : clamp32((int32_t)ratio, GAIN_LOW_Q16, GAIN_HIGH_Q16);
        int32_t delta = seen - c->gain_q16[d];
        c->gain_q16[d] += delta > 0 ? delta / 4 : delta / 8; /* ours: faster up, as too low a gain overshoots the cap */
    }
}

/* ---- power cap ---- */

/* Stage 1. The voltage levels of the last slot are kept if they do nearly as well as the best ones. */
static void cap_power(struct control *c, const struct ladder ladders[DOMAINS], const struct demand *want,
                      struct allocation *chosen)
{
    struct allocation kept;
    int32_t cap_uw = want->cap_uw[0];
    int32_t budget_uw = cap_uw ? cap_uw - (cap_uw >> GUARD_SHIFT) : INT32_MAX;
    allocate(ladders, budget_uw, chosen);
    if (c->has_allocation && allocate_kept(ladders, budget_uw, c->kept_level, &kept) &&
        kept.work_khz >= chosen->work_khz - (chosen->work_khz >> KEEP_SHIFT) &&
        (kept.power_uw >= chosen->power_uw || kept.power_uw >= budget_uw - (budget_uw >> IDLE_SHIFT)))
        *chosen = kept;
    c->margin_uw = cap_uw ? (int32_t)(cap_uw - chosen->power_uw) : INT32_MAX;
    c->has_allocation = true;
    bool is_same = true;
    for (int d = 0; d < DOMAINS; d++) {
        is_same = is_same && c->kept_level[d] == chosen->level[d];
        c->kept_level[d] = chosen->level[d];
    }
    c->kept_slots = is_same ? min32(c->kept_slots + 1, INT32_MAX - 1) : 0;
}

/* Why a domain runs below its target: the 9 W of a core cut its ladder, or a cap kept it below the ladder's top. */
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

/* Stage 2. A core's clock after the PI law: the one that its reduced power allows at the domain's voltage. */
static int32_t cool(struct control *c, int core, int32_t freq_khz, int32_t level, const struct ladder *l)
{
    int32_t leak = chip_leak_uw(c->leak_factor_q16[core], level);
    int32_t model = chip_dynamic_uw(c->capacitance_ff[core], freq_khz, level) + leak;
    int32_t idle = chip_dynamic_uw(c->capacitance_ff[core], FREQ_MIN_KHZ, 0) + chip_leak_uw(c->leak_factor_q16[core], 0);
    int32_t power = mul_q16(model, l->gain_q16);
    int32_t out = control_thermal_uw(c, core, power, mul_q16(idle, l->gain_q16));
    if (out == 0)
        return freq_khz;
    int32_t allowed = (int32_t)inverse_q16(power + out, l->gain_q16, l->gain_inverse) - leak;
    c->reasons[core] |= REASON_THERMAL;
    return max32(chip_freq_within(allowed, c->capacitance_ff[core], level, freq_khz), FREQ_MIN_KHZ);
}

/* ---- one slot ---- */

static void our_step(struct control *c, const struct sensors *in, const struct demand *want)
{
    struct ladder ladders[DOMAINS];
    struct allocation chosen;
    struct demand safe;
    int64_t busy_uw[DOMAINS], idle_uw[DOMAINS], model_uw[DOMAINS];
    adapt_capacitance(c, in);
    int64_t leak_uw = model_power(c, in, busy_uw, idle_uw);
    adapt_gain(c, in, busy_uw, idle_uw);
    for (int d = 0; d < DOMAINS; d++)
        model_uw[d] = busy_uw[d] + idle_uw[d];
    guard_step(&c->guard, c, in, want, model_uw, leak_uw, &safe);
    for (int d = 0; d < DOMAINS; d++)
        ladder_build(&ladders[d], c, in, d, safe.target_khz[d], want->cap_uw[1 + d]);
    cap_power(c, ladders, want, &chosen);
    for (int d = 0; d < DOMAINS; d++) {
        uint16_t why = why_capped(&ladders[d], &safe, d, chosen.freq_khz[d]);
        if (c->guard.safe_slots)
            why |= REASON_GUARD;
        if (c->guard.step_slots)
            why |= REASON_STEP;
        int32_t fastest = FREQ_MIN_KHZ;
        for (int i = d * DOMAIN_CORES; i < (d + 1) * DOMAIN_CORES; i++) {
            c->reasons[i] |= why;
            c->next.freq_khz[i] = cool(c, i, chosen.freq_khz[d], chosen.level[d], &ladders[d]);
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
