/*
 * The SCMI platform (Arm DEN0056): base, performance, sensor, power capping, and a vendor protocol for telemetry.
 *
 * An agent is its channel: nothing that a message or a register says about its sender is believed. Every command gets
 * one response. Checks run in the order of the reference platform: size, permission, domain, flags, capability, range.
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
    SCMI_PERFORMANCE = 0x13,
    SCMI_SENSOR = 0x15,
    SCMI_POWERCAP = 0x18,
    SCMI_TELEMETRY = 0x80,
};
enum protocol { BASE, PERFORMANCE, SENSOR, POWERCAP, TELEMETRY, PROTOCOLS };

/* ---- one command ---- */

struct scmi;
struct call {
    int agent;
    uint32_t token;
    const uint32_t *in;
    uint32_t out[SMT_PAYLOAD_WORDS];
    uint32_t out_words; /* after the status */
};

struct command {
    uint32_t id;
    uint32_t in_words;
    int32_t (*run)(struct scmi *s, struct call *c);
    bool is_newer_only;    /* absent from the older version */
    bool has_fast_channel;
};

struct protocol_table {
    uint32_t id, version, older_version;
    const struct command *commands;
    uint32_t n_commands;
};

extern const struct protocol_table scmi_base, scmi_performance, scmi_sensor, scmi_powercap, scmi_telemetry;

void put(struct call *c, uint32_t word);
void put_text(struct call *c, const char *text, uint32_t bytes);
void put_number(char *text, const char *prefix, int number); /* "domain-" and 2: "domain-2" */

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

struct scmi {
    struct firmware *fw;
    bool is_older[AGENTS][PROTOCOLS];
    uint8_t denied[AGENTS][POWER_DOMAINS]; /* bit per protocol; device 0 the package, 1..4 the voltage domains */
    bool error_watch[AGENTS];
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
    uint32_t fast_seen[AGENTS][FAST_WORDS];
    uint32_t next_channel;
    uint32_t commands, transport_errors, spurious_doorbells;
};

void scmi_init(struct scmi *s, struct firmware *fw);
void scmi_forget_agent(struct scmi *s, int agent);
uint32_t scmi_message(struct scmi *s, int agent, const uint32_t *message, uint32_t bytes, uint32_t *reply);
bool scmi_is_denied(const struct scmi *s, int agent, uint32_t device, enum protocol protocol);

/* Requests changed: announce what follows, apply lower levels ahead of the control slot. */
void scmi_changed(struct scmi *s, int agent);
void scmi_notify(struct scmi *s, int agent, uint32_t protocol, uint32_t id, const uint32_t *words, uint32_t n);
void scmi_delayed(struct scmi *s, int agent, uint32_t protocol, uint32_t id, uint32_t token, const uint32_t *words,
                  uint32_t n);

int32_t scmi_set_level(struct scmi *s, int agent, uint32_t domain, uint32_t level);
int32_t scmi_set_limits(struct scmi *s, int agent, uint32_t domain, uint32_t max, uint32_t min);
int32_t scmi_set_cap(struct scmi *s, int agent, uint32_t power_domain, uint32_t cap_mw);
int32_t scmi_set_pai(struct scmi *s, int agent, uint32_t power_domain, uint32_t pai_us);

void scmi_powercap_slot(struct scmi *s); /* once per control slot */
void scmi_sensor_slot(struct scmi *s);

/* ---- mailbox.c ---- */
bool mailbox_serve(struct scmi *s);      /* one command; true: another is waiting */
void mailbox_flush_events(struct scmi *s);

/* ---- fast_channel.c ---- */
enum fast_word { FAST_LEVEL_SET, FAST_LEVEL_GET, FAST_LIMITS_SET, FAST_LIMITS_GET = 4 };
enum fast_cap_word { FAST_CAP_SET, FAST_CAP_GET, FAST_PAI_SET, FAST_PAI_GET };
uint32_t fast_level_word(uint32_t domain, enum fast_word word);
uint32_t fast_cap_word(uint32_t power_domain, enum fast_cap_word word);
bool scmi_has_fast_channels(const struct scmi *s, int agent);
void fast_channel_poll(struct scmi *s);
void fast_channel_refresh(struct scmi *s);
int32_t fast_channel_describe(struct scmi *s, struct call *c, uint32_t word, uint32_t bytes);

#endif
