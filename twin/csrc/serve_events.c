/*
 * Served counters: events, groups, and the formats that read(2) returns, as perf_event_open(2) documents them.
 *
 * Problem. The model only has counts that run for ever. A program expects events that it can enable, disable, reset and
 * group, that count only while they are enabled, and that belong to a CPU or follow a task.
 *
 * Idea. An event stores its value at the moment when it was last *settled*, and what its source read at that moment.
 * Settling adds the difference if the event was active since, and nothing otherwise.
 *
 *     on a CPU:   value      += reading - last reading                  counts, ns or uJ; plus range_uj after a wrap
 *                 enabled_ns += now - last settled                      ns of CLOCK_MONOTONIC
 *     in a task:  value      += cpu_s * reference_hz * (count - last count) / (reference - last reference)
 *                 cpu_s: CPU time of the task since then, from a real task-clock event. Reference cycles pass while a
 *                 CPU is busy. So a task counts what the emulated CPU counts in as much *busy* time: cycles at its
 *                 clock, on an idle CPU too.
 *     traffic:    value      += GB * 1e9 / 64                           lines of the last-level cache
 *     energy:     read(2) returns value * 1e-6 * 2^32                   units of 2^-32 J, as the kernel's RAPL PMU
 *
 * Invariant. Every read and every switch settles the whole group first, so the state of an event is constant between
 * two settlings. A change of state therefore never has to look back in time, and no state needs a history.
 *
 * Times of a task are not computed here. Each of its hardware events has a real task-clock event on that task, opened
 * with the same disabled, inherit and enable_on_exec and switched together with ours, so the kernel keeps the CPU time
 * and the times enabled and running. Nothing is multiplexed: on a CPU, time running is time enabled.
 *
 * Cost. An event is found in O(1) by its id: slot number plus a generation, so that the id of a closed event is never
 * valid again. A settling copies the counts of the whole node, O(CPUs * columns), and visits the members of the group.
 * One mutex protects the table; it is taken before that of the model.
 */
#include "serve.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SLOT_BITS     16
#define SLOTS         (1u << SLOT_BITS)
#define FORMAT_LOST   (1u << 4) /* PERF_FORMAT_LOST, in the headers since Linux 6.0 */
#define ALL_FORMAT    (2 * FORMAT_LOST - 1)
#define LINES_PER_GB  (1e9 / 64)
#define ENERGY_PER_UJ (4294967296.0 * 1e-6)

typedef struct event {
    uint64_t id;
    event_spec_t spec;
    struct event *leader;  /* itself when alone or leading */
    struct event *sibling; /* next member, leader first */
    int enabled, active, n_members;
    int is_spare;          /* its file is open, and no program has it yet */
    int64_t value, reading; /* count so far; reading of the source when last settled */
    int64_t enabled_ns, settled_ns;
    int64_t frozen;         /* value that a stuck counter shows */
    int64_t task_count, task_reference; /* EVENT_TASK: the model's counts at the last reading */
    int64_t task_times[2];  /* events of a task: ns enabled and ns running, from the kernel */
} event_t;

struct event_table {
    pthread_mutex_t lock;
    counter_source_t source;
    uint32_t next_generation, next_slot;
    int n_events;            /* that programs have */
    int n_taken;             /* slots, spare ones included */
    event_t *slots[SLOTS];   /* by the low bits of the id */
    int64_t *counts;         /* [n_cpus][n_columns]: the last reading of the whole node */
    counter_fault_t *faults; /* [n_cpus][n_columns] */
};

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static event_t *find(event_table_t *table, uint64_t id)
{
    event_t *event = table->slots[id & (SLOTS - 1)];
    return event && event->id == id ? event : NULL;
}

/****************************************************************
 * Counts
 ****************************************************************/

