/*
 * Performance protocol 0x13: four domains, 17 levels in kHz. A domain is nine cores on one voltage rail; a level
 * applies to all of them.
 */
#include "scmi_protocols.h"

#define LATENCY_US (2 * SLOT_US) /* worst from response to clock: next control slot, applied one slot later */
#define HEAVY_FF 2038519         /* class 3 of the published power model, for the levels' power cost */
#define ENTRIES 6                /* of 20 bytes, in 128 */
#define OLDER_ENTRIES 10         /* of 12 bytes */

static int32_t attributes(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, DOMAINS | 1u << 16); /* cost in mW */
    for (int i = 0; i < 3; i++)
        put(c, 0);
    return SCMI_SUCCESS;
}

static int32_t domain_attributes(struct scmi *s, struct call *c)
{
    char name[16];
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    bool may_set = !scmi_is_denied(s, c->agent, 1 + c->in[0], PERFORMANCE);
    uint32_t fast = fast_window_exists(s, c->agent) ? 1u << 27 : 0;
    uint32_t name_bit = scmi_is_before(s, c->agent, PERFORMANCE, 0x30000) ? 0 : 1u << 26;
    put_number(name, "cluster-", (int)c->in[0]);
    put(c, (may_set ? 3u << 30 : 0) | 1u << 29 | 1u << 28 | fast | name_bit);
    put(c, 0); /* no rate limit */
    put(c, FREQ_MAX_KHZ); /* sustained is the highest: clients would hide levels above it as boost */
    put(c, FREQ_MAX_KHZ);
    put_text(c, name, 16);
    return SCMI_SUCCESS;
}

/* Nine busy cores of the heaviest class at 80 C. */
static uint32_t power_cost_mw(int32_t khz)
{
    int32_t level = chip_level_for(khz);
    int32_t core = chip_dynamic_uw(HEAVY_FF, khz, level) + chip_leak_uw(chip_leak_factor_q16(353150), level);
    return (uint32_t)(core / 1000 * DOMAIN_CORES);
}

static int32_t describe_levels(struct scmi *s, struct call *c)
{
    bool is_older = scmi_is_before(s, c->agent, PERFORMANCE, 0x40000);
    uint32_t first = c->in[1], count = is_older ? OLDER_ENTRIES : ENTRIES;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    if (first >= LEVEL_COUNT)
        return SCMI_INVALID_PARAMETERS;
    if (count > LEVEL_COUNT - first)
        count = LEVEL_COUNT - first;
    put(c, count | (LEVEL_COUNT - first - count) << 16);
    for (uint32_t i = first; i < first + count; i++) { /* at most LEVEL_COUNT times */
        uint32_t khz = (uint32_t)level_khz((int32_t)i);
        put(c, khz);
        put(c, power_cost_mw((int32_t)khz));
        put(c, LATENCY_US);
        if (!is_older) {
            put(c, khz);
            put(c, i);
        }
    }
    return SCMI_SUCCESS;
}

/* ---- limits ---- */

static bool is_beyond_clocks(uint32_t khz)
{
    return khz && (khz < FREQ_MIN_KHZ || khz > FREQ_MAX_KHZ);
}

/* Whether a limit that must be given is 0: one of the two, before v3 both. */
static bool is_missing(const struct scmi *s, int agent, uint32_t max, uint32_t min)
{
    return scmi_is_before(s, agent, PERFORMANCE, 0x30000) ? max == 0 || min == 0 : max == 0 && min == 0;
}

/* Zero leaves a limit unchanged (before v3: is out of range). A limit between two levels is rounded down to the lower one. */
int32_t scmi_set_limits(struct scmi *s, int agent, uint32_t domain, uint32_t max, uint32_t min)
{
    if (domain >= DOMAINS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, agent, 1 + domain, PERFORMANCE))
        return SCMI_DENIED;
    struct request *own = &s->fw->requests.of[agent];
    uint32_t top = max ? max : (uint32_t)own->limit_max_khz[domain];
    uint32_t bottom = min ? min : (uint32_t)own->limit_min_khz[domain];
    if (is_missing(s, agent, max, min) || is_beyond_clocks(max) || is_beyond_clocks(min))
        return SCMI_OUT_OF_RANGE;
    if (top && bottom > top)
        return SCMI_INVALID_PARAMETERS;
    own->limit_max_khz[domain] = top ? level_at_or_below((int32_t)top) : 0;
    own->limit_min_khz[domain] = bottom ? level_at_or_below((int32_t)bottom) : 0;
    scmi_level_changed(s, agent, domain);
    return SCMI_SUCCESS;
}

