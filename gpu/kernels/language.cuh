// Engine 1 on one team, a block or a warp alone: a language model in integers, token by token, with no launch between. docs/engine.md says what
// every number is, docs/gpu-language.md (Engine 1: a rollout per block) which thread has what. All functions of `Block` are called by all threads of the
// team, with the same arguments. Here is Llama's shape; language_gemma.cuh has Gemma 3N's.
#ifndef DOORBELL_LANGUAGE_CUH
#define DOORBELL_LANGUAGE_CUH

#include "language_one.cuh"
#include "language_gemma.cuh"

namespace language {

template <typename Team>
class Block : Frame<Team> {
 public:
  // Before all else, once, by all threads of the block: its dynamic shared memory is this class's from here on.
  static __device__ __forceinline__ void open() {
    Tables& own = Base::tables();
    fill(own.log2, kLog2, 257);
    fill(own.ratio, kRatio, 257);
    fill(own.powers, kPowers, 1024);
    fill(own.exp2, kExp2, 256);
    fill(own.sigmoid, kSigmoid, 65);
    fill(own.tanh, kTanh, 257);
    fill(own.gelu, kGelu, 65);
    if (DOORBELL_FAULT(ChangesTable) && threadIdx.x == 37) own.exp2[37] -= 256;
    if (threadIdx.x == 0) own.meetings = 0;
#ifdef DOORBELL_PHASES
    if (threadIdx.x == 0) own.times = Times{};
#endif
    Base::fall_out();
    const Block team;
    if (team.lane_ == 0) {
      stream::begin_arrivals(&team.shared_.arrivals[team.warp_][0]);
      stream::begin_arrivals(&team.shared_.arrivals[team.warp_][1]);
      team.shared_.arrived[team.warp_] = 0;
      for (uint32_t k = team.warp_; k < 4; k += kWarps) {
        stream::begin_arrivals(&team.shared_.together[k]);
        team.shared_.brought[k] = 0;
      }
    }
    __syncthreads();
  }

  // The image of a model whose shape `fits`, at a multiple of 64 in memory that this team may read without further order.
  static __device__ __noinline__ void begin(const char* image) { Block().prepare(image); }

  // What all teams of a block read.
  static __device__ __forceinline__ const Tables& constants() { return Base::tables(); }

  // Between these two, behind `begin`, a team that has company in its block takes its steps together with those that run the same model. One
  // that others are not to wait for leaves both out.
  static __device__ __forceinline__ void fall_in() { Base::fall_in(); }
  static __device__ __forceinline__ void fall_out() { Base::fall_out(); }

  // Takes the token at `position`: its keys and values go into the cache, which holds those of all positions below, and, if `stored_to` is not
  // null, to the same place of that block in host memory, relaxed: whoever tells the host of them puts a release behind a barrier. With `samples`,
  // returns the token of the next position on every thread, drawn from all tokens or from those that are kept, or given. Neither token nor position is looked at: they are below the shape's vocabulary and
  // context. There is a barrier of the team behind everything, and the next step may begin at once.
  static __device__ __forceinline__ Sampled step(Cache cache, char* stored_to, uint32_t token, uint32_t position, bool samples,
                                                 Sampling sampling) {
    Base::meet(true);
    if (Team::thread() == 0) Block().shared_.step = Step{cache, stored_to, token, position, sampling};
    if (Block().shared_.shape.is_gemma()) {
      Gemma<Team>::step(token, position);
      if (!samples) return Sampled{0, 0};
      return sampling.truncates() || sampling.is_given() ? sample_kept_gemma() : sample_gemma();
    }
    embed(token, position);
#pragma unroll 1
    for (uint32_t layer = 0; layer < Block().shared_.shape.layers; layer++) {
      Base::meet(false);
      project(layer);
      attend(layer);
      feed_forward(layer);
    }
    if (!samples) return Sampled{0, 0};
    return sampling.truncates() || sampling.is_given() ? sample_kept() : sample();
  }

