/*
 * The rv32 board: bare metal on rv32imac, one image for QEMU `virt`, Unicorn and an FPGA with the same map.
 *
 * The machine timer (CLINT, 10 MHz) gives the 125 us tick; a software interrupt (msip) is the doorbell. Between events
 * the core waits in WFI. Wires, mailboxes and FastChannels lie in RAM that the host shares, in the layout of
 * struct shared; there is no libc, and no floating point.
 */
#include "../../src/firmware.h"

#ifndef CLINT_BASE
#define CLINT_BASE 0x02000000u
#endif
#define TIMEBASE_HZ 10000000u
#define TICK_TIME (TIMEBASE_HZ / 1000000u * TICK_US)
#define MAGIC 0x504c4350u /* "PCLP" */

#define MSTATUS_MIE 8u
#define MIE_SOFTWARE 8u
#define MIE_TIMER 0x80u
#define CAUSE_SOFTWARE 0x80000003u
#define CAUSE_TIMER 0x80000007u

#ifndef PUBLISHED
#define PUBLISHED 0
#endif

/* At 0x80080000. Word order is the order here; the host side of every rig reads this struct. */
struct shared {
    uint32_t magic, build;
    int32_t temperature_mk[CORES], capacitance_ff[CORES], power_uw[POWER_DOMAINS];
    int32_t freq_khz[CORES], volt_mv[DOMAINS];
    uint32_t actuations, kicks, events;
    uint32_t doorbell[AGENTS], completion[AGENTS];
    struct smt_area areas[AGENTS][2];
    uint32_t fast[AGENTS][FAST_WORDS];
};

__attribute__((section(".shared"))) static volatile struct shared shared;

struct board {
    struct firmware firmware;
    uint64_t next_tick;
    volatile uint32_t ticks_due, doorbells_due;
};

static struct board the_board;

/* ---- what the compiler asks for ---- */

void *memset(void *to, int value, __SIZE_TYPE__ n)
{
    uint8_t *at = to;
    while (n--)
        *at++ = (uint8_t)value;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, __SIZE_TYPE__ n)
{
    uint8_t *at = to;
    const uint8_t *source = from;
    while (n--)
        *at++ = *source++;
    return to;
}

/* ---- clock ---- */

static volatile uint32_t *clint(uint32_t offset) { return (volatile uint32_t *)(uintptr_t)(CLINT_BASE + offset); }

static uint64_t time_now(void)
{
    uint32_t high, low;
    do {
        high = *clint(0xbffc);
        low = *clint(0xbff8);
    } while (*clint(0xbffc) != high);
    return (uint64_t)high << 32 | low;
}

/* The high word first goes to its greatest, so that no moment in between looks past. */
static void set_timer(uint64_t at)
{
    *clint(0x4004) = UINT32_MAX;
    *clint(0x4000) = (uint32_t)at;
    *clint(0x4004) = (uint32_t)(at >> 32);
}

void board_trap(uint32_t cause)
{
    if (cause == CAUSE_TIMER) {
        the_board.next_tick += TICK_TIME;
        the_board.ticks_due++;
        set_timer(the_board.next_tick);
    } else if (cause == CAUSE_SOFTWARE) {
        *clint(0) = 0;
        the_board.doorbells_due++;
    }
}

/* ---- chip ---- */

void board_read(struct board *b, struct sensors *out)
{
    (void)b;
    for (int i = 0; i < CORES; i++) {
        out->temperature_mk[i] = shared.temperature_mk[i];
        out->capacitance_ff[i] = shared.capacitance_ff[i];
    }
    for (int p = 0; p < POWER_DOMAINS; p++)
        out->power_uw[p] = shared.power_uw[p];
}

/* The count is written last: who reads the same count before and after has read one decision. */
void board_actuate(struct board *b, const struct operating_point *point)
{
    for (int i = 0; i < CORES; i++)
        shared.freq_khz[i] = point->freq_khz[i];
    for (int d = 0; d < DOMAINS; d++)
        shared.volt_mv[d] = chip_volt_mv[point->level[d]];
    board_barrier(b);
    shared.actuations++;
}

uint64_t board_time_us(struct board *b)
{
    (void)b;
    return time_now() / (TIMEBASE_HZ / 1000000u);
}

void board_kick_watchdog(struct board *b)
{
    (void)b;
    shared.kicks++;
}

/* ---- mailbox ---- */

struct smt_area *board_area(struct board *b, int channel, enum smt_direction direction)
{
    (void)b;
    return (struct smt_area *)&shared.areas[channel][direction];
}

bool board_take_doorbell(struct board *b, int channel)
{
    (void)b;
    bool is_rung = shared.doorbell[channel] != 0;
    shared.doorbell[channel] = 0;
    return is_rung;
}

void board_complete(struct board *b, int channel)
{
    (void)b;
    shared.completion[channel] = (uint32_t)channel + 1;
}

void board_signal_event(struct board *b, int channel)
{
    shared.events++;
    board_complete(b, channel);
}

volatile uint32_t *board_fast_window(struct board *b, int channel)
{
    (void)b;
    return shared.fast[channel];
}

uint64_t board_fast_address(struct board *b, int channel)
{
    (void)b;
    return (uintptr_t)&shared.fast[channel][0];
}

void board_barrier(struct board *b)
{
    (void)b;
    __asm__ volatile("fence rw, rw" ::: "memory");
}

/* ---- main ---- */

/* Flags are taken with interrupts off; WFI wakes for a pending interrupt even so, and none is lost in between. */
static void take_interrupts(struct board *b)
{
    __asm__ volatile("csrc mstatus, %0" ::"r"(MSTATUS_MIE));
    uint32_t ticks = b->ticks_due, doorbells = b->doorbells_due;
    b->ticks_due = b->doorbells_due = 0;
    __asm__ volatile("csrs mstatus, %0" ::"r"(MSTATUS_MIE));
    while (ticks--)
        firmware_tick(&b->firmware);
    if (doorbells)
        firmware_doorbell(&b->firmware);
}

static void wait(struct board *b)
{
    __asm__ volatile("csrc mstatus, %0" ::"r"(MSTATUS_MIE));
    if (b->ticks_due == 0 && b->doorbells_due == 0)
        __asm__ volatile("wfi");
    __asm__ volatile("csrs mstatus, %0" ::"r"(MSTATUS_MIE));
}

void board_main(void)
{
    static const struct options options = {
        .law = PUBLISHED ? LAW_PUBLISHED : LAW_OURS, .polled_messages = PUBLISHED, .bypass = !PUBLISHED};
    struct board *b = &the_board;
    for (int i = 0; i < CORES; i++)
        shared.temperature_mk[i] = SENSOR_FAULT;
    for (int p = 0; p < POWER_DOMAINS; p++)
        shared.power_uw[p] = SENSOR_FAULT;
    for (int c = 0; c < AGENTS; c++)
        shared.areas[c][SMT_COMMANDS].status = shared.areas[c][SMT_EVENTS].status = 1;
    firmware_init(&b->firmware, b, &options);
    shared.build = FIRMWARE_BUILD_ID;
    b->next_tick = time_now();
    set_timer(b->next_tick);
    shared.magic = MAGIC;
    __asm__ volatile("csrs mie, %0" ::"r"(MIE_SOFTWARE | MIE_TIMER));
    __asm__ volatile("csrs mstatus, %0" ::"r"(MSTATUS_MIE));
    for (;;) {
        take_interrupts(b);
        if (firmware_run(&b->firmware) == JOB_NONE)
            wait(b);
    }
}
