// The front end of one queue pair: a block whose warps fetch descriptors, admit them in order, post completions, and
// listen to the host. docs/gpu.md tells the path of a descriptor through it.
#ifndef DOORBELL_FRONT_END_CUH
#define DOORBELL_FRONT_END_CUH

#include "descriptor.cuh"
#include "device_state.cuh"
#include "running_table.cuh"

// In shared memory. A field has one writer, or is changed by atomic operations only.
struct FrontEnd {
  // 32 descriptors, or as many completions, on their way between memory and lanes. First, for its alignment.
  uint4 stage[kFetchWarps][4 * kWarp];
  uint4 completion_stage[2 * kWarp];
  // What the scout found, and whose it is: see kEmpty.
  uint4 find[4];
  uint32_t find_index;
  uint32_t find_state;
  RunningTable running;
  doorbell_session config;  // as read when the session started
  // Places that are free: a ring, from which whoever has the turn takes and to which the completion warp gives back.
  uint32_t free_places[kPlaces];
  uint32_t places_taken;
  uint32_t places_given;  // back
  // The host's registers as last seen.
  uint32_t sq_tail;
  uint32_t cq_head;
  uint32_t wanted;    // the session to come to
  uint32_t stopping;  // the session is to end
  // Running indices of the submission queue: taken by a fetch warp up to, admitted up to.
  uint32_t claimed;
  uint32_t admitted;
  uint32_t outstanding;  // admitted and not completed
  uint32_t fetchers;     // fetch warps that have not ended
  uint32_t waits_for;
  uint32_t asks;
  uint32_t asked;
  // The completion queue's tail and the submission queue's head, tail in the low half: they change together, so that
  // sq_head never goes back from one completion to the next.
  alignas(8) uint64_t posted;
  uint64_t counters[16];
};

