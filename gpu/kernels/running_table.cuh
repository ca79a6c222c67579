// The rollouts of one queue that are at workers, by id: an exact, eight-way set-associative table in shared memory.
#ifndef DOORBELL_RUNNING_TABLE_CUH
#define DOORBELL_RUNNING_TABLE_CUH

#include "device_state.cuh"
#include "mix.cuh"

// An id is mixed (a bijection); its low bits choose the set and the others, with the place, are the entry: the table
// knows ids exactly. Entries come from whoever has the turn, and go by the completion warp.
struct RunningTable {
  // With as many sets as places, one of four ways would be full at two thirds of the places or so, and what comes next for it would hold up all
  // behind it until one of them ends; of eight ways none is, in a thousand tries with all places taken.
  static constexpr uint32_t kSetBits = kPlacesLog2, kSets = 1u << kSetBits, kWays = 8;
  static constexpr uint32_t kTagBits = 32 - kSetBits;
  static constexpr uint32_t kNone = 0xFFFFFFFFu;

  // Tag and place fill a word (21 and 11 bits). kNone is a free way: the last place is never given out.
  uint4 ways[kSets][kWays / 4];
  uint32_t entries;

  static_assert(kPlaces == 1u << (32 - kTagBits), "tag and place fill a word");

  __device__ __forceinline__ void clear_set(uint32_t set) {
    ways[set][0] = ways[set][1] = make_uint4(kNone, kNone, kNone, kNone);
  }

  // The place of rollout `id`, or kNone: then what its last descriptor did has been seen.
  __device__ __forceinline__ uint32_t find(uint32_t id) const {
    const uint32_t mixed = mix(id), tag = mixed >> kSetBits;
    const uint4 first = order::load_relaxed_block(&ways[mixed % kSets][0]), second = order::load_relaxed_block(&ways[mixed % kSets][1]);
    uint32_t place = kNone;
    match(first, tag, place);
    match(second, tag, place);
    order::fence_block();
    return place;
  }

  // Enters a rollout that is not in the table; false if its set is full.
  __device__ __forceinline__ bool enter(uint32_t id, uint32_t place) {
    const uint32_t mixed = mix(id), entry = (mixed >> kSetBits) << (32 - kTagBits) | place;
    uint32_t* const set = reinterpret_cast<uint32_t*>(ways[mixed % kSets]);
    for (uint32_t way = 0; way < kWays; way++) {
      if (order::compare_swap_block(&set[way], kNone, entry) == kNone) {
        order::add_acq_rel_block(&entries, 1);
        return true;
      }
    }
    return false;
  }

  // Removes a rollout that is in the table. Whoever then finds it gone sees what came before.
  __device__ __forceinline__ void leave(uint32_t id) {
    const uint32_t mixed = mix(id), tag = mixed >> kSetBits;
    uint32_t* const set = reinterpret_cast<uint32_t*>(ways[mixed % kSets]);
    for (uint32_t way = 0; way < kWays; way++) {
      const uint32_t entry = order::load_relaxed_block(&set[way]);
      if (entry != kNone && entry >> (32 - kTagBits) == tag) {
        order::store_release_block(&set[way], kNone);
        order::add_acq_rel_block(&entries, 0u - 1);
        return;
      }
    }
  }

 private:
  static __device__ __forceinline__ void match(const uint4& entries, uint32_t tag, uint32_t& place) {
    match(entries.x, tag, place);
    match(entries.y, tag, place);
    match(entries.z, tag, place);
    match(entries.w, tag, place);
  }
  static __device__ __forceinline__ void match(uint32_t entry, uint32_t tag, uint32_t& place) {
    if (entry != kNone && entry >> (32 - kTagBits) == tag) place = entry & (kPlaces - 1);
  }
};

#endif
