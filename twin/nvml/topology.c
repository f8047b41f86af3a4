/*
 * Topology of GPUs: the model knows their NUMA nodes, so there are only the levels "same node" and "system".
 *
 * Ours: the cards are spread evenly over the packages, each of which is a NUMA node. nvmlDeviceGetNumaNodeId is for
 * cards that are NUMA nodes themselves (NVML API Reference), so it stays NOT_SUPPORTED.
 */
#include <sched.h>
#include <string.h>

#include "state.h"

static unsigned int common_level(uint32_t one, uint32_t other, const twin_gpu_t *gpu, const twin_gpu_t *peer)
{
    if (one == other)
        return NVML_TOPOLOGY_INTERNAL;
    return gpu->node_numa == peer->node_numa ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
                                                             unsigned int *level)
{
    const twin_gpu_t *gpu, *peer;
    uint32_t index, other_index;
    nvmlReturn_t status = twin_device(device, level, &gpu);

    if (status == NVML_SUCCESS)
        status = twin_device(other, level, &peer);
    if (status == NVML_SUCCESS)
        status = twin_index(device, &index);
    if (status == NVML_SUCCESS)
        status = twin_index(other, &other_index);
    if (status == NVML_SUCCESS)
        *level = common_level(index, other_index, gpu, peer);
    return status;
}

/* Without an array, returns the count. Else fills the array up to `count` and sets `count` to the number of GPUs. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                                          nvmlDevice_t *devices)
{
    const twin_gpus_t *gpus;
    const twin_gpu_t *gpu;
    uint32_t index, found = 0;
    nvmlReturn_t status = twin_device(device, count, &gpu);

    if (status == NVML_SUCCESS)
        status = twin_index(device, &index);
    if (status == NVML_SUCCESS)
        status = twin_session(&gpus);
    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t other = 0; other < gpus->n_gpus; other++) {
        if (other == index || common_level(index, other, gpu, &gpus->gpu[other]) != level)
            continue;
        if (devices != NULL && found < *count)
            devices[found] = twin_handle(other);
        found++;
    }
    *count = devices == NULL || found < *count ? found : *count;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *is_same)
{
    unsigned int level;
    nvmlReturn_t status = nvmlDeviceGetTopologyCommonAncestor(device, other, is_same != NULL ? &level : NULL);

    if (status == NVML_SUCCESS)
        *is_same = level == NVML_TOPOLOGY_INTERNAL;
    return status;
}

/* One bit per NUMA node in words of 64; node and socket are the same thing here. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *nodes,
                                                     unsigned int scope)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, words > 0 && scope <= 1 ? nodes : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    for (unsigned int word = 0; word < words; word++)
        nodes[word] = gpu->node_numa / 64 == word ? 1ul << gpu->node_numa % 64 : 0;
    return NVML_SUCCESS;
}

/* One bit per logical CPU, of the same NUMA node and thus of the same socket. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words,
                                                             unsigned long *cpus, unsigned int scope)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, words > 0 && scope <= 1 ? cpus : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    for (unsigned int word = 0; word < words; word++)
        cpus[word] = word < TWIN_CPU_WORDS ? gpu->near_cpus[word] : 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *cpus)
{
    return nvmlDeviceGetCpuAffinityWithinScope(device, words, cpus, 0);
}

/* Binds the calling thread. In process its CPUs are the host's, so only a served twin does it. */
static nvmlReturn_t bind_thread(const uint64_t cpus[TWIN_CPU_WORDS])
{
    if (twin_region_fd() < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return sched_setaffinity(0, TWIN_CPU_WORDS * sizeof cpus[0], (const cpu_set_t *)(const void *)cpus) == 0
               ? NVML_SUCCESS
               : NVML_ERROR_UNKNOWN;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetCpuAffinity(nvmlDevice_t device)
{
    const twin_gpu_t *gpu = NULL;
    nvmlReturn_t status   = twin_device(device, &gpu, &gpu);

    return status != NVML_SUCCESS ? status : bind_thread(gpu->near_cpus);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceClearCpuAffinity(nvmlDevice_t device)
{
    const twin_gpu_t *gpu = NULL;
    uint64_t all[TWIN_CPU_WORDS];
    nvmlReturn_t status = twin_device(device, &gpu, &gpu);

    memset(all, 0xff, sizeof all);
    return status != NVML_SUCCESS ? status : bind_thread(all);
}
