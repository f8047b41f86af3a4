/*
 * What each CPU, column and GPU did between two sweeps, from the sweeps' integers. A RAPL zone is a column, too. pmu/decode.py,
 * pmu/layout.py (Column) and pmu/instruments/rapl.py state the rules.
 *
 * This code runs for hundreds of CPUs at every tick. As numpy operations on whole arrays the rules took a fifth of the
 * agent's processor time, and a loop over CPUs is also easier to read. A replay needs the same bits from the same
 * integers: so nothing here reads anything else, and the compiler may not contract a * b + c.
 */
#ifndef PMU_DECODE_H
#define PMU_DECODE_H

#include <stdint.h>

/* What a CPU counts, in the order of pmu.instruments.counters.EVENTS. */
#define CPU_EVENTS 5
/* Arrays of a CpuSample and of a GpuSample that are floats: rows of `values`, in the order of their fields. */
#define CPU_VALUES 8
#define GPU_VALUES 10

typedef struct {
    int32_t n_cpus, n_events;
    int32_t column[CPU_EVENTS];    /* where in a sweep each event is; below 0: not counted on this machine */
    double most_per_s[CPU_EVENTS]; /* what no CPU exceeds */
    double reference_khz;          /* 0 unknown */
    int32_t is_estimated;          /* reference cycles are estimated from busy time */
} cpu_rules_t;

/* How a column decodes, in the order of pmu.layout.KINDS. */
#define COUNTER 0
#define LEVEL 1
#define FLAG 2

/* One column (pmu.layout.Column); a unit is `per_unit` counts of the raw integer. */
typedef struct {
    int32_t kind;
    uint8_t sound;         /* the quality of a good reading: MEASURED or ESTIMATED */
    int32_t is_never_idle; /* a counter that has not moved is stuck */
    int64_t range;         /* where a counter starts again; 0: it does not */
    double per_unit, unit_per_count;
    double most_per_s;      /* units that a counter cannot exceed */
    double lowest, highest; /* units between which a level lies */
} column_rules_t;

/* One row of RawSweep.gpu, in the order of pmu.readings.GPU_FIELDS. */
typedef struct {
    int64_t sm_clock_mhz, memory_clock_mhz, power_mw, energy_mj, temperature_c;
    int64_t gpu_utilization_pct, memory_utilization_pct, sm_occupancy_ppm, sm_active_ppm, dram_active_ppm;
    int64_t throttle_reasons;
} gpu_reading_t;

/* `before` and `now` are [n_cpus][n_events]; fills values[CPU_VALUES][n_cpus] and quality[n_cpus]. */
void decode_cpus(const cpu_rules_t *rules, const int64_t *before, const int64_t *now, double elapsed_s, double *values,
                 uint8_t *quality);

/* All arrays are [n_columns]; fills values (a counter's since `before`, else those of `now`), with their quality. */
void decode_columns(const column_rules_t *rules, int32_t n_columns, const int64_t *before, const int64_t *now,
                    double elapsed_s, double *values, uint8_t *quality);

/* All arrays are [n_gpus], `peak_mw` infinite where unknown; fills values[GPU_VALUES][n_gpus] and the qualities. */
void decode_gpus(const double *peak_mw, int32_t n_gpus, const gpu_reading_t *before, const gpu_reading_t *now,
                 double elapsed_s, double *values, uint8_t *occupancy_quality, uint8_t *quality);

#endif
