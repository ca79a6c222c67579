// The clocks of what rests (rtl/rest_clock.sv, rtl/rest_gate.sv), seen from outside: their registers, by their names, read just before each
// rising edge and set where all is to stay awake.
#pragma once

#include <cstdint>

namespace doorbell {

// A part's register that counts cycles without a move, of the device `rtl`.
#define DOORBELL_STILL(part) rtl.rl_runtime_top__DOT__##part##__DOT__still_q
#define DOORBELL_STILL_NPU(part) DOORBELL_STILL(gen_npu__DOT__u_engine_npu__DOT__##part)

// A part that rests between moves: whether the next edge is one of its clock.
#define DOORBELL_OPEN(part) rtl.rl_runtime_top__DOT__gen_parts__DOT__u_rest_##part##__DOT__open

// Whether anybody watches, and what was counted.
class RestCount {
public:
    void watch(bool awake) {
        watched_ = true;
        awake_ = awake;
    }
    bool watched() const { return watched_; }
    uint64_t rested() const { return rested_; }

protected:
    bool watched_ = false, awake_ = false;
    uint64_t rested_ = 0;
};

// Of a device without an engine 1: parts of it rest between descriptors. A cycle counts in which descriptors do not move.
template <class Top, bool LanguageEngine>
class RestWatch : public RestCount {
public:
    // While the clock is low.
    void look(const Top& top) {
        if (!watched_) return;
        auto& rtl = *top.rootp;
        if (awake_) DOORBELL_OPEN(rare) = DOORBELL_OPEN(descriptors) = DOORBELL_OPEN(completions) = 1;
        rested_ += !DOORBELL_OPEN(descriptors);
    }
};

template <class Top>
class RestWatch<Top, true> : public RestCount {
public:
    // While the clock is low.
    void look(const Top& top) {
        if (!watched_) return;
        auto& rtl = *top.rootp;
        rested_ += !rtl.rl_runtime_top__DOT__gen_rest__DOT__u_rest_clock__DOT__open;
        if (!awake_) return;
        // Cycles without a move are never many.
        DOORBELL_STILL(gen_rest__DOT__u_rest_clock) = 0;
        DOORBELL_STILL_NPU(u_rest_clock) = 0;
        DOORBELL_STILL_NPU(u_npu__DOT__gen_gang__BRA__0__KET____DOT__u_rest_clock) = 0;
        if constexpr (requires { DOORBELL_STILL_NPU(u_npu__DOT__gen_gang__BRA__1__KET____DOT__u_rest_clock); }) {
            DOORBELL_STILL_NPU(u_npu__DOT__gen_gang__BRA__1__KET____DOT__u_rest_clock) = 0;
        }
        DOORBELL_STILL_NPU(u_npu__DOT__u_rest_mem) = 0;
        DOORBELL_STILL_NPU(u_npu__DOT__u_rest_sfu) = 0;
        DOORBELL_STILL_NPU(u_npu__DOT__u_rest_kv) = 0;
        DOORBELL_STILL_NPU(u_npu__DOT__u_rest_samplers) = 0;
        DOORBELL_STILL_NPU(u_npu__DOT__u_gemv__DOT__u_rest_clock) = 0;
    }
};

#undef DOORBELL_OPEN
#undef DOORBELL_STILL_NPU
#undef DOORBELL_STILL

}  // namespace doorbell
