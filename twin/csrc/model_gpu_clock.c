/*
 * GPUs: the clock of a card, from locks, the firmware's choice, the power limit, heat and idleness.
 *
 * The whole card has one clock. Unlocked, the card's firmware chooses it within power and thermal limits: the highest
 * boost under load, or a level per workload where it was measured. Locked, it is the highest clock of the locked range
 * under load; a range that leaves out no clock is no lock. An applications clock below the highest is such a lock too,
 * and the lower of both applies.
 *
 * Lock. A request takes effect after a latency that is drawn for each: uniform over 0.6 to 1.4 of the card's, or with
 * `lock_spread` log-normal about it, lock_latency_s * exp(lock_spread * n), n normal and within 3.5.
 *
 * Power limit. It applies to what the card measures: its sensor's gain and offset are in it. Without `limit_settle_s`
 * the card has the highest clock whose steady watts are within it. With it the limiter is of first order: the highest
 * clock c that it allows moves to the clock c* at which kernels would draw limit_share * limit,
 *
 *     dc / dt = (c* - c) / limit_settle_s,        c* between two levels by a line through their watts,
 *
 * and the card has the level above c for the share of ticks that c is above the level below. Its mean watts are then
 * those of the line, so the mean is limit_share * limit once c has settled. O(levels between two ticks' c*), mostly 1.
 *
 * Ripple. A limiter does not stay at c: half of the time it is above, half below, the further the more it takes away
 * from the clock h that the card would have,
 *
 *     d = limit_ripple * (h - c),        c*: where the mean watts of c* - d and c* + d are limit_share * limit.
 *
 * Watts are convex in the clock, so c* is lower than without; work that waits for memory loses in the lower half what
 * the upper half does not bring back. Both ends rise with c, so c* is found by bisection, O(log levels), in some ticks.
 *
 * Idle. A card keeps its clock for `idle_after_s` after its last kernel, then falls to its idle clock if no lock keeps
 * it higher. With `wake_s` it stays there for so long once work is back.
 */
#include <math.h>

#include "model_internal.h"

#define SETTLED 0.01           /* ours: levels from c*, from which on the limiter is there */
#define RIPPLE_TICKS 8         /* ours: it is looked for again after so many, for the limiter's sake: it takes 100 */
#define RIPPLE_TURN 0.61803399 /* ours: of a swing in a tick; no rhythm of readings meets one half only */

/* --- watts --- */

/* Watts of this card where the table has `table_w`, for a load whose mean is `mean_w` in the table. */
double gpu_card_w(const gpu_t *gpu, double table_w, double mean_w)
{
    const twin_thermal_t *net = &gpu->card.thermal;
    double scale = gpu->card.power_scale;
    double steady_c = net->ambient_c + (net->die_k_per_w + net->sink_k_per_w) * (mean_w * scale);

    return table_w * (1.0 + gpu->card.leak_per_k * (gpu->heat.die_c - steady_c)) * scale;
}

/* What the card's shunts and converters make of true watts. */
double gpu_measured_w(const gpu_t *gpu, double true_w)
{
    return gpu->card.power_gain * true_w + gpu->card.power_offset_w;
}

/* --- lock --- */

static int32_t level_at_most(const gpu_t *gpu, double mhz)
{
    int32_t level = gpu->card.n_levels - 1;

    while (level > 0 && floor(gpu->clock_khz[level] / 1e3) > mhz)
        level--;
    return level;
}

static int32_t level_at_least(const gpu_t *gpu, double mhz)
{
    int32_t level = 0;

    while (level < gpu->card.n_levels - 1 && floor(gpu->clock_khz[level] / 1e3) < mhz)
        level++;
    return level;
}

/* Whether a range leaves out any clock of the card; one that does not is no lock. */
static int constrains(const gpu_t *gpu, double min_mhz, double max_mhz)
{
    const double *khz = gpu->clock_khz;

    return min_mhz > floor(khz[0] / 1e3) || max_mhz < floor(khz[gpu->card.n_levels - 1] / 1e3);
}

