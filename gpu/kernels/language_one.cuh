// A step of one rollout of Llama's shape by the ranks of a team. A phase is so short that its time depends on the length of its chain of
// instructions, and on how long a number of one rank takes to reach another. So no barrier separates the phases: each number for other ranks is a word that
// also holds its layer, and readers poll the word until that layer is there. Whatever does not depend on these numbers is computed and loaded
// earlier. docs/gpu-language.md, "A step of one".
#ifndef DOORBELL_LANGUAGE_ONE_CUH
#define DOORBELL_LANGUAGE_ONE_CUH

#include "language_batch.cuh"

namespace language {

// A number that ranks make for each other, of 54 bits, and behind it the layer that it is of. Who reads it knows by that whether it is there, and no order is
// needed between one word and another. Each is written again in each layer: what one holds is of the layer before, or, in the first, of the last.
struct Word {
  static constexpr uint32_t kTagBits = 10, kTags = (1u << kTagBits) - 1;

  static __device__ __forceinline__ uint64_t of(int64 value, uint32_t tag) { return static_cast<uint64_t>(value) << kTagBits | tag; }
  static __device__ __forceinline__ int64 value(uint64_t word) { return static_cast<int64>(word) >> kTagBits; }
  static __device__ __forceinline__ bool is(uint64_t word, uint32_t tag) { return (static_cast<uint32_t>(word) & kTags) == tag; }
};

// How items are dealt out: this rank is the `rank`-th of `ranks`. It gets none if `rank` is not below `ranks`.
struct Deal {
  uint32_t rank, ranks;

  // Of `all` items: how many belong to this rank, and the index of its k-th.
  __device__ __forceinline__ uint32_t own_of(uint32_t all) const { return rank < ranks && all > rank ? (all - rank + ranks - 1) / ranks : 0; }
  __device__ __forceinline__ uint32_t own(uint32_t k) const { return rank + ranks * k; }
};

// Where what a step of one has lies, in bytes: in a rank's shared memory, and words in the team's scratch.
struct OneLayout {
  uint32_t column, activation, nothing, all, warp_plans, own_rows, squares, sizes, turns, queries, query_scales, fresh, mantissas, shifts, tiles, candidates, ring, scores, parts, end;
  uint32_t heads, parts_kept, part_bytes;  // as BatchLayout has them
  uint32_t slots;                          // lines of weights on their way to a warp at a time
  uint32_t rank, ranks;
  Deal rows;                               // of the residual stream
  char* scratch;
  double inverse_of_width;
  uint64_t input, middle, of_heads, means, products, words_end;

  static constexpr uint32_t kPartBytes = 64 << 10, kSlotBytes = kTileRows * kLine, kMostSlots = 12;
  // Lines of a vector of products that a warp takes, at most.
  static constexpr uint32_t kMostLines = 8;

  template <typename Team>
  static __device__ __forceinline__ OneLayout of(const Shape& shape) {
    const uint32_t lines = lines_of(shape);
    OneLayout at;
    at.end = BatchLayout::own<Team>() + (static_cast<uint32_t>(sizeof(OneLayout)) + 127) / 128 * 128;
    const auto take = [&at](uint32_t bytes) {
      const uint32_t offset = at.end;
      at.end += (bytes + 15) / 16 * 16;
      return offset;
    };
    at.column = take(static_cast<uint32_t>(sizeof(Column)));
    at.activation = take(static_cast<uint32_t>(sizeof(Activation)));
    at.nothing = take(16);
    at.all = take(4 * kLogits);
    at.warp_plans = take(kLogits * Team::kWarps * static_cast<uint32_t>(sizeof(WarpPlan)));
    at.own_rows = take(4 * shape.width);
    at.squares = take(8 * lines);
    at.sizes = take(4 * lines);
    at.turns = take(2 * shape.head_width);
    // All that a rank may have.
    at.heads = shape.heads;
    at.queries = take(at.heads * shape.head_width);
    at.query_scales = take(4 * at.heads);
    at.fresh = take(shape.kv_heads * (2 * shape.head_width + 16));
    at.mantissas = take(kLine * lines);
    at.shifts = take(2 * lines);
    at.tiles = take(4 * kBlock * Team::kWarps);
    at.candidates = take(Team::kWarps * static_cast<uint32_t>(sizeof(Candidate)));
    at.part_bytes = Layout::part_bytes(shape);
    at.parts_kept = max(kPartBytes / at.part_bytes, at.heads);
    // Attentions take the place of weights.
    const uint32_t begin = at.end, of_slot = kSlotBytes * Team::kWarps;
    at.ring = begin;
    at.scores = take(4 * kTogether * kBlock * Team::kWarps);
    at.parts = take(at.parts_kept * at.part_bytes);
    at.slots = at.end > kTeamBytes<Team> ? 1 : min(kMostSlots, (kTeamBytes<Team> - begin) / of_slot);
    at.end = max(at.end, begin + of_slot * max(at.slots, 1u));
    at.inverse_of_width = 1.0 / shape.width;
    at.words_end = (BatchLayout::scratch_of<Team>(shape) + 127) / 128 * 128;
    const auto take_words = [&at](uint32_t words) {
      const uint64_t offset = at.words_end;
      at.words_end += (8ull * words + 127) / 128 * 128;
      return offset;
    };
    at.input = take_words(shape.width);
    at.middle = take_words(shape.width);
    at.of_heads = take_words(shape.queries() + 2 * shape.keys());
    at.means = take_words(shape.queries());
    at.products = take_words(shape.hidden);
    return at;
  }
  // Lines of the longest vector.
  static __device__ __forceinline__ uint32_t lines_of(const Shape& shape) {
    return (max(max(shape.width, shape.queries()), shape.hidden) + kLine - 1) / kLine;
  }

