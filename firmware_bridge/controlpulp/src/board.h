/*
 * The interface to the machine that the firmware runs on. A board supplies struct board and these functions; nothing
 * else in src/ accesses hardware, memory maps or clocks. Boards: host (a library in virtual time), posix (a process),
 * rv32 (bare metal).
 */
#ifndef BOARD_H
#define BOARD_H

#include "chip.h"

#define AGENTS 3
#define SMT_PAYLOAD_WORDS 33 /* the SCMI-MU's 33 payload registers */
#define FAST_WORDS 64        /* FastChannel window of one agent */

struct board;

/* One shared-memory area (DEN0056 chapter 5). The other side may write it at any time: copy first, then validate. */
struct smt_area {
    volatile uint32_t reserved0;
    volatile uint32_t status; /* bit 0 free, bit 1 error */
    volatile uint32_t reserved1[2];
    volatile uint32_t flags;  /* bit 0: completion by interrupt */
    volatile uint32_t length; /* header and payload, bytes */
    volatile uint32_t header;
    volatile uint32_t payload[SMT_PAYLOAD_WORDS];
};

enum smt_direction { SMT_COMMANDS, SMT_EVENTS };

/* ---- chip ---- */
void board_read(struct board *b, struct sensors *out);
void board_actuate(struct board *b, const struct operating_point *point); /* the whole point takes effect at once */
uint64_t board_time_us(struct board *b);
void board_kick_watchdog(struct board *b);

/* ---- mailbox ---- */
struct smt_area *board_area(struct board *b, int channel, enum smt_direction direction);
bool board_take_doorbell(struct board *b, int channel);  /* reads and clears */
void board_complete(struct board *b, int channel);       /* completion interrupt of a command */
void board_signal_event(struct board *b, int channel);   /* a message lies in the events area */
volatile uint32_t *board_fast_window(struct board *b, int channel); /* NULL: its agent cannot reach our memory */
uint64_t board_fast_address(struct board *b, int channel); /* as the agent sees it */
void board_barrier(struct board *b);

#endif