/* The model's count of one CPU; with cpu -1 (a task on any CPU) the sum over the node's CPUs. */
static int64_t count_of(const event_table_t *table, int32_t cpu, int32_t column)
{
    const counter_source_t *source = &table->source;
    if (cpu >= 0)
        return table->counts[cpu * source->n_columns + column];
    int64_t sum = 0;
    for (int32_t i = 0; i < source->n_cpus; i++)
        sum += table->counts[i * source->n_columns + column];
    return sum;
}

static double scale_of(const event_t *event)
{
    return event->spec.scale ? event->spec.scale : 1.0;
}

static const counter_fault_t *fault_of(const event_table_t *table, const event_t *event)
{
    static const counter_fault_t well = {COUNTER_WELL, 0, 0};
    if (event->spec.kind != EVENT_COUNTER)
        return &well;
    return &table->faults[event->spec.cpu * table->source.n_columns + event->spec.column];
}

/****************************************************************
 * Settling
 ****************************************************************/

/* Settles a group on a CPU: reads every source once, then applies changes of `enabled` from this moment on. */
static void settle_on_cpu(event_table_t *table, event_t *leader)
{
    table->source.counters(table->source.model, table->counts);
    int64_t now_ns = monotonic_ns();

    for (event_t *event = leader; event; event = event->sibling) {
        int64_t reading = 0;
        uint64_t real = 0;
        switch (event->spec.kind) {
        case EVENT_COUNTER:
            reading = (int64_t)((double)count_of(table, event->spec.cpu, event->spec.column) * scale_of(event));
            break;
        case EVENT_TRAFFIC:
            reading = (int64_t)(table->source.traffic_gb(table->source.model, event->spec.column) * LINES_PER_GB *
                                scale_of(event));
            break;
        case EVENT_CLOCK:
            reading = now_ns;
            break;
        case EVENT_ENERGY:
            reading = table->source.zone_uj(table->source.model, event->spec.column);
            if (event->active && reading < event->reading)
                event->value += event->spec.range_uj;
            break;
        case EVENT_KERNEL:
            reading = read(event->spec.real_fd, &real, sizeof real) == sizeof real ? (int64_t)real : event->reading;
            break;
        default:
            break;
        }
        if (event->active) {
            event->value += reading - event->reading;
            event->enabled_ns += now_ns - event->settled_ns;
        }
        event->reading = reading;
        event->settled_ns = now_ns;
        event->active = event->enabled && leader->enabled;
    }
}

/* Settles a group of a task: adds its CPU time since the last reading times the rate of the busy emulated CPU. */
static void settle_on_task(event_table_t *table, event_t *leader)
{
    table->source.counters(table->source.model, table->counts);

    for (event_t *event = leader; event; event = event->sibling) {
        uint64_t real[3]; /* count, time enabled, time running */
        if (event->spec.real_fd < 0 || read(event->spec.real_fd, real, sizeof real) != sizeof real)
            continue;
        event->task_times[0] = (int64_t)real[1];
        event->task_times[1] = (int64_t)real[2];
        if (event->spec.kind == EVENT_KERNEL) {
            event->value = (int64_t)real[0];
            continue;
        }
        int64_t reference = count_of(table, event->spec.cpu, table->source.reference_column);
        if (reference <= event->task_reference)
            continue; /* the model has not advanced: this CPU time is counted at the next reading */
        int64_t count = count_of(table, event->spec.cpu, event->spec.column);
        double each = (double)(count - event->task_count) / (double)(reference - event->task_reference);
        double references = (double)((int64_t)real[0] - event->reading) * 1e-9 * table->source.reference_hz;
        event->value += (int64_t)(references * each * scale_of(event));
        event->reading = (int64_t)real[0];
        event->task_count = count;
        event->task_reference = reference;
    }
}

static void settle(event_table_t *table, event_t *event)
{
    if (event->leader->spec.task >= 0)
        settle_on_task(table, event->leader);
    else
        settle_on_cpu(table, event->leader);
}

/****************************************************************
 * Opening and closing
 ****************************************************************/

