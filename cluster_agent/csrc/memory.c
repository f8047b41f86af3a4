#include "memory.h"

static void *linked(memory_t *m, block_t *block)
{
    *block = (block_t){.before = m->last};
    if (m->last)
        m->last->after = block;
    m->last = block;
    return block + 1;
}

void *column(memory_t *m, int64_t count, size_t size)
{
    block_t *block = calloc(1, sizeof *block + (count > 0 ? (size_t)count : 1) * size);
    m->is_short |= !block;
    return block ? linked(m, block) : NULL;
}

void *resized(memory_t *m, void *column, int64_t count, size_t size)
{
    block_t *block = column ? (block_t *)column - 1 : NULL;
    block_t *moved = realloc(block, sizeof *block + (size_t)count * size);
    if (!moved)
        return NULL;
    if (!column)
        return linked(m, moved);
    if (moved->before)
        moved->before->after = moved;
    *(moved->after ? &moved->after->before : &m->last) = moved;
    return moved + 1;
}

void memory_free(memory_t *m)
{
    for (block_t *block = m->last, *before; block; block = before) {
        before = block->before;
        free(block);
    }
}
