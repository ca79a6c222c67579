// The memory on the device's AXI4 master port: one contiguous block that belongs to the host, or, where functions have hosts of their
// own (SimulatorConfig::by_function), what each function was given of the memory of its host (dma_ranges.h).
//
// `AxiMemory<false>` answers at once or after a fixed latency; all randomness and all faults are compiled out of it, so
// that it costs next to nothing beside the model. `AxiMemory<true>` draws latency, stalls and order from a seeded
// generator, injects faults, and is the one that may be by function. Both check the protocol and hold the device to the queue rules (queue_monitor.h).
//
// In each clock cycle `drive` sets the port's inputs while the clock is low, then `sample` sees what the rising edge
// will hand over.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "axi.h"
#include "dma_ranges.h"
#include "failure.h"
#include "fifo.h"
#include "queue_monitor.h"
#include "random.h"
#include "responses.h"

namespace doorbell {

enum Channel : uint32_t { kAr, kR, kAw, kW, kB };

// Counts of what was transferred since the simulator was made.
struct Transferred {
    uint64_t read_bursts = 0, read_beats = 0, token_beats = 0, completions = 0;
};

template <bool Chaos>
class AxiMemory {
public:
    AxiMemory(const SimulatorConfig& config, uint32_t queues, uint32_t engines);

    // The block: `bytes` at host address `host`, seen by the device at bus address `bus`.
    void attach(uint8_t* host, uint64_t bytes, uint64_t bus) { host_ = host, bytes_ = bytes, bus_ = bus; }

    DmaRanges& ranges() { return ranges_; }
    const DmaRanges& ranges() const { return ranges_; }
    QueueMonitors& monitor() { return monitor_; }
    const QueueMonitors& monitor() const { return monitor_; }
    // Completions whose write has been acknowledged, i.e. that are visible to the host.
    uint64_t completions_visible() const { return visible_; }
    // Messages of interrupts that are in memory: of all queue pairs, and of one.
    uint64_t messages() const { return messages_; }
    uint64_t messages(uint32_t queue) const { return messages_of_[queue]; }
    bool writes_outstanding() const { return !bursts_.empty() || !responses_.empty() || !early_.empty(); }
    const Transferred& transferred() const { return transferred_; }
    // What was asked for and has not come.
    Owed owed() const {
        Owed owed{reads_.beats(), responses_.count()};
        for (uint32_t place = 0; place < early_.size(); ++place) owed.write_responses += early_.at(place).last;
        return owed;
    }

    // How it behaves from here on, until it is told otherwise.
    void set_weather(const Weather& weather);
    // The beats that were answered with an error since this was asked last, but for those of the configuration.
    rust::Vec<Injected> take_injected() { return std::exchange(injected_, {}); }
    rust::Vec<Moment> take_moments() { return std::exchange(moments_, {}); }
    // The beats that were moved since this was asked last, where memory is by function; they are noted once it was asked.
    rust::Vec<Moved> take_moved() {
        notes_moves_ = true;
        return std::exchange(moved_, {});
    }

    // The reset pin is active: every transfer in flight is forgotten.
    void reset();

