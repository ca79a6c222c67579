// A model of engine 1 as a block sees it: the image in device memory (docs/engine.md, The image), and what the block keeps in shared
// memory.
#ifndef DOORBELL_LANGUAGE_MODEL_CUH
#define DOORBELL_LANGUAGE_MODEL_CUH

#include "device_state.cuh"
#include "language_memory.cuh"
#include "language_number.cuh"

namespace language {

// Who runs a rollout: all warps of a block, or, where a model is small, a warp alone, of which each of a block's has a rollout of its own. `thread`
// is a thread's number in its team; all of a team come to `sync`, which orders their memory. Of an attention's values, kAtATime of a channel are on their
// way to a lane at a time.
struct Whole {
  static constexpr uint32_t kTeams = 1, kWarps = kBlockWarps, kThreads = kBlockThreads, kAtATime = 16;
  static __device__ __forceinline__ uint32_t number() { return 0; }
  static __device__ __forceinline__ uint32_t thread() { return threadIdx.x; }
  static __device__ __forceinline__ void sync() { __syncthreads(); }
  // A barrier at which some warps only arrive, and the others `wait` for all. Nobody waits for what a warp does between `arrive` and `has_arrived`.
  static __device__ __forceinline__ void arrive() {
#ifdef __CUDA_ARCH__
    asm volatile("bar.arrive 1, %0;" :: "n"(kThreads) : "memory");
#endif
  }
  static __device__ __forceinline__ void has_arrived() {
#ifndef __CUDA_ARCH__
    __syncthreads();
#endif
  }
  static __device__ __forceinline__ void wait() {
#ifdef __CUDA_ARCH__
    asm volatile("bar.sync 1, %0;" :: "n"(kThreads) : "memory");
#else
    __syncthreads();
#endif
  }
};
struct Single {
  static constexpr uint32_t kTeams = kBlockWarps, kWarps = 1, kThreads = kWarp, kAtATime = 8;
  static __device__ __forceinline__ uint32_t number() { return threadIdx.x / kWarp; }
  static __device__ __forceinline__ uint32_t thread() { return threadIdx.x % kWarp; }
  static __device__ __forceinline__ void sync() { __syncwarp(); }
};

// Positions of a block of keys and values, channels that share a shift, tokens of the vocabulary that share a maximum.
constexpr uint32_t kBlock = 32;
static_assert(kBlock == kWarp, "a lane for each");
// Bytes of a line: rows of weights begin at multiples of it.
constexpr uint32_t kLine = 64;
constexpr uint32_t kHeader = 128;  // bytes of an image ahead of its directory
// Dynamic shared memory that a block of engine 1 takes at most; and what a block of its kernels has, with front ends among them: what every GPU of compute
// capability 9.0 or later has beside `kMostJobs`.
constexpr uint32_t kMostShared = 200 << 10, kBlockShared = 207 << 10;
// The block's: tables, then each team's.
extern __shared__ uint4 language_memory[];
// Parts of attentions, of a head and some blocks each, that are kept at a time if they are to have no more than this.
constexpr uint32_t kMostParts = 64, kMostPartBytes = 80 << 10;
// Residual streams of Gemma 3N's shape.
constexpr uint32_t kStreams = 4;

// Positions that a token sees: those of the first blocks, the sinks, and from one on up to its own.
struct Positions {
  uint32_t sinks, from;  // `from` lies behind the sinks

  // How many blocks have one of them, and the block that is so many blocks behind the first one.
  __device__ __forceinline__ uint32_t blocks(uint32_t position) const { return sinks + position / kBlock + 1 - from / kBlock; }
  __device__ __forceinline__ uint32_t block(uint32_t which) const { return which < sinks ? which : which - sinks + from / kBlock; }
  __device__ __forceinline__ bool has(uint32_t block, uint32_t lane) const { return block < sinks || kBlock * block + lane >= from; }
};

// Of Llama's shape, or of Gemma 3N's: the second has `embedding`, and the first has 0 there and in all behind it but the cap.
struct Shape {
  uint32_t width, layers, heads, kv_heads, head_width, hidden, vocabulary, context, epsilon;
  uint32_t embedding, laurel, window, global, cut;
  // What a layer without a window of its own sees: the last and the first positions. A window of 0 is none.
  uint32_t cap_window, cap_sinks;
  uint32_t own;