event_table_t *events_new(counter_source_t source)
{
    event_table_t *table = calloc(1, sizeof *table);
    size_t cells = (size_t)source.n_cpus * (size_t)source.n_columns;
    if (!table)
        return NULL;
    table->source = source;
    table->counts = calloc(cells, sizeof *table->counts);
    table->faults = calloc(cells, sizeof *table->faults);
    pthread_mutex_init(&table->lock, NULL);
    if (!table->counts || !table->faults)
        return NULL; /* the process is ending, so nothing is freed */
    return table;
}

/* The errno with which the kernel would refuse to open this event; 0: it may be opened. */
static int refusal(const event_table_t *table, const event_spec_t *spec, const event_t *leader)
{
    if (spec->read_format & ~(uint64_t)ALL_FORMAT)
        return EINVAL;
    if (spec->cpu >= table->source.n_cpus || (spec->task < 0 && spec->cpu < 0))
        return EINVAL;
    if (spec->leader && !leader)
        return EBADF;
    if (leader && (leader->leader != leader || leader->spec.cpu != spec->cpu || leader->spec.task != spec->task))
        return EINVAL; /* a group is on one CPU or in one task, and a member cannot lead another group */
    if (leader && leader->n_members >= LARGEST_GROUP)
        return E2BIG;
    return 0;
}

/* A new event in a slot of its own; NULL and `error` if there is none. */
static event_t *take_slot(event_table_t *table, int *error)
{
    event_t *event = NULL;
    *error = table->n_taken >= (int)SLOTS - 1 ? EMFILE : ENOMEM;
    if (*error == EMFILE || !(event = calloc(1, sizeof *event)))
        return NULL;
    do {
        table->next_slot = (table->next_slot + 1) & (SLOTS - 1);
        table->next_generation += table->next_slot == 0;
    } while (table->slots[table->next_slot]);
    event->id = (uint64_t)(table->next_generation + 1) << SLOT_BITS | table->next_slot;
    event->leader = event;
    event->n_members = 1;
    table->slots[table->next_slot] = event;
    table->n_taken++;
    *error = 0;
    return event;
}

int64_t events_spare(event_table_t *table)
{
    int error;
    pthread_mutex_lock(&table->lock);
    event_t *event = take_slot(table, &error);
    if (event) {
        event->is_spare = 1;
        event->spec = (event_spec_t){.kind = EVENT_ZERO, .task = -1, .real_fd = -1};
    }
    int64_t id = event ? (int64_t)event->id : -error;
    pthread_mutex_unlock(&table->lock);
    return id;
}

int64_t events_open(event_table_t *table, const event_spec_t *spec, uint64_t spare)
{
    pthread_mutex_lock(&table->lock);
    event_t *leader = spec->leader ? find(table, spec->leader) : NULL;
    event_t *event = NULL;
    int error = refusal(table, spec, leader);
    if (!error)
        event = spare ? find(table, spare) : take_slot(table, &error);
    if (!event) {
        pthread_mutex_unlock(&table->lock);
        return -(error ? error : EBADF);
    }

    event->is_spare = 0;
    event->spec = *spec;
    event->enabled = !spec->disabled;
    table->n_events++;

    settle(table, event); /* only takes the first reading: the count starts at 0 */
    event->value = 0;
    if (leader) {
        settle(table, leader);
        event->leader = leader;
        /* Appended last: a group is read in the order in which its members were opened. */
        event_t *last = leader;
        while (last->sibling)
            last = last->sibling;
        event->sibling = NULL;
        last->sibling = event;
        leader->n_members++;
        event->active = event->enabled && leader->enabled;
    }
    pthread_mutex_unlock(&table->lock);
    return (int64_t)event->id;
}

