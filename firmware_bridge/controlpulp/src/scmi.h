/*
 * The SCMI platform (Arm DEN0056): base, system power, performance, clock, sensor, power capping, and a vendor protocol
 * for telemetry.
 *
 * The channel identifies the agent: a sender named in a message or register is ignored. Every command gets one
 * response. Checks run in the order of the reference platform: size, permission, domain, flags, capability, range.
 */
#ifndef SCMI_H
#define SCMI_H

#include "requests.h"

#define SCMI_MESSAGE_WORDS (1 + SMT_PAYLOAD_WORDS)
#define SCMI_REPLY_BYTES 128     /* payload that Linux clients take */
#define SENSORS 18               /* see scmi_sensor.c */
#define TRIP_SENSORS DOMAINS     /* the temperatures have one trip point each */
#define EVENT_WORDS 9
#define EVENT_QUEUE 16

enum scmi_status {
    SCMI_SUCCESS = 0,
    SCMI_NOT_SUPPORTED = -1,
    SCMI_INVALID_PARAMETERS = -2,
    SCMI_DENIED = -3,
    SCMI_NOT_FOUND = -4,
    SCMI_OUT_OF_RANGE = -5,
    SCMI_BUSY = -6,
    SCMI_COMMS_ERROR = -7,
    SCMI_GENERIC_ERROR = -8,
    SCMI_HARDWARE_ERROR = -9,
    SCMI_PROTOCOL_ERROR = -10,
};

enum scmi_type { SCMI_COMMAND = 0, SCMI_DELAYED = 2, SCMI_NOTIFICATION = 3 };

enum scmi_protocol_id {
    SCMI_BASE = 0x10,
    SCMI_SYSTEM = 0x12,
    SCMI_PERFORMANCE = 0x13,
    SCMI_CLOCK = 0x14,
    SCMI_SENSOR = 0x15,
    SCMI_POWERCAP = 0x18,
    SCMI_TELEMETRY = 0x80,
};
enum protocol { BASE, SYSTEM, PERFORMANCE, CLOCK, SENSOR, POWERCAP, TELEMETRY, PROTOCOLS };

/* ---- state ---- */

struct event {
    uint32_t words;
    uint32_t word[EVENT_WORDS]; /* header first */
};

struct event_queue {
    struct event event[EVENT_QUEUE];
    uint32_t head, count, lost;
};

struct measure_watch {
    bool is_on, was_inside;
    uint32_t low_mw, high_mw;
    uint32_t next_slot;
};

struct delayed_cap {
    bool is_pending, is_silent;
    uint32_t token, due_slot;
};

struct firmware;
typedef void level_lowered(struct firmware *fw, int domain);

struct scmi {
    struct firmware *fw;
    level_lowered *lowered; /* the requested level of a domain fell */
    uint32_t version[AGENTS][PROTOCOLS]; /* as negotiated; 0: the newest */
    uint8_t denied[AGENTS][POWER_DOMAINS]; /* bit per protocol; device 0 the package, 1..4 the voltage domains */
    bool error_watch[AGENTS], faults_watch[AGENTS], system_watch[AGENTS];
    bool limits_watch[AGENTS][DOMAINS], level_watch[AGENTS][DOMAINS];
    bool cap_watch[AGENTS][POWER_DOMAINS];
    struct measure_watch measure[AGENTS][POWER_DOMAINS];
    struct delayed_cap delayed[AGENTS][POWER_DOMAINS];
    bool trip_watch[AGENTS][TRIP_SENSORS], update_watch[AGENTS][SENSORS];
    uint32_t trip_mode[TRIP_SENSORS];
    int32_t trip_mc[TRIP_SENSORS], trip_last_mc[TRIP_SENSORS];
    uint32_t sensor_config[SENSORS], sensor_due[SENSORS];
    int32_t level_khz[DOMAINS], limit_max_khz[DOMAINS], limit_min_khz[DOMAINS]; /* as last announced */
    int32_t cap_mw[POWER_DOMAINS], pai_us[POWER_DOMAINS];
    struct event_queue queue[AGENTS];
    uint32_t fast_seen[AGENTS][FAST_WORDS], fast_writes[AGENTS];
    uint64_t fast_refused[AGENTS]; /* bit per word: its value was refused */
    uint64_t fast_retry[AGENTS];   /* and is to be tried again */
    uint64_t fast_poll_us;         /* when the last poll began that had words to read */
    int fast_agent;                /* whose window the next poll begins with, */
    uint32_t fast_request;         /* and where in it */
    uint64_t fast_torn[AGENTS];    /* bit per word: its pair changed in the last poll */
    uint32_t faults; /* of sensors, as last announced */
    bool is_safe;
    uint32_t next_channel;
    uint32_t commands, transport_errors, spurious_doorbells;
};

void scmi_init(struct scmi *s, struct firmware *fw, level_lowered *lowered);
uint32_t scmi_message(struct scmi *s, int agent, const uint32_t *message, uint32_t bytes, uint32_t *reply);

/* Requests changed: notifies the agents that watch them, and reports lower levels to `lowered`. */
void scmi_changed(struct scmi *s, int agent);

void scmi_powercap_slot(struct scmi *s); /* once per control slot */
void scmi_sensor_slot(struct scmi *s);
void scmi_telemetry_slot(struct scmi *s);

/* ---- mailbox.c ---- */
bool mailbox_serve(struct scmi *s);      /* one command; true: another is waiting */
void mailbox_flush_events(struct scmi *s);

/* ---- fast_channel.c ---- */
void fast_channel_expired(struct scmi *s, int agent); /* a lease withdrew its requests */
void fast_channel_poll(struct scmi *s);
void fast_channel_refresh(struct scmi *s);
void fast_channel_moved(struct scmi *s, int agent); /* its window is another one: what lies there is no request */

#endif
