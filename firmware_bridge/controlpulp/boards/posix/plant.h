/*
 * The emulated chip that the controller manages: a plant, in a shared library that is loaded at start
 * (twin/pulp/library.c is one). The library exports plant_open and plant_advance; board and plant share no other
 * declaration.
 */
#ifndef PLANT_H
#define PLANT_H

#include <stdbool.h>
#include <stdint.h>

enum wire { WIRE_TEMPERATURE_MK, WIRE_CAPACITANCE_FF, WIRE_POWER_UW, WIRE_FREQ_KHZ, WIRE_VOLT_MV, WIRES };

struct plant {
    /* Opens a plant's state file and points wires at its sensors and actuators; NULL with errno set. */
    void *(*open)(const char *state, int32_t *wires[WIRES]);
    /* Advances the plant to a time of CLOCK_MONOTONIC. Then the present actuator values take effect. */
    void (*advance)(void *plant, int64_t now_ns);
    void *it;
};

/* Fills plant and wires and returns NULL; else returns an error text, valid until the next call. */
const char *plant_load(struct plant *plant, const char *library, const char *state, int32_t *wires[WIRES]);

#endif
