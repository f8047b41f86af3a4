/*
 * The node in NVML: versions, devices by index, UUID, serial number or bus address, error texts.
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"
#include "pci.h"
#include "state.h"

/* ---------------------------------------------------------------- versions */

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    return status != NVML_SUCCESS ? status : twin_copy_string(gpus->driver, sizeof gpus->driver, version, length);
}

/* The CUDA major version before the driver's, as in released libraries. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    const twin_gpus_t *gpus;
    char text[sizeof gpus->driver + 16];
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    snprintf(text, sizeof text, "%u.%.*s", gpus->driver_cuda / 1000, (int)sizeof gpus->driver, gpus->driver);
    return twin_copy_string(text, sizeof text, version, length);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)gpus->driver_cuda;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

/* ---------------------------------------------------------------- devices */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = gpus->n_gpus;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    const twin_gpus_t *gpus;
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (device == NULL || index >= gpus->n_gpus)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = twin_handle(index);
    return twin_device(*device, device, &gpu); /* a lost or slow GPU fails or waits here too */
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

typedef bool matches_t(const twin_gpu_t *gpu, const void *wanted);

static bool has_uuid(const twin_gpu_t *gpu, const void *uuid)
{
    return strncmp(gpu->uuid, uuid, sizeof gpu->uuid) == 0;
}

static bool has_serial(const twin_gpu_t *gpu, const void *serial)
{
    return gpu->serial[0] != '\0' && strncmp(gpu->serial, serial, sizeof gpu->serial) == 0;
}

static bool is_at(const twin_gpu_t *gpu, const void *place)
{
    pci_place_t own;
    const pci_place_t *wanted = place;

    return pci_parse(gpu->pci_bus_id, sizeof gpu->pci_bus_id, &own) && own.domain == wanted->domain &&
           own.bus == wanted->bus && own.device == wanted->device;
}

static nvmlReturn_t find(matches_t *matches, const void *wanted, nvmlDevice_t *device)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (wanted == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t index = 0; index < gpus->n_gpus; index++)
        if (matches(&gpus->gpu[index], wanted))
            return nvmlDeviceGetHandleByIndex_v2(index, device);
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    bool is_of_mig = uuid != NULL && device != NULL && strncmp(uuid, "MIG-", 4) == 0;

    return is_of_mig ? mig_find(uuid, device) : find(has_uuid, uuid, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return find(has_serial, serial, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    pci_place_t place;

    bool is_place = bus_id != NULL && pci_parse(bus_id, strlen(bus_id), &place);

    return find(is_at, is_place ? &place : NULL, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

/* ---------------------------------------------------------------- what no emulated node has */

static nvmlReturn_t none(unsigned int *count)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, void *entries)
{
    (void)entries;
    return none(count);
}

NVML_EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
    return none(count);
}

NVML_EXPORT nvmlReturn_t nvmlUnitGetHandleByIndex(unsigned int index, nvmlUnit_t *unit)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    (void)index;
    (void)unit;
    return status != NVML_SUCCESS ? status : NVML_ERROR_INVALID_ARGUMENT; /* no index is below the count of 0 */
}

NVML_EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
    return none(count);
}

/* ---------------------------------------------------------------- error texts */

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM: return "Operating System call failed";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: return "vGPU ECC not supported";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_FREQ_NOT_SUPPORTED: return "Frequency not supported";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_DEPRECATED: return "Deprecated";
    case NVML_ERROR_NOT_READY: return "Not Ready";
    case NVML_ERROR_GPU_NOT_FOUND: return "GPU Not Found";
    case NVML_ERROR_INVALID_STATE: return "Invalid State";
    case NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: return "Reset type not supported";
    case NVML_ERROR_UNKNOWN: break;
    }
    return "Unknown Error";
}
