// What both shapes' steps are made of: a team's shared memory, its sums over all of it, activations.
#ifndef DOORBELL_LANGUAGE_FRAME_CUH
#define DOORBELL_LANGUAGE_FRAME_CUH

#include "language_attention.cuh"
#include "language_rows.cuh"
#include "language_sample.cuh"

namespace language {

// The root of a mean of squares, with 31 bits, times 2^(up / 2); and 2^46 by it, with 16 bits.
struct Root {
  uint64_t root;
  int32_t up;
  uint32_t inverse;

  // Of so many channels; epsilon has 20 fraction bits.
  static __device__ __forceinline__ Root of(uint64_t squares, uint32_t channels, uint32_t epsilon) {
    return of_mean(divide(squares + channels / 2, channels) + epsilon);
  }
  // Of a mean with 20 fraction bits, which is taken for 1 at least.
  static __device__ __forceinline__ Root of_mean(uint64_t mean) {
    if (mean == 0) mean = 1;
    // Shifted by an even number to 61 or 62 bits: its root has 31.
    const int32_t up = (62 - bits(mean)) / 2 * 2;
    const uint64_t root = root_of(mean << up);
    // In floating point it is one off at most.
    uint64_t inverse = static_cast<uint64_t>(static_cast<float>(1ull << 46) / static_cast<float>(root));
    if (inverse * root > 1ull << 46) inverse--;
    if ((inverse + 1) * root <= 1ull << 46) inverse++;
    return Root{root, up, inverse > 65535 ? 65535u : static_cast<uint32_t>(inverse)};
  }
};

// Within the bounds of the residual stream.
__device__ __forceinline__ int32_t within(int64 value) { return static_cast<int32_t>(clamp(value, -kResidual, kResidual)); }
// The same of the sum of any number and one that is within them: in 32 bits.
__device__ __forceinline__ int32_t add_within(int32_t x, int32_t value) {
  return min(max(x + min(max(value, -2 * kResidual), 2 * kResidual), -kResidual), kResidual);
}

template <typename Team>
class Frame {
 protected:
  static constexpr uint32_t kWarps = Team::kWarps, kThreads = Team::kThreads;

  char* const memory_;  // the team's
  Shared<Team>& shared_;
  const uint32_t thread_, lane_, warp_;

  static __device__ __forceinline__ char* block_memory() { return reinterpret_cast<char*>(language_memory); }
  static __device__ __forceinline__ char* memory() { return block_memory() + sizeof(Tables) + kTeamBytes<Team> * Team::number(); }
  static __device__ __forceinline__ Tables& tables() { return *reinterpret_cast<Tables*>(block_memory()); }

  // The thread's number, which the compiler is not to know for the same in the next phase: what one works out of it, no other is to hold in
  // registers meanwhile.
  static __device__ __forceinline__ uint32_t thread() {
    uint32_t index = Team::thread();
    asm volatile("" : "+r"(index));
    return index;
  }

  __device__ __forceinline__ explicit Frame(uint32_t index)
      : memory_(memory()), shared_(*reinterpret_cast<Shared<Team>*>(memory())), thread_(index), lane_(index % kWarp), warp_(index / kWarp) {}
  __device__ __forceinline__ Frame() : Frame(thread()) {}

  // Teams of a block that run the same model do so in step: a step is more instructions than the multiprocessor's caches hold, which teams that
  // are at the same place fetch once, and each for itself where they are not (docs/gpu-language.md). Where a team is, is a word that the others read: the
  // model, and a number of the rounds from meeting to meeting, which begins with each token at the next multiple of kRounds. Nothing but time
  // depends on it. Whoever has come least far waits for nobody; who runs no rollout, or another model, is not waited for.
  static constexpr uint32_t kRounds = 256;

  static __device__ __forceinline__ uint64_t* round_of(uint32_t team) {
    return &reinterpret_cast<Shared<Team>*>(block_memory() + sizeof(Tables) + kTeamBytes<Team> * team)->round;
  }
  // The model whose rounds these are; none is 0, and no model is.
  static __device__ __forceinline__ uint32_t model_of(uint64_t round) { return static_cast<uint32_t>(round >> 32); }
  static __device__ __forceinline__ bool is_before(uint64_t round, uint64_t other) {
    return static_cast<int32_t>(static_cast<uint32_t>(round) - static_cast<uint32_t>(other)) < 0;
  }

  // From its next token on the team, which has begun with its model, is in step with those that run the same.
  static __device__ __forceinline__ void fall_in() {
    if constexpr (Team::kTeams != 1) {
      if (Team::thread() == 0) {
        const uint32_t model = static_cast<uint32_t>(reinterpret_cast<uint64_t>(Frame().shared_.image)) | 1;
        uint64_t own = static_cast<uint64_t>(model) << 32;
        bool alone = true;
        for (uint32_t team = 0; team < Team::kTeams; team++) {
          const uint64_t other = order::load_relaxed_block(round_of(team));
          if (team == Team::number() || model_of(other) != model || (!alone && is_before(other, own))) continue;
          alone = false;
          own = other;
        }
        order::store_relaxed_block(round_of(Team::number()), own);
      }
      Team::sync();
    }
  }