/* The range that the lock and the applications clock request together; 0, 0 if neither leaves out a clock. */
static void take_lock_request(gpu_t *gpu, const twin_gpu_t *shared)
{
    uint32_t min_mhz = shared->lock_min_mhz, max_mhz = shared->lock_max_mhz, applied_mhz = shared->applications_mhz;

    if (!constrains(gpu, min_mhz, max_mhz))
        min_mhz = max_mhz = 0;
    gpu->requested_is_applied = applied_mhz > 0 && constrains(gpu, 0, applied_mhz)
                                && (max_mhz == 0 || applied_mhz < max_mhz);
    if (gpu->requested_is_applied) {
        min_mhz = min_mhz < applied_mhz ? min_mhz : applied_mhz;
        max_mhz = applied_mhz;
    }
    gpu->requested_min_mhz = min_mhz;
    gpu->requested_max_mhz = max_mhz;
}

/* From a request until the lock is in force. */
static double drawn_latency_s(twin_model_t *m, const twin_gpu_card_t *card)
{
    if (card->lock_spread > 0)
        return card->lock_latency_s * exp(card->lock_spread * model_normal(m));
    return card->lock_latency_s * (0.6 + 0.8 * model_uniform(m));
}

/* Takes over locks and power limits that NVML clients have requested since the last poll. */
void gpu_poll(twin_model_t *m)
{
    for (int32_t g = 0; g < m->node.n_gpus; g++) {
        gpu_t *gpu = &m->gpus[g];
        twin_gpu_t *shared = &m->shared->gpu[g];
        int ignores = (shared->faults & TWIN_GPU_SET_NO_EFFECT) != 0;
        uint32_t lock_seq = shared->lock_seq, limit_seq = shared->limit_seq;
        atomic_thread_fence(memory_order_acquire);
        if (lock_seq != gpu->lock_seq) {
            gpu->lock_seq = lock_seq;
            if (!ignores) {
                take_lock_request(gpu, shared);
                gpu->lock_step = m->step + (int64_t)(drawn_latency_s(m, &gpu->card) / STEP_S);
            }
        }
        if (limit_seq != gpu->limit_seq) {
            gpu->limit_seq = limit_seq;
            if (!ignores)
                gpu->limit_w = shared->power_limit_mw * 1e-3;
        }
    }
}

/* --- idle --- */

static int32_t free_level(twin_model_t *m, int32_t g)
{
    gpu_t *gpu = &m->gpus[g];
    int32_t units[TWIN_TENANTS], n = gpu_units(m, g, units), level = 0;
    double quiet_s = (double)(m->step - gpu->kernel_step) * STEP_S;

    if (n > 0) {
        if (gpu->awake_step == NEVER)
            gpu->awake_step = m->step + (int64_t)(gpu->card.wake_s / STEP_S);
        if (m->step < gpu->awake_step)
            return gpu->card.idle_level;
        for (int32_t i = 0; i < n; i++) /* the card has one clock: that of the program that needs the highest */
            level = unit_phase_of(m, units[i])->free_level > level ? unit_phase_of(m, units[i])->free_level : level;
        return gpu->lock_max_mhz > 0 ? gpu->card.n_levels - 1 : level;
    }
    if (quiet_s <= gpu->card.idle_after_s)
        return gpu->level;
    gpu->awake_step = NEVER;
    return gpu->card.idle_level;
}

/* --- power limit --- */

/* Watts that the card would measure while its kernels run at this level. */
static double kernel_w(const twin_model_t *m, int32_t g, int32_t level)
{
    int32_t units[TWIN_TENANTS], n = gpu_units(m, g, units);
    double use[TWIN_TENANTS];

    gpu_share(m, g, level, units, n, use);
    double kernel_w = gpu_table_w(m, TWIN_KERNEL_W, level, units, n, use);
    double mean_w = gpu_table_w(m, TWIN_MEAN_W, level, units, n, use);
    return gpu_measured_w(&m->gpus[g], gpu_card_w(&m->gpus[g], kernel_w, mean_w));
}

/* c*: the level, with its fraction, at which kernels draw `target_w`; the search begins where the limiter is. */
static double level_of_w(const twin_model_t *m, int32_t g, double target_w)
{
    int32_t top = m->gpus[g].card.n_levels - 1, level = (int32_t)m->gpus[g].cap_level;

    while (level < top && kernel_w(m, g, level + 1) <= target_w)
        level++;
    while (level > 0 && kernel_w(m, g, level) > target_w)
        level--;
    double below_w = kernel_w(m, g, level);
    if (level == top || below_w >= target_w)
        return level;
    return level + (target_w - below_w) / (kernel_w(m, g, level + 1) - below_w);
}

