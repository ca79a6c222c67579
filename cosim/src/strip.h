// A strip of waveform: the pins of the last cycles, as they are just before each rising edge, and which units of engine 1 are busy. It is read
// from outside, as npu_watch.h is.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "doorbell-cosim/src/bridge.rs.h"

namespace doorbell {

template <class Top, bool Npu>
class Strip {
public:
    // Cycles that are kept; a power of two.
    static constexpr uint64_t kCycles = 256;

    void keep(const Top& top) {
        const auto pins = pins_of(*top.rootp);
        const auto by_place = [](const Pin& one, const Pin& other) { return one.value < other.value; };
        const auto [first, last] = std::minmax_element(pins.begin(), pins.end(), by_place);
        from_ = first->value;
        together_ = static_cast<size_t>(last->value - from_) < kBytes;
        keeps_ = true;
    }
    bool keeps() const { return keeps_; }

    // One word for each cycle, the oldest first: src/strip.rs says which bit is what.
    rust::Vec<uint64_t> kept(const Top& top) const {
        rust::Vec<uint64_t> out;
        if (!keeps_) return out;
        const auto pins = pins_of(*top.rootp);
        const uint64_t count = std::min(seen_, kCycles);
        for (uint64_t at = seen_ - count; at < seen_; ++at) {
            const Look& look = looks_[at % kCycles];
            uint64_t word = 0;
            uint32_t bit = 0;
            for (uint32_t number = 0; number < pins.size(); bit += pins[number++].bits) {
                word |= uint64_t{look.bytes[together_ ? pins[number].value - from_ : number]} << bit;
            }
            out.push_back(word | look.units << bit);
        }
        return out;
    }

    // Each cycle pays for it, so the bytes are taken as they lie; what a word has of them is found when somebody asks.
    void look(const Top& top) {
        if (!keeps_) return;
        Look& look = looks_[seen_++ % kCycles];
        if (together_) [[likely]] {
            std::memcpy(look.bytes, from_, kBytes);
        } else {
            const auto pins = pins_of(*top.rootp);
            for (uint32_t number = 0; number < pins.size(); ++number) look.bytes[number] = *pins[number].value;
        }
        if constexpr (Npu) look.units = top.rootp->rl_runtime_top__DOT__gen_npu__DOT__u_engine_npu__DOT__u_npu__DOT__unit_busy_q & 0xF;
    }

private:
    // Verilator lays the ports of a byte beside each other, and what comes after them is the model's too.
    static constexpr uint32_t kBytes = 64;

    struct Pin {
        const uint8_t* value;
        uint32_t bits;
    };
    struct Look {
        uint8_t bytes[kBytes];
        uint64_t units;
    };

    // In the order of the bits of a word.
    template <class Rtl>
    static std::array<Pin, 19> pins_of(const Rtl& rtl) {
        return {{
            {&rtl.s_axil_awvalid, 1}, {&rtl.s_axil_wvalid, 1}, {&rtl.s_axil_bvalid, 1}, {&rtl.s_axil_arvalid, 1}, {&rtl.s_axil_rvalid, 1},
            {&rtl.m_axi_arvalid, 1}, {&rtl.m_axi_arready, 1}, {&rtl.m_axi_rvalid, 1}, {&rtl.m_axi_rready, 1},
            {&rtl.m_axi_awvalid, 1}, {&rtl.m_axi_awready, 1}, {&rtl.m_axi_wvalid, 1}, {&rtl.m_axi_wready, 1},
            {&rtl.m_axi_bvalid, 1}, {&rtl.m_axi_bready, 1},
            {&rtl.m_axi_arid, 6}, {&rtl.m_axi_rid, 6}, {&rtl.m_axi_awid, 6}, {&rtl.m_axi_bid, 6},
        }};
    }

    bool keeps_ = false, together_ = false;
    const uint8_t* from_ = nullptr;
    uint64_t seen_ = 0;
    Look looks_[kCycles] = {};
};

}  // namespace doorbell