  // Bytes of device memory that `prefill` needs beside the cache, a multiple of 64; 0 if this model's prompts go step by step.
  static __device__ __forceinline__ uint64_t scratch() { return ChunkLayout::scratch_of<Team>(Block().shared_.shape); }

  // Takes a chunk of a prompt, of whose positions none is sampled: language_prefill.cuh. `local` are all keys and values of the sequence. Scratch begins
  // at a multiple of 64. False if ends() said so, which is asked in each layer and has a barrier of the team in it.
  template <typename Token, typename Ends>
  static __device__ __noinline__ bool prefill(const Chunk& chunk, char* local, Token token, Ends ends) {
    if constexpr (Team::kTeams == 1) return Prefill<Team>::run(chunk, local, token, ends);
    return true;
  }

  // Behind `prefill`, before the next: the log-probability of the token that is given at the position behind the chunk's position `column`.
  static __device__ __noinline__ Sampled score(const Chunk& chunk, uint32_t column, const Sampling& sampling) {
    if constexpr (Team::kTeams != 1) return Sampled{0, 0};
    Block team;
    Shared<Team>& shared = team.shared_;
    const uint32_t width = shared.shape.width;
    if (Team::thread() == 0) shared.step = Step{Cache{nullptr, nullptr}, nullptr, 0, chunk.position + column, sampling};
    team.copy(team.template at<char>(shared.layout.gain), shared.image + shared.last_gain.offset, 2 * width);
    const int32_t* const x = reinterpret_cast<const int32_t*>(chunk.scratch) + width * column;
    for (uint32_t channel = team.thread_; channel < width; channel += kThreads) team.template at<int32_t>(shared.layout.x)[channel] = x[channel];
    stream::wait_for_copies();
    Team::sync();
    return sample_kept();
  }

  // The token of a column whose draws are truncated, behind a step of several columns: of the logits in its cache, and of what `ranks` ranks have found of it, each
  // kColumns behind the other.
  static __device__ __noinline__ Sampled draw(const Column& column, const Candidate* candidates, uint32_t ranks) {
    Block team;
    Shared<Team>& shared = team.shared_;
    const Sampling sampling = column.sampling;
    if (Team::thread() == 0)
      shared.step = Step{Cache{column.cache, column.logits}, nullptr, column.token, column.position, sampling};
    Team::sync();
    Sampler sampler(team.tables(), sampling.sharpness, Draw::of(sampling.seed, sampling.rollout, column.position + 1));
    for (uint32_t rank = 0; rank < ranks; rank++) sampler.join(candidates[kColumns * rank]);
    team.draw_kept(sampler, sampling, team.matrix(shared.tokens).rows);
    return sampler.sampled();
  }

 private:
  using Base = Frame<Team>;
  using Base::all_seen, Base::activate, Base::activate_plain, Base::copy, Base::end, Base::entries, Base::kThreads, Base::kWarps,
      Base::lane_, Base::matrix, Base::put, Base::see, Base::shared_, Base::stretches, Base::swish, Base::tables, Base::thread_, Base::vector, Base::warp_;

  template <typename T>
  __device__ __forceinline__ T* at(uint32_t offset) const {
    return Base::template at<T>(offset);
  }

  template <typename T>
  static __device__ __forceinline__ void fill(T* to, const T* from, uint32_t count) {
    for (uint32_t k = threadIdx.x; k < count; k += kBlockThreads) to[k] = from[k];
  }

