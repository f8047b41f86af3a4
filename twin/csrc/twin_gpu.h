/*
 * State of the emulated GPUs, shared between the node model (writes state, reads requests) and the emulated
 * NVML library (reads state, writes requests), which may live in another process over a sealed memfd.
 *
 * Each field has one writer, so no lock is needed: the model writes "state" fields, NVML clients "request" fields, the
 * fault injector "fault" fields, the creator of the region "identity" fields. A sequence lock protects state (odd =
 * being written); a request is complete when its `_seq` has been incremented.
 */
#ifndef TWIN_GPU_H
#define TWIN_GPU_H

#include <stdint.h>

#define TWIN_GPU_MAGIC   0x4e54474eu /* "NGTN" */
#define TWIN_GPU_VERSION 6u
#define TWIN_GPUS_MAX    16
#define TWIN_CLOCKS_MAX  256
#define TWIN_CPU_WORDS   64 /* 4096 logical CPUs */
#define TWIN_READINGS    12
#define TWIN_INSTANCES   15 /* GPU instances of a card, by their identifier: nvml/mig.h */
#define TWIN_COMPUTE     8  /* compute instances of a GPU instance, by their identifier */
#define TWIN_TENANTS     8  /* programs that can share a card */
#define TWIN_WHOLE       0xffffffffu
#define TWIN_SAMPLES     128 /* ring for nvmlDeviceGetSamples, one entry per internal sampling period */

typedef struct {
    uint64_t time_us; /* model time */
    uint32_t power_mw;
    uint32_t gpu_pct;
    uint32_t memory_pct;
    uint32_t sm_clock_mhz;
} twin_gpu_sample_t;

/* A part of a divided card (MIG); `slices` 0: there is none of this identifier. */
typedef struct {
    uint32_t slices; /* compute slices, each about a seventh of the card's SMs */
    uint32_t sm_ppm; /* its share of the card's SMs */
    uint32_t profile, start, size; /* size: of memory slices of a GPU instance, compute slices of a compute instance */
} twin_instance_t;

/* A program that computes on the card; instance, compute: of a divided card, else TWIN_WHOLE. */
typedef struct {
    uint32_t memory_mib, instance, compute;
} twin_tenant_t;

