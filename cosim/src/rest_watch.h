// The clock of what rests while engine 1 alone is at work (rtl/rest_clock.sv), seen from outside: its register, read by its name just
// before each rising edge, and set where all is to stay awake.
#pragma once

#include <cstdint>

namespace doorbell {

// Of a device without an engine 1 nothing rests.
template <class Top, bool Rests>
class RestWatch {
public:
    void watch(bool) {}
    static constexpr bool watched() { return false; }
    void look(const Top&) {}
    static constexpr uint64_t rested() { return 0; }
};

template <class Top>
class RestWatch<Top, true> {
public:
    void watch(bool awake) {
        watched_ = true;
        awake_ = awake;
    }
    bool watched() const { return watched_; }
    uint64_t rested() const { return rested_; }

    // While the clock is low.
    void look(const Top& top) {
        if (!watched_) return;
        auto& rtl = *top.rootp;
        rested_ += !rtl.rl_runtime_top__DOT__gen_rest__DOT__u_rest_clock__DOT__open;
        // Cycles without a move are never many.
        if (awake_) rtl.rl_runtime_top__DOT__gen_rest__DOT__u_rest_clock__DOT__still_q = 0;
    }

private:
    bool watched_ = false, awake_ = false;
    uint64_t rested_ = 0;
};

}  // namespace doorbell
