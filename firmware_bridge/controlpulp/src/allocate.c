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
 * steps that each compare D domains, and each of about D^2 candidates sets D domains. Counted on rv32, control job and
 * fast job together take at most 62 thousand instructions (docs/firmware.md).
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

/* The inverse of ladder_power_uw: the highest clock that these watts pay for at a level, within the level's highest. */
static int32_t freq_within(const struct ladder *l, int32_t power_uw, int32_t level)
{
    int64_t model_uw = (int64_t)(power_uw - l->idle_uw) * 65536 / l->gain_q16;
    int64_t dynamic = model_uw - chip_leak_uw(l->leak_factor_q16, level);
    int32_t dynamic_uw = dynamic > INT32_MAX ? INT32_MAX : (int32_t)dynamic;
    return min32(chip_freq_for(dynamic_uw, l->capacitance_ff, level), chip_freq_khz[level]);
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
    *l = (struct ladder){.gain_q16 = c->gain_q16[domain], .limit_uw = cap_uw ? cap_uw : INT32_MAX};
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
        int32_t freq = min32(chip_freq_khz[level], target_khz);
        freq = min32(freq, chip_freq_for(room_uw, heaviest_ff, level));
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
        a->work_khz += (int64_t)a->freq_khz[d] * ladders[d].busy;
        a->power_uw += ladder_power_uw(&ladders[d], a->freq_khz[d], a->level[d]);
    }
}

static bool may_rise(const struct ladder *l, int32_t rung)
{
    return l->busy && rung + 1 < l->rungs && l->power_uw[rung + 1] <= l->limit_uw;
}

/*
 * Climbs from the given rungs while a whole rung fits in the budget, cheapest work first; returns the power spent, uW.
 * A domain without work does not climb: it would spend watts and do no work for them. Cost per work is compared by
 * cross-multiplication, so that rounding cannot decide.
 */
static int64_t climb(const struct ladder ladders[DOMAINS], int64_t budget_uw, int32_t rung[DOMAINS])
{
    int64_t spent = 0;
    for (int d = 0; d < DOMAINS; d++)
        spent += ladders[d].power_uw[rung[d]];
    for (;;) {
        int chosen = -1;
        int64_t chosen_cost = 0, chosen_work = 1;
        for (int d = 0; d < DOMAINS; d++) {
            const struct ladder *l = &ladders[d];
            int32_t next = rung[d] + 1;
            if (!may_rise(l, rung[d]))
                continue;
            int64_t cost = l->power_uw[next] - l->power_uw[rung[d]];
            int64_t work = (int64_t)(l->freq_khz[next] - l->freq_khz[rung[d]]) * l->busy;
            if (spent + cost > budget_uw)
                continue;
            if (chosen < 0 || cost * chosen_work < chosen_cost * work) {
                chosen = d;
                chosen_cost = cost;
                chosen_work = work;
            }
        }
        if (chosen < 0)
            return spent;
        rung[chosen]++;
        spent += chosen_cost;
    }
}

/* Spends the watts that are left on a part of one domain's next rung: on the domain where they bring most work. */
static void fill(const struct ladder ladders[DOMAINS], int64_t left_uw, const int32_t rung[DOMAINS],
                 struct allocation *out)
{
    int chosen = -1;
    int32_t chosen_freq = 0;
    int64_t most = 0;
    for (int d = 0; d < DOMAINS; d++) {
        const struct ladder *l = &ladders[d];
        out->freq_khz[d] = l->freq_khz[rung[d]];
        out->level[d] = l->level[rung[d]];
        if (rung[d] + 1 >= l->rungs)
            continue;
        int64_t room = l->power_uw[rung[d]] + left_uw;
        int32_t freq = freq_within(l, (int32_t)(room < l->limit_uw ? room : l->limit_uw), l->level[rung[d] + 1]);
        freq = min32(freq, l->freq_khz[rung[d] + 1]);
        int64_t gain = (int64_t)(freq - l->freq_khz[rung[d]]) * l->busy;
        if (freq - l->freq_khz[rung[d]] > SMALLEST_STEP_KHZ && gain > most) {
            most = gain;
            chosen = d;
            chosen_freq = freq;
        }
    }
    if (chosen >= 0) {
        out->freq_khz[chosen] = chosen_freq;
        out->level[chosen] = ladders[chosen].level[rung[chosen] + 1];
    }
    total(ladders, out);
}

