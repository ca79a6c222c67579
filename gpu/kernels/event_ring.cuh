// What a front end tells of its completions, on its way into the event ring of its function (R23).
#ifndef DOORBELL_EVENT_RING_CUH
#define DOORBELL_EVENT_RING_CUH

#include "descriptor.cuh"
#include "device_state.cuh"

// In shared memory. The warps that post completions leave what is to be told of them here, a record for each run of
// neighbours; the completion warp takes the records in the order of the indices, claims slots of the function's ring for all
// that it finds, and writes the events.
struct EventRing {
  // Of the completions that one warp has posted at a time.
  struct Run {
    alignas(8) uint64_t fetched;
    uint64_t ended;
    uint32_t first;  // index of the first
    uint32_t count;
    uint32_t ran;    // those, a bit each, of which the warp was the worker
    uint32_t full;   // 1: by the warp, 0: by the completion warp
  };

  Run runs[kFetchWarps + 1];                     // of the fetch warps and the scout
  alignas(8) uint64_t fetched[kFetchWarps + 1];  // of what such a warp is at
  uint64_t ended[kFetchWarps + 1];
  // Where the ring lies, fixed while a session runs.
  uint64_t base;
  uint32_t slots;     // 0: there is none
  uint32_t life;      // 1: completions have events
  uint32_t function;  // whose it is
  // By the control warp: what the host has released, and the FAULT that it has asked for last.
  uint32_t head;
  uint32_t faults;
  alignas(8) uint64_t fault_of;
  // By the completion warp: completions told up to, events dropped, FAULTs come through with, and what the host knows.
  uint32_t told;
  uint32_t dropped;
  uint32_t faults_told;
  uint32_t faults_shown;
  uint64_t shown;
  uint64_t written;        // events, and above them the end of the last slots that were claimed
  uint64_t written_shown;
  ulonglong2 stage[2 * kWarp];  // events on their way to their slots, as neighbours

  // A session starts: a thread calls it, behind whose barrier the others come.
  __device__ __forceinline__ void clear(uint32_t cq_start, uint32_t of) {
    function = of;
    for (uint32_t warp = 0; warp <= kFetchWarps; warp++) runs[warp].full = 0;
    faults = faults_told = faults_shown = dropped = 0;
    told = cq_start;
    shown = cq_start;
    written = written_shown = 0;
  }

  __device__ __forceinline__ bool has_life() const { return order::load_relaxed_block(&life) != 0; }
  __device__ __forceinline__ bool runs_here() const { return order::load_relaxed_block(&slots) != 0; }

  // The warp has read the slots that it is at; and knows how they end. What is rare here finds out again which warp and lane
  // it is: the front end has no register left.
  __device__ __noinline__ void note_fetched() {
    if (threadIdx.x % kWarp == 0) order::store_relaxed_block(&fetched[threadIdx.x / kWarp], ticks());
  }
  __device__ __noinline__ void note_ended() {
    if (threadIdx.x % kWarp == 0) order::store_relaxed_block(&ended[threadIdx.x / kWarp], ticks());
  }

  // Leaves what is to be told of the completions of the lanes in `instants`, which are posted, in the order of lanes from
  // `first` on; `ran` are those that added tokens. What was left before is told by then, or soon: nothing that the completion
  // warp waits for waits for this.
  __device__ __noinline__ void post(uint32_t first, uint32_t instants, uint32_t ran) {
    const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const uint32_t rank = __popc(instants & ((1u << lane) - 1));
    const uint32_t by_rank = __reduce_add_sync(kEveryLane, (instants & ran) >> lane & 1 ? 1u << rank : 0);
    __syncwarp();
    if (lane == 0) {
      Run& run = runs[warp];
      for (uint32_t spins = 0; order::load_acquire_block(&run.full) != 0;) relax(spins);
      order::store_relaxed_block(&run.fetched, order::load_relaxed_block(&fetched[warp]));
      order::store_relaxed_block(&run.ended, order::load_relaxed_block(&ended[warp]));
      order::store_relaxed_block(&run.first, first);
      order::store_relaxed_block(&run.count, static_cast<uint32_t>(__popc(instants)));
      order::store_relaxed_block(&run.ran, by_rank);
      order::store_release_block(&run.full, 1);
    }
    __syncwarp();
  }
};

