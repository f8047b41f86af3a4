#include "resources/span_line.h"

#include <string.h>

#include "search.h"

int line_new(memory_t *memory, line_t *line, int64_t now_s, const int64_t *left)
{
    line->capacity = 8;
    line->spans = column(memory, line->capacity, sizeof *line->spans);
    if (!line->spans)
        return -1;
    line->count = 1;
    line->spans[0] = (span_t){.from_s = now_s};
    memcpy(line->spans[0].left, left, NODE_KINDS * sizeof *left);
    return 0;
}

int32_t line_at(const line_t *line, int64_t at_s)
{
    return FIRST(i, 1, line->count, line->spans[i].from_s > at_s) - 1;
}

int32_t line_split(memory_t *memory, line_t *line, int64_t at_s)
{
    int32_t i = line_at(line, at_s);
    if (line->spans[i].from_s == at_s)
        return i;
    if (line->count == line->capacity) {
        span_t *spans = resized(memory, line->spans, 2 * line->capacity, sizeof *spans);
        memory->is_short |= !spans;
        if (!spans)
            return -1;
        line->spans = spans;
        line->capacity *= 2;
    }
    memmove(line->spans + i + 2, line->spans + i + 1, (size_t)(line->count - i - 1) * sizeof *line->spans);
    line->spans[i + 1] = line->spans[i];
    line->spans[i + 1].from_s = at_s;
    line->count++;
    return i + 1;
}

uint8_t line_take(memory_t *memory, line_t *line, int64_t from_s, int64_t to_s, const int64_t *taken)
{
    int32_t before = line->count, i = line_split(memory, line, from_s), between = line->count;
    int32_t end = line_split(memory, line, to_s);
    for (; i >= 0 && i < end; i++)
        for (int32_t kind = 0; kind < COLUMNS; kind++)
            line->spans[i].left[kind] -= taken[kind];
    return (uint8_t)((between > before ? AT_BEGIN : 0) | (line->count > between ? AT_END : 0));
}

static void line_join(line_t *line, int32_t i)
{
    line->count--;
    memmove(line->spans + i, line->spans + i + 1, (size_t)(line->count - i) * sizeof *line->spans);
}

void line_give(line_t *line, int64_t from_s, int64_t to_s, const int64_t *taken, uint8_t split)
{
    int32_t begin = line_at(line, from_s), i = begin;
    for (; i < line->count && line->spans[i].from_s < to_s; i++)
        for (int32_t kind = 0; kind < COLUMNS; kind++)
            line->spans[i].left[kind] += taken[kind];
    if (split & AT_END)
        line_join(line, i);
    if (split & AT_BEGIN)
        line_join(line, begin);
}

int32_t line_least(const line_t *line, int32_t i, int64_t to_s, int64_t *least)
{
    memcpy(least, line->spans[i].left, NODE_KINDS * sizeof *least);
    while (i + 1 < line->count && line->spans[i + 1].from_s < to_s) {
        i++;
        for (int32_t kind = 0; kind < NODE_KINDS; kind++)
            if (line->spans[i].left[kind] < least[kind])
                least[kind] = line->spans[i].left[kind];
    }
    return i;
}

void line_keep(memory_t *memory, line_t *line)
{
    line->before = column(memory, line->count, sizeof *line->before);
    line->n_before = line->count;
    if (line->before)
        memcpy(line->before, line->spans, (size_t)line->count * sizeof *line->before);
}

void line_reset(line_t *line)
{
    line->count = line->n_before;
    memcpy(line->spans, line->before, (size_t)line->count * sizeof *line->spans);
}