    template <class Top> void drive(Top& top);
    template <class Top> void sample(Top& top);

private:
    struct Burst {
        uint64_t address;
        uint32_t id, beats, done;
        uint32_t code;
        uint32_t user;
    };
    void accept_read(uint64_t address, uint32_t id, uint32_t length, uint32_t size, uint32_t burst, uint32_t user);
    void accept_address(uint64_t address, uint32_t id, uint32_t length, uint32_t size, uint32_t burst, uint32_t user);
    void accept_beat(const uint32_t* data, uint64_t strobe, bool last);
    void accept_single(uint64_t address, uint32_t id, uint32_t size, uint32_t burst, uint32_t user, const uint32_t* data,
                       uint64_t strobe);
    void check_id(uint32_t id, uint64_t address) const;
    static bool is_message(uint32_t id) { return id >= kMessageId && id < kEventId; }
    bool is_store(uint32_t id, uint64_t address) const {
        return engines_ > 1 && id >= kEventId && !monitor_.in_ring(id - kEventId, address);
    }
    // A message of an interrupt may lie anywhere; where there is no memory it is answered DECERR.
    // Where memory is by function, that is looked up when data moves.
    bool lies(uint64_t address) const {
        return is_by_function() || (address - bus_ < bytes_ && kBeatBytes <= bytes_ - (address - bus_));
    }
    bool is_by_function() const {
        if constexpr (Chaos) return by_function_;
        return false;
    }
    // Where the beat at `address` of the function `user` is kept; null: nowhere.
    uint8_t* place(uint32_t user, uint64_t address, bool is_write) {
        return is_by_function() ? ranges_.find(user, address, is_write) : host_ + (address - bus_);
    }
    void note_move(const uint8_t* host, uint64_t address, uint32_t id, bool is_write) {
        if (notes_moves_) moved_.push_back(Moved{address, reinterpret_cast<uintptr_t>(host), id, is_write});
    }
    void check_form(uint64_t address, uint32_t length, uint32_t size, uint32_t burst) const;
    void message_came(uint32_t id) { ++messages_, ++messages_of_[id - kMessageId]; }
    void accept_message(uint64_t address, uint32_t id, uint32_t size, uint32_t burst, uint32_t user, const uint32_t* data,
                        uint64_t strobe);
    Response& respond(uint32_t id, uint32_t completions, uint32_t code);
    void finish_burst(uint32_t completions, uint32_t code);
    uint32_t draw_error(uint64_t address, uint64_t strobe, bool is_write);
    static void store(uint8_t* place, const uint32_t* data, uint64_t strobe);
    uint64_t latency();
    bool stalled(Channel channel) const {
        if constexpr (Chaos) return (bits_ >> (12 * channel) & 0xFFF) < stall_limit_[channel];
        return false;
    }
    void apply(Response& response);
    static void load(uint32_t* data, uint8_t* place);
    bool spurious_response_due();
    const Fault* fault(FaultKind kind, uint64_t at) const {
        if constexpr (Chaos) return find_fault(kind, at);
        return nullptr;
    }
    const Fault* find_fault(FaultKind kind, uint64_t at) const;

    void check_burst(const char* channel, uint64_t address, uint32_t length, uint32_t size, uint32_t burst) const;

    uint8_t* host_ = nullptr;
    uint64_t bytes_ = 0, bus_ = 0;
    uint64_t now_ = 0;
    uint64_t latency_min_;
    uint64_t visible_ = 0, messages_ = 0;
    uint64_t messages_of_[kQueues] = {};
    uint32_t engines_;

    std::conditional_t<Chaos, ShuffledReads, OrderedReads> reads_;
    Read* read_ = nullptr;  // on the R channel
    Fifo<Burst, kOutstanding> bursts_;  // write addresses whose data is not complete
    Fifo<WriteBeat, kOutstanding> early_;  // write data that came before its address
    std::conditional_t<Chaos, ShuffledResponses, OrderedResponses> responses_;
    Response* shown_ = nullptr;  // on the B channel
    QueueMonitors monitor_;
    static constexpr uint32_t kNobodysId = UINT32_MAX;  // of a read
    Transferred transferred_;

    bool showing_r_ = false, showing_b_ = false;
    uint64_t order_ = 0;

    // Chaos only.
    uint64_t latency_max_;
    uint32_t stall_limit_[5] = {};  // of 4096
    uint64_t bits_ = 0;             // this cycle's random bits, 12 for each channel
    Random random_;
    std::vector<Fault> faults_;
    std::vector<FaultyRange> faulty_;
    rust::Vec<Injected> injected_;
    bool by_function_;
    DmaRanges ranges_;
    bool keeps_moments_;
    rust::Vec<Moment> moments_;
    bool notes_moves_ = false;
    rust::Vec<Moved> moved_;
    bool withholds_reads_ = false, withholds_writes_ = false;
    std::vector<WriteBeat> effect_;      // of the burst whose beats are coming in

