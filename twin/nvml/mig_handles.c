/* Handles of GPU instances, compute instances and MIG devices, and the names by which MIG devices are found. */
#include <stdio.h>
#include <string.h>

#include "mig.h"

static char instance_handles[TWIN_GPUS_MAX][TWIN_INSTANCES];
static char compute_handles[TWIN_GPUS_MAX][TWIN_INSTANCES][TWIN_COMPUTE];
static char device_handles[TWIN_GPUS_MAX][TWIN_INSTANCES][TWIN_COMPUTE]; /* a MIG device is a compute instance */

nvmlGpuInstance_t mig_instance_handle(uint32_t card, uint32_t instance)
{
    return (nvmlGpuInstance_t)(void *)&instance_handles[card][instance];
}

nvmlComputeInstance_t mig_compute_handle(uint32_t card, uint32_t instance, uint32_t compute)
{
    return (nvmlComputeInstance_t)(void *)&compute_handles[card][instance][compute];
}

nvmlDevice_t mig_device_handle(uint32_t card, uint32_t instance, uint32_t compute)
{
    return (nvmlDevice_t)(void *)&device_handles[card][instance][compute];
}

/* The card of a place is looked at first, since a lost one answers nothing else. */
static nvmlReturn_t is_there(mig_place_t *place, const void *out, bool has_compute)
{
    nvmlReturn_t status = twin_device(twin_handle(place->card), out, &place->gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (place->gpu->instances[place->instance].slices == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return has_compute && place->gpu->compute[place->instance][place->compute].slices == 0 ? NVML_ERROR_INVALID_ARGUMENT
                                                                                           : NVML_SUCCESS;
}

static nvmlReturn_t place_of(uintptr_t offset, size_t size, bool has_compute, const void *out, mig_place_t *place)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (offset >= size)
        return NVML_ERROR_INVALID_ARGUMENT;
    place->compute  = has_compute ? (uint32_t)(offset % TWIN_COMPUTE) : 0;
    offset          = has_compute ? offset / TWIN_COMPUTE : offset;
    place->instance = (uint32_t)(offset % TWIN_INSTANCES);
    place->card     = (uint32_t)(offset / TWIN_INSTANCES);
    return is_there(place, out, has_compute);
}

nvmlReturn_t mig_of_instance(nvmlGpuInstance_t handle, const void *out, mig_place_t *place)
{
    return place_of((uintptr_t)handle - (uintptr_t)instance_handles, sizeof instance_handles, false, out, place);
}

nvmlReturn_t mig_of_compute(nvmlComputeInstance_t handle, const void *out, mig_place_t *place)
{
    return place_of((uintptr_t)handle - (uintptr_t)compute_handles, sizeof compute_handles, true, out, place);
}

bool mig_is_device(nvmlDevice_t handle)
{
    return (uintptr_t)handle - (uintptr_t)device_handles < sizeof device_handles;
}

nvmlReturn_t mig_of_device(nvmlDevice_t handle, const void *out, mig_place_t *place)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    if (status == NVML_SUCCESS && !mig_is_device(handle))
        status = NVML_ERROR_NOT_FOUND;
    if (status != NVML_SUCCESS)
        return status;
    return place_of((uintptr_t)handle - (uintptr_t)device_handles, sizeof device_handles, true, out, place);
}

const mig_profile_t *mig_profile_at(const mig_place_t *place)
{
    return mig_profile(place->gpu, place->gpu->instances[place->instance].profile);
}

bool mig_is_on(const twin_gpu_t *gpu)
{
    return gpu->mig_mode == NVML_FEATURE_ENABLED;
}

/* ---------------------------------------------------------------- names */

/* FNV-1a of what the driver makes its UUIDs of too: the card's UUID and both identifiers. So an instance that is made
   again in the same place has the same UUID. */
static uint64_t hash(uint64_t seed, const char *text)
{
    for (; *text != '\0'; text++)
        seed = (seed ^ (uint8_t)*text) * 0x100000001b3u;
    return seed;
}

void mig_uuid(const mig_place_t *place, char out[80])
{
    char name[128];
    uint64_t high, low;

    snprintf(name, sizeof name, "%.79s/%u/%u", place->gpu->uuid, place->instance, place->compute);
    high = hash(0xcbf29ce484222325u, name);
    low  = hash(high, name);
    snprintf(out, 80, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(high >> 32), (unsigned)(high >> 16 & 0xffff),
             (unsigned)(high & 0xfff), (unsigned)(low >> 48 & 0x3fff) | 0x8000,
             (unsigned long long)(low & 0xffffffffffffu));
}

nvmlReturn_t mig_find(const char *uuid, nvmlDevice_t *device)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);
    char found[80];

    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t at = 0; at < gpus->n_gpus * TWIN_INSTANCES * TWIN_COMPUTE; at++) {
        mig_place_t place = {.card     = at / (TWIN_INSTANCES * TWIN_COMPUTE),
                             .instance = at / TWIN_COMPUTE % TWIN_INSTANCES,
                             .compute  = at % TWIN_COMPUTE};
        place.gpu = &gpus->gpu[place.card];
        if (place.gpu->compute[place.instance][place.compute].slices == 0)
            continue;
        mig_uuid(&place, found);
        if (strcmp(found, uuid) == 0) {
            *device = mig_device_handle(place.card, place.instance, place.compute);
            return is_there(&place, device, true);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
