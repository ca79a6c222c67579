// A step of up to 32 rollouts of Llama's shape by the ranks of a team: each row of weights is read once for all of them. A rollout is a column; rows,
// attentions and tokens of the vocabulary are dealt to the ranks. docs/gpu-language.md, "Engine 1: several blocks a step".
#ifndef DOORBELL_LANGUAGE_BATCH_CUH
#define DOORBELL_LANGUAGE_BATCH_CUH

#include "language_team.cuh"

namespace language {

// The products of a layer, each of an activation, and that behind all. They share their code: a layer is to fit the multiprocessor's caches of instructions.
enum Product : uint32_t { kOfQueries, kOfAttention, kOfGate, kOfProduct, kLogits };

// Tiles that belong together: a gate's, and that of what it gates.
__device__ __forceinline__ uint32_t tiles_together(Product product) { return product == kOfGate ? 2 : 1; }

// Where in shared memory a product's mantissas are, and, one behind the other, the place of each warp. There weights come, and what it makes of them is left there.
struct Room {
  uint32_t stride;        // of a column's mantissas
  uint32_t first, bytes;  // of warps' places
  uint32_t lines;         // of weights that a place has room for
};

// What a rank does in a product, the same in each layer: worked out once a step, as the quotients in it would take a third of a product's time.
struct alignas(16) ProductPlan {
  uint32_t channels, padded;  // of the activation; and up to the end of the line
  uint32_t inverse_of_pieces, inverse_of_words;  // 2^20 by the pieces of 128 channels, and 2^32 by the words of 16 bytes of a column, rounded up
  uint32_t all;                                  // tiles that are the rank's
  uint32_t pieces;
  Room room;
};
// And a warp in a round of one, of which there is mostly one.
struct alignas(16) WarpPlan {
  uint16_t here, slices;  // tiles of the round, and warps that share each
  uint16_t part, has;     // the entry of its matrix, and whether it has any
  uint16_t first, last;   // lines
  uint32_t row;           // of the matrix, the first of 16
};

// The round of a product that begins with the `first`-th of a rank's tiles, of which it has `all`, as a warp sees it.
__device__ __noinline__ WarpPlan plan_round(const Shape& shape, uint32_t rank, uint32_t ranks, uint32_t warps, uint32_t warp, Product product, uint32_t lines,
                                            uint32_t all, uint32_t first) {
  const uint32_t of = tiles_together(product), left = all - first;
  const uint32_t slices = left >= warps || left == 0 ? 1 : min(warps / left, lines), here = min(left, warps / slices) / of * of;
  const uint32_t slice = warp % slices, local = warp / slices;
  WarpPlan plan{};
  plan.here = static_cast<uint16_t>(here);
  plan.slices = static_cast<uint16_t>(slices);
  if (local >= here) return plan;
  const uint32_t number = first + (DOORBELL_FAULT(SwapsTile) && of == 1 && here > 1 && local < 2 ? local ^ 1 : local);
  const uint32_t tile = rank + ranks * (number / of), queries = shape.queries() / kTileRows, keys = shape.keys() / kTileRows;
  uint32_t part = product == kOfAttention ? kOutput : product == kOfProduct ? kDown : kGate + number % of, in_part = tile;
  if (product == kOfQueries) {
    part = tile < queries ? kQuery : tile < queries + keys ? kKey : kValue;
    in_part -= part == kQuery ? 0 : part == kKey ? queries : queries + keys;
  }
  plan.part = static_cast<uint16_t>(part);
  plan.has = 1;
  // The last warp has no more lines than others.
  plan.first = static_cast<uint16_t>((lines * slice + slices - 1) / slices);
  plan.last = static_cast<uint16_t>((lines * (slice + 1) + slices - 1) / slices);
  plan.row = kTileRows * in_part;
  return plan;
}

// Where what a step has lies in a rank's shared memory, in bytes from its beginning. Attentions take the place of activations and weights. With it is what a rank knows of
// its team: what threads hold in registers goes to local memory, and each meeting makes the first cache forget that.
struct BatchLayout {
  uint32_t columns, activations, plans, warp_plans, places, best, scales, shifts, mantissas, queries, query_scales, scores, parts, end;
  uint32_t stride;      // of a column's mantissas in scratch
  uint32_t heads;       // of queries that are attended to at a time
  uint32_t parts_kept;  // of their attentions, all together
  uint32_t part_bytes;
  uint32_t most_parts;  // of a head that are taken: see `parts_for`
  uint32_t rank, ranks, count;
  uint32_t blocks;      // of positions, that the longest sequence has
  TeamState* state;
  char* scratch;
  uint64_t wide, dealt;  // where in scratch heads and products are, and mantissas

  // Where this lies itself, for all threads.
  template <typename Team>
  static constexpr __device__ __forceinline__ uint32_t own() {
    return (static_cast<uint32_t>(sizeof(Shared<Team>)) + 127) / 128 * 128;
  }

  // Bytes of attentions that are kept at a time, as long as there is no more than one of each head.
  static constexpr uint32_t kPartBytes = 128 << 10;

  // Words of a tile's row: such that rows lie in different banks.
  static constexpr __device__ __forceinline__ uint32_t pitch(uint32_t tiles) { return tiles == 1 ? kTileColumns : kTileColumns * (tiles + 1); }
  // Bytes of 32 rows of a tile.
  static constexpr __device__ __forceinline__ uint32_t tile_bytes(uint32_t tiles) { return 4 * kBlock * pitch(tiles); }
  // Bytes from row to row of so many lines of 16 rows, such that four of them lie in different banks, and of all of them.
  static constexpr __device__ __forceinline__ uint32_t row_pitch(uint32_t lines) { return kLine * lines + kLine / 2; }

  template <typename Team>
  static __device__ __forceinline__ BatchLayout of(const Shape& shape, uint32_t tiles) {
    const uint32_t widest = max(max(shape.width, shape.queries()), shape.hidden), most = tiles * kTileColumns;
    BatchLayout at;
    at.end = own<Team>() + (static_cast<uint32_t>(sizeof(BatchLayout)) + 127) / 128 * 128;
    at.wide = ChunkLayout::wide_of(shape, most);
    at.dealt = at.wide + ChunkLayout::behind_of(shape, most);
    const auto take = [&at](uint32_t bytes) {
      const uint32_t offset = at.end;
      at.end += (bytes + 15) / 16 * 16;
      return offset;
    };
    at.columns = take(most * static_cast<uint32_t>(sizeof(Column)));
    at.activations = take(most * static_cast<uint32_t>(sizeof(Activation)));
    at.plans = take((kLogits + 1) * static_cast<uint32_t>(sizeof(ProductPlan)));
    at.warp_plans = take(kLogits * Team::kWarps * static_cast<uint32_t>(sizeof(WarpPlan)));
    at.places = take(4 * Team::kThreads / kTileRows);
    at.best = take(4 * most);
    const uint32_t begin = at.end;
    at.stride = Vectors::stride_of(widest);
    at.scales = take(4 * kBlock * Team::kWarps);
    at.shifts = take(shift_bytes(widest));
    at.mantissas = at.end;
    const uint32_t end = (at.mantissas + most * at.stride + 127) / 128 * 128 + (least_place(tiles) + 127) / 128 * 128 * Team::kWarps;
    at.end = begin;
    at.heads = max(kMostParts, shape.heads / shape.kv_heads);
    at.part_bytes = Layout::part_bytes(shape);
    at.parts_kept = max(kPartBytes / at.part_bytes, at.heads);
    at.queries = take(at.heads * shape.head_width);
    at.query_scales = take(4 * at.heads);
    at.scores = take(4 * kTogether * kBlock * Team::kWarps);
    at.parts = take(at.parts_kept * at.part_bytes);
    at.end = max(at.end, end);
    return at;
  }
  static __device__ __forceinline__ uint32_t shift_bytes(uint32_t channels) { return kColumns * ((channels + kLine - 1) / kLine * 2); }
  // Bytes of a warp's place at least: a tile of 32 rows and candidates of all columns.
  static __device__ __forceinline__ uint32_t least_place(uint32_t tiles) {
    return max(tile_bytes(tiles) + tiles * kTileColumns * static_cast<uint32_t>(sizeof(Candidate)), kTileRows * row_pitch(1));
  }
  // The places of a product with vectors of so many channels, with room for all `lines` of a row if there is as much.
  template <typename Team>
  __device__ __forceinline__ Room room_for(uint32_t channels, uint32_t tiles) const {
    Room to;
    to.stride = Vectors::stride_of(channels);
    to.first = (mantissas + tiles * kTileColumns * to.stride + 127) / 128 * 128;
    to.bytes = (kTeamBytes<Team> - to.first) / Team::kWarps / 128 * 128;
    to.lines = min((channels + kLine - 1) / kLine, (to.bytes / kTileRows - kLine / 2) / kLine);
    return to;
  }