  __device__ __forceinline__ void prepare(const char* image) {
    Team::sync();
    stream::subscribe();
    const Shape shape = Shape::read(image);
    const uint32_t behind = first_entry(shape, shape.layers);
    const auto entry = [&](uint32_t index) { return *reinterpret_cast<const Entry*>(entry_at(image, index)); };
    if (thread_ == 0) {
      shared_.shape = shape;
      shared_.image = image;
      shared_.gain_offset = entry(first_entry(shape, 0) + kAttentionGain).offset;
      shared_.rope_offset = entry(kRopeEntry).offset;
      uint32_t last = behind;
      if (shape.is_gemma()) {
        shared_.global_rope_offset = entry(kRopeEntry + 1).offset;
        for (uint32_t k = 0; k < kStreams - 1; k++) {
          shared_.streams[0][k] = entry(kSplitEntry + k);
          shared_.streams[1][k] = entry(last++);
        }
      }
      shared_.last_gain = entry(last);
      shared_.tokens = entry(last + 1);
      shared_.factor = kScoreFactor[shape.head_width / 32 - 1];
      shared_.layout = Layout::of<Team>(shape, static_cast<uint32_t>(sizeof(Shared<Team>)), kTeamBytes<Team>);
    }
    Team::sync();
  }

  // The residual stream, normalised with the gain in shared memory: RMSNorm.
  __device__ __forceinline__ Activation normalise(const Shape& shape, int32_t gain_exponent) {
    const int32_t* const x = at<int32_t>(shared_.layout.x);
    const short* const gain = at<short>(shared_.layout.gain);
    uint64_t squares = 0, magnitudes = 0;
    for (uint32_t channel = thread_; channel < shape.width; channel += kThreads) {
      const uint64_t size = magnitude(x[channel]);
      squares += size * size;
      magnitudes |= magnitude(static_cast<int64>(x[channel]) * gain[channel]);
    }
    see(squares, magnitudes);
    Team::sync();
    const Seen seen = all_seen();
    const Root root = Root::of(seen.squares, shape.width, shape.epsilon);
    const int32_t shift =
        activate(shape.width, seen.magnitudes, [&](uint32_t channel) { return static_cast<int64>(x[channel]) * gain[channel]; });
    return Activation{root.inverse, gain_exponent - kFraction - 36 + root.up / 2 + shift};
  }

  // The phases of a step. Each ends with a barrier of the team. They are functions of their own, so that no register of one is held in another.
  static __device__ __noinline__ void embed(uint32_t token, uint32_t position) { Block().do_embed(token, position); }
  static __device__ __noinline__ void project(uint32_t layer) { Block().do_project(layer); }
  static __device__ __noinline__ void attend(uint32_t layer) { Block().do_attend(layer); }
  static __device__ __noinline__ void feed_forward(uint32_t layer) { Block().do_feed_forward(layer); }
  static __device__ __noinline__ Sampled sample() { return Block().template do_sample<false, false>(); }
  static __device__ __noinline__ Sampled sample_gemma() { return Block().template do_sample<true, false>(); }
  static __device__ __noinline__ Sampled sample_kept() { return Block().template do_sample<false, true>(); }
  static __device__ __noinline__ Sampled sample_kept_gemma() { return Block().template do_sample<true, true>(); }

  // The residual stream of a token, and what else the first layer needs.
  __device__ __forceinline__ void do_embed(uint32_t token, uint32_t position) {
    const Shape& shape = shared_.shape;
    const char* const image = shared_.image;
    int32_t* const x = at<int32_t>(shared_.layout.x);
    copy(shared_.entries[0], entry_at(image, kFirstLayerEntry), kParts * sizeof(Entry));
    copy(at<char>(shared_.layout.gain), image + shared_.gain_offset, 2 * shape.width);
    copy(shared_.turns[0], image + shared_.rope_offset + 2ull * shape.head_width * position, 2 * shape.head_width);
    const Matrix tokens = matrix(shared_.tokens);
    const char* const row = tokens.row(token);
    const int64 scale = tokens.scale(token);
    for (uint32_t channel = thread_; channel < shape.width; channel += kThreads) {
      const int64 value = static_cast<signed char>(row[channel]) * scale;
      x[channel] = static_cast<int32_t>(clamp(round_shift(value, -(tokens.exponent + kFraction)), -kResidual, kResidual));
    }
    stream::wait_for_copies();
    Team::sync();
  }

