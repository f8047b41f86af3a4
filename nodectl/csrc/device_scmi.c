/*
 * Caps and clocks behind an SCMI controller: the few messages that putting back needs. What the controller says of its
 * domains is in the recipe already. Messages: Arm DEN0056, 4.5 (performance), 4.10 (power capping); vendor protocol 0x80.
 */
#include "restorer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PERFORMANCE = 0x13, POWERCAP = 0x18, TELEMETRY = 0x80, CAP_GET = 4, CAP_SET = 5, LEASE_UNTIL = 7 };
enum { LIMITS_SET = 5, LIMITS_GET = 6, LEVEL_SET = 7, LEVEL_GET = 8 };
enum { BUSY = -6, TRIES = 4, MOST_LINKS = 4, ROOM = 8, VERIFY_TRIES = 20 };

static struct {
    char url[PATH], why[LINE];
    bool is_open;
    link_t link;
} links[MOST_LINKS]; /* each connection is an agent of its own, so it is opened once */

static void pause_ms(long ms)
{
    struct timespec pause = {0, ms * 1000000};

    nanosleep(&pause, NULL);
}

static bool open_link(link_t *link, const char *url, char why[LINE])
{
    const char *place = strchr(url, ':');

    if (place && strncmp(url, "scmi+shm:", 9) == 0)
        return link_open_shm(link, place + (strncmp(place + 1, "//", 2) == 0 ? 3 : 1), why);
    if (place && strncmp(url, "scmi+serial:", 12) == 0)
        return link_open_serial(link, place + 1, why);
    snprintf(why, LINE, "%s: only `nodectl restore` opens it", url);
    return false;
}

static link_t *find_link(const char *url, char why[LINE])
{
    for (int at = 0; at < MOST_LINKS; at++) {
        if (links[at].url[0] == 0) {
            snprintf(links[at].url, sizeof links[at].url, "%s", url);
            links[at].is_open = open_link(&links[at].link, url, links[at].why);
        }
        if (strcmp(links[at].url, url) == 0) {
            snprintf(why, LINE, "%s", links[at].why);
            return links[at].is_open ? &links[at].link : NULL;
        }
    }
    snprintf(why, LINE, "more controllers than any node has");
    return NULL;
}

void scmi_close(void)
{
    for (int at = 0; at < MOST_LINKS; at++) {
        if (links[at].url[0] && links[at].is_open)
            link_close_shm(&links[at].link); /* a serial line has one descriptor and no memory */
        links[at].url[0] = 0;
        links[at].why[0] = 0;
    }
}

/* ``words``: the payload. The answer's payload without its status goes into ``reply``. */
static access_t request(const domain_t *domain, uint32_t protocol, uint32_t message, const uint32_t *words, int n_words,
                        uint32_t *reply, int n_reply, char why[LINE])
{
    static uint32_t token;
    uint32_t sent[ROOM], got[ROOM];
    link_t *link = find_link(domain->url, why);

    for (int again = 0; link && again < TRIES; again++) {
        int n;
        sent[0] = message | protocol << 10 | (++token & 0x3ff) << 18;
        memcpy(sent + 1, words, 4 * (size_t)n_words);
        n = link->exchange(link, sent, n_words + 1, got, ROOM, why);
        if (n < 0)
            return VANISHED;
        if (n < 2 || got[0] != sent[0]) {
            snprintf(why, LINE, "%s: no answer", domain->url);
            continue;
        }
        if ((int32_t)got[1] == BUSY) {
            snprintf(why, LINE, "%s: the controller is busy", domain->url);
            pause_ms(1 << again);
            continue;
        }
        if (got[1] != 0 || n < n_reply + 2) {
            snprintf(why, LINE, "%s: the controller refuses (status %d)", domain->url, (int)(int32_t)got[1]);
            return REFUSED;
        }
        memcpy(reply, got + 2, 4 * (size_t)n_reply);
        return FINE;
    }
    return VANISHED;
}

/* ---------------------------------------------------------------- caps */

int64_t scmi_in_range(const domain_t *domain, int64_t milliwatts)
{
    int64_t inside = milliwatts < domain->lowest ? domain->lowest : milliwatts;

    inside = inside > domain->highest ? domain->highest : inside;
    inside -= inside % domain->step;
    return inside < domain->lowest ? domain->lowest : inside;
}

