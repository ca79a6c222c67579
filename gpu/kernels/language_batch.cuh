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

// What a rank does in a product, the same in each layer: worked out once a step, as the quotients in it would take a third of a product's time.
struct alignas(16) ProductPlan {
  uint32_t channels, padded;  // of the activation; and up to the end of the line
  uint32_t inverse_of_pieces, inverse_of_words;  // 2^20 by the pieces of 128 channels and words of 16 bytes of a column, rounded up
  uint32_t all;                                  // tiles that are the rank's
  uint32_t pieces;
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

// Where what a step has lies in a rank's shared memory, in bytes from its beginning. Attentions take the place of activations.
struct BatchLayout {
  uint32_t stride;  // of a column's mantissas
  uint32_t columns, activations, plans, warp_plans, places, mantissas, shifts, scales, tiles, candidates, queries, query_scales, scores, parts, end;
  uint32_t heads;       // of queries that are attended to at a time
  uint32_t parts_kept;  // of their attentions, all together
  uint32_t part_bytes;
  uint64_t wide, dealt;  // where in scratch heads and products are, and mantissas

  // Where this lies itself, for all threads: what they hold in registers goes to local memory, and each meeting makes the first cache forget that.
  template <typename Team>
  static constexpr __device__ __forceinline__ uint32_t own() {
    return (static_cast<uint32_t>(sizeof(Shared<Team>)) + 127) / 128 * 128;
  }

  // Bytes of attentions that are kept at a time, as long as there is no more than one of each head.
  static constexpr uint32_t kPartBytes = 128 << 10;

  // Words of a tile's row: such that rows lie in different banks.
  static constexpr __device__ __forceinline__ uint32_t pitch(uint32_t tiles) { return tiles == 1 ? kTileColumns : kColumns + kTileColumns; }

