/*
 * A LiteX SoC with VexRiscv: what the rv32 image needs of its machine (../rv32/soc.h), by the registers that LiteX's
 * generated headers name. timer0 gives the interrupt and, with --timer-uptime, the time; watchdog0 (--with-watchdog)
 * resets a core that hangs. LiteX has no software interrupt: the tick polls doorbells.
 */
#include <generated/csr.h>
#include <generated/soc.h>
#include "soc.h"

#ifndef CSR_TIMER0_UPTIME_LATCH_ADDR
#error "this SoC has no time: build it with --timer-uptime"
#endif
#ifndef CONFIG_CPU_VARIANT_IMAC
#error "this SoC's core does not run rv32imc, or has another interrupt controller: --cpu-type=vexriscv --cpu-variant=imac"
#endif

#ifndef WATCHDOG_MS
#define WATCHDOG_MS 100u /* ours: twice as long as the image's own, which can tell why */
#endif

static volatile uint32_t *csr(uintptr_t address) { return (volatile uint32_t *)address; }

/* ---- interrupts: one line into the core, a mask and a pending register of VexRiscv's own ---- */

#define MIE_EXTERNAL 0x800u
#define CAUSE_INTERRUPT 0x80000000u

void soc_start(void)
{
    *csr(CSR_TIMER0_EV_ENABLE_ADDR) = 1;
    __asm__ volatile("csrw 0xbc0, %0" ::"r"(1u << TIMER0_INTERRUPT));
    __asm__ volatile("csrs mie, %0" ::"r"(MIE_EXTERNAL));
}

/* Nothing but the timer is in the mask. */
enum soc_event soc_event(uint32_t cause)
{
    return cause & CAUSE_INTERRUPT ? SOC_TIMER : SOC_EXCEPTION;
}

/* ---- clock ---- */

uint64_t soc_time(void)
{
    *csr(CSR_TIMER0_UPTIME_LATCH_ADDR) = 1;
    uint32_t high = csr(CSR_TIMER0_UPTIME_CYCLES_ADDR)[0], low = csr(CSR_TIMER0_UPTIME_CYCLES_ADDR)[1];
    return (uint64_t)high << 32 | low;
}

/* timer0 counts down once. Its event is an edge, so the flag is cleared while it stands above zero. */
void soc_set_timer(uint64_t at)
{
    uint64_t now = soc_time();
    *csr(CSR_TIMER0_EN_ADDR) = 0;
    *csr(CSR_TIMER0_LOAD_ADDR) = at > now ? (uint32_t)(at - now) : 1;
    *csr(CSR_TIMER0_RELOAD_ADDR) = 0;
    *csr(CSR_TIMER0_EV_PENDING_ADDR) = 1;
    *csr(CSR_TIMER0_EN_ADDR) = 1;
}

/* ---- watchdog ---- */

void soc_feed_watchdog(void)
{
#ifdef CSR_WATCHDOG0_BASE
    *csr(CSR_WATCHDOG0_CYCLES_ADDR) = TIMEBASE_HZ / 1000u * WATCHDOG_MS;
    *csr(CSR_WATCHDOG0_CONTROL_ADDR) = 1u << CSR_WATCHDOG0_CONTROL_FEED_OFFSET |
        1u << CSR_WATCHDOG0_CONTROL_ENABLE_OFFSET | 1u << CSR_WATCHDOG0_CONTROL_RESET_OFFSET;
#endif
}

/* ---- UART, polled. Its speed is fixed when the SoC is built (--uart-baudrate) ---- */

#define UART_EV_RX 2u

void uart_start(void)
{
    *csr(CSR_UART_EV_ENABLE_ADDR) = 0;
    while (uart_has_byte())
        uart_take();
}

bool uart_has_byte(void) { return !*csr(CSR_UART_RXEMPTY_ADDR); }

/* The byte leaves the buffer when its event is acknowledged. */
uint8_t uart_take(void)
{
    uint8_t byte = (uint8_t)*csr(CSR_UART_RXTX_ADDR);
    *csr(CSR_UART_EV_PENDING_ADDR) = UART_EV_RX;
    return byte;
}

bool uart_is_empty(void) { return *csr(CSR_UART_TXEMPTY_ADDR); }

void uart_put(uint8_t byte) { *csr(CSR_UART_RXTX_ADDR) = byte; }
