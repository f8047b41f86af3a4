/*
 * A whole SoC of LiteX (litex_soc.py): VexRiscv, bus, timer, UART and watchdog are its own Verilog. Around it are only
 * RAM, on two Wishbone ports, and the far ends of the two wires of its serial line.
 */
#ifndef LITEX_H
#define LITEX_H

#include "Vmodel.h"
#include "Vmodel_VexRiscv.h"
#include "Vmodel_litex.h"
#include "wishbone.h"

/* The far end of the line: bytes to bits and back, eight data bits, no parity, one stop bit. */
class Line {
public:
    bool rx = true; /* as the SoC sees it */

    void step(Uart &far, bool tx)
    {
        send(far.far_out);
        receive(far.far_in, tx);
    }

    uint64_t bytes() const { return sending_ + receiving_; }

private:
    static const uint32_t BIT_CYCLES = 100000000 / 230400; /* CLOCK_HZ and BAUD of litex_soc.py */

    void send(std::deque<uint8_t> &from)
    {
        if (!sending_) {
            if (from.empty())
                return;
            out_ = 1u << 9 | uint32_t(from.front()) << 1;
            from.pop_front();
            sending_ = true;
            out_cycle_ = 0;
        }
        rx = out_ >> out_cycle_ / BIT_CYCLES & 1;
        sending_ = ++out_cycle_ < 10 * BIT_CYCLES;
    }

    void receive(std::deque<uint8_t> &to, bool tx)
    {
        if (!receiving_) {
            if (tx)
                return;
            receiving_ = true;
            in_ = in_cycle_ = 0;
        }
        if (in_cycle_ % BIT_CYCLES == BIT_CYCLES / 2)
            in_ |= uint32_t(tx) << in_cycle_ / BIT_CYCLES;
        if (++in_cycle_ < 9 * BIT_CYCLES + BIT_CYCLES / 2)
            return;
        to.push_back(uint8_t(in_ >> 1));
        receiving_ = false;
    }

    bool sending_ = false, receiving_ = false;
    uint32_t out_ = 0, in_ = 0, out_cycle_ = 0, in_cycle_ = 0;
};

class Core {
public:
    Vmodel model;
    bool is_busy = false; /* an access to RAM in this cycle */
    bool retires = false;
    uint32_t pc = 0;

    void reset(uint32_t) { model.sys_rst = 1; } /* the SoC has its reset vector */
    void release() { model.sys_rst = 0; }

    void inputs(const Bus &, bool, bool)
    {
        model.serial_rx = line_.rx;
        model.main_ram_ack = ram_.ack;
        model.main_ram_dat_r = ram_.data;
        model.window_ack = window_.ack;
        model.window_dat_r = window_.data;
    }

    void outputs(Bus &bus)
    {
        retires = model.litex->VexRiscv->lastStageIsFiring;
        pc = model.litex->VexRiscv->lastStagePc;
        bool ram = ram_.step(bus, model.main_ram_cyc && model.main_ram_stb, model.main_ram_we, model.main_ram_adr << 2,
                             model.main_ram_dat_w, model.main_ram_sel, model.main_ram_cti);
        bool window = window_.step(bus, model.window_cyc && model.window_stb, model.window_we, model.window_adr << 2,
                                   model.window_dat_w, model.window_sel, model.window_cti);
        is_busy = ram || window;
        line_.step(bus.uart, model.serial_tx);
    }

    void clock(int level) { model.sys_clk = level; }

    /* In the UART's buffers and on the wires. */
    uint64_t line_bytes() const
    {
        return line_.bytes() + !model.litex->build_uart_rxempty_status + !model.litex->build_uart_txempty_status;
    }
    uint64_t core_retired() const { return model.litex->VexRiscv->CsrPlugin_minstret; }

private:
    Wishbone ram_, window_;
    Line line_;
};

#endif