  // Bytes of scratch with which a step of one of a shape that `fits` is taken so; 0 if it is not.
  template <typename Team>
  static __device__ __forceinline__ uint64_t scratch_of(const Shape& shape) {
    if (Team::kTeams != 1 || shape.is_gemma() || shape.cap_window != 0 || !stream::kCopiesStretches) return 0;
    // A warp takes two lines of a vector at most, and of the products, which may be many, so many more. In a single layer nobody would know a word of this step from one of
    // the step before.
    const uint32_t others = max(shape.width, shape.queries());
    if (others > 2 * kLine * Team::kWarps || lines_of(shape) > kMostLines * Team::kWarps || shape.layers < 2 || shape.layers + 1 > Word::kTags || shape.vocabulary < kTileRows) return 0;
    if (BatchLayout::scratch_of<Team>(shape) == 0) return 0;
    const OneLayout at = of<Team>(shape);
    return at.end <= kTeamBytes<Team> ? at.words_end : 0;
  }
};

// With kNarrow the compiler knows that only the vectors of products have more lines than a rank has warps.
template <typename Team, bool kNarrow>
class One : Frame<Team> {
 public:
  // For the shape of the team's model.
  static __device__ __forceinline__ bool is_narrow() { return max(shape_of().width, shape_of().queries()) <= kLine * kWarps; }

  // As `Batch::run`, of one column of a shape that has `OneLayout::scratch_of`.
  static __device__ __noinline__ void run(Ranks& ranks, char* scratch) {
    One team(ranks);
    team.lay_out(scratch);
    team.embed();
    ranks.lap(kEmbeds);
    const uint32_t layers = team.shared_.shape.layers;
#pragma unroll 1
    for (uint32_t layer = 0; layer < layers; layer++) {
      team.template multiply<kOfQueries>(layer);
      const uint32_t jobs = team.jobs_of_part();
      const bool is_single = jobs != 0 && team.blocks() <= team.most_parts(), is_usual = jobs == 1 && team.shared_.shape.head_width == kUsualWidth;
      if (is_single && is_usual) {
        attend<true, true>(ranks, layer);
      } else if (is_single) {
        attend<true, false>(ranks, layer);
      } else if (is_usual) {
        attend<false, true>(ranks, layer);
      } else if (jobs != 0) {
        attend<false, false>(ranks, layer);
      }
      team.template multiply<kOfAttention>(layer);
      team.template multiply<kOfGate>(layer);
      team.template multiply<kOfProduct>(layer);
    }
    team.choose();
    ranks.lap(kTakesLogits);
  }

  // Makes this rank's part of all words such that none is of a layer. A meeting has to follow before a step.
  static __device__ __noinline__ void clear(char* scratch, uint32_t rank, uint32_t ranks) {
    const OneLayout at = OneLayout::of<Team>(One::shape_of());
    uint64_t* const words = reinterpret_cast<uint64_t*>(scratch + at.input);
    const uint64_t all = (at.words_end - at.input) / 8;
    for (uint64_t k = Team::kThreads * rank + Team::thread(); k < all; k += Team::kThreads * ranks) order::store_relaxed_gpu(words + k, static_cast<uint64_t>(0));
  }

 private:
  using Base = Frame<Team>;
  using Base::copy, Base::end, Base::entries, Base::kThreads, Base::kWarps, Base::lane_, Base::matrix, Base::shared_, Base::tables, Base::thread_,
      Base::warp_;
  // The last warp works out what belongs to all channels, while others multiply.
  static constexpr uint32_t kMultipliers = kWarps - 1;

  Ranks& ranks_;
  // With what is known of the team in shared memory: in registers it would be sent to local memory, of which 512 threads have more than the first cache has room for.
  const OneLayout& at_;

  __device__ __forceinline__ explicit One(Ranks& ranks) : ranks_(ranks), at_(*Base::template at<const OneLayout>(BatchLayout::own<Team>())) {}

  static __device__ __forceinline__ const Shape& shape_of() { return reinterpret_cast<Shared<Team>*>(Base::memory())->shape; }

  __device__ __forceinline__ void lay_out(char* scratch) const {
    if (thread_ == 0) {
      OneLayout& own = *at<OneLayout>(BatchLayout::own<Team>());
      own = OneLayout::of<Team>(shared_.shape);
      own.rank = ranks_.rank;
      own.ranks = ranks_.count;
      own.rows = deal_rows(own.rank, own.ranks);
      own.scratch = scratch;
    }
    Team::sync();
  }

  template <typename T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return Base::template at<T>(offset);
  }
  __device__ __forceinline__ uint64_t* words(uint64_t offset) const { return reinterpret_cast<uint64_t*>(at_.scratch + offset); }
  __device__ __forceinline__ const Column& column() const { return *at<Column>(at_.column); }
  __device__ __forceinline__ Activation& activation() const { return *at<Activation>(at_.activation); }
  // Of so many things the number that are the rank's, and which they are.
  __device__ __forceinline__ uint32_t own_of(uint32_t all) const { return Deal{at_.rank, at_.ranks}.own_of(all); }
  __device__ __forceinline__ uint32_t own(uint32_t k) const { return at_.rank + at_.ranks * k; }
  // Rows of the residual stream go to the ranks that do not attend, if this gives none of them more rows. Their weights are loaded by the time the
  // means arrive, while an attending rank has no room for weights.
  __device__ __forceinline__ Deal deal_rows(uint32_t rank, uint32_t ranks) const {
    const Shape& shape = shared_.shape;
    const uint32_t tiles = shape.width / kTileRows, attending = min(shape.kv_heads, ranks), others = ranks - attending;
    if (others == 0 || (tiles + others - 1) / others != (tiles + ranks - 1) / ranks) return Deal{rank, ranks};
    return Deal{rank < attending ? others : rank - attending, others};
  }
  // How the tiles of a product, of 16 rows each, are dealt out.
  __device__ __forceinline__ Deal deal_of(Product product) const {
    return product == kOfAttention || product == kOfProduct ? at_.rows : Deal{at_.rank, at_.ranks};
  }

  static __device__ __forceinline__ uint32_t channels_of(const Shape& shape, Product product) {
    return product == kOfAttention ? shape.queries() : product == kOfProduct ? shape.hidden : shape.width;
  }

