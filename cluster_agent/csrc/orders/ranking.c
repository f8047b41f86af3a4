/* The waiting jobs in the order of a number that each of them has. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_inside.h"
#include "search.h"

int ranking_new(scheduler_t *s)
{
    s->ranking.ranked = column(&s->memory, s->jobs.n_jobs, sizeof *s->ranking.ranked);
    s->ranking.merged = column(&s->memory, s->jobs.n_jobs, sizeof *s->ranking.merged);
    return memory_status(&s->memory);
}

enum { MOVES_A_JOB = 4 }; /* ours: as much as merging a few times */

/* What is no number ranks last. */
static inline int is_behind(const ranked_t *a, const ranked_t *b)
{
    if (a->rank < b->rank)
        return 1;
    if (a->rank > b->rank)
        return 0;
    int is_none = isnan(a->rank) != 0;
    return is_none != (isnan(b->rank) != 0) ? is_none : a->waiting.job > b->waiting.job;
}

/* How many of `count` ordered ones come before `one`. */
static int32_t ahead_of(const ranked_t *ordered, int32_t count, const ranked_t *one)
{
    return FIRST(i, 0, count, !is_behind(one, &ordered[i]));
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

/* Moves one after the other to its place, which most have not left by far. How many it left unmoved, since there were too
 * many moves. */
static int32_t insert_each(ranked_t *ranked, int32_t count, int32_t from)
{
    for (int64_t moves = MOVES_A_JOB * (int64_t)count; from < count && moves > 0; from++) {
        const ranked_t one = ranked[from];
        int32_t to = from;
        for (; to > 0 && is_behind(&ranked[to - 1], &one); to--, moves--)
            ranked[to] = ranked[to - 1];
        ranked[to] = one;
    }
    return count - from;
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
    if (insert_each(ranked, count, i))
        merge_runs(ranked, s->ranking.merged, count);
    for (i = 0; i < count; i++)
        queue[i] = ranked[i].waiting;
}

void ranking_new_ones(scheduler_t *s, int64_t now_s, rank_t *rank)
{
    waiting_t *queue = s->queue + s->head;
    for (int32_t count = s->tail - s->head, ordered = s->ranking.n_ordered; ordered < count; ordered++) {
        ranked_t one = {.rank = rank(s, now_s, &queue[ordered]), .waiting = queue[ordered]};
        int32_t to = FIRST(i, 0, ordered, !is_behind(&one, &(ranked_t){rank(s, now_s, &queue[i]), queue[i]}));
        memmove(queue + to + 1, queue + to, (size_t)(ordered - to) * sizeof *queue);
        queue[to] = one.waiting;
    }
}
