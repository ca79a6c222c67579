// The rival of the co-simulation's clock loop: the same verilated top in the smallest C++ harness that runs it. No
// Rust, no checks, no faults, every answer in the next cycle.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "doorbell_contract.h"
#include "failure.h"
#include "simulator.h"
#include "verilated.h"

namespace doorbell {

template <class Top>
class BareHarness {
public:
    BareHarness() { Verilated::threadContextp(&context_); }
    ~BareHarness() {
        Verilated::threadContextp(&context_);
        top_.final();
    }

    BareRun run(rust::Slice<const RegisterWrite> registers, rust::Slice<const uint8_t> descriptors,
                uint64_t token_bytes) {
        const ActiveLog active{log_};
        const uint32_t count = static_cast<uint32_t>(descriptors.size() / 64);
        uint32_t slots = 2;
        while (slots < count) slots *= 2;
        const uint64_t cq = uint64_t{slots} * 64, tokens = cq + std::max<uint64_t>(uint64_t{slots} * 32, 64);
        memory_.assign(tokens + (token_bytes + 63) / 64 * 64, 0);
        std::memcpy(memory_.data(), descriptors.data(), descriptors.size());

        top_.rst_ni = top_.m_axi_rst_ni = 0;
        for (int i = 0; i < 4; ++i) cycle();
        top_.rst_ni = top_.m_axi_rst_ni = 1;
        write_wide(DOORBELL_REG_SQ_BASE_LO, kBus);
        write_wide(DOORBELL_REG_CQ_BASE_LO, kBus + cq);
        write_wide(DOORBELL_REG_TOKEN_BASE_LO, kBus + tokens);
        write_wide(DOORBELL_REG_TOKEN_SIZE_LO, token_bytes);
        write(DOORBELL_REG_SQ_SIZE, slots);
        write(DOORBELL_REG_CQ_SIZE, slots);
        for (const RegisterWrite& extra : registers) write(extra.address, extra.value);
        write(DOORBELL_REG_CONTROL, DOORBELL_CONTROL_ENABLE);

        const uint64_t first = cycles_;
        const auto start = std::chrono::steady_clock::now();
        write(DOORBELL_REG_DOORBELL, count);
        for (uint64_t idle = 0; completions_ < count; ++idle) {
            const uint64_t before = write_beats_;
            cycle();
            if (before != write_beats_) idle = 0;
            if (idle == kPatience) throw std::runtime_error{"bare loop: no write for 10 million cycles"};
        }
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        return {cycles_ - first, elapsed.count(), completions_, write_beats_ - completion_beats_};
    }

private:
    static constexpr uint64_t kBus = uint64_t{1} << 32;
    static constexpr uint64_t kPatience = 10'000'000;

    void cycle() {
        top_.m_axi_arready = burst_beats_ == 0;
        top_.m_axi_rvalid = burst_beats_ != 0;
        if (burst_beats_ != 0) {
            std::memcpy(&top_.m_axi_rdata[0], memory_.data() + burst_, 64);
            top_.m_axi_rlast = burst_beats_ == 1;
        }
        top_.m_axi_awready = top_.m_axi_wready = 1;
        top_.clk_i = 0;
        top_.eval();
        if (burst_beats_ != 0 && top_.m_axi_rready) {
            burst_ += 64;
            --burst_beats_;
        } else if (top_.m_axi_arvalid && top_.m_axi_arready) {
            burst_ = top_.m_axi_araddr - kBus;
            burst_beats_ = top_.m_axi_arlen + 1U;
        }
        // The device offers an address and its one beat together.
        const bool beat = top_.m_axi_wvalid;
        const uint32_t id = top_.m_axi_awid;
        if (beat) {
            ++write_beats_;
            uint8_t* const place = memory_.data() + (top_.m_axi_awaddr - kBus);
            for (uint32_t word = 0; word < 16; ++word) {
                if ((top_.m_axi_wstrb >> (4 * word) & 1) != 0) std::memcpy(place + 4 * word, &top_.m_axi_wdata[word], 4);
            }
            if (id == 16) {
                ++completion_beats_;
                completions_ += static_cast<uint64_t>(__builtin_popcountll(top_.m_axi_wstrb)) / 32;
            }
        }
        top_.clk_i = 1;
        top_.eval();
        top_.m_axi_bvalid = beat;
        top_.m_axi_bid = id;
        ++cycles_;
    }

    void write(uint32_t address, uint32_t value) {
        top_.s_axil_awaddr = address;
        top_.s_axil_wdata = value;
        top_.s_axil_wstrb = 0xF;
        top_.s_axil_awvalid = top_.s_axil_wvalid = 1;
        for (int waited = 0; !(top_.s_axil_awready && top_.s_axil_wready); ++waited) {
            if (waited == 100) throw std::runtime_error{"bare loop: the register port takes nothing"};
            cycle();
        }
        cycle();
        top_.s_axil_awvalid = top_.s_axil_wvalid = 0;
        top_.s_axil_bready = 1;
        for (int waited = 0; !top_.s_axil_bvalid; ++waited) {
            if (waited == 100) throw std::runtime_error{"bare loop: the register port does not answer"};
            cycle();
        }
        if (top_.s_axil_bresp != 0) throw std::runtime_error{"bare loop: a register write was refused"};
        cycle();
        top_.s_axil_bready = 0;
    }

    void write_wide(uint32_t low, uint64_t value) {
        write(low, static_cast<uint32_t>(value));
        write(low + 4, static_cast<uint32_t>(value >> 32));
    }

    ModelLog log_;
    VerilatedContext context_;
    Top top_{&context_, "top"};
    std::vector<uint8_t> memory_;
    uint64_t burst_ = 0;
    uint32_t burst_beats_ = 0;
    uint64_t cycles_ = 0, completions_ = 0, write_beats_ = 0, completion_beats_ = 0;
};

template <class Top>
BareRun bare_loop(rust::Slice<const RegisterWrite> registers, rust::Slice<const uint8_t> descriptors,
                  uint64_t token_bytes) {
    BareHarness<Top> harness;
    return harness.run(registers, descriptors, token_bytes);
}

}  // namespace doorbell