static access_t cap_units(const domain_t *domain, uint32_t *units, char why[LINE])
{
    uint32_t number = (uint32_t)domain->number;

    return request(domain, POWERCAP, CAP_GET, &number, 1, units, 1, why);
}

access_t scmi_cap(const domain_t *domain, int64_t *milliwatts, char why[LINE])
{
    uint32_t units = 0;
    access_t found = cap_units(domain, &units, why);

    *milliwatts = (units + domain->per_mw / 2) / domain->per_mw;
    return found;
}

static access_t send_cap(const domain_t *domain, uint32_t units, char why[LINE])
{
    uint32_t words[] = {(uint32_t)domain->number, 0, units}, none;

    return request(domain, POWERCAP, CAP_SET, words, 3, &none, 0, why);
}

access_t scmi_set_cap(const domain_t *domain, int64_t milliwatts, char why[LINE])
{
    int64_t units = scmi_in_range(domain, milliwatts) * domain->per_mw;
    uint32_t enforced = 0;
    access_t sent;

    if (units >= domain->lowest_units && domain->step_units)
        units -= units % domain->step_units;
    units = units < domain->lowest_units ? domain->lowest_units : units;
    if (milliwatts <= 0 || units <= 0 || units > UINT32_MAX) {
        snprintf(why, LINE, "a cap of %" PRId64 " mW is none", milliwatts);
        return REFUSED;
    }
    sent = send_cap(domain, (uint32_t)units, why);
    for (int again = 0; sent == FINE && again < VERIFY_TRIES; again++) {
        sent = cap_units(domain, &enforced, why);
        if (sent == FINE && enforced && enforced <= units)
            return FINE;
        pause_ms(1);
    }
    if (sent == FINE)
        snprintf(why, LINE, "the cap was accepted, but the controller reports %" PRIu32, enforced);
    return sent == FINE ? REFUSED : sent;
}

access_t scmi_withdraw_cap(const domain_t *domain, char why[LINE])
{
    uint32_t no_lease[] = {0, 0}, none;
    access_t sent = FINE;

    if (domain->number == 0 && domain->keeps_agents_apart) /* older firmware has no such leases, and refuses */
        sent = request(domain, TELEMETRY, LEASE_UNTIL, no_lease, 2, &none, 0, why);
    return sent == VANISHED ? sent : send_cap(domain, 0, why);
}

/* ---------------------------------------------------------------- clocks */

int64_t scmi_at_or_below(const domain_t *domain, int64_t khz)
{
    int64_t found = domain->levels[0][0];

    for (int at = 0; at < domain->n_levels; at++)
        found = domain->levels[at][0] <= khz && domain->levels[at][0] > found ? domain->levels[at][0] : found;
    return found;
}

static uint32_t level_of(const domain_t *domain, int64_t khz)
{
    for (int at = 0; at < domain->n_levels; at++) {
        if (domain->levels[at][0] == khz)
            return (uint32_t)domain->levels[at][1];
    }
    return (uint32_t)domain->levels[0][1];
}

access_t scmi_clock(const domain_t *domain, bool is_level, int64_t *khz, char why[LINE])
{
    uint32_t number = (uint32_t)domain->number, found[2] = {0};
    access_t got = request(domain, PERFORMANCE, is_level ? LEVEL_GET : LIMITS_GET, &number, 1, found, is_level ? 1 : 2, why);

    for (int at = 0; got == FINE && at < domain->n_levels; at++) {
        *khz = domain->levels[at][0];
        if (domain->levels[at][1] == found[0])
            return FINE;
    }
    if (got == FINE)
        snprintf(why, LINE, "the domain has not listed level %" PRIu32, found[0]);
    return got == FINE ? REFUSED : got;
}

access_t scmi_set_clock(const domain_t *domain, bool is_level, int64_t khz, char why[LINE])
{
    uint32_t number = (uint32_t)domain->number, level = level_of(domain, scmi_at_or_below(domain, khz));
    uint32_t limits[2] = {0}, words[3] = {number, level}, none;
    access_t got;

    if (is_level)
        return request(domain, PERFORMANCE, LEVEL_SET, words, 2, &none, 0, why);
    got = request(domain, PERFORMANCE, LIMITS_GET, &number, 1, limits, 2, why);
    words[2] = limits[1] < level ? limits[1] : level;
    return got == FINE ? request(domain, PERFORMANCE, LIMITS_SET, words, 3, &none, 0, why) : got;
}
