// Engine 1 without queues: teams that each take a prompt and go on alone, and the floor beneath them.
#ifndef DOORBELL_LANGUAGE_PROBES_CUH
#define DOORBELL_LANGUAGE_PROBES_CUH

#include "language.cuh"

// What `probe_language` is told, in memory that the device reads.
struct LanguageProbe {
  const char* image;
  char* caches;           // `cache_bytes` for each rollout
  char* stored;           // likewise, in host memory; or null
  const uint32_t* prompt; // the same for each rollout
  language::Sampled* sampled;  // `steps` for each rollout
  char* scratch;          // `scratch_bytes` for each rollout; or null: then the prompt goes step by step
  uint64_t cache_bytes, scratch_bytes;
  uint32_t length, steps;
  uint32_t sharpness, seed, rollout;  // of the first; the others' count on
  uint32_t rollouts;      // a team each
  uint32_t teams;         // of a block, as LanguageMemory has them
  uint32_t fits;          // out: 0 if the shape does not
};
// `LanguageArguments` of gpu/src/probes/language.rs asserts the same.
static_assert(sizeof(LanguageProbe) == 96, "the layout of the host");

namespace language {

// A rollout of `steps` tokens behind a prompt of `length` for each team.
template <typename Team>
__device__ __forceinline__ void run_probe(LanguageProbe* probe) {
  if (!fits<Team>(Shape::read(probe->image))) {
    if (threadIdx.x == 0) probe->fits = 0;
    return;
  }
  Block<Team>::open();
  // Spread over all blocks.
  const uint32_t number = Team::number() * gridDim.x + blockIdx.x;
  if (number >= probe->rollouts) return;
  Block<Team>::begin(probe->image);
  Block<Team>::fall_in();
  uint32_t token = probe->prompt[0];
  const uint64_t cache = probe->cache_bytes * number, kv_block = Shape::read(probe->image).kv_block();
  uint32_t begin = 0;
  if constexpr (Team::kTeams == 1) {
    if (probe->scratch != nullptr && Block<Team>::scratch() != 0 && Block<Team>::scratch() <= probe->scratch_bytes) {
      const uint32_t most = ChunkLayout::most_of<Team>(Shape::read(probe->image));
      // All but the last token of the prompt.
      while (begin + 1 < probe->length) {
        const uint32_t count = min(probe->length - 1 - begin, most - begin % most);
        const uint64_t block = cache + kv_block * (begin / kBlock);
        const Chunk chunk{probe->caches + block, probe->stored == nullptr ? nullptr : probe->stored + block,
                          probe->scratch + probe->scratch_bytes * number, begin, count};
        Block<Team>::prefill(chunk, probe->caches + cache, [&](uint32_t k) { return probe->prompt[begin + k]; }, [] {
          Team::sync();
          return false;
        });
        begin += count;
      }
      token = probe->prompt[begin];
    }
  }
#pragma unroll 1
  for (uint32_t position = begin; position + 1 < probe->length + probe->steps; position++) {
    char* stored = nullptr;
    if (probe->stored != nullptr) stored = probe->stored + cache + kv_block * (position / kBlock);
    const Sampled next = Block<Team>::step(Cache{probe->caches + cache, nullptr}, stored, token, position, position + 1 >= probe->length,
                                           Sampling{probe->sharpness, probe->seed, probe->rollout + number, 0, 0, 0, kNoToken});
    if (position + 1 >= probe->length) {
      token = next.token;
      if (Team::thread() == 0) probe->sampled[static_cast<uint64_t>(probe->steps) * number + position + 1 - probe->length] = next;
    } else {
      token = probe->prompt[position + 1];
    }
  }
  Block<Team>::fall_out();
}

}  // namespace language

extern "C" __global__ void __launch_bounds__(kBlockThreads, 1) probe_language(LanguageProbe* probe) {
  language::run_probe<language::Whole>(probe);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, 1) probe_language_small(LanguageProbe* probe) {
  language::run_probe<language::Single>(probe);
}

// Reads what lies between two addresses, `times` over, as the steps read weights, and does nothing else with it: 64 bytes a thread at a time.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 1)
probe_weights(const char* from, uint64_t bytes, uint32_t times, uint32_t* to) {
  uint32_t seen = 0;
  for (uint32_t k = 0; k < times; k++) {
    constexpr uint32_t kLoads = 8;
    for (uint64_t at = 16ull * threadIdx.x; at < bytes; at += 16ull * kBlockThreads * kLoads) {
      uint4 words[kLoads];
#pragma unroll
      for (uint32_t j = 0; j < kLoads; j++) {
        const uint64_t place = at + 16ull * kBlockThreads * j;
        words[j] = stream::load(from + (place < bytes ? place : at));
      }
#pragma unroll
      for (uint32_t j = 0; j < kLoads; j++) seen ^= words[j].x ^ words[j].y ^ words[j].z ^ words[j].w;
    }
  }
  // Never so: what is read has to be of use to somebody.
  if (seen == 0x9E3779B9 && threadIdx.x > kBlockThreads) *to = seen;
}

#endif
