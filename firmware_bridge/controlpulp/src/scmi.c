/* Dispatch of SCMI commands, negotiation, permissions and the queue of events. */
#include "firmware.h"

static const struct protocol_table *const tables[PROTOCOLS] = {
    &scmi_base, &scmi_performance, &scmi_sensor, &scmi_powercap, &scmi_telemetry,
};

#define HEADER_TYPE(h) ((h) >> 8 & 3u)
#define HEADER_PROTOCOL(h) ((h) >> 10 & 0xffu)
#define HEADER_TOKEN(h) ((h) >> 18 & 0x3ffu)
#define HEADER_RESERVED(h) ((h) >> 28)

/* ---- writing a response ---- */

void put(struct call *c, uint32_t word)
{
    if (c->out_words < SCMI_REPLY_BYTES / 4 - 1)
        c->out[c->out_words++] = word;
}

/* A fixed field, padded with zeros, always terminated. */
void put_text(struct call *c, const char *text, uint32_t bytes)
{
    uint32_t length = 0;
    while (length < bytes - 1 && text[length])
        length++;
    for (uint32_t at = 0; at < bytes; at += 4) {
        uint32_t word = 0;
        for (uint32_t i = 0; i < 4 && at + i < length; i++)
            word |= (uint32_t)(uint8_t)text[at + i] << 8 * i;
        put(c, word);
    }
}

void put_number(char *text, const char *prefix, int number)
{
    while (*prefix)
        *text++ = *prefix++;
    *text++ = (char)('0' + number);
    *text = 0;
}

/* ---- events ---- */

static void enqueue(struct scmi *s, int agent, uint32_t header, const uint32_t *words, uint32_t n)
{
    struct event_queue *queue = &s->queue[agent];
    if (queue->count == EVENT_QUEUE) {
        queue->lost++; /* every event can be read again by a GET */
        return;
    }
    struct event *event = &queue->event[(queue->head + queue->count++) % EVENT_QUEUE];
    event->words = 1 + n;
    event->word[0] = header;
    for (uint32_t i = 0; i < n; i++)
        event->word[1 + i] = words[i];
}

void scmi_notify(struct scmi *s, int agent, uint32_t protocol, uint32_t id, const uint32_t *words, uint32_t n)
{
    enqueue(s, agent, id | SCMI_NOTIFICATION << 8 | protocol << 10, words, n);
}

void scmi_delayed(struct scmi *s, int agent, uint32_t protocol, uint32_t id, uint32_t token, const uint32_t *words,
                  uint32_t n)
{
    enqueue(s, agent, id | SCMI_DELAYED << 8 | protocol << 10 | token << 18, words, n);
}

/* ---- what follows from changed requests ---- */

static void levels_changed(struct scmi *s, int agent, uint32_t d)
{
    const struct requests *r = &s->fw->requests;
    int32_t level = requests_level(r, (int)d), max = requests_limit_max(r, (int)d), min = requests_limit_min(r, (int)d);
    bool is_level_new = level != s->level_khz[d], is_lower = level < s->level_khz[d];
    bool is_limit_new = max != s->limit_max_khz[d] || min != s->limit_min_khz[d];
    s->level_khz[d] = level;
    s->limit_max_khz[d] = max;
    s->limit_min_khz[d] = min;
    for (int a = 0; a < AGENTS; a++) {
        uint32_t limits[4] = {(uint32_t)(agent + 1), d, (uint32_t)max, (uint32_t)min};
        uint32_t levels[3] = {(uint32_t)(agent + 1), d, (uint32_t)level};
        if (is_limit_new && s->limits_watch[a][d])
            scmi_notify(s, a, SCMI_PERFORMANCE, 0, limits, 4);
        if (is_level_new && s->level_watch[a][d])
            scmi_notify(s, a, SCMI_PERFORMANCE, 1, levels, 3);
    }
    if (is_lower)
        firmware_level_lowered(s->fw, (int)d);
}

static void cap_changed(struct scmi *s, int agent, uint32_t p)
{
    int32_t cap = requests_cap_mw(&s->fw->requests, (int)p), pai = s->fw->requests.pai_us[p];
    if (cap == s->cap_mw[p] && pai == s->pai_us[p])
        return;
    s->cap_mw[p] = cap;
    s->pai_us[p] = pai;
    uint32_t words[4] = {(uint32_t)(agent + 1), p, (uint32_t)cap, (uint32_t)pai};
    for (int a = 0; a < AGENTS; a++)
        if (s->cap_watch[a][p])
            scmi_notify(s, a, SCMI_POWERCAP, 0, words, 4);
}

void scmi_changed(struct scmi *s, int agent)
{
    for (uint32_t d = 0; d < DOMAINS; d++)
        levels_changed(s, agent, d);
    for (uint32_t p = 0; p < POWER_DOMAINS; p++)
        cap_changed(s, agent, p);
}

