// A bijection of words with good avalanche: lowbias32 of C. Wellons' hash prospector.
#ifndef DOORBELL_MIX_CUH
#define DOORBELL_MIX_CUH

#include "doorbell_contract.h"

__device__ __forceinline__ uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= DOORBELL_MIX_MUL_1;
  x ^= x >> 15;
  x *= DOORBELL_MIX_MUL_2;
  return x ^ (x >> 16);
}

#endif
