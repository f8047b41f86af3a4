/* A Wishbone port of a core, answered from the SoC's memory. */
#ifndef WISHBONE_H
#define WISHBONE_H

#include "devices.h"

/* A request is answered after its latency; the beats of a burst follow one per cycle. */
class Wishbone {
public:
    bool ack = false;
    uint32_t data = 0;

    /* At the end of a cycle, with the core's outputs in it; sets ack and data for the next one. */
    bool step(Bus &bus, bool strobe, bool we, uint32_t address, uint32_t value, uint32_t lanes, uint32_t kind)
    {
        if (ack) { /* this beat is done */
            ack = strobe && kind == 2 && !we;
            if (ack)
                data = bus.read(address + 4);
            waited_ = 0;
            return true;
        }
        if (!strobe)
            return false;
        if (++waited_ >= bus.latency(address)) {
            ack = true;
            waited_ = 0;
            if (we)
                bus.write(address, value, lanes);
            else
                data = bus.read(address);
        }
        return true;
    }

private:
    uint32_t waited_ = 0;
};

#endif
