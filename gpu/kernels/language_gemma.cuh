// A step of Gemma 3N's shape: docs/engine.md, Gemma 3N; lm/src/oracle/gemma.rs has the same in plain loops.
#ifndef DOORBELL_LANGUAGE_GEMMA_CUH
#define DOORBELL_LANGUAGE_GEMMA_CUH

#include "language_frame.cuh"

namespace language {

template <typename Team>
class Gemma : Frame<Team> {
 public:
  // Takes the token at `position`, as far as the sum of the streams, which stands in the place of the first. What else belongs to the step is in
  // shared memory already.
  static __device__ __forceinline__ void step(uint32_t token, uint32_t position) {
    begin(token, position);
#pragma unroll 1
    for (uint32_t layer = 0; layer < Gemma().shared_.shape.layers; layer++) {
      Base::meet(false);
      project(layer, predict(layer));
      feed_forward(layer, attend(layer));
    }
    merge();
  }

  // The activation of the sum, with a barrier behind it.
  static __device__ __forceinline__ Activation normalise_sum() {
    Gemma self;
    const Shape& shape = self.shared_.shape;
    return self.normalise(self.stream_of(0), self.shared_.last_gain, kSummed * shape.epsilon);
  }

  // 30 * tanh(x / 30).
  static __device__ __forceinline__ int32_t softcap(int32_t x) {
    // 1 / 30 with 20 fraction bits.
    const int64 part = round_shift(static_cast<int64>(magnitude(x)) * 34953, 16);
    // 30 * 2^10 / 2^15 is 15 / 16.
    const int32_t capped = static_cast<int32_t>(round_shift(tanh_of(part) * 15, 4));
    return x < 0 ? -capped : capped;
  }

 private:
  using Base = Frame<Team>;
  using Base::all_seen, Base::activate, Base::bits_of_warp, Base::copy, Base::end, Base::entries, Base::kThreads, Base::kWarps, Base::lane_, Base::matrix,
      Base::put, Base::see, Base::shared_, Base::stretches, Base::sum_of_warp, Base::tables, Base::thread_, Base::through, Base::vector, Base::warp_;

  template <typename T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return Base::template at<T>(offset);
  }

  // What `over` sees: squares, or any sums, and magnitudes of 64 or of 32 bits.
  static constexpr uint32_t kSquares = 1, kWide = 2, kNarrow = 4;

  uint32_t place_ = 0;  // where what is seen next is left

  // The phases of a step. Each ends with a barrier of the team.
  static __device__ __noinline__ void begin(uint32_t token, uint32_t position) { Gemma().do_begin(token, position); }
  static __device__ __noinline__ Activation predict(uint32_t layer) { return Gemma().do_predict(layer); }
  static __device__ __noinline__ void project(uint32_t layer, Activation input) { Gemma().do_project(layer, input); }
  static __device__ __noinline__ Activation attend(uint32_t layer) { return Gemma().do_attend(layer); }
  static __device__ __noinline__ void feed_forward(uint32_t layer, Activation input) {
    Gemma().do_feed_forward(layer, input);
    correct(layer);
    Gemma().do_embedding(layer);
  }
  static __device__ __noinline__ void correct(uint32_t layer) { Gemma().do_correct(layer); }
  static __device__ __noinline__ void merge() { Gemma().do_merge(); }

  // All rows of a matrix times the vector that the team has made, or times what the token began with, into every `stride`-th word from `to` on. It begins
  // with warp `turn`; returns with which the next may.
  static __device__ __noinline__ uint32_t product(const Entry& entry, bool of_input, Activation activation, int32_t* to, uint32_t stride, uint32_t turn) {
    return Gemma().do_product(entry, of_input, activation, to, stride, turn);
  }

  __device__ __forceinline__ int32_t* stream_of(uint32_t k) const { return at<int32_t>(shared_.layout.x) + shared_.shape.width * k; }
  __device__ __forceinline__ const short* gain(const Entry& entry) const { return reinterpret_cast<const short*>(shared_.image + entry.offset); }

