// A model of engine 1 as a block sees it: the image in device memory (docs/engine.md, The image), and what the block keeps in shared
// memory.
#ifndef DOORBELL_LANGUAGE_MODEL_CUH
#define DOORBELL_LANGUAGE_MODEL_CUH

#include "device_state.cuh"
#include "language_memory.cuh"
#include "language_number.cuh"

namespace language {

constexpr uint32_t kWarps = kBlockWarps, kThreads = kBlockThreads;
// Positions of a block of keys and values, channels that share a shift, tokens of the vocabulary that share a maximum.
constexpr uint32_t kBlock = 32;
static_assert(kBlock == kWarp, "a lane for each");
// Bytes of a line: rows of weights begin at multiples of it.
constexpr uint32_t kLine = 64;
constexpr uint32_t kHeader = 128;  // bytes of an image ahead of its directory
// Dynamic shared memory that a block takes at most: what every GPU of compute capability 9.0 or later has, and some to spare.
constexpr uint32_t kMostShared = 200 << 10;
// Parts of attentions, of a head and some blocks each, that are kept at a time if they are to have no more than this.
constexpr uint32_t kMostParts = 64, kMostPartBytes = 80 << 10;

struct Shape {
  uint32_t width, layers, heads, kv_heads, head_width, hidden, vocabulary, context, epsilon;

  static __device__ __forceinline__ Shape read(const char* image) {
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(image + 24);
    return Shape{words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8]};
  }

  __device__ __forceinline__ uint32_t queries() const { return heads * head_width; }
  __device__ __forceinline__ uint32_t keys() const { return kv_heads * head_width; }
  // Bytes of keys, or of values, of a head in a block of 32 positions: a line of scales, then the mantissas.
  __device__ __forceinline__ uint32_t kv_half() const { return kLine + kBlock * head_width; }
  // Bytes of a block of keys and values.
  __device__ __forceinline__ uint64_t kv_block() const { return 2ull * layers * kv_heads * kv_half(); }
};

// An entry of the directory.
struct alignas(16) Entry {
  uint16_t kind, layer;
  int32_t exponent;
  uint32_t rows, columns;
  uint64_t offset, bytes;
};
static_assert(sizeof(Entry) == 32, "as the image has it");

// Entries of a layer, in their order.
enum Part : uint32_t { kAttentionGain, kQuery, kKey, kValue, kOutput, kHiddenGain, kGate, kUp, kDown, kParts };
// Where a layer's begin, and what stands behind the last layer's.
constexpr uint32_t kRopeEntry = 2, kFirstLayerEntry = 3;

__device__ __forceinline__ const char* entry_at(const char* image, uint32_t index) {
  return image + kHeader + static_cast<uint64_t>(sizeof(Entry)) * index;
}

// A matrix of the image.
struct Matrix {
  const char* weights;
  uint32_t rows, lines;
  int32_t exponent;

  static __device__ __forceinline__ Matrix of(const char* image, const Entry& entry) {
    return Matrix{image + entry.offset, entry.rows, (entry.columns + kLine - 1) / kLine, entry.exponent};
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
};

// How the tokens of a rollout are drawn. A sharpness of 0 is temperature 0.
struct Sampling {
  uint32_t sharpness, seed, rollout;
};

// What a step is told.
struct Step {
  Cache cache;
  char* stored_to;
  uint32_t position;
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

// What a warp knows of the vocabulary: its best token, and Σ 2^y in two bins, `highest` and the one below.
struct Candidate {
  int64 key;
  int64 sums[2];
  int32_t highest;
  uint32_t token;
  int32_t logit;
};

// Part of an attention: two bins of the weights, behind which those of the values stand, `highest` and the one below.
struct alignas(16) Attended {
  int64 weights[2];
  int32_t highest;
};

// Where in shared memory what depends on the shape lies, in bytes.
struct Layout {
  uint32_t x, gain, mantissas, shifts, query_scales, queries, heads, parts, products, stretches, end;
  uint32_t stretch;      // bytes of a stretch of weights, of which each warp has two; 0 where there is no room
  uint32_t shifts_half;  // bytes of one of the two rows of shifts

