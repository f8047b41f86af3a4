/*
 * The posix board: the controller as a process, in real time.
 *
 * A timer gives the 125 us tick; agents ring eventfds; between events the process sleeps in epoll_wait. Like on bare
 * metal there is one thread, and interrupts are taken between jobs, so the executive's priorities hold: a message waits
 * for fast and control. A process may be kept from running; ticks that came meanwhile merge, and telemetry counts them.
 */
#ifndef POSIX_BOARD_H
#define POSIX_BOARD_H

#include "../../src/firmware.h"
#include "channel.h"
#include "plant.h"

struct board {
    struct firmware firmware;
    struct channel channels[AGENTS];
    struct plant plant;      /* it == NULL: none, the sensors cannot be read */
    int32_t *wires[WIRES];
    int epoll, timer, signals;
    int64_t start_ns;
    uint32_t kicks;
    bool is_stopping;
};

/* False with errno set. The channels are open, the plant loaded. */
bool board_start(struct board *b, const struct options *options);
void board_serve(struct board *b); /* until SIGTERM or SIGINT */

#endif
