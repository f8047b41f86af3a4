/*
 * Properties of a GPU: names, numbers, memory size, bus address, and modes that are fixed on these cards.
 *
 * Data-centre cards: no display, no fan of their own, ECC on, P0 while the driver is loaded.
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"
#include "pci.h"
#include "state.h"

#define NVIDIA_VENDOR   0x10deu
#define PCI_BASE_CLASS  0x03u /* display controller ... */
#define PCI_SUB_CLASS   0x02u /* ... of the 3D kind: no VGA */
#define BAR1_USED_BYTES (1ull << 20)
#define MIB             (1ull << 20)

/* Defines FUNCTION: stores EXPRESSION over `gpu`. */
#define SHOWS(function, type, expression)                                                             \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, type *value)                                \
    {                                                                                                 \
        const twin_gpu_t *gpu;                                                                        \
        nvmlReturn_t status = twin_device(device, value, &gpu);                                       \
                                                                                                      \
        if (status == NVML_SUCCESS)                                                                   \
            *value = (type)(expression);                                                              \
        return status;                                                                                \
    }

/* Defines FUNCTION: copies the string FIELD; NOT_SUPPORTED if the card has none. */
#define NAMES(function, field)                                                                        \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned int length)            \
    {                                                                                                 \
        const twin_gpu_t *gpu;                                                                        \
        nvmlReturn_t status = twin_device(device, text, &gpu);                                        \
                                                                                                      \
        if (status == NVML_SUCCESS && gpu->field[0] == '\0')                                          \
            status = NVML_ERROR_NOT_SUPPORTED;                                                        \
        return status != NVML_SUCCESS ? status : twin_copy_string(gpu->field, sizeof gpu->field, text, length); \
    }

/* Defines FUNCTION: the same two values, current and pending, on every card. */
#define MODES(function, value)                                                                        \
    NVML_EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *current, unsigned int *pending) \
    {                                                                                                 \
        const twin_gpu_t *gpu;                                                                        \
        nvmlReturn_t status = twin_device(device, pending != NULL ? current : NULL, &gpu);            \
                                                                                                      \
        if (status == NVML_SUCCESS)                                                                   \
            *current = *pending = (value);                                                            \
        return status;                                                                                \
    }

/* ---------------------------------------------------------------- names and numbers */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length)
{
    const twin_gpu_t *gpu;
    mig_place_t place;
    char part[32], whole[sizeof gpu->name + sizeof part + 1];
    nvmlReturn_t status = mig_of_device(device, text, &place);

    if (status == NVML_SUCCESS) {
        mig_compute_name(mig_profile_at(&place), place.gpu->compute[place.instance][place.compute].slices, part,
                         sizeof part);
        snprintf(whole, sizeof whole, "%.*s %s", (int)sizeof gpu->name - 1, place.gpu->name, part);
        return twin_copy_string(whole, sizeof whole, text, length);
    }
    if (status == NVML_ERROR_NOT_FOUND)
        status = twin_device(device, text, &gpu);
    return status != NVML_SUCCESS ? status : twin_copy_string(gpu->name, sizeof gpu->name, text, length);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length)
{
    const twin_gpu_t *gpu;
    mig_place_t place;
    char uuid[80];
    nvmlReturn_t status = mig_of_device(device, text, &place);

    if (status == NVML_SUCCESS) {
        mig_uuid(&place, uuid);
        return twin_copy_string(uuid, sizeof uuid, text, length);
    }
    if (status == NVML_ERROR_NOT_FOUND)
        status = twin_device(device, text, &gpu);
    return status != NVML_SUCCESS ? status : twin_copy_string(gpu->uuid, sizeof gpu->uuid, text, length);
}

NAMES(nvmlDeviceGetSerial, serial)
NAMES(nvmlDeviceGetVbiosVersion, vbios)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, index, &gpu);

    return status != NVML_SUCCESS ? status : twin_index(device, index);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    return nvmlDeviceGetIndex(device, minor); /* /dev/nvidia<minor> */
}

/* Since the drivers of 2020 products no longer have the Tesla name. */
SHOWS(nvmlDeviceGetBrand, unsigned int,
      gpu->architecture <= NVML_DEVICE_ARCH_TURING ? NVML_BRAND_TESLA : NVML_BRAND_NVIDIA)