    // What was offered and not yet taken: it has to stay.
    bool held_ar_ = false, held_aw_ = false, held_w_ = false;
    uint64_t ar_address_ = 0, aw_address_ = 0, w_strobe_ = 0;
    uint32_t ar_rest_ = 0, aw_rest_ = 0;
    bool w_last_ = false;
    uint32_t w_data_[kBeatWords] = {};
};

// The host may write the block while it is read: slots that are not published yet.
template <bool Chaos>
inline void AxiMemory<Chaos>::load(uint32_t* data, uint8_t* place) {
    uint64_t* const words = reinterpret_cast<uint64_t*>(place);
    for (uint32_t i = 0; i < kBeatBytes / 8; ++i) {
        const uint64_t word = __atomic_load_n(words + i, __ATOMIC_ACQUIRE);
        std::memcpy(data + 2 * i, &word, 8);
    }
}

template <bool Chaos>
template <class Top>
inline void AxiMemory<Chaos>::drive(Top& top) {
    if constexpr (Chaos) bits_ = random_.next();

    top.m_axi_arready = !reads_.full() && !stalled(kAr);
    if (!showing_r_ && !reads_.empty() && !stalled(kR) && !(Chaos && withholds_reads_) &&
        (read_ = reads_.choose(now_, random_)) != nullptr) {
        const Read& read = *read_;
        uint32_t code = fault(FaultKind::ReadError, transferred_.read_beats) != nullptr ? kSlverr : kOkay;
        if constexpr (Chaos) {
            if (code == kOkay && !faulty_.empty()) code = draw_error(read.address, UINT64_MAX, false);
        }
        uint8_t* const from = code == kOkay ? place(read.user, read.address, false) : nullptr;
        if (is_by_function() && code == kOkay && from == nullptr) code = kDecerr;
        if (code != kOkay) {
            std::memset(&top.m_axi_rdata[0], 0xFF, kBeatBytes);
        } else {
            load(&top.m_axi_rdata[0], from);
            if (is_by_function()) note_move(from, read.address, read.id, false);
            if (const Fault* const corrupt = fault(FaultKind::CorruptRead, transferred_.read_beats)) {
                top.m_axi_rdata[corrupt->bit / 32 % kBeatWords] ^= 1U << corrupt->bit % 32;
            }
        }
        top.m_axi_rid = read.id;
        top.m_axi_rresp = code;
        top.m_axi_rlast = read.beats == 1;
        showing_r_ = true;
    }
    top.m_axi_rvalid = showing_r_;

    top.m_axi_awready = !bursts_.full() && responses_.room() && !stalled(kAw);
    top.m_axi_wready = !early_.full() && responses_.room() && !stalled(kW);
    if (!showing_b_ && !stalled(kB) && !(Chaos && withholds_writes_)) {
        shown_ = responses_.choose(now_, random_);
        if (shown_ != nullptr) {
            if constexpr (Chaos) apply(*shown_);
            top.m_axi_bid = shown_->id;
            top.m_axi_bresp = shown_->code;
            showing_b_ = true;
        } else if (Chaos && spurious_response_due()) {
            top.m_axi_bid = kCompletionId;
            top.m_axi_bresp = kOkay;
            showing_b_ = true;
        }
    }
    top.m_axi_bvalid = showing_b_;
}

template <bool Chaos>
template <class Top>
inline void AxiMemory<Chaos>::sample(Top& top) {
    const auto rest = [](uint32_t id, uint32_t user, uint32_t length, uint32_t size, uint32_t burst) {
        return user << 22 | id << 16 | length << 8 | size << 4 | burst;
    };
    if (showing_r_ && top.m_axi_rready) {
        Read& read = *read_;
        showing_r_ = false;
        ++transferred_.read_beats;
        if (keeps_moments_) [[unlikely]] moments_.push_back(Moment{now_, kNobodysId, read.id < kReadbackId ? 1U : 0U});
        read.address += kBeatBytes;
        if (--read.beats == 0) reads_.drop(read);
    }
    if (showing_b_ && top.m_axi_bready) {
        showing_b_ = false;
        if (shown_ != nullptr) {  // not a spurious one
            visible_ += shown_->completions;
            if (keeps_moments_) [[unlikely]] moments_.push_back(Moment{now_, shown_->id, shown_->completions});
            responses_.drop(*shown_);
        }
    }
    if (top.m_axi_arvalid || held_ar_) {
        const uint32_t ar = rest(top.m_axi_arid, top.m_axi_aruser, top.m_axi_arlen, top.m_axi_arsize, top.m_axi_arburst);
        if (held_ar_ && (!top.m_axi_arvalid || ar != ar_rest_ || top.m_axi_araddr != ar_address_)) [[unlikely]] {
            fail_memory("AXI", "AR: valid or payload changed before ready");
        }
        held_ar_ = !top.m_axi_arready;
        if (held_ar_) {
            ar_rest_ = ar, ar_address_ = top.m_axi_araddr;
        } else {
            accept_read(top.m_axi_araddr, top.m_axi_arid, top.m_axi_arlen, top.m_axi_arsize, top.m_axi_arburst,
                        top.m_axi_aruser);
        }
    }
    if constexpr (!Chaos) {
        // What nearly always comes: an address and its only beat together, with nothing before them.
        if (top.m_axi_awvalid && top.m_axi_wvalid && top.m_axi_awready && top.m_axi_wready && top.m_axi_awlen == 0 &&
            top.m_axi_wlast && !held_aw_ && !held_w_ && bursts_.empty() && early_.empty()) {
            accept_single(top.m_axi_awaddr, top.m_axi_awid, top.m_axi_awsize, top.m_axi_awburst, top.m_axi_awuser,
                          &top.m_axi_wdata[0], top.m_axi_wstrb);
            ++now_;
            return;
        }
    }
    if (top.m_axi_awvalid || held_aw_) {
        const uint32_t aw = rest(top.m_axi_awid, top.m_axi_awuser, top.m_axi_awlen, top.m_axi_awsize, top.m_axi_awburst);
        if (held_aw_ && (!top.m_axi_awvalid || aw != aw_rest_ || top.m_axi_awaddr != aw_address_)) [[unlikely]] {
            fail_memory("AXI", "AW: valid or payload changed before ready");
        }
        held_aw_ = !top.m_axi_awready;
        if (held_aw_) {
            aw_rest_ = aw, aw_address_ = top.m_axi_awaddr;
        } else {
            accept_address(top.m_axi_awaddr, top.m_axi_awid, top.m_axi_awlen, top.m_axi_awsize, top.m_axi_awburst,
                           top.m_axi_awuser);
        }
    }
    if (top.m_axi_wvalid || held_w_) {
        const uint32_t* const data = &top.m_axi_wdata[0];
        if (held_w_ && (!top.m_axi_wvalid || top.m_axi_wstrb != w_strobe_ || bool(top.m_axi_wlast) != w_last_ ||
                        std::memcmp(data, w_data_, kBeatBytes) != 0)) [[unlikely]] {
            fail_memory("AXI", "W: valid or payload changed before ready");
        }
        held_w_ = !top.m_axi_wready;
        if (held_w_) {
            w_strobe_ = top.m_axi_wstrb, w_last_ = top.m_axi_wlast;
            std::memcpy(w_data_, data, kBeatBytes);
        } else if (bursts_.empty()) {
            WriteBeat& beat = early_.push();
            std::memcpy(beat.data, data, kBeatBytes);
            beat.strobe = top.m_axi_wstrb;
            beat.last = top.m_axi_wlast;
        } else {
            accept_beat(data, top.m_axi_wstrb, top.m_axi_wlast);
        }
    }
    ++now_;
}

}  // namespace doorbell
