/* Measured power: means over a control slot and over each domain's averaging interval (PAI), and energy. */
#ifndef METER_H
#define METER_H

#include "requests.h"

struct meter {
    int64_t sum_uw[POWER_DOMAINS];  /* samples of the running slot */
    int32_t samples[POWER_DOMAINS];
    int32_t slot_uw[POWER_DOMAINS]; /* mean of the last slot; SENSOR_FAULT without a sample */
    int32_t mean_mw[POWER_DOMAINS]; /* of the last slot that had a sample */
    uint32_t total_mw[POWER_DOMAINS][PAI_SLOTS + 1]; /* sum of the means up to each of the last slots, modulo 2^32 */
    uint32_t next, filled;
    uint64_t energy_uj;             /* of the package */
};

void meter_sample(struct meter *m, const struct sensors *in); /* every fast period */
void meter_close_slot(struct meter *m);
int32_t meter_average_mw(const struct meter *m, int power_domain, int32_t pai_us);

#endif
