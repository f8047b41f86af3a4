/*
 * The control law: from sensors and demand to the next operating point, once per control slot (500 us).
 *
 * Two laws share this state and interface, so that both run on the same plant: ours (control.c, allocate.c) and the
 * published one, rebuilt from its description (published.c). A decision taken in slot k is applied as a whole, clocks
 * and voltages together, at the start of slot k + 1; applying them in different slots makes the loop oscillate.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include "chip.h"

enum law { LAW_OURS, LAW_PUBLISHED };

/* Which checks of the guard found a contradiction (guard.c). */
enum guard_fault {
    GUARD_SUM = 1 << 0,    /* package against the sum of the domains */
    GUARD_MODEL = 1 << 1,  /* measured against modelled power */
    GUARD_CAP = 1 << 2,    /* measured power stays above a cap */
    GUARD_HEAT = 1 << 3,   /* temperatures against the thermal model */
    GUARD_FROZEN = 1 << 4, /* too many temperatures are frozen or cannot be read */
};

#ifndef STEP_AFTER
#define STEP_AFTER 131072 /* ours: 65.5 s; 0: the guard never makes a step of its own */
#endif

struct guard {
    uint32_t faults, ever;                 /* in this slot; since the start */
    uint32_t alarms;                       /* how often the safe level began */
    int32_t safe_slots, penalty;                 /* slots that it still lasts; lasts after a fault */
    int32_t worst_uw[LEVELS + 1];          /* of one core: rung 0 is the lowest clock */
    int32_t sum_error_uw;                  /* package less rails, filtered */
    int32_t scatter_uw;                    /* their distance above what is allowed, filtered */
    int32_t excess_uw, leak_uw, model_uw;  /* measured less modelled power, modelled leakage and power; filtered */
    int32_t sum_slots, model_slots[POWER_DOMAINS], cap_slots[POWER_DOMAINS], heat_slots, failed_slots, start_slots,
        scatter_slots, leak_slots;
    int32_t recent_cap_uw[2][POWER_DOMAINS];
    bool has_caps, has_heat;
    int32_t silicon, copper, sink, ambient; /* thermal model, 1/256 mK */
    int32_t slow_expected, slow_mean;      /* filtered: silicon and copper, mean temperature; 1/256 mK */
    int32_t moved, answered;               /* squares of moves of the one; times those of the other */
    int32_t sound, mean;                   /* sound sensors and their mean, 1/256 mK, of the slot before */
    int32_t answer_slots, quiet_slots, step_slots; /* no step for so long; so long goes our own step on */
    int32_t step_after;                    /* slots without a step until the guard makes one; 0: never */
    int32_t warm, warm_at_change[CORES];   /* sink above the ambient by power alone; when a reading last changed */
    int32_t core_uw[CORES], core_uw_at_change[CORES]; /* filtered */
    int32_t slow_uw[CORES];                           /* filtered again, as copper warms */
    uint8_t frozen_slots[CORES], odd_slots[CORES];
    bool has_failed[CORES];                /* temperature implausible, stuck or frozen */
};

/* What one domain may choose: rungs of clock and level in ascending order of power, and what each costs. */
struct ladder {
    int32_t rungs;
    int32_t freq_khz[LEVELS + 1], level[LEVELS + 1], power_uw[LEVELS + 1];
    int32_t busy;             /* cores with work */
    int32_t capacitance_ff;   /* of all of them */
    int32_t leak_factor_q16;  /* of all of them */
    int32_t idle_uw;          /* of the finished ones */
    int32_t gain_q16;
    uint32_t gain_inverse;    /* inverse_of_q16 */
    int32_t limit_uw;         /* the domain's cap, INT32_MAX without */
};

/* A clock per domain at a level, and what the allocation expects of it. */
struct allocation {
    int32_t freq_khz[DOMAINS], level[DOMAINS];
    int64_t work_khz;         /* sum over cores with work */
    int64_t power_uw;
};

struct control {
    enum law law;
    bool safe;                             /* self-check failed */
    struct operating_point next, in_force; /* decided; applied */
    struct operating_point measured;       /* in force over the slot that the power readings are of */
    bool disturbed;                        /* the point in force changed within the slot: no adaptation */
    int32_t kept_slots;                    /* voltage levels unchanged for so long */

    int32_t capacitance_ff[CORES];         /* filtered */
    int32_t temperature_mk[CORES];         /* as used: substituted where a sensor failed */
    int32_t last_reading_mk[CORES], same_reading[CORES];
    int32_t leak_factor_q16[CORES];
    int32_t gain_q16[DOMAINS];             /* measured over modelled power */
    int32_t integral_uw16[CORES];          /* PID, 1/16 uW */
    uint16_t emergency[CORES];             /* latched by hysteresis */
    uint16_t reasons[CORES];
    int32_t kept_level[DOMAINS];           /* allocation of the last slot */
    bool has_allocation;
    int32_t margin_uw;                     /* package cap minus expected power; INT32_MAX without a cap */

    struct guard guard;

    int32_t correction_uw, budget_uw, budget_slots; /* published law */
    int32_t expected_uw[2];                /* published law: model power of the decisions before the last, and last */
};

void control_init(struct control *c, enum law law, int32_t step_after);
void control_step(struct control *c, const struct sensors *in, const struct demand *want);

/* Used by both laws. */
void control_substitute(struct control *c, const struct sensors *in);
int32_t control_thermal_uw(struct control *c, int core, int32_t power_uw, int32_t idle_uw);
void control_emergency(struct control *c, int core);
void published_step(struct control *c, const struct sensors *in, const struct demand *want);

/* guard.c */
void guard_init(struct guard *g, int32_t step_after);
bool guard_distrusts(struct guard *g, int core, bool is_same);
int32_t guard_expected_mk(const struct guard *g);
void guard_step(struct guard *g, const struct control *c, const struct sensors *in, const struct demand *want,
                const int64_t model_uw[DOMAINS], int64_t leak_uw, struct demand *limited);

/* allocate.c */
void ladder_build(struct ladder *l, const struct control *c, const struct sensors *in, int domain, int32_t target_khz,
                  int32_t cap_uw);
int32_t ladder_power_uw(const struct ladder *l, int32_t freq_khz, int32_t level);
void allocate(const struct ladder ladders[DOMAINS], int32_t budget_uw, struct allocation *best);
bool allocate_kept(const struct ladder ladders[DOMAINS], int32_t budget_uw, const int32_t kept_level[DOMAINS],
                   struct allocation *out);

#endif
