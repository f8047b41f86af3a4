/*
 * MIG mode and GPU instances of a card.
 *
 * Mode. While a process computes on the card, a request is accepted and stays pending: NVML reports why in
 * `activation`, and the caller asks again when the card is idle (nvmlDeviceSetMigMode). Ours: a mode is not left while
 * there are instances. Changing it does not reset the settings of the card here.
 *
 * An instance in which a process computes, or which has compute instances, is not destroyed. Which of several free
 * placements a new instance gets is ours: the one with the lowest identifier, so the upper half of the card first, as
 * the listings of the user guide show it.
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"

#define P2P_NONE 0

/* ---------------------------------------------------------------- mode */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, pending != NULL ? current : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (mig_profiles(gpu) == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = gpu->mig_mode;
    *pending = gpu->mig_pending;
    return NVML_SUCCESS;
}

static bool has_instances(const twin_gpu_t *gpu)
{
    for (uint32_t id = 0; id < TWIN_INSTANCES; id++)
        if (gpu->instances[id].slices != 0)
            return true;
    return false;
}

typedef struct {
    uint32_t mode;
    nvmlReturn_t activation;
} mode_request_t;

static nvmlReturn_t change_mode(twin_gpu_t *gpu, void *with)
{
    mode_request_t *request = with;
    gpu_reading_t now;
    nvmlReturn_t status = twin_read_gpu(gpu, &now);

    if (status != NVML_SUCCESS)
        return status;
    if (request->mode != gpu->mig_mode && has_instances(gpu))
        return NVML_ERROR_IN_USE;
    gpu->mig_pending    = request->mode;
    request->activation = request->mode != gpu->mig_mode && now.process_pid != 0 ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (request->activation == NVML_SUCCESS && (gpu->faults & TWIN_GPU_SET_NO_EFFECT) == 0)
        gpu->mig_mode = request->mode;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    mode_request_t request = {.mode = mode};
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (activation == NULL || mode > NVML_FEATURE_ENABLED)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mig_profiles(gpu) == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    status      = twin_request_division(gpu, change_mode, &request);
    *activation = request.activation;
    return status;
}

/* ---------------------------------------------------------------- profiles */

/* The card, which must be one that can be divided. */
static nvmlReturn_t divisible(nvmlDevice_t device, const void *out, const twin_gpu_t **gpu)
{
    nvmlReturn_t status = twin_device(device, out, gpu);

    if (status == NVML_SUCCESS && mig_profiles(*gpu) == NULL)
        status = NVML_ERROR_NOT_SUPPORTED;
    return status;
}

