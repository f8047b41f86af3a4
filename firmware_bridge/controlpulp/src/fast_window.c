/*
 * The FastChannel window of an agent: which word is what, and how a protocol describes it to its agent. fast_channel.c
 * reads and writes the words.
 */
#include "scmi_service.h"

uint32_t fast_level_word(uint32_t domain, enum fast_word word) { return domain * LEVEL_WORDS + word; }

uint32_t fast_cap_word(uint32_t power_domain, enum fast_cap_word word)
{
    return DOMAINS * LEVEL_WORDS + power_domain * CAP_WORDS + word;
}

bool fast_window_exists(const struct scmi *s, int agent) { return board_fast_window(s->fw->board, agent); }

void fast_window_clear(struct scmi *s, int agent)
{
    for (uint32_t d = 0; d < DOMAINS; d++) {
        scmi_forget_words(s, agent, fast_level_word(d, FAST_LEVEL_SET), 1);
        scmi_forget_words(s, agent, fast_level_word(d, FAST_LIMITS_SET), 2);
    }
    for (uint32_t p = 0; p < POWER_DOMAINS; p++) {
        scmi_forget_words(s, agent, fast_cap_word(p, FAST_CAP_SET), 1);
        scmi_forget_words(s, agent, fast_cap_word(p, FAST_PAI_SET), 1);
    }
}

/* There is no doorbell. Polling sees at most one change per fast period. */
int32_t fast_window_describe(struct scmi *s, struct call *c, uint32_t word, uint32_t bytes)
{
    if (!fast_window_exists(s, c->agent))
        return SCMI_NOT_SUPPORTED;
    uint64_t address = board_fast_address(s->fw->board, c->agent) + 4 * word;
    put(c, 0);
    put(c, TICK_US);
    put(c, (uint32_t)address);
    put(c, (uint32_t)(address >> 32));
    put(c, bytes);
    for (int i = 0; i < 6; i++)
        put(c, 0);
    return SCMI_SUCCESS;
}
