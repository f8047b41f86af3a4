/*
 * The guard: what the law may believe, and the level that needs no sensor.
 *
 * Problem. The law keeps a cap by a model that sensors correct. If one class of sensors lies, the cap is broken and
 * nothing looks wrong to the law itself.
 *
 * Idea. Every sensor is checked by another one. A contradiction that lasts is a fault; a fault leads to the safe level.
 *
 *     SUM     |filtered (package - sum of domains)| > sum of both / 64 + 0.5 W, or both differ in every slot, in either
 *             direction, by more than their sum / 32 + 0.5 W: noise that the gain must not learn from
 *     MODEL   measured power outside 5/6 .. 6/5 of the model's (a domain: 2/3 .. 3/2)
 *     CAP     measured power above 33/32 of a cap, whatever the model says; without a cap, above 9/8 of 9 W for each core
 *     HEAT    the mean temperature is more than 5 K below that of the thermal model, or implies an ambient below 5 C;
 *             or measured power is above the model's by 1/32 of it and 1/8 of its leakage: leakage grows by 3 % for each
 *             kelvin, so it shows that all temperatures read too low since the start, which no thermal model can;
 *             or the die answers steps of power by 1/8 more than measured power explains (check_answer)
 *     FROZEN  more than FAILED_MAX temperatures have failed: implausible, stuck (control.c), unchanged to the millikelvin
 *             while the core's power changed or the sink should have moved by 2 K, or 8 K below what the mean and the
 *             core's power let expect
 *
 * "Measured" is the higher one of package and sum of domains, so a single sensor that reads too low hides nothing.
 *
 *     T = S + silicon + copper        mean of the cores; S is the heat sink
 *     silicon -> 18/1024 P, copper -> 63/1024 P, S -> A + 153/1024 P      mK, P in mW; 4 ms, 51 ms, 8 s
 *
 * S and the ambient A follow the readings while these are within 5 K of the model. Beyond that the model goes on alone,
 * since no heat sink changes so fast. Steady readings above the model are no fault: the law follows them. Nobody knows how
 * warm the copper was before the start, so for START_SLOTS S follows the readings alone.
 *
 * Safe level. The highest clock at which the heaviest known load on a chip at 85 C stays within the caps and within
 * SAFE_UW. It depends on no sensor. It ends SAFE_SLOTS slots after the last fault; each further alarm doubles that time.
 *
 * Own steps. Power and activity that read too low by one factor look like warm air, but for their answers to steps. Where
 * none has come for STEP_AFTER (a board may choose another number, or none), the guard makes one: the lowest clocks for
 * STEP_SLOTS.
 *
 * Invariant. The guard only lowers the targets of the law.
 *
 * Cost. O(CORES) additions and comparisons, O(LEVELS) in a slot with an alarm; no 64-bit division.
 */
#include "control.h"

#define HEAVY_FF 2038519      /* class 3 of the published power model */
#define HOTTEST_MK 358150     /* published: critical */
#define SAFE_UW 100000000     /* ours: 36 cores cannot overheat with it, also in air of 50 C */

#define SUM_SHIFT 3           /* filter of the difference: 1/8 */
#define SUM_SLOTS 4           /* ours, all of these: slots in a row until a contradiction is a fault */
#define MODEL_SLOTS 6
#define CAP_SLOTS 5
#define HEAT_SLOTS 8
#define LEAK_SHIFT 5          /* filter of excess and leakage: 1/32 */
#define LEAK_SLOTS 16
#define FROZEN_SLOTS 3
#define FROZEN_UW 500000      /* ours: worth some 0.5 K of silicon */
#define ODD_MK 8000           /* ours; sound cores on uneven silicon stay within 6 K */
#define ODD_SLOTS 8
#define SLOW_SHIFT 7          /* filter of a core's power: 64 ms, the copper has 51 */
#define FAILED_MAX 4
#define START_SLOTS 400       /* ours: eight time constants of the copper */
#define SAFE_SLOTS 2000             /* ours: 1 s */
#define SAFE_SLOTS_MAX 65536