  // Words of both parts, and where in an image they begin. `own` is the upper half of the word of the layers there.
  static constexpr uint32_t kCommon = 9, kGemma = 7, kCommonAt = 24, kGemmaAt = 64, kLayers = 1;

  static __device__ __forceinline__ Shape read(const char* image) {
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(image + kCommonAt);
    const uint32_t* const more = reinterpret_cast<const uint32_t*>(image + kGemmaAt);
    return Shape{words[0], words[kLayers] & 0xFFFF, words[2], words[3], words[4], words[5], words[6], words[7],
                 words[8], more[0], more[1], more[2], more[3], more[4], more[5], more[6], words[kLayers] >> 16};
  }

  __device__ __forceinline__ uint32_t queries() const { return heads * head_width; }
  __device__ __forceinline__ uint32_t keys() const { return kv_heads * head_width; }
  // Bytes of keys, or of values, of a head in a block of 32 positions: a line of scales, then the mantissas.
  __device__ __forceinline__ uint32_t kv_half() const { return kLine + kBlock * head_width; }
  // Bytes of a block of keys and values.
  __device__ __forceinline__ uint64_t kv_block() const { return 2ull * kv_layers() * kv_heads * kv_half(); }

  __device__ __forceinline__ bool is_gemma() const { return embedding != 0; }
  // Layers that have keys and values of their own: the first ones.
  __device__ __forceinline__ uint32_t kv_layers() const { return is_gemma() ? own : layers; }
  // Of Gemma 3N's shape: whether a layer sees all tokens before it, the layer whose keys and values it reads, and the first position that its
  // token at `position` sees.
  __device__ __forceinline__ bool is_global(uint32_t layer) const { return layer % global == global - 1; }
  __device__ __forceinline__ uint32_t kv_source(uint32_t layer) const {
    if (layer < own) return layer;
    if (DOORBELL_FAULT(SharesLast)) return own - 1;
    if (is_global(layer)) return own / global * global - 1;
    return is_global(own - 1) ? own - 2 : own - 1;
  }
  // As Shape::seen of crate lm.
  __device__ __forceinline__ Positions seen(uint32_t layer, uint32_t position) const {
    const bool is_local = is_gemma() && !is_global(layer);
    const uint32_t last = (is_local ? window : cap_window) + (DOORBELL_FAULT(SeesBefore) ? 1 : 0), sinks = is_local ? 0 : cap_sinks;
    if ((!is_local && cap_window == 0) || position < last) return Positions{0, 0};
    const uint32_t from = position + 1 - last;
    return from <= sinks ? Positions{0, 0} : Positions{sinks / kBlock, from};
  }
};
static_assert(sizeof(Shape) == 4 * (Shape::kCommon + Shape::kGemma + 1), "words");

// An entry of the directory.
struct alignas(16) Entry {
  uint16_t kind, layer;
  int32_t exponent;
  uint32_t rows, columns;
  uint64_t offset, bytes;
};
static_assert(sizeof(Entry) == 32, "as the image has it");

// Entries of a layer, in their order: of Llama's shape the first ones, of Gemma 3N's all, but for those of keys and values where the layer has none.
enum Part : uint32_t {
  kAttentionGain, kQuery, kKey, kValue, kOutput, kHiddenGain, kGate, kUp, kDown, kParts,
  kRouterGain = kParts, kRouter, kPredict, kCorrect, kQueryGain, kKeyGain, kValueGain, kOutputGain, kLeft, kRight, kLaurelGain, kDownGain,
  kEmbedding, kProjection, kProjectionGain, kEmbeddingGate, kEmbeddingOutput, kEmbeddingGain, kGemmaParts
};
// Which of them are gains, the others being matrices; and which are of keys and values.
constexpr uint32_t kGains = 1u << kAttentionGain | 1u << kHiddenGain | 1u << kRouterGain | 1u << kQueryGain | 1u << kKeyGain | 1u << kValueGain |
                            1u << kOutputGain | 1u << kLaurelGain | 1u << kDownGain | 1u << kProjectionGain | 1u << kEmbeddingGain;
constexpr uint32_t kOfKeys = 1u << kKey | 1u << kValue | 1u << kKeyGain | 1u << kValueGain, kKeyParts = 4;
// Where those of the turns begin, and of Llama's shape a layer's.
constexpr uint32_t kRopeEntry = 2, kFirstLayerEntry = 3;
// Where of Gemma 3N's shape those of the streams begin, and a layer's.
constexpr uint32_t kSplitEntry = 4, kFirstGemmaEntry = 7;

// Where a layer's entries begin, or, for as many layers as there are, what stands behind the last one's.
__device__ __forceinline__ uint32_t first_entry(const Shape& shape, uint32_t layer) {
  if (!shape.is_gemma()) return kFirstLayerEntry + kParts * layer;
  return kFirstGemmaEntry + (kGemmaParts - kKeyParts) * layer + kKeyParts * min(layer, shape.own);
}

__device__ __forceinline__ const char* entry_at(const char* image, uint32_t index) {
  return image + kHeader + static_cast<uint64_t>(sizeof(Entry)) * index;
}

// A matrix of the image.
struct Matrix {
  const char* weights;
  uint32_t rows, lines;
  int32_t exponent;