namespace front_end {

// A find lies there for nobody, for the first fetch warp that takes it, or for the one that has.
constexpr uint32_t kEmpty = 0, kFound = 1, kTaken = 2;
// Fetch warps that do not sleep, and after how many fruitless looks they do.
constexpr uint32_t kWakeful = 2, kWakefulSpins = 1u << 20;

// Counters by their place in the register page.
constexpr uint32_t kCycles = 0, kDescriptors = 1, kCompletions = 2, kTokens = 3, kBusy = 4, kWait = 6, kStallCq = 8,
                   kStallOrder = 10, kStallFence = 11, kReadBeats = 12, kWriteBeats = 13, kPrefixes = 14, kErrors = 15;
static_assert(DOORBELL_CNT_CYCLES == 0x100 && DOORBELL_CNT_STALL_CQ == 0x100 + 8 * kStallCq &&
              DOORBELL_CNT_ERRORS == 0x100 + 8 * kErrors, "counters are where the contract has them");

__device__ __forceinline__ bool stopping(const FrontEnd& f) { return order::load_relaxed_block(&f.stopping) != 0; }

// ---------------------------------------------------------------- completions

// Reserves up to `wanted` slots of the completion queue, all or none unless `some` will do. Returns how many, the index
// of the first and the sq_head that goes with them. One lane calls it.
struct Reservation {
  uint32_t count;
  uint32_t first;
  uint32_t sq_head;
};

__device__ __forceinline__ Reservation reserve(FrontEnd& f, uint32_t wanted, bool some, uint32_t advance_sq_head_to,
                                               bool advances) {
  uint64_t old = order::load_relaxed_block(&f.posted);
  for (;;) {
    const uint32_t tail = static_cast<uint32_t>(old);
    const uint32_t sq_head = advances ? advance_sq_head_to : static_cast<uint32_t>(old >> 32);
    // R4: never beyond what the host has released.
    const uint32_t room = f.config.cq_size - (tail - order::load_acquire_block(&f.cq_head));
    const uint32_t count = wanted <= room ? wanted : (some ? room : 0);
    if (count < wanted && !some) return Reservation{0, tail, sq_head};
    const uint64_t next = static_cast<uint64_t>(sq_head) << 32 | (tail + count);
    const uint64_t seen = order::compare_swap_block(&f.posted, old, next);
    if (seen == old) return Reservation{count, tail, sq_head};
    old = seen;
  }
}

// Writes the completions that lanes 0 to `count` - 1 have in `stage` as neighbours, two lanes to a completion.
__device__ __forceinline__ void write_completions(const FrontEnd& f, const ulonglong2* stage, uint32_t count,
                                                  uint32_t first, uint32_t lane) {
  const uint32_t mask = f.config.cq_size - 1;
  char* const queue = reinterpret_cast<char*>(f.config.cq_base);
  for (uint32_t base = 0; base < 2 * count; base += kWarp) {
    const uint32_t half = base + lane;
    if (half < 2 * count) {
      ulonglong2* const to =
          reinterpret_cast<ulonglong2*>(queue + 32ull * ((first + half / 2) & mask) + 16 * (half & 1));
      order::store_relaxed_sys(to, stage[half]);
    }
  }
}

// R14: notes that the completion with this index asked for an interrupt.
__device__ __forceinline__ void note_ask(FrontEnd& f, uint32_t index) {
  uint32_t newest = order::load_relaxed_block(&f.asked);
  while (order::load_relaxed_block(&f.asks) == 0 || static_cast<int32_t>(index - newest) > 0) {
    const uint32_t seen = order::compare_swap_block(&f.asked, newest, index);
    if (seen == newest) break;
    newest = seen;
  }
  order::add_acq_rel_block(&f.asks, 1);
}

// ---------------------------------------------------------------- admission

// What one lane of a fetch warp has to admit.
struct Order {
  Descriptor desc;
  Outcome outcome;           // of what ends on the spot
  uint32_t token[kBrief];    // of a short DECODE
  uint32_t rank;             // of a short DECODE among those of its rollout
  uint32_t place;            // of a long one
  bool live;                 // the lane has a descriptor
  bool is_long;              // goes to a worker
  bool is_brief;             // short DECODE, run in the turn
  bool is_stop;
  bool is_fence;
};

// Runs a short DECODE, but for writing its tokens.
__device__ __forceinline__ void run_brief(Order& o, const doorbell_session& config) {
  const uint32_t stream = policy::stream(o.desc.seed(), o.desc.rollout_id());
  const uint32_t period = policy::period(o.desc.checkpoint(), config.checkpoint_default);
  uint32_t digest = DOORBELL_DIGEST_INIT, checkpoint = period;
  o.outcome = ended(0);
#pragma unroll
  for (uint32_t k = 0; k < kBrief; k++) {
    if (o.outcome.status == 0) {
      const uint32_t draw = policy::draw(stream, o.desc.seq_len() + k);
      o.token[k] = policy::token_of(draw);
      digest = policy::fold(digest, o.token[k]);
      const bool eos = policy::is_eos(draw, config.eos_threshold);
      if (eos) o.outcome.flags |= DOORBELL_CFLAG_EOS;
      // The contract's order; no STOP can wait, as nothing comes between.
      if ((eos && o.desc.has(DOORBELL_FLAG_EOS_STOPS)) || k + 1 == o.desc.max_tokens()) {
        o.outcome.status = DOORBELL_STATUS_DONE;
      } else if (k + 1 == checkpoint) {
        if (!o.desc.has(DOORBELL_FLAG_RESIDENT)) {
          o.outcome.status = DOORBELL_STATUS_REWARD_NEEDED;
        } else if (policy::score(digest) < config.reward_threshold) {
          o.outcome.status = DOORBELL_STATUS_DONE;
          o.outcome.flags |= DOORBELL_CFLAG_REJECTED;
        } else {
          checkpoint += period;
        }
      }
      o.outcome.added = k + 1;
    }
  }
  o.outcome.result = digest;
}

// Checks a lane's descriptor and decides how it is to be executed. Everything that needs no order happens here.
__device__ __forceinline__ void classify(Order& o, uint32_t index, const doorbell_session& config) {
  o.is_long = o.is_brief = o.is_stop = o.is_fence = false;
  o.place = 0;
  if (!o.live) return;
  const uint32_t error = verifies(o.desc, index) ? error_of(o.desc, config) : DOORBELL_ERR_BAD_CHECK;
  if (error != DOORBELL_ERR_NONE) {
    o.outcome = ended(DOORBELL_STATUS_ERROR, error);
    return;
  }
  o.is_fence = o.desc.has(DOORBELL_FLAG_FENCE);
  switch (o.desc.opcode()) {
    case DOORBELL_OP_DECODE:
      o.is_brief = o.desc.max_tokens() <= kBrief && config.wait_states == 0;
      o.is_long = !o.is_brief;
      if (o.is_brief) run_brief(o, config);
      break;
    case DOORBELL_OP_STOP:
      o.is_stop = true;
      o.outcome = ended(DOORBELL_STATUS_STOPPED);
      break;
    default:
      o.outcome = ended(DOORBELL_STATUS_DONE);
      break;
  }
}

// Which of two short DECODEs of one rollout writes first: how many below this lane are of its rollout. `rounds` is one
// more than the largest of the warp.
__device__ __forceinline__ void rank_briefs(Order& o, uint32_t briefs, uint32_t lane, uint32_t& rounds) {
  o.rank = 0;
  rounds = 1;
  if ((briefs & (briefs - 1)) == 0) return;
  if (briefs >> lane & 1) o.rank = __popc(__match_any_sync(briefs, o.desc.rollout_id()) & ((1u << lane) - 1));
  rounds = __reduce_max_sync(kEveryLane, o.rank) + 1;
}

// Admits the lanes in `mask` if there are places, table entries and completion slots for all of them; else changes
// nothing, and says what was missing. The caller has the turn: what happens here is all that the queue does one after
// the other, so it is short.
__device__ __forceinline__ uint32_t admit(FrontEnd& f, Order& o, uint32_t mask, uint32_t consumed_to, uint32_t lane,
                                          uint32_t& first_completion) {
  const uint32_t longs = __ballot_sync(kEveryLane, o.is_long) & mask;
  const uint32_t instants = mask & ~longs;
  bool entered = false;
  if (longs != 0) {
    const uint32_t taken = f.places_taken;
    // The last place is never given out: see RunningTable.
    const uint32_t limit = f.config.workers == 0 ? kPlaces - 1 : min(f.config.workers, kPlaces - 1);
    if (taken - order::load_acquire_block(&f.places_given) + __popc(longs) > limit) return DOORBELL_WAIT_WORKER;
    if (longs >> lane & 1) {
      o.place = order::load_relaxed_block(
          &f.free_places[(taken + __popc(longs & ((1u << lane) - 1))) % (kPlaces - 1)]);
      entered = f.running.enter(o.desc.rollout_id(), o.place);
    }
    if (__ballot_sync(kEveryLane, entered) != longs) {
      if (entered) f.running.leave(o.desc.rollout_id());
      __syncwarp();
      return DOORBELL_WAIT_WORKER;
    }
  }
  Reservation reservation{};
  if (lane == 0) {
    // Counted before the reservation, so that nobody sees a completion without its descriptor.
    order::add_relaxed_block(&f.outstanding, __popc(mask));
    reservation = reserve(f, __popc(instants), false, consumed_to, true);
    if (reservation.count != __popc(instants)) order::add_relaxed_block(&f.outstanding, 0u - __popc(mask));
    if (reservation.count == __popc(instants)) f.places_taken += __popc(longs);
  }
  first_completion = __shfl_sync(kEveryLane, reservation.first, 0);
  if (__shfl_sync(kEveryLane, reservation.count, 0) != __popc(instants)) {
    if (entered) f.running.leave(o.desc.rollout_id());
    __syncwarp();
    return DOORBELL_WAIT_COMPLETION_SLOT;
  }
  return DOORBELL_WAIT_NOTHING;
}

// Writes the tokens of the short DECODEs in `briefs`, while the warp has the turn: two of one rollout never write at the
// same time (R5).
__device__ __forceinline__ void write_brief_tokens(const FrontEnd& f, const Order& o, uint32_t briefs, uint32_t rounds,
                                                   uint32_t lane) {
  uint32_t* const to = reinterpret_cast<uint32_t*>(f.config.token_base + o.desc.delta_offset());
  for (uint32_t round = 0; round < rounds; round++) {
    if ((briefs >> lane & 1) && o.rank == round) {
#pragma unroll
      for (uint32_t k = 0; k < kBrief; k++)
        if (k < o.outcome.added) order::store_relaxed_sys(to + k, o.token[k]);
    }
    __syncwarp();
  }
}

// Hands the long DECODEs of `mask` to the workers and posts the completions of the others.
__device__ __forceinline__ void finish(FrontEnd& f, const Launch& launch, uint32_t queue, uint32_t session,
                                       const Order& o, uint32_t mask, uint32_t first_completion, uint32_t consumed_to,
                                       uint4* stage, uint32_t lane) {
  const uint32_t longs = __ballot_sync(kEveryLane, o.is_long) & mask;
  const uint32_t instants = mask & ~longs;
  const uint32_t below = (1u << lane) - 1;
  if (longs != 0) {
    uint32_t ticket = 0;
    if (lane == 0) ticket = order::take_tickets_gpu(&launch.state->work_tail, __popc(longs));
    ticket = __shfl_sync(kEveryLane, ticket, 0) + __popc(longs & below);
    if (longs >> lane & 1) {
      Place& place = launch.state->places[queue][o.place];
      place.rollout_id = o.desc.rollout_id();
      place.seed = o.desc.seed();
      place.seq_len = o.desc.seq_len();
      place.max_tokens = o.desc.max_tokens();
      place.period = policy::period(o.desc.checkpoint(), f.config.checkpoint_default);
      place.flags = o.desc.flags();
      place.reward_model_id = o.desc.reward_model_id();
      order::store_relaxed_gpu(&place.stop, 0);
      place.user_data = o.desc.user_data();
      place.tokens = f.config.token_base + o.desc.delta_offset();
      place.eos_threshold = f.config.eos_threshold;
      place.wait_states = f.config.wait_states;
      place.reward_threshold = f.config.reward_threshold;
      place.session = session;
      order::store_release_gpu(&launch.state->work[ticket % kWorkSlots],
                               static_cast<uint64_t>(ticket + 1) << 32 | queue << 16 | o.place);
    }
  }
  if (instants == 0) return;

  const bool mine = instants >> lane & 1;
  const uint32_t rank = __popc(instants & below);
  const uint32_t briefs = __ballot_sync(kEveryLane, mine && o.is_brief);
  ulonglong2* const halves = reinterpret_cast<ulonglong2*>(stage);
  if (mine) {
    ulonglong2 pair[2];
    write_completion(pair, o.desc.user_data(), o.desc.rollout_id(), o.desc.seq_len(), o.desc.reward_model_id(), 0,
                     o.outcome);
    const uint32_t index = first_completion + rank;
    place_completion(pair[1], consumed_to, phase_of(index, f.config.cq_size));
    halves[2 * rank] = pair[0];
    halves[2 * rank + 1] = pair[1];
  }
  __syncwarp();
  // The tokens of every lane before the completions of any. Without tokens there is nothing to order: the halves of a
  // completion are told apart by the host's mark (R4).
  if (briefs != 0) order::fence_sys();
  write_completions(f, halves, __popc(instants), first_completion, lane);

  const bool failed = mine && o.outcome.status == DOORBELL_STATUS_ERROR;
  const uint32_t errors = __ballot_sync(kEveryLane, failed);
  const uint32_t prefills = __ballot_sync(kEveryLane, mine && !failed && o.desc.opcode() == DOORBELL_OP_PREFILL);
  const uint32_t asking = __ballot_sync(kEveryLane, mine && (failed || o.desc.has(DOORBELL_FLAG_INTERRUPT)));
  const uint32_t tokens = briefs == 0 ? 0 : __reduce_add_sync(kEveryLane, mine ? o.outcome.added : 0);
  const uint32_t lines =
      briefs == 0 ? 0
                  : __reduce_add_sync(kEveryLane, mine && o.is_brief ? lines_of(o.desc.delta_offset(), o.outcome.added) : 0);
  if (lane == 0) {
    const uint32_t count = __popc(instants);
    order::count_block(&f.counters[kCompletions], count);
    order::count_block(&f.counters[kWriteBeats], count + lines);
    if (tokens != 0) order::count_block(&f.counters[kTokens], tokens);
    if (errors != 0) order::count_block(&f.counters[kErrors], __popc(errors));
    if (prefills != 0) order::count_block(&f.counters[kPrefixes], __popc(prefills));
    if (asking != 0) note_ask(f, first_completion + __popc(instants & ((2u << (31 - __clz(asking))) - 1)) - 1);
    // What had to be ordered was so by the fence above.
    order::add_relaxed_block(&f.outstanding, 0u - count);
  }
  __syncwarp();
}

// ---------------------------------------------------------------- fetch

// One fetch warp's part of a session.
struct Fetcher {
  FrontEnd& f;
  const Launch& launch;
  const uint32_t queue, session, lane;
  uint4* const stage;

