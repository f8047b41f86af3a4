/*
 * Power capping protocol 0x18: the package and, below it, the four voltage domains. Caps and measurements in milliwatts.
 *
 * Several agents may cap a domain; the lowest cap is in force. CAP_GET reports the cap in force, rounded down to the
 * step. Setting a cap on a domain without one enables capping; 0 withdraws the agent's own cap.
 */
#include "scmi_protocols.h"

#define SUSTAINABLE_MW 250000 /* ours: the power at which the emulated cooling keeps 80 C */
#define ACCURACY_PERCENT 3
#define ASYNC 2u
#define SILENT 1u
#define APPLIED_SLOTS 2       /* the next control job decides, the one after it applies */

static int32_t attributes(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, POWER_DOMAINS);
    return SCMI_SUCCESS;
}

static void name_of(char *name, const char *package, const char *prefix, uint32_t domain)
{
    if (domain)
        put_number(name, prefix, (int)domain - 1);
    else
        while ((*name++ = *package++) != 0) /* at most 16 times */
            ;
}

static int32_t domain_attributes(struct scmi *s, struct call *c)
{
    char name[16];
    uint32_t p = c->in[0];
    if (p >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    uint32_t fast = scmi_is_before(s, c->agent, POWERCAP, 0x20000) || !fast_window_exists(s, c->agent) ? 0 : 1u << 22;
    name_of(name, "package", "cluster-", p);
    put(c, 1u << 31 | 1u << 30 | 1u << 29 | 1u << 28 | 1u << 27 | 1u << 26 | 1u << 25 | 2u << 23 | fast);
    put_text(c, name, 16);
    put(c, PAI_STEP_US);
    put(c, PAI_MAX_US);
    put(c, PAI_STEP_US);
    put(c, (uint32_t)cap_min_mw((int)p));
    put(c, (uint32_t)cap_max_mw((int)p));
    put(c, CAP_STEP_MW);
    put(c, p ? SUSTAINABLE_MW / DOMAINS : SUSTAINABLE_MW);
    put(c, ACCURACY_PERCENT);
    put(c, p ? 0 : UINT32_MAX);
    return SCMI_SUCCESS;
}

/* ---- caps ---- */

static int32_t cap_get(struct scmi *s, struct call *c)
{
    if (c->in[0] >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    put(c, (uint32_t)s->cap_mw[c->in[0]]);
    return SCMI_SUCCESS;
}

int32_t scmi_set_cap(struct scmi *s, int agent, uint32_t p, uint32_t cap_mw)
{
    if (p >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, agent, p, POWERCAP))
        return SCMI_DENIED;
    bool disables = cap_mw == 0 && !scmi_is_before(s, agent, POWERCAP, 0x20000);
    if (!disables && (cap_mw < (uint32_t)cap_min_mw((int)p) || cap_mw > (uint32_t)cap_max_mw((int)p)))
        return SCMI_OUT_OF_RANGE;
    s->fw->requests.of[agent].cap_mw[p] = (int32_t)(cap_mw - cap_mw % CAP_STEP_MW);
    scmi_cap_changed(s, agent, p);
    return SCMI_SUCCESS;
}

static int32_t cap_set(struct scmi *s, struct call *c)
{
    uint32_t p = c->in[0], flags = c->in[1];
    if (p >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, c->agent, p, POWERCAP))
        return SCMI_DENIED;
    if (flags & ~(ASYNC | SILENT))
        return SCMI_INVALID_PARAMETERS;
    struct delayed_cap *delayed = &s->delayed[c->agent][p];
    if (delayed->is_pending)
        return SCMI_BUSY;
    int32_t status = scmi_set_cap(s, c->agent, p, c->in[2]);
    if (status == SCMI_SUCCESS)
        scmi_forget_words(s, c->agent, fast_cap_word(p, FAST_CAP_SET), 1);
    if (status == SCMI_SUCCESS && flags & ASYNC)
        *delayed = (struct delayed_cap){.is_pending = true, .is_silent = flags & SILENT, .token = c->token,
                                        .due_slot = s->fw->slots + APPLIED_SLOTS};
    return status;
}

/* ---- averaging interval: one per domain, the last writer's ---- */

static int32_t pai_get(struct scmi *s, struct call *c)
{
    if (c->in[0] >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    put(c, (uint32_t)s->pai_us[c->in[0]]);
    return SCMI_SUCCESS;
}

int32_t scmi_set_pai(struct scmi *s, int agent, uint32_t p, uint32_t pai_us)
{
    if (p >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, agent, p, POWERCAP))
        return SCMI_DENIED;
    if (pai_us < PAI_STEP_US || pai_us > PAI_MAX_US)
        return SCMI_OUT_OF_RANGE;
    s->fw->requests.pai_us[p] = (int32_t)(pai_us - pai_us % PAI_STEP_US);
    scmi_cap_changed(s, agent, p);
    return SCMI_SUCCESS;
}

static int32_t pai_set(struct scmi *s, struct call *c)
{
    if (c->in[0] >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, c->agent, c->in[0], POWERCAP))
        return SCMI_DENIED;
    if (c->in[1])
        return SCMI_INVALID_PARAMETERS;
    int32_t status = scmi_set_pai(s, c->agent, c->in[0], c->in[2]);
    for (int agent = 0; status == SCMI_SUCCESS && agent < AGENTS; agent++)
        scmi_forget_words(s, agent, fast_cap_word(c->in[0], FAST_PAI_SET), 1);
    return status;
}

