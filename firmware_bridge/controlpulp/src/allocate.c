/*
 * The power cap: one clock and one voltage level for each voltage domain, chosen by a power model.
 *
 * Problem. Four domains share one package budget. In every control slot (500 us), choose their clocks and levels so
 * that the modelled power stays within the budget and the cores with work get as much clock as possible.
 *
 * Idea. Each domain has a ladder of rungs. Rung 0 is the lowest clock; every further rung is the highest clock of the
 * next voltage level (the last one may be cut short by the target or by the 9 W of a core). All domains start on rung
 * 0. As long as a whole rung fits, the domain climbs whose next rung costs the fewest watts per unit of work. The
 * watts that are left pay for a part of a rung.
 *
 *     maximise  W = sum over domains of n f                                work, kHz; n cores with work
 *     with      P = g (C f V^2 1e-6 + k L(V)) + n_idle 300000              power of one domain, uW
 *     so that   P <= domain cap for each domain, and sum of P <= budget
 *
 *     f  clock, kHz                      C  effective capacitance of the cores with work, summed, fF
 *     V  voltage of the level, V         k  temperature factor of their leakage, summed (1 = one core at 0 C)
 *     L  leakage of a core at 0 C, uW    g  measured over modelled power of the domain (control.c)
 *
 * Invariant. A higher clock needs a higher voltage, so each rung of a ladder costs more per kHz than the rung below it:
 * over whole rungs P is convex. Taking the cheapest rung first is therefore optimal as long as that rung fits, and no
 * step has to be undone. Convexity ends inside a rung: its first kHz already pays for the whole voltage step. That is
 * why the last watts are placed by comparing up to 17 candidates (see allocate) instead of by one more step.
 *
 * Rung 0 is the floor of the chip: a domain gets it even if the floors alone exceed the budget or the domain's cap.
 *
 * Cost. O(D^2 L + D^3) with D = 4 domains and L = 15 levels, the same bound in every slot: the climb takes at most D L
 * steps that each compare D domains, and each of about D^2 candidates sets D domains. docs/firmware.md has the
 * cycles of control and fast job together on two cores.
 *
 * The published law splits the watts by distance to the critical temperature instead; here heat has its own stage.
 */
#include "control.h"

#define SMALLEST_STEP_KHZ 5000 /* ours: a part of a rung below this is not worth its voltage */

/* ---- ladder ---- */

int32_t ladder_power_uw(const struct ladder *l, int32_t freq_khz, int32_t level)
{
    int64_t uw = (int64_t)chip_dynamic_uw(l->capacitance_ff, freq_khz, level) + chip_leak_uw(l->leak_factor_q16, level);
    return (int32_t)((uw * l->gain_q16) >> 16) + l->idle_uw;
}

/* The inverse of ladder_power_uw in two steps: the dynamic power that these watts leave at a level ... */
static int32_t dynamic_within(const struct ladder *l, int32_t power_uw, int32_t level)
{
    if (power_uw <= l->idle_uw)
        return 0;
    uint32_t model_uw = inverse_q16(power_uw - l->idle_uw, l->gain_q16, l->gain_inverse);
    int64_t dynamic = (int64_t)model_uw - chip_leak_uw(l->leak_factor_q16, level);
    return dynamic > INT32_MAX ? INT32_MAX : (int32_t)dynamic;
}

/* ... and the highest clock that it pays for, within a limit. */
static int32_t freq_within(const struct ladder *l, int32_t power_uw, int32_t level, int32_t limit_khz)
{
    return chip_freq_within(dynamic_within(l, power_uw, level), l->capacitance_ff, level, limit_khz);
}

static void add_rung(struct ladder *l, int32_t freq_khz, int32_t level)
{
    l->freq_khz[l->rungs] = freq_khz;
    l->level[l->rungs] = level;
    l->power_uw[l->rungs] = ladder_power_uw(l, freq_khz, level);
    l->rungs++;
}

