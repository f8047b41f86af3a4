/*
 * The rv32 board: bare metal on rv32imc, one source for QEMU `virt`, Unicorn, RTL and FPGAs (soc.h: what differs).
 *
 * The machine timer (CLINT, 10 MHz) gives the 125 us tick. The doorbell is a software interrupt (msip), or a word that
 * the tick polls. Between events the core waits in WFI. Wires, mailboxes and FastChannels are in RAM shared with the
 * host, laid out as struct shared. There is no libc and no floating point.
 *
 * The serial line (16550) has no interrupt of its own: the timer interrupt moves up to one FIFO (16 bytes) in each
 * direction. That is 128 kB/s, more than 921600 baud can deliver. It needs no PLIC, the control job cannot delay it,
 * and no flood of bytes can raise more interrupts than the timer does.
 *
 * A rig can control time (lock step): the image runs one tick per increment of ticks_given, or one control slot per
 * SENSORS frame on the line. The timer then only moves bytes.
 */
#include "../../src/firmware.h"
#include "../../src/line.h"
#include "soc.h"

#define TICK_TIME (TIMEBASE_HZ / 1000000u * TICK_US)
#define MAGIC 0x504c4350u   /* "PCLP" */
#define REFUSED 0x44414544u /* "DEAD": the image is damaged and does not run */

#define MSTATUS_MIE 8u

#define WATCHDOG_TICKS 400u /* 50 ms */

#ifndef PUBLISHED
#define PUBLISHED 0
#endif
#ifndef BYPASS
#define BYPASS 0
#endif

#ifndef LINE_CHANNEL
#define LINE_CHANNEL 0 /* the agent on the line: the first */
#endif
/* Source of time. A rig writes RIG | mode before the image starts; without that word the build option applies. */
enum time_mode { TIME_BY_TIMER, TIME_BY_WORD, TIME_BY_LINE };
#define RIG 0x52494700u /* "RIG" and the mode */
#ifndef LOCK_STEP
#define LOCK_STEP TIME_BY_TIMER
#endif

/* At 0x80080000. The host side of every rig reads this struct, so the order of its words is fixed. */
struct shared {
    uint32_t magic, build;
    int32_t temperature_mk[CORES], capacitance_ff[CORES], power_uw[POWER_DOMAINS];
    int32_t freq_khz[CORES], volt_mv[DOMAINS];
    uint32_t actuations, kicks, events;
    uint32_t doorbell[AGENTS], completion[AGENTS];
    struct smt_area areas[AGENTS][2];
    uint32_t fast[AGENTS][FAST_WORDS];
    uint32_t rig, ticks_given, ticks_done;
    uint32_t line_bytes, line_is_idle; /* bytes received so far; whether the image is idle and has sent everything */
    uint32_t restarts; /* by watchdog, exception or reset, since power-on */
};

__attribute__((section(".shared"))) static volatile struct shared shared;

struct board {
    struct firmware firmware;
    struct line line;
    bool has_line;
    enum time_mode mode;
    uint64_t next_tick;
    uint64_t given_ticks, given_us; /* lock step: how many, and the time of the last one */
    volatile uint32_t ticks_due, doorbells_due, unkicked_ticks;
    uint32_t fed_slot;
    uint32_t tree;
};

static struct board the_board;

/* ---- functions that the compiler calls ---- */

/* By words where both ends allow it: structures are most of what they get. */
void *memset(void *to, int value, __SIZE_TYPE__ n)
{
    uint8_t *at = to;
    if ((uintptr_t)at % 4 == 0) {
        uint32_t word = (uint8_t)value * 0x01010101u;
        for (; n >= 4; n -= 4, at += 4) /* at most 64 times */
            *(uint32_t *)at = word;
    }
    while (n--) /* at most 64 times */
        *at++ = (uint8_t)value;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, __SIZE_TYPE__ n)
{
    uint8_t *at = to;
    const uint8_t *source = from;
    if (((uintptr_t)at | (uintptr_t)source) % 4 == 0)
        for (; n >= 4; n -= 4, at += 4, source += 4) /* at most 64 times */
            *(uint32_t *)at = *(const uint32_t *)source;
    while (n--) /* at most 64 times */
        *at++ = *source++;
    return to;
}

/* ---- serial line ---- */

#define FDT_MAGIC 0xedfe0dd0u /* d00dfeed, big-endian */

static bool find_line(uint32_t tree)
{
    if (SERIAL < 2)
        return SERIAL;
    return tree % 4 == 0 && tree >= 0x80000000u && *(volatile const uint32_t *)(uintptr_t)tree == FDT_MAGIC;
}

