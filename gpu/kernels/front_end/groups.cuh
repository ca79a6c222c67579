// Groups in the turn: who belongs to one, and the end of its members (R17, R8).
// Called by whoever has the turn. Waits for the lock of the groups. Orders: that lock; what `end_shared` tells workers is relaxed. Planted faults:
// TakesStale, OvertakesGroup.
#ifndef DOORBELL_FRONT_END_GROUPS_CUH
#define DOORBELL_FRONT_END_GROUPS_CUH

#include "front_end/state.cuh"

namespace front_end {

// R17: admits the lanes in `lanes`: DECODEs and STOPs with COW_PREFIX, or one PREFILL of `member` members. Returns what a
// lane's descriptor belongs to, as a binding, and in bits 23:16 its error. The warp has the turn.
__device__ __noinline__ uint32_t bind(FrontEnd& f, uint32_t lanes, uint32_t prefix_id, uint32_t opcode, uint32_t member,
                                      uint32_t slot, bool retired, uint32_t lane) {
  GroupTable& groups = f.groups;
  uint32_t bound = 0, error = DOORBELL_ERR_NONE;
  groups.acquire(lane);
  const uint32_t vacant = groups.vacant(lane);
  if (lanes >> lane & 1) {
    const uint32_t group = groups.find(prefix_id);
    if (opcode == DOORBELL_OP_PREFILL) {
      error = group != DOORBELL_GROUPS    ? DOORBELL_ERR_PREFIX_BUSY
              : vacant == DOORBELL_GROUPS ? DOORBELL_ERR_GROUP_FULL
                                          : DOORBELL_ERR_NONE;
      if (error == DOORBELL_ERR_NONE) groups.begin(vacant, prefix_id, member, slot);
    } else if (group != DOORBELL_GROUPS) {
      const bool whole = opcode == DOORBELL_OP_STOP && member == DOORBELL_MEMBER_NONE;
      const bool decode = opcode == DOORBELL_OP_DECODE;
      if (whole || member < order::load_relaxed_block(&groups.members[group])) {
        const bool stale = (order::load_relaxed_block(&groups.stale) >> group & 1) != 0 ||
                           (order::load_relaxed_block(&groups.second) >> group & 1) != slot;
        // R21: but for a version that is retired, under which nothing starts.
        if (decode && !retired && stale && !DOORBELL_FAULT(TakesStale)) {
          error = DOORBELL_ERR_STALE_PREFIX;
        } else {
          bound = binding::grouped(group, whole ? 0 : member) | (whole ? binding::kWhole : 0);
          order::add_acq_rel_block(&groups.admitted[group], 1);
        }
      }
    }
  }
  groups.release(lane);
  return bound | error << 16;
}

// Takes back that a PREFILL, which is not admitted yet after all, has opened the group of its prefix. The warp has the turn, and nobody
// has been admitted to the group.
__device__ __noinline__ void unbind(FrontEnd& f, uint32_t prefix_id, uint32_t lane) {
  GroupTable& groups = f.groups;
  groups.acquire(lane);
  if (lane == 0) order::store_relaxed_block(&groups.open, order::load_relaxed_block(&groups.open) & ~(1u << groups.find(prefix_id)));
  groups.release(lane);
}

// R17: whether a PREFILL at a worker has opened the group of this prefix.
__device__ __noinline__ bool is_opening(const FrontEnd& f, uint32_t prefix_id) {
  bool found = false;
#pragma unroll 1
  for (uint32_t k = 0; k < kPlaces; k++) {
    const bool opens = (order::load_relaxed_block(&f.bound[k]) & binding::kOpens) != 0;
    found = found || (opens && order::load_relaxed_block(&f.prefix[k]) == prefix_id);
  }
  return found;
}

// R8: tells the DECODEs at workers that share this prefix to end. Whether there are any.
__device__ __noinline__ bool end_shared(FrontEnd& f, Place* places, uint32_t prefix_id, uint32_t lane) {
  bool some = false;
#pragma unroll 1
  for (uint32_t k = lane; k < kPlaces; k += kWarp) {
    if ((order::load_relaxed_block(&f.bound[k]) & binding::kShared) == 0) continue;
    if (order::load_relaxed_block(&f.prefix[k]) != prefix_id) continue;
    order::set_bits_gpu(&places[k].stop, kStop);
    some = true;
  }
  order::fence_block();
  return __any_sync(kEveryLane, some) && !DOORBELL_FAULT(OvertakesGroup);
}

}  // namespace front_end

#endif
