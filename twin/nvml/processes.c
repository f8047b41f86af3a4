/*
 * Processes on a GPU. The emulated workload is computed by the process that runs the model, the server of a served twin,
 * so this is the one that computes on each card that has work: once for each program that shares the card.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "mig.h"

#define MIB (1ull << 20)

NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    const twin_gpus_t *gpus;
    char path[32];
    ssize_t got;
    int fd;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    got = read(fd, name, length - 1); /* arguments are NUL separated: the first is the name; cut to the buffer */
    close(fd);
    name[got > 0 ? got : 0] = '\0';
    return got >= 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ---------------------------------------------------------------- those that compute */

/* How many entries a list has, as NVML says it: the count alone when the list does not fit. */
static nvmlReturn_t room_for(uint32_t n, unsigned int *count, const void *out)
{
    unsigned int room = *count;

    *count = n;
    return n == 0 || (room >= n && out != NULL) ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The programs of a card, or those of a MIG device alone. */
static nvmlReturn_t read_tenants(nvmlDevice_t device, const void *out, gpu_reading_t *now)
{
    mig_place_t place;
    nvmlReturn_t status = mig_of_device(device, out, &place);
    uint32_t n          = 0;

    if (status == NVML_ERROR_NOT_FOUND)
        return twin_read(device, out, now);
    if (status == NVML_SUCCESS)
        status = twin_read_gpu(place.gpu, now);
    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; i < now->n_tenants; i++)
        if (now->tenants[i].instance == place.instance && now->tenants[i].compute == place.compute)
            now->tenants[n++] = now->tenants[i];
    now->n_tenants = n;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                                 nvmlProcessInfo_t *infos)
{
    gpu_reading_t now;
    nvmlReturn_t status = read_tenants(device, count, &now);

    if (status == NVML_SUCCESS)
        status = room_for(now.n_tenants, count, infos);
    for (uint32_t i = 0; status == NVML_SUCCESS && i < now.n_tenants; i++)
        infos[i] = (nvmlProcessInfo_t){.pid               = now.process_pid,
                                       .usedGpuMemory     = now.tenants[i].memory_mib * MIB,
                                       .gpuInstanceId     = now.tenants[i].instance,
                                       .computeInstanceId = now.tenants[i].compute};
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                                 nvmlProcessInfo_t *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                              nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_t whole[TWIN_TENANTS];
    unsigned int n      = TWIN_TENANTS;
    nvmlReturn_t status = nvmlDeviceGetComputeRunningProcesses_v3(device, count != NULL ? &n : NULL, whole);

    if (status == NVML_SUCCESS)
        status = room_for(n, count, infos);
    for (uint32_t i = 0; status == NVML_SUCCESS && i < n; i++)
        infos[i] = (nvmlProcessInfo_v1_t){.pid = whole[i].pid, .usedGpuMemory = whole[i].usedGpuMemory};
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    gpu_reading_t now;
    nvmlReturn_t status = read_tenants(device, list, &now);

    if (status == NVML_SUCCESS && list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        status = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (status == NVML_SUCCESS && list->mode > NVML_PROCESS_MODE_MPS)
        status = NVML_ERROR_INVALID_ARGUMENT;
    if (status != NVML_SUCCESS)
        return status;
    if (list->mode != NVML_PROCESS_MODE_COMPUTE)
        now.n_tenants = 0;
    status = room_for(now.n_tenants, &list->numProcArrayEntries, list->procArray);
    for (uint32_t i = 0; status == NVML_SUCCESS && i < now.n_tenants; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid                      = now.process_pid,
                                                      .usedGpuMemory            = now.tenants[i].memory_mib * MIB,
                                                      .gpuInstanceId            = now.tenants[i].instance,
                                                      .computeInstanceId        = now.tenants[i].compute,
                                                      .usedGpuCcProtectedMemory = 0};
    return status;
}

/* One sample: the card's present utilisation, if it is newer than `last_seen_us`. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                         unsigned int *count, unsigned long long last_seen_us)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, count, &now);

    if (status == NVML_SUCCESS && (now.process_pid == 0 || (now.missing & TWIN_READING_GPU_UTILIZATION) || now.time_us <= last_seen_us))
        status = NVML_ERROR_NOT_FOUND;
    if (status == NVML_SUCCESS)
        status = room_for(1, count, samples);
    if (status == NVML_SUCCESS)
        samples[0] = (nvmlProcessUtilizationSample_t){
            .pid = now.process_pid, .timeStamp = now.time_us, .smUtil = now.gpu_pct, .memUtil = now.memory_pct};
    return status;
}

/* ---------------------------------------------------------------- those that no card has */

static nvmlReturn_t no_process(nvmlDevice_t device, unsigned int *count)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, count, &gpu);

    if (status == NVML_SUCCESS)
        *count = 0;
    return status;
}

#define NO_PROCESS(function)                                                                          \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, void *infos)           \
    {                                                                                                 \
        (void)infos;                                                                                  \
        return no_process(device, count);                                                             \
    }

NO_PROCESS(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESS(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESS(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESS(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESS(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESS(nvmlDeviceGetMPSComputeRunningProcesses_v3)
NO_PROCESS(nvmlDeviceGetEncoderSessions)
NO_PROCESS(nvmlDeviceGetFBCSessions)