SHOWS(nvmlDeviceGetArchitecture, unsigned int, gpu->architecture)
SHOWS(nvmlDeviceGetNumGpuCores, unsigned int, gpu->cores)
SHOWS(nvmlDeviceGetMemoryBusWidth, unsigned int, gpu->memory_bus_bits)
SHOWS(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
SHOWS(nvmlDeviceGetPowerSource, unsigned int, NVML_POWER_SOURCE_AC)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, minor != NULL ? major : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    *major = (int)gpu->cuda_major;
    *minor = (int)gpu->cuda_minor;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- modes */

SHOWS(nvmlDeviceGetPersistenceMode, unsigned int, gpu->persistence != 0)
SHOWS(nvmlDeviceGetComputeMode, unsigned int, NVML_COMPUTEMODE_DEFAULT)
SHOWS(nvmlDeviceGetDisplayMode, unsigned int, NVML_FEATURE_DISABLED)
SHOWS(nvmlDeviceGetDisplayActive, unsigned int, NVML_FEATURE_DISABLED)
SHOWS(nvmlDeviceGetPowerManagementMode, unsigned int, NVML_FEATURE_ENABLED)
SHOWS(nvmlDeviceGetDefaultEccMode, unsigned int, NVML_FEATURE_ENABLED)
SHOWS(nvmlDeviceGetNumFans, unsigned int, 0)
MODES(nvmlDeviceGetEccMode, NVML_FEATURE_ENABLED)

/* ---------------------------------------------------------------- memory */

static uint64_t total_bytes(const twin_gpu_t *gpu)
{
    return gpu->memory_mib * MIB;
}

static uint64_t used_bytes(const twin_gpu_t *gpu, const gpu_reading_t *now)
{
    uint64_t used = now->memory_used_mib * MIB;
    return used < total_bytes(gpu) ? used : total_bytes(gpu);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    const twin_gpu_t *gpu;
    gpu_reading_t now;
    mig_place_t place;
    nvmlReturn_t status = mig_of_device(device, memory, &place);

    if (status == NVML_SUCCESS) {
        status = twin_read_gpu(place.gpu, &now);
        *memory = (nvmlMemory_t){.total = mig_profile_at(&place)->memory_mib * MIB};
        for (uint32_t i = 0; status == NVML_SUCCESS && i < now.n_tenants; i++)
            memory->used += now.tenants[i].instance == place.instance ? now.tenants[i].memory_mib * MIB : 0;
        memory->used = memory->used < memory->total ? memory->used : memory->total;
        memory->free = memory->total - memory->used;
        return status;
    }
    if (status == NVML_ERROR_NOT_FOUND)
        status = twin_device(device, memory, &gpu);
    if (status == NVML_SUCCESS)
        status = twin_read_gpu(gpu, &now);
    if (status != NVML_SUCCESS)
        return status;
    memory->total = total_bytes(gpu);
    memory->used  = used_bytes(gpu, &now);
    memory->free  = memory->total - memory->used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t status = nvmlDeviceGetMemoryInfo(device, memory != NULL ? &plain : NULL);

    if (status != NVML_SUCCESS)
        return status;
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total    = plain.total;
    memory->free     = plain.free;
    memory->used     = plain.used;
    memory->reserved = 0; /* the model reserves no memory for the firmware */
    return NVML_SUCCESS;
}

/* BAR1 maps the whole memory, so its size is the next power of two; that almost none is in use is ours. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1)
{
    const twin_gpu_t *gpu;
    uint64_t window     = MIB;
    nvmlReturn_t status = twin_device(device, bar1, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    while (window < total_bytes(gpu))
        window <<= 1;
    *bar1 = (nvmlBAR1Memory_t){.bar1Total = window, .bar1Free = window - BAR1_USED_BYTES, .bar1Used = BAR1_USED_BYTES};
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- memory errors: the model has none */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                     unsigned long long *count)
{
    const twin_gpu_t *gpu;
    bool exists         = type < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT;
    nvmlReturn_t status = twin_device(device, exists ? count : NULL, &gpu);

    if (status == NVML_SUCCESS)
        *count = 0;
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                         unsigned int location, unsigned long long *count)
{
    return nvmlDeviceGetTotalEccErrors(device, type, counter, location < NVML_MEMORY_LOCATION_COUNT ? count : NULL);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                        nvmlEccErrorCounts_t *counts)
{
    nvmlReturn_t status =
        nvmlDeviceGetTotalEccErrors(device, type, counter, counts != NULL ? &counts->deviceMemory : NULL);

    if (status == NVML_SUCCESS)
        *counts = (nvmlEccErrorCounts_t){0};
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                                   unsigned int *uncorrected, unsigned int *is_pending,
                                                   unsigned int *has_failed)
{
    const twin_gpu_t *gpu;
    bool whole          = corrected != NULL && uncorrected != NULL && is_pending != NULL;
    nvmlReturn_t status = twin_device(device, whole ? has_failed : NULL, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (gpu->architecture < NVML_DEVICE_ARCH_AMPERE)
        return NVML_ERROR_NOT_SUPPORTED; /* older cards retire pages */
    *corrected = *uncorrected = *is_pending = *has_failed = 0;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- bus */

static nvmlReturn_t place_of(nvmlDevice_t device, const void *out, pci_place_t *place)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, out, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    return pci_parse(gpu->pci_bus_id, sizeof gpu->pci_bus_id, place) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The machine tables have no PCI device number: the lower half (vendor) is true, the upper half unknown and 0. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    pci_place_t place;
    nvmlReturn_t status = place_of(device, info, &place);

    if (status != NVML_SUCCESS)
        return status;
    *info = (nvmlPciInfo_t){
        .domain = place.domain, .bus = place.bus, .device = place.device, .pciDeviceId = NVIDIA_VENDOR};
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", place.domain & 0xffff, place.bus & 0xff,
             place.device & 0xff);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", place.domain, place.bus, place.device);
    return NVML_SUCCESS;
}