  static __device__ __forceinline__ Matrix of(const char* image, const Entry& entry) {
    const Matrix matrix{image + entry.offset, entry.rows, (entry.columns + kLine - 1) / kLine, entry.exponent};
    // With the scales of its rows.
    stream::lies(matrix.weights, static_cast<uint64_t>(matrix.rows) * (matrix.stride() + 2));
    return matrix;
  }
  __device__ __forceinline__ uint32_t stride() const { return lines * kLine; }
  __device__ __forceinline__ const char* row(uint32_t row) const { return weights + static_cast<uint64_t>(row) * stride(); }
  // The scale of a row.
  __device__ __forceinline__ uint32_t scale(uint32_t row) const {
    return reinterpret_cast<const uint16_t*>(weights + static_cast<uint64_t>(rows) * stride())[row];
  }
};

// Keys and values of a sequence in device memory: its blocks of 32 positions in order, each laid out as docs/isa.md says, a multiple of 64.
struct Cache {
  char* local;
  int32_t* logits;  // a word for each token of the vocabulary; only of a rollout whose draws are truncated
};

// No token: what DOORBELL_TOKEN_NONE is, and no vocabulary has.
constexpr uint32_t kNoToken = 0xFFFFFFFFu;

// How the tokens of a rollout are drawn. A sharpness of 0 is temperature 0.
struct Sampling {
  uint32_t sharpness, seed, rollout;
  uint32_t top_k, top_p, min_p;  // what leaves tokens out; 0 leaves out none
  uint32_t given;                // kNoToken, or the token whose log-probability is wanted

  // The most likely token is always kept.
  __device__ __forceinline__ bool truncates() const { return sharpness != 0 && (top_k | top_p | min_p) != 0; }
  __device__ __forceinline__ bool is_given() const { return given != kNoToken; }
};

// What a step is told.
struct Step {
  Cache cache;
  char* stored_to;
  uint32_t token, position;
  Sampling sampling;
};

// What of an activation belongs to all its channels.
struct Activation {
  uint32_t scale;
  int32_t exponent;
};

// Σ x² and the bits of all magnitudes that a warp has seen.
struct alignas(16) Seen {
  uint64_t squares, magnitudes;
};

// Bins of a vocabulary that count: lm/src/sample.rs.
constexpr uint32_t kBins = 3;

// What a warp knows of the vocabulary: its best token, and Σ 2^y in three bins, `highest` and those below.
struct Candidate {
  int64 key;
  int64 sums[kBins];
  int32_t highest;
  uint32_t token;
  int32_t logit;
};

// Part of an attention: two bins of the weights, behind which those of the values stand, `highest` and the one below.
struct alignas(16) Attended {
  int64 weights[2];
  int32_t highest;
};

// Where in a team's shared memory what depends on the shape lies, in bytes.
struct Layout {
  uint32_t x, gain, mantissas, shifts, query_scales, queries, heads, parts, products, stretches, end;
  uint32_t stretch;      // bytes of a stretch of weights, of which each warp has two; 0 where there is no room
  uint32_t shifts_half;  // bytes of one of the two rows of shifts
  uint32_t parts_kept;   // parts of attentions that are kept at a time
  // Of Gemma 3N's shape: what the first stream begins as, as an activation; the embedding by layer; the rest of a layer's vectors.
  uint32_t input, input_shifts, embedding, levelled, laurel, found, raw;

