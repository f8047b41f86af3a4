/*
 * State and functions that the source files of the node model share. Arrays are over CPUs, cores, packages, domains.
 *
 * A *unit* is what executes a phase: logical CPU u < n_cpus, or one of the TWIN_TENANTS places of a GPU.
 *
 * Source files, from the bottom up. A file calls files of earlier lines, no others (tests/test_c_units.py compares this
 * list with the compiled objects).
 *
 *   model_state
 *   model_idle
 *   model_cpu
 *   model_uncore
 *   model_turbo
 *   model_bandwidth
 *   model_meter
 *   model_gpu_share
 *   model_gpu_clock
 *   model_gpu
 *   model_work
 *   model
 *   model_memory
 */
#ifndef TWIN_MODEL_INTERNAL_H
#define TWIN_MODEL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "model.h"

#define STEP_S (TWIN_STEP_NS * 1e-9)
#define TICK_STEPS 20 /* 1 ms: meters, heat, limits, GPU sensors */
#define TICK_S (TICK_STEPS * STEP_S)
#define NEVER INT64_MAX
#define SENSOR_RING 16
#define GPU_REASON_IDLE 0x1u /* nvmlClocksEventReason* */
#define GPU_REASON_APPLICATIONS 0x2u
#define GPU_REASON_POWER_CAP 0x4u
#define GPU_REASON_THERMAL (0x8u | 0x40u) /* the hardware slows down, and heat is why */
#define GPM_SHARES 5 /* graphics, SM active, SM occupancy, DRAM active, FP64, as in enum twin_gpu_reading */

enum unit_state { UNIT_IDLE, UNIT_RUN, UNIT_GAP, UNIT_WAIT, UNIT_WAKE };
enum meter { METER_CORE, METER_UNCORE, METER_DRAM, METERS };

typedef struct {
    twin_group_t shape; /* its pointers lead into `store` */
    void *store;
    int32_t part, iteration, rounds, n_waiting, finished;
    int32_t tenant; /* its place on its cards */
    int32_t is_stale; /* a unit's rate changed: next_step must be computed again */
    int64_t next_step, start_step, end_step;
    double base_s;   /* seconds at the highest clock of the finished iterations */
    double total_s;
    double *phase_s; /* [n_phases][4]: seconds, CPU J, GPU J, node J */
    int64_t mark_step;
    double mark_j[3];
} group_t;

typedef struct {
    double die_c, sink_c;
} heat_t;

typedef struct {
    twin_gpu_card_t card;
    double *clock_khz, *idle_w;
    /* clock: lock requests, what is in force, level */
    uint32_t lock_seq, limit_seq, requested_min_mhz, requested_max_mhz, lock_min_mhz, lock_max_mhz;
    int32_t requested_is_applied, is_applied; /* the applications clock is lower than the lock: requested, in force */
    int64_t lock_step; /* when the requested lock comes into force */
    int64_t kernel_step; /* last time a kernel ran */
    int64_t awake_step;  /* when it has left its idle clock for work; NEVER: it has fallen asleep */
    double cap_level, cap_carry; /* the limiter's level with its fraction; ticks owed to the level above */
    double cap_goal;             /* where a rippling limiter goes, as long as the card would have cap_high without it */
    int32_t cap_high;
    int32_t level;
    uint64_t reasons;
    double limit_w, limited_s, overheated_s;
    /* rates now, and their integrals */
    double power_w, kernel_rate, memory_rate, occupancy_rate, sm_rate, fp_rate, gap_rate;
    double energy_j, kernel_s, memory_s, occupancy_s, sm_s, fp_s, gap_s;
    heat_t heat;
    double tick_j;
    /* sensors */
    double ring_j[SENSOR_RING], window_j, shown_w, shown_j;
    double instant_window_j, instant_w;
    uint32_t ring_head;
    double window_kernel_s, window_memory_s, window_gap_s;
    uint32_t shown_gpu_pct, shown_memory_pct, shown_pcie_kbps;
    /* GPM: each share over the last window, its integral then and at the last tick, the error of a stuck one */
    double gpm_share[GPM_SHARES], gpm_window_s[GPM_SHARES], gpm_tick_s[GPM_SHARES], gpm_astray_s[GPM_SHARES];
    double noise, power_noise;
} gpu_t;

