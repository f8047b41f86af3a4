/*
 * How a GPU is divided (MIG). A layout is a text, "off" or "on 9@0/0,1 9@4/2": of each GPU instance its profile and first
 * memory slice, then the profiles of its compute instances (nodectl/knobs/gpu_layout.py).
 *
 * A card on which a process computes is not touched. Everything is destroyed and made again; where that fails the error
 * says what is left. Source: NVML API reference, "Multi Instance GPU Management".
 */
#include "restorer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_PROFILES = 18, COMPUTE_PROFILES = 9, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned start, size; } place_t;
typedef struct { void *device; unsigned id, profile; place_t place; } instance_info_t;
typedef struct { void *device, *instance; unsigned id, profile; place_t place; } compute_info_t;
typedef struct { unsigned id, rest[9]; unsigned long long memory; } profile_info_t;
typedef struct { unsigned id, rest[8]; } compute_profile_info_t;

static struct {
    int (*mode)(void *, unsigned *, unsigned *);
    int (*set_mode)(void *, unsigned, int *);
    int (*profile)(void *, unsigned, profile_info_t *);
    int (*places)(void *, unsigned, place_t *, unsigned *);
    int (*list)(void *, unsigned, void **, unsigned *);
    int (*info)(void *, instance_info_t *);
    int (*create)(void *, unsigned, const place_t *, void **);
    int (*destroy)(void *);
    int (*compute_profile)(void *, unsigned, unsigned, compute_profile_info_t *);
    int (*list_compute)(void *, unsigned, void **, unsigned *);
    int (*compute_info)(void *, compute_info_t *);
    int (*create_compute)(void *, unsigned, void **);
    int (*destroy_compute)(void *);
    int (*processes)(void *, unsigned *, void *);
} mig;

static const struct {
    const char *name;
    void *function;
} FUNCTIONS[] = {
    {"nvmlDeviceGetMigMode", &mig.mode},
    {"nvmlDeviceSetMigMode", &mig.set_mode},
    {"nvmlDeviceGetGpuInstanceProfileInfo", &mig.profile},
    {"nvmlDeviceGetGpuInstancePossiblePlacements_v2", &mig.places},
    {"nvmlDeviceGetGpuInstances", &mig.list},
    {"nvmlGpuInstanceGetInfo", &mig.info},
    {"nvmlDeviceCreateGpuInstanceWithPlacement", &mig.create},
    {"nvmlGpuInstanceDestroy", &mig.destroy},
    {"nvmlGpuInstanceGetComputeInstanceProfileInfo", &mig.compute_profile},
    {"nvmlGpuInstanceGetComputeInstances", &mig.list_compute},
    {"nvmlComputeInstanceGetInfo_v2", &mig.compute_info},
    {"nvmlGpuInstanceCreateComputeInstance", &mig.create_compute},
    {"nvmlComputeInstanceDestroy", &mig.destroy_compute},
    {"nvmlDeviceGetComputeRunningProcesses_v3", &mig.processes},
};

static access_t find_card(const card_t *card, void **device, char why[LINE])
{
    access_t found = nvml_device(card, device, why);
    size_t known = 0;

    if (found != FINE)
        return found;
    while (known < sizeof FUNCTIONS / sizeof *FUNCTIONS && nvml_function(FUNCTIONS[known].name, FUNCTIONS[known].function))
        known++;
    if (known == sizeof FUNCTIONS / sizeof *FUNCTIONS)
        return FINE;
    snprintf(why, LINE, "libnvidia-ml.so.1 lacks a function: the NVIDIA driver is too old to divide a GPU");
    return REFUSED;
}

/* ---------------------------------------------------------------- what is there */

typedef struct {
    unsigned profile, start, n_compute, compute[MOST_INSTANCES], compute_start[MOST_INSTANCES];
    void *handle, *compute_handle[MOST_INSTANCES];
} part_t;

static int list_compute(part_t *part)
{
    for (unsigned number = 0; number < COMPUTE_PROFILES; number++) {
        compute_profile_info_t profile;
        void *found[MOST_INSTANCES];
        unsigned n = MOST_INSTANCES;
        if (mig.compute_profile(part->handle, number, 0, &profile) != 0 ||
            mig.list_compute(part->handle, profile.id, found, &n) != 0)
            continue; /* an instance of this size has no such profile */
        for (unsigned i = 0; i < n && part->n_compute < MOST_INSTANCES; i++) {
            compute_info_t info;
            int code = mig.compute_info(found[i], &info);
            unsigned at = part->n_compute++;
            if (code != 0)
                return code;
            for (; at > 0 && part->compute_start[at - 1] > info.place.start; at--) {
                part->compute[at]        = part->compute[at - 1];
                part->compute_start[at]  = part->compute_start[at - 1];
                part->compute_handle[at] = part->compute_handle[at - 1];
            }
            part->compute[at]        = info.profile;
            part->compute_start[at]  = info.place.start;
            part->compute_handle[at] = found[i];
        }
    }
    return 0;
}

static int by_start(const void *a, const void *b)
{
    return (int)((const part_t *)a)->start - (int)((const part_t *)b)->start;
}

/* NVML's code; the parts by their first slice. */
static int list_parts(void *device, part_t parts[MOST_INSTANCES], unsigned *n_parts)
{
    *n_parts = 0;
    for (unsigned number = 0; number < GPU_PROFILES; number++) {
        profile_info_t profile;
        void *found[MOST_INSTANCES];
        unsigned n = MOST_INSTANCES;
        int code   = mig.profile(device, number, &profile);
        if (code == 0)
            code = mig.list(device, profile.id, found, &n);
        else
            continue; /* the card has no such profile */
        for (unsigned i = 0; code == 0 && i < n && *n_parts < MOST_INSTANCES; i++) {
            part_t *part = &parts[(*n_parts)++];
            instance_info_t info;
            memset(part, 0, sizeof *part);
            part->handle = found[i];
            code         = mig.info(found[i], &info);
            if (code == 0)
                code = list_compute(part);
            part->profile = info.profile;
            part->start   = info.place.start;
        }
        if (code != 0)
            return code;
    }
    qsort(parts, *n_parts, sizeof parts[0], by_start);
    return 0;
}

