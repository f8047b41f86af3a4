/*
 * FastChannels: words of memory that an agent writes and reads without a message. One window per agent, so that the
 * window tells who writes; no doorbell, the fast job looks every 125 us. A value that a message would refuse is
 * ignored, as there is nobody to tell.
 */
#include "firmware.h"

#define LEVEL_WORDS 6 /* set, get, limits set (max, min), limits get (max, min) */
#define CAP_WORDS 4   /* cap set, cap get, PAI set, PAI get */

uint32_t fast_level_word(uint32_t domain, enum fast_word word) { return domain * LEVEL_WORDS + word; }

uint32_t fast_cap_word(uint32_t power_domain, enum fast_cap_word word)
{
    return DOMAINS * LEVEL_WORDS + power_domain * CAP_WORDS + word;
}

/* True when the agent has written another value since. */
static bool is_written(struct scmi *s, int agent, const volatile uint32_t *window, uint32_t word, uint32_t *value)
{
    *value = window[word];
    bool is_new = *value != s->fast_seen[agent][word];
    s->fast_seen[agent][word] = *value;
    if (is_new)
        s->fw->requests.of[agent].heard_us = board_time_us(s->fw->board); /* renews a lease, as a message does */
    return is_new;
}

bool scmi_has_fast_channels(const struct scmi *s, int agent) { return board_fast_window(s->fw->board, agent); }

void fast_channel_poll(struct scmi *s)
{
    uint32_t value, other;
    for (int agent = 0; agent < AGENTS; agent++) {
        const volatile uint32_t *window = board_fast_window(s->fw->board, agent);
        if (!window)
            continue;
        for (uint32_t d = 0; d < DOMAINS; d++) {
            uint32_t limits = fast_level_word(d, FAST_LIMITS_SET);
            bool is_max_new = is_written(s, agent, window, limits, &value);
            if (is_written(s, agent, window, limits + 1, &other) || is_max_new)
                (void)scmi_set_limits(s, agent, d, value, other);
            if (is_written(s, agent, window, fast_level_word(d, FAST_LEVEL_SET), &value))
                (void)scmi_set_level(s, agent, d, value);
        }
        for (uint32_t p = 0; p < POWER_DOMAINS; p++) {
            if (is_written(s, agent, window, fast_cap_word(p, FAST_CAP_SET), &value))
                (void)scmi_set_cap(s, agent, p, value);
            if (is_written(s, agent, window, fast_cap_word(p, FAST_PAI_SET), &value))
                (void)scmi_set_pai(s, agent, p, value);
        }
    }
}

void fast_channel_refresh(struct scmi *s)
{
    for (int agent = 0; agent < AGENTS; agent++) {
        volatile uint32_t *window = board_fast_window(s->fw->board, agent);
        if (!window)
            continue;
        for (uint32_t d = 0; d < DOMAINS; d++) {
            window[fast_level_word(d, FAST_LEVEL_GET)] = (uint32_t)s->level_khz[d];
            window[fast_level_word(d, FAST_LIMITS_GET)] = (uint32_t)s->limit_max_khz[d];
            window[fast_level_word(d, FAST_LIMITS_GET) + 1] = (uint32_t)s->limit_min_khz[d];
        }
        for (uint32_t p = 0; p < POWER_DOMAINS; p++) {
            window[fast_cap_word(p, FAST_CAP_GET)] = (uint32_t)s->cap_mw[p];
            window[fast_cap_word(p, FAST_PAI_GET)] = (uint32_t)s->pai_us[p];
        }
    }
}

/* No doorbell; at most one change per fast period is seen. */
int32_t fast_channel_describe(struct scmi *s, struct call *c, uint32_t word, uint32_t bytes)
{
    if (!scmi_has_fast_channels(s, c->agent))
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