#define FROZEN_WARM (2000 * 256)    /* ours */
#define HEAT_TOLERANCE (5000 * 256) /* all in 1/256 mK */
#define MOVE_LEAST 15         /* all ours: 0.5 K, in 32 mK; less is noise and other cores */
#define MOVE_MOST 1600        /* 256 squares of it fit */
#define MOVED_LEAST 250000    /* 2 K for 64 slots */
#define ANSWER_MARGIN 16384   /* 1/16 of the least */
#define FADE_SHIFT 14         /* what was seen counts for 8 s */
#define ANSWER_SLOTS 8
#define STEP_SLOTS 128        /* 64 ms, a thousandth of STEP_AFTER */
#define STEP_UW 30000000      /* less cannot answer by enough */
#define AMBIENT_FIRST (298150 * 256)
#define AMBIENT_LOW (278150 * 256)
#define AMBIENT_HIGH (328150 * 256)

/* ---- start ---- */

void guard_init(struct guard *g, int32_t step_after)
{
    *g = (struct guard){.penalty = SAFE_SLOTS, .step_after = step_after};
    int32_t factor = chip_leak_factor_q16(HOTTEST_MK);
    for (int r = 0; r <= LEVELS; r++) {
        int32_t level = r ? r - 1 : 0;
        g->worst_uw[r] = chip_dynamic_uw(HEAVY_FF, r ? chip_freq_khz[level] : FREQ_MIN_KHZ, level) +
                         chip_leak_uw(factor, level);
    }
}

/* ---- temperatures of single cores ---- */

/* Whether a plausible reading is unchanged although the core's power or the sink has moved, or was odd for ODD_SLOTS. */
bool guard_distrusts(struct guard *g, int core, bool is_same)
{
    int32_t moved = g->core_uw[core] - g->core_uw_at_change[core], warmed = g->warm - g->warm_at_change[core];
    if (!is_same) {
        g->core_uw_at_change[core] = g->core_uw[core];
        g->warm_at_change[core] = g->warm;
        g->frozen_slots[core] = 0;
    } else if (moved > FROZEN_UW || moved < -FROZEN_UW || warmed > FROZEN_WARM || warmed < -FROZEN_WARM) {
        g->frozen_slots[core] = (uint8_t)min32(g->frozen_slots[core] + 1, FROZEN_SLOTS);
    }
    return g->frozen_slots[core] == FROZEN_SLOTS || g->odd_slots[core] == ODD_SLOTS;
}

/* How much warmer than the mean a core is at least. Ours: 1 K/W for one busy core, 2.5 K/W for a whole idle domain. */
static int32_t warmer_mk(int32_t power_uw, int32_t mean_mw)
{
    int32_t more = (int32_t)thousandth((uint32_t)power_uw) - mean_mw;
    return more < 0 ? (more * 5) >> 1 : more;
}

/*
 * Counts for how many slots each core was cooler than the mean of the sound ones and its power let expect. The lower
 * one of two powers counts: where work moves from warm cores to cool ones, these are cool for as long as their copper.
 */
static void check_cores(struct guard *g, const struct sensors *in, int32_t mean_mk, int32_t mean_mw, int32_t slow_mw)
{
    for (int i = 0; i < CORES; i++) {
        int32_t expected = mean_mk + min32(warmer_mk(g->core_uw[i], mean_mw), warmer_mk(g->slow_uw[i], slow_mw));
        bool is_odd = in->temperature_mk[i] < expected - ODD_MK;
        g->odd_slots[i] = is_odd ? (uint8_t)min32(g->odd_slots[i] + 1, ODD_SLOTS) : 0;
    }
}

/* What the thermal model expects of a core, mK. */
int32_t guard_expected_mk(const struct guard *g)
{
    return g->has_heat ? (g->sink + g->silicon + g->copper) / 256 + 3000 : 0;
}

/* ---- contradictions ---- */

/* Counts slots in a row; true from the given number on. */
static bool lasts(int32_t *count, bool is_so, int32_t slots)
{
    *count = is_so ? min32(*count + 1, slots) : 0;
    return *count == slots;
}

