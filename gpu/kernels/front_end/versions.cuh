// Versions of the policy: a function's slots, each front end's copy, requests from one front end to the others (R18 to R20).
// Called by whoever publishes, and by the control warp, which answers. `ask` waits for the control warps, and `join` for the publisher;
// nobody waits for them meanwhile. Orders: `asked` and `answers` are released and acquired within the GPU, `epoch` within the block. Planted
// faults: HoldsNobody, OverlooksOthers.
#ifndef DOORBELL_FRONT_END_VERSIONS_CUH
#define DOORBELL_FRONT_END_VERSIONS_CUH

#include "front_end/state.cuh"

namespace front_end {

// The slots of a function. One lane stores; whoever loads has come behind the publisher.
__device__ __forceinline__ uint4 load_function(const Function& function) {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(&function.slots);
  return make_uint4(order::load_relaxed_gpu(words), order::load_relaxed_gpu(words + 1), order::load_relaxed_gpu(words + 2),
                    order::load_relaxed_gpu(words + 3));
}
__device__ __forceinline__ void store_function(Function& function, const uint4& slots) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(&function.slots);
  order::store_relaxed_gpu(words, slots.x);
  order::store_relaxed_gpu(words + 1, slots.y);
  order::store_relaxed_gpu(words + 2, slots.z);
  order::store_relaxed_gpu(words + 3, slots.w);
}

// The policy slots as their registers show them, of which `newest` was loaded last.
__device__ __forceinline__ uint64_t shown(const uint4& slots, uint32_t newest) {
  const uint32_t words = ~(1u << Versions::kEngine);
  const uint32_t low = (slots.x & words) | (newest == 0 ? 1u << 24 : 0);
  const uint32_t high = (slots.z & words) | (newest == 1 ? 1u << 24 : 0);
  return static_cast<uint64_t>(high) << 32 | low;
}

// Whether the gate was shut, so that it is this warp's. What is done behind it is short, and waits for nothing.
__device__ __forceinline__ bool shut(FrontEnd& f, uint32_t lane) {
  uint32_t seen = 1;
  if (lane == 0) seen = order::compare_swap_block(&f.gate, 0, 1);
  return __shfl_sync(kEveryLane, seen, 0) == 0;
}

__device__ __forceinline__ void reopen(FrontEnd& f, uint32_t lane) {
  __syncwarp();
  if (lane == 0) order::store_release_block(&f.gate, 0);
}

// Whether this warp has become the function's publisher, or its loader, of which there is one.
__device__ __forceinline__ bool becomes(uint32_t& role, uint32_t lane) {
  uint32_t seen = 1;
  if (lane == 0) seen = order::compare_swap_acquire_gpu(&role, 0, 1);
  return __shfl_sync(kEveryLane, seen, 0) == 0;
}

__device__ __forceinline__ void resign(uint32_t& role, uint32_t lane) {
  __syncwarp();
  if (lane == 0) order::store_release_gpu(&role, 0);
}

// The same of all that a publish takes.
template <bool kLanguage>
__device__ __forceinline__ void end_publish(Function& function, uint32_t lane) {
  resign(function.publisher, lane);
  if (kLanguage) resign(function.loader, lane);
}

// R19: whether what is at a worker names the version in slot `target`. If not, what workers have read of the slot comes before
// what the caller, or who acquires from it, writes there.
__device__ __noinline__ bool is_in_use(const FrontEnd& f, uint32_t target, uint32_t lane) {
  bool busy = false;
#pragma unroll 1
  for (uint32_t k = lane; k < kPlaces; k += kWarp) {
    const uint32_t bound = order::load_acquire_block(&f.bound[k]);
    busy = busy || ((bound & binding::kVersioned) != 0 && (bound & binding::kSecond) / binding::kSecond == target);
  }
  const bool is = __any_sync(kEveryLane, busy);
  __syncwarp();
  return is;
}

// Stores a front end's copy of the slots. One lane calls it.
__device__ __forceinline__ void store_versions(FrontEnd& f, const uint4& slots) {
  uint64_t* const halves = reinterpret_cast<uint64_t*>(&f.versions.slots);
  order::store_relaxed_block(&halves[0], static_cast<uint64_t>(slots.y) << 32 | slots.x);
  order::store_relaxed_block(&halves[1], static_cast<uint64_t>(slots.w) << 32 | slots.z);
}

// R20, R21: takes over the versions behind a publish into slot `target`. Nothing is admitted meanwhile.
__device__ __noinline__ void adopt(FrontEnd& f, Place* places, const uint4& slots, uint32_t target, uint32_t mode,
                                   uint32_t lane) {
  f.groups.acquire(lane);
  if (lane == 0) {
    f.groups.supersede(target, mode);
    const uint32_t epoch = order::load_relaxed_block(&f.epoch) + 1;
    store_versions(f, Versions::tagged(slots, epoch));
    order::store_relaxed_block(&f.loaded, target);
    order::store_release_block(&f.epoch, epoch);
  }
  f.groups.release(lane);
  // Those at workers.
  if (mode != DOORBELL_POLICY_WAIT) {
#pragma unroll 1
    for (uint32_t k = lane; k < kPlaces; k += kWarp) {
      const uint32_t bound = order::load_relaxed_block(&f.bound[k]);
      if ((bound & binding::kVersioned) == 0 || (bound & binding::kSecond) / binding::kSecond == target) continue;
      order::set_bits_gpu(&places[k].stop, mode == DOORBELL_POLICY_KEEP ? kKeep : kStop);
    }
  }
  __syncwarp();
}