void ladder_build(struct ladder *l, const struct control *c, const struct sensors *in, int domain, int32_t target_khz,
                  int32_t cap_uw)
{
    int32_t hottest_q16 = 0, heaviest_ff = 0;
    *l = (struct ladder){.gain_q16 = c->gain_q16[domain], .gain_inverse = inverse_of_q16(c->gain_q16[domain]),
                         .limit_uw = cap_uw ? cap_uw : INT32_MAX};
    for (int i = domain * DOMAIN_CORES; i < (domain + 1) * DOMAIN_CORES; i++) {
        if (in->capacitance_ff[i] == 0) {
            l->idle_uw += CORE_IDLE_UW;
            continue;
        }
        l->busy++;
        l->capacitance_ff += c->capacitance_ff[i];
        l->leak_factor_q16 += c->leak_factor_q16[i];
        hottest_q16 = max32(hottest_q16, c->leak_factor_q16[i]);
        heaviest_ff = max32(heaviest_ff, c->capacitance_ff[i]);
    }
    add_rung(l, FREQ_MIN_KHZ, 0);
    for (int level = 0; level < LEVELS; level++) {
        int32_t room_uw = CORE_MAX_UW - chip_leak_uw(hottest_q16, level);
        int32_t freq = chip_freq_within(room_uw, heaviest_ff, level, min32(chip_freq_khz[level], target_khz));
        if (freq <= l->freq_khz[l->rungs - 1])
            break;
        add_rung(l, freq, level);
    }
}

/* ---- filling the budget ---- */

/* Work and power of an allocation whose clocks and levels are set. */
static void total(const struct ladder ladders[DOMAINS], struct allocation *a)
{
    a->work_khz = a->power_uw = 0;
    for (int d = 0; d < DOMAINS; d++) {
        a->work_khz += a->freq_khz[d] * ladders[d].busy;
        a->power_uw += ladder_power_uw(&ladders[d], a->freq_khz[d], a->level[d]);
    }
}

static bool may_rise(const struct ladder *l, int32_t rung)
{
    return l->busy && rung + 1 < l->rungs && l->power_uw[rung + 1] <= l->limit_uw;
}

/* What a domain's next rung costs and brings: uW, and kHz times cores. A step that is not allowed brings nothing. */
struct step {
    int32_t cost_uw, work_khz;
};

static struct step next_step(const struct ladder *l, int32_t rung)
{
    if (!may_rise(l, rung))
        return (struct step){0, 0};
    return (struct step){l->power_uw[rung + 1] - l->power_uw[rung], (l->freq_khz[rung + 1] - l->freq_khz[rung]) * l->busy};
}

/*
 * Climbs from the given rungs while a whole rung fits in the budget, cheapest work first; returns the power spent, uW.
 * A domain without work does not climb: it would spend watts and do no work for them. Cost per work is compared by
 * cross-multiplication, so that rounding cannot decide.
 */
static int64_t climb(const struct ladder ladders[DOMAINS], int64_t budget_uw, int32_t rung[DOMAINS])
{
    struct step steps[DOMAINS];
    int64_t spent = 0;
    for (int d = 0; d < DOMAINS; d++) {
        spent += ladders[d].power_uw[rung[d]];
        steps[d] = next_step(&ladders[d], rung[d]);
    }
    for (;;) { /* at most DOMAINS * LEVELS + 1 times */
        int chosen = -1;
        for (int d = 0; d < DOMAINS; d++) {
            if (steps[d].work_khz == 0 || spent + steps[d].cost_uw > budget_uw)
                continue;
            if (chosen < 0 ||
                (int64_t)steps[d].cost_uw * steps[chosen].work_khz < (int64_t)steps[chosen].cost_uw * steps[d].work_khz)
                chosen = d;
        }
        if (chosen < 0)
            return spent;
        spent += steps[chosen].cost_uw;
        steps[chosen] = next_step(&ladders[chosen], ++rung[chosen]);
    }
}

/* ---- the last watts ---- */

