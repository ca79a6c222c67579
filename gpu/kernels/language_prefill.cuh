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

// Bytes of what a warp tells another of a block's scores.
constexpr uint32_t kScoredBytes = 5 * 16 * kWarp;

// What a warp has of the attention of 16 positions, 32 channels of a head, if several share its blocks: each lane's numbers, which lanes of other warps join.
struct AttendedTile {
  int64 values[2][kTiles][4][kWarp];  // [bin][tile]
  int64 weights[2][2][kWarp];         // [row][bin]
  int32_t highest[2][kWarp];
};

// Where what a chunk has of its own lies: in the team's shared memory, behind `Shared`, in bytes from its beginning; and in its scratch in device memory.
struct ChunkLayout {
  uint32_t stride;  // of a column's mantissas
  uint32_t mantissas, shifts, activations, query_scales, end;
  uint32_t exchange;  // where two warps tell each other their scores; 0 if there is no room
  // Of each column, one behind the other: the residual stream; then queries, keys and values, of which means take the place, or products. Behind them
  // what warps have of attentions that they share.
  uint64_t wide, attended, scratch;

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
    at.exchange = (at.end + 127) / 128 * 128;
    if (at.exchange + 2 * kScoredBytes * Team::kWarps > kTeamBytes<Team>) at.exchange = 0;
    at.wide = wide_of(shape, columns);
    at.attended = (at.wide + behind_of(shape, columns) + 63) / 64 * 64;
    at.scratch = at.attended + static_cast<uint64_t>(sizeof(AttendedTile)) * Team::kWarps;
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
    return columns == 0 ? 0 : of<Team>(shape, columns).scratch;
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
      team.add_attention(layer);
      team.gate(layer);
      team.add_products(layer);
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

  // The same anew: whoever has this behind a pointer knows where shared memory is, and that it is shared memory.
  __device__ __forceinline__ Prefill again() const { return Prefill(chunk_, local_, at_); }
  __device__ __forceinline__ Prefill(const Chunk& chunk, char* local, const ChunkLayout& at) : chunk_(chunk), local_(local), at_(at) {}

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
  __device__ __noinline__ void project(uint32_t layer) const { again().project_own(layer); }
  __device__ __noinline__ void store_all(uint32_t layer) const { again().store_own(layer); }
  __device__ __noinline__ void attend(uint32_t layer) const { again().attend_own(layer); }
  __device__ __noinline__ void add_attention(uint32_t layer) const { again().add_attention_own(layer); }
  __device__ __noinline__ void gate(uint32_t layer) const { again().gate_own(layer); }
  __device__ __noinline__ void add_products(uint32_t layer) const { again().add_products_own(layer); }

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

  // 16 positions of a chunk, from the `begin`-th on, and 32 channels of a head, from `channels` on.
  struct HeadTile {
    uint32_t head, begin, channels;
  };
  __device__ __forceinline__ AttendedTile& attended(uint32_t warp) const { return in_device(reinterpret_cast<AttendedTile*>(chunk_.scratch + at_.attended))[warp]; }