  // What of all channels is seen: each(channel, squares, magnitudes) adds what the thread sees of one, of which kSees counts. There is a barrier in
  // it.
  template <uint32_t kSees, typename Each>
  __device__ __forceinline__ Seen over(uint32_t channels, Each each) {
    uint64_t squares = 0, magnitudes = 0;
    through(thread_, channels, kThreads, [&](uint32_t channel) { each(channel, squares, magnitudes); });
    if constexpr (kWarps == 1) {
      // Nobody else is to be told.
      Seen seen{0, 0};
      if (kSees & kSquares) seen.squares = sum_of_warp(squares);
      if (kSees & kWide) seen.magnitudes = bits_of_warp(magnitudes);
      if (kSees & kNarrow) seen.magnitudes = __reduce_or_sync(kEveryLane, static_cast<uint32_t>(magnitudes));
      Team::sync();
      return seen;
    }
    const uint32_t place = place_;
    place_ ^= 1;
    see(squares, magnitudes, place);
    Team::sync();
    return all_seen(place);
  }

  static __device__ __forceinline__ uint64_t square(int32_t x) {
    const uint64_t size = magnitude(within(x));
    return size * size;
  }
  __device__ __forceinline__ Root root_of_mean(const int32_t* x, uint32_t channels) {
    const Seen seen = over<kSquares>(channels, [&](uint32_t channel, uint64_t& squares, uint64_t&) { squares += square(x[channel]); });
    return Root::of(seen.squares, channels, shared_.shape.epsilon);
  }

  // By how much products of a number, a gain and the inverse of a root are shifted.
  static __device__ __forceinline__ int32_t level_shift(int32_t exponent, const Root& root) { return 36 - exponent - root.up / 2; }
  static __device__ __forceinline__ int32_t level(int32_t x, int32_t factor, const Root& root, int32_t shift) {
    return within(round_shift(static_cast<int64>(within(x)) * factor * root.inverse, shift));
  }

  // x with the root mean square that `like` is of, `root` being x's own.
  static __device__ __forceinline__ int32_t rescale(int32_t x, const Root& root, const Root& like) {
    const int64 factor = static_cast<int64>(root.inverse) * static_cast<int64>(like.root >> 15);
    return within(round_shift(within(x) * factor, 31 - (root.up - like.up) / 2));
  }

  static __device__ __forceinline__ int32_t between(const uint16_t* table, uint32_t index, int32_t part, uint32_t bits) {
    const int32_t low = table[index], high = table[index + 1];
    return low + (((high - low) * part + (1 << (bits - 1))) >> bits);
  }
  // Of a magnitude that has 14 fraction bits; the result has 15.
  static __device__ __forceinline__ int64 tanh_of(int64 size) {
    const uint32_t place = static_cast<uint32_t>(size < 65535 ? size : 65535);
    return between(tables().tanh, place >> 8, static_cast<int32_t>(place & 255), 8);
  }
  static __device__ __forceinline__ int32_t gelu(int32_t x) {
    const uint32_t moved = static_cast<uint32_t>(clamp(static_cast<int64>(x) + (4 << kFraction), 0, (8 << kFraction) - 1));
    return clamp(round_shift(static_cast<int64>(x) * between(tables().gelu, moved >> 7, static_cast<int32_t>(moved & 127), 7), 15));
  }
  // What a gate lets through, of numbers with 10 fraction bits.
  static __device__ __forceinline__ int64 gated(int32_t gate, int32_t value) {
    return round_shift(static_cast<int64>(gelu(gate)) * value, kFraction);
  }

  // The activation of a vector with 10 fraction bits, into the team's vector. There is a barrier behind it.
  template <typename Value>
  __device__ __forceinline__ Activation plain(uint32_t channels, uint64_t magnitudes, Value value) {
    const int32_t shift = activate(channels, magnitudes, value);
    Team::sync();
    return Activation{1u << 15, -15 - kFraction + shift};
  }

