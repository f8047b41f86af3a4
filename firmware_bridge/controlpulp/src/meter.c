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

/* A slot without a sample repeats the previous one in the averages; slot_uw marks it. */
void meter_close_slot(struct meter *m)
{
    uint32_t last = (m->next + PAI_SLOTS - 1) % PAI_SLOTS;
    for (int p = 0; p < POWER_DOMAINS; p++) {
        bool is_sampled = m->samples[p] > 0;
        m->slot_uw[p] = is_sampled ? (int32_t)divide((uint64_t)m->sum_uw[p], m->samples[p]) : SENSOR_FAULT;
        m->ring_mw[p][m->next] = is_sampled ? (m->slot_uw[p] + 500) / 1000 : m->ring_mw[p][last];
        m->sum_uw[p] = m->samples[p] = 0;
    }
    m->energy_uj += (uint64_t)m->ring_mw[0][m->next] * SLOT_US / 1000;
    m->next = (m->next + 1) % PAI_SLOTS;
    if (m->filled < PAI_SLOTS)
        m->filled++;
}

int32_t meter_average_mw(const struct meter *m, int power_domain, int32_t pai_us)
{
    uint32_t slots = (uint32_t)pai_us / SLOT_US, at = m->next;
    int64_t sum = 0;
    if (slots > m->filled)
        slots = m->filled;
    for (uint32_t i = 0; i < slots; i++) {
        at = (at + PAI_SLOTS - 1) % PAI_SLOTS;
        sum += m->ring_mw[power_domain][at];
    }
    return slots ? (int32_t)(sum / slots) : 0;
}