  // Bytes of a part of an attention.
  static __device__ __forceinline__ uint32_t part_bytes(const Shape& shape) {
    return static_cast<uint32_t>(sizeof(Attended)) + 16 * shape.head_width;
  }
  // A warp alone has one of each head: nobody takes others meanwhile.
  template <typename Team>
  static __device__ __forceinline__ uint32_t most_parts(const Shape& shape) {
    const uint32_t parts = Team::kWarps == 1 ? 0 : min(kMostParts, kMostPartBytes / part_bytes(shape));
    return parts < shape.heads ? shape.heads : parts;
  }

  // For a shape whose sizes do not wrap: `fits` looks at them first. They lie behind `begin` bytes, and have `most` bytes with them.
  template <typename Team>
  static __device__ __forceinline__ Layout of(const Shape& shape, uint32_t begin, uint32_t most) {
    uint32_t widest = max(max(shape.width, shape.queries()), shape.hidden);
    widest = max(widest, max(shape.embedding, shape.laurel));
    const uint32_t lines = (widest + kLine - 1) / kLine;
    Layout at;
    at.end = (begin + kLine - 1) / kLine * kLine;
    const auto take = [&at](uint32_t bytes) {
      const uint32_t offset = at.end;
      at.end += (bytes + 15) / 16 * 16;
      return offset;
    };
    at.shifts_half = (lines + 15) / 16 * 16;
    at.x = take(4 * shape.width * (shape.is_gemma() ? kStreams : 1));
    at.gain = take(shape.is_gemma() ? 0 : 2 * shape.width);
    at.mantissas = take(lines * kLine);
    at.shifts = take(2 * at.shifts_half);
    at.query_scales = take(4 * shape.heads);
    at.queries = take(shape.queries());
    at.input = at.input_shifts = at.embedding = at.levelled = at.laurel = at.found = at.raw = 0;
    if (shape.is_gemma()) {
      at.input = take((shape.width + kLine - 1) / kLine * kLine);
      at.input_shifts = take(2 * at.shifts_half);
      at.embedding = take(4 * shape.embedding);
      at.levelled = take(4 * shape.width);
      at.laurel = take(4 * shape.width);
      at.found = take(4 * shape.width);
      at.raw = take(4 * max(shape.width, max(shape.embedding, shape.laurel)));
    }
    // Heads and parts of attentions are over when there are products.
    at.products = at.end;
    at.heads = take(4 * (shape.queries() + 2 * shape.keys()));
    at.parts_kept = most_parts<Team>(shape);
    at.parts = take(at.parts_kept * part_bytes(shape));
    const uint32_t end = at.products + 8 * max(shape.hidden, shape.embedding);
    if (shape.is_gemma() && at.end < end) at.end = end;
    // Parts of Llama's attentions are over, too, when weights come.
    const uint32_t free = shape.is_gemma() ? at.end : max(at.parts, end);
    at.stretches = (free + kLine - 1) / kLine * kLine;
    const uint32_t columns = max(shape.width, shape.queries());
    at.stretch = 8 * ((columns + kLine - 1) / kLine * kLine);
    if (Team::kWarps == 1 || !stream::kCopiesStretches || at.stretches + 2 * Team::kWarps * at.stretch > most) at.stretch = 0;
    if (at.end < end) at.end = end;
    if (at.end < at.stretches + 2 * Team::kWarps * at.stretch) at.end = at.stretches + 2 * Team::kWarps * at.stretch;
    return at;
  }
};

// Parts of a step whose time a team's leader takes where DOORBELL_PHASES is defined. `Phases`, gpu/src/phases.rs, has the same order.
enum Lap : uint32_t {
  kDecides, kEmbeds, kActivates, kMultiplies, kSinks, kStores, kAttends, kMeans, kActivatesLogits, kTakesLogits, kJoins, kMeets, kBetween, kLaps
};

#ifdef DOORBELL_PHASES
// What a leader has measured since it began: steps, the time of all of them by the GPU's clock, their columns, and cycles of each part.
struct Times {
  uint64_t steps, nanoseconds, columns, cycles[kLaps];
  uint64_t began;
  long long last;
};
// Where each leader tells it, in host memory: 16 words for each block. The host reads them at any time.
extern "C" {
__device__ uint64_t* doorbell_phases = nullptr;
}
constexpr uint32_t kTold = 16;
static_assert(kTold == 3 + kLaps, "words of a block");
#endif

// What all teams of a block read, at the beginning of its shared memory.
struct alignas(kLine) Tables {
  uint32_t log2[260], ratio[260], powers[1024];
  uint16_t exp2[256], sigmoid[72], tanh[264], gelu[72];
  uint32_t takes_one;  // whether steps of one rollout of its team's model are taken without meetings
  uint32_t meetings;  // of a rank, so far: registers that are kept for long go to local memory, which a meeting makes the first cache forget
#ifdef DOORBELL_PHASES
  Times times;  // of a leader
#endif
};

// Shared memory of a team: this, and behind it what depends on the shape.
template <typename Team>
struct Shared {
  Entry entries[2][kGemmaParts];  // of even layers, of odd layers
  Entry last_gain, tokens;
  Entry streams[2][kStreams - 1];  // of Gemma 3N's shape: from the first stream to the others, and of these
  uint32_t turns[2][128];  // cosine and sine of each pair at this position; of global layers the second
  uint64_t arrivals[Team::kWarps][2];
  uint32_t arrived[Team::kWarps];
  // In a step of one: where whole tiles of each product of a layer arrive, and how often they have.
  uint64_t together[4];
  uint32_t brought[4];
  Seen seen[2][Team::kWarps];
  Candidate candidates[Team::kWarps];
  alignas(16) uint32_t scratch[Team::kWarps][64];
  int32_t coefficients[kStreams * kStreams];
  Activation input;  // of Gemma 3N's shape: of the vector in `Layout::input`
  Shape shape;
  Layout layout;
  Step step;  // that is under way
  const char* image;
  uint64_t round;        // how far it has come in step with others, as Frame has it
  uint64_t gain_offset;  // of the first layer's
  uint64_t rope_offset, global_rope_offset;
  uint32_t factor;       // of scores
};

// Shared memory of a team, at most.
template <typename Team>
constexpr uint32_t kTeamBytes = (kMostShared - static_cast<uint32_t>(sizeof(Tables))) / Team::kTeams / kLine * kLine;

// The image's shape is one that the host took (`Shape::refusal` of crate lm): this is whether it fits the kernel as well, whose limit is
// shared memory alone.
template <typename Team>
__device__ __forceinline__ bool fits(const Shape& shape) {
  if (shape.width > 4096 || shape.head_width > 256 || shape.hidden > kMostShared || shape.heads > 4096) return false;
  if (shape.embedding > 4096 || shape.laurel > 4096) return false;
  if (shape.heads * shape.head_width > kMostShared || shape.kv_heads > shape.heads) return false;
  return Layout::of<Team>(shape, static_cast<uint32_t>(sizeof(Shared<Team>)), kTeamBytes<Team>).end <= kTeamBytes<Team>;
}

}  // namespace language

#endif
