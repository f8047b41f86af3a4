/*
 * Faults of the plant's sensors: what a broken sensor shows instead of the truth.
 *
 * Every sensor has a fault and an amount, which a test may change at any time. The true readings are kept next to what is
 * shown, so that a late sensor shows an old one and a swapped sensor that of its partner.
 */
#include "plant.h"

#include <math.h>

static int32_t rounded(double value)
{
    return (int32_t)lrint(fmin(fmax(value, -2e9), 2e9));
}

/* The truth of a sensor was read; returns what it shows. `before` is what it showed last. */
int32_t pulp_shown(pulp_plant_t *p, int sensor, int32_t truth, int32_t before)
{
    int32_t *past = p->past[sensor], at = p->past_at[sensor];
    double amount = p->fault_amount[sensor];
    p->truth[sensor] = past[at] = truth;
    p->past_at[sensor] = (at + 1) % PULP_PAST;
    if (p->past_length[sensor] < PULP_PAST)
        p->past_length[sensor]++;
    switch (p->fault[sensor]) {
    case PULP_UNREADABLE:
        return INT32_MIN;
    case PULP_STUCK:
        return before;
    case PULP_FIXED:
        return rounded(amount);
    case PULP_SCALED:
        return rounded(truth * amount);
    case PULP_BIASED:
        return rounded(truth + amount);
    case PULP_NOISY:
        return rounded(truth + amount * pulp_gauss(p));
    case PULP_LATE: {
        int32_t age = (int32_t)fmin(fmax(amount, 0), p->past_length[sensor] - 1);
        return past[(at + PULP_PAST - age) % PULP_PAST];
    }
    case PULP_SWAPPED:
        return amount >= 0 && amount < PULP_SENSORS ? p->truth[(int)amount] : truth;
    default:
        return truth;
    }
}
