// Placeholder.
#include "doorbell_contract.h"
#include "memory.cuh"

extern "C" __global__ void doorbell_echo(uint32_t *flag, uint32_t *out, uint32_t count) {
  __shared__ uint32_t line[256];
  line[threadIdx.x] = ld_acquire_sys(flag);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    out[i] = line[(i + 1) % 256] * DOORBELL_GOLDEN;
  }
  if (threadIdx.x == 0) {
    st_release_sys(flag, 0);
  }
}

extern "C" __global__ void doorbell_copy(const uint64_t *from, uint64_t *to) {
  copy16_sys(from, to);
}
