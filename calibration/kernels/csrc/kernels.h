/*
 * nodectl-kernels: one kernel of calibration, one pinned thread on each CPU.
 *
 * Each kernel does the same work per unit at every clock and vector width, and knows what must come out: multiply-adds
 * come back to known numbers, a triad goes round in six passes, a chase ends at a known place. A wrong number is an
 * error of the CPU, and ends the run.
 *
 * Files, from the bottom up. A file calls only files below it.
 *
 *   numbers, memory
 *   loops
 *   fma, stream, chase, mix
 *   threads
 *   main
 */
#ifndef NODECTL_KERNELS_H
#define NODECTL_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---------------------------------------------------------------- numbers: data of kernels, and what comes out */

enum {
    STEPS = 16384,   /* multiply-adds of a chain in a block: some 30 us */
    MOST_CHAINS = 16,
    MOST_LANES = 8,
    TILE = 512,      /* numbers that the data of a mix repeat */
    SLOT_BYTES = 128 /* of a thread's counter: two cache lines, since processors fetch pairs of them */
};

/* x -> x UP_BY + UP, then x -> x DOWN_BY + DOWN, which is the inverse but for rounding: x stays in [1, 2), all bits of
 * the factors are in use, and an error in x neither grows nor fades. Of errors of one unit in the last place 13 % are
 * rounded away, of larger ones 0.03 % (4,000 chains, an error halfway). */
#define UP_BY 1.6180339887498949
#define UP 0.7320508075688772
#define DOWN_BY 0.6180339887498949
#define DOWN (-0.4524322805693749)

uint64_t number_mixed(uint64_t index);            /* splitmix64 */
double number_between_1_and_2(uint64_t index);
/* What chain `chain` is after STEPS. Fused: each multiply-add is rounded once, as IEEE 754 requires; else twice. */
double number_known_end(int chain, bool is_fused);
/* The same sequence of `steps` by plain C, from any number. */
double number_after(double x, int steps, bool is_fused);

/* ---------------------------------------------------------------- memory */

/* Of at least `bytes`, in huge pages where there are, on the NUMA node of the thread that first writes; NULL: none. */
void *memory_for(size_t bytes);

/* ---------------------------------------------------------------- loops: what depends on the width of vectors */

typedef struct {
    const char *name;
    int lanes, chains;
    bool is_fused;
    void (*multiply_add)(double *ends);                                  /* [chains][lanes] after STEPS */
    void (*triad)(double *to, const double *newer, const double *older, size_t n);  /* newer - older */
    uint64_t (*mix)(const double *from, size_t n, int steps);            /* sum of the bits of what comes out */
} loops_t;

const loops_t *loops_named(const char *name); /* NULL: this CPU or build has none; "": the widest */
void loops_print(void);                       /* the names, the narrowest first */

/* ---------------------------------------------------------------- kernels */

typedef struct worker worker_t;

typedef struct {
    const char *name;
    bool (*prepare)(worker_t *); /* in the worker's thread, so that its memory is near; false: no memory */
    void (*block)(worker_t *);   /* a piece of work of some 10 to 100 us: adds its units */
    void (*verify)(worker_t *);  /* at the end; may be NULL */
} kernel_t;

struct worker {
    int cpu, steps;          /* steps: multiply-adds of a mix for each number */
    size_t bytes;            /* of memory; a kernel may round it */
    const kernel_t *kernel;
    const loops_t *loops;
    uint64_t *slot;          /* shared with who reads it; written only here */
    uint64_t units, place;   /* place: where in its data the kernel is */
    void *memory;
    uint64_t expected;       /* mix: the sum of a chunk */
    char wrong[160];         /* what the CPU computed wrongly; "" so far */
    char failed[96];         /* why it did not begin */
};

extern const kernel_t FMA_KERNEL, STREAM_KERNEL, CHASE_KERNEL, MIX_KERNEL;

/* ---------------------------------------------------------------- threads */

typedef struct {
    int n_workers;
    worker_t *workers;
    pid_t parent;
} run_t;

int run_kernel(run_t *run); /* the exit status */

#endif
