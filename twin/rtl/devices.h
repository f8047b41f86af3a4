/* The SoC's devices: RAM, the timer, the serial line and a watchdog. Time is a count of the core's clock. */
#ifndef DEVICES_H
#define DEVICES_H

#include "soc.h"
#include <deque>
#include <string.h>

/* ---- 16550: 16 bytes of FIFO each way, a byte takes ten bit times of 16 divisor clocks ---- */
class Uart {
public:
    explicit Uart(const rtl_options &o) : is_there_(o.uart_base), clocks_(double(o.clock_hz) / o.uart_clock_hz) {}

    uint32_t read(unsigned reg, uint64_t now)
    {
        move(now);
        if (reg == 0 && !latch_) {
            if (received_.empty())
                return 0;
            uint8_t byte = received_.front();
            received_.pop_front();
            return byte;
        }
        if (reg == 5) {
            bool sends = !sending_.empty();
            uint32_t overrun = overrun_ ? 2 : 0;
            overrun_ = false;
            return (received_.empty() ? 0u : 1u) | overrun | (sends ? 0u : 0x60u);
        }
        return reg == 3 ? lcr_ : 0;
    }

    void write(unsigned reg, uint32_t value, uint64_t now)
    {
        move(now);
        if (reg == 3) {
            lcr_ = value;
            latch_ = value & 0x80;
        } else if (reg == 0 && latch_) {
            divisor_ = (divisor_ & 0xff00) | (value & 0xff);
        } else if (reg == 1 && latch_) {
            divisor_ = (divisor_ & 0xff) | (value & 0xff) << 8;
        } else if (reg == 0 && sending_.size() < 16) {
            if (sending_.empty())
                sent_at_ = now + byte_cycles();
            sending_.push_back(uint8_t(value));
        } else if (reg == 2 && value & 2) {
            received_.clear();
        }
    }

    /* Bytes whose time has come cross the line. */
    void move(uint64_t now)
    {
        if (!is_there_)
            return;
        while (!sending_.empty() && sent_at_ <= now) {
            far_in.push_back(sending_.front());
            sending_.pop_front();
            sent_at_ += byte_cycles();
        }
        if (far_out.empty()) {
            arrives_at_ = 0;
            return;
        }
        if (arrives_at_ == 0)
            arrives_at_ = now + byte_cycles();
        while (!far_out.empty() && arrives_at_ <= now) {
            if (received_.size() < 16)
                received_.push_back(far_out.front());
            else
                overrun_ = true, overruns++;
            far_out.pop_front();
            arrives_at_ += byte_cycles();
        }
    }

    uint64_t in_flight() const { return far_out.size() + received_.size() + sending_.size() + far_in.size(); }

    std::deque<uint8_t> far_out, far_in; /* to and from the image */
    uint64_t overruns = 0;

private:
    uint64_t byte_cycles() const { return uint64_t(clocks_ * 160 * (divisor_ ? divisor_ : 1)); }

    bool is_there_;
    double clocks_;
    uint32_t divisor_ = 1, lcr_ = 0;
    bool latch_ = false, overrun_ = false;
    uint64_t sent_at_ = 0, arrives_at_ = 0;
    std::deque<uint8_t> received_, sending_;
};

/* ---- CLINT ---- */
class Clint {
public:
    explicit Clint(const rtl_options &o) : clocks(o.clock_hz / o.timebase_hz) {}

    uint32_t read(uint32_t offset, uint64_t now) const
    {
        uint64_t time = now / clocks;
        switch (offset) {
        case 0x0000: return software;
        case 0x4000: return uint32_t(compare);
        case 0x4004: return uint32_t(compare >> 32);
        case 0xbff8: return uint32_t(time);
        case 0xbffc: return uint32_t(time >> 32);
        default: return 0;
        }
    }

    void write(uint32_t offset, uint32_t value)
    {
        if (offset == 0x0000)
            software = value & 1;
        else if (offset == 0x4000)
            compare = (compare & 0xffffffff00000000u) | value;
        else if (offset == 0x4004)
            compare = (compare & 0xffffffffu) | uint64_t(value) << 32;
        due_at = compare > UINT64_MAX / clocks ? UINT64_MAX : compare * clocks;
    }

    uint64_t clocks;
    uint64_t compare = UINT64_MAX, due_at = UINT64_MAX; /* the latter in cycles */
    uint32_t software = 0;
};

/* ---- watchdog: the first write starts it, each further one feeds it; then the core starts again ---- */
class Watchdog {
public:
    explicit Watchdog(const rtl_options &o) : cycles_(o.watchdog_cycles) {}

    void feed(uint64_t now) { due_at = cycles_ ? now + cycles_ : UINT64_MAX; }

    uint64_t due_at = UINT64_MAX;

private:
    uint64_t cycles_;
};

/* ---- address map ---- */
class Bus {
public:
    Bus(uint8_t *ram, const rtl_options &o) : clint(o), uart(o), watchdog(o), ram_(ram), o_(o) {}

    uint8_t *ram_at(uint32_t address) const
    {
        if (address - o_.ram_base < o_.ram_bytes)
            return ram_ + (address - o_.ram_base);
        if (o_.alias_base && address - o_.alias_base < o_.ram_bytes)
            return ram_ + (address - o_.alias_base);
        return nullptr;
    }

    uint32_t latency(uint32_t address) const { return ram_at(address) ? o_.ram_cycles : o_.mmio_cycles; }

    uint32_t read(uint32_t address)
    {
        uint32_t word;
        if (const uint8_t *at = ram_at(address & ~3u)) {
            memcpy(&word, at, 4);
            return word;
        }
        if (address - o_.clint_base < 0x10000)
            return clint.read(address - o_.clint_base, now);
        if (address - o_.uart_base < 0x100)
            return uart.read((address - o_.uart_base) / 4, now);
        bus_errors++;
        return 0;
    }

    void write(uint32_t address, uint32_t value, uint32_t lanes)
    {
        if (uint8_t *at = ram_at(address & ~3u)) {
            for (int i = 0; i < 4; i++)
                if (lanes >> i & 1)
                    at[i] = uint8_t(value >> 8 * i);
        } else if (address - o_.clint_base < 0x10000) {
            clint.write(address - o_.clint_base, value);
        } else if (address - o_.uart_base < 0x100) {
            uart.write((address - o_.uart_base) / 4, value, now);
        } else if (address == o_.watchdog_base) {
            watchdog.feed(now);
        } else {
            bus_errors++;
        }
    }

    uint64_t now = 0;
    uint64_t bus_errors = 0;
    Clint clint;
    Uart uart;
    Watchdog watchdog;

private:
    uint8_t *ram_;
    rtl_options o_;
};

#endif
