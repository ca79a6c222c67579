// The front end of one queue pair: a block whose warps fetch descriptors, admit them in order, post completions, and
// listen to the host. docs/gpu.md tells the path of a descriptor through it.
#ifndef DOORBELL_FRONT_END_CUH
#define DOORBELL_FRONT_END_CUH

#include "descriptor.cuh"
#include "device_state.cuh"
#include "event_ring.cuh"
#include "group_table.cuh"
#include "language_image.cuh"
#include "running_table.cuh"

// In shared memory. A field has one writer, or is changed by atomic operations only.
struct FrontEnd {
  // 32 descriptors, or as many completions, on their way between memory and lanes. First, for its alignment.
  uint4 stage[kFetchWarps + 1][4 * kWarp];  // of the fetch warps and the scout
  uint4 completion_stage[2 * kWarp];
  RunningTable running;
  GroupTable groups;
  EventRing events;
  uint4 key[4];             // of the session's check words (R2)
  Versions versions;        // of the policy: changed in the turn, or at another's publish, `epoch` behind it
  doorbell_session config;  // as read when the session started
  // Places that are free: a ring, from which whoever has the turn takes and to which the completion warp gives back. It
  // starts with all but the last (see RunningTable), so it never fills up, and its size divides 2^32 (R13).
  uint32_t free_places[kPlaces];
  uint32_t places_taken;
  uint32_t places_given;  // back
  uint32_t tickets[kPlaces];  // of its work queue, by place
  // What is at a place (binding), 0 for nothing; its prefix_id, of what is shared; its SQ index << 32 | rollout_id.
  uint32_t bound[kPlaces];
  uint32_t prefix[kPlaces];
  alignas(8) uint64_t owner[kPlaces];
  uint32_t epoch;   // rises with each version that is published
  uint32_t loaded;  // the slot of the newest
  uint64_t* shown;  // where the host looks at the slots
  LanguageMemory language;
  language::Publication publication;  // by whoever publishes a version of engine 1
  uint32_t opening;  // PREFILLs at workers that have opened groups
  uint32_t gate;    // 1: something is being admitted under the versions as they are, or they are being changed
  uint32_t heard;   // the last request of the function that was there when the session started
  // The ABORT that has not come to all that was published before it (R8), by the control warp.
  uint32_t aborting;
  uint32_t aborted;  // the number of the last that has
  // The tail of the submission queue when it was written << 32 | its rollout: one word, as the next may come before the
  // warps have seen that this one is over.
  alignas(8) uint64_t abort_of;
  // Tickets of all sessions: handed out, and of these come to by workers, as last seen.
  uint32_t handed_out;
  uint32_t fetched;
  // The host's registers as last seen.
  uint32_t sq_tail;
  uint32_t cq_head;
  uint32_t wanted;    // the session to come to
  uint32_t stopping;  // the session is to end
  // Running indices of the submission queue: taken by a fetch warp up to, admitted up to.
  uint32_t claimed;
  uint32_t admitted;
  // Behind the batch that the end of the session has cut off, of which some may have been admitted, if it has.
  uint32_t cut;
  uint32_t was_cut;
  uint32_t fetchers;  // fetch warps, and the scout, that have not ended
  uint32_t waits_for;
  uint32_t asks;
  uint32_t asked;
  // The completion queue's tail and the submission queue's head, tail in the low half: they change together, so that
  // sq_head never goes back from one completion to the next.
  alignas(8) uint64_t posted;
  // What one warp keeps from one session to the next, and needs in no register meanwhile.
  uint32_t next_done;  // ticket, of the completion warp
  uint32_t heartbeat;  // of the control warp, and when the session started
  alignas(8) long long started;
  // Each warp counts for itself: an atomic addition of 64 bits is a loop in shared memory.
  uint64_t counters[kBlockWarps][16];
};

#if defined(__CUDACC__)
// The host asks for so much before it starts a kernel (gpu/src/info.rs).
constexpr uint32_t kFrontEndBytes = 153760;
static_assert(sizeof(FrontEnd) == kFrontEndBytes, "the host refuses a GPU whose blocks have less shared memory");
#endif