  // That of x normalised, of which its squares and the magnitudes of x * gain were seen. There is a barrier behind it.
  __device__ __forceinline__ Activation normalised(const int32_t* x, const Entry& entry, const Seen& seen, uint32_t epsilon) {
    const uint32_t width = shared_.shape.width;
    const short* const factors = gain(entry);
    const Root root = Root::of(seen.squares, width, epsilon);
    const int32_t shift =
        activate(width, seen.magnitudes, [&](uint32_t channel) { return static_cast<int64>(x[channel]) * factors[channel]; });
    Team::sync();
    return Activation{root.inverse, entry.exponent - kFraction - 36 + root.up / 2 + shift};
  }
  __device__ __forceinline__ Activation normalise(const int32_t* x, const Entry& entry, uint32_t epsilon) {
    const short* const factors = gain(entry);
    const Seen seen = over<kSquares | kWide>(shared_.shape.width, [&](uint32_t channel, uint64_t& squares, uint64_t& magnitudes) {
      squares += square(x[channel]);
      magnitudes |= magnitude(static_cast<int64>(x[channel]) * factors[channel]);
    });
    return normalised(x, entry, seen, epsilon);
  }

  __device__ __forceinline__ uint32_t do_product(const Entry& entry, bool of_input, Activation activation, int32_t* to, uint32_t stride, uint32_t turn) {
    const Layout& layout = shared_.layout;
    const Matrix rows = matrix(entry);
    const Vector input{at<char>(layout.input), at<unsigned char>(layout.input_shifts), layout.shifts_half};
    const Vector from = of_input ? input : vector();
    const uint32_t warp = (warp_ + turn) % kWarps;
    const auto sink = [&](uint32_t row, int32_t value) { to[stride * row] = value; };
    if (kWarps == 1 && rows.lines == 1) {
      take_lines(rows, from, activation, lane_, [&](bool is, uint32_t row, int32_t value) {
        if (is) sink(row, value);
      });
    } else {
      multiply<Team, 4, kBroad>(stretches(), rows, from, activation, end(), warp, lane_, sink);
    }
    // The next begins with the warp that has least to do.
    return turn + kWarps - (rows.rows + kGroups - 1) / kGroups % kWarps;
  }

  // Coefficients of the streams, into shared memory, from the router's normalised input; the first warp works them out, and there is a barrier behind it.
  __device__ __forceinline__ void route(uint32_t layer, Part part, Activation activation) {
    if (warp_ == 0) {
      const Layout& layout = shared_.layout;
      const Matrix router = matrix(entries(layer)[kRouter]), rows = matrix(entries(layer)[part]);
      int32_t* const routes = reinterpret_cast<int32_t*>(shared_.scratch[0]);
      take_rows<1, kBroad>(router, vector(), activation, shift_of(router.exponent, activation.exponent), 0, lane_,
                           [&](uint32_t row, int32_t value) { routes[row] = value; });
      __syncwarp();
      int64 value = 0;
      if (lane_ < kStreams) {
        value = tanh_of(static_cast<int64>(magnitude(routes[lane_])) << 4);
        if (routes[lane_] < 0) value = -value;
      }
      const uint64_t magnitudes = __reduce_or_sync(kEveryLane, static_cast<uint32_t>(magnitude(value)));
      // All lanes have read the vector by now: `take_rows` has shuffled.
      const int32_t shift = activate_block(magnitudes, value, at<char>(layout.mantissas), at<unsigned char>(layout.shifts));
      __syncwarp();
      const Activation routed{1u << 15, -15 - 15 + shift};
      take_rows<2, 1>(rows, vector(), routed, shift_of(rows.exponent, routed.exponent), 0, lane_,
                      [&](uint32_t row, int32_t coefficient) { shared_.coefficients[row] = coefficient; });
    }
    Team::sync();
  }

  // The activation of one block of 32, a lane each, by a warp alone; returns by how much its exponent grows.
  __device__ __forceinline__ int32_t activate_block(uint64_t magnitudes, int64 value, char* mantissas, unsigned char* shifts) {
    const int32_t over = bits(magnitudes) - 15, shift = over > 0 ? over : 0;
    const int32_t half = static_cast<int32_t>(clamp(round_shift(value, shift), -32767, 32767));
    const int32_t above = bits(__reduce_or_sync(kEveryLane, magnitude(half))) - 7, down = above > 0 ? above : 0;
    mantissas[lane_] = static_cast<char>(clamp(round_shift(half, down), -kMantissa, kMantissa));
    mantissas[kBlock + lane_] = 0;
    if (lane_ == 0) {
      shifts[0] = static_cast<unsigned char>(down);
      shifts[shared_.layout.shifts_half] = 0;
    }
    return shift;
  }