/* ---- start ---- */

void scmi_init(struct scmi *s, struct firmware *fw)
{
    *s = (struct scmi){.fw = fw};
    for (int i = 0; i < SENSORS; i++)
        s->sensor_config[i] = 1u | 0x1fu << 11 | 1u << 16; /* enabled, 1e-1 s */
    scmi_changed(s, PLATFORM_AGENT);
}

void scmi_forget_agent(struct scmi *s, int agent)
{
    for (int p = 0; p < PROTOCOLS; p++)
        s->is_older[agent][p] = false;
    s->error_watch[agent] = false;
    for (int d = 0; d < DOMAINS; d++)
        s->limits_watch[agent][d] = s->level_watch[agent][d] = s->trip_watch[agent][d] = false;
    for (int p = 0; p < POWER_DOMAINS; p++) {
        s->cap_watch[agent][p] = false;
        s->measure[agent][p] = (struct measure_watch){0};
        s->delayed[agent][p] = (struct delayed_cap){0};
    }
    for (int i = 0; i < SENSORS; i++)
        s->update_watch[agent][i] = false;
    requests_forget(&s->fw->requests, agent);
    scmi_changed(s, agent);
}

bool scmi_is_denied(const struct scmi *s, int agent, uint32_t device, enum protocol protocol)
{
    return s->denied[agent][device] >> protocol & 1u;
}

/* ---- commands common to all protocols ---- */

static const struct command *find(const struct scmi *s, int agent, enum protocol p, uint32_t id)
{
    const struct protocol_table *table = tables[p];
    for (uint32_t i = 0; i < table->n_commands; i++) {
        const struct command *command = &table->commands[i];
        if (command->id == id && !(command->is_newer_only && s->is_older[agent][p]))
            return command;
    }
    return 0;
}

static int32_t message_attributes(const struct scmi *s, struct call *c, enum protocol p, uint32_t id)
{
    const struct command *command = find(s, c->agent, p, id);
    if (!command && id != 0 && id != 2 && id != 0x10)
        return SCMI_NOT_FOUND;
    put(c, command && command->has_fast_channel && scmi_has_fast_channels(s, c->agent));
    return SCMI_SUCCESS;
}

/* An agent that went down to the older version may come up again: the message itself stays. */
static int32_t negotiate(struct scmi *s, struct call *c, enum protocol p, uint32_t version)
{
    const struct protocol_table *table = tables[p];
    if (version != table->version && (version != table->older_version || version == 0))
        return SCMI_NOT_SUPPORTED;
    s->is_older[c->agent][p] = version != table->version;
    return SCMI_SUCCESS;
}

static int32_t run(struct scmi *s, struct call *c, enum protocol p, uint32_t id, uint32_t words)
{
    if (id == 0 || id == 2 || id == 0x10) {
        if (words != (id == 0 ? 0u : 1u))
            return SCMI_PROTOCOL_ERROR;
        if (id == 2)
            return message_attributes(s, c, p, c->in[0]);
        if (id == 0x10)
            return negotiate(s, c, p, c->in[0]);
        put(c, s->is_older[c->agent][p] ? tables[p]->older_version : tables[p]->version);
        return SCMI_SUCCESS;
    }
    const struct command *command = find(s, c->agent, p, id);
    if (!command)
        return SCMI_NOT_FOUND;
    if (words != command->in_words)
        return SCMI_PROTOCOL_ERROR;
    return command->run(s, c);
}

/* Header and payload in, header, status and returns out; the number of bytes of the reply. */
uint32_t scmi_message(struct scmi *s, int agent, const uint32_t *message, uint32_t bytes, uint32_t *reply)
{
    uint32_t header = message[0], protocol = HEADER_PROTOCOL(header);
    struct call call = {.agent = agent, .token = HEADER_TOKEN(header), .in = message + 1};
    int32_t status = SCMI_NOT_SUPPORTED;
    s->commands++;
    s->fw->requests.of[agent].heard_us = board_time_us(s->fw->board);
    if (HEADER_TYPE(header) != SCMI_COMMAND || HEADER_RESERVED(header) != 0 || bytes % 4 != 0)
        status = SCMI_PROTOCOL_ERROR;
    else
        for (int p = 0; p < PROTOCOLS; p++)
            if (tables[p]->id == protocol)
                status = run(s, &call, (enum protocol)p, header & 0xff, bytes / 4 - 1);
    if (status != SCMI_SUCCESS)
        call.out_words = 0;
    reply[0] = header;
    reply[1] = (uint32_t)status;
    for (uint32_t i = 0; i < call.out_words; i++)
        reply[2 + i] = call.out[i];
    return 8 + 4 * call.out_words;
}