namespace front_end {

// Element of a stage that holds quarter `k` of descriptor `d`: permuted so that neither side meets a bank twice.
__device__ __forceinline__ uint32_t staged(uint32_t d, uint32_t k) { return 4 * d + (k ^ (d >> 1 & 3)); }

// Counters by their place in the register page.
constexpr uint32_t kCycles = 0, kDescriptors = 1, kCompletions = 2, kTokens = 3, kBusy = 4, kWait = 6, kStallCq = 8,
                   kStallOrder = 10, kStallFence = 11, kReadBeats = 12, kWriteBeats = 13, kPrefixes = 14, kErrors = 15;
static_assert(DOORBELL_CNT_CYCLES == 0x100 && DOORBELL_CNT_STALL_CQ == 0x100 + 8 * kStallCq &&
              DOORBELL_CNT_ERRORS == 0x100 + 8 * kErrors, "counters are where the contract has them");

__device__ __forceinline__ bool stopping(const FrontEnd& f) { return order::load_relaxed_block(&f.stopping) != 0; }

// Adds to a counter of this warp. One lane calls it.
__device__ __forceinline__ void tally(FrontEnd& f, uint32_t warp, uint32_t counter, uint64_t amount) {
  uint64_t* const to = &f.counters[warp][counter];
  order::store_relaxed_block(to, order::load_relaxed_block(to) + amount);
}

// Counts completions: whoever sees the count, and fences, sees them (R7). One lane calls it, for what all lanes have
// written before a __syncwarp.
__device__ __forceinline__ void tally_completions(FrontEnd& f, uint32_t warp, uint32_t amount) {
  uint64_t* const to = &f.counters[warp][kCompletions];
  const uint64_t count = order::load_relaxed_block(to) + amount;
  if (DOORBELL_FAULT(CountsUnordered)) return order::store_relaxed_block(to, count);
  order::store_release_block(to, count);
}

// Completions of the session, modulo 2^32.
__device__ __forceinline__ uint32_t completed(const FrontEnd& f) {
  uint32_t sum = 0;
#pragma unroll 1
  for (uint32_t warp = 0; warp < kBlockWarps; warp++) {
    sum += static_cast<uint32_t>(order::load_relaxed_block(&f.counters[warp][kCompletions]));
  }
  return sum;
}

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
    uint32_t room = f.config.cq_size - (tail - order::load_acquire_block(&f.cq_head));
    if (DOORBELL_FAULT(ReservesBlindly)) room = wanted;
    const uint32_t count = wanted <= room ? wanted : (some ? room : 0);
    if (count < wanted && !some) return Reservation{0, tail, sq_head};
    const uint64_t next = static_cast<uint64_t>(sq_head) << 32 | (tail + count);
    const uint64_t seen = order::compare_swap_relaxed_block(&f.posted, old, next);
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
  // Unless a newer one has: those that are not released lie within the queue's size.
  while (newest - index - 1 >= f.config.cq_size) {
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
  engine::Step step[kBrief]; // the tokens of a short DECODE
  uint32_t rank;             // of a short DECODE among those of its rollout
  uint32_t place;            // of a long one
  uint32_t salt;             // of the version of a DECODE
  uint32_t slot;             // that holds it
  uint32_t bound;            // the group that it belongs to
  bool live;                 // the lane has a descriptor
  bool is_plain;             // but for those that run it needs to know of nobody: no worker, no group, no publisher
  bool is_long;              // goes to a worker
  bool is_brief;             // short DECODE, run in the turn
  bool is_stop;
  bool is_fence;
};

// The rollout of a lane's short DECODE.
__device__ __forceinline__ engine::Brief::Decoder begin_brief(const Order& o) {
  return engine::Brief::begin(engine::Rollout{o.desc.seed(), o.desc.rollout_id(), o.desc.seq_len(), o.salt});
}

// Runs the short DECODEs of a warp, but for writing their tokens. `step_of` gives a lane's `k`-th step; all lanes call
// it.
template <typename StepOf>
__device__ __forceinline__ void run_brief(Order& o, const doorbell_session& config,
                                          const engine::Brief::Decoder& decoder, StepOf step_of) {
  const uint32_t period = period_of(o.desc.checkpoint(), config.checkpoint_default);
  uint32_t checkpoint = period;
  engine::Digest digest, since;  // of all tokens, and of those since the last checkpoint (R9)
  bool runs = o.is_brief;
#pragma unroll
  for (uint32_t k = 0; k < kBrief; k++) {
    if (!__any_sync(kEveryLane, runs)) break;
    const engine::Step step = step_of(k);
    if (runs) {
      o.step[k] = step;
      digest.push(decoder.token(step));
      since.push(decoder.token(step));
      const bool eos = decoder.eos(step, config.eos_threshold);
      if (eos) o.outcome.flags |= DOORBELL_CFLAG_EOS;
      o.outcome.added = k + 1;
      o.outcome.result = digest.value;
      // The contract's order; no STOP can wait, as nothing comes between.
      if ((eos && o.desc.has(DOORBELL_FLAG_EOS_STOPS)) || k + 1 == o.desc.max_tokens()) {
        runs = false;
      } else if (k + 1 == checkpoint) {
        if (!o.desc.has(DOORBELL_FLAG_RESIDENT)) {
          o.outcome.status = DOORBELL_STATUS_REWARD_NEEDED;
          runs = false;
        } else if (engine::score(o.desc.reward_model_id(), DOORBELL_FAULT(ScoresAll) ? digest : since) <
                   static_cast<int32_t>(config.reward_threshold)) {
          o.outcome.flags |= DOORBELL_CFLAG_REJECTED;
          runs = false;
        } else {
          checkpoint += period;
          since = engine::Digest{};
        }
      }
    }
  }
}

// Decides how a lane's descriptor, whose check word has been verified or not, is to be executed. Without `kAnyEngine` of one that
// is plain alone.
template <bool kAnyEngine>
__device__ __forceinline__ void classify(Order& o, bool verified, uint32_t index, const Versions& versions,
                                         const doorbell_session& config, uint32_t engines) {
  // Without branches, as the lanes of a warp differ.
  const Version version(versions, o.desc.policy_version());
  const uint32_t error = verified ? error_of<kAnyEngine>(o.desc, version, config, engines) : DOORBELL_ERR_BAD_CHECK;
  const uint32_t opcode = o.desc.opcode();
  const bool good = o.live && error == DOORBELL_ERR_NONE;
  const bool decode = good && opcode == DOORBELL_OP_DECODE;
  // R20: what names a retired version ends before it starts.
  const bool retired = decode && version.state != DOORBELL_SLOT_RESIDENT, runs = decode && !retired;
  o.place = o.bound = 0;
  o.salt = version.salt;
  o.slot = version.slot;
  o.is_brief = runs && engine::is_brief(o.desc.model_id()) && o.desc.max_tokens() <= kBrief &&
               config.wait_states == 0;
  o.is_long = (runs && !o.is_brief) || (good && opcode == DOORBELL_OP_REWARD) ||
              (kAnyEngine && good && opcode == DOORBELL_OP_PREFILL && !engine::is_brief(o.desc.model_id()));
  o.is_stop = good && opcode == DOORBELL_OP_STOP;
  o.is_fence = good && o.desc.has(DOORBELL_FLAG_FENCE);
  // While somebody is about to publish, nothing is; nor what names another engine, or its version, on a device that has one.
  const bool ours = engines == 1 || (o.desc.model_id() | version.engine) == 0;
  o.is_plain = versions.settled() && ours &&
               (!good || (!o.is_long && !o.is_stop && opcode != DOORBELL_OP_POLICY &&
                          !o.desc.has(DOORBELL_FLAG_FENCE | DOORBELL_FLAG_COW_PREFIX | DOORBELL_FLAG_LOGP) &&
                          (opcode != DOORBELL_OP_PREFILL || o.desc.max_tokens() == 0)));
  o.outcome = ended(!good ? DOORBELL_STATUS_ERROR : o.is_stop ? DOORBELL_STATUS_STOPPED : DOORBELL_STATUS_DONE, error);
  if (UNLIKELY(retired)) {
    o.outcome.status =
        version.state == DOORBELL_SLOT_KEPT ? DOORBELL_STATUS_SUPERSEDED : DOORBELL_STATUS_STOPPED;
    o.outcome.result = DOORBELL_DIGEST_INIT;
  }
  if (UNLIKELY(o.live && !verified)) {
    // Nothing of the slot can be trusted.
    o.desc = Descriptor{};
    o.outcome.flags = DOORBELL_CFLAG_NO_ECHO;
    o.outcome.result = index;
  }
}

// Does all for a lane's descriptor that needs no order.
template <bool kAnyEngine>
__device__ __forceinline__ void prepare(Order& o, uint32_t index, const FrontEnd& f) {
  const doorbell_session& config = f.config;
  // Behind the slots: what the host wrote when it had seen a version finds it here.
  const Versions versions{order::load_halves_block(&f.versions.slots)};
  classify<kAnyEngine>(o, verifies(o.desc, f.key, index), index, versions, config, f.language.engines());
  if (__any_sync(kEveryLane, o.is_brief)) {
    const engine::Brief::Decoder decoder = begin_brief(o);
    run_brief(o, config, decoder, [&](uint32_t k) { return decoder.step(k); });
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

// What whoever has the turn has to know. It is read by every lane, and what lane 0 has read counts.
struct Turn {
  uint32_t admitted;
  uint32_t running;  // rollouts at workers
  uint32_t cq_tail;
  uint32_t released;
  uint32_t epoch;  // of the policy's versions

  // In this order: once it is the warp's turn nobody enters a rollout, and once none runs the completion warp posts
  // nothing, so that `posted` stays as it is.
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
    // And here, as an ABORT that is late for what was at the place before names that by its index.
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

// Counts the completions of the lanes in `instants`, and what they tell beside themselves. It is called behind them:
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

// ---------------------------------------------------------------- groups and versions

// R17: admits the lanes in `lanes`: DECODEs and STOPs with COW_PREFIX, or one PREFILL of `member` members. Returns what a
// lane's descriptor belongs to, as a binding, and in bits 23:16 its error. The warp has the turn.
__device__ __noinline__ uint32_t bind(FrontEnd& f, uint32_t lanes, uint32_t prefix_id, uint32_t opcode, uint32_t member,
                                      uint32_t slot, bool retired, uint32_t lane) {
  GroupTable& groups = f.groups;
  uint32_t bound = 0, error = DOORBELL_ERR_NONE;
  groups.acquire(lane);
  const uint32_t vacant = groups.vacant(lane);
  if (lanes >> lane & 1) {
    const uint32_t group = groups.find(prefix_id);
    if (opcode == DOORBELL_OP_PREFILL) {
      error = group != DOORBELL_GROUPS    ? DOORBELL_ERR_PREFIX_BUSY
              : vacant == DOORBELL_GROUPS ? DOORBELL_ERR_GROUP_FULL
                                          : DOORBELL_ERR_NONE;
      if (error == DOORBELL_ERR_NONE) groups.begin(vacant, prefix_id, member, slot);
    } else if (group != DOORBELL_GROUPS) {
      const bool whole = opcode == DOORBELL_OP_STOP && member == DOORBELL_MEMBER_NONE;
      const bool decode = opcode == DOORBELL_OP_DECODE;
      if (whole || member < order::load_relaxed_block(&groups.members[group])) {
        const bool stale = (order::load_relaxed_block(&groups.stale) >> group & 1) != 0 ||
                           (order::load_relaxed_block(&groups.second) >> group & 1) != slot;
        // R21: but for a version that is retired, under which nothing starts.
        if (decode && !retired && stale && !DOORBELL_FAULT(TakesStale)) {
          error = DOORBELL_ERR_STALE_PREFIX;
        } else {
          bound = binding::grouped(group, whole ? 0 : member) | (whole ? binding::kWhole : 0);
          order::add_acq_rel_block(&groups.admitted[group], 1);
        }
      }
    }
  }
  groups.release(lane);
  return bound | error << 16;
}

// R17: whether a PREFILL at a worker has opened the group of this prefix.
__device__ __noinline__ bool is_opening(const FrontEnd& f, uint32_t prefix_id) {
  bool found = false;
#pragma unroll 1
  for (uint32_t k = 0; k < kPlaces; k++) {
    const bool opens = (order::load_relaxed_block(&f.bound[k]) & binding::kOpens) != 0;
    found = found || (opens && order::load_relaxed_block(&f.prefix[k]) == prefix_id);
  }
  return found;
}

// R8: tells the DECODEs at workers that share this prefix to end. Whether there are any.
__device__ __noinline__ bool end_shared(FrontEnd& f, Place* places, uint32_t prefix_id, uint32_t lane) {
  bool some = false;
#pragma unroll 1
  for (uint32_t k = lane; k < kPlaces; k += kWarp) {
    if ((order::load_relaxed_block(&f.bound[k]) & binding::kShared) == 0) continue;
    if (order::load_relaxed_block(&f.prefix[k]) != prefix_id) continue;
    order::set_bits_gpu(&places[k].stop, kStop);
    some = true;
  }
  order::fence_block();
  return __any_sync(kEveryLane, some) && !DOORBELL_FAULT(OvertakesGroup);
}

// The slots of a function. One lane stores; whoever loads has come behind the publisher.
__device__ __forceinline__ uint4 load_function(const Function& function) {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(&function.slots);
  return make_uint4(order::load_relaxed_gpu(words), order::load_relaxed_gpu(words + 1), order::load_relaxed_gpu(words + 2),
                    order::load_relaxed_gpu(words + 3));
}
__device__ __forceinline__ void store_function(Function& function, const uint4& slots) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(&function.slots);
  order::store_relaxed_gpu(words, slots.x);
  order::store_relaxed_gpu(words + 1, slots.y);
  order::store_relaxed_gpu(words + 2, slots.z);
  order::store_relaxed_gpu(words + 3, slots.w);
}

// The policy slots as their registers show them, of which `newest` was loaded last.
__device__ __forceinline__ uint64_t shown(const uint4& slots, uint32_t newest) {
  const uint32_t words = ~(1u << Versions::kEngine);
  const uint32_t low = (slots.x & words) | (newest == 0 ? 1u << 24 : 0);
  const uint32_t high = (slots.z & words) | (newest == 1 ? 1u << 24 : 0);
  return static_cast<uint64_t>(high) << 32 | low;
}

// Whether the gate was shut, so that it is this warp's. What is done behind it is short, and waits for nothing.
__device__ __forceinline__ bool shut(FrontEnd& f, uint32_t lane) {
  uint32_t seen = 1;
  if (lane == 0) seen = order::compare_swap_block(&f.gate, 0, 1);
  return __shfl_sync(kEveryLane, seen, 0) == 0;
}

__device__ __forceinline__ void reopen(FrontEnd& f, uint32_t lane) {
  __syncwarp();
  if (lane == 0) order::store_release_block(&f.gate, 0);
}

// Whether this warp has become the function's publisher, or its loader, of which there is one.
__device__ __forceinline__ bool becomes(uint32_t& role, uint32_t lane) {
  uint32_t seen = 1;
  if (lane == 0) seen = order::compare_swap_acquire_gpu(&role, 0, 1);
  return __shfl_sync(kEveryLane, seen, 0) == 0;
}

__device__ __forceinline__ void resign(uint32_t& role, uint32_t lane) {
  __syncwarp();
  if (lane == 0) order::store_release_gpu(&role, 0);
}

// The same of all that a publish takes.
template <bool kLanguage>
__device__ __forceinline__ void end_publish(Function& function, uint32_t lane) {
  resign(function.publisher, lane);
  if (kLanguage) resign(function.loader, lane);
}

// R19: whether what is at a worker names the version in slot `target`. If not, what workers have read of the slot comes before
// what the caller, or who acquires from it, writes there.
__device__ __noinline__ bool is_in_use(const FrontEnd& f, uint32_t target, uint32_t lane) {
  bool busy = false;
#pragma unroll 1
  for (uint32_t k = lane; k < kPlaces; k += kWarp) {
    const uint32_t bound = order::load_acquire_block(&f.bound[k]);
    busy = busy || ((bound & binding::kVersioned) != 0 && (bound & binding::kSecond) / binding::kSecond == target);
  }
  const bool is = __any_sync(kEveryLane, busy);
  __syncwarp();
  return is;
}

// Stores a front end's copy of the slots. One lane calls it.
__device__ __forceinline__ void store_versions(FrontEnd& f, const uint4& slots) {
  uint64_t* const halves = reinterpret_cast<uint64_t*>(&f.versions.slots);
  order::store_relaxed_block(&halves[0], static_cast<uint64_t>(slots.y) << 32 | slots.x);
  order::store_relaxed_block(&halves[1], static_cast<uint64_t>(slots.w) << 32 | slots.z);
}

// R20, R21: takes over the versions behind a publish into slot `target`. Nothing is admitted meanwhile.
__device__ __noinline__ void adopt(FrontEnd& f, Place* places, const uint4& slots, uint32_t target, uint32_t mode,
                                   uint32_t lane) {
  f.groups.acquire(lane);
  if (lane == 0) {
    f.groups.supersede(target, mode);
    const uint32_t epoch = order::load_relaxed_block(&f.epoch) + 1;
    store_versions(f, Versions::tagged(slots, epoch));
    order::store_relaxed_block(&f.loaded, target);
    order::store_release_block(&f.epoch, epoch);
  }
  f.groups.release(lane);
  // Those at workers.
  if (mode != DOORBELL_POLICY_WAIT) {
#pragma unroll 1
    for (uint32_t k = lane; k < kPlaces; k += kWarp) {
      const uint32_t bound = order::load_relaxed_block(&f.bound[k]);
      if ((bound & binding::kVersioned) == 0 || (bound & binding::kSecond) / binding::kSecond == target) continue;
      order::set_bits_gpu(&places[k].stop, mode == DOORBELL_POLICY_KEEP ? kKeep : kStop);
    }
  }
  __syncwarp();
}

// Asks the other front ends of the function, and waits until each has answered or its session is over: the control warps answer,
// which wait for nobody, and a session that ends waits for its rollouts, which end at their next step. Whether one says that the
// slot is in use. The caller is the publisher.
__device__ __forceinline__ bool ask(DeviceState& state, Function& function, uint32_t queue, uint32_t phase, uint32_t lane) {
  const uint32_t number = (order::load_relaxed_gpu(&function.asked) >> request::kNumber) + 1;
  const uint32_t wanted = __shfl_sync(kEveryLane, request::word(number, queue, phase), 0);
  if (lane == 0) order::store_release_gpu(&function.asked, wanted);
  for (uint32_t spins = 0;;) {
    const uint32_t members = order::load_acquire_gpu(&function.members);
    uint32_t answer = wanted;
    if (lane < kMaxQueues && lane != queue && (members >> lane & 1) != 0)
      answer = order::load_acquire_gpu(&state.answers[lane * 32]);
    if (__all_sync(kEveryLane, (answer & ~request::kBusy) == wanted)) {
      __syncwarp();
      return __any_sync(kEveryLane, (answer & request::kBusy) != 0);
    }
    relax(spins);
  }
}

// Answers the publisher of the function. False: not yet, as something is being admitted. The control warp calls it, once for
// each request.
__device__ __noinline__ bool answer(FrontEnd& f, DeviceState& state, uint32_t queue, uint32_t lane) {
  Function& function = state.functions[f.config.function];
  const uint32_t asked = __shfl_sync(kEveryLane, order::load_acquire_gpu(&function.asked), 0);
  __syncwarp();
  // A lane may have seen an older one.
  if (__any_sync(kEveryLane, asked == order::load_relaxed_block(&f.heard))) return true;
  const uint32_t phase = asked & request::kPhase;
  uint32_t busy = 0;
  if (request::queue_of(asked) != queue) {
    if (phase != request::kResume && !shut(f, lane)) return false;
    const uint4 copy = order::load_halves_block(&f.versions.slots);
    if (phase == request::kHold) {
      if (lane == 0 && !DOORBELL_FAULT(HoldsNobody))
        store_versions(f, make_uint4(copy.x | Versions::kHeld, copy.y, copy.z, copy.w));
      if (is_in_use(f, order::load_relaxed_gpu(&function.target), lane) && !DOORBELL_FAULT(OverlooksOthers))
        busy = request::kBusy;
    } else if (phase == request::kAdopt) {
      adopt(f, state.places[queue], load_function(function), order::load_relaxed_gpu(&function.target),
            order::load_relaxed_gpu(&function.mode), lane);
    } else if (lane == 0) {
      store_versions(f, make_uint4(copy.x & ~Versions::kHeld, copy.y, copy.z, copy.w));
    }
    if (phase != request::kResume) reopen(f, lane);
    __syncwarp();
    if (lane == 0) order::store_release_gpu(&state.answers[queue * 32], asked | busy);
  }
  if (lane == 0) order::store_relaxed_block(&f.heard, asked);
  __syncwarp();
  return true;
}

// A session starts: it has the versions of its function as they are, or begins anew. The control warp calls it.
__device__ __noinline__ void join(FrontEnd& f, DeviceState& state, uint32_t queue, uint32_t lane) {
  Function& function = state.functions[f.config.function];
  for (uint32_t spins = 0; !becomes(function.publisher, lane);) relax(spins);
  if (lane == 0) {
    if (order::load_relaxed_gpu(&function.life) != f.config.life) {
      // R18: version 0 with salt 0, and nothing.
      order::store_relaxed_gpu(&function.life, f.config.life);
      store_function(function, make_uint4(Versions::word(0, 0, DOORBELL_SLOT_RESIDENT), 0, 0, 0));
      order::store_relaxed_gpu(&function.events, uint64_t{0});
      order::store_relaxed_gpu(&function.loaded, 0);
    }
    f.versions.slots = Versions::tagged(load_function(function), 0);
    f.loaded = order::load_relaxed_gpu(&function.loaded);
    f.heard = order::load_relaxed_gpu(&function.asked);
    f.epoch = f.gate = 0;
    // No request is 0: an answer given in another function is none here, where the same number may come.
    order::store_relaxed_gpu(&state.answers[queue * 32], 0);
    order::set_bits_gpu(&function.members, 1u << queue);
  }
  resign(function.publisher, lane);
}

// The descriptor that is staged as number `k`.
__device__ __forceinline__ Descriptor staged_descriptor(const uint4* stage, uint32_t k) {
  Descriptor desc;
#pragma unroll
  for (uint32_t part = 0; part < 4; part++) desc.quarter[part] = stage[staged(k, part)];
  return desc;
}

// The slot that a POLICY loads. The newest is never retired: the other one is free, or was loaded first.
__device__ __forceinline__ uint32_t target_slot(const FrontEnd& f) {
  const uint32_t newest = order::load_relaxed_block(&f.loaded);
  return DOORBELL_FAULT(SwapsSlots) ? newest : 1 - newest;
}

// R19: what is wrong with a POLICY, whatever its header says.
__device__ __forceinline__ uint32_t error_of_policy(const FrontEnd& f, const Descriptor& desc, uint32_t lane) {
  const Versions versions{order::load_halves_block(&f.versions.slots)};
  if (desc.checkpoint() > DOORBELL_POLICY_ABORT || Version(versions, desc.policy_version()).state == DOORBELL_SLOT_RESIDENT)
    return DOORBELL_ERR_BAD_POLICY;
  // What the host wrote before the descriptor, and what it had seen: the header, and completions of those that are gone.
  order::fence_sys();
  if (is_in_use(f, target_slot(f), lane) && !DOORBELL_FAULT(LoadsBusySlot)) return DOORBELL_ERR_POLICY_BUSY;
  return DOORBELL_ERR_NONE;
}

// What the header of a POLICY says. All lanes call it.
struct PolicyHeader {
  uint32_t salt;
  bool agrees;

  __device__ __forceinline__ PolicyHeader(const FrontEnd& f, const Descriptor& desc, bool of_language) {
    const uint64_t header = f.config.token_base + desc.delta_offset();
    const uint4 mine = order::load_relaxed_sys(reinterpret_cast<const uint4*>(header));
    // One lane's, as each may have read at another time.
    const uint32_t w0 = __shfl_sync(kEveryLane, mine.x, 0), length = __shfl_sync(kEveryLane, mine.z, 0);
    const uint32_t check = __shfl_sync(kEveryLane, mine.w, 0);
    salt = __shfl_sync(kEveryLane, mine.y, 0);
    agrees = mix(mix(mix(w0 ^ DOORBELL_GOLDEN) ^ salt) ^ length) == check &&
             w0 == (desc.model_id() << 16 | desc.policy_version()) && length == (of_language ? sizeof(doorbell_hw_image) : 0);
  }
};

// Whether the publisher's queue pair is the only one of the function. Who joins waits for the publisher, so nobody comes behind this.
// And behind this acquire the rollouts of who has left are over.
__device__ __forceinline__ bool is_alone(const Function& function, uint32_t queue) {
  const uint32_t members = __shfl_sync(kEveryLane, order::load_acquire_gpu(&function.members), 0);
  __syncwarp();
  return (members & ~(1u << queue)) == 0 || DOORBELL_FAULT(PublishesAlone);
}

// Asks the others to hold what they have, and whether one of them uses the slot that is to be loaded.
__device__ __forceinline__ bool hold(DeviceState& state, Function& function, uint32_t queue, uint32_t target, uint32_t mode,
                                     uint32_t lane) {
  if (lane == 0) {
    order::store_relaxed_gpu(&function.target, target);
    order::store_relaxed_gpu(&function.mode, mode);
  }
  __syncwarp();
  return ask(state, function, queue, request::kHold, lane);
}

// No error, but that the session ended first.
constexpr uint32_t kCut = ~0u;

// With engine 1, ahead of a publish: reads the header of the POLICY that is staged as number `k`, and brings its model, if it is one, into
// the place that no slot names. Nobody of the function is held meanwhile, and nothing has changed if it fails, or is cut short by
// the end of the session. The warp has the turn, and is the loader of its function.
__device__ __noinline__ uint32_t announce_policy(FrontEnd& f, DeviceState& state, uint32_t queue, const uint4* stage, uint32_t k) {
  const uint32_t lane = threadIdx.x % kWarp;
  const Descriptor desc = staged_descriptor(stage, k);
  const uint32_t function_id = f.config.function, target = target_slot(f);
  Function& function = state.functions[function_id];
  language::Publication& publication = f.publication;
  const uint32_t error = error_of_policy(f, desc, lane);
  if (error != DOORBELL_ERR_NONE) return error;
  const bool of_language = desc.model_id() == engine::kLanguageModel;
  const PolicyHeader header(f, desc, of_language);
  const uint64_t record = f.config.token_base + desc.delta_offset() + 64;
  const bool fits = header.agrees && (!of_language || publication.read(record, f.config, f.language, lane));
  if (lane == 0) {
    publication.salt = header.salt;
    publication.is_good = fits;
  }
  __syncwarp();
  if (!fits || !of_language) return DOORBELL_ERR_NONE;
  // Nothing is brought for what is going to be POLICY_BUSY.
  for (uint32_t spins = 0; !becomes(function.publisher, lane);) relax(spins);
  bool busy = false;
  if (!is_alone(function, queue)) {
    busy = hold(state, function, queue, target, desc.checkpoint(), lane);
    ask(state, function, queue, request::kResume, lane);
  }
  resign(function.publisher, lane);
  if (busy) return DOORBELL_ERR_POLICY_BUSY;
  const LoadedModel(&models)[2] = state.models[function_id];
  const uint32_t place = DOORBELL_FAULT(LoadsInPlace) ? models[target].place(target) : spare_place(models);
  if (lane == 0) publication.model.moved = place ^ target;
  return publication.load(f.language.model(function_id, place), lane, [&] { return stopping(f); }) ? DOORBELL_ERR_NONE : kCut;
}

// R19: publishes the version of the POLICY that is staged as number `k`; its error, and nothing has changed if there is one.
// The warp has the turn: nothing is admitted meanwhile. And it is the publisher of its function: in the other front ends
// nothing is admitted either, from the time when they are asked whether the slot is in use until they have the new versions.
// So there is one moment in which these become resident for all (R20). With engine 1 announce_policy comes before.
template <bool kLanguage>
__device__ __noinline__ uint32_t publish_policy(FrontEnd& f, DeviceState& state, uint32_t queue, const uint4* stage,
                                                uint32_t k) {
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const Descriptor desc = staged_descriptor(stage, k);
  const uint32_t version = desc.policy_version(), model_id = desc.model_id(), mode = desc.checkpoint();
  Function& function = state.functions[f.config.function];
  const Versions versions{order::load_halves_block(&f.versions.slots)};
  const uint32_t newest = order::load_relaxed_block(&f.loaded), target = target_slot(f);
  const uint32_t error = error_of_policy(f, desc, lane);
  if (error != DOORBELL_ERR_NONE) return error;
  const bool of_language = kLanguage && model_id == engine::kLanguageModel;
  bool fits;
  uint32_t salt;
  if (kLanguage) {
    fits = f.publication.is_good;
    salt = f.publication.salt;
  } else {
    // First, so that the others are held for no longer than it takes to ask them.
    const PolicyHeader header(f, desc, false);
    fits = header.agrees;
    salt = header.salt;
  }
  const bool alone = is_alone(function, queue);
  if (!alone && hold(state, function, queue, target, mode, lane)) {
    ask(state, function, queue, request::kResume, lane);
    return DOORBELL_ERR_POLICY_BUSY;
  }
  if (lane == 0) tally(f, warp, kReadBeats, 1);
  if (!fits) {
    if (!alone) ask(state, function, queue, request::kResume, lane);
    return DOORBELL_ERR_BAD_POLICY;
  }
  // Nobody uses the slot, and nobody starts to.
  if (of_language && lane == 0) {
    LoadedModel& model = state.models[f.config.function][target];
    stream::is_replaced(f.language.model(f.config.function, model.place(target)));
    model = f.publication.model;
  }
  const uint32_t resident = Versions::word(version, model_id, DOORBELL_SLOT_RESIDENT);
  const uint32_t of_slot = of_language ? f.publication.shape.context : salt;
  const uint32_t kept = mode == DOORBELL_POLICY_KEEP ? DOORBELL_SLOT_KEPT : DOORBELL_SLOT_ABORTED;
  uint4 slots = Versions::tagged(versions.slots, 0);
  uint32_t& old = newest == 0 ? slots.x : slots.z;
  if (mode != DOORBELL_POLICY_WAIT) old = Versions::word(old & 0xFFFF, Versions::engine_of(old), kept);
  if (target == 0) {
    slots.x = resident, slots.y = of_slot;
  } else {
    slots.z = resident, slots.w = of_slot;
  }
  if (lane == 0) {
    store_function(function, slots);
    order::store_relaxed_gpu(&function.loaded, target);
    order::store_relaxed_sys(f.shown, shown(slots, target));
  }
  __syncwarp();
  adopt(f, state.places[queue], slots, target, mode, lane);
  if (!alone) ask(state, function, queue, request::kAdopt, lane);
  // The host sees the slots behind the completion.
  order::fence_sys();
  __syncwarp();
  return DOORBELL_ERR_NONE;
}

// Hands the long DECODEs and REWARDs of `mask` to the workers and posts the completions of the others.
__device__ __forceinline__ void finish(FrontEnd& f, DeviceState& state, uint32_t queue, uint32_t session,
                                       const Order& o, uint32_t index, uint32_t mask, uint32_t longs,
                                       uint32_t first_completion, uint32_t consumed_to, uint4* stage, uint32_t warp,
                                       uint32_t lane) {
  const uint32_t instants = mask & ~longs;
  const uint32_t below = (1u << lane) - 1;
  if (UNLIKELY(longs != 0)) {
    // The places are filled while the tickets are on their way.
    const bool is_sequence = o.desc.opcode() != DOORBELL_OP_REWARD && !engine::is_brief(o.desc.model_id());
    const uint32_t sequences = __ballot_sync(kEveryLane, is_sequence) & longs, rollouts = longs & ~sequences;
    uint32_t ticket = 0;
    if (lane == kForWarps && rollouts != 0) ticket = order::take_tickets_gpu(&state.work[kForWarps].tail, __popc(rollouts));
    if (lane == kForBlocks && sequences != 0)
      ticket = order::take_tickets_gpu(&state.work[kForBlocks].tail, __popc(sequences));
    if (longs >> lane & 1) {
      Place& place = state.places[queue][o.place];
      place.rollout_id = o.desc.rollout_id();
      place.seed = o.desc.seed();
      place.seq_len = o.desc.seq_len();
      place.max_tokens = o.desc.max_tokens();
      place.model_id = o.desc.model_id();
      place.period = period_of(o.desc.checkpoint(), f.config.checkpoint_default);
      place.flags = o.desc.flags();
      if (UNLIKELY(f.events.has_life())) {
        place.flags |= kTimed;
        order::store_relaxed_gpu(&state.moments[queue][o.place].fetched,
                                 order::load_relaxed_block(&f.events.fetched[warp]));
      }
      place.reward_model_id = o.desc.reward_model_id();
      place.user_data = o.desc.user_data();
      place.tokens = f.config.token_base + o.desc.delta_offset();
      place.logps = o.desc.has(DOORBELL_FLAG_LOGP) ? f.config.logp_base + o.desc.delta_offset() : 0;
      place.salt = o.salt;
      place.index = index;
      place.opcode = o.desc.opcode();
      place.eos_threshold = f.config.eos_threshold;
      place.wait_states = f.config.wait_states;
      place.reward_threshold = f.config.reward_threshold;
      place.session = session;
      if (is_sequence)
        state.sequences[queue][o.place] = SequencePlace{o.desc.kv_offset(), o.desc.arena(), o.slot};
    }
    const uint32_t kind = is_sequence ? kForBlocks : kForWarps;
    ticket = __shfl_sync(kEveryLane, ticket, kind) + __popc((is_sequence ? sequences : rollouts) & below);
    if (longs >> lane & 1) {
      order::store_relaxed_block(&f.tickets[o.place], ticket);
      hand_out(state.work[kind], ticket, queue << 16 | o.place);
    }
  }
  if (instants == 0) return;

  const bool mine = instants >> lane & 1;
  const uint32_t rank = __popc(instants & below);
  const uint32_t briefs = __ballot_sync(kEveryLane, mine && o.is_brief);
  // With the turn: before it an ABORT or a POLICY may have come.
  if (UNLIKELY(f.events.has_life())) f.events.note_ended();
  if (DOORBELL_FAULT(TellsEarly) && f.events.has_life()) {
    f.events.post(first_completion, instants, briefs);
    DOORBELL_WINDOW(TellsEarly);
  }
  // The tokens of every lane before the completions of any. Without tokens there is nothing to order: each half of a
  // completion carries its phase (R4).
  ulonglong2 pair[2];
  write_completion(pair, o.desc.user_data(), o.desc.rollout_id(), o.desc.seq_len(), o.desc.reward_model_id(), 0,
                   o.outcome);
  place_completion(pair, consumed_to, phase_of(first_completion + rank, f.config.cq_size));
  if ((instants & (instants - 1)) == 0) {
    if (briefs != 0) order::fence_sys();
    if (mine) {
      ulonglong2* const to = reinterpret_cast<ulonglong2*>(
          f.config.cq_base + 32ull * (first_completion & (f.config.cq_size - 1)));
      order::store_relaxed_sys(to, pair[0]);
      order::store_relaxed_sys(to + 1, pair[1]);
    }
  } else {
    ulonglong2* const halves = reinterpret_cast<ulonglong2*>(stage);
    if (mine) {
      halves[2 * rank] = pair[0];
      halves[2 * rank + 1] = pair[1];
    }
    __syncwarp();
    if (briefs != 0) order::fence_sys();
    write_completions(f, halves, __popc(instants), first_completion, lane);
  }

  if (DOORBELL_FAULT(PostsBeforeTokens)) {
    DOORBELL_WINDOW(PostsBeforeTokens);
    write_brief_tokens(f, o, briefs, kWarp, lane);
  }

  account(f, o, instants, briefs, first_completion, warp, lane);
  __syncwarp();
  // Asked again: there is no register for the answer.
  if (UNLIKELY(f.events.has_life()) && !DOORBELL_FAULT(TellsEarly))
    f.events.post(first_completion, instants, briefs);
}

// ---------------------------------------------------------------- fetch

// Published slots that a fetch warp has claimed, and reads: an eighth of them with each word of 16 bytes.
struct Run {
  uint32_t first, count;
  uint4 part[4];
};

// A fetch warp's, or the scout's, part of a session.
template <bool kLanguage>
struct Fetcher {
  FrontEnd& f;
  DeviceState& state;
  const uint32_t queue, session, warp, lane;
  uint4* const stage;

  __device__ __forceinline__ const uint4* slot(uint32_t index) const {
    return reinterpret_cast<const uint4*>(f.config.sq_base + 64ull * (index & (f.config.sq_size - 1)));
  }

  // Reads the slots of `run`, each warp-wide load eight of them.
  __device__ __forceinline__ void read(Run& run) const {
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t d = 8 * k + lane / 4;
      if (d < run.count) run.part[k] = order::load_relaxed_sys(slot(run.first + d) + (lane & 3));
    }
  }

  // Stages what was read.
  __device__ __forceinline__ void put(const Run& run) const {
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t d = 8 * k + lane / 4;
      if (d < run.count) stage[staged(d, lane & 3)] = run.part[k];
    }
    __syncwarp();
  }

  // Whether all descriptors before `index` have completed.
  __device__ __forceinline__ bool quiet(uint32_t index) const { 
    return index - f.config.sq_start == completed(f) || DOORBELL_FAULT(PassesFences);
  }

  // R7: the completions that `quiet` has counted are visible, to the host too, before anything that this warp, or one that
  // gets the turn from it, writes from here on.
  static __device__ __forceinline__ void pass_fence() {
    if (!DOORBELL_FAULT(CountsUnordered)) order::fence_sys();
    __syncwarp();
  }

  // Notes what the oldest descriptor waits for, and for how long since `since`, which is moved on (R15). False if the
  // session ends: then there is nothing to wait for.
  __device__ __forceinline__ bool keep_waiting(uint32_t waits_for, long long& since, uint32_t& spins) {
    const uint32_t counter = waits_for == DOORBELL_WAIT_COMPLETION_SLOT ? kStallCq
                             : waits_for == DOORBELL_WAIT_FENCE         ? kStallFence
                                                                        : kStallOrder;
    relax(spins);
    const long long now = clock64();
    if (lane == 0) {
      if (!DOORBELL_FAULT(CountsStallsLate) || stopping(f)) tally(f, warp, counter, now - since);
      order::store_relaxed_block(&f.waits_for, waits_for);
    }
    since = now;
    return !__any_sync(kEveryLane, stopping(f));
  }

  // Whether the completion queue has a slot (R4).
  __device__ __forceinline__ bool has_slot() const {
    const uint32_t tail = static_cast<uint32_t>(order::load_relaxed_block(&f.posted));
    return tail - order::load_acquire_block(&f.cq_head) != f.config.cq_size;
  }

  // What a descriptor that is taken alone has to wait for, by its rules.
  __device__ __forceinline__ uint32_t held_by(uint32_t index, uint32_t rollout, uint32_t prefix_id, bool fence,
                                              bool is_stop, bool of_group) {
    // R7: all earlier ones have completed.
    if (fence) {
      if (!__all_sync(kEveryLane, quiet(index))) return DOORBELL_WAIT_FENCE;
      pass_fence();
    }
    // R8, R17: a STOP of the whole group comes last.
    if (UNLIKELY(of_group) && end_shared(f, state.places[queue], prefix_id, lane)) return DOORBELL_WAIT_STOP;
    // R5: one descriptor of a rollout at a time, in order.
    const uint32_t place = f.running.find(rollout);
    if (__all_sync(kEveryLane, place == RunningTable::kNone)) return DOORBELL_WAIT_NOTHING;
    if (!is_stop || of_group) return DOORBELL_WAIT_ROLLOUT;
    // R8: the rollout ends at the next token boundary that its worker comes to.
    if (lane == 0 && place != RunningTable::kNone) order::set_bits_gpu(&state.places[queue][place].stop, kStop);
    __syncwarp();
    return DOORBELL_WAIT_STOP;
  }

  // The staged descriptors, of the lanes below `count`.
  __device__ __forceinline__ void take(Order& o, uint32_t count) const {
    o.live = lane < count;
    o.desc = Descriptor{};
    if (o.live) {
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) o.desc.quarter[k] = stage[staged(lane, k)];
    }
    __syncwarp();
  }

