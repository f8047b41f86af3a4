/*
 * Processes on a GPU. The emulated workload is computed by the process that runs the model, the server of a served twin,
 * so this is the one that computes on each card that has work. It uses all memory that the card shows as used.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "state.h"

#define MIB         (1ull << 20)
#define NO_INSTANCE 0xffffffffu /* of a card that is not divided (MIG) */

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
static nvmlReturn_t room_for(const gpu_reading_t *now, unsigned int *count, const void *out)
{
    unsigned int room = *count;

    *count = now->process_pid != 0;
    return *count == 0 || (room > 0 && out != NULL) ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                                 nvmlProcessInfo_t *infos)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, count, &now);

    if (status == NVML_SUCCESS)
        status = room_for(&now, count, infos);
    if (status == NVML_SUCCESS && *count > 0)
        infos[0] = (nvmlProcessInfo_t){.pid               = now.process_pid,
                                       .usedGpuMemory     = now.memory_used_mib * MIB,
                                       .gpuInstanceId     = NO_INSTANCE,
                                       .computeInstanceId = NO_INSTANCE};
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
    nvmlProcessInfo_t whole;
    nvmlReturn_t status = nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos != NULL ? &whole : NULL);

    if (status == NVML_SUCCESS && *count > 0)
        infos[0] = (nvmlProcessInfo_v1_t){.pid = whole.pid, .usedGpuMemory = whole.usedGpuMemory};
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, list, &now);

    if (status == NVML_SUCCESS && list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        status = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (status == NVML_SUCCESS && list->mode > NVML_PROCESS_MODE_MPS)
        status = NVML_ERROR_INVALID_ARGUMENT;
    if (status != NVML_SUCCESS)
        return status;
    if (list->mode != NVML_PROCESS_MODE_COMPUTE)
        now.process_pid = 0;
    status = room_for(&now, &list->numProcArrayEntries, list->procArray);
    if (status == NVML_SUCCESS && list->numProcArrayEntries > 0)
        list->procArray[0] = (nvmlProcessDetail_v1_t){.pid                      = now.process_pid,
                                                      .usedGpuMemory            = now.memory_used_mib * MIB,
                                                      .gpuInstanceId            = NO_INSTANCE,
                                                      .computeInstanceId        = NO_INSTANCE,
                                                      .usedGpuCcProtectedMemory = 0};
    return status;
}

/* One sample: the card's present utilisation, if it is newer than `last_seen_us`. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                         unsigned int *count, unsigned long long last_seen_us)
{
    gpu_reading_t now;
    nvmlReturn_t status = twin_read(device, count, &now);

    if (status == NVML_SUCCESS && (now.process_pid == 0 || now.time_us <= last_seen_us))
        status = NVML_ERROR_NOT_FOUND;
    if (status == NVML_SUCCESS)
        status = room_for(&now, count, samples);
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
