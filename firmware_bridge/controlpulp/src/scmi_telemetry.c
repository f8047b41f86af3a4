/*
 * Vendor protocol 0x80: status, reasons and leases, for which the standard has no messages.
 *
 * 0x3 STATUS         -> build id, control slots, merged releases (fast, control), i32 cap margin mW (package cap minus
 *                       expected power; 0x7fffffff without a cap), failed self-checks, bypasses, lost events of the
 *                       caller, transport errors, commands
 * 0x4 REASONS        u32 first core -> u32 cores in this reply, then u16 bitmaps (enum reason), two in a word
 * 0x5 LEASE_SET      u32 period ms (0: no lease), u32 package cap mW on expiry (0: the agent's caps are withdrawn)
 * 0x6 LEASE_GET      -> u32 period ms, u32 package cap mW on expiry
 * 0x7 LEASE_UNTIL    u32 end, ms of the controller's clock, u32 package cap mW from then on (0: cancels it)
 * 0x8 LEASE_LEFT     -> u32 the controller's clock in ms, u32 ms left (0: over, or none), u32 package cap mW (0: none)
 * 0x9 FAULTS         -> u32 contradictions of sensors now (enum guard_fault), u32 all since the start, u32 how often the
 *                       safe level began, u32 control slots that it still lasts (0: not in force)
 * 0xA FAULTS_NOTIFY  u32 bit 0 enable
 * Notification 0x0 FAULTS_CHANGED: u32 0 (the platform), u32 contradictions now, u32 1 while the safe level is in force
 *
 * SCMI caps stay until changed. An agent whose requests must not outlive it sets a lease of silence (LEASE_SET), which
 * any of its messages renews. On expiry its levels and limits are withdrawn, and its package cap becomes the lower of
 * its present cap and the agreed one. By default there is no lease (0).
 *
 * A lease of silence is not enough for an agent whose own cap is leased from a cluster: it may go on sending after that
 * lease has ended, and its messages may have been delayed since before the end. So LEASE_UNTIL sets an end on the
 * controller's clock. Only another LEASE_UNTIL moves it; one that arrives after the end that it names ends the lease at
 * once. From the end on the package cap is at most the agreed one, whatever the agent requests, until it sets another
 * lease or cancels this one (cap 0). Its levels and limits stay. A lease of silence is suspended meanwhile. The clock
 * starts with the controller, goes on while agents sleep, and wraps after 49 days.
 */
#include "scmi_protocols.h"

#define LEASE_MAX_MS 3600000

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
    for (uint32_t i = first; i < CORES; i += 2) /* at most CORES / 2 times */
        put(c, why[i] | (i + 1 < CORES ? (uint32_t)why[i + 1] << 16 : 0));
    return SCMI_SUCCESS;
}

static bool is_agreeable(uint32_t cap_mw)
{
    return cap_mw == 0 || (cap_mw >= (uint32_t)cap_min_mw(0) && cap_mw <= (uint32_t)cap_max_mw(0));
}

static int32_t lease_set(struct scmi *s, struct call *c)
{
    uint32_t cap = c->in[1];
    if (scmi_is_denied(s, c->agent, 0, TELEMETRY))
        return SCMI_DENIED;
    if (c->in[0] > LEASE_MAX_MS || !is_agreeable(cap))
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

static int32_t lease_until(struct scmi *s, struct call *c)
{
    uint64_t now_ms = board_time_us(s->fw->board) / 1000;
    int32_t left_ms = (int32_t)(c->in[0] - (uint32_t)now_ms);
    uint32_t cap = c->in[1];
    if (scmi_is_denied(s, c->agent, 0, TELEMETRY))
        return SCMI_DENIED;
    if (cap && (left_ms > LEASE_MAX_MS || !is_agreeable(cap)))
        return SCMI_OUT_OF_RANGE;
    uint64_t until_us = left_ms > 0 ? (now_ms + (uint32_t)left_ms) * 1000 : 0;
    requests_lease_until(&s->fw->requests, c->agent, until_us, (int32_t)(cap - cap % CAP_STEP_MW));
    scmi_changed(s, c->agent);
    return SCMI_SUCCESS;
}

static int32_t lease_left(struct scmi *s, struct call *c)
{
    const struct request *own = &s->fw->requests.of[c->agent];
    uint64_t now_us = board_time_us(s->fw->board);
    put(c, (uint32_t)(now_us / 1000));
    put(c, own->until_cap_mw && own->until_us > now_us ? (uint32_t)((own->until_us - now_us) / 1000) : 0);
    put(c, (uint32_t)own->until_cap_mw);
    return SCMI_SUCCESS;
}

/* ---- contradictions of sensors (guard.c) ---- */

static int32_t faults_get(struct scmi *s, struct call *c)
{
    const struct guard *guard = &s->fw->control.guard;
    put(c, guard->faults);
    put(c, guard->ever);
    put(c, guard->alarms);
    put(c, (uint32_t)guard->safe_slots);
    return SCMI_SUCCESS;
}

static int32_t faults_notify(struct scmi *s, struct call *c)
{
    if (c->in[0] > 1)
        return SCMI_INVALID_PARAMETERS;
    s->faults_watch[c->agent] = c->in[0];
    return SCMI_SUCCESS;
}

void scmi_telemetry_slot(struct scmi *s)
{
    const struct guard *guard = &s->fw->control.guard;
    bool is_safe = guard->safe_slots > 0;
    uint32_t words[3] = {0, guard->faults, is_safe};
    if (guard->faults == s->faults && is_safe == s->is_safe)
        return;
    s->faults = guard->faults;
    s->is_safe = is_safe;
    for (int agent = 0; agent < AGENTS; agent++)
        if (s->faults_watch[agent])
            scmi_notify(s, agent, SCMI_TELEMETRY, 0, words, 3);
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .run = status},
    {.id = 0x4, .in_words = 1, .run = reasons},
    {.id = 0x5, .in_words = 2, .run = lease_set},
    {.id = 0x6, .run = lease_get},
    {.id = 0x7, .in_words = 2, .run = lease_until},
    {.id = 0x8, .run = lease_left},
    {.id = 0x9, .run = faults_get},
    {.id = 0xa, .in_words = 1, .run = faults_notify},
};

const struct protocol_table scmi_telemetry = {
    .id = SCMI_TELEMETRY, .version = 0x10000,
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