  // A lane of each warp for each product. A barrier of the team has to follow.
  __device__ __forceinline__ void plan() const {
    const Shape& shape = shared_.shape;
    if (lane_ >= kLogits) return;
    const Product product = static_cast<Product>(lane_);
    const uint32_t rows = product == kOfQueries ? shape.queries() + 2 * shape.keys() : product == kOfGate ? shape.hidden : shape.width;
    const uint32_t lines = (channels_of(shape, product) + kLine - 1) / kLine, of = tiles_together(product);
    const Deal deal = deal_of(product);
    uint32_t all = of * deal.own_of(rows / kTileRows);
    if (DOORBELL_FAULT(SkipsRows) && at_.rank == 1 && all > of) all -= of;
    at<WarpPlan>(at_.warp_plans)[kWarps * product + warp_] = plan_round(shape, deal.rank, deal.ranks, kMultipliers, warp_, product, lines, all, 0);
    if (warp_ == 0) at<uint32_t>(at_.all)[product] = all;
  }

  // The residual stream's rows that are the rank's.
  __device__ __forceinline__ void embed() const {
    const Shape& shape = shared_.shape;
    constexpr uint32_t kWords = sizeof(Column) / sizeof(uint4);
    if (thread_ < kWords) at<uint4>(at_.column)[thread_] = reinterpret_cast<const uint4*>(ranks_.state.columns)[thread_];
    if (thread_ < 4) at<uint32_t>(at_.nothing)[thread_] = 0;
    copy(shared_.entries[0], entry_at(shared_.image, kFirstLayerEntry), kParts * sizeof(Entry));
    plan();
    stream::wait_for_copies();
    Team::sync();
    const Column of = column();
    const uint32_t* const turns = reinterpret_cast<const uint32_t*>(shared_.image + shared_.rope_offset + 2ull * shape.head_width * of.position);
    for (uint32_t k = thread_; k < shape.head_width / 2; k += kThreads) at<uint32_t>(at_.turns)[k] = turns[k];
    const Matrix tokens = matrix(shared_.tokens);
    const int64 scale = tokens.scale(of.token);
    for (uint32_t k = thread_; k < kTileRows * at_.rows.own_of(shape.width / kTileRows); k += kThreads) {
      const uint32_t channel = kTileRows * at_.rows.own(k / kTileRows) + k % kTileRows;
      const int32_t x = within(round_shift(static_cast<signed char>(tokens.row(of.token)[channel]) * scale, -(tokens.exponent + kFraction)));
      at<int32_t>(at_.own_rows)[k] = x;
      order::store_relaxed_gpu(words(at_.input) + channel, Word::of(x, 1));
    }
    bring_first<kOfQueries>(0);
  }

  // Waits for kNumber times two words, of those that the lane `has`. A warp calls it.
  template <uint32_t kNumber>
  static __device__ __forceinline__ void wait_for(const ulonglong2* const (&from)[kNumber], const bool (&has)[kNumber], uint32_t tag, ulonglong2 (&two)[kNumber]) {
    constexpr uint32_t kSoon = 256;
    for (uint32_t spins = 0;;) {
      bool is = true;
#pragma unroll
      for (uint32_t k = 0; k < kNumber; k++) {
        two[k] = make_ulonglong2(tag, tag);
        if (has[k]) two[k] = order::load_relaxed_gpu(from[k]);
      }
#pragma unroll
      for (uint32_t k = 0; k < kNumber; k++) is = is && Word::is(two[k].x, tag) && Word::is(two[k].y, tag);
      if (__all_sync(kEveryLane, is) || DOORBELL_FAULT(MeetsNobody)) return;
      if (spins < kSoon) DOORBELL_SOON();
      relax(spins);
    }
  }

  // Two lines of a vector that are a warp's: what its lanes need of them besides.
  template <Product kProduct>
  struct Lines {
    static constexpr bool kNormalises = kProduct == kOfQueries || kProduct == kOfGate || kProduct == kLogits;
    static constexpr uint32_t kOwn = kNarrow && kProduct != kOfProduct ? 1 : 2;
    const ulonglong2* from[kOwn];
    bool has[kOwn];
    uint32_t factors[kOwn];
    uint32_t lines, tag;

    // Before the vector is there.
    __device__ __forceinline__ void begin(const One& one, const Entry& gain, uint32_t of_layer) {
      const uint32_t channels = channels_of(one.shared_.shape, kProduct), channel = kLine * one.warp_ + 2 * one.lane_;
      lines = (channels + kLine - 1) / kLine;
      tag = of_layer;
      const uint64_t* const all = one.words(kProduct == kOfAttention ? one.at_.means : kProduct == kOfGate ? one.at_.middle : kProduct == kOfProduct ? one.at_.products : one.at_.input);
      const char* const by = one.shared_.image + gain.offset;
#pragma unroll
      for (uint32_t k = 0; k < kOwn; k++) {
        const uint32_t own = channel + kLine * kWarps * k;
        has[k] = own < channels;
        from[k] = reinterpret_cast<const ulonglong2*>(all + own);
        factors[k] = 0;
        if (kNormalises && has[k]) factors[k] = *reinterpret_cast<const uint32_t*>(by + 2 * own);
      }
    }

