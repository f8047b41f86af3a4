/*
 * What a protocol may use: its command and reply, notifications, permissions and the agents' FastChannel windows.
 *
 * A protocol (scmi_base.c ... scmi_telemetry.c) includes this header and fills a table of commands (scmi_protocols.h).
 * It reads the controller's state through `s->fw`, and calls neither the dispatcher (scmi.c) nor another protocol.
 */
#ifndef SCMI_SERVICE_H
#define SCMI_SERVICE_H

#include "firmware.h"

/* ---- one command ---- */

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
    uint32_t since;        /* the first version that has it */
    bool has_fast_channel;
    enum { NO_DEVICE, CLUSTER, POWER_DOMAIN, SENSOR_ID } about; /* whose permission it needs: its first parameter */
};

#define OLDER_VERSIONS 3

struct protocol_table {
    uint32_t id, version, older[OLDER_VERSIONS];
    const struct command *commands;
    uint32_t n_commands;
};

void put(struct call *c, uint32_t word);
void put_text(struct call *c, const char *text, uint32_t bytes);
void put_number(char *text, const char *prefix, int number); /* "domain-" and 2: "domain-2" */

/* ---- agents ---- */

/* Whether an agent speaks a version of a protocol that is older than this one. */
bool scmi_is_before(const struct scmi *s, int agent, enum protocol protocol, uint32_t version);

/* Who is denied device 0, the package, is denied the whole protocol. */
bool scmi_is_denied(const struct scmi *s, int agent, uint32_t device, enum protocol protocol);
uint32_t scmi_sensor_device(uint32_t sensor);
void scmi_drop_watches(struct scmi *s, int agent, uint32_t device, uint32_t protocols); /* bit per protocol */
void scmi_forget_agent(struct scmi *s, int agent); /* its requests, notifications and versions */

/* ---- notifications and delayed responses: queued here, sent by mailbox.c ---- */

void scmi_notify(struct scmi *s, int agent, uint32_t protocol, uint32_t id, const uint32_t *words, uint32_t n);
void scmi_delayed(struct scmi *s, int agent, uint32_t protocol, uint32_t id, uint32_t token, const uint32_t *words,
                  uint32_t n);

/* ---- words that agents write instead of messages (fast_channel.c) ---- */

#define FAST_EMPTY UINT32_MAX /* in a word that requests: nothing is requested; no request has this value */

/* A request that came by a word was replaced or withdrawn by other means: the next write shows, whatever its value. */
void scmi_forget_words(struct scmi *s, int agent, uint32_t first, uint32_t words);
void scmi_refuse_word(struct scmi *s, int agent, uint32_t word);
/* As scmi_changed, where an agent has changed what it requests of one domain. */
void scmi_level_changed(struct scmi *s, int agent, uint32_t domain);
void scmi_cap_changed(struct scmi *s, int agent, uint32_t power_domain);
void scmi_retry_refused(struct scmi *s); /* what is allowed has changed */

/* ---- fast_window.c: which word of an agent's window is what ---- */

#define LEVEL_WORDS 6 /* of a domain: set, get, limits set (max, min), limits get (max, min) */
#define CAP_WORDS 4   /* of a power domain: cap set, cap get, PAI set, PAI get */
enum fast_word { FAST_LEVEL_SET, FAST_LEVEL_GET, FAST_LIMITS_SET, FAST_LIMITS_GET = 4 };
enum fast_cap_word { FAST_CAP_SET, FAST_CAP_GET, FAST_PAI_SET, FAST_PAI_GET };
uint32_t fast_level_word(uint32_t domain, enum fast_word word);
uint32_t fast_cap_word(uint32_t power_domain, enum fast_cap_word word);
bool fast_window_exists(const struct scmi *s, int agent);
void fast_window_clear(struct scmi *s, int agent); /* all words that request */
int32_t fast_window_describe(struct scmi *s, struct call *c, uint32_t word, uint32_t bytes);

#endif
