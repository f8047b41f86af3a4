#include "placement.h"

#include <stdlib.h>
#include <string.h>

#define WORD 64

int placement_init(placement_t *p, int32_t processors)
{
    memset(p, 0, sizeof *p);
    p->words = (processors + WORD - 1) / WORD;
    p->free = calloc(p->words > 0 ? (size_t)p->words : 1, sizeof *p->free);
    if (!p->free)
        return -1;
    if (processors > 0)
        placement_give_back(p, &(interval_t){.first = 0, .last = processors - 1}, 1);
    return 0;
}

void placement_clear(placement_t *p)
{
    free(p->free);
    free(p->intervals);
    memset(p, 0, sizeof *p);
}

/* Bits `from` to `to` - 1 of a word. */
static uint64_t mask(int32_t from, int32_t to)
{
    uint64_t below_to = to == WORD ? ~UINT64_C(0) : (UINT64_C(1) << to) - 1;
    return below_to & ~((UINT64_C(1) << from) - 1);
}

void placement_give_back(placement_t *p, const interval_t *intervals, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t first = intervals[i].first, end = intervals[i].last + 1;
        if (first / WORD < p->hint)
            p->hint = first / WORD;
        while (first < end) {
            int32_t word = first / WORD, word_end = (word + 1) * WORD;
            int32_t to = end < word_end ? end : word_end;
            p->free[word] |= mask(first - word * WORD, to - word * WORD);
            first = to;
        }
    }
}

static int append(placement_t *p, int32_t first, int32_t last)
{
    if (p->n_intervals == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 4096;
        interval_t *intervals = realloc(p->intervals, (size_t)capacity * sizeof *intervals);
        if (!intervals)
            return -1;
        p->intervals = intervals;
        p->capacity = capacity;
    }
    p->intervals[p->n_intervals++] = (interval_t){.first = first, .last = last};
    return 0;
}

int32_t placement_take(placement_t *p, int32_t width)
{
    int64_t begin = p->n_intervals;

    while (p->hint < p->words && !p->free[p->hint])
        p->hint++;
    for (int32_t word = p->hint; width > 0; word++) {
        if (word == p->words)
            return -2;
        while (p->free[word] && width > 0) {
            int32_t from = __builtin_ctzll(p->free[word]);
            uint64_t taken = ~(p->free[word] >> from);
            int32_t run = taken ? __builtin_ctzll(taken) : WORD;
            if (run > WORD - from)
                run = WORD - from;
            if (run > width)
                run = width;
            p->free[word] &= ~mask(from, from + run);
            width -= run;
            int32_t first = word * WORD + from;
            if (p->n_intervals > begin && p->intervals[p->n_intervals - 1].last == first - 1)
                p->intervals[p->n_intervals - 1].last += run;
            else if (append(p, first, first + run - 1) < 0)
                return -1;
        }
    }
    return (int32_t)(p->n_intervals - begin);
}
