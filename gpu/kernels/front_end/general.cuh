// The general way of what has been fetched: long DECODEs, STOPs, fences, groups, POLICYs, full queues.
// Called by fetch warps and scout through `execute_in_general`, in the turn, which it holds while it waits: for completion slots (R4), rollouts (R5),
// fences (R7), workers, the publisher (R19). Orders: between `shut` and `reopen` versions stay as they are (R20).
// Planted faults: HoldsNobody, AbortsLate, PostsBeforeTokens, CountsUnordered, KeepsUnstarted.
#ifndef DOORBELL_FRONT_END_GENERAL_CUH
#define DOORBELL_FRONT_END_GENERAL_CUH

#include "front_end/fetch.cuh"

namespace front_end {

template <bool kLanguage>
__device__ __forceinline__ bool Fetcher<kLanguage>::in_general(uint32_t first, uint32_t count) {
  Order o;
  take(o, count);
  const uint32_t consumed_to = first + count, index = first + lane;
  long long since = clock64();
  uint32_t spins = 0, left = count == kWarp ? kEveryLane : (1u << count) - 1;
  uint32_t longs = 0, briefs = 0, rounds = 0, alone = 0, unbound = 0, bound = 0, epoch = 0;
  bool has_turn = true, one_by_one = false, prepared = false;
  // A PREFILL of engine 1 that finds no place opens its group when it has one. Until then a POLICY may retire its version, and load another.
  const auto wait_unbound = [&](uint32_t mask) {
    const uint32_t opens = mask & bound & longs;
    if (!kLanguage || opens == 0 || DOORBELL_FAULT(KeepsUnstarted)) return;
    const bool prefill = (opens >> lane & 1) != 0 && o.desc.opcode() == DOORBELL_OP_PREFILL;
    const uint32_t mine = __ballot_sync(kEveryLane, prefill);
    if (mine == 0) return;
    unbind(f, __shfl_sync(kEveryLane, o.desc.prefix_id(), __ffs(mine) - 1), lane);
    bound &= ~mine;
    unbound |= mine;
  };
  while (left != 0) {
    if (!prepared) {
      // Again behind each POLICY: what it published, and retired, decides on those behind it (R18, R20). What has been
      // admitted to its group stays in it, and only a DECODE of it may end otherwise than it would have: a PREFILL that is still to
      // run is in no group (`wait_unbound`).
      prepared = true;
      epoch = __shfl_sync(kEveryLane, order::load_acquire_block(&f.epoch), 0);
      __syncwarp();
      const bool was_bound = bound >> lane & 1;
      const bool keeps = was_bound && (o.desc.opcode() != DOORBELL_OP_DECODE || o.outcome.status == DOORBELL_STATUS_ERROR);
      const uint32_t belongs_to = o.bound;
      const Outcome outcome = o.outcome;
      prepare<kLanguage>(o, index, f);
      if (was_bound) o.bound = belongs_to;
      if (keeps) {
        o.outcome = outcome;
        o.is_long = o.is_brief = false;
      }
      longs = __ballot_sync(kEveryLane, o.is_long);
      briefs = __ballot_sync(kEveryLane, o.is_brief);
      rank_briefs(o, briefs, lane, rounds);
      // What is to be taken one by one: what waits for others, or makes them wait, or decides on those behind it.
      const uint32_t same = __match_any_sync(kEveryLane, o.desc.rollout_id());
      const bool opens = o.desc.opcode() == DOORBELL_OP_PREFILL && o.desc.max_tokens() != 0;
      const bool good = o.live && o.outcome.status != DOORBELL_STATUS_ERROR;
      alone = __ballot_sync(kEveryLane, o.is_fence || o.is_stop || (o.is_long && f.config.workers == 1) ||
                                            (good && (opens || o.desc.opcode() == DOORBELL_OP_POLICY)) ||
                                            (o.live && (same & longs & ((1u << lane) - 1)) != 0) ||
                                            (o.live && f.running.find(o.desc.rollout_id()) != RunningTable::kNone));
      const bool shares = o.desc.has(DOORBELL_FLAG_COW_PREFIX) &&
                          (o.is_stop || o.desc.opcode() == DOORBELL_OP_DECODE);
      unbound = __ballot_sync(kEveryLane, good && (opens || shares)) & ~bound;
    }
    const uint32_t k = __ffs(left) - 1, first_alone = left & alone & (0u - (left & alone));
    // Those before the first that is to be taken alone, or that one.
    const bool by_itself = one_by_one || first_alone == 1u << k;
    uint32_t mask = by_itself ? 1u << k : left & (first_alone - 1);
    const bool fence = __shfl_sync(kEveryLane, o.is_fence, k);
    uint32_t missing = DOORBELL_WAIT_NOTHING;
    // R17, R27: what belongs to a group starts behind its PREFILL. Before anything is asked of those that run.
    if (kLanguage && UNLIKELY(__any_sync(kEveryLane, order::load_acquire_block(&f.opening) != 0))) {
      const bool joins = (mask & unbound) >> lane & 1 && o.desc.opcode() != DOORBELL_OP_PREFILL;
      const uint32_t early = __ballot_sync(kEveryLane, joins && is_opening(f, o.desc.prefix_id()));
      if (early != 0) mask &= (early & (0u - early)) - 1;
      if (mask == 0) missing = DOORBELL_WAIT_ROLLOUT;
    }
    if (by_itself && missing == DOORBELL_WAIT_NOTHING) {
      const bool of_group = o.is_stop && o.desc.has(DOORBELL_FLAG_COW_PREFIX) && o.desc.member() == DOORBELL_MEMBER_NONE;
      missing = held_by(first + k, __shfl_sync(kEveryLane, o.desc.rollout_id(), k),
                        __shfl_sync(kEveryLane, o.desc.prefix_id(), k), fence, __shfl_sync(kEveryLane, o.is_stop, k),
                        __shfl_sync(kEveryLane, of_group, k));
    }
    if (missing != DOORBELL_WAIT_NOTHING) {
      if (!keep_waiting(missing, since, spins)) return false;
      continue;
    }
    Function& function = state.functions[f.config.function];
    const uint32_t opcode = __shfl_sync(kEveryLane, o.desc.opcode(), k);
    bool publishes = UNLIKELY(opcode == DOORBELL_OP_POLICY) &&
                     __shfl_sync(kEveryLane, o.outcome.status, k) == DOORBELL_STATUS_DONE;
    if (kLanguage && publishes) {
      // R4: nothing is brought for what cannot complete.
      if (!__any_sync(kEveryLane, has_slot())) {
        if (!keep_waiting(DOORBELL_WAIT_COMPLETION_SLOT, since, spins)) return false;
        continue;
      }
      if (!becomes(function.loader, lane)) {
        if (!keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) return false;
        continue;
      }
      // Nobody else publishes from here on.
      if (__any_sync(kEveryLane, order::load_acquire_block(&f.epoch) != epoch)) {
        resign(function.loader, lane);
        prepared = false;
        continue;
      }
      // Out of the registers meanwhile, of which too few are left.
      put_back(o);
      __syncwarp();
      const uint32_t error = announce_policy(f, state, queue, stage, k);
      __syncwarp();
#pragma unroll
      for (uint32_t part = 0; part < 4; part++) o.desc.quarter[part] = stage[staged(lane, part)];
      since = clock64();
      if (error != DOORBELL_ERR_NONE) {
        resign(function.loader, lane);
        if (error == kCut) return false;
        if (lane == k) o.outcome = ended(DOORBELL_STATUS_ERROR, error);
        publishes = false;
      }
    }
    // With what has been brought it stays the loader. (Engine 0's kernel goes round again: a loop here costs it registers on Blackwell.)
    if (!kLanguage && publishes && !becomes(function.publisher, lane)) {
      if (!keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) return false;
      continue;
    }
    while (kLanguage && publishes && !becomes(function.publisher, lane)) {
      if (keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) continue;
      resign(function.loader, lane);
      return false;
    }
    // From here to the admission the versions stay as they are (R20): for the others of the function, and those that
    // are told to end are all that name the one that is retired.
    DOORBELL_WINDOW(HoldsNobody);
    while (!shut(f, lane)) DOORBELL_YIELD();
    const bool held = !Versions{order::load_halves_block(&f.versions.slots)}.settled();
    const bool anew = order::load_relaxed_block(&f.epoch) != epoch;
    if (UNLIKELY(__any_sync(kEveryLane, held || anew)) && !DOORBELL_FAULT(HoldsNobody)) {
      reopen(f, lane);
      if (publishes) end_publish<kLanguage>(function, lane);
      prepared = false;
      if (__any_sync(kEveryLane, held) && !keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) return false;
      continue;
    }
    // R17: in the order of the queue, and once.
    if (UNLIKELY((unbound & mask) != 0)) {
      const bool prefill = o.desc.opcode() == DOORBELL_OP_PREFILL;
      const bool retired = !o.is_long && !o.is_brief;
      const uint32_t part = bind(f, unbound & mask, o.desc.prefix_id(), o.desc.opcode(),
                                 prefill ? o.desc.max_tokens() : o.desc.member(), o.slot, retired, lane);
      if (unbound & mask & 1u << lane) {
        const uint32_t error = part >> 16 & 0xFF;
        o.bound = error != 0 ? 0 : part;
        if (error != 0) o.outcome = ended(DOORBELL_STATUS_ERROR, error);
        if (error != 0) o.is_long = o.is_brief = false;
      }
      bound |= unbound & mask;
      unbound &= ~mask;
      longs = __ballot_sync(kEveryLane, o.is_long);
      briefs = __ballot_sync(kEveryLane, o.is_brief);
    }
    // R8: an ABORT ends what was published before it and has not started.
    if (UNLIKELY(__any_sync(kEveryLane, order::load_acquire_block(&f.aborting) != 0))) {
      const uint64_t abort = order::load_relaxed_block(&f.abort_of);
      const bool before = static_cast<int32_t>(index - static_cast<uint32_t>(abort >> 32)) < 0;
      const bool decode = (o.is_long || o.is_brief) && o.desc.opcode() == DOORBELL_OP_DECODE;
      if ((mask >> lane & 1) != 0 && decode && before && !DOORBELL_FAULT(AbortsLate) &&
          o.desc.rollout_id() == static_cast<uint32_t>(abort)) {
        o.outcome = ended(DOORBELL_STATUS_STOPPED);
        o.outcome.result = DOORBELL_DIGEST_INIT;
        o.is_long = o.is_brief = false;
      }
      longs = __ballot_sync(kEveryLane, o.is_long);
      briefs = __ballot_sync(kEveryLane, o.is_brief);
    }
    if ((longs & mask) != 0) {
      // Those for which there are places, and what is before the first for which there is none.
      const uint32_t mine = longs & mask, count = admissible(f, state, queue, __popc(mine), lane);
      const uint32_t late =
          __ballot_sync(kEveryLane, (mine >> lane & 1) != 0 && __popc(mine & ((1u << lane) - 1)) >= count);
      if (late != 0) mask &= (late & (0u - late)) - 1;
      if (mask == 0) {
        wait_unbound(mine);
        reopen(f, lane);
        if (!keep_waiting(DOORBELL_WAIT_WORKER, since, spins)) return false;
        continue;
      }
    }
    uint32_t first_completion = 0;
    missing = admit(f, state.places[queue], o, index, mask, longs & mask, consumed_to, lane, first_completion);
    if (UNLIKELY(missing != DOORBELL_WAIT_NOTHING)) wait_unbound(mask);
    reopen(f, lane);
    if (missing != DOORBELL_WAIT_NOTHING) {
      if (publishes) end_publish<kLanguage>(function, lane);
      // Not all at once, then.
      one_by_one = true;
      if (!keep_waiting(missing, since, spins)) return false;
      continue;
    }
    if ((briefs & mask) != 0 && !DOORBELL_FAULT(PostsBeforeTokens)) {
      if (by_itself) o.rank = 0;
      write_brief_tokens(f, o, briefs & mask, by_itself ? 1 : rounds, lane);
      const uint32_t logps = __ballot_sync(kEveryLane, o.desc.has(DOORBELL_FLAG_LOGP)) & briefs & mask;
      if (logps != 0) {
        write_brief_logps(f, o, logps, by_itself ? 1 : rounds, lane);
        const uint32_t lines = logps >> lane & 1 ? lines_of(o.desc.delta_offset(), o.outcome.added) : 0;
        const uint32_t all = __reduce_add_sync(kEveryLane, lines);
        if (lane == 0) tally(f, warp, kWriteBeats, all);
      }
      DOORBELL_WINDOW(CountsUnordered);
    }
    if (UNLIKELY(publishes)) {
      // Out of the registers meanwhile, of which too few are left.
      put_back(o);
      __syncwarp();
      const uint32_t error = publish_policy<kLanguage>(f, state, queue, stage, k);
      end_publish<kLanguage>(function, lane);
#pragma unroll
      for (uint32_t part = 0; part < 4; part++) o.desc.quarter[part] = stage[staged(lane, part)];
      longs = briefs = rounds = alone = unbound = spins = 0;
      since = clock64();
      if (error != DOORBELL_ERR_NONE && lane == k) o.outcome = ended(DOORBELL_STATUS_ERROR, error);
      prepared = false;
    }
    // What a REWARD reads, or a descriptor of engine 1, may be what the host wrote before the descriptor, which its check word alone may have published.
    const bool reads = o.desc.opcode() == DOORBELL_OP_REWARD || (kLanguage && !engine::is_brief(o.desc.model_id()));
    if (__any_sync(kEveryLane, (longs & mask) >> lane & 1 && reads)) {
      order::fence_sys();
      __syncwarp();
    }
    left &= ~mask;
    if (left == 0 && !by_itself) {
      if (lane == 0) order::store_release_block(&f.admitted, consumed_to);
      has_turn = false;
    }
    finish(f, state, queue, session, o, index, mask, longs & mask, first_completion, consumed_to, stage, warp, lane);
    // R7: and none later starts before it has. R5: one worker completes in order.
    if (by_itself && (fence || ((longs & mask) != 0 && f.config.workers == 1))) {
      while (!__all_sync(kEveryLane, quiet(first + k + 1)))
        if (!keep_waiting(DOORBELL_WAIT_FENCE, since, spins)) return false;
      pass_fence();
    }
  }
  if (lane == 0) {
    order::store_relaxed_block(&f.waits_for, DOORBELL_WAIT_NOTHING);
    tally(f, warp, kDescriptors, count);
    if (has_turn) order::store_release_block(&f.admitted, consumed_to);
  }
  __syncwarp();
  return true;
}

}  // namespace front_end

#endif
