/*
 * The part of the NVML interface that this library implements: types, constants and structure layouts.
 *
 * Declared from the published interface (NVIDIA, "NVML API Reference"; layouts as nvidia-ml-py's ctypes classes have
 * them, which the tests compare by size and offset). Enumerations that come in as arguments are plain unsigned
 * integers, since a client may pass any value.
 */
#ifndef TWIN_NVML_API_H
#define TWIN_NVML_API_H

#include <stddef.h>
#include <stdint.h>

#define NVML_EXPORT __attribute__((visibility("default")))

typedef struct nvmlDevice_st *nvmlDevice_t;       /* opaque */
typedef struct nvmlGpmSample_st *nvmlGpmSample_t; /* opaque */
typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;         /* opaque */
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t; /* opaque */
typedef struct nvmlUnit_st *nvmlUnit_t;           /* opaque; S-class units, which no emulated node has */

typedef enum {
    NVML_SUCCESS                         = 0,
    NVML_ERROR_UNINITIALIZED             = 1,
    NVML_ERROR_INVALID_ARGUMENT          = 2,
    NVML_ERROR_NOT_SUPPORTED             = 3,
    NVML_ERROR_NO_PERMISSION             = 4,
    NVML_ERROR_ALREADY_INITIALIZED       = 5,
    NVML_ERROR_NOT_FOUND                 = 6,
    NVML_ERROR_INSUFFICIENT_SIZE         = 7,
    NVML_ERROR_INSUFFICIENT_POWER        = 8,
    NVML_ERROR_DRIVER_NOT_LOADED         = 9,
    NVML_ERROR_TIMEOUT                   = 10,
    NVML_ERROR_IRQ_ISSUE                 = 11,
    NVML_ERROR_LIBRARY_NOT_FOUND         = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND        = 13,
    NVML_ERROR_CORRUPTED_INFOROM         = 14,
    NVML_ERROR_GPU_IS_LOST               = 15,
    NVML_ERROR_RESET_REQUIRED            = 16,
    NVML_ERROR_OPERATING_SYSTEM          = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH   = 18,
    NVML_ERROR_IN_USE                    = 19,
    NVML_ERROR_MEMORY                    = 20,
    NVML_ERROR_NO_DATA                   = 21,
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED    = 22,
    NVML_ERROR_INSUFFICIENT_RESOURCES    = 23,
    NVML_ERROR_FREQ_NOT_SUPPORTED        = 24,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_DEPRECATED                = 26,
    NVML_ERROR_NOT_READY                 = 27,
    NVML_ERROR_GPU_NOT_FOUND             = 28,
    NVML_ERROR_INVALID_STATE             = 29,
    NVML_ERROR_RESET_TYPE_NOT_SUPPORTED  = 30,
    NVML_ERROR_UNKNOWN                   = 999,
} nvmlReturn_t;

/* A versioned structure carries its own size and version in its first word. */
#define NVML_STRUCT_VERSION(type, version) ((unsigned int)(sizeof(type) | ((unsigned int)(version) << 24)))

/* ---------------------------------------------------------------- constants */

enum { NVML_FEATURE_DISABLED = 0, NVML_FEATURE_ENABLED = 1 };
enum { NVML_BRAND_TESLA = 2, NVML_BRAND_NVIDIA = 14 };
enum { NVML_BUS_TYPE_PCIE = 2 };
enum { NVML_POWER_SOURCE_AC = 0 };
enum { NVML_COMPUTEMODE_DEFAULT = 0 };

enum { /* nvmlDeviceArchitecture_t */
    NVML_DEVICE_ARCH_VOLTA     = 5,
    NVML_DEVICE_ARCH_TURING    = 6,
    NVML_DEVICE_ARCH_AMPERE    = 7,
    NVML_DEVICE_ARCH_ADA       = 8,
    NVML_DEVICE_ARCH_HOPPER    = 9,
    NVML_DEVICE_ARCH_BLACKWELL = 10,
};