static void write_text(const part_t *parts, unsigned n, char text[TEXT])
{
    int used = snprintf(text, TEXT, "on");

    for (unsigned i = 0; i < n && used < TEXT; i++) {
        used += snprintf(text + used, (size_t)(TEXT - used), " %u@%u", parts[i].profile, parts[i].start);
        for (unsigned k = 0; k < parts[i].n_compute && used < TEXT; k++)
            used += snprintf(text + used, (size_t)(TEXT - used), "%c%u", k ? ',' : '/', parts[i].compute[k]);
    }
}

access_t mig_read(const card_t *card, char text[TEXT], char why[LINE])
{
    void *device;
    unsigned current = 0, pending = 0, n = 0;
    part_t parts[MOST_INSTANCES];
    access_t found = find_card(card, &device, why);

    if (found == FINE)
        found = nvml_answer(mig.mode(device, &current, &pending), card, "read its MIG mode", why);
    if (found == FINE && current)
        found = nvml_answer(list_parts(device, parts, &n), card, "list its GPU instances", why);
    if (current)
        write_text(parts, n, text);
    else
        snprintf(text, TEXT, "off");
    return found;
}

/* ---------------------------------------------------------------- changing it */

static bool parse_text(const char *text, part_t parts[MOST_INSTANCES], unsigned *n_parts)
{
    int used = 0;

    *n_parts = 0;
    if (strncmp(text, "on", 2) != 0)
        return false;
    for (text += 2; *text != 0; text += used) {
        part_t *part = &parts[*n_parts];
        if (*n_parts == MOST_INSTANCES || sscanf(text, " %3u@%2u%n", &part->profile, &part->start, &used) != 2)
            return false;
        ++*n_parts;
        part->n_compute = 0;
        while (text[used] == (part->n_compute ? ',' : '/')) {
            int more = 0;
            text += used + 1;
            used = 0;
            if (part->n_compute == MOST_INSTANCES || sscanf(text, "%3u%n", &part->compute[part->n_compute++], &more) != 1)
                return false;
            used = more;
        }
    }
    return true;
}

static int clear(void *device)
{
    part_t parts[MOST_INSTANCES];
    unsigned n, current, pending;
    int code = mig.mode(device, &current, &pending);

    if (code != 0 || !current)
        return code;
    code = list_parts(device, parts, &n);
    for (unsigned i = 0; code == 0 && i < n; i++) {
        for (unsigned k = 0; code == 0 && k < parts[i].n_compute; k++)
            code = mig.destroy_compute(parts[i].compute_handle[k]);
        if (code == 0)
            code = mig.destroy(parts[i].handle);
    }
    return code;
}

/* A mode that waits for an idle card is taken back. */
static int switch_mode(void *device, unsigned mode)
{
    unsigned current, pending;
    int waits = 0, code = mig.mode(device, &current, &pending);

    if (code != 0 || (current == mode && pending == mode))
        return code;
    code = mig.set_mode(device, mode, &waits);
    if (code == 0 && waits != 0) {
        int ignored;
        mig.set_mode(device, current, &ignored);
    }
    return code != 0 ? code : waits;
}

static int make_part(void *device, const part_t *part)
{
    place_t places[MOST_INSTANCES], wanted = {part->start, 0};
    unsigned n = MOST_INSTANCES;
    void *instance, *compute;
    int code = mig.places(device, part->profile, places, &n);

    for (unsigned i = 0; code == 0 && i < n; i++)
        if (places[i].start == part->start)
            wanted.size = places[i].size;
    if (code == 0)
        code = mig.create(device, part->profile, &wanted, &instance);
    for (unsigned k = 0; code == 0 && k < part->n_compute; k++)
        code = mig.create_compute(instance, part->compute[k], &compute);
    return code;
}

static access_t is_idle(const card_t *card, void *device, char why[LINE])
{
    unsigned n = 0;
    int code   = mig.processes(device, &n, NULL);

    if (code != INSUFFICIENT_SIZE)
        return nvml_answer(code, card, "list its processes", why);
    snprintf(why, LINE, "GPU %s: a process computes on it; it stays divided as it is", card->uuid);
    return REFUSED;
}

access_t mig_become(const card_t *card, const char *text, char why[LINE])
{
    void *device;
    part_t parts[MOST_INSTANCES];
    unsigned n = 0;
    char present[TEXT];
    bool is_on     = strcmp(text, "off") != 0;
    access_t found = FINE;

    if (is_on && !parse_text(text, parts, &n)) {
        snprintf(why, LINE, "the saved state '%s' is not one this knob can have captured", text);
        return REFUSED;
    }
    found = mig_read(card, present, why);
    if (found != FINE || strcmp(present, text) == 0)
        return found;
    found = find_card(card, &device, why);
    if (found == FINE)
        found = is_idle(card, device, why);
    if (found == FINE)
        found = nvml_answer(clear(device), card, "destroy its instances", why);
    if (found == FINE)
        found = nvml_answer(switch_mode(device, is_on), card, is_on ? "switch MIG mode on" : "switch MIG mode off", why);
    for (unsigned i = 0; found == FINE && i < n; i++)
        found = nvml_answer(make_part(device, &parts[i]), card, "make an instance again", why);
    return found;
}
