/* Dispatch of SCMI commands to the tables of the protocols, and what is common to all of these: attributes, negotiation. */
#include "scmi_protocols.h"

static const struct protocol_table *const tables[PROTOCOLS] = {
    &scmi_base, &scmi_system, &scmi_performance, &scmi_clock, &scmi_sensor, &scmi_powercap, &scmi_telemetry,
};

#define HEADER_TYPE(h) ((h) >> 8 & 3u)
#define HEADER_PROTOCOL(h) ((h) >> 10 & 0xffu)
#define HEADER_TOKEN(h) ((h) >> 18 & 0x3ffu)
#define HEADER_RESERVED(h) ((h) >> 28)

/* ---- start ---- */

void scmi_init(struct scmi *s, struct firmware *fw, level_lowered *lowered)
{
    *s = (struct scmi){.fw = fw, .lowered = lowered};
    for (int i = 0; i < SENSORS; i++)
        s->sensor_config[i] = 1u | 0x1fu << 11 | 1u << 16; /* enabled, 1e-1 s */
    scmi_changed(s, PLATFORM_AGENT);
    for (int agent = 0; agent < AGENTS; agent++)
        fast_window_clear(s, agent);
}

/* ---- commands common to all protocols ---- */

static const struct command *find(const struct scmi *s, int agent, enum protocol p, uint32_t id)
{
    const struct protocol_table *table = tables[p];
    for (uint32_t i = 0; i < table->n_commands; i++) { /* at most 12 times */
        const struct command *command = &table->commands[i];
        if (command->id == id && !scmi_is_before(s, agent, p, command->since))
            return command;
    }
    return 0;
}

static int32_t message_attributes(const struct scmi *s, struct call *c, enum protocol p, uint32_t id)
{
    const struct command *command = find(s, c->agent, p, id);
    if (!command && id != 0 && id != 2 && id != 0x10)
        return SCMI_NOT_FOUND;
    put(c, command && command->has_fast_channel && fast_window_exists(s, c->agent));
    return SCMI_SUCCESS;
}

/* An agent that chose an older version may choose a newer one again: this message is in all of them. */
static int32_t negotiate(struct scmi *s, struct call *c, enum protocol p, uint32_t version)
{
    const struct protocol_table *table = tables[p];
    bool is_spoken = version == table->version;
    for (int i = 0; i < OLDER_VERSIONS; i++)
        is_spoken = is_spoken || (version && version == table->older[i]);
    if (!is_spoken)
        return SCMI_NOT_SUPPORTED;
    s->version[c->agent][p] = version;
    scmi_retry_refused(s);
    return SCMI_SUCCESS;
}

/* Discovery of a domain stays open, its state does not. A domain that does not exist is for the command to refuse. */
static bool is_denied(const struct scmi *s, const struct call *c, enum protocol p, const struct command *command)
{
    uint32_t about = c->in[0];
    if (command->about == CLUSTER)
        return about < DOMAINS && scmi_is_denied(s, c->agent, 1 + about, p);
    if (command->about == POWER_DOMAIN)
        return about < POWER_DOMAINS && scmi_is_denied(s, c->agent, about, p);
    return command->about == SENSOR_ID && about < SENSORS && scmi_is_denied(s, c->agent, scmi_sensor_device(about), p);
}

static int32_t run(struct scmi *s, struct call *c, enum protocol p, uint32_t id, uint32_t words)
{
    if (p != BASE && scmi_is_denied(s, c->agent, 0, p))
        return SCMI_DENIED;
    if (id == 0 || id == 2 || id == 0x10) {
        if (words != (id == 0 ? 0u : 1u))
            return SCMI_PROTOCOL_ERROR;
        if (id == 2)
            return message_attributes(s, c, p, c->in[0]);
        if (id == 0x10)
            return negotiate(s, c, p, c->in[0]);
        put(c, s->version[c->agent][p] ? s->version[c->agent][p] : tables[p]->version);
        return SCMI_SUCCESS;
    }
    const struct command *command = find(s, c->agent, p, id);
    if (!command)
        return SCMI_NOT_FOUND;
    if (words != command->in_words)
        return SCMI_PROTOCOL_ERROR;
    if (is_denied(s, c, p, command))
        return SCMI_DENIED;
    return command->run(s, c);
}

/* Reads header and payload, writes header, status and return values. Returns the number of bytes of the reply. */
uint32_t scmi_message(struct scmi *s, int agent, const uint32_t *message, uint32_t bytes, uint32_t *reply)
{
    uint32_t header = message[0], protocol = HEADER_PROTOCOL(header);
    struct call call = {.agent = agent, .token = HEADER_TOKEN(header), .in = message + 1};
    int32_t status = SCMI_NOT_SUPPORTED;
    s->commands++;
    s->fw->requests.of[agent].last_message_us = board_time_us(s->fw->board);
    if (HEADER_TYPE(header) != SCMI_COMMAND || HEADER_RESERVED(header) != 0 || bytes % 4 != 0)
        status = SCMI_PROTOCOL_ERROR;
    else
        for (int p = 0; p < PROTOCOLS; p++)
            if (tables[p]->id == protocol) {
                status = run(s, &call, (enum protocol)p, header & 0xff, bytes / 4 - 1);
                break;
            }
    if (status != SCMI_SUCCESS)
        call.out_words = 0;
    reply[0] = header;
    reply[1] = (uint32_t)status;
    for (uint32_t i = 0; i < call.out_words; i++) /* at most SCMI_REPLY_BYTES / 4 times */
        reply[2 + i] = call.out[i];
    return 8 + 4 * call.out_words;
}
