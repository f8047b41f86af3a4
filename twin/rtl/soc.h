/*
 * A small controller's SoC around a core in RTL: RAM, the RISC-V timer (CLINT), a 16550 with baud timing, a watchdog.
 *
 * The core is Verilator's model of published RTL; memory and devices are this file's. The core drives one port for
 * instructions and one for data. RAM has a port for each (as a TCDM with enough banks), so the two never wait for each
 * other: an access is answered `ram_cycles` after its request, and requests may follow each other every cycle. A device
 * answers after `mmio_cycles` and takes one access at a time.
 */
#ifndef SOC_H
#define SOC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rtl_options {
    uint32_t ram_base, alias_base, ram_bytes; /* alias: the same RAM at a second address, which a core does not cache */
    uint32_t watchdog_base, watchdog_cycles;
    uint32_t clint_base, uart_base; /* 0: the core's model has its own UART (LiteX) */
    uint32_t clock_hz, timebase_hz, uart_clock_hz;
    uint32_t ram_cycles, mmio_cycles;
    uint32_t skips_idle; /* a core that waits for an interrupt is not simulated until its timer is due */
};

struct rtl_counts {
    uint64_t cycles;    /* of the clock, skipped ones included */
    uint64_t retired;   /* instructions */
    uint64_t skipped;   /* cycles that were not simulated */
    uint64_t woken_at, last_retired_at; /* first instruction since the core waited last; latest instruction */
    uint64_t core_retired;  /* the core's own counter of instructions */
    uint64_t overruns;  /* bytes lost in the UART's receiver */
    uint64_t resets;    /* by the watchdog */
    uint64_t bus_errors; /* accesses outside RAM and devices */
    uint64_t line_bytes_in_flight; /* put and not yet read by the image, or written by it and not yet got */
};

enum rtl_stop { RTL_CYCLES, RTL_WAITS, RTL_WORD };

struct rtl;

struct rtl *rtl_new(uint8_t *ram, const struct rtl_options *options);
void rtl_free(struct rtl *r);
/* Runs until a word of RAM has a value (at an offset; none: UINT32_MAX), the core waits, or so many cycles passed. */
enum rtl_stop rtl_run(struct rtl *r, uint64_t cycles, uint32_t until_waiting, uint32_t offset, uint32_t value);
void rtl_count(const struct rtl *r, struct rtl_counts *out);
void rtl_software_interrupt(struct rtl *r);
uint32_t rtl_put(struct rtl *r, const uint8_t *bytes, uint32_t n); /* into the line's far end; bytes taken */
uint32_t rtl_get(struct rtl *r, uint8_t *bytes, uint32_t n);
/* Per halfword of RAM: how often an instruction retired there, the most cycles since the one before it, and their sum.
 * NULL ends it. */
void rtl_profile(struct rtl *r, uint64_t *times, uint32_t *most, uint64_t *sum);
int rtl_trace(struct rtl *r, const char *path); /* "cycle pc instruction" per line; NULL ends it; 0 or errno */
int rtl_wave(struct rtl *r, const char *path);  /* FST; ENOSYS when the model was built without */

#ifdef __cplusplus
}
#endif
#endif