  template <typename Team>
  static __device__ __forceinline__ BatchLayout of(const Shape& shape, uint32_t tiles) {
    const uint32_t widest = max(max(shape.width, shape.queries()), shape.hidden), most = tiles * kTileColumns;
    BatchLayout at;
    at.end = own<Team>() + (static_cast<uint32_t>(sizeof(BatchLayout)) + 127) / 128 * 128;
    const ChunkLayout chunk = ChunkLayout::of<Team>(shape);
    at.wide = chunk.wide;
    at.dealt = chunk.scratch;
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
    const uint32_t begin = at.end;
    at.stride = Vectors::stride_of(widest);
    at.mantissas = take(most * at.stride);
    at.shifts = take(kColumns * ((widest + kLine - 1) / kLine * 2));
    at.scales = take(4 * kBlock * Team::kWarps);
    at.tiles = take(4 * kBlock * pitch(tiles) * Team::kWarps);
    at.candidates = take(most * Team::kWarps * static_cast<uint32_t>(sizeof(Candidate)));
    const uint32_t end = at.end;
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

  // Tiles of columns that a step of a shape that `fits` has at most; 0 if its rollouts do not share steps.
  template <typename Team>
  static __device__ __forceinline__ uint32_t most_tiles(const Shape& shape) {
    if (Team::kTeams != 1 || shape.is_gemma()) return 0;
    if (of<Team>(shape, kTiles).end <= kTeamBytes<Team>) return kTiles;
    return of<Team>(shape, 1).end <= kTeamBytes<Team> ? 1 : 0;
  }

  // Bytes of scratch in device memory: that of a chunk, and mantissas and shifts of all columns; 0 if a block does not take chunks.
  template <typename Team>
  static __device__ __forceinline__ uint64_t scratch_of(const Shape& shape) {
    const uint64_t chunk = ChunkLayout::scratch_of<Team>(shape);
    const BatchLayout at = of<Team>(shape, kTiles);
    return chunk == 0 ? 0 : chunk + kColumns * at.stride + (at.scales - at.shifts);
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
    Batch team(ranks, scratch, count);
    team.lay_out();
    team.embed();
    team.meet(kEmbeds);
#pragma unroll 1
    for (uint32_t layer = 0; layer < team.shared_.shape.layers; layer++) {
#pragma unroll 1
      for (uint32_t product = kOfQueries; product < kLogits; product++) {
        team.multiply(static_cast<Product>(product), layer);
        team.meet(kSinks);
        if (product != kOfQueries) continue;
        team.attend(layer);
        team.meet(kMeans);
      }
    }
    team.choose();
    ranks.lap(kTakesLogits);
  }

 private:
  using Base = Frame<Team>;
  using Base::copy, Base::end, Base::entries, Base::kThreads, Base::kWarps, Base::lane_, Base::matrix, Base::shared_, Base::tables, Base::thread_,
      Base::warp_;
  // Sixteens of threads, each of which takes 16 rows of a column.
  static constexpr uint32_t kPitch = BatchLayout::pitch(kTilesOf), kSixteens = kThreads / kTileRows;

  // What becomes the activation of each.
  static __device__ __forceinline__ Totals total_of(Product product) {
    return product == kOfAttention ? kOfMeans : product == kOfGate ? kOfMiddle : product == kOfProduct ? kOfProducts : kOfInput;
  }

  Ranks& ranks_;
  // As `ranks_` has them, without a look at it.
  TeamState& state_;
  const uint32_t rank_, all_ranks_;
  char* const scratch_;
  const uint32_t count_;
  const BatchLayout& at_;
  uint32_t blocks_ = 1;          // of positions, that the longest sequence has

  __device__ __forceinline__ Batch(Ranks& ranks, char* scratch, uint32_t count)
      : ranks_(ranks), state_(ranks.state), rank_(ranks.rank), all_ranks_(ranks.count), scratch_(scratch), count_(count),
        at_(*Base::template at<const BatchLayout>(BatchLayout::own<Team>())) {}

  __device__ __forceinline__ void lay_out() const {
    if (thread_ == 0) *at<BatchLayout>(BatchLayout::own<Team>()) = BatchLayout::of<Team>(shared_.shape, kTilesOf);
    Team::sync();
  }

  template <typename T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return Base::template at<T>(offset);
  }
  __device__ __forceinline__ int32_t* stream_of(uint32_t column) const {
    return reinterpret_cast<int32_t*>(scratch_) + shared_.shape.width * column;
  }
  __device__ __forceinline__ int32_t* heads_of(uint32_t column) const {
    return reinterpret_cast<int32_t*>(scratch_ + at_.wide) + (shared_.shape.queries() + 2 * shared_.shape.keys()) * column;
  }
  __device__ __forceinline__ int64* products_of(uint32_t column) const {
    return reinterpret_cast<int64*>(scratch_ + at_.wide) + static_cast<uint64_t>(shared_.shape.hidden) * column;
  }
  // Mantissas and shifts that ranks make for each other: behind what `ChunkLayout` has.
  __device__ __forceinline__ char* dealt() const { return scratch_ + at_.dealt; }
  __device__ __forceinline__ const Column& column(uint32_t number) const { return at<Column>(at_.columns)[number]; }
  __device__ __forceinline__ Activation* activations() const { return at<Activation>(at_.activations); }
  __device__ __forceinline__ const short* gain(const Entry& entry) const {
    return reinterpret_cast<const short*>(shared_.image + entry.offset);
  }

  __device__ __forceinline__ void meet(Lap done) const {
    ranks_.lap(done);
    Ranks::meet(state_, all_ranks_);
    ranks_.lap(kMeets);
  }

  // Begins a total anew, between two meetings at which nobody needs it; kTotals is none.
  __device__ __forceinline__ void clear(Totals which) const {
    if (rank_ != 0 || thread_ >= count_ || which == kTotals) return;
    state_.totals[which][thread_] = Total{0, 0};
  }
  __device__ __forceinline__ void add(Totals which, uint32_t column, uint64_t squares, uint64_t magnitudes) const {
    Total& total = state_.totals[which][column];
    if (squares != 0) order::count_gpu(&total.squares, squares);
    if (magnitudes != 0) order::set_bits_gpu(&total.magnitudes, magnitudes);
  }