struct twin_model {
    pthread_mutex_t mutex;
    atomic_int waiting;  /* callers that wait for the mutex during a run */
    twin_node_t node;    /* its pointers lead into `store` */
    void *store;
    twin_gpus_t *shared;
    int64_t step, flushed_step, next_step;
    int64_t origin_ns;
    int following;
    uint64_t random;
    double counter_noise;
    double air_k; /* by which the air is warmer than the machine file's */

    /* logical CPUs */
    double *count, *rate;      /* [TWIN_EVENTS + 1][n_cpus]; the last row is busy seconds */
    double *load;              /* share of time in which a CPU without a unit runs programs of the host */
    double *noise;             /* [3][n_cpus]: instructions, stalls, misses */
    int32_t *threads;          /* CPUs ordered by core */
    int32_t *first_thread;     /* [n_cores + 1] into threads */
    /* memory bandwidth: what each CPU asks for, the share of its time that waits for it; scratch of the search */
    double *demand_gbs, *demand_share, *share_gbs, *share_memory, *share_stretch;
    /* cores */
    double *core_dynamic_w, *core_leak_w, *core_traffic, *core_c, *core_heat;
    double *memory_c; /* per package */
    double *core_j, *core_gb; /* integrals of power and of memory traffic */
    int32_t *core_busy, *core_license;
    int32_t *idle_state, n_asleep;   /* -1: active; how many cores are in the deepest state */
    int64_t *idle_step, *idle_since; /* when it became idle; entered its state */
    double *idle_s;                  /* [n_idle][n_cores]: time in each state until then */
    uint32_t *idle_enabled;
    int32_t *core_hosts; /* whether it runs programs of the host */
    double *core_stretch, *host_gbs; /* how much longer its threads wait for memory; what the host's programs take */
    /* domains */
    int32_t *first_cpu, *next_cpu; /* linked list of a domain's CPUs */
    int32_t *first_policy, *next_policy; /* linked list of a domain's policies */
    int32_t *level, *wanted_level, *shown_level, *turbo_level, *domain_package;
    int64_t *due_step;
    /* cpufreq policies: requests of the kernel, and the level that follows from them */
    int32_t *policy_level, *policy_domain, *governor;
    double *min_khz, *max_khz, *set_khz, *preferred_khz, *policy_busy, *governed_busy_s;
    int64_t next_domain_step, governor_step;
    /* packages */
    double *meter_w, *meter_j;     /* [METERS][n_packages] */
    double *tick_j, *tick_w, *cap_hz, *cap_carry; /* tick_w: package power without DRAM, lightly averaged */
    int32_t *cap_level, *dirty;
    double *update_s;              /* time of the firmware's first look at requests */
    heat_t *heat;
    double *uncore_min_khz, *uncore_max_khz, *uncore_now_khz, *uncore_more_w; /* more_w: than at the top clock */
    double *memory_slower;         /* how much longer cores wait for memory by the uncore's clock */
    int32_t *activity_changed; /* which cores are active, or their licences */
    int32_t *demand_changed, *first_core; /* first_core: [n_packages + 1] */
    double rest_j;
    /* zones */
    twin_zone_t *zones;
    double *average_w;             /* [n_zones][TWIN_CONSTRAINTS] */
    uint64_t *shown_uj;
    double *zone_offset_uj, *zone_tick_j, *zone_w;

    gpu_t *gpus;

    /* units */
    int32_t *unit_group, *unit_state, *unit_phase, *unit_left;
    double *unit_remaining, *unit_rate;
    double *unit_work; /* what a waking unit has before it */
    int64_t *unit_since;
    int32_t n_groups;
    group_t *groups;
    int finished;
    int64_t work_step, work_end_step;
    double *work_energy, *end_energy; /* energy_out at start and end of the workload */
    double *level_leak;               /* per clock level: (k0 + k1 V) exp(v V + o) */
};

