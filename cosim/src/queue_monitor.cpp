#include "queue_monitor.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <utility>

#include "doorbell_contract.h"
#include "failure.h"

namespace doorbell {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, pattern, args...);
    return buffer;
}

// Where a register of the queue pair's configuration is kept.
constexpr uint32_t place(uint32_t address) { return (address - DOORBELL_BLOCK_FUNCTION_QUEUE) / 4; }

// Whose register an address is, and which.
struct Decoded {
    bool of_queue, of_function;
    uint32_t queue, function, address;
};

Decoded decode(uint32_t address) {
    const uint32_t offset = address & 0xFFF, page = address >> 12;
    if (page >= 32) return {true, false, page - 32, 0, DOORBELL_BLOCK_QUEUE + offset};
    if (page >= 16 && offset >= 0x800) {
        return {true, false, offset >> 7 & 0xF, page - 16, DOORBELL_BLOCK_FUNCTION_QUEUE + (offset & 0x7F)};
    }
    if (page >= 16) return {false, true, 0, page - 16, DOORBELL_BLOCK_FUNCTION + offset};
    if ((address & ~0xFFU) == DOORBELL_BLOCK_DEVICE_QUEUE) {
        return {true, false, address >> 4 & 0xF, 0, DOORBELL_BLOCK_DEVICE_QUEUE + (address & 0xF)};
    }
    if ((address & ~0xFFU) == DOORBELL_BLOCK_DEVICE_MESSAGE) {
        return {true, false, address >> 4 & 0xF, 0, DOORBELL_BLOCK_DEVICE_MESSAGE + (address & 0xF)};
    }
    return {false, false, 0, 0, address};
}

}  // namespace

void QueueMonitor::write_begins(uint32_t address, uint32_t value) {
    write_ = {address, value, 0};
    if (address == DOORBELL_REG_DOORBELL) write_.previous = std::exchange(sq_tail_, value);
    if (address == DOORBELL_REG_CQ_HEAD) write_.previous = std::exchange(cq_head_, value);
    if (address == DOORBELL_REG_ARM) ++armings_;
    if (const uint32_t at = address - DOORBELL_BLOCK_DEVICE_MESSAGE; at < sizeof entry_) {
        entry_before_[at / 4] = std::exchange(entry_[at / 4], value);
    }
}

void QueueMonitor::write_ends(bool okay) {
    const auto [address, value, previous] = write_;
    write_.address = kNowhere;
    if (!okay) {
        if (address == DOORBELL_REG_ARM) --armings_;
        if (const uint32_t at = address - DOORBELL_BLOCK_DEVICE_MESSAGE; at < sizeof entry_) {
            entry_[at / 4] = entry_before_[at / 4];
        }
        if (address == DOORBELL_REG_DOORBELL) {
            sq_tail_ = previous;
            if (static_cast<int32_t>(sq_tail_ - sq_next_) < 0) {
                fail_memory("R1", format("the device refused the tail %" PRIu32 " but read up to slot %" PRIu32, value,
                                         sq_next_));
            }
        }
        if (address == DOORBELL_REG_CQ_HEAD) {
            cq_head_ = previous;
            if (static_cast<int32_t>(cq_next_ - cq_head_) > static_cast<int32_t>(cq_.mask + 1)) {
                fail_memory("R4", format("the device refused the head %" PRIu32 " but wrote up to completion %" PRIu32,
                                         value, cq_next_));
            }
        }
        return;
    }
    if (address - DOORBELL_BLOCK_FUNCTION_QUEUE < sizeof registers_) registers_[place(address)] = value;
    if (address != DOORBELL_REG_CONTROL) return;
    if ((value & DOORBELL_CONTROL_ENABLE) == 0) {
        disabling_ = active_;
    } else if (!active_ || disabling_) {
        enable();
    }
}

void QueueMonitor::state_read(uint32_t value, bool writes_outstanding) {
    if ((value & DOORBELL_STATE_ACTIVE) != 0) return;
    if (active_ && writes_outstanding) {
        fail_memory("R12", "STATE.ACTIVE reads 0 while the device's writes are still in flight");
    }
    active_ = false;
    disabling_ = false;
}

void QueueMonitor::reset() { *this = QueueMonitor{}; }

