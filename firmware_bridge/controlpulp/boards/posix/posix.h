/*
 * The posix board: the controller as a process, in real time.
 *
 * A timer gives the 125 us tick, agents ring eventfds, and between events the process sleeps in epoll_wait. As on bare
 * metal there is one thread, and interrupts are taken between jobs, so the executive's priorities apply: a message
 * waits for the fast and the control job. While the process does not get the CPU, its ticks merge; telemetry counts
 * them.
 */
#ifndef POSIX_BOARD_H
#define POSIX_BOARD_H

#include "../../src/firmware.h"
#include "channel.h"
#include "plant.h"

struct board {
    struct firmware firmware;
    struct channel channels[AGENTS];
    struct plant plant;      /* it == NULL: no plant, the sensors cannot be read */
    int32_t *wires[WIRES];
    struct signaller signaller;
    int epoll, timer, signals;
    int64_t start_ns;
    uint32_t kicks;
    bool is_stopping;
};

/* Returns false with errno set. The channels are open and the plant is loaded. */
bool board_start(struct board *b, const struct options *options);
void board_serve(struct board *b); /* until SIGTERM or SIGINT */

#endif
