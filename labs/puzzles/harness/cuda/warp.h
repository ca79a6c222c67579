// A warp on the CPU: 32 lanes, each with a stack of its own, that meet where all of them do in CUDA.
#ifndef DOORBELL_PUZZLES_WARP_H
#define DOORBELL_PUZZLES_WARP_H

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "check.h"

#define __device__
#define __forceinline__ inline

using std::max;
using std::min;

namespace warp {

constexpr uint32_t kLanes = 32;
constexpr size_t kStack = 64 << 10;

struct Lane {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  const char* waits_at = nullptr;       // the name of what it waits in; null while it runs
  bool ended = false;
};

struct Warp {
  ucontext_t scheduler;
  Lane lanes[kLanes];
  uint32_t lane = 0;                    // that runs
  uint32_t round = 0;                   // times that all lanes have met
  uint32_t values[2][kLanes] = {};      // what each lane brought, of this round and of the one before
  std::function<void()> text;           // of the lane that runs
};

inline Warp*& current() {
  static Warp* warp = nullptr;
  return warp;
}

// All lanes bring a value, and each takes that of `from`.
template <typename Take>
uint32_t meet(const char* name, uint32_t mask, uint32_t value, Take take) {
  Warp& warp = *current();
  if (mask != ~0u)
    check::still_wrong(check::text("%s is called with the mask 0x%x; all 32 lanes of the warp take part.", name, mask), "", "");
  Lane& lane = warp.lanes[warp.lane];
  const uint32_t round = warp.round;
  warp.values[round % 2][warp.lane] = value;
  lane.waits_at = name;
  swapcontext(&lane.context, &warp.scheduler);
  lane.waits_at = nullptr;
  return take(warp.values[round % 2]);
}

inline void enter() {
  Warp& warp = *current();
  warp.text();
  warp.lanes[warp.lane].ended = true;
}

// Runs `text`, which gets the number of the lane, in all lanes to their end.
template <typename Text>
void run(Text text) {
  Warp warp;
  current() = &warp;
  warp.text = [&] { text(current()->lane); };
  for (uint32_t k = 0; k < kLanes; k++) {
    Lane& lane = warp.lanes[k];
    lane.stack.reset(new char[kStack]);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = kStack;
    lane.context.uc_link = &warp.scheduler;
    makecontext(&lane.context, enter, 0);
  }
  for (;;) {
    for (uint32_t k = 0; k < kLanes; k++) {
      warp.lane = k;
      if (!warp.lanes[k].ended) swapcontext(&warp.scheduler, &warp.lanes[k].context);
    }
    const Lane& first = warp.lanes[0];
    for (uint32_t k = 1; k < kLanes; k++) {
      const Lane& lane = warp.lanes[k];
      const char* const at[2] = {first.ended ? "has ended" : first.waits_at, lane.ended ? "has ended" : lane.waits_at};
      if (first.ended != lane.ended || (!lane.ended && lane.waits_at != first.waits_at))
        check::still_wrong("The lanes of the warp do not meet.", "CUDA: every lane of the mask calls the same shuffle, or none returns.",
                           check::text("  lane 0: %s\n  lane %u: %s", at[0], k, at[1]));
    }
    if (first.ended) return;
    warp.round++;
  }
}

}  // namespace warp

inline uint32_t __shfl_xor_sync(uint32_t mask, uint32_t value, uint32_t bits) {
  const uint32_t from = (warp::current()->lane ^ bits) % warp::kLanes;
  return warp::meet("__shfl_xor_sync", mask, value, [from](const uint32_t* values) { return values[from]; });
}

inline uint32_t __shfl_sync(uint32_t mask, uint32_t value, uint32_t from) {
  return warp::meet("__shfl_sync", mask, value, [from](const uint32_t* values) { return values[from % warp::kLanes]; });
}

inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  return warp::meet("__reduce_max_sync", mask, value, [](const uint32_t* values) { return *std::max_element(values, values + warp::kLanes); });
}

inline void __syncwarp(uint32_t mask = ~0u) {
  warp::meet("__syncwarp", mask, 0, [](const uint32_t*) { return 0u; });
}

#endif
