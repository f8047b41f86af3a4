/*
 * Access to the emulated GPUs: session, handles, consistent readings, settings.
 *
 * Every exported function goes through one of the entries below, in the driver's order of refusal: not initialised,
 * bad argument, GPU lost, not permitted, not supported, value out of range.
 */
#ifndef TWIN_NVML_STATE_H
#define TWIN_NVML_STATE_H

#include <stdbool.h>

#include "nvml_api.h"
#include "twin_gpu.h"

/* Ours: values of absurd readings, impossible for any card but within the type that clients use. */
#define ABSURD_POWER_MW   4000000u
#define ABSURD_ENERGY_MJ  ((uint64_t)INT64_MAX / 1000) /* 292 years of a kilowatt */
#define ABSURD_REASONS    UINT64_MAX /* no value: every bit, known or not */
#define ABSURD_CELSIUS    255u
#define ABSURD_MHZ        4294967u /* a register of kilohertz full of ones */
#define ABSURD_PERCENT    255u

/* One consistent set of a GPU's published readings, faults applied. */
typedef struct {
    uint64_t time_us, energy_mj;
    uint32_t sm_clock_mhz, mem_clock_mhz;
    uint32_t power_mw, power_instant_mw, enforced_limit_mw;
    uint32_t temperature_c, memory_temperature_c;
    uint32_t gpu_pct, memory_pct;
    uint32_t pcie_tx_kbps, pcie_rx_kbps;
    uint32_t memory_used_mib, process_pid, n_tenants;
    twin_tenant_t tenants[TWIN_TENANTS];
    uint64_t throttle_reasons, violation_power_us, violation_thermal_us;
    uint32_t performance_state;
    double gpm_sm_active_s, gpm_sm_occupancy_s, gpm_dram_active_s, gpm_graphics_s, gpm_fp_s, gpm_time_s;
    uint32_t missing, absurd; /* bits of twin_gpu_reading; absurd values are set already, except those of GPM */
} gpu_reading_t;

/* The whole region between nvmlInit and nvmlShutdown, else NVML_ERROR_UNINITIALIZED. */
nvmlReturn_t twin_session(const twin_gpus_t **gpus);

bool twin_may_set(void);
int twin_region_fd(void);

nvmlDevice_t twin_handle(uint32_t index);
nvmlReturn_t twin_index(nvmlDevice_t device, uint32_t *index);

/* The device of a handle. `out` is the caller's result pointer, refused when NULL. */
nvmlReturn_t twin_device(nvmlDevice_t device, const void *out, const twin_gpu_t **gpu);

/* As twin_device, and the GPU's readings at one instant. */
nvmlReturn_t twin_read(nvmlDevice_t device, const void *out, gpu_reading_t *now);
nvmlReturn_t twin_read_gpu(const twin_gpu_t *gpu, gpu_reading_t *now);

/* What an absurd reading shows: the chosen value where there is one, else `usual`. */
uint64_t twin_absurd(const twin_gpu_t *gpu, uint32_t reading, uint64_t usual);

/* The ring of samples, oldest first; `count` gets the number of used slots. */
nvmlReturn_t twin_read_samples(const twin_gpu_t *gpu, twin_gpu_sample_t samples[TWIN_SAMPLES], uint32_t *count);

/* As twin_device, for a call that changes a setting: also checks permission. */
nvmlReturn_t twin_setting(nvmlDevice_t device, twin_gpu_t **gpu);
void twin_request_clocks(twin_gpu_t *gpu, uint32_t min_mhz, uint32_t max_mhz); /* 0, 0: unlocked */
void twin_request_applications_clock(twin_gpu_t *gpu, uint32_t mhz); /* 0: the default */
void twin_request_power_limit(twin_gpu_t *gpu, uint32_t limit_mw);
void twin_request_persistence(twin_gpu_t *gpu, uint32_t enabled);

/* Divides the card, or changes its mode: `change` looks and changes while no other client can. */
typedef nvmlReturn_t twin_change_t(twin_gpu_t *gpu, void *with);
nvmlReturn_t twin_request_division(twin_gpu_t *gpu, twin_change_t *change, void *with);

/* The requested limit; the default before the first request. */
uint32_t twin_power_limit_mw(const twin_gpu_t *gpu);

/* Copies a string of the region as NVML does: INSUFFICIENT_SIZE unless it fits with its end mark. */
nvmlReturn_t twin_copy_string(const char *from, size_t from_size, char *to, unsigned int length);

#endif
