// What becomes of a descriptor, as far as no order matters: its error, its version, the tokens of a short DECODE.
// Called by fetch warps and scout, before the turn and behind each publish in it. Waits for nothing. Orders: the slots of the policy are
// read behind the descriptor. Planted fault: ScoresAll.
#ifndef DOORBELL_FRONT_END_CLASSIFY_CUH
#define DOORBELL_FRONT_END_CLASSIFY_CUH

#include "front_end/state.cuh"

namespace front_end {

// What one lane of a fetch warp has to admit.
struct Order {
  Descriptor desc;
  Outcome outcome;           // of what ends on the spot
  engine::Step step[kBrief]; // the tokens of a short DECODE
  uint32_t rank;             // of a short DECODE among those of its rollout
  uint32_t place;            // of a long one
  uint32_t salt;             // of the version of a DECODE
  uint32_t slot;             // that holds it
  uint32_t bound;            // the group that it belongs to
  bool live;                 // the lane has a descriptor
  bool is_plain;             // but for those that run it needs to know of nobody: no worker, no group, no publisher
  bool is_long;              // goes to a worker
  bool is_brief;             // short DECODE, run in the turn
  bool is_stop;
  bool is_fence;
};

// The rollout of a lane's short DECODE.
__device__ __forceinline__ engine::Brief::Decoder begin_brief(const Order& o) {
  return engine::Brief::begin(engine::Rollout{o.desc.seed(), o.desc.rollout_id(), o.desc.seq_len(), o.salt});
}

// Runs the short DECODEs of a warp, but for writing their tokens. `step_of` gives a lane's `k`-th step; all lanes call
// it.
template <typename StepOf>
__device__ __forceinline__ void run_brief(Order& o, const doorbell_session& config,
                                          const engine::Brief::Decoder& decoder, StepOf step_of) {
  const uint32_t period = period_of(o.desc.checkpoint(), config.checkpoint_default);
  uint32_t checkpoint = period;
  engine::Digest digest, since;  // of all tokens, and of those since the last checkpoint (R9)
  bool runs = o.is_brief;
#pragma unroll
  for (uint32_t k = 0; k < kBrief; k++) {
    if (!__any_sync(kEveryLane, runs)) break;
    const engine::Step step = step_of(k);
    if (runs) {
      o.step[k] = step;
      digest.push(decoder.token(step));
      since.push(decoder.token(step));
      const bool eos = decoder.eos(step, config.eos_threshold);
      if (eos) o.outcome.flags |= DOORBELL_CFLAG_EOS;
      o.outcome.added = k + 1;
      o.outcome.result = digest.value;
      // In the contract's order. No STOP can be waiting, because nothing comes in between.
      if ((eos && o.desc.has(DOORBELL_FLAG_EOS_STOPS)) || k + 1 == o.desc.max_tokens()) {
        runs = false;
      } else if (k + 1 == checkpoint) {
        if (!o.desc.has(DOORBELL_FLAG_RESIDENT)) {
          o.outcome.status = DOORBELL_STATUS_REWARD_NEEDED;
          runs = false;
        } else if (engine::score(o.desc.reward_model_id(), DOORBELL_FAULT(ScoresAll) ? digest : since) <
                   static_cast<int32_t>(config.reward_threshold)) {
          o.outcome.flags |= DOORBELL_CFLAG_REJECTED;
          runs = false;
        } else {
          checkpoint += period;
          since = engine::Digest{};
        }
      }
    }
  }
}

// Decides how a lane's descriptor, whose check word has been verified or not, is to be executed. Without `kAnyEngine` of one that
// is plain alone.
template <bool kAnyEngine>
__device__ __forceinline__ void classify(Order& o, bool verified, uint32_t index, const Versions& versions,
                                         const doorbell_session& config, uint32_t engines) {
  // Without branches, as the lanes of a warp differ.
  const Version version(versions, o.desc.policy_version());
  const uint32_t error = verified ? error_of<kAnyEngine>(o.desc, version, config, engines) : DOORBELL_ERR_BAD_CHECK;
  const uint32_t opcode = o.desc.opcode();
  const bool good = o.live && error == DOORBELL_ERR_NONE;
  const bool decode = good && opcode == DOORBELL_OP_DECODE;
  // R20: what names a retired version ends before it starts.
  const bool retired = decode && version.state != DOORBELL_SLOT_RESIDENT, runs = decode && !retired;
  o.place = o.bound = 0;
  o.salt = version.salt;
  o.slot = version.slot;
  o.is_brief = runs && engine::is_brief(o.desc.model_id()) && o.desc.max_tokens() <= kBrief &&
               config.wait_states == 0;
  o.is_long = (runs && !o.is_brief) || (good && opcode == DOORBELL_OP_REWARD) ||
              (kAnyEngine && good && opcode == DOORBELL_OP_PREFILL && !engine::is_brief(o.desc.model_id()));
  o.is_stop = good && opcode == DOORBELL_OP_STOP;
  o.is_fence = good && o.desc.has(DOORBELL_FLAG_FENCE);
  // While a publish is about to happen, no descriptor is plain; nor is one that names another engine, or its version, on a device that has one.
  const bool ours = engines == 1 || (o.desc.model_id() | version.engine) == 0;
  o.is_plain = versions.settled() && ours &&
               (!good || (!o.is_long && !o.is_stop && opcode != DOORBELL_OP_POLICY &&
                          !o.desc.has(DOORBELL_FLAG_FENCE | DOORBELL_FLAG_COW_PREFIX | DOORBELL_FLAG_LOGP) &&
                          (opcode != DOORBELL_OP_PREFILL || o.desc.max_tokens() == 0)));
  o.outcome = ended(!good ? DOORBELL_STATUS_ERROR : o.is_stop ? DOORBELL_STATUS_STOPPED : DOORBELL_STATUS_DONE, error);
  if (UNLIKELY(retired)) {
    o.outcome.status =
        version.state == DOORBELL_SLOT_KEPT ? DOORBELL_STATUS_SUPERSEDED : DOORBELL_STATUS_STOPPED;
    o.outcome.result = DOORBELL_DIGEST_INIT;
  }
  if (UNLIKELY(o.live && !verified)) {
    // Nothing of the slot can be trusted.
    o.desc = Descriptor{};
    o.outcome.flags = DOORBELL_CFLAG_NO_ECHO;
    o.outcome.result = index;
  }
}

// Does all for a lane's descriptor that needs no order.
template <bool kAnyEngine>
__device__ __forceinline__ void prepare(Order& o, uint32_t index, const FrontEnd& f) {
  const doorbell_session& config = f.config;
  // Behind the slots: what the host wrote when it had seen a version finds it here.
  const Versions versions{order::load_halves_block(&f.versions.slots)};
  classify<kAnyEngine>(o, verifies(o.desc, f.key, index), index, versions, config, f.language.engines());
  if (__any_sync(kEveryLane, o.is_brief)) {
    const engine::Brief::Decoder decoder = begin_brief(o);
    run_brief(o, config, decoder, [&](uint32_t k) { return decoder.step(k); });
  }
}

// Which of two short DECODEs of one rollout writes first: how many below this lane are of its rollout. `rounds` is one
// more than the largest of the warp.
__device__ __forceinline__ void rank_briefs(Order& o, uint32_t briefs, uint32_t lane, uint32_t& rounds) {
  o.rank = 0;
  rounds = 1;
  if ((briefs & (briefs - 1)) == 0) return;
  if (briefs >> lane & 1) o.rank = __popc(__match_any_sync(briefs, o.desc.rollout_id()) & ((1u << lane) - 1));
  rounds = __reduce_max_sync(kEveryLane, o.rank) + 1;
}

}  // namespace front_end

#endif
