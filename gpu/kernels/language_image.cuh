// A version of engine 1 as a POLICY publishes it (R25): what its HwImage and the header of its image say, and its way into device
// memory.
#ifndef DOORBELL_LANGUAGE_IMAGE_CUH
#define DOORBELL_LANGUAGE_IMAGE_CUH

#include "device_state.cuh"
#include "language_model.cuh"
#include "mix.cuh"

namespace language {

// A record of 64 bytes as two lanes' worth of words: lane k has word k.
struct Record {
  uint32_t word;

  __device__ __forceinline__ Record(uint64_t address, uint32_t lane)
      : word(lane < 16 ? order::load_relaxed_sys(reinterpret_cast<const uint32_t*>(address) + lane) : 0) {}

  __device__ __forceinline__ uint32_t at(uint32_t k) const { return __shfl_sync(kEveryLane, word, k); }
  __device__ __forceinline__ uint64_t wide(uint32_t k) const { return static_cast<uint64_t>(at(k + 1)) << 32 | at(k); }

  // Whether the last word is the fold of the others (docs/contract.md, "Records of engine 1").
  __device__ __forceinline__ bool verifies() const {
    uint32_t sum = DOORBELL_GOLDEN;
#pragma unroll 1
    for (uint32_t k = 0; k < 15; k++) sum = mix(sum ^ at(k));
    return sum == at(15);
  }
};

DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_image, program_at) == 16, "Publication::read");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_image, words) == 24, "Publication::read");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_image, image_check) == 28, "Publication::read");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_image, vocabulary) == 32, "Publication::read");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_image, positions) == 36, "Publication::read");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_image, block_lines) == 40, "Publication::read");
DOORBELL_ASSERT(DOORBELL_OFFSETOF(struct doorbell_hw_image, end_0) == 44, "Publication::read");

__device__ __forceinline__ uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// What a matrix takes with the scales of its rows, and what stands behind it up to the next multiple of 64.
__device__ __forceinline__ uint64_t matrix_bytes(uint64_t rows, uint64_t columns) {
  return aligned(rows * aligned(columns) + 2 * rows);
}

// Brings whole lines of the host's memory into the device's: each of so many threads calls it, with its number, and has eight reads of 16
// bytes on their way at a time.
template <uint32_t kThreads>
__device__ __forceinline__ void bring(char* to, uint64_t from, uint64_t bytes, uint32_t thread) {
  constexpr uint32_t kParts = 8;
  const uint4* const source = reinterpret_cast<const uint4*>(from);
  uint4* const target = reinterpret_cast<uint4*>(to);
  const uint64_t all = bytes / sizeof(uint4);
#pragma unroll 1
  for (uint64_t first = thread; first < all; first += kParts * kThreads) {
    uint4 part[kParts];
#pragma unroll
    for (uint32_t k = 0; k < kParts; k++)
      if (first + k * kThreads < all) part[k] = order::load_relaxed_sys(source + first + k * kThreads);
#pragma unroll
    for (uint32_t k = 0; k < kParts; k++)
      if (first + k * kThreads < all) target[first + k * kThreads] = part[k];
  }
}

// What a POLICY may load. It lies in the shared memory of its front end, as whoever publishes has no registers to spare; all lanes of a warp
// call its functions.
struct Publication {
  LoadedModel model;
  Shape shape;
  uint64_t from;     // bus address of the image
  uint64_t length;   // its bytes
  uint64_t rope_at;  // bytes from its first to its table of turns, behind the texts