// Asks the other front ends of the function, and waits until each has answered or its session is over: the control warps answer,
// which wait for nobody, and a session that ends waits for its rollouts, which end at their next step. Whether one says that the
// slot is in use. The caller is the publisher.
__device__ __forceinline__ bool ask(DeviceState& state, Function& function, uint32_t queue, uint32_t phase, uint32_t lane) {
  const uint32_t number = (order::load_relaxed_gpu(&function.asked) >> request::kNumber) + 1;
  const uint32_t wanted = __shfl_sync(kEveryLane, request::word(number, queue, phase), 0);
  if (lane == 0) order::store_release_gpu(&function.asked, wanted);
  for (uint32_t spins = 0;;) {
    const uint32_t members = order::load_acquire_gpu(&function.members);
    uint32_t answer = wanted;
    if (lane < kMaxQueues && lane != queue && (members >> lane & 1) != 0)
      answer = order::load_acquire_gpu(&state.answers[lane * 32]);
    if (__all_sync(kEveryLane, (answer & ~request::kBusy) == wanted)) {
      __syncwarp();
      return __any_sync(kEveryLane, (answer & request::kBusy) != 0);
    }
    relax(spins);
  }
}

// Answers the publisher of the function. False: not yet, as something is being admitted. The control warp calls it, once for
// each request.
__device__ __noinline__ bool answer(FrontEnd& f, DeviceState& state, uint32_t queue, uint32_t lane) {
  Function& function = state.functions[f.config.function];
  const uint32_t asked = __shfl_sync(kEveryLane, order::load_acquire_gpu(&function.asked), 0);
  __syncwarp();
  // A lane may have seen an older one.
  if (__any_sync(kEveryLane, asked == order::load_relaxed_block(&f.heard))) return true;
  const uint32_t phase = asked & request::kPhase;
  uint32_t busy = 0;
  if (request::queue_of(asked) != queue) {
    if (phase != request::kResume && !shut(f, lane)) return false;
    const uint4 copy = order::load_halves_block(&f.versions.slots);
    if (phase == request::kHold) {
      if (lane == 0 && !DOORBELL_FAULT(HoldsNobody))
        store_versions(f, make_uint4(copy.x | Versions::kHeld, copy.y, copy.z, copy.w));
      if (is_in_use(f, order::load_relaxed_gpu(&function.target), lane) && !DOORBELL_FAULT(OverlooksOthers))
        busy = request::kBusy;
    } else if (phase == request::kAdopt) {
      adopt(f, state.places[queue], load_function(function), order::load_relaxed_gpu(&function.target),
            order::load_relaxed_gpu(&function.mode), lane);
    } else if (lane == 0) {
      store_versions(f, make_uint4(copy.x & ~Versions::kHeld, copy.y, copy.z, copy.w));
    }
    if (phase != request::kResume) reopen(f, lane);
    __syncwarp();
    if (lane == 0) order::store_release_gpu(&state.answers[queue * 32], asked | busy);
  }
  if (lane == 0) order::store_relaxed_block(&f.heard, asked);
  __syncwarp();
  return true;
}

// A session starts: it has the versions of its function as they are, or begins anew. The control warp calls it.
__device__ __noinline__ void join(FrontEnd& f, DeviceState& state, uint32_t queue, uint32_t lane) {
  Function& function = state.functions[f.config.function];
  for (uint32_t spins = 0; !becomes(function.publisher, lane);) relax(spins);
  if (lane == 0) {
    if (order::load_relaxed_gpu(&function.life) != f.config.life) {
      // R18: version 0 with salt 0, and nothing.
      order::store_relaxed_gpu(&function.life, f.config.life);
      store_function(function, make_uint4(Versions::word(0, 0, DOORBELL_SLOT_RESIDENT), 0, 0, 0));
      order::store_relaxed_gpu(&function.events, uint64_t{0});
      order::store_relaxed_gpu(&function.loaded, 0);
      // R26: nothing that was kept of it is known any more.
      for (uint64_t& era : state.eras[f.config.function]) {
        const uint64_t seen = order::load_relaxed_gpu(&era);
        if (!DOORBELL_FAULT(KeepsFunction)) order::store_relaxed_gpu(&era, seen >> 32 << 32 | static_cast<uint32_t>(seen + 1));
      }
    }
    f.versions.slots = Versions::tagged(load_function(function), 0);
    f.loaded = order::load_relaxed_gpu(&function.loaded);
    f.heard = order::load_relaxed_gpu(&function.asked);
    f.epoch = f.gate = 0;
    // No request is 0: an answer given in another function is none here, where the same number may come.
    order::store_relaxed_gpu(&state.answers[queue * 32], 0);
    order::set_bits_gpu(&function.members, 1u << queue);
  }
  resign(function.publisher, lane);
}

}  // namespace front_end

#endif
