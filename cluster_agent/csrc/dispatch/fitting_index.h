/*
 * When does a unit of a job fit on a node, and how well? The fitting index of DARDIS (Bridi, PhD thesis, Bologna 2018,
 * §5), over whole slots of time.
 *
 * A unit that starts in slot s and lasts `length` slots fits the profile I'(s) = min over resources k and slots t of
 * (desired_k(t) - reserved_k(t)) / need_k times, and the capacity min (capacity_k - reserved_k(t)) / need_k times. The
 * thesis prints one minimum of both; they are kept apart here, since a full profile would hide that there is room.
 *
 * Both are step functions of s: they change only where a reservation or a step of the profile enters or leaves the
 * window [s, s + length). So the cost goes by the number of reservations n, not by slots: O(n log n), 2 us for 30.
 */
#ifndef CLUSTER_FITTING_INDEX_H
#define CLUSTER_FITTING_INDEX_H

#include <stdint.h>

#define FITTING_RESOURCES 2 /* cores, milliwatts */

/* In slots [from, to) so much is reserved. */
typedef struct {
    int64_t from, to;
    int64_t amount[FITTING_RESOURCES];
} reserved_t;

/* From this slot on so much is desired; the first step goes for all earlier slots, too. */
typedef struct {
    int64_t from;
    int64_t desired[FITTING_RESOURCES];
} desired_t;

/* A unit that starts in one of the slots [from, to) fits so many times. */
typedef struct {
    int64_t from, to;
    double profile, capacity;
} fitting_t;

/* A segment of time in which nothing changes: scratch memory of the caller's. */
typedef struct {
    int64_t from, change[FITTING_RESOURCES];
    double profile, capacity;
} segment_t;

/* A job's unit, and its window: it starts in [first, last), first < last. A resource that it does not need (0) limits
 * nothing. */
typedef struct {
    int64_t need[FITTING_RESOURCES], length, first, last;
} unit_t;

/*
 * The starts that fit: the profile, if `within`, else only the capacity; the earliest, until they are `enough` slots.
 * `scratch` has room for 2 n_reserved + n_desired + 2, `out` and `minima` for twice as many. Returns how many of `out`
 * were written, in order of time; neighbours that fit alike are one.
 */
int32_t fitting_index(const reserved_t *reserved, int32_t n_reserved, const desired_t *desired, int32_t n_desired,
                      const int64_t *capacity, const unit_t *unit, int within, int64_t enough, segment_t *scratch,
                      int32_t *minima, fitting_t *out);

#endif
