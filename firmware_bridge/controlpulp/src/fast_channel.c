/*
 * FastChannels: words of memory that an agent writes and reads without a message. Each agent has a window of its own,
 * which identifies the writer. There is no doorbell; the fast job polls every 125 us. A value that a message would
 * refuse is ignored, since there is no response that could report an error.
 *
 * Problem. A client that only writes must be right, and a write shows only as a changed word. Written again after a
 * message, a reset or a lease has replaced the request, the same value would not show.
 *
 * Idea. Whatever replaces or withdraws a request that a word has made sets the word to FAST_EMPTY in the same moment.
 * A write before that moment came before the replacement and is void; a write after it shows. The platform writes these
 * words at no other time, so it never overwrites a request. A refused word still stands: it is tried again when what is
 * allowed changes.
 *
 * Limits are two words. A pair counts once it is complete and unchanged for a poll: a poll between the two stores of a
 * client must not put a pair in force that nobody requested.
 *
 * A poll carries out a few requests, and the next one goes on from there: agents that write all their words all the time
 * delay each other, and not the control law.
 *
 * Left: a write of the value that the word has already shows nothing, so it does not renew a lease of silence.
 */
#include "scmi_protocols.h"

#define REQUESTS (2 * (DOMAINS + POWER_DOMAINS)) /* of a window */
#define MOST_REQUESTS 4                          /* ours: of all windows, in one poll */

void fast_channel_expired(struct scmi *s, int agent)
{
    if (!s->fw->requests.of[agent].is_over) /* a lease with a set end keeps the requests */
        fast_window_clear(s, agent);
}

static void renew_lease(struct scmi *s, int agent)
{
    s->fw->requests.of[agent].last_message_us = s->fast_poll_us; /* as a message does */
}

/* True when the agent has written another value since the last poll, or a refused one is to be tried again. */
static bool is_written(struct scmi *s, int agent, const volatile uint32_t *window, uint32_t word, uint32_t *value)
{
    uint64_t bit = 1ull << word;
    bool is_again = s->fast_retry[agent] & bit;
    *value = window[word];
    bool is_new = *value != s->fast_seen[agent][word];
    s->fast_seen[agent][word] = *value;
    if (is_new) {
        s->fast_writes[agent]++;
        renew_lease(s, agent); /* it may have been written since to_poll() */
    }
    if (is_new || is_again) {
        s->fast_refused[agent] &= ~bit;
        s->fast_retry[agent] &= ~bit;
    }
    return (is_new || is_again) && *value != FAST_EMPTY;
}

static void note(struct scmi *s, int agent, uint32_t word, int32_t status)
{
    if (status != SCMI_SUCCESS)
        scmi_refuse_word(s, agent, word);
}

/* This and poll_request return whether they have carried out a request. */
static bool poll_limits(struct scmi *s, int agent, const volatile uint32_t *window, uint32_t domain)
{
    uint32_t max, min, word = fast_level_word(domain, FAST_LIMITS_SET);
    bool is_max_new = is_written(s, agent, window, word, &max);
    bool is_new = is_written(s, agent, window, word + 1, &min) || is_max_new;
    bool was_new = s->fast_torn[agent] >> word & 1u;
    s->fast_torn[agent] = (s->fast_torn[agent] & ~(1ull << word)) | (uint64_t)is_new << word;
    if (is_new || !was_new || max == FAST_EMPTY || min == FAST_EMPTY)
        return false;
    int32_t status = scmi_set_limits(s, agent, domain, max, min);
    note(s, agent, word, status);
    note(s, agent, word + 1, status);
    return true;
}

static int32_t set_pai(struct scmi *s, int agent, uint32_t p, uint32_t pai_us)
{
    int32_t status = scmi_set_pai(s, agent, p, pai_us);
    for (int other = 0; status == SCMI_SUCCESS && other < AGENTS; other++)
        if (other != agent) /* the interval is the last writer's */
            scmi_forget_words(s, other, fast_cap_word(p, FAST_PAI_SET), 1);
    return status;
}

/* The requests of a window: limits and level of each domain, then cap and interval of each power domain. */
static bool poll_request(struct scmi *s, int agent, const volatile uint32_t *window, uint32_t request)
{
    uint32_t domain = request / 2, p = domain - DOMAINS, value;
    bool is_first = request % 2 == 0, is_level = domain < DOMAINS;
    if (is_level && is_first)
        return poll_limits(s, agent, window, domain);
    uint32_t word = is_level ? fast_level_word(domain, FAST_LEVEL_SET)
                             : fast_cap_word(p, is_first ? FAST_CAP_SET : FAST_PAI_SET);
    if (!is_written(s, agent, window, word, &value))
        return false;
    note(s, agent, word,
         is_level   ? scmi_set_level(s, agent, domain, value)
         : is_first ? scmi_set_cap(s, agent, p, value)
                    : set_pai(s, agent, p, value));
    return true;
}

