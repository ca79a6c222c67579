// Attention of engine 1: stored vectors, scores, and sums in two bins that any parts of a sequence join to.
#ifndef DOORBELL_LANGUAGE_ATTENTION_CUH
#define DOORBELL_LANGUAGE_ATTENTION_CUH

#include "language_model.cuh"

namespace language {

// What lies in device memory: of a pointer that it reads from memory the compiler takes into account that it may name shared memory.
template <typename T>
__device__ __forceinline__ T* in_device(T* pointer) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

// Lowest bin: nothing was added. Bins of scores are far above it.
constexpr int32_t kNoBin = -(1 << 30);

// Whether a block's sums count, and in which of two bins: moves the bins up if it is above them.
template <typename Move>
__device__ __forceinline__ bool enters(int32_t& highest, int32_t bin, uint32_t& which, Move move) {
  if (bin > highest) {
    move(bin - 1 == highest);
    highest = bin;
  }
  which = static_cast<uint32_t>(highest) - static_cast<uint32_t>(bin);
  return which < 2;
}

// 255 * 2^(-below / 256), rounded; `table` is a copy of kExp2, of 16 bits: so it is 0 from nine whole halvings on, without a branch.
__device__ __forceinline__ uint32_t weight_of(const uint16_t* table, uint32_t below) {
  const uint32_t whole = min(below >> 8, 16u);
  return (table[below & 255] + (1u << (7 + whole))) >> (8 + whole);
}

// A score, of the sum of the products of the mantissas.
__device__ __forceinline__ int32_t score_of(int32_t dot, uint32_t query_scale, uint32_t key_scale, uint32_t factor) {
  const int64 product = round_shift(static_cast<int64>(dot) * query_scale * key_scale, 4);
  return static_cast<int32_t>(round_shift(product * factor, 32));
}

// The same, of both scales' product, in fewer instructions: half of what is shifted out is added first. Of a head of 256 channels the last product has
// 63 bits, of a narrower one fewer.
__device__ __forceinline__ int32_t score_by(int32_t dot, uint32_t scales, uint32_t factor) {
  const int64 product = (static_cast<int64>(dot) * scales + 8) >> 4;
  return static_cast<int32_t>((product * factor + (1ll << 31)) >> 32);
}

// Pairs of channels of a head that are a lane's, at most.
constexpr uint32_t kPairs = 4;

// A head of `width` channels as it is kept: rotated by `turns`, or as it is where they are null; of_pair(k, pair) gives two channels, the lane's k-th. A warp calls it; `bytes` is its
// own scratch, of a head's mantissas, which are there for all lanes when it returns. Returns the scale.
template <typename Pair>
__device__ __forceinline__ uint32_t store_pairs(Pair of_pair, uint32_t width, const uint32_t* turns, unsigned char* bytes, uint32_t lane) {
  int32_t values[kPairs][2];
  uint32_t most = 0;
#pragma unroll
  for (uint32_t k = 0; k < kPairs; k++) {
    const uint32_t pair = kWarp * k + lane;
    if (2 * pair >= width) continue;
    const int2 two = of_pair(k, pair);
    int32_t low = two.x, high = two.y;
    if (turns != nullptr) {
      const uint32_t turn = turns[pair];
      const int64 cosine = static_cast<short>(turn & 0xFFFF), sine = static_cast<short>(turn >> 16);
      const int64 a = low, b = high;
      low = clamp(round_shift(a * cosine - b * sine, 14));
      high = clamp(round_shift(a * sine + b * cosine, 14));
    }
    values[k][0] = static_cast<int32_t>(clamp(low, -kStored, kStored));
    values[k][1] = static_cast<int32_t>(clamp(high, -kStored, kStored));
    most = max(most, max(magnitude(values[k][0]), magnitude(values[k][1])));
  }
  most = __reduce_max_sync(kEveryLane, most);
  const uint32_t scale = max((most * 16 + 126) / 127, 1u);
  const float inverse = 1.0f / static_cast<float>(2 * scale);
  __syncwarp();
#pragma unroll
  for (uint32_t k = 0; k < kPairs; k++) {
    const uint32_t pair = kWarp * k + lane;
    if (2 * pair >= width) continue;
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      // To the nearest, halves up: 128 is added, so that what is divided has no sign.
      const uint32_t shifted = static_cast<uint32_t>(values[k][j] * 32 + static_cast<int32_t>(scale)) + 256 * scale;
      bytes[2 * pair + j] = static_cast<unsigned char>(divide_near(shifted, 2 * scale, inverse) - 128);
    }
  }
  __syncwarp();
  return scale;
}

