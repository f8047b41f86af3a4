#include "decode.h"

#include <math.h>

/* pmu.readings.Quality */
enum { MEASURED, ESTIMATED, STALE, WRAPPED, CLIPPED, MISSING };

/* pmu.readings.RAW_MISSING: the instrument gave no value. */
#define RAW_MISSING INT64_MIN

/* The difference of any two counts modulo 2^64, which is defined for values that no counter can show. */
static int64_t step_of(int64_t before, int64_t now)
{
    return (int64_t)((uint64_t)now - (uint64_t)before);
}

/* The lower of the two; NaN if `value` is. */
static double at_most(double value, double bound)
{
    return value > bound ? bound : value;
}

/****************************************************************
 * CPUs
 ****************************************************************/

/* Ours: fewer reference cycles than this (some microseconds) are the kernel's own work and have no IPC. */
#define IDLE_CYCLES 10000.0
/* Ours: a CPU that ran this long retired something; an interrupt's entry alone is hundreds of instructions. */
#define STUCK_CYCLES 100000.0
/* Ours: an excess up to here is a nominal clock known too roughly, or CPUs read at different times in two sweeps. */
#define TOLERANCE 1.1
/* Ours: how much later one sweep may reach a CPU than the other did. */
#define JITTER_S 0.005

enum { CYCLES, REFERENCE, INSTRUCTIONS, STALLS, MISSES };
enum { V_INSTRUCTIONS, V_CYCLES, V_REFERENCE, V_IPC, V_BUSY, V_STALL, V_MISSES, V_KHZ };

/* The count of an event; NaN where it is not counted here, missing, backwards, or faster than any processor. */
static double counted(const cpu_rules_t *rules, int event, const int64_t *before, const int64_t *now, double elapsed_s)
{
    int32_t column = rules->column[event];
    if (column < 0 || before[column] == RAW_MISSING || now[column] == RAW_MISSING)
        return NAN;
    int64_t step = step_of(before[column], now[column]);
    if (step < 0 || (double)step > rules->most_per_s[event] * (elapsed_s + JITTER_S))
        return NAN;
    return (double)step;
}

void decode_cpus(const cpu_rules_t *rules, const int64_t *before, const int64_t *now, double elapsed_s, double *values,
                 uint8_t *quality)
{
    const double khz = rules->reference_khz > 0 ? rules->reference_khz : NAN;
    const double share_per_cycle = 1e-3 / khz / elapsed_s;
    const double most_busy = TOLERANCE * (1 + JITTER_S / elapsed_s);
    const int32_t n = rules->n_cpus;

    for (int32_t cpu = 0; cpu < n; cpu++, before += rules->n_events, now += rules->n_events) {
        double count[CPU_EVENTS];
        for (int event = 0; event < CPU_EVENTS; event++)
            count[event] = counted(rules, event, before, now, elapsed_s);

        /* reference cycles estimated from busy time do not prove that a CPU ran; core cycles do */
        int has_run = count[CYCLES] > STUCK_CYCLES || count[INSTRUCTIONS] > STUCK_CYCLES ||
                      (!rules->is_estimated && count[REFERENCE] > STUCK_CYCLES);
        int is_stuck = 0;
        for (int event = CYCLES; event <= INSTRUCTIONS; event++)
            if (has_run && count[event] == 0) {
                count[event] = NAN;
                is_stuck = 1;
            }
        double busy = count[REFERENCE] * share_per_cycle;
        double stall = count[STALLS] / count[CYCLES];
        int is_awake = count[REFERENCE] >= IDLE_CYCLES;

        double *value = values + cpu;
        value[V_INSTRUCTIONS * n] = count[INSTRUCTIONS];
        value[V_CYCLES * n] = count[CYCLES];
        value[V_REFERENCE * n] = count[REFERENCE];
        value[V_IPC * n] = is_awake && !is_stuck ? count[INSTRUCTIONS] / count[REFERENCE] : NAN;
        value[V_BUSY * n] = at_most(busy, 1.0);
        value[V_STALL * n] = at_most(stall, 1.0);
        value[V_MISSES * n] = count[MISSES];
        value[V_KHZ * n] = is_awake ? count[CYCLES] / count[REFERENCE] * khz : NAN;
        if (is_stuck)
            quality[cpu] = STALE;
        else if (isnan(count[INSTRUCTIONS]) || isnan(count[REFERENCE]))
            quality[cpu] = MISSING;
        else if (busy > most_busy || stall > TOLERANCE)
            quality[cpu] = CLIPPED;
        else
            quality[cpu] = rules->is_estimated ? ESTIMATED : MEASURED;
    }
}

/****************************************************************
 * Columns: what an instrument registers, and RAPL zones
 ****************************************************************/

/* Ours: the steps in which a counter moves (RAPL: 1 ms), and the time between reading the clock and the counter. */
#define COUNTER_STEP_S 0.01
/* Ours: five of RAPL's steps. */
#define COUNTER_STUCK_S 0.005

static int is_reading(const column_rules_t *rules, int64_t raw)
{
    return raw >= 0 && (rules->range == 0 || raw <= rules->range);
}

/* What was counted between two readings of a counter that starts again from 0 after `range`. One wrap is added back. A
 * reading so late that the counter may have wrapped twice gives what it shows, a lower bound. */
