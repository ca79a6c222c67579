// What the blocks of one kernel share in device memory, and what one front end keeps in shared memory.
#ifndef DOORBELL_DEVICE_STATE_CUH
#define DOORBELL_DEVICE_STATE_CUH

#include "doorbell_contract.h"
#include "engine.cuh"
#include "mailbox.h"
#include "memory_order.cuh"

#define UNLIKELY(condition) __builtin_expect(condition, 0)

// Nothing on a GPU. The build for the CPU (gpu/cpu) plants faults, holds their windows open, and lets others come first
// where a look was in vain.
#ifndef DOORBELL_FAULT
#define DOORBELL_FAULT(name) false
#define DOORBELL_WINDOW(name)
#define DOORBELL_YIELD()
#define DOORBELL_SOON()
#endif

// The shape; the build for the CPU has one of its own.
#ifndef DOORBELL_FETCH_WARPS
#define DOORBELL_FETCH_WARPS 13
#define DOORBELL_PLACES_LOG2 11
#define DOORBELL_FIRST_PLACE 0
#define DOORBELL_WORK_SLOTS 32768
#define DOORBELL_SHARE 64
#define DOORBELL_TURN 32
#endif

constexpr uint32_t kWarp = 32;
// With the three others 16 warps, four per part of a multiprocessor: 128 registers each.
constexpr uint32_t kFetchWarps = DOORBELL_FETCH_WARPS;
// A run of descriptors for each of them.
constexpr uint32_t kCrowd = kFetchWarps * kWarp;
constexpr uint32_t kScoutWarp = kFetchWarps;
constexpr uint32_t kControlWarp = kFetchWarps + 1;
constexpr uint32_t kCompletionWarp = kFetchWarps + 2;
constexpr uint32_t kBlockWarps = kFetchWarps + 3;
constexpr uint32_t kBlockThreads = kBlockWarps * kWarp;
constexpr uint32_t kEveryLane = 0xFFFFFFFFu;

constexpr uint32_t kMaxQueues = 16;
// Rollouts of one queue that may be at workers at a time.
constexpr uint32_t kPlacesLog2 = DOORBELL_PLACES_LOG2, kPlaces = 1u << kPlacesLog2;
constexpr uint32_t kGivenPlaces = kPlaces - 1;
// Where a session starts to count places.
constexpr uint32_t kFirstPlace = DOORBELL_FIRST_PLACE;
static_assert(kFirstPlace % kPlaces == 0, "the place that is never given out is the last");
// Rollouts that one queue pair of weight 1 may have in the work queue, which is first come, first served, so that those of
// another wait behind so many at most of each, and all that have more to come get workers as their weights are to each other.
constexpr uint32_t kShare = DOORBELL_SHARE;
// Steps of a rollout of engine 1 behind which it gives its block up, if others wait for one.
constexpr uint32_t kTurn = DOORBELL_TURN;
// Slots of a work queue, by ticket. No ticket comes round to a slot to which no worker has come.
constexpr uint32_t kWorkSlots = DOORBELL_WORK_SLOTS;
static_assert(kMaxQueues * kPlaces <= kWorkSlots && (kWorkSlots & (kWorkSlots - 1)) == 0,
              "all that waits for workers has a slot, and tickets wrap with the slots (R13)");
// What a slot of a work queue says; with the lap of its ticket above it is an entry.
constexpr uint32_t kVacant = 0;
constexpr uint32_t kAwaited = 1;  // the worker with the ticket waits for what comes
// What follows is for the worker to take. A rollout is queue << 16 | place, with what has become of it above.
constexpr uint32_t kPaused = 1u << 27;  // it goes on with what it has given up
constexpr uint32_t kExit = 1u << 28;  // it is to end
constexpr uint32_t kHanded = 1u << 29;
constexpr uint32_t kCancelled = 1u << 30;
constexpr uint32_t kQueued = 1u << 31;  // no worker waited for it: may be cancelled for as long as none has come
// SM cycles from a completion that the scout posts to its next look, at least. A look that leaves sooner arrives before
// the answer of a host that waits for the completion, and costs a whole look more; docs/notebook/gpu.md has the measurement.
constexpr uint32_t kAnswerCycles = 500;
// DECODEs of at most so many tokens run in the fetch warp, a lane each.
constexpr uint32_t kBrief = 4;

// What the front end tells a DECODE that is at a worker, a bit each in `stop`: it is to end.
constexpr uint32_t kStop = 1;  // as STOPPED: a STOP, or its version was retired with ABORT
constexpr uint32_t kKeep = 2;  // as SUPERSEDED: its version was retired with KEEP