  // Tiles of columns that a step of a shape that `fits` has at most, 4, 2 or 1: as many as there is room for. 0 if its rollouts do not share steps.
  template <typename Team>
  static __device__ __forceinline__ uint32_t most_tiles(const Shape& shape) {
    if (Team::kTeams != 1 || shape.is_gemma() || shape.cap_window != 0) return 0;
    for (uint32_t tiles = kTiles; tiles != 0; tiles /= 2)
      if (of<Team>(shape, tiles).end <= kTeamBytes<Team>) return tiles;
    return 0;
  }

  // Bytes of scratch in device memory: for a chunk, or for as many columns as a step has at most, with mantissas and shifts of each. 0 if rollouts do not share steps, or
  // their prompts do not go by chunks.
  template <typename Team>
  static __device__ __forceinline__ uint64_t scratch_of(const Shape& shape) {
    const uint64_t chunk = ChunkLayout::scratch_of<Team>(shape);
    const uint32_t tiles = most_tiles<Team>(shape);
    if (chunk == 0 || tiles == 0) return 0;
    const BatchLayout at = of<Team>(shape, tiles);
    const uint64_t step = at.dealt + tiles * kTileColumns * at.stride + shift_bytes(max(max(shape.width, shape.queries()), shape.hidden));
    return step > chunk ? step : chunk;
  }
};

// What a lane knows of a column's tokens: the lanes of a column have every n-th of a block of 32 tokens.
template <typename Team, uint32_t kTilesOf>
class Batch : Frame<Team> {
 public:
  // Takes a step of the columns in the team's state, `count` of them, of which there is one at least. Scratch in device memory is the leader's
  // (`ChunkLayout`). What each rank has found of a column's tokens is among the team's candidates when it returns; a meeting has to follow. What `Block::step` says of
  // tokens and positions holds here, too.
  static __device__ __noinline__ void run(Ranks& ranks, char* scratch, uint32_t count) {
    {
      Batch team(ranks);
      team.lay_out(scratch, count);
      team.embed();
      team.meet(kEmbeds, [&] { team.bring_first(kOfQueries, 0); });
    }
    // Each phase begins with the thread's number alone. What one phase has worked out of it would wait in local memory for the next, behind a meeting.
#pragma unroll 1
    for (uint32_t layer = 0; layer < Batch(ranks).shared_.shape.layers; layer++) {
#pragma unroll 1
      for (uint32_t which = kOfQueries; which < kLogits; which++) {
        const Product product = static_cast<Product>(which);
        Batch(ranks).take(product, layer);
        if (product != kOfQueries) continue;
        attend(ranks, layer);
        const Batch team(ranks);
        team.meet(kMeans, [&] { team.bring_first(kOfAttention, layer); });
      }
    }
    Batch(ranks).choose();
    ranks.lap(kTakesLogits);
  }

 private:
  using Base = Frame<Team>;
  using Base::copy, Base::end, Base::entries, Base::kThreads, Base::kWarps, Base::lane_, Base::matrix, Base::shared_, Base::tables, Base::thread_,
      Base::warp_;
  // The last warp waits for other ranks and works out what belongs to all channels of a column, while others bring and multiply.
  static constexpr uint32_t kMultipliers = kWarps - 1;
  // Sixteens of threads, each of which takes 16 rows of a column.
  static constexpr uint32_t kPitch = BatchLayout::pitch(kTilesOf), kSixteens = kThreads / kTileRows;

  // What becomes the activation of each.
  static __device__ __forceinline__ Totals total_of(Product product) {
    return product == kOfAttention ? kOfMeans : product == kOfGate ? kOfMiddle : product == kOfProduct ? kOfProducts : kOfInput;
  }

  Ranks& ranks_;
  const BatchLayout& at_;

  __device__ __forceinline__ explicit Batch(Ranks& ranks) : ranks_(ranks), at_(*Base::template at<const BatchLayout>(BatchLayout::own<Team>())) {}

  __device__ __forceinline__ void lay_out(char* scratch, uint32_t count) const {
    if (thread_ == 0) {
      BatchLayout& own = *at<BatchLayout>(BatchLayout::own<Team>());
      own = BatchLayout::of<Team>(shared_.shape, kTilesOf);
      own.rank = ranks_.rank;
      own.ranks = ranks_.count;
      own.count = count;
      own.scratch = scratch;
      own.state = &ranks_.state;
      uint32_t position = 0;
      for (uint32_t k = 0; k < count; k++) position = max(position, ranks_.state.columns[k].position);
      own.blocks = position / kBlock + 1;
      own.most_parts = parts_for(own);
    }
    Team::sync();
  }
  // Parts of a head's positions that warps take, such that the longest of them has least to do: a part costs a quarter of a block besides. Fewer parts are joined sooner.
  __device__ __forceinline__ uint32_t parts_for(const BatchLayout& at) const {
    const Shape& shape = shared_.shape;
    const uint32_t group = shape.heads / shape.kv_heads, all = own_of(at.count * shape.kv_heads), here = max(min(at.heads / group, all), 1u);
    const uint32_t sets = (group + kTogether - 1) / kTogether, pieces = (shape.head_width + kPiece - 1) / kPiece;
    uint32_t best = 1, least = 0xFFFFFFFFu;
#pragma unroll 1
    for (uint32_t parts = 1; parts <= min(at.parts_kept / (here * group), at.blocks); parts++) {
      const uint32_t cost = (here * sets * pieces * parts + kWarps - 1) / kWarps * (4 * ((at.blocks + parts - 1) / parts) + 1);
      if (cost >= least) continue;
      least = cost;
      best = parts;
    }
    return best;
  }

