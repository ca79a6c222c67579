// Role: fetch. Thirteen warps claim announced descriptors, read them, and execute them in their turn; the scout is one more (scout.cuh).
// Called by the block. Waits for the turn, and what the rules let a descriptor wait for (`keep_waiting`); looks at `stopping` meanwhile.
// Orders: `claimed` by an exchange, `admitted` released and acquired (R3, R5), a system fence where R7 wants one.
// Planted faults: AdmitsOutOfTurn, KeepsVersions, PassesFences, CountsUnordered, CountsStallsLate, PostsBeforeTokens.
#ifndef DOORBELL_FRONT_END_FETCH_CUH
#define DOORBELL_FRONT_END_FETCH_CUH

#include "front_end/finish.cuh"
#include "front_end/groups.cuh"
#include "front_end/policy.cuh"

namespace front_end {

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
    // Only if there is enough for all: a warp with nothing to do would be faster with what is claimed here.
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

  // front_end/general.cuh
  __device__ __forceinline__ bool in_general(uint32_t first, uint32_t count);

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
      // A single one is left to the scout, whose read of it may be in flight: a second read would have to wait for that.
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
  // two that looked at one slot would have to wait for each other on the bus. front_end/scout.cuh
  __device__ void scout_role(const Launch& launch);

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

}  // namespace front_end

#endif
