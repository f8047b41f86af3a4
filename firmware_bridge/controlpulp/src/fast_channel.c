/*
 * FastChannels: words of memory that an agent writes and reads without a message. Each agent has a window of its own,
 * which identifies the writer. There is no doorbell; the fast job polls every 125 us. A value that a message would
 * refuse is ignored, since there is no response that could report an error.
 */
#include "scmi_protocols.h"

/* True when the agent has written another value since the last poll. */
static bool is_written(struct scmi *s, int agent, const volatile uint32_t *window, uint32_t word, uint32_t *value)
{
    *value = window[word];
    bool is_new = *value != s->fast_seen[agent][word];
    s->fast_seen[agent][word] = *value;
    if (is_new)
        s->fw->requests.of[agent].last_message_us = board_time_us(s->fw->board); /* renews a lease, as a message does */
    return is_new;
}

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
