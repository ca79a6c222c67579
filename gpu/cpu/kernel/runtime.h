// What the kernel's text finds in place of a GPU: blocks that are threads, and lanes that are fibres of their block's.
//
// A lane runs until it waits for others of its warp or block, or looks in vain and lets others come first; under stress
// it is interrupted at random at every named access too. So what happens inside a block depends on the seed alone, and
// blocks and the host run at the same time.
#ifndef DOORBELL_CPU_RUNTIME_H
#define DOORBELL_CPU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

// As src/lib.rs has them.
struct doorbell_cpu_options {
  uint32_t queues;
  uint32_t worker_blocks;
  uint32_t language_blocks;
  uint32_t language_small;  // whether each warp of them runs a rollout
  uint64_t seed;
  uint32_t stress;      // steps are delayed at random
  uint32_t weak;        // relaxed accesses take effect late
  uint32_t scoped;      // where they do: what is released to a block, others see late too
  const char* fault;    // null: none
  void* mailboxes;
  void* memory;
  size_t memory_bytes;  // of all queues
  // Of engine 1: of each model, and of the keys and values of each block.
  uint64_t model_bytes, cache_bytes;
  // Teams of its blocks, where warps are none, and rollouts that each has at a time.
  uint32_t language_teams, language_columns;
  // Keys and values that are kept: sets of pages, and bytes of the pages of each.
  uint64_t page_set_bytes;
  uint32_t page_sets, reserved;
};
// `RawOptions` of gpu/cpu/src/lib.rs asserts the same.
static_assert(sizeof(doorbell_cpu_options) == 112 && offsetof(doorbell_cpu_options, seed) == 16 &&
                  offsetof(doorbell_cpu_options, stress) == 24 && offsetof(doorbell_cpu_options, fault) == 40 &&
                  offsetof(doorbell_cpu_options, memory_bytes) == 64 && offsetof(doorbell_cpu_options, cache_bytes) == 80 &&
                  offsetof(doorbell_cpu_options, page_set_bytes) == 96,
              "the layout of the host");

namespace cpu {

constexpr uint32_t kLanes = 32;

// What lanes of a warp meet for.
enum class Meeting : uint32_t { kSync, kShuffle, kShuffleXor, kBallot, kAny, kAll, kMatch, kMax, kAdd, kOr };

struct Index {
  uint32_t x;
};
extern thread_local Index thread_index, block_index, block_size, grid_size;

// Waits for the lanes of `mask`; returns what this one gets for its `value`.
uint64_t meet(Meeting meeting, uint32_t mask, uint64_t value, uint32_t argument);
// Waits for every lane of the block that has not ended.
void meet_block();
// A look in vain, or a step of something long: others come first.
void yields();
// Before a named access.
void step();
// Something happened that others may wait for.
void progress();
// Nanoseconds: the clock of this device is one of 1 GHz.
long long cycles();
// A number below `bound`, by the seed.
uint32_t below(uint32_t bound);
bool has(Fault fault);
// Holds the window of `fault` open, if it is planted.
void window(Fault fault);
// Whether `bytes` at `address` lie in memory that the host shares; else the device fails (R11).
bool is_shared(const void* address, size_t bytes);

// Of engine 1's device memory: what a block may stream from, those of its device, or everything for a probe.
struct Ranges {
  uintptr_t models = 0, caches = 0;
  uint64_t models_bytes = ~0ull, model_bytes = ~0ull, caches_bytes = 0;
  uintptr_t last = 0;  // the model that was streamed from last
  uintptr_t pages = 0;
  uint64_t pages_bytes = 0;
  uintptr_t benches = 0;
  uint64_t benches_bytes = 0;
};
extern thread_local Ranges ranges;
bool is_of_another(const void* address, uint64_t bytes);
// Whether so many bytes lie within one model, in a cache, among what is kept, or in what blocks have for their teams; else the device fails.
inline bool is_of_device(const void* address, uint64_t bytes) {
  const uint64_t in_model = reinterpret_cast<uintptr_t>(address) - ranges.last;
  return (in_model < ranges.model_bytes && bytes <= ranges.model_bytes - in_model) || is_of_another(address, bytes);
}
// A team reads an image from here on, or has ended, or a front end loads one there: over none that is read.
void begins_to_read(const void* image);
void ends_reading(const void* image);
void begins_to_load(const void* to, uint64_t bytes);
void is_replaced(const void* image);

// Weak memory, where it is asked for: a relaxed load may give what the word held when the lane last synchronised, and a
// relaxed store may become visible behind later ones. Where scopes count, what a lane stored before a __syncwarp its warp
// knows behind it, the block once a lane of the warp releases to that, and everybody once one of the block releases to all.
// `width` is 4 or 8, of stores 2 too; 16 is stored as a whole, `value` first.
bool is_weak();
uint64_t load_late(const void* from, uint32_t width);
void store_late(void* to, uint32_t width, uint64_t value, uint64_t last = 0);
// The lane knows the newest value of one word, and others know its own.
void settle(const void* word);
// The lane acquires: from here on it reads nothing older than now.
void acquires();
// Who sees what was stored before a release. A GPU's own scope, and the system's, are one here.
enum class Scope : uint32_t { kBlock, kMachine };
// The lane releases: what it has stored, and what it knows of, is visible within the scope.
void releases(Scope scope);

// What kernel.cpp provides.
struct Sizes {
  size_t state;
  uint32_t block_threads;
  uint32_t teams;  // of a block, where each warp is one
  size_t bench;    // what a block has of the state of its team
  size_t page_set; // what is known of a set of pages
};
Sizes kernel_sizes();
void kernel_prepare_block();
void kernel_lane(void* state, void* models, void* caches, void* benches, uint64_t bench_bytes, void* pages, const doorbell_cpu_options& options);
// One lane of a probe, which knows what `arguments` are.
void kernel_probe(void* arguments);
void kernel_exit(void* mailboxes, uint32_t queues);

}  // namespace cpu

#endif