// The same of a head that lies in memory.
__device__ __forceinline__ uint32_t store(const int32_t* head, uint32_t width, const uint32_t* turns, unsigned char* bytes, uint32_t lane) {
  return store_pairs([&](uint32_t, uint32_t pair) { return make_int2(head[2 * pair], head[2 * pair + 1]); }, width, turns, bytes, lane);
}

// Puts a stored head into its place in a block of keys and values: `half` begins with the scales of 32 positions.
__device__ __forceinline__ void keep(char* half, uint32_t width, uint32_t slot, const unsigned char* bytes, uint32_t scale, uint32_t lane) {
  char* const to = half + kLine + slot * width;
  for (uint32_t at = 16 * lane; at < width; at += 16 * kWarp)
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(bytes + at);
  if (lane == 0) reinterpret_cast<uint16_t*>(half)[slot] = static_cast<uint16_t>(scale);
}

// The same in host memory.
__device__ __forceinline__ void keep_sys(char* half, uint32_t width, uint32_t slot, const unsigned char* bytes, uint32_t scale, uint32_t lane) {
  char* const to = half + kLine + slot * width;
  for (uint32_t at = 16 * lane; at < width; at += 16 * kWarp)
    order::store_relaxed_sys(reinterpret_cast<ulonglong2*>(to + at), *reinterpret_cast<const ulonglong2*>(bytes + at));
  if (lane == 0) order::store_relaxed_sys(reinterpret_cast<uint16_t*>(half) + slot, static_cast<uint16_t>(scale));
}

// What a warp attends with.
struct Head {
  const char* keys;    // of this head and layer, in the first block
  uint64_t kv_block;   // bytes from block to block
  uint32_t width, kv_half;
  const char* query;   // its mantissas, in shared memory
  uint32_t query_scale, factor;
  const uint16_t* exp2;
};

// Channels that a warp attends to at a time.
constexpr uint32_t kChunk = 128;