static void describe(const mig_profile_t *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    info->id                  = profile->id;
    info->isP2pSupported      = P2P_NONE;
    info->sliceCount          = profile->slices;
    info->instanceCount       = profile->count;
    info->multiprocessorCount = profile->sms;
    info->copyEngineCount     = profile->copy_engines;
    info->decoderCount        = profile->decoders;
    info->encoderCount        = 0;
    info->jpegCount           = profile->jpegs;
    info->ofaCount            = profile->ofas;
    info->memorySizeMB        = profile->memory_mib;
    memset(info->name, 0, sizeof info->name);
    snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int number,
                                                              nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = divisible(device, number < NVML_GPU_INSTANCE_PROFILE_COUNT ? info : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (info->version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    for (uint32_t i = 0; i < MIG_PROFILES; i++) {
        if (mig_profiles(gpu)[i].number == number) {
            describe(&mig_profiles(gpu)[i], info);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int number,
                                                             nvmlGpuInstanceProfileInfo_t *info)
{
    nvmlGpuInstanceProfileInfo_v2_t whole = {.version = NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)};
    nvmlReturn_t status = nvmlDeviceGetGpuInstanceProfileInfoV(device, number, info != NULL ? &whole : NULL);

    if (status == NVML_SUCCESS)
        *info = (nvmlGpuInstanceProfileInfo_t){
            whole.id,           whole.isP2pSupported, whole.sliceCount, whole.instanceCount, whole.multiprocessorCount,
            whole.copyEngineCount, whole.decoderCount, whole.encoderCount, whole.jpegCount, whole.ofaCount,
            whole.memorySizeMB};
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = divisible(device, info, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (mig_profile(gpu, id) == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    describe(mig_profile(gpu, id), info);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                                       nvmlGpuInstancePlacement_t *placements,
                                                                       unsigned int *count)
{
    const twin_gpu_t *gpu;
    const mig_profile_t *profile;
    uint32_t starts[MIG_PLACEMENTS], n;
    nvmlReturn_t status = divisible(device, count, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    profile = mig_profile(gpu, id);
    if (profile == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    n = mig_placements(profile, starts);
    for (uint32_t i = 0; placements != NULL && i < n; i++) {
        if (*count < n)
            return NVML_ERROR_INSUFFICIENT_SIZE;
        placements[i] = (nvmlGpuInstancePlacement_t){starts[i], profile->size};
    }
    *count = n;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                                    nvmlGpuInstancePlacement_t *placements,
                                                                    unsigned int *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

/* ---------------------------------------------------------------- what fits */

static uint32_t number_of(const twin_gpu_t *gpu, const mig_profile_t *profile)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < TWIN_INSTANCES; id++)
        n += gpu->instances[id].slices != 0 && gpu->instances[id].profile == profile->id;
    return n;
}

static bool is_free(const twin_gpu_t *gpu, const mig_profile_t *profile, uint32_t start)
{
    for (uint32_t id = 0; id < TWIN_INSTANCES; id++) {
        const twin_instance_t *other = &gpu->instances[id];
        if (other->slices != 0 && start < other->start + other->size && other->start < start + profile->size)
            return false;
    }
    return number_of(gpu, profile) < profile->count;
}

static uint32_t n_free(const twin_gpu_t *gpu, const mig_profile_t *profile)
{
    uint32_t starts[MIG_PLACEMENTS], n = mig_placements(profile, starts), fit = 0;
    uint32_t left = profile->count - number_of(gpu, profile);

    for (uint32_t i = 0; i < n; i++)
        fit += is_free(gpu, profile, starts[i]);
    return fit < left ? fit : left;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                                   unsigned int *count)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = divisible(device, count, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (mig_profile(gpu, id) == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = mig_is_on(gpu) ? n_free(gpu, mig_profile(gpu, id)) : 0;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- creation and end */

typedef struct {
    const mig_profile_t *profile;
    bool is_placed;
    uint32_t start, id;
} instance_request_t;

static nvmlReturn_t create(twin_gpu_t *gpu, void *with)
{
    instance_request_t *request = with;
    const mig_profile_t *profile = request->profile;
    uint32_t starts[MIG_PLACEMENTS], n = mig_placements(profile, starts);
    bool is_possible = !request->is_placed, is_found = false;

    request->id = TWIN_INSTANCES;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = mig_instance_id(starts[i], profile->size);
        if (request->is_placed && starts[i] != request->start)
            continue;
        is_possible = true;
        if (!is_free(gpu, profile, starts[i]) || id >= request->id)
            continue;
        is_found              = true;
        request->id           = id;
        gpu->instances[id] = (twin_instance_t){0, 0, profile->id, starts[i], profile->size};
    }
    if (!is_possible)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!is_found)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    gpu->instances[request->id].slices = profile->slices;
    return NVML_SUCCESS;
}

/* A card that a caller with the right to may divide, and that is in MIG mode. */
static nvmlReturn_t divided(nvmlDevice_t device, twin_gpu_t **gpu, uint32_t *card)
{
    nvmlReturn_t status = twin_setting(device, gpu);

    if (status == NVML_SUCCESS)
        status = twin_index(device, card);
    if (status != NVML_SUCCESS)
        return status;
    return mig_profiles(*gpu) == NULL || !mig_is_on(*gpu) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlReturn_t request_instance(nvmlDevice_t device, unsigned int profile, const nvmlGpuInstancePlacement_t *place,
                                     nvmlGpuInstance_t *instance)
{
    instance_request_t request;
    twin_gpu_t *gpu;
    uint32_t card;
    nvmlReturn_t status = divided(device, &gpu, &card);

    if (status != NVML_SUCCESS)
        return status;
    request = (instance_request_t){.profile = mig_profile(gpu, profile), .is_placed = place != NULL};
    if (instance == NULL || request.profile == NULL || (place != NULL && place->size != request.profile->size))
        return NVML_ERROR_INVALID_ARGUMENT;
    request.start = place != NULL ? place->start : 0;
    status        = twin_request_division(gpu, create, &request);
    if (status == NVML_SUCCESS)
        *instance = mig_instance_handle(card, request.id);
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile,
                                                     nvmlGpuInstance_t *instance)
{
    return request_instance(device, profile, NULL, instance);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile,
                                                                  const nvmlGpuInstancePlacement_t *placement,
                                                                  nvmlGpuInstance_t *instance)
{
    twin_gpu_t *gpu;
    nvmlReturn_t status = twin_setting(device, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    return placement == NULL ? NVML_ERROR_INVALID_ARGUMENT : request_instance(device, profile, placement, instance);
}

static nvmlReturn_t destroy(twin_gpu_t *gpu, void *with)
{
    const uint32_t *id = with;

    for (uint32_t compute = 0; compute < TWIN_COMPUTE; compute++)
        if (gpu->compute[*id][compute].slices != 0)
            return NVML_ERROR_IN_USE;
    gpu->instances[*id].slices = 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    mig_place_t place = {0};
    twin_gpu_t *gpu;
    nvmlReturn_t status = mig_of_instance(instance, &place, &place);

    if (status == NVML_SUCCESS)
        status = twin_setting(twin_handle(place.card), &gpu);
    return status != NVML_SUCCESS ? status : twin_request_division(gpu, destroy, &place.instance);
}

/* ---------------------------------------------------------------- what is there */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *instances,
                                                   unsigned int *count)
{
    twin_gpu_t *gpu;
    uint32_t card, n = 0;
    /* as the reference: only root may look */
    nvmlReturn_t status = divided(device, &gpu, &card);

    if (status != NVML_SUCCESS)
        return status;
    if (instances == NULL || count == NULL || mig_profile(gpu, profile) == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t id = 0; id < TWIN_INSTANCES; id++)
        if (gpu->instances[id].slices != 0 && gpu->instances[id].profile == profile)
            instances[n++] = mig_instance_handle(card, id);
    *count = n;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    twin_gpu_t *gpu;
    uint32_t card;
    nvmlReturn_t status = divided(device, &gpu, &card);

    if (status != NVML_SUCCESS)
        return status;
    if (instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (id >= TWIN_INSTANCES || gpu->instances[id].slices == 0)
        return NVML_ERROR_NOT_FOUND;
    *instance = mig_instance_handle(card, id);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    mig_place_t place;
    nvmlReturn_t status = mig_of_instance(instance, info, &place);
    const twin_instance_t *found;

    if (status != NVML_SUCCESS)
        return status;
    found = &place.gpu->instances[place.instance];
    *info = (nvmlGpuInstanceInfo_t){
        twin_handle(place.card), place.instance, found->profile, {found->start, found->size}};
    return NVML_SUCCESS;
}
