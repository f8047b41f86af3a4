/*
 * The emulated node's physics: clocks, work, counters, power, heat, energy meters and GPUs.
 *
 * Time advances on a 50 us grid. Between two events (a change of clock, phase, activity or throttle, or the 1 ms tick
 * of meters and thermal network) every rate is constant, so many grid steps are integrated at once: acc += rate *
 * elapsed. Reads add the part since the last event without changing state. So results do not depend on how a caller
 * slices time, and equal inputs give equal bits.
 *
 * Every table is indexed by clock level, ascending. The caller computes voltages, work rates and counter rates per
 * level, so that no formula is in two places.
 */
#ifndef TWIN_MODEL_H
#define TWIN_MODEL_H

#include "twin_gpu.h"

#define TWIN_STEP_NS 50000
#define TWIN_CONSTRAINTS 3
#define TWIN_TABLES 5
#define TWIN_LICENSES 3 /* scalar, AVX2, AVX-512 */

enum twin_event { TWIN_CYCLES, TWIN_REFERENCE, TWIN_INSTRUCTIONS, TWIN_STALLS, TWIN_MISSES, TWIN_EVENTS };
enum twin_governor { TWIN_PERFORMANCE, TWIN_POWERSAVE, TWIN_USERSPACE, TWIN_DYNAMIC };
enum twin_zone_kind { TWIN_ZONE_PACKAGE, TWIN_ZONE_CORE, TWIN_ZONE_UNCORE, TWIN_ZONE_DRAM, TWIN_ZONE_PSYS };

/* Rows of a phase's tables, float64 [TWIN_TABLES][n_levels]. */
enum twin_cpu_table { TWIN_RATE, TWIN_INSTRUCTIONS_HZ, TWIN_STALL_SHARE, TWIN_MISSES_HZ, TWIN_TRAFFIC_GBS };
enum twin_gpu_table { TWIN_GPU_RATE, TWIN_KERNEL_W, TWIN_GAP_W, TWIN_MEAN_W, TWIN_DRAM_ACTIVE };

/* die -> heatsink -> air: two states */
typedef struct {
    double ambient_c;
    double die_k_per_w, die_j_per_k;   /* die to heatsink */
    double sink_k_per_w, sink_j_per_k; /* heatsink to air */
} twin_thermal_t;

typedef struct {
    int32_t kind, package; /* package -1: the whole node */
    double range_uj, unit_uj, start_uj;
    double limit_w[TWIN_CONSTRAINTS], window_s[TWIN_CONSTRAINTS]; /* limit 0: no such constraint */
    int32_t enabled;
} twin_zone_t;

typedef struct {
    int32_t n_levels, idle_level;
    const double *clock_khz, *idle_w; /* per level */
    double leak_per_k; /* share of power per kelvin away from the steady temperature */
    double power_scale; /* watts of this card over those of the phases' tables */
    double power_jitter; /* relative deviation of the slowly varying noise of its power under load */
    twin_thermal_t thermal;
    double memory_over_die_c;
    double lock_spread;                /* deviation of the logarithm of the lock's latency; 0: uniform about it */
    double idle_after_s, wake_s;       /* until the idle clock after the last kernel, and from it for the next */
    double limit_share, limit_settle_s; /* what of a limit it regulates to; time constant, 0: at once, whole levels */
    double limit_ripple;              /* its swing about that, as a share of what the limit takes from the clock */
    double lock_latency_s, power_update_s, power_window_s, energy_update_s, utilization_window_s;
    double power_gain, power_offset_w; /* shown over true watts, of all power readings and the energy counter */
    double instant_window_s;           /* of the instantaneous power, at each power update; 0: the last tick */
} twin_gpu_card_t;

