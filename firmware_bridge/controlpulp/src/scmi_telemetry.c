/*
 * Vendor protocol 0x80: what the standard has no message for.
 *
 * 0x3 STATUS         -> build id, control slots, merged releases (fast, control), i32 cap margin mW (package cap minus
 *                       expected power; 0x7fffffff without a cap), failed self-checks, bypasses, lost events of the
 *                       caller, transport errors, commands
 * 0x4 REASONS        u32 first core -> u32 cores in this reply, then u16 bitmaps (enum reason), two in a word
 * 0x5 LEASE_SET      u32 period ms (0: no lease), u32 package cap mW on expiry (0: the agent's caps are withdrawn)
 * 0x6 LEASE_GET      -> u32 period ms, u32 package cap mW on expiry
 *
 * SCMI caps stay until changed. An agent that prefers its requests to end with it sets a lease; any of its messages
 * renews it. On expiry its levels and limits are withdrawn and its package cap becomes the lower of the one in force
 * and the agreed one. Off (0) until set.
 */
#include "firmware.h"

#define LEASE_MAX_MS 3600000u

static int32_t attributes(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, CORES | DOMAINS << 8);
    return SCMI_SUCCESS;
}

static int32_t status(struct scmi *s, struct call *c)
{
    const struct firmware *fw = s->fw;
    put(c, FIRMWARE_BUILD_ID);
    put(c, fw->slots);
    put(c, fw->executive.overruns[JOB_FAST]);
    put(c, fw->executive.overruns[JOB_CONTROL]);
    put(c, (uint32_t)(fw->control.margin_uw == INT32_MAX ? INT32_MAX : fw->control.margin_uw / 1000));
    put(c, fw->failed_checks);
    put(c, fw->bypasses);
    put(c, s->queue[c->agent].lost);
    put(c, s->transport_errors);
    put(c, s->commands);
    return SCMI_SUCCESS;
}

static int32_t reasons(struct scmi *s, struct call *c)
{
    const uint16_t *why = s->fw->control.reasons;
    uint32_t first = c->in[0];
    if (first >= CORES)
        return SCMI_OUT_OF_RANGE;
    put(c, CORES - first);
    for (uint32_t i = first; i < CORES; i += 2)
        put(c, why[i] | (i + 1 < CORES ? (uint32_t)why[i + 1] << 16 : 0));
    return SCMI_SUCCESS;
}

static int32_t lease_set(struct scmi *s, struct call *c)
{
    uint32_t cap = c->in[1];
    if (scmi_is_denied(s, c->agent, 0, TELEMETRY))
        return SCMI_DENIED;
    if (c->in[0] > LEASE_MAX_MS)
        return SCMI_OUT_OF_RANGE;
    if (cap && (cap < (uint32_t)cap_min_mw(0) || cap > (uint32_t)cap_max_mw(0)))
        return SCMI_OUT_OF_RANGE;
    s->fw->requests.of[c->agent].lease_ms = c->in[0];
    s->fw->requests.of[c->agent].lease_cap_mw = cap - cap % CAP_STEP_MW;
    return SCMI_SUCCESS;
}

static int32_t lease_get(struct scmi *s, struct call *c)
{
    put(c, s->fw->requests.of[c->agent].lease_ms);
    put(c, s->fw->requests.of[c->agent].lease_cap_mw);
    return SCMI_SUCCESS;
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .run = status},
    {.id = 0x4, .in_words = 1, .run = reasons},
    {.id = 0x5, .in_words = 2, .run = lease_set},
    {.id = 0x6, .run = lease_get},
};

const struct protocol_table scmi_telemetry = {
    .id = SCMI_TELEMETRY, .version = 0x10000, .older_version = 0,
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
