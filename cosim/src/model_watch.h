// What R11 says of engine 1's own accesses: keys and values that it writes lie, whole, in an arena of its function, and an image's header that is read
// back in the function's MODEL region. It knows the function's registers alone.
#pragma once

#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>

#include "axi.h"
#include "doorbell_contract.h"
#include "failure.h"

namespace doorbell {

class ModelWatch {
public:
    // A register write that the device accepted, at the address of function 0's.
    void written(uint32_t address, uint32_t value) {
        const uint32_t at = address - kFirst;
        if (at < kBytes) registers_[at / 4] = value;
    }
    bool in_model(uint64_t address) const { return lies(0, address); }
    bool in_arena(uint64_t address) const {
        for (uint32_t arena = 0; arena < kArenas; ++arena) {
            if (lies(kArena0 + arena * kEach, address)) return true;
        }
        return false;
    }
    [[noreturn]] static void astray(uint64_t address) {
        char text[128];
        std::snprintf(text, sizeof text, "a store of engine 1 at 0x%" PRIx64 " lies in no arena, and is no log-probability", address);
        fail_memory("R11", text);
    }

private:
    static constexpr uint32_t kArenas = 4;
    static constexpr uint32_t kFirst = DOORBELL_REG_MODEL_BASE_LO;
    static constexpr uint32_t kEach = (DOORBELL_REG_ARENA_1_BASE_LO - DOORBELL_REG_ARENA_0_BASE_LO) / 4;
    static constexpr uint32_t kArena0 = (DOORBELL_REG_ARENA_0_BASE_LO - kFirst) / 4;
    static constexpr uint32_t kBytes = DOORBELL_REG_ARENA_3_SIZE_HI + 4 - kFirst;

    uint64_t wide(uint32_t place) const { return uint64_t{registers_[place + 1]} << 32 | registers_[place]; }
    bool lies(uint32_t place, uint64_t address) const {
        const uint64_t offset = address - wide(place), size = wide(place + 2);
        return offset < size && kBeatBytes <= size - offset;
    }

    std::array<uint32_t, kBytes / 4> registers_{};
};

}  // namespace doorbell