/*
 * Domain `up` takes its next rung whole. Domain `down` pays the watts that are missing: it keeps its level and slows
 * down. False if the next rung is not allowed or fits anyway, or if `down` would fall below the lowest clock.
 */
static bool swap(const struct ladder ladders[DOMAINS], int64_t left_uw, const int32_t rung[DOMAINS], int up, int down,
                 struct allocation *out)
{
    const struct ladder *rising = &ladders[up], *paying = &ladders[down];
    int32_t next = rung[up] + 1;
    if (!may_rise(rising, rung[up]))
        return false;
    int64_t missing = rising->power_uw[next] - rising->power_uw[rung[up]] - left_uw; /* above 0: the climb has ended */
    int64_t paid = paying->power_uw[rung[down]] - missing;
    for (int d = 0; d < DOMAINS; d++) {
        out->freq_khz[d] = ladders[d].freq_khz[rung[d]];
        out->level[d] = ladders[d].level[rung[d]];
    }
    out->freq_khz[up] = rising->freq_khz[next];
    out->level[up] = rising->level[next];
    out->freq_khz[down] = freq_within(paying, (int32_t)paid, out->level[down]);
    total(ladders, out);
    return out->freq_khz[down] >= FREQ_MIN_KHZ;
}

/*
 * The candidate with most work out of at most 1 + D + D (D - 1) = 17: the climb, filled; the climb with one domain a
 * rung lower, filled; and one domain a rung higher at the expense of another. Without a budget a domain without work
 * starts on its highest rung, since there is nothing to save.
 */
void allocate(const struct ladder ladders[DOMAINS], int32_t budget_uw, struct allocation *best)
{
    int32_t rung[DOMAINS] = {0}, lower[DOMAINS];
    for (int d = 0; d < DOMAINS; d++)
        if (ladders[d].busy == 0 && budget_uw == INT32_MAX)
            rung[d] = ladders[d].rungs - 1;
    int64_t spent = climb(ladders, budget_uw, rung);
    fill(ladders, budget_uw - spent, rung, best);
    for (int d = 0; d < DOMAINS; d++) {
        if (rung[d] == 0)
            continue;
        struct allocation other;
        for (int e = 0; e < DOMAINS; e++)
            lower[e] = rung[e];
        lower[d]--;
        int64_t freed = ladders[d].power_uw[rung[d]] - ladders[d].power_uw[lower[d]];
        fill(ladders, budget_uw - spent + freed, lower, &other);
        if (other.work_khz > best->work_khz)
            *best = other;
    }
    for (int up = 0; up < DOMAINS; up++)
        for (int down = 0; down < DOMAINS; down++) {
            struct allocation other;
            if (up != down && swap(ladders, budget_uw - spent, rung, up, down, &other) &&
                other.work_khz > best->work_khz)
                *best = other;
        }
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
        while (rung + 1 < l->rungs && l->level[rung + 1] <= kept_level[d])
            rung++;
        out->level[d] = l->level[rung];
        out->freq_khz[d] = l->freq_khz[rung];
        if (l->busy && ladder_power_uw(l, out->freq_khz[d], out->level[d]) > l->limit_uw)
            out->freq_khz[d] = freq_within(l, l->limit_uw, out->level[d]);
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
        out->freq_khz[dearest] = max32(freq_within(l, (int32_t)room, out->level[dearest]), below);
        total(ladders, out);
    }
    return out->power_uw <= budget_uw;
}