  // Queries, keys and values, one behind the other, as their matrices lie.
  __device__ __forceinline__ void do_project(uint32_t layer) {
    const Shape& shape = shared_.shape;
    const Activation activation = normalise(shape, entries(layer)[kAttentionGain].exponent);
    Team::sync();
    // Meanwhile what the next layer needs of the directory comes, and this one's second gain, in the place of the first.
    copy(at<char>(shared_.layout.gain), shared_.image + entries(layer)[kHiddenGain].offset, 2 * shape.width);
    if (layer + 1 < shape.layers)
      copy(shared_.entries[(layer + 1) % 2], entry_at(shared_.image, kFirstLayerEntry + kParts * (layer + 1)), kParts * sizeof(Entry));
    uint32_t tasks = 0;
    int32_t* to = at<int32_t>(shared_.layout.heads);
#pragma unroll 1
    for (uint32_t part = kQuery; part <= kValue; part++) {
      const Matrix rows = matrix(entries(layer)[part]);
      multiply<Team, 4, kBroad>(stretches(), rows, vector(), activation, end(), (warp_ + tasks) % kWarps, lane_, [&](uint32_t row, int32_t value) { to[row] = value; });
      to += rows.rows;
      // The next matrix begins with the warp that has least to do.
      tasks += kWarps - (stretches().takes(rows.lines) ? (rows.rows + kGroups - 1) / kGroups : rows.rows / (4 * kGroups)) % kWarps;
    }
    stream::wait_for_copies();
    Team::sync();
  }

  // x += W_o * attention.
  __device__ __forceinline__ void do_attend(uint32_t layer) {
    char* const local = shared_.step.cache.local;
    const uint32_t position = shared_.step.position;
    const Shape& shape = shared_.shape;
    const Layout& layout = shared_.layout;
    int32_t* const heads = at<int32_t>(layout.heads);

    // A warp for each head of queries, keys and values.
    const uint32_t width = shape.head_width, half_bytes = shape.kv_half();
    const uint64_t layer_offset = 2ull * shape.kv_heads * half_bytes * layer;
    unsigned char* const scratch = reinterpret_cast<unsigned char*>(shared_.scratch[warp_]);
#pragma unroll 1
    for (uint32_t head = warp_; head < shape.heads + 2 * shape.kv_heads; head += kWarps) {
      const bool turned = head < shape.heads + shape.kv_heads;
      const uint32_t scale = store(heads + head * width, width, turned ? shared_.turns[0] : nullptr, scratch, lane_);
      put(shape, head, scale, scratch, layer_offset);
    }
    Team::sync();

    // A warp for each head and every n-th block of positions.
    const uint32_t part_bytes = Layout::part_bytes(shape);
    const Positions seen = shape.seen(layer, position);
    const uint32_t parts = min(layout.parts_kept / shape.heads, seen.blocks(position));
    char* const kept = at<char>(layout.parts);
    const uint32_t chunks = (width + kChunk - 1) / kChunk;
#pragma unroll 1
    for (uint32_t item = warp_; item < parts * chunks * shape.heads; item += kWarps) {
      const uint32_t head = item % shape.heads, part = item / shape.heads % parts, chunk = item / shape.heads / parts * kChunk;
      const uint32_t kv_head = head / (shape.heads / shape.kv_heads);
      const Head with{local + layer_offset + 2ull * half_bytes * kv_head,
                      shape.kv_block(),
                      width,
                      half_bytes,
                      at<char>(layout.queries) + head * width,
                      at<uint32_t>(layout.query_scales)[head],
                      shared_.factor,
                      tables().exp2};
      Attended* const to = reinterpret_cast<Attended*>(kept + part_bytes * (parts * head + part));
      language::attend<Team::kAtATime>(with, seen, chunk, part, parts, position, to, shared_.scratch[warp_], lane_);
    }
    Team::sync();

    // A thread for each channel of the means, which take the place of the queries.
    uint64_t magnitudes = 0;
#pragma unroll 1
    for (uint32_t channel = thread_; channel < shape.queries(); channel += kThreads) {
      const int32_t mean = mean_of(kept + part_bytes * parts * (channel / width), parts, part_bytes, width, channel % width);
      heads[channel] = mean;
      magnitudes |= magnitude(mean);
    }
    see(0, magnitudes);
    Team::sync();
    const Activation activation = activate_plain(shape.queries(), [&](uint32_t channel) { return static_cast<int64>(heads[channel]); });
    Team::sync();
    add_product(entries(layer)[kOutput], activation);
    Team::sync();
  }

