/* The waiting jobs in the order of a number that each of them has. */
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"

int ranking_new(scheduler_t *s)
{
    s->ranking.ranked = column(&s->memory, s->jobs.n_jobs, sizeof *s->ranking.ranked);
    s->ranking.merged = column(&s->memory, s->jobs.n_jobs, sizeof *s->ranking.merged);
    return memory_status(&s->memory);
}

static inline int is_behind(const ranked_t *a, const ranked_t *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->waiting.job > b->waiting.job;
}

/* How many of `count` ordered ones come before `one`. */
static int32_t ahead_of(const ranked_t *ordered, int32_t count, const ranked_t *one)
{
    int32_t low = 0, high = count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (is_behind(one, &ordered[middle]))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Merges ordered runs, two neighbours at a time, and moves only what is not in its place. From pass to pass few jobs
 * move, so there are few runs. */
static void merge_runs(ranked_t *ranked, ranked_t *merged, int32_t count)
{
    for (int32_t runs = 2; runs > 1;) {
        runs = 0;
        for (int32_t from = 0, middle, end; from < count; from = end, runs++) {
            for (middle = from + 1; middle < count && !is_behind(&ranked[middle - 1], &ranked[middle]);)
                middle++;
            for (end = middle + 1; end < count && !is_behind(&ranked[end - 1], &ranked[end]);)
                end++;
            if (middle >= count)
                continue;
            int32_t to = from + ahead_of(ranked + from, middle - from, &ranked[middle]);
            int32_t left = 0, n_left = middle - to, right = middle;
            int32_t last = middle + ahead_of(ranked + middle, end - middle, &ranked[middle - 1]);
            memcpy(merged, ranked + to, (size_t)n_left * sizeof *merged);
            for (; left < n_left; to++)
                ranked[to] = right < last && is_behind(&merged[left], &ranked[right]) ? ranked[right++] : merged[left++];
        }
    }
}

void ranking_all(scheduler_t *s)
{
    ranked_t *ranked = s->ranking.ranked;
    int32_t count = s->tail - s->head, i = 1;
    waiting_t *queue = s->queue + s->head;

    while (i < count && !is_behind(&ranked[i - 1], &ranked[i]))
        i++;
    if (i >= count) /* it is in order */
        return;
    merge_runs(ranked, s->ranking.merged, count);
    for (i = 0; i < count; i++)
        queue[i] = ranked[i].waiting;
}

void ranking_new_ones(scheduler_t *s, int64_t now_s, rank_t *rank)
{
    waiting_t *queue = s->queue + s->head;
    for (int32_t count = s->tail - s->head, ordered = s->ranking.n_ordered; ordered < count; ordered++) {
        ranked_t one = {.rank = rank(s, now_s, &queue[ordered]), .waiting = queue[ordered]};
        int32_t low = 0, high = ordered;
        while (low < high) {
            int32_t middle = low + (high - low) / 2;
            ranked_t other = {.rank = rank(s, now_s, &queue[middle]), .waiting = queue[middle]};
            if (is_behind(&one, &other))
                low = middle + 1;
            else
                high = middle;
        }
        memmove(queue + low + 1, queue + low, (size_t)(ordered - low) * sizeof *queue);
        queue[low] = one.waiting;
    }
}
