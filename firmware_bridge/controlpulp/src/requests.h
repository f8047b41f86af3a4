/*
 * What each agent asks for, and what follows from all of them.
 *
 * Performance levels: the highest of the agents' requests, within everyone's limits, since a domain that serves two
 * agents must be fast enough for both. Power caps: the lowest, since a cap is a promise to whoever set it.
 */
#ifndef REQUESTS_H
#define REQUESTS_H

#include "board.h"

#define PLATFORM_AGENT (-1)
#define LEVEL_COUNT 17 /* 400, 800 MHz and the clocks of the 15 voltage levels */

#define CAP_STEP_MW 100
#define PAI_STEP_US 500
#define PAI_MAX_US 100000
#define PAI_SLOTS (PAI_MAX_US / PAI_STEP_US)

struct request {
    int32_t level_khz[DOMAINS];                    /* 0: none */
    int32_t limit_max_khz[DOMAINS], limit_min_khz[DOMAINS]; /* 0: none */
    int32_t cap_mw[POWER_DOMAINS];                 /* 0: none */
    uint32_t lease_ms, lease_cap_mw;               /* lease 0: requests stay until withdrawn */
    uint64_t heard_us;
    int32_t until_cap_mw;                          /* 0: no lease that ends at a set time */
    bool is_over;                                  /* it has ended: the package cap is until_cap_mw at most */
    uint64_t until_us;
};

struct requests {
    struct request of[AGENTS];
    int32_t pai_us[POWER_DOMAINS];
};

int32_t level_khz(int32_t index);
int32_t level_at_or_below(int32_t khz);

void requests_init(struct requests *r);
void requests_forget(struct requests *r, int agent);
int32_t requests_limit_max(const struct requests *r, int domain);
int32_t requests_limit_min(const struct requests *r, int domain);
int32_t requests_level(const struct requests *r, int domain);
int32_t requests_cap_mw(const struct requests *r, int power_domain);
int32_t cap_min_mw(int power_domain);
int32_t cap_max_mw(int power_domain);
void requests_demand(const struct requests *r, struct demand *out);

/* A lease that ends at a set time, whatever the agent says until then; cap 0: none. */
void requests_lease_until(struct requests *r, int agent, uint64_t until_us, int32_t cap_mw);

/*
 * An agent whose lease has ended: its package cap falls to the agreed one. With a lease of silence its levels and limits
 * are withdrawn; with one that ended at a set time they stay, and so does the lower cap, whatever the agent asks for,
 * until it sets a lease anew. True if there was one.
 */
bool requests_expire(struct requests *r, uint64_t now_us, int *agent);

#endif