  // From here on nobody waits for the team.
  static __device__ __forceinline__ void fall_out() {
    if constexpr (Team::kTeams != 1) {
      if (Team::thread() == 0) order::store_relaxed_block(round_of(Team::number()), 0);
    }
  }

  // Waits until all that are in step have come as far: to the beginning of a token, or within it.
  static __device__ __forceinline__ void meet(bool begins) {
    if constexpr (Team::kTeams != 1) {
      if (Team::thread() == 0) {
        const uint64_t last = order::load_relaxed_block(round_of(Team::number()));
        if (last != 0) {
          const uint32_t number = (static_cast<uint32_t>(last) | (begins ? kRounds - 1 : 0)) + 1;
          const uint64_t own = static_cast<uint64_t>(model_of(last)) << 32 | number;
          order::store_relaxed_block(round_of(Team::number()), own);
          for (uint32_t team = 0; team < Team::kTeams; team++) {
            for (uint32_t spins = 0;;) {
              const uint64_t other = order::load_relaxed_block(round_of(team));
              if (model_of(other) != model_of(own) || !is_before(other, own)) break;
              relax(spins);
            }
          }
        }
      }
      Team::sync();
    }
  }

  template <typename T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }

  // Calls each(k) for every `by`-th number from `from` on. In the code of a warp alone it stands once: few rounds gain nothing from copies, and many
  // of its kind share a cache of instructions.
  template <typename Each>
  static __device__ __forceinline__ void through(uint32_t from, uint32_t end, uint32_t by, Each each) {
    if constexpr (kWarps == 1) {
#pragma unroll 1
      for (uint32_t k = from; k < end; k += by) each(k);
    } else {
      for (uint32_t k = from; k < end; k += by) each(k);
    }
  }

  // Starts to copy; `bytes` is a multiple of 16.
  __device__ __forceinline__ void copy(void* to, const char* from, uint32_t bytes) const {
    through(16 * thread_, bytes, 16 * kThreads, [&](uint32_t k) { stream::copy(static_cast<char*>(to) + k, from + k); });
  }

  // Σ x² and the bits of all magnitudes of the team, once every warp has left its own. There are two places for them, so that one is read while the next is written.
  __device__ __forceinline__ Seen all_seen(uint32_t place = 0) const {
    Seen all{0, 0};
    for (uint32_t k = 0; k < kWarps; k++) {
      all.squares += shared_.seen[place][k].squares;
      all.magnitudes |= shared_.seen[place][k].magnitudes;
    }
    return all;
  }

  // The sum of all lanes' numbers: in pieces whose sums over 32 lanes have 32 bits.
  static __device__ __forceinline__ uint64_t sum_of_warp(uint64_t value) {
    constexpr uint32_t kPiece = (1u << 27) - 1;
    const uint64_t low = __reduce_add_sync(kEveryLane, static_cast<uint32_t>(value) & kPiece);
    const uint64_t middle = __reduce_add_sync(kEveryLane, static_cast<uint32_t>(value >> 27) & kPiece);
    const uint64_t high = __reduce_add_sync(kEveryLane, static_cast<uint32_t>(value >> 54));
    return low + (middle << 27) + (high << 54);
  }

  // The bits of all lanes' numbers.
  static __device__ __forceinline__ uint64_t bits_of_warp(uint64_t value) {
    const uint64_t lower = __reduce_or_sync(kEveryLane, static_cast<uint32_t>(value));
    const uint64_t upper = __reduce_or_sync(kEveryLane, static_cast<uint32_t>(value >> 32));
    return upper << 32 | lower;
  }

  // Leaves what this warp has seen.
  __device__ __forceinline__ void see(uint64_t squares, uint64_t magnitudes, uint32_t place = 0) {
    const Seen seen{sum_of_warp(squares), bits_of_warp(magnitudes)};
    if (lane_ == 0) shared_.seen[place][warp_] = seen;
  }

