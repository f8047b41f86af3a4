/*
 * nvmlDeviceGetFieldValues: several readings of one instant in one call, each with its own type and status.
 *
 * Only this call gives instantaneous power (POWER_INSTANT); nvmlDeviceGetPowerUsage gives an average.
 */
#include "state.h"

static nvmlReturn_t small(nvmlFieldValue_t *field, uint32_t value)
{
    field->valueType   = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t large(nvmlFieldValue_t *field, uint64_t value)
{
    field->valueType    = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

/* Power and energy of the GPU scope: these cards have no separate meters for module or memory. */
static nvmlReturn_t metered(const twin_gpu_t *gpu, const gpu_reading_t *now, nvmlFieldValue_t *field)
{
    uint32_t enforced_mw = now->enforced_limit_mw != 0 ? now->enforced_limit_mw : twin_power_limit_mw(gpu);

    if (field->scopeId != NVML_POWER_SCOPE_GPU)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case NVML_FI_DEV_POWER_MIN_LIMIT: return small(field, gpu->power_limit_min_mw);
    case NVML_FI_DEV_POWER_MAX_LIMIT: return small(field, gpu->power_limit_max_mw);
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT: return small(field, gpu->power_limit_default_mw);
    case NVML_FI_DEV_POWER_CURRENT_LIMIT: return small(field, enforced_mw);
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return small(field, twin_power_limit_mw(gpu));
    }
    if (field->fieldId == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION) {
        bool is_missing = (now->missing & TWIN_READING_ENERGY) != 0;
        return is_missing ? NVML_ERROR_NOT_SUPPORTED : large(field, now->energy_mj);
    }
    if (now->missing & TWIN_READING_POWER)
        return NVML_ERROR_NOT_SUPPORTED;
    return small(field, field->fieldId == NVML_FI_DEV_POWER_AVERAGE ? now->power_mw : now->power_instant_mw);
}

static nvmlReturn_t answer(const twin_gpu_t *gpu, const gpu_reading_t *now, nvmlFieldValue_t *field)
{
    uint32_t id = field->fieldId;

    if (id >= NVML_FI_DEV_ECC_SBE_VOL_TOTAL && id <= NVML_FI_DEV_ECC_DBE_AGG_TOTAL)
        return large(field, 0);
    if (id >= NVML_FI_DEV_REMAPPED_COR && id <= NVML_FI_DEV_REMAPPED_FAILURE)
        return gpu->architecture >= NVML_DEVICE_ARCH_AMPERE ? small(field, 0) : NVML_ERROR_NOT_SUPPORTED;
    if (id >= NVML_FI_DEV_POWER_AVERAGE && id <= NVML_FI_DEV_POWER_REQUESTED_LIMIT)
        return metered(gpu, now, field);
    switch (id) {
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: return metered(gpu, now, field);
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING: return small(field, NVML_FEATURE_ENABLED);
    case NVML_FI_DEV_PERF_POLICY_POWER: return large(field, now->violation_power_us * 1000); /* nanoseconds */
    case NVML_FI_DEV_PERF_POLICY_THERMAL: return large(field, now->violation_thermal_us * 1000);
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER: return small(field, 0);
    case NVML_FI_DEV_MEMORY_TEMP:
        return now->memory_temperature_c != 0 ? small(field, now->memory_temperature_c) : NVML_ERROR_NOT_SUPPORTED;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    const twin_gpu_t *gpu;
    gpu_reading_t now;
    nvmlReturn_t status = twin_device(device, count > 0 ? fields : NULL, &gpu);

    if (status == NVML_SUCCESS)
        status = twin_read_gpu(gpu, &now);
    if (status != NVML_SUCCESS)
        return status;
    for (int i = 0; i < count; i++) {
        fields[i].timestamp    = (long long)now.time_us;
        fields[i].latencyUsec  = 0;
        fields[i].valueType    = NVML_VALUE_TYPE_UNSIGNED_INT;
        fields[i].value.ullVal = 0;
        fields[i].nvmlReturn   = answer(gpu, &now, &fields[i]);
    }
    return NVML_SUCCESS;
}