    // Waits for it and makes mantissas and shifts of it, as `Frame::activate` does. Returns the most bits of a channel. There is a barrier of the block behind all.
    __device__ __forceinline__ uint32_t take(const One& one) const {
      ulonglong2 two[kOwn];
      int64 values[kOwn][2];
      wait_for(from, has, tag, two);
      one.ranks_.lap(kMeets);
      const uint32_t lane = one.lane_;
#pragma unroll
      for (uint32_t k = 0; k < kOwn; k++) {
        const uint32_t line = one.warp_ + kWarps * k;
        if (line >= lines) break;
        values[k][0] = has[k] ? Word::value(two[k].x) : 0;
        values[k][1] = has[k] ? Word::value(two[k].y) : 0;
        uint64_t squares = 0;
        if (kNormalises) {
          const int32_t a = static_cast<int32_t>(values[k][0]), b = static_cast<int32_t>(values[k][1]);
          values[k][0] = static_cast<int64>(a) * static_cast<short>(factors[k] & 0xFFFF);
          values[k][1] = static_cast<int64>(b) * static_cast<short>(factors[k] >> 16);
          squares = static_cast<uint64_t>(static_cast<int64>(a) * a + static_cast<int64>(b) * b);
        }
        const uint32_t size = __reduce_max_sync(kEveryLane, static_cast<uint32_t>(bits(magnitude(values[k][0]) | magnitude(values[k][1]))));
        if (lane == 0) one.at<uint32_t>(one.at_.sizes)[line] = size;
        if (kNormalises) {
          // Of 53 bits: in pieces whose sums have 32.
          const uint64_t lower = __reduce_add_sync(kEveryLane, static_cast<uint32_t>(squares) & 0x7FFFFFF);
          const uint64_t upper = __reduce_add_sync(kEveryLane, static_cast<uint32_t>(squares >> 27));
          if (lane == 0) one.at<uint64_t>(one.at_.squares)[line] = (upper << 27) + lower;
        }
      }
      Team::sync();
      const uint32_t size = __reduce_max_sync(kEveryLane, lane < lines ? one.at<uint32_t>(one.at_.sizes)[lane] : 0u);
      const uint32_t shift = size > 15 ? size - 15 : 0;
      const int64 added = 1ll << shift >> 1;
#pragma unroll
      for (uint32_t k = 0; k < kOwn; k++) {
        const uint32_t line = one.warp_ + kWarps * k;
        if (line >= lines) break;
        one.enter(line, values[k], shift, added);
      }
      Team::sync();
      return size;
    }
  };

  // A lane's two channels of a line: their mantissas, and the shifts of the line's blocks. A warp calls it.
  __device__ __forceinline__ void enter(uint32_t line, const int64 (&values)[2], uint32_t shift, int64 added) const {
    const int32_t low = min(max(static_cast<int32_t>((values[0] + added) >> shift), -32767), 32767);
    const int32_t high = min(max(static_cast<int32_t>((values[1] + added) >> shift), -32767), 32767);
    // 32 channels, which share a shift, are half of the lanes.
    const uint32_t half = lane_ & 16, all = __reduce_or_sync(kEveryLane, (magnitude(low) | magnitude(high)) << half) >> half & 0xFFFF;
    const int32_t above = bits(all) - 7, down = above > 0 ? above : 0, unit = 1 << down >> 1;
    const uint32_t first = static_cast<uint32_t>(min(max((low + unit) >> down, -kMantissa), kMantissa)) & 0xFF;
    const uint32_t second = static_cast<uint32_t>(min(max((high + unit) >> down, -kMantissa), kMantissa)) & 0xFF;
    *at<uint16_t>(at_.mantissas + kLine * line + 2 * lane_) = static_cast<uint16_t>(first | second << 8);
    if (lane_ % 16 == 0) *at<unsigned char>(at_.shifts + 2 * line + lane_ / 16) = static_cast<unsigned char>(down);
  }

  // What `Lines::take` does, of products whose lines are more than two for each warp. A function of its own, as all of a warp's are on their way at a time.
  static __device__ __noinline__ uint32_t take_long(Ranks& ranks, uint32_t layer) { return One(ranks).take_long_own(layer + 1); }
  __device__ __forceinline__ uint32_t take_long_own(uint32_t tag) const {
    constexpr uint32_t kMost = OneLayout::kMostLines;
    const uint32_t channels = shared_.shape.hidden, lines = (channels + kLine - 1) / kLine;
    const uint64_t* const all = words(at_.products) + kLine * warp_ + 2 * lane_;
    const ulonglong2* from[kMost];
    bool has[kMost];
    ulonglong2 two[kMost];
#pragma unroll
    for (uint32_t k = 0; k < kMost; k++) {
      from[k] = reinterpret_cast<const ulonglong2*>(all + kLine * kWarps * k);
      has[k] = kLine * (warp_ + kWarps * k) + 2 * lane_ < channels;
    }
    wait_for(from, has, tag, two);
    ranks_.lap(kMeets);
    uint32_t size = 0;
#pragma unroll
    for (uint32_t k = 0; k < kMost; k++)
      if (has[k]) size = max(size, static_cast<uint32_t>(bits(magnitude(Word::value(two[k].x)) | magnitude(Word::value(two[k].y)))));
    size = __reduce_max_sync(kEveryLane, size);
    if (lane_ == 0) at<uint32_t>(at_.sizes)[warp_] = size;
    Team::sync();
    size = __reduce_max_sync(kEveryLane, lane_ < kWarps ? at<uint32_t>(at_.sizes)[lane_] : 0u);
    const uint32_t shift = size > 15 ? size - 15 : 0;
    const int64 added = 1ll << shift >> 1;
#pragma unroll
    for (uint32_t k = 0; k < kMost; k++) {
      const uint32_t line = warp_ + kWarps * k;
      if (line >= lines) break;
      const int64 values[2] = {has[k] ? Word::value(two[k].x) : 0, has[k] ? Word::value(two[k].y) : 0};
      enter(line, values, shift, added);
    }
    Team::sync();
    return size;
  }

  // What of an activation belongs to all its channels, by the last warp, behind its lines. A barrier has to follow.
  template <Product kProduct>
  __device__ __forceinline__ void scale(const Entry& gain, uint32_t lines, uint32_t size) const {
    if (warp_ != kMultipliers) return;
    const int32_t own_shift = size > 15 ? size - 15 : 0;
    Activation own{1u << 15, -15 - kFraction + own_shift};
    if (Lines<kProduct>::kNormalises) {
      const uint64_t squares = Base::sum_of_warp(lane_ < lines ? at<uint64_t>(at_.squares)[lane_] : 0);
      const Shape& shape = shared_.shape;
      const Root root = Root::of_mean(divide_by(squares + shape.width / 2, shape.width, at_.inverse_of_width) + shape.epsilon);
      own = Activation{root.inverse, gain.exponent - kFraction - 36 + root.up / 2 + own_shift};
    }
    if (lane_ == 0) activation() = own;
  }

