/*
 * The only file that copies state out of the region and writes requests into it.
 *
 * One writer publishes readings under a sequence lock, so reading takes no lock and changes nothing. Requests may come
 * from any thread of any process: a mutex and a file lock on the region exclude other writers, so that the pairs
 * (minimum, maximum) of two clients never mix.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "state.h"

/* Ours. A writer publishes in well under a microsecond, unless it is preempted. */
#define READ_SPINS   200
#define READ_WAITS   400
#define READ_WAIT_NS 50000

static pthread_mutex_t request_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- readings */

typedef void copy_t(const twin_gpu_t *gpu, void *into);

static void copy_reading(const twin_gpu_t *gpu, void *into)
{
    gpu_reading_t *reading = into;

    *reading = (gpu_reading_t){
        .time_us              = gpu->time_us,
        .energy_mj            = gpu->energy_uj / 1000, /* NVML's unit */
        .sm_clock_mhz         = gpu->sm_clock_mhz,
        .mem_clock_mhz        = gpu->mem_clock_now_mhz,
        .power_mw             = gpu->power_mw,
        .power_instant_mw     = gpu->power_instant_mw,
        .enforced_limit_mw    = gpu->enforced_limit_mw,
        .temperature_c        = gpu->temperature_c,
        .memory_temperature_c = gpu->memory_temperature_c,
        .gpu_pct              = gpu->gpu_pct,
        .memory_pct           = gpu->memory_pct,
        .pcie_tx_kbps         = gpu->pcie_tx_kbps,
        .pcie_rx_kbps         = gpu->pcie_rx_kbps,
        .memory_used_mib      = gpu->memory_used_mib,
        .process_pid          = gpu->process_pid,
        .throttle_reasons     = gpu->throttle_reasons,
        .violation_power_us   = gpu->violation_power_us,
        .violation_thermal_us = gpu->violation_thermal_us,
        .performance_state    = gpu->performance_state,
        .gpm_sm_active_s      = gpu->gpm_sm_active_s,
        .gpm_sm_occupancy_s   = gpu->gpm_sm_occupancy_s,
        .gpm_dram_active_s    = gpu->gpm_dram_active_s,
        .gpm_graphics_s       = gpu->gpm_graphics_s,
        .gpm_fp_s             = gpu->gpm_fp_s,
        .gpm_time_s           = gpu->gpm_time_s,
    };
    if (gpu->process_pid == 0)
        return;
    reading->n_tenants = gpu->n_tenants < TWIN_TENANTS ? gpu->n_tenants : TWIN_TENANTS;
    memcpy(reading->tenants, gpu->tenants, sizeof reading->tenants);
    if (reading->n_tenants == 0) { /* a region that names none has one program, on the whole card */
        reading->n_tenants  = 1;
        reading->tenants[0] = (twin_tenant_t){gpu->memory_used_mib, TWIN_WHOLE, TWIN_WHOLE};
    }
}

static void copy_samples(const twin_gpu_t *gpu, void *into)
{
    uint32_t head = gpu->sample_head % TWIN_SAMPLES; /* the oldest entry is the next to be overwritten */
    size_t tail   = TWIN_SAMPLES - head;

    memcpy(into, &gpu->samples[head], tail * sizeof(twin_gpu_sample_t));
    memcpy((twin_gpu_sample_t *)into + tail, gpu->samples, head * sizeof(twin_gpu_sample_t));
}

/* Copies until no publication happened in between. If that takes some 20 ms, it is an internal driver error. */
static nvmlReturn_t read_published(const twin_gpu_t *gpu, copy_t *copy, void *into)
{
    static const struct timespec wait = {.tv_nsec = READ_WAIT_NS};

    for (int attempt = 0; attempt < READ_SPINS + READ_WAITS; attempt++) {
        uint32_t before = __atomic_load_n(&gpu->seq, __ATOMIC_ACQUIRE);
        if ((before & 1) == 0) {
            copy(gpu, into);
            atomic_thread_fence(memory_order_acquire);
            if (__atomic_load_n(&gpu->seq, __ATOMIC_RELAXED) == before)
                return NVML_SUCCESS;
        }
        if (attempt >= READ_SPINS)
            nanosleep(&wait, NULL);
    }
    return NVML_ERROR_UNKNOWN;
}

uint64_t twin_absurd(const twin_gpu_t *gpu, uint32_t reading, uint64_t usual)
{
    return gpu->chosen & reading ? gpu->value[__builtin_ctz(reading)] : usual;
}

/* Values of 32 bits are cut as the driver's own type cuts them: -1 becomes its 2^32 - 1, "not available". */
nvmlReturn_t twin_read_gpu(const twin_gpu_t *gpu, gpu_reading_t *now)
{
    nvmlReturn_t status = read_published(gpu, copy_reading, now);

    if (status != NVML_SUCCESS)
        return status;
    now->missing = gpu->missing;
    if (gpu->mig_mode != 0) /* as the reference: utilisation is not known of a card in MIG mode */
        now->missing |= TWIN_READING_GPU_UTILIZATION | TWIN_READING_MEMORY_UTILIZATION;
    now->absurd  = gpu->absurd;
    if (now->absurd & TWIN_READING_POWER)
        now->power_mw = now->power_instant_mw = (uint32_t)twin_absurd(gpu, TWIN_READING_POWER, ABSURD_POWER_MW);
    if (now->absurd & TWIN_READING_ENERGY)
        now->energy_mj = twin_absurd(gpu, TWIN_READING_ENERGY, ABSURD_ENERGY_MJ);
    if (now->absurd & TWIN_READING_TEMPERATURE)
        now->temperature_c = (uint32_t)twin_absurd(gpu, TWIN_READING_TEMPERATURE, ABSURD_CELSIUS);
    if (now->absurd & TWIN_READING_SM_CLOCK)
        now->sm_clock_mhz = (uint32_t)twin_absurd(gpu, TWIN_READING_SM_CLOCK, ABSURD_MHZ);
    if (now->absurd & TWIN_READING_GPU_UTILIZATION)
        now->gpu_pct = (uint32_t)twin_absurd(gpu, TWIN_READING_GPU_UTILIZATION, ABSURD_PERCENT);
    if (now->absurd & TWIN_READING_MEMORY_UTILIZATION)
        now->memory_pct = (uint32_t)twin_absurd(gpu, TWIN_READING_MEMORY_UTILIZATION, ABSURD_PERCENT);
    if (now->absurd & TWIN_READING_EVENT_REASONS)
        now->throttle_reasons = twin_absurd(gpu, TWIN_READING_EVENT_REASONS, ABSURD_REASONS);
    return NVML_SUCCESS;
}

