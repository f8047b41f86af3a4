/*
 * CV32E40P, the core family of ControlPULP's manager core: four stages, no cache, OBI. An instruction counts as retired
 * when it leaves the decoder, as the core's own counter has it.
 */
#ifndef CV32E40P_H
#define CV32E40P_H

#include "Vmodel.h"
#include "Vmodel___024root.h"
#include "devices.h"

/* One OBI port: requests are granted at once unless a device is being waited for, and answered in order. */
class Obi {
public:
    bool grant = true, valid = false;
    uint32_t data = 0;

    bool step(Bus &bus, bool request, bool we, uint32_t address, uint32_t value, uint32_t lanes)
    {
        bool was_busy = request || valid || !queue_.empty();
        if (request && grant) {
            uint32_t got = 0;
            uint32_t latency = bus.latency(address);
            if (we)
                bus.write(address, value, lanes);
            else
                got = bus.read(address);
            device_ = bus.ram_at(address) == nullptr;
            queue_.push_back({bus.now + latency, got});
        }
        valid = !queue_.empty() && queue_.front().at <= bus.now + 1;
        if (valid) {
            data = queue_.front().data;
            queue_.pop_front();
        }
        if (queue_.empty())
            device_ = false;
        grant = !device_;
        return was_busy;
    }

private:
    struct answer {
        uint64_t at;
        uint32_t data;
    };
    std::deque<answer> queue_;
    bool device_ = false;
};

class Core {
public:
    Vmodel model;
    bool is_busy = false;
    bool retires = false;
    uint32_t pc = 0;

    void reset(uint32_t vector)
    {
        i_ = d_ = {};
        model.boot_addr_i = vector;
        model.mtvec_addr_i = vector;
        model.pulp_clock_en_i = 1;
        model.fetch_enable_i = 1;
        model.rst_ni = 0;
    }
    void release() { model.rst_ni = 1; }

    void inputs(const Bus &, bool timer, bool software)
    {
        model.irq_i = uint32_t(timer) << 7 | uint32_t(software) << 3;
        model.instr_gnt_i = i_.grant;
        model.instr_rvalid_i = i_.valid;
        model.instr_rdata_i = i_.data;
        model.data_gnt_i = d_.grant;
        model.data_rvalid_i = d_.valid;
        model.data_rdata_i = d_.data;
    }

    void outputs(Bus &bus)
    {
        const Vmodel___024root &r = *model.rootp;
        retires = r.cv32e40p_top__DOT__core_i__DOT__id_stage_i__DOT__minstret;
        pc = r.cv32e40p_top__DOT__core_i__DOT__pc_id;
        bool i = i_.step(bus, model.instr_req_o, false, model.instr_addr_o, 0, 0);
        bool d = d_.step(bus, model.data_req_o, model.data_we_o, model.data_addr_o, model.data_wdata_o, model.data_be_o);
        is_busy = i || d;
    }

    void clock(int level) { model.clk_i = level; }
    uint64_t line_bytes() const { return 0; }
    uint64_t core_retired() const
    {
        return model.rootp->cv32e40p_top__DOT__core_i__DOT__cs_registers_i__DOT__mhpmcounter_q[2 * 2]; /* 64 bits each */
    }

private:
    Obi i_, d_;
};

#endif
