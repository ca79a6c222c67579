// Stores the keys of one head, for the positions of a PREFILL, as mantissas of 8 bits and a scale for each position.
//
// A warp of 32 lanes does it; lane l has channel l of every position. `warp.h` stands for CUDA where the text is compiled for the CPU:
// it has __shfl_xor_sync, __shfl_sync, __reduce_max_sync and __syncwarp.

constexpr uint32_t kWidth = 32;         // channels of a head
constexpr uint32_t kAll = ~0u;          // all lanes take part

__device__ __forceinline__ uint32_t magnitude(int32_t value) {
  return value < 0 ? 0u - static_cast<uint32_t>(value) : static_cast<uint32_t>(value);
}

// numerator / denominator, halves rounded up; the denominator is positive.
__device__ __forceinline__ int32_t round_divide(int32_t numerator, int32_t denominator) {
  const int32_t twice = 2 * numerator + denominator, by = 2 * denominator;
  const int32_t quotient = twice / by;
  return quotient - (quotient * by > twice);
}

// The largest of what the lanes bring, in all of them.
__device__ __forceinline__ uint32_t largest_of(uint32_t value) {
  for (uint32_t bits = 16; bits > 0; bits /= 2) value = max(value, __shfl_xor_sync(kAll, value, bits));
  return value;
}

// `heads` has `count` positions of kWidth channels. Position p gets scales[p] and the mantissas from p * kWidth on.
__device__ void store(const int32_t* heads, uint32_t count, uint16_t* scales, int8_t* mantissas, uint32_t lane) {
  // One reduction, and not one for each position: a shuffle takes 20 cycles.
  uint32_t largest = 0;
  for (uint32_t p = 0; p < count; p++) largest = max(largest, magnitude(heads[p * kWidth + lane]));
  largest = largest_of(largest);
  const uint32_t scale = max(1u, (16 * largest + 126) / 127);

  for (uint32_t p = 0; p < count; p++) {
    const int32_t value = heads[p * kWidth + lane];
    mantissas[p * kWidth + lane] = static_cast<int8_t>(round_divide(16 * value, static_cast<int32_t>(scale)));
    if (lane == 0) scales[p] = static_cast<uint16_t>(scale);
  }
}
