/*
 * The session: finding the emulated GPUs, counting nvmlInit, and handles.
 *
 * There are two ways to the region. In process, the owner of the model calls twin_nvml_attach(); a later call replaces
 * the region and NULL detaches it. Otherwise the first nvmlInit maps TWIN_STATE, which exists only in the mount
 * namespace of a served twin; elsewhere the driver is "not loaded", as on a node without GPUs. Users other than root
 * may not follow that link to the server's memory: they get a descriptor for reading from the server's socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "mig.h"

#define TWIN_STATE   "/run/nodectl-twin/gpus"
#define TWIN_READERS "/run/nodectl-twin/gpu-readers"

typedef struct {
    twin_gpus_t *gpus;
    int fd; /* kept for the file lock */
    bool writable;
    dev_t device;
    ino_t inode;
} mapping_t;

static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(twin_gpus_t *) region;
static atomic_bool is_attached; /* the region came from twin_nvml_attach */
static atomic_uint sessions;    /* nvmlInit calls without their nvmlShutdown */
static mapping_t mapping = {.fd = -1};

static void sleep_ms(uint32_t ms)
{
    struct timespec duration = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};
    while (nanosleep(&duration, &duration) != 0 && errno == EINTR)
        ;
}

static _Atomic(void (*)(uint32_t)) delay = sleep_ms;

/* ---------------------------------------------------------------- session */

static bool is_region(const twin_gpus_t *gpus)
{
    return gpus->magic == TWIN_GPU_MAGIC && gpus->version == TWIN_GPU_VERSION && gpus->size == sizeof(twin_gpus_t) &&
           gpus->n_gpus <= TWIN_GPUS_MAX;
}

/* The descriptor for reading that the server sends to whoever connects; -1 if there is none. */
static int receive_state(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = TWIN_READERS};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    char byte;
    struct iovec data     = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = -1;
    struct cmsghdr *header;
    ssize_t n;

    if (connection < 0)
        return -1;
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) {
        while ((n = recvmsg(connection, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
            ;
        header = n == 1 ? CMSG_FIRSTHDR(&message) : NULL;
        if (header != NULL && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(header), sizeof fd);
    }
    close(connection);
    return fd;
}

/* Keeps an older mapping of the same file, which a reader in another thread may still use. */
static bool map_state(void)
{
    mapping_t found = {.writable = true};
    struct stat status;
    int protection;

    found.fd = open(TWIN_STATE, O_RDWR | O_CLOEXEC);
    if (found.fd < 0) {
        found.writable = false;
        found.fd = open(TWIN_STATE, O_RDONLY | O_CLOEXEC);
    }
    if (found.fd < 0)
        found.fd = receive_state();
    if (found.fd < 0)
        return false;
    if (fstat(found.fd, &status) != 0 || status.st_size < (off_t)sizeof(twin_gpus_t))
        goto refuse;
    found.device = status.st_dev;
    found.inode  = status.st_ino;
    if (mapping.gpus != NULL && mapping.device == found.device && mapping.inode == found.inode) {
        close(found.fd);
        return true;
    }
    protection = found.writable ? PROT_READ | PROT_WRITE : PROT_READ;
    found.gpus = mmap(NULL, sizeof(twin_gpus_t), protection, MAP_SHARED, found.fd, 0);
    if (found.gpus == MAP_FAILED)
        goto refuse;
    if (!is_region(found.gpus)) {
        munmap(found.gpus, sizeof(twin_gpus_t));
        goto refuse;
    }
    if (mapping.gpus != NULL) {
        munmap(mapping.gpus, sizeof(twin_gpus_t));
        close(mapping.fd);
    }
    mapping = found;
    return true;

refuse:
    close(found.fd);
    return false;
}

NVML_EXPORT nvmlReturn_t twin_nvml_attach(void *gpus)
{
    if (gpus != NULL && !is_region(gpus))
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&session_lock);
    atomic_store(&region, gpus);
    atomic_store(&is_attached, gpus != NULL);
    pthread_mutex_unlock(&session_lock);
    return NVML_SUCCESS;
}

/* Waits for a slow call: a model in virtual time advances instead of sleeping. NULL: sleep. */
NVML_EXPORT void twin_nvml_set_delay(void (*advance_ms)(uint32_t))
{
    atomic_store(&delay, advance_ms != NULL ? advance_ms : sleep_ms);
}

NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t status = NVML_SUCCESS;

    (void)flags; /* flags about starting a driver, of which there is none */
    pthread_mutex_lock(&session_lock);
    if (!atomic_load(&is_attached) && (atomic_load(&sessions) == 0 || atomic_load(&region) == NULL)) {
        if (map_state())
            atomic_store(&region, mapping.gpus);
        else
            status = NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (status == NVML_SUCCESS && atomic_load(&region)->no_driver)
        status = NVML_ERROR_DRIVER_NOT_LOADED;
    if (status == NVML_SUCCESS)
        atomic_fetch_add(&sessions, 1);
    pthread_mutex_unlock(&session_lock);
    return status;
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

NVML_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t status = NVML_SUCCESS;

    pthread_mutex_lock(&session_lock);
    if (atomic_load(&sessions) == 0)
        status = NVML_ERROR_UNINITIALIZED;
    else
        atomic_fetch_sub(&sessions, 1);
    pthread_mutex_unlock(&session_lock);
    return status;
}

nvmlReturn_t twin_session(const twin_gpus_t **gpus)
{
    *gpus = atomic_load_explicit(&region, memory_order_acquire);
    if (*gpus == NULL || atomic_load_explicit(&sessions, memory_order_relaxed) == 0)
        return NVML_ERROR_UNINITIALIZED;
    return (*gpus)->no_driver ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

/* The result of every generated stub. */
nvmlReturn_t twin_not_supported(void)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);

    return status != NVML_SUCCESS ? status : NVML_ERROR_NOT_SUPPORTED;
}

