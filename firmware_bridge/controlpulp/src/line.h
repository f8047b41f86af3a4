/*
 * SCMI over a serial line: frames, repetition, and recovery from damage (docs/scmi.md, "Serial frames").
 *
 * The line is one more sender into an agent's mailbox: a command frame becomes a message in that agent's area and a
 * doorbell, so the priorities, the fairness and the limit on starvation are those of all messages. The board's
 * interrupt moves bytes (line_receive, line_transmit). Frames are decoded between jobs (line_step); the rings need no
 * lock, since each index has one writer. The work of a step is bounded whatever comes in: one candidate for a frame,
 * hence at most one CRC over 260 bytes, and one frame out.
 *
 * In lock step (rigs only) the line also carries time: a SENSORS frame runs one control slot, an ACTUATORS frame is its
 * result. A line that is slower than the chip then slows the chip down instead of starving it.
 */
#ifndef LINE_H
#define LINE_H

#include "board.h"

#define LINE_PAYLOAD 256u
#define LINE_RING 512u         /* room for the largest frame (264) and half of the next; a power of two */
#define LINE_SILENT_TICKS 160u /* 20 ms without a byte end a frame */
#define LINE_SENSOR_BYTES (3 * (2 * CORES) + 4 * POWER_DOMAINS)
#define LINE_ACTUATOR_BYTES (3 * CORES + 2 * DOMAINS)

enum line_kind {
    LINE_HELLO = 1,
    LINE_WELCOME,
    LINE_COMMAND,
    LINE_RESPONSE,
    LINE_EVENT,
    LINE_NAK,
    LINE_SENSORS,
    LINE_ACTUATORS,
    LINE_RESET,
};

struct line_ring {
    uint8_t byte[LINE_RING];
    volatile uint32_t in, out; /* bytes written and taken so far, modulo 2^32 */
};

struct line {
    struct board *board;
    int channel;         /* the agent at the other end */
    bool is_lock_step;
    struct line_ring rx, tx;
    volatile uint32_t silent_ticks;

    bool has_sequence;   /* of the last command */
    uint8_t sequence;
    bool is_in_flight;   /* the channel's area has a command from this line */
    bool is_wanted;      /* its response: not after a HELLO */
    bool has_response, response_due;
    uint32_t response_bytes, response[1 + SMT_PAYLOAD_WORDS];
    uint8_t events;

    bool has_slot, slot_due, actuators_due, reset_due;
    uint8_t slot_sequence;
    struct sensors sensors;
    uint8_t actuators[LINE_ACTUATOR_BYTES];
};

void line_init(struct line *l, struct board *board, int channel, bool is_lock_step);

/* ---- for the board's interrupt ---- */
bool line_has_room(const struct line *l);
void line_receive(struct line *l, uint8_t byte); /* drops the byte when there is no room */
int32_t line_transmit(struct line *l);           /* the next byte to send, or -1 */
bool line_is_sending(const struct line *l);
void line_tick(struct line *l);                  /* every TICK_US */

/* ---- between jobs ---- */
bool line_step(struct line *l); /* false: nothing to do until a byte, a response or an event comes */
void line_slot_done(struct line *l, const struct operating_point *point);

/* ---- from the board ---- */
void board_ring(struct board *b, int channel); /* the channel's doorbell, rung by the line */

#endif
