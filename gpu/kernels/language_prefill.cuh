// A PREFILL of Llama's shape by up to 32 positions at a time, or up to 16 or 8 where a block's shared memory has no room for more: each row of weights is read once for all of them (language_tiles.cuh). Keys, values
// and what is scored are those of single steps, byte by byte. A block alone takes such chunks; a warp alone goes step by step.
#ifndef DOORBELL_LANGUAGE_PREFILL_CUH
#define DOORBELL_LANGUAGE_PREFILL_CUH

#include "language_frame.cuh"
#include "language_tiles.cuh"

namespace language {

static_assert(kColumns == kBlock, "a chunk lies within a block of keys and values");

// Bytes of a block's scratch in device memory, at most.
constexpr uint64_t kMostScratch = 2 << 20;

// Where what a chunk has of its own lies: in the team's shared memory, behind `Shared`, in bytes from its beginning; and in its scratch in device memory.
struct ChunkLayout {
  uint32_t stride;  // of a column's mantissas
  uint32_t mantissas, shifts, activations, query_scales, end;
  // Of each column, one behind the other: the residual stream; then queries, keys and values, of which means take the place, or products.
  uint64_t wide, scratch;

  // Bytes of the two parts of so many columns' scratch.
  static __device__ __forceinline__ uint64_t wide_of(const Shape& shape, uint32_t columns) { return (4ull * columns * shape.width + 63) / 64 * 64; }
  static __device__ __forceinline__ uint64_t behind_of(const Shape& shape, uint32_t columns) {
    const uint64_t heads = 4ull * (shape.queries() + 2 * shape.keys()), products = 8ull * shape.hidden;
    return columns * (heads > products ? heads : products);
  }

  // With so many columns at most.
  template <typename Team>
  static __device__ __forceinline__ ChunkLayout of(const Shape& shape, uint32_t columns) {
    const uint32_t widest = max(max(shape.width, shape.queries()), shape.hidden);
    ChunkLayout at;
    at.end = (static_cast<uint32_t>(sizeof(Shared<Team>)) + 127) / 128 * 128;
    const auto take = [&at](uint32_t bytes) {
      const uint32_t offset = at.end;
      at.end += (bytes + 15) / 16 * 16;
      return offset;
    };
    at.stride = Vectors::stride_of(widest);
    at.mantissas = take(columns * at.stride);
    // Tiles read the shifts of all columns that there may be.
    at.shifts = take(kColumns * ((widest + kLine - 1) / kLine * 2));
    at.activations = take(columns * static_cast<uint32_t>(sizeof(Activation)));
    at.query_scales = take(4 * columns * shape.heads);
    at.wide = wide_of(shape, columns);
    at.scratch = at.wide + behind_of(shape, columns);
    return at;
  }

  // Positions that a chunk of a shape that `fits` has at most, 32, 16 or 8: as many as there is room for. 0 if its prompts go step by step.
  template <typename Team>
  static __device__ __forceinline__ uint32_t most_of(const Shape& shape) {
    if constexpr (Team::kTeams == 1) {
      if (shape.is_gemma() || shape.cap_window != 0) return 0;
#pragma unroll 1
      for (uint32_t columns = kColumns; columns >= kTileColumns; columns /= 2) {
        const ChunkLayout at = of<Team>(shape, columns);
        if (at.end <= kTeamBytes<Team> && at.scratch <= kMostScratch) return columns;
      }
    }
    return 0;
  }