  // Of what comes of tiles, 16 rows of a column are those of 16 threads, which stay with their column if there are enough of them: it, their first tile, and how many are
  // taken at a time.
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
      at<Place>(at_.places)[thread_] = Place{static_cast<uint16_t>(thread_ % min(count_, kSixteens)), static_cast<uint8_t>(thread_ / count_),
                                             static_cast<uint8_t>(max(kSixteens / count_, 1u))};
    if (lane_ > kLogits) return;
    const Product product = static_cast<Product>(lane_);
    const uint32_t channels = product == kOfAttention ? shape.queries() : product == kOfProduct ? shape.hidden : shape.width;
    const uint32_t rows = product == kOfQueries ? shape.queries() + 2 * shape.keys() : product == kOfGate ? shape.hidden : product == kLogits ? 0 : shape.width;
    const uint32_t lines = (channels + kLine - 1) / kLine, padded = lines * kLine, pieces = (channels + 4 * kWarp - 1) / (4 * kWarp), of = tiles_together(product);
    uint32_t all = of * own_of(rows / kTileRows);
    if (DOORBELL_FAULT(SkipsRows) && rank_ == 1 && all > of) all -= of;
    const WarpPlan own = plan_round(shape, rank_, all_ranks_, kWarps, warp_, product, lines, all, 0);
    if (product != kLogits) at<WarpPlan>(at_.warp_plans)[kWarps * product + warp_] = own;
    if (warp_ == 0)
      at<ProductPlan>(at_.plans)[product] = ProductPlan{channels, padded, (1u << 20) / pieces + 1, (1u << 20) / (padded / 16) + 1, all, pieces};
  }

  // The residual streams, of which each rank has some channels.
  __device__ __forceinline__ void embed() {
    const Shape& shape = shared_.shape;
    constexpr uint32_t kWords = sizeof(Column) / sizeof(uint4);
    const uint4* const from = reinterpret_cast<const uint4*>(state_.columns);
    for (uint32_t k = thread_; k < kWords * count_; k += kThreads) at<uint4>(at_.columns)[k] = from[k];
    copy(shared_.entries[0], entry_at(shared_.image, kFirstLayerEntry), kParts * sizeof(Entry));
    plan();
    stream::wait_for_copies();
    Team::sync();
    for (uint32_t k = 0; k < count_; k++) blocks_ = max(blocks_, column(k).position / kBlock + 1);
    const Matrix tokens = matrix(shared_.tokens);
    const short* const by = reinterpret_cast<const short*>(shared_.image + shared_.gain_offset);
    const uint32_t blocks = shape.width / kBlock;
#pragma unroll 1
    for (uint32_t item = rank_ + all_ranks_ * warp_; item < blocks * count_; item += all_ranks_ * kWarps) {
      const uint32_t number = item / blocks, channel = item % blocks * kBlock + lane_, token = column(number).token;
      const int64 value = static_cast<signed char>(tokens.row(token)[channel]) * static_cast<int64>(tokens.scale(token));
      const int32_t x = within(round_shift(value, -(tokens.exponent + kFraction)));
      stream_of(number)[channel] = x;
      const uint64_t size = magnitude(x);
      const uint64_t squares = Base::sum_of_warp(size * size), magnitudes = Base::bits_of_warp(magnitude(static_cast<int64>(x) * by[channel]));
      if (lane_ == 0) add(kOfInput, number, squares, magnitudes);
    }
  }