  // x += W_down * (swish(W_gate * b) * (W_up * b)), b = normalise(x).
  __device__ __forceinline__ void do_feed_forward(uint32_t layer) {
    const Shape& shape = shared_.shape;
    int64* const products = at<int64>(shared_.layout.products);
    {
      const Activation activation = normalise(shape, entries(layer)[kHiddenGain].exponent);
      Team::sync();
      // Four lanes have two rows of the gate, and the same rows of what it gates: a lane each.
      const Matrix gate = matrix(entries(layer)[kGate]), up = matrix(entries(layer)[kUp]);
      const char* const last = end();
      const bool gates = lane_ % kQuarters < 2;
      const int32_t shift = shift_of(gates ? gate.exponent : up.exponent, activation.exponent);
      uint64_t magnitudes = 0;
      const auto keep = [&](uint32_t row, int32_t value, int32_t other) {
        const int64 product = round_shift(static_cast<int64>(swish(value)) * other, kFraction);
        products[row] = product;
        magnitudes |= magnitude(product);
      };
      const Stretches stretches = this->stretches();
      const bool takes = stretches.takes(gate.lines);
      if (takes) {
        // Rows of the gate, then the same of what it gates.
        const int32_t up_shift = shift_of(up.exponent, activation.exponent), gate_shift = shift_of(gate.exponent, activation.exponent);
        dots<Team, kQuarters, 2>(
            stretches, vector(), gate.lines, kGroups, warp_, gate.rows / kGroups, lane_,
            [&](uint32_t task, uint32_t part, uint32_t& bytes) {
              bytes = kGroups * gate.stride();
              return (part == 0 ? gate : up).row(kGroups * task);
            },
            [&](uint32_t task) {
              const uint32_t row = kGroups * task + lane_ / kQuarters;
              return gate.scale(row) | up.scale(row) << 16;
            },
            [&](uint32_t task, const int32_t(&sums)[2], uint32_t scales) {
              const int32_t value = requantise(sums[0], scales & 0xFFFF, activation.scale, gate_shift);
              const int32_t other = requantise(sums[1], scales >> 16, activation.scale, up_shift);
              if (lane_ % kQuarters == 0) keep(kGroups * task + lane_ / kQuarters, value, other);
            });
      }
      for (uint32_t first = takes ? gate.rows : 2 * kGroups * warp_; first < gate.rows; first += 2 * kGroups * kWarps) {
        prefetch(gate.row(first), 2 * kGroups * gate.stride(), last, lane_);
        prefetch(up.row(first), 2 * kGroups * up.stride(), last, lane_);
        const uint32_t row = first + lane_ / kQuarters, own_row = row + kGroups * (lane_ % 2);
        const char* const rows[kQuarters] = {gate.row(row), gate.row(row + kGroups), up.row(row), up.row(row + kGroups)};
        const uint32_t scale = gates ? gate.scale(own_row) : up.scale(own_row);
        const int32_t value = requantise(dots<kQuarters, kBroad>(rows, vector(), gate.lines, lane_), scale, activation.scale, shift);
        const int32_t other = __shfl_xor_sync(kEveryLane, value, 2);
        if (gates) keep(own_row, value, other);
      }
      see(0, magnitudes);
      Team::sync();
    }
    const Activation activation = activate_plain(shape.hidden, [&](uint32_t channel) { return products[channel]; });
    Team::sync();
    // Meanwhile the next gain comes.
    const Entry& gain = layer + 1 < shape.layers ? entries(layer + 1)[kAttentionGain] : shared_.last_gain;
    copy(at<char>(shared_.layout.gain), shared_.image + gain.offset, 2 * shape.width);
    add_product(entries(layer)[kDown], activation);
    stream::wait_for_copies();
    Team::sync();
  }

