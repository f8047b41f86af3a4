/*
 * One agent's way in: a Unix socket at which the agent gets a mailbox in shared memory (docs/scmi.md, "Shared memory").
 *
 * Who connects to the socket is that agent, one at a time. It gets a fresh memory, sealed against change of size, and
 * four eventfds; from then on it is not trusted with anything but its own mailbox: it may write any byte at any time,
 * ring at any rate, keep descriptors after it has left. So the controller copies before it looks (src/mailbox.c), never
 * reads a bell (bells are watched by edge: an agent could make a read block), and looks before it rings one.
 */
#ifndef CHANNEL_H
#define CHANNEL_H

#include "../../src/board.h"

#include <sys/un.h>

/* Where areas and registers lie in the memory, bytes; registers are relative to their area. */
struct geometry {
    uint32_t a2p, p2a, doorbell, completion;
};

enum bell { A2P_DOORBELL, A2P_COMPLETION, P2A_DOORBELL, P2A_COMPLETION, BELLS };

/* What an epoll event is about, beside the channel's index. */
enum source { FROM_LISTENER, FROM_CONNECTION, FROM_DOORBELL, FROM_COMPLETION, SOURCES };

struct channel {
    uint32_t agent; /* its number, from 1 */
    struct sockaddr_un address;
    int epoll, listener, connection, bells[BELLS]; /* -1: none */
    bool is_deaf;                                  /* the listener waits for channel_listen_again */
    bool is_rung;                                  /* the agent has rung for a command */
    bool is_event_unread;
    bool is_message_only;                          /* its agent passes messages on for one who does not see the memory */
    const struct geometry *geometry;
    uint8_t *memory;
    uint32_t memory_bytes;
    struct smt_area absent[2]; /* stand in for the areas while nobody is connected or may be written to */
    uint32_t fast[FAST_WORDS]; /* keeps the FastChannels meanwhile: a fresh window must not look like written zeros */
};

const char *geometry_problem(const struct geometry *g); /* NULL: none */

/* False with errno set: cannot listen there. A socket left behind by a dead controller is replaced. */
bool channel_open(struct channel *c, uint32_t index, const char *path, const struct geometry *geometry, int epoll);
void channel_close(struct channel *c);

void channel_event(struct channel *c, enum source source);
void channel_listen_again(struct channel *c);

struct smt_area *channel_area(struct channel *c, enum smt_direction direction);
volatile uint32_t *channel_fast_window(struct channel *c);
uint32_t channel_fast_offset(const struct channel *c);
bool channel_take_doorbell(struct channel *c);
void channel_complete(struct channel *c);
void channel_signal_event(struct channel *c);

#endif
