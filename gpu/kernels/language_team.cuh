// Several blocks, the ranks of a team, that take steps together: what they share in device memory, and where they meet.
#ifndef DOORBELL_LANGUAGE_TEAM_CUH
#define DOORBELL_LANGUAGE_TEAM_CUH

#include "language_prefill.cuh"

namespace language {

// Ranks of a team, at most.
constexpr uint32_t kMostRanks = 128;
// Chunks of a prompt that ranks take at a time, at most: those of its team, and of teams that help it.
constexpr uint32_t kMostChunks = 128;

// A rollout's part of a step: its token at its position, and where its keys and values are.
struct alignas(16) Column {
  char* cache;
  char* stored_to;  // its block in host memory
  int32_t* logits;  // as Cache has them
  uint32_t token, position;
  Sampling sampling;
};

// What the leader, rank 0, tells the others to do.
enum Command : uint32_t { kEnds, kTakesChunks, kTakesStep, kTakesAlone, kHelps };

// What a team is to others: whether its leader waits for a ticket, has been asked for help, and has been told what to help with.
enum Help : uint32_t { kIsBusy, kIsFree, kIsAsked, kIsTold };

struct Order {
  uint32_t what;       // a Command
  uint32_t begins;     // whether the ranks have to begin with the model first
  uint32_t count;      // columns of a step, or positions of chunks
  uint32_t position;   // the first of them
  uint32_t scores;     // whether positions of chunks are scored
  uint32_t truncates;  // columns of a step whose draws are truncated, a bit each
  uint32_t session;    // that a chunk is of
  uint32_t ranks;      // that take chunks, of this team and of others
  uint32_t of_chunk;   // positions of each, at most
  uint32_t met;        // what `together` was before them
  const char* image;
  char* local;         // keys and values of the sequence of chunks
  uint64_t logps;      // bus address of the log-probability of the token at `position`
  struct TeamState* helped;  // the team whose chunks are to be taken, the first of them
  uint32_t first_chunk;
  const uint32_t* abandon;
  Sampling sampling;
};

// Σ x² and the bits of all magnitudes of a column, to which all ranks add. One for each vector that becomes an activation.
struct alignas(16) Total {
  uint64_t squares, magnitudes;
};
enum Totals : uint32_t { kOfInput, kOfMeans, kOfMiddle, kOfProducts, kTotals };

// What the ranks of a team share, in device memory: zero before the kernel starts.
struct TeamState {
  alignas(128) uint32_t arrived;   // ranks that have come to meetings, all together
  alignas(128) uint32_t alone;     // ranks that run a rollout alone
  uint32_t is_over;                // whether nobody begins another
  uint32_t exits;                  // how many of them were told to end
  alignas(128) uint32_t together;  // ranks that have come to meetings of all that take chunks, all together
  uint32_t said[2];                // of the leader, each for every other such meeting
  alignas(128) uint32_t help;      // a Help
  struct TeamState* helped;        // what it is told: as Order has them
  uint32_t first_chunk;
  alignas(128) Order order;
  alignas(128) Total totals[kTotals][kColumns];
  Column columns[kColumns];
  Sampled sampled[kColumns];
  uint64_t blocks[kMostChunks];              // bus addresses of those of chunks
  uint32_t tokens[kMostChunks * kBlock];     // of chunks, from the first block's first position on
  uint32_t following[kMostChunks * kBlock];  // the tokens behind them, if they are scored
  uint32_t asked[kMostChunks];               // teams that help; the leader's
  Candidate candidates[kMostRanks][kColumns];
};

// Bytes of a block's bench that are the state of its team; behind it is scratch.
constexpr uint32_t kBenchState = (sizeof(TeamState) + 127) / 128 * 128;

// A rank of a team as one of its blocks sees it. All threads call its functions.
class Ranks {
 public:
  __device__ __forceinline__ Ranks(TeamState& state, uint32_t rank, uint32_t count) : state(state), rank(rank), count(count) {}

  TeamState& state;
  const uint32_t rank, count;