/* ---------------------------------------------------------------- handles */

/* A handle is the address of one of these bytes, so an invalid pointer is recognised without dereferencing it. */
static char handles[TWIN_GPUS_MAX];

nvmlDevice_t twin_handle(uint32_t index)
{
    return (nvmlDevice_t)(void *)&handles[index];
}

nvmlReturn_t twin_index(nvmlDevice_t device, uint32_t *index)
{
    const twin_gpus_t *gpus;
    nvmlReturn_t status = twin_session(&gpus);
    uintptr_t offset    = (uintptr_t)device - (uintptr_t)handles;

    if (status != NVML_SUCCESS)
        return status;
    if (offset >= gpus->n_gpus) /* what is not a MIG device's own is its card's */
        return mig_is_device(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    *index = (uint32_t)offset;
    return NVML_SUCCESS;
}

nvmlReturn_t twin_device(nvmlDevice_t device, const void *out, const twin_gpu_t **gpu)
{
    const twin_gpus_t *gpus;
    uint32_t index, faults;
    nvmlReturn_t status = twin_session(&gpus);

    if (status == NVML_SUCCESS)
        status = out == NULL ? NVML_ERROR_INVALID_ARGUMENT : twin_index(device, &index);
    if (status != NVML_SUCCESS)
        return status;
    *gpu   = &gpus->gpu[index];
    faults = (*gpu)->faults;
    if (faults & TWIN_GPU_SLOW)
        atomic_load(&delay)(gpus->slow_ms);
    return faults & TWIN_GPU_LOST ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

/* ---------------------------------------------------------------- rights */

/*
 * Settings need root, as with the driver. In process the caller owns the model, so a test or a run in virtual time
 * needs no privilege.
 */
bool twin_may_set(void)
{
    return atomic_load(&is_attached) || (mapping.writable && geteuid() == 0);
}

/* The file that clients of other processes lock; -1 when the region belongs to this process. */
int twin_region_fd(void)
{
    return atomic_load(&is_attached) ? -1 : mapping.fd;
}
