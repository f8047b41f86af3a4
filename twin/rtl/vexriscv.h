/*
 * VexRiscv, variant IMAC: five stages, 4 kB of instruction and 4 kB of data cache, Wishbone. Addresses from 0x80000000
 * are not cached for data; a cache line is fetched as a burst of eight words.
 */
#ifndef VEXRISCV_H
#define VEXRISCV_H

#include "Vmodel.h"
#include "Vmodel_VexRiscv.h"
#include "wishbone.h"

class Core {
public:
    Vmodel model;
    bool is_busy = false;   /* an access in this cycle */
    bool retires = false;   /* an instruction in this cycle */
    uint32_t pc = 0;

    void reset(uint32_t vector)
    {
        i_ = d_ = {};
        model.externalResetVector = vector;
        model.reset = 1;
    }
    void release() { model.reset = 0; }

    void inputs(const Bus &, bool timer, bool software)
    {
        model.timerInterrupt = timer;
        model.softwareInterrupt = software;
        model.externalInterruptArray = 0;
        model.iBusWishbone_ACK = i_.ack;
        model.iBusWishbone_DAT_MISO = i_.data;
        model.dBusWishbone_ACK = d_.ack;
        model.dBusWishbone_DAT_MISO = d_.data;
    }

    void outputs(Bus &bus)
    {
        retires = model.VexRiscv->lastStageIsFiring;
        pc = model.VexRiscv->lastStagePc;
        bool i = i_.step(bus, model.iBusWishbone_CYC && model.iBusWishbone_STB, false, model.iBusWishbone_ADR << 2, 0, 0,
                         model.iBusWishbone_CTI);
        bool d = d_.step(bus, model.dBusWishbone_CYC && model.dBusWishbone_STB, model.dBusWishbone_WE,
                         model.dBusWishbone_ADR << 2, model.dBusWishbone_DAT_MOSI, model.dBusWishbone_SEL,
                         model.dBusWishbone_CTI);
        is_busy = i || d;
    }

    void clock(int level) { model.clk = level; }
    uint64_t line_bytes() const { return 0; }
    uint64_t core_retired() const { return model.VexRiscv->CsrPlugin_minstret; }

private:
    Wishbone i_, d_;
};

#endif
