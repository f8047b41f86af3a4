/* What all protocols use: see scmi_service.h. */
#include "scmi_service.h"

/* ---- writing a response ---- */

void put(struct call *c, uint32_t word)
{
    if (c->out_words < SCMI_REPLY_BYTES / 4 - 1)
        c->out[c->out_words++] = word;
}

/* A fixed field, padded with zeros, always terminated. */
void put_text(struct call *c, const char *text, uint32_t bytes)
{
    uint32_t length = 0;
    while (length < bytes - 1 && text[length]) /* at most 63 times */
        length++;
    for (uint32_t at = 0; at < bytes; at += 4) { /* at most 16 times */
        uint32_t word = 0;
        for (uint32_t i = 0; i < 4 && at + i < length; i++)
            word |= (uint32_t)(uint8_t)text[at + i] << 8 * i;
        put(c, word);
    }
}

void put_number(char *text, const char *prefix, int number)
{
    while (*prefix) /* at most 15 times */
        *text++ = *prefix++;
    *text++ = (char)('0' + number);
    *text = 0;
}

/* ---- events ---- */

static void enqueue(struct scmi *s, int agent, uint32_t header, const uint32_t *words, uint32_t n)
{
    struct event_queue *queue = &s->queue[agent];
    if (queue->count == EVENT_QUEUE) {
        queue->lost++; /* a GET reports the same state */
        return;
    }
    struct event *event = &queue->event[(queue->head + queue->count++) % EVENT_QUEUE];
    event->words = 1 + n;
    event->word[0] = header;
    for (uint32_t i = 0; i < n; i++) /* at most EVENT_WORDS - 1 times */
        event->word[1 + i] = words[i];
}

void scmi_notify(struct scmi *s, int agent, uint32_t protocol, uint32_t id, const uint32_t *words, uint32_t n)
{
    enqueue(s, agent, id | SCMI_NOTIFICATION << 8 | protocol << 10, words, n);
}

void scmi_delayed(struct scmi *s, int agent, uint32_t protocol, uint32_t id, uint32_t token, const uint32_t *words,
                  uint32_t n)
{
    enqueue(s, agent, id | SCMI_DELAYED << 8 | protocol << 10 | token << 18, words, n);
}

/* ---- what follows from changed requests ---- */

static void levels_changed(struct scmi *s, int agent, uint32_t d)
{
    const struct requests *r = &s->fw->requests;
    int32_t level = requests_level(r, (int)d), max = requests_limit_max(r, (int)d), min = requests_limit_min(r, (int)d);
    bool is_level_new = level != s->level_khz[d], is_lower = level < s->level_khz[d];
    bool is_limit_new = max != s->limit_max_khz[d] || min != s->limit_min_khz[d];
    s->level_khz[d] = level;
    s->limit_max_khz[d] = max;
    s->limit_min_khz[d] = min;
    for (int a = 0; a < AGENTS; a++) {
        uint32_t limits[4] = {(uint32_t)(agent + 1), d, (uint32_t)max, (uint32_t)min};
        uint32_t levels[3] = {(uint32_t)(agent + 1), d, (uint32_t)level};
        if (is_limit_new && s->limits_watch[a][d])
            scmi_notify(s, a, SCMI_PERFORMANCE, 0, limits, 4);
        if (is_level_new && s->level_watch[a][d])
            scmi_notify(s, a, SCMI_PERFORMANCE, 1, levels, 3);
    }
    if (is_lower)
        s->lowered(s->fw, (int)d);
}

static void cap_changed(struct scmi *s, int agent, uint32_t p)
{
    int32_t cap = requests_cap_mw(&s->fw->requests, (int)p), pai = s->fw->requests.pai_us[p];
    if (cap == s->cap_mw[p] && pai == s->pai_us[p])
        return;
    s->cap_mw[p] = cap;
    s->pai_us[p] = pai;
    uint32_t words[4] = {(uint32_t)(agent + 1), p, (uint32_t)cap, (uint32_t)pai};
    for (int a = 0; a < AGENTS; a++)
        if (s->cap_watch[a][p])
            scmi_notify(s, a, SCMI_POWERCAP, 0, words, 4);
}