  // What scores of a block come to, of a lane's two rows: weights times the values' scales, by bytes; how many halvings they are below 1, and their sum.
  struct Scored {
    uint32_t limbs[2][2][4];  // [half of the positions][row][byte]
    uint32_t ceilings[2], sums[2];
  };
  // Its place in shared memory: each warp has two.
  __device__ __forceinline__ uint4* exchanged(uint32_t warp, uint32_t turn) const {
    return at<uint4>(at_.exchange + kScoredBytes * (2 * warp + turn % 2)) + lane_;
  }
  __device__ __forceinline__ void tell(const Scored& scored, uint4* to) const {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
      for (uint32_t r = 0; r < 2; r++)
        to[kWarp * (2 * half + r)] = make_uint4(scored.limbs[half][r][0], scored.limbs[half][r][1], scored.limbs[half][r][2], scored.limbs[half][r][3]);
    }
    to[kWarp * 4] = make_uint4(scored.ceilings[0], scored.ceilings[1], scored.sums[0], scored.sums[1]);
  }
  __device__ __forceinline__ Scored told(const uint4* from) const {
    Scored scored;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        const uint4 four = from[kWarp * (2 * half + r)];
        scored.limbs[half][r][0] = four.x;
        scored.limbs[half][r][1] = four.y;
        scored.limbs[half][r][2] = four.z;
        scored.limbs[half][r][3] = four.w;
      }
    }
    const uint4 four = from[kWarp * 4];
    scored.ceilings[0] = four.x;
    scored.ceilings[1] = four.y;
    scored.sums[0] = four.z;
    scored.sums[1] = four.w;
    return scored;
  }
  // Both warps of a pair come to it. On a CPU all warps of the team do.
  static __device__ __forceinline__ void sync_pair([[maybe_unused]] uint32_t pair) {
#ifdef __CUDA_ARCH__
    asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory");
#else
    Team::sync();
#endif
  }

  // The queries of 16 positions, as a lane has them.
  struct Queries {
    const char* keys;  // of its head and layer, in the first block
    const char* of[2];
    uint32_t scales[2], positions[2];
  };
  __device__ __forceinline__ Queries queries_of(uint64_t layer_offset, const HeadTile& of) const {
    const Shape& shape = shared_.shape;
    Queries queries;
    queries.keys = in_device(local_) + layer_offset + 2ull * shape.kv_half() * divide(of.head, shape.heads / shape.kv_heads);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      // Of rows behind the last column what that has.
      const uint32_t column = min(of.begin + lane_ / 4 + kGroups * r, chunk_.count - 1);
      queries.of[r] = at<char>(at_.mantissas) + at_.stride * column + of.head * shape.head_width + 8 * (lane_ % 4);
      queries.scales[r] = at<uint32_t>(at_.query_scales)[shape.heads * column + of.head];
      queries.positions[r] = chunk_.position + column;
    }
    return queries;
  }

  // Scores of a block, by tiles: rows are positions, columns are positions attended to. A width that is known to the compiler is not 0. A warp calls it.
  template <uint32_t kWidth>
  __device__ __forceinline__ Scored score(const Queries& queries, uint32_t block) const {
    const Shape& shape = shared_.shape;
    const uint32_t width = kWidth != 0 ? kWidth : shape.head_width, group = lane_ / 4, quarter = lane_ % 4;
    const char* const keys = queries.keys + shape.kv_block() * block;
    const char* const block_values = keys + shape.kv_half();
    const uint16_t* const exp2 = tables().exp2;
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
      const uint2 upper = *reinterpret_cast<const uint2*>(queries.of[0] + from), lower = *reinterpret_cast<const uint2*>(queries.of[1] + from);
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
        scores[tile][k] = score_by(scores[tile][k], queries.scales[k / 2] * key_scale, shared_.factor);
      }
    }
    // Of the chunk's own block, the last, a position sees what is not behind it; of all before it sees everything.
    const auto is_seen = [&](uint32_t tile, uint32_t k) { return kBlock * block + kTileColumns * tile + tile_column(k, lane_) <= queries.positions[k / 2]; };
    const bool is_last = block == chunk_.position / kBlock;
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
      for (uint32_t k = 0; k < 4; k++)
        if (!is_last || is_seen(tile, k)) most[k / 2] = max(most[k / 2], scores[tile][k]);
    }
    Scored scored;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      most[r] = max(most[r], __shfl_xor_sync(kEveryLane, most[r], 1));
      most[r] = max(most[r], __shfl_xor_sync(kEveryLane, most[r], 2));
      scored.ceilings[r] = static_cast<uint32_t>((most[r] + 255) >> 8);
      scored.sums[r] = 0;
    }
    if (is_last) {
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
          if (!is_seen(tile, k)) scores[tile][k] = static_cast<int32_t>((scored.ceilings[k / 2] << 8) - kNoWeight);
      }
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        uint32_t scaled[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
          const uint32_t tile = 2 * half + k / 2;
          const uint32_t weight = weight_of(exp2, (scored.ceilings[r] << 8) - static_cast<uint32_t>(scores[tile][2 * r + k % 2]));
          scored.sums[r] += weight;
          scaled[k] = weight * (k % 2 == 0 ? value_scales[tile] & 0xFFFF : value_scales[tile] >> 16);
        }
        transpose(scaled, scored.limbs[half][r]);
      }
    }
    return scored;
  }

  // What a warp has of a tile while it attends.
  struct Sums {
    int64 weights[2][2] = {}, values[2][kTiles][4] = {};  // [row][bin], [bin][tile]
    int32_t highest[2] = {kNoBin, kNoBin};
  };

  // Values of a block, of which a lane has eight positions: two of each tile of scores.
  template <uint32_t kWidth>
  __device__ __forceinline__ void bring_values(uint32_t (&bytes)[2][4], const Queries& queries, const HeadTile& of, uint32_t block) const {
    const Shape& shape = shared_.shape;
    const uint32_t width = kWidth != 0 ? kWidth : shape.head_width;
    const char* const from = queries.keys + shape.kv_block() * block + shape.kv_half() + kLine + of.channels + 4 * (lane_ / 4);
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
      const uint32_t token = kTileColumns * (k / 2) + 2 * (lane_ % 4) + k % 2;
      bytes[k / 4][k % 4] = *reinterpret_cast<const uint32_t*>(from + token * width);
    }
  }

  // Adds them times the weights, which are multiplied byte by byte.
  __device__ __forceinline__ void add(Sums& all, Scored& scored, const uint32_t (&bytes)[2][4]) const {
    uint32_t which[2], up[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      up[r] = scored.ceilings[r] & 15;
      enters(all.highest[r], static_cast<int32_t>(scored.ceilings[r]) >> 4, which[r], [&](bool below) {
        all.weights[r][1] = below ? all.weights[r][0] : 0;
        all.weights[r][0] = 0;
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
          for (uint32_t k = 2 * r; k < 2 * r + 2; k++) {
            all.values[1][tile][k] = below ? all.values[0][tile][k] : 0;
            all.values[0][tile][k] = 0;
          }
        }
      });
    }
    // What is far below counts for nothing.
    if (__any_sync(kEveryLane, which[0] > 1 || which[1] > 1)) {
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        if (which[r] < 2) continue;
        scored.sums[r] = 0;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) scored.limbs[0][r][k] = scored.limbs[1][r][k] = 0;
      }
    }
    // As a rule all of the block's sums go into the first bins.
    const bool are_first = __all_sync(kEveryLane, which[0] == 0 && which[1] == 0);
    uint32_t columns[2][4];
    transpose(bytes[0], columns[0]);
    transpose(bytes[1], columns[1]);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      const int64 sum = static_cast<int64>(scored.sums[r]) << up[r];
      all.weights[r][0] += which[r] == 0 ? sum : 0;
      all.weights[r][1] += which[r] == 0 ? 0 : sum;
    }
    const auto& limbs = scored.limbs;
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; tile++) {
      int32_t parts[3][4];
      int64 added[4];
#pragma unroll
      for (uint32_t byte = 0; byte < 3; byte++)
        stream::multiply_unsigned_tile(parts[byte], limbs[0][0][byte], limbs[0][1][byte], limbs[1][0][byte], limbs[1][1][byte], columns[0][tile], columns[1][tile]);
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {
        // The first two have 29 bits together.
        const int64 sum = static_cast<int64>(parts[2][k]) * 65536 + (parts[0][k] + parts[1][k] * 256);
        added[k] = static_cast<int64>(static_cast<uint64_t>(sum) << up[k / 2]);
      }
      if (are_first) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) all.values[0][tile][k] += added[k];
      } else {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
          all.values[0][tile][k] += which[k / 2] == 0 ? added[k] : 0;
          all.values[1][tile][k] += which[k / 2] == 0 ? 0 : added[k];
        }
      }
    }
  }

  // Attention of such a tile over every `step`-th block from the `first`-th on: what `attend` of language_attention.cuh does with one position. Where a warp has all blocks it
  // leaves the means, else what it has of them. A warp calls it.
  __device__ __forceinline__ void attend_tile(uint64_t layer_offset, const HeadTile& of, uint32_t first, uint32_t step) const {
    const Queries queries = queries_of(layer_offset, of);
    Sums all;
#pragma unroll 1
    for (uint32_t block = first; block <= chunk_.position / kBlock; block += step) {
      uint32_t bytes[2][4];
      bring_values<0>(bytes, queries, of, block);
      Scored scored = score<0>(queries, block);
      add(all, scored, bytes);
    }
    finish(of, all, step == 1);
  }

  // Like the above, by two warps. Each has half of a head's channels and computes the scores of every second block for both. All warps call it. A
  // pair without a tile only takes part in the barriers, whose number is the same for all. `turn` counts the earlier ones in this attention: a place
  // for scores is written again only after a barrier that follows the last read of it.
  __device__ __forceinline__ void attend_pair(uint64_t layer_offset, const HeadTile& of, uint32_t first, uint32_t step, bool has_tile, uint32_t& turn) const {
    const uint32_t blocks = chunk_.position / kBlock + 1, turns = ((blocks + step - 1) / step + 1) / 2, in_pair = warp_ % 2;
    const Queries queries = queries_of(layer_offset, of);
    Sums all;
#pragma unroll 1
    for (uint32_t k = 0; k < turns; k++, turn++) {
      const uint32_t begin = first + 2 * step * k, own = begin + step * in_pair;
      if (has_tile && own < blocks) {
        const Scored scored = score<kUsualWidth>(queries, own);
        tell(scored, exchanged(warp_, turn));
      }
      uint32_t bytes[2][4];
      if (has_tile && begin < blocks) bring_values<kUsualWidth>(bytes, queries, of, begin);
      sync_pair(warp_ / 2);
#pragma unroll 1
      for (uint32_t which = 0; which < 2; which++) {
        if (!has_tile || begin + step * which >= blocks) break;
        if (which != 0) bring_values<kUsualWidth>(bytes, queries, of, begin + step);
        Scored scored = told(exchanged(warp_ - in_pair + which, turn));
        add(all, scored, bytes);
      }
    }
    if (has_tile) finish(of, all, step == 1);
  }

  __device__ __forceinline__ void finish(const HeadTile& of, Sums& all, bool is_whole) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