// A DECODE or REWARD on its way to a worker, and back. The front end writes `work`, the worker `result`.
struct Place {
  alignas(128) uint32_t rollout_id;
  uint32_t seed;
  uint32_t seq_len;
  uint32_t max_tokens;
  uint32_t period;  // between checkpoints
  uint32_t flags;
  uint32_t reward_model_id;
  uint32_t stop;    // set by the front end (R8, R20)
  uint64_t user_data;
  uint64_t tokens;  // device address
  uint64_t logps;   // device address of the log-probabilities; 0 for none
  uint32_t eos_threshold;
  uint32_t wait_states;
  uint32_t reward_threshold;
  uint32_t session;
  uint32_t salt;
  uint32_t index;  // of the submission queue
  // The completion, but for what its slot decides.
  ulonglong2 result[2];
  uint32_t abort;  // set by the front end: the index of the descriptor that ABORT ends (R8)
  uint32_t opcode;
  uint32_t model_id;  // where there are several
};
static_assert(sizeof(Place) == 128, "a place is a line");

// What a descriptor of engine 1 has besides.
struct SequencePlace {
  uint64_t kv_offset;
  uint32_t arena;
  uint32_t slot;  // of its version
};

// How far a rollout of engine 1 has come that has given its block up to another: docs/gpu-language.md, "Taking turns". It is worked on by who has
// the ticket alone.
struct Paused {
  alignas(32) uint32_t ticket;  // read by the end of a session, too
  uint32_t position;  // its next
  uint32_t token;     // at that
  // As its Course has them.
  uint32_t produced, checkpoint, flags, digest, since;
};

// Of a rollout at a place, in ticks, where completions have events (R23). The front end writes the first, the worker the others.
struct alignas(16) Moments {
  uint64_t fetched;
  uint64_t started;
  uint64_t first_token;
  uint64_t ended;
};
// In two loads: they are on the way of a completion.
__device__ __forceinline__ Moments load_moments(const Moments& from) {
  const ulonglong2 begin = order::load_relaxed_gpu(reinterpret_cast<const ulonglong2*>(&from.fetched));
  const ulonglong2 end = order::load_relaxed_gpu(reinterpret_cast<const ulonglong2*>(&from.first_token));
  return Moments{begin.x, begin.y, end.x, end.y};
}
// In `flags` of a place: its moments are asked for. The descriptor's own are bits 7:0.
constexpr uint32_t kTimed = 1u << 31;

// Counters of what workers do, by queue.
struct alignas(64) WorkerCounters {
  uint64_t tokens;
  uint64_t busy;
  uint64_t wait;
  uint64_t lines;
  uint64_t read;  // lines
};

// What a publish asks of the other front ends of its function: a word that is another one each time, with the publisher's
// queue pair and the phase below the number.
namespace request {

constexpr uint32_t kHold = 1;    // use the versions no more, and say whether the slot that is to be loaded is in use
constexpr uint32_t kAdopt = 2;   // the new ones
constexpr uint32_t kResume = 3;  // with the old ones
constexpr uint32_t kPhase = 3, kQueue = 2, kNumber = 6;
constexpr uint32_t kBusy = 1u << 31;  // of an answer: yes

__device__ __forceinline__ uint32_t word(uint32_t number, uint32_t queue, uint32_t phase) {
  return (number << kNumber | queue << kQueue | phase) & ~kBusy;
}
__device__ __forceinline__ uint32_t queue_of(uint32_t request) { return request >> kQueue & (kMaxQueues - 1); }

}  // namespace request

// What the queue pairs of a function have in common: the versions of the policy (R18). Whoever holds `publisher` writes.
struct Function {
  alignas(128) uint4 slots;  // as Versions has them, without tags
  uint32_t loaded;           // the slot of the newest
  uint32_t life;             // the host's; another one: no queue pair was active in between, and all begins anew
  uint32_t target;           // the slot that is being loaded
  uint32_t mode;             // how
  alignas(128) uint32_t publisher;  // 1: somebody publishes, or joins
  alignas(128) uint32_t loader;     // 1: somebody brings a model, or publishes: with engine 1 before it becomes the publisher
  alignas(128) uint32_t members;    // front ends that have a session, a bit each
  alignas(128) uint32_t asked;      // the request
  alignas(128) uint64_t events;     // tail of the event ring, a running index: claimed by exchanges
};

// Rollouts for workers of a kind, first come, first served.
struct WorkQueue {
  alignas(128) uint32_t tail;  // tickets filled
  alignas(128) uint32_t head;  // tickets taken
  alignas(128) uint64_t slots[kWorkSlots];  // by ticket, as `work_entry` has it
};

// The kinds: warps, which run engine 0 and score, and blocks, which run engine 1.
constexpr uint32_t kForWarps = 0, kForBlocks = 1, kWorkQueues = 2;

// A version of engine 1 whose image is in device memory: what descriptors need of its HwImage (R25).
struct LoadedModel {
  alignas(32) uint64_t block_bytes;  // of keys and values of 32 positions
  uint32_t vocabulary;
  uint32_t ends[4];
  uint32_t moved;  // its place among the function's, xor its slot: at first each slot has the place of its number

  __device__ __forceinline__ uint32_t place(uint32_t slot) const { return moved ^ slot; }
};

// Places for models that a function has: one for each slot, and one for the model that is being brought.
constexpr uint32_t kModels = 3;

