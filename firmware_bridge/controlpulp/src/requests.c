/* The agents' requests and their arbitration: see requests.h. */
#include "requests.h"

#define PACKAGE_MIN_MW 20000 /* ours: above what 36 cores draw at 400 MHz, 0.50 V and 85 C (15 W) */
#define DOMAIN_MIN_MW 5000

/* ---- levels ---- */

int32_t level_khz(int32_t index)
{
    return index == 0 ? FREQ_MIN_KHZ : index == 1 ? 800000 : chip_freq_khz[index - 2];
}

int32_t level_at_or_below(int32_t khz)
{
    int32_t index = LEVEL_COUNT - 1;
    while (index > 0 && level_khz(index) > khz) /* at most LEVEL_COUNT times */
        index--;
    return level_khz(index);
}

void requests_init(struct requests *r)
{
    *r = (struct requests){0};
    for (int p = 0; p < POWER_DOMAINS; p++)
        r->pai_us[p] = PAI_STEP_US;
}

void requests_forget(struct requests *r, int agent)
{
    r->of[agent] = (struct request){.last_message_us = r->of[agent].last_message_us};
}

int32_t requests_limit_max(const struct requests *r, int domain)
{
    int32_t max = FREQ_MAX_KHZ;
    for (int a = 0; a < AGENTS; a++)
        if (r->of[a].limit_max_khz[domain])
            max = min32(max, r->of[a].limit_max_khz[domain]);
    return max;
}

/* If the limits of two agents contradict each other, the lower maximum wins, since a maximum protects something. */
int32_t requests_limit_min(const struct requests *r, int domain)
{
    int32_t min = FREQ_MIN_KHZ;
    for (int a = 0; a < AGENTS; a++)
        min = max32(min, r->of[a].limit_min_khz[domain]);
    return min32(min, requests_limit_max(r, domain));
}

int32_t requests_level(const struct requests *r, int domain)
{
    int32_t level = 0;
    for (int a = 0; a < AGENTS; a++)
        level = max32(level, r->of[a].level_khz[domain]);
    if (level == 0)
        level = FREQ_MAX_KHZ; /* no request: the platform's choice */
    return clamp32(level, requests_limit_min(r, domain), requests_limit_max(r, domain));
}

/* ---- caps ---- */

int32_t cap_min_mw(int power_domain) { return power_domain == 0 ? PACKAGE_MIN_MW : DOMAIN_MIN_MW; }

int32_t cap_max_mw(int power_domain)
{
    return CORE_MAX_UW / 1000 * (power_domain == 0 ? CORES : DOMAIN_CORES);
}

/* A cap that was requested during the lease and arrives after its end must not raise the cap in force. */
static int32_t own_cap_mw(const struct request *own, int power_domain)
{
    int32_t cap = own->cap_mw[power_domain];
    if (power_domain == 0 && own->is_over && (cap == 0 || own->until_cap_mw < cap))
        return own->until_cap_mw;
    return cap;
}

int32_t requests_cap_mw(const struct requests *r, int power_domain)
{
    int32_t cap = 0;
    for (int a = 0; a < AGENTS; a++) {
        int32_t own = own_cap_mw(&r->of[a], power_domain);
        if (own && (cap == 0 || own < cap))
            cap = own;
    }
    return cap;
}

void requests_demand(const struct requests *r, struct demand *out)
{
    for (int d = 0; d < DOMAINS; d++)
        out->target_khz[d] = requests_level(r, d);
    for (int p = 0; p < POWER_DOMAINS; p++)
        out->cap_uw[p] = requests_cap_mw(r, p) * 1000;
}

/* ---- leases ---- */

void requests_lease_until(struct requests *r, int agent, uint64_t until_us, int32_t cap_mw)
{
    r->of[agent].until_cap_mw = cap_mw;
    r->of[agent].until_us = until_us;
    r->of[agent].is_over = false;
}

bool requests_expire(struct requests *r, uint64_t now_us, int *agent)
{
    for (int a = 0; a < AGENTS; a++) {
        struct request *own = &r->of[a];
        if (own->until_cap_mw) { /* suspends a lease of silence, which could withdraw the cap altogether */
            if (own->is_over || now_us < own->until_us)
                continue;
            own->is_over = true;
            *agent = a;
            return true;
        }
        if (own->lease_ms == 0 || now_us - own->last_message_us < (uint64_t)own->lease_ms * 1000)
            continue;
        int32_t cap = own->cap_mw[0], agreed = (int32_t)own->lease_cap_mw;
        requests_forget(r, a);
        own->cap_mw[0] = agreed && (cap == 0 || agreed < cap) ? agreed : agreed ? cap : 0;
        *agent = a;
        return true;
    }
    return false;
}
