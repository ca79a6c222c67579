// What the NPU does, seen from outside: the verilated model's own registers, read by their names just before each rising edge. Nothing
// of the RTL is there for it, so a device that is watched takes the same cycles, and one that is not costs no more than before.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "failure.h"

namespace doorbell {

// Of a device without an NPU there is nothing to see.
template <class Top, bool Npu>
class NpuWatch {
public:
    static constexpr bool kIsThere = false;
    void observe(rust::Box<NpuObserver>, bool) {}
    static constexpr bool observed() { return false; }
    void look(const Top&, uint64_t) {}
};

template <class Top>
class NpuWatch<Top, true> {
public:
    static constexpr bool kIsThere = true;
    void observe(rust::Box<NpuObserver> observer, bool writes) {
        observer_.emplace(std::move(observer));
        tells_writes_ = writes;
    }
    bool observed() const { return observer_.has_value(); }

    // Registers of rtl/npu/npu_top.sv and what lies below it.
#define NPU(name) rl_runtime_top__DOT__gen_npu__DOT__u_engine_npu__DOT__u_npu__DOT__##name

    void look(const Top& top, uint64_t cycle) {
        const auto& rtl = *top.rootp;
        using Rtl = std::decay_t<decltype(rtl)>;
        constexpr uint32_t gangs = gangs_of<Rtl>(), contexts = contexts_of<Rtl>();
        static_assert(gangs <= kMostGangs && gangs * contexts <= kMostSeats);
        bool runs = false;
        for (uint32_t gang = 0; gang < gangs; ++gang) {
            for (uint32_t seat = gang * contexts; rtl.NPU(state_q)[gang] == kBegin && seat < (gang + 1) * contexts; ++seat) {
                if (!(rtl.NPU(seated_q)[gang] >> (seat % contexts) & 1)) continue;
                std::array<uint32_t, kStepWords + kContextWords> registers;
                put(registers, 0, rtl.NPU(step_q)[seat], kStepWords);
                put(registers, kStepWords, rtl.NPU(context_q)[seat], kContextWords);
                tell(event(NpuEventKind::StepBegins, gang, seat, cycle, registers));
            }
            runs |= rtl.NPU(state_q)[gang] == kRun;
        }
        if (runs) look_at_words(rtl, cycle);
        for (uint32_t gang = 0; gang < gangs; ++gang) {
            const uint32_t state = rtl.NPU(state_q)[gang], before = std::exchange(states_[gang], state);
            if (state != kResult || before == kResult) continue;
            for (uint32_t seat = gang * contexts; seat < (gang + 1) * contexts; ++seat) {
                if (!(rtl.NPU(seated_q)[gang] >> (seat % contexts) & 1)) continue;
                std::array<uint32_t, kLogWords + 3> registers;
                put(registers, 0, rtl.NPU(log_q)[seat], kLogWords);
                registers[kLogWords] = rtl.NPU(sampled_q) >> seat & 1;
                registers[kLogWords + 1] = rtl.NPU(token_q)[seat];
                registers[kLogWords + 2] = rtl.NPU(logp_q)[seat];
                tell(event(NpuEventKind::StepOver, gang, seat, cycle, registers));
            }
        }
    }

private:
    // Of npu_top.
    static constexpr uint32_t kBegin = 1, kRun = 2, kResult = 3;
    // Of npu_control_pkg: units, and words of 32 bits of npu_step_t, npu_context_t, npu_log_t and npu_place_t.
    static constexpr uint32_t kUnits = 4, kMem = 0, kGemv = 1;
    static constexpr uint32_t kStepWords = 5, kContextWords = 12, kLogWords = 4, kPlaceWords = 4;
    static constexpr uint32_t kMostGangs = 4, kMostSeats = 32, kMostContexts = 8;
    static constexpr uint32_t kLineWords = 16, kChipBits = 15, kEndBits = 4;

    // Of one context: GEMV's word has several.
    struct Writes {
        rust::Vec<NpuLine> chip, stores;
        rust::Vec<uint32_t> logits;
    };
    struct Word {
        uint64_t began = 0;
        std::array<Writes, kMostContexts> of;
    };

    // As many as it was built with: a byte of state each.
    template <class Rtl>
    static constexpr uint32_t gangs_of() {
        return sizeof(std::declval<Rtl>().NPU(state_q));
    }

    // Contexts of a gang, which lie behind each other.
    template <class Rtl>
    static constexpr uint32_t contexts_of() {
        return sizeof(std::declval<Rtl>().NPU(step_q)) / sizeof(std::declval<Rtl>().NPU(step_q)[0]) / gangs_of<Rtl>();
    }

    // Of the word that a unit has of this gang.
    template <class Rtl>
    static const auto& place_of(const Rtl& rtl, uint32_t gang, uint32_t unit) {
#define PLACE(number) rtl.NPU(gen_gang__BRA__##number##__KET____DOT__u_scoreboard__DOT__place_q)[unit]
        constexpr uint32_t gangs = gangs_of<Rtl>();
        if constexpr (gangs > 3) {
            if (gang == 3) return PLACE(3);
        }
        if constexpr (gangs > 2) {
            if (gang == 2) return PLACE(2);
        }
        if constexpr (gangs > 1) {
            if (gang == 1) return PLACE(1);
        }
        return PLACE(0);
#undef PLACE
    }

