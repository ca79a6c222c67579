// Role: completion. One warp that posts what workers have finished, and gives their places back.
// Called by the block. Waits for done tickets, released slots of the completion queue (R4) and the lock of the groups. Orders: done tickets are acquired, a
// system fence stands before the completions. Planted faults: LeavesEarly, ClosesEarly, StaysInTable.
#ifndef DOORBELL_FRONT_END_COMPLETION_WARP_CUH
#define DOORBELL_FRONT_END_COMPLETION_WARP_CUH

#include "front_end/admit.cuh"
#include "front_end/groups.cuh"

namespace front_end {

// Takes a rollout back to whose ticket no worker has come; whether it did.
__device__ __forceinline__ bool cancel(WorkQueue& work, uint32_t ticket, uint32_t rollout) {
  uint64_t* const slot = &work.slots[ticket % kWorkSlots];
  const uint64_t queued = work_entry(ticket, kQueued | rollout), cancelled = work_entry(ticket, kCancelled | rollout);
  return order::load_relaxed_gpu(slot) == queued && order::compare_swap_relaxed_gpu(slot, queued, cancelled) == queued;
}

__device__ __noinline__ uint32_t cancel_paused(DeviceState& state, uint32_t queue, uint32_t lane) {
  uint32_t count = 0;
  for (uint32_t k = lane; k < kPlaces; k += kWarp)
    count += cancel(state.work[kForBlocks], order::load_relaxed_gpu(&state.paused[queue][k].ticket), kPaused | queue << 16 | k);
  return count;
}

// Takes back the rollouts to which no worker has come: the end of a session waits for none that is busy with others
// (R12). Their tickets stay in the work queue, and lead to nothing.
__device__ __noinline__ void cancel(FrontEnd& f, DeviceState& state, uint32_t queue, uint32_t lane) {
  uint32_t count = 0;
  for (uint32_t k = lane; k < kPlaces; k += kWarp) {
    // An old ticket's slot has another entry by now.
    const uint32_t ticket = order::load_relaxed_block(&f.tickets[k]), rollout = queue << 16 | k;
    const bool is_sequence = (order::load_relaxed_block(&f.bound[k]) & binding::kSequence) != 0;
    count += cancel(state.work[is_sequence ? kForBlocks : kForWarps], ticket, rollout);
  }
  // Those that have given their blocks up have other tickets.
  if (f.language.blocks != 0) count += cancel_paused(state, queue, lane);
  count = __reduce_add_sync(kEveryLane, count);
  // Which they are does not matter: the next session counts all of them anew.
  if (lane == 0) order::store_release_block(&f.places_given, order::load_relaxed_block(&f.places_given) + count);
  __syncwarp();
}

// Marks whom the completions of places end, of the lanes in `grouped`; the lanes with which a group closes.
__device__ __forceinline__ uint32_t close(FrontEnd& f, const Place& place, uint32_t bound, uint32_t grouped,
                                          uint32_t lane) {
  uint32_t status = 0;
  if (grouped >> lane & 1) status = static_cast<uint32_t>(place.result[1].y >> 48) & 0xFF;
  const bool ends = status == DOORBELL_STATUS_DONE || status == DOORBELL_STATUS_STOPPED;
  return f.groups.complete(grouped, bound, ends, lane);
}

// Posts what the workers have finished, in the order in which they did, until the session has ended and every worker has
// let go of it.
__device__ __noinline__ void completion_role(FrontEnd& f, const Launch& launch, uint32_t queue, uint4* stage,
                                             uint32_t lane) {
  uint32_t spins = 0, next = f.next_done;
  bool stalled = false, cancelled = false;
  // Fixed while the session runs. It tells where it has nothing else to do: the scout tells of lives meanwhile, and FAULTs are few.
  const bool tells = f.events.runs_here(), life = f.events.has_life();
  uint32_t lives_left = 0;
  for (;;) {
    const uint64_t entry = order::load_acquire_gpu(&launch.state->done[queue][(next + lane) % kPlaces]);
    const uint32_t fresh = __ballot_sync(kEveryLane, static_cast<uint32_t>(entry >> 32) == next + lane + 1);
    uint32_t count = fresh == kEveryLane ? kWarp : __ffs(~fresh) - 1;
    const bool ending = __any_sync(kEveryLane, stopping(f));
    if (count == 0) {
      // Once the fetch warps have ended nothing more is taken, and each place taken comes back.
      const bool taken = ending && order::load_acquire_block(&f.fetchers) == 0;
      // Again and again where a block may give a rollout up meanwhile.
      if (__all_sync(kEveryLane, taken) && (!cancelled || f.language.blocks != 0)) {
        cancelled = true;
        cancel(f, *launch.state, queue, lane);
      }
      const bool ended = cancelled && order::load_relaxed_block(&f.places_taken) + kGivenPlaces ==
                                          order::load_relaxed_block(&f.places_given);
      if (__all_sync(kEveryLane, ended)) {
        __syncwarp();
        if (tells) {
          const uint32_t posted = static_cast<uint32_t>(order::load_relaxed_block(&f.posted));
          events::tell_the_rest(f.events, launch, queue, __shfl_sync(kEveryLane, posted, 0), lane);
        }
        if (lane == 0) f.next_done = next;
        return;
      }
      if (tells && events::tell(f.events, launch, queue, lane)) spins = 0;
      relax(spins);
      continue;
    }
    spins = 0;
    if (DOORBELL_FAULT(LeavesEarly)) {
      if (lane < count) f.running.leave(launch.state->places[queue][static_cast<uint32_t>(entry)].rollout_id);
      DOORBELL_WINDOW(LeavesEarly);
    }
    Reservation reservation{};
    // What ends members does so in the order of its completions (R17).
    const uint32_t place_index = static_cast<uint32_t>(entry) % kPlaces;
    const Place& place = launch.state->places[queue][place_index];
    const uint32_t bound = order::load_relaxed_block(&f.bound[place_index]);
    uint32_t grouped = __ballot_sync(kEveryLane, lane < count && (bound & binding::kGrouped) != 0), closing = 0;
    if (ending) grouped = 0;
    if (UNLIKELY(grouped != 0)) {
      if (DOORBELL_FAULT(ClosesEarly)) {
        f.groups.acquire(lane);
        closing = close(f, place, bound, grouped, lane);
        f.groups.release(lane);
        DOORBELL_WINDOW(ClosesEarly);
      } else {
        f.groups.acquire(lane);
      }
    }
    if (!ending) {
      if (lane == 0) reservation = reserve(f, count, true, 0, false);
      reservation.count = __shfl_sync(kEveryLane, reservation.count, 0);
      reservation.first = __shfl_sync(kEveryLane, reservation.first, 0);
      reservation.sq_head = __shfl_sync(kEveryLane, reservation.sq_head, 0);
      count = reservation.count;
      if (UNLIKELY(grouped != 0) && !DOORBELL_FAULT(ClosesEarly)) {
        grouped &= count == kWarp ? kEveryLane : (1u << count) - 1;
        closing = close(f, place, bound, grouped, lane);
        f.groups.release(lane);
      }
      if (count == 0) {
        // R4: the host has to release a slot first.
        if (lane == 0) {
          tally(f, kCompletionWarp, kStallCq, 1);
          order::store_relaxed_block(&f.waits_for, DOORBELL_WAIT_COMPLETION_SLOT);
        }
        stalled = true;
        // The fetch warps may be waiting for it.
        if (tells) events::tell(f.events, launch, queue, lane);
        relax(spins);
        continue;
      }
    }
    if (stalled && lane == 0) order::store_relaxed_block(&f.waits_for, DOORBELL_WAIT_NOTHING);
    stalled = false;
    const bool mine = lane < count;
    const uint32_t rollout = mine ? place.rollout_id : 0;
    // It has its slot, and before the host sees it nobody waits for it as one at a worker (R17, R19).
    if (mine) order::store_release_block(&f.bound[place_index], 0);
    if (mine && UNLIKELY((bound & binding::kOpens) != 0)) order::add_acq_rel_block(&f.opening, 0u - 1);
    uint32_t asking = 0, failed = 0, prefills = 0, record = 0;
    if (!ending) {
      // On their way together with the completion, and before the place is somebody else's.
      Moments moments{};
      if (UNLIKELY(life)) {
        record = events::free_lives(f.events, launch, queue, lives_left++, lane);
        if (mine) moments = load_moments(launch.state->moments[queue][place_index]);
      }
      ulonglong2* const halves = reinterpret_cast<ulonglong2*>(stage);
      if (mine) {
        ulonglong2 pair[2] = {place.result[0], place.result[1]};
        place_completion(pair, reservation.sq_head, phase_of(reservation.first + lane, f.config.cq_size));
        if (closing >> lane & 1) pair[1].y |= static_cast<uint64_t>(DOORBELL_CFLAG_GROUP_DONE) << 40;
        halves[2 * lane] = pair[0];
        halves[2 * lane + 1] = pair[1];
        if (UNLIKELY(life)) f.events.lives[record].fill(lane, moments, static_cast<uint32_t>(pair[1].y) >> 16);
      }
      const uint32_t status = mine ? static_cast<uint32_t>(place.result[1].y >> 48) & 0xFF : 0;
      failed = __ballot_sync(kEveryLane, mine && status == DOORBELL_STATUS_ERROR);
      prefills = __ballot_sync(kEveryLane, mine && place.opcode == DOORBELL_OP_PREFILL);
      asking = closing | failed | __ballot_sync(kEveryLane, mine && (place.flags & DOORBELL_FLAG_INTERRUPT) != 0);
      __syncwarp();
      // The workers' tokens, seen through their release and this warp's acquire, before the completions.
      order::fence_sys();
      write_completions(f, halves, count, reservation.first, lane);
      __syncwarp();
    }
    // R5: from here on another descriptor of the rollout may start.
    if (mine) {
      if (!DOORBELL_FAULT(StaysInTable)) f.running.leave(rollout);
      const uint32_t given = order::load_relaxed_block(&f.places_given);
      order::store_relaxed_block(&f.free_places[ring_slot(given + lane)], place_index);
    }
    __syncwarp();
    if (lane == 0) {
      tally_completions(f, kCompletionWarp, ending ? 0 : count);
      tally(f, kCompletionWarp, kWriteBeats, ending ? 0 : count);
      if (UNLIKELY((failed | prefills) != 0)) {
        tally(f, kCompletionWarp, kErrors, __popc(failed));
        tally(f, kCompletionWarp, kPrefixes, __popc(prefills));
      }
      if (asking != 0) note_ask(f, reservation.first + 31 - __clz(asking));
      if (UNLIKELY(life) && !ending) {
        EventRing::Run& run = f.events.runs[EventRing::kFirstLives + record];
        order::store_relaxed_block(&run.first, reservation.first);
        order::store_relaxed_block(&run.count, count);
        order::store_release_block(&run.full, 1);
      }
      order::store_release_block(&f.places_given, order::load_relaxed_block(&f.places_given) + count);
    }
    __syncwarp();
    // A FAULT does not wait for the end of a load.
    if (UNLIKELY(tells) && (next ^ (next + count)) >> 8 != 0) events::tell(f.events, launch, queue, lane);
    next += count;
  }
}

}  // namespace front_end

#endif