void events_release(event_table_t *table, uint64_t id)
{
    pthread_mutex_lock(&table->lock);
    event_t *event = find(table, id);
    if (event) {
        if (!event->is_spare)
            settle(table, event);
        if (event->leader != event) {
            event_t *before = event->leader;
            while (before->sibling != event)
                before = before->sibling;
            before->sibling = event->sibling;
            event->leader->n_members--;
        } else {
            /* Without its leader a group becomes single events, each enabled or disabled as before. */
            for (event_t *member = event->sibling, *next; member; member = next) {
                next = member->sibling;
                member->leader = member;
                member->sibling = NULL;
                member->n_members = 1;
                member->active = member->enabled;
            }
        }
        if (event->spec.real_fd >= 0)
            close(event->spec.real_fd);
        table->slots[id & (SLOTS - 1)] = NULL;
        table->n_events -= !event->is_spare;
        table->n_taken--;
        free(event);
    }
    pthread_mutex_unlock(&table->lock);
}

/****************************************************************
 * Reading (perf_event_open(2), "Reading results")
 ****************************************************************/

static size_t put_event(const event_table_t *table, const event_t *event, uint64_t format, uint64_t *out)
{
    const counter_fault_t *fault = fault_of(table, event);
    size_t n = 0;
    out[n++] = (uint64_t)(fault->kind == COUNTER_STUCK          ? event->frozen
                          : fault->kind == COUNTER_SHOWS        ? fault->shown
                          : event->spec.kind == EVENT_ENERGY ? (int64_t)((double)event->value * ENERGY_PER_UJ)
                                                             : event->value);
    if (!(format & PERF_FORMAT_GROUP)) {
        int64_t enabled_ns = event->spec.task >= 0 ? event->task_times[0] : event->enabled_ns;
        int64_t running_ns = event->spec.task >= 0 ? event->task_times[1] : event->enabled_ns;
        if (format & PERF_FORMAT_TOTAL_TIME_ENABLED)
            out[n++] = (uint64_t)enabled_ns;
        if (format & PERF_FORMAT_TOTAL_TIME_RUNNING)
            out[n++] = (uint64_t)running_ns;
    }
    if (format & PERF_FORMAT_ID)
        out[n++] = event->id;
    if (format & FORMAT_LOST)
        out[n++] = 0; /* nothing is sampled, so no record can be lost */
    return n;
}

static size_t put_group(const event_table_t *table, const event_t *leader, uint64_t format, uint64_t *out)
{
    size_t n = 0;
    int of_task = leader->spec.task >= 0;
    out[n++] = (uint64_t)leader->n_members;
    if (format & PERF_FORMAT_TOTAL_TIME_ENABLED)
        out[n++] = (uint64_t)(of_task ? leader->task_times[0] : leader->enabled_ns);
    if (format & PERF_FORMAT_TOTAL_TIME_RUNNING)
        out[n++] = (uint64_t)(of_task ? leader->task_times[1] : leader->enabled_ns);
    for (const event_t *event = leader; event; event = event->sibling)
        n += put_event(table, event, format, out + n);
    return n;
}

/* Returns 0 bytes, as for an event in error state, if one of the counters is missing (a fault). */
int64_t events_read(event_table_t *table, uint64_t id, uint64_t *out, size_t size)
{
    uint64_t words[3 + 3 * LARGEST_GROUP];
    int64_t result = -EBADF;

    pthread_mutex_lock(&table->lock);
    event_t *event = find(table, id);
    if (event) {
        settle(table, event);
        uint64_t format = event->spec.read_format;
        int in_group = (format & PERF_FORMAT_GROUP) != 0;
        int missing = fault_of(table, event)->kind == COUNTER_MISSING;
        for (event_t *member = event->leader; in_group && member; member = member->sibling)
            missing |= fault_of(table, member)->kind == COUNTER_MISSING;
        size_t n = in_group ? put_group(table, event->leader, format, words) : put_event(table, event, format, words);
        result = missing ? 0 : n * sizeof *words > size ? -ENOSPC : (int64_t)(n * sizeof *words);
    }
    pthread_mutex_unlock(&table->lock);
    if (result > 0)
        memcpy(out, words, (size_t)result);
    return result;
}

/****************************************************************
 * Switching
 ****************************************************************/

