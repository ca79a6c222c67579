#include "event_monitor.h"

#include <cinttypes>
#include <cstdio>
#include <string>

#include "doorbell_contract.h"
#include "failure.h"

namespace doorbell {
namespace {

constexpr uint64_t kEvent = sizeof(doorbell_hw_event);

template <class... Args>
std::string format(const char* pattern, Args... args) {
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, pattern, args...);
    return buffer;
}

}  // namespace

void EventMonitor::write_begins(uint32_t address, uint32_t value) {
    if (address != DOORBELL_REG_EQ_HEAD) return;
    head_before_ = head_;
    head_ = value;
}

void EventMonitor::write_ends(uint32_t address, uint32_t value, bool okay) {
    if (address == DOORBELL_REG_EQ_HEAD && !okay) head_ = head_before_;
    if (const uint32_t at = address - DOORBELL_REG_EQ_BASE_LO; okay && at < sizeof registers_) registers_[at / 4] = value;
}

void EventMonitor::event(uint64_t address, uint64_t strobe, const uint32_t* data) {
    constexpr uint64_t kLow = 0xFFFF'FFFF, kHigh = kLow << 32;
    if (strobe != kLow && strobe != kHigh) {
        fail_memory("R23", format("event written to 0x%" PRIx64 " with strobes 0x%016" PRIx64 ": not one whole slot", address,
                                  strobe));
    }
    const uint32_t half = strobe == kLow ? 0 : 1;
    const uint64_t base = uint64_t{registers_[1]} << 32 | registers_[0], at = address + half * kEvent;
    const uint32_t slots = registers_[2];
    if (at - base >= uint64_t{slots} * kEvent) {
        fail_memory("R11", format("event written to 0x%" PRIx64 ", outside the ring of %" PRIu32 " slots at 0x%" PRIx64, at,
                                  slots, base));
    }
    const uint32_t first = data[half * 8 + 3] >> 31, last = data[half * 8 + 7] >> 31;
    const auto is_next = [&] {
        return at == base + (next_ & (slots - 1)) * kEvent && first == last && first == ((next_ & slots) == 0 ? 1U : 0U);
    };
    if (!is_next() && may_start_) next_ = head_ = 0;
    if (!is_next()) {
        fail_memory("R23", format("event written to 0x%" PRIx64 " with phases %" PRIu32 " and %" PRIu32
                                  ", but the next one has index %" PRIu32 " of a ring of %" PRIu32 " at 0x%" PRIx64, at, first,
                                  last, next_, slots, base));
    }
    may_start_ = false;
    if (next_ - head_ >= slots) {
        fail_memory("R23", format("event %" PRIu32 " written, but the host has released only below %" PRIu32 " of a ring of %" PRIu32,
                                  next_, head_, slots));
    }
    ++next_;
}

}  // namespace doorbell
