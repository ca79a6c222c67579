// A warp on the CPU: 32 lanes, each with a stack of its own, that meet where all of them do in CUDA.
#ifndef DOORBELL_PUZZLES_WARP_H
#define DOORBELL_PUZZLES_WARP_H

#include <stdint.h>

#define __device__
#define __forceinline__ inline

template <typename T>
T max(T one, T other) {
  return one < other ? other : one;
}
template <typename T>
T min(T one, T other) {
  return other < one ? other : one;
}

// All 32 lanes take part in each: `mask` has all bits.
uint32_t __shfl_xor_sync(uint32_t mask, uint32_t value, uint32_t bits);
uint32_t __shfl_sync(uint32_t mask, uint32_t value, uint32_t from);
uint32_t __reduce_max_sync(uint32_t mask, uint32_t value);
void __syncwarp(uint32_t mask = ~0u);

namespace warp {

// Runs `text`, which gets the number of the lane, in all lanes to their end.
void run(void (*text)(uint32_t lane));

}  // namespace warp

#endif
