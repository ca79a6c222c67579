// Admission, by the warp that has the turn: places for long DECODEs, slots of the completion queue, tokens of short DECODEs.
// Called by fetch warps and scout. Waits for nothing but the lock of the groups. Orders: `Turn::look` acquires, in its order, what
// makes a queue quiet (R3, R4, R5). Planted faults: ReadsTailEarly, ReservesBlindly, WrapsPlaces, SharesNothing, KeepsStop.
#ifndef DOORBELL_FRONT_END_ADMIT_CUH
#define DOORBELL_FRONT_END_ADMIT_CUH

#include "front_end/classify.cuh"
#include "front_end/completion_queue.cuh"

namespace front_end {

// What the warp that has the turn must know. Every lane reads it, and what lane 0 has read counts.
struct Turn {
  uint32_t admitted;
  uint32_t running;  // rollouts at workers
  uint32_t cq_tail;
  uint32_t released;
  uint32_t epoch;  // of the policy's versions

  // In this order: while the warp has the turn no other enters a rollout, and once none runs the completion warp
  // posts nothing, so `posted` does not change.
  __device__ __forceinline__ void look(const FrontEnd& f) {
    admitted = order::load_acquire_block(&f.admitted);
    const uint32_t early = DOORBELL_FAULT(ReadsTailEarly) ? static_cast<uint32_t>(order::load_relaxed_block(&f.posted)) : 0;
    DOORBELL_WINDOW(ReadsTailEarly);
    running = order::load_acquire_block(&f.running.entries);
    epoch = order::load_relaxed_block(&f.epoch);
    cq_tail = DOORBELL_FAULT(ReadsTailEarly) ? early : static_cast<uint32_t>(order::load_relaxed_block(&f.posted));
    released = order::load_acquire_block(&f.cq_head);
  }

  // Slots of the completion queue that the host has released (R4).
  __device__ __forceinline__ uint32_t room(const doorbell_session& config) const {
    return DOORBELL_FAULT(ReservesBlindly) ? config.cq_size : config.cq_size - (cq_tail - released);
  }

