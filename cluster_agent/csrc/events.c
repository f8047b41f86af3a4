#include "events.h"

#include <string.h>

int events_init(events_t *events, memory_t *memory, int32_t capacity)
{
    events->memory = memory;
    events->capacity = capacity > 0 ? capacity : 1;
    events->events = column(memory, events->capacity, sizeof *events->events);
    return memory_status(memory);
}

static int is_before(const event_t *a, const event_t *b)
{
    return a->at_s != b->at_s ? a->at_s < b->at_s : a->number < b->number;
}

void events_copy(events_t *heap, const events_t *from)
{
    heap->count = from->count;
    memcpy(heap->events, from->events, (size_t)from->count * sizeof *heap->events);
    for (int32_t i = 0; heap->valid && i < heap->count; i++)
        heap->valid[heap->events[i].job] = from->valid[heap->events[i].job];
}

int events_put(events_t *heap, event_t event)
{
    if (heap->count == heap->capacity) { /* void events stay until they are due */
        event_t *events = resized(heap->memory, heap->events, 2 * (int64_t)heap->capacity, sizeof *events);
        if (!events)
            return -1;
        heap->events = events;
        heap->capacity *= 2;
    }
    if (heap->valid)
        heap->valid[event.job] = event.number;
    int32_t i = heap->count++;
    while (i > 0 && is_before(&event, &heap->events[(i - 1) / 2])) {
        heap->events[i] = heap->events[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap->events[i] = event;
    return 0;
}

int32_t events_take(events_t *heap)
{
    int32_t job = heap->events[0].job;
    event_t last = heap->events[--heap->count];
    int32_t i = 0;
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && is_before(&heap->events[child + 1], &heap->events[child]))
            child++;
        if (!is_before(&heap->events[child], &last))
            break;
        heap->events[i] = heap->events[child];
        i = child;
    }
    heap->events[i] = last;
    return job;
}

void events_forget(events_t *heap, int32_t job)
{
    int32_t i = 0;
    if (heap->valid) {
        heap->valid[job] = -1;
        return;
    }
    while (i < heap->count && heap->events[i].job != job)
        i++;
    if (i == heap->count)
        return;
    for (; i > 0; i = (i - 1) / 2) /* its place at the top is taken by none */
        heap->events[i] = heap->events[(i - 1) / 2];
    events_take(heap);
}

int64_t events_first(events_t *heap)
{
    while (heap->valid && heap->count && heap->valid[heap->events[0].job] != heap->events[0].number)
        events_take(heap);
    return heap->count ? heap->events[0].at_s : INT64_MAX;
}