/* The higher one of both measurements of the package; SENSOR_FAULT without any. */
static int32_t check_sum(struct guard *g, const struct sensors *in, uint32_t *faults)
{
    int32_t package = in->power_uw[0], rails = 0;
    for (int d = 0; d < DOMAINS; d++) {
        if (in->power_uw[1 + d] == SENSOR_FAULT || rails == SENSOR_FAULT)
            rails = SENSOR_FAULT;
        else
            rails = min32(rails + in->power_uw[1 + d] / 4, 250000000);
    }
    if (rails != SENSOR_FAULT)
        rails *= 4;
    bool has_both = package != SENSOR_FAULT && rails != SENSOR_FAULT;
    int32_t most = max32(package, rails) / 8; /* one bad reading is no fault */
    if (has_both)
        g->sum_error_uw += (clamp32(package - rails, -most, most) - g->sum_error_uw) >> SUM_SHIFT;
    int32_t error = g->sum_error_uw < 0 ? -g->sum_error_uw : g->sum_error_uw;
    if (lasts(&g->sum_slots, has_both && error > package / 64 + rails / 64 + 500000, SUM_SLOTS))
        *faults |= GUARD_SUM;
    if (has_both) {
        int32_t apart = package < rails ? rails - package : package - rails;
        g->scatter_uw += (min32(apart, 2 * most) - package / 32 - rails / 32 - g->scatter_uw) >> SUM_SHIFT;
    }
    if (lasts(&g->scatter_slots, has_both && g->scatter_uw > 500000, SUM_SLOTS))
        *faults |= GUARD_SUM;
    return max32(package, rails);
}

static bool is_beyond(int32_t measured_uw, int64_t model_uw, int32_t low_num, int32_t high_num, int32_t denominator)
{
    int64_t measured = (int64_t)measured_uw * denominator;
    return measured < model_uw * low_num || measured > model_uw * high_num;
}

static void check_model(struct guard *g, const struct control *c, const struct sensors *in, int32_t measured_uw,
                        const int64_t model_uw[DOMAINS], uint32_t *faults)
{
    if (c->disturbed)
        return;
    int64_t all = 0;
    for (int d = 0; d < DOMAINS; d++) {
        int32_t rail = in->power_uw[1 + d];
        all += model_uw[d];
        if (lasts(&g->model_slots[1 + d], rail != SENSOR_FAULT && is_beyond(rail, model_uw[d], 4, 9, 6), MODEL_SLOTS))
            *faults |= GUARD_MODEL;
    }
    if (lasts(&g->model_slots[0], measured_uw != SENSOR_FAULT && is_beyond(measured_uw, all, 25, 36, 30), MODEL_SLOTS))
        *faults |= GUARD_MODEL;
}

/* A model that is too low may be one of leakage at temperatures that read too low. Below SAFE_UW no die overheats. */
static void check_leakage(struct guard *g, const struct control *c, int32_t measured_uw, int64_t model_uw,
                          int64_t leak_uw, uint32_t *faults)
{
    if (c->disturbed || measured_uw == SENSOR_FAULT)
        return;
    int32_t model = (int32_t)model_uw, most = model / 8;
    g->excess_uw += (clamp32(measured_uw - model, -most, most) - g->excess_uw) >> LEAK_SHIFT;
    g->model_uw += (model - g->model_uw) >> LEAK_SHIFT;
    g->leak_uw += ((int32_t)leak_uw - g->leak_uw) >> LEAK_SHIFT;
    bool is_hot = g->model_uw > SAFE_UW && g->excess_uw > g->model_uw / 32 + g->leak_uw / 8;
    if (lasts(&g->leak_slots, is_hot, LEAK_SLOTS))
        *faults |= GUARD_HEAT;
}