  template <typename T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return Base::template at<T>(offset);
  }
  __device__ __forceinline__ int32_t* stream_of(uint32_t column) const {
    return reinterpret_cast<int32_t*>(at_.scratch) + shared_.shape.width * column;
  }
  __device__ __forceinline__ int32_t* heads_of(uint32_t column) const {
    return reinterpret_cast<int32_t*>(at_.scratch + at_.wide) + (shared_.shape.queries() + 2 * shared_.shape.keys()) * column;
  }
  __device__ __forceinline__ int64* products_of(uint32_t column) const {
    return reinterpret_cast<int64*>(at_.scratch + at_.wide) + static_cast<uint64_t>(shared_.shape.hidden) * column;
  }
  // As shared memory has it: behind `ranks_` it would be in local memory.
  __device__ __forceinline__ TeamState& state() const { return *at_.state; }
  // Mantissas and shifts that ranks make for each other: behind what `ChunkLayout` has.
  __device__ __forceinline__ char* dealt() const { return at_.scratch + at_.dealt; }
  __device__ __forceinline__ const Column& column(uint32_t number) const { return at<Column>(at_.columns)[number]; }
  __device__ __forceinline__ Activation* activations() const { return at<Activation>(at_.activations); }
  __device__ __forceinline__ const short* gain(const Entry& entry) const {
    return reinterpret_cast<const short*>(shared_.image + entry.offset);
  }

  template <typename Between>
  __device__ __forceinline__ void meet(Lap done, Between between) const {
    ranks_.lap(done);
    Ranks::meet(state(), at_.ranks, between);
    ranks_.lap(kMeets);
  }

  // A product of a layer, and the meeting behind it. The weights of the next product are on their way while ranks wait. Attentions take their place first.
  __device__ __forceinline__ void take(Product product, uint32_t layer) {
    multiply(product, layer);
    meet(kSinks, [&] {
      if (product == kOfAttention || product == kOfGate) bring_first(static_cast<Product>(product + 1), layer);
      if (product == kOfProduct && layer + 1 < shared_.shape.layers) bring_first(kOfQueries, layer + 1);
    });
  }

  // Begins a total anew, between two meetings at which nobody needs it; kTotals is none.
  __device__ __forceinline__ void clear(Totals which) const {
    if (at_.rank != 0 || thread_ >= at_.count || which == kTotals) return;
    state().totals[which][thread_] = Total{0, 0};
  }
  __device__ __forceinline__ void add(Totals which, uint32_t column, uint64_t squares, uint64_t magnitudes) const {
    Total& total = state().totals[which][column];
    if (squares != 0) order::count_gpu(&total.squares, squares);
    if (magnitudes != 0) order::set_bits_gpu(&total.magnitudes, magnitudes);
  }

  // 16 threads take the results of 16 rows of a column, and keep their column if there are enough threads: the column, their first tile, and how many tiles are taken at
  // a time.
  struct Place {
    uint16_t column;
    uint8_t first_tile, at_a_time;
  };

  __device__ __forceinline__ const ProductPlan& plan_of(Product product) const { return at<ProductPlan>(at_.plans)[product]; }
  __device__ __forceinline__ const WarpPlan& own_plan_of(Product product) const { return at<WarpPlan>(at_.warp_plans)[kWarps * product + warp_]; }

  // A lane of each warp for each product. A barrier of the team has to follow.
  __device__ __forceinline__ void plan() const {
    const Shape& shape = shared_.shape;
    if (thread_ < kSixteens)
      at<Place>(at_.places)[thread_] = Place{static_cast<uint16_t>(thread_ % min(at_.count, kSixteens)), static_cast<uint8_t>(thread_ / at_.count),
                                             static_cast<uint8_t>(max(kSixteens / at_.count, 1u))};
    if (lane_ > kLogits) return;
    const Product product = static_cast<Product>(lane_);
    const uint32_t channels = product == kOfAttention ? shape.queries() : product == kOfProduct ? shape.hidden : shape.width;
    const uint32_t rows = product == kOfQueries ? shape.queries() + 2 * shape.keys() : product == kOfGate ? shape.hidden : product == kLogits ? 0 : shape.width;
    const uint32_t lines = (channels + kLine - 1) / kLine, padded = lines * kLine, pieces = (channels + 4 * kWarp - 1) / (4 * kWarp), of = tiles_together(product);
    uint32_t all = of * own_of(rows / kTileRows);
    if (DOORBELL_FAULT(SkipsRows) && at_.rank == 1 && all > of) all -= of;
    const WarpPlan own = plan_round(shape, at_.rank, at_.ranks, kMultipliers, warp_, product, lines, all, 0);
    if (product != kLogits) at<WarpPlan>(at_.warp_plans)[kWarps * product + warp_] = own;
    if (warp_ == 0)
      at<ProductPlan>(at_.plans)[product] = ProductPlan{channels, padded, (1u << 20) / pieces + 1, static_cast<uint32_t>((1ull << 32) / (padded / 16)) + 1, all, pieces, at_.template room_for<Team>(channels, kTilesOf)};
  }

  // The residual streams, of which each rank has some channels.
  __device__ __forceinline__ void embed() {
    const Shape& shape = shared_.shape;
    constexpr uint32_t kWords = sizeof(Column) / sizeof(uint4);
    const uint4* const from = reinterpret_cast<const uint4*>(state().columns);
    for (uint32_t k = thread_; k < kWords * at_.count; k += kThreads) at<uint4>(at_.columns)[k] = from[k];
    copy(shared_.entries[0], entry_at(shared_.image, kFirstLayerEntry), kParts * sizeof(Entry));
    plan();
    stream::wait_for_copies();
    Team::sync();
    const Matrix tokens = matrix(shared_.tokens);
    const short* const by = reinterpret_cast<const short*>(shared_.image + shared_.gain_offset);
    const uint32_t blocks = shape.width / kBlock;
#pragma unroll 1
    for (uint32_t item = at_.rank + at_.ranks * warp_; item < blocks * at_.count; item += at_.ranks * kWarps) {
      const uint32_t number = item / blocks, channel = item % blocks * kBlock + lane_, token = column(number).token;
      const int64 value = static_cast<signed char>(tokens.row(token)[channel]) * static_cast<int64>(tokens.scale(token));
      const int32_t x = within(round_shift(value, -(tokens.exponent + kFraction)));
      stream_of(number)[channel] = x;
      const uint64_t size = magnitude(x);
      const uint64_t squares = Base::sum_of_warp(size * size), magnitudes = Base::bits_of_warp(magnitude(static_cast<int64>(x) * by[channel]));
      if (lane_ == 0) add(kOfInput, number, squares, magnitudes);
    }
  }

