/*
 * The profiles of cards that can be divided: A100 with 40 and 80 GB, H100 with 80 GB.
 *
 * Numbers are those that `nvidia-smi mig -lgip` prints on such cards (A100: drivers 470 to 570; H100 SXM: 535 and later,
 * where a slice of three or of twice the memory has more SMs than its share). Memory is printed in GiB to a hundredth.
 */
#include <stdio.h>

#include "mig.h"

#define GIB(hundredths) ((hundredths) * 1024u / 100u)

static const mig_profile_t a100_40[MIG_PROFILES] = {
    {NVML_PROFILE_1_SLICE,      19, 1, 1, 7, 14, 1, 0, 0, 0, GIB(475),  "1g.5gb"},
    {NVML_PROFILE_1_SLICE_REV1, 20, 1, 1, 1, 14, 1, 1, 1, 1, GIB(475),  "1g.5gb+me"},
    {NVML_PROFILE_1_SLICE_REV2, 15, 1, 2, 4, 14, 1, 1, 0, 0, GIB(975),  "1g.10gb"},
    {NVML_PROFILE_2_SLICE,      14, 2, 2, 3, 28, 2, 1, 0, 0, GIB(975),  "2g.10gb"},
    {NVML_PROFILE_3_SLICE,      9,  3, 4, 2, 42, 3, 2, 0, 0, GIB(1962), "3g.20gb"},
    {NVML_PROFILE_4_SLICE,      5,  4, 4, 1, 56, 4, 2, 0, 0, GIB(1962), "4g.20gb"},
    {NVML_PROFILE_7_SLICE,      0,  7, 8, 1, 98, 7, 5, 1, 1, GIB(3938), "7g.40gb"},
};

static const mig_profile_t a100_80[MIG_PROFILES] = {
    {NVML_PROFILE_1_SLICE,      19, 1, 1, 7, 14, 1, 0, 0, 0, GIB(950),  "1g.10gb"},
    {NVML_PROFILE_1_SLICE_REV1, 20, 1, 1, 1, 14, 1, 1, 1, 1, GIB(950),  "1g.10gb+me"},
    {NVML_PROFILE_1_SLICE_REV2, 15, 1, 2, 4, 14, 1, 1, 0, 0, GIB(1950), "1g.20gb"},
    {NVML_PROFILE_2_SLICE,      14, 2, 2, 3, 28, 2, 1, 0, 0, GIB(1950), "2g.20gb"},
    {NVML_PROFILE_3_SLICE,      9,  3, 4, 2, 42, 3, 2, 0, 0, GIB(3925), "3g.40gb"},
    {NVML_PROFILE_4_SLICE,      5,  4, 4, 1, 56, 4, 2, 0, 0, GIB(3925), "4g.40gb"},
    {NVML_PROFILE_7_SLICE,      0,  7, 8, 1, 98, 7, 5, 1, 1, GIB(7900), "7g.80gb"},
};

static const mig_profile_t h100_80[MIG_PROFILES] = {
    {NVML_PROFILE_1_SLICE,      19, 1, 1, 7, 16,  1, 1, 1, 0, GIB(975),  "1g.10gb"},
    {NVML_PROFILE_1_SLICE_REV1, 20, 1, 1, 1, 16,  1, 1, 1, 1, GIB(975),  "1g.10gb+me"},
    {NVML_PROFILE_1_SLICE_REV2, 15, 1, 2, 4, 26,  1, 1, 1, 0, GIB(1962), "1g.20gb"},
    {NVML_PROFILE_2_SLICE,      14, 2, 2, 3, 32,  2, 2, 2, 0, GIB(1962), "2g.20gb"},
    {NVML_PROFILE_3_SLICE,      9,  3, 4, 2, 60,  3, 3, 3, 0, GIB(3950), "3g.40gb"},
    {NVML_PROFILE_4_SLICE,      5,  4, 4, 1, 64,  4, 4, 4, 0, GIB(3950), "4g.40gb"},
    {NVML_PROFILE_7_SLICE,      0,  7, 8, 1, 132, 8, 7, 7, 1, GIB(7925), "7g.80gb"},
};

/* By compute capability, since other Ampere cards cannot be divided like this, and by memory. */
const mig_profile_t *mig_profiles(const twin_gpu_t *gpu)
{
    if (gpu->cuda_minor != 0 || gpu->memory_mib > 82000)
        return NULL;
    if (gpu->cuda_major == 8)
        return gpu->memory_mib > 41000 ? a100_80 : a100_40;
    return gpu->cuda_major == 9 ? h100_80 : NULL;
}

const mig_profile_t *mig_profile(const twin_gpu_t *gpu, uint32_t id)
{
    const mig_profile_t *all = mig_profiles(gpu);

    for (uint32_t i = 0; all != NULL && i < MIG_PROFILES; i++)
        if (all[i].id == id)
            return &all[i];
    return NULL;
}

/* Multiples of the size, without the eighth slice alone: it has memory and no SMs. */
uint32_t mig_placements(const mig_profile_t *profile, uint32_t starts[MIG_PLACEMENTS])
{
    uint32_t n = 0;

    for (uint32_t start = 0; start + profile->size <= MIG_MEMORY_SLICES && n < profile->count; start += profile->size)
        starts[n++] = start;
    if (profile->number == NVML_PROFILE_1_SLICE_REV1) /* one of them, anywhere */
        for (n = 0; n < MIG_PLACEMENTS; n++)
            starts[n] = n;
    return n;
}

uint32_t mig_instance_id(uint32_t start, uint32_t size)
{
    uint32_t n = MIG_MEMORY_SLICES / size; /* placements of this size: those before are of larger ones */

    return n - 1 + ((start / size) ^ (n / 2));
}

uint32_t mig_compute_slices(const mig_profile_t *within, uint32_t id)
{
    static const uint32_t slices[] = {1, 2, 3, 4, 7};

    if (id >= sizeof slices / sizeof slices[0] || slices[id] > within->slices)
        return 0;
    return slices[id] == 3 && within->slices == 4 ? 0 : slices[id];
}

uint32_t mig_compute_placements(const mig_profile_t *within, uint32_t slices, uint32_t starts[MIG_PLACEMENTS])
{
    uint32_t n = 0, step = slices == 3 ? 4 : slices;

    for (uint32_t start = 0; start + slices <= within->slices; start += step)
        starts[n++] = start;
    return n;
}

/* An SM has 64 FP32 cores in an A100 and 128 in an H100. */
uint32_t mig_card_sms(const twin_gpu_t *gpu)
{
    return gpu->cores / (gpu->cuda_major == 8 ? 64 : 128);
}

uint32_t mig_sms(const mig_profile_t *within, uint32_t compute_slices)
{
    return within->sms * compute_slices / within->slices;
}

/* A compute instance that is its whole GPU instance has the GPU instance's name. */
void mig_compute_name(const mig_profile_t *within, uint32_t compute_slices, char *out, size_t size)
{
    if (compute_slices == within->slices)
        snprintf(out, size, "MIG %s", within->name);
    else
        snprintf(out, size, "MIG %uc.%s", compute_slices, within->name);
}