enum { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_CLOCK_VIDEO = 3, NVML_CLOCK_COUNT = 4 };
enum {
    NVML_CLOCK_ID_CURRENT            = 0,
    NVML_CLOCK_ID_APP_CLOCK_TARGET   = 1,
    NVML_CLOCK_ID_APP_CLOCK_DEFAULT  = 2,
    NVML_CLOCK_ID_CUSTOMER_BOOST_MAX = 3,
    NVML_CLOCK_ID_COUNT              = 4,
};
#define NVML_CLOCK_LIMIT_ID_RANGE_START 0xffffff00u
#define NVML_CLOCK_LIMIT_ID_TDP         0xffffff01u
#define NVML_CLOCK_LIMIT_ID_UNLIMITED   0xffffff02u

enum { NVML_PSTATE_0 = 0, NVML_PSTATE_15 = 15, NVML_PSTATE_UNKNOWN = 32 };
enum { NVML_TEMPERATURE_GPU = 0 };
enum {
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0,
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1,
    NVML_TEMPERATURE_THRESHOLD_COUNT    = 8,
};
enum { NVML_PCIE_UTIL_TX_BYTES = 0, NVML_PCIE_UTIL_RX_BYTES = 1 };
enum { NVML_MEMORY_ERROR_TYPE_COUNT = 2, NVML_ECC_COUNTER_TYPE_COUNT = 2, NVML_MEMORY_LOCATION_COUNT = 8 };
enum { NVML_POWER_SCOPE_GPU = 0 };
enum { NVML_PROCESS_MODE_COMPUTE = 0, NVML_PROCESS_MODE_GRAPHICS = 1, NVML_PROCESS_MODE_MPS = 2 };

enum { /* nvmlPerfPolicyType_t */
    NVML_PERF_POLICY_POWER             = 0,
    NVML_PERF_POLICY_THERMAL           = 1,
    NVML_PERF_POLICY_RELIABILITY       = 5,
    NVML_PERF_POLICY_TOTAL_APP_CLOCKS  = 10,
    NVML_PERF_POLICY_TOTAL_BASE_CLOCKS = 11,
};

enum { /* nvmlSamplingType_t */
    NVML_TOTAL_POWER_SAMPLES        = 0,
    NVML_GPU_UTILIZATION_SAMPLES    = 1,
    NVML_MEMORY_UTILIZATION_SAMPLES = 2,
    NVML_PROCESSOR_CLK_SAMPLES      = 5,
    NVML_SAMPLINGTYPE_COUNT         = 10,
};

enum { NVML_VALUE_TYPE_UNSIGNED_INT = 1, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3 };

enum { /* nvmlGpuTopologyLevel_t */
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_NODE     = 40,
    NVML_TOPOLOGY_SYSTEM   = 50,
};

/* nvmlClocksEventReasons, as the driver's bits */
#define NVML_CLOCKS_EVENT_REASON_GPU_IDLE            0x001u
#define NVML_CLOCKS_EVENT_REASON_APPLICATIONS_CLOCKS 0x002u
#define NVML_CLOCKS_EVENT_REASON_SW_POWER_CAP        0x004u
#define NVML_CLOCKS_EVENT_REASON_HW_SLOWDOWN         0x008u
#define NVML_CLOCKS_EVENT_REASON_SW_THERMAL_SLOWDOWN 0x020u
#define NVML_CLOCKS_EVENT_REASON_HW_THERMAL_SLOWDOWN 0x040u

enum { /* field identifiers (NVML_FI_*) */
    NVML_FI_DEV_ECC_CURRENT              = 1,
    NVML_FI_DEV_ECC_PENDING              = 2,
    NVML_FI_DEV_ECC_SBE_VOL_TOTAL        = 3,
    NVML_FI_DEV_ECC_DBE_AGG_TOTAL        = 6,
    NVML_FI_DEV_PERF_POLICY_POWER        = 74,
    NVML_FI_DEV_PERF_POLICY_THERMAL      = 75,
    NVML_FI_DEV_MEMORY_TEMP              = 82,
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83,
    NVML_FI_DEV_PCIE_REPLAY_COUNTER      = 94,
    NVML_FI_DEV_REMAPPED_COR             = 142,
    NVML_FI_DEV_REMAPPED_FAILURE         = 145,
    NVML_FI_DEV_POWER_AVERAGE            = 185,
    NVML_FI_DEV_POWER_INSTANT            = 186,
    NVML_FI_DEV_POWER_MIN_LIMIT          = 187,
    NVML_FI_DEV_POWER_MAX_LIMIT          = 188,
    NVML_FI_DEV_POWER_DEFAULT_LIMIT      = 189,
    NVML_FI_DEV_POWER_CURRENT_LIMIT      = 190,
    NVML_FI_DEV_ENERGY                   = 191,
    NVML_FI_DEV_POWER_REQUESTED_LIMIT    = 192,
};

