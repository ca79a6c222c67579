// A version of engine 1 as a POLICY publishes it (R25): what its HwImage and the header of its image say, and its way into device
// memory.
#ifndef DOORBELL_LANGUAGE_IMAGE_CUH
#define DOORBELL_LANGUAGE_IMAGE_CUH

#include "device_state.cuh"
#include "language_model.cuh"
#include "mix.cuh"

namespace language {

// A record of 64 bytes, or twice that, as a warp has it: lane k has word k.
struct Record {
  uint32_t word;

  __device__ __forceinline__ Record(uint64_t address, uint32_t lane, uint32_t words = 16)
      : word(lane < words ? order::load_relaxed_sys(reinterpret_cast<const uint32_t*>(address) + lane) : 0) {}

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

// Brings whole lines of the host's memory into the device's, to a second place too if there is one: each of so many threads calls it, with its
// number, and has eight reads of 16 bytes on their way at a time.
template <uint32_t kThreads>
__device__ __forceinline__ void bring(char* to, uint64_t from, uint64_t bytes, uint32_t thread, char* also = nullptr) {
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
      if (first + k * kThreads < all) {
        target[first + k * kThreads] = part[k];
        if (also != nullptr) reinterpret_cast<uint4*>(also)[first + k * kThreads] = part[k];
      }
  }
}

// A front end's warps bring a model through shared memory, behind what the front end has there: copies of a multiprocessor take 29 to 45 GB/s from the
// host, by how many are on their way, and its loads 16, however many. A warp has so many pieces on their way, of 16 bytes for each lane.
constexpr uint32_t kPieces = 8, kPieceBytes = 16 * kWarp;
constexpr uint32_t kRings = (kFetchWarps + 1) * kPieces * kPieceBytes;

// Brings so many bytes, a multiple of 16, from the host's memory into the device's. All lanes of a warp call it, with that warp's part of kRings.
__device__ __forceinline__ void bring_by_copies(char* to, uint64_t from, uint32_t bytes, char* ring, uint32_t lane) {
  const uint32_t own = static_cast<uint32_t>(sizeof(uint4)) * lane, pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto begin = [&](uint32_t piece) {
    const uint32_t at = kPieceBytes * piece + own;
    if (at < bytes) stream::copy_from_host(ring + kPieceBytes * (piece % kPieces) + own, from + at);
    // Behind the last piece there are groups of nothing.
    stream::close_group();
  };
  for (uint32_t piece = 0; piece + 1 < kPieces; piece++) begin(piece);
#pragma unroll 1
  for (uint32_t piece = 0; piece < pieces; piece++) {
    begin(piece + kPieces - 1);
    stream::wait_for_groups<kPieces - 1>();
    // A lane's own 16 bytes: it waits for no other lane.
    const uint32_t at = kPieceBytes * piece + own;
    if (at < bytes) *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(ring + kPieceBytes * (piece % kPieces) + own);
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
  uint32_t salt;     // of the POLICY's header
  bool is_good;      // whether this device can publish what header and image say
  // The way into device memory, in stretches that warps of the block take. Who has taken one reads the rest.
  char* to;
  uint32_t count;
  uint32_t left;  // that nobody has taken, or less than 1
  uint32_t done;  // that have been brought
  uint32_t stretch;  // bytes of each
  // Each ends with a fence, and with no more of it on its way: a large model has so many, but they are no smaller than that.
  static constexpr uint32_t kStretches = 512, kLeastStretch = 32 << 10;

  // Of the HwImage at `record`: false if it, or the header of the image that it names, is malformed, or the model too large for this
  // device ("Which error", 12).
  __device__ __noinline__ bool read(uint64_t record, const doorbell_session& config, const LanguageMemory& memory,
                                    uint32_t lane) {
    const Record image(record, lane);
    const uint64_t offset = image.wide(0), bytes = image.wide(2), program_at = image.wide(4);
    const uint32_t words = image.at(6), vocabulary = image.at(8);
    bool good = image.verifies() && (offset | bytes | program_at) % 64 == 0;
    good = good && offset <= config.model_size && bytes <= config.model_size - offset;
    good = good && words != 0 && words <= 0xFFFF && program_at >> 40 == 0;
    good = good && program_at <= bytes && 8ull * words <= bytes - program_at;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t end = image.at(11 + k);
      good = good && (end == DOORBELL_TOKEN_NONE || end < vocabulary);
      if (lane == 0) model.ends[k] = end;
    }
    if (!good || bytes < kHeader) return false;
    const uint64_t address = config.model_base + offset;
    const Record header(address, lane, kHeader / 4);
    const uint64_t size = header.wide(4);
    constexpr uint32_t kCommonWord = Shape::kCommonAt / 4, kGemmaWord = Shape::kGemmaAt / 4;
    uint32_t* const words_of_shape = reinterpret_cast<uint32_t*>(&shape);
    if (lane >= kCommonWord && lane < kCommonWord + Shape::kCommon)
      words_of_shape[lane - kCommonWord] = lane == kCommonWord + Shape::kLayers ? header.word & 0xFFFF : header.word;
    if (lane >= kGemmaWord && lane < kGemmaWord + Shape::kGemma) words_of_shape[Shape::kCommon + lane - kGemmaWord] = header.word;
    const uint32_t own = header.at(kCommonWord + Shape::kLayers) >> 16;
    if (lane == 0) {
      shape.own = own;
      from = address;
      length = size;
    }
    __syncwarp();
    good = header.wide(0) == 0x004D4C62'726F6F44u && header.at(2) == 2 && is_sound(shape) && (memory.teams != 0 ? fits<Whole>(shape) : fits<Single>(shape));
    good = good && size <= program_at && header.at(3) == image.at(7) && shape.vocabulary == vocabulary;
    good = good && shape.context == image.at(9) && header.at(15) == entries();
    good = good && shape.kv_block() == 64ull * image.at(10) && size <= memory.model_bytes;
    if (lane == 0) {
      model.block_bytes = shape.kv_block();
      model.vocabulary = vocabulary;
    }
    return good && lies(lane);
  }

  // Takes the image into device memory, for blocks that come to it behind a release of this warp's, with the help of those that call
  // `help`. False if `stops` said so before all of it was there: then nobody writes to `where` any more.
  template <typename Stops>
  __device__ __forceinline__ bool load(char* where, uint32_t lane, Stops stops) {
    const uint32_t bytes = max(kLeastStretch, static_cast<uint32_t>(length / kStretches / kLine * kLine + kLine));
    uint32_t all = static_cast<uint32_t>((length + bytes - 1) / bytes);
    if (lane == 0) {
      stream::begins_to_load(where, length);
      to = where;
      count = all;
      stretch = bytes;
      order::store_relaxed_block(&done, 0);
      order::store_release_block(&left, all);
    }
    __syncwarp();
    bool goes_on = true;
    while (goes_on && bring_stretch(lane, false)) {
      DOORBELL_YIELD();
      goes_on = !__any_sync(kEveryLane, stops());
    }
    if (!goes_on) {
      int32_t untaken = 0;
      if (lane == 0) untaken = static_cast<int32_t>(order::add_acq_rel_block(&left, 0u - all));
      untaken = __shfl_sync(kEveryLane, untaken, 0);
      if (untaken > 0) all -= untaken;
    }
    // Those that others have taken.
    for (uint32_t spins = 0; !DOORBELL_FAULT(TakesUnfinished); relax(spins))
      if (__all_sync(kEveryLane, order::load_acquire_block(&done) == all)) break;
    __syncwarp();
    if (!goes_on) return false;
    settle(where, lane);
    stream::publish();
    __syncwarp();
    return true;
  }

  // Brings stretches of the image that another warp loads, if one does, until none is left. All lanes of a warp call it, which has
  // nothing else to do.
  __device__ __forceinline__ void help(uint32_t lane) {
    if (!UNLIKELY(__any_sync(kEveryLane, static_cast<int32_t>(order::load_relaxed_block(&left)) > 0))) return;
    while (bring_stretch(lane, true)) DOORBELL_YIELD();
  }

 private:
  // Takes one stretch, and brings it. False if there is none. All lanes of a warp call it.
  __device__ __noinline__ bool bring_stretch(uint32_t lane, [[maybe_unused]] bool helps) {
    uint32_t taken = 0;
    // The addition alone would bring `left` further down with every call.
    if (lane == 0 && static_cast<int32_t>(order::load_relaxed_block(&left)) > 0) taken = order::add_acq_rel_block(&left, 0u - 1);
    taken = __shfl_sync(kEveryLane, taken, 0);
    __syncwarp();
    if (static_cast<int32_t>(taken) <= 0) return false;
    for (uint32_t k = 0; helps && k < 500; k++) DOORBELL_WINDOW(TakesUnfinished);
    const uint64_t at = static_cast<uint64_t>(count - taken) * stretch;
    char* const rings = reinterpret_cast<char*>(language_memory) + kBlockShared - kRings;
    bring_by_copies(to + at, from + at, static_cast<uint32_t>(min(static_cast<uint64_t>(stretch), length - at)),
                    rings + kPieces * kPieceBytes * (threadIdx.x / kWarp), lane);
    // Each lane's own writes: copies of stretches do not go through the generic proxy.
    stream::publish();
    __syncwarp();
    if (lane == 0) order::add_acq_rel_block(&done, 1);
    return true;
  }

  // As Shape::refusal of crate lm.
  static __device__ __forceinline__ bool is_sound(const Shape& shape) {
    const bool blocks = shape.width % 32 == 0 && shape.head_width % 32 == 0 && shape.hidden % 32 == 0;
    const bool shares = shape.kv_heads != 0 && shape.heads % shape.kv_heads == 0;
    return blocks && shares && within(shape.width, 4096) && within(shape.head_width, 256) && within(shape.heads, 4096) &&
           within(shape.hidden, 1 << 16) && within(shape.layers, 1 << 12) && within(shape.vocabulary, 1 << 20) &&
           within(shape.context, 1 << 16) && shape.epsilon < 1u << 20 && (shape.is_gemma() ? is_sound_gemma(shape) : is_without(shape)) &&
           is_sound_cap(shape);
  }
  // Sinks are whole blocks, and a local layer sees no more than the cap leaves.
  static __device__ __forceinline__ bool is_sound_cap(const Shape& shape) {
    if ((shape.cap_window | shape.cap_sinks) == 0) return true;
    return within(shape.cap_window, 1 << 16) && shape.cap_sinks <= 1u << 16 && shape.cap_sinks % kBlock == 0 && shape.window <= shape.cap_window;
  }
  // Of Llama's shape: it has nothing of what Gemma 3N's has.
  static __device__ __forceinline__ bool is_without(const Shape& shape) {
    return (shape.laurel | shape.window | shape.global | shape.cut | shape.own) == 0;
  }
  // Behind what both shapes have. The first global layer is `global` - 1, and has keys and values of its own.
  static __device__ __forceinline__ bool is_sound_gemma(const Shape& shape) {
    return shape.embedding % 32 == 0 && within(shape.embedding, 4096) && shape.laurel % 32 == 0 && within(shape.laurel, 4096) &&
           within(shape.window, 1 << 16) && within(shape.global, shape.layers) && within(shape.own, shape.layers) && shape.own >= shape.global &&
           shape.cut <= shape.layers;
  }
  static __device__ __forceinline__ bool within(uint32_t value, uint32_t most) { return value - 1 < most; }

  // Entries of the directory.
  __device__ __forceinline__ uint32_t entries() const {
    return first_entry(shape, shape.layers) + (shape.is_gemma() ? kStreams - 1 : 0) + 2;
  }

  // Rows and columns of a part of a layer; of a gain one row.
  __device__ __forceinline__ uint2 dimensions(uint32_t part) const {
    const uint32_t width = shape.width;
    switch (part) {
      case kQuery: return make_uint2(shape.queries(), width);
      case kKey:
      case kValue: return make_uint2(shape.keys(), width);
      case kOutput: return make_uint2(width, shape.queries());
      case kGate:
      case kUp: return make_uint2(shape.hidden, width);
      case kDown: return make_uint2(width, shape.hidden);
      case kRouter: return make_uint2(kStreams, width);
      case kPredict: return make_uint2(kStreams * kStreams, kBlock);
      case kCorrect: return make_uint2(kStreams, kBlock);
      case kQueryGain:
      case kKeyGain:
      case kValueGain: return make_uint2(1, shape.head_width);
      case kLeft: return make_uint2(shape.laurel, width);
      case kRight: return make_uint2(width, shape.laurel);
      case kEmbedding: return make_uint2(shape.vocabulary, shape.embedding);
      case kProjection:
      case kEmbeddingGate: return make_uint2(shape.embedding, width);
      case kProjectionGain: return make_uint2(1, shape.embedding);
      case kEmbeddingOutput: return make_uint2(width, shape.embedding);
      default: return make_uint2(1, width);
    }
  }

  // Calls each(part, dimensions, bytes) for each part of a layer, in their order, which has keys and values of its own or not.
  template <typename Each>
  __device__ __forceinline__ void parts(bool own, Each each) const {
    const uint32_t all = shape.is_gemma() ? kGemmaParts : kParts;
#pragma unroll 1
    for (uint32_t part = 0; part < all; part++) {
      if (!own && (kOfKeys >> part & 1) != 0) continue;
      const uint2 is = dimensions(part);
      each(is, size(is.x, is.y, (kGains >> part & 1) != 0));
    }
  }
  __device__ __noinline__ uint64_t layer_bytes(bool own) const {
    uint64_t bytes = 0;
    parts(own, [&](uint2, uint64_t of_part) { bytes += of_part; });
    return bytes;
  }

  // Of what stands before the layers, from the tables of turns on, and of what stands behind them.
  __device__ __forceinline__ uint64_t bytes_before() const {
    return shape.is_gemma() ? 2 * rope_bytes() + (kStreams - 1) * matrix_bytes(shape.width, shape.width) : rope_bytes();
  }
  __device__ __forceinline__ uint64_t bytes_behind() const {
    const uint64_t merge = shape.is_gemma() ? (kStreams - 1) * matrix_bytes(shape.width, shape.width) : 0;
    return merge + size(1, shape.width, true) + size(shape.vocabulary, shape.width, false);
  }

  // Of what stands behind the header nothing was checked, and the host could have changed the header meanwhile: in device memory
  // shape and directory are those of the layout, so that all that blocks read lies within the image. Of a directory's entry its
  // exponent is left.
  __device__ __noinline__ void settle(char* to, uint32_t lane) const {
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(&shape);
    if (lane < Shape::kCommon)
      reinterpret_cast<uint32_t*>(to + Shape::kCommonAt)[lane] = lane == Shape::kLayers ? shape.layers | shape.own << 16 : words[lane];
    if (lane < Shape::kGemma) reinterpret_cast<uint32_t*>(to + Shape::kGemmaAt)[lane] = words[Shape::kCommon + lane];
    const uint64_t own_bytes = layer_bytes(true), other_bytes = layer_bytes(false), first = rope_at + bytes_before();
    const uint64_t square = matrix_bytes(shape.width, shape.width);
    const uint32_t own = shape.kv_layers();
#pragma unroll 1
    for (uint32_t layer = lane; layer <= shape.layers; layer += kWarp) {
      const uint32_t with_keys = min(layer, own);
      uint64_t at = first + own_bytes * with_keys + other_bytes * (layer - with_keys);
      uint32_t entry = first_entry(shape, layer);
      if (layer < shape.layers) {
        parts(layer < own, [&](uint2 is, uint64_t bytes) { at = place(to, entry++, is.x, is.y, at, bytes); });
        continue;
      }
#pragma unroll 1
      for (uint32_t k = 1; shape.is_gemma() && k < kStreams; k++) at = place(to, entry++, shape.width, shape.width, at, square);
      at = place(to, entry++, 1, shape.width, at, size(1, shape.width, true));
      place(to, entry, shape.vocabulary, shape.width, at, size(shape.vocabulary, shape.width, false));
    }
    if (lane != 0) return;
    uint64_t at = place(to, kRopeEntry, shape.context, shape.head_width / 2, rope_at, rope_bytes());
    if (!shape.is_gemma()) return;
    at = place(to, kRopeEntry + 1, shape.context, shape.head_width / 2, at, rope_bytes());
    for (uint32_t k = 1; k < kStreams; k++) at = place(to, kSplitEntry + k - 1, shape.width, shape.width, at, square);
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

  __device__ __forceinline__ uint64_t rope_bytes() const { return aligned(2ull * shape.context * shape.head_width); }

  // Whether the layout that follows from the shape and the lengths of the two texts is as long as the image.
  __device__ __forceinline__ bool lies(uint32_t lane) {
    const uint64_t directory = kHeader, entry = 32;
    if (length < directory + 2 * entry) return false;
    const Record texts(from + directory, lane);
    const uint64_t about = texts.at(3), tokenizer = texts.at(11);
    const uint64_t turns_at = aligned(aligned(aligned(directory + entry * entries()) + about) + tokenizer);
    if (lane == 0) rope_at = turns_at;
    __syncwarp();
    const uint32_t own = shape.kv_layers();
    const uint64_t layers = own * layer_bytes(true) + (shape.layers - own) * layer_bytes(false);
    return turns_at + bytes_before() + layers + bytes_behind() == length;
  }
};

}  // namespace language

#endif
