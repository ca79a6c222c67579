// Fixed-point arithmetic of engine 1: docs/engine.md, Numbers; lm/src/number.rs has the same names.
#ifndef DOORBELL_LANGUAGE_NUMBER_CUH
#define DOORBELL_LANGUAGE_NUMBER_CUH

#include "language_tables.cuh"

namespace language {

using int64 = long long;

constexpr int32_t kFraction = 10;
constexpr int32_t kMantissa = 127;
constexpr int32_t kLowest32 = -2147483647 - 1;
constexpr int64 kLowest64 = -9223372036854775807ll - 1;

// value / 2^shift, halves rounded up; for a negative shift value * 2^-shift, saturating.
__device__ __forceinline__ int64 round_shift(int64 value, int32_t shift) {
  if (shift > 0) return shift > 63 ? 0 : (value >> shift) + (value >> (shift - 1) & 1);
  const int64 bound = value == 0 ? 0 : value < 0 ? kLowest64 : ~kLowest64;
  if (shift <= -63) return bound;
  const int64 shifted = static_cast<int64>(static_cast<uint64_t>(value) << -shift);
  return shifted >> -shift == value ? shifted : bound;
}

__device__ __forceinline__ int64 clamp(int64 value, int64 low, int64 high) {
  return value < low ? low : value > high ? high : value;
}

__device__ __forceinline__ int32_t clamp(int64 value) {
  const int32_t low = static_cast<int32_t>(value), high = static_cast<int32_t>(value >> 32);
  return high == low >> 31 ? low : high >> 31 ^ ~kLowest32;
}

__device__ __forceinline__ uint32_t magnitude(int32_t value) {
  return value < 0 ? 0u - static_cast<uint32_t>(value) : static_cast<uint32_t>(value);
}

__device__ __forceinline__ uint64_t magnitude(int64 value) {
  return value < 0 ? 0ull - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// Bits that a number takes: 0 for 0.
__device__ __forceinline__ int32_t bits(uint32_t value) { return 32 - static_cast<int32_t>(__clz(static_cast<int32_t>(value))); }
__device__ __forceinline__ int32_t bits(uint64_t value) { return 64 - static_cast<int32_t>(__clzll(static_cast<int64>(value))); }

// The largest whole number whose square is at most `value`, which has at most 62 bits: a root in floating point is one off at most.
__device__ __forceinline__ uint64_t root_of(uint64_t value) {
  uint64_t root = static_cast<uint64_t>(__dsqrt_rn(static_cast<double>(value)));
  if (root * root > value) root--;
  if ((root + 1) * (root + 1) <= value) root++;
  return root;
}

// A quotient that is mostly one by a power of two, which costs a hundredth of another.
__device__ __forceinline__ uint64_t divide(uint64_t value, uint32_t by) {
  return (by & (by - 1)) == 0 ? value >> (bits(by) - 1) : value / by;
}

// The same of a value of 62 bits and its inverse, 1.0 / by: in floating point it is a few off at most, as of 53 bits each is rounded.
__device__ __forceinline__ uint64_t divide_by(uint64_t value, uint32_t by, double inverse) {
  uint64_t quotient = static_cast<uint64_t>(static_cast<double>(value) * inverse);
  int64 rest = static_cast<int64>(value - quotient * by);
  while (rest < 0) {
    quotient--;
    rest += by;
  }
  while (rest >= by) {
    quotient++;
    rest -= by;
  }
  return quotient;
}

// value / by, of fewer than 2^16, and its inverse, 1.0f / by: in floating point it is one off at most.
__device__ __forceinline__ uint32_t divide_near(uint32_t value, uint32_t by, float inverse) {
  const uint32_t quotient = static_cast<uint32_t>(static_cast<float>(value) * inverse);
  const int32_t rest = static_cast<int32_t>(value - quotient * by);
  return quotient - (rest < 0 ? 1 : 0) + (rest >= static_cast<int32_t>(by) ? 1 : 0);
}

// numerator / denominator, halves rounded up; the denominator is positive.
__device__ __forceinline__ int64 round_divide(int64 numerator, int64 denominator) {
  const int64 twice = 2 * numerator + denominator, by = 2 * denominator;
  const int64 quotient = twice / by;
  return quotient - (quotient * by > twice);
}

// The same of a quotient of fewer than 50 bits, in a third of the instructions: rounded down in floating point it is one off at most.
__device__ __forceinline__ int64 round_divide_near(int64 numerator, int64 denominator) {
  const int64 twice = 2 * numerator + denominator, by = 2 * denominator;
  const double near = static_cast<double>(twice) / static_cast<double>(by);
  int64 quotient = static_cast<int64>(near);
  if (static_cast<double>(quotient) > near) quotient--;
  const int64 rest = twice - quotient * by;
  return quotient - (rest < 0) + (rest >= by);
}

// Straight lines between the entries of a table: at `index` and `part` / 2^24 beyond.
__device__ __forceinline__ int64 between(const uint32_t* table, uint32_t index, uint32_t part) {
  const int64 low = table[index], high = table[index + 1];
  return low + (((high - low) * part + (1 << 23)) >> 24);
}

// log2 of a whole number that is not 0, with 24 fraction bits; `table` is a copy of kLog2.
__device__ __forceinline__ int64 log2_of(const uint32_t* table, uint64_t x) {
  const uint32_t whole = static_cast<uint32_t>(bits(x)) - 1;
  const uint64_t mantissa = x << (63 - whole);
  const int64 part = between(table, static_cast<uint32_t>(mantissa >> 55) & 255, static_cast<uint32_t>(mantissa >> 31) & 0xFFFFFF);
  return (static_cast<int64>(whole) << 24) + part;
}

}  // namespace language

#endif