/* A tick that catches up after a pause, as in an emulator on a busy machine, is not silence: it took no time. */
static void move_bytes(struct line *l, bool is_on_time)
{
    for (int n = 0; n < UART_FIFO && line_has_room(l) && uart_has_byte(); n++) {
        shared.line_is_idle = 0;
        line_receive(l, uart_take());
        shared.line_bytes++;
    }
    if (is_on_time)
        line_tick(l);
    if (uart_is_empty()) {
        int32_t byte;
        for (int n = 0; n < UART_FIFO && (byte = line_transmit(l)) >= 0; n++)
            uart_put((uint8_t)byte);
    }
}

void board_ring(struct board *b, int channel)
{
    shared.doorbell[channel] = (uint32_t)channel + 1;
    firmware_doorbell(&b->firmware);
}

/* ---- watchdog and guard ---- */

extern uint32_t stack_guard[]; /* the lowest words of the stack (link.ld) */
#define GUARD 0x5ac35ac3u

/* As after power-on, except for the words that rig and loader wrote. Interrupts are off in a trap and stay off. */
static void restart(void)
{
    register uint32_t hart __asm__("a0") = 0, tree __asm__("a1") = the_board.tree;
    __asm__ volatile("j _start" ::"r"(hart), "r"(tree));
    __builtin_unreachable();
}

/*
 * If a job does not end or the control job does not run, the timer, which no job can mask, resets the image. Ticks that
 * catch up after a pause of the whole machine do not count, nor does time that a rig controls.
 */
static void watch(bool is_on_time)
{
    if (the_board.mode == TIME_BY_TIMER && is_on_time && the_board.unkicked_ticks++ >= WATCHDOG_TICKS)
        restart();
}

/*
 * The fast job calls this while control runs. A watchdog in hardware, which also resets a core that hangs with its
 * interrupts off, is fed only after a control job that has ended. Where a rig gives the time nothing can be late.
 */
void board_kick_watchdog(struct board *b)
{
    b->unkicked_ticks = 0;
    if (b->mode == TIME_BY_TIMER && b->fed_slot != b->firmware.slots) {
        b->fed_slot = b->firmware.slots;
        soc_feed_watchdog();
    }
    shared.kicks++;
}

/* First of all, however the image came to start: the lowest clocks and voltages. Reads no table: it may be damaged. */
static __attribute__((noinline)) void set_lowest(void)
{
    for (int i = 0; i < CORES; i++)
        shared.freq_khz[i] = FREQ_MIN_KHZ;
    for (int d = 0; d < DOMAINS; d++)
        shared.volt_mv[d] = VOLT_MIN_MV;
    shared.actuations++;
}

/*
 * What is in RAM is not what was built, so it may not control the chip, which is at the lowest clocks. Shows the reason in
 * the shared RAM and, to whoever sends something, on the line. Nothing else runs until the next reset.
 */
static __attribute__((noinline)) void refuse(struct board *b)
{
    static const char why[] = "image damaged\r\n";
    shared.magic = REFUSED;
    while (!b->has_line)
        __asm__ volatile("wfi");
    for (;;) {
        while (!uart_is_empty())
            ;
        for (const char *c = why; *c; c++)
            uart_put((uint8_t)*c);
        while (!uart_has_byte())
            ;
        while (uart_has_byte())
            uart_take();
    }
}

/* ---- interrupts ---- */

void board_trap(uint32_t cause)
{
    enum soc_event event = soc_event(cause);
    if (event == SOC_TIMER) {
        the_board.next_tick += TICK_TIME;
        the_board.ticks_due++;
        soc_set_timer(the_board.next_tick);
        bool is_on_time = soc_time() < the_board.next_tick;
        if (the_board.has_line)
            move_bytes(&the_board.line, is_on_time);
        watch(is_on_time);
        if (stack_guard[0] != GUARD)
            restart(); /* the stack has grown over its end: what lies below it is no longer ours */
    } else if (event == SOC_DOORBELL) {
        the_board.doorbells_due++;
    } else if (event == SOC_EXCEPTION) {
        restart(); /* an exception: the image cannot continue */
    }
}

/* ---- chip ---- */

void board_read(struct board *b, struct sensors *out)
{
    if (b->mode == TIME_BY_LINE) {
        *out = b->line.sensors; /* at most sizeof(struct sensors) / 16 + 1 times */
        return;
    }
    for (int i = 0; i < CORES; i++) {
        out->temperature_mk[i] = shared.temperature_mk[i];
        out->capacitance_ff[i] = shared.capacitance_ff[i];
    }
    for (int p = 0; p < POWER_DOMAINS; p++)
        out->power_uw[p] = shared.power_uw[p];
}

/* Writes the count last: a reader that sees the same count before and after has read one decision. */
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
    return b->mode == TIME_BY_TIMER ? soc_time() / (TIMEBASE_HZ / 1000000u) : b->given_us;
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

static bool is_rung(void)
{
    for (int c = 0; c < AGENTS; c++)
        if (shared.doorbell[c])
            return true;
    return false;
}

