/* GPUs through NVML, which is loaded only where a recipe names one. Source: NVML API reference, "Device Commands". */
#include "restorer.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef void *device_t;

enum { CLOCK_SM = 1, NOT_INITIALISED = 1, NO_PERMISSION = 4, NOT_FOUND = 6, NO_DRIVER = 9, IS_LOST = 15, MUST_RESET = 16, NO_GPU = 28 };

static struct {
    bool is_tried;
    void *library;
    char why[LINE];
    const char *(*error)(int);
    int (*handle)(unsigned, device_t *);
    int (*handle_of)(const char *, device_t *);
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
    int (*init)(void);
    int code;

    if (nvml.is_tried)
        return nvml.why[0] == 0;
    nvml.is_tried = true;
    nvml.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml.library == NULL) {
        snprintf(nvml.why, sizeof nvml.why, "no NVIDIA driver: libnvidia-ml.so.1 is not found");
        return false;
    }
    if (!find(nvml.library, "nvmlInit_v2", &init) || !find(nvml.library, "nvmlErrorString", &nvml.error) ||
        !find(nvml.library, "nvmlDeviceGetHandleByIndex_v2", &nvml.handle) ||
        !find(nvml.library, "nvmlDeviceGetClockInfo", &nvml.clock) ||
        !find(nvml.library, "nvmlDeviceResetGpuLockedClocks", &nvml.unlock) ||
        !find(nvml.library, "nvmlDeviceSetGpuLockedClocks", &nvml.lock) ||
        !find(nvml.library, "nvmlDeviceGetPowerManagementLimit", &nvml.limit) ||
        !find(nvml.library, "nvmlDeviceSetPowerManagementLimit", &nvml.set_limit)) {
        snprintf(nvml.why, sizeof nvml.why, "libnvidia-ml.so.1 lacks a function: the NVIDIA driver is too old");
        return false;
    }
    if (!find(nvml.library, "nvmlDeviceGetHandleByUUID", &nvml.handle_of))
        nvml.handle_of = NULL;
    code = init();
    if (code != 0)
        snprintf(nvml.why, sizeof nvml.why, "NVML does not start: %s", nvml.error(code));
    return code == 0;
}

bool nvml_function(const char *name, void *function)
{
    return load() && find(nvml.library, name, function);
}

access_t nvml_answer(int code, const card_t *card, const char *verb, char why[LINE])
{
    bool is_gone = code == NOT_INITIALISED || code == NOT_FOUND || code == NO_DRIVER || code == IS_LOST ||
                   code == MUST_RESET || code == NO_GPU;

    if (code == 0)
        return FINE;
    snprintf(why, LINE, "GPU %" PRId64 "%s%s: cannot %s: %s%s", card->number, card->uuid[0] ? " " : "", card->uuid, verb,
             nvml.error(code), code == NO_PERMISSION ? "; the agent needs root" : "");
    return is_gone ? VANISHED : REFUSED;
}

access_t nvml_device(const card_t *card, void **device, char why[LINE])
{
    if (!load()) {
        snprintf(why, LINE, "%s", nvml.why);
        return VANISHED;
    }
    if (card->uuid[0] && nvml.handle_of == NULL) {
        snprintf(why, LINE, "libnvidia-ml.so.1 finds no GPU by its UUID: the NVIDIA driver is too old");
        return REFUSED;
    }
    return nvml_answer(card->uuid[0] ? nvml.handle_of(card->uuid, device) : nvml.handle((unsigned)card->number, device), card,
                  "find", why);
}

access_t nvml_look(const card_t *card, char why[LINE])
{
    device_t device;
    unsigned mhz;
    access_t found = nvml_device(card, &device, why);

    return found == FINE ? nvml_answer(nvml.clock(device, CLOCK_SM, &mhz), card, "read its clock", why) : found;
}

access_t nvml_unlock(const card_t *card, char why[LINE])
{
    device_t device;
    access_t found = nvml_device(card, &device, why);

    return found == FINE ? nvml_answer(nvml.unlock(device), card, "unlock clocks", why) : found;
}

access_t nvml_lock(const card_t *card, int64_t mhz, char why[LINE])
{
    device_t device;
    unsigned clock = (unsigned)mhz;
    access_t found = nvml_device(card, &device, why);

    return found == FINE ? nvml_answer(nvml.lock(device, clock, clock), card, "lock clocks", why) : found;
}

access_t nvml_limit(const card_t *card, int64_t *milliwatts, char why[LINE])
{
    device_t device;
    unsigned found_mw = 0;
    access_t found = nvml_device(card, &device, why);

    if (found == FINE)
        found = nvml_answer(nvml.limit(device, &found_mw), card, "read its power limit", why);
    *milliwatts = found_mw;
    return found;
}

access_t nvml_set_limit(const card_t *card, int64_t milliwatts, char why[LINE])
{
    device_t device;
    access_t found = nvml_device(card, &device, why);

    return found == FINE ? nvml_answer(nvml.set_limit(device, (unsigned)milliwatts), card, "set its power limit", why) : found;
}
