// The persistent kernel: the first blocks of the grid are front ends, one per queue pair, and the warps of the others
// are workers, which take rollouts of engine 0 of every queue; with engine 1 the last blocks run rollouts of it, a block each.
#include "front_end.cuh"
#include "language_probes.cuh"
#include "language_worker.cuh"
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

// With engine 1. A kernel of its own: what that needs of registers is not taken from the first.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 1)
doorbell_language(DeviceState* state, doorbell_mailbox* mailboxes, uint32_t queues, char* models, uint64_t model_bytes,
                  char* caches, uint64_t cache_bytes, uint32_t language_blocks) {
  extern __shared__ FrontEnd front_end_memory[];
  __shared__ language::Job job;
  const Launch launch{state, mailboxes, queues,
                      LanguageMemory{models, model_bytes, caches, cache_bytes, language_blocks}};
  const uint32_t workers = gridDim.x - queues - language_blocks;
  if (blockIdx.x < queues) {
    if (front_end::block<true>(front_end_memory[0], launch, blockIdx.x)) {
      worker::dismiss(state->work[kForWarps], workers * kBlockWarps);
      worker::dismiss(state->work[kForBlocks], language_blocks);
    }
  } else if (blockIdx.x < queues + workers) {
    const uint32_t worker_id = (blockIdx.x - queues) * kBlockWarps + threadIdx.x / kWarp;
    worker::role(*state, worker_id, threadIdx.x % kWarp);
  } else {
    const uint32_t number = blockIdx.x - queues - workers;
    language::work(job, launch, number, workers * kBlockWarps + number);
  }
}

// What the host has to provide: bytes of DeviceState and of the shared memory of a front end and of a block of engine 1, and
// threads of a block.
extern "C" __global__ void doorbell_sizes(uint32_t* to) {
  to[0] = sizeof(DeviceState);
  to[1] = sizeof(FrontEnd);
  to[2] = language::kMostShared;
  to[3] = kBlockThreads;
}
