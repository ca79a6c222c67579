// The part of CUDA's language that the kernel's text uses, on cpu::.
#ifndef DOORBELL_CPU_CUDA_H
#define DOORBELL_CPU_CUDA_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "runtime.h"

using std::max;
using std::min;

#define __device__
#define __global__
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))

#define threadIdx cpu::thread_index
#define blockIdx cpu::block_index
#define blockDim cpu::block_size
#define gridDim cpu::grid_size

struct alignas(8) uint2 {
  uint32_t x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return uint2{x, y}; }
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return uint4{x, y, z, w}; }

struct alignas(16) ulonglong2 {
  uint64_t x, y;
};
struct alignas(8) int2 {
  int32_t x, y;
};
inline int2 make_int2(int32_t x, int32_t y) { return int2{x, y}; }
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(8) short4 {
  short x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};
inline ulonglong2 make_ulonglong2(uint64_t x, uint64_t y) { return ulonglong2{x, y}; }

inline uint32_t __popc(uint32_t x) { return __builtin_popcount(x); }
inline uint32_t __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t which) {
  const uint64_t all = static_cast<uint64_t>(high) << 32 | low;
  uint32_t bytes = 0;
  for (uint32_t k = 0; k < 4; k++) bytes |= static_cast<uint32_t>(all >> 8 * (which >> 4 * k & 7) & 0xFF) << 8 * k;
  return bytes;
}
inline uint32_t __clz(uint32_t x) { return x == 0 ? 32 : __builtin_clz(x); }
inline uint32_t __clzll(uint64_t x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) {
  by %= 32;
  return by == 0 ? high : high << by | low >> (32 - by);
}

// Of these, __syncwarp alone orders memory.
inline void __syncwarp() { cpu::meet(cpu::Meeting::kSync, 0xFFFFFFFFu, 0, 0); }
template <typename T>
T __shfl_sync(uint32_t mask, T value, uint32_t lane) {
  return static_cast<T>(cpu::meet(cpu::Meeting::kShuffle, mask, static_cast<uint64_t>(value), lane));
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, uint32_t by) {
  return static_cast<T>(cpu::meet(cpu::Meeting::kShuffleXor, mask, static_cast<uint64_t>(value), by));
}
inline uint32_t __ballot_sync(uint32_t mask, bool vote) { return cpu::meet(cpu::Meeting::kBallot, mask, vote, 0); }
inline bool __any_sync(uint32_t mask, bool vote) { return cpu::meet(cpu::Meeting::kAny, mask, vote, 0) != 0; }
inline bool __all_sync(uint32_t mask, bool vote) { return cpu::meet(cpu::Meeting::kAll, mask, vote, 0) != 0; }
inline uint32_t __match_any_sync(uint32_t mask, uint32_t value) {
  return cpu::meet(cpu::Meeting::kMatch, mask, value, 0);
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) { return cpu::meet(cpu::Meeting::kMax, mask, value, 0); }
inline int32_t __reduce_max_sync(uint32_t mask, int32_t value) {
  constexpr uint32_t kSign = 1u << 31;
  return static_cast<int32_t>(__reduce_max_sync(mask, static_cast<uint32_t>(value) ^ kSign) ^ kSign);
}
inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value) { return cpu::meet(cpu::Meeting::kOr, mask, value, 0); }
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) { return cpu::meet(cpu::Meeting::kAdd, mask, value, 0); }
inline void __syncthreads() { cpu::meet_block(); }

inline void __nanosleep(uint32_t) { cpu::yields(); }
inline long long clock64() { return cpu::cycles(); }

#endif
