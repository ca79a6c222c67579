// Role: worker. A warp that runs one rollout of engine 0 at a time, from whichever queue: 32 tokens per step, one per lane.
#ifndef DOORBELL_WORKER_CUH
#define DOORBELL_WORKER_CUH

#include "descriptor.cuh"
#include "device_state.cuh"

namespace worker {

// Waits `cycles` SM cycles, or until `stopped` says so.
template <typename Stopped>
__device__ __forceinline__ void wait_cycles(uint32_t cycles, Stopped stopped) {
  const long long start = clock64();
  while (clock64() - start < cycles && !stopped()) DOORBELL_YIELD();
}

// How far a DECODE has come.
struct Course {
  uint32_t max_tokens;
  uint32_t period;  // between checkpoints
  bool resident;
  uint32_t produced = 0, checkpoint = period;
  uint32_t ended_as = 0;  // a status; 0 while it has not ended
  uint32_t flags = 0;     // of its completion
  engine::Digest digest, since;  // of all tokens, and with RESIDENT of those since the last checkpoint (R9)

  // Tokens to the next length at which it may end on its own.
  __device__ __forceinline__ uint32_t left() const { return min(max_tokens, checkpoint) - produced; }

  __device__ __forceinline__ void push(uint32_t token) {
    digest.push(token);
    if (resident) since.push(token);
  }

