/*
 * The host board: the controller as a library, in virtual time.
 *
 * Nothing happens outside host_advance. Time moves from event to event, jobs take their configured time, and equal
 * calls give equal bits. A plant is a function that updates the wires to a given time; without a plant the wires keep
 * the values that their owner wrote.
 */
#ifndef HOST_H
#define HOST_H

#include <stdint.h>

#define HOST_CORES 36
#define HOST_DOMAINS 4
#define HOST_POWER_DOMAINS 5
#define HOST_AGENTS 3
#define HOST_SMT_BYTES 160
#define HOST_FAST_WORDS 64
#define HOST_TICK_NS 125000
#define HOST_JOBS 3

/* Between controller and plant. INT32_MIN: the sensor cannot be read. */
typedef struct {
    int32_t temperature_mk[HOST_CORES];
    int32_t capacitance_ff[HOST_CORES];
    int32_t power_uw[HOST_POWER_DOMAINS];
    int32_t freq_khz[HOST_CORES];
    int32_t volt_mv[HOST_DOMAINS];
} host_wires_t;

typedef struct {
    int32_t published_law, polled_messages, bypass;
    int32_t step_after;   /* slots; below 0: as on other boards, 0: no own steps */
    uint32_t message_only; /* bit per channel: its agent cannot reach this memory, so at first it has no FastChannels */
    int64_t job_ns[HOST_JOBS]; /* fast, control, one message: ours, measured on rv32 or zero */
    int64_t interrupt_ns;      /* from doorbell to message job ready */
} host_options_t;

typedef struct host host_t;
typedef void (*host_plant_t)(void *plant, int64_t until_ns);

uint64_t host_size(void); /* bytes of memory for host_open: zeroed, aligned for any type */
host_t *host_open(void *memory, const host_options_t *options);
host_wires_t *host_wires(host_t *h);
void host_attach(host_t *h, host_plant_t plant, void *context);
void host_advance(host_t *h, int64_t until_ns);
int64_t host_now_ns(const host_t *h);

/* Mailbox of a channel: the raw area (0 commands, 1 events), its doorbell and completion, its FastChannel window. */
uint8_t *host_area(host_t *h, int channel, int direction);
void host_ring(host_t *h, int channel, uint32_t value);
uint32_t host_doorbell(const host_t *h, int channel);
int host_take_completion(host_t *h, int channel);
uint32_t *host_fast_window(host_t *h, int channel);

/* Puts a channel's FastChannel window into the agent's own memory, described to it by `address`. NULL: has none. */
void host_fast_map(host_t *h, int channel, uint32_t *words, uint64_t address);

/* One SCMI message without a mailbox, answered at once. Returns the bytes of the reply; `reply` has room for
 * HOST_SMT_BYTES. */
uint32_t host_message(host_t *h, int channel, const uint8_t *message, uint32_t bytes, uint8_t *reply);

/* A serial line on one agent's channel: bytes to the controller, which processes them at once, and bytes from it. */
void host_line_open(host_t *h, int channel);
void host_line_write(host_t *h, const uint8_t *bytes, uint32_t n);
uint32_t host_line_read(host_t *h, uint8_t *bytes, uint32_t n);

/* Internal state of the controller, for tests and benchmarks. */
typedef struct {
    uint32_t slots, overruns_fast, overruns_control, bypasses, commands, kicks, actuations;
    uint32_t fast_writes[HOST_AGENTS]; /* FastChannel words that were seen to change */
    int32_t margin_uw, kept_slots, gain_q16[HOST_DOMAINS];
    uint16_t reasons[HOST_CORES];
    uint32_t guard_faults, guard_ever, guard_alarms;
    int32_t guard_safe_slots, heat_mk[4]; /* the thermal model: silicon, copper, sink, ambient */
    int64_t last_change_ns[HOST_DOMAINS]; /* when a clock of the domain last changed */
} host_view_t;
void host_view(const host_t *h, host_view_t *out);
uint64_t host_fingerprint(const host_t *h); /* of every actuation so far */
void host_stall(host_t *h, int32_t ticks); /* fault: the executive does not run for this many ticks */

#endif
