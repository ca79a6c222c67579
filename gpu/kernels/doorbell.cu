// The persistent kernel: the first blocks of the grid are front ends, one per queue pair, and the warps of the others
// are workers, which take rollouts of every queue.
#include "front_end.cuh"
#include "language_probes.cuh"
#include "probes.cuh"
#include "worker.cuh"

extern "C" __global__ void __launch_bounds__(kBlockThreads, 1)
doorbell_persistent(DeviceState* state, doorbell_mailbox* mailboxes, uint32_t queues) {
  extern __shared__ FrontEnd front_end_memory[];
  const Launch launch{state, mailboxes, queues};
  if (blockIdx.x < queues) {
    if (front_end::block(front_end_memory[0], launch, blockIdx.x))
      worker::dismiss(*state, (gridDim.x - queues) * kBlockWarps);
  } else {
    const uint32_t worker_id = (blockIdx.x - queues) * kBlockWarps + threadIdx.x / kWarp;
    worker::role(*state, worker_id, threadIdx.x % kWarp);
  }
}

// What the host has to provide: bytes of DeviceState and of a front end's shared memory, and threads of a block.
extern "C" __global__ void doorbell_sizes(uint32_t* to) {
  to[0] = sizeof(DeviceState);
  to[1] = sizeof(FrontEnd);
  to[2] = kBlockThreads;
}