/* A cap is compared with power from two slots after it was set. */
static void check_caps(struct guard *g, const struct sensors *in, int32_t measured_uw, const struct demand *want,
                       uint32_t *faults)
{
    for (int p = 0; p < POWER_DOMAINS; p++) {
        int32_t ceiling = CORE_MAX_UW / 8 * 9 * (p ? DOMAIN_CORES : CORES);
        int32_t cap = want->cap_uw[p] ? want->cap_uw[p] : ceiling;
        int32_t highest = max32(cap, max32(g->recent_cap_uw[0][p], g->recent_cap_uw[1][p]));
        int32_t power = p ? in->power_uw[p] : measured_uw;
        bool is_above = power > highest + (highest >> 5) + 100000;
        if (lasts(&g->cap_slots[p], g->has_caps && is_above, CAP_SLOTS))
            *faults |= GUARD_CAP;
        g->recent_cap_uw[1][p] = g->recent_cap_uw[0][p];
        g->recent_cap_uw[0][p] = cap;
    }
    g->has_caps = true;
}

/*
 * Whether the die answers steps of power with more heat than the measured power explains. Air moves the heat sink alone,
 * and slowly, so what the mean temperature does against its own slow average is the answer of silicon and copper.
 */
static void check_answer(struct guard *g, int32_t sound, int32_t mean, uint32_t *faults)
{
    int32_t expected = g->silicon + g->copper;
    if (sound != g->sound) /* another mean of the same die: its distance from the average stays */
        g->slow_mean += mean - g->mean;
    g->sound = sound;
    g->mean = mean;
    if (g->start_slots < START_SLOTS) {
        g->slow_expected = expected;
        g->slow_mean = mean;
        return;
    }
    g->slow_expected += (expected - g->slow_expected) >> SLOW_SHIFT;
    g->slow_mean += (mean - g->slow_mean) >> SLOW_SHIFT;
    int32_t move = clamp32((expected - g->slow_expected) >> 13, -MOVE_MOST, MOVE_MOST);
    int32_t answer = clamp32((mean - g->slow_mean) >> 13, -MOVE_MOST, MOVE_MOST);
    if (move < -MOVE_LEAST || move > MOVE_LEAST) {
        g->moved += move * move - (g->moved >> 8);
        g->answered += move * answer - (g->answered >> 8);
    }
    g->moved -= g->moved >> FADE_SHIFT;
    g->answered -= g->answered >> FADE_SHIFT;
    int32_t most = g->moved + g->moved / 8 + ANSWER_MARGIN;
    if (lasts(&g->answer_slots, g->moved > MOVED_LEAST && g->answered > most, ANSWER_SLOTS))
        *faults |= GUARD_HEAT;
}

/* Makes a step of its own where none has come for long, and enough power is measured to make one. */
static void plan_step(struct guard *g, int32_t measured_uw)
{
    bool is_known = g->moved > MOVED_LEAST;
    g->quiet_slots = is_known ? 0 : min32(g->quiet_slots + 1, g->step_after);
    if (g->step_slots) {
        g->step_slots--;
    } else if (g->step_after && g->quiet_slots == g->step_after && measured_uw > STEP_UW) {
        g->step_slots = STEP_SLOTS;
        g->quiet_slots = 0;
    }
}

static void check_heat(struct guard *g, int32_t sound, int32_t mean_mk, int32_t measured_uw, int64_t model_uw,
                       uint32_t *faults)
{
    int32_t power_mw = (measured_uw != SENSOR_FAULT ? measured_uw : (int32_t)model_uw) / 1000;
    int32_t mean = mean_mk * 256;
    if (lasts(&g->failed_slots, CORES - sound > FAILED_MAX, FROZEN_SLOTS))
        *faults |= GUARD_FROZEN;
    if (!g->has_heat && !sound)
        return;
    if (!g->has_heat) {
        g->has_heat = true;
        g->ambient = AMBIENT_FIRST;
        g->sink = mean;
    }
    g->silicon += (power_mw * 18 / 4 - g->silicon) >> 3;
    g->copper += ((power_mw * 63 / 4 - g->copper) * 5) >> 9;
    g->sink += (g->ambient + power_mw * 153 / 4 - g->sink) >> 14;
    check_answer(g, sound, mean, faults);
    int32_t ahead = sound ? mean - g->sink - g->silicon - g->copper : 0;
    if (g->start_slots < START_SLOTS) {
        g->start_slots++;
        g->sink += ahead >> 3;
        g->warm = power_mw * 153 / 4; /* nobody knows the power before the start */
        for (int i = 0; i < CORES; i++)
            g->warm_at_change[i] = g->warm;
        return;
    }
    g->warm += (power_mw * 153 / 4 - g->warm) >> 14;
    bool is_low = ahead < -HEAT_TOLERANCE, is_high = ahead > HEAT_TOLERANCE;
    if (!is_low)
        g->sink += ahead >> (is_high ? 10 : 6);
    if (!is_low && !is_high)
        g->ambient = clamp32(g->ambient + (ahead >> 8), AMBIENT_LOW - 256000, AMBIENT_HIGH);
    if (lasts(&g->heat_slots, is_low || g->ambient < AMBIENT_LOW, HEAT_SLOTS))
        *faults |= GUARD_HEAT;
}