  // Element of the stage that holds quarter `k` of descriptor `d`: permuted so that neither side meets a bank twice.
  static __device__ __forceinline__ uint32_t staged(uint32_t d, uint32_t k) { return 4 * d + (k ^ (d >> 1 & 3)); }

  __device__ __forceinline__ const uint4* slot(uint32_t index) const {
    return reinterpret_cast<const uint4*>(f.config.sq_base + 64ull * (index & (f.config.sq_size - 1)));
  }

  // Reads `count` published slots from `first` on, each warp-wide load eight of them.
  __device__ __forceinline__ void load(uint32_t first, uint32_t count) {
    uint4 part[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t d = 8 * k + lane / 4;
      if (d < count) part[k] = order::load_relaxed_sys(slot(first + d) + (lane & 3));
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t d = 8 * k + lane / 4;
      if (d < count) stage[staged(d, lane & 3)] = part[k];
    }
    __syncwarp();
  }

  // Takes the slots from `first` on; false if another warp was faster.
  __device__ __forceinline__ bool claim(uint32_t first, uint32_t count) {
    uint32_t seen = 0;
    if (lane == 0) seen = order::compare_swap_block(&f.claimed, first, first + count);
    seen = __shfl_sync(kEveryLane, seen, 0);
    __syncwarp();
    return seen == first;
  }

