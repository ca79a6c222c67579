// Engine 1 without queues: blocks that each take a prompt and go on alone, and the floor beneath them.
#ifndef DOORBELL_LANGUAGE_PROBES_CUH
#define DOORBELL_LANGUAGE_PROBES_CUH

#include "language.cuh"

// What `probe_language` is told, in memory that the device reads.
struct LanguageProbe {
  const char* image;
  char* caches;           // `cache_bytes` for each block
  char* stored;           // likewise, in host memory; or null
  const uint32_t* prompt; // the same for each block
  language::Sampled* sampled;  // `steps` for each block
  uint64_t cache_bytes;
  uint32_t length, steps;
  uint32_t sharpness, seed, rollout;  // of the first block; the others' count on
  uint32_t fits;          // out: 0 if the shape does not
};

// A rollout of `steps` tokens behind a prompt of `length` for each block.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 1) probe_language(LanguageProbe* probe) {
  const LanguageProbe with = *probe;
  const language::Shape shape = language::Shape::read(with.image);
  if (!language::fits(shape)) {
    if (threadIdx.x == 0) probe->fits = 0;
    return;
  }
  const language::Cache cache{with.caches + with.cache_bytes * blockIdx.x};
  const language::Sampling sampling{with.sharpness, with.seed, with.rollout + blockIdx.x};
  language::Block::begin(with.image);
  uint32_t token = with.prompt[0];
  for (uint32_t position = 0; position + 1 < with.length + with.steps; position++) {
    char* const stored =
        with.stored == nullptr ? nullptr : with.stored + with.cache_bytes * blockIdx.x + shape.kv_block() * (position / language::kBlock);
    const bool samples = position + 1 >= with.length;
    const language::Sampled next = language::Block::step(cache, stored, token, position, samples, sampling);
    if (samples) {
      token = next.token;
      if (threadIdx.x == 0) with.sampled[static_cast<uint64_t>(with.steps) * blockIdx.x + position + 1 - with.length] = next;
    } else {
      token = with.prompt[position + 1];
    }
  }
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