typedef struct {
    int32_t n_cpus, n_cores, n_packages, n_domains, n_policies, n_levels, n_zones, n_gpus;
    const int32_t *core_of, *domain_of, *policy_of; /* per logical CPU */
    const int32_t *package_of;          /* per core */
    const double *clock_hz, *volt;      /* per level */
    const double *label_khz;            /* per level: the number in cpufreq (a turbo state is base + 1 MHz) */
    double tsc_hz, smt_throughput, latency_s, governor_s;
    int32_t n_idle;                /* idle states; 0: an idle core keeps a share of its leakage and wakes at once */
    const double *idle_latency_s, *idle_residency_s, *idle_core_w; /* [n_idle] */
    double uncore_sleep_w;         /* of a package while all cores of the node are in the deepest state */
    double update_s;               /* a package's firmware looks for requests at this interval; 0: after latency_s */
    double switch_up_s, switch_down_s; /* from then on until the clock has changed */
    double dynamic_w; /* W per V^2 and Hz of one core at activity 1 */
    double leak_k0_w, leak_k1_w_per_v, leak_per_v, leak_per_k, leak_offset; /* (k0 + k1 V) exp(v V + k T + o) */
    double idle_leak_share;
    double uncore_idle_w, uncore_busy_w, uncore_w_per_gbs, dram_idle_w, dram_w_per_gbs, rest_w;
    twin_thermal_t thermal;
    double core_k_per_w, core_tau_s, throttle_c;
    double memory_k_per_w, memory_tau_s; /* a package's DIMMs over the air, by their power */
    const double *package_scale; /* per package: watts of its cores over those of the formula */
    double iteration_jitter;     /* relative deviation of the work of iterations */
    double spin_activity, spin_ipc, tick_share; /* waiting threads; an idle CPU's timer tick */
    double core_gbs, package_gbs;  /* memory bandwidth that a core, a package has, 1e9 bytes/s; 0: without bounds */
    double link_gbs, link_loss;    /* of each `link_cores` cores; share of it lost for each further core that asks */
    int32_t link_cores;            /* 0: no links */
    double uncore_min_khz, uncore_khz; /* range of the uncore's clock; 0: none */
    double uncore_cap_low_w, uncore_cap_high_w; /* power limits between which they lower it; 0: none does */
    double uncore_wait, uncore_clock_w; /* share of waiting for memory, watts of a package that go with that clock */
    int32_t n_bins;                /* of turbo; 0: none */
    const int32_t *bin_cores;      /* [n_bins]: up to so many active cores of a package */
    const int32_t *bin_level;      /* [TWIN_LICENSES][n_bins]: the highest level then */
    double package_limit_w;        /* that a package's own firmware keeps, without DRAM; 0: none */
    const twin_zone_t *zones;
    const twin_gpu_card_t *cards;
    uint64_t seed;
    int64_t origin_ns;
} twin_node_t;

typedef struct {
    const double *tables;                                        /* [TWIN_TABLES][n_levels] */
    double activity;                                             /* CPU */
    double memory_s;                                             /* CPU: seconds of a second's work without the clock */
    int32_t license;                                             /* CPU: vectors, see TWIN_LICENSES */
    double gap_share, sm_active, occupancy, fp_active;           /* GPU */
    double gap_active;                                           /* GPU: share of a gap in which small kernels run */
    int32_t free_level;                                          /* GPU: the level that the card's firmware chooses */
    double free_loss;                                            /* GPU: share of speed its clock changes cost */
} twin_phase_t;

typedef struct {
    int32_t phase, iterations;
    double work_s; /* wall seconds at the highest clock */
} twin_part_t;

typedef struct {
    int32_t on_gpu, n_units, n_phases, n_parts;
    int32_t repeat;  /* of the whole program; 0 = until the workload ends */
    int32_t spins;   /* early units spin at the barrier, else sleep */
    const int32_t *units;  /* logical CPUs, or GPUs */
    const double *weight;  /* work of each unit relative to the group's (imbalance), max 1 */
    double nominal_share;  /* throughput share of a thread at which work_s was stated */
    uint32_t memory_mib;
    int32_t instance, compute; /* GPU and compute instance of a divided card; -1: none */
    double mps_share;          /* of the card's SMs under MPS, 0 to 1; 0: by time, in turn with others */
    const twin_phase_t *phases;
    const twin_part_t *parts;
} twin_group_t;

typedef struct {
    double elapsed_s, done_s, total_s; /* total 0: endless */
    int32_t finished;
} twin_progress_t;

typedef struct twin_model twin_model_t;