  // Bytes of a part of an attention.
  static __device__ __forceinline__ uint32_t part_bytes(const Shape& shape) {
    return static_cast<uint32_t>(sizeof(Attended)) + 16 * shape.head_width;
  }
  static __device__ __forceinline__ uint32_t most_parts(const Shape& shape) {
    const uint32_t parts = min(kMostParts, kMostPartBytes / part_bytes(shape));
    return parts < shape.heads ? shape.heads : parts;
  }

  // For a shape whose sizes do not wrap: `fits` looks at them first. They lie behind `begin` bytes.
  static __device__ __forceinline__ Layout of(const Shape& shape, uint32_t begin) {
    uint32_t widest = shape.width < shape.queries() ? shape.queries() : shape.width;
    widest = widest < shape.hidden ? shape.hidden : widest;
    const uint32_t lines = (widest + kLine - 1) / kLine;
    Layout at;
    at.end = (begin + kLine - 1) / kLine * kLine;
    const auto take = [&at](uint32_t bytes) {
      const uint32_t offset = at.end;
      at.end += (bytes + 15) / 16 * 16;
      return offset;
    };
    at.shifts_half = (lines + 15) / 16 * 16;
    at.x = take(4 * shape.width);
    at.gain = take(2 * shape.width);
    at.mantissas = take(lines * kLine);
    at.shifts = take(2 * at.shifts_half);
    at.query_scales = take(4 * shape.heads);
    at.queries = take(shape.queries());
    // Heads and parts of attentions are over when there are products.
    at.products = at.end;
    at.heads = take(4 * (shape.queries() + 2 * shape.keys()));
    at.parts = take(most_parts(shape) * part_bytes(shape));
    // Parts of attentions are over, too, when weights come.
    const uint32_t end = at.products + 8 * shape.hidden;
    at.stretches = at.parts < end ? (end + kLine - 1) / kLine * kLine : (at.parts + kLine - 1) / kLine * kLine;
    const uint32_t columns = shape.width < shape.queries() ? shape.queries() : shape.width;
    at.stretch = 8 * ((columns + kLine - 1) / kLine * kLine);
    if (!stream::kCopiesStretches || at.stretches + 2 * kWarps * at.stretch > kMostShared) at.stretch = 0;
    if (at.end < end) at.end = end;
    if (at.end < at.stretches + 2 * kWarps * at.stretch) at.end = at.stretches + 2 * kWarps * at.stretch;
    return at;
  }
};

// Shared memory of the block: this, and behind it what depends on the shape.
struct Shared {
  Entry entries[2][kParts];  // of even layers, of odd layers
  Entry last_gain, tokens;
  uint32_t log2[260], ratio[260], powers[1024];
  uint16_t exp2[256], sigmoid[72];
  uint32_t turns[128];  // cosine and sine of each pair at this position
  uint64_t arrivals[kWarps][2];
  uint32_t arrived[kWarps];
  Seen seen[kWarps];
  Candidate candidates[kWarps];
  alignas(16) uint32_t scratch[kWarps][64];
  Shape shape;
  Layout layout;
  Step step;  // that is under way
  const char* image;
  uint64_t gain_offset;  // of the first layer's
  uint64_t rope_offset;
  uint32_t factor;       // of scores
  uint32_t parts;        // of attentions that are kept at a time
};

// The image's shape is one that the host took (`Shape::refusal` of crate lm): this is whether it fits the kernel as well, whose limit is
// shared memory alone.
__device__ __forceinline__ bool fits(const Shape& shape) {
  if (shape.width > 4096 || shape.head_width > 256 || shape.hidden > kMostShared || shape.heads > 4096) return false;
  if (shape.heads * shape.head_width > kMostShared || shape.kv_heads > shape.heads) return false;
  return Layout::of(shape, static_cast<uint32_t>(sizeof(Shared))).end <= kMostShared;
}

// Bytes of dynamic shared memory that a block needs for a shape that fits.
__device__ __forceinline__ uint32_t shared_bytes(const Shape& shape) { return Layout::of(shape, static_cast<uint32_t>(sizeof(Shared))).end; }

}  // namespace language

#endif
