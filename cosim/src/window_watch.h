// What R11 says of a function, whatever its owner does: every beat that the device moves lies in a window of the function
// that AxUSER names. It knows nothing but what page 0 says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "axi.h"
#include "doorbell_contract.h"

namespace doorbell {

class WindowWatch {
public:
    // While there is a hostile function, a bit each in `hostile`, strays are counted, whoever's they are; where there is none, the
    // first one ends the simulation.
    explicit WindowWatch(uint32_t hostile) : hostile_{hostile} { reset(); }

    // A register write that the device accepted.
    void written(uint32_t address, uint32_t value) {
        const uint32_t at = address - kBlock;
        if (at >= kFunctions * kEach) return;
        registers_[at / 4] = value;
        update(at / kEach);
    }
    void reset();

    // A burst whose address was taken.
    void burst(const char* channel, uint64_t address, uint32_t beats, uint32_t function) {
        const uint64_t bytes = uint64_t{beats} * kBeatBytes;
        bursts_ += hostile_ >> function & 1;
        if (function < kFunctions) [[likely]] {
            for (const Window& window : windows_[function]) {
                const uint64_t offset = address - window.base;
                if (offset < window.size && bytes <= window.size - offset) return;
            }
        }
        stray(channel, address, beats, function);
    }

    // Bursts of hostile functions, and strays of any.
    uint64_t bursts() const { return bursts_; }
    uint64_t strays() const { return strays_; }

private:
    static constexpr uint32_t kFunctions = 16, kWindows = 3;
    static constexpr uint32_t kBlock = DOORBELL_BLOCK_DEVICE_FUNCTION;
    static constexpr uint32_t kEach = DOORBELL_BLOCK_DEVICE_FUNCTION_PER_FUNCTION;

    // In whole lines, which regions are.
    struct Window {
        uint64_t base = 0, size = 0;
    };

    void update(uint32_t function);
    void stray(const char* channel, uint64_t address, uint32_t beats, uint32_t function);

    uint32_t registers_[kFunctions * kEach / 4];
    Window windows_[kFunctions][kWindows];
    uint32_t hostile_;
    uint64_t bursts_ = 0, strays_ = 0;
};

}  // namespace doorbell
