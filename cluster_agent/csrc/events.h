/* Events to come, the earliest first. Internal to the replay. */
#ifndef CLUSTER_EVENTS_H
#define CLUSTER_EVENTS_H

#include "memory.h"

/* Something that will happen to a job. Events of one time happen in the order of their numbers. */
typedef struct {
    int64_t at_s;
    int64_t number;
    int32_t job;
} event_t;

/* A binary heap: no event is earlier than the one at the index (i - 1) / 2 of its own. */
typedef struct {
    memory_t *memory;
    event_t *events;
    int32_t count, capacity;
    int64_t *valid; /* per job: the number of its only valid event; NULL: all are */
} events_t;

/* Room for so many at first; more is taken as it is needed. 0, or -1: no memory. */
int events_init(events_t *events, memory_t *memory, int32_t capacity);

/* The same are to come as in `from`, which has no more room. */
void events_copy(events_t *events, const events_t *from);

/* 0, or -1: no memory. */
int events_put(events_t *events, event_t event);

/* When the first valid one is due; INT64_MAX: no event. */
int64_t events_first(events_t *events);

/* What was to happen to this job does not. */
void events_forget(events_t *events, int32_t job);

/* Removes the first event, which must exist; returns its job. */
int32_t events_take(events_t *events);

#endif
