// Rows of matrices times an activation, as weights stream past: four lanes for each row, a quarter of each line each.
#ifndef DOORBELL_LANGUAGE_ROWS_CUH
#define DOORBELL_LANGUAGE_ROWS_CUH

#include "language_model.cuh"

namespace language {

// Lanes that share a row, and rows that a warp reads at a time.
constexpr uint32_t kQuarters = 4, kGroups = kWarp / kQuarters;
// The same of long rows.
constexpr uint32_t kLongLanes = 8, kLongGroups = kWarp / kLongLanes;
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

// The sum of one of kRows sums of a group's lanes: on lane k of the group that of the k-th.
template <uint32_t kRows>
__device__ __forceinline__ int32_t join(const int32_t (&sums)[kRows], uint32_t lane) {
  static_assert(kRows == 1 || kRows == 2 || kRows == kQuarters, "a lane for each");
  const bool odd = lane % 2 != 0, upper = lane % kQuarters >= 2;
  int32_t own = sums[0];
  if constexpr (kRows == 1) {
    own += __shfl_xor_sync(kEveryLane, own, 1);
  } else {
    // Each of two lanes keeps one of two rows, and gives the other away.
    own = (odd ? sums[1] : sums[0]) + __shfl_xor_sync(kEveryLane, odd ? sums[0] : sums[1], 1);
  }
  if constexpr (kRows == kQuarters) {
    const int32_t other = (odd ? sums[3] : sums[2]) + __shfl_xor_sync(kEveryLane, odd ? sums[2] : sums[3], 1);
    return (upper ? other : own) + __shfl_xor_sync(kEveryLane, upper ? own : other, 2);
  }
  return own + __shfl_xor_sync(kEveryLane, own, 2);
}

// The sums of kRows rows, of which each lane has its own, as `join` has it.
template <uint32_t kRows, uint32_t kLines>
__device__ __forceinline__ int32_t dots(const char* const (&from)[kRows], const Vector& vector, uint32_t lines, uint32_t lane) {
  const uint32_t quarter = lane % kQuarters;
  const char* mantissas = vector.mantissas + 16 * quarter;
  const unsigned char* shifts = vector.shifts + (quarter >= 2 ? vector.half : 0);
  const char* rows[kRows];
  int32_t sums[kRows];
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
  return join<kRows>(sums, lane);
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

// A number, as a value.
template <uint32_t kNumber>
struct Lanes {
  static constexpr uint32_t kLanes = kNumber;
};

// Fills the second cache with what lies `kAhead` behind the `bytes` at `from`, up to `end`.
__device__ __forceinline__ void prefetch(const char* from, uint32_t bytes, const char* end, uint32_t lane) {
  if (lane == 0 && from + kAhead + bytes <= end) stream::prefetch(from + kAhead, bytes);
}

// Where a warp's stretches of weights arrive in shared memory: two at a time, of 8 rows each, or of 3 or 4 where rows are long. They take
// neither registers nor, on their way, the unit through which all else goes that reads memory.
struct Stretches {
  char* first;         // and `bytes` on the second
  uint32_t bytes;      // 0 where shared memory has no room for them
  uint64_t* arrivals;  // of both
  uint32_t* count;     // of all so far

  // Whether it takes 8 rows of so many lines, and how many it takes that twice as many lanes share.
  __device__ __forceinline__ bool takes(uint32_t lines) const { return kGroups * kLine * lines <= bytes; }
  __device__ __forceinline__ uint32_t takes_long(uint32_t lines) const { return min(kLongGroups, bytes / (kLine * lines)); }
};

// Computes the sums of kParts * (kWarp / kLanes) rows for each of a warp's tasks: `first`, `first` + the team's warps, and so on, below `tasks`. All
// kLanes lanes of a group get each sum of theirs. from(task, part, bytes) returns where the rows of a part begin, and sets how many bytes they have.
// begin(task) loads in advance what end(task, sums, that) needs besides the sums. A part has at most `groups` rows. Groups of lanes beyond them
// compute the last row again, and nothing uses the result: the memory after that row is what copies of another warp write.
template <typename Team, uint32_t kLanes, uint32_t kParts, typename From, typename Begin, typename End>
__device__ __forceinline__ void dots(const Stretches& stretches, const Vector& vector, uint32_t lines, uint32_t groups, uint32_t first,
                                     uint32_t tasks, uint32_t lane, From from, Begin begin, End end) {
  // Lines that a group reads at a time, and which of them is the lane's.
  constexpr uint32_t kLines = kLanes / kQuarters;
  const uint32_t piece = lane % kLanes, own_line = piece / kQuarters;
  const char* const mantissas = vector.mantissas + 16 * piece;
  const unsigned char* const shifts = vector.shifts + (piece % kQuarters >= 2 ? vector.half : 0) + own_line;
  const uint32_t own = kLine * lines * min(lane / kLanes, groups - 1) + 16 * piece;
  uint32_t number = *stretches.count, coming = first, coming_part = 0, ahead = number;
  __syncwarp();
  // One lane's: the next stretch is on its way.
  const auto bring = [&] {
    if (coming >= tasks) return;
    uint32_t bytes = 0;
    const char* const source = from(coming, coming_part, bytes);
    stream::copy_stretch(stretches.first + stretches.bytes * (ahead % 2), source, bytes, stretches.arrivals + ahead % 2);
    ahead++;
    coming_part++;
    if (coming_part == kParts) {
      coming_part = 0;
      coming += Team::kWarps;
    }
  };
  if (lane == 0) {
    stream::order_stretches();
    bring();
    bring();
  }
#pragma unroll 1
  for (uint32_t task = first; task < tasks; task += Team::kWarps) {
    const auto more = begin(task);
    int32_t sums[kParts];
#pragma unroll
    for (uint32_t part = 0; part < kParts; part++) {
      const char* const rows = stretches.first + stretches.bytes * (number % 2) + own;
      stream::wait_for_stretch(stretches.arrivals + number % 2, number / 2 % 2);
      number++;
      int32_t sum = 0;
#pragma unroll 3
      for (uint32_t line = 0; line < lines; line += kLines) {
        if (kLines > 1 && line + own_line >= lines) continue;
        const uint4 m = *reinterpret_cast<const uint4*>(mantissas + kLine * line);
        const uint4 w = *reinterpret_cast<const uint4*>(rows + kLine * line);
        sum += stream::dot(w.x, m.x, stream::dot(w.y, m.y, stream::dot(w.z, m.z, stream::dot(w.w, m.w, 0)))) << shifts[line];
      }
      // Who reads has read before the next comes to its place.
      __syncwarp();
      if (lane == 0) bring();
#pragma unroll
      for (uint32_t by = 1; by < kLanes; by *= 2) sum += __shfl_xor_sync(kEveryLane, sum, by);
      sums[part] = sum;
    }
    end(task, sums, more);
  }
  if (lane == 0) *stretches.count = number;
  __syncwarp();
}

// Lines that are on their way at a time, of one row and of four.
constexpr uint32_t kDeep = 12, kBroad = 3;

// kRows * 8 rows of a matrix from `first` on, as many of them as there are, by a warp: sink(row, value) is called by one lane for each.
template <uint32_t kRows, uint32_t kLines, typename Sink>
__device__ __forceinline__ void take_rows(const Matrix& matrix, const Vector& vector, Activation activation, int32_t shift, uint32_t first, uint32_t lane,
                                          Sink sink) {
  const char* rows[kRows];
#pragma unroll
  for (uint32_t r = 0; r < kRows; r++) rows[r] = matrix.row(min(first + kGroups * r + lane / kQuarters, matrix.rows - 1));
  const uint32_t row = first + kGroups * (lane % kQuarters) + lane / kQuarters;
  const bool mine = lane % kQuarters < kRows && row < matrix.rows;
  const uint32_t scale = mine ? matrix.scale(row) : 0;
  const int32_t sum = dots<kRows, kLines>(rows, vector, matrix.lines, lane);
  if (mine) sink(row, requantise(sum, scale, activation.scale, shift));
}

// All rows of a matrix whose rows are a line each, by a warp alone: the next rows are on their way while these are added. All lanes call
// sink(is, row, value), of which `is` tells whether there is such a row.
template <typename Sink>
__device__ __forceinline__ void take_lines(const Matrix& matrix, const Vector& vector, Activation activation, uint32_t lane, Sink sink) {
  const int32_t shift = shift_of(matrix.exponent, activation.exponent);
  const uint32_t quarter = lane % kQuarters, group = lane / kQuarters, own_row = kGroups * quarter + group;
  const uint4 m = *reinterpret_cast<const uint4*>(vector.mantissas + 16 * quarter);
  const int32_t unit = 1 << vector.shifts[quarter >= 2 ? vector.half : 0];
  const char* const from = matrix.weights + 16 * quarter;
  uint4 weights[kQuarters];
  uint32_t scale = 0;
  const auto bring = [&](uint32_t first) {
    scale = matrix.scale(min(first + own_row, matrix.rows - 1));
#pragma unroll
    for (uint32_t r = 0; r < kQuarters; r++) weights[r] = stream::load(from + kLine * min(first + kGroups * r + group, matrix.rows - 1));
  };
  bring(0);
#pragma unroll 1
  for (uint32_t first = 0; first < matrix.rows; first += kWarp) {
    const uint32_t own_scale = scale;
    int32_t sums[kQuarters];
#pragma unroll
    for (uint32_t r = 0; r < kQuarters; r++) {
      const uint4 w = weights[r];
      sums[r] = stream::dot(w.x, m.x, stream::dot(w.y, m.y, stream::dot(w.z, m.z, stream::dot(w.w, m.w, 0)))) * unit;
    }
    if (first + kWarp < matrix.rows) bring(first + kWarp);
    const int32_t sum = join<kQuarters>(sums, lane);
    sink(first + own_row < matrix.rows, first + own_row, requantise(sum, own_scale, activation.scale, shift));
  }
}

// All rows of a matrix, by all warps of a team: sink(row, value) is called by one lane for each, of warp `task` modulo their number for the
// kRows * 8 rows of a task, from task `warp` on. Behind the last row of a matrix is what comes next, up to `end`.
template <typename Team, uint32_t kRows, uint32_t kLines, typename Sink>
__device__ __forceinline__ void multiply(const Stretches& stretches, const Matrix& matrix, const Vector& vector, Activation activation,
                                         const char* end, uint32_t warp, uint32_t lane, Sink sink) {
  constexpr uint32_t kTask = kRows * kGroups;
  const int32_t shift = shift_of(matrix.exponent, activation.exponent);
  // Of so many rows at a time, with so many lanes for each.
  const auto by_stretches = [&](auto lanes, uint32_t at_a_time) {
    constexpr uint32_t kLanes = decltype(lanes)::kLanes;
    const uint32_t group = lane / kLanes;
    const auto is = [&](uint32_t task) { return group < at_a_time && at_a_time * task + group < matrix.rows; };
    dots<Team, kLanes, 1>(
        stretches, vector, matrix.lines, at_a_time, warp, (matrix.rows + at_a_time - 1) / at_a_time, lane,
        [&](uint32_t task, uint32_t, uint32_t& bytes) {
          bytes = min(at_a_time, matrix.rows - at_a_time * task) * matrix.stride();
          if (DOORBELL_FAULT(LosesRow)) bytes -= matrix.stride();
          return matrix.row(at_a_time * task);
        },
        [&](uint32_t task) { return is(task) ? matrix.scale(at_a_time * task + group) : 0; },
        [&](uint32_t task, const int32_t(&sums)[1], uint32_t scale) {
          if (lane % kLanes == 0 && is(task)) sink(at_a_time * task + group, requantise(sums[0], scale, activation.scale, shift));
        });
  };
  if (stretches.takes(matrix.lines)) return by_stretches(Lanes<kQuarters>{}, kGroups);
  const uint32_t at_a_time = stretches.takes_long(matrix.lines);
  if (at_a_time > kLongGroups / 2) return by_stretches(Lanes<kLongLanes>{}, at_a_time);
#pragma unroll 1
  for (uint32_t first = warp * kTask; first < matrix.rows; first += Team::kWarps * kTask) {
    prefetch(matrix.row(first), kTask * matrix.stride(), end, lane);
    take_rows<kRows, kLines>(matrix, vector, activation, shift, first, lane, sink);
  }
}

}  // namespace language

#endif
