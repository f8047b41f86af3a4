/*
 * MIG: a card that is divided into GPU instances (memory and SMs), and these into compute instances (SMs).
 *
 * A card has eight memory slices and seven compute slices. A GPU instance occupies the memory slices of its placement,
 * and two instances never overlap: this one rule decides what fits. Identifiers are the driver's: they number the
 * placements, those of the upper half of the card first, so an identifier and a placement name each other:
 *
 *     8 slices: 0      4: 1 (4:4), 2 (0:4)      2: 3 (4:2), 4 (6:2), 5 (0:2), 6 (2:2)      1: 7 (4:1) ... 14 (3:1)
 *
 * Handles of instances are addresses of bytes, one for each identifier, as those of cards are (session.c).
 * Source: NVIDIA, "Multi-Instance GPU User Guide", "Supported MIG Profiles" and its listings.
 */
#ifndef TWIN_NVML_MIG_H
#define TWIN_NVML_MIG_H

#include "state.h"

#define MIG_MEMORY_SLICES  8
#define MIG_COMPUTE_SLICES 7
#define MIG_PROFILES       7
#define MIG_PLACEMENTS     7

/* A profile of GPU instances. `number` is NVML's, `id` the card's. */
typedef struct {
    uint32_t number, id, slices, size, count, sms, copy_engines, decoders, jpegs, ofas, memory_mib;
    const char *name; /* "1g.5gb" */
} mig_profile_t;

/* NULL: the card cannot be divided, or has no such profile. */
const mig_profile_t *mig_profiles(const twin_gpu_t *gpu);
const mig_profile_t *mig_profile(const twin_gpu_t *gpu, uint32_t id);
/* Where instances of the profile can be; the number of placements. */
uint32_t mig_placements(const mig_profile_t *profile, uint32_t starts[MIG_PLACEMENTS]);
uint32_t mig_instance_id(uint32_t start, uint32_t size);
/* Compute profiles: NVML's number is the identifier. Slices; 0 if such a GPU instance has no such profile. */
uint32_t mig_compute_slices(const mig_profile_t *within, uint32_t id);
uint32_t mig_compute_placements(const mig_profile_t *within, uint32_t slices, uint32_t starts[MIG_PLACEMENTS]);
uint32_t mig_card_sms(const twin_gpu_t *gpu);
uint32_t mig_sms(const mig_profile_t *within, uint32_t compute_slices);
void mig_compute_name(const mig_profile_t *within, uint32_t compute_slices, char *out, size_t size);

/* What a handle stands for. That of an instance that is gone is not valid. */
typedef struct {
    uint32_t card, instance, compute; /* compute: of handles that have one */
    const twin_gpu_t *gpu;
} mig_place_t;

nvmlGpuInstance_t mig_instance_handle(uint32_t card, uint32_t instance);
nvmlComputeInstance_t mig_compute_handle(uint32_t card, uint32_t instance, uint32_t compute);
nvmlDevice_t mig_device_handle(uint32_t card, uint32_t instance, uint32_t compute);
nvmlReturn_t mig_of_instance(nvmlGpuInstance_t handle, const void *out, mig_place_t *place);
nvmlReturn_t mig_of_compute(nvmlComputeInstance_t handle, const void *out, mig_place_t *place);
/* NVML_ERROR_NOT_FOUND: the handle is none of a MIG device. */
nvmlReturn_t mig_of_device(nvmlDevice_t handle, const void *out, mig_place_t *place);
bool mig_is_device(nvmlDevice_t handle);
void mig_uuid(const mig_place_t *place, char out[80]);
/* The MIG device of the UUID; NVML_ERROR_NOT_FOUND if there is none. */
nvmlReturn_t mig_find(const char *uuid, nvmlDevice_t *device);
const mig_profile_t *mig_profile_at(const mig_place_t *place);
bool mig_is_on(const twin_gpu_t *gpu);

#endif
