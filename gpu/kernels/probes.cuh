// Rivals and floors of the benches: what the bus, a bare ring and a launch cost without Doorbell.
#ifndef DOORBELL_PROBES_CUH
#define DOORBELL_PROBES_CUH

#include "descriptor.cuh"
#include "device_state.cuh"
#include "nic_ring.cuh"

// A flag from the host, and one back: the floor of any round trip.
extern "C" __global__ void probe_ping_pong(const uint32_t* from_host, uint32_t* to_host, uint32_t rounds) {
  for (uint32_t round = 1; round <= rounds; round++) {
    while (order::load_relaxed_sys(from_host) != round) {
    }
    order::store_relaxed_sys(to_host, round);
  }
}

// The transport of queue pairs without dispatch and without rules: a block per queue, each warp takes every n-th run of
// 32 slots, polls them, four lanes each, and answers each as soon as it verifies with a completion that says nothing. Their
// key is 0. `queue_bytes` apart lie the queues, each `depth` slots of descriptors, then as many completions.
extern "C" __global__ void __launch_bounds__(256, 1)
probe_transport(char* memory, uint64_t queue_bytes, uint32_t depth, uint32_t total) {
  char* const queue = memory + queue_bytes * blockIdx.x;
  const uint32_t warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  const uint32_t word = lane % 4 * 4;
  const uint4 key = make_uint4(key_word(0, word), key_word(0, word + 1), key_word(0, word + 2), key_word(0, word + 3));
  for (uint32_t first = threadIdx.x / kWarp * kWarp; first < total; first += warps * kWarp) {
    // A bit for each eight slots, of which every four lanes have one.
    uint32_t left = 0xF;
    while (__any_sync(kEveryLane, left != 0)) {
      uint4 part[4];
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {
        const uint32_t index = first + 8 * k + lane / 4;
        if (left >> k & 1)
          part[k] =
              order::load_relaxed_sys(reinterpret_cast<const uint4*>(queue + 64ull * (index & (depth - 1))) + lane % 4);
      }
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {
        const uint32_t index = first + 8 * k + lane / 4;
        uint64_t shares = left >> k & 1 ? check_share(part[k], key, lane % 4) : 0;
        shares += __shfl_xor_sync(kEveryLane, shares, 1);
        shares += __shfl_xor_sync(kEveryLane, shares, 2);
        // The fourth lane has the check word.
        const bool verified = lane % 4 == 3 && (left >> k & 1) != 0 && check_word(shares, index) == part[k].w;
        if (__shfl_sync(kEveryLane, verified, lane | 3)) {
          left &= ~(1u << k);
          ulonglong2* const to =
              reinterpret_cast<ulonglong2*>(queue + 64ull * depth + 32ull * (index & (depth - 1))) + lane % 4;
          if (lane % 4 < 2) order::store_relaxed_sys(to, make_ulonglong2(index, phase_of(index, depth)));
        }
      }
    }
  }
}

// One token by one launch: what a host does that steps each token.
extern "C" __global__ void probe_token(uint32_t* to, uint32_t seed, uint32_t rollout_id, uint32_t position) {
  const auto decoder = engine::Brief::begin(engine::Rollout{seed, rollout_id, position});
  order::store_relaxed_sys(to, decoder.token(decoder.step(0)));
}

// Finishers of rollouts that post into a send ring of the modelled NIC. Each warp is one, and its first lane posts. It ends: no wait of it is without a bound.
extern "C" __global__ void probe_nic(char* memory, nic::Shared* shared, uint32_t slots, uint32_t key, char* region, uint32_t each, uint64_t looks,
                                    uint32_t* outcomes) {
  if (threadIdx.x % kWarp != 0) return;
  const uint32_t finisher = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  const nic::Ring ring{memory, shared, slots, key};
  order::store_relaxed_sys(outcomes + finisher, nic::finish(ring, region, finisher, each, looks));
}

#endif