  // 16 rows of weights, `count` lines of each, that come to a warp's place in shared memory. Rows there are an odd number of lines apart, so that they lie in different banks.
  struct Tile {
    const char* rows;
    uint32_t stride, count;
  };
  __device__ __forceinline__ char* place() const { return at<char>(at_.ring + OneLayout::kSlotBytes * at_.slots * warp_); }
  // Lines of each row that come at a time.
  __device__ __forceinline__ uint32_t most() const { return (at_.slots - 1) | 1; }

  // Brings the lines from `first` on, as many as there is place for. All lanes of the warp have read what was there.
  __device__ __forceinline__ void bring(const Tile& tile, uint32_t first) const {
    const uint32_t number = shared_.arrived[warp_], count = min(tile.count - first, most()), pitch = kLine * (count | 1);
    uint64_t* const arrival = &shared_.arrivals[warp_][number % 2];
    __syncwarp();
    if (lane_ == 0) stream::expect_stretch(kTileRows * kLine * count, arrival);
    __syncwarp();
    if (kLine * count == pitch && pitch == tile.stride) {
      if (lane_ == 0) {
        stream::order_stretches();
        stream::copy_part(place(), tile.rows, kTileRows * pitch, arrival);
      }
    } else if (lane_ < kTileRows) {
      stream::order_stretches();
      stream::copy_part(place() + pitch * lane_, tile.rows + tile.stride * lane_ + kLine * first, kLine * count, arrival);
    }
  }

  // Sums of the rows lane / 4 and eight behind it times the lines of the vector from `line` on, on each fourth lane. A lane reads a quarter of each line: two have the first
  // block of 32 channels, two the second. Of the tile's columns the first is the vector's first blocks, and 0 for the others; the second is its second blocks. All lines
  // that there is place for are on their way.
  __device__ __forceinline__ void add(const Tile& tile, uint32_t line, int32_t (&sums)[2]) const {
    const uint32_t group = lane_ / 4, quarter = lane_ % 4;
    const bool is = group == quarter / 2;
    const uint32_t step = is ? kLine : 0;
    const char* mantissas = at<char>(is ? at_.mantissas + 16 * quarter + kLine * line : at_.nothing);
    const unsigned char* shifts = at<unsigned char>(at_.shifts + 2 * line);
    uint32_t number = shared_.arrived[warp_];
#pragma unroll 1
    for (uint32_t first = 0;;) {
      const uint32_t count = min(tile.count - first, most()), pitch = kLine * (count | 1);
      const char* const upper = place() + pitch * group + 16 * quarter;
      const char* const lower = upper + kGroups * pitch;
      stream::wait_for_stretch(&shared_.arrivals[warp_][number % 2], number / 2 % 2);
      number++;
#pragma unroll 1
      for (uint32_t k = 0; k < count; k++) {
        const uint4 above = *reinterpret_cast<const uint4*>(upper + kLine * k), below = *reinterpret_cast<const uint4*>(lower + kLine * k);
        const uint4 by = *reinterpret_cast<const uint4*>(mantissas + step * k);
        const uint32_t both = *reinterpret_cast<const uint16_t*>(shifts + 2 * k), lower_shift = both & 31, upper_shift = both >> 8 & 31;
        int32_t first_half[4], second_half[4];
        stream::multiply_tile(first_half, above.x, below.x, above.y, below.y, by.x, by.y);
        stream::multiply_tile(second_half, above.z, below.z, above.w, below.w, by.z, by.w);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
          sums[r] += static_cast<int32_t>((static_cast<uint32_t>(first_half[2 * r] + second_half[2 * r]) << lower_shift) +
                                          (static_cast<uint32_t>(first_half[2 * r + 1] + second_half[2 * r + 1]) << upper_shift));
      }
      __syncwarp();
      if (lane_ == 0) shared_.arrived[warp_] = number;
      __syncwarp();
      first += count;
      if (first >= tile.count) return;
      bring(tile, first);
      mantissas += step * count;
      shifts += 2 * count;
    }
  }
  // Leaves them one behind the other.
  static __device__ __forceinline__ void leave(const int32_t (&sums)[2], int32_t* to, uint32_t lane) {
    if (lane % 4 != 0) return;
    to[lane / 4] = sums[0];
    to[lane / 4 + kGroups] = sums[1];
  }

  // The rows of a warp in a round of a product.
  __device__ __forceinline__ Tile tile_of(const Entry* of_layer, const WarpPlan& round) const {
    const Matrix matrix = this->matrix(of_layer[round.part]);
    return Tile{matrix.row(round.row) + kLine * round.first, matrix.stride(), static_cast<uint32_t>(round.last - round.first)};
  }
  // The first lines of a product of a layer are on their way from here on.
  template <Product kProduct>
  __device__ __forceinline__ void bring_first(uint32_t layer) const {
    const WarpPlan round = at<WarpPlan>(at_.warp_plans)[kWarps * kProduct + warp_];
    if (round.has != 0) bring(tile_of(entries(layer), round), 0);
  }

