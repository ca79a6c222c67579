// The numbers of the device's AXI4 master port.
#pragma once

#include <cstdint>

namespace doorbell {

constexpr uint32_t kBeatBytes = 64;
constexpr uint32_t kBeatWords = kBeatBytes / 4;
constexpr uint32_t kQueues = 16;        // queue pairs, at most
constexpr uint32_t kCompletionId = 16;  // AWID of completions, plus their queue pair; token lines carry its number alone
constexpr uint32_t kMessageId = 32;     // AWID of the messages of interrupts, plus their queue pair
constexpr uint32_t kEventId = 48;       // AWID of events and of engine 1's keys and values, plus their function
constexpr uint32_t kFunctions = 16;     // at most
constexpr uint32_t kReadbackId = 16;   // ARID of what REWARD and POLICY read, plus their queue pair; descriptors carry its number alone
constexpr uint32_t kNpuId = 32;        // ARID of engine 1, plus the function
constexpr uint32_t kNoId = 48;         // no read carries one from here on
constexpr uint32_t kIds = kEventId + kFunctions;
constexpr uint32_t kOkay = 0, kSlverr = 2, kDecerr = 3;
constexpr uint32_t kIncr = 1, kSize64 = 6;  // AxBURST and AxSIZE: the only ones that the device may use
constexpr uint32_t kOutstanding = 256;      // transfers of a kind that the memory holds; more than the device's own limit but for events

struct WriteBeat {
    uint32_t data[kBeatWords];
    uint64_t strobe;  // bit i: byte address + i is written
    uint64_t address;
    uint32_t user;  // AWUSER: the function
    bool last;
};

}  // namespace doorbell
