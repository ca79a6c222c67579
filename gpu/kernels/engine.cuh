// What runs behind DECODE, and what scores it: the seam between the kernel and its engines, as engine/src/lib.rs has it
// for the host. Nothing else in the kernel knows an engine's inside.
//
// An engine is a type with `begin(rollout)`, which gives the state of a rollout at the length at which its descriptor
// stands, a `Decoder`:
//
//   Step step(uint32_t k)            makes the k-th token that the descriptor adds, from 0 on
//   uint32_t token(Step step) const  that token
//   bool eos(Step step, uint32_t threshold) const
//                                    whether the sequence ends with it, with probability `threshold` / 32768
//
// Nothing of a decoder outlives a checkpoint: a descriptor that continues the rollout begins anew (R9).
//
// A worker, one warp, runs one rollout: every lane holds its decoder, and all call `step` together, lane i for the i-th
// token behind those that count. How many of the 32 count is decided then (budget, checkpoint, end of sequence); the
// others are thrown away, and made again by the next step if there is one.
#ifndef DOORBELL_ENGINE_CUH
#define DOORBELL_ENGINE_CUH

#include "doorbell_contract.h"

namespace engine {

// What an engine is told of a DECODE.
struct Rollout {
  uint32_t seed;
  uint32_t rollout_id;
  uint32_t seq_len;
};

// What a decoder makes in a step: a word, so that one lane's takes one shuffle to another.
using Step = uint32_t;

// The digest of a descriptor's tokens, whatever the engine: `result` of a DECODE, and what reward models see.
struct Digest {
  uint32_t value = DOORBELL_DIGEST_INIT;

  __device__ __forceinline__ void push(uint32_t token) { value = (value ^ token) * DOORBELL_DIGEST_PRIME; }
};

// Reward model 0: folds the digest.
struct DigestScore {
  static __device__ __forceinline__ uint32_t score(Digest digest) {
    return (digest.value >> 16) ^ (digest.value & 0xFFFFu);
  }
};

// Types by id, which is the place: what the compiler makes a chain of comparisons, and of one type nothing at all.
template <typename First, typename... Others>
struct Table {
  static constexpr uint32_t kCount = 1 + sizeof...(Others);

  static __device__ __forceinline__ constexpr bool has(uint32_t id) { return id < kCount; }

  // What `body` gives for the type with this id, which the table has.
  template <typename Body>
  static __device__ __forceinline__ constexpr auto with(uint32_t id, Body body) {
    if constexpr (kCount > 1) {
      if (id != 0) return Table<Others...>::with(id - 1, body);
    }
    return body(First{});
  }
};

}  // namespace engine

#include "engine_hash.cuh"

namespace engine {

// By `model_id` and `reward_model_id`: what is not in them is BAD_MODEL.
using Engines = Table<Hash>;
using RewardModels = Table<DigestScore>;

// The engine whose short DECODEs run in the front end, where each lane of a warp may run a rollout of its own: its
// steps depend on nothing but the rollout and `k`, need no other lane and no memory, and cost a few instructions. Those
// of other engines are for the workers.
using Brief = Hash;
constexpr uint32_t kBriefModel = 0;

// Whether `model_id`, which the table has, is that engine.
__device__ __forceinline__ constexpr bool is_brief(uint32_t model_id) {
  return Engines::kCount == 1 || model_id == kBriefModel;
}

// The score of the tokens with this digest, Q16.16. The table has `reward_model_id`.
__device__ __forceinline__ uint32_t score(uint32_t reward_model_id, Digest digest) {
  return RewardModels::with(reward_model_id, [&](auto model) { return model.score(digest); });
}

}  // namespace engine

#endif
