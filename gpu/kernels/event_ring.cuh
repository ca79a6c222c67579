// What a front end records of its completions, on the way into the event ring of its function (R23).
#ifndef DOORBELL_EVENT_RING_CUH
#define DOORBELL_EVENT_RING_CUH

#include "descriptor.cuh"
#include "device_state.cuh"

// In shared memory. The warps that post completions leave what is to be told of them here, a record for each run of
// neighbours, and go on. Whichever of the completion warp and the scout has nothing else to do takes the records in the order of
// the indices, claims slots of the function's ring for all that it finds, and writes the events.
struct EventRing {
  // Of the completions that one warp has posted at a time.
  struct Run {
    alignas(8) uint64_t fetched;
    uint64_t ended;
    uint32_t first;  // index of the first
    uint32_t count;
    uint32_t ran;    // those, a bit each, of which the warp was the worker
    uint32_t full;   // 1: by the warp, 0: by who tells of it
  };
  // Of those that were at places, in the order of their indices.
  struct Lives {
    alignas(8) uint64_t moments[4][kWarp];
    uint32_t worker[kWarp];

    // Of the lane's.
    __device__ __forceinline__ void fill(uint32_t lane, const Moments& from, uint32_t worker_id) {
      order::store_relaxed_block(&moments[0][lane], from.fetched);
      order::store_relaxed_block(&moments[1][lane], from.started);
      order::store_relaxed_block(&moments[2][lane], from.first_token);
      order::store_relaxed_block(&moments[3][lane], from.ended);
      order::store_relaxed_block(&worker[lane], worker_id);
    }
  };
  // Records of a fetch warp or the scout, and of the completion warp: so many runs may be untold before the warp waits.
  static constexpr uint32_t kAhead = 2, kLives = 4;
  static constexpr uint32_t kFirstLives = kAhead * (kFetchWarps + 1), kRuns = kFirstLives + kLives;
  static_assert(kRuns <= kWarp, "a lane for each");

  Run runs[kRuns];      // of the fetch warps, the scout, and the completion warp
  Lives lives[kLives];  // of the last
  alignas(8) uint64_t fetched[kFetchWarps + 1];  // of what such a warp is at
  uint64_t ended[kFetchWarps + 1];
  uint32_t left[kFetchWarps + 1];  // records that it has left
  // Where the ring lies, fixed while a session runs.
  uint64_t base;
  uint32_t slots;     // 0: there is none
  uint32_t life;      // 1: completions have events
  uint32_t function;  // whose it is
  // By the control warp: what the host has released, and the FAULT that it has asked for last.
  uint32_t head;
  uint32_t faults;
  alignas(8) uint64_t fault_of;
  // What follows is for whoever has set `telling`, and told to others as a hint.
  uint32_t telling;
  // Completions told up to, events dropped, FAULTs come through with, and what the host knows.
  uint32_t told;
  uint32_t dropped;
  uint32_t faults_told;
  uint32_t faults_shown;
  alignas(8) uint64_t shown;
  uint64_t written;        // events, and above them the end of the last slots that were claimed
  uint64_t written_shown;
  uint64_t tail;           // of the function's ring, as last seen

  // A session starts: a thread calls it, behind whose barrier the others come.
  __device__ __forceinline__ void clear(uint32_t cq_start, uint32_t of) {
    function = of;
    for (uint32_t k = 0; k < kRuns; k++) runs[k].full = 0;
    for (uint32_t warp = 0; warp <= kFetchWarps; warp++) left[warp] = 0;
    faults = faults_told = faults_shown = dropped = telling = 0;
    told = cq_start;
    shown = cq_start;
    written = written_shown = tail = 0;
  }

  __device__ __forceinline__ bool has_life() const { return order::load_relaxed_block(&life) != 0; }
  __device__ __forceinline__ bool runs_here() const { return order::load_relaxed_block(&slots) != 0; }

  // The warp has read its current slots, and knows how they end. The rare code here computes anew which warp and lane it is:
  // the front end has no register left.
  __device__ __noinline__ void note_fetched() {
    if (threadIdx.x % kWarp == 0) order::store_relaxed_block(&fetched[threadIdx.x / kWarp], ticks());
  }
  __device__ __noinline__ void note_ended() {
    if (threadIdx.x % kWarp == 0) order::store_relaxed_block(&ended[threadIdx.x / kWarp], ticks());
  }