#pragma unroll
      for (uint32_t bin = 0; bin < 2; bin++) {
        all.weights[r][bin] += __shfl_xor_sync(kEveryLane, all.weights[r][bin], 1);
        all.weights[r][bin] += __shfl_xor_sync(kEveryLane, all.weights[r][bin], 2);
      }
    }
    if (!is_whole) {
      AttendedTile& to = attended(warp_);
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) to.highest[r][lane_] = all.highest[r];
#pragma unroll
      for (uint32_t bin = 0; bin < 2; bin++) {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) to.weights[r][bin][lane_] = all.weights[r][bin];
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) to.values[bin][tile][k][lane_] = all.values[bin][tile][k];
        }
      }
      return;
    }
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; tile++) leave_means(of, tile, all.weights, all.values[0][tile], all.values[1][tile]);
  }

  // The means of a lane's two rows and two channels of a tile of eight.
  __device__ __forceinline__ void leave_means(const HeadTile& of, uint32_t tile, const int64 (&weights)[2][2], const int64 (&values)[4], const int64 (&lower)[4]) const {
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t column = of.begin + tile_row(k, lane_);
      if (column >= chunk_.count) continue;
      const bool drops = DOORBELL_FAULT(DropsBin);
      const int64 denominator = (weights[k / 2][0] + (drops ? 0 : weights[k / 2][1] >> 16)) << 4;
      // A lane has brought four channels, one for each tile.
      heads_of(column)[of.head * shared_.shape.head_width + of.channels + 4 * tile_column(k, lane_) + tile] =
          clamp(round_divide_near(values[k] + (drops ? 0 : lower[k] >> 16), denominator));
    }
  }

  // Joins what every `by`-th warp from the `first` on has of a tile, up to the `end`-th: the means of eight of its channels. A warp calls it.
  __device__ __forceinline__ void join_tile(const HeadTile& of, uint32_t tile, uint32_t first, uint32_t end, uint32_t by) const {
    int32_t highest[2] = {kNoBin, kNoBin};
#pragma unroll 4
    for (uint32_t warp = first; warp < end; warp += by) {
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) highest[r] = max(highest[r], attended(warp).highest[r][lane_]);
    }
    int64 weights[2][2] = {}, values[4] = {}, lower[4] = {};
