/*
 * Hints to the node's power runtime: what this program does now, so that clocks follow at once and not a period later.
 *
 *     nodectl_hints_copy(bytes);   before a copy between host and device; below 10^10 bytes it does nothing
 *     nodectl_hints_kernel();      before the launch of a kernel
 *     nodectl_hints_phase(3);      a phase of the program begins; 0: none
 *     nodectl_hints_wait_begin();  this thread waits in MPI ...
 *     nodectl_hints_wait_end();    ... and goes on
 *
 * Needs no library, and does nothing where NODECTL_HINTS is not set. The agent decides what follows from a hint; a
 * program gets no right to any clock. All threads and processes of a job share one page of 64 bytes. A call is one or
 * two atomic additions; only a change of what the program does wakes the agent, and only while the agent sleeps.
 * C99 and C++11, GCC or Clang, with the compiler's extensions or strictly.
 */
#ifndef NODECTL_HINTS_H
#define NODECTL_HINTS_H

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "nodectl_hints.h writes in place, which on this machine would not be little-endian"
#endif

#define NODECTL_HINTS_BYTES 64
#define NODECTL_HINTS_VERSION 1
#define NODECTL_HINTS_BIG_COPY 10000000000u /* bytes; REGALE D2.3 section 3.4 */

/* With -std=c99 or c11 the C library leaves out what is not ISO C, unless _GNU_SOURCE came before all its headers. */
#ifdef O_NOFOLLOW
#define NODECTL_HINTS_OPEN (O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)
#else
#define NODECTL_HINTS_OPEN (O_RDWR | O_NONBLOCK | __O_NOFOLLOW | __O_CLOEXEC)
#endif
#if !defined __cplusplus && !defined __USE_MISC
extern long syscall(long number, ...);
#endif

enum { NODECTL_HINTS_NONE, NODECTL_HINTS_COPY, NODECTL_HINTS_KERNEL };

/* The page. Counts only grow, so that no burst between two looks of the agent is lost. */
typedef struct {
    uint32_t version;
    uint32_t wake;   /* 1: the agent sleeps; who changes something sets 0 and wakes it */
    uint32_t news;   /* changes so far, modulo 2^32: the futex(2) that the agent sleeps on */
    uint32_t phase;  /* the present one; 0: none */
    uint32_t last;   /* NODECTL_HINTS_COPY or _KERNEL, whichever came last */
    uint32_t unused; /* reserved, zero */
    uint64_t copies, kernels, waits, waited, phases;
} nodectl_hints_t;

/* The page, or NULL where there is none. */
static inline nodectl_hints_t *nodectl_hints_open(void)
{
    const char *path = getenv("NODECTL_HINTS");
    int file = path ? open(path, NODECTL_HINTS_OPEN) : -1;
    void *memory = MAP_FAILED;
    struct stat is;

    if (file < 0)
        return NULL;
    if (fstat(file, &is) == 0 && S_ISREG(is.st_mode) && is.st_size == NODECTL_HINTS_BYTES)
        memory = mmap(NULL, NODECTL_HINTS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return NULL;
    if (((nodectl_hints_t *)memory)->version != NODECTL_HINTS_VERSION) {
        munmap(memory, NODECTL_HINTS_BYTES);
        return NULL;
    }
    return (nodectl_hints_t *)memory;
}

/* The page, opened at the first call; NULL where there is none. Safe in threads and after fork. */
static inline nodectl_hints_t *nodectl_hints_page(void)
{
    static nodectl_hints_t nowhere, *page; /* once per source file that includes this */
    nodectl_hints_t *here = __atomic_load_n(&page, __ATOMIC_ACQUIRE);

    if (here == NULL) { /* two threads may both map it: that is the same page, mapped twice */
        here = nodectl_hints_open();
        if (here == NULL)
            here = &nowhere;
        __atomic_store_n(&page, here, __ATOMIC_RELEASE);
    }
    return here == &nowhere ? NULL : here;
}

/* Something has changed. The addition comes before the look at `wake`, and the agent sets `wake` before the kernel
 * compares `news`: so either the agent does not fall asleep, or it is woken. */
static inline void nodectl_hints_tell(nodectl_hints_t *page)
{
    __atomic_fetch_add(&page->news, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page->wake, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&page->wake, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &page->news, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline void nodectl_hints_device(nodectl_hints_t *page, uint64_t *count, uint32_t what)
{
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&page->last, __ATOMIC_RELAXED) == what)
        return;
    __atomic_store_n(&page->last, what, __ATOMIC_RELAXED);
    nodectl_hints_tell(page);
}

/* A copy of so many bytes between host and device begins. */
static inline void nodectl_hints_copy(uint64_t bytes)
{
    nodectl_hints_t *page = bytes < NODECTL_HINTS_BIG_COPY ? NULL : nodectl_hints_page();

    if (page)
        nodectl_hints_device(page, &page->copies, NODECTL_HINTS_COPY);
}

/* A kernel is about to be launched. */
static inline void nodectl_hints_kernel(void)
{
    nodectl_hints_t *page = nodectl_hints_page();

    if (page)
        nodectl_hints_device(page, &page->kernels, NODECTL_HINTS_KERNEL);
}

/* A phase begins, by the program's own number; 0: it is in none. Returns the phase before. */
static inline uint32_t nodectl_hints_phase(uint32_t number)
{
    nodectl_hints_t *page = nodectl_hints_page();
    uint32_t before = page ? __atomic_exchange_n(&page->phase, number, __ATOMIC_RELAXED) : 0;

    if (page && before != number) {
        __atomic_fetch_add(&page->phases, 1, __ATOMIC_RELAXED);
        nodectl_hints_tell(page);
    }
    return before;
}

/* This thread begins to wait for other ranks. Counted, and read once a period: it wakes nobody. */
static inline void nodectl_hints_wait_begin(void)
{
    nodectl_hints_t *page = nodectl_hints_page();

    if (page)
        __atomic_fetch_add(&page->waits, 1, __ATOMIC_RELAXED);
}

static inline void nodectl_hints_wait_end(void)
{
    nodectl_hints_t *page = nodectl_hints_page();

    if (page)
        __atomic_fetch_add(&page->waited, 1, __ATOMIC_RELAXED);
}

#endif