  // Mantissas and shifts of all columns, as `Frame::activate` makes them of one: of residual streams with a gain of the image (RMSNorm), of means, or of products.
  // Of few columns each rank makes them for itself; of many it makes some, and takes the others' behind a meeting. There is a barrier of the block behind all.
  __device__ __forceinline__ void activate(Product product, const Entry& entry) const {
    constexpr uint32_t kFour = 4, kPiece = kFour * kWarp, kAtATime = kTilesOf == 1 ? 2 : 4;
    const bool is_normalised = product == kOfQueries || product == kOfGate || product == kLogits, is_wide = product == kOfProduct;
    const ProductPlan& plan = plan_of(product);
    const uint32_t channels = plan.channels;
    const short* const by = gain(entry);
    const Total* const totals = state_.totals[total_of(product)];
    uint64_t magnitudes = 0;
    if (lane_ < count_) magnitudes = totals[lane_].magnitudes;
    const int32_t over = bits(magnitudes) - 15, own_shift = over > 0 ? over : 0;
    const uint32_t pieces = plan.pieces, padded = plan.padded;
    // Quotients of numbers that are small.
    const uint32_t inverse = plan.inverse_of_pieces;
    const auto column_of = [&](uint32_t item) { return item * inverse >> 20; };
    const uint32_t all_items = pieces * count_;
    const bool is_dealt = kTilesOf != 1 && all_ranks_ != 1;
    char* const mantissas_to = is_dealt ? dealt() : at<char>(at_.mantissas);
    unsigned char* const shifts_to =
        is_dealt ? reinterpret_cast<unsigned char*>(dealt()) + at_.stride * kTilesOf * kTileColumns : at<unsigned char>(at_.shifts);
    const uint32_t warps = is_dealt ? kWarps * all_ranks_ : kWarps;
    // Several are on their way at a time.
#pragma unroll 1
    for (uint32_t first = is_dealt ? own(warp_) : warp_; first < all_items; first += kAtATime * warps) {
      int64 values[kAtATime][kFour];
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; j++) {
        const uint32_t item = first + warps * j, number = column_of(item), channel = (item - number * pieces) * kPiece + kFour * lane_;
#pragma unroll
        for (uint32_t k = 0; k < kFour; k++) values[j][k] = 0;
        if (item >= all_items || channel >= channels) continue;
        if (is_wide) {
          const longlong2* const two = reinterpret_cast<const longlong2*>(products_of(number) + channel);
          const longlong2 low = two[0], high = two[1];
          values[j][0] = low.x;
          values[j][1] = low.y;
          values[j][2] = high.x;
          values[j][3] = high.y;
        } else {
          const int4 x = *reinterpret_cast<const int4*>((is_normalised ? stream_of(number) : heads_of(number)) + channel);
          short4 factors{1, 1, 1, 1};
          if (is_normalised) factors = *reinterpret_cast<const short4*>(by + channel);
          values[j][0] = static_cast<int64>(x.x) * factors.x;
          values[j][1] = static_cast<int64>(x.y) * factors.y;
          values[j][2] = static_cast<int64>(x.z) * factors.z;
          values[j][3] = static_cast<int64>(x.w) * factors.w;
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; j++) {
        const uint32_t item = first + warps * j;
        if (item >= all_items) break;
        const uint32_t number = column_of(item), channel = (item - number * pieces) * kPiece + kFour * lane_;
        const int32_t shift = __shfl_sync(kEveryLane, own_shift, number);
        const int64 added = shift == 0 ? 0 : 1ll << (shift - 1);
        int32_t halves[kFour];
        uint32_t all = 0;
#pragma unroll
        for (uint32_t k = 0; k < kFour; k++) {
          halves[k] = min(max(static_cast<int32_t>((values[j][k] + added) >> shift), -32767), 32767);
          all |= magnitude(halves[k]);
        }
        // 32 channels, which share a shift, are eight lanes.
#pragma unroll
        for (uint32_t step = 1; step < kBlock / kFour; step *= 2) all |= __shfl_xor_sync(kEveryLane, all, step);
        const int32_t above = bits(all) - 7, down = above > 0 ? above : 0, unit = 1 << down >> 1;
        uint32_t mantissas = 0;
#pragma unroll
        for (uint32_t k = 0; k < kFour; k++) {
          const int32_t rounded = (halves[k] + unit) >> down;
          mantissas |= (static_cast<uint32_t>(min(max(rounded, -kMantissa), kMantissa)) & 0xFF) << 8 * k;
        }
        // Behind the last channel weights are 0, up to the end of the line; mantissas and shift there must be some.
        if (channel < padded) {
          *reinterpret_cast<uint32_t*>(mantissas_to + at_.stride * number + channel) = mantissas;
          if (lane_ % (kBlock / kFour) == 0) {
            const uint32_t place = Vectors::place_of(number ^ (DOORBELL_FAULT(SwapsColumns) && count_ > 1 && number < 2 ? 1 : 0));
            shifts_to[kColumns * (channel / kBlock) + place] = static_cast<unsigned char>(down);
          }
        }
      }
    }
    if (is_dealt) {
      meet(kActivates);
      // 16 bytes at a time, of columns and then of shifts.
      const uint32_t words = padded / 16, of_columns = words * count_, every = of_columns + padded / kBlock * (kColumns / 16);
      const uint32_t inverse_of_words = plan.inverse_of_words;
#pragma unroll 4
      for (uint32_t k = thread_; k < every; k += kThreads) {
        const uint32_t number = k * inverse_of_words >> 20, in_column = at_.stride * number + 16 * (k - number * words);
        const uint32_t in_shifts = 16 * (k - of_columns);
        const uint4 word = *reinterpret_cast<const uint4*>(k < of_columns ? mantissas_to + in_column : reinterpret_cast<char*>(shifts_to) + in_shifts);
        *reinterpret_cast<uint4*>(at<char>(k < of_columns ? at_.mantissas + in_column : at_.shifts + in_shifts)) = word;
      }
    }
    Team::sync();
    ranks_.lap(product == kLogits ? kActivatesLogits : kActivates);
  }

