/*
 * The processor that a ControlPULP controller manages: power, heat, sensors and work of 36 cores in 4 voltage domains.
 *
 * One step is 50 us, as published. The thermal network is linear; the caller discretises it once, as published (forward
 * Euler): x += flow(x) with 76 states, given as sparse rows. Power sensors show the mean of the last 100 us (the
 * published plant divides a sum of three steps by two; we do not copy that). Temperatures are sampled every 250 us.
 * Clocks and voltages take effect with the next step.
 */
#ifndef PULP_PLANT_H
#define PULP_PLANT_H

#include <stdint.h>

#define PULP_CORES 36
#define PULP_DOMAINS 4
#define PULP_STATES 76
#define PULP_STEP_NS 50000

#define PULP_SENSORS 77 /* temperatures of 36 cores, activities of 36 cores, 5 powers */
#define PULP_PAST 512   /* readings that a late sensor may be behind */

/* The amount of a fault is in units of the wire; of LATE in readings (250, 50, 100 us), of SWAPPED the other sensor. */
enum pulp_fault {
    PULP_SOUND, PULP_UNREADABLE, PULP_STUCK, PULP_FIXED, PULP_SCALED, PULP_BIASED, PULP_NOISY, PULP_LATE, PULP_SWAPPED
};

typedef struct {
    /* wires, owned by the controller's board */
    int32_t *temperature_mk, *capacitance_ff, *power_uw; /* sensors: 36, 36, 5 (package first) */
    const int32_t *freq_khz, *volt_mv;                   /* actuators: 36, 4 */

    /* thermal network: row r has entries row_start[r] .. row_start[r + 1] of x_next = M x + input */
    int32_t row_start[PULP_STATES + 1], column[1024];
    double entry[1024];
    double core_k_per_w[PULP_CORES]; /* temperature gained by the silicon node per watt and step */
    double ambient_gain, ambient_c;  /* of the air node, per kelvin and step */
    int32_t air;                     /* its index */
    double state_c[PULP_STATES];     /* silicon 0..35, copper 36..71, heat sink, board, motherboard, air */

    /* load */
    double capacitance[PULP_CORES];  /* the published c of the instruction mix; 0: finished */
    double memory_share[PULP_CORES]; /* share of the time at the highest clock that does not scale with the clock */
    double dynamic_factor[PULP_CORES], leak_factor[PULP_CORES]; /* silicon variation; 1: none */

    /* sensors */
    double temperature_noise_k, power_noise, capacitance_noise; /* standard deviations; the last two relative */
    int32_t fault[PULP_SENSORS];
    double fault_amount[PULP_SENSORS];
    int32_t truth[PULP_SENSORS], past[PULP_SENSORS][PULP_PAST], past_at[PULP_SENSORS], past_length[PULP_SENSORS];
    uint64_t noise;                  /* generator state */

    /* results */
    int64_t now_ns, steps;
    int32_t is_started;              /* whether sensors have their first readings */
    double power_w[PULP_DOMAINS + 1], energy_j;
    double power_sum_w[PULP_DOMAINS + 1]; /* for the sensors' mean */
    double work_s[PULP_CORES];       /* seconds of the highest clock */
    int64_t unsafe_steps;            /* steps at a clock above the limit of its voltage */
    float *trace_w;                  /* mean package power of each 500 us, or NULL */
    int64_t trace_size, trace_length;
    double trace_sum_w;
    int64_t longest_advance_ns;      /* since the trace began: time without a process that advances the plant */
} pulp_plant_t;

/* A plant in memory that several processes map. */
#define PULP_SHARED_MAGIC 1347765328
#define PULP_SHARED_TRACE 20000
typedef struct {
    int64_t magic, epoch_ns; /* CLOCK_MONOTONIC at the start of the plant's time; 0: not started */
    pulp_plant_t plant;      /* its pointers are valid in the process that advances it */
    int32_t temperature_mk[PULP_CORES], capacitance_ff[PULP_CORES], power_uw[PULP_DOMAINS + 1];
    int32_t freq_khz[PULP_CORES], volt_mv[PULP_DOMAINS];
    float trace_w[PULP_SHARED_TRACE];
} pulp_shared_t;

int32_t pulp_shown(pulp_plant_t *p, int sensor, int32_t truth, int32_t before); /* sensor_faults.c */
double pulp_gauss(pulp_plant_t *p);                                             /* normal, deviation 1 */
void pulp_advance(void *plant, int64_t until_ns);
double pulp_core_power_w(double capacitance, double freq_ghz, double volt, double temperature_c);

#endif
