/* Loads a plant: see plant.h. */
#include "plant.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ISO C has no cast from an object pointer to a function pointer; POSIX allows this copy. */
static bool look_up(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

const char *plant_load(struct plant *plant, const char *library, const char *state, int32_t *wires[WIRES])
{
    static char problem[512];
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(problem, sizeof problem, "%s", dlerror());
        return problem;
    }
    if (!look_up(handle, "plant_open", &plant->open) || !look_up(handle, "plant_advance", &plant->advance)) {
        snprintf(problem, sizeof problem, "%s: exports no plant_open and plant_advance: not a plant", library);
        return problem;
    }
    plant->it = plant->open(state, wires);
    if (!plant->it) {
        snprintf(problem, sizeof problem, "%s: %s", state, errno == EINVAL ? "not a plant's state" : strerror(errno));
        return problem;
    }
    return NULL;
}