// The place that no slot of a function names.
__device__ __forceinline__ uint32_t spare_place(const LoadedModel (&models)[2]) {
  return kModels - models[0].place(0) - models[1].place(1);
}

// Zeroed before the kernel starts.
struct DeviceState {
  WorkQueue work[kWorkQueues];
  alignas(128) uint32_t exited;        // front ends that have ended
  alignas(128) uint32_t abandon[kMaxQueues * 32];    // one line each: the session whose rollouts are to be dropped
  alignas(128) uint32_t done_tail[kMaxQueues * 32];  // one line each
  alignas(128) uint64_t fetched[kMaxQueues * 16];    // one line each: tickets of the queue pair to which a worker has come
  alignas(128) uint32_t answers[kMaxQueues * 32];    // one line each: the request that the front end has come to
  Function functions[kMaxQueues];
  // By function and arena: lines of its blocks << 32 | the era of what is kept of it (Pool). It stands before what is large: ptxas of CUDA 13.5 gives an
  // exchange a wrong address behind the first 4 MB of a structure, where a load of the same word finds it.
  uint64_t eras[kMaxQueues][DOORBELL_ARENAS];
  WorkerCounters counters[kMaxQueues];
  engine::Range ranges[kMaxQueues][DOORBELL_RANGES];  // of reward model 1, while a session runs
  // Entry of ticket t: (t + 1) << 32 | place.
  uint64_t done[kMaxQueues][kPlaces];
  Place places[kMaxQueues][kPlaces];
  Moments moments[kMaxQueues][kPlaces];
  // Of engine 1.
  SequencePlace sequences[kMaxQueues][kPlaces];
  doorbell_session sessions[kMaxQueues];  // as the front ends have read them, for the blocks
  LoadedModel models[kMaxQueues][2];      // by function and policy slot
  Paused paused[kMaxQueues][kPlaces];
};

// What engine 1 has of the device's memory: nothing, and no block, where there is none.
struct LanguageMemory {
  char* models;          // kModels of each function, one behind the other
  uint64_t model_bytes;  // of each, a multiple of 64
  char* caches;          // keys and values, one of each warp that is a team, or `columns` of each team of blocks
  uint64_t cache_bytes;  // of each, a multiple of 64
  uint32_t blocks;       // the last of the grid
  uint32_t teams;        // of blocks: 0 where each warp is one
  uint32_t columns;      // rollouts that a team of blocks has at a time, at most
  char* benches;         // of each block, where it has teams of blocks: its state of the team, and scratch
  uint64_t bench_bytes;  // of each, a multiple of 128
  char* pages;           // keys and values that are kept: `page_sets` PageSets, then the pages of each
  uint64_t page_set_bytes;  // of the pages of a set, a multiple of 64
  uint32_t page_sets;       // 0: nothing is kept

  __device__ __forceinline__ uint32_t engines() const { return blocks == 0 ? 1 : 2; }
  __device__ __forceinline__ char* model(uint32_t function, uint32_t place) const {
    return models + model_bytes * (kModels * function + place);
  }
};

struct Launch {
  DeviceState* state;
  doorbell_mailbox* mailboxes;  // host memory
  uint32_t queues;              // front ends: the first blocks of the grid
  LanguageMemory language;
};

// The wait for a change by somebody else in the same device: short first, then yielding.
__device__ __forceinline__ void relax(uint32_t& spins) {
  DOORBELL_YIELD();
  if (++spins > 16) __nanosleep(spins > 1024 ? 500 : 20);
}

// The device's time, which all its multiprocessors share (R23): nanoseconds, as CAP_TICK_HZ says.
__device__ __forceinline__ uint64_t ticks() { return order::load_clock(); }

// What the slot of a ticket holds. All laps differ, so that everybody finds the slot as it must be for the own ticket, or
// waits: a worker that is held up for as long as others go all round delays who comes behind it, and loses nothing.
__device__ __forceinline__ uint64_t work_entry(uint32_t ticket, uint32_t what) {
  return static_cast<uint64_t>(ticket / kWorkSlots) << 32 | what;
}

// Gives a ticket's worker what it is to do: a rollout, or kExit. Who waits already need not ask again whether it may take
// it; so what costs time is done while there is nothing to do.
__device__ __forceinline__ void hand_out(WorkQueue& work, uint32_t ticket, uint32_t what) {
  uint64_t* const slot = &work.slots[ticket % kWorkSlots];
  const uint64_t vacant = work_entry(ticket, kVacant), awaited = work_entry(ticket, kAwaited);
  uint64_t expected = awaited;
  for (uint32_t spins = 0;;) {
    const uint32_t how = what == kExit ? 0 : expected == awaited ? kHanded : kQueued;
    const uint64_t seen = order::compare_swap_release_gpu(slot, expected, work_entry(ticket, what | how));
    if (seen == expected) return;
    if (seen == vacant || seen == awaited) {
      expected = seen;
    } else {
      relax(spins);
    }
  }
}

#endif
