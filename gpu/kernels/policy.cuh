// Engine 0, the hash policy, and what ends a DECODE (docs/contract.md, "Engine 0" and "What ends a DECODE").
#ifndef DOORBELL_POLICY_CUH
#define DOORBELL_POLICY_CUH

#include "doorbell_contract.h"

namespace policy {

__device__ __forceinline__ uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= DOORBELL_MIX_MUL_1;
  x ^= x >> 15;
  x *= DOORBELL_MIX_MUL_2;
  return x ^ (x >> 16);
}

// Base of a rollout's stream.
__device__ __forceinline__ uint32_t stream(uint32_t seed, uint32_t rollout_id) {
  return mix(seed ^ mix(rollout_id + DOORBELL_GOLDEN));
}

__device__ __forceinline__ uint32_t draw(uint32_t stream, uint32_t position) {
  return mix(stream + position * DOORBELL_GOLDEN);
}

__device__ __forceinline__ uint32_t token_of(uint32_t draw) { return draw & ((1u << DOORBELL_VOCAB_BITS) - 1); }

__device__ __forceinline__ bool is_eos(uint32_t draw, uint32_t threshold) {
  return (draw >> DOORBELL_VOCAB_BITS) < threshold;
}

__device__ __forceinline__ uint32_t fold(uint32_t digest, uint32_t token) {
  return (digest ^ token) * DOORBELL_DIGEST_PRIME;
}

__device__ __forceinline__ uint32_t score(uint32_t digest) { return (digest >> 16) ^ (digest & 0xFFFFu); }

// Tokens between checkpoints. "Never" needs no case of its own: a budget of as many tokens ends first.
__device__ __forceinline__ uint32_t period(uint32_t checkpoint, uint32_t checkpoint_default) {
  const uint32_t chosen = checkpoint == 0 ? checkpoint_default : checkpoint;
  return chosen == 0 ? DOORBELL_CHECKPOINT_NEVER : chosen;
}

}  // namespace policy

#endif
