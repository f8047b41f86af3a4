/*
 * Clock protocol 0x14: the clocks of the four voltage domains, to be read. Their rates follow from performance levels,
 * caps and heat, so agents ask for levels (protocol 0x13); here no agent may set a rate or stop a clock, and the
 * permissions say so.
 */
#include "scmi_protocols.h"

#define HZ_PER_KHZ 1000u
#define IS_ENABLED 1u
#define HAS_PERMISSIONS (1u << 1)
#define RATES_ARE_RANGE (1u << 12) /* lowest, highest, step */

static void put_rate(struct call *c, uint32_t khz)
{
    uint64_t hz = (uint64_t)khz * HZ_PER_KHZ;
    put(c, (uint32_t)hz);
    put(c, (uint32_t)(hz >> 32));
}

static int32_t attributes(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, DOMAINS); /* no asynchronous rate changes */
    return SCMI_SUCCESS;
}

static int32_t clock_attributes(struct scmi *s, struct call *c)
{
    char name[16];
    (void)s;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    put_number(name, "clock-", (int)c->in[0]);
    put(c, IS_ENABLED | HAS_PERMISSIONS);
    put_text(c, name, 16);
    put(c, 0); /* enabling takes no time */
    return SCMI_SUCCESS;
}

static int32_t describe_rates(struct scmi *s, struct call *c)
{
    (void)s;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    if (c->in[1] != 0)
        return SCMI_OUT_OF_RANGE;
    put(c, 3 | RATES_ARE_RANGE);
    put_rate(c, FREQ_MIN_KHZ);
    put_rate(c, FREQ_MAX_KHZ);
    put_rate(c, 1);
    return SCMI_SUCCESS;
}

/* Words: flags (3:2 rounding, 1:0 asynchronous), clock, rate. */
static int32_t rate_set(struct scmi *s, struct call *c)
{
    (void)s;
    if (c->in[1] >= DOMAINS)
        return SCMI_NOT_FOUND;
    return c->in[0] > 0xf ? SCMI_INVALID_PARAMETERS : SCMI_DENIED;
}

/* The fastest core's clock, as in force. */
static int32_t rate_get(struct scmi *s, struct call *c)
{
    int32_t fastest = 0;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    for (uint32_t i = c->in[0] * DOMAIN_CORES; i < (c->in[0] + 1) * DOMAIN_CORES; i++) /* at most DOMAIN_CORES times */
        fastest = max32(fastest, s->fw->control.in_force.freq_khz[i]);
    put_rate(c, (uint32_t)fastest);
    return SCMI_SUCCESS;
}

/* Words: clock, attributes (1:0 state: 0 off, 1 on; 23:16 a vendor's setting, of which there is none), its value. */
static int32_t config_set(struct scmi *s, struct call *c)
{
    (void)s;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    if (c->in[1] & 0xff00fffcu || (c->in[1] & 3) == 2)
        return SCMI_INVALID_PARAMETERS;
    if (c->in[1] >> 16)
        return SCMI_NOT_SUPPORTED;
    return c->in[1] == 3 ? SCMI_INVALID_PARAMETERS : SCMI_DENIED;
}

static int32_t config_get(struct scmi *s, struct call *c)
{
    (void)s;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    if (c->in[1])
        return c->in[1] > 0xff ? SCMI_INVALID_PARAMETERS : SCMI_NOT_SUPPORTED; /* a vendor's setting */
    put(c, 0);
    put(c, IS_ENABLED);
    put(c, 0);
    return SCMI_SUCCESS;
}

/* Bits 31 state, 30 parent, 29 rate: none. */
static int32_t permissions(struct scmi *s, struct call *c)
{
    (void)s;
    if (c->in[0] >= DOMAINS)
        return SCMI_NOT_FOUND;
    put(c, 0);
    return SCMI_SUCCESS;
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .in_words = 1, .run = clock_attributes},
    {.id = 0x4, .in_words = 2, .run = describe_rates},
    {.id = 0x5, .in_words = 4, .run = rate_set},
    {.id = 0x6, .in_words = 1, .run = rate_get, .about = CLUSTER},
    {.id = 0x7, .in_words = 3, .run = config_set},
    {.id = 0xb, .in_words = 2, .run = config_get, .about = CLUSTER},
    {.id = 0xf, .in_words = 1, .run = permissions},
};

const struct protocol_table scmi_clock = {
    .id = SCMI_CLOCK, .version = 0x30000,
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
