// The lives of descriptors as R23 tells them, read off the inputs of rtl/event_ring.sv just before each rising edge. The device needs no
// event ring for it: nothing of it is clocked that would rest, and nothing moves over the bus. What each input means is said in event_ring.sv,
// and tests/tap.rs holds one to the other.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "doorbell-cosim/src/bridge.rs.h"

namespace doorbell {

// Without tracing these signals have no names.
#if VM_TRACE
inline constexpr bool kHasLifeTap = true;
#else
inline constexpr bool kHasLifeTap = false;
#endif

template <class Top, uint32_t Queues, bool Rests, bool There>
class LifeTap {
public:
    bool watch() { return false; }
    static constexpr bool watched() { return false; }
    void look(const Top&, uint64_t) {}
    size_t take(uint32_t, rust::Slice<Life>) { return 0; }
};

// A signal of the device `rtl`: as the inputs of event_ring are connected, or where Verilator has put another name in its place, as that.
#define DOORBELL_TAP(name) rtl.rl_runtime_top__DOT__##name
#define DOORBELL_TAP_OF(name, other)                                             \
    ([&]() -> uint32_t {                                                         \
        if constexpr (requires { DOORBELL_TAP(name); }) return DOORBELL_TAP(name); \
        else return DOORBELL_TAP(other);                                         \
    }())

template <class Top, uint32_t Queues, bool Rests>
class LifeTap<Top, Queues, Rests, true> {
public:
    bool watch() {
        if (!state_) {
            state_ = std::make_unique<State>();
            for (Queue& queue : state_->queues) queue.told.reserve(kRoom / Queues);
        }
        return true;
    }
    bool watched() const { return state_ != nullptr; }

    // While the clock is low.
    void look(const Top& top, uint64_t cycle) {
        if (state_) look(*top.rootp, *state_, cycle);
    }

    // Copies what was told of the descriptors of a queue pair and not taken yet, in the order of their completions, and says how many.
    size_t take(uint32_t queue, rust::Slice<Life> lives) {
        if (!state_ || queue >= Queues) return 0;
        auto& [fetched, told, taken, seen] = state_->queues[queue];
        size_t count = 0;
        for (; count < lives.size() && taken < seen; ++taken) {
            if (told[taken].visible != kNotSeen) lives[count++] = told[taken];
        }
        if (taken == seen) {
            // What is posted and not visible yet stays.
            told.erase(told.begin(), told.begin() + static_cast<ptrdiff_t>(taken));
            taken = seen = 0;
        }
        return count;
    }

private:
    // Of event_ring.
    static constexpr uint32_t kWorkers = 16, kPlaces = 128, kFetched = 128, kHeld = 8, kEnds = 2;
    // Lives that there is room for at once: memory that is not written is none.
    static constexpr size_t kRoom = size_t{1} << 20;
    static constexpr uint64_t kMost = 0x7FFF'FFFF;
    // In the place of when a completion became visible.
    static constexpr uint32_t kNotSeen = UINT32_MAX;
    static_assert(std::has_single_bit(Queues));
    // core_pkg::done_t.reads.
    static constexpr uint32_t kReads = 14;
    // The queue pair in the address of a register that is written.
    static constexpr uint32_t kPage = 23;

    // Cycles.
    struct Moments {
        uint64_t slot, start, first, end;
        uint32_t worker;
        bool reads;
    };
    // What waits in order. What is begun before the device is watched has no moments, and what is taken out of nothing is that.
    template <class Moment, uint32_t Most>
    struct Fifo {
        std::array<Moment, Most> moments;
        uint32_t head = 0, tail = 0;
        void push(const Moment& moment) { moments[tail++ % Most] = moment; }
        Moment pop() { return head == tail ? Moment{} : moments[head++ % Most]; }
        void clear() { head = tail; }
    };
    struct Queue {
        Fifo<uint64_t, kFetched> fetched;
        // Of completions that have an index, in its order. Some are taken, and those before `seen` are visible or lost.
        std::vector<Life> told;
        size_t taken = 0, seen = 0;
    };
    struct Worker {
        Fifo<uint64_t, kHeld> held;
        Fifo<std::array<uint64_t, 3>, kEnds> ends;
        uint64_t start = 0, first = 0;
    };
    struct State {
        std::array<Queue, Queues> queues;
        std::array<Worker, kWorkers> workers;
        std::array<Moments, kPlaces> places;
        uint32_t had = 0;
    };