    template <class Rtl>
    void look_at_words(const Rtl& rtl, uint64_t cycle) {
        constexpr uint32_t gangs = gangs_of<Rtl>(), contexts = contexts_of<Rtl>();
        const uint32_t starts = rtl.NPU(unit_start), done = rtl.NPU(unit_done);
        // Without a record of writes, most cycles have nothing to look at.
        if (!tells_writes_ && (starts | done) == 0) [[likely]] return;
        const uint32_t writes = tells_writes_ ? rtl.NPU(write_valid) & rtl.NPU(write_ready) : 0;
        const auto context_of = [&](uint32_t unit) { return uint32_t(rtl.NPU(unit_context_q) >> (unit * 3) & 7); };
        for (uint32_t unit = 0; unit < kUnits; ++unit) {
            if (starts >> unit & 1) {
                if (tells_writes_) words_[unit] = {};
                words_[unit].began = cycle;
            }
            if (writes >> unit & 1) {
                // Of its context's lines.
                const uint64_t line = rtl.NPU(write_line) >> (unit * kChipBits) & ((1u << kChipBits) - 1);
                const uint32_t context = unit == kGemv ? std::countr_zero(uint32_t{rtl.NPU(u_gemv__DOT__write_left_q)}) : context_of(unit);
                words_[unit].of[context].chip.push_back(line_of(line, ~uint64_t{0}, rtl.NPU(write_data), unit * kLineWords));
            }
        }
        // A line of MEMCPY waits in a register for the port, which is empty for a cycle between two.
        const bool store = tells_writes_ && rtl.NPU(write_q), waits = std::exchange(store_, store);
        if (store && !waits) {
            words_[kMem].of[context_of(kMem)].stores.push_back(line_of(rtl.NPU(write_line_q), rtl.NPU(write_strobe_q), rtl.NPU(write_data_q), 0));
        }
        const uint32_t logits = tells_writes_ ? rtl.NPU(u_gemv__DOT__logit_valid_q) & rtl.NPU(logit_ready) : 0;
        for (uint32_t context = 0; logits != 0 && context < contexts; ++context) {
            if (logits >> context & 1) words_[kGemv].of[context].logits.push_back(word_of(rtl.NPU(u_gemv__DOT__logit_q), context));
        }
        for (uint32_t unit = 0; unit < kUnits; ++unit) {
            if (!(done >> unit & 1)) continue;
            std::array<uint32_t, kPlaceWords> registers;
            constexpr uint32_t bits = gangs > 2 ? 2 : 1;
            const uint32_t gang = rtl.NPU(unit_gang_q) >> (unit * bits) & ((1u << bits) - 1);
            const uint32_t mask = unit == kGemv ? uint32_t(rtl.NPU(gemv_mask_q)) : 1u << context_of(unit);
            put(registers, 0, place_of(rtl, gang, unit), kPlaceWords);
            for (uint32_t context = 0; context < contexts; ++context) {
                if (!(mask >> context & 1)) continue;
                NpuEvent told = event(NpuEventKind::WordDone, gang, gang * contexts + context, cycle, registers);
                Writes& writes_of = words_[unit].of[context];
                told.end = rtl.NPU(unit_end) >> (unit * kEndBits) & ((1u << kEndBits) - 1);
                told.began = words_[unit].began;
                told.chip = std::move(writes_of.chip);
                told.stores = std::move(writes_of.stores);
                told.logits = std::move(writes_of.logits);
                tell(told);
            }
            if (tells_writes_) words_[unit] = {};
        }
    }
#undef NPU

    template <class Registers, class Wide>
    static void put(Registers& registers, uint32_t at, const Wide& wide, uint32_t words) {
        for (uint32_t word = 0; word < words; ++word) registers[at + word] = wide[word];
    }

    // 32 bits of a packed array, which has a type of its own from 65 bits on.
    template <class Packed>
    static uint32_t word_of(const Packed& packed, uint32_t at) {
        if constexpr (std::is_integral_v<Packed>) {
            return uint32_t(uint64_t{packed} >> (32 * at));
        } else {
            return packed[at];
        }
    }

    template <class Wide>
    static NpuLine line_of(uint64_t line, uint64_t strobe, const Wide& wide, uint32_t from) {
        NpuLine told{line, strobe, {}};
        for (uint32_t word = 0; word < kLineWords; ++word) told.words[word] = wide[from + word];
        return told;
    }

    template <class Registers>
    static NpuEvent event(NpuEventKind kind, uint32_t gang, uint32_t context, uint64_t cycle, const Registers& registers) {
        NpuEvent told{};
        told.kind = kind;
        told.gang = gang;
        told.context = context;
        told.cycle = cycle;
        std::copy(registers.begin(), registers.end(), std::back_inserter(told.registers));
        return told;
    }

    void tell(const NpuEvent& told) {
        try {
            (*observer_)->happened(told);
        } catch (const rust::Error& error) {
            throw SimulationError{FailureKind::Assertion, "R6", error.what()};
        }
    }

    std::optional<rust::Box<NpuObserver>> observer_;
    bool tells_writes_ = true;
    std::array<Word, kUnits> words_;
    std::array<uint32_t, kMostGangs> states_{};
    bool store_ = false;
};

}  // namespace doorbell
