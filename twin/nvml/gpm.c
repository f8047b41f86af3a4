/*
 * GPU performance monitoring (GPM, Hopper on): means of hardware activity between two samples of the client's choosing.
 *
 * A sample stores the card's cumulative integrals; a metric is the difference of one integral over the difference of
 * time, in percent. Samples come from a fixed pool, so an invalid pointer is refused without dereferencing it, and
 * nothing is allocated.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "state.h"

#define SAMPLES_MAX    1024 /* per process; a monitor keeps two per GPU. Ours. */
#define METRICS_MAX    4096 /* refuses an absurd count; NVML lists 476 so far. Ours. */
#define NO_READING_YET UINT32_MAX
#define ABSURD_SHARE   655.35 /* 65535 %: a counter of sixteen bits full of ones. Ours. */

typedef struct {
    atomic_bool is_taken;
    uint32_t gpu; /* index of the device read, or NO_READING_YET */
    uint32_t missing, absurd, is_chosen; /* bits of twin_gpu_reading at that time */
    double chosen[TWIN_READINGS]; /* percent, of those in is_chosen */
    double time_s, graphics_s, sm_active_s, sm_occupancy_s, dram_active_s, fp_s;
} gpm_sample_t;

static gpm_sample_t pool[SAMPLES_MAX];

static double as_double(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static gpm_sample_t *sample_of(nvmlGpmSample_t handle)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)pool;

    if (offset >= sizeof pool || offset % sizeof pool[0] != 0)
        return NULL;
    return atomic_load(&pool[offset / sizeof pool[0]].is_taken) ? (gpm_sample_t *)(void *)handle : NULL;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *handle)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (handle == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (size_t i = 0; i < SAMPLES_MAX; i++) {
        bool free_slot = false;
        if (!atomic_compare_exchange_strong(&pool[i].is_taken, &free_slot, true))
            continue;
        pool[i].gpu = NO_READING_YET;
        *handle     = (nvmlGpmSample_t)(void *)&pool[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_MEMORY;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t handle)
{
    gpm_sample_t *sample = sample_of(handle);

    if (sample == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    atomic_store(&sample->is_taken, false);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, support, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = gpu->has_gpm != 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t handle)
{
    const twin_gpu_t *gpu;
    gpu_reading_t now;
    uint32_t index;
    gpm_sample_t *sample = sample_of(handle);
    nvmlReturn_t status  = twin_device(device, sample, &gpu);

    if (status == NVML_SUCCESS && !gpu->has_gpm)
        status = NVML_ERROR_NOT_SUPPORTED;
    if (status == NVML_SUCCESS)
        status = twin_read_gpu(gpu, &now);
    if (status == NVML_SUCCESS)
        status = twin_index(device, &index);
    if (status != NVML_SUCCESS)
        return status;
    sample->gpu            = index;
    sample->missing        = now.missing;
    sample->absurd         = now.absurd;
    for (uint32_t i = 0; i < TWIN_READINGS; i++)
        sample->chosen[i] = as_double(gpu->value[i]);
    sample->is_chosen      = gpu->chosen;
    sample->time_s         = now.gpm_time_s;
    sample->graphics_s     = now.gpm_graphics_s;
    sample->sm_active_s    = now.gpm_sm_active_s;
    sample->sm_occupancy_s = now.gpm_sm_occupancy_s;
    sample->dram_active_s  = now.gpm_dram_active_s;
    sample->fp_s           = now.gpm_fp_s;
    return NVML_SUCCESS;
}

/* The model has one floating-point pipe, shown as FP64, since its workloads compute in double precision. */
static nvmlReturn_t integral(unsigned int metric, const gpm_sample_t *from, const gpm_sample_t *to, double *share_s,
                             nvmlGpmMetricInfo_t *info)
{
    switch (metric) {
    case NVML_GPM_METRIC_GRAPHICS_UTIL:
        *share_s = to->graphics_s - from->graphics_s;
        *info    = (nvmlGpmMetricInfo_t){"GRACT", "Graphics Engine Activity", "%"};
        return NVML_SUCCESS;
    case NVML_GPM_METRIC_SM_UTIL:
        *share_s = to->sm_active_s - from->sm_active_s;
        *info    = (nvmlGpmMetricInfo_t){"SMACT", "SM Activity", "%"};
        return NVML_SUCCESS;
    case NVML_GPM_METRIC_SM_OCCUPANCY:
        *share_s = to->sm_occupancy_s - from->sm_occupancy_s;
        *info    = (nvmlGpmMetricInfo_t){"SMOCC", "SM Occupancy", "%"};
        return NVML_SUCCESS;
    case NVML_GPM_METRIC_DRAM_BW_UTIL:
        *share_s = to->dram_active_s - from->dram_active_s;
        *info    = (nvmlGpmMetricInfo_t){"DRAMA", "DRAM Bandwidth Utilization", "%"};
        return NVML_SUCCESS;
    case NVML_GPM_METRIC_FP64_UTIL:
        *share_s = to->fp_s - from->fp_s;
        *info    = (nvmlGpmMetricInfo_t){"FP64A", "FP64 Pipe Activity", "%"};
        return NVML_SUCCESS;
    default:
        *share_s = NAN;
        *info    = (nvmlGpmMetricInfo_t){0};
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

static uint32_t reading_of(unsigned int metric)
{
    switch (metric) {
    case NVML_GPM_METRIC_GRAPHICS_UTIL: return TWIN_READING_GPM_GRAPHICS;
    case NVML_GPM_METRIC_SM_UTIL: return TWIN_READING_GPM_SM_ACTIVE;
    case NVML_GPM_METRIC_SM_OCCUPANCY: return TWIN_READING_GPM_SM_OCCUPANCY;
    case NVML_GPM_METRIC_DRAM_BW_UTIL: return TWIN_READING_GPM_DRAM_ACTIVE;
    case NVML_GPM_METRIC_FP64_UTIL: return TWIN_READING_GPM_FP64;
    default: return 0;
    }
}

/* One metric between two samples; a fault at either of them applies to it. */
static void measure(const gpm_sample_t *from, const gpm_sample_t *to, nvmlGpmMetric_t *metric)
{
    double share_s, elapsed_s = to->time_s - from->time_s;
    uint32_t reading = reading_of(metric->metricId);

    metric->nvmlReturn = integral(metric->metricId, from, to, &share_s, &metric->metricInfo);
    if (metric->nvmlReturn == NVML_SUCCESS && !(elapsed_s > 0))
        metric->nvmlReturn = NVML_ERROR_NO_DATA; /* the card has not measured between the two */
    if ((from->missing | to->missing) & reading)
        metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    if ((from->absurd | to->absurd) & reading)
        share_s = ABSURD_SHARE * elapsed_s;
    metric->value = metric->nvmlReturn == NVML_SUCCESS ? 100.0 * share_s / elapsed_s : NAN;
    if (metric->nvmlReturn == NVML_SUCCESS && (to->absurd & to->is_chosen & reading))
        metric->value = to->chosen[__builtin_ctz(reading)];
}

NVML_EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    const twin_gpus_t *gpus;
    gpm_sample_t *from, *to;
    nvmlReturn_t status = twin_session(&gpus);

    if (status != NVML_SUCCESS)
        return status;
    if (request == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (request->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    from = sample_of(request->sample1);
    to   = sample_of(request->sample2);
    if (from == NULL || to == NULL || from->gpu == NO_READING_YET || from->gpu != to->gpu ||
        request->numMetrics == 0 || request->numMetrics > METRICS_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < request->numMetrics; i++)
        measure(from, to, &request->metrics[i]);
    return NVML_SUCCESS;
}