    template <class Rtl>
    static void look(const Rtl& rtl, State& state, uint64_t now) {
        if constexpr (Rests) {
            // Nothing happens at an edge that does not come.
            if (!DOORBELL_TAP(gen_rest__DOT__u_rest_clock__DOT__open)) return;
        }
        const uint32_t slot = DOORBELL_TAP(slot_valid), taken = DOORBELL_TAP_OF(taken, u_dispatcher__DOT__go);
        const uint32_t begun = DOORBELL_TAP_OF(begun, u_rollout_worker_fsm__DOT__start);
        const uint32_t ended = DOORBELL_TAP_OF(ended, u_rollout_worker_fsm__DOT__done);
        const uint32_t token = (DOORBELL_TAP_OF(token, token_take) | ended) & ~state.had;
        const uint32_t delivered = DOORBELL_TAP(done_valid), posted = DOORBELL_TAP_OF(posted, u_completion_ring__DOT__write);
        const uint32_t answered = DOORBELL_TAP(answered), start = DOORBELL_TAP(start);
        if ((slot | taken | begun | ended | token | delivered | posted | answered | start) == 0 && DOORBELL_TAP(inner_rst_n)) [[likely]] return;
        if (!DOORBELL_TAP(inner_rst_n)) [[unlikely]] {
            forget(state);
            return;
        }
        // What goes out of something was there before this cycle, and what comes into it takes its place.
        if (taken) take_one(rtl, state);
        if (slot) state.queues[pair(DOORBELL_TAP(r_id))].fetched.push(now);
        if (delivered) deliver(rtl, state);
        // What ends in this cycle has begun before it.
        for (uint32_t left = ended; left != 0; left &= left - 1) {
            const uint32_t w = std::countr_zero(left);
            Worker& worker = state.workers[w];
            worker.ends.push({worker.start, state.had >> w & 1 ? worker.first : now, now});
        }
        for (uint32_t left = token; left != 0; left &= left - 1) state.workers[std::countr_zero(left)].first = now;
        for (uint32_t left = begun; left != 0; left &= left - 1) state.workers[std::countr_zero(left)].start = now;
        state.had = (state.had | token) & ~begun;
        if (posted) post(rtl, state, now);
        if (answered) answer(rtl, state, answered, now);
        if (start) {
            uint32_t queue = 0;
            if constexpr (Queues > 1) queue = DOORBELL_TAP(u_mmio_regs__DOT__wr) >> kPage;
            // What its last life left is nobody's.
            Queue& starting = state.queues[pair(queue)];
            starting.fetched.clear();
            starting.told.clear();
            starting.taken = starting.seen = 0;
        }
    }

    static constexpr uint32_t pair(uint32_t number) { return number & (Queues - 1); }

    // A worker takes the oldest descriptor of a queue pair.
    template <class Rtl>
    static void take_one(const Rtl& rtl, State& state) {
        uint32_t queue = 0, worker = 0;
        if constexpr (Queues > 1) queue = DOORBELL_TAP_OF(look_queue, u_dispatcher__DOT__pick);
        if constexpr (requires { DOORBELL_TAP(assign_worker); }) worker = DOORBELL_TAP(assign_worker);
        state.workers[worker].held.push(state.queues[pair(queue)].fetched.pop());
    }

    // The oldest end of a worker goes to completion_ring.
    template <class Rtl>
    static void deliver(const Rtl& rtl, State& state) {
        uint32_t number = 0;
        if constexpr (requires { DOORBELL_TAP(item_worker); }) number = DOORBELL_TAP(item_worker);
        Worker& worker = state.workers[number];
        const auto [start, first, end] = worker.ends.pop();
        const bool reads = DOORBELL_TAP(done)[kReads / 32] >> (kReads % 32) & 1;
        state.places[DOORBELL_TAP_OF(done_place, u_completion_ring__DOT__place) % kPlaces] = {worker.held.pop(), start, first, end, number, reads};
    }

    // It gets its index, and its life is told but for when it is visible. What reads memory ends then.
    template <class Rtl>
    static void post(const Rtl& rtl, State& state, uint64_t now) {
        uint32_t queue = 0;
        if constexpr (Queues > 1) queue = DOORBELL_TAP_OF(posted_queue, u_completion_ring__DOT__record_pair_q);
        Moments moments = state.places[DOORBELL_TAP_OF(posted_place, u_completion_ring__DOT__record_place_q) % kPlaces];
        if (moments.reads) moments.first = moments.end = now;
        const auto after = [&](uint64_t moment) { return static_cast<uint32_t>(std::min(moment - moments.slot, kMost)); };
        const uint32_t index = DOORBELL_TAP_OF(posted_index, u_completion_ring__DOT__tail);
        state.queues[pair(queue)].told.push_back(
            {moments.slot, index, moments.worker, after(moments.start), after(moments.first), after(moments.end), kNotSeen});
    }

    // One or two completions are visible, or lost: those before the index `to`.
    template <class Rtl>
    static void answer(const Rtl& rtl, State& state, uint32_t answered, uint64_t now) {
        if (DOORBELL_TAP(visible) == 0) return;
        const uint32_t number = pair(DOORBELL_TAP(b_id)), to = DOORBELL_TAP_OF(answered_to, u_completion_ring__DOT__visible);
        auto& [fetched, told, taken, seen] = state.queues[number];
        // Those before it were lost. What was posted before the device was watched is not there.
        if (seen == told.size()) return;
        const uint32_t lost = to - answered - told[seen].index;
        if (lost >= told.size() - seen) return;
        seen += lost;
        for (; answered != 0 && seen < told.size(); ++seen, --answered) {
            Life& life = told[seen];
            life.visible = static_cast<uint32_t>(std::min(now - life.stamp, kMost));
        }
    }

    static void forget(State& state) {
        for (Queue& queue : state.queues) queue.fetched.clear();
        for (Worker& worker : state.workers) worker = {};
        state.had = 0;
    }

    std::unique_ptr<State> state_;
};

#undef DOORBELL_TAP_OF
#undef DOORBELL_TAP

}  // namespace doorbell