  // Starts to bring a layer's part of the directory.
  __device__ __forceinline__ void bring_entries(uint32_t layer) {
    const Shape& shape = shared_.shape;
    const bool own = layer < shape.own;
    const char* const from = entry_at(shared_.image, first_entry(shape, layer));
    char* const to = reinterpret_cast<char*>(shared_.entries[layer % 2]);
    for (uint32_t piece = thread_; piece < 2 * kGemmaParts; piece += kThreads) {
      const uint32_t part = piece / 2, skipped = own ? 0 : __popc(kOfKeys & ((1u << part) - 1));
      if (own || (kOfKeys >> part & 1) == 0) stream::copy(to + 16 * piece, from + 16 * (piece - 2 * skipped));
    }
  }

  // The four streams of a token, and what else the first layer needs.
  __device__ __forceinline__ void do_begin(uint32_t token, uint32_t position) {
    const Shape& shape = shared_.shape;
    const Layout& layout = shared_.layout;
    const uint32_t width = shape.width;
    int32_t* const x = stream_of(0);
    bring_entries(0);
    copy(shared_.turns[0], shared_.image + shared_.rope_offset + 2ull * shape.head_width * position, 2 * shape.head_width);
    copy(shared_.turns[1], shared_.image + shared_.global_rope_offset + 2ull * shape.head_width * position, 2 * shape.head_width);
    const Matrix tokens = matrix(shared_.tokens);
    const char* const row = tokens.row(token);
    const int64 scale = tokens.scale(token);
    const Seen seen = over<kSquares | kNarrow>(width, [&](uint32_t channel, uint64_t& squares, uint64_t& magnitudes) {
      const int32_t value = within(round_shift(static_cast<signed char>(row[channel]) * scale, -(tokens.exponent + kFraction)));
      x[channel] = value;
      squares += square(value);
      magnitudes |= magnitude(value);
    });
    const Root first = Root::of(seen.squares, width, shape.epsilon);
    const int32_t shift = activate(width, seen.magnitudes, layout.input, layout.input_shifts, [&](uint32_t channel) { return static_cast<int64>(x[channel]); });
    const Activation input{1u << 15, -15 - kFraction + shift};
    if (thread_ == 0) shared_.input = input;
    Team::sync();
    uint32_t turn = 0;
#pragma unroll 1
    for (uint32_t k = 1; k < kStreams; k++) turn = product(shared_.streams[0][k - 1], true, input, stream_of(k), 1, turn);
    Team::sync();
#pragma unroll 1
    for (uint32_t k = 1; k < kStreams; k++) {
      int32_t* const other = stream_of(k);
      const Root root = root_of_mean(other, width);
      through(thread_, width, kThreads, [&](uint32_t channel) { other[channel] = rescale(other[channel], root, first); });
    }
    stream::wait_for_copies();
    Team::sync();
  }

