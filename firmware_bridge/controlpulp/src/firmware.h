/*
 * The controller as a whole: executive, control law, requests, SCMI platform. One struct, no allocation, no globals.
 *
 * A board calls firmware_init once, firmware_tick from its timer (125 us), firmware_doorbell from its mailbox interrupt
 * and firmware_run whenever it has time; firmware_run does one job and says which.
 *
 * Units, from the bottom up. A unit calls units of earlier lines and the board (board.h), no others; units of one line
 * do not call each other. `+` joins files that are one unit: control.c runs both laws and has what they share.
 * tests/test_c_units.py compares this list with the compiled objects.
 *
 *   chip
 *   allocate, executive, guard, line, meter, requests
 *   control + published
 *   scmi_service
 *   fast_window
 *   scmi_base, scmi_clock, scmi_performance, scmi_powercap, scmi_sensor, scmi_system, scmi_telemetry
 *   fast_channel, scmi
 *   mailbox
 *   firmware
 */
#ifndef FIRMWARE_H
#define FIRMWARE_H

#include "control.h"
#include "executive.h"
#include "meter.h"
#include "scmi.h"

#ifndef FIRMWARE_BUILD_ID
#define FIRMWARE_BUILD_ID 0x00010000u /* 0.1.0 */
#endif

/* Build options of a board. The published firmware has its law, polled messages and no bypass. */
struct options {
    enum law law;
    bool polled_messages;
    bool bypass; /* apply lower requests ahead of the control slot */
    int32_t step_after; /* STEP_AFTER, or another number of slots; 0: the guard makes no steps of its own */
};

struct firmware {
    struct board *board;
    struct options options;
    struct executive executive;
    struct control control;
    struct requests requests;
    struct meter meter;
    struct scmi scmi;
    struct sensors sensors;      /* as read by the last control job */
    uint32_t slots;              /* control jobs so far */
    uint32_t kicked_slot, quiet_ticks;
    uint32_t failed_checks;
    bool bypass_due[DOMAINS], voltage_due[DOMAINS];
    uint32_t bypasses;
};

void firmware_init(struct firmware *fw, struct board *board, const struct options *options);
void firmware_tick(struct firmware *fw);
void firmware_doorbell(struct firmware *fw);
enum job firmware_run(struct firmware *fw);
void firmware_do(struct firmware *fw, enum job job); /* the second half of firmware_run, for boards in virtual time */

#endif