/* ---- measurements ---- */

static int32_t domain_name(struct scmi *s, struct call *c)
{
    char name[32];
    (void)s;
    if (c->in[0] >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    name_of(name, "package", "voltage domain ", c->in[0]);
    put(c, 0);
    put_text(c, name, 64);
    return SCMI_SUCCESS;
}

static int32_t measurements_get(struct scmi *s, struct call *c)
{
    uint32_t p = c->in[0];
    if (p >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (s->fw->meter.filled && s->fw->meter.slot_uw[p] == SENSOR_FAULT)
        return SCMI_HARDWARE_ERROR;
    put(c, (uint32_t)meter_average_mw(&s->fw->meter, (int)p, s->pai_us[p]));
    put(c, (uint32_t)s->pai_us[p]);
    return SCMI_SUCCESS;
}

static int32_t cap_notify(struct scmi *s, struct call *c)
{
    if (c->in[0] >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (c->in[1] > 1)
        return SCMI_INVALID_PARAMETERS;
    s->cap_watch[c->agent][c->in[0]] = c->in[1];
    return SCMI_SUCCESS;
}

static int32_t measurements_notify(struct scmi *s, struct call *c)
{
    if (c->in[0] >= POWER_DOMAINS)
        return SCMI_NOT_FOUND;
    if (c->in[1] > 1 || c->in[2] > c->in[3])
        return SCMI_INVALID_PARAMETERS;
    s->measure[c->agent][c->in[0]] = (struct measure_watch){
        .is_on = c->in[1], .was_inside = true, .low_mw = c->in[2], .high_mw = c->in[3], .next_slot = s->fw->slots};
    return SCMI_SUCCESS;
}

static int32_t describe_fast_channel(struct scmi *s, struct call *c)
{
    static const uint8_t words[4] = {FAST_CAP_GET, FAST_CAP_SET, FAST_PAI_GET, FAST_PAI_SET};
    if (c->in[0] >= POWER_DOMAINS || c->in[1] > 0xc)
        return SCMI_NOT_FOUND;
    if (c->in[1] < 4 || c->in[1] > 7)
        return SCMI_NOT_SUPPORTED;
    return fast_window_describe(s, c, fast_cap_word(c->in[0], words[c->in[1] - 4]), 4);
}

/* ---- once per control slot ---- */

static void complete_delayed(struct scmi *s, int agent, uint32_t p)
{
    struct delayed_cap *delayed = &s->delayed[agent][p];
    if (!delayed->is_pending || (int32_t)(s->fw->slots - delayed->due_slot) < 0)
        return;
    uint32_t words[3] = {SCMI_SUCCESS, p, (uint32_t)s->cap_mw[p]};
    delayed->is_pending = false;
    if (!delayed->is_silent)
        scmi_delayed(s, agent, SCMI_POWERCAP, 0x5, delayed->token, words, 3);
}

/* Notifies when the average leaves the band, and again once it has been back inside; low = high = 0: once per interval.
 * */
static void watch_measurement(struct scmi *s, int agent, uint32_t p)
{
    struct measure_watch *w = &s->measure[agent][p];
    if (!w->is_on || (int32_t)(s->fw->slots - w->next_slot) < 0)
        return;
    uint32_t power = (uint32_t)meter_average_mw(&s->fw->meter, (int)p, s->pai_us[p]);
    bool is_every = w->low_mw == 0 && w->high_mw == 0;
    bool is_inside = power >= w->low_mw && power <= w->high_mw;
    uint32_t words[3] = {0, p, power};
    if (is_every || (!is_inside && w->was_inside))
        scmi_notify(s, agent, SCMI_POWERCAP, 1, words, 3);
    w->was_inside = is_inside;
    w->next_slot = s->fw->slots + (is_every ? (uint32_t)s->pai_us[p] / SLOT_US : 1);
}

void scmi_powercap_slot(struct scmi *s)
{
    for (int agent = 0; agent < AGENTS; agent++)
        for (uint32_t p = 0; p < POWER_DOMAINS; p++) {
            complete_delayed(s, agent, p);
            watch_measurement(s, agent, p);
        }
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .in_words = 1, .run = domain_attributes},
    {.id = 0x4, .in_words = 1, .run = cap_get, .has_fast_channel = true, .about = POWER_DOMAIN},
    {.id = 0x5, .in_words = 3, .run = cap_set, .has_fast_channel = true, .about = POWER_DOMAIN},
    {.id = 0x6, .in_words = 1, .run = pai_get, .has_fast_channel = true, .about = POWER_DOMAIN},
    {.id = 0x7, .in_words = 3, .run = pai_set, .has_fast_channel = true, .about = POWER_DOMAIN},
    {.id = 0x8, .in_words = 1, .run = domain_name},
    {.id = 0x9, .in_words = 1, .run = measurements_get, .about = POWER_DOMAIN},
    {.id = 0xa, .in_words = 2, .run = cap_notify, .about = POWER_DOMAIN},
    {.id = 0xb, .in_words = 4, .run = measurements_notify, .about = POWER_DOMAIN},
    {.id = 0xc, .in_words = 2, .run = describe_fast_channel},
};

const struct protocol_table scmi_powercap = {
    .id = SCMI_POWERCAP, .version = 0x20000, .older = {0x10000},
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
