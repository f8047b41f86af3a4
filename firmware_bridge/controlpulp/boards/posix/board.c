/* The posix board: see posix.h. */
#include "posix.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS (1000L * TICK_US)
#define FROM_TIMER (AGENTS * SOURCES)
#define FROM_SIGNAL (AGENTS * SOURCES + 1)
#define EVENTS_AT_ONCE 16
#define KICKS_PER_WATCHDOG 512 /* 64 ms: each arming costs a system call */
#define WATCHDOG_CPU_S 2       /* CPU time of this process: a paused machine spends none */

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- chip ---- */

static void update_plant(struct board *b)
{
    if (b->plant.it)
        b->plant.advance(b->plant.it, monotonic_ns());
}

void board_read(struct board *b, struct sensors *out)
{
    if (!b->plant.it) {
        for (int i = 0; i < CORES; i++)
            out->temperature_mk[i] = SENSOR_FAULT;
        for (int p = 0; p < POWER_DOMAINS; p++)
            out->power_uw[p] = SENSOR_FAULT;
        memset(out->capacitance_ff, 0, sizeof out->capacitance_ff);
        return;
    }
    update_plant(b);
    memcpy(out->temperature_mk, b->wires[WIRE_TEMPERATURE_MK], sizeof out->temperature_mk);
    memcpy(out->capacitance_ff, b->wires[WIRE_CAPACITANCE_FF], sizeof out->capacitance_ff);
    memcpy(out->power_uw, b->wires[WIRE_POWER_UW], sizeof out->power_uw);
}

void board_actuate(struct board *b, const struct operating_point *point)
{
    if (!b->plant.it)
        return;
    update_plant(b);
    memcpy(b->wires[WIRE_FREQ_KHZ], point->freq_khz, sizeof point->freq_khz);
    for (int d = 0; d < DOMAINS; d++)
        b->wires[WIRE_VOLT_MV][d] = chip_volt_mv[point->level[d]];
}

uint64_t board_time_us(struct board *b) { return (uint64_t)(monotonic_ns() - b->start_ns) / 1000; }

/* A controller that computes for this long without a control job ends by SIGPROF. Its supervisor restarts it. */
void board_kick_watchdog(struct board *b)
{
    static const struct itimerval bite = {.it_value = {.tv_sec = WATCHDOG_CPU_S}};
    if (b->kicks++ % KICKS_PER_WATCHDOG == 0)
        setitimer(ITIMER_PROF, &bite, NULL);
}

/* ---- mailbox ---- */

struct smt_area *board_area(struct board *b, int channel, enum smt_direction direction)
{
    return channel_area(&b->channels[channel], direction);
}

bool board_take_doorbell(struct board *b, int channel) { return channel_take_doorbell(&b->channels[channel]); }

void board_complete(struct board *b, int channel) { channel_complete(&b->channels[channel]); }

void board_signal_event(struct board *b, int channel) { channel_signal_event(&b->channels[channel]); }

volatile uint32_t *board_fast_window(struct board *b, int channel)
{
    return b->channels[channel].is_message_only ? NULL : channel_fast_window(&b->channels[channel]);
}

/* An offset in the agent's shared memory. */
uint64_t board_fast_address(struct board *b, int channel) { return channel_fast_offset(&b->channels[channel]); }

void board_barrier(struct board *b)
{
    (void)b;
    atomic_thread_fence(memory_order_seq_cst);
}

/* ---- interrupts ---- */

static void take_ticks(struct board *b)
{
    uint64_t ticks = 0;
    if (read(b->timer, &ticks, sizeof ticks) != (ssize_t)sizeof ticks)
        return;
    for (uint64_t i = 0; i < ticks; i++)
        firmware_tick(&b->firmware);
    if (b->firmware.executive.ready[JOB_CONTROL])
        for (int c = 0; c < AGENTS; c++)
            channel_listen_again(&b->channels[c]);
}

static void take_interrupts(struct board *b, bool is_idle)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int n = epoll_wait(b->epoll, events, EVENTS_AT_ONCE, is_idle ? -1 : 0);
    for (int i = 0; i < n; i++) {
        uint32_t from = events[i].data.u32;
        if (from == FROM_TIMER) {
            take_ticks(b);
        } else if (from == FROM_SIGNAL) {
            b->is_stopping = true;
        } else {
            channel_event(&b->channels[from / SOURCES], from % SOURCES);
            if (from % SOURCES == FROM_DOORBELL)
                firmware_doorbell(&b->firmware);
        }
    }
}

/* ---- start ---- */

static bool watch(const struct board *b, int fd, uint32_t from)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = from};
    return fd >= 0 && epoll_ctl(b->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool start_timer(struct board *b)
{
    int64_t first_ns = b->start_ns + TICK_NS;
    struct itimerspec ticks = {.it_interval = {.tv_nsec = TICK_NS},
                               .it_value = {.tv_sec = first_ns / 1000000000, .tv_nsec = first_ns % 1000000000}};
    b->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return watch(b, b->timer, FROM_TIMER) && timerfd_settime(b->timer, TFD_TIMER_ABSTIME, &ticks, NULL) == 0;
}

bool board_start(struct board *b, const struct options *options)
{
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    b->signals = signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
    b->start_ns = monotonic_ns();
    firmware_init(&b->firmware, b, options);
    return watch(b, b->signals, FROM_SIGNAL) && start_timer(b);
}

void board_serve(struct board *b)
{
    bool is_idle = false;
    while (!b->is_stopping) {
        take_interrupts(b, is_idle);
        is_idle = firmware_run(&b->firmware) == JOB_NONE;
    }
}