/* Reads and clears flags with interrupts off. WFI wakes for a pending interrupt anyway, so none is lost in between. */
static void take_interrupts(struct board *b)
{
    __asm__ volatile("csrc mstatus, %0" ::"r"(MSTATUS_MIE));
    uint32_t ticks = b->ticks_due, doorbells = b->doorbells_due;
    b->ticks_due = b->doorbells_due = 0;
    __asm__ volatile("csrs mstatus, %0" ::"r"(MSTATUS_MIE));
    if (b->mode == TIME_BY_TIMER)
        while (ticks--)
            firmware_tick(&b->firmware);
    if (doorbells || is_rung())
        firmware_doorbell(&b->firmware);
}

static void wait(struct board *b)
{
    __asm__ volatile("csrc mstatus, %0" ::"r"(MSTATUS_MIE));
    if (b->ticks_due == 0 && b->doorbells_due == 0) {
        shared.line_is_idle = !line_is_sending(&b->line);
        __asm__ volatile("wfi");
    }
    __asm__ volatile("csrs mstatus, %0" ::"r"(MSTATUS_MIE));
}

static void start(struct board *b)
{
    static const struct options options = {
        .law = PUBLISHED ? LAW_PUBLISHED : LAW_OURS, .polled_messages = PUBLISHED, .bypass = BYPASS,
        .step_after = STEP_AFTER};
    for (int i = 0; i < CORES; i++)
        shared.temperature_mk[i] = SENSOR_FAULT;
    for (int p = 0; p < POWER_DOMAINS; p++)
        shared.power_uw[p] = SENSOR_FAULT;
    for (int c = 0; c < AGENTS; c++) {
        shared.doorbell[c] = shared.completion[c] = 0;
        shared.areas[c][SMT_COMMANDS].status = shared.areas[c][SMT_EVENTS].status = 1;
    }
    shared.ticks_given = shared.ticks_done = shared.line_bytes = shared.line_is_idle = 0;
    b->given_ticks = b->given_us = 0;
    line_init(&b->line, b, LINE_CHANNEL, b->mode == TIME_BY_LINE);
    firmware_init(&b->firmware, b, &options);
    shared.build = FIRMWARE_BUILD_ID;
    shared.magic = MAGIC;
}

/* Lock step: runs the jobs of the given ticks, as fast as possible. */
static bool run_given_ticks(struct board *b)
{
    uint32_t given = b->mode == TIME_BY_LINE ? b->line.slot_due * TICKS_PER_SLOT : shared.ticks_given - shared.ticks_done;
    if (given == 0)
        return false;
    shared.line_is_idle = 0;
    for (uint32_t i = 0; i < given; i++) {
        b->given_us = b->given_ticks++ * TICK_US;
        firmware_tick(&b->firmware);
        while (firmware_run(&b->firmware) != JOB_NONE)
            ;
    }
    if (b->mode == TIME_BY_LINE)
        line_slot_done(&b->line, &b->firmware.control.in_force);
    board_barrier(b);
    shared.ticks_done += given;
    return true;
}

/* One step of the line between any two jobs, so that neither waits for more than one step or job of the other. */
void board_main(uint32_t hart, uint32_t tree)
{
    struct board *b = &the_board;
    (void)hart;
    set_lowest();
    b->tree = tree;
    stack_guard[0] = GUARD;
    b->has_line = find_line(tree);
    if (b->has_line)
        uart_start(); /* before the magic word: it empties the FIFO, and the magic word means that the line is open */
    uint32_t crc = image_crc();
    if (crc != image_crc_built)
        refuse(b);
    shared.restarts = shared.magic == MAGIC ? shared.restarts + 1 : 0;
    b->mode = (shared.rig & ~0xffu) == RIG ? (enum time_mode)(shared.rig & 0xff) : LOCK_STEP;
    if (crc != image_crc_built)
        refuse(b); /* compared twice: one wrong bit in the first comparison does not let a damaged image run */
    start(b);
    if (b->mode == TIME_BY_TIMER)
        soc_feed_watchdog();
    b->next_tick = soc_time();
    soc_set_timer(b->next_tick);
    soc_start();
    __asm__ volatile("csrs mstatus, %0" ::"r"(MSTATUS_MIE));
    for (;;) {
        take_interrupts(b);
        bool is_busy = firmware_run(&b->firmware) != JOB_NONE;
        if (b->has_line)
            is_busy |= line_step(&b->line);
        if (b->line.reset_due) {
            __asm__ volatile("csrc mstatus, %0" ::"r"(MSTATUS_MIE));
            start(b);
            __asm__ volatile("csrs mstatus, %0" ::"r"(MSTATUS_MIE));
        }
        if (!is_busy && b->mode != TIME_BY_TIMER)
            is_busy = run_given_ticks(b);
        if (!is_busy)
            wait(b);
    }
}