  // Stages a lane's descriptor again.
  __device__ __forceinline__ void put_back(const Order& o) const {
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) stage[staged(lane, k)] = o.desc.quarter[k];
  }

  // Executes the staged descriptors of `run`, and makes it the next one, or none. False if the session ends first.
  __device__ __forceinline__ bool execute(Run& run) {
    const uint32_t first = run.first, count = run.count;
    run.count = 0;
    if (UNLIKELY(f.events.has_life())) f.events.note_fetched();
    Order o;
    // One lane's, before any lane reads the versions: while it stays so do they (R18).
    const uint32_t epoch = order::load_acquire_block(&f.epoch);
    take(o, count);
    prepare<false>(o, first + lane, f);
    DOORBELL_WINDOW(KeepsVersions);
    const uint32_t briefs = __ballot_sync(kEveryLane, o.is_brief);
    uint32_t rounds = 0;
    rank_briefs(o, briefs, lane, rounds);
    const bool usual = __all_sync(kEveryLane, o.is_plain && order::load_relaxed_block(&f.aborting) == 0);
    const uint32_t consumed_to = first + count;

    // The turn: all that the queue does one after the other. In the usual case, that nothing waits for anything and
    // there is room, it is the one store of `posted`.
    Turn turn;
    DOORBELL_WINDOW(ScoutsOutOfTurn);
    // The lanes vote, as each may have read at another time.
    while (turn.look(f), !__all_sync(kEveryLane, turn.admitted == first || DOORBELL_FAULT(AdmitsOutOfTurn))) {
      DOORBELL_YIELD();
      if (__any_sync(kEveryLane, stopping(f))) return false;
      // Those whose turn is far away sleep; the next ones do not.
      if (first - turn.admitted > 2 * kWarp) __nanosleep(20);
    }
    if (first % 2 == 0) DOORBELL_WINDOW(AdmitsOutOfTurn);
    __syncwarp();
    const uint32_t first_completion = __shfl_sync(kEveryLane, turn.cq_tail, 0);
    // R4: never beyond what the host has released.
    bool admitted = false;
    if (lane == 0 && usual && turn.running == 0 && turn.room(f.config) >= count &&
        (turn.epoch == epoch || DOORBELL_FAULT(KeepsVersions))) {
      turn.post(f, consumed_to, count);
      admitted = true;
    }
    if (UNLIKELY(!__any_sync(kEveryLane, admitted))) {
      if (o.live) put_back(o);
      __syncwarp();
      return execute_in_general(f, state, queue, session, warp, first, count);
    }
    if (briefs != 0 && !DOORBELL_FAULT(PostsBeforeTokens)) write_brief_tokens(f, o, briefs, rounds, lane);
    if (lane == 0) order::store_release_block(&f.admitted, consumed_to);

    // A read takes as long as the fence between tokens and completions, which waits for all reads of the multiprocessor.
    // Only where there is enough for all: what is claimed here comes later than by a warp that has nothing to do.
    if (briefs != 0) claim(run, kCrowd);

    // What is left needs no order.
    const uint32_t all = count == kWarp ? kEveryLane : (1u << count) - 1;
    finish(f, state, queue, session, o, first + lane, all, 0, first_completion, consumed_to, stage, warp, lane);
    if (lane == 0) tally(f, warp, kDescriptors, count);
    return true;
  }

  // The same for what is staged, with all that may come: long DECODEs, STOPs, fences, full queues. The warp has the
  // turn. A function of its own, so that it does not lie among the code of the usual case.
  static __device__ __noinline__ bool execute_in_general(FrontEnd& f, DeviceState& state, uint32_t queue,
                                                         uint32_t session, uint32_t warp, uint32_t first,
                                                         uint32_t count) {
    const uint32_t lane = threadIdx.x % kWarp;
    const bool whole = Fetcher{f, state, queue, session, warp, lane, f.stage[warp]}.in_general(first, count);
    // R12: all of it has been read. `admitted` stays, as nobody else may have the turn.
    if (!whole && lane == 0) {
      order::store_relaxed_block(&f.cut, first + count);
      order::store_release_block(&f.was_cut, 1);
    }
    return whole;
  }

  __device__ __forceinline__ bool in_general(uint32_t first, uint32_t count) {
    Order o;
    take(o, count);
    const uint32_t consumed_to = first + count, index = first + lane;
    long long since = clock64();
    uint32_t spins = 0, left = count == kWarp ? kEveryLane : (1u << count) - 1;
    uint32_t longs = 0, briefs = 0, rounds = 0, alone = 0, unbound = 0, bound = 0, epoch = 0;
    bool has_turn = true, one_by_one = false, prepared = false;
    while (left != 0) {
      if (!prepared) {
        // Again behind each POLICY: what it published, and retired, decides on those behind it (R18, R20). What has been
        // admitted to its group stays in it, and only a DECODE of it may end otherwise than it would have.
        prepared = true;
        epoch = __shfl_sync(kEveryLane, order::load_acquire_block(&f.epoch), 0);
        __syncwarp();
        const bool was_bound = bound >> lane & 1;
        const bool keeps = was_bound && (o.desc.opcode() != DOORBELL_OP_DECODE || o.outcome.status == DOORBELL_STATUS_ERROR);
        const uint32_t belongs_to = o.bound;
        const Outcome outcome = o.outcome;
        prepare<kLanguage>(o, index, f);
        if (was_bound) o.bound = belongs_to;
        if (keeps) {
          o.outcome = outcome;
          o.is_long = o.is_brief = false;
        }
        longs = __ballot_sync(kEveryLane, o.is_long);
        briefs = __ballot_sync(kEveryLane, o.is_brief);
        rank_briefs(o, briefs, lane, rounds);
        // What is to be taken one by one: what waits for others, or makes them wait, or decides on those behind it.
        const uint32_t same = __match_any_sync(kEveryLane, o.desc.rollout_id());
        const bool opens = o.desc.opcode() == DOORBELL_OP_PREFILL && o.desc.max_tokens() != 0;
        const bool good = o.live && o.outcome.status != DOORBELL_STATUS_ERROR;
        alone = __ballot_sync(kEveryLane, o.is_fence || o.is_stop || (o.is_long && f.config.workers == 1) ||
                                              (good && (opens || o.desc.opcode() == DOORBELL_OP_POLICY)) ||
                                              (o.live && (same & longs & ((1u << lane) - 1)) != 0) ||
                                              (o.live && f.running.find(o.desc.rollout_id()) != RunningTable::kNone));
        const bool shares = o.desc.has(DOORBELL_FLAG_COW_PREFIX) &&
                            (o.is_stop || o.desc.opcode() == DOORBELL_OP_DECODE);
        unbound = __ballot_sync(kEveryLane, good && (opens || shares)) & ~bound;
      }
      const uint32_t k = __ffs(left) - 1, first_alone = left & alone & (0u - (left & alone));
      // Those before the first that is to be taken alone, or that one.
      const bool by_itself = one_by_one || first_alone == 1u << k;
      uint32_t mask = by_itself ? 1u << k : left & (first_alone - 1);
      const bool fence = __shfl_sync(kEveryLane, o.is_fence, k);
      uint32_t missing = DOORBELL_WAIT_NOTHING;
      // R17, R27: what belongs to a group starts behind its PREFILL. Before anything is asked of those that run.
      if (kLanguage && UNLIKELY(__any_sync(kEveryLane, order::load_acquire_block(&f.opening) != 0))) {
        const bool joins = (mask & unbound) >> lane & 1 && o.desc.opcode() != DOORBELL_OP_PREFILL;
        const uint32_t early = __ballot_sync(kEveryLane, joins && is_opening(f, o.desc.prefix_id()));
        if (early != 0) mask &= (early & (0u - early)) - 1;
        if (mask == 0) missing = DOORBELL_WAIT_ROLLOUT;
      }
      if (by_itself && missing == DOORBELL_WAIT_NOTHING) {
        const bool of_group = o.is_stop && o.desc.has(DOORBELL_FLAG_COW_PREFIX) && o.desc.member() == DOORBELL_MEMBER_NONE;
        missing = held_by(first + k, __shfl_sync(kEveryLane, o.desc.rollout_id(), k),
                          __shfl_sync(kEveryLane, o.desc.prefix_id(), k), fence, __shfl_sync(kEveryLane, o.is_stop, k),
                          __shfl_sync(kEveryLane, of_group, k));
      }
      if (missing != DOORBELL_WAIT_NOTHING) {
        if (!keep_waiting(missing, since, spins)) return false;
        continue;
      }
      Function& function = state.functions[f.config.function];
      const uint32_t opcode = __shfl_sync(kEveryLane, o.desc.opcode(), k);
      bool publishes = UNLIKELY(opcode == DOORBELL_OP_POLICY) &&
                       __shfl_sync(kEveryLane, o.outcome.status, k) == DOORBELL_STATUS_DONE;
      if (kLanguage && publishes) {
        // R4: nothing is brought for what cannot complete.
        if (!__any_sync(kEveryLane, has_slot())) {
          if (!keep_waiting(DOORBELL_WAIT_COMPLETION_SLOT, since, spins)) return false;
          continue;
        }
        if (!becomes(function.loader, lane)) {
          if (!keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) return false;
          continue;
        }
        // Nobody else publishes from here on.
        if (__any_sync(kEveryLane, order::load_acquire_block(&f.epoch) != epoch)) {
          resign(function.loader, lane);
          prepared = false;
          continue;
        }
        // Out of the registers meanwhile, of which too few are left.
        put_back(o);
        __syncwarp();
        const uint32_t error = announce_policy(f, state, queue, stage, k);
        __syncwarp();
#pragma unroll
        for (uint32_t part = 0; part < 4; part++) o.desc.quarter[part] = stage[staged(lane, part)];
        since = clock64();
        if (error != DOORBELL_ERR_NONE) {
          resign(function.loader, lane);
          if (error == kCut) return false;
          if (lane == k) o.outcome = ended(DOORBELL_STATUS_ERROR, error);
          publishes = false;
        }
      }
      // With what has been brought it stays the loader. (Engine 0's kernel goes round again: a loop here costs it registers on Blackwell.)
      if (!kLanguage && publishes && !becomes(function.publisher, lane)) {
        if (!keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) return false;
        continue;
      }
      while (kLanguage && publishes && !becomes(function.publisher, lane)) {
        if (keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) continue;
        resign(function.loader, lane);
        return false;
      }
      // From here to the admission the versions stay as they are (R20): for the others of the function, and those that
      // are told to end are all that name the one that is retired.
      DOORBELL_WINDOW(HoldsNobody);
      while (!shut(f, lane)) DOORBELL_YIELD();
      const bool held = !Versions{order::load_halves_block(&f.versions.slots)}.settled();
      const bool anew = order::load_relaxed_block(&f.epoch) != epoch;
      if (UNLIKELY(__any_sync(kEveryLane, held || anew)) && !DOORBELL_FAULT(HoldsNobody)) {
        reopen(f, lane);
        if (publishes) end_publish<kLanguage>(function, lane);
        prepared = false;
        if (__any_sync(kEveryLane, held) && !keep_waiting(DOORBELL_WAIT_PUBLISH, since, spins)) return false;
        continue;
      }
      // R17: in the order of the queue, and once.
      if (UNLIKELY((unbound & mask) != 0)) {
        const bool prefill = o.desc.opcode() == DOORBELL_OP_PREFILL;
        const bool retired = !o.is_long && !o.is_brief;
        const uint32_t part = bind(f, unbound & mask, o.desc.prefix_id(), o.desc.opcode(),
                                   prefill ? o.desc.max_tokens() : o.desc.member(), o.slot, retired, lane);
        if (unbound & mask & 1u << lane) {
          const uint32_t error = part >> 16 & 0xFF;
          o.bound = error != 0 ? 0 : part;
          if (error != 0) o.outcome = ended(DOORBELL_STATUS_ERROR, error);
          if (error != 0) o.is_long = o.is_brief = false;
        }
        bound |= unbound & mask;
        unbound &= ~mask;
        longs = __ballot_sync(kEveryLane, o.is_long);
        briefs = __ballot_sync(kEveryLane, o.is_brief);
      }
      // R8: an ABORT ends what was published before it and has not started.
      if (UNLIKELY(__any_sync(kEveryLane, order::load_acquire_block(&f.aborting) != 0))) {
        const uint64_t abort = order::load_relaxed_block(&f.abort_of);
        const bool before = static_cast<int32_t>(index - static_cast<uint32_t>(abort >> 32)) < 0;
        const bool decode = (o.is_long || o.is_brief) && o.desc.opcode() == DOORBELL_OP_DECODE;
        if ((mask >> lane & 1) != 0 && decode && before && !DOORBELL_FAULT(AbortsLate) &&
            o.desc.rollout_id() == static_cast<uint32_t>(abort)) {
          o.outcome = ended(DOORBELL_STATUS_STOPPED);
          o.outcome.result = DOORBELL_DIGEST_INIT;
          o.is_long = o.is_brief = false;
        }
        longs = __ballot_sync(kEveryLane, o.is_long);
        briefs = __ballot_sync(kEveryLane, o.is_brief);
      }
      if ((longs & mask) != 0) {
        // Those for which there are places, and what is before the first for which there is none.
        const uint32_t mine = longs & mask, count = admissible(f, state, queue, __popc(mine), lane);
        const uint32_t late =
            __ballot_sync(kEveryLane, (mine >> lane & 1) != 0 && __popc(mine & ((1u << lane) - 1)) >= count);
        if (late != 0) mask &= (late & (0u - late)) - 1;
        if (mask == 0) {
          reopen(f, lane);
          if (!keep_waiting(DOORBELL_WAIT_WORKER, since, spins)) return false;
          continue;
        }
      }
      uint32_t first_completion = 0;
      missing = admit(f, state.places[queue], o, index, mask, longs & mask, consumed_to, lane, first_completion);
      reopen(f, lane);
      if (missing != DOORBELL_WAIT_NOTHING) {
        if (publishes) end_publish<kLanguage>(function, lane);
        // Not all at once, then.
        one_by_one = true;
        if (!keep_waiting(missing, since, spins)) return false;
        continue;
      }
      if ((briefs & mask) != 0 && !DOORBELL_FAULT(PostsBeforeTokens)) {
        if (by_itself) o.rank = 0;
        write_brief_tokens(f, o, briefs & mask, by_itself ? 1 : rounds, lane);
        const uint32_t logps = __ballot_sync(kEveryLane, o.desc.has(DOORBELL_FLAG_LOGP)) & briefs & mask;
        if (logps != 0) {
          write_brief_logps(f, o, logps, by_itself ? 1 : rounds, lane);
          const uint32_t lines = logps >> lane & 1 ? lines_of(o.desc.delta_offset(), o.outcome.added) : 0;
          const uint32_t all = __reduce_add_sync(kEveryLane, lines);
          if (lane == 0) tally(f, warp, kWriteBeats, all);
        }
        DOORBELL_WINDOW(CountsUnordered);
      }
      if (UNLIKELY(publishes)) {
        // Out of the registers meanwhile, of which too few are left.
        put_back(o);
        __syncwarp();
        const uint32_t error = publish_policy<kLanguage>(f, state, queue, stage, k);
        end_publish<kLanguage>(function, lane);
#pragma unroll
        for (uint32_t part = 0; part < 4; part++) o.desc.quarter[part] = stage[staged(lane, part)];
        longs = briefs = rounds = alone = unbound = spins = 0;
        since = clock64();
        if (error != DOORBELL_ERR_NONE && lane == k) o.outcome = ended(DOORBELL_STATUS_ERROR, error);
        prepared = false;
      }
      // What a REWARD reads may be what the host wrote before the descriptor.
      if (__any_sync(kEveryLane, (longs & mask) >> lane & 1 && o.desc.opcode() == DOORBELL_OP_REWARD)) {
        order::fence_sys();
        __syncwarp();
      }
      left &= ~mask;
      if (left == 0 && !by_itself) {
        if (lane == 0) order::store_release_block(&f.admitted, consumed_to);
        has_turn = false;
      }
      finish(f, state, queue, session, o, index, mask, longs & mask, first_completion, consumed_to, stage, warp, lane);
      // R7: and none later starts before it has. R5: one worker completes in order.
      if (by_itself && (fence || ((longs & mask) != 0 && f.config.workers == 1))) {
        while (!__all_sync(kEveryLane, quiet(first + k + 1)))
          if (!keep_waiting(DOORBELL_WAIT_FENCE, since, spins)) return false;
        pass_fence();
      }
    }
    if (lane == 0) {
      order::store_relaxed_block(&f.waits_for, DOORBELL_WAIT_NOTHING);
      tally(f, warp, kDescriptors, count);
      if (has_turn) order::store_release_block(&f.admitted, consumed_to);
    }
    __syncwarp();
    return true;
  }

  // The lane; on Blackwell such that the compiler does not know it again. There it would keep so much of what follows
  // from the lane in registers that it spills. On Hopper that just fits, and computing it anew costs a seventh of the
  // rate of a queue.
  static __device__ __forceinline__ uint32_t again(uint32_t lane) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    asm volatile("" : "+r"(lane));