  // Bytes of scratch for such a chunk, a multiple of 64; 0 if there is none.
  template <typename Team>
  static __device__ __forceinline__ uint64_t scratch_of(const Shape& shape) {
    const uint32_t columns = most_of<Team>(shape);
    return columns == 0 ? 0 : wide_of(shape, columns) + behind_of(shape, columns);
  }
};

// What a chunk is told.
struct Chunk {
  char* cache;      // the block of keys and values in device memory
  char* stored_to;  // the same in host memory, or null
  char* scratch;
  uint32_t position, count;
};

template <typename Team>
class Prefill : Frame<Team> {
 public:
  // Takes `count` tokens from `position` on, which lie in one block of positions: token(k) tells the k-th, the same to all threads. What `Block::step` says of
  // tokens, positions and barriers holds here, too. `local` are all keys and values of the sequence. With `chunk.scratch` begins the residual stream of
  // each when it returns. In each layer all threads call ends() behind what they store of keys and values: it waits for those who make what lies below the
  // chunk, and tells all alike whether to give up; then this returns false.
  template <typename Token, typename Ends>
  static __device__ __forceinline__ bool run(const Chunk& chunk, char* local, Token token, Ends ends) {
    const Prefill team(chunk, local);
    team.embed(token);
#pragma unroll 1
    for (uint32_t layer = 0; layer < team.shared_.shape.layers; layer++) {
      team.project(layer);
      team.store_all(layer);
      if (ends()) return false;
      team.attend(layer);
      team.feed_forward(layer);
    }
    return true;
  }

 private:
  using Base = Frame<Team>;
  using Base::copy, Base::end, Base::entries, Base::kThreads, Base::kWarps, Base::lane_, Base::matrix, Base::shared_, Base::tables,
      Base::warp_;

  const Chunk chunk_;
  char* const local_;
  const ChunkLayout at_;

  __device__ __forceinline__ Prefill(const Chunk& chunk, char* local)
      : chunk_(chunk), local_(local), at_(ChunkLayout::of<Team>(Base::shared_.shape, ChunkLayout::most_of<Team>(Base::shared_.shape))) {}

  template <typename T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return Base::template at<T>(offset);
  }
  __device__ __forceinline__ int32_t* stream_of(uint32_t column) const {
    return reinterpret_cast<int32_t*>(chunk_.scratch) + shared_.shape.width * column;
  }
  __device__ __forceinline__ uint32_t heads_of_all() const { return shared_.shape.queries() + 2 * shared_.shape.keys(); }
  __device__ __forceinline__ int32_t* heads_of(uint32_t column) const {
    return reinterpret_cast<int32_t*>(chunk_.scratch + at_.wide) + heads_of_all() * column;
  }
  __device__ __forceinline__ int64* products_of(uint32_t column) const {
    return reinterpret_cast<int64*>(chunk_.scratch + at_.wide) + static_cast<uint64_t>(shared_.shape.hidden) * column;
  }
  __device__ __forceinline__ Activation* activations() const { return at<Activation>(at_.activations); }
  __device__ __forceinline__ Vectors vectors() const {
    return Vectors{at<char>(at_.mantissas), at<unsigned char>(at_.shifts), at_.stride, chunk_.count};
  }

  // Calls each(column) for the columns of this warp.
  template <typename Each>
  __device__ __forceinline__ void columns(Each each) const {
#pragma unroll 1
    for (uint32_t column = warp_; column < chunk_.count; column += kWarps) each(column);
  }

  // Calls each(block, value(channel)) for this lane's channel of each 32. Several values are on their way at a time: the compiler cannot know that what
  // each() stores is none of them, and would wait for one after the other. A warp calls it.
  template <typename Value, typename Each>
  __device__ __forceinline__ void each_channel(uint32_t channels, Value value, Each each) const {
    constexpr uint32_t kAtATime = 12;
    const uint32_t blocks = channels / kBlock;
#pragma unroll 1
    for (uint32_t first = 0; first < blocks; first += kAtATime) {
      decltype(value(0)) values[kAtATime];
#pragma unroll
      for (uint32_t k = 0; k < kAtATime; k++) values[k] = value(kBlock * min(first + k, blocks - 1) + lane_);
#pragma unroll
      for (uint32_t k = 0; k < kAtATime; k++)
        if (first + k < blocks) each(first + k, values[k]);
    }
  }

