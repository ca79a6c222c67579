// Engine 0, the hash policy (docs/contract.md, "Engine 0"). For engine.cuh alone, which says what its parts are for.
#ifndef DOORBELL_ENGINE_HASH_CUH
#define DOORBELL_ENGINE_HASH_CUH

#include "mix.cuh"

namespace engine {

struct Hash {
  class Decoder {
   public:
    __device__ __forceinline__ explicit Decoder(const Rollout& rollout)
        : stream(mix((rollout.seed ^ mix(rollout.rollout_id + DOORBELL_GOLDEN)) + rollout.salt)),
          position(rollout.seq_len) {}

    // What the policy draws: the token, and above it what decides on the end of the sequence.
    __device__ __forceinline__ Step step(uint32_t k) const { return mix(stream + (position + k) * DOORBELL_GOLDEN); }

    static __device__ __forceinline__ uint32_t token(Step step) { return step & ((1u << DOORBELL_VOCAB_BITS) - 1); }

    static __device__ __forceinline__ uint32_t logp(Step step) { return 0u - (step >> 12); }

    __device__ __forceinline__ bool eos(Step step, uint32_t threshold) const {
      return step >> DOORBELL_VOCAB_BITS < threshold;
    }

   private:
    uint32_t stream;  // its base
    uint32_t position;
  };

  static __device__ __forceinline__ Decoder begin(const Rollout& rollout) { return Decoder(rollout); }
};

}  // namespace engine

#endif