static int32_t limits_set(struct scmi *s, struct call *c)
{
    int32_t status = scmi_set_limits(s, c->agent, c->in[0], c->in[1], c->in[2]);
    if (status == SCMI_SUCCESS)
        scmi_forget_words(s, c->agent, fast_level_word(c->in[0], FAST_LIMITS_SET), 2);
    return status;
}

static int32_t limits_get(struct scmi *s, struct call *c)
{
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    put(c, (uint32_t)s->limit_max_khz[c->in[0]]);
    put(c, (uint32_t)s->limit_min_khz[c->in[0]]);
    return SCMI_SUCCESS;
}

/* ---- levels ---- */

/*
 * A level between two listed ones is rounded down. In v4, level 0 means that the platform chooses, and withdraws the
 * agent's request. In the older version it is out of range, as is any level below the lowest.
 */
int32_t scmi_set_level(struct scmi *s, int agent, uint32_t domain, uint32_t level)
{
    if (domain >= DOMAINS)
        return SCMI_NOT_FOUND;
    if (scmi_is_denied(s, agent, 1 + domain, PERFORMANCE))
        return SCMI_DENIED;
    bool withdraws = level == 0 && !scmi_is_before(s, agent, PERFORMANCE, 0x40000);
    if (!withdraws &&
        (level < (uint32_t)s->limit_min_khz[domain] || level > (uint32_t)s->limit_max_khz[domain]))
        return SCMI_OUT_OF_RANGE;
    s->fw->requests.of[agent].level_khz[domain] = withdraws ? 0 : level_at_or_below((int32_t)level);
    scmi_level_changed(s, agent, domain);
    return SCMI_SUCCESS;
}

static int32_t level_set(struct scmi *s, struct call *c)
{
    int32_t status = scmi_set_level(s, c->agent, c->in[0], c->in[1]);
    if (status == SCMI_SUCCESS)
        scmi_forget_words(s, c->agent, fast_level_word(c->in[0], FAST_LEVEL_SET), 1);
    return status;
}

/* The arbitrated level. Caps and heat may lower the clock below it: see the frequency sensors and the reason bitmap. */
static int32_t level_get(struct scmi *s, struct call *c)
{
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    put(c, (uint32_t)s->level_khz[c->in[0]]);
    return SCMI_SUCCESS;
}

/* ---- notifications, FastChannels, names ---- */

static int32_t watch(struct call *c, bool watches[DOMAINS])
{
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    if (c->in[1] > 1)
        return SCMI_INVALID_PARAMETERS;
    watches[c->in[0]] = c->in[1];
    return SCMI_SUCCESS;
}

static int32_t notify_limits(struct scmi *s, struct call *c) { return watch(c, s->limits_watch[c->agent]); }

static int32_t notify_level(struct scmi *s, struct call *c) { return watch(c, s->level_watch[c->agent]); }

static int32_t describe_fast_channel(struct scmi *s, struct call *c)
{
    static const uint8_t words[4] = {FAST_LIMITS_SET, FAST_LIMITS_GET, FAST_LEVEL_SET, FAST_LEVEL_GET};
    uint32_t domain = c->in[0], id = c->in[1];
    if (domain >= DOMAINS || id > 0xc)
        return SCMI_NOT_FOUND;
    if (id < 5 || id > 8)
        return SCMI_NOT_SUPPORTED;
    return fast_window_describe(s, c, fast_level_word(domain, words[id - 5]), id < 7 ? 8 : 4);
}

static int32_t domain_name(struct scmi *s, struct call *c)
{
    char name[32];
    (void)s;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    put_number(name, "voltage domain ", (int)c->in[0]);
    put(c, 0);
    put_text(c, name, 64);
    return SCMI_SUCCESS;
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .in_words = 1, .run = domain_attributes},
    {.id = 0x4, .in_words = 2, .run = describe_levels},
    {.id = 0x5, .in_words = 3, .run = limits_set, .has_fast_channel = true, .about = CLUSTER},
    {.id = 0x6, .in_words = 1, .run = limits_get, .has_fast_channel = true, .about = CLUSTER},
    {.id = 0x7, .in_words = 2, .run = level_set, .has_fast_channel = true, .about = CLUSTER},
    {.id = 0x8, .in_words = 1, .run = level_get, .has_fast_channel = true, .about = CLUSTER},
    {.id = 0x9, .in_words = 2, .run = notify_limits, .about = CLUSTER},
    {.id = 0xa, .in_words = 2, .run = notify_level, .about = CLUSTER},
    {.id = 0xb, .in_words = 2, .run = describe_fast_channel},
    {.id = 0xc, .in_words = 1, .run = domain_name, .since = 0x30000},
};

const struct protocol_table scmi_performance = {
    .id = SCMI_PERFORMANCE, .version = 0x40000, .older = {0x30000, 0x20000},
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