  // What the streams are predicted to be, and of the first the layer's input, levelled and as an activation.
  __device__ __forceinline__ Activation do_predict(uint32_t layer) {
    const Shape& shape = shared_.shape;
    const uint32_t width = shape.width;
    route(layer, kPredict, normalise(stream_of(0), entries(layer)[kRouterGain], shape.epsilon));
    int32_t* const x = stream_of(0);
    int32_t* const levelled = at<int32_t>(shared_.layout.levelled);
    const Seen seen = over<kSquares>(width, [&](uint32_t channel, uint64_t& squares, uint64_t&) {
      int32_t values[kStreams];
#pragma unroll
      for (uint32_t k = 0; k < kStreams; k++) values[k] = x[width * k + channel];
#pragma unroll
      for (uint32_t k = 0; k < kStreams; k++) {
        int64 sum = 0;
#pragma unroll
        for (uint32_t j = 0; j < kStreams; j++) {
          const uint32_t index = DOORBELL_FAULT(SwapsStreams) ? kStreams * j + k : kStreams * k + j;
          sum += static_cast<int64>(shared_.coefficients[index]) * values[j];
        }
        const int32_t value = within(values[k] + round_shift(sum, kFraction));
        x[width * k + channel] = value;
        if (k == 0) squares += square(value);
      }
    });
    const Root root = Root::of(seen.squares, width, shape.epsilon);
    const Entry& entry = entries(layer)[kAttentionGain];
    const short* const factors = gain(entry);
    const int32_t shift = level_shift(entry.exponent, root);
    const Seen level_seen = over<kNarrow>(width, [&](uint32_t channel, uint64_t&, uint64_t& magnitudes) {
      const int32_t value = level(x[channel], factors[channel], root, shift);
      levelled[channel] = value;
      magnitudes |= magnitude(value);
    });
    return plain(width, level_seen.magnitudes, [&](uint32_t channel) { return static_cast<int64>(levelled[channel]); });
  }

  // Queries and, where the layer has its own, keys and values, one behind the other; the first half of the LAuReL; the embedding's projection.
  __device__ __forceinline__ void do_project(uint32_t layer, Activation input) {
    const Shape& shape = shared_.shape;
    const Layout& layout = shared_.layout;
    // Meanwhile what the next layer needs of the directory comes.
    if (layer + 1 < shape.layers) bring_entries(layer + 1);
    int32_t* to = at<int32_t>(layout.heads);
    uint32_t turn = 0;
#pragma unroll 1
    for (uint32_t part = kQuery; part <= (layer < shape.own ? kValue : kQuery); part++) {
      const Entry& entry = entries(layer)[part];
      turn = product(entry, false, input, to, 1, turn);
      to += entry.rows;
    }
    turn = product(entries(layer)[kLeft], false, input, at<int32_t>(layout.raw), 1, turn);
    product(entries(layer)[kProjection], true, shared_.input, at<int32_t>(layout.embedding), 1, turn);
    stream::wait_for_copies();
    Team::sync();
  }

  // A head, levelled by its gain, by a warp.
  __device__ __forceinline__ void level_head(int32_t* head, const Entry& entry) {
    const uint32_t width = shared_.shape.head_width;
    const short* const factors = gain(entry);
    uint64_t squares = 0;
    through(lane_, width, kWarp, [&](uint32_t channel) { squares += square(head[channel]); });
    const Root root = Root::of(sum_of_warp(squares), width, shared_.shape.epsilon);
    const int32_t shift = level_shift(entry.exponent, root);
    through(lane_, width, kWarp, [&](uint32_t channel) { head[channel] = level(head[channel], factors[channel], root, shift); });
    __syncwarp();
  }