  // What has been done since the last lap was this. One thread of the leader takes the time, and without DOORBELL_PHASES nobody does.
  __device__ __forceinline__ void lap([[maybe_unused]] Lap what) const {
#ifdef DOORBELL_PHASES
    if (rank != 0 || threadIdx.x != 0) return;
    Times& times = reinterpret_cast<Tables*>(language_memory)->times;
    const long long now = clock64();
    times.cycles[what] += now - times.last;
    times.last = now;
#endif
  }
  // A step begins, and ends with so many columns taken: then the host is told.
  __device__ __forceinline__ void step_begins() const {
#ifdef DOORBELL_PHASES
    lap(kBetween);
    if (rank == 0 && threadIdx.x == 0) reinterpret_cast<Tables*>(language_memory)->times.began = order::load_clock();
#endif
  }
  __device__ __forceinline__ void step_ends([[maybe_unused]] uint32_t columns) const {
#ifdef DOORBELL_PHASES
    if (rank != 0 || threadIdx.x != 0) return;
    Times& times = reinterpret_cast<Tables*>(language_memory)->times;
    times.steps++;
    times.nanoseconds += order::load_clock() - times.began;
    times.columns += columns;
    if (doorbell_phases == nullptr) return;
    for (uint32_t k = 0; k < kTold; k++) order::store_relaxed_sys(doorbell_phases + kTold * blockIdx.x + k, reinterpret_cast<const uint64_t*>(&times)[k]);
#endif
  }

  // Waits for all ranks. What each of them has written before, all see behind it.
  __device__ __forceinline__ void meet() const { meet(state, count); }
  static __device__ __forceinline__ void meet(TeamState& state, uint32_t count) {
    meet(state, count, [] {});
  }
  // The same; all threads call `between` behind the first barrier. The last warp waits, and has least to do there.
  template <typename Between>
  static __device__ __forceinline__ void meet(TeamState& state, uint32_t count, Between between) {
    const bool waits = threadIdx.x == kBlockThreads - kWarp && count != 1;
    __syncthreads();
    if (waits) order::add_release_gpu(&state.arrived, 1);
    between();
    if (waits) wait_for(&state.arrived, ++reinterpret_cast<Tables*>(language_memory)->meetings * count);
    __syncthreads();
  }

  // Waits until a word has come to `goal`, to which others add. One thread calls it.
  static __device__ __forceinline__ void wait_for(const uint32_t* word, uint32_t goal) {
    for (uint32_t spins = 0; static_cast<int32_t>(order::load_acquire_gpu(word) - goal) < 0 && !DOORBELL_FAULT(MeetsNobody);) {
      if (spins < kSoon) DOORBELL_SOON();
      relax(spins);
    }
  }

 private:
  // Looks that are expected to be enough: what waits for longer lets others come first.
  static constexpr uint32_t kSoon = 256;
};

// The ranks that take chunks of a prompt: those of its team, and of teams that help it. All threads call its functions.
class Helpers {
 public:
  // The team whose prompt it is, the number of this rank's chunk, and all ranks.
  __device__ __forceinline__ Helpers(TeamState& state, uint32_t number, uint32_t count)
      : state_(state), number_(number), count_(count), goal_(state.order.met) {}

  // Waits for all of them, as Ranks::meet does.
  __device__ __forceinline__ void meet() {
    __syncthreads();
    goal_ += count_;
    if (threadIdx.x == 0 && count_ != 1) {
      order::add_release_gpu(&state_.together, 1);
      Ranks::wait_for(&state_.together, goal_);
    }
    __syncthreads();
  }

  // The same, and on every thread what the leader's thread 0 says by word().
  template <typename Word>
  __device__ __forceinline__ bool meet_for(Word word) {
    // The leader writes a word again when all have come to the meeting behind, and so have read it.
    uint32_t* const at = &state_.said[turn_ % 2];
    turn_++;
    if (number_ == 0 && threadIdx.x == 0) order::store_relaxed_gpu(at, word());
    meet();
    return order::load_relaxed_gpu(at) != 0;
  }

 private:
  TeamState& state_;
  const uint32_t number_, count_;
  uint32_t goal_, turn_ = 0;
};

}  // namespace language

#endif