static uint8_t decode_counter(const column_rules_t *rules, int64_t before, int64_t now, double elapsed_s, double *value)
{
    if (!is_reading(rules, before) || !is_reading(rules, now))
        return MISSING;
    int64_t step = now - before;
    int is_wrapped = step < 0 && rules->range > 0;
    if (is_wrapped)
        step += rules->range;
    const double most_per_s = rules->most_per_s * rules->per_unit;
    int is_late = rules->range > 0 && elapsed_s * rules->most_per_s * rules->per_unit >= (double)rules->range;
    int is_possible = step >= 0 && (double)step <= most_per_s * (elapsed_s + COUNTER_STEP_S);
    if (!is_late && !is_possible)
        return MISSING;
    int is_stuck = step == 0 && rules->is_never_idle && elapsed_s >= COUNTER_STUCK_S;
    if (!is_stuck)
        *value = (double)step * rules->unit_per_count;
    return is_late || is_stuck ? STALE : is_wrapped ? WRAPPED : rules->sound;
}

/* What is shown now, kept within the bounds of what the instrument can show. */
static uint8_t decode_level(const column_rules_t *rules, int64_t now, double *value)
{
    if (now == RAW_MISSING)
        return MISSING;
    double shown = (double)now / rules->per_unit;
    *value = shown < rules->lowest ? rules->lowest : at_most(shown, rules->highest);
    return *value != shown ? CLIPPED : rules->sound;
}

/* Bits; a negative number has none, nor has one with more bits than there are: all ones mean that there is no value. */
static uint8_t decode_flag(const column_rules_t *rules, int64_t now, double *value)
{
    if (now < 0 || (double)now > rules->highest)
        return MISSING;
    *value = (double)now;
    return rules->sound;
}

void decode_columns(const column_rules_t *rules, int32_t n_columns, const int64_t *before, const int64_t *now,
                    double elapsed_s, double *values, uint8_t *quality)
{
    for (int32_t i = 0; i < n_columns; i++, rules++) {
        values[i] = NAN;
        if (rules->kind == COUNTER)
            quality[i] = decode_counter(rules, before[i], now[i], elapsed_s, &values[i]);
        else if (rules->kind == LEVEL)
            quality[i] = decode_level(rules, now[i], &values[i]);
        else
            quality[i] = decode_flag(rules, now[i], &values[i]);
    }
}

/****************************************************************
 * GPUs
 ****************************************************************/

/* Ours: the energy counter advances in steps of 20 to 100 ms, so a short interval may show that of a longer one. */
#define GPU_STEP_S 1.0
/* Ours: on a board that draws power, an energy counter that does not change for longer than this is stuck. */
#define GPU_STUCK_S 0.5

enum {
    V_SM_CLOCK, V_MEMORY_CLOCK, V_POWER, V_ENERGY, V_TEMPERATURE, V_GPU_USE, V_MEMORY_USE, V_OCCUPANCY, V_SM_ACTIVE,
    V_DRAM_ACTIVE
};

static double value_of(int64_t reading)
{
    return reading == RAW_MISSING ? NAN : (double)reading;
}

/* Joules and watts of a board, and their quality. */
static uint8_t board_energy(double peak_mw, const gpu_reading_t *before, const gpu_reading_t *now, double elapsed_s,
                            double *joules, double *watts)
{
    int64_t step_mj = step_of(before->energy_mj, now->energy_mj);
    int is_counted = before->energy_mj != RAW_MISSING && now->energy_mj != RAW_MISSING && step_mj >= 0 &&
                     (double)step_mj <= peak_mw * (elapsed_s + GPU_STEP_S);
    double power_mw = value_of(now->power_mw);

    *watts = at_most(power_mw, peak_mw) * 1e-3;
    *joules = is_counted ? (double)step_mj * 1e-3 : *watts * elapsed_s;
    if (is_counted && step_mj == 0 && power_mw > 0 && elapsed_s >= GPU_STUCK_S) {
        *joules = NAN;
        return STALE;
    }
    if (power_mw > peak_mw)
        return CLIPPED;
    return is_counted ? MEASURED : ESTIMATED;
}

void decode_gpus(const double *peak_mw, int32_t n_gpus, const gpu_reading_t *before, const gpu_reading_t *now,
                 double elapsed_s, double *values, uint8_t *occupancy_quality, uint8_t *quality)
{
    for (int32_t gpu = 0; gpu < n_gpus; gpu++) {
        const gpu_reading_t *is = &now[gpu];
        double joules, watts;
        quality[gpu] = board_energy(peak_mw[gpu], &before[gpu], is, elapsed_s, &joules, &watts);

        double share[] = {
            value_of(is->gpu_utilization_pct) * 1e-2, value_of(is->memory_utilization_pct) * 1e-2,
            value_of(is->sm_occupancy_ppm) * 1e-6,    value_of(is->sm_active_ppm) * 1e-6,
            value_of(is->dram_active_ppm) * 1e-6,
        };
        for (int i = 0; i < 5; i++) {
            if (share[i] > 1)
                quality[gpu] = CLIPPED;
            share[i] = at_most(share[i], 1.0);
        }
        double *value = values + gpu;
        value[V_SM_CLOCK * n_gpus] = value_of(is->sm_clock_mhz);
        value[V_MEMORY_CLOCK * n_gpus] = value_of(is->memory_clock_mhz);
        value[V_POWER * n_gpus] = watts;
        value[V_ENERGY * n_gpus] = joules;
        value[V_TEMPERATURE * n_gpus] = value_of(is->temperature_c);
        value[V_GPU_USE * n_gpus] = share[0];
        value[V_MEMORY_USE * n_gpus] = share[1];
        value[V_OCCUPANCY * n_gpus] = isnan(share[2]) ? share[0] : share[2]; /* the weaker signal before Hopper */
        value[V_SM_ACTIVE * n_gpus] = share[3];
        value[V_DRAM_ACTIVE * n_gpus] = share[4];
        occupancy_quality[gpu] = !isnan(share[2]) ? MEASURED : isnan(share[0]) ? MISSING : ESTIMATED;
        if (is->sm_clock_mhz == RAW_MISSING && isnan(share[0]))
            quality[gpu] = MISSING;
    }
}