  // Takes what the scout has found, if there is anything; its index is then `first`.
  __device__ __forceinline__ bool take_find(uint32_t& first) {
    uint32_t taken = 0;
    if (lane == 0 && order::load_acquire_block(&f.find_state) == kFound)
      taken = order::compare_swap_block(&f.find_state, kFound, kTaken) == kFound;
    if (__shfl_sync(kEveryLane, taken, 0) == 0) return false;
    __syncwarp();
    first = f.find_index;
    if (lane < 4) stage[staged(0, lane)] = f.find[lane];
    __syncwarp();
    if (lane == 0) order::store_release_block(&f.find_state, kEmpty);
    return true;
  }

  __device__ __forceinline__ bool quiet() const { return order::load_acquire_block(&f.outstanding) == 0; }

  // Notes what the oldest descriptor waits for, and for how long since `since`, which is moved on (R15). False if the
  // session ends: then there is nothing to wait for.
  __device__ __forceinline__ bool keep_waiting(uint32_t waits_for, long long& since, uint32_t& spins) {
    const uint32_t counter = waits_for == DOORBELL_WAIT_COMPLETION_SLOT ? kStallCq
                             : waits_for == DOORBELL_WAIT_FENCE         ? kStallFence
                                                                        : kStallOrder;
    relax(spins);
    const long long now = clock64();
    if (lane == 0) {
      order::count_block(&f.counters[counter], now - since);
      order::store_relaxed_block(&f.waits_for, waits_for);
    }
    since = now;
    return !__any_sync(kEveryLane, stopping(f));
  }

