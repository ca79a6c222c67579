// A strip of waveform: the pins of the last cycles, as they are just before each rising edge, which units of engine 1 are busy, and what the
// bus owes. It is read from outside, as npu_watch.h is.
#pragma once

#include <cstdint>

#include "doorbell-cosim/src/bridge.rs.h"

namespace doorbell {

template <class Top, bool Npu>
class Strip {
public:
    // Cycles that are kept; a power of two.
    static constexpr uint64_t kCycles = 256;

    void keep() { keeps_ = true; }
    bool keeps() const { return keeps_; }

    // One word for each cycle, the oldest first: src/strip.rs says which bit is what.
    rust::Vec<uint64_t> kept() const {
        rust::Vec<uint64_t> out;
        const uint64_t count = seen_ < kCycles ? seen_ : kCycles;
        for (uint64_t at = seen_ - count; at < seen_; ++at) out.push_back(words_[at % kCycles]);
        return out;
    }

    // What was asked for and has not come.
    Owed owed() const { return owed_; }

    void look(const Top& top) {
        if (!keeps_) return;
        if (top.m_axi_arvalid && top.m_axi_arready) owed_.read_beats += top.m_axi_arlen + 1U;
        if (top.m_axi_rvalid && top.m_axi_rready) --owed_.read_beats;
        if (top.m_axi_wvalid && top.m_axi_wready && top.m_axi_wlast) ++owed_.write_responses;
        if (top.m_axi_bvalid && top.m_axi_bready) --owed_.write_responses;
        uint64_t word = 0;
        uint32_t bit = 0;
        const auto put = [&](uint64_t value, uint32_t bits) {
            word |= value << bit;
            bit += bits;
        };
        put(top.s_axil_awvalid, 1), put(top.s_axil_wvalid, 1), put(top.s_axil_bvalid, 1);
        put(top.s_axil_arvalid, 1), put(top.s_axil_rvalid, 1);
        put(top.m_axi_arvalid, 1), put(top.m_axi_arready, 1), put(top.m_axi_rvalid, 1), put(top.m_axi_rready, 1);
        put(top.m_axi_awvalid, 1), put(top.m_axi_awready, 1), put(top.m_axi_wvalid, 1), put(top.m_axi_wready, 1);
        put(top.m_axi_bvalid, 1), put(top.m_axi_bready, 1);
        put(top.m_axi_arid, 6), put(top.m_axi_rid, 6), put(top.m_axi_awid, 6), put(top.m_axi_bid, 6);
        if constexpr (Npu) put(top.rootp->rl_runtime_top__DOT__gen_npu__DOT__u_engine_npu__DOT__u_npu__DOT__unit_busy_q & 0xF, 4);
        words_[seen_++ % kCycles] = word;
    }

private:
    bool keeps_ = false;
    uint64_t seen_ = 0;
    uint64_t words_[kCycles] = {};
    Owed owed_{0, 0};
};

}  // namespace doorbell
