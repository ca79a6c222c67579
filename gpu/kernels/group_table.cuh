// The groups of one queue pair (R17), and whom of those at workers a STOP, a POLICY or an ABORT ends: in shared memory.
#ifndef DOORBELL_GROUP_TABLE_CUH
#define DOORBELL_GROUP_TABLE_CUH

#include "descriptor.cuh"
#include "device_state.cuh"

// What a descriptor that has been admitted belongs to. 0: to nothing that anybody asks for.
namespace binding {

constexpr uint32_t kAtWorker = 1u << 31;   // it has a place
constexpr uint32_t kVersioned = 1u << 30;  // a DECODE, or a PREFILL of engine 1, and so the user of a policy slot
constexpr uint32_t kSecond = 1u << 29;     // of slot 1
constexpr uint32_t kShared = 1u << 28;     // a DECODE with COW_PREFIX
constexpr uint32_t kGrouped = 1u << 27;    // belongs to a group
constexpr uint32_t kWhole = 1u << 26;      // a STOP of it all
constexpr uint32_t kSequence = 1u << 25;   // of engine 1: it is a block's
constexpr uint32_t kOpens = 1u << 24;      // a PREFILL that has opened a group, whose members wait for it
constexpr uint32_t kMemberBits = 6, kMember = (1u << kMemberBits) - 1;
static_assert(DOORBELL_MEMBERS_MAX == 1u << kMemberBits, "a member is an index into a word of 64 bits");

__device__ __forceinline__ uint32_t grouped(uint32_t group, uint32_t member) {
  return kGrouped | group << kMemberBits | member;
}
__device__ __forceinline__ uint32_t group_of(uint32_t bound) { return bound >> kMemberBits & (DOORBELL_GROUPS - 1); }
__device__ __forceinline__ uint64_t members_of(uint32_t bound) {
  return (bound & kWhole) != 0 ? ~0ull : 1ull << (bound & kMember);
}

}  // namespace binding

// A descriptor belongs to a group from its admission, in the turn, to the reservation of its completion's slot. Whoever
// reserves, the warp with the turn or the completion warp, holds `lock` from there until it has marked whom the completions
// end: so the last of them in the order of their indices is the one that finds nobody left.
struct GroupTable {
  static_assert(DOORBELL_GROUPS == kWarp, "a bit of a word, and a lane, for each");

  uint4 prefixes[DOORBELL_GROUPS / 4];
  uint64_t left[DOORBELL_GROUPS];  // members that have not ended, a bit each
  uint32_t members[DOORBELL_GROUPS];
  uint32_t admitted[DOORBELL_GROUPS];  // what belongs to it and has not completed
  // A bit for each. `open` and `admitted` change under the lock; the other two in the turn alone.
  uint32_t open;
  uint32_t second;  // belong to the version in slot 1 (R21)
  uint32_t stale;
  uint32_t lock;

  // A thread for each group.
  __device__ __forceinline__ void clear(uint32_t group) {
    left[group] = 0;
    members[group] = admitted[group] = 0;
    if (group == 0) open = second = stale = lock = 0;
  }

