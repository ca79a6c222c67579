// The names of kernels/language_memory.cuh for a CPU, in its place.
#ifndef DOORBELL_LANGUAGE_MEMORY_CUH
#define DOORBELL_LANGUAGE_MEMORY_CUH

#include <cstring>

#include "cuda.h"

namespace stream {

inline uint4 load(const char* from) {
  uint4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void prefetch(const char*, uint32_t) {}

// At once: whoever reads `to` before the wait and the barrier finds what no GPU promises.
inline void copy(void* to, const char* from) { std::memcpy(to, from, 16); }

inline void wait_for_copies() {}

inline int32_t dot(uint32_t a, uint32_t b, int32_t sum) {
  for (uint32_t k = 0; k < 32; k += 8)
    sum += static_cast<int8_t>(a >> k) * static_cast<int8_t>(b >> k);
  return sum;
}

}  // namespace stream

#endif