/* Whether the agent has written since its words were looked at. Mostly no agent has, and this is looked at first. */
static bool is_changed(const struct scmi *s, int agent, const volatile uint32_t *window)
{
    const uint32_t *seen = s->fast_seen[agent];
    const volatile uint32_t *caps = window + DOMAINS * LEVEL_WORDS;
    for (int w = 0; w < DOMAINS * LEVEL_WORDS; w += LEVEL_WORDS)
        if (window[w + FAST_LEVEL_SET] != seen[w + FAST_LEVEL_SET] ||
            window[w + FAST_LIMITS_SET] != seen[w + FAST_LIMITS_SET] ||
            window[w + FAST_LIMITS_SET + 1] != seen[w + FAST_LIMITS_SET + 1])
            return true;
    seen += DOMAINS * LEVEL_WORDS;
    for (int w = 0; w < POWER_DOMAINS * CAP_WORDS; w += CAP_WORDS)
        if (caps[w + FAST_CAP_SET] != seen[w + FAST_CAP_SET] || caps[w + FAST_PAI_SET] != seen[w + FAST_PAI_SET])
            return true;
    return false;
}

/*
 * Agents whose words this poll is to come to, one bit each. Renews the leases of those that have written, also where the
 * poll does not come so far.
 */
static uint32_t to_poll(struct scmi *s)
{
    uint32_t written = 0, polled = 0;
    for (int agent = 0; agent < AGENTS; agent++) {
        const volatile uint32_t *window = board_fast_window(s->fw->board, agent);
        if (!window)
            continue;
        if (is_changed(s, agent, window))
            written |= 1u << agent;
        if (s->fast_retry[agent] || s->fast_torn[agent])
            polled |= 1u << agent;
    }
    polled |= written;
    if (polled) /* mostly there is nothing, and the time costs a division */
        s->fast_poll_us = board_time_us(s->fw->board);
    for (int agent = 0; agent < AGENTS; agent++)
        if (written >> agent & 1u)
            renew_lease(s, agent);
    return polled;
}

void fast_channel_moved(struct scmi *s, int agent)
{
    fast_window_clear(s, agent);
}

void fast_channel_poll(struct scmi *s)
{
    uint32_t polled = to_poll(s);
    int carried_out = 0;
    for (int i = 0; polled && i < AGENTS * REQUESTS; i++) { /* each request of each agent once */
        int agent = s->fast_agent;
        volatile uint32_t *window = board_fast_window(s->fw->board, agent);
        if (carried_out == MOST_REQUESTS)
            return;
        if (window && ((polled >> agent & 1u) || s->fast_retry[agent])) /* one may have allowed what was refused */
            carried_out += poll_request(s, agent, window, s->fast_request);
        if (++s->fast_request == REQUESTS) {
            s->fast_request = 0;
            s->fast_agent = agent + 1 < AGENTS ? agent + 1 : 0;
        }
    }
    s->fast_agent = 0;
    s->fast_request = 0;
}

void fast_channel_refresh(struct scmi *s)
{
    for (int agent = 0; agent < AGENTS; agent++) {
        volatile uint32_t *window = board_fast_window(s->fw->board, agent);
        if (!window)
            continue;
        for (uint32_t d = 0; d < DOMAINS; d++) {
            bool is_open = !scmi_is_denied(s, agent, 1 + d, PERFORMANCE);
            window[fast_level_word(d, FAST_LEVEL_GET)] = is_open ? (uint32_t)s->level_khz[d] : 0;
            window[fast_level_word(d, FAST_LIMITS_GET)] = is_open ? (uint32_t)s->limit_max_khz[d] : 0;
            window[fast_level_word(d, FAST_LIMITS_GET) + 1] = is_open ? (uint32_t)s->limit_min_khz[d] : 0;
        }
        for (uint32_t p = 0; p < POWER_DOMAINS; p++) {
            bool is_open = !scmi_is_denied(s, agent, p, POWERCAP);
            window[fast_cap_word(p, FAST_CAP_GET)] = is_open ? (uint32_t)s->cap_mw[p] : 0;
            window[fast_cap_word(p, FAST_PAI_GET)] = is_open ? (uint32_t)s->pai_us[p] : 0;
        }
    }
}