  // Logits, and of them the next token. A warp takes 32 rows at a time, so that each of its lanes ends with one. With kKept the token is given, or
  // drawn behind all logits from those that are kept, which only then is known.
  template <bool kGemma, bool kKept>
  __device__ __forceinline__ Sampled do_sample() {
    const Sampling sampling = shared_.step.sampling;
    Activation activation;
    if constexpr (kGemma) {
      activation = Gemma<Team>::normalise_sum();
    } else {
      activation = normalise(shared_.shape, shared_.last_gain.exponent);
      Team::sync();
    }
    const Matrix tokens = matrix(shared_.tokens);
    const char* const last = end();
    Sampler sampler(tables(), sampling.sharpness, Draw::of(sampling.seed, sampling.rollout, shared_.step.position + 1));
    const auto take = [&](bool is, uint32_t row, int32_t value) {
      const int32_t logit = kGemma ? Gemma<Team>::softcap(value) : value;
      if constexpr (kKept) {
        // Until it is known what is kept, the most likely one is the best.
        if (is) sampler.keep(sampling.is_given() ? row == sampling.given : logit, row, logit);
        if (is && !sampling.is_given()) shared_.step.cache.logits[row] = logit;
        sampler.count(is, logit);
      } else {
        sampler.add(is, row, logit);
      }
    };
    const int32_t shift = shift_of(tokens.exponent, activation.exponent);
    const Stretches stretches = this->stretches();
    const bool takes = stretches.takes(tokens.lines), is_narrow = kWarps == 1 && tokens.lines == 1;
    if (is_narrow) {
      take_lines(tokens, vector(), activation, lane_, take);
    } else if (takes) {
      const auto own_row = [&](uint32_t task) { return kBlock * task + kGroups * (lane_ % kQuarters) + lane_ / kQuarters; };
      dots<Team, kQuarters, kQuarters>(
          stretches, vector(), tokens.lines, kGroups, warp_, (tokens.rows + kBlock - 1) / kBlock, lane_,
          [&](uint32_t task, uint32_t part, uint32_t& bytes) {
            const uint32_t row = kBlock * task + kGroups * part;
            bytes = row < tokens.rows ? min(kGroups, tokens.rows - row) * tokens.stride() : 0;
            return tokens.row(row);
          },
          [&](uint32_t task) { return own_row(task) < tokens.rows ? tokens.scale(own_row(task)) : 0; },
          [&](uint32_t task, const int32_t(&sums)[kQuarters], uint32_t scale) {
            const uint32_t row = own_row(task);
            take(row < tokens.rows, row, requantise(own(sums, lane_), scale, activation.scale, shift));
          });
    }
#pragma unroll 1
    for (uint32_t first = takes || is_narrow ? tokens.rows : kBlock * warp_; first < tokens.rows; first += kBlock * kWarps) {
      prefetch(tokens.row(first), kBlock * tokens.stride(), last, lane_);
      const char* rows[kQuarters];
#pragma unroll
      for (uint32_t r = 0; r < kQuarters; r++) rows[r] = tokens.row(min(first + kGroups * r + lane_ / kQuarters, tokens.rows - 1));
      const uint32_t row = first + kGroups * (lane_ % kQuarters) + lane_ / kQuarters;
      const bool is = row < tokens.rows;
      const uint32_t scale = is ? tokens.scale(row) : 0;
      take(is, row, requantise(dots<kQuarters, kBroad>(rows, vector(), tokens.lines, lane_), scale, activation.scale, shift));
    }
    join(sampler);
    if constexpr (kKept) {
      if (!sampling.is_given()) draw_kept(sampler, sampling, tokens.rows);
    }
    return sampler.sampled();
  }

