// A POLICY: what is wrong with it, the copy of its model, its publish (R19).
// Called by the warp that has the turn, which is loader or publisher of its function. Waits for the control warps of the function's other
// queue pairs, and for the warps that help it copy. Orders: a system fence before its completion. Planted faults: SwapsSlots, LoadsBusySlot,
// PublishesAlone, LoadsInPlace.
#ifndef DOORBELL_FRONT_END_POLICY_CUH
#define DOORBELL_FRONT_END_POLICY_CUH

#include "front_end/versions.cuh"

namespace front_end {

// The descriptor that is staged as number `k`.
__device__ __forceinline__ Descriptor staged_descriptor(const uint4* stage, uint32_t k) {
  Descriptor desc;
#pragma unroll
  for (uint32_t part = 0; part < 4; part++) desc.quarter[part] = stage[staged(k, part)];
  return desc;
}

// The slot that a POLICY loads. The newest is never retired: the other one is free, or was loaded first.
__device__ __forceinline__ uint32_t target_slot(const FrontEnd& f) {
  const uint32_t newest = order::load_relaxed_block(&f.loaded);
  return DOORBELL_FAULT(SwapsSlots) ? newest : 1 - newest;
}

// R19: what is wrong with a POLICY, whatever its header says.
__device__ __forceinline__ uint32_t error_of_policy(const FrontEnd& f, const Descriptor& desc, uint32_t lane) {
  const Versions versions{order::load_halves_block(&f.versions.slots)};
  if (desc.checkpoint() > DOORBELL_POLICY_ABORT || Version(versions, desc.policy_version()).state == DOORBELL_SLOT_RESIDENT)
    return DOORBELL_ERR_BAD_POLICY;
  // What the host wrote before the descriptor, and what it had seen: the header, and completions of those that are gone.
  order::fence_sys();
  if (is_in_use(f, target_slot(f), lane) && !DOORBELL_FAULT(LoadsBusySlot)) return DOORBELL_ERR_POLICY_BUSY;
  return DOORBELL_ERR_NONE;
}

// What the header of a POLICY says. All lanes call it.
struct PolicyHeader {
  uint32_t salt;
  bool agrees;