  // What a descriptor that is taken alone has to wait for, by its rules.
  __device__ __forceinline__ uint32_t held_by(uint32_t rollout, bool fence, bool is_stop) {
    // R7: all earlier ones have completed.
    if (fence && !__all_sync(kEveryLane, quiet())) return DOORBELL_WAIT_FENCE;
    // R5: one descriptor of a rollout at a time, in order.
    const uint32_t place = f.running.find(rollout);
    if (__all_sync(kEveryLane, place == RunningTable::kNone)) return DOORBELL_WAIT_NOTHING;
    if (!is_stop) return DOORBELL_WAIT_ROLLOUT;
    // R8: the rollout ends at the next token boundary that its worker comes to.
    if (lane == 0 && place != RunningTable::kNone) order::store_relaxed_gpu(&launch.state->places[queue][place].stop, 1);
    __syncwarp();
    return DOORBELL_WAIT_STOP;
  }

  // Executes the `count` descriptors from `first` on, which are staged. False if the session ends first.
  __device__ bool execute(uint32_t first, uint32_t count) {
    Order o;
    o.live = lane < count;
    o.desc = Descriptor{};
    if (o.live) {
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) o.desc.quarter[k] = stage[staged(lane, k)];
    }
    __syncwarp();
    classify(o, first + lane, f.config);
    const uint32_t longs = __ballot_sync(kEveryLane, o.is_long);
    const uint32_t briefs = __ballot_sync(kEveryLane, o.is_brief);
    uint32_t rounds = 0;
    rank_briefs(o, briefs, lane, rounds);

    // What is to be taken one by one: what waits for others, or makes them wait.
    bool alone = o.is_fence || o.is_stop || (o.is_long && f.config.workers == 1);
    if (longs != 0 && count > 1) {
      const uint32_t same = __match_any_sync(kEveryLane, o.desc.rollout_id());
      alone |= o.live && (same & longs & ((1u << lane) - 1)) != 0;
    }
    bool one_by_one = __any_sync(kEveryLane, alone);
    const uint32_t consumed_to = first + count;
    uint32_t left = count == kWarp ? kEveryLane : (1u << count) - 1;

    // The turn.
    uint32_t spins = 0;
    while (order::load_acquire_block(&f.admitted) != first) {
      if (stopping(f)) return false;
      relax(spins);
    }
    if (!f.running.empty())
      one_by_one |= __any_sync(kEveryLane, o.live && f.running.find(o.desc.rollout_id()) != RunningTable::kNone);
    bool has_turn = true;
    long long since = 0;
    while (left != 0) {
      const uint32_t mask = one_by_one ? left & (0u - left) : left;
      uint32_t first_completion = 0;
      uint32_t missing = DOORBELL_WAIT_NOTHING;
      bool fence = false;
      if (one_by_one) {
        const uint32_t k = __ffs(mask) - 1;
        fence = __shfl_sync(kEveryLane, o.is_fence, k);
        missing = held_by(__shfl_sync(kEveryLane, o.desc.rollout_id(), k), fence, __shfl_sync(kEveryLane, o.is_stop, k));
      }
      if (missing == DOORBELL_WAIT_NOTHING) missing = admit(f, o, mask, consumed_to, lane, first_completion);
      if (missing != DOORBELL_WAIT_NOTHING) {
        one_by_one = true;
        if (since == 0) since = clock64();
        if (!keep_waiting(missing, since, spins)) return false;
        continue;
      }
      if ((briefs & mask) != 0) write_brief_tokens(f, o, briefs & mask, one_by_one ? kWarp : rounds, lane);
      left &= ~mask;
      if (left == 0 && !one_by_one) {
        // The turn passes on; what is left needs no order.
        __syncwarp();
        if (lane == 0) order::store_release_block(&f.admitted, consumed_to);
        has_turn = false;
      }
      finish(f, launch, queue, session, o, mask, first_completion, consumed_to, stage, lane);
      // R7: and none later starts before it has. R5: one worker completes in order.
      if (fence || (f.config.workers == 1 && (longs & mask) != 0)) {
        if (since == 0) since = clock64();
        while (!__all_sync(kEveryLane, quiet()))
          if (!keep_waiting(DOORBELL_WAIT_FENCE, since, spins)) return false;
      }
    }
    if (lane == 0) {
      if (since != 0) order::store_relaxed_block(&f.waits_for, DOORBELL_WAIT_NOTHING);
      order::count_block(&f.counters[kDescriptors], count);
      if (has_turn) order::store_release_block(&f.admitted, consumed_to);
    }
    __syncwarp();
    return true;
  }