#pragma unroll 2
    for (uint32_t warp = first; warp < end; warp += by) {
      const AttendedTile& from = attended(warp);
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        const int32_t own = from.highest[r][lane_];
        const bool is = own == highest[r], below = own == highest[r] - 1;
        weights[r][0] += is ? from.weights[r][0][lane_] : 0;
        weights[r][1] += is ? from.weights[r][1][lane_] : below ? from.weights[r][0][lane_] : 0;
#pragma unroll
        for (uint32_t k = 2 * r; k < 2 * r + 2; k++) {
          const int64 upper = from.values[0][tile][k][lane_];
          values[k] += is ? upper : 0;
          lower[k] += is ? from.values[1][tile][k][lane_] : below ? upper : 0;
        }
      }
    }
    leave_means(of, tile, weights, values, lower);
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

  __device__ __forceinline__ void attend_own(uint32_t layer) const {
    const Shape& shape = shared_.shape;
    const uint32_t width = shape.head_width;
    const uint64_t layer_offset = 2ull * shape.kv_heads * shape.kv_half() * layer;
    // A warp for 32 channels of a head of 16 positions, or, of heads of 64, a pair of warps for both halves. Means take the place of the queries that `store` has read. Tiles
    // that are left when each warp or pair has had as many have several of them each, which take some of the blocks.
    const bool are_pairs = kWarps >= 2 && width == kUsualWidth && at_.exchange != 0;
    const uint32_t pieces = are_pairs ? 1 : width / kBlock, teams = are_pairs ? kWarps / 2 : kWarps, own = are_pairs ? warp_ / 2 : warp_;
    const uint32_t of_head = pieces * ((chunk_.count + kTileRows - 1) / kTileRows);
    const uint32_t all = shape.heads * of_head, whole = all / teams * teams, left = all - whole;
    const uint32_t parts = left == 0 ? 1 : min(teams / left, chunk_.position / kBlock + 1);
    const auto tile_of = [&](uint32_t item, uint32_t half) {
      const uint32_t in_head = item % of_head;
      return HeadTile{item / of_head, in_head / pieces * kTileRows, (in_head % pieces + half) * kBlock};
    };
    uint32_t turn = 0;
#pragma unroll 1
    for (uint32_t round = 0; round < whole + left * parts; round += teams) {
      const uint32_t job = round + own;
      const bool is_whole = job < whole, is = own < teams && job < whole + left * parts;
      const uint32_t item = is_whole ? job : is ? whole + (job - whole) / parts : 0, first = is_whole || !is ? 0 : (job - whole) % parts;
      const uint32_t step = round < whole ? 1 : parts;
      if (are_pairs) {
        attend_pair(layer_offset, tile_of(item, warp_ % 2), first, step, is, turn);
      } else if (is) {
        attend_tile(layer_offset, tile_of(item, 0), first, step);
      }
    }
    Team::sync();
    if (parts != 1) {
      const uint32_t halves = are_pairs ? 2 : 1;
#pragma unroll 1
      for (uint32_t job = warp_; job < left * halves * kTiles; job += kWarps) {
        const uint32_t tile = job % kTiles, half = job / kTiles % halves, item = job / kTiles / halves;
        join_tile(tile_of(whole + item, half), tile, halves * parts * item + half, halves * parts * (item + 1), halves);
      }
      Team::sync();
    }
  }

  // x += W_o * attention.
  __device__ __forceinline__ void add_attention_own(uint32_t layer) const {
    activate_all(shared_.shape.queries(), [&](uint32_t column, uint32_t channel) { return static_cast<int64>(heads_of(column)[channel]); });
    add_product(entries(layer)[kOutput]);
  }

  // swish(W_gate * b) * (W_up * b), b = normalise(x).
  __device__ __forceinline__ void gate_own(uint32_t layer) const {
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
        for (uint32_t k = 0; k < 2; k++) {
          const uint32_t column = kTileColumns * tile + tile_column(k, lane_);
          const Activation activation = activations()[min(column, chunk_.count - 1)];
          const Requantised by = Requantised::of(gate, activation), by_up = Requantised::of(up, activation);
          // Two rows side by side, so without branches between them.
          int32_t values[2], others[2];
#pragma unroll
          for (uint32_t half = 0; half < 2; half++) {
            values[half] = by.usual(sums[0][tile][2 * half + k], gate_scales.of[half]);
            others[half] = by_up.usual(sums[1][tile][2 * half + k], up_scales.of[half]);
          }
          if (UNLIKELY(!by.is_usual || !by_up.is_usual)) {
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
              values[half] = by.value(sums[0][tile][2 * half + k], gate_scales.of[half]);
              others[half] = by_up.value(sums[1][tile][2 * half + k], up_scales.of[half]);
            }
          }
#pragma unroll
          for (uint32_t half = 0; half < 2; half++) {
            const int64 product = round_shift(static_cast<int64>(this->swish(values[half])) * others[half], kFraction);
            if (column < chunk_.count) products[hidden * column + first + tile_row(2 * half, lane_)] = product;
          }
        }
      }
    }
    Team::sync();
  }

  // x += W_down * that.
  __device__ __forceinline__ void add_products_own(uint32_t layer) const {
    activate_all(shared_.shape.hidden, [&](uint32_t column, uint32_t channel) { return products_of(column)[channel]; });
    add_product(entries(layer)[kDown]);
  }
};

}  // namespace language

#endif
