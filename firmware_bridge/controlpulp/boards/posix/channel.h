/*
 * The channel of one agent: a Unix socket at which the agent gets a mailbox in shared memory (docs/scmi.md, "Shared
 * memory").
 *
 * Whoever connects to the socket is that agent, one at a time. It gets new memory, sealed against a change of size, and
 * four eventfds. From then on it is trusted with its own mailbox only: it may write any byte at any time, ring at any
 * rate, and keep descriptors after it has disconnected. So the controller copies a message before it checks it
 * (src/mailbox.c). It never reads or writes an eventfd, which an agent could make block, but watches it
 * edge-triggered and signals it (signaller.h).
 */
#ifndef CHANNEL_H
#define CHANNEL_H

#include "../../src/board.h"
#include "signaller.h"

#include <sys/un.h>

/* Where areas and registers lie in the memory, bytes; registers are relative to their area. */
struct geometry {
    uint32_t a2p, p2a, doorbell, completion;
};

enum bell { A2P_DOORBELL, A2P_COMPLETION, P2A_DOORBELL, P2A_COMPLETION, BELLS };

/* What an epoll event is about, in addition to the channel's index. */
enum source { FROM_LISTENER, FROM_CONNECTION, FROM_DOORBELL, FROM_COMPLETION, SOURCES };

struct channel {
    uint32_t agent; /* its number, from 1 */
    struct sockaddr_un address;
    int epoll, listener, connection, bells[BELLS]; /* -1: none */
    bool is_deaf;                                  /* the listener waits for channel_listen_again */
    bool is_rung;                                  /* the agent has rung the doorbell for a command */
    bool is_event_unread;
    bool is_message_only;                          /* its agent is a relay: the real one cannot reach the memory */
    const struct geometry *geometry;
    const struct signaller *signaller;
    uint8_t *memory;
    uint32_t memory_bytes;
    struct smt_area absent[2]; /* replace the areas while no agent is connected or its memory must not be written */
    uint32_t fast[FAST_WORDS]; /* FastChannel words meanwhile: a new, zeroed window must not look written */
};

const char *geometry_problem(const struct geometry *g); /* NULL: none */

/* Returns false with errno set if it cannot listen there. Replaces the socket of a dead controller. */
bool channel_open(struct channel *c, uint32_t index, const char *path, const struct geometry *geometry, int epoll,
                  const struct signaller *signaller);
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