void QueueMonitor::enable() {
    const auto wide = [this](uint32_t low) {
        return uint64_t{registers_[place(low) + 1]} << 32 | registers_[place(low)];
    };
    sq_ = {wide(DOORBELL_REG_SQ_BASE_LO), registers_[place(DOORBELL_REG_SQ_SIZE)] - 1};
    cq_ = {wide(DOORBELL_REG_CQ_BASE_LO), registers_[place(DOORBELL_REG_CQ_SIZE)] - 1};
    token_base_ = wide(DOORBELL_REG_TOKEN_BASE_LO);
    token_size_ = wide(DOORBELL_REG_TOKEN_SIZE_LO);
    logp_base_ = wide(DOORBELL_REG_LOGP_BASE_LO);
    logp_size_ = wide(DOORBELL_REG_LOGP_SIZE_LO);
    sq_tail_ = sq_next_ = sq_start_ = registers_[place(DOORBELL_REG_SQ_START)];
    cq_head_ = cq_next_ = cq_start_ = registers_[place(DOORBELL_REG_CQ_START)];
    active_ = true;
    disabling_ = false;
}

uint32_t QueueMonitor::completion_beat(uint64_t address, uint64_t strobe, const uint32_t* data) {
    constexpr uint64_t kLow = 0xFFFF'FFFF, kHigh = kLow << 32;
    if (!active_) {
        fail_memory("R12", format("completion write to 0x%" PRIx64 " while the device is inactive", address));
    }
    const bool low = (strobe & kLow) != 0, high = (strobe & kHigh) != 0;
    if ((low && (strobe & kLow) != kLow) || (high && (strobe & kHigh) != kHigh) || !(low || high)) {
        fail_memory("R4", format("completion write to 0x%" PRIx64 " with strobes 0x%016" PRIx64
                                 ": not whole 32-byte slots", address, strobe));
    }
    for (uint32_t half = low ? 0 : 1; half <= (high ? 1U : 0U); ++half) {
        const uint64_t slot = cq_next_ & cq_.mask;
        const uint64_t place = address + half * kCompletion;
        if (place != cq_.base + slot * kCompletion) {
            fail_memory(place - cq_.base < (uint64_t{cq_.mask} + 1) * kCompletion ? "R3" : "R11",
                        format("completion written to 0x%" PRIx64 ", but the next one, index %" PRIu32
                               ", belongs to 0x%" PRIx64, place, cq_next_, cq_.base + slot * kCompletion));
        }
        // A head that is under way may be refused: what the one before it allows is right in any case.
        const bool may_be_refused = write_.address == DOORBELL_REG_CQ_HEAD && cq_next_ - write_.previous <= cq_.mask;
        if (cq_next_ - cq_head_ > cq_.mask && !may_be_refused) {
            fail_memory("R4", format("completion %" PRIu32 " written, but the host has released only below %" PRIu32
                                     " of a ring of %" PRIu32, cq_next_, cq_head_, cq_.mask + 1));
        }
        if (cq_next_ - cq_start_ >= sq_next_ - sq_start_) {
            fail_memory("R3", format("completion %" PRIu32 " written, but only %" PRIu32 " descriptors were read",
                                     cq_next_, sq_next_ - sq_start_));
        }
        // Bit 7 of the last byte of either half; the other seven of byte 31 are 0.
        const uint32_t first = data[half * 8 + 3] >> 24 & 0x80, last = data[half * 8 + 7] >> 24;
        const uint32_t expected = (cq_next_ / (cq_.mask + 1) & 1) != 0 ? 0 : 0x80;
        if (first != expected || last != expected) {
            fail_memory("R13", format("completion %" PRIu32 " carries phase bytes 0x%02" PRIx32 " and 0x%02" PRIx32
                                      " instead of 0x%02" PRIx32, cq_next_, first, last, expected));
        }
        ++cq_next_;
    }
    return completions(strobe);
}

void QueueMonitor::message(uint64_t address, uint64_t strobe, const uint32_t* data) {
    const auto is_entry = [this](uint32_t word, uint32_t value) {
        return value == entry_[word] || value == entry_before_[word];
    };
    const uint32_t word = static_cast<uint32_t>(__builtin_ctzll(strobe | uint64_t{1} << 63)) / 4;
    const uint64_t at = address + 4 * word;
    if (!active_) fail_memory("R12", format("message to 0x%" PRIx64 " while the device is inactive", at));
    if (strobe != uint64_t{0xF} << (4 * word) || !is_entry(0, static_cast<uint32_t>(at)) ||
        !is_entry(1, static_cast<uint32_t>(at >> 32)) || !is_entry(2, data[word])) {
        fail_memory("R14", format("message 0x%08" PRIx32 " to 0x%" PRIx64 " with strobes 0x%016" PRIx64
                                  ", which the table does not say", data[word], at, strobe));
    }
    if (++messages_ > armings_) {
        fail_memory("R14", format("message %" PRIu64 " of %" PRIu64 " armings", messages_, armings_));
    }
}