  // Takes the next `count` of them. Only while nothing runs: else the completion warp takes some as well.
  __device__ __forceinline__ void post(FrontEnd& f, uint32_t consumed_to, uint32_t count) const {
    order::store_relaxed_block(&f.posted, static_cast<uint64_t>(consumed_to) << 32 | (cq_tail + count));
  }
};

// The slot of the ring of free places from which the place with this number is taken.
__device__ __forceinline__ uint32_t ring_slot(uint32_t number) {
  return number % (DOORBELL_FAULT(WrapsPlaces) ? kPlaces - 1 : kPlaces);
}

// How many long DECODEs, of `wanted`, can be admitted: for each there has to be a place, and room in this queue pair's
// share of the work queue. The caller has the turn. (Here and below: code that is rare, or waits anyway, is kept out of
// the way of the rest, which is too long a stretch for the instruction cache as it is.)
__device__ __noinline__ uint32_t admissible(FrontEnd& f, const DeviceState& state, uint32_t queue, uint32_t wanted,
                                            uint32_t lane) {
  uint32_t count = 0;
  if (lane == 0) {
    const uint32_t limit = f.config.workers == 0 ? kGivenPlaces : min(f.config.workers, kGivenPlaces);
    const uint32_t share = min(kShare * f.config.weight, kGivenPlaces);
    const uint32_t taken = order::load_relaxed_block(&f.places_taken);
    const uint32_t free = limit - (taken + kGivenPlaces - order::load_acquire_block(&f.places_given));
    const uint32_t handed_out = order::load_relaxed_block(&f.handed_out);
    uint32_t waiting = handed_out - order::load_relaxed_block(&f.fetched);
    // Workers that have come since are asked for only where it matters.
    if (waiting + wanted > share) {
      const uint32_t fetched = static_cast<uint32_t>(order::load_relaxed_gpu(&state.fetched[queue * 16]));
      order::store_relaxed_block(&f.fetched, fetched);
      waiting = handed_out - fetched;
    }
    // Rollouts that have given their blocks up may be more than the share.
    const uint32_t room = waiting < share ? share - waiting : 0;
    count = min(min(free, DOORBELL_FAULT(SharesNothing) ? free : room), wanted);
  }
  __syncwarp();
  return __shfl_sync(kEveryLane, count, 0);
}

// Takes places, of which there are enough, for the long DECODEs and REWARDs in `longs`, and enters them in the table of
// those that run. Returns each lane's place (0 for other lanes), or RunningTable::kNone to all, and nothing has changed, if
// the table has no room.
__device__ __noinline__ uint32_t enter(FrontEnd& f, Place* places, uint32_t rollout_id, uint32_t index, uint32_t bound,
                                       uint32_t prefix_id, uint32_t longs, uint32_t lane) {
  const uint32_t taken = order::load_relaxed_block(&f.places_taken);
  uint32_t place = 0;
  bool entered = false;
  if (longs >> lane & 1) {
    place = order::load_relaxed_block(&f.free_places[ring_slot(taken + __popc(longs & ((1u << lane) - 1)))]);
    // Here, in the turn: the STOP that sets it again may be next.
    if (!DOORBELL_FAULT(KeepsStop)) order::store_relaxed_gpu(&places[place].stop, 0);
    // And here: an ABORT that comes late for what was at the place before names it by its index.
    order::store_relaxed_gpu(&places[place].abort, ~index);
    order::store_relaxed_block(&f.owner[place], static_cast<uint64_t>(index) << 32 | rollout_id);
    order::store_relaxed_block(&f.prefix[place], prefix_id);
    entered = f.running.enter(rollout_id, place);
  }
  if (__ballot_sync(kEveryLane, entered) == longs) {
    if (entered) order::store_relaxed_block(&f.bound[place], bound);
    return place;
  }
  if (entered) f.running.leave(rollout_id);
  __syncwarp();
  return RunningTable::kNone;
}

// Admits the lanes in `mask`, for which there are places, if there are table entries and completion slots for all of
// them; else changes nothing, and says what was missing. The caller has the turn.
__device__ __forceinline__ uint32_t admit(FrontEnd& f, Place* places, Order& o, uint32_t index, uint32_t mask,
                                          uint32_t longs, uint32_t consumed_to, uint32_t lane,
                                          uint32_t& first_completion) {
  const uint32_t instants = mask & ~longs;
  bool entered = false;
  if (UNLIKELY(longs != 0)) {
    uint32_t bound = binding::kAtWorker | o.bound;
    const bool prefill = o.desc.opcode() == DOORBELL_OP_PREFILL, opens = prefill && o.desc.max_tokens() != 0;
    if (o.desc.opcode() != DOORBELL_OP_REWARD) {
      bound |= binding::kVersioned | (o.slot == 0 ? 0 : binding::kSecond);
      if (!engine::is_brief(o.desc.model_id())) bound |= binding::kSequence;
      if (opens) bound |= binding::kOpens;
      if (!prefill && o.desc.has(DOORBELL_FLAG_COW_PREFIX)) bound |= binding::kShared;
    }
    o.place = enter(f, places, o.desc.rollout_id(), index, bound, o.desc.prefix_id(), longs, lane);
    if (o.place == RunningTable::kNone) return DOORBELL_WAIT_WORKER;
    entered = longs >> lane & 1;
    if (entered && opens) order::add_acq_rel_block(&f.opening, 1);
  }
  // What ends members does so in the order of its completions.
  const uint32_t grouped = __ballot_sync(kEveryLane, (instants >> lane & 1) != 0 && o.bound != 0);
  if (UNLIKELY(grouped != 0)) f.groups.acquire(lane);
  Reservation reservation{};
  if (lane == 0) {
    reservation = reserve(f, __popc(instants), false, consumed_to, true);
    if (reservation.count == __popc(instants) && longs != 0) {
      order::store_relaxed_block(&f.places_taken, order::load_relaxed_block(&f.places_taken) + __popc(longs));
      order::store_relaxed_block(&f.handed_out, order::load_relaxed_block(&f.handed_out) + __popc(longs));
    }
  }
  __syncwarp();
  first_completion = __shfl_sync(kEveryLane, reservation.first, 0);
  const bool reserved = __shfl_sync(kEveryLane, reservation.count, 0) == __popc(instants);
  if (UNLIKELY(grouped != 0)) {
    if (reserved) {
      const bool ends = o.outcome.status == DOORBELL_STATUS_DONE || o.outcome.status == DOORBELL_STATUS_STOPPED;
      const uint32_t closing = f.groups.complete(grouped, o.bound, ends, lane);
      if (closing >> lane & 1) o.outcome.flags |= DOORBELL_CFLAG_GROUP_DONE;
    }
    f.groups.release(lane);
  }
  if (reserved) return DOORBELL_WAIT_NOTHING;
  if (entered) {
    if ((order::load_relaxed_block(&f.bound[o.place]) & binding::kOpens) != 0) order::add_acq_rel_block(&f.opening, 0u - 1);
    order::store_relaxed_block(&f.bound[o.place], 0);
    f.running.leave(o.desc.rollout_id());
  }
  __syncwarp();
  return DOORBELL_WAIT_COMPLETION_SLOT;
}

// Writes the tokens of the short DECODEs in `briefs`, while the warp has the turn: two of one rollout never write at
// the same time (R5).
__device__ __forceinline__ void write_brief_tokens(const FrontEnd& f, const Order& o, uint32_t briefs, uint32_t rounds,
                                                   uint32_t lane) {
  uint32_t* const to = reinterpret_cast<uint32_t*>(f.config.token_base + o.desc.delta_offset());
  const uint32_t added = briefs >> lane & 1 ? o.outcome.added : 0;
  uint32_t round = 0;
#pragma unroll 1
  do {
#pragma unroll
    for (uint32_t k = 0; k < kBrief; k++)
      if (k < added && o.rank == round) order::store_relaxed_sys(to + k, engine::Brief::Decoder::token(o.step[k]));
    __syncwarp();
  } while (UNLIKELY(++round < rounds));
}

// The same of their log-probabilities, of those in `logps`.
__device__ __forceinline__ void write_brief_logps(const FrontEnd& f, const Order& o, uint32_t logps, uint32_t rounds,
                                                  uint32_t lane) {
  uint32_t* const to = reinterpret_cast<uint32_t*>(f.config.logp_base + o.desc.delta_offset());
  const uint32_t added = logps >> lane & 1 ? o.outcome.added : 0;
#pragma unroll 1
  for (uint32_t round = 0; round < rounds; round++) {
#pragma unroll
    for (uint32_t k = 0; k < kBrief; k++)
      if (k < added && o.rank == round) order::store_relaxed_sys(to + k, engine::Brief::Decoder::logp(o.step[k]));
    __syncwarp();
  }
}

// Counts the completions of the lanes in `instants`, and what they tell beside themselves. It is called after them:
// what is counted has completed (R7).
__device__ __forceinline__ void account(FrontEnd& f, const Order& o, uint32_t instants, uint32_t briefs,
                                        uint32_t first_completion, uint32_t warp, uint32_t lane) {
  // Errors, prefixes and interrupts are rare: one vote for all of them.
  const bool mine = instants >> lane & 1;
  const bool failed = o.outcome.status == DOORBELL_STATUS_ERROR, prefill = o.desc.opcode() == DOORBELL_OP_PREFILL;
  const bool asks = failed || o.desc.has(DOORBELL_FLAG_INTERRUPT) || (o.outcome.flags & DOORBELL_CFLAG_GROUP_DONE) != 0;
  if (UNLIKELY(__any_sync(kEveryLane, mine && (prefill || asks)))) {
    const uint32_t errors = __ballot_sync(kEveryLane, mine && failed);
    const uint32_t prefills = __ballot_sync(kEveryLane, mine && !failed && prefill);
    const uint32_t asking = __ballot_sync(kEveryLane, mine && asks);
    if (lane == 0) {
      tally(f, warp, kErrors, __popc(errors));
      tally(f, warp, kPrefixes, __popc(prefills));
      // Of the highest lane: completions are in the order of lanes.
      if (asking != 0) note_ask(f, first_completion + __popc(instants & (kEveryLane >> __clz(asking))) - 1);
    }
  }
  const uint32_t ended = __popc(instants);
  uint32_t tokens = 0, lines = 0;
  if (briefs != 0) {
    tokens = __reduce_add_sync(kEveryLane, mine && o.is_brief ? o.outcome.added : 0);
    lines = __reduce_add_sync(kEveryLane, mine && o.is_brief ? lines_of(o.desc.delta_offset(), o.outcome.added) : 0);
  }
  __syncwarp();
  if (lane == 0) {
    tally_completions(f, warp, ended);
    tally(f, warp, kTokens, tokens);
    tally(f, warp, kWriteBeats, ended + lines);
  }
}

}  // namespace front_end

#endif