  __device__ void role(uint32_t warp) {
    fetch_until_stopped(warp);
    __syncwarp();
    if (lane == 0) order::add_acq_rel_block(&f.fetchers, 0u - 1);
  }

 private:
  __device__ __forceinline__ void fetch_until_stopped(uint32_t warp) {
    uint32_t idle = 0;
    while (!__any_sync(kEveryLane, stopping(f))) {
      // One lane decides for the warp.
      uint32_t first = 0, known = 0;
      if (lane == 0) {
        first = order::load_acquire_block(&f.claimed);
        known = order::load_acquire_block(&f.sq_tail) - first;
      }
      first = __shfl_sync(kEveryLane, first, 0);
      known = __shfl_sync(kEveryLane, known, 0);
      // The check words may have published more than the doorbell has told yet.
      if (known > f.config.sq_size) known = 0;
      uint32_t count = 1;
      if (known != 0) {
        count = min(known, kWarp);
        if (!claim(first, count)) continue;
        load(first, count);
      } else if (!take_find(first)) {
        // The first warps stay awake for what the scout finds.
        if (warp >= kWakeful || ++idle > kWakefulSpins) __nanosleep(100);
        continue;
      }
      idle = 0;
      if (!execute(first, count)) return;
    }
  }
};

// ---------------------------------------------------------------- scout role

// Polls the slot at the head of the queue for as long as the doorbell tells of nothing, and hands what is published by
// its check word (R1) to a fetch warp. It is one warp, and does nothing else: the next look is on its way while the
// last find is executed, and two that looked at one slot would have to wait for each other on the bus.
__device__ void scout_role(FrontEnd& f, uint32_t lane) {
  while (!__any_sync(kEveryLane, stopping(f))) {
    uint32_t index = 0, known = 0, state = 0;
    if (lane == 0) {
      index = order::load_acquire_block(&f.claimed);
      known = order::load_acquire_block(&f.sq_tail) - index;
      state = order::load_acquire_block(&f.find_state);
    }
    index = __shfl_sync(kEveryLane, index, 0);
    known = __shfl_sync(kEveryLane, known, 0);
    state = __shfl_sync(kEveryLane, state, 0);
    if (state != kEmpty || (known != 0 && known <= f.config.sq_size)) continue;
    // Only four lanes read: to others the slot might show a later state.
    uint32_t share = 0;
    uint4 part = make_uint4(0, 0, 0, 0);
    if (lane < 4) {
      part = order::load_relaxed_sys(
          reinterpret_cast<const uint4*>(f.config.sq_base + 64ull * (index & (f.config.sq_size - 1))) + lane);
      share = check_share(part, lane);
    }
    share ^= __shfl_xor_sync(kEveryLane, share, 1);
    share ^= __shfl_xor_sync(kEveryLane, share, 2);
    if (__shfl_sync(kEveryLane, share, 0) != index_mark(index)) continue;
    uint32_t seen = 0;
    if (lane == 0) seen = order::compare_swap_block(&f.claimed, index, index + 1);
    if (__shfl_sync(kEveryLane, seen, 0) != index) continue;
    if (lane < 4) f.find[lane] = part;
    if (lane == 0) f.find_index = index;
    __syncwarp();
    if (lane == 0) order::store_release_block(&f.find_state, kFound);
    __syncwarp();
  }
}

// ---------------------------------------------------------------- completion role

