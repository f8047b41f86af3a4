/*
 * The machine under the image: where its memory and devices are. To bring the image to another SoC, change nothing
 * else. Addresses are symbols of the linker (link.ld has the defaults; `build.sh image.elf -Wl,--defsym=soc_uart=...`),
 * the rest are build options.
 *
 *   soc_ram       RAM: code, data, stack; the reset vector
 *   soc_window    the same RAM, or other memory, as the other side sees it: struct shared. A core with a data cache must
 *                 not cache it
 *   soc_clint     RISC-V timer and software interrupt: msip at 0, mtimecmp at 0x4000, mtime at 0xbff8
 *   soc_uart      16550, or another UART through uart.c
 *   soc_watchdog  a watchdog in hardware, kicked by writing SOC_WATCHDOG_KICK; 0: none
 */
#ifndef SOC_H
#define SOC_H

#include <stdbool.h>
#include <stdint.h>

extern volatile uint32_t soc_clint[], soc_uart[];
extern volatile uint32_t soc_watchdog[] __attribute__((weak)); /* so that the compiler does not take its address for one */
extern const uint32_t image_start[], image_end[]; /* code and constants */

#ifndef TIMEBASE_HZ
#define TIMEBASE_HZ 10000000u /* of mtime; a multiple of 1 MHz */
#endif
#ifndef SERIAL
#define SERIAL 2 /* a line: 0 none, 1 present, 2 present if there is a device tree (QEMU passes one, Unicorn does not) */
#endif
#ifndef UART_STRIDE
#define UART_STRIDE 1 /* bytes from register to register; 4 in most FPGA cores */
#endif
#ifndef UART_CLOCK_HZ
#define UART_CLOCK_HZ 14745600u
#endif
#ifndef UART_BAUD
#define UART_BAUD 921600u
#endif
#ifndef SOC_WATCHDOG_KICK
#define SOC_WATCHDOG_KICK 1u
#endif

/* ---- clock ---- */

static inline uint64_t soc_time(void)
{
    uint32_t high, low;
    do {
        high = soc_clint[0xbffc / 4];
        low = soc_clint[0xbff8 / 4];
    } while (soc_clint[0xbffc / 4] != high);
    return (uint64_t)high << 32 | low;
}

/* Sets the high word to its maximum first, so that no intermediate value is in the past. */
static inline void soc_set_timer(uint64_t at)
{
    soc_clint[0x4004 / 4] = UINT32_MAX;
    soc_clint[0x4000 / 4] = (uint32_t)at;
    soc_clint[0x4004 / 4] = (uint32_t)(at >> 32);
}

static inline void soc_take_software_interrupt(void) { soc_clint[0] = 0; }

static inline void soc_kick_watchdog(void)
{
    if ((uintptr_t)soc_watchdog)
        soc_watchdog[0] = SOC_WATCHDOG_KICK;
}

/* ---- uart.c ---- */
#define UART_FIFO 16
void uart_start(void);
bool uart_has_byte(void);
uint8_t uart_take(void);
bool uart_is_empty(void); /* the transmitter has room for UART_FIFO bytes */
void uart_put(uint8_t byte);

/* ---- image.c ---- */
bool image_is_whole(void);

#endif
