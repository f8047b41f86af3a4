/* The serial line's device: a 16550, polled. A SoC with another UART replaces this file (soc.h). */
#include "soc.h"

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
