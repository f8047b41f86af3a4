/* Measured power: see meter.h. */
#include "executive.h"
#include "meter.h"

void meter_sample(struct meter *m, const struct sensors *in)
{
    for (int p = 0; p < POWER_DOMAINS; p++) {
        if (in->power_uw[p] == SENSOR_FAULT)
            continue;
        m->sum_uw[p] += in->power_uw[p];
        m->samples[p]++;
    }
}

/* The place in the rings that is so many slots before the one written next. */
static uint32_t place_before(const struct meter *m, uint32_t slots)
{
    return (m->next + PAI_SLOTS + 1 - slots) % (PAI_SLOTS + 1);
}

/* A slot without a sample repeats the previous one in the averages; slot_uw marks it. */
void meter_close_slot(struct meter *m)
{
    uint32_t last = place_before(m, 1);
    for (int p = 0; p < POWER_DOMAINS; p++) {
        bool is_sampled = m->samples[p] > 0;
        m->slot_uw[p] = is_sampled ? (int32_t)divide((uint64_t)m->sum_uw[p], m->samples[p]) : SENSOR_FAULT;
        if (is_sampled)
            m->mean_mw[p] = (m->slot_uw[p] + 500) / 1000;
        m->total_mw[p][m->next] = m->total_mw[p][last] + (uint32_t)m->mean_mw[p];
        m->sum_uw[p] = m->samples[p] = 0;
    }
    m->energy_uj += (uint64_t)m->mean_mw[0] * SLOT_US / 1000;
    m->next = (m->next + 1) % (PAI_SLOTS + 1);
    if (m->filled < PAI_SLOTS)
        m->filled++;
}

/* From two totals: agents may watch all domains at once, over the longest interval, in every slot. */
int32_t meter_average_mw(const struct meter *m, int power_domain, int32_t pai_us)
{
    uint32_t slots = (uint32_t)pai_us / SLOT_US;
    if (slots > m->filled)
        slots = m->filled;
    const uint32_t *total = m->total_mw[power_domain];
    return slots ? (int32_t)((total[place_before(m, 1)] - total[place_before(m, 1 + slots)]) / slots) : 0;
}
