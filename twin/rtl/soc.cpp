/* The SoC's clock: see soc.h. Compiled once per core, with -DCORE_HEADER and the directory of its Verilator model. */
#include CORE_HEADER
#if VM_TRACE_FST
#include "verilated_fst_c.h"
#endif
#include <algorithm>
#include <errno.h>
#include <memory>
#include <stdio.h>

/* A core that has neither retired nor used its buses for so long waits in WFI: the longest instruction, a division,
 * takes 40 cycles. */
static const uint64_t QUIET_CYCLES = 200;

struct rtl {
    rtl_options o;
    Bus bus;
    Core core;
    rtl_counts n = {};
    uint64_t active_at = 0;
    bool waits = false;
    uint64_t *times = nullptr, *sum = nullptr;
    uint32_t *most = nullptr;
    FILE *trace = nullptr;
#if VM_TRACE_FST
    std::unique_ptr<VerilatedFstC> wave;
#endif

    rtl(uint8_t *ram, const rtl_options &options) : o(options), bus(ram, options) {}

    void half(int level)
    {
        core.clock(level);
        core.model.eval();
#if VM_TRACE_FST
        if (wave)
            wave->dump(2 * bus.now + uint64_t(level)); /* a skipped cycle is seen as one without a change */
#endif
    }

    void note_retired()
    {
        uint64_t now = bus.now;
        if (waits || n.retired == 0)
            n.woken_at = now;
        uint64_t taken = now - n.last_retired_at;
        uint32_t offset = uint32_t(bus.ram_at(core.pc) ? bus.ram_at(core.pc) - bus.ram_at(o.ram_base) : 0);
        if (times && !waits) {
            times[offset / 2]++;
            sum[offset / 2] += taken;
            if (taken > most[offset / 2])
                most[offset / 2] = uint32_t(taken);
        }
        if (trace) {
            uint32_t word = bus.read(offset % 4 ? core.pc - 2 : core.pc);
            if (offset % 4)
                word = word >> 16 | bus.read(core.pc + 2) << 16;
            if ((word & 3) != 3)
                word &= 0xffff;
            fprintf(trace, "%llu %08x %0*x\n", (unsigned long long)now, core.pc, (word & 3) == 3 ? 8 : 4, word);
        }
        n.last_retired_at = now;
        n.retired++;
        waits = false;
    }

    void reset()
    {
        core.reset(o.ram_base);
        for (int i = 0; i < 16; i++) {
            core.inputs(bus, false, false);
            half(0);
            half(1);
        }
        core.release();
    }

    void cycle()
    {
        if (bus.now >= bus.watchdog.due_at) {
            bus.clint = Clint(o);
            bus.watchdog = Watchdog(o);
            n.resets++;
            reset();
        }
        bool timer = bus.now >= bus.clint.due_at;
        core.inputs(bus, timer, bus.clint.software);
        half(0);
        core.outputs(bus);
        if (core.retires)
            note_retired();
        if (core.retires || core.is_busy)
            active_at = bus.now;
        half(1);
        bus.now++;
        if (bus.now - active_at > QUIET_CYCLES)
            waits = true;
    }

    /* The clock jumps to the cycle in which timer or watchdog becomes due. Nothing else can wake a core that waits. */
    void skip(uint64_t limit)
    {
        uint64_t to = std::min({bus.clint.due_at, bus.watchdog.due_at, limit});
        if (to > bus.now && !bus.clint.software) {
            n.skipped += to - bus.now;
            bus.now = to;
        }
    }
};

extern "C" {

struct rtl *rtl_new(uint8_t *ram, const struct rtl_options *options)
{
    rtl *r = new rtl(ram, *options);
    r->reset();
    return r;
}

void rtl_free(struct rtl *r)
{
    rtl_trace(r, nullptr);
    rtl_wave(r, nullptr);
    delete r;
}

enum rtl_stop rtl_run(struct rtl *r, uint64_t cycles, uint32_t until_waiting, uint32_t offset, uint32_t value)
{
    uint64_t limit = r->bus.now + cycles;
    const volatile uint32_t *word =
        offset == UINT32_MAX ? nullptr : (const volatile uint32_t *)(r->bus.ram_at(r->o.ram_base) + offset);
    while (r->bus.now < limit) {
        if (word && *word == value)
            return RTL_WORD;
        if (r->waits && until_waiting && r->bus.now < r->bus.clint.due_at && !r->bus.clint.software)
            return RTL_WAITS;
        if (r->waits && r->o.skips_idle)
            r->skip(limit);
        r->cycle();
    }
    return RTL_CYCLES;
}

void rtl_count(const struct rtl *r, struct rtl_counts *out)
{
    *out = r->n;
    out->cycles = r->bus.now;
    out->core_retired = r->core.core_retired();
    out->overruns = r->bus.uart.overruns;
    out->bus_errors = r->bus.bus_errors;
    out->line_bytes_in_flight = r->bus.uart.in_flight() + r->core.line_bytes();
}

void rtl_software_interrupt(struct rtl *r) { r->bus.clint.software = 1; }

uint32_t rtl_put(struct rtl *r, const uint8_t *bytes, uint32_t n)
{
    r->bus.uart.far_out.insert(r->bus.uart.far_out.end(), bytes, bytes + n);
    r->bus.uart.move(r->bus.now);
    return n;
}

uint32_t rtl_get(struct rtl *r, uint8_t *bytes, uint32_t n)
{
    uint32_t got = 0;
    r->bus.uart.move(r->bus.now);
    for (; got < n && !r->bus.uart.far_in.empty(); got++) {
        bytes[got] = r->bus.uart.far_in.front();
        r->bus.uart.far_in.pop_front();
    }
    return got;
}

void rtl_profile(struct rtl *r, uint64_t *times, uint32_t *most, uint64_t *sum)
{
    r->times = times;
    r->most = most;
    r->sum = sum;
}

int rtl_trace(struct rtl *r, const char *path)
{
    if (r->trace)
        fclose(r->trace);
    r->trace = path ? fopen(path, "w") : nullptr;
    return path && !r->trace ? errno : 0;
}

int rtl_wave(struct rtl *r, const char *path)
{
#if VM_TRACE_FST
    if (r->wave)
        r->wave->close();
    r->wave.reset();
    if (path) {
        Verilated::traceEverOn(true);
        r->wave.reset(new VerilatedFstC);
        r->wave->set_time_unit("1ns"); /* half a cycle of 500 MHz */
        r->wave->set_time_resolution("1ns");
        r->core.model.trace(r->wave.get(), 99);
        r->wave->open(path);
    }
    return 0;
#else
    (void)r;
    return path ? ENOSYS : 0;
#endif
}
}