/* NULL when memory is short. The caller fills the identity fields of `gpus` before; `gpus` must outlive the model. */
twin_model_t *twin_model_new(const twin_node_t *node, twin_gpus_t *gpus);
void twin_model_free(twin_model_t *model);

/* Replaces the running workload at the current time. 0, or -1 when memory is short. */
int twin_model_start(twin_model_t *model, int32_t n_groups, const twin_group_t *groups, double noise);

void twin_model_advance(twin_model_t *model, int64_t steps);
/* Keeps model time at CLOCK_MONOTONIC for `duration_ns`, then returns. Between calls, reads still follow the clock. */
void twin_model_follow(twin_model_t *model, int64_t duration_ns);
void twin_model_unfollow(twin_model_t *model);

/* Instruments. out: int64 [n_cpus][TWIN_EVENTS]. */
int64_t twin_model_time_ns(twin_model_t *model);
int64_t twin_model_age_ns(twin_model_t *model); /* since the model was made; unlike the time it never jumps */
void twin_model_counters(twin_model_t *model, int64_t *out);
void twin_model_busy_us(twin_model_t *model, int64_t *busy, int64_t *idle);
double twin_model_core_j(twin_model_t *model, int32_t core);           /* since the model was made */
double twin_model_traffic_gb(twin_model_t *model, int32_t package);    /* bytes between package and memory, 1e9 */
double twin_model_core_gb(twin_model_t *model, int32_t core);          /* those of one core */
int32_t twin_model_idle_state(twin_model_t *model, int32_t core); /* -1: active, or the machine has no states */
void twin_model_idle_us(twin_model_t *model, int32_t core, int64_t *out); /* [n_idle]: in each state */
int64_t twin_model_zone_uj(twin_model_t *model, int32_t zone);
void twin_model_set_zone_uj(twin_model_t *model, int32_t zone, double uj);
double twin_model_domain_khz(twin_model_t *model, int32_t domain);
double twin_model_uncore_khz(twin_model_t *model, int32_t package);
double twin_model_core_c(twin_model_t *model, int32_t core);
double twin_model_package_c(twin_model_t *model, int32_t package);
double twin_model_memory_c(twin_model_t *model, int32_t package);
double twin_model_power_w(twin_model_t *model, int32_t kind, int32_t package); /* mean of the last tick */

/* Actuators: raw, unvalidated. */
void twin_model_set_policy(twin_model_t *model, int32_t policy, double min_khz, double max_khz, double set_khz,
                           int32_t governor);
/* The highest clock that a dynamic governor chooses; a higher lowest clock of the policy has precedence. */
void twin_model_prefer(twin_model_t *model, int32_t policy, double khz);
void twin_model_set_limit(twin_model_t *model, int32_t zone, int32_t constraint, double limit_w, double window_s);
void twin_model_enable_zone(twin_model_t *model, int32_t zone, int32_t enabled);
void twin_model_set_idle(twin_model_t *model, int32_t core, uint32_t enabled); /* a bit for each state */
void twin_model_set_uncore(twin_model_t *model, int32_t package, double min_khz, double max_khz);
/* By how much the air that the node takes in is warmer than the machine file's, for packages, memory and GPUs alike;
 * from the next tick on. */
void twin_model_set_air(twin_model_t *model, double warmer_k);
void twin_model_set_load(twin_model_t *model, const double *share); /* [n_cpus]: while no unit of a workload runs there */

/* Truth. energy: [core, uncore, dram] per package, then one per GPU, then rest; since the workload's start (until its
 * end if it has ended), joules. phases: per group in order, per phase: seconds, then joules of packages with DRAM, of
 * GPUs, of the node, while the group was in that phase. */
int twin_model_finished(twin_model_t *model);
void twin_model_energy(twin_model_t *model, double *out);
double twin_model_node_j(twin_model_t *model); /* the whole node, since the model was made */
void twin_model_parts(twin_model_t *model, double *out); /* as energy, since the model was made */
void twin_model_progress(twin_model_t *model, int32_t group, twin_progress_t *out);
void twin_model_phases(twin_model_t *model, int32_t group, double *out);

#endif