  __device__ __forceinline__ PolicyHeader(const FrontEnd& f, const Descriptor& desc, bool of_language) {
    const uint64_t header = f.config.token_base + desc.delta_offset();
    const uint4 mine = order::load_relaxed_sys(reinterpret_cast<const uint4*>(header));
    // One lane's, as each may have read at another time.
    const uint32_t w0 = __shfl_sync(kEveryLane, mine.x, 0), length = __shfl_sync(kEveryLane, mine.z, 0);
    const uint32_t check = __shfl_sync(kEveryLane, mine.w, 0);
    salt = __shfl_sync(kEveryLane, mine.y, 0);
    agrees = mix(mix(mix(w0 ^ DOORBELL_GOLDEN) ^ salt) ^ length) == check &&
             w0 == (desc.model_id() << 16 | desc.policy_version()) && length == (of_language ? sizeof(doorbell_hw_image) : 0);
  }
};

// Whether the publisher's queue pair is the only one of the function. One that joins waits for the publisher, so none joins after this.
// After this acquire the rollouts of those that have left are over.
__device__ __forceinline__ bool is_alone(const Function& function, uint32_t queue) {
  const uint32_t members = __shfl_sync(kEveryLane, order::load_acquire_gpu(&function.members), 0);
  __syncwarp();
  return (members & ~(1u << queue)) == 0 || DOORBELL_FAULT(PublishesAlone);
}

// Asks the others to hold what they have, and whether one of them uses the slot that is to be loaded.
__device__ __forceinline__ bool hold(DeviceState& state, Function& function, uint32_t queue, uint32_t target, uint32_t mode,
                                     uint32_t lane) {
  if (lane == 0) {
    order::store_relaxed_gpu(&function.target, target);
    order::store_relaxed_gpu(&function.mode, mode);
  }
  __syncwarp();
  return ask(state, function, queue, request::kHold, lane);
}

// No error, but that the session ended first.
constexpr uint32_t kCut = ~0u;

// With engine 1, ahead of a publish: reads the header of the POLICY that is staged as number `k`, and brings its model, if it is one, into
// the place that no slot names. Nobody of the function is held meanwhile, and nothing has changed if it fails, or is cut short by
// the end of the session. The warp has the turn, and is the loader of its function.
__device__ __noinline__ uint32_t announce_policy(FrontEnd& f, DeviceState& state, uint32_t queue, const uint4* stage, uint32_t k) {
  const uint32_t lane = threadIdx.x % kWarp;
  const Descriptor desc = staged_descriptor(stage, k);
  const uint32_t function_id = f.config.function, target = target_slot(f);
  Function& function = state.functions[function_id];
  language::Publication& publication = f.publication;
  const uint32_t error = error_of_policy(f, desc, lane);
  if (error != DOORBELL_ERR_NONE) return error;
  const bool of_language = desc.model_id() == engine::kLanguageModel;
  const PolicyHeader header(f, desc, of_language);
  const uint64_t record = f.config.token_base + desc.delta_offset() + 64;
  const bool fits = header.agrees && (!of_language || publication.read(record, f.config, f.language, lane));
  if (lane == 0) {
    publication.salt = header.salt;
    publication.is_good = fits;
  }
  __syncwarp();
  if (!fits || !of_language) return DOORBELL_ERR_NONE;
  // Nothing is brought for what is going to be POLICY_BUSY.
  for (uint32_t spins = 0; !becomes(function.publisher, lane);) relax(spins);
  bool busy = false;
  if (!is_alone(function, queue)) {
    busy = hold(state, function, queue, target, desc.checkpoint(), lane);
    ask(state, function, queue, request::kResume, lane);
  }
  resign(function.publisher, lane);
  if (busy) return DOORBELL_ERR_POLICY_BUSY;
  const LoadedModel(&models)[2] = state.models[function_id];
  const uint32_t place = DOORBELL_FAULT(LoadsInPlace) ? models[target].place(target) : spare_place(models);
  if (lane == 0) publication.model.moved = place ^ target;
  return publication.load(f.language.model(function_id, place), lane, [&] { return stopping(f); }) ? DOORBELL_ERR_NONE : kCut;
}

// R19: publishes the version of the POLICY that is staged as number `k`; its error, and nothing has changed if there is one.
// The warp has the turn: nothing is admitted meanwhile. And it is the publisher of its function: in the other front ends
// nothing is admitted either, from the time when they are asked whether the slot is in use until they have the new versions.
// So there is one moment in which these become resident for all (R20). With engine 1 announce_policy comes before.
template <bool kLanguage>
__device__ __noinline__ uint32_t publish_policy(FrontEnd& f, DeviceState& state, uint32_t queue, const uint4* stage,
                                                uint32_t k) {
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const Descriptor desc = staged_descriptor(stage, k);
  const uint32_t version = desc.policy_version(), model_id = desc.model_id(), mode = desc.checkpoint();
  Function& function = state.functions[f.config.function];
  const Versions versions{order::load_halves_block(&f.versions.slots)};
  const uint32_t newest = order::load_relaxed_block(&f.loaded), target = target_slot(f);
  const uint32_t error = error_of_policy(f, desc, lane);
  if (error != DOORBELL_ERR_NONE) return error;
  const bool of_language = kLanguage && model_id == engine::kLanguageModel;
  bool fits;
  uint32_t salt;
  if (kLanguage) {
    fits = f.publication.is_good;
    salt = f.publication.salt;
  } else {
    // First, so that the others are held for no longer than it takes to ask them.
    const PolicyHeader header(f, desc, false);
    fits = header.agrees;
    salt = header.salt;
  }
  const bool alone = is_alone(function, queue);
  if (!alone && hold(state, function, queue, target, mode, lane)) {
    ask(state, function, queue, request::kResume, lane);
    return DOORBELL_ERR_POLICY_BUSY;
  }
  if (lane == 0) tally(f, warp, kReadBeats, 1);
  if (!fits) {
    if (!alone) ask(state, function, queue, request::kResume, lane);
    return DOORBELL_ERR_BAD_POLICY;
  }
  // Nobody uses the slot, and nobody starts to.
  if (of_language && lane == 0) {
    LoadedModel& model = state.models[f.config.function][target];
    stream::is_replaced(f.language.model(f.config.function, model.place(target)));
    model = f.publication.model;
  }
  const uint32_t resident = Versions::word(version, model_id, DOORBELL_SLOT_RESIDENT);
  const uint32_t of_slot = of_language ? f.publication.shape.context : salt;
  const uint32_t kept = mode == DOORBELL_POLICY_KEEP ? DOORBELL_SLOT_KEPT : DOORBELL_SLOT_ABORTED;
  uint4 slots = Versions::tagged(versions.slots, 0);
  uint32_t& old = newest == 0 ? slots.x : slots.z;
  if (mode != DOORBELL_POLICY_WAIT) old = Versions::word(old & 0xFFFF, Versions::engine_of(old), kept);
  if (target == 0) {
    slots.x = resident, slots.y = of_slot;
  } else {
    slots.z = resident, slots.w = of_slot;
  }
  if (lane == 0) {
    store_function(function, slots);
    order::store_relaxed_gpu(&function.loaded, target);
    order::store_relaxed_sys(f.shown, shown(slots, target));
  }
  __syncwarp();
  adopt(f, state.places[queue], slots, target, mode, lane);
  if (!alone) ask(state, function, queue, request::kAdopt, lane);
  // The host sees the slots behind the completion.
  order::fence_sys();
  __syncwarp();
  return DOORBELL_ERR_NONE;
}

}  // namespace front_end

#endif
