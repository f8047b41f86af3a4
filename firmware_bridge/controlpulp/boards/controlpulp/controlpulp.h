/*
 * ControlPULP, for whoever brings the rv32 image to it (docs/boards.md): where its devices are and what their registers
 * mean. UNVERIFIED: taken from its public sources and never run on it, in RTL or on an FPGA.
 *
 * [cp]  pulp-platform/control-pulp: hw/includes/periph_bus_defines.sv, hw/ips/wdt, boot/include/archi, sw/tests (clic)
 * [pcf] pulp-platform/control_pulp_pcf, its public firmware
 * [mcu] openhwgroup/core-v-mcu, docs: the same uDMA UART, described; ControlPULP's may be an older version
 */
#ifndef CONTROLPULP_H
#define CONTROLPULP_H

/* ---- memory [cp]: the image needs 64 kB, and struct shared where no core caches it (none of these does) ---- */
#define CONTROLPULP_L2 0x1c010000u
#define CONTROLPULP_L2_BYTES 0x70000u

/* ---- CLIC [cp]: four words for each line; mcause has the line in bits 11:0 and more in bits 30:16 ---- */
#define CONTROLPULP_CLIC 0x1a200000u
#define CLIC_PENDING(line) (0x1000u + 0x10u * (line))
#define CLIC_ENABLE(line) (0x1004u + 0x10u * (line))
#define CLIC_ATTRIBUTES(line) (0x1008u + 0x10u * (line)) /* bit 0 vectored; bits 2:1 trigger: 0 level, 1 edge */
#define CLIC_CONTROL(line) (0x100cu + 0x10u * (line))    /* level and priority, 8 bits; 0xff the highest */
#define CLIC_MCAUSE_LINE 0xfffu
#define CLIC_LINE_SCMI 35u  /* doorbells of the mailboxes */
#define CLIC_LINE_TIMER 11u /* of the timer's upper half. [cp] and [pcf] name it for the older interrupt controller */

/* ---- timer [cp]: two counters of 32 bits, each with a comparator; bits of their configuration ---- */
#define CONTROLPULP_TIMER 0x1a10b000u
#define TIMER_CONFIG_HIGH 0x04u
#define TIMER_COUNT_HIGH 0x0cu
#define TIMER_COMPARE_HIGH 0x14u
#define TIMER_ENABLE (1u << 0)
#define TIMER_RESET (1u << 1)
#define TIMER_INTERRUPT (1u << 2)
#define TIMER_RESTARTS (1u << 4)  /* begins at 0 again after the comparator's value */
#define TIMER_REFERENCE (1u << 7) /* counts the reference clock of 32 768 Hz, which gives no 125 us: leave it 0 */

/* ---- watchdog [cp]: counts up from a start value; past 0xffffffff it resets ---- */
#define CONTROLPULP_WATCHDOG 0x1a130000u
#define WATCHDOG_CONFIG 0x0u /* bit 0 enable, bit 1 to the start value again */
#define WATCHDOG_START 0x4u
#define WATCHDOG_COUNT 0x8u
#define WATCHDOG_ALERT 0xcu /* bit 0: it has reset; cleared when read */

/* ---- uDMA UART [mcu]: sends from L2, a transfer at a time; received bytes can be polled ---- */
#define CONTROLPULP_UDMA 0x1a102000u
#define UDMA_CLOCK_GATE 0x0u       /* bit 0: the first peripheral, which is the UART [cp] */
#define UDMA_UART 0x80u            /* first peripheral; the offsets below are within it */
#define UDMA_UART_TX_ADDRESS 0x10u
#define UDMA_UART_TX_BYTES 0x14u   /* reads as what is left */
#define UDMA_UART_TX_CONFIG 0x18u  /* bit 4 starts */
#define UDMA_UART_STATUS 0x20u     /* bit 0 sending, bit 1 receiving */
#define UDMA_UART_SETUP 0x24u      /* 31:16 clocks per bit, 9 receiver, 8 transmitter, 4 polled, 2:1 = 3: eight bits */
#define UDMA_UART_VALID 0x30u      /* bit 0: a byte can be read */
#define UDMA_UART_DATA 0x34u       /* its buffer has four bytes: polled once in 125 us, at most 230 400 baud */

/* ---- SCMI mailbox unit [cp]: an area like struct smt_area (board.h), then two registers; a channel after another ---- */
#define CONTROLPULP_SCMI 0xffff0000u
#define SCMI_DOORBELL 0xa0u   /* written by the agent: its number; raises CLIC_LINE_SCMI until 0 is written */
#define SCMI_COMPLETION 0xa4u /* the same towards the agent. With fewer payload words both lie lower: 0x20, 0x24 */

#endif
