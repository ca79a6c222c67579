// What the warps of a front end share, the block of one queue pair: its shared memory, and the counters of its warps. docs/gpu.md tells the
// path of a descriptor through it.
// Called by all other files of front_end/. Waits for nothing. Orders: `tally_completions` releases to the block what a warp has completed (R7).
// Planted fault: CountsUnordered.
#ifndef DOORBELL_FRONT_END_STATE_CUH
#define DOORBELL_FRONT_END_STATE_CUH

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
constexpr uint32_t kFrontEndBytes = 153824;
static_assert(sizeof(FrontEnd) == kFrontEndBytes, "the host refuses a GPU whose blocks have less shared memory");
static_assert(kFrontEndBytes + language::kRings <= language::kBlockShared, "where engine 1 is, the rings of a front end lie behind it");
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

}  // namespace front_end

#endif
