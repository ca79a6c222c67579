// The memory side's own view of the queue pairs: it knows only what the host wrote to registers and what the device
// did on its AXI port, and holds the device to R1, R3, R4, R11, R12, R14 and to the phase bit without looking inside it.
#pragma once

#include <array>
#include <cstdint>

#include "axi.h"
#include "doorbell_contract.h"
#include "event_monitor.h"
#include "model_watch.h"
#include "window_watch.h"

namespace doorbell {

// One queue pair. Addresses of registers are those of queue pair 0 and function 0.
class QueueMonitor {
public:
    // A register write is about to reach the device: it may act on it before it has answered.
    void write_begins(uint32_t address, uint32_t value);
    // The answer; after SLVERR nothing may have changed, and the device may not have acted on it.
    void write_ends(bool okay);
    // A read of STATE: ACTIVE = 0 acknowledges a disable (R12).
    void state_read(uint32_t value, bool writes_outstanding);
    // The reset pin: the device has forgotten everything.
    void reset();

    // A read burst. R1: only published slots, each once and in order. R11: nothing but the submission queue.
    void read_burst(uint64_t address, uint32_t beats) {
        const uint64_t offset = address - sq_.base;
        const uint32_t expected = sq_next_ & sq_.mask;
        if (!active_ || offset != uint64_t{expected} * kSlot || beats > sq_tail_ - sq_next_ ||
            expected + beats > sq_.mask + 1) [[unlikely]] {
            // A tail that is under way may be refused: what the one before it published is right in any case.
            const bool may_be_refused = write_.address == DOORBELL_REG_DOORBELL && beats <= write_.previous - sq_next_;
            if (!active_ || offset != uint64_t{expected} * kSlot || expected + beats > sq_.mask + 1 || !may_be_refused) {
                bad_read(address, beats);
            }
        }
        sq_next_ += beats;
    }

    // A beat that REWARD or POLICY reads. R11: of the token region only.
    void token_read(uint64_t address) {
        if (!active_ || address - token_base_ >= token_size_) [[unlikely]] bad_token_read(address);
    }

    // One beat of a line of tokens or log-probabilities with the strobes `strobe`, bit i for byte address + i. R11: all of
    // it in the region of the one or of the other.
    void token_beat(uint64_t address, uint64_t strobe) {
        if (strobe == 0) return;
        const uint64_t first = address + static_cast<uint64_t>(__builtin_ctzll(strobe));
        const uint64_t last = address + 63 - static_cast<uint64_t>(__builtin_clzll(strobe));
        const auto lies = [first, last](uint64_t base, uint64_t size) {
            return first - base <= last - base && last - base < size;
        };
        if (!active_ || !(lies(token_base_, token_size_) || lies(logp_base_, logp_size_))) [[unlikely]] {
            bad_token(address, strobe);
        }
    }

    // Whether a beat that engine 1 stores is one whole word of the log-probabilities: R27, of a PREFILL that scores.
    bool takes_score(uint64_t address, uint64_t strobe) const {
        if (!active_ || strobe == 0) return false;
        const uint32_t byte = static_cast<uint32_t>(__builtin_ctzll(strobe));
        const uint64_t offset = address + byte - logp_base_;
        return byte % 4 == 0 && strobe >> byte == 0xF && offset < logp_size_ && logp_size_ - offset >= 4;
    }

