// Role: control. One warp that reads the mailbox, tells the host how far the session is, and answers publishers and ABORTs.
// Called by the block. Waits for the host alone. Orders: doorbell, CQ head and session are acquired from the host and released to the block (R1, R4,
// R12). Planted faults: AcknowledgesEarly, LeavesFunction.
#ifndef DOORBELL_FRONT_END_CONTROL_CUH
#define DOORBELL_FRONT_END_CONTROL_CUH

#include "front_end/versions.cuh"

namespace front_end {

// Tells the host how far the session is.
__device__ __forceinline__ void publish(const FrontEnd& f, const Launch& launch, uint32_t queue, long long cycles,
                                        uint32_t heartbeat, uint32_t lane) {
  doorbell_mailbox& mailbox = launch.mailboxes[queue];
  const WorkerCounters& workers = launch.state->counters[queue];
  uint32_t sq_head = order::load_acquire_block(&f.admitted);
  if (UNLIKELY(order::load_acquire_block(&f.was_cut) != 0)) sq_head = order::load_relaxed_block(&f.cut);
  // Read after `sq_head`: at most as many as have not completed by now. And `asked` after `asks`: at least as new.
  // Of what is taken one by one some may have completed before `admitted` moves on.
  const int32_t left = static_cast<int32_t>(sq_head - f.config.sq_start - completed(f));
  const uint32_t outstanding = left < 0 ? 0 : left;
  const uint32_t asks = order::load_acquire_block(&f.asks);
  const uint32_t asked = order::load_relaxed_block(&f.asked);
  // Only then the counters, on every lane: they tell of all that `outstanding` lets the host believe to be over.
  __syncwarp();
  if (lane < 16) {
    uint64_t value = 0;
#pragma unroll 1
    for (uint32_t warp = 0; warp < kBlockWarps; warp++) {
      value += order::load_relaxed_block(&f.counters[warp][lane]);
      // A beat for each descriptor.
      if (lane == kReadBeats) value += order::load_relaxed_block(&f.counters[warp][kDescriptors]);
    }
    if (lane == kCycles) value = cycles;
    if (lane == kTokens) value += order::load_relaxed_gpu(&workers.tokens);
    if (lane == kBusy) value = order::load_relaxed_gpu(&workers.busy);
    if (lane == kWait) value = order::load_relaxed_gpu(&workers.wait);
    if (lane == kWriteBeats) value += order::load_relaxed_gpu(&workers.lines);
    if (lane == kReadBeats) value += order::load_relaxed_gpu(&workers.read);
    order::store_relaxed_sys(&mailbox.counters[lane], value);
  }
  // The fence below is lane 0's, and covers what the other lanes have told.
  __syncwarp();
  if (lane == 0) {
    order::store_relaxed_sys(&mailbox.outstanding, outstanding);
    order::store_relaxed_sys(&mailbox.asked, asked);
    order::store_relaxed_sys(&mailbox.waits_for, order::load_relaxed_block(&f.waits_for));
    order::store_relaxed_sys(&mailbox.heartbeat, heartbeat);
    order::store_relaxed_sys(&mailbox.aborted, order::load_relaxed_block(&f.aborted));
    // The host reads these first: who sees them sees the others.
    order::fence_sys();
    order::store_relaxed_sys(&mailbox.sq_head, sq_head);
    order::store_relaxed_sys(&mailbox.cq_tail, static_cast<uint32_t>(order::load_relaxed_block(&f.posted)));
    order::store_relaxed_sys(&mailbox.asks, asks);
  }
}

// R8: tells the rollout that ABORT `number` names to end, if it is at a worker and was published before. It is over once
// all that was has been admitted: what has not is ended by whoever has the turn.
__device__ __noinline__ void abort_rollout(FrontEnd& f, Place* places, uint32_t number, uint32_t lane) {
  if (lane == 0) {
    const uint64_t abort = order::load_relaxed_block(&f.abort_of);
    const uint32_t admitted = order::load_acquire_block(&f.admitted), tail = static_cast<uint32_t>(abort >> 32);
    const uint32_t rollout = static_cast<uint32_t>(abort), place = f.running.find(rollout);
    if (place != RunningTable::kNone) {
      // Another may be there by now: it is told by its index.
      const uint64_t owner = order::load_relaxed_block(&f.owner[place]);
      const uint32_t index = static_cast<uint32_t>(owner >> 32);
      if (static_cast<uint32_t>(owner) == rollout && static_cast<int32_t>(index - tail) < 0)
        order::store_relaxed_gpu(&places[place].abort, index);
    }
    if (static_cast<int32_t>(admitted - tail) >= 0) {
      order::store_relaxed_block(&f.aborted, number);
      order::store_release_block(&f.aborting, 0);
    }
  }
  __syncwarp();
}

// What the host tells the event ring, in the second part of the mailbox that the odd lanes have read.
__device__ __noinline__ void hear_of_events(FrontEnd& f, const doorbell_mailbox& mailbox, const uint4& host, uint32_t lane) {
  if (lane != 1) return;
  order::store_release_block(&f.events.head, host.z);
  // The one before is done: the host asks for one at a time.
  if (host.w == order::load_relaxed_block(&f.events.faults)) return;
  order::store_relaxed_block(&f.events.fault_of, order::load_relaxed_sys(&mailbox.fault_of));
  order::store_release_block(&f.events.faults, host.w);
}

// The session is over: a publisher waits no more for this front end. One lane calls it, behind the barrier at the session's end:
// until then a block may still read the weights of the version in any slot.
__device__ __forceinline__ void leave(const FrontEnd& f, DeviceState& state, uint32_t queue) {
  order::clear_bits_release_gpu(&state.functions[f.config.function].members, 1u << queue);
}

// Listens to the host until it wants another session, or none.
__device__ __noinline__ void control_role(FrontEnd& f, const Launch& launch, uint32_t queue, uint32_t session,
                                          uint32_t lane) {
  const doorbell_mailbox& mailbox = launch.mailboxes[queue];
  uint64_t published = 0;
  uint32_t abort = 0, heartbeat = f.heartbeat;  // `abort` as the host last asked for
  const uint32_t* const asks = &launch.state->functions[f.config.function].asked;
  for (;;) {
    DOORBELL_YIELD();
    // On its way together with the host's.
    const uint32_t publisher_asks = order::load_relaxed_gpu(asks);
    // Half a line, and so one access: its second part to the odd lanes.
    const uint4 host = order::load_acquire_sys(reinterpret_cast<const uint4*>(&mailbox) + (lane & 1));
    const uint32_t wanted = __shfl_sync(kEveryLane, host.x, 0);
    if (wanted != session) {
      if (DOORBELL_FAULT(AcknowledgesEarly)) {
        order::store_release_sys(&launch.mailboxes[queue].reached, wanted);
        // Long enough for the host to look at all of its memory twice.
        for (uint32_t k = 0; k < 20; k++) DOORBELL_WINDOW(AcknowledgesEarly);
      }
      break;
    }
    if (lane == 0) {
      order::store_release_block(&f.sq_tail, host.y);
      order::store_release_block(&f.cq_head, host.z);
    }
    if (UNLIKELY(f.events.runs_here())) hear_of_events(f, mailbox, host, lane);
    __syncwarp();
    const uint32_t asked = __shfl_sync(kEveryLane, host.w, 0);
    if (UNLIKELY(asked != abort)) {
      // If the one before is not over here, the host has seen that it has nothing left to end.
      if (lane == 0) {
        order::store_relaxed_block(&f.abort_of, order::load_relaxed_sys(&mailbox.abort_of));
        order::store_release_block(&f.aborting, 1);
      }
      abort = asked;
      __syncwarp();
    }
    if (UNLIKELY(__shfl_sync(kEveryLane, order::load_relaxed_block(&f.aborting), 0) != 0))
      abort_rollout(f, launch.state->places[queue], abort, lane);
    if (UNLIKELY(__any_sync(kEveryLane, publisher_asks != order::load_relaxed_block(&f.heard))))
      answer(f, *launch.state, queue, lane);
    heartbeat++;
    // What has changed is told every few rounds; that nothing has, now and then.
    if (heartbeat % 16 == 0) {
      const uint64_t now = order::load_relaxed_block(&f.posted) + completed(f) + order::load_relaxed_block(&f.aborted) +
                           order::load_relaxed_gpu(&launch.state->counters[queue].tokens);
      const uint64_t news = __shfl_sync(kEveryLane, now, 0);
      if (news != published || heartbeat % 64 == 0) {
        published = news;
        publish(f, launch, queue, clock64() - f.started, heartbeat, lane);
      }
    }
  }
  __syncwarp();
  if (lane == 0) {
    order::store_relaxed_gpu(&launch.state->abandon[queue * 32], session);
    f.heartbeat = heartbeat;
    order::store_release_block(&f.stopping, 1);
    if (DOORBELL_FAULT(LeavesFunction)) leave(f, *launch.state, queue);
  }
  __syncwarp();
}

}  // namespace front_end

#endif