  // Of the HwImage at `record`: false if it, or the header of the image that it names, is malformed, or the model too large for this
  // device ("Which error", 12).
  __device__ __noinline__ bool read(uint64_t record, const doorbell_session& config, const LanguageMemory& memory,
                                    uint32_t lane) {
    const Record image(record, lane);
    const uint64_t offset = image.wide(0), bytes = image.wide(2), program_at = image.wide(4);
    const uint32_t words = image.at(6), vocabulary = image.at(8);
    bool good = image.verifies() && (offset | bytes | program_at) % 64 == 0;
    good = good && offset <= config.model_size && bytes <= config.model_size - offset;
    good = good && words != 0 && program_at <= bytes && 8ull * words <= bytes - program_at;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t end = image.at(11 + k);
      good = good && (end == DOORBELL_TOKEN_NONE || end < vocabulary);
      if (lane == 0) model.ends[k] = end;
    }
    if (!good) return false;
    const uint64_t address = config.model_base + offset;
    const Record header(address, lane);
    const uint64_t size = header.wide(4);
    if (lane >= 6 && lane < 6 + sizeof(Shape) / 4) reinterpret_cast<uint32_t*>(&shape)[lane - 6] = header.word;
    if (lane == 0) {
      from = address;
      length = size;
    }
    __syncwarp();
    good = header.wide(0) == 0x004D4C62'726F6F44u && header.at(2) == 2 && header.at(7) >> 16 == 0 && is_sound(shape) && fits(shape);
    good = good && size <= program_at && header.at(3) == image.at(7) && shape.vocabulary == vocabulary;
    good = good && shape.context == image.at(9) && header.at(15) == 5 + 9 * shape.layers;
    good = good && shape.kv_block() == 64ull * image.at(10) && size <= memory.model_bytes;
    if (lane == 0) {
      model.block_bytes = shape.kv_block();
      model.vocabulary = vocabulary;
    }
    return good && lies(lane);
  }

  // Takes the image into device memory, for blocks that come to it behind a release of this warp's.
  __device__ __noinline__ void load(char* to, LoadedModel& loaded, uint32_t lane) const {
    bring<kWarp>(to, from, length, lane);
    __syncwarp();
    settle(to, lane);
    if (lane == 0) loaded = model;
    __syncwarp();
  }

 private:
  // As Shape::refusal of crate lm.
  static __device__ __forceinline__ bool is_sound(const Shape& shape) {
    const bool blocks = shape.width % 32 == 0 && shape.head_width % 32 == 0 && shape.hidden % 32 == 0;
    const bool shares = shape.kv_heads != 0 && shape.heads % shape.kv_heads == 0;
    return blocks && shares && within(shape.width, 4096) && within(shape.head_width, 256) && within(shape.heads, 4096) &&
           within(shape.hidden, 1 << 16) && within(shape.layers, 1 << 12) && within(shape.vocabulary, 1 << 20) &&
           within(shape.context, 1 << 16) && shape.epsilon < 1u << 20;
  }
  static __device__ __forceinline__ bool within(uint32_t value, uint32_t most) { return value - 1 < most; }

  // Of what stands behind the header nothing was checked, and the host could have changed the header meanwhile: in device memory
  // shape and directory are those of the layout, so that all that blocks read lies within the image. Of a directory's entry its
  // exponent is left.
  __device__ __noinline__ void settle(char* to, uint32_t lane) const {
    if (lane == 0) *reinterpret_cast<Shape*>(to + 24) = shape;
    const uint32_t queries = shape.heads * shape.head_width, keys = shape.kv_heads * shape.head_width;
    const uint32_t rows[9] = {1, queries, keys, keys, shape.width, 1, shape.hidden, shape.hidden, shape.width};
    const uint32_t columns[9] = {shape.width, shape.width, shape.width, shape.width, queries,
                                 shape.width, shape.width, shape.width, shape.hidden};
    const uint64_t first = rope_at + rope_bytes(shape), of_a_layer = layer_bytes(shape);
#pragma unroll 1
    for (uint32_t layer = lane; layer <= shape.layers; layer += kWarp) {
      uint64_t at = first + of_a_layer * layer;
      uint32_t entry = 3 + 9 * layer;
#pragma unroll 1
      for (uint32_t part = 0; layer < shape.layers && part < 9; part++)
        at = place(to, entry++, rows[part], columns[part], at, size(rows[part], columns[part], part % 5 == 0));
      if (layer < shape.layers) continue;
      at = place(to, entry++, 1, shape.width, at, size(1, shape.width, true));
      place(to, entry, shape.vocabulary, shape.width, at, size(shape.vocabulary, shape.width, false));
    }
    if (lane == 0) place(to, 2, shape.context, shape.head_width / 2, rope_at, rope_bytes(shape));
  }

  // Of a gain or a matrix.
  static __device__ __forceinline__ uint64_t size(uint32_t rows, uint32_t columns, bool is_gain) {
    return is_gain ? aligned(2ull * columns) : matrix_bytes(rows, columns);
  }

  // Writes an entry of the directory; where the next begins.
  static __device__ __forceinline__ uint64_t place(char* to, uint32_t entry, uint32_t rows, uint32_t columns, uint64_t at,
                                                   uint64_t bytes) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(to + kHeader + 32ull * entry);
    const int32_t exponent = static_cast<int32_t>(words[1]);
    words[1] = static_cast<uint32_t>(exponent < -100 ? -100 : exponent > 100 ? 100 : exponent);
    words[2] = rows;
    words[3] = columns;
    words[4] = static_cast<uint32_t>(at);
    words[5] = static_cast<uint32_t>(at >> 32);
    words[6] = static_cast<uint32_t>(bytes);
    words[7] = static_cast<uint32_t>(bytes >> 32);
    return at + bytes;
  }

  static __device__ __forceinline__ uint64_t rope_bytes(const Shape& shape) {
    return aligned(2ull * shape.context * shape.head_width);
  }
  static __device__ __forceinline__ uint64_t layer_bytes(const Shape& shape) {
    const uint64_t queries = static_cast<uint64_t>(shape.heads) * shape.head_width;
    const uint64_t keys = static_cast<uint64_t>(shape.kv_heads) * shape.head_width;
    const uint64_t attention = matrix_bytes(queries, shape.width) + 2 * matrix_bytes(keys, shape.width) +
                               matrix_bytes(shape.width, queries);
    const uint64_t feed_forward = 2 * matrix_bytes(shape.hidden, shape.width) + matrix_bytes(shape.width, shape.hidden);
    return 2 * aligned(2ull * shape.width) + attention + feed_forward;
  }

  // Whether the layout that follows from the shape and the lengths of the two texts is as long as the image.
  __device__ __forceinline__ bool lies(uint32_t lane) {
    const uint64_t directory = kHeader, entry = 32, entries = 5 + 9ull * shape.layers;
    if (length < directory + 2 * entry) return false;
    const Record texts(from + directory, lane);
    const uint64_t about = texts.at(3), tokenizer = texts.at(11);
    const uint64_t turns_at = aligned(aligned(aligned(directory + entry * entries) + about) + tokenizer);
    if (lane == 0) rope_at = turns_at;
    __syncwarp();
    const uint64_t last = aligned(2ull * shape.width) + matrix_bytes(shape.vocabulary, shape.width);
    return turns_at + rope_bytes(shape) + shape.layers * layer_bytes(shape) + last == length;
  }
};

}  // namespace language

#endif
