/*
 * Clocks: the ladder of the card, the present clock, and the lock.
 *
 * A lock (nvmlDeviceSetGpuLockedClocks, Volta on) requests a range, which NVML cannot read back. By the reference, the
 * driver refuses a minimum above the maximum, and a symbolic limit combined with a number. It accepts a limit between
 * two steps or off the ladder, and the card settles on one of its steps. Our reading of "settles": the maximum is
 * rounded down to a step, so that it is never exceeded; the minimum is rounded up, but not above the maximum; both are
 * clamped to the ladder. So 0..1000 on a ladder of 15 MHz steps from 210 means 210..990. A range of the whole ladder
 * leaves the choice to the firmware, as without a lock.
 *
 * Applications clocks are the older interface: one supported pair of memory and graphics clock, at which work runs. By
 * the reference all cards but GeForce have them since Fermi, so Hopper too (deprecated with CUDA 13.0, which is later than
 * these drivers), setting them needs root, and from Pascal on they end boosting until they are reset. A card that runs
 * at them names their reason. Ours: their default is the highest clock, and with a lock the lower of both applies.
 */
#include "state.h"

static uint32_t n_steps(const twin_gpu_t *gpu)
{
    return gpu->n_clocks < TWIN_CLOCKS_MAX ? gpu->n_clocks : TWIN_CLOCKS_MAX;
}

static uint32_t top_mhz(const twin_gpu_t *gpu)
{
    return gpu->clocks_mhz[0];
}

static uint32_t bottom_mhz(const twin_gpu_t *gpu)
{
    return gpu->clocks_mhz[n_steps(gpu) - 1];
}

/* The highest step not above `mhz`, or the lowest of all. */
static uint32_t step_below(const twin_gpu_t *gpu, uint32_t mhz)
{
    for (uint32_t i = 0; i < n_steps(gpu); i++)
        if (gpu->clocks_mhz[i] <= mhz)
            return gpu->clocks_mhz[i];
    return bottom_mhz(gpu);
}

/* The lowest step not below `mhz`, or the highest of all. */
static uint32_t step_above(const twin_gpu_t *gpu, uint32_t mhz)
{
    for (uint32_t i = n_steps(gpu); i > 0; i--)
        if (gpu->clocks_mhz[i - 1] >= mhz)
            return gpu->clocks_mhz[i - 1];
    return top_mhz(gpu);
}

/* ---------------------------------------------------------------- present and highest clocks */

static bool is_core(unsigned int type)
{
    return type == NVML_CLOCK_GRAPHICS || type == NVML_CLOCK_SM;
}

/* Graphics and SM are one clock here. The model has no video clock. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, type < NVML_CLOCK_COUNT ? mhz : NULL, &now);

    if (status != NVML_SUCCESS)
        return status;
    if (type == NVML_CLOCK_VIDEO || (is_core(type) && (now.missing & TWIN_READING_SM_CLOCK)))
        return NVML_ERROR_NOT_SUPPORTED;
    *mhz = is_core(type) ? now.sm_clock_mhz : now.mem_clock_mhz;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, type < NVML_CLOCK_COUNT ? mhz : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (type == NVML_CLOCK_VIDEO || gpu->n_clocks == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *mhz = is_core(type) ? top_mhz(gpu) : gpu->memory_clock_mhz;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    const twin_gpu_t *gpu;
    uint32_t applied_mhz;
    nvmlReturn_t status = nvmlDeviceGetMaxClockInfo(device, type, mhz);

    if (status == NVML_SUCCESS)
        status = twin_device(device, mhz, &gpu);
    if (status != NVML_SUCCESS)
        return status;
    applied_mhz = gpu->applications_mhz;
    if (is_core(type) && applied_mhz != 0)
        *mhz = applied_mhz;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type,
                                                               unsigned int *mhz)
{
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *mhz)
{
    if (id == NVML_CLOCK_ID_CURRENT)
        return nvmlDeviceGetClockInfo(device, type, mhz);
    if (id == NVML_CLOCK_ID_APP_CLOCK_TARGET)
        return nvmlDeviceGetApplicationsClock(device, type, mhz);
    return nvmlDeviceGetMaxClockInfo(device, type, id < NVML_CLOCK_ID_COUNT ? mhz : NULL);
}

/* Returns a list as NVML does: only the count when the list does not fit. */
static nvmlReturn_t list(const uint32_t *values, uint32_t n, unsigned int *count, unsigned int *out)
{
    uint32_t room = *count;

    *count = n;
    if (n == 0)
        return NVML_SUCCESS;
    if (room < n || out == NULL)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < n; i++)
        out[i] = values[i];
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *mhz)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, count, &gpu);

    return status != NVML_SUCCESS ? status : list(&gpu->memory_clock_mhz, 1, count, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz,
                                                              unsigned int *count, unsigned int *mhz)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, count, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (memory_mhz != gpu->memory_clock_mhz)
        return NVML_ERROR_NOT_FOUND;
    return list(gpu->clocks_mhz, n_steps(gpu), count, mhz);
}