/* Takes these rungs as the best allocation so far. */
static void take(const struct ladder ladders[DOMAINS], const int32_t rung[DOMAINS], struct allocation *best)
{
    for (int d = 0; d < DOMAINS; d++) {
        best->freq_khz[d] = ladders[d].freq_khz[rung[d]];
        best->level[d] = ladders[d].level[rung[d]];
    }
}

/*
 * Spends the watts that are left on a part of one domain's next rung: on the domain where they bring most work. Takes
 * the result if it does more work than the best so far. All work is counted over that of the climb's rungs; `base_khz`
 * is the work of these ones.
 *
 * A clock costs two divisions, so it is computed only where even the whole rung would not be too little.
 */
static void fill(const struct ladder ladders[DOMAINS], int64_t left_uw, const int32_t rung[DOMAINS], int64_t base_khz,
                 struct allocation *best)
{
    int chosen = -1;
    int32_t chosen_freq = 0;
    int64_t most = best->work_khz - base_khz;
    for (int d = 0; d < DOMAINS; d++) {
        const struct ladder *l = &ladders[d];
        if (rung[d] + 1 >= l->rungs)
            continue;
        int32_t from = l->freq_khz[rung[d]], top = l->freq_khz[rung[d] + 1];
        if (top - from <= SMALLEST_STEP_KHZ || (top - from) * l->busy <= most)
            continue;
        int64_t room = l->power_uw[rung[d]] + left_uw;
        int32_t freq = freq_within(l, (int32_t)(room < l->limit_uw ? room : l->limit_uw), l->level[rung[d] + 1], top);
        int32_t gain = (freq - from) * l->busy;
        if (freq - from > SMALLEST_STEP_KHZ && gain > most) {
            most = gain;
            chosen = d;
            chosen_freq = freq;
        }
    }
    if (chosen < 0)
        return;
    take(ladders, rung, best);
    best->freq_khz[chosen] = chosen_freq;
    best->level[chosen] = ladders[chosen].level[rung[chosen] + 1];
    best->work_khz = base_khz + most;
}

/*
 * Domain `up` takes its next rung whole. Domain `down` pays the watts that are missing: it keeps its level and slows
 * down. Not if the next rung is not allowed, or if `down` would fall below the lowest clock. Takes the result if it does
 * more work than the best so far.
 */
static void swap(const struct ladder ladders[DOMAINS], int64_t left_uw, const int32_t rung[DOMAINS], int up, int down,
                 struct allocation *best)
{
    const struct ladder *rising = &ladders[up], *paying = &ladders[down];
    struct step step = next_step(rising, rung[up]);
    int32_t level = paying->level[rung[down]], before = paying->freq_khz[rung[down]];
    int64_t wanted = best->work_khz - step.work_khz; /* the payer's change must be more */
    if (!may_rise(rising, rung[up]) || (chip_freq_khz[level] - before) * paying->busy <= wanted)
        return;
    int64_t missing = step.cost_uw - left_uw; /* above 0: the climb has ended */
    int64_t paid = paying->power_uw[rung[down]] - missing;
    int32_t freq = freq_within(paying, (int32_t)paid, level, chip_freq_khz[level]);
    int32_t change = (freq - before) * paying->busy;
    if (freq < FREQ_MIN_KHZ || change <= wanted)
        return;
    take(ladders, rung, best);
    best->freq_khz[up] = rising->freq_khz[rung[up] + 1];
    best->level[up] = rising->level[rung[up] + 1];
    best->freq_khz[down] = freq;
    best->work_khz = step.work_khz + change;
}

/*
 * The candidate with most work out of at most 1 + D + D (D - 1) = 17: the climb, filled; the climb with one domain a
 * rung lower, filled; and one domain a rung higher at the expense of another. Without a budget a domain without work
 * starts on its highest rung, since there is nothing to save.
 */
