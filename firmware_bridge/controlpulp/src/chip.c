/*
 * Published constants of the managed processor and its power model.
 *
 * Levels and clocks: the ControlPULP control firmware. Static power of a core, in watts, V in volts and T in degrees
 * Celsius up to 125: (0.32429 V + 0.52804) exp(4.507748 V + 0.029903 T - 6.033035), the published plant. Here it is the
 * product of a table over levels (at 0 C) and a table over temperature; tests compare both with the formula.
 */
#include "chip.h"

/* ---- tables ---- */

const int32_t chip_freq_khz[LEVELS] = {
    1350000, 1600000, 1800000, 2000000, 2200000, 2400000, 2600000, 2750000, 2900000, 3050000, 3200000, 3350000,
    3450000, 3550000, 3660000,
};
const int32_t chip_volt_mv[LEVELS] = {
    500, 550, 600, 650, 700, 750, 800, 850, 900, 950, 1000, 1050, 1100, 1150, 1200,
};

/* V^2 * 1e-6 in Q40: femtofarad * kilohertz * this = microwatts */
static const int32_t volt2_q40[LEVELS] = {
    274878, 332602, 395824, 464544, 538761, 618475, 703687, 794397, 890604, 992309, 1099512, 1212212, 1330409,
    1454104, 1583297,
};

static const int32_t leak_at_0c_uw[LEVELS] = {
    15765, 20215, 25906, 33184, 42486, 54369, 69546, 88922, 113650, 145197, 185432, 236730, 302114, 385427, 491556,
};

/* exp(0.029903 T) in Q16, T = 0..126 C */
static const int32_t leak_growth_q16[127] = {
    65536, 67525, 69575, 71687, 73863, 76105, 78415, 80795, 83248, 85775, 88379, 91061, 93825, 96673, 99608, 102631,
    105747, 108957, 112264, 115672, 119183, 122801, 126528, 130369, 134326, 138404, 142605, 146934, 151394, 155989,
    160724, 165603, 170630, 175809, 181146, 186644, 192310, 198147, 204162, 210359, 216745, 223324, 230103, 237087,
    244284, 251699, 259339, 267212, 275323, 283680, 292291, 301163, 310305, 319724, 329429, 339429, 349732, 360348,
    371286, 382557, 394169, 406134, 418462, 431164, 444252, 457737, 471631, 485948, 500698, 515897, 531557, 547692,
    564317, 581446, 599096, 617281, 636018, 655325, 675217, 695713, 716831, 738590, 761009, 784109, 807911, 832435,
    857703, 883738, 910563, 938203, 966682, 996025, 1026259, 1057411, 1089508, 1122580, 1156655, 1191765, 1227940,
    1265214, 1303619, 1343190, 1383962, 1425971, 1469256, 1513855, 1559807, 1607155, 1655939, 1706205, 1757996,
    1811359, 1866342, 1922994, 1981366, 2041509, 2103478, 2167329, 2233117, 2300902, 2370745, 2442708, 2516856,
    2593254, 2671971, 2753077, 2836646,
};

/* ---- power model ---- */

/* The lowest level whose highest clock covers the wanted one. */
int32_t chip_level_for(int32_t freq_khz)
{
    int32_t level = 0;
    while (level < LEVELS - 1 && chip_freq_khz[level] < freq_khz) /* at most LEVELS times */
        level++;
    return level;
}

/* 1e6 fF * 3.66e6 kHz is 42 bits: 16 go before the second product, which loses 7e-8 of the result. */
static int32_t dynamic_uw(int32_t capacitance_ff, int32_t freq_khz, int32_t scale_q40)
{
    int64_t switched = ((int64_t)capacitance_ff * freq_khz) >> 16;
    return (int32_t)((switched * scale_q40) >> 24);
}

int32_t chip_dynamic_uw(int32_t capacitance_ff, int32_t freq_khz, int32_t level)
{
    return dynamic_uw(capacitance_ff, freq_khz, volt2_q40[level]);
}

/* The same at a voltage between two levels, which the published law needs. 1 mV^2 * 1e-12 in Q40 is 1.09951. */
int32_t chip_dynamic_at_uw(int32_t capacitance_ff, int32_t freq_khz, int32_t volt_mv)
{
    int32_t scale_q40 = (int32_t)(((int64_t)volt_mv * volt_mv * 72057) >> 16);
    return dynamic_uw(capacitance_ff, freq_khz, scale_q40);
}

/*
 * n / d, rounded down; UINT32_MAX where it does not fit. Long division by halves of a word (Knuth, The Art of Computer
 * Programming 4.3.1, algorithm D): two divide instructions of 32 bits. The compiler's division of 64 bits takes some 400
 * cycles on a core without a divider of that width, and the slots with most work have a hundred of them.
 */
