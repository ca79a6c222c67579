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

// A product's vector, and what becomes of it: words in the team's scratch.
struct alignas(16) OnePlan {
  const uint64_t* from;
  uint64_t* to;
  uint32_t channels, lines;  // of the vector
  uint32_t all;              // tiles that are the rank's
};
// The tile of a warp in a round of a product, of which there is mostly one.
struct alignas(16) TilePlan {
  uint32_t offset, stride;  // of its first row in its matrix, and from row to row, in bytes
  uint32_t from, pitch;     // the same of the warp's first line in the team's shared memory, if the tiles of the round come whole
  unsigned char part;       // the entry of its matrix
  unsigned char count;      // its lines, of which there are none if it has no tile
  unsigned char first;      // the first of them
  unsigned char slices;     // warps that share each tile
  unsigned char here;       // tiles of the round
  unsigned char is_whole;
};
// What becomes of a tile's 16 rows, by 16 threads: the scales of the first one in its matrix, in bytes, and its number among all of the product.
struct alignas(16) SinkPlan {
  uint32_t scales, row, part;
};

// The part of a rank's shared memory whose places do not depend on the shape. Their addresses are constants, so none has to be read first.
template <typename Team>
struct alignas(16) OneFixed {
  Column column;
  Activation activation;
  uint32_t attends;  // an Attends
  uint32_t most;  // lines of each row that come to a warp at a time
  OnePlan products[kLogits];
  TilePlan tiles_of[kLogits][Team::kWarps];
  SinkPlan sinks[kLogits][Team::kThreads / kTileRows];
  uint64_t squares[2 * Team::kWarps];
  uint32_t sizes[2 * Team::kWarps];
  uint16_t shifts[8 * Team::kWarps];
  int32_t tiles[kBlock * Team::kWarps];
  Candidate candidates[Team::kWarps];
};
// What a rank does between queries and means: nothing, or one of four kinds of attention. It is worked out once a step, because that takes divisions.
enum Attends : uint32_t { kAttendsNot, kAttendsUsualSingle, kAttendsSingle, kAttendsUsual, kAttendsAny };