nvmlReturn_t twin_read(nvmlDevice_t device, const void *out, gpu_reading_t *now)
{
    const twin_gpu_t *gpu;
    nvmlReturn_t status = twin_device(device, out, &gpu);

    return status != NVML_SUCCESS ? status : twin_read_gpu(gpu, now);
}

nvmlReturn_t twin_read_samples(const twin_gpu_t *gpu, twin_gpu_sample_t samples[TWIN_SAMPLES], uint32_t *count)
{
    nvmlReturn_t status = read_published(gpu, copy_samples, samples);
    uint32_t empty      = 0; /* unused slots of the ring come first in its order */

    if (status != NVML_SUCCESS)
        return status;
    while (empty < TWIN_SAMPLES && samples[empty].time_us == 0)
        empty++;
    *count = TWIN_SAMPLES - empty;
    memmove(samples, &samples[empty], *count * sizeof(samples[0]));
    for (uint32_t i = 0, absurd = gpu->absurd; absurd != 0 && i < *count; i++) {
        if (absurd & TWIN_READING_POWER)
            samples[i].power_mw = (uint32_t)twin_absurd(gpu, TWIN_READING_POWER, ABSURD_POWER_MW);
        if (absurd & TWIN_READING_GPU_UTILIZATION)
            samples[i].gpu_pct = (uint32_t)twin_absurd(gpu, TWIN_READING_GPU_UTILIZATION, ABSURD_PERCENT);
        if (absurd & TWIN_READING_MEMORY_UTILIZATION)
            samples[i].memory_pct = (uint32_t)twin_absurd(gpu, TWIN_READING_MEMORY_UTILIZATION, ABSURD_PERCENT);
        if (absurd & TWIN_READING_SM_CLOCK)
            samples[i].sm_clock_mhz = (uint32_t)twin_absurd(gpu, TWIN_READING_SM_CLOCK, ABSURD_MHZ);
    }
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- requests */

nvmlReturn_t twin_setting(nvmlDevice_t device, twin_gpu_t **gpu)
{
    nvmlReturn_t status = twin_device(device, gpu, (const twin_gpu_t **)gpu);

    if (status != NVML_SUCCESS)
        return status;
    return twin_may_set() && ((*gpu)->faults & TWIN_GPU_SET_REFUSED) == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

static void lock_file(short type)
{
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    int fd             = twin_region_fd();

    while (fd >= 0 && fcntl(fd, F_OFD_SETLKW, &whole) != 0 && errno == EINTR)
        ;
}

static void begin_request(void)
{
    pthread_mutex_lock(&request_lock);
    lock_file(F_WRLCK);
}

static void end_request(volatile uint32_t *sequence)
{
    __atomic_fetch_add(sequence, 1, __ATOMIC_RELEASE);
    lock_file(F_UNLCK);
    pthread_mutex_unlock(&request_lock);
}

void twin_request_clocks(twin_gpu_t *gpu, uint32_t min_mhz, uint32_t max_mhz)
{
    begin_request();
    gpu->lock_min_mhz = min_mhz;
    gpu->lock_max_mhz = max_mhz;
    end_request(&gpu->lock_seq);
}

void twin_request_applications_clock(twin_gpu_t *gpu, uint32_t mhz)
{
    begin_request();
    gpu->applications_mhz = mhz;
    end_request(&gpu->lock_seq);
}

void twin_request_power_limit(twin_gpu_t *gpu, uint32_t limit_mw)
{
    begin_request();
    gpu->power_limit_mw = limit_mw;
    end_request(&gpu->limit_seq);
}

nvmlReturn_t twin_request_division(twin_gpu_t *gpu, twin_change_t *change, void *with)
{
    nvmlReturn_t status;

    begin_request();
    status = change(gpu, with);
    end_request(&gpu->mig_seq);
    return status;
}

void twin_request_persistence(twin_gpu_t *gpu, uint32_t enabled)
{
    gpu->persistence = enabled; /* one word, written atomically */
}

uint32_t twin_power_limit_mw(const twin_gpu_t *gpu)
{
    uint32_t requested = gpu->power_limit_mw;
    return requested != 0 ? requested : gpu->power_limit_default_mw;
}

/* ---------------------------------------------------------------- strings */

nvmlReturn_t twin_copy_string(const char *from, size_t from_size, char *to, unsigned int length)
{
    size_t used = strnlen(from, from_size);

    if (to == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (length <= used)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, used);
    to[used] = '\0';
    return NVML_SUCCESS;
}