  // Leaves what is to be told of the completions of the lanes in `instants`, which are posted, in the order of lanes from
  // `first` on; `ran` are those that added tokens. It waits while its records are all full: the oldest is told of once those
  // before it are, and nothing that these wait for waits for this.
  __device__ __noinline__ void post(uint32_t first, uint32_t instants, uint32_t ran) {
    const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const uint32_t rank = __popc(instants & ((1u << lane) - 1));
    const uint32_t by_rank = __reduce_add_sync(kEveryLane, (instants & ran) >> lane & 1 ? 1u << rank : 0);
    __syncwarp();
    if (lane == 0) {
      const uint32_t before = order::load_relaxed_block(&left[warp]);
      order::store_relaxed_block(&left[warp], before + 1);
      Run& run = runs[kAhead * warp + before % kAhead];
      for (uint32_t spins = 0; order::load_acquire_block(&run.full) != 0;) relax(spins);
      order::store_relaxed_block(&run.fetched, order::load_relaxed_block(&fetched[warp]));
      order::store_relaxed_block(&run.ended, order::load_relaxed_block(&ended[warp]));
      order::store_relaxed_block(&run.ran, by_rank);
      order::store_relaxed_block(&run.first, first);
      order::store_relaxed_block(&run.count, static_cast<uint32_t>(__popc(instants)));
      order::store_release_block(&run.full, 1);
    }
    __syncwarp();
  }
};

namespace events {

// On Blackwell, where the scout's call would make the fetch warps spill two registers, the completion warp tells alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kScoutTells = false;
#else
constexpr bool kScoutTells = true;
#endif

constexpr uint64_t kPhase = 1ull << 63;  // of either half, in its second word

// What a LIFE event tells of a descriptor: when its slot was read, and the ticks from there to each moment of its life.
struct Life {
  uint64_t stamp;
  uint32_t start, first_token, ended, visible;
};

// Multiprocessors look at one clock, but need not see it move in the same moment: none of the moments is before the one before it.
__device__ __forceinline__ Life life_of(const Moments& moments, uint64_t visible) {
  uint64_t last = moments.fetched;
  const auto delta = [&](uint64_t moment) {
    last = moment < last ? last : moment;
    const uint64_t passed = last - moments.fetched;
    return static_cast<uint32_t>(passed < DOORBELL_EVENT_DELTA_MAX ? passed : DOORBELL_EVENT_DELTA_MAX);
  };
  Life life;
  life.stamp = moments.fetched & ~kPhase;
  life.start = delta(moments.started);
  life.first_token = delta(moments.first_token);
  life.ended = delta(moments.ended);
  life.visible = delta(visible);
  return life;
}

// One half of the event, but for its phase.
__device__ __forceinline__ ulonglong2 half_of(const Life& life, uint32_t queue, uint32_t worker_id, uint32_t index, bool second) {
  if (second)
    return make_ulonglong2(static_cast<uint64_t>(life.first_token) << 32 | life.start,
                           static_cast<uint64_t>(life.visible) << 32 | life.ended);
  return make_ulonglong2(static_cast<uint64_t>(index) << 32 | worker_id << 16 | queue << 8 | DOORBELL_EVENT_LIFE, life.stamp);
}

DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, queue_id) == 1, "half_of: queue_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, worker_id) == 2, "half_of: worker_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, index) == 4, "half_of: index");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, stamp) == 8, "half_of: stamp");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, start) == 16, "half_of: start");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, first_token) == 20, "half_of: first_token");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, ended) == 24, "half_of: ended");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, visible) == 28, "half_of: visible");

// Slots of the function's ring: from a running index on.
struct Claim {
  uint32_t count;
  uint32_t first;
};

