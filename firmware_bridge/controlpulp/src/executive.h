/*
 * A rate-monotonic executive for three jobs, without preemption.
 *
 * The shortest period has the highest priority, and a job runs to completion. The longest job (control) takes about one
 * fast period at 500 MHz, so a fast job may start some microseconds late once per slot, but none is lost. Preemption
 * would need a stack per task and would cause races on the actuators. Messages have a lower priority than control:
 * whatever agents send, no control slot waits for more than one message. Messages cannot starve either: after
 * STARVE_LIMIT control jobs in a row one message is served.
 */
#ifndef EXECUTIVE_H
#define EXECUTIVE_H

#include <stdbool.h>
#include <stdint.h>

#define TICK_US 125
#define TICKS_PER_SLOT 4
#define SLOT_US (TICK_US * TICKS_PER_SLOT)
#define STARVE_LIMIT 4

enum job { JOB_FAST, JOB_CONTROL, JOB_MESSAGES, JOBS, JOB_NONE = JOBS };

struct executive {
    bool polled;               /* as published: messages once per slot, after control, not by doorbell */
    uint32_t ticks;
    bool ready[JOBS];
    uint32_t overruns[JOBS];   /* released again before it had run: the two releases merge */
    uint32_t jobs[JOBS];
    uint32_t passed_over;      /* control jobs run while a message was waiting */
};

void executive_tick(struct executive *e);      /* timer interrupt, every TICK_US */
void executive_doorbell(struct executive *e);  /* doorbell interrupt */
enum job executive_take(struct executive *e);  /* the job to run now; JOB_NONE: idle */

#endif
