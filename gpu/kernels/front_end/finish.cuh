// Behind the admission: long DECODEs go to workers, the others are completed.
// Called by fetch warps, which may have given the turn away. Waits for the slot of a ticket. Orders: a release of the ticket hands a place over;
// a system fence stands between tokens and completions. Planted faults: PostsBeforeTokens, TellsEarly.
#ifndef DOORBELL_FRONT_END_FINISH_CUH
#define DOORBELL_FRONT_END_FINISH_CUH

#include "front_end/admit.cuh"

namespace front_end {

// Hands the long DECODEs and REWARDs of `mask` to the workers and posts the completions of the others.
__device__ __forceinline__ void finish(FrontEnd& f, DeviceState& state, uint32_t queue, uint32_t session,
                                       const Order& o, uint32_t index, uint32_t mask, uint32_t longs,
                                       uint32_t first_completion, uint32_t consumed_to, uint4* stage, uint32_t warp,
                                       uint32_t lane) {
  const uint32_t instants = mask & ~longs;
  const uint32_t below = (1u << lane) - 1;
  if (UNLIKELY(longs != 0)) {
    // The places are filled while the tickets are on their way.
    const bool is_sequence = o.desc.opcode() != DOORBELL_OP_REWARD && !engine::is_brief(o.desc.model_id());
    const uint32_t sequences = __ballot_sync(kEveryLane, is_sequence) & longs, rollouts = longs & ~sequences;
    uint32_t ticket = 0;
    if (lane == kForWarps && rollouts != 0) ticket = order::take_tickets_gpu(&state.work[kForWarps].tail, __popc(rollouts));
    if (lane == kForBlocks && sequences != 0)
      ticket = order::take_tickets_gpu(&state.work[kForBlocks].tail, __popc(sequences));
    if (longs >> lane & 1) {
      Place& place = state.places[queue][o.place];
      place.rollout_id = o.desc.rollout_id();
      place.seed = o.desc.seed();
      place.seq_len = o.desc.seq_len();
      place.max_tokens = o.desc.max_tokens();
      place.model_id = o.desc.model_id();
      place.period = period_of(o.desc.checkpoint(), f.config.checkpoint_default);
      place.flags = o.desc.flags();
      if (UNLIKELY(f.events.has_life())) {
        place.flags |= kTimed;
        order::store_relaxed_gpu(&state.moments[queue][o.place].fetched,
                                 order::load_relaxed_block(&f.events.fetched[warp]));
      }
      place.reward_model_id = o.desc.reward_model_id();
      place.user_data = o.desc.user_data();
      place.tokens = f.config.token_base + o.desc.delta_offset();
      place.logps = o.desc.has(DOORBELL_FLAG_LOGP) ? f.config.logp_base + o.desc.delta_offset() : 0;
      place.salt = o.salt;
      place.index = index;
      place.opcode = o.desc.opcode();
      place.eos_threshold = f.config.eos_threshold;
      place.wait_states = f.config.wait_states;
      place.reward_threshold = f.config.reward_threshold;
      place.session = session;
      if (is_sequence)
        state.sequences[queue][o.place] = SequencePlace{o.desc.kv_offset(), o.desc.arena(), o.slot};
    }
    const uint32_t kind = is_sequence ? kForBlocks : kForWarps;
    ticket = __shfl_sync(kEveryLane, ticket, kind) + __popc((is_sequence ? sequences : rollouts) & below);
    if (longs >> lane & 1) {
      order::store_relaxed_block(&f.tickets[o.place], ticket);
      hand_out(state.work[kind], ticket, queue << 16 | o.place);
    }
  }
  if (instants == 0) return;

  const bool mine = instants >> lane & 1;
  const uint32_t rank = __popc(instants & below);
  const uint32_t briefs = __ballot_sync(kEveryLane, mine && o.is_brief);
  // With the turn: before it an ABORT or a POLICY may have come.
  if (UNLIKELY(f.events.has_life())) f.events.note_ended();
  if (DOORBELL_FAULT(TellsEarly) && f.events.has_life()) {
    f.events.post(first_completion, instants, briefs);
    DOORBELL_WINDOW(TellsEarly);
  }
  // The tokens of every lane before the completions of any. Without tokens there is nothing to order: each half of a
  // completion carries its phase (R4).
  ulonglong2 pair[2];
  write_completion(pair, o.desc.user_data(), o.desc.rollout_id(), o.desc.seq_len(), o.desc.reward_model_id(), 0,
                   o.outcome);
  place_completion(pair, consumed_to, phase_of(first_completion + rank, f.config.cq_size));
  if ((instants & (instants - 1)) == 0) {
    if (briefs != 0) order::fence_sys();
    if (mine) {
      ulonglong2* const to = reinterpret_cast<ulonglong2*>(
          f.config.cq_base + 32ull * (first_completion & (f.config.cq_size - 1)));
      order::store_relaxed_sys(to, pair[0]);
      order::store_relaxed_sys(to + 1, pair[1]);
    }
  } else {
    ulonglong2* const halves = reinterpret_cast<ulonglong2*>(stage);
    if (mine) {
      halves[2 * rank] = pair[0];
      halves[2 * rank + 1] = pair[1];
    }
    __syncwarp();
    if (briefs != 0) order::fence_sys();
    write_completions(f, halves, __popc(instants), first_completion, lane);
  }

  if (DOORBELL_FAULT(PostsBeforeTokens)) {
    DOORBELL_WINDOW(PostsBeforeTokens);
    write_brief_tokens(f, o, briefs, kWarp, lane);
  }

  account(f, o, instants, briefs, first_completion, warp, lane);
  __syncwarp();
  // Asked again: there is no register for the answer.
  if (UNLIKELY(f.events.has_life()) && !DOORBELL_FAULT(TellsEarly))
    f.events.post(first_completion, instants, briefs);
}

}  // namespace front_end

#endif