  // A product of a layer, as `Batch::multiply` has it.
  template <Product kProduct>
  __device__ __forceinline__ void multiply(uint32_t layer) const {
    constexpr uint32_t kOf = kProduct == kOfGate ? 2 : 1;
    const Shape& shape = shared_.shape;
    const Entry* const of_layer = entries(layer);
    const uint32_t all = at<uint32_t>(at_.all)[kProduct];
    if (all == 0) {
      if (kProduct == kOfQueries) {
        Team::sync();
        bring_next(layer);
        stream::wait_for_copies();
        Team::sync();
      }
      bring_following<kProduct>(layer);
      return;
    }
    WarpPlan round = at<WarpPlan>(at_.warp_plans)[kWarps * kProduct + warp_];
    uint32_t first = 0;
#pragma unroll 1
    for (;;) {
      // What does not depend on the vector.
      const uint32_t slices = round.slices;
      const uint32_t k = thread_ / kTileRows, row = thread_ % kTileRows, in_rank = first / kOf + k, row_of_all = kTileRows * deal_of(kProduct).own(in_rank) + row;
      const bool is = k < round.here / kOf;
      uint32_t row_scales[kOf] = {};
      int32_t exponents[kOf] = {}, x = 0;
      if (is) {
        uint32_t part = kProduct == kOfAttention ? kOutput : kProduct == kOfGate ? kGate : kDown, in_part = row_of_all;
        if (kProduct == kOfQueries) {
          const uint32_t queries = shape.queries(), keys = shape.keys();
          part = in_part < queries ? kQuery : in_part < queries + keys ? kKey : kValue;
          in_part -= part == kQuery ? 0 : part == kKey ? queries : queries + keys;
        }
#pragma unroll
        for (uint32_t j = 0; j < kOf; j++) {
          const Matrix matrix = this->matrix(of_layer[part + j]);
          row_scales[j] = matrix.scale(in_part);
          exponents[j] = matrix.exponent;
        }
        if (kProduct == kOfAttention || kProduct == kOfProduct) x = at<int32_t>(at_.own_rows)[kTileRows * in_rank + row];
      }
      if (first == 0) {
        const Entry& gain = of_layer[kProduct == kOfGate ? kHiddenGain : kAttentionGain];
        Lines<kProduct> lines;
        lines.begin(*this, gain, layer + 1);
        const bool is_long = kProduct == kOfProduct && lines.lines > 2 * kWarps;
        const uint32_t size = is_long ? take_long(ranks_, layer) : lines.take(*this);
        ranks_.lap(kActivates);
        scale<kProduct>(gain, lines.lines, size);
      }
      int32_t* const tiles = at<int32_t>(at_.tiles);
      if (round.has != 0) {
        int32_t sums[2] = {};
        add(tile_of(of_layer, round), round.first, sums);
        leave(sums, tiles + kTileRows * warp_, lane_);
      }
      Team::sync();
      ranks_.lap(kMultiplies);
      if (is) {
        int32_t values[kOf];
#pragma unroll
        for (uint32_t j = 0; j < kOf; j++) {
          const int32_t* const from = tiles + kTileRows * slices * (kOf * k + j) + row;
          int32_t sum = 0;
#pragma unroll 4
          for (uint32_t slice = 0; slice < slices; slice++) sum += from[kTileRows * slice];
          values[j] = Requantised::of(exponents[j], activation()).value(sum, row_scales[j]);
        }
        int64 made = values[0];
        if (kProduct == kOfGate) made = round_shift(static_cast<int64>(this->swish(values[0])) * values[kOf - 1], kFraction);
        if (kProduct == kOfAttention || kProduct == kOfProduct) {
          x = within(static_cast<int64>(x) + values[0]);
          at<int32_t>(at_.own_rows)[kTileRows * in_rank + row] = x;
          made = x;
        }
        uint64_t* const to = words(kProduct == kOfQueries ? at_.of_heads : kProduct == kOfAttention ? at_.middle : kProduct == kOfGate ? at_.products : at_.input);
        order::store_relaxed_gpu(to + row_of_all, Word::of(made, kProduct == kOfProduct ? layer + 2 : layer + 1));
      }
      first += round.here;
      if (first >= all) break;
      round = plan_round(shape, deal_of(kProduct).rank, deal_of(kProduct).ranks, kMultipliers, warp_, kProduct, (channels_of(shape, kProduct) + kLine - 1) / kLine, all, first);
      if (round.has != 0) bring(tile_of(of_layer, round), 0);
      Team::sync();
    }
    ranks_.lap(kSinks);
    if (kProduct == kOfQueries) {
      bring_next(layer);
      stream::wait_for_copies();
      // Else one comes before the next layer begins.
      if (at<uint32_t>(at_.all)[kOfAttention] == 0) Team::sync();
    }
    bring_following<kProduct>(layer);
  }

  // The weights that follow a product. Attentions take their place first.
  template <Product kProduct>
  __device__ __forceinline__ void bring_following(uint32_t layer) const {
    if (kProduct == kOfQueries && own_of(shared_.shape.kv_heads) == 0) bring_first<kOfAttention>(layer);
    if (kProduct == kOfAttention) bring_first<kOfGate>(layer);
    if (kProduct == kOfGate) bring_first<kOfProduct>(layer);
    if (kProduct == kOfProduct && layer + 1 < shared_.shape.layers) bring_first<kOfQueries>(layer + 1);
  }

  // What the next layer needs: its entries.
  __device__ __forceinline__ void bring_next(uint32_t layer) const {
    if (layer + 1 < shared_.shape.layers)
      copy(shared_.entries[(layer + 1) % 2], entry_at(shared_.image, kFirstLayerEntry + kParts * (layer + 1)), kParts * sizeof(Entry));
  }

  // A rank attends with some of the key heads, and with the query heads that share each of them. A part covers one block of positions, or several if
  // there are too many blocks. This is a function of its own because it needs many registers; it saves and restores others while the ranks wait for
  // the means. With kUsual the compiler knows that there is one key head of the usual width, and that one warp has all query heads that share it:
  // otherwise half of the instructions compute quotients and indices.
  template <bool kSingle, bool kUsual>
  static __device__ __noinline__ void attend(Ranks& ranks, uint32_t layer) {
    const One team(ranks);
    team.template attend_own<kSingle, kUsual>(layer);
    team.template bring_first<kOfAttention>(layer);
  }
  // Blocks of positions that there are, and heads of queries that share keys.
  __device__ __forceinline__ uint32_t blocks() const { return column().position / kBlock + 1; }
  __device__ __forceinline__ uint32_t group() const { return shared_.shape.heads / shared_.shape.kv_heads; }
  // What warps have to do for each part, and parts of each head that there are at most: one for each warp, if they have room.
  __device__ __forceinline__ uint32_t jobs_of_part() const {
    return own_of(shared_.shape.kv_heads) * ((group() + kTogether - 1) / kTogether) * ((shared_.shape.head_width + kPiece - 1) / kPiece);
  }
  __device__ __forceinline__ uint32_t most_parts() const {
    return max(min(kWarps / jobs_of_part(), at_.parts_kept / (own_of(shared_.shape.kv_heads) * group())), 1u);
  }