namespace events {

constexpr uint64_t kPhase = 1ull << 63;  // of either half, in its second word

// The LIFE event, but for its phase and when its completion was visible. Multiprocessors look at one clock, but need not see
// it move in the same moment: none of these is before the one before it.
__device__ __forceinline__ void write_life(ulonglong2 (&halves)[2], uint32_t queue, uint32_t worker_id, uint32_t index,
                                           const Moments& moments) {
  uint64_t last = moments.fetched;
  const auto delta = [&](uint64_t moment) {
    last = moment < last ? last : moment;
    const uint64_t passed = last - moments.fetched;
    return passed < DOORBELL_EVENT_DELTA_MAX ? passed : DOORBELL_EVENT_DELTA_MAX;
  };
  const uint64_t started = delta(moments.started), first_token = delta(moments.first_token);
  halves[0].x = static_cast<uint64_t>(index) << 32 | worker_id << 16 | queue << 8 | DOORBELL_EVENT_LIFE;
  halves[0].y = moments.fetched & ~kPhase;
  halves[1].x = first_token << 32 | started;
  halves[1].y = delta(moments.ended);
}

DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, queue_id) == 1, "write_life: queue_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, worker_id) == 2, "write_life: worker_id");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, index) == 4, "write_life: index");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, stamp) == 8, "write_life: stamp");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, start) == 16, "write_life: start");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, first_token) == 20, "write_life: first_token");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, ended) == 24, "write_life: ended");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(doorbell_hw_event, visible) == 28, "write_life: visible");

// Adds when its completion was visible.
__device__ __forceinline__ void write_visible(ulonglong2 (&halves)[2], uint64_t now) {
  const uint64_t passed = now < halves[0].y ? 0 : now - halves[0].y;
  const uint64_t delta = passed < halves[1].y ? halves[1].y : passed;
  halves[1].y |= (delta < DOORBELL_EVENT_DELTA_MAX ? delta : DOORBELL_EVENT_DELTA_MAX) << 32;
}

// Slots of the function's ring: from a running index on.
struct Claim {
  uint32_t count;
  uint32_t first;
};