// The blocks of a head that `position` sees, from number `first` of them in steps of `step`, into `to`; there is one at least. Of the values it takes kChunk channels from `chunk` on, and kAtATime of a channel are on their way to a lane. A warp calls it;
// `scratch` is its own, of 32 words.
template <uint32_t kAtATime>
__device__ __forceinline__ void attend(const Head& head, const Positions& seen, uint32_t chunk, uint32_t first, uint32_t step, uint32_t position,
                                       Attended* to, uint32_t* scratch, uint32_t lane) {
  // Four channels a lane: lanes for a token's channels, and tokens that a warp reads at a time.
  const uint32_t lanes = min(head.width / 4, kWarp), slots = kWarp % lanes == 0 ? kWarp / lanes : 1;
  const uint32_t slot = lane / lanes, channel = chunk + lane % lanes * 4;
  const bool has_channels = slot < slots && channel < head.width;
  int64 weights[2] = {}, values[2][4] = {};
  int32_t highest = kNoBin;
#pragma unroll 1
  for (uint32_t which = first; which < seen.blocks(position); which += step) {
    const uint32_t block = seen.block(which);
    const char* const keys = head.keys + head.kv_block * block;
    const char* const block_values = keys + head.kv_half;
    const uint32_t count = min(position - block * kBlock + 1, kBlock);
    // The first values come while the scores are worked out. Those behind the last position are whatever is there, and count 0 times.
    uint32_t ahead[kAtATime];
    const char* const own_values = block_values + kLine + (has_channels ? channel : 0);
    const auto fetch = [&](uint32_t first) {
#pragma unroll
      for (uint32_t k = 0; k < kAtATime; k++)
        ahead[k] = *reinterpret_cast<const uint32_t*>(own_values + min(slots * (first + k) + slot, kBlock - 1) * head.width);
    };
    fetch(0);
    int32_t score = kLowest32;
    const bool is_seen = lane < count && seen.has(block, lane);
    uint32_t value_scale = 0;
    if (is_seen) {
      value_scale = reinterpret_cast<const uint16_t*>(block_values)[lane];
      const uint32_t of = DOORBELL_FAULT(ScalesAhead) ? min(lane + 1, kBlock - 1) : lane, key_scale = reinterpret_cast<const uint16_t*>(keys)[of];
      int32_t dot = 0;
      const char* const key = keys + kLine + lane * head.width;
      // 64 channels are on their way at a time; there is nothing behind the last one.
#pragma unroll 1
      for (uint32_t at = 0; at < head.width; at += kLine) {
        uint4 part[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
          part[k] = at + 16 * k < head.width ? *reinterpret_cast<const uint4*>(key + at + 16 * k) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
          if (at + 16 * k >= head.width) break;
          const uint4 q = *reinterpret_cast<const uint4*>(head.query + at + 16 * k);
          dot = stream::dot(part[k].x, q.x, stream::dot(part[k].y, q.y, stream::dot(part[k].z, q.z, stream::dot(part[k].w, q.w, dot))));
        }
      }
      score = score_of(dot, head.query_scale, key_scale, head.factor);
    }
    const int32_t ceiling = (__reduce_max_sync(kEveryLane, score) + 255) >> 8;
    uint32_t bin = 0;
    const bool counts = enters(highest, ceiling >> 4, bin, [&](bool below) {
      weights[1] = below ? weights[0] : 0;
      weights[0] = 0;
#pragma unroll
      for (uint32_t j = 0; j < 4; j++) {
        values[1][j] = below ? values[0][j] : 0;
        values[0][j] = 0;
      }
    });
    if (!counts) continue;
    uint32_t weight = 0, scaled = 0;
    if (is_seen) {
      weight = weight_of(head.exp2, (static_cast<uint32_t>(ceiling) << 8) - static_cast<uint32_t>(score));
      scaled = weight * value_scale;
    }
    const uint32_t up = static_cast<uint32_t>(ceiling) & 15;
    const int64 total = static_cast<int64>(__reduce_add_sync(kEveryLane, weight)) << up;
    weights[0] += bin == 0 ? total : 0;
    weights[1] += bin == 0 ? 0 : total;
    __syncwarp();
    scratch[lane] = scaled;
    __syncwarp();
    if (!has_channels) continue;
    int64 sums[4] = {};
#pragma unroll 1
    for (uint32_t first = 0; slots * first < count; first += kAtATime) {
      if (first != 0) fetch(first);
#pragma unroll
      for (uint32_t k = 0; k < kAtATime; k++) {
        const uint32_t token = slots * (first + k) + slot;
        // Of 24 bits.
        const int32_t w = token < kBlock ? static_cast<int32_t>(scratch[token]) : 0;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) sums[j] = stream::multiply_wide(w, static_cast<signed char>(ahead[k] >> 8 * j & 0xFF), sums[j]);
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      const int64 sum = static_cast<int64>(static_cast<uint64_t>(sums[j]) << up);
      values[0][j] += bin == 0 ? sum : 0;
      values[1][j] += bin == 0 ? 0 : sum;
    }
  }
  int64* const kept = reinterpret_cast<int64*>(to + 1);
#pragma unroll
  for (uint32_t b = 0; b < 2; b++) {
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      int64 sum = values[b][j];
      for (uint32_t by = lanes; by < kWarp && slots > 1; by *= 2) sum += __shfl_xor_sync(kEveryLane, sum, by);
      if (slot == 0 && has_channels) kept[b * head.width + channel + j] = sum;
    }
  }
  if (lane == 0 && chunk == 0) {
    to->weights[0] = weights[0];
    to->weights[1] = weights[1];
    to->highest = highest;
  }
}

// The bytes of four numbers, by their places: the four lowest ones, then the next, ...
__device__ __forceinline__ void transpose(const uint32_t (&from)[4], uint32_t (&to)[4]) {
  const uint32_t low[2] = {__byte_perm(from[0], from[1], 0x5140), __byte_perm(from[2], from[3], 0x5140)};
  const uint32_t high[2] = {__byte_perm(from[0], from[1], 0x7362), __byte_perm(from[2], from[3], 0x7362)};
  to[0] = __byte_perm(low[0], low[1], 0x5410);
  to[1] = __byte_perm(low[0], low[1], 0x7632);
  to[2] = __byte_perm(high[0], high[1], 0x5410);
  to[3] = __byte_perm(high[0], high[1], 0x7632);
}

// What a warp attends with to a head of keys that several heads of queries share.
struct Heads {
  const char* keys;    // of this head and layer, in the first block
  uint64_t kv_block;   // bytes from block to block
  uint32_t width, kv_half;
  const char* queries; // their mantissas, in shared memory, one behind the other
  const uint32_t* query_scales;
  uint32_t count, factor;
  const uint16_t* exp2;
};

