// Rows of matrices times an activation, as weights stream past: four lanes for each row, a quarter of each line each.
#ifndef DOORBELL_LANGUAGE_ROWS_CUH
#define DOORBELL_LANGUAGE_ROWS_CUH

#include "language_model.cuh"

namespace language {

// Lanes that share a row, and rows that a warp reads at a time.
constexpr uint32_t kQuarters = 4, kGroups = kWarp / kQuarters;
// How far ahead of a warp's rows the second cache is filled: more than the block reads in the time that memory takes to answer.
constexpr uint32_t kAhead = 1 << 20;

// An activation in shared memory.
struct Vector {
  const char* mantissas;
  const unsigned char* shifts;  // of the first halves of lines, and `half` bytes on of the second
  uint32_t half;
};

// A row's sum as a number with 10 fraction bits; `shift` is that of the matrix and the activation.
__device__ __forceinline__ int32_t requantise(int32_t sum, uint32_t row_scale, uint32_t scale, int32_t shift) {
  return clamp(round_shift(static_cast<int64>(sum) * (row_scale * scale >> 8), shift));
}

__device__ __forceinline__ int32_t shift_of(int32_t matrix_exponent, int32_t exponent) {
  return -(matrix_exponent + exponent + 8 + kFraction);
}

// Adds kLines lines of each of kRows rows, all of which are on their way at a time; without `kWhole` those from `left` on are behind a row's
// end. Then there is nothing in their place: that costs less than a way out of the loop would, behind which they would not all have
// registers.
template <uint32_t kRows, uint32_t kLines, bool kWhole>
__device__ __forceinline__ void add_lines(int32_t (&sums)[kRows], const char* const (&rows)[kRows], const char* mantissas,
                                          const unsigned char* shifts, uint32_t left) {
  uint4 weights[kLines][kRows];
#pragma unroll
  for (uint32_t k = 0; k < kLines; k++) {
#pragma unroll
    for (uint32_t r = 0; r < kRows; r++)
      weights[k][r] = kWhole || k < left ? stream::load(rows[r] + kLine * k) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (uint32_t k = 0; k < kLines; k++) {
    const uint32_t line = kWhole || k < left ? k : 0;
    const uint4 m = *reinterpret_cast<const uint4*>(mantissas + kLine * line);
    const int32_t unit = 1 << shifts[line];
#pragma unroll
    for (uint32_t r = 0; r < kRows; r++) {
      const uint4 w = weights[k][r];
      const int32_t part = stream::dot(w.x, m.x, stream::dot(w.y, m.y, stream::dot(w.z, m.z, stream::dot(w.w, m.w, 0))));
      sums[r] += part * unit;
    }
  }
}

// The sums of kRows rows, each on all four lanes of its group.
template <uint32_t kRows, uint32_t kLines>
__device__ __forceinline__ void dots(int32_t (&sums)[kRows], const char* const (&from)[kRows], const Vector& vector, uint32_t lines,
                                     uint32_t lane) {
  const uint32_t quarter = lane % kQuarters;
  const char* mantissas = vector.mantissas + 16 * quarter;
  const unsigned char* shifts = vector.shifts + (quarter >= 2 ? vector.half : 0);
  const char* rows[kRows];
#pragma unroll
  for (uint32_t r = 0; r < kRows; r++) {
    sums[r] = 0;
    rows[r] = from[r] + 16 * quarter;
  }
  uint32_t left = lines;
#pragma unroll 1
  for (; left >= kLines; left -= kLines) {
    add_lines<kRows, kLines, true>(sums, rows, mantissas, shifts, left);
#pragma unroll
    for (uint32_t r = 0; r < kRows; r++) rows[r] += kLine * kLines;
    mantissas += kLine * kLines;
    shifts += kLines;
  }
  if (left != 0) add_lines<kRows, kLines, false>(sums, rows, mantissas, shifts, left);
#pragma unroll
  for (uint32_t r = 0; r < kRows; r++) {
    sums[r] += __shfl_xor_sync(kEveryLane, sums[r], 1);
    sums[r] += __shfl_xor_sync(kEveryLane, sums[r], 2);
  }
}

// That of the group's sums which is its lane's: of lane k of the group the k-th.
template <uint32_t kRows>
__device__ __forceinline__ int32_t own(const int32_t (&sums)[kRows], uint32_t lane) {
  int32_t sum = sums[0];
#pragma unroll
  for (uint32_t r = 1; r < kRows; r++)
    if (lane % kQuarters == r) sum = sums[r];
  return sum;
}

// Fills the second cache with what lies `kAhead` behind the `bytes` at `from`, up to `end`.
__device__ __forceinline__ void prefetch(const char* from, uint32_t bytes, const char* end, uint32_t lane) {
  if (lane == 0 && from + kAhead + bytes <= end) stream::prefetch(from + kAhead, bytes);
}

// Lines that are on their way at a time, of one row and of four.
constexpr uint32_t kDeep = 12, kBroad = 3;

// All rows of a matrix, by all warps: sink(row, value) is called by one lane for each, of warp `task % kWarps` for the kRows * 8 rows of a
// task, from task `warp` on. Behind the last row of a matrix is what comes next, up to `end`.
template <uint32_t kRows, uint32_t kLines, typename Sink>
__device__ __forceinline__ void multiply(const Matrix& matrix, const Vector& vector, Activation activation, const char* end,
                                         uint32_t warp, uint32_t lane, Sink sink) {
  constexpr uint32_t kTask = kRows * kGroups;
  const int32_t shift = shift_of(matrix.exponent, activation.exponent);
#pragma unroll 1
  for (uint32_t first = warp * kTask; first < matrix.rows; first += kWarps * kTask) {
    prefetch(matrix.row(first), kTask * matrix.stride(), end, lane);
    const char* rows[kRows];
#pragma unroll
    for (uint32_t r = 0; r < kRows; r++) rows[r] = matrix.row(min(first + kGroups * r + lane / kQuarters, matrix.rows - 1));
    const uint32_t row = first + kGroups * (lane % kQuarters) + lane / kQuarters;
    const bool mine = lane % kQuarters < kRows && row < matrix.rows;
    const uint32_t scale = mine ? matrix.scale(row) : 0;
    int32_t sums[kRows];
    dots<kRows, kLines>(sums, rows, vector, matrix.lines, lane);
    if (mine) sink(row, requantise(own(sums, lane), scale, activation.scale, shift));
  }
}

}  // namespace language

#endif