void allocate(const struct ladder ladders[DOMAINS], int32_t budget_uw, struct allocation *best)
{
    int32_t rung[DOMAINS] = {0};
    for (int d = 0; d < DOMAINS; d++)
        if (ladders[d].busy == 0 && budget_uw == INT32_MAX)
            rung[d] = ladders[d].rungs - 1;
    int64_t left = budget_uw - climb(ladders, budget_uw, rung);
    take(ladders, rung, best);
    best->work_khz = 0;
    fill(ladders, left, rung, 0, best);
    for (int d = 0; d < DOMAINS; d++) {
        if (rung[d] == 0)
            continue;
        const struct ladder *l = &ladders[d];
        int32_t high = rung[d]--;
        int32_t lost = (l->freq_khz[high] - l->freq_khz[rung[d]]) * l->busy;
        fill(ladders, left + l->power_uw[high] - l->power_uw[rung[d]], rung, -lost, best);
        rung[d] = high;
    }
    for (int up = 0; up < DOMAINS; up++)
        for (int down = 0; down < DOMAINS; down++)
            if (up != down)
                swap(ladders, left, rung, up, down, best);
    total(ladders, best);
}

/* ---- keeping the voltages ---- */

/*
 * The best clocks within the same budget at the voltage levels of the last slot. Without this choice, two allocations
 * of nearly equal work would alternate with the noise of the sensors.
 *
 * Every domain starts at the highest clock of its level (less if its own cap or target says so). While the sum exceeds
 * the budget, the domain that spends most watts per core and kHz gives up the excess, but it goes no lower than the
 * highest clock of the next lower level: below that, this level would be wasted. Each try meets the budget or takes one
 * domain to that limit for good, so DOMAINS tries suffice. False if these levels cannot meet the budget.
 */
bool allocate_kept(const struct ladder ladders[DOMAINS], int32_t budget_uw, const int32_t kept_level[DOMAINS],
                   struct allocation *out)
{
    for (int d = 0; d < DOMAINS; d++) {
        const struct ladder *l = &ladders[d];
        int32_t rung = 0;
        while (rung + 1 < l->rungs && l->level[rung + 1] <= kept_level[d]) /* at most LEVELS times */
            rung++;
        out->level[d] = l->level[rung];
        out->freq_khz[d] = l->freq_khz[rung];
        if (l->busy && ladder_power_uw(l, out->freq_khz[d], out->level[d]) > l->limit_uw)
            out->freq_khz[d] = freq_within(l, l->limit_uw, out->level[d], chip_freq_khz[out->level[d]]);
        if (out->freq_khz[d] < FREQ_MIN_KHZ)
            return false;
    }
    total(ladders, out);
    for (int tries = 0; out->power_uw > budget_uw && tries < DOMAINS; tries++) {
        int dearest = -1;
        int64_t dearest_cost = 0, dearest_busy = 1;
        for (int d = 0; d < DOMAINS; d++) {
            const struct ladder *l = &ladders[d];
            int32_t below = out->level[d] ? chip_freq_khz[out->level[d] - 1] : FREQ_MIN_KHZ;
            int64_t cost = chip_dynamic_uw(l->capacitance_ff, FREQ_MAX_KHZ, out->level[d]);
            if (out->freq_khz[d] > below && cost * dearest_busy > dearest_cost * l->busy) {
                dearest = d;
                dearest_cost = cost;
                dearest_busy = l->busy;
            }
        }
        if (dearest < 0)
            return false;
        const struct ladder *l = &ladders[dearest];
        int32_t below = out->level[dearest] ? chip_freq_khz[out->level[dearest] - 1] : FREQ_MIN_KHZ;
        int64_t own = ladder_power_uw(l, out->freq_khz[dearest], out->level[dearest]);
        int64_t room = own - (out->power_uw - budget_uw);
        int32_t freq = freq_within(l, (int32_t)room, out->level[dearest], chip_freq_khz[out->level[dearest]]);
        out->freq_khz[dearest] = max32(freq, below);
        total(ladders, out);
    }
    return out->power_uw <= budget_uw;
}
