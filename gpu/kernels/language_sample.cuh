// From logits to a token and its log-probability: docs/engine.md, Sampling; lm/src/sample.rs has the same in plain loops.
#ifndef DOORBELL_LANGUAGE_SAMPLE_CUH
#define DOORBELL_LANGUAGE_SAMPLE_CUH

#include "language_attention.cuh"
#include "mix.cuh"

namespace language {

// log2(e) / temperature with 20 fraction bits: of temperature 1.
constexpr uint32_t kSharpnessOne = 1512775;

// A token, and its log-probability with 16 fraction bits and a sign.
struct Sampled {
  uint32_t token;
  uint32_t logp;
};

// What is drawn at one position of one rollout.
struct Draw {
  uint32_t first, second;

  static __device__ __forceinline__ Draw of(uint32_t seed, uint32_t rollout, uint32_t position) {
    return Draw{mix(mix(seed ^ mix(rollout + DOORBELL_GOLDEN)) + position * DOORBELL_GOLDEN),
                mix(mix(position ^ mix(seed + DOORBELL_GOLDEN)) + rollout)};
  }
  __device__ __forceinline__ uint32_t bits(uint32_t token) const { return mix(mix(first + token * DOORBELL_GOLDEN) ^ second); }
};

// The noise that uniform bits stand for, with 24 fraction bits.
__device__ __forceinline__ int64 gumbel(const Tables& tables, uint32_t bits) {
  // With 33 fraction bits, and odd: neither 0 nor 1.
  const uint64_t w = 2ull * bits + 1;
  const bool below = bits >> 31 == 0;
  const int64 log = (33ll << 24) - log2_of(tables.log2, below ? w : (1ull << 33) - w);
  if (below) return log - between(tables.ratio, static_cast<uint32_t>(w >> 24), static_cast<uint32_t>(w) & 0xFFFFFF);
  return (24ll << 24) - log2_of(tables.log2, static_cast<uint64_t>(log));
}

// A logit as a power of 2 with 10 fraction bits.
__device__ __forceinline__ int64 power_of(int32_t logit, uint32_t sharpness) {
  return round_shift(static_cast<int64>(logit) * sharpness, 20);
}

// 2^20 * 2^(-below / 1024), rounded; `table` is a copy of kPowers.
__device__ __forceinline__ uint32_t power_of_logit(const uint32_t* table, int64 below) {
  const int64 whole = below >> 10;
  return whole > 21 ? 0 : (table[below & 1023] + (1u << whole >> 1)) >> whole;
}

// Whether a token comes before the one that is the best so far.
__device__ __forceinline__ bool better(int64 key, uint32_t token, int64 than_key, uint32_t than) {
  return key > than_key || (key == than_key && token < than);
}

// What a truncated draw leaves: logits not below one, of which the order of 32 bits without a sign is taken, and powers of 2 not further below a
// whole number, with 10 fraction bits.
struct Kept {
  uint32_t lowest;
  int64 farthest, ceiling;
  uint32_t sharpness;

  static __device__ __forceinline__ uint32_t order_of(int32_t logit) { return static_cast<uint32_t>(logit) ^ 0x80000000u; }
  __device__ __forceinline__ int64 below(int32_t logit) const { return ceiling - power_of(logit, sharpness); }
  __device__ __forceinline__ bool has(int32_t logit) const { return order_of(logit) >= lowest && below(logit) <= farthest; }
};

// What a warp finds as it takes blocks of 32 tokens of the vocabulary, a lane each.
class Sampler {
 public:
  __device__ __forceinline__ Sampler(const Tables& tables, uint32_t sharpness, Draw draw)
      : tables_(tables), sharpness_(sharpness), scaled_by_(sharpness == 0 ? kSharpnessOne : sharpness), draw_(draw) {}

  // All lanes call it; `is` tells which of them have a token, of which there is one.
  __device__ __forceinline__ void add(bool is, uint32_t token, int32_t logit) {
    if (is) pick(token, logit);
    count(is, logit);
  }

  // A token that may be drawn.
  __device__ __forceinline__ void pick(uint32_t token, int32_t logit) {
    int64 key = logit;
    if (sharpness_ != 0) key = key * sharpness_ + gumbel(tables_, draw_.bits(token)) * 64;
    keep(key, token, logit);
  }

  // Whether a token may be better than one whose key is as high as `bound` says, and than this lane's: noise of bits that begin with n zeros is less than n + 1.
  __device__ __forceinline__ bool may_pick(uint32_t token, int32_t logit, uint32_t bound) const {
    if (sharpness_ == 0) return true;
    const int64 noise = static_cast<int64>(__clz(static_cast<int32_t>(draw_.bits(token))) + 1) << (24 + 6);
    const int64 than = bound == kNoBound ? kLowest64 : static_cast<int64>(static_cast<int32_t>(bound)) << kBoundShift;
    return static_cast<int64>(logit) * sharpness_ + noise >= max(than, key_);
  }
  // What the best key of this lane is at least, without its lowest bits.
  __device__ __forceinline__ uint32_t bound() const { return static_cast<uint32_t>(clamp(key_ >> kBoundShift, kLowest32, ~kLowest32)); }
  static constexpr uint32_t kBoundShift = 20, kNoBound = static_cast<uint32_t>(kLowest32);

  // A token with this key.
  __device__ __forceinline__ void keep(int64 key, uint32_t token, int32_t logit) {
    if (better(key, token, key_, token_)) {
      key_ = key;
      token_ = token;
      logit_ = logit;
    }
  }

