// The memory side's own view of a function's event ring: it knows only what the host wrote to registers and what the device did
// on its AXI port, and holds the device to R23.
#pragma once

#include <cstdint>

namespace doorbell {

class EventMonitor {
public:
    // A write of a register of the function, by its address in the page of function 0; and its answer.
    void write_begins(uint32_t address, uint32_t value);
    void write_ends(uint32_t address, uint32_t value, bool okay);
    // A queue pair of the function was enabled: if no other was active, the ring starts anew, which its next event tells.
    void enabled() { may_start_ = true; }
    // One beat with an event. R23: the next slot that the host has released, whole, with its phases.
    void event(uint64_t address, uint64_t strobe, const uint32_t* data);

    // The ring has a slot there.
    bool has(uint64_t address) const {
        return address - (uint64_t{registers_[1]} << 32 | registers_[0]) < uint64_t{registers_[2]} * 32;
    }

private:
    uint32_t registers_[4] = {};  // EQ_BASE_LO to EVENT_CONTROL
    uint32_t head_ = 0, head_before_ = 0;
    uint32_t next_ = 0;
    bool may_start_ = false;
};

}  // namespace doorbell