// Posts what the workers have finished, in the order in which they did. `next` is the ticket to come; returns the
// next one when the session has ended and every worker has let go of it.
__device__ uint32_t completion_role(FrontEnd& f, const Launch& launch, uint32_t queue, uint32_t next, uint4* stage,
                                    uint32_t lane) {
  uint32_t spins = 0;
  for (;;) {
    const uint64_t entry = order::load_acquire_gpu(&launch.state->done[queue][(next + lane) % kPlaces]);
    const uint32_t fresh = __ballot_sync(kEveryLane, static_cast<uint32_t>(entry >> 32) == next + lane + 1);
    uint32_t count = fresh == kEveryLane ? kWarp : __ffs(~fresh) - 1;
    const bool ending = __any_sync(kEveryLane, stopping(f));
    if (count == 0) {
      // Once the fetch warps have ended nothing more is taken, and each place taken comes back.
      if (ending && order::load_acquire_block(&f.fetchers) == 0 &&
          order::load_relaxed_block(&f.places_taken) == order::load_relaxed_block(&f.places_given))
        return next;
      relax(spins);
      continue;
    }
    spins = 0;
    Reservation reservation{};
    if (!ending) {
      if (lane == 0) reservation = reserve(f, count, true, 0, false);
      reservation.count = __shfl_sync(kEveryLane, reservation.count, 0);
      reservation.first = __shfl_sync(kEveryLane, reservation.first, 0);
      reservation.sq_head = __shfl_sync(kEveryLane, reservation.sq_head, 0);
      count = reservation.count;
      if (count == 0) {
        // R4: the host has to release a slot first.
        if (lane == 0) {
          order::count_block(&f.counters[kStallCq], 1);
          order::store_release_block(&f.waits_for, DOORBELL_WAIT_COMPLETION_SLOT);
        }
        relax(spins);
        continue;
      }
    }
    const bool mine = lane < count;
    const uint32_t place_index = static_cast<uint32_t>(entry);
    const Place& place = launch.state->places[queue][place_index];
    const uint32_t rollout = mine ? place.rollout_id : 0;
    uint32_t asking = 0;
    if (!ending) {
      ulonglong2* const halves = reinterpret_cast<ulonglong2*>(stage);
      if (mine) {
        halves[2 * lane] = place.result[0];
        ulonglong2 second = place.result[1];
        place_completion(second, reservation.sq_head, phase_of(reservation.first + lane, f.config.cq_size));
        halves[2 * lane + 1] = second;
      }
      asking = __ballot_sync(kEveryLane, mine && (place.flags & DOORBELL_FLAG_INTERRUPT) != 0);
      __syncwarp();
      // The workers' tokens, seen through their release and this warp's acquire, before the completions.
      order::fence_sys();
      write_completions(f, halves, count, reservation.first, lane);
      __syncwarp();
    }
    // R5: from here on another descriptor of the rollout may start.
    if (mine) {
      f.running.leave(rollout);
      const uint32_t given = f.places_given;
      f.free_places[(given + lane) % (kPlaces - 1)] = place_index;
    }
    __syncwarp();
    if (lane == 0) {
      order::count_block(&f.counters[kCompletions], ending ? 0 : count);
      order::count_block(&f.counters[kWriteBeats], ending ? 0 : count);
      if (asking != 0) note_ask(f, reservation.first + 31 - __clz(asking));
      order::store_release_block(&f.places_given, f.places_given + count);
      order::add_acq_rel_block(&f.outstanding, 0u - count);
    }
    __syncwarp();
    next += count;
  }
}

// ---------------------------------------------------------------- control role

// Tells the host how far the session is. Its order is that of `outstanding` behind `sq_head`: what is consumed and not
// outstanding has completed.
__device__ __forceinline__ void publish(const FrontEnd& f, const Launch& launch, uint32_t queue, long long cycles,
                                        uint32_t heartbeat, uint32_t lane) {
  doorbell_mailbox& mailbox = launch.mailboxes[queue];
  const WorkerCounters& workers = launch.state->counters[queue];
  const uint32_t sq_head = order::load_acquire_block(&f.admitted);
  const uint32_t outstanding = order::load_acquire_block(&f.outstanding);
  if (lane < 16) {
    uint64_t value = order::load_relaxed_block(&f.counters[lane]);
    if (lane == kCycles) value = cycles;
    if (lane == kTokens) value += order::load_relaxed_gpu(&workers.tokens);
    if (lane == kBusy) value = order::load_relaxed_gpu(&workers.busy);
    if (lane == kWait) value = order::load_relaxed_gpu(&workers.wait);
    if (lane == kReadBeats) value = order::load_relaxed_block(&f.counters[kDescriptors]);
    if (lane == kWriteBeats) value += order::load_relaxed_gpu(&workers.lines);
    order::store_relaxed_sys(&mailbox.counters[lane], value);
  }
  if (lane == 0) {
    order::store_relaxed_sys(&mailbox.sq_head, sq_head);
    order::store_relaxed_sys(&mailbox.cq_tail, static_cast<uint32_t>(order::load_relaxed_block(&f.posted)));
    order::store_relaxed_sys(&mailbox.outstanding, outstanding);
    order::store_relaxed_sys(&mailbox.asked, order::load_relaxed_block(&f.asked));
    order::store_relaxed_sys(&mailbox.asks, order::load_acquire_block(&f.asks));
    order::store_relaxed_sys(&mailbox.waits_for, order::load_relaxed_block(&f.waits_for));
    order::store_relaxed_sys(&mailbox.heartbeat, heartbeat);
  }
}