// Heads that share a warp, and channels of values that it takes at a time.
constexpr uint32_t kTogether = 4, kPiece = 64;
// Channels that a head of most models has: what attends to those is compiled for them.
constexpr uint32_t kUsualWidth = 64;

// Keys and values of a block that are on their way to a warp: of eight positions eight channels of values, two times 32 channels of four keys, and the scales of a position.
struct Near {
  uint2 values[8], keys[2][4];
  uint32_t key_scale, value_scale;

  // What lies behind the last position is whatever is there, and counts 0 times; behind the last channel there is nothing.
  __device__ __forceinline__ void bring(const Heads& heads, uint32_t piece, uint32_t block, uint32_t lane) {
    const uint32_t group = lane / 4, quarter = lane % 4;
    const char* const block_keys = heads.keys + heads.kv_block * block;
    const char* const block_values = block_keys + heads.kv_half;
    const uint32_t channel = piece + 8 * group < heads.width ? piece + 8 * group : 0;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
      values[k] = *reinterpret_cast<const uint2*>(block_values + kLine + (16 * (k / 4) + 4 * quarter + k % 4) * heads.width + channel);
    key_scale = reinterpret_cast<const uint16_t*>(block_keys)[DOORBELL_FAULT(ScalesAhead) ? min(lane + 1, kBlock - 1) : lane];
    value_scale = reinterpret_cast<const uint16_t*>(block_values)[lane];
    bring_keys(heads, block_keys, 0, lane);
  }
  __device__ __forceinline__ void bring_keys(const Heads& heads, const char* block_keys, uint32_t at, uint32_t lane) {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      const bool is = at + kBlock * half < heads.width;
#pragma unroll
      for (uint32_t k = 0; k < 4; k++)
        keys[half][k] = is ? *reinterpret_cast<const uint2*>(block_keys + kLine + (8 * k + lane / 4) * heads.width + at + kBlock * half + 8 * (lane % 4)) : make_uint2(0, 0);
    }
  }
};

// The newest position's key and value in shared memory, which a block of keys and values that is brought ahead lacks.
struct Fresh {
  const char *key, *value;  // mantissas; null if nothing is brought ahead
  uint32_t key_scale, value_scale;
};