  // Hides from the compiler that the value has not changed, so that it does not compute ahead what depends on it.
  static __device__ __forceinline__ void hide([[maybe_unused]] uint64_t& value) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+l"(value));
#endif
  }

  // Mantissas and shifts of all columns, as `Frame::activate` makes them of one: of residual streams with a gain of the image (RMSNorm), of means, or of products.
  // Of up to 16 columns each rank makes them for itself; of more it makes some, and takes the others' behind a meeting. There is a barrier of the block behind all.
  __device__ __forceinline__ void activate(Product product, const Entry& entry) const {
    // As many at a time as a warp has of the usual vectors.
    constexpr uint32_t kFour = 4, kPiece = kFour * kWarp, kAtATime = kTilesOf != kTiles ? 3 : 2;
    const bool is_normalised = product == kOfQueries || product == kOfGate || product == kLogits, is_wide = product == kOfProduct;
    const ProductPlan& plan = plan_of(product);
    const uint32_t channels = plan.channels;
    const short* const by = gain(entry);
    const Total* const totals = state().totals[total_of(product)];
    uint64_t magnitudes = 0;
    if (lane_ < at_.count) magnitudes = totals[lane_].magnitudes;
    const uint32_t pieces = plan.pieces, padded = plan.padded;
    // Quotients of numbers that are small.
    const uint32_t inverse = plan.inverse_of_pieces;
    const uint32_t all_items = pieces * at_.count;
    const bool is_dealt = kTilesOf == kTiles && at_.ranks != 1;
    char* const mantissas_to = is_dealt ? dealt() : at<char>(at_.mantissas);
    const uint32_t stride = plan.room.stride, stride_to = is_dealt ? at_.stride : stride;
    unsigned char* const shifts_to =
        is_dealt ? reinterpret_cast<unsigned char*>(dealt()) + at_.stride * kTilesOf * kTileColumns : at<unsigned char>(at_.shifts);
    // The last warp has worked out inverse roots meanwhile.
    const uint32_t own_warps = is_normalised && !is_dealt ? kMultipliers : kWarps;
    const uint32_t warps = is_dealt ? kWarps * at_.ranks : own_warps;
    const char* const narrow = reinterpret_cast<const char*>(is_normalised ? stream_of(0) : heads_of(0));
    const uint32_t narrow_bytes = 4 * (is_normalised ? shared_.shape.width : shared_.shape.queries() + 2 * shared_.shape.keys());
    const char* const wide = reinterpret_cast<const char*>(products_of(0));
    const uint32_t wide_bytes = 8 * shared_.shape.hidden;
    // Several are on their way at a time, and their chains of instructions go side by side: none has a branch of its own.
#pragma unroll 1
    for (uint32_t first = is_dealt ? own(warp_) : warp_ < own_warps ? warp_ : all_items; first < all_items; first += kAtATime * warps) {
      int64 values[kAtATime][kFour];
      uint32_t numbers[kAtATime], channels_of[kAtATime];
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; j++) {
        const uint32_t item = min(first + warps * j, all_items - 1);
        numbers[j] = item * inverse >> 20;
        // Behind the last line nothing is stored.
        channels_of[j] = first + warps * j < all_items ? (item - numbers[j] * pieces) * kPiece + kFour * lane_ : padded;
      }
      if (is_wide) {
        longlong2 low[kAtATime], high[kAtATime];
#pragma unroll
        for (uint32_t j = 0; j < kAtATime; j++) {
          low[j] = high[j] = longlong2{0, 0};
          if (channels_of[j] >= channels) continue;
          const longlong2* const two = reinterpret_cast<const longlong2*>(wide + static_cast<uint64_t>(wide_bytes) * numbers[j] + 8 * channels_of[j]);
          low[j] = two[0];
          high[j] = two[1];
        }
#pragma unroll
        for (uint32_t j = 0; j < kAtATime; j++) {
          values[j][0] = low[j].x;
          values[j][1] = low[j].y;
          values[j][2] = high[j].x;
          values[j][3] = high[j].y;
        }
      } else {
        // As they lie in memory: to unpack factors between two loads would wait for the first.
        int4 x[kAtATime];
        uint2 factors[kAtATime];
#pragma unroll
        for (uint32_t j = 0; j < kAtATime; j++) {
          const bool is = channels_of[j] < channels;
          x[j] = int4{0, 0, 0, 0};
          factors[j] = uint2{0x10001u, 0x10001u};
          if (is) x[j] = *reinterpret_cast<const int4*>(narrow + static_cast<uint64_t>(narrow_bytes) * numbers[j] + 4 * channels_of[j]);
          if (is && is_normalised) factors[j] = *reinterpret_cast<const uint2*>(by + channels_of[j]);
        }
#pragma unroll
        for (uint32_t j = 0; j < kAtATime; j++) {
          const int32_t of[kFour] = {static_cast<short>(factors[j].x & 0xFFFF), static_cast<short>(factors[j].x >> 16),
                                     static_cast<short>(factors[j].y & 0xFFFF), static_cast<short>(factors[j].y >> 16)};
          const int32_t from[kFour] = {x[j].x, x[j].y, x[j].z, x[j].w};
#pragma unroll
          for (uint32_t k = 0; k < kFour; k++) values[j][k] = stream::multiply_wide(from[k], of[k], 0);
        }
      }
      // Behind the loads, as it waits for one itself.
      hide(magnitudes);
      const int32_t over = bits(magnitudes) - 15, own_shift = over > 0 ? over : 0;
      int32_t halves[kAtATime][kFour];
      uint32_t all[kAtATime];
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; j++) {
        const int32_t shift = __shfl_sync(kEveryLane, own_shift, numbers[j]);
        const int64 added = 1ll << shift >> 1;
        all[j] = 0;
#pragma unroll
        for (uint32_t k = 0; k < kFour; k++) {
          halves[j][k] = min(max(static_cast<int32_t>((values[j][k] + added) >> shift), -32767), 32767);
          all[j] |= magnitude(halves[j][k]);
        }
      }
      // 32 channels, which share a shift, are eight lanes.
