/* A SoC with RISC-V's CLINT and a 16550: QEMU `virt`, Unicorn, the RTL model, FPGAs (soc.h has the symbols). */
#include "soc.h"

extern volatile uint32_t soc_clint[], soc_uart[];
extern volatile uint32_t soc_watchdog[] __attribute__((weak)); /* so that the compiler does not take its address for one */

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

/* ---- CLINT ---- */

#define MIE_SOFTWARE 8u
#define MIE_TIMER 0x80u
#define CAUSE_INTERRUPT 0x80000000u
#define CAUSE_SOFTWARE 0x80000003u
#define CAUSE_TIMER 0x80000007u

void soc_start(void) { __asm__ volatile("csrs mie, %0" ::"r"(MIE_SOFTWARE | MIE_TIMER)); }

enum soc_event soc_event(uint32_t cause)
{
    if (cause == CAUSE_TIMER)
        return SOC_TIMER;
    if (cause == CAUSE_SOFTWARE) {
        soc_clint[0] = 0;
        return SOC_DOORBELL;
    }
    return cause & CAUSE_INTERRUPT ? SOC_OTHER : SOC_EXCEPTION;
}

uint64_t soc_time(void)
{
    uint32_t high, low;
    do {
        high = soc_clint[0xbffc / 4];
        low = soc_clint[0xbff8 / 4];
    } while (soc_clint[0xbffc / 4] != high); /* at most 2 times */
    return (uint64_t)high << 32 | low;
}

/* Sets the high word to its maximum first, so that no intermediate value is in the past. */
void soc_set_timer(uint64_t at)
{
    soc_clint[0x4004 / 4] = UINT32_MAX;
    soc_clint[0x4000 / 4] = (uint32_t)at;
    soc_clint[0x4004 / 4] = (uint32_t)(at >> 32);
}

void soc_feed_watchdog(void)
{
    if ((uintptr_t)soc_watchdog)
        soc_watchdog[0] = SOC_WATCHDOG_KICK;
}

/* ---- 16550, polled ---- */

enum uart { UART_DATA = 0, UART_IER = 1, UART_FCR = 2, UART_LCR = 3, UART_MCR = 4, UART_LSR = 5 };

#if UART_STRIDE == 4
typedef uint32_t uart_register; /* as in FPGA cores: one register a word */
#else
typedef uint8_t uart_register;
#endif

static volatile uart_register *uart(enum uart which) { return (volatile uart_register *)soc_uart + which; }

void uart_start(void)
{
    const uint32_t divisor = (UART_CLOCK_HZ + 8 * UART_BAUD) / (16 * UART_BAUD);
    *uart(UART_IER) = 0;
    *uart(UART_LCR) = 0x80;
    *uart(UART_DATA) = (uart_register)(divisor & 0xff);
    *uart(UART_IER) = (uart_register)(divisor >> 8);
    *uart(UART_LCR) = 3; /* 8N1 */
    *uart(UART_FCR) = 0xc7; /* FIFOs on and empty; QEMU delivers at most the trigger level at a time, here 14 */
    *uart(UART_MCR) = 3; /* DTR, RTS */
}

bool uart_has_byte(void) { return *uart(UART_LSR) & 1; }

uint8_t uart_take(void) { return (uint8_t)*uart(UART_DATA); }

bool uart_is_empty(void) { return *uart(UART_LSR) & 0x20; }

void uart_put(uint8_t byte) { *uart(UART_DATA) = byte; }