  // What all warps have found. What they have written to memory before is seen behind it.
  __device__ __forceinline__ void join(Sampler& sampler) {
    const Candidate candidate = sampler.candidate();
    if (lane_ == 0) shared_.candidates[warp_] = candidate;
    Team::sync();
    for (uint32_t k = 0; k < kWarps; k++)
      if (k != warp_) sampler.join(shared_.candidates[k]);
  }

  // The sum of value(logit) over the vocabulary, on every thread; two calls behind each other have different places.
  template <typename Value>
  __device__ __forceinline__ uint64_t sum_over(uint32_t vocabulary, uint32_t place, Value value) {
    const int32_t* const logits = shared_.step.cache.logits;
    uint64_t sum = 0;
#pragma unroll 1
    for (uint32_t token = thread_; token < vocabulary; token += kThreads) sum += value(logits[token]);
    see(sum, 0, place);
    Team::sync();
    return all_seen(place).squares;
  }

  // Draws anew, of the logits in the cache, among those that are kept: docs/engine.md, Truncation. `sampler` has the most likely token.
  __device__ __forceinline__ void draw_kept(Sampler& sampler, const Sampling& sampling, uint32_t vocabulary) {
    const int64 most = power_of(sampler.logit(), sampling.sharpness);
    Kept kept{0, 0x7FFFFFFFFFFFFFFFll, (most + 1023) >> 10 << 10, sampling.sharpness};
    uint32_t place = 0;
    if (sampling.top_k != 0 && sampling.top_k < vocabulary) {
      // The largest bound that so many do not fall below, from its highest bit on.
#pragma unroll 1
      for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1, place ^= 1) {
        const uint32_t bound = kept.lowest | bit;
        const uint64_t above = sum_over(vocabulary, place, [&](int32_t logit) { return Kept::order_of(logit) >= bound ? 1u : 0u; });
        if (above >= sampling.top_k) kept.lowest = bound;
      }
    }
    if (sampling.top_p != 0) {
      const auto within = [&](int64 end) {
        const uint64_t sum = sum_over(vocabulary, place, [&](int32_t logit) {
          const int64 below = kept.below(logit);
          return Kept::order_of(logit) >= kept.lowest && below < end ? power_of_logit(tables().powers, below) : 0u;
        });
        place ^= 1;
        return sum;
      };
      const uint64_t missing = (sampling.top_p * within(0x7FFFFFFFFFFFFFFFll) + 0xFFFF) >> 16;
      // The farthest end before which less than that lies: at it there is enough.
      int64 end = 0;
#pragma unroll 1
      for (int64 step = 1 << 14; step != 0; step >>= 1)
        if (within(end + step) < missing) end += step;
      kept.farthest = end;
    }
    if (sampling.min_p != 0) {
      const int64 farthest = kept.ceiling - most + sampling.min_p;
      if (farthest < kept.farthest) kept.farthest = farthest;
    }
    if (DOORBELL_FAULT(KeepsOneMore) && kept.farthest != 0x7FFFFFFFFFFFFFFFll) kept.farthest += 64;
    Sampler drawn(tables(), sampling.sharpness, Draw::of(sampling.seed, sampling.rollout, shared_.step.position + 1));
    const int32_t* const logits = shared_.step.cache.logits;
#pragma unroll 1
    for (uint32_t token = thread_; token < vocabulary; token += kThreads)
      if (kept.has(logits[token])) drawn.pick(token, logits[token]);
    // Everybody has read what the warps found before.
    Team::sync();
    join(drawn);
    sampler.choose(drawn.token(), drawn.logit());
  }

  // Adds a matrix times the activation to the residual stream.
  __device__ __forceinline__ void add_product(const Entry& entry, Activation activation) {
    int32_t* const x = at<int32_t>(shared_.layout.x);
    multiply<Team, 1, kDeep>(stretches(), matrix(entry), vector(), activation, end(), warp_, lane_, [&](uint32_t row, int32_t value) {
      x[row] = static_cast<int32_t>(clamp(static_cast<int64>(x[row]) + value, -kResidual, kResidual));
    });
  }
};

}  // namespace language

#endif
