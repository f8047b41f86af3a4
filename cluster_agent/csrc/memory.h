/* The memory of a scheduler, a replay or a plan: columns of one value per job, user, node or level, freed together. */
#ifndef CLUSTER_MEMORY_H
#define CLUSTER_MEMORY_H

#include <stdint.h>
#include <stdlib.h>

/* Before each column: those that were made before and after it. */
typedef struct block {
    _Alignas(16) struct block *before;
    struct block *after;
    size_t bytes; /* with this */
} block_t;

/* Large columns of memory that was freed, for whoever shares the spare ones: a page that is new to the process costs more
 * than what is copied to it. Threads may share them. */
typedef struct spare spare_t;

typedef struct memory {
    block_t *last;
    spare_t *spare; /* NULL: none are kept */
    int is_short; /* a column could not be made */
    int is_unwritten; /* new columns hold anything: each row is written before it is read */
} memory_t;

/* All rows at once; the kernel provides a page only when it is first written. Zeroes, unless the memory is unwritten;
 * NULL: no memory. */
void *column(memory_t *memory, int64_t count, size_t size);

/* The column with this many rows; NULL as a column is a new one. NULL: no memory, and the column is as it was. */
void *resized(memory_t *memory, void *column, int64_t count, size_t size);

void memory_free(memory_t *memory);

/* Columns that are freed are kept from now on. 0, or -1: no memory. */
int memory_keep_spare(memory_t *memory);

/* Before its first column: it takes spare columns of the other one, if that keeps any, and leaves its own to it. */
void memory_share(memory_t *memory, const memory_t *with);

/* -1 if any of its columns could not be made. */
static inline int memory_status(const memory_t *memory)
{
    return memory->is_short ? -1 : 0;
}

#endif