/* ---- safe level ---- */

static int32_t safe_khz(const struct guard *g, int32_t cap_uw, int32_t cores)
{
    int32_t rung = LEVELS;
    while (rung > 0 && g->worst_uw[rung] * cores > cap_uw) /* at most LEVELS times */
        rung--;
    return rung ? chip_freq_khz[rung - 1] : FREQ_MIN_KHZ;
}

static void count_safe_slots(struct guard *g, uint32_t faults)
{
    if (faults && g->safe_slots == 0) {
        g->alarms++;
        g->penalty = g->alarms == 1 ? SAFE_SLOTS : min32(2 * g->penalty, SAFE_SLOTS_MAX);
    }
    g->safe_slots = faults ? g->penalty : g->safe_slots - (g->safe_slots > 0);
    g->faults = faults;
    g->ever |= faults;
}

void guard_step(struct guard *g, const struct control *c, const struct sensors *in, const struct demand *want,
                const int64_t model_uw[DOMAINS], int64_t leak_uw, struct demand *limited)
{
    uint32_t faults = 0;
    int32_t sound = 0, sum_mk = 0, sum_mw = 0, slow_mw = 0, mean_mk = 0;
    int64_t all = 0;
    for (int i = 0; i < CORES; i++) {
        g->slow_uw[i] += (g->core_uw[i] - g->slow_uw[i]) >> SLOW_SHIFT;
        if (g->has_failed[i])
            continue;
        sound++;
        sum_mk += in->temperature_mk[i];
        sum_mw += (int32_t)thousandth((uint32_t)g->core_uw[i]);
        slow_mw += (int32_t)thousandth((uint32_t)g->slow_uw[i]);
    }
    for (int d = 0; d < DOMAINS; d++)
        all += model_uw[d];
    if (sound) {
        mean_mk = sum_mk / sound; /* 36 * 423 K fit */
        check_cores(g, in, mean_mk, sum_mw / sound, slow_mw / sound);
    }
    int32_t measured_uw = check_sum(g, in, &faults);
    check_model(g, c, in, measured_uw, model_uw, &faults);
    check_leakage(g, c, measured_uw, all, leak_uw, &faults);
    check_caps(g, in, measured_uw, want, &faults);
    check_heat(g, sound, mean_mk, measured_uw, all, &faults);
    count_safe_slots(g, faults);
    plan_step(g, measured_uw);
    *limited = *want;
    for (int d = 0; d < DOMAINS && g->step_slots; d++)
        limited->target_khz[d] = min32(want->target_khz[d], FREQ_MIN_KHZ);
    if (!g->safe_slots)
        return;
    int32_t package = safe_khz(g, want->cap_uw[0] ? min32(want->cap_uw[0], SAFE_UW) : SAFE_UW, CORES);
    for (int d = 0; d < DOMAINS; d++) {
        int32_t own = want->cap_uw[1 + d] ? safe_khz(g, want->cap_uw[1 + d], DOMAIN_CORES) : package;
        limited->target_khz[d] = min32(limited->target_khz[d], min32(own, package));
    }
}