  // What attention and LAuReL make of the first stream, and the activation of that, normalised for the feed-forward layer. Meanwhile the token's
  // embedding of this layer.
  __device__ __forceinline__ Activation do_attend(uint32_t layer) {
    const Shape& shape = shared_.shape;
    const Layout& layout = shared_.layout;
    const uint32_t position = shared_.step.position, width = shape.width, head_width = shape.head_width, half_bytes = shape.kv_half();
    int32_t* const heads = at<int32_t>(layout.heads);
    int32_t* const raw = at<int32_t>(layout.raw);
    int32_t* const embedding = at<int32_t>(layout.embedding);
    const bool is_global = shape.is_global(layer);
    const uint64_t of_a_layer = 2ull * shape.kv_heads * half_bytes;

    // A warp for each head of queries, keys and values.
    {
      unsigned char* const scratch = reinterpret_cast<unsigned char*>(shared_.scratch[warp_]);
      const uint32_t all = shape.heads + (layer < shape.own ? 2 * shape.kv_heads : 0);
      const uint32_t* const turns = shared_.turns[is_global ? 1 : 0];
#pragma unroll 1
      for (uint32_t head = warp_; head < all; head += kWarps) {
        const bool turned = head < shape.heads + shape.kv_heads;
        const Part part = head < shape.heads ? kQueryGain : turned ? kKeyGain : kValueGain;
        level_head(heads + head * head_width, entries(layer)[part]);
        const uint32_t scale = store(heads + head * head_width, head_width, turned ? turns : nullptr, scratch, lane_);
        put(shape, head, scale, scratch, of_a_layer * layer);
      }
    }
    // Of the LAuReL's first half the magnitudes, of the projection the squares.
    uint64_t squares = 0, magnitudes = 0;
    through(thread_, shape.laurel, kThreads, [&](uint32_t channel) { magnitudes |= magnitude(raw[channel]); });
    through(thread_, shape.embedding, kThreads, [&](uint32_t channel) { squares += square(embedding[channel]); });
    see(squares, magnitudes, 0);
    Team::sync();

    const Seen seen = all_seen(0);
    // A warp for each head and every n-th block of the positions that are seen.
    const Positions positions = shape.seen(layer, position);
    const uint32_t part_bytes = Layout::part_bytes(shape);
    const uint32_t parts = min(layout.parts_kept / shape.heads, positions.blocks(position));
    char* const kept = at<char>(layout.parts);
    {
      const uint32_t chunks = (head_width + kChunk - 1) / kChunk;
      const char* const keys = shared_.step.cache.local + of_a_layer * shape.kv_source(layer);
#pragma unroll 1
      for (uint32_t item = warp_; item < parts * chunks * shape.heads; item += kWarps) {
        const uint32_t head = item % shape.heads, part = item / shape.heads % parts, chunk = item / shape.heads / parts * kChunk;
        const Head with{keys + 2ull * half_bytes * (head / (shape.heads / shape.kv_heads)),
                        shape.kv_block(),
                        head_width,
                        half_bytes,
                        at<char>(layout.queries) + head * head_width,
                        at<uint32_t>(layout.query_scales)[head],
                        shared_.factor,
                        tables().exp2};
        Attended* const to = reinterpret_cast<Attended*>(kept + part_bytes * (parts * head + part));
        language::attend<Team::kAtATime>(with, positions, chunk, part, parts, position, to, shared_.scratch[warp_], lane_);
      }
    }
    {
      const Root root = Root::of(seen.squares, shape.embedding, shape.epsilon);
      const Entry& entry = entries(layer)[kProjectionGain];
      const short* const factors = gain(entry);
      const int32_t shift = level_shift(entry.exponent, root);
      const Matrix rows = matrix(entries(layer)[kEmbedding]);
      const char* const row = rows.row(shared_.step.token);
      const int64 scale = rows.scale(shared_.step.token);
      through(thread_, shape.embedding, kThreads, [&](uint32_t channel) {
        const int32_t own = within(round_shift(static_cast<signed char>(row[channel]) * scale, -(rows.exponent + kFraction)));
        embedding[channel] = within(static_cast<int64>(level(embedding[channel], factors[channel], root, shift)) + own);
      });
    }
    int32_t* const laurel = at<int32_t>(layout.laurel);
    const Activation left = plain(shape.laurel, seen.magnitudes, [&](uint32_t channel) { return static_cast<int64>(raw[channel]); });
    product(entries(layer)[kRight], false, left, laurel, 1, 0);

    // A thread for each channel of the means, which take the place of the queries.
    place_ = 1;
    const Seen means = over<kNarrow>(shape.queries(), [&](uint32_t channel, uint64_t&, uint64_t& seen) {
      const int32_t mean = mean_of(kept + part_bytes * parts * (channel / head_width), parts, part_bytes, head_width, channel % head_width);
      heads[channel] = mean;
      seen |= magnitude(mean);
    });
    const Root laurel_root = root_of_mean(laurel, width);
    const Activation activation = plain(shape.queries(), means.magnitudes, [&](uint32_t channel) { return static_cast<int64>(heads[channel]); });
    product(entries(layer)[kOutput], false, activation, raw, 1, 0);
    Team::sync();

    const int32_t* const x = stream_of(0);
    const int32_t* const levelled = at<int32_t>(layout.levelled);
    int32_t* const found = at<int32_t>(layout.found);
    const Root root = root_of_mean(raw, width);
    const Entry &of_output = entries(layer)[kOutputGain], &of_laurel = entries(layer)[kLaurelGain], &of_hidden = entries(layer)[kHiddenGain];
    const short *const output_factors = gain(of_output), *const laurel_factors = gain(of_laurel), *const hidden_factors = gain(of_hidden);
    const int32_t shift = level_shift(of_output.exponent, root), laurel_shift = level_shift(of_laurel.exponent, laurel_root);
    const Seen all = over<kSquares | kWide>(width, [&](uint32_t channel, uint64_t& squares, uint64_t& magnitudes) {
      const int64 attended = within(static_cast<int64>(level(raw[channel], output_factors[channel], root, shift)) + x[channel]);
      const int64 around = within(static_cast<int64>(level(laurel[channel], laurel_factors[channel], laurel_root, laurel_shift)) + levelled[channel]);
      const int32_t value = within(round_shift((attended + around) * 46341, 16));
      found[channel] = value;
      squares += square(value);
      magnitudes |= magnitude(static_cast<int64>(value) * hidden_factors[channel]);
    });
    return normalised(found, of_hidden, all, shape.epsilon);
  }

