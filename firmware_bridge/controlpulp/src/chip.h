/*
 * The managed processor: 36 cores, 4 voltage domains, 15 voltage levels, as published with the ControlPULP firmware.
 *
 * Arithmetic is integer everywhere, in units that keep every value inside 32 bits: microwatts, kilohertz, millivolts,
 * millikelvin, and femtofarad for the effective capacitance of a core (P = C f V^2). A product of two of them needs 64
 * bits for one step; nothing depends on the width of int or on rounding modes, so a host and an RV32 core decide alike
 * bit for bit.
 */
#ifndef CHIP_H
#define CHIP_H

#include <stdbool.h>
#include <stdint.h>

#define CORES 36
#define DOMAINS 4
#define DOMAIN_CORES 9
#define LEVELS 15
#define POWER_DOMAINS 5 /* 0 the package, then the voltage domains */

#define FREQ_MIN_KHZ 400000
#define FREQ_MAX_KHZ 3660000
#define VOLT_MIN_MV 500 /* chip_volt_mv[0], for who may not trust the tables */
#define CORE_MAX_UW 9000000 /* ceiling of one core, published */
#define CORE_IDLE_UW 300000 /* a core that has finished its work, published */
#define SENSOR_FAULT INT32_MIN

extern const int32_t chip_freq_khz[LEVELS]; /* highest clock of a voltage level */
extern const int32_t chip_volt_mv[LEVELS];

/* What the controller reads. A missing reading is SENSOR_FAULT, never zero. */
struct sensors {
    int32_t temperature_mk[CORES];
    int32_t capacitance_ff[CORES];  /* from the activity counters; 0: the core has no work */
    int32_t power_uw[POWER_DOMAINS];
};

/* What the controller writes: one decision, applied as a whole. */
struct operating_point {
    int32_t freq_khz[CORES];
    int32_t level[DOMAINS];
};

/* The agents' requests, arbitrated. */
struct demand {
    int32_t target_khz[DOMAINS];
    int32_t cap_uw[POWER_DOMAINS]; /* 0: no cap */
};

/* Why a core runs below its target: a bitmap per core. */
enum reason {
    REASON_CORE_POWER = 1 << 0,  /* the 9 W of one core */
    REASON_PACKAGE_CAP = 1 << 1,
    REASON_DOMAIN_CAP = 1 << 2,
    REASON_THERMAL = 1 << 3,     /* PID */
    REASON_EMERGENCY = 1 << 4,   /* hysteresis */
    REASON_VOLTAGE = 1 << 5,     /* the clock that the domain's voltage allows */
    REASON_SENSOR = 1 << 6,      /* the temperature in use is a substitute */
    REASON_BYPASS = 1 << 7,      /* a lower request was applied ahead of the control slot */
    REASON_SAFE = 1 << 8,        /* the self-check failed: lowest operating point */
    REASON_GUARD = 1 << 9,       /* sensors contradict each other or a cap: safe level (guard.c) */
    REASON_STEP = 1 << 10,       /* the guard makes a step of its own (guard.c) */
};

/* ---- power model ---- */

int32_t chip_level_for(int32_t freq_khz);
int32_t chip_dynamic_uw(int32_t capacitance_ff, int32_t freq_khz, int32_t level);
int32_t chip_dynamic_at_uw(int32_t capacitance_ff, int32_t freq_khz, int32_t volt_mv);
uint32_t divide(uint64_t n, uint32_t d);
int32_t chip_freq_for(int32_t dynamic_uw, int32_t capacitance_ff, int32_t level);
int32_t chip_freq_within(int32_t dynamic_uw, int32_t capacitance_ff, int32_t level, int32_t limit_khz);
int32_t chip_leak_factor_q16(int32_t temperature_mk);
int32_t chip_leak_uw(int32_t factor_q16, int32_t level);
uint32_t chip_check(void);
void chip_bound_readings(struct sensors *s);

static inline int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t clamp32(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

/* x * factor, factor in Q16; the shift of a negative product is arithmetic on every compiler we use, and tested. */
static inline int32_t mul_q16(int32_t x, int32_t factor_q16) { return (int32_t)(((int64_t)x * factor_q16) >> 16); }

/* x / 1000; the compiler would divide, for 34 cycles. 274877907 is 2^38 / 1000, rounded up: exact for 32 bits. */
static inline uint32_t thousandth(uint32_t x) { return (uint32_t)((uint64_t)x * 274877907 >> 38); }

/*
 * x * 65536 / factor, rounded down, for x >= 0 and a factor of 1/2 to 2 in Q16, by its inverse floor((2^47 - 1) / factor):
 * the product is too low by less than one, which a second multiplication finds. A quarter of a division.
 */
static inline uint32_t inverse_of_q16(int32_t factor_q16) { return divide((1ull << 47) - 1, (uint32_t)factor_q16); }

static inline uint32_t inverse_q16(int32_t x, int32_t factor_q16, uint32_t inverse)
{
    uint32_t quotient = (uint32_t)((uint64_t)(uint32_t)x * inverse >> 31);
    return quotient + ((uint64_t)(quotient + 1) * (uint32_t)factor_q16 <= (uint64_t)(uint32_t)x << 16);
}

#endif