/* ---------------------------------------------------------------- performance states: P0 alone */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, unsigned int *states,
                                                                 unsigned int size_bytes)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, states, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (size_bytes < sizeof states[0])
        return NVML_ERROR_INSUFFICIENT_SIZE;
    states[0] = NVML_PSTATE_0;
    for (unsigned int i = 1; i < size_bytes / sizeof states[0]; i++)
        states[i] = NVML_PSTATE_UNKNOWN;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t device, unsigned int type, unsigned int state,
                                                          unsigned int *min_mhz, unsigned int *max_mhz)
{
    const twin_gpu_t *gpu;
    bool whole          = type < NVML_CLOCK_COUNT && state <= NVML_PSTATE_15 && max_mhz != NULL;
    nvmlReturn_t status = twin_device(device, whole ? min_mhz : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (type == NVML_CLOCK_VIDEO || state != NVML_PSTATE_0 || gpu->n_clocks == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *min_mhz = is_core(type) ? bottom_mhz(gpu) : gpu->memory_clock_mhz;
    *max_mhz = is_core(type) ? top_mhz(gpu) : gpu->memory_clock_mhz;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- the lock */

static bool is_symbolic(unsigned int mhz)
{
    return mhz >= NVML_CLOCK_LIMIT_ID_RANGE_START;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int min_mhz, unsigned int max_mhz)
{
    twin_gpu_t *gpu;
    uint32_t max_step, min_step;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (gpu->architecture < NVML_DEVICE_ARCH_VOLTA || gpu->n_clocks == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (is_symbolic(min_mhz) != is_symbolic(max_mhz) || (!is_symbolic(min_mhz) && min_mhz > max_mhz))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (is_symbolic(min_mhz)) {
        if (min_mhz != NVML_CLOCK_LIMIT_ID_UNLIMITED || max_mhz != NVML_CLOCK_LIMIT_ID_UNLIMITED)
            return NVML_ERROR_NOT_SUPPORTED; /* the machine tables do not give the clock at TDP */
        twin_request_clocks(gpu, 0, 0);
        return NVML_SUCCESS;
    }
    max_step = step_below(gpu, max_mhz);
    min_step = step_above(gpu, min_mhz);
    twin_request_clocks(gpu, min_step < max_step ? min_step : max_step, max_step);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status == NVML_SUCCESS)
        twin_request_clocks(gpu, 0, 0);
    return status;
}

/* ---------------------------------------------------------------- applications clocks */

NVML_EXPORT nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory_mhz,
                                                         unsigned int graphics_mhz)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (gpu->n_clocks == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (memory_mhz != gpu->memory_clock_mhz || step_below(gpu, graphics_mhz) != graphics_mhz)
        return NVML_ERROR_INVALID_ARGUMENT;
    twin_request_applications_clock(gpu, graphics_mhz);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status == NVML_SUCCESS)
        twin_request_applications_clock(gpu, 0);
    return status;
}

/* ---------------------------------------------------------------- the memory's lock */

/* From Ampere on. HBM has one clock, so any range settles on it and there is nothing to request. */
static nvmlReturn_t set_memory_lock(nvmlDevice_t device, bool is_range)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (gpu->architecture < NVML_DEVICE_ARCH_AMPERE)
        return NVML_ERROR_NOT_SUPPORTED;
    return is_range ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int min_mhz,
                                                         unsigned int max_mhz)
{
    return set_memory_lock(device, min_mhz <= max_mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    return set_memory_lock(device, true);
}