  // The sums, whatever is drawn. All lanes call it.
  __device__ __forceinline__ void count(bool is, int32_t logit) {
    const int64 ceiling = ceiling_of(__reduce_max_sync(kEveryLane, is ? logit : kLowest32));
    const uint32_t own = is ? weight_of(ceiling, logit) : 0;
    enter_sum(ceiling, __reduce_add_sync(kEveryLane, own));
  }

  // The parts of `count`: what the highest of 32 logits is rounded up to, each one's weight, and the sum of all 32.
  __device__ __forceinline__ int64 ceiling_of(int32_t most) const { return (power_of(most, scaled_by_) + 1023) >> 10; }
  __device__ __forceinline__ uint32_t weight_of(int64 ceiling, int32_t logit) const {
    return power_of_logit(tables_.powers, ceiling * 1024 - power_of(logit, scaled_by_));
  }
  __device__ __forceinline__ void enter_sum(int64 ceiling, uint32_t sum) {
    enter(static_cast<int32_t>(ceiling >> 4), static_cast<int64>(sum) << (ceiling & 15));
  }

  // The best of all lanes, and the sums; the same on every lane.
  __device__ __forceinline__ Candidate candidate() { return candidate_of(1); }
  // The same of the lanes whose numbers are alike modulo so many, a power of 2. They have the same sums.
  __device__ __forceinline__ Candidate candidate_of(uint32_t lanes) {
    for (uint32_t by = lanes; by < kWarp; by *= 2) {
      const int64 key = __shfl_xor_sync(kEveryLane, key_, by);
      const uint32_t token = __shfl_xor_sync(kEveryLane, token_, by);
      const int32_t logit = __shfl_xor_sync(kEveryLane, logit_, by);
      if (better(key, token, key_, token_)) {
        key_ = key;
        token_ = token;
        logit_ = logit;
      }
    }
    return own();
  }
  // This lane's.
  __device__ __forceinline__ Candidate own() const { return Candidate{key_, {sums_[0], sums_[1], sums_[2]}, highest_, token_, logit_}; }

  // What another warp found.
  __device__ __forceinline__ void join(const Candidate& other) {
    if (better(other.key, other.token, key_, token_)) {
      key_ = other.key;
      token_ = other.token;
      logit_ = other.logit;
    }
    if (other.highest == kNoBin) return;
#pragma unroll
    for (uint32_t k = 0; k < kBins; k++) enter(other.highest - static_cast<int32_t>(k), other.sums[k]);
  }

  // Joins what the lanes of a warp have found, of different tokens each; all lanes have all of it then. All call it.
  __device__ __forceinline__ void join_lanes() {
#pragma unroll 1
    for (uint32_t by = 1; by < kWarp; by *= 2) {
      Candidate other = own();
      other.key = __shfl_xor_sync(kEveryLane, other.key, by);
#pragma unroll
      for (uint32_t k = 0; k < kBins; k++) other.sums[k] = __shfl_xor_sync(kEveryLane, other.sums[k], by);
      other.highest = __shfl_xor_sync(kEveryLane, other.highest, by);
      other.token = __shfl_xor_sync(kEveryLane, other.token, by);
      other.logit = __shfl_xor_sync(kEveryLane, other.logit, by);
      join(other);
    }
  }

  // The best one's.
  __device__ __forceinline__ uint32_t token() const { return token_; }
  __device__ __forceinline__ int32_t logit() const { return logit_; }
  // In the place of the best one.
  __device__ __forceinline__ void choose(uint32_t token, int32_t logit) {
    token_ = token;
    logit_ = logit;
  }

  // The token, once all of the vocabulary has been taken.
  __device__ __forceinline__ Sampled sampled() const {
    const int64 sum = sums_[0] + (sums_[1] >> 16) + (DOORBELL_FAULT(DropsLowestBin) ? 0 : sums_[2] >> 32);
    const int64 log = log2_of(tables_.log2, static_cast<uint64_t>(sum)) + (static_cast<int64>(highest_) * 16 - 20) * (1 << 24);
    const int64 below = power_of(logit_, scaled_by_) * (1 << 14) - log;
    // ln(2) with 24 fraction bits, of which 32 of 48 go, halves up: the lower 32 bits are multiplied apart, as 64 would not hold it.
    constexpr int64 kLn2 = 11629080;
    const int64 nats = (below >> 32) * kLn2 + (((below & 0xFFFFFFFFll) * kLn2 + (1ll << 31)) >> 32);
    return Sampled{token_, static_cast<uint32_t>(static_cast<int32_t>(clamp(nats, kLowest32, 0)))};
  }

 private:
  // Adds a sum to a bin, and moves the bins up if it is above them.
  __device__ __forceinline__ void enter(int32_t bin, int64 sum) {
    if (bin > highest_) {
      const uint32_t up = static_cast<uint32_t>(bin) - static_cast<uint32_t>(highest_);
      sums_[2] = up == 1 ? sums_[1] : up == 2 ? sums_[0] : 0;
      sums_[1] = up == 1 ? sums_[0] : 0;
      sums_[0] = 0;
      highest_ = bin;
    }
    const uint32_t which = static_cast<uint32_t>(highest_) - static_cast<uint32_t>(bin);
#pragma unroll
    for (uint32_t k = 0; k < kBins; k++) sums_[k] += which == k ? sum : 0;
  }

  const Tables& tables_;
  const uint32_t sharpness_, scaled_by_;
  const Draw draw_;
  int64 key_ = kLowest64;
  int64 sums_[kBins] = {};
  int32_t highest_ = kNoBin;
  uint32_t token_ = 0xFFFFFFFFu;
  int32_t logit_ = 0;
};

}  // namespace language

#endif