  // The bound of the mean and so many deviations below which a gate is shut.
  __device__ __forceinline__ int64 cut_of(const int32_t* gate, uint32_t channels) {
    constexpr int32_t kMost = (1 << 24) - 1;
    const auto value = [&](uint32_t channel) { return clamp(gate[2 * channel], -kMost, kMost); };
    const Seen sums = over<kSquares>(channels, [&](uint32_t channel, uint64_t& sum, uint64_t&) { sum += static_cast<uint64_t>(value(channel)); });
    const int64 sum = static_cast<int64>(sums.squares), size = static_cast<int64>((magnitude(sum) + channels / 2) / channels);
    const int64 mean = sum < 0 ? -size : size;
    const Seen seen = over<kSquares>(channels, [&](uint32_t channel, uint64_t& squares, uint64_t&) {
      const uint64_t distance = magnitude(value(channel) - mean);
      squares += distance * distance;
    });
    const uint64_t variance = (seen.squares + channels / 2) / channels;
    const int64 deviation = static_cast<int64>(root_of(variance << 10));
    return mean + round_shift(deviation * kCut, 21) + (DOORBELL_FAULT(CutsMore) ? 1 : 0);
  }

  // What the layer has found, behind its feed-forward part.
  __device__ __forceinline__ void do_feed_forward(uint32_t layer, Activation input) {
    const Shape& shape = shared_.shape;
    const Layout& layout = shared_.layout;
    const uint32_t width = shape.width;
    // Of each row the gate and what it gates lie beside each other, and their product takes their place.
    int32_t* const gates = at<int32_t>(layout.products);
    int64* const products = at<int64>(layout.products);
    const uint32_t turn = product(entries(layer)[kGate], false, input, gates, 2, 0);
    product(entries(layer)[kUp], false, input, gates + 1, 2, turn);
    Team::sync();
    const bool cuts = layer < shape.cut;
    const int64 bound = cuts ? cut_of(gates, shape.hidden) : 0;
    const Seen seen = over<kWide>(shape.hidden, [&](uint32_t channel, uint64_t&, uint64_t& magnitudes) {
      constexpr int64 kMost = (1 << 24) - 1;
      int32_t gate = gates[2 * channel];
      const int32_t value = gates[2 * channel + 1];
      if (cuts) gate = clamp(clamp(clamp(gate, -kMost, kMost) - bound, 0, ~kLowest64));
      const int64 product = gated(gate, value);
      products[channel] = product;
      magnitudes |= magnitude(product);
    });
    const Activation activation = plain(shape.hidden, seen.magnitudes, [&](uint32_t channel) { return products[channel]; });
    int32_t* const raw = at<int32_t>(layout.raw);
    product(entries(layer)[kDown], false, activation, raw, 1, 0);
    Team::sync();
    int32_t* const found = at<int32_t>(layout.found);
    const Entry& entry = entries(layer)[kDownGain];
    const short* const factors = gain(entry);
    const Root root = root_of_mean(raw, width);
    const int32_t shift = level_shift(entry.exponent, root);
    through(thread_, width, kThreads, [&](uint32_t channel) {
      found[channel] = within(found[channel] + static_cast<int64>(level(raw[channel], factors[channel], root, shift)));
    });
    Team::sync();
  }