  // Mantissas and shifts of a column, as `Frame::activate` makes them of a team's vector. A warp calls it.
  template <typename Value>
  __device__ __forceinline__ int32_t activate(uint32_t column, uint32_t channels, uint64_t magnitudes, Value value) const {
    const int32_t over = bits(magnitudes) - 15, shift = over > 0 ? over : 0;
    const int64 added = shift == 0 ? 0 : 1ll << (shift - 1);
    char* const mantissas = at<char>(at_.mantissas) + at_.stride * column;
    unsigned char* const shifts = at<unsigned char>(at_.shifts) + Vectors::place_of(column ^ (DOORBELL_FAULT(SwapsColumns) && chunk_.count > 1 && column < 2 ? 1 : 0));
    const uint32_t blocks = channels / kBlock;
    each_channel(channels, value, [&](uint32_t block, int64 of_channel) {
      const uint32_t channel = kBlock * block + lane_;
      // Of 15 bits and a sign, or one more where it is rounded up; half of what is shifted out is added first, of 54 bits at most.
      const int32_t wide = static_cast<int32_t>((of_channel + added) >> shift), half = min(max(wide, -32767), 32767);
      const int32_t above = bits(__reduce_or_sync(kEveryLane, magnitude(half))) - 7, down = above > 0 ? above : 0;
      const int32_t rounded = down == 0 ? half : (half >> down) + (half >> (down - 1) & 1);
      mantissas[channel] = static_cast<char>(rounded < -kMantissa ? -kMantissa : rounded > kMantissa ? kMantissa : rounded);
      if (lane_ == 0) shifts[kColumns * block] = static_cast<unsigned char>(down);
    });
    // Behind the last channel weights are 0; a shift there must be one.
    if (blocks % 2 != 0) {
      mantissas[channels + lane_] = 0;
      if (lane_ == 0) shifts[kColumns * blocks] = 0;
    }
    return shift;
  }

  // The columns of the residual stream, normalised with a gain of the image: RMSNorm.
  __device__ __forceinline__ void normalise(const Entry& entry) const {
    const Shape& shape = shared_.shape;
    const short* const gain = reinterpret_cast<const short*>(shared_.image + entry.offset);
    columns([&](uint32_t column) {
      const int32_t* const x = stream_of(column);
      uint64_t squares = 0, magnitudes = 0;
      const auto pair = [&](uint32_t channel) { return make_int2(x[channel], gain[channel]); };
      each_channel(shape.width, pair, [&](uint32_t, int2 of_channel) {
        const uint64_t size = magnitude(of_channel.x);
        squares += size * size;
        magnitudes |= magnitude(static_cast<int64>(of_channel.x) * of_channel.y);
      });
      squares = Base::sum_of_warp(squares);
      magnitudes = Base::bits_of_warp(magnitudes);
      const Root root = Root::of(squares, shape.width, shape.epsilon);
      const int32_t shift =
          activate(column, shape.width, magnitudes, [&](uint32_t channel) { return static_cast<int64>(x[channel]) * gain[channel]; });
      if (lane_ == 0) activations()[column] = Activation{root.inverse, entry.exponent - kFraction - 36 + root.up / 2 + shift};
    });
    Team::sync();
  }

  // Columns with 10 fraction bits of so many channels as activations: value(column, channel).
  template <typename Value>
  __device__ __forceinline__ void activate_all(uint32_t channels, Value value) const {
    columns([&](uint32_t column) {
      uint64_t magnitudes = 0;
      const auto own = [&](uint32_t channel) { return value(column, channel); };
      each_channel(channels, own, [&](uint32_t, int64 of_channel) { magnitudes |= magnitude(of_channel); });
      magnitudes = Base::bits_of_warp(magnitudes);
      const int32_t shift = activate(column, channels, magnitudes, own);
      if (lane_ == 0) activations()[column] = Activation{1u << 15, -15 - kFraction + shift};
    });
    Team::sync();
  }

  // Adds a matrix times the activations to the columns of the residual stream.
  __device__ __forceinline__ void add_product(const Entry& entry) const {
    int32_t* const x = stream_of(0);
    const uint32_t width = shared_.shape.width;
    multiply<Team, 1>(
        matrix(entry), vectors(), activations(), end(), warp_, lane_, [&](uint32_t row, uint32_t column) { return x[width * column + row]; },
        [&](uint32_t row, uint32_t column, int32_t value, int32_t old) { x[width * column + row] = within(static_cast<int64>(old) + value); });
    Team::sync();
  }