    // One beat of completions; returns how many it holds. R4: only released slots, each once and in order.
    uint32_t completion_beat(uint64_t address, uint64_t strobe, const uint32_t* data);
    // How many a beat with such strobes holds.
    static uint32_t completions(uint64_t strobe) {
        return ((strobe & 0xFFFF'FFFF) != 0 ? 1 : 0) + ((strobe >> 32) != 0 ? 1 : 0);
    }

    // FN_CONTROL.RESET of the function that owns it.
    void function_reset() { disabling_ = active_; }
    // A message. R14: what the table says, at most one for each write of ARM. The entry may have changed while it was on its way.
    void message(uint64_t address, uint64_t strobe, const uint32_t* data);
    // STATE has said that it is active: what it was configured with holds.
    bool is_active() const { return active_; }
    uint32_t owner() const { return owner_; }
    void set_owner(uint32_t function) { owner_ = function; }

private:
    static constexpr uint64_t kSlot = 64;
    static constexpr uint64_t kCompletion = 32;

    struct Ring {
        uint64_t base = 0;
        uint32_t mask = 0;
    };

    [[noreturn]] void bad_read(uint64_t address, uint32_t beats) const;
    [[noreturn]] void bad_token(uint64_t address, uint64_t strobe) const;
    [[noreturn]] void bad_token_read(uint64_t address) const;
    void enable();

    struct Write {
        uint32_t address, value, previous;
    };
    static constexpr uint32_t kNowhere = UINT32_MAX;  // no write is under way

    uint32_t registers_[32] = {};  // of the queue pair's configuration, by place in their block
    Write write_ = {kNowhere, 0, 0};
    bool active_ = false;     // from ENABLE to the STATE read that acknowledges the disable
    bool disabling_ = false;  // ENABLE is 0 but not yet acknowledged
    Ring sq_, cq_;
    uint64_t token_base_ = 0, token_size_ = 0;
    uint64_t logp_base_ = 0, logp_size_ = 0;
    uint32_t sq_tail_ = 0, sq_next_ = 0;  // published; next slot to be read
    uint32_t cq_head_ = 0, cq_next_ = 0;  // released; next slot to be written
    uint32_t sq_start_ = 0, cq_start_ = 0;
    uint32_t owner_ = 0;  // function
    uint32_t entry_[4] = {0, 0, 0, 1}, entry_before_[4] = {0, 0, 0, 1};  // of the table of messages
    uint64_t armings_ = 0, messages_ = 0;
};

// All of them: finds the queue pair that a register, an address or an ID belongs to, and checks AxUSER, the function.
//
// Of the queue pairs of a hostile function, a bit each in `hostile`, nobody knows what state they are in: they are held to their owner and the windows of
// their function alone (window_watch.h). What the others are held to does not change.
class QueueMonitors {
public:
    QueueMonitors(uint32_t queues, uint32_t hostile) : windows_{hostile}, queues_{queues}, hostile_{hostile} {}

    void write_begins(uint32_t address, uint32_t value);
    void write_ends(bool okay);
    // A read of any register: that of STATE is looked at.
    void register_read(uint32_t address, uint32_t value, bool writes_outstanding);
    void reset() {
        monitors_ = {};
        events_ = {};
        models_ = {};
        windows_.reset();
    }
    // The reset pin of the device alone: what it promised to the bus still comes, from where it was.
    void reset_device() {
        for (QueueMonitor& monitor : monitors_) monitor.function_reset();
    }
    // The address of a burst, whatever it is for.
    void burst(const char* channel, uint64_t address, uint32_t beats, uint32_t user) {
        windows_.burst(channel, address, beats, user);
    }
    const WindowWatch& windows() const { return windows_; }

    void read_burst(uint64_t address, uint32_t beats, uint32_t queue, uint32_t user) {
        QueueMonitor& monitor = monitors_[queue];
        if (user != monitor.owner()) [[unlikely]] bad_user("AR", address, user);
        if (is_hostile(user)) [[unlikely]] return;
        monitor.read_burst(address, beats);
    }
    void token_read(uint64_t address, uint32_t queue, uint32_t user) {
        if (models_[user % kFunctions].in_model(address)) return;
        QueueMonitor& monitor = monitors_[queue];
        if (user != monitor.owner()) [[unlikely]] bad_user("AR", address, user);
        if (is_hostile(user)) [[unlikely]] return;
        monitor.token_read(address);
    }
    void token_beat(uint64_t address, uint64_t strobe, uint32_t queue, uint32_t user) {
        QueueMonitor& monitor = monitors_[queue];
        if (user != monitor.owner()) [[unlikely]] bad_user("AW", address, user);
        if (is_hostile(user)) [[unlikely]] return;
        monitor.token_beat(address, strobe);
    }
    uint32_t completion_beat(uint32_t queue, uint64_t address, uint64_t strobe, const uint32_t* data, uint32_t user) {
        QueueMonitor& monitor = monitors_[queue];
        if (user != monitor.owner()) [[unlikely]] bad_user("AW", address, user);
        if (is_hostile(user)) [[unlikely]] return QueueMonitor::completions(strobe);
        return monitor.completion_beat(address, strobe, data);
    }
    // The table belongs to the device's owner: a hostile function's messages are held to it as others are.
    void message(uint32_t queue, uint64_t address, uint64_t strobe, const uint32_t* data, uint32_t user) {
        QueueMonitor& monitor = monitors_[queue];
        if (user != monitor.owner()) bad_user("AW", address, user);
        if (!is_hostile(user)) monitor.message(address, strobe, data);
    }
    // An event is held to the ring of its function, while one of that's queue pairs may be active.
    void event(uint32_t function, uint64_t address, uint64_t strobe, const uint32_t* data, uint32_t user) {
        if (user != function) bad_user("AW", address, user);
        if (is_hostile(user)) return;
        if (!is_active(function)) bad_event(address, function);
        events_[function].event(address, strobe, data);
    }
    // An event and a line of keys and values of one function have the same ID: the former lies in its ring.
    bool in_ring(uint32_t function, uint64_t address) const { return events_[function].has(address); }
    // A line of keys and values of engine 1, or a word that scores a given token.
    void store(uint64_t address, uint64_t strobe, uint32_t user) {
        if (is_hostile(user) || models_[user % kFunctions].in_arena(address)) return;
        for (uint32_t queue = 0; queue < queues_; ++queue) {
            if (monitors_[queue].owner() == user && monitors_[queue].takes_score(address, strobe)) return;
        }
        ModelWatch::astray(address);
    }
    uint32_t queues() const { return queues_; }

private:
    bool is_active(uint32_t function) const;
    [[noreturn]] static void bad_event(uint64_t address, uint32_t function);
    bool is_hostile(uint32_t function) const { return (hostile_ >> function & 1) != 0; }
    bool watches(uint32_t queue) const { return queue < queues_ && !is_hostile(monitors_[queue].owner()); }
    [[noreturn]] static void bad_user(const char* channel, uint64_t address, uint32_t user);

    WindowWatch windows_;
    std::array<QueueMonitor, kQueues> monitors_;
    std::array<EventMonitor, kFunctions> events_;
    std::array<ModelWatch, kFunctions> models_;
    uint32_t queues_, hostile_;
    uint32_t address_ = 0, value_ = 0;  // of the register write that is under way
};

}  // namespace doorbell