// Claims up to `wanted` slots that the host has released; those for which there is none are dropped, and counted. Front ends
// of one function claim from one word; none waits for another. Only `urgent` events have the last quarter. One lane calls it, of who tells.
__device__ __forceinline__ Claim claim(EventRing& ring, const Launch& launch, uint32_t queue,
                                       uint32_t wanted, bool urgent) {
  Function& function = launch.state->functions[ring.function];
  const doorbell_mailbox& mailbox = launch.mailboxes[queue];
  const uint32_t slots = ring.slots, quarter = slots / 4 == 0 ? 1 : slots / 4;
  const uint32_t most = urgent || DOORBELL_FAULT(TakesLastQuarter) ? slots : slots - quarter;
  uint32_t head = order::load_acquire_block(&ring.head), count = 0;
  // The exchange below finds out whether others have claimed since.
  uint64_t tail = order::load_relaxed_block(&ring.tail);
  for (bool asked = false;;) {
    const uint32_t used = static_cast<uint32_t>(tail) - head, room = used < most ? most - used : 0;
    if (room < wanted && !asked) {
      // The control warp may not have seen what the host had released before it rang.
      asked = true;
      head = order::load_acquire_sys(reinterpret_cast<const uint4*>(&mailbox.abort_of)).z;
      tail = order::load_acquire_gpu(&function.events);
      continue;
    }
    count = wanted < room ? wanted : room;
    if (count == 0) break;
    const uint64_t next = static_cast<uint32_t>(tail) + count;
    if (DOORBELL_FAULT(ClaimsApart)) {
      DOORBELL_WINDOW(ClaimsApart);
      order::store_relaxed_gpu(&function.events, static_cast<uint32_t>(next));
      break;
    }
    const uint64_t seen = order::compare_swap_relaxed_gpu(&function.events, tail, static_cast<uint32_t>(next));
    if (seen == tail) break;
    tail = seen;
  }
  order::store_relaxed_block(&ring.tail, uint64_t{static_cast<uint32_t>(tail) + count});
  if (count != 0) {
    const uint64_t written = static_cast<uint32_t>(order::load_relaxed_block(&ring.written)) + count;
    const uint32_t end = static_cast<uint32_t>(tail) + count;
    order::store_relaxed_block(&ring.written, static_cast<uint64_t>(end) << 32 | static_cast<uint32_t>(written));
  }
  if (count < wanted && !DOORBELL_FAULT(LosesDrops)) {
    const uint32_t dropped = order::load_relaxed_block(&ring.dropped), more = wanted - count;
    order::store_relaxed_block(&ring.dropped, dropped > ~more ? ~0u : dropped + more);
  }
  return Claim{count, static_cast<uint32_t>(tail)};
}

// The same for a warp.
__device__ __forceinline__ Claim claim(EventRing& ring, const Launch& launch, uint32_t queue,
                                       uint32_t wanted, bool urgent, uint32_t lane) {
  Claim claimed{};
  if (lane == 0) claimed = claim(ring, launch, queue, wanted, urgent);
  __syncwarp();
  return Claim{__shfl_sync(kEveryLane, claimed.count, 0), __shfl_sync(kEveryLane, claimed.first, 0)};
}

// Writes a half of an event into the slot of a running index.
__device__ __forceinline__ void put(const EventRing& ring, uint32_t index, bool second, ulonglong2 half) {
  const bool odd = (index & ring.slots) != 0 && !DOORBELL_FAULT(KeepsEventPhase);
  half.y |= odd ? 0 : kPhase;
  char* const to = reinterpret_cast<char*>(ring.base) + 32ull * (index & (ring.slots - 1)) + (second ? 16 : 0);
  order::store_relaxed_sys(reinterpret_cast<ulonglong2*>(to), half);
}

// Tells the host how far it is, for what a fence has been passed since.
__device__ __forceinline__ void show(EventRing& ring, doorbell_mailbox& mailbox, uint64_t told, uint64_t written,
                                     uint32_t faults, uint32_t lane) {
  if (lane != 0) return;
  if (written != order::load_relaxed_block(&ring.written_shown)) {
    order::store_relaxed_block(&ring.written_shown, written);
    order::store_relaxed_sys(&mailbox.written, written);
  }
  if (told != order::load_relaxed_block(&ring.shown)) {
    order::store_relaxed_block(&ring.shown, told);
    order::store_relaxed_sys(&mailbox.told, told);
  }
  if (faults != order::load_relaxed_block(&ring.faults_shown)) {
    order::store_relaxed_block(&ring.faults_shown, faults);
    order::store_relaxed_sys(&mailbox.faults_told, faults);
  }
}

