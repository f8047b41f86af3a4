/*
 * Reports the progress of a program to the node's power runtime: nodectl_progress_tick(1) after each iteration.
 *
 * Needs no library, and does nothing where NODECTL_PROGRESS is not set. All threads and processes of a job may tick:
 * they add to one counter, an unsigned 64-bit little-endian integer at the start of the file that NODECTL_PROGRESS
 * names. The program chooses its unit: small enough for some hundred a second if clocks should follow soon, and large
 * enough that reporting costs nothing. C11 and C++11, GCC or Clang.
 */
#ifndef NODECTL_PROGRESS_H
#define NODECTL_PROGRESS_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "nodectl_progress.h adds in place, which on this machine would not be little-endian"
#endif

#define NODECTL_PROGRESS_BYTES 64 /* of the file; all but the first eight are reserved and zero */

/* The counter, or NULL where there is none. */
static inline uint64_t *nodectl_progress_open(void)
{
    const char *path = getenv("NODECTL_PROGRESS");
    int file = path ? open(path, O_RDWR) : -1;
    void *memory = MAP_FAILED;
    struct stat is;

    if (file < 0)
        return NULL;
    if (fstat(file, &is) == 0 && is.st_size >= NODECTL_PROGRESS_BYTES) /* writing to a shorter one raises SIGBUS */
        memory = mmap(NULL, NODECTL_PROGRESS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : (uint64_t *)memory;
}

/* Reports finished units of work. Costs one atomic addition; safe in threads and after fork. */
static inline void nodectl_progress_tick(uint64_t units)
{
    static uint64_t nowhere, *counter; /* once per source file that includes this */
    uint64_t *here = __atomic_load_n(&counter, __ATOMIC_ACQUIRE);

    if (here == NULL) { /* two threads may both map it: that is the same counter, mapped twice */
        here = nodectl_progress_open();
        if (here == NULL)
            here = &nowhere;
        __atomic_store_n(&counter, here, __ATOMIC_RELEASE);
    }
    if (here != &nowhere)
        __atomic_fetch_add(here, units, __ATOMIC_RELAXED);
}

#endif
