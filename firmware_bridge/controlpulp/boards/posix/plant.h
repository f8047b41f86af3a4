/*
 * What the controller manages when there is no chip: a plant, in a shared library of its own that is loaded at start
 * (twin/pulp/library.c is one). It exports these two functions by name; board and plant share no other declaration.
 */
#ifndef PLANT_H
#define PLANT_H

#include <stdbool.h>
#include <stdint.h>

enum wire { WIRE_TEMPERATURE_MK, WIRE_CAPACITANCE_FF, WIRE_POWER_UW, WIRE_FREQ_KHZ, WIRE_VOLT_MV, WIRES };

struct plant {
    /* Opens a plant's state file and points wires at its sensors and actuators; NULL with errno set. */
    void *(*open)(const char *state, int32_t *wires[WIRES]);
    /* Brings it up to a moment of CLOCK_MONOTONIC; what the actuators say holds from there on. */
    void (*advance)(void *plant, int64_t now_ns);
    void *it;
};

/* Fills plant and wires; else what is wrong, in words that stay until the next call. */
const char *plant_load(struct plant *plant, const char *library, const char *state, int32_t *wires[WIRES]);

#endif
