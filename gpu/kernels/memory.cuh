// Placeholder.
#pragma once
#include "doorbell_contract.h"

__device__ inline uint32_t ld_acquire_sys(const uint32_t *p) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ inline void st_release_sys(uint32_t *p, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ inline void copy16_sys(const uint64_t *from, uint64_t *to) {
  asm volatile("{ .reg .b128 q; ld.relaxed.sys.global.b128 q, [%0]; st.relaxed.sys.global.b128 [%1], q; }"
               ::"l"(from), "l"(to) : "memory");
}