// Where the rest of it lies, in bytes: in a rank's shared memory, and words in the team's scratch.
struct OneLayout {
  uint32_t fixed, own_rows, turns, queries, query_scales, fresh, mantissas, ring, scores, parts, end;
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
    at.fixed = take(static_cast<uint32_t>(sizeof(OneFixed<Team>)));
    at.own_rows = take(4 * shape.width);
    at.turns = take(2 * shape.head_width);
    // All that a rank may have.
    at.heads = shape.heads;
    at.queries = take(at.heads * shape.head_width);
    at.query_scales = take(4 * at.heads);
    at.fresh = take(shape.kv_heads * (2 * shape.head_width + 16));
    at.mantissas = take(kLine * lines);
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
  // Where what does not depend on the shape lies.
  template <typename Team>
  static constexpr __device__ __forceinline__ uint32_t fixed_at() {
    return BatchLayout::own<Team>() + (static_cast<uint32_t>(sizeof(OneLayout)) + 127) / 128 * 128;
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

template <typename Team>
class One : Frame<Team> {
 public:
  // As `Batch::run`, of one column of a shape that has `OneLayout::scratch_of`.
  static __device__ __noinline__ void run(Ranks& ranks, char* scratch) {
    {
      const One team(ranks);
      team.lay_out(scratch);
      team.embed();
    }
    ranks.lap(kEmbeds);
#pragma unroll 1
    for (uint32_t layer = 0; layer < One(ranks).shared_.shape.layers; layer++) {
#pragma unroll 1
      for (uint32_t which = kOfQueries; which < kLogits; which++) {
        // The thread's number is read anew for each product. Otherwise the compiler computes indices ahead of the loop, and keeps them in local memory.
        One(ranks).multiply(static_cast<Product>(which), layer);
        if (which != kOfQueries) continue;
        // The usual attention is inlined: a call would save registers to local memory, while all ranks wait for the means.
        switch (One(ranks).fixed().attends) {
          case kAttendsNot: break;
          case kAttendsUsualSingle:
            One(ranks).template attend_own<true, true>(layer);
            One(ranks).bring_first(kOfAttention, layer);
            break;
          case kAttendsSingle: attend<true, false>(ranks, layer); break;
          case kAttendsUsual: attend<false, true>(ranks, layer); break;
          default: attend<false, false>(ranks, layer);
        }
      }
    }
    One(ranks).choose();
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
  // The first warp that stores a head: the warps before it usually compute rows of the product before.
  static constexpr uint32_t kFirstToStore = 3;

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
  __device__ __forceinline__ OneFixed<Team>& fixed() const { return *at<OneFixed<Team>>(OneLayout::fixed_at<Team>()); }
  __device__ __forceinline__ const Column& column() const { return fixed().column; }
  __device__ __forceinline__ Activation& activation() const { return fixed().activation; }
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
    const uint32_t channels = channels_of(shape, product), of = tiles_together(product);
    const Deal deal = deal_of(product);
    uint32_t all = of * deal.own_of(rows / kTileRows);
    if (DOORBELL_FAULT(SkipsRows) && at_.rank == 1 && all > of) all -= of;
    fixed().tiles_of[product][warp_] = tile_plan(ranks_, product, all, 0);
    for (uint32_t k = warp_; k < kThreads / kTileRows; k += kWarps)
      if (k < all) fixed().sinks[product][k] = sink_plan(ranks_, product, k);
    if (warp_ != 0) return;
    const uint64_t from[] = {at_.input, at_.means, at_.middle, at_.products}, to[] = {at_.of_heads, at_.middle, at_.products, at_.input};
    uint64_t own_from = from[0], own_to = to[0];
    for (uint32_t k = 1; k < kLogits; k++) {
      own_from = k == product ? from[k] : own_from;
      own_to = k == product ? to[k] : own_to;
    }
    fixed().products[product] = OnePlan{words(own_from), words(own_to), channels, (channels + kLine - 1) / kLine, all};
    if (lane_ != 0) return;
    const uint32_t jobs = jobs_of_part();
    const bool is_single = jobs != 0 && blocks() <= most_parts(), is_usual = jobs == 1 && shape.head_width == kUsualWidth;
    fixed().attends = jobs == 0 ? kAttendsNot : is_single ? (is_usual ? kAttendsUsualSingle : kAttendsSingle) : is_usual ? kAttendsUsual : kAttendsAny;
    fixed().most = (at_.slots - 1) | 1;
  }

  // Of the warp, in the round of a product that begins with the `first`-th of the rank's tiles, of which it has `all`.
  static __device__ __noinline__ TilePlan tile_plan(Ranks& ranks, Product product, uint32_t all, uint32_t first) {
    const One team(ranks);
    const Shape& shape = team.shared_.shape;
    const uint32_t lines = (channels_of(shape, product) + kLine - 1) / kLine;
    const Deal deal = team.deal_of(product);
    const WarpPlan round = plan_round(shape, deal.rank, deal.ranks, kMultipliers, team.warp_, product, lines, all, first);
    TilePlan plan{};
    plan.here = static_cast<unsigned char>(round.here);
    plan.slices = static_cast<unsigned char>(round.slices);
    plan.stride = kLine * lines;
    // Tiles come whole if the warps that share one have room for it in their places, which are neighbours.
    plan.pitch = plan.stride | kLine;
    plan.is_whole = kTileRows * plan.pitch <= OneLayout::kSlotBytes * team.at_.slots * round.slices;
    if (round.has == 0) return plan;
    plan.offset = round.row * plan.stride;
    plan.from = team.place_at(team.warp_ - team.warp_ % round.slices) + kLine * round.first;
    plan.part = static_cast<unsigned char>(round.part);
    plan.first = static_cast<unsigned char>(round.first);
    plan.count = static_cast<unsigned char>(round.last - round.first);
    return plan;
  }
  // Of what comes of the k-th of the rank's tiles.
  static __device__ __noinline__ SinkPlan sink_plan(Ranks& ranks, Product product, uint32_t k) {
    const One team(ranks);
    const Shape& shape = team.shared_.shape;
    const uint32_t of = tiles_together(product), row = kTileRows * team.deal_of(product).own(k / of), queries = shape.queries(), keys = shape.keys();
    uint32_t part = product == kOfAttention ? kOutput : product == kOfGate ? kGate + k % of : kDown, in_part = row, rows = product == kOfGate ? shape.hidden : shape.width;
    if (product == kOfQueries) {
      part = row < queries ? kQuery : row < queries + keys ? kKey : kValue;
      in_part -= part == kQuery ? 0 : part == kKey ? queries : queries + keys;
      rows = part == kQuery ? queries : keys;
    }
    return SinkPlan{rows * kLine * ((channels_of(shape, product) + kLine - 1) / kLine) + 2 * in_part, row, part};
  }

  // The residual stream's rows that are the rank's.
  __device__ __forceinline__ void embed() const {
    const Shape& shape = shared_.shape;
    constexpr uint32_t kWords = sizeof(Column) / sizeof(uint4);
    if (thread_ < kWords) reinterpret_cast<uint4*>(&fixed().column)[thread_] = reinterpret_cast<const uint4*>(ranks_.state.columns)[thread_];
    Team::sync();
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
    bring_first(kOfQueries, 0);
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
  struct Lines {
    static constexpr uint32_t kOwn = 2;
    const ulonglong2* from[kOwn];
    bool has[kOwn];
    uint32_t factors[kOwn];
    uint32_t lines, tag;
    uint32_t line;  // the warp's first one; there is none if it lies behind the last one
    bool normalises;

    // Before the vector is there: `all` of so many channels, which it normalises by gains if there are any.
    __device__ __forceinline__ void begin(const One& one, const uint64_t* all, uint32_t channels, const char* gains, uint32_t of_layer) {
      lines = (channels + kLine - 1) / kLine;
      // The last warp has a line only if there are more lines than other warps. The first warps have the last lines, because they have most to do after a product.
      line = (lines > kMultipliers ? kWarps : kMultipliers) - 1 - one.warp_;
      const uint32_t channel = kLine * line + 2 * one.lane_;
      tag = of_layer;
      normalises = gains != nullptr;
#pragma unroll
      for (uint32_t k = 0; k < kOwn; k++) {
        const uint32_t own = channel + kLine * kWarps * k;
        has[k] = line < kWarps && own < channels;
        from[k] = reinterpret_cast<const ulonglong2*>(all + own);
        factors[k] = 0;
        if (normalises && has[k]) factors[k] = *reinterpret_cast<const uint32_t*>(gains + 2 * own);
      }
    }

    // Waits for it and makes mantissas and shifts of it, as `Frame::activate` does. The mantissas are there for all when it returns; what belongs to all channels is there behind
    // the next barrier of the block.
    __device__ __forceinline__ void take(const One& one, int32_t gain_exponent) const {
      ulonglong2 two[kOwn];
      int64 values[kOwn][2];
      wait_for(from, has, tag, two);
      one.ranks_.lap(kMeets);
      const uint32_t lane = one.lane_;
#pragma unroll
      for (uint32_t k = 0; k < kOwn; k++) {
        const uint32_t own = line + kWarps * k;
        values[k][0] = values[k][1] = 0;
        if (own >= lines) continue;
        values[k][0] = has[k] ? Word::value(two[k].x) : 0;
        values[k][1] = has[k] ? Word::value(two[k].y) : 0;
        uint64_t squares = 0;
        if (normalises) {
          const int32_t a = static_cast<int32_t>(values[k][0]), b = static_cast<int32_t>(values[k][1]);
          values[k][0] = static_cast<int64>(a) * static_cast<short>(factors[k] & 0xFFFF);
          values[k][1] = static_cast<int64>(b) * static_cast<short>(factors[k] >> 16);
          squares = static_cast<uint64_t>(static_cast<int64>(a) * a + static_cast<int64>(b) * b);
        }
        const uint32_t size = __reduce_max_sync(kEveryLane, static_cast<uint32_t>(bits(magnitude(values[k][0]) | magnitude(values[k][1]))));
        if (lane == 0) one.fixed().sizes[own] = size;
        if (normalises) {
          // Of 53 bits: in pieces whose sums have 32.
          const uint64_t lower = __reduce_add_sync(kEveryLane, static_cast<uint32_t>(squares) & 0x7FFFFFF);
          const uint64_t upper = __reduce_add_sync(kEveryLane, static_cast<uint32_t>(squares >> 27));
          if (lane == 0) one.fixed().squares[own] = (upper << 27) + lower;
        }
      }
      Team::sync();
      const uint32_t size = __reduce_max_sync(kEveryLane, lane < lines ? one.fixed().sizes[lane] : 0u);
      const uint32_t shift = size > 15 ? size - 15 : 0;
      const int64 added = 1ll << shift >> 1;
      // The last warp usually has no line. The others need what it computes here only after the product, so they do not wait for it now.
      if (one.warp_ == kMultipliers && lines <= kMultipliers) {
        Team::arrive();
        one.scale(normalises, gain_exponent, lines, size);
        return Team::has_arrived();
      }
#pragma unroll
      for (uint32_t k = 0; k < kOwn; k++) {
        const uint32_t own = line + kWarps * k;
        if (own >= lines) continue;
        one.enter(own, values[k], shift, added);
      }
      Team::wait();
      if (one.warp_ == kMultipliers) one.scale(normalises, gain_exponent, lines, size);
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
    // Of the four words of a quarter of a line the second and third change places: `add` reads the first and third together.
    const uint32_t place = (lane_ & ~6u) | (lane_ & 2) << 1 | (lane_ & 4) >> 1;
    *at<uint16_t>(at_.mantissas + kLine * line + 2 * place) = static_cast<uint16_t>(first | second << 8);
    if (lane_ % 16 == 0) reinterpret_cast<unsigned char*>(fixed().shifts)[2 * line + lane_ / 16] = static_cast<unsigned char>(down);
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
    if (lane_ == 0) fixed().sizes[warp_] = size;
    Team::sync();
    size = __reduce_max_sync(kEveryLane, lane_ < kWarps ? fixed().sizes[lane_] : 0u);
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
  __device__ __forceinline__ void scale(bool normalises, int32_t gain_exponent, uint32_t lines, uint32_t size) const {
    const int32_t own_shift = size > 15 ? size - 15 : 0;
    Activation own{1u << 15, -15 - kFraction + own_shift};
    if (normalises) {
      const uint64_t squares = Base::sum_of_warp(lane_ < lines ? fixed().squares[lane_] : 0);
      const Shape& shape = shared_.shape;
      const Root root = Root::of_mean(divide_by(squares + shape.width / 2, shape.width, at_.inverse_of_width) + shape.epsilon);
      own = Activation{root.inverse, gain_exponent - kFraction - 36 + root.up / 2 + own_shift};
    }
    if (lane_ == 0) activation() = own;
  }

  // 16 rows of weights, `count` lines of each, that come to a warp's place in shared memory. Rows there are an odd number of lines apart, so that they lie in different banks.
  struct Tile {
    const char* rows;
    uint32_t stride, count;
  };
  __device__ __forceinline__ uint32_t place_at(uint32_t warp) const { return at_.ring + OneLayout::kSlotBytes * at_.slots * warp; }
  __device__ __forceinline__ char* place(uint32_t warp) const { return at<char>(place_at(warp)); }
  // Lines of each row that come to a warp at a time.
  __device__ __forceinline__ uint32_t most() const { return fixed().most; }

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
        stream::copy_part(place(warp_), tile.rows, kTileRows * pitch, arrival);
      }
    } else if (lane_ < kTileRows) {
      stream::order_stretches();
      stream::copy_part(place(warp_) + pitch * lane_, tile.rows + tile.stride * lane_ + kLine * first, kLine * count, arrival);
    }
  }

  // Brings the weights of a round of a product. Whole tiles are brought by the warps from `busy` on, for all warps: with one copy if a row has an odd number of lines,
  // otherwise with a copy for each row, so that rows lie in different banks.
  __device__ __forceinline__ void bring_round(Product product, uint32_t layer, const TilePlan& round, uint32_t busy) const {
    const Entry* const of_layer = entries(layer);
    if (round.is_whole == 0) {
      if (round.count != 0) bring(tile_of(of_layer, round), 0);
      return;
    }
    if (lane_ != 0 || warp_ < busy || round.here == 0) return;
    uint64_t* const arrival = &shared_.together[product];
    const bool is_odd = (round.stride & kLine) != 0;
    const uint32_t warps = kWarps - busy, here = round.here, jobs = is_odd ? here : kTileRows * here, bytes = is_odd ? kTileRows * round.stride : round.stride;
    uint32_t job = kWarps - 1 - warp_;
    if (job == 0) stream::expect_stretch(jobs * bytes, arrival);
    stream::order_stretches();
#pragma unroll 1
    for (; job < jobs; job += warps) {
      const TilePlan& that = fixed().tiles_of[product][(is_odd ? job : job / kTileRows) * round.slices];
      const uint32_t row = is_odd ? 0 : job % kTileRows;
      stream::copy_part(at<char>(that.from + round.pitch * row), shared_.image + of_layer[that.part].offset + that.offset + round.stride * row, bytes, arrival);
    }
  }

  // Sums of the rows lane / 4 and eight behind it times the lines of the vector from `line` on, on all lanes. A lane reads a quarter of each line of a row, four words.
  // They go to the matrix unit in the order in which they are read, so no register has to be moved: a tile's 16 rows are eight rows of weights, each of them twice.
  // The first eight have the first and third words of the quarters, the others the second and fourth words. Two lines are taken at a time. The eight columns of the
  // vector are: the first block's first and third words, and 0 for the rest; its second and fourth words; the same of the second block; and the same four of
  // the second line. So each sum of one block is in one column, and a lane has the sums of one of four blocks.
  // `next` gives the place of the lines from the first on that have arrived, and the distance of rows there. It returns the number of these lines.
  template <typename Next>
  __device__ __forceinline__ void add(uint32_t lines, uint32_t line, int32_t (&sums)[2], Next next) const {
    const uint32_t group = lane_ / 4, quarter = lane_ % 4;
    const bool gives = group / 2 % 2 == quarter / 2, is_second = group >= kGroups / 2;
    const char* mantissas = at<char>(at_.mantissas + kLine * line + 16 * quarter + 8 * (group % 2));
    const unsigned char* shifts = reinterpret_cast<const unsigned char*>(fixed().shifts + line) + quarter;
#pragma unroll 1
    for (uint32_t first = 0; first < lines;) {
      const char* upper = nullptr;
      uint32_t pitch = 0;
      const uint32_t count = next(first, upper, pitch);
      upper += pitch * group + 16 * quarter;
      const char* const lower = upper + kGroups * pitch;
#pragma unroll 1
      for (uint32_t k = 0; k < count; k += 2) {
        // The last line may come twice, once for nothing.
        const uint32_t second = min(k + 1, count - 1);
        const uint4 above[2] = {*reinterpret_cast<const uint4*>(upper + kLine * k), *reinterpret_cast<const uint4*>(upper + kLine * second)};
        const uint4 below[2] = {*reinterpret_cast<const uint4*>(lower + kLine * k), *reinterpret_cast<const uint4*>(lower + kLine * second)};
        const uint32_t shift = shifts[2 * k] & 31;
        uint2 by[2] = {};
        if (gives && !is_second) by[0] = *reinterpret_cast<const uint2*>(mantissas + kLine * k);
        if (gives && is_second && second != k) by[1] = *reinterpret_cast<const uint2*>(mantissas + kLine * second);
        int32_t of_above[4], of_below[4];
        stream::multiply_tile(of_above, above[0].x, above[0].y, above[0].z, above[0].w, by[0].x, by[0].y);
        stream::multiply_tile(of_below, below[0].x, below[0].y, below[0].z, below[0].w, by[0].x, by[0].y);
        stream::add_tile(of_above, above[1].x, above[1].y, above[1].z, above[1].w, by[1].x, by[1].y);
        stream::add_tile(of_below, below[1].x, below[1].y, below[1].z, below[1].w, by[1].x, by[1].y);
        // Of the tile's first eight rows a lane needs the column of first and third words, of the others that of second and fourth words.
        sums[0] += static_cast<int32_t>(static_cast<uint32_t>(of_above[0] + of_above[3]) << shift);
        sums[1] += static_cast<int32_t>(static_cast<uint32_t>(of_below[0] + of_below[3]) << shift);
      }
      first += count;
      mantissas += kLine * count;
      shifts += 2 * count;
    }
#pragma unroll
    for (uint32_t by = 1; by < 4; by *= 2) {
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) sums[r] += __shfl_xor_sync(kEveryLane, sums[r], by);
    }
  }
  // Of a tile that has been brought to the warp's place.
  __device__ __forceinline__ void add_own(const Tile& tile, uint32_t line, int32_t (&sums)[2]) const {
    uint32_t number = shared_.arrived[warp_];
    add(tile.count, line, sums, [&](uint32_t first, const char*& from, uint32_t& pitch) {
      if (first != 0) bring(tile, first);
      const uint32_t count = min(tile.count - first, most());
      pitch = kLine * (count | 1);
      from = place(warp_);
      stream::wait_for_stretch(&shared_.arrivals[warp_][number % 2], number / 2 % 2);
      number++;
      __syncwarp();
      if (lane_ == 0) shared_.arrived[warp_] = number;
      __syncwarp();
      return count;
    });
    __syncwarp();
  }
  // Leaves them one behind the other.
  static __device__ __forceinline__ void leave(const int32_t (&sums)[2], int32_t* to, uint32_t lane) {
    if (lane % 4 != 0) return;
    to[lane / 4] = sums[0];
    to[lane / 4 + kGroups] = sums[1];
  }

  // The lines of a warp in a round of a product.
  __device__ __forceinline__ Tile tile_of(const Entry* of_layer, const TilePlan& round) const {
    return Tile{shared_.image + of_layer[round.part].offset + round.offset + kLine * round.first, round.stride, round.count};
  }
  // The first lines of a product of a layer are on their way from here on, brought by the warps from `busy` on.
  __device__ __forceinline__ void bring_first(Product product, uint32_t layer, uint32_t busy = 0) const {
    bring_round(product, layer, fixed().tiles_of[product][warp_], busy);
  }

  // A product of a layer, as `Batch::multiply` has it.
  __device__ __forceinline__ void multiply(Product product, uint32_t layer) const {
    const Entry* const of_layer = entries(layer);
    const OnePlan own = fixed().products[product];
    const uint32_t of = tiles_together(product);
    const bool adds = product == kOfAttention || product == kOfProduct;
    if (own.all == 0) {
      if (product == kOfQueries) {
        Team::sync();
        bring_next(layer);
      }
      if (product == kOfAttention) {
        stream::wait_for_copies();
        Team::sync();
      }
      return bring_following(product, layer);
    }
    TilePlan round = fixed().tiles_of[product][warp_];
    const uint32_t k = thread_ / kTileRows, row = thread_ % kTileRows;
    SinkPlan sink = fixed().sinks[product][k];
    uint32_t first = 0;
#pragma unroll 1
    for (;;) {
      // What does not depend on the vector.
      const bool is = k < round.here;
      const char* const image = shared_.image;
      int32_t* const x_at = at<int32_t>(at_.own_rows) + kTileRows * (first + k) + row;
      uint32_t row_scale = 0;
      int32_t exponent = 0, x = 0;
      if (is) {
        const Entry& entry = of_layer[sink.part];
        row_scale = reinterpret_cast<const uint16_t*>(image + entry.offset + sink.scales)[row];
        exponent = entry.exponent;
        if (adds) x = *x_at;
      }
      const bool multiplies = round.count != 0, is_whole = round.is_whole != 0;
      const uint32_t brought = shared_.brought[product];
      if (first == 0) {
        const Entry& gain = of_layer[product == kOfGate ? kHiddenGain : kAttentionGain];
        const int32_t gain_exponent = gain.exponent;
        Lines lines;
        lines.begin(*this, own.from, own.channels, adds ? nullptr : image + gain.offset, layer + 1);
        if (own.lines > 2 * kWarps) {
          const uint32_t size = take_long(ranks_, layer);
          if (warp_ == kMultipliers) scale(false, 0, own.lines, size);
        } else {
          lines.take(*this, gain_exponent);
        }
        ranks_.lap(kActivates);
      }
      if (multiplies) {
        int32_t sums[2] = {};
        if (is_whole) {
          stream::wait_for_stretch(&shared_.together[product], brought % 2);
          add(round.count, round.first, sums, [&](uint32_t, const char*& from, uint32_t& pitch) {
            pitch = round.pitch;
            from = at<char>(round.from);
            return static_cast<uint32_t>(round.count);
          });
        } else {
          add_own(tile_of(of_layer, round), round.first, sums);
        }
        leave(sums, fixed().tiles + kTileRows * warp_, lane_);
      }
      // The next layer's entries, which are on their way since the product before.
      if (product == kOfAttention && first == 0) stream::wait_for_copies();
      Team::sync();
      if (thread_ == kThreads - kWarp && is_whole) shared_.brought[product] = brought + 1;
      ranks_.lap(kMultiplies);
      if (is) {
        const Activation by = activation();
        const uint32_t slices = round.slices;
        const int32_t value = Requantised::of(exponent, by).value(sum_of(fixed().tiles + kTileRows * slices * k + row, slices), row_scale);
        int64 made = value;
        bool stores = true;
        if (of == 2) {
          // One half of a warp has gates, the other what they gate.
          const int32_t other = __shfl_xor_sync(kEveryLane, value, kTileRows);
          made = round_shift(static_cast<int64>(this->swish(value)) * other, kFraction);
          stores = k % 2 == 0;
        }
        if (adds) {
          x = within(static_cast<int64>(x) + value);
          *x_at = x;
          made = x;
        }
        if (stores) order::store_relaxed_gpu(own.to + sink.row + row, Word::of(made, product == kOfProduct ? layer + 2 : layer + 1));
      }
      first += round.here;
      if (first >= own.all) break;
      round = tile_plan(ranks_, product, own.all, first);
      sink = sink_plan(ranks_, product, first + k);
      fixed().tiles_of[product][warp_] = round;
      Team::sync();
      bring_round(product, layer, round, 0);
      Team::sync();
    }
    ranks_.lap(kSinks);
    if (own.all != round.here) {
      // The first round comes again in the next layer.
      fixed().tiles_of[product][warp_] = tile_plan(ranks_, product, own.all, 0);
      Team::sync();
    }
    if (product == kOfQueries) bring_next(layer);
    bring_following(product, layer, min((round.here + 1u) / 2, kWarps / 2));
  }
  // The sum of a row over the warps that share it: mostly five at most, all read at a time.
  static __device__ __forceinline__ int32_t sum_of(const int32_t* from, uint32_t slices) {
    constexpr uint32_t kAtATime = 5;
    int32_t sum = 0;
#pragma unroll 1
    for (uint32_t slice = 0; slice < slices; slice += kAtATime) {
#pragma unroll
      for (uint32_t k = 0; k < kAtATime; k++)
        if (slice + k < slices) sum += from[kTileRows * k];
      from += kTileRows * kAtATime;
    }
    return sum;
  }

  // The weights that follow a product. Attentions take their place first.
  __device__ __forceinline__ void bring_following(Product product, uint32_t layer, uint32_t busy = 0) const {
    if (product == kOfQueries && fixed().attends != kAttendsNot) return;
    const bool is_last = product == kOfProduct;
    if (is_last && layer + 1 >= shared_.shape.layers) return;
    bring_first(is_last ? kOfQueries : static_cast<Product>(product + 1), layer + (is_last ? 1 : 0), busy);
  }

  // What the next layer needs: its entries.
  __device__ __forceinline__ void bring_next(uint32_t layer) const {
    if (layer + 1 < shared_.shape.layers)
      copy(shared_.entries[(layer + 1) % 2], entry_at(shared_.image, kFirstLayerEntry + kParts * (layer + 1)), kParts * sizeof(Entry));
  }

  // A rank attends with some of the key heads, and with the query heads that share each of them. A part covers one block of positions, or several if
  // there are too many blocks. The kinds that are rare are functions of their own. With kUsual the compiler knows that there is one key head of the usual width, and that one warp has all query heads that share it:
  // otherwise half of the instructions compute quotients and indices.
  template <bool kSingle, bool kUsual>
  static __device__ __noinline__ void attend(Ranks& ranks, uint32_t layer) {
    const One team(ranks);
    team.template attend_own<kSingle, kUsual>(layer);
    team.bring_first(kOfAttention, layer);
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
    for (uint32_t job = (warp_ + kWarps - kFirstToStore) % kWarps; job < here * (group + 2); job += kWarps) {
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
    Lines lines;
    lines.begin(*this, words(at_.input), shared_.shape.width, shared_.image + shared_.last_gain.offset, shared_.shape.layers + 1);
    lines.take(*this, shared_.last_gain.exponent);
    Team::sync();
    ranks_.lap(kActivatesLogits);
    const Column of = column();
    const Sampling sampling = of.sampling;
    int32_t* const logits = sampling.truncates() ? of.logits : nullptr;
    Sampler sampler(tables(), sampling.sharpness, Draw::of(sampling.seed, sampling.rollout, of.position + 1));
    const Requantised by = Requantised::of(tokens.exponent, activation());
    int32_t* const sums_of = fixed().tiles + kBlock * warp_;
#pragma unroll 1
    for (; first < tokens.rows; first += step) {
      if (lane_ == 0 && first + step + kBlock <= tokens.rows) stream::prefetch(tokens.row(first + step), kBlock * tokens.stride());
      const uint32_t row_scale = tokens.scale(min(first + lane_, tokens.rows - 1));
#pragma unroll 1
      for (uint32_t half = 0; half < kBlock; half += kTileRows) {
        int32_t sums[2] = {};
        const uint32_t row = first + half, next = half == 0 ? first + kTileRows : first + step;
        add_own(tile_at(row), 0, sums);
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
    Candidate* const candidates = fixed().candidates;
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