enum { /* nvmlGpmMetricId_t */
    NVML_GPM_METRIC_GRAPHICS_UTIL = 1,
    NVML_GPM_METRIC_SM_UTIL       = 2,
    NVML_GPM_METRIC_SM_OCCUPANCY  = 3,
    NVML_GPM_METRIC_DRAM_BW_UTIL  = 10,
    NVML_GPM_METRIC_FP64_UTIL     = 11,
};
enum { /* profiles of GPU instances and of compute instances: numbers that NVML counts, not their identifiers */
    NVML_PROFILE_1_SLICE      = 0,
    NVML_PROFILE_2_SLICE      = 1,
    NVML_PROFILE_3_SLICE      = 2,
    NVML_PROFILE_4_SLICE      = 3,
    NVML_PROFILE_7_SLICE      = 4,
    NVML_PROFILE_1_SLICE_REV1 = 7, /* with the media engines */
    NVML_PROFILE_1_SLICE_REV2 = 9, /* with twice the memory */
};
#define NVML_GPU_INSTANCE_PROFILE_COUNT     0x12u
#define NVML_COMPUTE_INSTANCE_PROFILE_COUNT 0x9u
#define NVML_DEVICE_NAME_V2_BUFFER_SIZE     96
#define NVML_GPM_METRICS_GET_VERSION 1u
#define NVML_GPM_SUPPORT_VERSION     1u

/* ---------------------------------------------------------------- structures */

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct { /* of the first two versions of nvmlDeviceGetPciInfo */
    char busId[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    unsigned int reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
    unsigned int version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
    unsigned long long total, free, used; /* bytes */
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used; /* bytes */
} nvmlMemory_v2_t;

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used; /* bytes */
} nvmlBAR1Memory_t;

typedef struct {
    unsigned int gpu, memory; /* percent of the sample period */
} nvmlUtilization_t;

typedef struct {
    unsigned int version, sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned int version, powerScope, powerValueMw;
} nvmlPowerValue_v2_t;

typedef struct {
    unsigned long long l1Cache, l2Cache, deviceMemory, registerFile;
} nvmlEccErrorCounts_t;

typedef union {
    double dVal;
    unsigned int uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    signed long long sllVal;
    int siVal;
    unsigned short usVal;
} nvmlValue_t;

typedef struct {
    unsigned long long timeStamp; /* us */
    nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
    unsigned long long referenceTime; /* us */
    unsigned long long violationTime; /* ns */
} nvmlViolationTime_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct { /* of the first version of nvmlDeviceGetComputeRunningProcesses */
    unsigned int pid;
    unsigned long long usedGpuMemory; /* bytes */
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory; /* bytes */
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory; /* bytes */
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned int version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp; /* us */
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned int start, size; /* in memory slices of a card, or compute slices of a GPU instance */
} nvmlGpuInstancePlacement_t, nvmlComputeInstancePlacement_t;

typedef struct {
    unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned int version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    nvmlDevice_t device;
    unsigned int id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned int id, sliceCount, instanceCount, multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    unsigned int version, id, sliceCount, instanceCount, multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned int id, profileId;
    nvmlComputeInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned int multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    unsigned int gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
    const char *shortName, *longName, *unit;
} nvmlGpmMetricInfo_t;

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    nvmlGpmMetricInfo_t metricInfo;
} nvmlGpmMetric_t;

typedef struct {
    unsigned int version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[]; /* its length grew with each release under the same version number */
} nvmlGpmMetricsGet_t;

#endif
