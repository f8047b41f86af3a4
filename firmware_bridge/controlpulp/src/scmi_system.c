/*
 * System power protocol 0x12: the management controller asks the operating systems for an orderly end. The request is
 * passed on to the other agents that watch for it; whoever carries it out does so by its own means. The controller
 * itself has no switch for the chip's supply, so a forced change is not supported.
 */
#include "scmi_protocols.h"

#define TRUSTED_AGENT (AGENTS - 1) /* as in scmi_base.c: the management controller */
#define IS_GRACEFUL 1u

enum system_state { SHUTDOWN, COLD_RESET, WARM_RESET, POWER_UP, SUSPEND };

static int32_t attributes(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, 0);
    return SCMI_SUCCESS;
}

/* Words: flags, state. An operating system that ends does not ask here. */
static int32_t state_set(struct scmi *s, struct call *c)
{
    uint32_t flags = c->in[0], state = c->in[1];
    if (c->agent != TRUSTED_AGENT)
        return SCMI_DENIED;
    if (flags > IS_GRACEFUL || (state > SUSPEND && state < 0x80000000u))
        return SCMI_INVALID_PARAMETERS;
    if (state > WARM_RESET || !(flags & IS_GRACEFUL))
        return SCMI_NOT_SUPPORTED;
    uint32_t words[4] = {(uint32_t)(c->agent + 1), flags, state, 0}; /* no time limit */
    for (int a = 0; a < AGENTS; a++)
        if (a != c->agent && s->system_watch[a])
            scmi_notify(s, a, SCMI_SYSTEM, 0, words, 4);
    return SCMI_SUCCESS;
}

/* The controller runs, so the system does. */
static int32_t state_get(struct scmi *s, struct call *c)
{
    (void)s;
    put(c, POWER_UP);
    return SCMI_SUCCESS;
}

static int32_t notify_state(struct scmi *s, struct call *c)
{
    if (c->in[0] > 1)
        return SCMI_INVALID_PARAMETERS;
    s->system_watch[c->agent] = c->in[0];
    return SCMI_SUCCESS;
}

static const struct command commands[] = {
    {.id = 0x1, .run = attributes},
    {.id = 0x3, .in_words = 2, .run = state_set},
    {.id = 0x4, .run = state_get},
    {.id = 0x5, .in_words = 1, .run = notify_state},
};

const struct protocol_table scmi_system = {
    .id = SCMI_SYSTEM, .version = 0x20001,
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
