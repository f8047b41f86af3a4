/* GPUs through NVML, which is loaded only where a recipe names one. Source: NVML API reference, "Device Commands". */
#include "restorer.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef void *device_t;

enum { CLOCK_SM = 1, NOT_INITIALISED = 1, NO_PERMISSION = 4, NOT_FOUND = 6, NO_DRIVER = 9, IS_LOST = 15 };

static struct {
    bool is_tried;
    char why[LINE];
    const char *(*error)(int);
    int (*handle)(unsigned, device_t *);
    int (*clock)(device_t, int, unsigned *);
    int (*unlock)(device_t);
    int (*lock)(device_t, unsigned, unsigned);
    int (*limit)(device_t, unsigned *);
    int (*set_limit)(device_t, unsigned);
} nvml;

static bool find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);

    memcpy(function, &found, sizeof found); /* ISO C has no cast from an object to a function */
    return found != NULL;
}

static bool load(void)
{
    void *library;
    int (*init)(void);
    int code;

    if (nvml.is_tried)
        return nvml.why[0] == 0;
    nvml.is_tried = true;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(nvml.why, sizeof nvml.why, "no NVIDIA driver: libnvidia-ml.so.1 is not found");
        return false;
    }
    if (!find(library, "nvmlInit_v2", &init) || !find(library, "nvmlErrorString", &nvml.error) ||
        !find(library, "nvmlDeviceGetHandleByIndex_v2", &nvml.handle) ||
        !find(library, "nvmlDeviceGetClockInfo", &nvml.clock) ||
        !find(library, "nvmlDeviceResetGpuLockedClocks", &nvml.unlock) ||
        !find(library, "nvmlDeviceSetGpuLockedClocks", &nvml.lock) ||
        !find(library, "nvmlDeviceGetPowerManagementLimit", &nvml.limit) ||
        !find(library, "nvmlDeviceSetPowerManagementLimit", &nvml.set_limit)) {
        snprintf(nvml.why, sizeof nvml.why, "libnvidia-ml.so.1 lacks a function: the NVIDIA driver is too old");
        return false;
    }
    code = init();
    if (code != 0)
        snprintf(nvml.why, sizeof nvml.why, "NVML does not start: %s", nvml.error(code));
    return code == 0;
}

static access_t answer(int code, int64_t gpu, const char *verb, char why[LINE])
{
    bool is_gone = code == NOT_INITIALISED || code == NOT_FOUND || code == NO_DRIVER || code == IS_LOST;

    if (code == 0)
        return FINE;
    snprintf(why, LINE, "GPU %" PRId64 ": cannot %s: %s%s", gpu, verb, nvml.error(code),
             code == NO_PERMISSION ? "; the agent needs root" : "");
    return is_gone ? VANISHED : REFUSED;
}

static access_t find_device(int64_t gpu, device_t *device, char why[LINE])
{
    if (!load()) {
        snprintf(why, LINE, "%s", nvml.why);
        return VANISHED;
    }
    return answer(nvml.handle((unsigned)gpu, device), gpu, "find", why);
}

access_t nvml_look(int64_t gpu, char why[LINE])
{
    device_t device;
    unsigned mhz;
    access_t found = find_device(gpu, &device, why);

    return found == FINE ? answer(nvml.clock(device, CLOCK_SM, &mhz), gpu, "read its clock", why) : found;
}

access_t nvml_unlock(int64_t gpu, char why[LINE])
{
    device_t device;
    access_t found = find_device(gpu, &device, why);

    return found == FINE ? answer(nvml.unlock(device), gpu, "unlock clocks", why) : found;
}

access_t nvml_lock(int64_t gpu, int64_t mhz, char why[LINE])
{
    device_t device;
    unsigned clock = (unsigned)mhz;
    access_t found = find_device(gpu, &device, why);

    return found == FINE ? answer(nvml.lock(device, clock, clock), gpu, "lock clocks", why) : found;
}

access_t nvml_limit(int64_t gpu, int64_t *milliwatts, char why[LINE])
{
    device_t device;
    unsigned found_mw = 0;
    access_t found = find_device(gpu, &device, why);

    if (found == FINE)
        found = answer(nvml.limit(device, &found_mw), gpu, "read its power limit", why);
    *milliwatts = found_mw;
    return found;
}

access_t nvml_set_limit(int64_t gpu, int64_t milliwatts, char why[LINE])
{
    device_t device;
    access_t found = find_device(gpu, &device, why);

    return found == FINE ? answer(nvml.set_limit(device, (unsigned)milliwatts), gpu, "set its power limit", why) : found;
}
