#include "warp.h"

#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <memory>

#include "check.h"

namespace {

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
  void (*text)(uint32_t) = nullptr;
};

Warp* g_warp = nullptr;

// All lanes bring a value, and get those of all.
const uint32_t* meet(const char* name, uint32_t mask, uint32_t value) {
  Warp& warp = *g_warp;
  if (mask != ~0u) {
    check::still_wrong("CUDA: the lanes of the mask exchange values, and the others do not.", "%s is called with the mask 0x%x; all 32 lanes of the warp take part.", name, mask);
    check::end();
  }
  Lane& lane = warp.lanes[warp.lane];
  const uint32_t round = warp.round;
  warp.values[round % 2][warp.lane] = value;
  lane.waits_at = name;
  swapcontext(&lane.context, &warp.scheduler);
  lane.waits_at = nullptr;
  return warp.values[round % 2];
}

void enter() {
  Warp& warp = *g_warp;
  warp.text(warp.lane);
  warp.lanes[warp.lane].ended = true;
}

const char* place(const Lane& lane) { return lane.ended ? "has ended" : lane.waits_at; }

}  // namespace

namespace warp {

void run(void (*text)(uint32_t)) {
  const auto warp = std::make_unique<Warp>();
  g_warp = warp.get();
  warp->text = text;
  for (Lane& lane : warp->lanes) {
    lane.stack.reset(new char[kStack]);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = kStack;
    lane.context.uc_link = &warp->scheduler;
    makecontext(&lane.context, enter, 0);
  }
  const Lane& first = warp->lanes[0];
  do {
    for (warp->lane = 0; warp->lane < kLanes; warp->lane++) {
      Lane& lane = warp->lanes[warp->lane];
      if (!lane.ended) swapcontext(&warp->scheduler, &lane.context);
    }
    for (uint32_t k = 1; k < kLanes; k++) {
      if (place(first) == place(warp->lanes[k])) continue;
      check::still_wrong("CUDA: every lane of the mask calls the same shuffle, or none returns.", "the lanes of the warp do not meet.");
      std::printf("  lane 0: %s\n  lane %u: %s\n", place(first), k, place(warp->lanes[k]));
      check::end();
    }
    warp->round++;
  } while (!first.ended);
  g_warp = nullptr;
}

}  // namespace warp

uint32_t __shfl_xor_sync(uint32_t mask, uint32_t value, uint32_t bits) {
  const uint32_t from = (g_warp->lane ^ bits) % kLanes;
  return meet("__shfl_xor_sync", mask, value)[from];
}

uint32_t __shfl_sync(uint32_t mask, uint32_t value, uint32_t from) { return meet("__shfl_sync", mask, value)[from % kLanes]; }

uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  const uint32_t* const values = meet("__reduce_max_sync", mask, value);
  uint32_t largest = 0;
  for (uint32_t k = 0; k < kLanes; k++) largest = max(largest, values[k]);
  return largest;
}

void __syncwarp(uint32_t mask) { meet("__syncwarp", mask, 0); }
