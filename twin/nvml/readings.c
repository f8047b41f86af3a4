/*
 * Readings of a GPU: clocks, power, energy, temperature, utilisation, as the model last published them.
 *
 * Time stamps are the model's clock in microseconds, so they agree with each other in real and in virtual time. (The
 * driver's are CPU time stamps of unspecified origin.)
 */
#include <string.h>

#include "state.h"

/* Between 1 s and 1/6 s by the NVML reference (nvmlUtilization_t). */
#define ENGINE_PERIOD_US 166667u

/* Defines FUNCTION: stores EXPRESSION over `now`. */
#define READS(function, type, expression)                                                             \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, type *value)                                \
    {                                                                                                 \
        gpu_reading_t now;                                                                            \
        nvmlReturn_t status = twin_read(device, value, &now);                                         \
                                                                                                      \
        if (status == NVML_SUCCESS)                                                                   \
            *value = (type)(expression);                                                              \
        return status;                                                                                \
    }

/* Defines FUNCTION: as READS, of a READING that may be missing. */
#define MEASURES(function, type, reading, expression)                                                 \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, type *value)                                \
    {                                                                                                 \
        gpu_reading_t now;                                                                            \
        nvmlReturn_t status = twin_read(device, value, &now);                                         \
                                                                                                      \
        if (status == NVML_SUCCESS && (now.missing & (reading)))                                      \
            status = NVML_ERROR_NOT_SUPPORTED;                                                        \
        if (status == NVML_SUCCESS)                                                                   \
            *value = (type)(expression);                                                              \
        return status;                                                                                \
    }

/* Defines FUNCTION: a media engine, which none of our workloads uses. */
#define RESTS(function)                                                                               \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) \
    {                                                                                                 \
        const twin_gpu_t *gpu;                                                                        \
        nvmlReturn_t status = twin_device(device, period_us != NULL ? percent : NULL, &gpu);          \
                                                                                                      \
        if (status == NVML_SUCCESS) {                                                                 \
            *percent   = 0;                                                                           \
            *period_us = ENGINE_PERIOD_US;                                                            \
        }                                                                                             \
        return status;                                                                                \
    }

/* ---------------------------------------------------------------- power and energy */

MEASURES(nvmlDeviceGetPowerUsage, unsigned int, TWIN_READING_POWER, now.power_mw)
MEASURES(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, TWIN_READING_ENERGY, now.energy_mj)

