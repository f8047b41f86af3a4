/*
 * Compute instances of a GPU instance: they divide its SMs and share its memory. The number of a profile is its
 * identifier here, as on the cards. A new one gets the lowest free identifier and the first free place.
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"

/* ---------------------------------------------------------------- profiles */

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                                       unsigned int engines,
                                                                       nvmlComputeInstanceProfileInfo_v2_t *info)
{
    mig_place_t place;
    bool exists         = profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT && engines == 0;
    nvmlReturn_t status = mig_of_instance(instance, exists ? info : NULL, &place);
    const mig_profile_t *within;
    uint32_t starts[MIG_PLACEMENTS], slices;

    if (status != NVML_SUCCESS)
        return status;
    if (info->version != NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    within = mig_profile_at(&place);
    slices = mig_compute_slices(within, profile);
    if (slices == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    info->id                    = profile;
    info->sliceCount            = slices;
    info->instanceCount         = mig_compute_placements(within, slices, starts);
    info->multiprocessorCount   = mig_sms(within, slices);
    info->sharedCopyEngineCount = within->copy_engines;
    info->sharedDecoderCount    = within->decoders;
    info->sharedEncoderCount    = 0;
    info->sharedJpegCount       = within->jpegs;
    info->sharedOfaCount        = within->ofas;
    memset(info->name, 0, sizeof info->name);
    mig_compute_name(within, slices, info->name, sizeof info->name);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                                      unsigned int engines,
                                                                      nvmlComputeInstanceProfileInfo_t *info)
{
    nvmlComputeInstanceProfileInfo_v2_t whole = {
        .version = NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2)};
    nvmlReturn_t status =
        nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, profile, engines, info != NULL ? &whole : NULL);

    if (status == NVML_SUCCESS)
        *info = (nvmlComputeInstanceProfileInfo_t){
            whole.id,                    whole.sliceCount,         whole.instanceCount,
            whole.multiprocessorCount,   whole.sharedCopyEngineCount, whole.sharedDecoderCount,
            whole.sharedEncoderCount,    whole.sharedJpegCount,    whole.sharedOfaCount};
    return status;
}

/* ---------------------------------------------------------------- what fits */

static bool is_free(const twin_gpu_t *gpu, uint32_t instance, uint32_t start, uint32_t slices)
{
    for (uint32_t id = 0; id < TWIN_COMPUTE; id++) {
        const twin_instance_t *other = &gpu->compute[instance][id];
        if (other->slices != 0 && start < other->start + other->slices && other->start < start + slices)
            return false;
    }
    return true;
}

/* The places of a profile, taken or not. */
typedef struct {
    mig_place_t within;
    uint32_t slices, n, starts[MIG_PLACEMENTS];
} places_t;

/* `answer`: where the caller wants it; NULL is refused. */
static nvmlReturn_t places_of(nvmlGpuInstance_t instance, unsigned int profile, const void *answer, places_t *found)
{
    nvmlReturn_t status = mig_of_instance(instance, answer, &found->within);

    if (status != NVML_SUCCESS)
        return status;
    found->slices = mig_compute_slices(mig_profile_at(&found->within), profile);
    if (found->slices == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    found->n = mig_compute_placements(mig_profile_at(&found->within), found->slices, found->starts);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance,
                                                                            unsigned int profile, unsigned int *count)
{
    places_t found;
    nvmlReturn_t status = places_of(instance, profile, count, &found);
    uint32_t fit        = 0;

    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; i < found.n; i++)
        fit += is_free(found.within.gpu, found.within.instance, found.starts[i], found.slices);
    *count = fit;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t
nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profile,
                                                    nvmlComputeInstancePlacement_t *placements, unsigned int *count)
{
    places_t found;
    nvmlReturn_t status = places_of(instance, profile, count, &found);

    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; placements != NULL && i < found.n; i++) {
        if (*count < found.n)
            return NVML_ERROR_INSUFFICIENT_SIZE;
        placements[i] = (nvmlComputeInstancePlacement_t){found.starts[i], found.slices};
    }
    *count = found.n;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- creation and end */

typedef struct {
    uint32_t instance, profile, slices, sm_ppm, n;
    uint32_t starts[MIG_PLACEMENTS]; /* the first free one is taken */
    uint32_t id;
} compute_request_t;

