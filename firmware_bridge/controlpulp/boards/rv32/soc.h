/*
 * The machine under the image: clock, interrupts, watchdog, serial line. To bring the image to another SoC, supply these
 * functions in one file (`SOC=FILE build.sh image.elf`) and change nothing else. clint_16550.c is the file for QEMU,
 * Unicorn, RTL and FPGAs with a CLINT and a 16550; boards/litex has one for LiteX.
 *
 * Addresses are symbols of the linker (link.ld has the defaults; `build.sh image.elf -Wl,--defsym=soc_uart=...`), the
 * rest are build options.
 *
 *   soc_ram       RAM: code, data, stack; the reset vector
 *   soc_window    the same RAM, or other memory, as the other side sees it: struct shared. A core with a data cache must
 *                 not cache it
 *   soc_clint     RISC-V timer and software interrupt: msip at 0, mtimecmp at 0x4000, mtime at 0xbff8
 *   soc_uart      16550
 *   soc_watchdog  a watchdog in hardware that the first write of SOC_WATCHDOG_KICK starts and each further one feeds;
 *                 0: none
 */
#ifndef SOC_H
#define SOC_H

#include <stdbool.h>
#include <stdint.h>

#ifndef TIMEBASE_HZ
#define TIMEBASE_HZ 10000000u /* of soc_time; a multiple of 1 MHz */
#endif
#ifndef SERIAL
#define SERIAL 2 /* a line: 0 none, 1 present, 2 present if there is a device tree (QEMU passes one, Unicorn does not) */
#endif

/* ---- interrupts ---- */
enum soc_event { SOC_OTHER, SOC_TIMER, SOC_DOORBELL, SOC_EXCEPTION };

void soc_start(void);                     /* timer and doorbell may interrupt, once mstatus allows it */
enum soc_event soc_event(uint32_t cause); /* what a trap with this mcause is for; takes a doorbell back */

/* ---- clock ---- */
uint64_t soc_time(void);
void soc_set_timer(uint64_t at); /* the next interrupt */

/* ---- watchdog in hardware ---- */
void soc_feed_watchdog(void); /* the first call starts it; nothing where there is none */

/* ---- serial line ---- */
#define UART_FIFO 16
void uart_start(void);
bool uart_has_byte(void);
uint8_t uart_take(void);
bool uart_is_empty(void); /* the transmitter has room for UART_FIFO bytes */
void uart_put(uint8_t byte);

/* ---- image.c ---- */
uint32_t image_crc(void);
extern const volatile uint32_t image_crc_built;

#endif
