// What computes a DECODE, and what scores it: the seam between the kernel and its engines, as engine/src/lib.rs has it
// for the host. Nothing else in the kernel depends on an engine's internals.
//
// An engine is a type with `begin(rollout)`, which gives the state of a rollout at the length at which its descriptor
// stands, a `Decoder`:
//
//   Step step(uint32_t k)            makes the k-th token that the descriptor adds, from 0 on
//   uint32_t token(Step step) const  that token
//   uint32_t logp(Step step) const   its log-probability, Q16.16 with a sign
//   bool eos(Step step, uint32_t threshold) const
//                                    whether the sequence ends with it, with probability `threshold` / 32768
//
// Nothing of a decoder outlives a checkpoint: a descriptor that continues the rollout begins anew (R9).
//
// A worker, one warp, runs one rollout: every lane holds its decoder, and all call `step` together, lane i for the i-th
// token behind those that count. Then it is decided how many of the 32 count (budget, checkpoint, end of sequence).
// The others are discarded, and computed again by the next step if there is one.
#ifndef DOORBELL_ENGINE_CUH
#define DOORBELL_ENGINE_CUH

#include "doorbell_contract.h"

namespace engine {

// What an engine is told of a DECODE.
struct Rollout {
  uint32_t seed;
  uint32_t rollout_id;
  uint32_t seq_len;
  uint32_t salt;  // of the version of the policy
};

// What a decoder makes in a step: a word, so that one lane's takes one shuffle to another.
using Step = uint32_t;

// The digest of a descriptor's tokens, whatever the engine: `result` of a DECODE, and what reward models see.
struct Digest {
  uint32_t value = DOORBELL_DIGEST_INIT;

  __device__ __forceinline__ void push(uint32_t token) { value = (value ^ token) * DOORBELL_DIGEST_PRIME; }
};

// A range of reward model 1: its first token and its last.
struct alignas(8) Range {
  uint32_t first;
  uint32_t last;
};

// Tokens that lie in memory, as REWARD scores them: what a lane has of some of them, lane i the i-th of each 32.
constexpr uint32_t kScored = 8;
struct Tokens {
  uint32_t word[kScored];
};

// A reward model is a type with
//
//   void push(const Tokens& tokens, uint32_t count, lane)   takes the next `count` tokens of 32 * kScored, or the last of all
//   uint32_t score() const           the score of all that it took, Q16.16 with a sign, on every lane
//
// which all lanes of a warp call together. One that a RESIDENT descriptor may name also has `of(digest)`: the score of the
// tokens with this digest.

// Reward model 0: folds the digest.
class DigestScore {
 public:
  __device__ __forceinline__ explicit DigestScore(const Range*) {}

  static __device__ __forceinline__ uint32_t of(Digest digest) {
    return (digest.value >> 16) ^ (digest.value & 0xFFFFu);
  }

  __device__ __forceinline__ void push(const Tokens& tokens, uint32_t count, uint32_t) {
#pragma unroll
    for (uint32_t k = 0; k < kScored; k++) {
      for (uint32_t from = 0; from < 32 && 32 * k + from < count; from++)
        digest.push(__shfl_sync(0xFFFFFFFFu, tokens.word[k], from));
    }
  }

  __device__ __forceinline__ uint32_t score() const { return of(digest); }

 private:
  Digest digest;
};

// Reward model 1: counts the tokens that lie in a range.
class RangeScore {
 public:
  __device__ __forceinline__ explicit RangeScore(const Range* from) : ranges(from) {}

  __device__ __forceinline__ void push(const Tokens& tokens, uint32_t count, uint32_t lane) {
    uint32_t within = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < DOORBELL_RANGES; k++) {
      const Range range = ranges[k];
#pragma unroll
      for (uint32_t word = 0; word < kScored; word++)
        within |= static_cast<uint32_t>(range.first <= tokens.word[word] && tokens.word[word] <= range.last) << word;
    }
#pragma unroll
    for (uint32_t word = 0; word < kScored; word++) inside += within >> word & (32 * word + lane < count ? 1 : 0);
  }

  __device__ __forceinline__ uint32_t score() const {
    const uint32_t all = __reduce_add_sync(0xFFFFFFFFu, inside);
    return all > 0x7FFFu ? 0x7FFFFFFFu : all << 16;
  }

 private:
  const Range* ranges;
  uint32_t inside = 0;  // of this lane's
};

// A type, as a value.
template <typename T>
struct Chosen {
  using Type = T;
};

// Types by id, which is the place: what the compiler makes a chain of comparisons, and of one type nothing at all.
template <typename First, typename... Others>
struct Table {
  static constexpr uint32_t kCount = 1 + sizeof...(Others);

  static __device__ __forceinline__ constexpr bool has(uint32_t id) { return id < kCount; }

  // What `body` gives for the type with this id, which the table has: it is called with a `Chosen` of the type.
  template <typename Body>
  static __device__ __forceinline__ constexpr auto with(uint32_t id, Body body) {
    if constexpr (kCount > 1) {
      if (id != 0) return Table<Others...>::with(id - 1, body);
    }
    return body(Chosen<First>{});
  }
};

}  // namespace engine

#include "engine_hash.cuh"

namespace engine {

// By `model_id`, the engines of which a warp runs a rollout. Engine 1 (language_worker.cuh) takes a block for each.
using WarpEngines = Table<Hash>;
// By `reward_model_id`: what is not in them is BAD_MODEL.
using RewardModels = Table<DigestScore, RangeScore>;
// Those that score by a digest, which a RESIDENT descriptor may name.
using DigestModels = Table<DigestScore>;

// The engine whose short DECODEs run in the front end, where each lane of a warp may run a rollout of its own: its
// steps depend on nothing but the rollout and `k`, need no other lane and no memory, and cost a few instructions. Those
// of other engines are for the workers.
using Brief = Hash;
constexpr uint32_t kBriefModel = 0;

// Whether `model_id` is that engine.
__device__ __forceinline__ constexpr bool is_brief(uint32_t model_id) { return model_id == kBriefModel; }
constexpr uint32_t kLanguageModel = 1;

// The score of the tokens with this digest, Q16.16 with a sign. The table has `reward_model_id`.
__device__ __forceinline__ int32_t score(uint32_t reward_model_id, Digest digest) {
  return DigestModels::with(reward_model_id,
                            [&](auto model) { return static_cast<int32_t>(decltype(model)::Type::of(digest)); });
}

}  // namespace engine

#endif