uint32_t divide(uint64_t n, uint32_t d)
{
    uint32_t high = (uint32_t)(n >> 32), low = (uint32_t)n, quotient = 0;
    if (high >= d)
        return UINT32_MAX;
    if (high == 0)
        return low / d;
    int shift = 0; /* until the highest bit of d is set; cores without Zbb have no instruction for it */
    for (int bits = 16; bits; bits /= 2) /* at most 5 times */
        if (d << shift >> (32 - bits) == 0)
            shift += bits;
    d <<= shift;
    if (shift) {
        high = high << shift | low >> (32 - shift);
        low <<= shift;
    }
    uint32_t d_high = d >> 16, d_low = d & 0xffff;
    for (int half = 0; half < 2; half++) {
        uint32_t next = low >> 16;
        uint32_t digit = high / d_high, rest = high - digit * d_high;
        while (rest < 0x10000 && (digit > 0xffff || digit * d_low > (rest << 16 | next))) { /* at most 2 times */
            digit--;
            rest += d_high;
        }
        high = (high << 16 | next) - digit * d;
        low <<= 16;
        quotient = quotient << 16 | digit;
    }
    return quotient;
}

/* uW per kHz in Q24; below 2^32 for 36 cores with the highest capacitance that chip_bound_readings lets pass. */
static uint32_t per_khz_q24(int32_t capacitance_ff, int32_t level)
{
    return (uint32_t)(((int64_t)capacitance_ff * volt2_q40[level]) >> 16);
}

/* The clock at which a capacitance draws a dynamic power, rounded down; unlimited for a core without work. */
int32_t chip_freq_for(int32_t power_uw, int32_t capacitance_ff, int32_t level)
{
    uint32_t per_khz = per_khz_q24(capacitance_ff, level);
    if (power_uw <= 0)
        return 0;
    if (per_khz == 0)
        return INT32_MAX;
    uint32_t freq = divide((uint64_t)power_uw << 24, per_khz);
    return freq > INT32_MAX ? INT32_MAX : (int32_t)freq;
}

/* The lower of that clock and a limit. Multiplies first: most limits are reached, and then there is nothing to divide. */
int32_t chip_freq_within(int32_t power_uw, int32_t capacitance_ff, int32_t level, int32_t limit_khz)
{
    if (power_uw > 0 && (uint64_t)per_khz_q24(capacitance_ff, level) * (uint32_t)limit_khz <= (uint64_t)power_uw << 24)
        return limit_khz;
    return min32(chip_freq_for(power_uw, capacitance_ff, level), limit_khz);
}

int32_t chip_leak_factor_q16(int32_t temperature_mk)
{
    uint32_t mc = (uint32_t)clamp32(temperature_mk - 273150, 0, 125000);
    uint32_t whole = thousandth(mc), part = mc - whole * 1000;
    uint32_t low = (uint32_t)leak_growth_q16[whole], high = (uint32_t)leak_growth_q16[whole + 1];
    return (int32_t)(low + thousandth((high - low) * part)); /* the greatest step of the table times 999 has 27 bits */
}

int32_t chip_leak_uw(int32_t factor_q16, int32_t level)
{
    return mul_q16(leak_at_0c_uw[level], factor_q16);
}

/* ---- readings ---- */

/*
 * Makes sure that no reading overflows the law: an impossible value counts as a failed sensor. A core whose activity
 * cannot be read counts as a heavy one (class 3), so that an error keeps power below the cap.
 */
void chip_bound_readings(struct sensors *s)
{
    for (int i = 0; i < CORES; i++) {
        if (s->temperature_mk[i] < 0 || s->temperature_mk[i] > 1000000)
            s->temperature_mk[i] = SENSOR_FAULT;
        if (s->capacitance_ff[i] < 0)
            s->capacitance_ff[i] = 2038519;
        s->capacitance_ff[i] = min32(s->capacitance_ff[i], 4000000);
    }
    for (int p = 0; p < POWER_DOMAINS; p++)
        if (s->power_uw[p] < 0 || s->power_uw[p] > 1000000000)
            s->power_uw[p] = SENSOR_FAULT;
}

/* ---- self-check ---- */

/* Bit 0: a table is not ascending; bit 1: arithmetic differs from that of the build machine. */
uint32_t chip_check(void)
{
    uint32_t failed = 0;
    for (int i = 1; i < LEVELS; i++)
        if (chip_freq_khz[i] <= chip_freq_khz[i - 1] || volt2_q40[i] <= volt2_q40[i - 1] ||
            leak_at_0c_uw[i] <= leak_at_0c_uw[i - 1])
            failed |= 1;
    for (int i = 1; i < 127; i++)
        if (leak_growth_q16[i] <= leak_growth_q16[i - 1])
            failed |= 1;
    if (chip_dynamic_uw(1975432, 3660000, LEVELS - 1) != 10411318 ||
        chip_leak_uw(chip_leak_factor_q16(353150), 8) != 1243100 || mul_q16(-3, 65535) != -3)
        failed |= 2;
    return failed;
}
