/*
 * The plant as a library for a controller in another process. Its state is in a file that others also map, to read the
 * truth and to break sensors (twin/pulp/shared_plant.py makes the file). The controller's posix board looks these
 * functions up by name and defines the order of wires.
 */
#include "plant.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define LONGEST_SILENCE_NS 5000000000 /* a chip that did not run for longer was off: catching up takes a tenth of it */

EXPORT void *plant_open(const char *state, int32_t *wires[5]);
EXPORT void plant_advance(void *plant, int64_t now_ns);

void *plant_open(const char *state, int32_t *wires[5])
{
    struct stat found;
    pulp_shared_t *shared = MAP_FAILED;
    int fd = open(state, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    errno = EINVAL;
    if (fstat(fd, &found) == 0 && found.st_size == (off_t)sizeof *shared)
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED)
        return NULL;
    if (shared->magic != PULP_SHARED_MAGIC) {
        munmap(shared, sizeof *shared);
        errno = EINVAL;
        return NULL;
    }
    pulp_plant_t *p = &shared->plant;
    wires[0] = p->temperature_mk = shared->temperature_mk;
    wires[1] = p->capacitance_ff = shared->capacitance_ff;
    wires[2] = p->power_uw = shared->power_uw;
    wires[3] = shared->freq_khz;
    wires[4] = shared->volt_mv;
    p->freq_khz = shared->freq_khz;
    p->volt_mv = shared->volt_mv;
    p->trace_w = shared->trace_w;
    return shared;
}

/* Time starts with the first controller and goes on without one, at the clocks that the last controller set. */
void plant_advance(void *plant, int64_t now_ns)
{
    pulp_shared_t *shared = plant;
    int64_t silence_ns = now_ns - shared->epoch_ns - shared->plant.now_ns;
    if (shared->epoch_ns == 0 || silence_ns < 0 || silence_ns > LONGEST_SILENCE_NS)
        shared->epoch_ns = now_ns - shared->plant.now_ns;
    pulp_advance(&shared->plant, now_ns - shared->epoch_ns);
}