  // What of each activation belongs to all its channels, by the last warp. It is wanted when sums are there, and is a long chain of instructions: ahead of the
  // mantissas it waits beside the others. A barrier has to follow.
  __device__ __forceinline__ void scale(Product product, const Entry& entry) const {
    const Shape& shape = shared_.shape;
    if (warp_ != kWarps - 1 || lane_ >= count_) return;
    const Total total = state_.totals[total_of(product)][lane_];
    const int32_t over = bits(total.magnitudes) - 15, own_shift = over > 0 ? over : 0;
    Activation activation{1u << 15, -15 - kFraction + own_shift};
    if (product == kOfQueries || product == kOfGate || product == kLogits) {
      const Root root = Root::of(total.squares, shape.width, shape.epsilon);
      activation = Activation{root.inverse, entry.exponent - kFraction - 36 + root.up / 2 + own_shift};
    }
    activations()[lane_] = activation;
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
    for (uint32_t tile = 0; tile < kTilesOf; tile++) columns[tile] = at_.stride * min(kTileColumns * tile + group, count_ - 1);
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
            const uint32_t units[2] = {1u << (both & 31), 1u << (both >> 8 & 31)};
            int32_t sum[4];
            stream::multiply_tile(sum, weights[block][0].x, weights[block][1].x, weights[block][0].y, weights[block][1].y, of.x, of.y);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) sums[tile][j] = static_cast<int32_t>(sums[tile][j] + sum[j] * units[j % 2]);
          }
        }
      }
    }
  }

  // Leaves a warp's tile in its part of shared memory, from a row of it on.
  __device__ __forceinline__ void leave(const int32_t (&sums)[kTilesOf][4], uint32_t row) const {
    int32_t* const to = at<int32_t>(at_.tiles) + kBlock * kPitch * warp_;
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
    return all > rank_ ? (all - rank_ + all_ranks_ - 1) / all_ranks_ : 0;
  }
  __device__ __forceinline__ uint32_t own(uint32_t k) const { return rank_ + all_ranks_ * k; }

  // What 16 lanes of a column have seen.
  __device__ __forceinline__ void add_seen(Totals which, bool is, uint32_t column, uint64_t squares, uint64_t magnitudes) const {
#pragma unroll
    for (uint32_t by = 1; by < kTileRows; by *= 2) {
      if (which != kOfProducts) squares += __shfl_xor_sync(kEveryLane, squares, by);
      magnitudes |= __shfl_xor_sync(kEveryLane, magnitudes, by);
    }
    if (is && lane_ % kTileRows == 0) add(which, column, squares, magnitudes);
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
    if (product == kOfQueries) {
      if (layer + 1 < shape.layers)
        copy(shared_.entries[(layer + 1) % 2], entry_at(shared_.image, kFirstLayerEntry + kParts * (layer + 1)), kParts * sizeof(Entry));
      bring_near(layer);
    }
    const ProductPlan& plan = plan_of(product);
    // What the residual stream is multiplied with next, so that it is known what comes of it.
    const bool is_last = layer + 1 == shape.layers, adds = product == kOfAttention || product == kOfProduct;
    const Entry& next = product == kOfAttention ? of_layer[kHiddenGain] : is_last ? shared_.last_gain : entries(layer + 1)[kAttentionGain];
    const short* const by = gain(adds ? next : of_layer[kAttentionGain]);
    uint32_t* const all_scales = at<uint32_t>(at_.scales);
    const int32_t* const tiles = at<int32_t>(at_.tiles);
    const uint32_t of = tiles_together(product), row = thread_ % kTileRows;
    const Place place = at<Place>(at_.places)[thread_ / kTileRows];
    const uint32_t first_tile = place.first_tile, at_a_time = place.at_a_time;
    WarpPlan round = own_plan_of(product);
    uint32_t first = 0;
#pragma unroll 1
    for (;;) {
      const uint32_t slices = round.slices;
      uint32_t column = place.column, together = first_tile < at_a_time ? round.here / of : 0;
      // What is added to comes meanwhile.
      int32_t old = 0, factor = 0;
      const auto fetch = [&](uint32_t k) {
        if (!adds || k >= together) return;
        const uint32_t in_all = kTileRows * own(first / of + k) + row;
        old = stream_of(column)[in_all];
        factor = by[in_all];
      };
      fetch(first_tile);
      if (round.has != 0) {
        const Matrix matrix = this->matrix(of_layer[round.part]);
        const char* const from = matrix.row(round.row);
        uint32_t row_scale = 0;
        if (round.first == 0) {
          prefetch(from, kTileRows * matrix.stride(), end(), lane_);
          row_scale = matrix.scale(round.row + lane_ % kTileRows);
        }
        int32_t sums[kTilesOf][4] = {};
        const char* const upper = from + static_cast<uint64_t>(matrix.stride()) * (lane_ / 4);
        add_lines(sums, upper, upper + static_cast<uint64_t>(kGroups) * matrix.stride(), round.first, round.last);
        leave(sums, 0);
        if (round.first == 0 && lane_ < kTileRows) all_scales[kBlock * (warp_ / slices) + lane_] = row_scale;
      }
      Team::sync();
      ranks_.lap(kMultiplies);
#pragma unroll 1
      for (;;) {
        uint64_t squares = 0, magnitudes = 0;
#pragma unroll 1
        for (uint32_t k = first_tile; k < together; k += at_a_time) {
          const int32_t x_before = old, by_next = factor;
          fetch(k + at_a_time);
          const uint32_t tile = own(first / of + k);
          const auto value_of = [&](uint32_t part) {
            int32_t sum = 0;
            for (uint32_t j = 0; j < slices; j++) sum += tiles[kBlock * kPitch * (slices * (of * k + part) + j) + kPitch * row + column];
            const uint32_t entry = product == kOfQueries     ? (kTileRows * tile < shape.queries() ? kQuery : kTileRows * tile < shape.queries() + shape.keys() ? kKey : kValue)
                                   : product == kOfAttention ? kOutput
                                   : product == kOfGate      ? kGate + part
                                                             : kDown;
            return Requantised::of(of_layer[entry].exponent, activations()[column]).value(sum, all_scales[kBlock * (of * k + part) + row]);
          };
          const uint32_t in_all = kTileRows * tile + row;
          const int32_t value = value_of(0);
          if (product == kOfQueries) {
            heads_of(column)[in_all] = value;
          } else if (product == kOfGate) {
            const int64 through = round_shift(static_cast<int64>(this->swish(value)) * value_of(1), kFraction);
            products_of(column)[in_all] = through;
            magnitudes |= magnitude(through);
          } else {
            int32_t* const x = stream_of(column) + in_all;
            const int32_t sum = within(static_cast<int64>(x_before) + value);
            *x = sum;
            const uint64_t size = magnitude(sum);
            squares += size * size;
            magnitudes |= magnitude(static_cast<int64>(sum) * by_next);
          }
        }
        // Warps that have none have seen nothing.
        if (product != kOfQueries && __any_sync(kEveryLane, squares != 0 || magnitudes != 0))
          add_seen(product == kOfAttention ? kOfMiddle : product == kOfGate ? kOfProducts : kOfInput, together != 0, column, squares, magnitudes);
        // A block of fewer threads than columns times 16, as on a CPU, takes further columns.
        if constexpr (kSixteens >= kColumns) break;
        column += kSixteens;
        if (column - place.column >= count_) break;
        if (column >= count_) together = 0;
        fetch(first_tile);
      }
      first += round.here;
      if (first >= plan.all) break;
      round = plan_round(shape, rank_, all_ranks_, kWarps, warp_, product, plan.padded / kLine, plan.all, first);
      Team::sync();
    }
    if (product == kOfQueries) stream::wait_for_copies();
  }

  // Fills the second cache with the keys and values to which this rank attends in a layer: a thread for each head's part of a block.
  __device__ __forceinline__ void bring_near(uint32_t layer) const {
    const Shape& shape = shared_.shape;
    const uint32_t half_bytes = shape.kv_half(), all = own_of(count_ * shape.kv_heads) * blocks_;
#pragma unroll 1
    for (uint32_t k = thread_; k < all; k += kThreads) {
      const uint32_t item = own(k / blocks_), block = k % blocks_;
      const Column& of = column(item / shape.kv_heads);
      if (kBlock * block > of.position) continue;
      const uint64_t head = 2ull * half_bytes * (shape.kv_heads * layer + item % shape.kv_heads);
      stream::prefetch(of.cache + shape.kv_block() * block + head, 2 * half_bytes);
    }
  }

  // A rank attends with some columns' heads of keys, and the heads of queries that share each.
  __device__ __forceinline__ void attend(uint32_t layer) {
    const Shape& shape = shared_.shape;
    clear(kOfInput);
    const uint32_t width = shape.head_width, half_bytes = shape.kv_half(), group = shape.heads / shape.kv_heads;
    const uint64_t layer_offset = 2ull * shape.kv_heads * half_bytes * layer;
    unsigned char* const scratch = reinterpret_cast<unsigned char*>(shared_.scratch[warp_]);
    char* const queries = at<char>(at_.queries);
    uint32_t* const query_scales = at<uint32_t>(at_.query_scales);
    char* const kept = at<char>(at_.parts);
    const uint32_t all = own_of(count_ * shape.kv_heads), at_a_time = at_.heads / group, pieces = (width + kPiece - 1) / kPiece;
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
      const uint32_t most = min(at_.parts_kept / heads, blocks_);
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
    activate(kLogits, shared_.last_gain);
    scale(kLogits, shared_.last_gain);
    Team::sync();
    const Matrix tokens = matrix(shared_.tokens);
    const char* const last = end();
    uint32_t wide = 1;
    while (wide < count_) wide *= 2;
    const uint32_t number = min(lane_ % wide, count_ - 1), sub = lane_ / wide, share = kWarp / wide;
    const Column& of = column(number);
    const Sampling sampling = of.sampling;
    int32_t* const logits = sampling.truncates() ? of.logits : nullptr;
    Sampler sampler(tables(), sampling.sharpness, Draw::of(sampling.seed, sampling.rollout, of.position + 1));
    const Requantised by = Requantised::of(tokens.exponent, activations()[number]);
    int32_t* const tile = at<int32_t>(at_.tiles) + kBlock * kPitch * warp_;
    uint32_t* const scales = at<uint32_t>(at_.scales) + kBlock * warp_;
#pragma unroll 1
    for (uint32_t task = rank_ + all_ranks_ * warp_; kBlock * task < tokens.rows; task += all_ranks_ * kWarps) {
      const uint32_t first = kBlock * task;
      prefetch(tokens.row(first), kBlock * tokens.stride(), last, lane_);
      const uint32_t scale = tokens.scale(min(first + lane_, tokens.rows - 1));
#pragma unroll 1
      for (uint32_t half = 0; half < kBlock; half += kTileRows) {
        int32_t sums[kTilesOf][4] = {};
        const uint32_t row = first + half + lane_ / 4;
        add_lines(sums, tokens.row(min(row, tokens.rows - 1)), tokens.row(min(row + kGroups, tokens.rows - 1)), 0, tokens.lines);
        leave(sums, half);
      }
      scales[lane_] = scale;
      __syncwarp();
      int32_t most = kLowest32;
#pragma unroll 4
      for (uint32_t k = sub; k < kBlock; k += share) {
        int32_t& place = tile[kPitch * k + number];
        const int32_t logit = by.value(place, scales[k]);
        if (lane_ % wide < count_) place = logit;
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
          if (lane_ % wide < count_) logits[token] = logit;
        } else {
          sampler.pick(token, logit);
        }
      }
      for (uint32_t step = wide; step < kWarp; step *= 2) sum += __shfl_xor_sync(kEveryLane, sum, step);
      sampler.enter_sum(ceiling, sum);
      __syncwarp();
    }
    Candidate* const candidates = at<Candidate>(at_.candidates);
    const Candidate candidate = sampler.candidate_of(wide);
    if (lane_ < count_) candidates[count_ * warp_ + lane_] = candidate;
    Team::sync();
    if (thread_ < count_) {
      Sampler all(tables(), 0, Draw{});
      for (uint32_t warp = 0; warp < kWarps; warp++) all.join(candidates[count_ * warp + thread_]);
      state_.candidates[rank_][thread_] = all.own();
    }
  }
};

}  // namespace language

#endif