  // All streams, by what the first one's prediction lacked.
  __device__ __forceinline__ void do_correct(uint32_t layer) {
    const Shape& shape = shared_.shape;
    const uint32_t width = shape.width;
    const int32_t* const found = at<int32_t>(shared_.layout.found);
    route(layer, kCorrect, normalise(found, entries(layer)[kRouterGain], shape.epsilon));
    int32_t* const x = stream_of(0);
    through(thread_, width, kThreads, [&](uint32_t channel) {
      const int64 news = static_cast<int64>(found[channel]) - x[channel];
#pragma unroll
      for (uint32_t k = 0; k < kStreams; k++) {
        int32_t& value = x[width * k + channel];
        value = within(value + news + round_shift(news * shared_.coefficients[k], kFraction));
      }
    });
    Team::sync();
  }

  // The token's embedding of this layer, let through by the first stream, to all others.
  __device__ __forceinline__ void do_embedding(uint32_t layer) {
    const Shape& shape = shared_.shape;
    const Layout& layout = shared_.layout;
    const uint32_t width = shape.width;
    int32_t* const x = stream_of(0);
    int32_t* const raw = at<int32_t>(layout.raw);
    const int32_t* const embedding = at<int32_t>(layout.embedding);
    int64* const products = at<int64>(layout.products);
    const Seen first = over<kNarrow>(width, [&](uint32_t channel, uint64_t&, uint64_t& magnitudes) { magnitudes |= magnitude(x[channel]); });
    const Activation input = plain(width, first.magnitudes, [&](uint32_t channel) { return static_cast<int64>(x[channel]); });
    product(entries(layer)[kEmbeddingGate], false, input, raw, 1, 0);
    Team::sync();
    const Seen seen = over<kWide>(shape.embedding, [&](uint32_t channel, uint64_t&, uint64_t& magnitudes) {
      const int64 product = gated(raw[channel], embedding[channel]);
      products[channel] = product;
      magnitudes |= magnitude(product);
    });
    const Activation activation = plain(shape.embedding, seen.magnitudes, [&](uint32_t channel) { return products[channel]; });
    product(entries(layer)[kEmbeddingOutput], false, activation, raw, 1, 0);
    Team::sync();
    const Entry& entry = entries(layer)[kEmbeddingGain];
    const short* const factors = gain(entry);
    const Root root = root_of_mean(raw, width);
    const int32_t shift = level_shift(entry.exponent, root);
    through(thread_, width, kThreads, [&](uint32_t channel) {
      const int64 addend = level(raw[channel], factors[channel], root, shift);
#pragma unroll
      for (uint32_t k = DOORBELL_FAULT(AddsToFirst) ? 0 : 1; k < kStreams; k++) x[width * k + channel] = within(x[width * k + channel] + addend);
    });
    Team::sync();
  }

  // The sum of the streams, in the place of the first.
  __device__ __forceinline__ void do_merge() {
    const uint32_t width = shared_.shape.width;
    int32_t* const x = stream_of(0);
    int32_t* const raw = at<int32_t>(shared_.layout.raw);
    const Root first = root_of_mean(x, width);
#pragma unroll 1
    for (uint32_t k = 1; k < kStreams; k++) {
      const int32_t* const other = stream_of(k);
      const Seen seen = over<kNarrow>(width, [&](uint32_t channel, uint64_t&, uint64_t& magnitudes) { magnitudes |= magnitude(other[channel]); });
      const Activation activation = plain(width, seen.magnitudes, [&](uint32_t channel) { return static_cast<int64>(other[channel]); });
      product(shared_.streams[1][k - 1], false, activation, raw, 1, 0);
      Team::sync();
      const Root root = root_of_mean(raw, width);
      through(thread_, width, kThreads, [&](uint32_t channel) {
        x[channel] = within(static_cast<int64>(x[channel]) + rescale(raw[channel], root, first));
      });
    }
    Team::sync();
  }
};

}  // namespace language

#endif
