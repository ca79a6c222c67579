// The clock loop around one verilated top. A template, so that no call in the loop is virtual.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "axi_memory.h"
#include "doorbell_contract.h"
#include "failure.h"
#include "life_tap.h"
#include "npu_watch.h"
#include "rest_watch.h"
#include "simulator.h"
#include "strip.h"
#include "verilated.h"
#include "wave.h"

namespace doorbell {

// Verilator's generator for initial values is one per thread and reseeded through a counter common to all threads; a
// model's construction must not see another's seed.
inline std::mutex construction_mutex;

template <class Top, uint32_t Queues, uint32_t Engines, bool Chaos>
class ModelSimulator final : public Simulator {
public:
    explicit ModelSimulator(const SimulatorConfig& config)
        : memory_{config, Queues, Engines}, random_{~config.seed}, wave_from_{config.wave_from}, wave_to_{config.wave_to} {
        const Bound bound{*this};
        context_->traceEverOn(!config.wave_path.empty());
        {
            // Registers and memories start at random values: what depends on them before reset shows.
            const std::lock_guard lock{construction_mutex};
            context_->randReset(2);
            context_->randSeed(static_cast<int>(config.seed % 0x7FFF'FFFF) + 1);
            top_ = std::make_unique<Top>(context_.get(), "top");
        }
        if (!config.wave_path.empty()) wave_ = std::make_unique<Wave>(*top_, std::string{config.wave_path});
        reset_pins(kResetCycles);
    }

    ~ModelSimulator() override {
        // Verilator uses the thread's last context while it destroys a model.
        const Bound bound{*this};
        if (wave_) wave_->close();
        wave_.reset();
        top_->final();
        top_.reset();
    }

    void attach(uint8_t* host, uint64_t bytes, uint64_t bus) override { memory_.attach(host, bytes, bus); }
    void map_range(uint32_t function, uint64_t address, uint64_t bytes, uint8_t* host, bool writable) override {
        memory_.ranges().map(function, address, bytes, host, writable);
    }
    void unmap_range(uint32_t function, uint64_t address, uint64_t bytes) override {
        memory_.ranges().unmap(function, address, bytes);
    }
    void set_master(uint32_t function, bool may) override { memory_.ranges().set_master(function, may); }
    uint64_t refused(uint32_t function) const override { return memory_.ranges().refused(function); }

    void reset(uint32_t cycles, bool bus) override {
        guarded([&] {
            if (bus) {
                reset_pins(cycles);
            } else {
                reset_device(cycles);
            }
        });
    }

    void set_weather(const Weather& weather) override {
        guarded([&] { memory_.set_weather(weather); });
    }

    rust::Vec<Injected> take_injected() override { return memory_.take_injected(); }
    rust::Vec<Moment> take_moments() override { return memory_.take_moments(); }
    rust::Vec<Moved> take_moved() override { return memory_.take_moved(); }

    RegisterAnswer write_register(uint32_t address, uint32_t value, uint8_t strobe) override {
        return guarded([&] { return write(address, value, strobe); });
    }

    RegisterAnswer read_register(uint32_t address) override {
        return guarded([&] { return read(address); });
    }

    uint64_t run(uint64_t max_cycles, uint64_t want) override {
        return guarded([&] {
            const uint64_t start = memory_.completions_visible();
            const auto cycles = [&](auto&& edge) {
                if (wave_) {
                    run_cycles<true>(max_cycles, want, edge);
                } else {
                    run_cycles<false>(max_cycles, want, edge);
                }
            };
            // Loops of their own, so that nobody else pays for it.
            if (npu_.observed() || rest_.watched() || lives_.watched() || strip_.keeps()) {
                cycles([&] { look(); });
            } else {
                cycles([] {});
            }
            return memory_.completions_visible() - start;
        });
    }

    uint64_t messages(uint32_t queue) const override { return queue < Queues ? memory_.messages(queue) : 0; }
    uint64_t cycles() const override { return cycle_; }
    uint64_t hostile_bursts() const override { return memory_.monitor().windows().bursts(); }
    uint64_t strays() const override { return memory_.monitor().windows().strays(); }
    Failure failure() const override { return failure_; }

    bool observe_npu(rust::Box<NpuObserver> observer, bool writes) override {
        npu_.observe(std::move(observer), writes);
        return npu_.kIsThere;
    }

    void watch_rests(bool awake) override { rest_.watch(awake); }
    uint64_t rested() const override { return rest_.rested(); }
    bool watch_lives() override { return lives_.watch(); }
    size_t take_lives(uint32_t queue, rust::Slice<Life> lives) override { return lives_.take(queue, lives); }
    void keep_strip() override { strip_.keep(*top_); }
    rust::Vec<uint64_t> strip() const override { return strip_.kept(*top_); }
    Owed owed() const override { return memory_.owed(); }

    void flush_wave() override {
        const Bound bound{*this};
        if (wave_) wave_->flush();
    }

private:
    static constexpr uint32_t kResetCycles = 4;
    static constexpr uint32_t kRegisterPatience = 1000;  // cycles for an answer of the register port (R15)

    // Verilator's callbacks find the model that runs through these two; needed around everything that touches it.
    class Bound {
    public:
        explicit Bound(ModelSimulator& simulator) : log_{simulator.log_} {
            Verilated::threadContextp(simulator.context_.get());
        }

    private:
        ActiveLog log_;
    };

    template <class Body>
    auto guarded(Body&& body) {
        if (failure_.kind != FailureKind::None) throw_failure();
        const Bound bound{*this};
        try {
            return body();
        } catch (const SimulationError& error) {
            failure_ = {error.kind, error.rule, error.message, cycle_};
            // The edge that failed, unless it was recorded already.
            dump(5);
            if (wave_) wave_->flush();
            throw;
        }
    }

    [[noreturn]] void throw_failure() const {
        throw SimulationError{failure_.kind, std::string{failure_.rule}, std::string{failure_.message}};
    }

    void dump(uint64_t phase) {
        if (wave_ && cycle_ >= wave_from_ && cycle_ < wave_to_) wave_->dump(cycle_ * 10 + phase);
    }

    // One cycle without the memory. Inputs change while the clock is low; `edge` sees what the rising edge will hand
    // over. In a waveform cycle c begins at time 10c and its rising edge is at 10c + 5.
    template <bool Waves, class Edge>
    void tick(Edge&& edge) {
        Top& top = *top_;
        top.clk_i = 0;
        top.eval();
        if constexpr (Waves) dump(0);
        edge();
        top.clk_i = 1;
        top.eval();
        if constexpr (Waves) dump(5);
        if (log_.stopped) [[unlikely]] throw log_.assertion();
        ++cycle_;
    }

    template <bool Waves, class Edge>
    void clock(Edge&& edge) {
        // The ports as the model has them: those of the top are references to them.
        auto& ports = *top_->rootp;
        memory_.drive(ports);
        tick<Waves>([&] {
            memory_.sample(ports);
            edge();
        });
    }

    template <class Edge>
    void clock(Edge&& edge) {
        const auto seen = [&] {
            edge();
            look();
        };
        if (wave_) {
            clock<true>(seen);
        } else {
            clock<false>(seen);
        }
    }

    void look() {
        if (npu_.observed()) npu_.look(*top_, cycle_);
        rest_.look(*top_);
        lives_.look(*top_, cycle_);
        strip_.look(*top_);
    }

    template <bool Waves, class Edge>
    void run_cycles(uint64_t cycles, uint64_t want, Edge&& edge) {
        const uint64_t start = memory_.completions_visible(), end = cycle_ + cycles;
        if (want == UINT64_MAX) {
            while (cycle_ < end) clock<Waves>(edge);
            return;
        }
        // Whoever sleeps on a message is to be woken.
        const uint64_t messages = memory_.messages();
        while (cycle_ < end && memory_.completions_visible() - start < want && memory_.messages() == messages) {
            clock<Waves>(edge);
        }
    }

    // The memory takes part in reset only by holding its own valids low.
    void reset_pins(uint32_t cycles) {
        Top& top = *top_;
        memory_.reset();
        top.rst_ni = top.m_axi_rst_ni = 0;
        top.s_axil_awvalid = top.s_axil_wvalid = top.s_axil_arvalid = top.s_axil_bready = top.s_axil_rready = 0;
        top.m_axi_arready = top.m_axi_rvalid = top.m_axi_awready = top.m_axi_wready = top.m_axi_bvalid = 0;
        for (uint32_t i = 0; i < cycles; ++i) {
            tick<true>([&] {
                // The reset is synchronous: it shows from the second cycle on.
                if (i > 0 && (top.m_axi_arvalid || top.m_axi_awvalid || top.m_axi_wvalid || top.s_axil_bvalid ||
                              top.s_axil_rvalid)) {
                    fail_memory("R12", "a valid is high during reset");
                }
            });
        }
        top.rst_ni = top.m_axi_rst_ni = 1;
        clock([] {});
    }

    // The device alone is reset; the bus lives on, and still gets what it was promised.
    void reset_device(uint32_t cycles) {
        Top& top = *top_;
        memory_.monitor().reset_device();
        top.rst_ni = 0;
        top.s_axil_awvalid = top.s_axil_wvalid = top.s_axil_arvalid = top.s_axil_bready = top.s_axil_rready = 0;
        for (uint32_t i = 0; i < cycles; ++i) clock([] {});
        top.rst_ni = 1;
        clock([] {});
    }

    // A pause before a master's valid or ready.
    bool hesitates() {
        if constexpr (Chaos) return random_.below(4) == 0;
        return false;
    }

    RegisterAnswer write(uint32_t address, uint32_t value, uint8_t strobe) {
        top_->s_axil_awaddr = address;
        top_->s_axil_wdata = value;
        top_->s_axil_wstrb = strobe;
        memory_.monitor().write_begins(address, value);
        bool address_taken = false, data_taken = false, answered = false;
        uint32_t response = 0;
        for (uint32_t waited = 0; !answered; ++waited) {
            if (waited == kRegisterPatience) silent("write of", address);
            if (!address_taken && !hesitates()) top_->s_axil_awvalid = 1;
            if (!data_taken && !hesitates()) top_->s_axil_wvalid = 1;
            top_->s_axil_bready = !hesitates();
            clock([&] {
                if (top_->s_axil_bvalid && !(address_taken && data_taken)) {
                    fail_memory("AXI", "register port: BVALID before the address and the data were taken");
                }
                if (top_->s_axil_bvalid && top_->s_axil_bready) {
                    answered = true;
                    response = top_->s_axil_bresp;
                }
                address_taken = address_taken || (top_->s_axil_awvalid && top_->s_axil_awready);
                data_taken = data_taken || (top_->s_axil_wvalid && top_->s_axil_wready);
            });
            if (address_taken) top_->s_axil_awvalid = 0;
            if (data_taken) top_->s_axil_wvalid = 0;
        }
        top_->s_axil_bready = 0;
        memory_.monitor().write_ends(response == kOkay);
        return {value, response == kOkay};
    }

    RegisterAnswer read(uint32_t address) {
        top_->s_axil_araddr = address;
        bool address_taken = false, answered = false;
        RegisterAnswer answer{};
        for (uint32_t waited = 0; !answered; ++waited) {
            if (waited == kRegisterPatience) silent("read of", address);
            if (!address_taken && !hesitates()) top_->s_axil_arvalid = 1;
            top_->s_axil_rready = !hesitates();
            clock([&] {
                if (top_->s_axil_rvalid && !address_taken) {
                    fail_memory("AXI", "register port: RVALID before the address was taken");
                }
                if (top_->s_axil_rvalid && top_->s_axil_rready) {
                    answered = true;
                    answer = {top_->s_axil_rdata, top_->s_axil_rresp == kOkay};
                }
                address_taken = address_taken || (top_->s_axil_arvalid && top_->s_axil_arready);
            });
            if (address_taken) top_->s_axil_arvalid = 0;
        }
        top_->s_axil_rready = 0;
        memory_.monitor().register_read(address, answer.value, memory_.writes_outstanding());
        return answer;
    }

    [[noreturn]] void silent(const char* what, uint32_t address) const {
        char text[96];
        std::snprintf(text, sizeof text, "host waited for the answer to a %s register 0x%05x, %u cycles", what, address,
                      kRegisterPatience);
        throw SimulationError{FailureKind::Timeout, "R15", text};
    }

    ModelLog log_;
    std::unique_ptr<VerilatedContext> context_ = std::make_unique<VerilatedContext>();
    std::unique_ptr<Top> top_;
    std::unique_ptr<Wave> wave_;
    AxiMemory<Chaos> memory_;
    NpuWatch<Top, (Engines > 1)> npu_;
    RestWatch<Top, (Engines > 1)> rest_;
    LifeTap<Top, Queues, (Engines > 1), kHasLifeTap> lives_;
    Strip<Top, (Engines > 1)> strip_;
    Random random_;  // of the register port
    uint64_t cycle_ = 0;
    uint64_t wave_from_, wave_to_;
    Failure failure_{FailureKind::None, {}, {}, 0};
};

// Latency alone is not chaos: a fixed one costs nothing.
inline bool needs_chaos(const SimulatorConfig& config) {
    bool stalls = false;
    for (const uint8_t percent : config.stall_percent) stalls = stalls || percent != 0;
    return stalls || config.reorder || config.changes || config.by_function || config.latency_min != config.latency_max || !config.faults.empty();
}

template <class Top, uint32_t Queues, uint32_t Engines>
std::unique_ptr<Simulator> make_model(const SimulatorConfig& config) {
    if (needs_chaos(config)) return std::make_unique<ModelSimulator<Top, Queues, Engines, true>>(config);
    return std::make_unique<ModelSimulator<Top, Queues, Engines, false>>(config);
}

}  // namespace doorbell