// Listens to the host until it wants another session, or none.
__device__ void control_role(FrontEnd& f, const Launch& launch, uint32_t queue, uint32_t session, long long started,
                             uint32_t& heartbeat, uint32_t lane) {
  const doorbell_mailbox& mailbox = launch.mailboxes[queue];
  uint64_t published = 0;
  for (;;) {
    const uint4 host = order::load_acquire_sys(reinterpret_cast<const uint4*>(&mailbox));
    const uint32_t wanted = __shfl_sync(kEveryLane, host.x, 0);
    if (wanted != session) break;
    if (lane == 0) {
      order::store_release_block(&f.sq_tail, host.y);
      order::store_release_block(&f.cq_head, host.z);
    }
    __syncwarp();
    heartbeat++;
    // What has changed is told every few rounds; that nothing has, now and then.
    if (heartbeat % 4 == 0) {
      const uint64_t now = order::load_relaxed_block(&f.posted) + order::load_relaxed_block(&f.outstanding) +
                           order::load_relaxed_gpu(&launch.state->counters[queue].tokens) +
                           order::load_relaxed_block(&f.counters[kCompletions]);
      const uint64_t news = __shfl_sync(kEveryLane, now, 0);
      if (news != published || heartbeat % 64 == 0) {
        published = news;
        publish(f, launch, queue, clock64() - started, heartbeat, lane);
      }
    }
  }
  if (lane == 0) {
    order::store_relaxed_gpu(&launch.state->abandon[queue * 32], session);
    order::store_release_block(&f.stopping, 1);
  }
  __syncwarp();
}

// ---------------------------------------------------------------- the block

// Sessions, one after the other, until the host wants no more. True for the last front end to end.
__device__ bool block(FrontEnd& f, const Launch& launch, uint32_t queue) {
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  doorbell_mailbox& mailbox = launch.mailboxes[queue];
  uint32_t next_done = 0, heartbeat = 0, session = 0;
  long long started = 0;
  for (;;) {
    // Only the control warp listens; the others sleep at the barrier.
    if (warp == kControlWarp) {
      uint32_t wanted = session, spins = 0;
      for (;;) {
        const uint4 host = order::load_acquire_sys(reinterpret_cast<const uint4*>(&mailbox));
        wanted = __shfl_sync(kEveryLane, host.x, 0);
        if (wanted != session) break;
        heartbeat++;
        if (lane == 0 && heartbeat % 64 == 0) order::store_relaxed_sys(&mailbox.heartbeat, heartbeat);
        relax(spins);
      }
      if (lane == 0) f.wanted = wanted;
      __syncwarp();
      const bool starts = wanted % 2 == 1;
      if (starts) {
        // The host wrote the session's registers before it wanted it.
        const uint32_t* const from = reinterpret_cast<const uint32_t*>(&mailbox.session);
        uint32_t* const to = reinterpret_cast<uint32_t*>(&f.config);
        for (uint32_t k = lane; k < sizeof(doorbell_session) / 4; k += kWarp) to[k] = order::load_relaxed_sys(from + k);
        __syncwarp();
      }
    }
    __syncthreads();
    session = f.wanted;
    if (session % 2 == 1) {
      for (uint32_t k = threadIdx.x; k < RunningTable::kSets; k += kBlockThreads) f.running.clear_set(k);
      for (uint32_t k = threadIdx.x; k < kPlaces; k += kBlockThreads) f.free_places[k] = k;
      if (threadIdx.x < 16) f.counters[threadIdx.x] = 0;
      if (threadIdx.x == 0) {
        f.find_state = f.running.entries = f.places_taken = f.places_given = f.outstanding = f.waits_for = f.asks = f.asked = 0;
        f.stopping = 0;
        f.fetchers = kFetchWarps;
        f.sq_tail = f.claimed = f.admitted = f.config.sq_start;
        f.cq_head = f.config.cq_start;
        f.posted = static_cast<uint64_t>(f.config.sq_start) << 32 | f.config.cq_start;
        launch.state->counters[queue] = WorkerCounters{0, 0, 0, 0};
      }
      __syncthreads();
      if (warp == kControlWarp) {
        started = clock64();
        publish(f, launch, queue, 0, heartbeat, lane);
        __syncwarp();
        order::fence_sys();
        if (lane == 0) order::store_release_sys(&mailbox.reached, session);
        control_role(f, launch, queue, session, started, heartbeat, lane);
      } else if (warp == kCompletionWarp) {
        next_done = completion_role(f, launch, queue, next_done, f.completion_stage, lane);
      } else if (warp == kScoutWarp) {
        scout_role(f, lane);
      } else {
        Fetcher{f, launch, queue, session, lane, f.stage[warp]}.role(warp);
      }
      // R12: behind this barrier, and the fence of the acknowledgement, nothing of the session writes memory.
      __syncthreads();
      if (warp == kControlWarp) publish(f, launch, queue, clock64() - started, heartbeat, lane);
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
