/* Which processors a job gets: the free ones with the lowest numbers. Internal to the replay. */
#ifndef CLUSTER_PLACEMENT_H
#define CLUSTER_PLACEMENT_H

#include <stdint.h>

#include "memory.h"

/* Processors `first` to `last`, both included. */
typedef struct {
    int32_t first, last;
} interval_t;

/*
 * The free processors as intervals in ascending order, no two of which touch: free[begin] to free[end - 1]. Jobs take
 * from the front, so taking only moves `begin`. The cost depends on how many intervals there are, not on how many
 * processors. What each job got is kept as intervals, one job after the other.
 */
typedef struct {
    struct memory *memory;
    interval_t *free;
    int32_t begin, end, room;
    interval_t *merged; /* while intervals are given back */
    interval_t *intervals;
    int64_t n_intervals, capacity;
} placement_t;

/* 0, or -1: no memory. */
int placement_init(placement_t *placement, struct memory *memory, int32_t processors);

/* Appends intervals of `width` processors. How many intervals; -1: no memory; -2: fewer than `width` are free. */
int32_t placement_take(placement_t *placement, int32_t width);

/* As placement_take, but only from processors 0 to below-1, the highest of them first. */
int32_t placement_take_highest(placement_t *placement, int32_t width, int64_t below);

/* How many processors below `below` are free. */
int64_t placement_free_below(const placement_t *placement, int64_t below);

/* `intervals` are what a job took, or several that ascend or descend. */
void placement_give_back(placement_t *placement, const interval_t *intervals, int32_t count);

/* Moves what is free from `first` to `last` to the free processors of `to`. Returns how many processors that are. */
int64_t placement_move(placement_t *from, placement_t *to, int32_t first, int32_t last);

/* Appends intervals that are taken already. 0, or -1: no memory. */
int placement_keep(placement_t *placement, const interval_t *intervals, int32_t count);

/* The same processors are free as in `from`, which has as many. */
void placement_frees_as(placement_t *placement, const placement_t *from);

/* What was taken last, `count` intervals, counts as taken from `to`. 0, or -1: no memory. */
int placement_hand_over(placement_t *from, placement_t *to, int32_t count);

#endif
