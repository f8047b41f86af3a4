/* Base protocol 0x10: vendor, protocols, agents and their permissions. */
#include "scmi_protocols.h"

#define TRUSTED_AGENT (AGENTS - 1) /* ours: the management controller sets permissions */

static const char *const agent_names[AGENTS + 1] = {"platform", "ospm", "runtime", "bmc"};
/* In the order of enum protocol, after BASE. */
static const uint8_t listed[] = {SCMI_SYSTEM, SCMI_PERFORMANCE, SCMI_CLOCK, SCMI_SENSOR, SCMI_POWERCAP, SCMI_TELEMETRY};
#define LISTED (sizeof listed)

static int32_t attributes(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, LISTED | AGENTS << 8);
    return SCMI_SUCCESS;
}

static int32_t vendor(struct scmi *s, struct call *c)
{
    (void)s;
    put_text(c, "nodectl", 16);
    return SCMI_SUCCESS;
}

static int32_t sub_vendor(struct scmi *s, struct call *c)
{
    (void)s;
    put_text(c, "controlpulp", 16);
    return SCMI_SUCCESS;
}

static int32_t implementation(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, FIRMWARE_BUILD_ID);
    return SCMI_SUCCESS;
}

static int32_t list_protocols(struct scmi *s, struct call *c)
{
    (void)s;
    uint32_t skip = c->in[0], word = 0;
    if (skip > LISTED)
        return SCMI_INVALID_PARAMETERS;
    put(c, LISTED - skip);
    for (uint32_t i = skip; i < LISTED; i++) { /* at most LISTED times */
        word |= (uint32_t)listed[i] << 8 * ((i - skip) % 4);
        if ((i - skip) % 4 == 3 || i == LISTED - 1) {
            put(c, word);
            word = 0;
        }
    }
    return SCMI_SUCCESS;
}

static int32_t discover_agent(struct scmi *s, struct call *c)
{
    (void)s;
    uint32_t id = c->in[0] == UINT32_MAX ? (uint32_t)c->agent + 1 : c->in[0];
    if (id > AGENTS)
        return SCMI_NOT_FOUND;
    put(c, id);
    put_text(c, agent_names[id], 16);
    return SCMI_SUCCESS;
}

static int32_t notify_errors(struct scmi *s, struct call *c)
{
    if (c->in[0] > 1)
        return SCMI_INVALID_PARAMETERS;
    s->error_watch[c->agent] = c->in[0];
    return SCMI_SUCCESS;
}

/* ---- permissions: agent, device, protocol ---- */

static int32_t permit(struct scmi *s, struct call *c, uint8_t protocols, uint32_t flags)
{
    uint32_t agent = c->in[0], device = c->in[1];
    if (c->agent != TRUSTED_AGENT)
        return SCMI_DENIED;
    if (agent < 1 || agent > AGENTS || device >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (flags > 1)
        return SCMI_INVALID_PARAMETERS;
    uint8_t *denied = &s->denied[agent - 1][device];
    *denied = flags ? *denied & (uint8_t)~protocols : *denied | protocols;
    if (!flags)
        scmi_drop_watches(s, (int)agent - 1, device, protocols);
    scmi_retry_refused(s);
    return SCMI_SUCCESS;
}

static int32_t set_device_permissions(struct scmi *s, struct call *c) { return permit(s, c, 0xff, c->in[2]); }

static int32_t set_protocol_permissions(struct scmi *s, struct call *c)
{
    uint32_t bit = 0;
    for (uint32_t i = 0; i < LISTED; i++)
        if (listed[i] == c->in[2])
            bit = 1u << (BASE + 1 + i);
    if (c->agent != TRUSTED_AGENT)
        return SCMI_DENIED;
    return bit ? permit(s, c, (uint8_t)bit, c->in[3]) : SCMI_NOT_FOUND;
}

/* Every agent may reset itself, which drops its requests, notifications and versions. Only the trusted agent restores
 * permissions. */
static int32_t reset_agent(struct scmi *s, struct call *c)
{
    uint32_t agent = c->in[0], flags = c->in[1];
    if (c->agent != TRUSTED_AGENT && (agent != (uint32_t)c->agent + 1 || flags & 1))
        return SCMI_DENIED;
    if (agent < 1 || agent > AGENTS)
        return SCMI_NOT_FOUND;
    if (flags > 1)
        return SCMI_INVALID_PARAMETERS;
    scmi_forget_agent(s, (int)agent - 1);
    fast_window_clear(s, (int)agent - 1);
    for (int device = 0; flags && device < POWER_DOMAINS; device++)
        s->denied[agent - 1][device] = 0;
    return SCMI_SUCCESS;
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .run = vendor},
    {.id = 0x4, .run = sub_vendor},
    {.id = 0x5, .run = implementation},
    {.id = 0x6, .in_words = 1, .run = list_protocols},
    {.id = 0x7, .in_words = 1, .run = discover_agent},
    {.id = 0x8, .in_words = 1, .run = notify_errors},
    {.id = 0x9, .in_words = 3, .run = set_device_permissions},
    {.id = 0xa, .in_words = 4, .run = set_protocol_permissions},
    {.id = 0xb, .in_words = 2, .run = reset_agent},
};

const struct protocol_table scmi_base = {
    .id = SCMI_BASE, .version = 0x20001, .older = {0x20000},
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
