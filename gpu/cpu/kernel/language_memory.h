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

constexpr bool kCopiesStretches = true;

inline void begin_arrivals(uint64_t*) {}

inline void order_stretches() {}

inline void copy_stretch(void* to, const char* from, uint32_t bytes, uint64_t*) {
  if (cpu::is_of_device(from, bytes)) std::memcpy(to, from, bytes);
}

// The lane that copies has done so: the others come behind it.
inline void wait_for_stretch(uint64_t*, uint32_t) { __syncwarp(); }

inline void wait_for_copies() {}

inline int32_t dot(uint32_t a, uint32_t b, int32_t sum) {
  for (uint32_t k = 0; k < 32; k += 8)
    sum += static_cast<int8_t>(a >> k) * static_cast<int8_t>(b >> k);
  return sum;
}

}  // namespace stream

#endif
