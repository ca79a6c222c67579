// Role: scout. One warp that polls the slot at the head of the queue and executes what it finds there.
// Called by the block. Waits for the slot's check word (R1), and for the turn if the queue is not quiet. Orders: what makes a queue quiet is acquired
// before the claim. Planted faults: LooksAhead, HoldsScout, ScoutsOutOfTurn, ScoutsBlindly, LeavesBadSlots, PostsBeforeTokens.
#ifndef DOORBELL_FRONT_END_SCOUT_CUH
#define DOORBELL_FRONT_END_SCOUT_CUH

#include "front_end/fetch.cuh"

namespace front_end {

template <bool kLanguage>
__device__ void Fetcher<kLanguage>::scout_role(const Launch& launch) {
  while (!__any_sync(kEveryLane, stopping(f))) {
    DOORBELL_YIELD();
    const uint32_t index = __shfl_sync(kEveryLane, order::load_acquire_block(&f.claimed), 0);
    if (lane == 0) {
      DOORBELL_WINDOW(LooksAhead);
      DOORBELL_WINDOW(HoldsScout);
    }
    const uint32_t known = __shfl_sync(kEveryLane, order::load_acquire_block(&f.sq_tail), 0) - index;
    // Several are for the fetch warps.
    if (known > 1 && known <= f.config.sq_size) {
      if (events::kScoutTells && UNLIKELY(f.events.has_life())) events::tell(f.events, launch, queue, lane);
      continue;
    }
    // What lane 0 was told holds for the lanes that read, too.
    if (!DOORBELL_FAULT(LooksAhead)) __syncwarp();
    // Only four lanes read: to others the slot might show a later state.
    uint4 part = make_uint4(0, 0, 0, 0);
    if (lane < 4) part = order::load_relaxed_sys(slot(index) + lane);
    // While that is on its way: what the turn will find. So it stays unless somebody else claims `index`.
    const doorbell_session config = f.config;
    Turn turn;
    turn.look(f);
    const bool quiet =
        ((turn.admitted == index && turn.running == 0) || DOORBELL_FAULT(ScoutsOutOfTurn)) && turn.room(config) != 0 &&
        order::load_relaxed_block(&f.aborting) == 0;
    turn.cq_tail = __shfl_sync(kEveryLane, turn.cq_tail, 0);
    // Whoever still reads what the last look has staged comes first.
    __syncwarp();
    if (lane < 4) stage[lane] = part;
    __syncwarp();
    // Every lane has the descriptor, and comes to the same: sooner than four lanes tell the others.
    Order o;
    o.live = true;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) o.desc.quarter[k] = stage[k];
    // Behind the slot: what the host wrote when it had seen a version finds it here.
    const Versions versions{order::load_halves_block(&f.versions.slots)};
    const bool verified = verifies(o.desc, f.key, index);
    // What the doorbell had told of was there to be read: if it does not verify now, it never will (R2).
    if (!verified && (known != 1 || DOORBELL_FAULT(LeavesBadSlots))) continue;
    DOORBELL_WINDOW(ScoutsBlindly);
    if (UNLIKELY(f.events.has_life())) f.events.note_fetched();
    // A fetch warp may be faster. Whether it was is asked below, as the answer takes its time.
    uint32_t claimed_from = ~index;
    if (lane == 0) claimed_from = order::compare_swap_relaxed_block(&f.claimed, index, index + 1);
    __syncwarp();
    classify<false>(o, verified, index, versions, config, f.language.engines());
    const bool at_once = quiet && o.is_plain;
    if (!__any_sync(kEveryLane, claimed_from == index || DOORBELL_FAULT(ScoutsBlindly))) continue;
    if (UNLIKELY(!__shfl_sync(kEveryLane, at_once, 0))) {
      if (!wait_and_execute(index)) break;
      continue;
    }

    // The turn has been the scout's since it claimed the descriptor, and what it found then holds.
    const uint32_t consumed_to = index + 1, briefs = o.is_brief ? 1 : 0;
    if (lane == 0) turn.post(f, consumed_to, 1);
    if (__any_sync(kEveryLane, o.is_brief)) {
      // A lane per token.
      const engine::Brief::Decoder decoder = begin_brief(o);
      const engine::Step step = decoder.step(lane);
      run_brief(o, config, decoder, [&](uint32_t k) { return __shfl_sync(kEveryLane, step, k); });
      uint32_t* const to = reinterpret_cast<uint32_t*>(config.token_base + o.desc.delta_offset());
      if (lane < o.outcome.added && !DOORBELL_FAULT(PostsBeforeTokens))
        order::store_relaxed_sys(to + lane, decoder.token(step));
      __syncwarp();
      order::fence_sys();
    }
    if (UNLIKELY(f.events.has_life())) f.events.note_ended();
    ulonglong2 pair[2];
    write_completion(pair, o.desc.user_data(), o.desc.rollout_id(), o.desc.seq_len(), o.desc.reward_model_id(), 0,
                     o.outcome);
    place_completion(pair, consumed_to, phase_of(turn.cq_tail, config.cq_size));
    if (lane < 2) {
      ulonglong2* const to =
          reinterpret_cast<ulonglong2*>(config.cq_base + 32ull * (turn.cq_tail & (config.cq_size - 1)));
      order::store_relaxed_sys(to + lane, lane == 0 ? pair[0] : pair[1]);
    }
    if (DOORBELL_FAULT(PostsBeforeTokens)) {
      DOORBELL_WINDOW(PostsBeforeTokens);
      o.rank = 0;
      write_brief_tokens(f, o, briefs, 1, lane);
    }
    const long long completed_at = clock64();
    if (lane == 0) order::store_release_block(&f.admitted, consumed_to);
    account(f, o, 1, briefs, turn.cq_tail, warp, lane);
    if (lane == 0) tally(f, warp, kDescriptors, 1);
    if (UNLIKELY(f.events.has_life())) f.events.post(turn.cq_tail, 1, briefs);
    while (clock64() - completed_at < kAnswerCycles) {
    }
  }
  leave();
}

}  // namespace front_end

#endif
