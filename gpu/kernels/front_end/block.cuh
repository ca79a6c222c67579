// The block of a front end: sessions one after the other, and which warp has which role.
// Called by the kernels. Waits for the host between sessions, and at the block's barriers. Orders: R12 is a barrier and a system fence before `reached`.
#ifndef DOORBELL_FRONT_END_BLOCK_CUH
#define DOORBELL_FRONT_END_BLOCK_CUH

#include "front_end/general.cuh"
#include "front_end/scout.cuh"
#include "front_end/completion_warp.cuh"
#include "front_end/control.cuh"

namespace front_end {

// Sessions, one after the other, until the host wants no more. True for the last front end to end.
template <bool kLanguage>
__device__ bool block(FrontEnd& f, const Launch& launch, uint32_t queue) {
  using Role = Fetcher<kLanguage>;
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  doorbell_mailbox& mailbox = launch.mailboxes[queue];
  uint32_t session = 0;
  for (uint32_t k = threadIdx.x; k < kPlaces; k += kBlockThreads) f.tickets[k] = 0;
  if (threadIdx.x == 0) f.handed_out = f.fetched = f.next_done = f.heartbeat = 0;
  __syncthreads();
  for (;;) {
    // Only the control warp listens; the others sleep at the barrier.
    if (warp == kControlWarp) {
      uint32_t wanted = session, spins = 0, heartbeat = f.heartbeat;
      for (;;) {
        const uint4 host = order::load_acquire_sys(reinterpret_cast<const uint4*>(&mailbox));
        wanted = __shfl_sync(kEveryLane, host.x, 0);
        if (wanted != session) break;
        heartbeat++;
        if (lane == 0 && heartbeat % 64 == 0) order::store_relaxed_sys(&mailbox.heartbeat, heartbeat);
        relax(spins);
      }
      // Behind the other lanes' reads of it.
      __syncwarp();
      if (lane == 0) {
        f.wanted = wanted;
        f.heartbeat = heartbeat;
      }
      __syncwarp();
      const bool starts = wanted % 2 == 1;
      if (starts) {
        // The host wrote the session's registers before it wanted it.
        const uint32_t* const from = reinterpret_cast<const uint32_t*>(&mailbox.session);
        uint32_t* const to = reinterpret_cast<uint32_t*>(&f.config);
        uint32_t* const copy = reinterpret_cast<uint32_t*>(&launch.state->sessions[queue]);
        for (uint32_t k = lane; k < sizeof(doorbell_session) / 4; k += kWarp)
          copy[k] = to[k] = order::load_relaxed_sys(from + k);
        uint32_t* const ranges = reinterpret_cast<uint32_t*>(launch.state->ranges[queue]);
        for (uint32_t k = lane; k < 2 * DOORBELL_RANGES; k += kWarp)
          ranges[k] = order::load_relaxed_sys(&mailbox.ranges[k]);
        if (lane == 0) {
          f.events.base = order::load_relaxed_sys(&mailbox.eq_base);
          f.events.slots = order::load_relaxed_sys(&mailbox.eq_size);
          f.events.life = order::load_relaxed_sys(&mailbox.eq_life);
          f.events.head = order::load_relaxed_sys(&mailbox.eq_head);
        }
        __syncwarp();
        join(f, *launch.state, queue, lane);
        __syncwarp();
      }
    }
    __syncthreads();
    session = f.wanted;
    if (session % 2 == 1) {
      for (uint32_t k = threadIdx.x; k < RunningTable::kSets; k += kBlockThreads) f.running.clear_set(k);
      for (uint32_t k = threadIdx.x; k < kPlaces; k += kBlockThreads) {
        f.free_places[k] = k;
        f.bound[k] = 0;
      }
      if (threadIdx.x < DOORBELL_GROUPS) f.groups.clear(threadIdx.x);
      if (threadIdx.x < 16) reinterpret_cast<uint32_t*>(f.key)[threadIdx.x] = key_word(f.config.sq_key, threadIdx.x);
      if (threadIdx.x < 16 * kBlockWarps) f.counters[threadIdx.x / 16][threadIdx.x % 16] = 0;
      if (threadIdx.x == 0) {
        f.running.entries = f.waits_for = f.asks = f.opening = 0;
        if (kLanguage) f.publication.left = 0;
        f.language = launch.language;
        f.aborting = f.aborted = 0;
        f.places_taken = kFirstPlace;
        f.places_given = kFirstPlace + kGivenPlaces;
        f.asked = f.config.cq_start - 1;
        f.stopping = 0;
        f.fetchers = kFetchWarps + 1;
        f.sq_tail = f.claimed = f.admitted = f.config.sq_start;
        f.was_cut = 0;
        f.cq_head = f.config.cq_start;
        f.posted = static_cast<uint64_t>(f.config.sq_start) << 32 | f.config.cq_start;
        f.events.clear(f.config.cq_start, f.config.function);
        f.shown = &launch.mailboxes[f.config.function].policy_slots;
        launch.state->counters[queue] = WorkerCounters{0, 0, 0, 0, 0};
      }
      __syncthreads();
      if (warp == kControlWarp) {
        if (lane == 0) f.started = clock64();
        publish(f, launch, queue, 0, f.heartbeat, lane);
        __syncwarp();
        order::fence_sys();
        if (lane == 0) order::store_release_sys(&mailbox.reached, session);
        control_role(f, launch, queue, session, lane);
      } else if (warp == kCompletionWarp) {
        completion_role(f, launch, queue, f.completion_stage, lane);
      } else if (warp == kScoutWarp) {
        Role{f, *launch.state, queue, session, warp, Role::again(lane), f.stage[warp]}.scout_role(launch);
      } else {
        // Computed anew on Blackwell, which else spills a register of the fetch warps.
        Role{f, *launch.state, Role::again(queue), Role::again(session), Role::again(warp), lane, f.stage[warp]}.role();
      }
      // R12: behind this barrier, and the fence of the acknowledgement, nothing of the session writes memory.
      __syncthreads();
      if (threadIdx.x == kControlWarp * kWarp) leave(f, *launch.state, queue);
      if (warp == kControlWarp) publish(f, launch, queue, clock64() - f.started, f.heartbeat, lane);
    } else {
      if (threadIdx.x == kControlWarp * kWarp) {
        order::fence_sys();
        order::store_release_sys(&mailbox.reached, session);
      }
      __syncthreads();
    }
    if (session == DOORBELL_SESSION_EXIT) {
      if (threadIdx.x == 0) f.wanted = order::take_tickets_gpu(&launch.state->exited, 1);
      __syncthreads();
      return f.wanted + 1 == launch.queues;
    }
  }
}

}  // namespace front_end

#endif