// What `attend` does with one head, for up to kTogether that share their keys, on the matrix units: rows are positions, columns are heads; then a row is a byte of all
// weights of a head, of 24 bits, and columns are channels. `to` are the parts of these heads, `bytes` from one to the next; `scratch` is the warp's own, of
// kTogether * 32 words.
__device__ __forceinline__ void attend_together(const Heads& heads, uint32_t piece, uint32_t first, uint32_t step, uint32_t position, char* to, uint32_t bytes,
                                                uint32_t* scratch, uint32_t lane) {
  constexpr uint32_t kPairs = kPiece / 16;
  const uint32_t group = lane / 4, quarter = lane % 4, own = group % kTogether;
  // Of two tiles of channels the lanes of the lower two bytes have one, the others the other.
  const bool upper = group >= kTogether;
  const bool has_channels = piece + 8 * group < heads.width;
  int64 weights[2] = {}, values[2][kPairs][2] = {};  // [bin], [bin][pair of tiles][channel]
  int32_t highest = kNoBin;
  const char* const query = heads.queries + heads.width * min(group, heads.count - 1) + 8 * quarter;
#pragma unroll 1
  for (uint32_t block = first; block <= position / kBlock; block += step) {
    const char* const keys = heads.keys + heads.kv_block * block;
    const char* const block_values = keys + heads.kv_half;
    // The values come while the scores are worked out: of eight positions eight channels. Those behind the last position are whatever is there, and count 0 times.
    uint2 coming[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
      coming[k] = *reinterpret_cast<const uint2*>(block_values + kLine + (16 * (k / 4) + 4 * quarter + k % 4) * heads.width + (has_channels ? piece + 8 * group : 0));
    const uint32_t key_scale = reinterpret_cast<const uint16_t*>(keys)[DOORBELL_FAULT(ScalesAhead) ? min(lane + 1, kBlock - 1) : lane];
    const uint32_t value_scale = reinterpret_cast<const uint16_t*>(block_values)[lane];
    int32_t dots[2][4] = {};
#pragma unroll 1
    for (uint32_t at = 0; at < heads.width; at += kLine) {
      // Two times 32 channels of four rows; there is nothing behind the last one.
      uint2 key[2][4];
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        const bool is = at + kBlock * half < heads.width;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
          key[half][k] = is ? *reinterpret_cast<const uint2*>(keys + kLine + (8 * k + group) * heads.width + at + kBlock * half + 8 * quarter) : make_uint2(0, 0);
      }
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        if (at + kBlock * half >= heads.width) break;
        const uint2 by = *reinterpret_cast<const uint2*>(query + at + kBlock * half);
#pragma unroll
        for (uint32_t tile = 0; tile < 2; tile++) {
          stream::add_tile(dots[tile], key[half][2 * tile].x, key[half][2 * tile + 1].x, key[half][2 * tile].y, key[half][2 * tile + 1].y, by.x, by.y);
        }
      }
    }
    __syncwarp();
    if (quarter < kTogether / 2) {
#pragma unroll
      for (uint32_t k = 0; k < 8; k++)
        scratch[kBlock * (2 * quarter + k % 2) + 8 * (k / 2) + group] = static_cast<uint32_t>(dots[k / 4][k % 4]);
    }
    __syncwarp();
    // A lane for each position.
    const bool is_seen = kBlock * block + lane <= position;
    int32_t own_ceiling = 0;
    uint32_t own_sum = 0;
    int32_t scores[kTogether], ceilings[kTogether];
    // All side by side: each is a chain of its own. Behind the last head there is that once more, which counts for nothing.
#pragma unroll
    for (uint32_t head = 0; head < kTogether; head++) {
      const uint32_t that = min(head, heads.count - 1);
      const int32_t score = score_by(static_cast<int32_t>(scratch[kBlock * that + lane]), heads.query_scales[that] * key_scale, heads.factor);
      scores[head] = is_seen ? score : kLowest32;
    }
#pragma unroll
    for (uint32_t head = 0; head < kTogether; head++) ceilings[head] = (__reduce_max_sync(kEveryLane, scores[head]) + 255) >> 8;
#pragma unroll
    for (uint32_t head = 0; head < kTogether; head++) {
      const uint32_t of_score = weight_of(heads.exp2, (static_cast<uint32_t>(ceilings[head]) << 8) - static_cast<uint32_t>(scores[head]));
      const uint32_t weight = is_seen ? of_score : 0, sum = __reduce_add_sync(kEveryLane, weight);
      scratch[kBlock * head + lane] = weight * value_scale;
      if (head == own) {
        own_ceiling = ceilings[head];
        own_sum = sum;
      }
    }
    __syncwarp();
    uint32_t which = 2;
    if (own < heads.count)
      enters(highest, own_ceiling >> 4, which, [&](bool below) {
        weights[1] = below ? weights[0] : 0;
        weights[0] = 0;
#pragma unroll
        for (uint32_t pair = 0; pair < kPairs; pair++) {
#pragma unroll
          for (uint32_t j = 0; j < 2; j++) {
            values[1][pair][j] = below ? values[0][pair][j] : 0;
            values[0][pair][j] = 0;
          }
        }
      });
    const uint32_t up = static_cast<uint32_t>(own_ceiling) & 15;
    const int64 total = static_cast<int64>(own_sum) << up;
    weights[0] += which == 0 ? total : 0;
    weights[1] += which == 1 ? total : 0;
    const int32_t units[2] = {which == 0 ? 1 << up : 0, which == 1 ? 1 << up : 0};
    // Usually all weights fall into the first bins.
    const bool has_second = __any_sync(kEveryLane, which == 1);
    // Row `group` has byte group / 4 of the weights of its head, and eight rows on is that two bytes on.
    uint32_t limbs[2][2];  // [half of the positions][row]
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      const uint4 four = *reinterpret_cast<const uint4*>(scratch + kBlock * own + 16 * half + 4 * quarter);
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        const uint32_t byte = group / kTogether + 2 * r, pick = byte | (4 + byte) << 4;
        limbs[half][r] = __byte_perm(__byte_perm(four.x, four.y, pick), __byte_perm(four.z, four.w, pick), 0x5410);
      }
    }
    uint32_t columns[2][8];  // of channels: four positions each
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
      for (uint32_t four = 0; four < 2; four++) {
        uint32_t from[4], turned[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) from[k] = four == 0 ? coming[4 * half + k].x : coming[4 * half + k].y;
        transpose(from, turned);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) columns[half][4 * four + k] = turned[k];
      }
    }
