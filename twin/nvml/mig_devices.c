/*
 * MIG devices: each compute instance as a device of its own, as programs see it. Name, UUID, memory, attributes and
 * processes are its own; clocks, watts and temperature are the card's and NOT_SUPPORTED here, as with the driver.
 */
#include "mig.h"

NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    mig_place_t place;
    const twin_gpu_t *gpu;
    nvmlReturn_t status = mig_of_device(device, is_mig, &place);

    if (status == NVML_ERROR_NOT_FOUND) {
        status = twin_device(device, is_mig, &gpu);
        if (status == NVML_SUCCESS)
            *is_mig = 0;
        return status;
    }
    if (status == NVML_SUCCESS)
        *is_mig = 1;
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, count, &gpu);

    if (status == NVML_SUCCESS)
        *count = mig_is_on(gpu) ? MIG_COMPUTE_SLICES : 0;
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    const twin_gpu_t *gpu;
    uint32_t card;
    nvmlReturn_t status = twin_device(device, mig, &gpu);

    if (status == NVML_SUCCESS)
        status = twin_index(device, &card);
    if (status != NVML_SUCCESS)
        return status;
    if (mig_profiles(gpu) == NULL || !mig_is_on(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= MIG_COMPUTE_SLICES)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t at = 0; at < TWIN_INSTANCES * TWIN_COMPUTE; at++) {
        if (gpu->compute[at / TWIN_COMPUTE][at % TWIN_COMPUTE].slices == 0 || index-- > 0)
            continue;
        *mig = mig_device_handle(card, at / TWIN_COMPUTE, at % TWIN_COMPUTE);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Of a function that only MIG devices have: a card is refused. */
static nvmlReturn_t only_mig(nvmlDevice_t device, const void *out, mig_place_t *place)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = mig_of_device(device, out, place);

    if (status != NVML_ERROR_NOT_FOUND)
        return status;
    status = twin_device(device, out, &gpu);
    return status != NVML_SUCCESS ? status : NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    mig_place_t place;
    nvmlReturn_t status = only_mig(mig, device, &place);

    if (status == NVML_SUCCESS)
        *device = twin_handle(place.card);
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned int *id)
{
    mig_place_t place;
    nvmlReturn_t status = only_mig(mig, id, &place);

    if (status == NVML_SUCCESS)
        *id = place.instance;
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned int *id)
{
    mig_place_t place;
    nvmlReturn_t status = only_mig(mig, id, &place);

    if (status == NVML_SUCCESS)
        *id = place.compute;
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t mig, nvmlDeviceAttributes_t *attributes)
{
    mig_place_t place;
    nvmlReturn_t status = only_mig(mig, attributes, &place);
    const mig_profile_t *within;
    uint32_t slices;

    if (status != NVML_SUCCESS)
        return status;
    within = mig_profile_at(&place);
    slices = place.gpu->compute[place.instance][place.compute].slices;
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount       = mig_sms(within, slices),
                                           .sharedCopyEngineCount     = within->copy_engines,
                                           .sharedDecoderCount        = within->decoders,
                                           .sharedJpegCount           = within->jpegs,
                                           .sharedOfaCount            = within->ofas,
                                           .gpuInstanceSliceCount     = within->slices,
                                           .computeInstanceSliceCount = slices,
                                           .memorySizeMB              = within->memory_mib};
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t mig, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(mig, attributes);
}