  template <bool kSingle, bool kUsual>
  __device__ __forceinline__ void attend_own(uint32_t layer) const {
    const Shape& shape = shared_.shape;
    const uint32_t width = kUsual ? kUsualWidth : shape.head_width, half_bytes = kLine + kBlock * width, group = shape.heads / shape.kv_heads, tag = layer + 1;
    const uint32_t here = kUsual ? 1 : own_of(shape.kv_heads), heads = here * group, position = column().position;
    const uint32_t parts = kSingle ? position / kBlock + 1 : most_parts();
    char* const of_layer = column().cache + 2ull * shape.kv_heads * half_bytes * layer;
    const uint32_t fresh_bytes = 2 * width + 16, pieces = (width + kPiece - 1) / kPiece, sets = kUsual ? 1 : (group + kTogether - 1) / kTogether;
    const uint32_t jobs = here * sets * parts * pieces;
    // Keys and values of a warp's first part come while queries are waited for, but for those of this position.
    uint32_t part = 0, piece = 0, head = 0, number = 0;
    const auto with_of = [&](uint32_t job) {
      const uint32_t rest = kUsual ? 0 : job / here / parts, set = rest % sets * kTogether;
      number = job % here;
      part = kUsual ? job : job / here % parts;
      piece = rest / sets * kPiece;
      head = group * number + set;
      return Heads{of_layer + 2ull * half_bytes * own(number),
                   shape.kv_block(),
                   width,
                   half_bytes,
                   at<char>(at_.queries) + head * width,
                   at<uint32_t>(at_.query_scales) + head,
                   min(kTogether, group - set),
                   shared_.factor,
                   tables().exp2};
    };
    Near near;
    const uint32_t first = kWarps - 1 - warp_;
    if (first < jobs) {
      const Heads with = with_of(first);
      near.bring(with, piece, part, lane_);
    }
#pragma unroll 1
    for (uint32_t job = warp_; job < here * (group + 2); job += kWarps) {
      const uint32_t that = kUsual ? 0 : job / (group + 2), which = kUsual ? job : job % (group + 2), kv_head = own(that);
      const uint32_t of_all = which < group ? kv_head * group + which : shape.heads + (which - group) * shape.kv_heads + kv_head;
      const ulonglong2* const from = reinterpret_cast<const ulonglong2*>(words(at_.of_heads) + width * of_all);
      const ulonglong2* pairs[kPairs];
      bool has[kPairs];
      ulonglong2 two[kPairs];
#pragma unroll
      for (uint32_t j = 0; j < kPairs; j++) {
        pairs[j] = from + kWarp * j + lane_;
        has[j] = 2 * (kWarp * j + lane_) < width;
      }
      wait_for(pairs, has, tag, two);
      ranks_.lap(kMeets);
      const auto of_pair = [&](uint32_t j, uint32_t) { return make_int2(static_cast<int32_t>(Word::value(two[j].x)), static_cast<int32_t>(Word::value(two[j].y))); };
      unsigned char* const scratch = reinterpret_cast<unsigned char*>(shared_.scratch[warp_]);
      const uint32_t scale = store_pairs(of_pair, width, which <= group ? at<uint32_t>(at_.turns) : nullptr, scratch, lane_);
      char* const fresh = at<char>(at_.fresh) + fresh_bytes * that;
      char* const to = which < group ? at<char>(at_.queries) + (group * that + which) * width : fresh + (which - group) * width;
      for (uint32_t byte = 4 * lane_; byte < width; byte += 4 * kWarp)
        *reinterpret_cast<uint32_t*>(to + byte) = *reinterpret_cast<const uint32_t*>(scratch + byte);
      if (lane_ == 0) *(which < group ? at<uint32_t>(at_.query_scales) + group * that + which : reinterpret_cast<uint32_t*>(fresh + 2 * width) + (which - group)) = scale;
    }
    Team::sync();
    ranks_.lap(kStores);
#pragma unroll 1
    for (uint32_t job = first; job < jobs; job += kWarps) {
      const Heads with = with_of(job);
      if (job != first) near.bring(with, piece, part, lane_);
      const char* const newest = at<char>(at_.fresh) + fresh_bytes * number;
      const uint32_t* const scales = reinterpret_cast<const uint32_t*>(newest + 2 * width);
      const Fresh fresh{newest, newest + width, scales[0], scales[1]};
      attend_near<kSingle>(with, near, fresh, piece, part, parts, position, at<char>(at_.parts) + at_.part_bytes * (parts * head + part), at_.part_bytes * parts,
                               at<uint32_t>(at_.scores) + kTogether * kBlock * warp_, lane_);
    }
    Team::sync();
    ranks_.lap(kAttends);
    // A lane for each channel of the means.
#pragma unroll 1
    for (uint32_t base = kWarp * warp_; base < heads * width; base += kThreads) {
      const uint32_t that = base / width, channel = base % width + lane_;
      const int32_t mean = mean_by_warp<kSingle>(at<char>(at_.parts) + at_.part_bytes * parts * that, parts, width, channel);
      const uint32_t head = kUsual ? own(0) * group + that : own(that / group) * group + that % group;
      order::store_relaxed_gpu(words(at_.means) + head * width + channel, Word::of(mean, tag));
    }
    // What is newest takes its place in the cache when all warps have read what is there: they read whole blocks. Where means are few, the last warps have none.
#pragma unroll 1
    for (uint32_t job = kWarps - 1 - warp_; job < 2 * here; job += kWarps) {
      const uint32_t value = job % 2, slot = position % kBlock;
      const char* const newest = at<char>(at_.fresh) + fresh_bytes * (job / 2);
      const unsigned char* const mantissas = reinterpret_cast<const unsigned char*>(newest + width * value);
      const uint32_t scale = reinterpret_cast<const uint32_t*>(newest + 2 * width)[value];
      const uint64_t in_layer = static_cast<uint64_t>(half_bytes) * (2 * own(job / 2) + value);
      keep(of_layer + shape.kv_block() * (position / kBlock) + in_layer, width, slot, mantissas, scale, lane_);
      if (column().stored_to != nullptr) keep_sys(column().stored_to + 2ull * shape.kv_heads * half_bytes * layer + in_layer, width, slot, mantissas, scale, lane_);
    }
    // Weights take the place of the parts.
    Team::sync();
    ranks_.lap(kMeans);
  }