/* ---- words of FastChannels ---- */

void scmi_forget_words(struct scmi *s, int agent, uint32_t first, uint32_t words)
{
    volatile uint32_t *window = board_fast_window(s->fw->board, agent);
    for (uint32_t w = first; w < first + words; w++) { /* at most 2 times */
        s->fast_seen[agent][w] = FAST_EMPTY;
        if (window)
            window[w] = FAST_EMPTY;
        s->fast_refused[agent] &= ~(1ull << w);
        s->fast_retry[agent] &= ~(1ull << w);
        s->fast_torn[agent] &= ~(1ull << w);
    }
}

void scmi_refuse_word(struct scmi *s, int agent, uint32_t word) { s->fast_refused[agent] |= 1ull << word; }

void scmi_retry_refused(struct scmi *s)
{
    for (int agent = 0; agent < AGENTS; agent++)
        s->fast_retry[agent] |= s->fast_refused[agent];
}

void scmi_level_changed(struct scmi *s, int agent, uint32_t domain)
{
    scmi_retry_refused(s);
    levels_changed(s, agent, domain);
}

void scmi_cap_changed(struct scmi *s, int agent, uint32_t power_domain)
{
    scmi_retry_refused(s);
    cap_changed(s, agent, power_domain);
}

void scmi_changed(struct scmi *s, int agent)
{
    scmi_retry_refused(s);
    for (uint32_t d = 0; d < DOMAINS; d++)
        levels_changed(s, agent, d);
    for (uint32_t p = 0; p < POWER_DOMAINS; p++)
        cap_changed(s, agent, p);
}

/* ---- agents ---- */

bool scmi_is_before(const struct scmi *s, int agent, enum protocol protocol, uint32_t version)
{
    return s->version[agent][protocol] && s->version[agent][protocol] < version;
}

/* The sensors of scmi_sensor.c: package power and energy, and four of each other kind. */
uint32_t scmi_sensor_device(uint32_t sensor)
{
    if (sensor == 4 || sensor == 9)
        return 0;
    return 1 + (sensor < 4 ? sensor : sensor < 9 ? sensor - 5 : (sensor - 10) % DOMAINS);
}

static void drop_package_watches(struct scmi *s, int agent, uint32_t protocols)
{
    if (protocols >> TELEMETRY & 1u)
        s->faults_watch[agent] = false;
    if (protocols >> SYSTEM & 1u)
        s->system_watch[agent] = false;
}

void scmi_drop_watches(struct scmi *s, int agent, uint32_t device, uint32_t protocols)
{
    for (uint32_t p = 0; p < POWER_DOMAINS; p++) {
        if (device && p != device)
            continue;
        if (p && protocols >> PERFORMANCE & 1u)
            s->limits_watch[agent][p - 1] = s->level_watch[agent][p - 1] = false;
        if (protocols >> POWERCAP & 1u) {
            s->cap_watch[agent][p] = false;
            s->measure[agent][p] = (struct measure_watch){0};
        }
    }
    for (uint32_t i = 0; protocols >> SENSOR & 1u && i < SENSORS; i++) {
        if (device && scmi_sensor_device(i) != device)
            continue;
        s->update_watch[agent][i] = false;
        if (i < TRIP_SENSORS)
            s->trip_watch[agent][i] = false;
    }
    if (device == 0)
        drop_package_watches(s, agent, protocols);
}

void scmi_forget_agent(struct scmi *s, int agent)
{
    for (int p = 0; p < PROTOCOLS; p++)
        s->version[agent][p] = 0;
    s->error_watch[agent] = false;
    for (int p = 0; p < POWER_DOMAINS; p++)
        s->delayed[agent][p] = (struct delayed_cap){0};
    scmi_drop_watches(s, agent, 0, UINT32_MAX);
    requests_forget(&s->fw->requests, agent);
    scmi_changed(s, agent);
}

bool scmi_is_denied(const struct scmi *s, int agent, uint32_t device, enum protocol protocol)
{
    return (s->denied[agent][device] | s->denied[agent][0]) >> protocol & 1u;
}