typedef struct {
    /* identity */
    char name[96];
    char uuid[80];
    char serial[32];
    char pci_bus_id[32];
    char vbios[32];
    uint32_t architecture; /* NVML_DEVICE_ARCH_* */
    uint32_t cuda_major, cuda_minor;
    uint32_t cores;
    uint32_t n_clocks;
    uint32_t clocks_mhz[TWIN_CLOCKS_MAX]; /* descending, as NVML lists them */
    uint32_t memory_clock_mhz;
    uint32_t memory_mib;
    uint32_t memory_bus_bits;
    uint32_t power_limit_default_mw, power_limit_min_mw, power_limit_max_mw;
    uint32_t has_gpm;
    uint32_t slowdown_c, shutdown_c;
    uint32_t node_numa, pcie_gen, pcie_width;
    uint64_t near_cpus[TWIN_CPU_WORDS]; /* a bit for each logical CPU of its NUMA node */

    /* requests: 0/0 = unlocked */
    volatile uint32_t lock_min_mhz, lock_max_mhz, lock_seq;
    volatile uint32_t applications_mhz; /* applications clock of the SMs, 0: the default; part of the lock's request */
    volatile uint32_t power_limit_mw, limit_seq;
    volatile uint32_t persistence;
    /* MIG: the mode in force and the one after the next activation; what the card is divided into */
    volatile uint32_t mig_mode, mig_pending, mig_seq;
    twin_instance_t instances[TWIN_INSTANCES];
    twin_instance_t compute[TWIN_INSTANCES][TWIN_COMPUTE];

    /* state */
    volatile uint32_t seq;
    uint64_t time_us;
    uint64_t energy_uj; /* total since creation; NVML shows millijoules */
    uint32_t sm_clock_mhz, sm_clock_khz, mem_clock_now_mhz;
    uint32_t power_mw;         /* averaged over the window of this card's power sensor */
    uint32_t power_instant_mw; /* field value NVML_FI_DEV_POWER_INSTANT */
    uint32_t enforced_limit_mw;
    uint32_t temperature_c, memory_temperature_c;
    uint32_t gpu_pct, memory_pct; /* utilisation over the card's window */
    uint32_t pcie_tx_kbps, pcie_rx_kbps;
    uint32_t memory_used_mib;
    uint32_t process_pid;      /* the process that computes on the card; 0: none */
    uint32_t n_tenants;        /* programs that it computes there */
    twin_tenant_t tenants[TWIN_TENANTS];
    uint64_t throttle_reasons; /* NVML clocks event reasons */
    uint64_t violation_power_us, violation_thermal_us;
    uint32_t performance_state; /* 0 = P0 */
    /* cumulative integrals for GPM: difference of two snapshots over the difference of time = mean share, ppm */
    double gpm_sm_active_s, gpm_sm_occupancy_s, gpm_dram_active_s, gpm_graphics_s, gpm_fp_s, gpm_time_s;
    uint32_t sample_head; /* next slot to write */
    twin_gpu_sample_t samples[TWIN_SAMPLES];

    /* faults: 0 = none; bits of twin_gpu_fault; for single readings bits of twin_gpu_reading */
    volatile uint32_t faults;
    volatile uint32_t missing; /* NOT_SUPPORTED */
    volatile uint32_t stuck;   /* the model does not update them; a GPM share keeps its last value */
    volatile uint32_t absurd;  /* a value that no card shows (nvml/state.h) */
    volatile uint32_t chosen;  /* of the absurd ones: those that show `value` instead */
    uint64_t value[TWIN_READINGS]; /* by reading, in NVML's unit; of a GPM reading the bits of a double in percent */
} twin_gpu_t;

enum twin_gpu_fault {
    TWIN_GPU_LOST          = 1 << 0, /* every call: GPU_IS_LOST */
    TWIN_GPU_STUCK         = 1 << 1, /* readings frozen, time stamps too (the model stops publishing) */
    TWIN_GPU_SET_REFUSED   = 1 << 2, /* setters: NO_PERMISSION */
    TWIN_GPU_SET_NO_EFFECT = 1 << 3, /* setters succeed, the model ignores them */
    TWIN_GPU_SLOW          = 1 << 4, /* every call takes slow_ms */
};

/* The five GPM readings come last, in the order of their integrals. */
enum twin_gpu_reading {
    TWIN_READING_POWER              = 1 << 0,
    TWIN_READING_ENERGY             = 1 << 1,
    TWIN_READING_TEMPERATURE        = 1 << 2,
    TWIN_READING_SM_CLOCK           = 1 << 3,
    TWIN_READING_GPU_UTILIZATION    = 1 << 4,
    TWIN_READING_MEMORY_UTILIZATION = 1 << 5,
    TWIN_READING_EVENT_REASONS      = 1 << 6,
    TWIN_READING_GPM_GRAPHICS       = 1 << 7,
    TWIN_READING_GPM_SM_ACTIVE      = 1 << 8,
    TWIN_READING_GPM_SM_OCCUPANCY   = 1 << 9,
    TWIN_READING_GPM_DRAM_ACTIVE    = 1 << 10,
    TWIN_READING_GPM_FP64           = 1 << 11,
};

typedef struct {
    uint32_t magic, version, n_gpus, size; /* size = sizeof(twin_gpus_t) */
    uint32_t slow_ms;
    volatile uint32_t no_driver; /* the driver is not loaded: every call says so */
    uint32_t driver_cuda; /* e.g. 12080 */
    char driver[80];
    twin_gpu_t gpu[TWIN_GPUS_MAX];
} twin_gpus_t;

#endif