  // Mantissas and shifts of the vector that value(channel) gives, of so many channels, a multiple of 32; returns by how much its exponent grows.
  template <typename Value>
  __device__ __forceinline__ int32_t activate(uint32_t channels, uint64_t magnitudes, Value value) {
    return activate(channels, magnitudes, shared_.layout.mantissas, shared_.layout.shifts, value);
  }
  // The same into another place.
  template <typename Value>
  __device__ __forceinline__ int32_t activate(uint32_t channels, uint64_t magnitudes, uint32_t mantissas_at, uint32_t shifts_at, Value value) {
    const Layout& layout = shared_.layout;
    const int32_t over = bits(magnitudes) - 15, shift = over > 0 ? over : 0;
    char* const mantissas = at<char>(mantissas_at);
    unsigned char* const shifts = at<unsigned char>(shifts_at);
    const uint32_t blocks = channels / kBlock;
    through(warp_, blocks, kWarps, [&](uint32_t block) {
      const uint32_t channel = kBlock * block + lane_;
      const int32_t half = static_cast<int32_t>(clamp(round_shift(value(channel), shift), -32767, 32767));
      const int32_t above = bits(__reduce_or_sync(kEveryLane, magnitude(half))) - 7, down = above > 0 ? above : 0;
      const int32_t rounded = down == 0 ? half : (half >> down) + (half >> (down - 1) & 1);
      mantissas[channel] = static_cast<char>(rounded < -kMantissa ? -kMantissa : rounded > kMantissa ? kMantissa : rounded);
      if (lane_ == 0) shifts[block % 2 * layout.shifts_half + block / 2] = static_cast<unsigned char>(down);
    });
    // Behind the last channel weights are 0; a shift there must be one.
    if (blocks % 2 != 0 && warp_ == 0) {
      mantissas[channels + lane_] = 0;
      if (lane_ == 0) shifts[layout.shifts_half + blocks / 2] = 0;
    }
    return shift;
  }

  // The activation of a vector with 10 fraction bits, of which every warp has left what it has seen.
  template <typename Value>
  __device__ __forceinline__ Activation activate_plain(uint32_t channels, Value value) {
    const int32_t shift = activate(channels, all_seen().magnitudes, value);
    return Activation{1u << 15, -15 - kFraction + shift};
  }

  // Puts a head that `store` has left in the warp's scratch where it belongs: a query into shared memory, a key or a value into the cache and, where it is
  // wanted, into host memory. `layer_offset` is where the layer's keys and values begin in a block.
  __device__ __forceinline__ void put(const Shape& shape, uint32_t head, uint32_t scale, const unsigned char* scratch, uint64_t layer_offset) {
    char* const stored_to = shared_.step.stored_to;
    const uint32_t position = shared_.step.position, width = shape.head_width, half_bytes = shape.kv_half();
    if (head < shape.heads) {
      char* const to = at<char>(shared_.layout.queries) + head * width;
      through(4 * lane_, width, 4 * kWarp, [&](uint32_t byte) {
        *reinterpret_cast<uint32_t*>(to + byte) = *reinterpret_cast<const uint32_t*>(scratch + byte);
      });
      if (lane_ == 0) at<uint32_t>(shared_.layout.query_scales)[head] = scale;
    } else {
      const uint32_t which = head - shape.heads, value = which >= shape.kv_heads ? 1 : 0;
      const uint64_t half = layer_offset + static_cast<uint64_t>(half_bytes) * (2 * (which - value * shape.kv_heads) + value);
      const uint32_t slot = position % kBlock;
      keep(shared_.step.cache.local + shape.kv_block() * (position / kBlock) + half, width, slot, scratch, scale, lane_);
      if (stored_to != nullptr) keep_sys(stored_to + half, width, slot, scratch, scale, lane_);
    }
  }

  // value * sigmoid(value), of numbers with 10 fraction bits.
  __device__ __forceinline__ int32_t swish(int32_t value) const {
    constexpr int32_t kEnd = 16 << kFraction;
    const uint32_t moved = static_cast<uint32_t>(min(max(value, -kEnd), kEnd - 1) + kEnd), place = moved >> 9;
    const int32_t part = static_cast<int32_t>(moved & 511), low = tables().sigmoid[place], high = tables().sigmoid[place + 1];
    // The factor is 1 at most, so what comes of it has 32 bits.
    return static_cast<int32_t>((static_cast<int64>(value) * (low + (((high - low) * part + 256) >> 9)) + (1 << 14)) >> 15);
  }

  // What matrices are multiplied with.
  __device__ __forceinline__ Vector vector() const {
    const Layout& layout = shared_.layout;
    return Vector{at<char>(layout.mantissas), at<unsigned char>(layout.shifts), layout.shifts_half};
  }
  __device__ __forceinline__ Stretches stretches() const {
    const Layout& layout = shared_.layout;
    // None of a warp alone, as the compiler is to know.
    const uint32_t bytes = kWarps == 1 ? 0 : layout.stretch;
    return Stretches{at<char>(layout.stretches) + 2 * bytes * warp_, bytes, shared_.arrivals[warp_], &shared_.arrived[warp_]};
  }
  __device__ __forceinline__ const Entry* entries(uint32_t layer) const { return shared_.entries[layer % 2]; }
  __device__ __forceinline__ Matrix matrix(const Entry& entry) const { return Matrix::of(shared_.image, entry); }
  // Behind the last row of the last matrix.
  __device__ __forceinline__ const char* end() const {
    const Matrix tokens = matrix(shared_.tokens);
    return tokens.row(tokens.rows);
  }
};

}  // namespace language

#endif