  // `mean_of` of a lane's channel. A warp calls it.
  template <bool kSingle>
  __device__ __forceinline__ int32_t mean_by_warp(const char* parts, uint32_t count, uint32_t width, uint32_t channel) const {
    const uint32_t bytes = at_.part_bytes;
    int32_t highest = kNoBin;
    for (uint32_t k = lane_; k < count; k += kWarp) highest = max(highest, reinterpret_cast<const Attended*>(parts + bytes * k)->highest);
    highest = __reduce_max_sync(kEveryLane, highest);
    int64 weights[2] = {}, values[2] = {};
#pragma unroll 4
    for (uint32_t k = 0; k < count; k++) {
      const Attended* const part = reinterpret_cast<const Attended*>(parts + bytes * k);
      const int64* const kept = reinterpret_cast<const int64*>(part + 1) + channel;
      const int32_t own = part->highest;
      const bool is = own == highest, below = own == highest - 1;
      const int64 weight = part->weights[0], value = kept[0];
      weights[0] += is ? weight : 0;
      values[0] += is ? value : 0;
      weights[1] += below ? weight : 0;
      values[1] += below ? value : 0;
      if (!kSingle) {
        weights[1] += is ? part->weights[1] : 0;
        values[1] += is ? kept[width] : 0;
      }
    }
    if (DOORBELL_FAULT(DropsBin)) weights[1] = values[1] = 0;
    const int64 numerator = values[0] + (values[1] >> 16), denominator = (weights[0] + (weights[1] >> 16)) << 4;
    return clamp(round_divide_near(numerator, denominator));
  }

  // Logits, and what this rank's tokens are. A warp takes 32 tokens at a time, a lane each.
  __device__ __forceinline__ void choose() const {
    const Matrix tokens = matrix(shared_.tokens);
    const uint32_t step = kBlock * at_.ranks * kWarps;
    uint32_t first = kBlock * (at_.rank + at_.ranks * warp_);
    // A vocabulary's last rows may be fewer than 16: then they come with the ones before.
    const auto tile_at = [&](uint32_t row) { return Tile{tokens.row(min(row, tokens.rows - kTileRows)), tokens.stride(), tokens.lines}; };
    if (first < tokens.rows) bring(tile_at(first), 0);
    Lines<kLogits> lines;
    lines.begin(*this, shared_.last_gain, shared_.shape.layers + 1);
    const uint32_t size = lines.take(*this);
    scale<kLogits>(shared_.last_gain, lines.lines, size);
    Team::sync();
    ranks_.lap(kActivatesLogits);
    const Column of = column();
    const Sampling sampling = of.sampling;
    int32_t* const logits = sampling.truncates() ? of.logits : nullptr;
    Sampler sampler(tables(), sampling.sharpness, Draw::of(sampling.seed, sampling.rollout, of.position + 1));
    const Requantised by = Requantised::of(tokens.exponent, activation());
    int32_t* const sums_of = at<int32_t>(at_.tiles) + kBlock * warp_;
#pragma unroll 1
    for (; first < tokens.rows; first += step) {
      if (lane_ == 0 && first + step + kBlock <= tokens.rows) stream::prefetch(tokens.row(first + step), kBlock * tokens.stride());
      const uint32_t row_scale = tokens.scale(min(first + lane_, tokens.rows - 1));
#pragma unroll 1
      for (uint32_t half = 0; half < kBlock; half += kTileRows) {
        int32_t sums[2] = {};
        const uint32_t row = first + half, next = half == 0 ? first + kTileRows : first + step;
        add(tile_at(row), 0, sums);
        // The next rows come meanwhile.
        if (half == 0 || next < tokens.rows) bring(tile_at(next), 0);
        leave(sums, sums_of + half, lane_);
      }
      __syncwarp();
      const uint32_t token = first + lane_;
      const bool is = token < tokens.rows;
      const uint32_t half = lane_ & kTileRows, behind = first + half + kTileRows > tokens.rows ? first + half + kTileRows - tokens.rows : 0;
      const int32_t logit = by.value(sums_of[min(lane_ + behind, half + kTileRows - 1)], row_scale);
      __syncwarp();
      if (UNLIKELY(logits != nullptr)) {
        // Until it is known what is kept, the most likely one is the best.
        if (is) {
          sampler.keep(logit, token, logit);
          logits[token] = logit;
        }
      } else if (is) {
        sampler.pick(token, logit);
      }
      sampler.count(is, logit);
    }
    Candidate* const candidates = at<Candidate>(at_.candidates);
    const Candidate candidate = sampler.candidate();
    if (lane_ == 0) candidates[warp_] = candidate;
    Team::sync();
    if (thread_ == 0) {
      Sampler all(tables(), 0, Draw{});
      for (uint32_t warp = 0; warp < kWarps; warp++) all.join(candidates[warp]);
      ranks_.state.candidates[at_.rank][0] = all.own();
    }
  }
};

}  // namespace language

#endif