/* model_state.c */
double model_uniform(twin_model_t *m); /* [0, 1) */
double model_normal(twin_model_t *m);  /* mean 0, deviation 1, bounded at about 3.5 */
double model_elapsed_s(const twin_model_t *m); /* since the last flush */
const twin_phase_t *unit_phase_of(const twin_model_t *m, int32_t unit);
const double *unit_table(const twin_model_t *m, int32_t unit, int32_t row); /* of its phase, per level */
void unit_settle(twin_model_t *m, int32_t unit); /* takes the work done since `unit_since` off `unit_remaining` */

/* model_idle.c */
void idle_note(twin_model_t *m, int32_t core, int32_t is_idle);
double idle_wake_s(const twin_model_t *m, int32_t core); /* until a thread that wakes there can run */
double idle_core_w(const twin_model_t *m, int32_t core, double leak_w); /* leak_w: without idle states, or active */
double idle_state_s(const twin_model_t *m, int32_t core, int32_t state);
double idle_uncore_w(const twin_model_t *m);
void idle_tick(twin_model_t *m);

/* model_cpu.c */
void cpu_refresh_core(twin_model_t *m, int32_t core);
void cpu_refresh_packages(twin_model_t *m);
void cpu_request(twin_model_t *m, int32_t policy);
void cpu_apply_due(twin_model_t *m);
void cpu_show_levels(twin_model_t *m, int32_t package);
void cpu_govern(twin_model_t *m);
void cpu_noise(twin_model_t *m);
int32_t cpu_level_at_most(const twin_model_t *m, double khz);
int32_t cpu_level_at_least(const twin_model_t *m, double khz);

/* model_uncore.c */
void uncore_follow(twin_model_t *m, int32_t package, int32_t is_active);

/* model_turbo.c */
void turbo_share(twin_model_t *m);

/* model_bandwidth.c */
void bandwidth_share(twin_model_t *m);

/* model_meter.c */
void heat_step(heat_t *heat, const twin_thermal_t *network, double air_k, double power_w, double dt_s);
void meter_tick(twin_model_t *m);
double meter_zone_j(const twin_model_t *m, int32_t zone, double elapsed_s);
double meter_node_j(const twin_model_t *m, double elapsed_s);
void meter_energies(const twin_model_t *m, double *out);

/* model_gpu_share.c */
int32_t gpu_unit_of(const twin_model_t *m, int32_t gpu, int32_t tenant);
int32_t gpu_units(const twin_model_t *m, int32_t gpu, int32_t units[TWIN_TENANTS]); /* that have work */
int gpu_has_work(const twin_model_t *m, int32_t gpu);
/* The speed of each of these units while their kernels run at a level, over its speed alone on the whole card. */
void gpu_share(const twin_model_t *m, int32_t gpu, int32_t level, const int32_t *units, int32_t n, double *use);
double gpu_table_w(const twin_model_t *m, int32_t row, int32_t level, const int32_t *units, int32_t n, const double *use);

/* model_gpu_clock.c */
double gpu_card_w(const gpu_t *gpu, double table_w, double mean_w); /* mean_w: of the whole load, for its temperature */
double gpu_measured_w(const gpu_t *gpu, double true_w);
void gpu_poll(twin_model_t *m);
int32_t gpu_choose_level(twin_model_t *m, int32_t gpu); /* each tick; sets the card's reasons */

/* model_gpu.c */
void gpu_refresh(twin_model_t *m, int32_t gpu);
void gpu_tick(twin_model_t *m);

/* model_work.c */
int work_start(twin_model_t *m, int32_t n_groups, const twin_group_t *groups);
void work_free(twin_model_t *m);
void work_events(twin_model_t *m);
void work_next_step(twin_model_t *m, group_t *group);
void work_progress(const twin_model_t *m, int32_t group, twin_progress_t *out);
void work_phases(const twin_model_t *m, int32_t group, double *out);

/* model.c */
void model_settle(twin_model_t *m); /* after any change: new sums, the next step at which something happens */
void model_events(twin_model_t *m);

#endif
