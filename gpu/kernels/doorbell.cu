// The persistent kernel: the first blocks of the grid are front ends, one per queue pair, and the warps of the others
// are workers, which take rollouts of engine 0 of every queue; with engine 1 the last blocks run rollouts of it.
#include "front_end/block.cuh"
#include "language_probes.cuh"
#include "language_lead.cuh"
#include "probes.cuh"
#include "worker.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads, 1)
doorbell_persistent(DeviceState* state, doorbell_mailbox* mailboxes, uint32_t queues) {
  extern __shared__ FrontEnd front_end_memory[];
  const Launch launch{state, mailboxes, queues, LanguageMemory{}};
  if (blockIdx.x < queues) {
    if (front_end::block<false>(front_end_memory[0], launch, blockIdx.x))
      worker::dismiss(state->work[kForWarps], (gridDim.x - queues) * kBlockWarps);
  } else {
    const uint32_t worker_id = (blockIdx.x - queues) * kBlockWarps + threadIdx.x / kWarp;
    worker::role(*state, worker_id, threadIdx.x % kWarp);
  }
}

// With engine 1, of which teams run rollouts.
template <typename Team>
__device__ __forceinline__ void run_with_language(const Launch& launch, FrontEnd& front_end) {
  __shared__ language::Jobs<Team> jobs;
  const uint32_t queues = launch.queues, language_blocks = launch.language.blocks;
  DeviceState* const state = launch.state;
  const uint32_t workers = gridDim.x - queues - language_blocks;
  if (blockIdx.x < queues) {
    if (front_end::block<true>(front_end, launch, blockIdx.x)) {
      worker::dismiss(state->work[kForWarps], workers * kBlockWarps);
      worker::dismiss(state->work[kForBlocks], language_blocks * Team::kTeams);
    }
  } else if (blockIdx.x < queues + workers) {
    const uint32_t worker_id = (blockIdx.x - queues) * kBlockWarps + threadIdx.x / kWarp;
    worker::role(*state, worker_id, threadIdx.x % kWarp);
  } else {
    language::work<Team>(jobs, launch, blockIdx.x - queues - workers, workers * kBlockWarps);
  }
}

// Kernels of their own: what they need of registers is not taken from the first. In one the blocks of a team take steps of several rollouts, in the other, for small
// models, a warp runs a rollout.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 1)
doorbell_language(DeviceState* state, doorbell_mailbox* mailboxes, uint32_t queues, char* models, uint64_t model_bytes,
                  char* caches, uint64_t cache_bytes, uint32_t language_blocks, uint32_t language_teams, uint32_t columns, char* benches,
                  uint64_t bench_bytes, char* pages, uint64_t page_set_bytes, uint32_t page_sets) {
  extern __shared__ FrontEnd front_end_memory[];
  const Launch launch{state, mailboxes, queues,
                      LanguageMemory{models, model_bytes, caches, cache_bytes, language_blocks, language_teams, columns, benches, bench_bytes, pages,
                                     page_set_bytes, page_sets}};
  run_with_language<language::Whole>(launch, front_end_memory[0]);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, 1)
doorbell_language_small(DeviceState* state, doorbell_mailbox* mailboxes, uint32_t queues, char* models, uint64_t model_bytes,
                        char* caches, uint64_t cache_bytes, uint32_t language_blocks, uint32_t language_teams, uint32_t columns, char* benches,
                        uint64_t bench_bytes, char* pages, uint64_t page_set_bytes, uint32_t page_sets) {
  extern __shared__ FrontEnd front_end_memory[];
  const Launch launch{state, mailboxes, queues,
                      LanguageMemory{models, model_bytes, caches, cache_bytes, language_blocks, 0, 0, nullptr, 0, nullptr, 0, 0}};
  run_with_language<language::Single>(launch, front_end_memory[0]);
}

// What the host has to provide: bytes of DeviceState and of the shared memory of a front end and of a block of engine 1,
// threads of a block, and how many of them run a small model's rollout; bytes of the state of a team of blocks, and of what is known of a set of pages.
extern "C" __global__ void doorbell_sizes(uint32_t* to) {
  to[0] = sizeof(DeviceState);
  to[1] = sizeof(FrontEnd);
  to[2] = language::kBlockShared;
  to[3] = kBlockThreads;
  to[4] = language::Single::kThreads;
  to[5] = language::kBenchState;
  to[6] = sizeof(language::PageSet);
}