  // What ends it behind the tokens that it has by now, in the contract's order; `told` is what the front end said.
  __device__ __forceinline__ void decide(const Place& place, bool eos_stops, uint32_t told) {
    if (eos_stops || produced == max_tokens) {
      ended_as = DOORBELL_STATUS_DONE;
    } else if (told == kStop || (told == kKeep && !resident)) {
      ended_as = told == kStop ? DOORBELL_STATUS_STOPPED : DOORBELL_STATUS_SUPERSEDED;
    } else if (produced == checkpoint) {
      if (!resident) {
        ended_as = DOORBELL_STATUS_REWARD_NEEDED;
      } else if (engine::score(place.reward_model_id, DOORBELL_FAULT(ScoresAll) ? digest : since) <
                 static_cast<int32_t>(place.reward_threshold)) {
        ended_as = DOORBELL_STATUS_DONE;
        flags |= DOORBELL_CFLAG_REJECTED;
      } else if (told == kKeep) {
        ended_as = DOORBELL_STATUS_SUPERSEDED;
      } else {
        since = engine::Digest{};
        checkpoint = checkpoint > 0xFFFFFFFFu - period ? 0xFFFFFFFFu : checkpoint + period;
      }
    }
  }
};

// What the front end has told the DECODE with this index: to end as kStop or kKeep says, or 0. All lanes call it, and get the
// same.
__device__ __forceinline__ uint32_t told(uint32_t stop, uint32_t abort, uint32_t index) {
  const uint32_t ends = stop | (abort == index ? kStop : 0);
  if (!__any_sync(kEveryLane, ends != 0)) return 0;
  return __any_sync(kEveryLane, (ends & kStop) != 0) ? kStop : kKeep;
}

// Puts the completion of what was at a place there, but for what its slot decides. One lane calls it.
__device__ __forceinline__ void leave_result(Place& place, uint32_t worker_id, const Outcome& outcome) {
  ulonglong2 halves[2];
  write_completion(halves, place.user_data, place.rollout_id, place.seq_len, place.reward_model_id, worker_id, outcome);
  place.result[0] = halves[0];
  place.result[1] = halves[1];
}

// Gives a place back to the completion warp. One lane calls it, for what all lanes have written before a __syncwarp.
__device__ __forceinline__ void give_back(DeviceState& state, uint32_t queue, uint32_t place_index) {
  const uint32_t ticket = order::take_tickets_gpu(&state.done_tail[queue * 32], 1);
  order::store_release_gpu(&state.done[queue][ticket % kPlaces], static_cast<uint64_t>(ticket + 1) << 32 | place_index);
}

// Notes one of the moments of what is at a place, if they are asked for (R23). All lanes may call it.
__device__ __forceinline__ void note(DeviceState& state, uint32_t queue, uint32_t place_index, uint32_t flags,
                                     uint64_t Moments::*moment, uint32_t lane) {
  if (UNLIKELY((flags & kTimed) != 0) && lane == 0)
    order::store_relaxed_gpu(&(state.moments[queue][place_index].*moment), ticks());
}

// What was at a place has ended, with `tokens` that it added.
__device__ __forceinline__ void note_end(DeviceState& state, uint32_t queue, uint32_t place_index, uint32_t flags,
                                         uint32_t tokens, uint32_t lane) {
  note(state, queue, place_index, flags, &Moments::ended, lane);
  // As its end, where it has none.
  if (tokens == 0) note(state, queue, place_index, flags, &Moments::first_token, lane);
}

// Scores the tokens that the REWARD at a place names. Nothing ends it but the end of its session.
__device__ __noinline__ void score(DeviceState& state, uint32_t queue, uint32_t place_index, uint32_t worker_id,
                                   uint32_t lane) {
  Place& place = state.places[queue][place_index];
  const long long start_clock = clock64();
  const uint32_t all = place.max_tokens;
  const uint32_t* const from = reinterpret_cast<const uint32_t*>(place.tokens);
  const uint32_t* const abandon = &state.abandon[queue * 32];
  const uint32_t session = place.session, flags = place.flags;
  uint32_t result = 0;
  note(state, queue, place_index, flags, &Moments::started, lane);
  bool abandoned = false;
  engine::RewardModels::with(place.reward_model_id, [&](auto chosen) {
    typename decltype(chosen)::Type model(state.ranges[queue]);
    for (uint32_t done = 0; done < all && !abandoned; done += kWarp * engine::kScored) {
      DOORBELL_YIELD();
      const uint32_t count = min(all - done, kWarp * engine::kScored);
      engine::Tokens tokens;
#pragma unroll
      for (uint32_t k = 0; k < engine::kScored; k++) {
        const uint32_t at = kWarp * k + lane;
        tokens.word[k] = at < count ? order::load_relaxed_sys(from + done + at) : 0;
      }
      model.push(tokens, count, lane);
      abandoned = __any_sync(kEveryLane, order::load_relaxed_gpu(abandon) == session);
    }
    result = model.score();
  });
  note_end(state, queue, place_index, flags, 0, lane);
  __syncwarp();
  if (lane == 0) {
    WorkerCounters& counters = state.counters[queue];
    if (!abandoned) {
      leave_result(place, worker_id, Outcome{DOORBELL_STATUS_SCORED, DOORBELL_ERR_NONE, 0, 0, result});
      order::count_gpu(&counters.read, lines_of(place.tokens, all));
    }
    order::count_gpu(&counters.busy, clock64() - start_clock);
    give_back(state, queue, place_index);
  }
}

// Runs the rollout at a place, whose tokens `Engine` makes.
template <typename Engine>
__device__ __forceinline__ void run(DeviceState& state, uint32_t queue, uint32_t place_index, uint32_t worker_id,
                                    uint32_t lane) {
  Place& place = state.places[queue][place_index];
  const long long start_clock = clock64();
  const uint32_t seq_len = place.seq_len, flags = place.flags;
  const uint32_t eos_threshold = place.eos_threshold, wait_states = place.wait_states;
  auto decoder = Engine::begin(engine::Rollout{place.seed, place.rollout_id, seq_len, place.salt});
  uint32_t* const tokens = reinterpret_cast<uint32_t*>(place.tokens);
  uint32_t* const logps = reinterpret_cast<uint32_t*>(place.logps);
  const uint32_t index = place.index;
  const uint32_t* const abandon = &state.abandon[queue * 32];
  const uint32_t session = place.session;

  Course course{place.max_tokens, place.period, (flags & DOORBELL_FLAG_RESIDENT) != 0};
  bool abandoned = false;
  note(state, queue, place_index, flags, &Moments::started, lane);
  // What has been told to end before it started adds no token.
  const uint32_t early = told(order::load_relaxed_gpu(&place.stop), order::load_relaxed_gpu(&place.abort), index);
  if (UNLIKELY(early != 0) && !DOORBELL_FAULT(StartsRetired))
    course.ended_as = early == kStop ? DOORBELL_STATUS_STOPPED : DOORBELL_STATUS_SUPERSEDED;
  while (course.ended_as == 0) {
    DOORBELL_YIELD();
    // All three are looked at behind the step's arithmetic, which hides their latency.
    const uint32_t stop = order::load_relaxed_gpu(&place.stop);
    const uint32_t abort = order::load_relaxed_gpu(&place.abort);
    const uint32_t dropped = order::load_relaxed_gpu(abandon);
    const uint32_t produced = course.produced;
    const engine::Step step = decoder.step(produced + lane);
    const uint32_t token = decoder.token(step);

    // How many of the 32 count: up to the budget, the next checkpoint, an end of sequence that stops.
    uint32_t count = min(kWarp, course.left());
    if (wait_states != 0) count = 1;
    const uint32_t all_ends = __ballot_sync(kEveryLane, decoder.eos(step, eos_threshold));
    uint32_t ends = all_ends & (count == kWarp ? kEveryLane : (1u << count) - 1);
    const bool eos_stops = (flags & DOORBELL_FLAG_EOS_STOPS) != 0 && ends != 0;
    if (eos_stops) {
      count = __ffs(ends);
      ends = 1u << (count - 1);
    }
    if (wait_states != 0)
      wait_cycles(wait_states, [&] { return order::load_relaxed_gpu(abandon) == session; });
    if (lane < count) order::store_relaxed_sys(tokens + produced + lane, token);
    if (logps != nullptr && lane < count) order::store_relaxed_sys(logps + produced + lane, decoder.logp(step));

    if (count == kWarp && !course.resident) {
#pragma unroll
      for (uint32_t k = 0; k < kWarp; k++) course.digest.push(__shfl_sync(kEveryLane, token, k));
    } else {
      for (uint32_t k = 0; k < count; k++) course.push(__shfl_sync(kEveryLane, token, k));
    }
    if (produced == 0) note(state, queue, place_index, flags, &Moments::first_token, lane);
    course.produced += count;
    if (ends != 0) course.flags |= DOORBELL_CFLAG_EOS;
    if (lane == 0) order::count_gpu(&state.counters[queue].tokens, count);
    course.decide(place, eos_stops, told(stop, abort, index));
    abandoned = __any_sync(kEveryLane, dropped == session);
    if (abandoned) break;
  }

  note_end(state, queue, place_index, flags, course.produced, lane);
  // The tokens of every lane come before the news of the end.
  __syncwarp();
  if (lane == 0) {
    WorkerCounters& counters = state.counters[queue];
    if (!abandoned) {
      leave_result(place, worker_id,
                   Outcome{course.ended_as, DOORBELL_ERR_NONE, course.flags, course.produced, course.digest.value});
      if (course.produced != 0) {
        const uint32_t lines = lines_of(place.tokens, course.produced);
        order::count_gpu(&counters.lines, logps != nullptr ? 2 * lines : lines);
      }
    }
    order::count_gpu(&counters.busy, clock64() - start_clock);
    order::count_gpu(&counters.wait, static_cast<uint64_t>(wait_states) * course.produced);
    give_back(state, queue, place_index);
  }
}

// Tells as many workers of a queue to end, once every front end has.
__device__ void dismiss(WorkQueue& work, uint32_t workers) {
  for (uint32_t k = threadIdx.x; k < workers; k += blockDim.x) {
    const uint32_t ticket = order::take_tickets_gpu(&work.tail, 1);
    hand_out(work, ticket, kExit);
  }
}

// What a worker that has taken `entry` out of the slot of its ticket is to do: nothing, if the end of the session was faster
// to cancel it. The slot is vacant for its next ticket. One lane calls it.
__device__ __forceinline__ bool take_over(DeviceState& state, uint64_t* slot, uint32_t ticket, uint64_t entry) {
  const uint32_t what = static_cast<uint32_t>(entry), queue = what >> 16 & 0xFF;
  const uint64_t vacated = work_entry(ticket + kWorkSlots, kVacant);
  bool mine = (what & kCancelled) == 0;
  if ((what & kQueued) != 0) mine = order::compare_swap_relaxed_gpu(slot, entry, vacated) == entry;
  if ((what & kQueued) == 0 || !mine) order::store_relaxed_gpu(slot, vacated);
  if (what != kExit) order::count_gpu(&state.fetched[queue * 16], 1);
  return mine;
}

// Takes tickets of the warps' work queue, each in turn of its arrival, until one tells it to end. A worker looks at the slot
// of its own ticket alone, not at a word that two thousand look at; and it says there that it waits, so that what is
// handed to it is its own without a further exchange.
__device__ void role(DeviceState& state, uint32_t worker_id, uint32_t lane) {
  WorkQueue& work = state.work[kForWarps];
  for (;;) {
    uint32_t ticket = 0;
    if (lane == 0) ticket = order::take_tickets_gpu(&work.head, 1);
    ticket = __shfl_sync(kEveryLane, ticket, 0);
    uint64_t* const slot = &work.slots[ticket % kWorkSlots];
    if (DOORBELL_FAULT(StallsWorker) && worker_id == 0 && ticket < kPlaces) {
      while (order::load_relaxed_gpu(&work.tail) - ticket <= kWorkSlots) DOORBELL_YIELD();
      DOORBELL_WINDOW(StallsWorker);
    }
    uint64_t entry = 0;
    for (uint32_t spins = 0;;) {
      entry = order::load_acquire_gpu(slot);
      const bool given = entry >> 32 == work_entry(ticket, 0) >> 32 && static_cast<uint32_t>(entry) > kAwaited;
      if (__all_sync(kEveryLane, given)) break;
      if (lane == 0 && entry == work_entry(ticket, kVacant))
        order::compare_swap_relaxed_gpu(slot, entry, work_entry(ticket, kAwaited));
      relax(spins);
    }
    const uint32_t what = __shfl_sync(kEveryLane, static_cast<uint32_t>(entry), 0);
    const uint32_t queue = what >> 16 & 0xFF, place = what & 0xFFFF;
    bool mine = false;
    if (lane == 0) mine = take_over(state, slot, ticket, entry);
    if (what == kExit) return;
    if (!__shfl_sync(kEveryLane, mine, 0)) continue;
    if (UNLIKELY(state.places[queue][place].opcode == DOORBELL_OP_REWARD)) {
      score(state, queue, place, worker_id, lane);
      continue;
    }
    engine::WarpEngines::with(state.places[queue][place].model_id, [&](auto chosen) {
      run<typename decltype(chosen)::Type>(state, queue, place, worker_id, lane);
    });
  }
}

}  // namespace worker

#endif