#pragma unroll
    for (uint32_t pair = 0; pair < kPairs; pair++) {
      int32_t sums[2][4];
#pragma unroll
      for (uint32_t k = 0; k < 2; k++)
        stream::multiply_unsigned_tile(sums[k], limbs[0][0], limbs[0][1], limbs[1][0], limbs[1][1], columns[0][2 * pair + k], columns[1][2 * pair + k]);
#pragma unroll
      for (uint32_t j = 0; j < 2; j++) {
        const int32_t got = __shfl_xor_sync(kEveryLane, upper ? sums[0][j] : sums[1][j], 16), third = __shfl_xor_sync(kEveryLane, sums[1][2 + j], 16);
        // The first two have 29 bits together.
        const int32_t low = upper ? got + sums[1][j] * 256 : sums[0][j] + got * 256;
        // The third sum's factor is halved: 2^31 does not fit a signed 32-bit integer. So the sum is doubled.
        const int32_t twice = 2 * (upper ? third : sums[0][2 + j]);
        values[0][pair][j] = stream::multiply_wide(twice, units[0] << 15, stream::multiply_wide(low, units[0], values[0][pair][j]));
        if (has_second) values[1][pair][j] = stream::multiply_wide(twice, units[1] << 15, stream::multiply_wide(low, units[1], values[1][pair][j]));
      }
    }
  }
  if (own >= heads.count) return;
  Attended* const part = reinterpret_cast<Attended*>(to + bytes * own);
  int64* const kept = reinterpret_cast<int64*>(part + 1);
#pragma unroll
  for (uint32_t b = 0; b < 2; b++) {
#pragma unroll
    for (uint32_t pair = 0; pair < kPairs; pair++) {
#pragma unroll
      for (uint32_t j = 0; j < 2; j++) {
        const uint32_t channel = piece + 8 * (2 * quarter + j) + 2 * pair + (upper ? 1 : 0);
        if (channel < heads.width) kept[b * heads.width + channel] = values[b][pair][j];
      }
    }
  }
  if (quarter == 0 && !upper && piece == 0) {
    part->weights[0] = weights[0];
    part->weights[1] = weights[1];
    part->highest = highest;
  }
}

// What `attend` does with one head, for up to kTogether that share their keys, on the matrix units: rows are positions, columns are heads; then a row is a byte of all
// weights of a head, of 24 bits, and columns are channels. `to` are the parts of these heads, `bytes` from one to the next; `scratch` is the warp's own, of
// kTogether * 32 words.
// The first block is `near`; with `kSingle` there is no other, and the lower bin is not written.
template <bool kSingle>
__device__ __forceinline__ void attend_near(const Heads& heads, Near& near, const Fresh& fresh, uint32_t piece, uint32_t first, uint32_t step, uint32_t position, char* to,
                                                uint32_t bytes, uint32_t* scratch, uint32_t lane) {
  constexpr uint32_t kTilePairs = kPiece / 16;
  const uint32_t group = lane / 4, quarter = lane % 4, own = group % kTogether;
  // Of two tiles of channels the lanes of the lower two bytes have one, the others the other.
  const bool upper = group >= kTogether;
  const bool has_channels = piece + 8 * group < heads.width;
  int64 weights[2] = {}, values[2][kTilePairs][2] = {};  // [bin], [bin][pair of tiles][channel]
  int32_t highest = kNoBin;
  const char* const query = heads.queries + heads.width * min(group, heads.count - 1) + 8 * quarter;
#pragma unroll 1
  for (uint32_t block = first; block <= position / kBlock; block += step) {
    const char* const keys = heads.keys + heads.kv_block * block;
    if (!kSingle && block != first) near.bring(heads, piece, block, lane);
    const bool has_fresh = fresh.key != nullptr && block == position / kBlock;
    const uint32_t slot = position % kBlock;
    uint32_t key_scale = near.key_scale, value_scale = near.value_scale;
    if (has_fresh) {
      if (lane == slot) {
        key_scale = fresh.key_scale;
        value_scale = fresh.value_scale;
      }
#pragma unroll
      for (uint32_t k = 0; k < 8; k++)
        if (16 * (k / 4) + 4 * quarter + k % 4 == slot) near.values[k] = *reinterpret_cast<const uint2*>(fresh.value + (has_channels ? piece + 8 * group : 0));
    }
    int32_t dots[2][4] = {};
#pragma unroll 1
    for (uint32_t at = 0; at < heads.width; at += kLine) {
      if (at != 0) near.bring_keys(heads, keys, at, lane);
      if (has_fresh) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
          for (uint32_t k = 0; k < 4; k++)
            if (8 * k + group == slot && at + kBlock * half < heads.width) near.keys[half][k] = *reinterpret_cast<const uint2*>(fresh.key + at + kBlock * half + 8 * quarter);
        }
      }
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        if (at + kBlock * half >= heads.width) break;
        const uint2 by = *reinterpret_cast<const uint2*>(query + at + kBlock * half);
#pragma unroll
        for (uint32_t tile = 0; tile < 2; tile++) {
          stream::add_tile(dots[tile], near.keys[half][2 * tile].x, near.keys[half][2 * tile + 1].x, near.keys[half][2 * tile].y, near.keys[half][2 * tile + 1].y, by.x, by.y);
        }
      }
    }
    __syncwarp();
    if (quarter < kTogether / 2) {
#pragma unroll
      for (uint32_t k = 0; k < 8; k++)
        scratch[kBlock * (2 * quarter + k % 2) + 8 * (k / 2) + group] = static_cast<uint32_t>(dots[k / 4][k % 4]);
    }
    __syncwarp();
    // A lane for each position.
    const bool is_seen = kBlock * block + lane <= position;
    int32_t own_ceiling = 0;
    uint32_t own_sum = 0;
    int32_t scores[kTogether], ceilings[kTogether];
    // All side by side: each is a chain of its own. Behind the last head there is that once more, which counts for nothing.
