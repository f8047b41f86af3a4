/* The memory of a scheduler, a replay or a plan: columns of one value per job, user, node or level, freed together. */
#ifndef CLUSTER_MEMORY_H
#define CLUSTER_MEMORY_H

#include <stdint.h>
#include <stdlib.h>

/* Before each column: those that were made before and after it. */
typedef struct block {
    struct block *before, *after;
} block_t;

typedef struct memory {
    block_t *last;
    int is_short; /* a column could not be made */
} memory_t;

/* All rows at once; the kernel provides a page only when it is first written. Zeroes; NULL: no memory. */
void *column(memory_t *memory, int64_t count, size_t size);

/* The column with this many rows; NULL as a column is a new one. NULL: no memory, and the column is as it was. */
void *resized(memory_t *memory, void *column, int64_t count, size_t size);

void memory_free(memory_t *memory);

/* -1 if any of its columns could not be made. */
static inline int memory_status(const memory_t *memory)
{
    return memory->is_short ? -1 : 0;
}

#endif
