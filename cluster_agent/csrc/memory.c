#include "memory.h"

#include <stdatomic.h>

enum { MOST_SPARE = 64, LEAST_BYTES = 1 << 15 }; /* smaller ones are malloc's own affair; ours */

struct spare {
    atomic_flag lock;
    block_t *first; /* linked by `before` */
    int count, users;
};

static void lock(spare_t *spare)
{
    while (atomic_flag_test_and_set_explicit(&spare->lock, memory_order_acquire))
        ;
}

static void unlock(spare_t *spare)
{
    atomic_flag_clear_explicit(&spare->lock, memory_order_release);
}

static void *linked(memory_t *m, block_t *block, size_t bytes)
{
    *block = (block_t){.before = m->last, .bytes = bytes};
    if (m->last)
        m->last->after = block;
    m->last = block;
    return block + 1;
}

/* A spare block of this size; NULL: there is none. */
static block_t *taken(spare_t *spare, size_t bytes)
{
    lock(spare);
    block_t **at = &spare->first, *found;
    while (*at && (*at)->bytes != bytes)
        at = &(*at)->before;
    if ((found = *at)) {
        *at = found->before;
        spare->count--;
    }
    unlock(spare);
    return found;
}

static void discard(spare_t *spare, block_t *block)
{
    int is_kept = 0;
    if (spare && block->bytes >= LEAST_BYTES) {
        lock(spare);
        if ((is_kept = spare->count < MOST_SPARE)) {
            block->before = spare->first;
            spare->first = block;
            spare->count++;
        }
        unlock(spare);
    }
    if (!is_kept)
        free(block);
}

void *column(memory_t *m, int64_t count, size_t size)
{
    size_t bytes = sizeof(block_t) + (count > 0 ? (size_t)count : 1) * size;
    block_t *block = m->spare && m->is_unwritten ? taken(m->spare, bytes) : NULL;
    if (!block)
        block = m->is_unwritten ? malloc(bytes) : calloc(1, bytes);
    m->is_short |= !block;
    return block ? linked(m, block, bytes) : NULL;
}

void *resized(memory_t *m, void *column, int64_t count, size_t size)
{
    block_t *block = column ? (block_t *)column - 1 : NULL;
    size_t bytes = sizeof *block + (size_t)count * size;
    block_t *moved = realloc(block, bytes);
    if (!moved)
        return NULL;
    if (!column)
        return linked(m, moved, bytes);
    moved->bytes = bytes;
    if (moved->before)
        moved->before->after = moved;
    *(moved->after ? &moved->after->before : &m->last) = moved;
    return moved + 1;
}

int memory_keep_spare(memory_t *m)
{
    m->spare = calloc(1, sizeof *m->spare);
    if (!m->spare)
        return -1;
    m->spare->users = 1;
    unlock(m->spare);
    return 0;
}

void memory_share(memory_t *m, const memory_t *with)
{
    m->spare = with->spare;
    if (!m->spare)
        return;
    lock(m->spare);
    m->spare->users++;
    unlock(m->spare);
}

void memory_free(memory_t *m)
{
    spare_t *spare = m->spare;
    for (block_t *block = m->last, *before; block; block = before) {
        before = block->before;
        discard(spare, block);
    }
    if (!spare)
        return;
    lock(spare);
    int is_last = --spare->users == 0;
    unlock(spare);
    for (block_t *block = spare->first, *before; is_last && block; block = before) {
        before = block->before;
        free(block);
    }
    if (is_last)
        free(spare);
}