/* Switches one event; a task's real event is switched with it. */
static void apply(event_t *event, uint32_t command)
{
    switch (command) {
    case PERF_EVENT_IOC_ENABLE:
        event->enabled = 1;
        break;
    case PERF_EVENT_IOC_DISABLE:
        event->enabled = 0;
        break;
    case PERF_EVENT_IOC_RESET: /* the count only: "There is no way to reset [...] time" (manual page) */
        event->value = 0;
        break;
    }
    if (event->spec.task >= 0 && event->spec.real_fd >= 0) {
        ioctl(event->spec.real_fd, command, 0);
        if (command == PERF_EVENT_IOC_RESET)
            event->reading = 0;
    }
}

int events_ioctl(event_table_t *table, uint64_t id, uint32_t command, uint64_t argument, uint64_t *out)
{
    int result = 0;
    pthread_mutex_lock(&table->lock);
    event_t *event = find(table, id);
    if (!event) {
        pthread_mutex_unlock(&table->lock);
        return -EBADF;
    }
    switch (command) {
    case PERF_EVENT_IOC_ENABLE:
    case PERF_EVENT_IOC_DISABLE:
    case PERF_EVENT_IOC_RESET:
        settle(table, event);
        if (argument & PERF_IOC_FLAG_GROUP) {
            for (event_t *member = event->leader; member; member = member->sibling)
                apply(member, command);
        } else {
            apply(event, command);
        }
        for (event_t *member = event->leader; member; member = member->sibling)
            member->active = member->enabled && member->leader->enabled;
        break;
    case PERF_EVENT_IOC_ID:
        *out = event->id;
        break;
    case PERF_EVENT_IOC_REFRESH:
    case PERF_EVENT_IOC_PERIOD:
    case PERF_EVENT_IOC_SET_OUTPUT:
    case PERF_EVENT_IOC_SET_FILTER:
    case PERF_EVENT_IOC_PAUSE_OUTPUT:
        result = -EINVAL; /* these are about samples, and nothing is sampled */
        break;
    default:
        result = -ENOTTY;
    }
    pthread_mutex_unlock(&table->lock);
    return result;
}

/****************************************************************
 * Queries and faults
 ****************************************************************/

int events_exist(event_table_t *table, uint64_t id)
{
    pthread_mutex_lock(&table->lock);
    int found = find(table, id) != NULL;
    pthread_mutex_unlock(&table->lock);
    return found;
}

int events_real_fd(event_table_t *table, uint64_t id)
{
    pthread_mutex_lock(&table->lock);
    event_t *event = find(table, id);
    int fd = event ? event->spec.real_fd : -1;
    pthread_mutex_unlock(&table->lock);
    return fd;
}

int events_count(event_table_t *table)
{
    pthread_mutex_lock(&table->lock);
    int n = table->n_events;
    pthread_mutex_unlock(&table->lock);
    return n;
}

/* How long a read of this event's group must be delayed: the longest delay of its members. */
int32_t events_delay_us(event_table_t *table, uint64_t id)
{
    pthread_mutex_lock(&table->lock);
    event_t *event = find(table, id);
    int32_t delay_us = 0;
    for (event_t *member = event ? event->leader : NULL; member; member = member->sibling)
        if (fault_of(table, member)->delay_us > delay_us)
            delay_us = fault_of(table, member)->delay_us;
    pthread_mutex_unlock(&table->lock);
    return delay_us;
}

/* A counter that becomes stuck keeps its present value in every open event that counts it. */
void events_set_fault(event_table_t *table, int32_t cpu, int32_t column, counter_fault_t fault)
{
    pthread_mutex_lock(&table->lock);
    counter_fault_t *cell = &table->faults[cpu * table->source.n_columns + column];
    for (uint32_t slot = 0; fault.kind == COUNTER_STUCK && cell->kind != COUNTER_STUCK && slot < SLOTS; slot++) {
        event_t *event = table->slots[slot];
        if (event && fault_of(table, event) == cell) {
            settle(table, event);
            event->frozen = event->value;
        }
    }
    *cell = fault;
    pthread_mutex_unlock(&table->lock);
}