void QueueMonitor::bad_read(uint64_t address, uint32_t beats) const {
    if (!active_) {
        fail_memory("R12", format("read of 0x%" PRIx64 " while the device is inactive", address));
    }
    const uint64_t offset = address - sq_.base;
    if (offset >= (uint64_t{sq_.mask} + 1) * kSlot || offset / kSlot + beats > uint64_t{sq_.mask} + 1) {
        fail_memory("R11", format("read of %" PRIu32 " beats at 0x%" PRIx64 " leaves the submission queue", beats,
                                  address));
    }
    fail_memory("R1", format("read of %" PRIu32 " slots at slot %" PRIu64 ", but the next published ones are indices %"
                             PRIu32 " (slot %" PRIu32 ") up to the tail %" PRIu32, beats, offset / kSlot, sq_next_,
                             sq_next_ & sq_.mask, sq_tail_));
}

void QueueMonitor::bad_token(uint64_t address, uint64_t strobe) const {
    if (!active_) {
        fail_memory("R12", format("token write to 0x%" PRIx64 " while the device is inactive", address));
    }
    fail_memory("R11", format("token write to 0x%" PRIx64 " with strobes 0x%016" PRIx64
                              " leaves the token region 0x%" PRIx64 " … 0x%" PRIx64
                              " and the log-probabilities' 0x%" PRIx64 " … 0x%" PRIx64, address, strobe, token_base_,
                              token_base_ + token_size_, logp_base_, logp_base_ + logp_size_));
}

void QueueMonitor::bad_token_read(uint64_t address) const {
    if (!active_) {
        fail_memory("R12", format("token read of 0x%" PRIx64 " while the device is inactive", address));
    }
    fail_memory("R11", format("token read of 0x%" PRIx64 " leaves the token region 0x%" PRIx64 " … 0x%" PRIx64, address,
                              token_base_, token_base_ + token_size_));
}

void QueueMonitors::write_begins(uint32_t address, uint32_t value) {
    address_ = address;
    value_ = value;
    const Decoded at = decode(address);
    if (at.of_queue && watches(at.queue)) monitors_[at.queue].write_begins(at.address, value);
    if (at.of_function) events_[at.function].write_begins(at.address, value);
}

void QueueMonitors::write_ends(bool okay) {
    const Decoded at = decode(address_);
    if (okay) windows_.written(address_, value_);
    if (at.of_queue && at.queue < queues_) {
        if (watches(at.queue)) monitors_[at.queue].write_ends(okay);
        if (okay && at.address == DOORBELL_REG_CONTROL && (value_ & DOORBELL_CONTROL_ENABLE) != 0) {
            events_[monitors_[at.queue].owner()].enabled();
        }
        if (okay && at.address == DOORBELL_REG_QUEUE_FUNCTION) monitors_[at.queue].set_owner(value_);
    }
    if (at.of_function) events_[at.function].write_ends(at.address, value_, okay);
    if (at.of_function && okay) models_[at.function].written(at.address, value_);
    if (okay && at.of_function && at.address == DOORBELL_REG_FN_CONTROL && (value_ & DOORBELL_FN_CONTROL_RESET) != 0) {
        for (QueueMonitor& monitor : monitors_) {
            if (monitor.owner() == at.function) monitor.function_reset();
        }
    }
}

void QueueMonitors::register_read(uint32_t address, uint32_t value, bool writes_outstanding) {
    const Decoded at = decode(address);
    // With several queue pairs the writes in flight may be another's.
    if (at.address == DOORBELL_REG_STATE && watches(at.queue)) {
        monitors_[at.queue].state_read(value, writes_outstanding && queues_ == 1);
    }
}

bool QueueMonitors::is_active(uint32_t function) const {
    return std::any_of(monitors_.begin(), monitors_.end(), [function](const QueueMonitor& monitor) {
        return monitor.is_active() && monitor.owner() == function;
    });
}

void QueueMonitors::bad_event(uint64_t address, uint32_t function) {
    fail_memory("R12", format("event write to 0x%" PRIx64 " while function %" PRIu32 " is inactive", address, function));
}

void QueueMonitors::bad_user(const char* channel, uint64_t address, uint32_t user) {
    fail_memory("R11", format("%s of 0x%" PRIx64 " with AxUSER %" PRIu32 ", which is not the function that owns the queue pair",
                              channel, address, user));
}

}  // namespace doorbell
