/*
 * The agents' requests and their arbitration.
 *
 * Performance levels: the highest request within all agents' limits, since a domain that serves two agents must be fast
 * enough for both. Power caps: the lowest request, since each agent relies on its cap.
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
    uint32_t lease_ms, lease_cap_mw;               /* lease of silence; 0: requests stay until withdrawn */
    uint64_t last_message_us;
    int32_t until_cap_mw;                          /* 0: no lease with a set end */
    bool is_over;                                  /* that lease has ended: the package cap is at most until_cap_mw */
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

/* Sets a lease with a set end, which messages of the agent do not move; cap 0: no such lease. */
void requests_lease_until(struct requests *r, int agent, uint64_t until_us, int32_t cap_mw);

/*
 * Finds an agent whose lease has ended, and lowers its package cap to the agreed one. After a lease of silence its
 * levels and limits are withdrawn. After a lease with a set end they stay, and so does the lower cap, whatever the
 * agent requests, until it sets another lease. True if there was one.
 */
bool requests_expire(struct requests *r, uint64_t now_us, int *agent);

#endif