/* Callers disagree on the reserved words at the end of this version's structure, so they are not written. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *info)
{
    nvmlPciInfo_t whole;
    nvmlReturn_t status = nvmlDeviceGetPciInfo_v3(device, info != NULL ? &whole : NULL);

    if (status != NVML_SUCCESS)
        return status;
    memcpy(info->busId, whole.busIdLegacy, sizeof info->busId);
    info->domain         = whole.domain;
    info->bus            = whole.bus;
    info->device         = whole.device;
    info->pciDeviceId    = whole.pciDeviceId;
    info->pciSubSystemId = whole.pciSubSystemId;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *info)
{
    return nvmlDeviceGetPciInfo_v2(device, info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *info)
{
    nvmlPciInfo_t whole;
    nvmlReturn_t status = nvmlDeviceGetPciInfo_v3(device, info != NULL ? &whole : NULL);

    if (status != NVML_SUCCESS)
        return status;
    if (info->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->domain         = whole.domain;
    info->bus            = whole.bus;
    info->device         = whole.device;
    info->pciDeviceId    = whole.pciDeviceId;
    info->pciSubSystemId = whole.pciSubSystemId;
    info->baseClass      = PCI_BASE_CLASS;
    info->subClass       = PCI_SUB_CLASS;
    memcpy(info->busId, whole.busId, sizeof info->busId);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board)
{
    pci_place_t place;
    nvmlReturn_t status = place_of(device, board, &place);

    if (status == NVML_SUCCESS)
        *board = place.domain << 16 | place.bus << 8 | place.device;
    return status;
}

/* The link never trains down: current and highest generation and width are equal. */
SHOWS(nvmlDeviceGetBusType, unsigned int, NVML_BUS_TYPE_PCIE)
SHOWS(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, gpu->pcie_gen)
SHOWS(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, gpu->pcie_gen)
SHOWS(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, gpu->pcie_gen)
SHOWS(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, gpu->pcie_gen)
SHOWS(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, gpu->pcie_width)
SHOWS(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, gpu->pcie_width)
SHOWS(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)

/* Megabits per second and lane, PCI Express base specification: 2.5, 5, 8, 16, 32, 64 GT/s. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *speed)
{
    static const unsigned int mbps[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, speed, &gpu);

    if (status != NVML_SUCCESS)
        return status;
    if (gpu->pcie_gen == 0 || gpu->pcie_gen >= sizeof mbps / sizeof mbps[0])
        return NVML_ERROR_NOT_SUPPORTED;
    *speed = mbps[gpu->pcie_gen];
    return NVML_SUCCESS;
}