static nvmlReturn_t create(twin_gpu_t *gpu, void *with)
{
    compute_request_t *request = with;
    twin_instance_t *compute   = gpu->compute[request->instance];

    if (gpu->instances[request->instance].slices == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (request->id = 0; compute[request->id].slices != 0;)
        if (++request->id == TWIN_COMPUTE)
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (uint32_t i = 0; i < request->n; i++) {
        if (is_free(gpu, request->instance, request->starts[i], request->slices)) {
            compute[request->id] =
                (twin_instance_t){request->slices, request->sm_ppm, request->profile, request->starts[i], request->slices};
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static nvmlReturn_t request_compute(nvmlGpuInstance_t instance, unsigned int profile,
                                    const nvmlComputeInstancePlacement_t *wanted, nvmlComputeInstance_t *out)
{
    mig_place_t place;
    compute_request_t request = {.profile = profile};
    twin_gpu_t *gpu;
    nvmlReturn_t status = mig_of_instance(instance, out, &place);

    if (status == NVML_SUCCESS)
        status = twin_setting(twin_handle(place.card), &gpu);
    if (status != NVML_SUCCESS)
        return status;
    request.instance = place.instance;
    request.slices   = mig_compute_slices(mig_profile_at(&place), profile);
    if (request.slices == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    request.sm_ppm = mig_sms(mig_profile_at(&place), request.slices) * 1000000u / mig_card_sms(gpu);
    request.n = mig_compute_placements(mig_profile_at(&place), request.slices, request.starts);
    for (uint32_t i = 0; wanted != NULL && i < request.n; i++)
        if (request.starts[i] == wanted->start && wanted->size == request.slices)
            request.starts[0] = wanted->start;
    if (wanted != NULL && request.starts[0] != wanted->start)
        return NVML_ERROR_INVALID_ARGUMENT;
    request.n = wanted != NULL ? 1 : request.n;
    status    = twin_request_division(gpu, create, &request);
    if (status == NVML_SUCCESS)
        *out = mig_compute_handle(place.card, place.instance, request.id);
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile,
                                                              nvmlComputeInstance_t *compute)
{
    return request_compute(instance, profile, NULL, compute);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t instance, unsigned int profile, const nvmlComputeInstancePlacement_t *placement,
    nvmlComputeInstance_t *compute)
{
    return request_compute(instance, profile, placement, placement != NULL ? compute : NULL);
}

static nvmlReturn_t destroy(twin_gpu_t *gpu, void *with)
{
    const mig_place_t *place = with;
    gpu_reading_t now;
    nvmlReturn_t status = twin_read_gpu(gpu, &now);

    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; i < now.n_tenants; i++)
        if (now.tenants[i].instance == TWIN_WHOLE ||
            (now.tenants[i].instance == place->instance && now.tenants[i].compute == place->compute))
            return NVML_ERROR_IN_USE;
    gpu->compute[place->instance][place->compute].slices = 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    mig_place_t place = {0};
    twin_gpu_t *gpu;
    nvmlReturn_t status = mig_of_compute(compute, &place, &place);

    if (status == NVML_SUCCESS)
        status = twin_setting(twin_handle(place.card), &gpu);
    return status != NVML_SUCCESS ? status : twin_request_division(gpu, destroy, &place);
}

/* ---------------------------------------------------------------- what is there */

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile,
                                                            nvmlComputeInstance_t *out, unsigned int *count)
{
    mig_place_t place;
    nvmlReturn_t status = mig_of_instance(instance, count != NULL ? out : NULL, &place);
    uint32_t n = 0;

    if (status != NVML_SUCCESS)
        return status;
    if (mig_compute_slices(mig_profile_at(&place), profile) == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t id = 0; id < TWIN_COMPUTE; id++) {
        const twin_instance_t *found = &place.gpu->compute[place.instance][id];
        if (found->slices != 0 && found->profile == profile)
            out[n++] = mig_compute_handle(place.card, place.instance, id);
    }
    *count = n;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                               nvmlComputeInstance_t *compute)
{
    mig_place_t place;
    nvmlReturn_t status = mig_of_instance(instance, compute, &place);

    if (status != NVML_SUCCESS)
        return status;
    if (id >= TWIN_COMPUTE || place.gpu->compute[place.instance][id].slices == 0)
        return NVML_ERROR_NOT_FOUND;
    *compute = mig_compute_handle(place.card, place.instance, id);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    mig_place_t place;
    nvmlReturn_t status = mig_of_compute(compute, info, &place);
    const twin_instance_t *found;

    if (status != NVML_SUCCESS)
        return status;
    found = &place.gpu->compute[place.instance][place.compute];
    *info = (nvmlComputeInstanceInfo_t){twin_handle(place.card), mig_instance_handle(place.card, place.instance),
                                        place.compute, found->profile, {found->start, found->size}};
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    return nvmlComputeInstanceGetInfo_v2(compute, info);
}