// The word that the host is shown: completions told up to, and above them the events dropped.
__device__ __forceinline__ uint64_t told_of(const EventRing& ring) {
  return static_cast<uint64_t>(order::load_relaxed_block(&ring.dropped)) << 32 | order::load_relaxed_block(&ring.told);
}

// Whether there is anything to tell, and nobody telling it: a hint. `first` and `full` are those of the lane's record.
__device__ __forceinline__ bool has_news(const EventRing& ring, bool full, uint32_t first) {
  const bool ready = full && first == order::load_relaxed_block(&ring.told);
  const bool news = order::load_relaxed_block(&ring.faults) != order::load_relaxed_block(&ring.faults_shown) ||
                    told_of(ring) != order::load_relaxed_block(&ring.shown) ||
                    order::load_relaxed_block(&ring.written) != order::load_relaxed_block(&ring.written_shown);
  return __any_sync(kEveryLane, (ready || news) && (order::load_relaxed_block(&ring.telling) == 0 || DOORBELL_FAULT(TellsTogether)));
}

// Tells of the runs that come next in the order of their completions, and of a FAULT that was asked for. False if there was
// none, or another is telling. The completion warp and the scout call it. All that can be done for each record is done by its
// lane, and two lanes write an event, so that neighbours share a transaction.
__device__ __noinline__ bool tell(EventRing& ring, const Launch& launch, uint32_t queue, uint32_t lane) {
  const EventRing::Run& run = ring.runs[lane < EventRing::kRuns ? lane : 0];
  bool full = lane < EventRing::kRuns && order::load_acquire_block(&run.full) != 0;
  if (!has_news(ring, full, order::load_relaxed_block(&run.first))) return false;
  const bool busy = lane == 0 && order::compare_swap_block(&ring.telling, 0, 1) != 0;
  if (__any_sync(kEveryLane, busy && !DOORBELL_FAULT(TellsTogether))) return false;
  __syncwarp();
  // Again: what was full may have been told by another meanwhile.
  full = lane < EventRing::kRuns && order::load_acquire_block(&run.full) != 0;
  const uint32_t next = __shfl_sync(kEveryLane, order::load_relaxed_block(&ring.told), 0);
  const uint32_t faults = __shfl_sync(kEveryLane, order::load_acquire_block(&ring.faults), 0);
  const uint32_t faults_told = __shfl_sync(kEveryLane, order::load_relaxed_block(&ring.faults_told), 0);
  const uint32_t count = full ? order::load_relaxed_block(&run.count) : 0;
  const uint32_t at = full ? order::load_relaxed_block(&run.first) - next : ~0u;
  // A record comes next if those before it fill all that is before it.
  uint32_t before = 0;
#pragma unroll
  for (uint32_t k = 0; k < EventRing::kRuns; k++) {
    const uint32_t other = __shfl_sync(kEveryLane, at, k), size = __shfl_sync(kEveryLane, count, k);
    if (other < at) before += size;
  }
  const uint32_t taken = __ballot_sync(kEveryLane, full && before == at);
  const uint32_t wanted = __reduce_add_sync(kEveryLane, taken >> lane & 1 ? count : 0);
  const uint64_t told = told_of(ring), written = order::load_relaxed_block(&ring.written);
  DOORBELL_WINDOW(TellsTogether);
  __syncwarp();
  // The completions, seen through their warps' releases and this one's acquires, before their events.
  order::fence_sys();
  show(ring, launch.mailboxes[queue], told, written, faults_told, lane);
  const uint64_t now = __shfl_sync(kEveryLane, ticks(), 0);
  if (taken != 0) {
    // Of a run whose warp was the worker, or nobody: it was begun as soon as it was read, or never.
    const uint64_t fetched = order::load_relaxed_block(&run.fetched), ended = order::load_relaxed_block(&run.ended);
    const Life own = life_of(Moments{fetched, ended, ended, ended}, now);
    const uint32_t ran = order::load_relaxed_block(&run.ran);
    const Claim claimed = claim(ring, launch, queue, wanted, false, lane);
    const uint32_t room = claimed.count < at ? 0 : claimed.count - at, size = count < room ? count : room;
#pragma unroll 1
    for (uint32_t rest = taken; rest != 0; rest &= rest - 1) {
      const uint32_t k = __ffs(rest) - 1;
      const uint32_t halves = 2 * __shfl_sync(kEveryLane, size, k), offset = __shfl_sync(kEveryLane, at, k);
      if (k < EventRing::kFirstLives) {
        Life life;
        life.stamp = __shfl_sync(kEveryLane, own.stamp, k);
        life.first_token = life.ended = __shfl_sync(kEveryLane, own.ended, k);
        life.visible = __shfl_sync(kEveryLane, own.visible, k);
        const uint32_t by_it = __shfl_sync(kEveryLane, ran, k);
        for (uint32_t half = lane; half < halves; half += kWarp) {
          const uint32_t place = offset + half / 2;
          life.start = by_it >> half / 2 & 1 ? 0 : life.ended;
          put(ring, claimed.first + place, half & 1, half_of(life, queue, 0, next + place, half & 1));
        }
      } else {
        const EventRing::Lives& lives = ring.lives[k - EventRing::kFirstLives];
        for (uint32_t half = lane; half < halves; half += kWarp) {
          const uint32_t place = offset + half / 2;
          const auto moment = [&](uint32_t which) { return order::load_relaxed_block(&lives.moments[which][half / 2]); };
          const Life life = life_of(Moments{moment(0), moment(1), moment(2), moment(3)}, now);
          const uint32_t worker_id = order::load_relaxed_block(&lives.worker[half / 2]);
          put(ring, claimed.first + place, half & 1, half_of(life, queue, worker_id, next + place, half & 1));
        }
      }
    }
    __syncwarp();
    if (taken >> lane & 1) order::store_release_block(&ring.runs[lane].full, 0);
    if (lane == 0) order::store_relaxed_block(&ring.told, next + wanted);
  }
  if (UNLIKELY(faults != faults_told)) {
    const Claim claimed = claim(ring, launch, queue, 1, true, lane);
    const uint64_t fault = order::load_relaxed_block(&ring.fault_of);
    const ulonglong2 first = make_ulonglong2(fault >> 32 << 32 | (fault >> 16 & 0xFF) << 8 | DOORBELL_EVENT_FAULT, now & ~kPhase);
    if (lane < 2 && claimed.count != 0) put(ring, claimed.first, lane == 1, lane == 0 ? first : make_ulonglong2(fault & 0xFFFF, 0));
    if (lane == 0) order::store_relaxed_block(&ring.faults_told, faults);
  }
  __syncwarp();
  if (lane == 0) order::store_release_block(&ring.telling, 0);
  __syncwarp();
  return taken != 0 || faults != faults_told;
}

// The completion warp's next record, which it has left `before` of: once it is free. Where all are full it tells itself.
__device__ __forceinline__ uint32_t free_lives(EventRing& ring, const Launch& launch, uint32_t queue, uint32_t before,
                                               uint32_t lane) {
  const uint32_t k = before % EventRing::kLives;
  const uint32_t* const full = &ring.runs[EventRing::kFirstLives + k].full;
  for (uint32_t spins = 0; __any_sync(kEveryLane, order::load_acquire_block(full) != 0);)
    if (!tell(ring, launch, queue, lane)) relax(spins);
  return k;
}

// The session ends with `posted` completions, all of which are posted, and the completion warp alone is left: tells of what is left.
__device__ __noinline__ void tell_the_rest(EventRing& ring, const Launch& launch, uint32_t queue,
                                           uint32_t posted, uint32_t lane) {
  const auto behind = [&] {
    return ring.has_life() && __shfl_sync(kEveryLane, order::load_relaxed_block(&ring.told), 0) != posted;
  };
  for (uint32_t spins = 0; tell(ring, launch, queue, lane) || behind();) relax(spins);
}

}  // namespace events

#endif