#pragma unroll
    for (uint32_t head = 0; head < kTogether; head++) {
      const uint32_t that = min(head, heads.count - 1);
      const int32_t score = score_by(static_cast<int32_t>(scratch[kBlock * that + lane]), heads.query_scales[that] * key_scale, heads.factor);
      scores[head] = is_seen ? score : kLowest32;
    }
#pragma unroll
    for (uint32_t head = 0; head < kTogether; head++) ceilings[head] = (__reduce_max_sync(kEveryLane, scores[head]) + 255) >> 8;
#pragma unroll
    for (uint32_t head = 0; head < kTogether; head++) {
      const uint32_t of_score = weight_of(heads.exp2, (static_cast<uint32_t>(ceilings[head]) << 8) - static_cast<uint32_t>(scores[head]));
      const uint32_t weight = is_seen ? of_score : 0, sum = __reduce_add_sync(kEveryLane, weight);
      scratch[kBlock * head + lane] = weight * value_scale;
      if (head == own) {
        own_ceiling = ceilings[head];
        own_sum = sum;
      }
    }
    __syncwarp();
    uint32_t which = 2;
    if (kSingle) {
      highest = own_ceiling >> 4;
      which = 0;
    } else if (own < heads.count) {
      enters(highest, own_ceiling >> 4, which, [&](bool below) {
        weights[1] = below ? weights[0] : 0;
        weights[0] = 0;
#pragma unroll
        for (uint32_t pair = 0; pair < kTilePairs; pair++) {
#pragma unroll
          for (uint32_t j = 0; j < 2; j++) {
            values[1][pair][j] = below ? values[0][pair][j] : 0;
            values[0][pair][j] = 0;
          }
        }
      });
    }
    const uint32_t up = static_cast<uint32_t>(own_ceiling) & 15;
    const int64 total = static_cast<int64>(own_sum) << up;
    weights[0] += which == 0 ? total : 0;
    weights[1] += which == 1 ? total : 0;
    const int32_t units[2] = {which == 0 ? 1 << up : 0, which == 1 ? 1 << up : 0};
    // Usually all weights fall into the first bins.
    const bool has_second = __any_sync(kEveryLane, which == 1);
    // Row `group` has byte group / 4 of the weights of its head, and eight rows on is that two bytes on.
    uint32_t limbs[2][2];  // [half of the positions][row]
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      const uint4 four = *reinterpret_cast<const uint4*>(scratch + kBlock * own + 16 * half + 4 * quarter);
#pragma unroll
      for (uint32_t r = 0; r < 2; r++) {
        const uint32_t byte = group / kTogether + 2 * r, pick = byte | (4 + byte) << 4;
        limbs[half][r] = __byte_perm(__byte_perm(four.x, four.y, pick), __byte_perm(four.z, four.w, pick), 0x5410);
      }
    }
    uint32_t columns[2][8];  // of channels: four positions each
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
      for (uint32_t four = 0; four < 2; four++) {
        uint32_t from[4], turned[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) from[k] = four == 0 ? near.values[4 * half + k].x : near.values[4 * half + k].y;
        transpose(from, turned);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) columns[half][4 * four + k] = turned[k];
      }
    }