  template <typename Token>
  __device__ __forceinline__ void embed(Token token) const {
    const Shape& shape = shared_.shape;
    copy(shared_.entries[0], entry_at(shared_.image, kFirstLayerEntry), kParts * sizeof(Entry));
    const Matrix tokens = matrix(shared_.tokens);
    columns([&](uint32_t column) {
      const uint32_t of = token(column);
      const char* const row = tokens.row(of);
      const int64 scale = tokens.scale(of);
      int32_t* const x = stream_of(column);
      for (uint32_t channel = lane_; channel < shape.width; channel += kWarp)
        x[channel] = within(round_shift(static_cast<signed char>(row[channel]) * scale, -(tokens.exponent + kFraction)));
    });
    stream::wait_for_copies();
    Team::sync();
  }

  // The phases of a chunk are functions of their own, so that no register of one is held in another. Each works with a copy of what is known of the
  // chunk: in memory, anything that is stored might change it, for all that the compiler knows, and it would be read again each time.
  __device__ __noinline__ void project(uint32_t layer) const { Prefill(*this).project_own(layer); }
  __device__ __noinline__ void store_all(uint32_t layer) const { Prefill(*this).store_own(layer); }
  __device__ __noinline__ void attend(uint32_t layer) const { Prefill(*this).attend_own(layer); }
  __device__ __noinline__ void feed_forward(uint32_t layer) const { Prefill(*this).feed_forward_own(layer); }

  // Queries, keys and values.
  __device__ __forceinline__ void project_own(uint32_t layer) const {
    normalise(entries(layer)[kAttentionGain]);
    if (layer + 1 < shared_.shape.layers)
      copy(shared_.entries[(layer + 1) % 2], entry_at(shared_.image, kFirstLayerEntry + kParts * (layer + 1)), kParts * sizeof(Entry));
    uint32_t tasks = 0, behind = 0;
    const uint32_t all = heads_of_all();
#pragma unroll 1
    for (uint32_t part = kQuery; part <= kValue; part++) {
      const Matrix rows = matrix(entries(layer)[part]);
      int32_t* const to = heads_of(0) + behind;
      multiply<Team, 2>(
          rows, vectors(), activations(), end(), (warp_ + tasks) % kWarps, lane_, [](uint32_t, uint32_t) { return 0; },
          [&](uint32_t row, uint32_t column, int32_t value, int32_t) { to[all * column + row] = value; });
      behind += rows.rows;
      // The next matrix begins with the warp that has least to do.
      tasks += kWarps - rows.rows / (2 * kTileRows) % kWarps;
    }
    stream::wait_for_copies();
    Team::sync();
  }

  // So far below a block's ceiling a score has no weight.
  static constexpr uint32_t kNoWeight = 1 << 15;