  // All lanes of a warp call these two. What is done between them is done by one warp at a time, and is short: nothing
  // there waits.
  __device__ __forceinline__ void acquire(uint32_t lane) {
    if (lane == 0) {
      uint32_t spins = 0;
      while (order::compare_swap_block(&lock, 0, 1) != 0) relax(spins);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void release(uint32_t lane) {
    __syncwarp();
    if (lane == 0) order::store_release_block(&lock, 0);
  }

  // The open group of this prefix, or DOORBELL_GROUPS. The caller holds the lock.
  __device__ __forceinline__ uint32_t find(uint32_t prefix_id) const {
    const uint32_t opened = order::load_relaxed_block(&open);
    uint32_t found = DOORBELL_GROUPS;
#pragma unroll 1
    for (uint32_t k = 0; k < DOORBELL_GROUPS / 4; k++) {
      const uint4 four = order::load_relaxed_block(&prefixes[k]);
      const uint32_t here = static_cast<uint32_t>(four.x == prefix_id) | static_cast<uint32_t>(four.y == prefix_id) << 1 |
                            static_cast<uint32_t>(four.z == prefix_id) << 2 |
                            static_cast<uint32_t>(four.w == prefix_id) << 3;
      const uint32_t hits = here & (opened >> 4 * k);
      if (hits != 0) found = 4 * k + __ffs(hits) - 1;
    }
    return found;
  }

  // An entry of which nothing is left, or DOORBELL_GROUPS. The caller holds the lock, and all its lanes call it.
  __device__ __forceinline__ uint32_t vacant(uint32_t lane) const {
    const bool taken = (order::load_relaxed_block(&open) >> lane & 1) != 0 ||
                       order::load_relaxed_block(&admitted[lane]) != 0;
    const uint32_t free = __ballot_sync(kEveryLane, !taken);
    return free == 0 ? DOORBELL_GROUPS : __ffs(free) - 1;
  }

  // Opens a vacant entry. One lane calls it, whose warp has the turn and the lock.
  __device__ __forceinline__ void begin(uint32_t group, uint32_t prefix_id, uint32_t count, uint32_t slot) {
    const uint32_t bit = 1u << group;
    order::store_relaxed_block(&reinterpret_cast<uint32_t*>(prefixes)[group], prefix_id);
    order::store_relaxed_block(&members[group], count);
    order::store_relaxed_block(&left[group], ~0ull >> (64 - count));
    order::store_relaxed_block(&open, order::load_relaxed_block(&open) | bit);
    order::store_relaxed_block(&stale, order::load_relaxed_block(&stale) & ~bit);
    const uint32_t others = order::load_relaxed_block(&second) & ~bit;
    order::store_relaxed_block(&second, slot == 0 ? others : others | bit);
  }

  // What belongs to groups, of the lanes in `lanes`, completes in the order of lanes; `ends` says whose completions end
  // members. Returns the lanes with whose completions a group closes. The caller holds the lock; all its lanes call it.
  __device__ __noinline__ uint32_t complete(uint32_t lanes, uint32_t bound, bool ends, uint32_t lane) {
    const uint32_t ending = __ballot_sync(kEveryLane, ends);
    uint32_t closing = 0;
#pragma unroll 1
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const uint32_t k = __ffs(rest) - 1;
      const uint32_t one = __shfl_sync(kEveryLane, bound, k);
      if (lane != 0) continue;
      const uint32_t group = binding::group_of(one), opened = order::load_relaxed_block(&open);
      order::store_relaxed_block(&admitted[group], order::load_relaxed_block(&admitted[group]) - 1);
      if ((ending >> k & 1) == 0 || (opened >> group & 1) == 0) continue;
      const uint64_t others = order::load_relaxed_block(&left[group]) & ~binding::members_of(one);
      order::store_relaxed_block(&left[group], others);
      if (others != 0) continue;
      order::store_relaxed_block(&open, opened & ~(1u << group));
      closing |= 1u << k;
    }
    return __shfl_sync(kEveryLane, closing, 0);
  }

  // R21: what becomes of groups when slot `target` is loaded, and the version in the other one retired or not. In the turn,
  // by one lane.
  __device__ __forceinline__ void supersede(uint32_t target, uint32_t mode) {
    const uint32_t in_second = order::load_relaxed_block(&second), old = order::load_relaxed_block(&stale);
    const uint32_t gone = mode == DOORBELL_POLICY_ABORT ? kEveryLane : target == 1 ? in_second : ~in_second;
    order::store_relaxed_block(&stale, old | gone);
    if (mode == DOORBELL_POLICY_KEEP) order::store_relaxed_block(&second, target == 1 ? kEveryLane : 0u);
  }
};

#endif