static double watts_at(const twin_model_t *m, int32_t g, double at)
{
    int32_t level = (int32_t)at;
    double below_w = kernel_w(m, g, level);

    return at > level ? below_w + (at - level) * (kernel_w(m, g, level + 1) - below_w) : below_w;
}

/* d, in levels: how far the limiter swings about `at`. It does not swing below the lowest level. */
static double swing(const gpu_t *gpu, double at, double high)
{
    double d = gpu->card.limit_ripple * (high - at);

    return d < at ? d : at;
}

/* c* with its ripple, below `high`, whose watts are above the target. */
static double rippling_level_of_w(const twin_model_t *m, int32_t g, int32_t high, double target_w)
{
    double low = 0, top = high;

    while (top - low > SETTLED) {
        double at = (low + top) / 2, d = swing(&m->gpus[g], at, high);
        if ((watts_at(m, g, at - d) + watts_at(m, g, at + d)) / 2 > target_w)
            top = at;
        else
            low = at;
    }
    return low;
}

/* Where the limiter goes; at or above `level`, the clock without it, where the limit does not bind. */
static double goal_of(twin_model_t *m, int32_t g, int32_t level, double target_w)
{
    gpu_t *gpu = &m->gpus[g];

    if (!gpu_has_work(m, g))
        return gpu->card.n_levels - 1;
    if (gpu->card.limit_ripple == 0 || kernel_w(m, g, level) <= target_w)
        return level_of_w(m, g, target_w);
    if (m->step / TICK_STEPS % RIPPLE_TICKS == 0 || gpu->cap_high != level) {
        gpu->cap_high = level;
        gpu->cap_goal = rippling_level_of_w(m, g, level, target_w);
    }
    return gpu->cap_goal;
}

/* Moves the limiter by a tick; the level that it has the card in, or `level` where that is lower. */
static int32_t settling_level(twin_model_t *m, int32_t g, int32_t level, double target_w)
{
    gpu_t *gpu = &m->gpus[g];
    double goal = goal_of(m, g, level, target_w);
    double follow = TICK_S / gpu->card.limit_settle_s;

    gpu->cap_level += (goal - gpu->cap_level) * (follow < 1.0 ? follow : 1.0);
    if (fabs(goal - gpu->cap_level) < SETTLED)
        gpu->cap_level = goal;
    if (!gpu_has_work(m, g) || gpu->cap_level >= level)
        return level;
    gpu->reasons |= GPU_REASON_POWER_CAP;
    double turn = (double)(m->step / TICK_STEPS) * RIPPLE_TURN, d = swing(gpu, gpu->cap_level, level);
    double at = turn - floor(turn) < 0.5 ? gpu->cap_level + d : gpu->cap_level - d;
    int32_t below = (int32_t)at;
    gpu->cap_carry += at - below;
    if (gpu->cap_carry < 1.0)
        return below;
    gpu->cap_carry -= 1.0;
    return below + 1;
}

static int32_t limited_level(twin_model_t *m, int32_t g, int32_t level)
{
    gpu_t *gpu = &m->gpus[g];
    double target_w = gpu->card.limit_share * gpu->limit_w;

    if (gpu->card.limit_settle_s > 0)
        return settling_level(m, g, level, target_w);
    while (gpu_has_work(m, g) && level > 0 && kernel_w(m, g, level) > target_w) {
        level--;
        gpu->reasons |= GPU_REASON_POWER_CAP;
    }
    return level;
}

/* --- choice --- */

int32_t gpu_choose_level(twin_model_t *m, int32_t g)
{
    gpu_t *gpu = &m->gpus[g];
    int32_t level = free_level(m, g);

    gpu->reasons = gpu_has_work(m, g) ? 0 : GPU_REASON_IDLE;
    if (gpu->lock_max_mhz > 0) {
        int32_t low = level_at_least(gpu, gpu->lock_min_mhz), high = level_at_most(gpu, gpu->lock_max_mhz);
        level = level < low ? low : level;
        level = level > high ? high : level;
        if (gpu->is_applied && gpu_has_work(m, g))
            gpu->reasons |= GPU_REASON_APPLICATIONS;
    }
    level = limited_level(m, g, level);
    if (gpu->heat.die_c > m->shared->gpu[g].slowdown_c) {
        level = level / 2; /* ours: a hot card runs at half its level until it has cooled */
        gpu->reasons |= GPU_REASON_THERMAL;
    }
    return level;
}