  // Attention of 16 positions, from the chunk's `begin`-th on, over all before: 32 channels of a head, from `channels` on. What `attend` of
  // language_attention.cuh does with one position, by tiles: rows are positions, columns are positions attended to, then channels. The weights, of 24 bits, are
  // multiplied byte by byte. A warp calls it.
  __device__ __forceinline__ void attend_tile(uint64_t layer_offset, uint32_t head, uint32_t begin, uint32_t channels) const {
    const Shape& shape = shared_.shape;
    const uint32_t width = shape.head_width, group = lane_ / 4, quarter = lane_ % 4, last = chunk_.position / kBlock;
    const char* keys = local_ + layer_offset + 2ull * shape.kv_half() * divide(head, shape.heads / shape.kv_heads);
    const uint16_t* const exp2 = tables().exp2;
    const uint32_t factor = shared_.factor;
    const char* queries[2];
    uint32_t query_scales[2], positions[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      // Of rows behind the last column what that has.
      const uint32_t column = min(begin + group + kGroups * r, chunk_.count - 1);
      queries[r] = at<char>(at_.mantissas) + at_.stride * column + head * width + 8 * quarter;
      query_scales[r] = at<uint32_t>(at_.query_scales)[shape.heads * column + head];
      positions[r] = chunk_.position + column;
    }
    int64 weights[2][2] = {}, values[2][kTiles][4] = {};  // [row][bin], [bin][tile]
    int32_t highest[2] = {kNoBin, kNoBin};
#pragma unroll 1
    for (uint32_t block = 0; block <= last; block++, keys += shape.kv_block()) {
      const char* const block_values = keys + shape.kv_half();
      // A lane has eight positions: two of each tile. They are the lane's when values are multiplied, too.
      uint32_t bytes[2][4];
#pragma unroll
      for (uint32_t k = 0; k < 8; k++) {
        const uint32_t token = kTileColumns * (k / 2) + 2 * quarter + k % 2;
        bytes[k / 4][k % 4] = *reinterpret_cast<const uint32_t*>(block_values + kLine + token * width + channels + 4 * group);
      }
      uint32_t key_scales[kTiles], value_scales[kTiles];
      int32_t scores[kTiles][4];
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
        key_scales[tile] = *reinterpret_cast<const uint32_t*>(keys + 2 * (kTileColumns * tile + 2 * quarter));
        value_scales[tile] = *reinterpret_cast<const uint32_t*>(block_values + 2 * (kTileColumns * tile + 2 * quarter));
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) scores[tile][k] = 0;
      }
#pragma unroll 2
      for (uint32_t from = 0; from < width; from += kBlock) {
        const uint2 upper = *reinterpret_cast<const uint2*>(queries[0] + from), lower = *reinterpret_cast<const uint2*>(queries[1] + from);
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; tile++) {
          const uint2 key = *reinterpret_cast<const uint2*>(keys + kLine + (kTileColumns * tile + group) * width + from + 8 * quarter);
          int32_t dots[4];
          stream::multiply_tile(dots, upper.x, lower.x, upper.y, lower.y, key.x, key.y);
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) scores[tile][k] += dots[k];
        }
      }
      int32_t most[2] = {kLowest32, kLowest32};
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
          const uint32_t key_scale = k % 2 == 0 ? key_scales[tile] & 0xFFFF : key_scales[tile] >> 16;
          scores[tile][k] = score_by(scores[tile][k], query_scales[k / 2] * key_scale, factor);
        }
      }
      // Of the chunk's own block, the last, a position sees what is not behind it; of all before it sees everything.
      const auto is_seen = [&](uint32_t tile, uint32_t k) {
        return kBlock * block + kTileColumns * tile + tile_column(k, lane_) <= positions[k / 2];
      };
      const bool is_last = block == last;
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
          if (!is_last || is_seen(tile, k)) most[k / 2] = max(most[k / 2], scores[tile][k]);
      }
      uint32_t which[2], ceilings[2], up[2];
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        most[r] = max(most[r], __shfl_xor_sync(kEveryLane, most[r], 1));
        most[r] = max(most[r], __shfl_xor_sync(kEveryLane, most[r], 2));
        const int32_t ceiling = (most[r] + 255) >> 8;
        ceilings[r] = static_cast<uint32_t>(ceiling);
        up[r] = ceilings[r] & 15;
        enters(highest[r], ceiling >> 4, which[r], [&](bool below) {
          weights[r][1] = below ? weights[r][0] : 0;
          weights[r][0] = 0;
#pragma unroll
          for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
            for (uint32_t k = 2 * r; k < 2 * r + 2; k++) {
              values[1][tile][k] = below ? values[0][tile][k] : 0;
              values[0][tile][k] = 0;
            }
          }
        });
      }
      if (is_last) {
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
          for (uint32_t k = 0; k < 4; k++)
            if (!is_seen(tile, k)) scores[tile][k] = static_cast<int32_t>((ceilings[k / 2] << 8) - kNoWeight);
        }
      }
      uint32_t sums[2] = {0, 0}, limbs[2][2][4];  // [half of the positions][row][byte]
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
          uint32_t scaled[4];
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) {
            const uint32_t tile = 2 * half + k / 2;
            const uint32_t weight = weight_of(exp2, (ceilings[r] << 8) - static_cast<uint32_t>(scores[tile][2 * r + k % 2]));
            sums[r] += weight;
            scaled[k] = weight * (k % 2 == 0 ? value_scales[tile] & 0xFFFF : value_scales[tile] >> 16);
          }
          transpose(scaled, limbs[half][r]);
        }
      }
      // What is far below counts for nothing.
      if (__any_sync(kEveryLane, which[0] > 1 || which[1] > 1)) {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
          if (which[r] < 2) continue;
          sums[r] = 0;
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) limbs[0][r][k] = limbs[1][r][k] = 0;
        }
      }
      // As a rule all of the block's sums go into the first bins.
      const bool are_first = __all_sync(kEveryLane, which[0] == 0 && which[1] == 0);
      uint32_t columns[2][4];
      transpose(bytes[0], columns[0]);
      transpose(bytes[1], columns[1]);
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        const int64 sum = static_cast<int64>(sums[r]) << up[r];
        weights[r][0] += which[r] == 0 ? sum : 0;
        weights[r][1] += which[r] == 0 ? 0 : sum;
      }
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
        int32_t parts[3][4];
        int64 added[4];