/* The lowest limit in force; the requested one until the model has published it. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit_mw)
{
    const twin_gpu_t *gpu;
    gpu_reading_t now;
    nvmlReturn_t status = twin_device(device, limit_mw, &gpu);

    if (status == NVML_SUCCESS)
        status = twin_read_gpu(gpu, &now);
    if (status == NVML_SUCCESS)
        *limit_mw = now.enforced_limit_mw != 0 ? now.enforced_limit_mw : twin_power_limit_mw(gpu);
    return status;
}

READS(nvmlDeviceGetPerformanceState, unsigned int, now.performance_state)
READS(nvmlDeviceGetPowerState, unsigned int, now.performance_state)

/* ---------------------------------------------------------------- temperature */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *temperature_c)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, sensor == NVML_TEMPERATURE_GPU ? temperature_c : NULL, &now);

    if (status == NVML_SUCCESS && (now.missing & TWIN_READING_TEMPERATURE))
        status = NVML_ERROR_NOT_SUPPORTED;
    if (status == NVML_SUCCESS)
        *temperature_c = now.temperature_c;
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, temperature, &now);

    if (status != NVML_SUCCESS)
        return status;
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (now.missing & TWIN_READING_TEMPERATURE)
        return NVML_ERROR_NOT_SUPPORTED;
    temperature->temperature = (int)now.temperature_c;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold,
                                                           unsigned int *limit_c)
{
    const twin_gpu_t *gpu;
    uint32_t known      = 0; /* the machine tables give slowdown and shutdown only */
    nvmlReturn_t status = twin_device(device, threshold < NVML_TEMPERATURE_THRESHOLD_COUNT ? limit_c : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (threshold == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
        known = gpu->shutdown_c;
    if (threshold == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        known = gpu->slowdown_c;
    if (known == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *limit_c = known;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- utilisation */

/* One structure has both values, so the call fails if either is missing. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, utilization, &now);

    if (status == NVML_SUCCESS && (now.missing & (TWIN_READING_GPU_UTILIZATION | TWIN_READING_MEMORY_UTILIZATION)))
        status = NVML_ERROR_NOT_SUPPORTED;
    if (status == NVML_SUCCESS)
        *utilization = (nvmlUtilization_t){.gpu = now.gpu_pct, .memory = now.memory_pct};
    return status;
}

RESTS(nvmlDeviceGetEncoderUtilization)
RESTS(nvmlDeviceGetDecoderUtilization)
RESTS(nvmlDeviceGetJpgUtilization)
RESTS(nvmlDeviceGetOfaUtilization)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions,
                                                   unsigned int *frames_per_s, unsigned int *latency_us)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, frames_per_s != NULL && latency_us != NULL ? sessions : NULL, &gpu);

    if (status == NVML_SUCCESS)
        *sessions = *frames_per_s = *latency_us = 0;
    return status;
}

/* KB/s over the last interval of the card. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *kbps)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, counter <= NVML_PCIE_UTIL_RX_BYTES ? kbps : NULL, &now);

    if (status == NVML_SUCCESS)
        *kbps = counter == NVML_PCIE_UTIL_TX_BYTES ? now.pcie_tx_kbps : now.pcie_rx_kbps;
    return status;
}

/* ---------------------------------------------------------------- reasons for a lower clock */

/* A locked range is no reason: applications clocks would be one, and they are the highest on these cards. */
#define SUPPORTED_REASONS                                                                                          \
    (NVML_CLOCKS_EVENT_REASON_GPU_IDLE | NVML_CLOCKS_EVENT_REASON_APPLICATIONS_CLOCKS |                            \
     NVML_CLOCKS_EVENT_REASON_SW_POWER_CAP | NVML_CLOCKS_EVENT_REASON_HW_SLOWDOWN |                                \
     NVML_CLOCKS_EVENT_REASON_SW_THERMAL_SLOWDOWN | NVML_CLOCKS_EVENT_REASON_HW_THERMAL_SLOWDOWN)

MEASURES(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, TWIN_READING_EVENT_REASONS, now.throttle_reasons)
MEASURES(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, TWIN_READING_EVENT_REASONS,
         now.throttle_reasons)
READS(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, SUPPORTED_REASONS | now.throttle_reasons)
READS(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, SUPPORTED_REASONS | now.throttle_reasons)

/* Time below the requested clock. In the model only power and heat lower it, so the other policies have 0. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned int policy,
                                                      nvmlViolationTime_t *time)
{
    gpu_reading_t now;
    uint64_t violation_us = 0;
    bool exists           = policy <= NVML_PERF_POLICY_RELIABILITY || policy == NVML_PERF_POLICY_TOTAL_APP_CLOCKS ||
                  policy == NVML_PERF_POLICY_TOTAL_BASE_CLOCKS;
    nvmlReturn_t status = twin_read(device, exists ? time : NULL, &now);

    if (status != NVML_SUCCESS)
        return status;
    if (policy == NVML_PERF_POLICY_POWER)
        violation_us = now.violation_power_us;
    if (policy == NVML_PERF_POLICY_THERMAL)
        violation_us = now.violation_thermal_us;
    *time = (nvmlViolationTime_t){.referenceTime = now.time_us, .violationTime = violation_us * 1000};
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- samples */

static unsigned int sample_value(const twin_gpu_sample_t *sample, unsigned int type)
{
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES: return sample->power_mw;
    case NVML_GPU_UTILIZATION_SAMPLES: return sample->gpu_pct;
    case NVML_MEMORY_UTILIZATION_SAMPLES: return sample->memory_pct;
    default: return sample->sm_clock_mhz;
    }
}

static uint32_t sampled_reading(unsigned int type)
{
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES: return TWIN_READING_POWER;
    case NVML_GPU_UTILIZATION_SAMPLES: return TWIN_READING_GPU_UTILIZATION;
    case NVML_MEMORY_UTILIZATION_SAMPLES: return TWIN_READING_MEMORY_UTILIZATION;
    default: return TWIN_READING_SM_CLOCK;
    }
}

/* The samples of the ring that were taken after `last_seen_us`, as many as there is room for; how many. */
static uint32_t copy_samples(const twin_gpu_sample_t *ring, uint32_t taken, unsigned long long last_seen_us,
                             unsigned int type, nvmlSample_t *samples, uint32_t room)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < taken && used < room; i++) {
        if (ring[i].time_us <= last_seen_us)
            continue;
        samples[used].timeStamp           = ring[i].time_us;
        samples[used].sampleValue.ullVal  = 0;
        samples[used++].sampleValue.uiVal = sample_value(&ring[i], type);
    }
    return used;
}

/*
 * Samples taken after `last_seen_us`, oldest first. If the buffer is too small, the caller gets the rest by calling
 * again with the time of the last sample. Without a buffer, returns a size that always suffices.
 */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned int type, unsigned long long last_seen_us,
                                              unsigned int *value_type, unsigned int *count, nvmlSample_t *samples)
{
    const twin_gpu_t *gpu;
    twin_gpu_sample_t ring[TWIN_SAMPLES];
    uint32_t filled;
    bool has_room       = count != NULL && (samples == NULL || *count > 0);
    bool is_whole       = type < NVML_SAMPLINGTYPE_COUNT && value_type != NULL && has_room;
    nvmlReturn_t status = twin_device(device, is_whole ? count : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (type != NVML_PROCESSOR_CLK_SAMPLES && type > NVML_MEMORY_UTILIZATION_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    if (gpu->missing & sampled_reading(type))
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (samples == NULL) {
        *count = TWIN_SAMPLES;
        return NVML_SUCCESS;
    }
    status = twin_read_samples(gpu, ring, &filled);
    if (status != NVML_SUCCESS)
        return status;
    *count = copy_samples(ring, filled, last_seen_us, type, samples, *count);
    return *count > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