#endif
    return lane;
  }

  __device__ void role() {
    Run run;
    run.count = 0;
    for (;;) {
      Fetcher once{f, state, queue, session, warp, again(lane), stage};
      // One alone is left to the scout, whose read of it may be on its way: a second would have to wait for that.
      if (run.count == 0 && !once.claim(run, 1) && lane == 0) __nanosleep(100);
      if (run.count == 0) {
        if (__any_sync(kEveryLane, stopping(f))) break;
        if (kLanguage) f.publication.help(lane);
        continue;
      }
      once.put(run);
      if (!once.execute(run)) break;
    }
    leave();
  }

  // Role: scout. Polls the slot at the head of the queue for as long as the doorbell tells of no more than that one,
  // and executes what its check word publishes (R1) itself: a hand-over would cost more than the rest. It is one warp:
  // two that looked at one slot would have to wait for each other on the bus.
  __device__ void scout_role(const Launch& launch) {
    while (!__any_sync(kEveryLane, stopping(f))) {
      DOORBELL_YIELD();
      const uint32_t index = __shfl_sync(kEveryLane, order::load_acquire_block(&f.claimed), 0);
      if (lane == 0) {
        DOORBELL_WINDOW(LooksAhead);
        DOORBELL_WINDOW(HoldsScout);
      }
      const uint32_t known = __shfl_sync(kEveryLane, order::load_acquire_block(&f.sq_tail), 0) - index;
      // Several are for the fetch warps.
      if (known > 1 && known <= f.config.sq_size) {
        if (events::kScoutTells && UNLIKELY(f.events.has_life())) events::tell(f.events, launch, queue, lane);
        continue;
      }
      // What lane 0 was told holds for the lanes that read, too.
      if (!DOORBELL_FAULT(LooksAhead)) __syncwarp();
      // Only four lanes read: to others the slot might show a later state.
      uint4 part = make_uint4(0, 0, 0, 0);
      if (lane < 4) part = order::load_relaxed_sys(slot(index) + lane);
      // While that is on its way: what the turn will find. So it stays unless somebody else claims `index`.
      const doorbell_session config = f.config;
      Turn turn;
      turn.look(f);
      const bool quiet =
          ((turn.admitted == index && turn.running == 0) || DOORBELL_FAULT(ScoutsOutOfTurn)) && turn.room(config) != 0 &&
          order::load_relaxed_block(&f.aborting) == 0;
      turn.cq_tail = __shfl_sync(kEveryLane, turn.cq_tail, 0);
      // Whoever still reads what the last look has staged comes first.
      __syncwarp();
      if (lane < 4) stage[lane] = part;
      __syncwarp();
      // Every lane has the descriptor, and comes to the same: sooner than four lanes tell the others.
      Order o;
      o.live = true;
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) o.desc.quarter[k] = stage[k];
      // Behind the slot: what the host wrote when it had seen a version finds it here.
      const Versions versions{order::load_halves_block(&f.versions.slots)};
      const bool verified = verifies(o.desc, f.key, index);
      // What the doorbell had told of was there to be read: if it does not verify now, it never will (R2).
      if (!verified && (known != 1 || DOORBELL_FAULT(LeavesBadSlots))) continue;
      DOORBELL_WINDOW(ScoutsBlindly);
      if (UNLIKELY(f.events.has_life())) f.events.note_fetched();
      // A fetch warp may be faster. Whether it was is asked below, as the answer takes its time.
      uint32_t claimed_from = ~index;
      if (lane == 0) claimed_from = order::compare_swap_relaxed_block(&f.claimed, index, index + 1);
      __syncwarp();
      classify<false>(o, verified, index, versions, config, f.language.engines());
      const bool at_once = quiet && o.is_plain;
      if (!__any_sync(kEveryLane, claimed_from == index || DOORBELL_FAULT(ScoutsBlindly))) continue;
      if (UNLIKELY(!__shfl_sync(kEveryLane, at_once, 0))) {
        if (!wait_and_execute(index)) break;
        continue;
      }

      // The turn has been the scout's since it claimed the descriptor, and what it found then holds.
      const uint32_t consumed_to = index + 1, briefs = o.is_brief ? 1 : 0;
      if (lane == 0) turn.post(f, consumed_to, 1);
      if (__any_sync(kEveryLane, o.is_brief)) {
        // A lane per token.
        const engine::Brief::Decoder decoder = begin_brief(o);
        const engine::Step step = decoder.step(lane);
        run_brief(o, config, decoder, [&](uint32_t k) { return __shfl_sync(kEveryLane, step, k); });
        uint32_t* const to = reinterpret_cast<uint32_t*>(config.token_base + o.desc.delta_offset());
        if (lane < o.outcome.added && !DOORBELL_FAULT(PostsBeforeTokens))
          order::store_relaxed_sys(to + lane, decoder.token(step));
        __syncwarp();
        order::fence_sys();
      }
      if (UNLIKELY(f.events.has_life())) f.events.note_ended();
      ulonglong2 pair[2];
      write_completion(pair, o.desc.user_data(), o.desc.rollout_id(), o.desc.seq_len(), o.desc.reward_model_id(), 0,
                       o.outcome);
      place_completion(pair, consumed_to, phase_of(turn.cq_tail, config.cq_size));
      if (lane < 2) {
        ulonglong2* const to =
            reinterpret_cast<ulonglong2*>(config.cq_base + 32ull * (turn.cq_tail & (config.cq_size - 1)));
        order::store_relaxed_sys(to + lane, lane == 0 ? pair[0] : pair[1]);
      }
      if (DOORBELL_FAULT(PostsBeforeTokens)) {
        DOORBELL_WINDOW(PostsBeforeTokens);
        o.rank = 0;
        write_brief_tokens(f, o, briefs, 1, lane);
      }
      const long long completed_at = clock64();
      if (lane == 0) order::store_release_block(&f.admitted, consumed_to);
      account(f, o, 1, briefs, turn.cq_tail, warp, lane);
      if (lane == 0) tally(f, warp, kDescriptors, 1);
      if (UNLIKELY(f.events.has_life())) f.events.post(turn.cq_tail, 1, briefs);
      while (clock64() - completed_at < kAnswerCycles) {
      }
    }
    leave();
  }

 private:
  // Executes the one descriptor that the scout has claimed and staged, once it has the turn. False if the session ends
  // first.
  __device__ __forceinline__ bool wait_and_execute(uint32_t index) {
    while (!__all_sync(kEveryLane, order::load_acquire_block(&f.admitted) == index)) {
      DOORBELL_YIELD();
      if (__any_sync(kEveryLane, stopping(f))) return false;
      if (kLanguage) f.publication.help(lane);
    }
    return execute_in_general(f, state, queue, session, warp, index, 1);
  }

  __device__ __forceinline__ void leave() {
    __syncwarp();
    if (lane == 0) order::add_acq_rel_block(&f.fetchers, 0u - 1);
  }

  // Claims up to 32 of the descriptors that the doorbell has told of, if these are more than `few`, and begins to read
  // them. Says to lane 0 whether there were more.
  __device__ __forceinline__ bool claim(Run& run, uint32_t few) const {
    uint32_t known = 0;
    bool enough = false;
    // One lane decides for the warp.
    if (lane == 0) {
      run.first = order::load_acquire_block(&f.claimed);
      known = order::load_acquire_block(&f.sq_tail) - run.first;
      // The check words may have published more than the doorbell has told yet.
      enough = known > few && known <= f.config.sq_size;
      known = enough ? min(known, kWarp) : 0;
      if (enough && order::compare_swap_block(&f.claimed, run.first, run.first + known) != run.first) known = 0;
    }
    run.count = __shfl_sync(kEveryLane, known, 0);
    if (run.count == 0) return enough;
    run.first = __shfl_sync(kEveryLane, run.first, 0);
    // What lane 0 was told holds for the lanes that read, too.
    __syncwarp();
    read(run);
    return enough;
  }
};

// ---------------------------------------------------------------- completion role

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

// ---------------------------------------------------------------- control role

// Tells the host how far the session is.
__device__ __forceinline__ void publish(const FrontEnd& f, const Launch& launch, uint32_t queue, long long cycles,
                                        uint32_t heartbeat, uint32_t lane) {
  doorbell_mailbox& mailbox = launch.mailboxes[queue];
  const WorkerCounters& workers = launch.state->counters[queue];
  uint32_t sq_head = order::load_acquire_block(&f.admitted);
  if (UNLIKELY(order::load_acquire_block(&f.was_cut) != 0)) sq_head = order::load_relaxed_block(&f.cut);
  // Read behind `sq_head`: at most as many as have not completed by now. And `asked` behind `asks`: at least as new.
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
  // The one before has been come through with: the host asks for one at a time.
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

// ---------------------------------------------------------------- the block

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