// Claims up to `wanted` slots that the host has released; those for which there is none are dropped, and counted. Front ends
// of one function claim from one word; none waits for another. Only `urgent` events have the last quarter. One lane calls it.
__device__ __forceinline__ Claim claim(EventRing& ring, const Launch& launch, uint32_t queue,
                                       uint32_t wanted, bool urgent) {
  Function& function = launch.state->functions[ring.function];
  const doorbell_mailbox& mailbox = launch.mailboxes[queue];
  const uint32_t slots = ring.slots, quarter = slots / 4 == 0 ? 1 : slots / 4;
  const uint32_t most = urgent || DOORBELL_FAULT(TakesLastQuarter) ? slots : slots - quarter;
  uint32_t head = order::load_acquire_block(&ring.head), count = 0;
  uint64_t tail = order::load_acquire_gpu(&function.events);
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

// Writes the events of the lanes below `count` into the slots from `first` on, two lanes to an event, so that neighbours
// share a transaction.
__device__ __forceinline__ void write(EventRing& ring, ulonglong2 (&halves)[2], uint32_t count, uint32_t first,
                                      uint32_t lane) {
  const bool odd = ((first + lane) & ring.slots) != 0 && !DOORBELL_FAULT(KeepsEventPhase);
  if (lane < count) {
    halves[0].y |= odd ? 0 : kPhase;
    halves[1].y |= odd ? 0 : kPhase;
    ring.stage[2 * lane] = halves[0];
    ring.stage[2 * lane + 1] = halves[1];
  }
  __syncwarp();
  char* const to = reinterpret_cast<char*>(ring.base);
  for (uint32_t half = lane; half < 2 * count; half += kWarp)
    order::store_relaxed_sys(
        reinterpret_cast<ulonglong2*>(to + 32ull * ((first + half / 2) & (ring.slots - 1)) + 16 * (half & 1)),
        ring.stage[half]);
  __syncwarp();
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

// Tells of the runs that come next in the order of their completions, and of a FAULT that was asked for. False if there was
// none. The completion warp alone calls it.
__device__ __noinline__ bool tell(EventRing& ring, const Launch& launch, uint32_t queue,
                                  uint32_t lane) {
  const uint32_t next = __shfl_sync(kEveryLane, order::load_relaxed_block(&ring.told), 0);
  const uint32_t faults = __shfl_sync(kEveryLane, order::load_acquire_block(&ring.faults), 0);
  const uint32_t faults_told = __shfl_sync(kEveryLane, order::load_relaxed_block(&ring.faults_told), 0);
  bool full = false;
  uint32_t first = 0, count = 0, at = 0;
  if (lane <= kFetchWarps) {
    full = order::load_acquire_block(&ring.runs[lane].full) != 0;
    first = order::load_relaxed_block(&ring.runs[lane].first);
    count = order::load_relaxed_block(&ring.runs[lane].count);
  }
  uint32_t cursor = next, taken = 0;
  for (;;) {
    const uint32_t found = __ballot_sync(kEveryLane, full && first == cursor);
    if (found == 0) break;
    const uint32_t k = __ffs(found) - 1;
    if (lane == k) at = cursor - next;
    cursor += __shfl_sync(kEveryLane, count, k);
    taken |= 1u << k;
  }
  const uint64_t told = told_of(ring), written = order::load_relaxed_block(&ring.written);
  __syncwarp();
  if (taken == 0 && faults == faults_told) {
    const bool news = told != order::load_relaxed_block(&ring.shown) ||
                      written != order::load_relaxed_block(&ring.written_shown) ||
                      faults != order::load_relaxed_block(&ring.faults_shown);
    if (__any_sync(kEveryLane, lane == 0 && news)) {
      order::fence_sys();
      show(ring, launch.mailboxes[queue], told, written, faults_told, lane);
      __syncwarp();
    }
    return false;
  }
  // The completions, seen through their warps' releases and this one's acquires, before their events.
  order::fence_sys();
  show(ring, launch.mailboxes[queue], told, written, faults_told, lane);
  const uint64_t now = __shfl_sync(kEveryLane, ticks(), 0);
  if (taken != 0) {
    const Claim claimed = claim(ring, launch, queue, cursor - next, false, lane);
#pragma unroll 1
    for (uint32_t rest = taken; rest != 0; rest &= rest - 1) {
      const uint32_t k = __ffs(rest) - 1;
      const uint32_t offset = __shfl_sync(kEveryLane, at, k), size = __shfl_sync(kEveryLane, count, k);
      const EventRing::Run& run = ring.runs[k];
      const uint64_t ended = order::load_relaxed_block(&run.ended);
      Moments moments{order::load_relaxed_block(&run.fetched), ended, ended, ended};
      // It was begun as soon as it was read.
      if (order::load_relaxed_block(&run.ran) >> lane & 1) moments.started = moments.fetched;
      ulonglong2 halves[2];
      write_life(halves, queue, 0, next + offset + lane, moments);
      write_visible(halves, now);
      const uint32_t left = claimed.count < offset ? 0 : claimed.count - offset;
      write(ring, halves, size < left ? size : left, claimed.first + offset, lane);
    }
    if (taken >> lane & 1) order::store_release_block(&ring.runs[lane].full, 0);
    if (lane == 0) order::store_relaxed_block(&ring.told, cursor);
  }
  if (UNLIKELY(faults != faults_told)) {
    const Claim claimed = claim(ring, launch, queue, 1, true, lane);
    const uint64_t fault = order::load_relaxed_block(&ring.fault_of);
    ulonglong2 halves[2];
    halves[0].x = fault >> 32 << 32 | (fault >> 16 & 0xFF) << 8 | DOORBELL_EVENT_FAULT;
    halves[0].y = now & ~kPhase;
    halves[1].x = fault & 0xFFFF;
    halves[1].y = 0;
    write(ring, halves, claimed.count, claimed.first, lane);
    if (lane == 0) order::store_relaxed_block(&ring.faults_told, faults);
  }
  __syncwarp();
  return true;
}

// Waits until all completions below `index` are told: whoever has their slots posts them, and waits for nobody to do it.
__device__ __forceinline__ void tell_up_to(EventRing& ring, const Launch& launch, uint32_t queue,
                                           uint32_t index, uint32_t lane) {
  for (uint32_t spins = 0; __shfl_sync(kEveryLane, order::load_relaxed_block(&ring.told), 0) != index;)
    if (!tell(ring, launch, queue, lane)) relax(spins);
}

// Tells of the completion warp's own run, of `count` from `first` on, which is posted; `stage` has what write_life has made of
// each.
__device__ __noinline__ void tell_own(EventRing& ring, const Launch& launch, uint32_t queue,
                                      const ulonglong2* stage, uint32_t first, uint32_t count, uint32_t lane) {
  tell_up_to(ring, launch, queue, first, lane);
  __syncwarp();
  order::fence_sys();
  const uint64_t now = __shfl_sync(kEveryLane, ticks(), 0);
  const Claim claimed = claim(ring, launch, queue, count, false, lane);
  ulonglong2 halves[2] = {};
  if (lane < count) {
    halves[0] = stage[2 * lane];
    halves[1] = stage[2 * lane + 1];
    write_visible(halves, now);
  }
  write(ring, halves, claimed.count, claimed.first, lane);
  if (lane == 0) order::store_relaxed_block(&ring.told, first + count);
  __syncwarp();
}

// The session ends with `posted` completions, all of which are posted: tells of what is left.
__device__ __noinline__ void tell_the_rest(EventRing& ring, const Launch& launch, uint32_t queue,
                                           uint32_t posted, uint32_t lane) {
  if (ring.has_life()) tell_up_to(ring, launch, queue, posted, lane);
  while (tell(ring, launch, queue, lane)) {
  }
}

}  // namespace events

#endif