#pragma unroll
      for (uint32_t step = 1; step < kBlock / kFour; step *= 2) {
#pragma unroll
        for (uint32_t j = 0; j < kAtATime; j++) all[j] |= __shfl_xor_sync(kEveryLane, all[j], step);
      }
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; j++) {
        const int32_t above = bits(all[j]) - 7, down = above > 0 ? above : 0, unit = 1 << down >> 1;
        uint32_t mantissas = 0;
#pragma unroll
        for (uint32_t k = 0; k < kFour; k++) {
          const int32_t rounded = (halves[j][k] + unit) >> down;
          mantissas |= (static_cast<uint32_t>(min(max(rounded, -kMantissa), kMantissa)) & 0xFF) << 8 * k;
        }
        // Behind the last channel weights are 0, up to the end of the line; mantissas and shift there must be some.
        const uint32_t number = numbers[j], channel = channels_of[j];
        if (channel < padded) {
          *reinterpret_cast<uint32_t*>(mantissas_to + stride_to * number + channel) = mantissas;
          if (lane_ % (kBlock / kFour) == 0) {
            const uint32_t place = Vectors::place_of(number ^ (DOORBELL_FAULT(SwapsColumns) && at_.count > 1 && number < 2 ? 1 : 0));
            shifts_to[kColumns * (channel / kBlock) + place] = static_cast<unsigned char>(down);
          }
        }
      }
    }
    if (is_dealt) {
      meet(kActivates, [] {});
      // 16 bytes at a time, of columns and then of shifts.
      const uint32_t words = padded / 16, of_columns = words * at_.count, every = of_columns + padded / kBlock * (kColumns / 16);
      const uint32_t inverse_of_words = plan.inverse_of_words;
#pragma unroll 4
      for (uint32_t k = thread_; k < every; k += kThreads) {
        const uint32_t number = static_cast<uint32_t>(static_cast<uint64_t>(k) * inverse_of_words >> 32), in_column = 16 * (k - number * words), in_shifts = 16 * (k - of_columns);
        const bool is = k < of_columns;
        stream::copy(at<char>(is ? at_.mantissas + stride * number + in_column : at_.shifts + in_shifts),
                     is ? mantissas_to + at_.stride * number + in_column : reinterpret_cast<char*>(shifts_to) + in_shifts);
      }
      stream::wait_for_copies();
    }
    Team::sync();
    ranks_.lap(product == kLogits ? kActivatesLogits : kActivates);
  }

  // What of each activation belongs to all its channels, by the last warp. It is wanted when sums are there, and is a long chain of instructions: ahead of the
  // mantissas it waits beside the others. A barrier has to follow.
  __device__ __forceinline__ void scale(Product product, const Entry& entry) const {
    const Shape& shape = shared_.shape;
    if (warp_ != kWarps - 1 || lane_ >= at_.count) return;
    const Total total = state().totals[total_of(product)][lane_];
    const int32_t over = bits(total.magnitudes) - 15, own_shift = over > 0 ? over : 0;
    Activation activation{1u << 15, -15 - kFraction + own_shift};
    if (product == kOfQueries || product == kOfGate || product == kLogits) {
      const Root root = Root::of(total.squares, shape.width, shape.epsilon);
      activation = Activation{root.inverse, entry.exponent - kFraction - 36 + root.up / 2 + own_shift};
    }
    activations()[lane_] = activation;
  }

  // The place of this warp in a product.
  __device__ __forceinline__ char* place_of(const Room& room) const { return at<char>(room.first + room.bytes * warp_); }

  // 16 rows of weights, `count` lines of each.
  struct Rows {
    const char* from;
    uint32_t stride, count;
  };
  __device__ __forceinline__ Rows rows_of(const Entry* of_layer, const WarpPlan& round) const {
    const Matrix matrix = this->matrix(of_layer[round.part]);
    return Rows{matrix.row(round.row) + kLine * round.first, matrix.stride(), static_cast<uint32_t>(round.last - round.first)};
  }
  // Brings the lines from `first` on to the warp's place, as many as it has room for. All lanes have read what was there.
  __device__ __forceinline__ void bring(const Room& room, const Rows& rows, uint32_t first) const {
    const uint32_t count = min(rows.count - first, room.lines), pitch = BatchLayout::row_pitch(count), group = lane_ / 4, quarter = lane_ % 4;
    char* const to = place_of(room) + pitch * group + 16 * quarter;
    const char* const from = rows.from + rows.stride * group + kLine * first + 16 * quarter;
    const uint64_t eight_rows = static_cast<uint64_t>(kGroups) * rows.stride;
#pragma unroll 2
    for (uint32_t k = 0; k < count; k++) {
      stream::copy(to + kLine * k, from + kLine * k);
      stream::copy(to + kGroups * pitch + kLine * k, from + eight_rows + kLine * k);
    }
  }
  // The first weights of a product of a layer are on their way from here on.
  __device__ __forceinline__ void bring_first(Product product, uint32_t layer) const {
    const WarpPlan round = own_plan_of(product);
    if (round.has != 0) bring(plan_of(product).room, rows_of(entries(layer), round), 0);
  }

  // Adds the rows that are on their way, from the vectors' line `line` on, times all columns. A lane has a quarter of each block of 32 channels.
  __device__ __forceinline__ void add_rows(int32_t (&sums)[kTilesOf][4], const Room& room, const Rows& rows, uint32_t line) const {
    const uint32_t group = lane_ / 4, quarter = lane_ % 4, stride = room.stride;
    const char* mantissas = at<char>(at_.mantissas + kLine * line + 8 * quarter);
    const unsigned char* shifts = at<unsigned char>(at_.shifts + 2 * kColumns * line + 2 * kTiles * quarter);
    uint32_t columns[kTilesOf];
#pragma unroll
    for (uint32_t tile = 0; tile < kTilesOf; tile++) columns[tile] = stride * min(kTileColumns * tile + group, at_.count - 1);
#pragma unroll 1
    for (uint32_t first = 0;;) {
      const uint32_t count = min(rows.count - first, room.lines), pitch = BatchLayout::row_pitch(count);
      const char* upper = place_of(room) + pitch * group + 8 * quarter;
      stream::wait_for_copies();
      __syncwarp();
#pragma unroll kTilesOf == 1 ? 2 : 1
      for (uint32_t k = 0; k < count; k++) {
#pragma unroll
        for (uint32_t block = 0; block < 2; block++) {
          const uint2 above = *reinterpret_cast<const uint2*>(upper + kBlock * block), below = *reinterpret_cast<const uint2*>(upper + kGroups * pitch + kBlock * block);
          const uint2 by = *reinterpret_cast<const uint2*>(shifts + kColumns * block);
#pragma unroll
          for (uint32_t tile = 0; tile < kTilesOf; tile++) {
            const uint2 of = *reinterpret_cast<const uint2*>(mantissas + columns[tile] + kBlock * block);
            const uint32_t both = (tile < 2 ? by.x : by.y) >> (16 * (tile % 2));
            const uint32_t units[2] = {unit_of(both), unit_of(both >> 8)};
            int32_t sum[4];
            stream::multiply_tile(sum, above.x, below.x, above.y, below.y, of.x, of.y);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) sums[tile][j] = static_cast<int32_t>(sums[tile][j] + sum[j] * units[j % 2]);
          }
        }
        upper += kLine;
        mantissas += kLine;
        shifts += 2 * kColumns;
      }
      __syncwarp();
      first += count;
      if (first >= rows.count) return;
      bring(room, rows, first);
    }
  }

  // Adds lines `first` up to `last` of the 16 rows at upper, eight of them, and lower, times all columns: `tiles` of language_tiles.cuh, with several lines on
  // their way at a time.
  __device__ __forceinline__ void add_lines(int32_t (&sums)[kTilesOf][4], const char* upper, const char* lower, uint32_t first, uint32_t last) const {
    constexpr uint32_t kDeep = kTilesOf == 1 ? 6 : 4;
    const uint32_t group = lane_ / 4, quarter = lane_ % 4;
    const char* const mantissas = at<char>(at_.mantissas) + 8 * (quarter % 2 * 2 + quarter / 2);
    const unsigned char* const shifts = at<unsigned char>(at_.shifts) + 2 * kTiles * quarter;
    uint32_t columns[kTilesOf];
#pragma unroll
    for (uint32_t tile = 0; tile < kTilesOf; tile++) columns[tile] = plan_of(kLogits).room.stride * min(kTileColumns * tile + group, at_.count - 1);
    uint4 coming[kDeep][2];
    // Behind the last line there is nothing in its place: what had another value would keep its registers all along.
    const auto bring = [&](uint4(&to)[2], uint32_t line) {
      const bool is = line < last;
      to[0] = is ? stream::load(upper + kLine * line + 16 * quarter) : make_uint4(0, 0, 0, 0);
      to[1] = is ? stream::load(lower + kLine * line + 16 * quarter) : make_uint4(0, 0, 0, 0);
    };
#pragma unroll
    for (uint32_t k = 0; k < kDeep; k++) bring(coming[k], first + k);
#pragma unroll 1
    for (uint32_t base = first; base < last; base += kDeep) {
#pragma unroll
      for (uint32_t k = 0; k < kDeep; k++) {
        const uint32_t line = base + k;
        if (line >= last) break;
        uint2 weights[2][2];
        TileLine{{coming[k][0], coming[k][1]}}.deal(lane_, weights);
        bring(coming[k], line + kDeep);
#pragma unroll
        for (uint32_t block = 0; block < 2; block++) {
          const uint2 by = *reinterpret_cast<const uint2*>(shifts + kColumns * (2 * line + block));
#pragma unroll
          for (uint32_t tile = 0; tile < kTilesOf; tile++) {
            const uint2 of = *reinterpret_cast<const uint2*>(mantissas + columns[tile] + kLine * line + kLine / 2 * block);
            const uint32_t both = (tile < 2 ? by.x : by.y) >> (16 * (tile % 2));
            const uint32_t units[2] = {unit_of(both), unit_of(both >> 8)};
            int32_t sum[4];
            stream::multiply_tile(sum, weights[block][0].x, weights[block][1].x, weights[block][0].y, weights[block][1].y, of.x, of.y);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) sums[tile][j] = static_cast<int32_t>(sums[tile][j] + sum[j] * units[j % 2]);
          }
        }
      }
    }
  }

  // Leaves a warp's tile in its place, from a row of it on.
  __device__ __forceinline__ void leave(const int32_t (&sums)[kTilesOf][4], const Room& room, uint32_t row) const {
    int32_t* const to = reinterpret_cast<int32_t*>(place_of(room));
#pragma unroll
    for (uint32_t tile = 0; tile < kTilesOf; tile++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        int2* const two = reinterpret_cast<int2*>(to + kPitch * (row + tile_row(2 * half, lane_)) + kTileColumns * tile + tile_column(0, lane_));
        *two = make_int2(sums[tile][2 * half], sums[tile][2 * half + 1]);
      }
    }
  }

  // Of so many things the number that are the rank's, and which they are.
  __device__ __forceinline__ uint32_t own_of(uint32_t all) const {
    return all > at_.rank ? (all - at_.rank + at_.ranks - 1) / at_.ranks : 0;
  }
  __device__ __forceinline__ uint32_t own(uint32_t k) const { return at_.rank + at_.ranks * k; }

  // What 16 lanes of a column have seen. Of all magnitudes the highest bit alone is wanted.
  __device__ __forceinline__ void add_seen(Totals which, bool is, uint32_t column, uint64_t squares, uint64_t magnitudes) const {
    constexpr uint32_t kPart = (1u << 27) - 1;
    const bool upper = lane_ >= kTileRows;
    const uint32_t size = static_cast<uint32_t>(bits(magnitudes));
    const auto most_of = [&](bool half) { return __reduce_max_sync(kEveryLane, upper == half ? size : 0u); };
    const uint32_t sizes[2] = {most_of(false), most_of(true)}, most = upper ? sizes[1] : sizes[0];
    uint64_t sum = 0;
    if (which != kOfProducts) {
      const auto sum_of = [&](bool half, uint64_t part) { return __reduce_add_sync(kEveryLane, upper == half ? static_cast<uint32_t>(part) & kPart : 0u); };
      const uint64_t lows[2] = {sum_of(false, squares), sum_of(true, squares)}, middles[2] = {sum_of(false, squares >> 27), sum_of(true, squares >> 27)};
      sum = (upper ? middles[1] : middles[0]) * (1ull << 27) + (upper ? lows[1] : lows[0]);
      // Of three tiles and more.
      const uint64_t highs[2] = {sum_of(false, squares >> 54), sum_of(true, squares >> 54)};
      sum += (upper ? highs[1] : highs[0]) << 54;
    }
    if (is && lane_ % kTileRows == 0) add(which, column, sum, most == 0 ? 0 : 1ull << (most - 1));
  }

  // A product of a layer, of which each rank takes every n-th tile of 16 rows: queries, keys and values; x += W_o * attention; what the gate lets through,
  // swish(W_gate * b) * (W_up * b); x += W_down * that. If a rank has fewer tiles than warps, several warps share one, each some of its lines.
  __device__ __forceinline__ void multiply(Product product, uint32_t layer) {
    const Shape& shape = shared_.shape;
    const Entry* const of_layer = entries(layer);
    clear(product == kOfQueries ? kOfProducts : product == kOfAttention ? kTotals : product == kOfGate ? kOfMeans : kOfMiddle);
    const Entry& of_gain = of_layer[product == kOfGate ? kHiddenGain : kAttentionGain];
    scale(product, of_gain);
    activate(product, of_gain);
    if (product == kOfQueries) bring_near(layer);
    const ProductPlan& plan = plan_of(product);
    // What the residual stream is multiplied with next, so that it is known what comes of it.
    const bool is_last = layer + 1 == shape.layers, adds = product == kOfAttention || product == kOfProduct;
    const Entry& next = product == kOfAttention ? of_layer[kHiddenGain] : is_last ? shared_.last_gain : entries(layer + 1)[kAttentionGain];
    const short* const of_next = gain(adds ? next : of_layer[kAttentionGain]);
    uint32_t* const all_scales = at<uint32_t>(at_.scales);
    const Room& room = plan.room;
    const uint32_t of = tiles_together(product), row = thread_ % kTileRows;
    const Place place = at<Place>(at_.places)[thread_ / kTileRows];
    const uint32_t first_tile = place.first_tile, at_a_time = place.at_a_time;
    // Tiles of which a thread works out its row side by side: of many columns it has one row of each tile.
    constexpr uint32_t kSide = kTilesOf == kTiles ? 2 : 1;
    WarpPlan round = own_plan_of(product);
    uint32_t first = 0;
#pragma unroll 1
    for (;;) {
      const uint32_t slices = round.slices;
      uint32_t column = place.column, together = first_tile < at_a_time ? round.here / of : 0;
      // What is added to comes meanwhile.
      int32_t old[kSide] = {}, factor[kSide] = {};
      const auto fetch = [&](uint32_t k) {
        if (!adds) return;
#pragma unroll
        for (uint32_t t = 0; t < kSide; t++, k += at_a_time) {
          if (k >= together) return;
          const uint32_t in_all = kTileRows * own(first / of + k) + row;
          old[t] = stream_of(column)[in_all];
          factor[t] = of_next[in_all];
        }
      };
      fetch(first_tile);
      if (round.has != 0) {
        const Matrix matrix = this->matrix(of_layer[round.part]);
        uint32_t row_scale = 0;
        if (round.first == 0) {
          prefetch(matrix.row(round.row), kTileRows * matrix.stride(), end(), lane_);
          row_scale = matrix.scale(round.row + lane_ % kTileRows);
        }
        int32_t sums[kTilesOf][4] = {};
        add_rows(sums, room, rows_of(of_layer, round), round.first);
        leave(sums, room, 0);
        if (round.first == 0 && lane_ < kTileRows) all_scales[kBlock * (warp_ / slices) + lane_] = row_scale;
      }
      if (product == kOfAttention) stream::wait_for_copies();
      Team::sync();
      ranks_.lap(kMultiplies);
#pragma unroll 1
      for (;;) {
        uint64_t squares = 0, magnitudes = 0;
        const Activation activation = activations()[column];
        const auto by_entry = [&](uint32_t entry) { return Requantised::of(of_layer[entry].exponent, activation); };
        // What the loop needs of shared memory is read ahead of it: behind a store the compiler would read it again.
        const uint32_t rank = at_.rank, ranks = at_.ranks, base = first / of, of_slices = room.bytes * slices, of_slice = room.bytes;
        const char* const sums_at = at<char>(room.first + 4 * (kPitch * row + column));
        const uint32_t* const scales = all_scales + row;
        char* const to = product == kOfQueries ? reinterpret_cast<char*>(heads_of(column))
                         : product == kOfGate  ? reinterpret_cast<char*>(products_of(column))
                                               : reinterpret_cast<char*>(stream_of(column));
        const uint32_t queries = shape.queries(), keys = shape.keys();
        const Requantised by_all = by_entry(product == kOfQueries ? kQuery : product == kOfAttention ? kOutput : product == kOfGate ? kGate : kDown);
        const Requantised by_up = by_entry(kUp);
#pragma unroll 1
        for (uint32_t k = first_tile; k < together; k += kSide * at_a_time) {
          int32_t x_before[kSide], by_next[kSide];
          uint32_t places[kSide], in_all[kSide];
          Requantised by[kSide];
#pragma unroll
          for (uint32_t t = 0; t < kSide; t++) {
            x_before[t] = old[t];
            by_next[t] = factor[t];
            // Where there is no further tile, the first one is worked out twice. What is added to the residual stream is added once.
            places[t] = k + t * at_a_time < together ? k + t * at_a_time : k;
            const uint32_t tile = rank + ranks * (base + places[t]);
            in_all[t] = kTileRows * tile + row;
            by[t] = by_all;
            if (product == kOfQueries && kTileRows * tile >= queries) by[t] = by_entry(kTileRows * tile < queries + keys ? kKey : kValue);
          }
          fetch(k + kSide * at_a_time);
          const auto values_of = [&](uint32_t part, int32_t (&values)[kSide]) {
            int32_t sums[kSide] = {};
#pragma unroll 4
            for (uint32_t j = 0; j < slices; j++) {
#pragma unroll
              for (uint32_t t = 0; t < kSide; t++) sums[t] += *reinterpret_cast<const int32_t*>(sums_at + of_slices * (of * places[t] + part) + of_slice * j);
            }
            bool is_usual = true;
#pragma unroll
            for (uint32_t t = 0; t < kSide; t++) is_usual = is_usual && (part == 0 ? by[t] : by_up).is_usual;
            // Side by side, so without branches between them.
#pragma unroll
            for (uint32_t t = 0; t < kSide; t++) values[t] = (part == 0 ? by[t] : by_up).usual(sums[t], scales[kBlock * (of * places[t] + part)]);
            if (UNLIKELY(!is_usual)) {
              for (uint32_t t = 0; t < kSide; t++) values[t] = (part == 0 ? by[t] : by_up).value(sums[t], scales[kBlock * (of * places[t] + part)]);
            }
          };
          int32_t values[kSide];
          values_of(0, values);
          if (product == kOfQueries) {
#pragma unroll
            for (uint32_t t = 0; t < kSide; t++) reinterpret_cast<int32_t*>(to)[in_all[t]] = values[t];
          } else if (product == kOfGate) {
            int32_t gated[kSide];
            values_of(1, gated);
            int64 through[kSide];
#pragma unroll
            for (uint32_t t = 0; t < kSide; t++) through[t] = round_shift(static_cast<int64>(this->swish(values[t])) * gated[t], kFraction);
#pragma unroll
            for (uint32_t t = 0; t < kSide; t++) {
              reinterpret_cast<int64*>(to)[in_all[t]] = through[t];
              magnitudes |= magnitude(through[t]);
            }
          } else {
#pragma unroll
            for (uint32_t t = 0; t < kSide; t++) {
              if (t != 0 && places[t] == k) break;
              const int32_t sum = add_within(x_before[t], values[t]);
              reinterpret_cast<int32_t*>(to)[in_all[t]] = sum;
              const uint64_t size = magnitude(sum);
              squares += size * size;
              magnitudes |= magnitude(static_cast<int64>(sum) * by_next[t]);
            }
          }
        }
        // Warps that have none have seen nothing.
        if (product != kOfQueries && __any_sync(kEveryLane, squares != 0 || magnitudes != 0))
          add_seen(product == kOfAttention ? kOfMiddle : product == kOfGate ? kOfProducts : kOfInput, together != 0, column, squares, magnitudes);
        // A block of fewer threads than columns times 16, as on a CPU, takes further columns.
        if constexpr (kSixteens >= kColumns) break;
        column += kSixteens;
        if (column - place.column >= at_.count) break;
        if (column >= at_.count) together = 0;
        fetch(first_tile);
      }
      first += round.here;
      if (first >= plan.all) break;
      round = plan_round(shape, at_.rank, at_.ranks, kMultipliers, warp_, product, plan.padded / kLine, plan.all, first);
      Team::sync();
      if (round.has != 0) bring(room, rows_of(of_layer, round), 0);
    }
    // They have come when the attention is multiplied.
    if (product == kOfQueries && layer + 1 < shape.layers)
      copy(shared_.entries[(layer + 1) % 2], entry_at(shared_.image, kFirstLayerEntry + kParts * (layer + 1)), kParts * sizeof(Entry));
  }

  // Fills the second cache with the keys and values to which this rank attends in a layer: a thread for each head's part of a block.
  __device__ __forceinline__ void bring_near(uint32_t layer) const {
    const Shape& shape = shared_.shape;
    const uint32_t half_bytes = shape.kv_half(), all = own_of(at_.count * shape.kv_heads) * at_.blocks;
    // A warp brings one after the other. A few are the last warp's, which has nothing else to do now; more are spread over all.
    constexpr uint32_t kFew = 2 * kWarp;
    const bool is_few = all <= kFew;
#pragma unroll 1
    for (uint32_t k = !is_few ? kWarps * lane_ + warp_ : warp_ == kWarps - 1 ? lane_ : all; k < all; k += is_few ? kWarp : kThreads) {
      const uint32_t item = own(k / at_.blocks), block = k % at_.blocks;
      const Column& of = column(item / shape.kv_heads);
      if (kBlock * block > of.position) continue;
      const uint64_t head = 2ull * half_bytes * (shape.kv_heads * layer + item % shape.kv_heads);
      stream::prefetch(of.cache + shape.kv_block() * block + head, 2 * half_bytes);
    }
  }

  // A rank attends with some columns' heads of keys, and the heads of queries that share each. Functions of their own, as their registers are many.
  static __device__ __forceinline__ void attend(Ranks& ranks, uint32_t layer) {
    if (Batch(ranks).shared_.shape.head_width == kUsualWidth) {
      attend_with<kUsualWidth>(ranks, layer);
    } else {
      attend_with<0>(ranks, layer);
    }
  }
  // With the width of a head if the compiler is to know it.
  template <uint32_t kWidth>
  static __device__ __noinline__ void attend_with(Ranks& ranks, uint32_t layer) {
    Batch(ranks).template attend_own<kWidth>(layer);
  }
  template <uint32_t kWidth>
  __device__ __forceinline__ void attend_own(uint32_t layer) {
    const Shape& shape = shared_.shape;
    clear(kOfInput);
    const uint32_t width = kWidth != 0 ? kWidth : shape.head_width, half_bytes = shape.kv_half(), group = shape.heads / shape.kv_heads;
    const uint64_t layer_offset = 2ull * shape.kv_heads * half_bytes * layer;
    unsigned char* const scratch = reinterpret_cast<unsigned char*>(shared_.scratch[warp_]);
    char* const queries = at<char>(at_.queries);
    uint32_t* const query_scales = at<uint32_t>(at_.query_scales);
    char* const kept = at<char>(at_.parts);
    const uint32_t all = own_of(at_.count * shape.kv_heads), at_a_time = at_.heads / group, pieces = (width + kPiece - 1) / kPiece;
    const uint32_t sets = (group + kTogether - 1) / kTogether;
#pragma unroll 1
    for (uint32_t first = 0; first < all; first += at_a_time) {
      const uint32_t here = min(at_a_time, all - first), heads = here * group;
      if (first != 0) Team::sync();
#pragma unroll 1
      for (uint32_t job = warp_; job < here * (group + 2); job += kWarps) {
        const uint32_t k = job / (group + 2), which = job % (group + 2), item = own(first + k), kv_head = item % shape.kv_heads;
        const Column& of = column(item / shape.kv_heads);
        const uint32_t head = which < group ? kv_head * group + which : shape.heads + (which - group) * shape.kv_heads + kv_head;
        const uint32_t* const turns = reinterpret_cast<const uint32_t*>(shared_.image + shared_.rope_offset + 2ull * width * of.position);
        const uint32_t scale = store(heads_of(item / shape.kv_heads) + head * width, width, which <= group ? turns : nullptr, scratch, lane_);
        if (which < group) {
          char* const to = queries + (group * k + which) * width;
          for (uint32_t byte = 4 * lane_; byte < width; byte += 4 * kWarp)
            *reinterpret_cast<uint32_t*>(to + byte) = *reinterpret_cast<const uint32_t*>(scratch + byte);
          if (lane_ == 0) query_scales[group * k + which] = scale;
        } else {
          const uint64_t half = layer_offset + static_cast<uint64_t>(half_bytes) * (2 * kv_head + (which - group));
          const uint32_t slot = of.position % kBlock;
          keep(of.cache + shape.kv_block() * (of.position / kBlock) + half, width, slot, scratch, scale, lane_);
          if (of.stored_to != nullptr) keep_sys(of.stored_to + half, width, slot, scratch, scale, lane_);
        }
      }
      Team::sync();
      ranks_.lap(kStores);
      const uint32_t most = at_.most_parts;
      const auto parts_of = [&](uint32_t position) { return min(most, position / kBlock + 1); };
#pragma unroll 1
      for (uint32_t job = warp_; job < here * sets * most * pieces; job += kWarps) {
        const uint32_t k = job % here, part = job / here % most, rest = job / here / most, set = rest % sets * kTogether, piece = rest / sets * kPiece;
        const uint32_t item = own(first + k), head = group * k + set;
        const Column& of = column(item / shape.kv_heads);
        const uint32_t parts = parts_of(of.position);
        if (part >= parts) continue;
        const Heads with{of.cache + layer_offset + 2ull * half_bytes * (item % shape.kv_heads),
                         shape.kv_block(),
                         width,
                         half_bytes,
                         queries + head * width,
                         query_scales + head,
                         min(kTogether, group - set),
                         shared_.factor,
                         tables().exp2};
        attend_together(with, piece, part, parts, of.position, kept + at_.part_bytes * (most * head + part), at_.part_bytes * most,
                        at<uint32_t>(at_.scores) + kTogether * kBlock * warp_, lane_);
      }
      Team::sync();
      ranks_.lap(kAttends);
      // A thread for each channel of the means, which take the place of the queries.
#pragma unroll 1
      for (uint32_t base = kWarp * warp_; base < heads * width; base += kThreads) {
        const uint32_t head = base / width, channel = base % width + lane_, item = own(first + head / group), number = item / shape.kv_heads;
        const uint32_t parts = parts_of(column(number).position);
        const int32_t mean = mean_of<true>(kept + at_.part_bytes * most * head, parts, at_.part_bytes, width, channel);
        heads_of(number)[(item % shape.kv_heads * group + head % group) * width + channel] = mean;
        const uint32_t magnitudes = __reduce_or_sync(kEveryLane, magnitude(mean));
        if (lane_ == 0) add(kOfMeans, number, 0, magnitudes);
      }
    }
  }

  // Logits of all columns, and what this rank's tokens are to each. A warp takes 32 tokens at a time. A lane has a column, with others if there are fewer than 32,
  // each of them every n-th token.
  __device__ __forceinline__ void choose() {
    uint32_t* const best = at<uint32_t>(at_.best);
    if (thread_ < at_.count) best[thread_] = Sampler::kNoBound;
    activate(kLogits, shared_.last_gain);
    scale(kLogits, shared_.last_gain);
    Team::sync();
    const Matrix tokens = matrix(shared_.tokens);
    const char* const last = end();
    uint32_t wide = 1;
    while (wide < at_.count) wide *= 2;
    const uint32_t number = min(lane_ % wide, at_.count - 1), sub = lane_ / wide, share = kWarp / wide;
    const Column& of = column(number);
    const Sampling sampling = of.sampling;
    int32_t* const logits = sampling.truncates() ? of.logits : nullptr;
    Sampler sampler(tables(), sampling.sharpness, Draw::of(sampling.seed, sampling.rollout, of.position + 1));
    const Requantised by = Requantised::of(tokens.exponent, activations()[number]);
    const Room& room = plan_of(kLogits).room;
    int32_t* const tile = reinterpret_cast<int32_t*>(place_of(room));
    uint32_t* const scales = at<uint32_t>(at_.scales) + kBlock * warp_;
#pragma unroll 1
    for (uint32_t task = at_.rank + at_.ranks * warp_; kBlock * task < tokens.rows; task += at_.ranks * kWarps) {
      const uint32_t first = kBlock * task;
      prefetch(tokens.row(first), kBlock * tokens.stride(), last, lane_);
      const uint32_t scale = tokens.scale(min(first + lane_, tokens.rows - 1));
#pragma unroll 1
      for (uint32_t half = 0; half < kBlock; half += kTileRows) {
        int32_t sums[kTilesOf][4] = {};
        const uint32_t row = first + half + lane_ / 4;
        add_lines(sums, tokens.row(min(row, tokens.rows - 1)), tokens.row(min(row + kGroups, tokens.rows - 1)), 0, tokens.lines);
        leave(sums, room, half);
      }
      scales[lane_] = scale;
      __syncwarp();
      int32_t most = kLowest32;
#pragma unroll 4
      for (uint32_t k = sub; k < kBlock; k += share) {
        int32_t& place = tile[kPitch * k + number];
        const int32_t logit = by.value(place, scales[k]);
        if (lane_ % wide < at_.count) place = logit;
        if (first + k < tokens.rows) most = max(most, logit);
      }
      for (uint32_t step = wide; step < kWarp; step *= 2) most = max(most, __shfl_xor_sync(kEveryLane, most, step));
      __syncwarp();
      const int64 ceiling = sampler.ceiling_of(most);
      uint32_t sum = 0;
#pragma unroll 1
      for (uint32_t k = sub; k < kBlock; k += share) {
        const uint32_t token = first + k;
        if (token >= tokens.rows) break;
        const int32_t logit = tile[kPitch * k + number];
        sum += sampler.weight_of(ceiling, logit);
        if (UNLIKELY(logits != nullptr)) {
          // Until it is known what is kept, the most likely one is the best.
          sampler.keep(logit, token, logit);
          if (lane_ % wide < at_.count) logits[token] = logit;
        } else if (sampler.may_pick(token, logit, order::load_relaxed_block(best + number))) {
          sampler.pick(token, logit);
          if (sampler.token() == token) order::store_relaxed_block(best + number, sampler.bound());
        }
      }
      for (uint32_t step = wide; step < kWarp; step *= 2) sum += __shfl_xor_sync(kEveryLane, sum, step);
      sampler.enter_sum(ceiling, sum);
      __syncwarp();
    }
    const auto candidates_of = [&](uint32_t warp) { return at<Candidate>(room.first + room.bytes * warp + BatchLayout::tile_bytes(kTilesOf)); };
    const Candidate candidate = sampler.candidate_of(wide);
    if (lane_ < at_.count) candidates_of(warp_)[lane_] = candidate;
    Team::sync();
    if (thread_ < at_.count) {
      Sampler all(tables(), 0, Draw{});
      for (uint32_t warp = 0; warp < kWarps; warp++) all.join(candidates_of(warp)[thread_]);
      state().candidates[at_.rank][thread_] = all.own();
    }
  }
};

}  // namespace language

#endif
