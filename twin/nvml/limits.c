/* The power limit, its range, and persistence mode: the settings of an emulated card other than its clocks. */
#include "state.h"

#define SHOWS_MW(function, expression)                                                                \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *limit_mw)                     \
    {                                                                                                 \
        const twin_gpu_t *gpu;                                                                        \
        nvmlReturn_t status = twin_device(device, limit_mw, &gpu);                                    \
                                                                                                      \
        if (status == NVML_SUCCESS)                                                                   \
            *limit_mw = (expression);                                                                 \
        return status;                                                                                \
    }

SHOWS_MW(nvmlDeviceGetPowerManagementLimit, twin_power_limit_mw(gpu))
SHOWS_MW(nvmlDeviceGetPowerManagementDefaultLimit, gpu->power_limit_default_mw)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min_mw,
                                                                      unsigned int *max_mw)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, max_mw != NULL ? min_mw : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    *min_mw = gpu->power_limit_min_mw;
    *max_mw = gpu->power_limit_max_mw;
    return NVML_SUCCESS;
}

static nvmlReturn_t request_limit(twin_gpu_t *gpu, uint32_t limit_mw)
{
    if (limit_mw < gpu->power_limit_min_mw || limit_mw > gpu->power_limit_max_mw)
        return NVML_ERROR_INVALID_ARGUMENT;
    twin_request_power_limit(gpu, limit_mw);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit_mw)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    return status != NVML_SUCCESS ? status : request_limit(gpu, limit_mw);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, const nvmlPowerValue_v2_t *power)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (power == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (power->version != NVML_STRUCT_VERSION(nvmlPowerValue_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (power->powerScope != NVML_POWER_SCOPE_GPU)
        return NVML_ERROR_NOT_SUPPORTED;
    return request_limit(gpu, power->powerValueMw);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (mode > NVML_FEATURE_ENABLED)
        return NVML_ERROR_INVALID_ARGUMENT;
    twin_request_persistence(gpu, mode);
    return NVML_SUCCESS;
}