#pragma unroll
    for (uint32_t pair = 0; pair < kTilePairs; pair++) {
      int32_t sums[2][4];
#pragma unroll
      for (uint32_t k = 0; k < 2; k++)
        stream::multiply_unsigned_tile(sums[k], limbs[0][0], limbs[0][1], limbs[1][0], limbs[1][1], columns[0][2 * pair + k], columns[1][2 * pair + k]);
#pragma unroll
      for (uint32_t j = 0; j < 2; j++) {
        const int32_t got = __shfl_xor_sync(kEveryLane, upper ? sums[0][j] : sums[1][j], 16), third = __shfl_xor_sync(kEveryLane, sums[1][2 + j], 16);
        // The first two have 29 bits together.
        const int32_t low = upper ? got + sums[1][j] * 256 : sums[0][j] + got * 256;
        // The third sum's factor is halved: 2^31 does not fit a signed 32-bit integer. So the sum is doubled.
        const int32_t twice = 2 * (upper ? third : sums[0][2 + j]);
        values[0][pair][j] = stream::multiply_wide(twice, units[0] << 15, stream::multiply_wide(low, units[0], values[0][pair][j]));
        if (!kSingle && has_second) values[1][pair][j] = stream::multiply_wide(twice, units[1] << 15, stream::multiply_wide(low, units[1], values[1][pair][j]));
      }
    }
    if (kSingle) break;
  }
  if (own >= heads.count) return;
  Attended* const part = reinterpret_cast<Attended*>(to + bytes * own);
  int64* const kept = reinterpret_cast<int64*>(part + 1);
#pragma unroll
  for (uint32_t b = 0; b < (kSingle ? 1 : 2); b++) {
#pragma unroll
    for (uint32_t pair = 0; pair < kTilePairs; pair++) {
#pragma unroll
      for (uint32_t j = 0; j < 2; j++) {
        const uint32_t channel = piece + 8 * (2 * quarter + j) + 2 * pair + (upper ? 1 : 0);
        if (channel < heads.width) kept[b * heads.width + channel] = values[b][pair][j];
      }
    }
  }
  if (quarter == 0 && !upper && piece == 0) {
    part->weights[0] = weights[0];
    part->weights[1] = weights[1];
    part->highest = highest;
  }
}

// `round_divide`, in the code once.
__device__ __noinline__ int64 divide_apart(int64 numerator, int64 denominator) { return round_divide(numerator, denominator); }

// The mean of one channel of a head, with 10 fraction bits, over its parts, `bytes` each. It is no larger than what is stored, whose mantissas times scales have 23 bits.
template <bool kNear = false>
__device__ __forceinline__ int32_t mean_of(const char* parts, uint32_t count, uint32_t bytes, uint32_t width, uint32_t channel) {
  int32_t highest = kNoBin;
#pragma unroll 4
  for (uint32_t k = 0; k < count; k++) highest = max(highest, reinterpret_cast<const Attended*>(parts + bytes * k)->highest);
  // Without branches, all loads of a part are in flight at the same time.
  int64 weights[2] = {}, values[2] = {};
#pragma unroll 2
  for (uint32_t k = 0; k < count; k++) {
    const Attended* const part = reinterpret_cast<const Attended*>(parts + bytes * k);
    const int64* const kept = reinterpret_cast<const int64*>(part + 1) + channel;
    const int32_t own = part->highest;
    const bool is = own == highest, below = own == highest - 1;
    const int64 weight = part->weights[0], lower_weight = part->weights[1], value = kept[0], lower_value = kept[width];
    weights[0] += is ? weight : 0;
    values[0] += is ? value : 0;
    weights[1] += is ? lower_weight : below ? weight : 0;
    values[1] += is ? lower_value : below ? value : 0;
  }
  if (DOORBELL_FAULT(DropsBin)) weights[1] = values[1] = 0;
  const int64 numerator = values[0] + (values[1] >> 16), denominator = (weights[0] + (weights[1] >> 16)) << 4;
  return clamp(kNear ? round_divide_near(numerator, denominator) : round_divide(numerator, denominator));
}

}  // namespace language

#endif