#pragma unroll
        for (uint32_t byte = 0; byte < 3; byte++)
          stream::multiply_unsigned_tile(parts[byte], limbs[0][0][byte], limbs[0][1][byte], limbs[1][0][byte], limbs[1][1][byte], columns[0][tile],
                                         columns[1][tile]);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
          // The first two have 29 bits together.
          const int64 all = static_cast<int64>(parts[2][k]) * 65536 + (parts[0][k] + parts[1][k] * 256);
          added[k] = static_cast<int64>(static_cast<uint64_t>(all) << up[k / 2]);
        }
        if (are_first) {
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) values[0][tile][k] += added[k];
        } else {
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) {
            values[0][tile][k] += which[k / 2] == 0 ? added[k] : 0;
            values[1][tile][k] += which[k / 2] == 0 ? 0 : added[k];
          }
        }
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
#pragma unroll
      for (uint32_t bin = 0; bin < 2; bin++) {
        weights[r][bin] += __shfl_xor_sync(kEveryLane, weights[r][bin], 1);
        weights[r][bin] += __shfl_xor_sync(kEveryLane, weights[r][bin], 2);
      }
      if (DOORBELL_FAULT(DropsBin)) weights[r][1] = 0;
      const uint32_t column = begin + group + kGroups * r;
      if (column >= chunk_.count) continue;
      const int64 denominator = (weights[r][0] + (weights[r][1] >> 16)) << 4;
      int32_t* const means = heads_of(column) + head * width + channels;
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
        for (uint32_t k = 2 * r; k < 2 * r + 2; k++) {
          const int64 lower = DOORBELL_FAULT(DropsBin) ? 0 : values[1][tile][k] >> 16;
          // A lane has brought four channels, one for each tile.
          means[4 * tile_column(k, lane_) + tile] = clamp(round_divide_near(values[0][tile][k] + lower, denominator));
        }
      }
    }
  }

  // Turns queries and keys, and stores keys and values. There is no barrier behind it.
  __device__ __forceinline__ void store_own(uint32_t layer) const {
    const Shape& shape = shared_.shape;
    const uint32_t width = shape.head_width, half_bytes = shape.kv_half(), heads = shape.heads + 2 * shape.kv_heads;
    const uint64_t layer_offset = 2ull * shape.kv_heads * half_bytes * layer;
    unsigned char* const scratch = reinterpret_cast<unsigned char*>(shared_.scratch[warp_]);
    // The mantissas of what was projected are over: queries take their place.
    char* const queries = at<char>(at_.mantissas);
    uint32_t* const query_scales = at<uint32_t>(at_.query_scales);
#pragma unroll 1
    for (uint32_t item = warp_; item < heads * chunk_.count; item += kWarps) {
      const uint32_t column = item / heads, head = item % heads, position = chunk_.position + column;
      const bool turned = head < shape.heads + shape.kv_heads;
      const uint32_t* const turns = reinterpret_cast<const uint32_t*>(shared_.image + shared_.rope_offset + 2ull * width * position);
      const uint32_t scale = store(heads_of(column) + head * width, width, turned ? turns : nullptr, scratch, lane_);
      if (head < shape.heads) {
        char* const to = queries + at_.stride * column + head * width;
        for (uint32_t byte = 4 * lane_; byte < width; byte += 4 * kWarp)
          *reinterpret_cast<uint32_t*>(to + byte) = *reinterpret_cast<const uint32_t*>(scratch + byte);
        if (lane_ == 0) query_scales[shape.heads * column + head] = scale;
      } else {
        const uint32_t which = head - shape.heads, value = which >= shape.kv_heads ? 1 : 0;
        const uint64_t half = layer_offset + static_cast<uint64_t>(half_bytes) * (2 * (which - value * shape.kv_heads) + value);
        keep(chunk_.cache + half, width, position % kBlock, scratch, scale, lane_);
        if (chunk_.stored_to != nullptr) keep_sys(chunk_.stored_to + half, width, position % kBlock, scratch, scale, lane_);
      }
    }
  }

  // x += W_o * attention.
  __device__ __forceinline__ void attend_own(uint32_t layer) const {
    const Shape& shape = shared_.shape;
    const uint32_t width = shape.head_width;
    const uint64_t layer_offset = 2ull * shape.kv_heads * shape.kv_half() * layer;
    // A warp for 32 channels of a head of 16 positions. Means take the place of the queries that `store` has read.
    const uint32_t pieces = width / kBlock, of_head = pieces * ((chunk_.count + kTileRows - 1) / kTileRows);
#pragma unroll 1
    for (uint32_t item = warp_; item < shape.heads * of_head; item += kWarps) {
      const uint32_t head = item / of_head, in_head = item % of_head;
      attend_tile(layer_offset, head, in_head / pieces * kTileRows, in_head % pieces * kBlock);
    }
    Team::sync();
    activate_all(shape.queries(), [&](uint32_t column, uint32_t channel) { return static_cast<int64>(heads_of(column)[channel]); });
    add_product(entries(layer)[kOutput]);
  }

  // x += W_down * (swish(W_gate * b) * (W_up * b)), b = normalise(x).
  __device__ __forceinline__ void feed_forward_own(uint32_t layer) const {
    const Shape& shape = shared_.shape;
    normalise(entries(layer)[kHiddenGain]);
    const Matrix gate = matrix(entries(layer)[kGate]), up = matrix(entries(layer)[kUp]);
    const Vectors vectors = this->vectors();
    int64* const products = products_of(0);
    const uint32_t hidden = shape.hidden;
    // 16 rows of the gate, and the same of what it gates.
#pragma unroll 1
    for (uint32_t first = kTileRows * warp_; first < gate.rows; first += kTileRows * kWarps) {
      prefetch(gate.row(first), kTileRows * gate.stride(), end(), lane_);
      prefetch(up.row(first), kTileRows * up.stride(), end(), lane_);
      const char* const from[2] = {gate.row(first), up.row(first)};
      const TileScales gate_scales = TileScales::from(gate, first, lane_), up_scales = TileScales::from(up, first, lane_);
      int32_t sums[2][kTiles][4];
      tiles<2>(sums, from, vectors, gate.lines, lane_);
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
          const uint32_t column = kTileColumns * tile + tile_column(k, lane_), row = first + tile_row(k, lane_);
          const Activation activation = activations()[min(column, chunk_.count - 1)];
          const int32_t value = Requantised::of(gate, activation).value(sums[0][tile][k], gate_scales.of[k / 2]);
          const int32_t other = Requantised::of(up, activation).value(sums[1][tile][k], up_scales.of[k / 2]);
          const int64 product = round_shift(static_cast<int64>(this->swish(value)) * other, kFraction);
          if (column < chunk_.count) products[hidden * column + row] = product;
        }
      }
    }
    Team::sync();
    activate_all(shape.hidden, [&](uint32_t column, uint32_t channel) { return products_of(column)[channel]; });
    add_product(entries(layer)[kDown]);
  }
};

}  // namespace language

#endif
