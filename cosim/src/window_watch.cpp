#include "window_watch.h"

#include <cinttypes>
#include <cstdio>

#include "failure.h"

namespace doorbell {

void WindowWatch::reset() {
    std::fill(std::begin(registers_), std::end(registers_), 0);
    // Function 0 may reach all addresses until somebody takes them from it.
    for (const uint32_t half : {DOORBELL_REG_WINDOW_0_SIZE_LO, DOORBELL_REG_WINDOW_0_SIZE_HI}) {
        registers_[(half - kBlock) / 4] = UINT32_MAX;
    }
    for (uint32_t function = 0; function < kFunctions; ++function) update(function);
}

void WindowWatch::update(uint32_t function) {
    constexpr uint32_t kOfOne = DOORBELL_REG_WINDOW_1_BASE_LO - DOORBELL_REG_WINDOW_0_BASE_LO;
    constexpr uint32_t kFirst = uint32_t{DOORBELL_REG_WINDOW_0_BASE_LO} - kBlock;
    for (uint32_t k = 0; k < kWindows; ++k) {
        const uint32_t* const at = registers_ + (function * kEach + kFirst + k * kOfOne) / 4;
        const uint64_t base = uint64_t{at[1]} << 32 | at[0], size = uint64_t{at[3]} << 32 | at[2];
        // R11: whole lines count, and a window that wraps holds nothing.
        const bool wraps = size != 0 && size - 1 > UINT64_MAX - base;
        const uint64_t before = (kBeatBytes - base % kBeatBytes) % kBeatBytes;
        const uint64_t whole = size < before ? 0 : (size - before) / kBeatBytes * kBeatBytes;
        windows_[function][k] = wraps || whole == 0 ? Window{} : Window{base + before, whole};
    }
}

void WindowWatch::stray(const char* channel, uint64_t address, uint32_t beats, uint32_t function) {
    char text[160];
    std::snprintf(text, sizeof text, "%s of %" PRIu32 " beats at 0x%" PRIx64 " lies in no window of function %" PRIu32
                  ", which AxUSER names", channel, beats, address, function);
    if (hostile_ == 0) fail_memory("R11", text);
    if (strays_++ == 0) std::fprintf(stderr, "R11 %s\n", text);
}

}  // namespace doorbell
