// The names of kernels/language_memory.cuh for a CPU, in its place.
#ifndef DOORBELL_LANGUAGE_MEMORY_CUH
#define DOORBELL_LANGUAGE_MEMORY_CUH

#include <cstring>

#include "cuda.h"

namespace stream {

inline uint4 load(const char* from) {
  uint4 value{};
  if (cpu::is_of_device(from, sizeof value)) std::memcpy(&value, from, sizeof value);
  return value;
}

inline void prefetch(const char*, uint32_t) {}

inline void begins_to_read(const char* image) { cpu::begins_to_read(image); }
inline void ends_reading(const char* image) { cpu::ends_reading(image); }
inline void begins_to_load(const char* to, uint64_t bytes) { cpu::begins_to_load(to, bytes); }
inline void is_replaced(const char* image) { cpu::is_replaced(image); }
inline void lies(const char* from, uint64_t bytes) { cpu::is_of_device(from, bytes); }
inline void publish() {}
inline void subscribe() {}

// At once: whoever reads `to` before the wait and the barrier finds what no GPU promises.
inline void copy(void* to, const char* from) {
  if (cpu::is_of_device(from, 16)) std::memcpy(to, from, 16);
}

inline void copy_from_host(void* to, uint64_t from) { std::memcpy(to, reinterpret_cast<const void*>(from), 16); }
inline void close_group() {}
template <uint32_t>
inline void wait_for_groups() {}

constexpr bool kCopiesStretches = true;

inline void begin_arrivals(uint64_t*) {}

inline void order_stretches() {}

inline void copy_stretch(void* to, const char* from, uint32_t bytes, uint64_t*) {
  if (cpu::is_of_device(from, bytes)) std::memcpy(to, from, bytes);
}

inline void expect_stretch(uint32_t, uint64_t*) {}
inline void copy_part(void* to, const char* from, uint32_t bytes, uint64_t* at) { copy_stretch(to, from, bytes, at); }

// The lane that copies has done so: the others come behind it.
inline void wait_for_stretch(uint64_t*, uint32_t) { __syncwarp(); }

inline void wait_for_copies() {}

inline int32_t dot(uint32_t a, uint32_t b, int32_t sum) {
  for (uint32_t k = 0; k < 32; k += 8)
    sum += static_cast<int8_t>(a >> k) * static_cast<int8_t>(b >> k);
  return sum;
}

inline long long multiply_wide(int32_t a, int32_t b, long long sum) { return sum + static_cast<long long>(a) * b; }

// Of the warp's lanes, by warp and lane.
struct Fragments {
  uint32_t a[4], b[2];
};
template <typename Row>
inline void multiply_tile_of(int32_t (&sums)[4], const Fragments& own) {
  // The block's, which is a thread: each lane leaves its own, and nobody leaves before all have read.
  thread_local Fragments of[32][32];
  const uint32_t lane = threadIdx.x % 32;
  Fragments* const warp = of[threadIdx.x / 32];
  warp[lane] = own;
  __syncwarp();
  for (uint32_t k = 0; k < 4; k++) {
    const uint32_t row = lane / 4, column = 2 * (lane % 4) + k % 2;
    sums[k] = 0;
    for (uint32_t channel = 0; channel < 32; channel++) {
      const Fragments& rows = warp[4 * row + channel % 16 / 4];
      const Fragments& columns = warp[4 * column + channel % 16 / 4];
      const uint32_t by = channel % 4 * 8;
      sums[k] += static_cast<Row>(rows.a[2 * (channel / 16) + k / 2] >> by) * static_cast<int8_t>(columns.b[channel / 16] >> by);
    }
  }
  __syncwarp();
}
inline void multiply_tile(int32_t (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  multiply_tile_of<int8_t>(sums, Fragments{{a0, a1, a2, a3}, {b0, b1}});
}
inline void add_tile(int32_t (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  int32_t more[4];
  multiply_tile(more, a0, a1, a2, a3, b0, b1);
  for (uint32_t k = 0; k < 4; k++) sums[k] = static_cast<int32_t>(static_cast<uint32_t>(sums[k]) + static_cast<uint32_t>(more[k]));
}
inline void multiply_unsigned_tile(int32_t (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  multiply_tile_of<uint8_t>(sums, Fragments{{a0, a1, a2, a3}, {b0, b1}});
}

}  // namespace stream

#endif
