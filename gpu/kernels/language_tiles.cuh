// Rows of matrices times several activations at once, on the integer matrix units: tiles of 16 rows and 8 columns, 32 channels at a time.
// The sums are those of language_rows.cuh, bit by bit: whole numbers that are added in another order.
#ifndef DOORBELL_LANGUAGE_TILES_CUH
#define DOORBELL_LANGUAGE_TILES_CUH

#include "language_rows.cuh"

namespace language {

// Rows and columns of a tile, tiles side by side that a warp takes, and their columns.
constexpr uint32_t kTileRows = 16, kTileColumns = 8, kTiles = 4, kColumns = kTiles * kTileColumns;

// Activations side by side in shared memory, a column for each.
struct Vectors {
  const char* mantissas;        // of column c from c * stride on
  const unsigned char* shifts;  // kColumns for each block of 32 channels, in the order of `place_of`
  uint32_t stride;
  uint32_t columns;             // that count; what stands in the others' places does not matter

  // Bytes from column to column, for so many channels: whole lines, and such that the columns of half a tile lie in different banks.
  static __device__ __forceinline__ uint32_t stride_of(uint32_t channels) { return (channels + 127) / 128 * 128 + 32; }
  // Where among a block's shifts that of a column lies: those that one lane needs are neighbours.
  static __device__ __forceinline__ uint32_t place_of(uint32_t column) {
    const uint32_t in_tile = column % kTileColumns;
    return 2 * kTiles * (in_tile / 2) + 2 * (column / kTileColumns) + in_tile % 2;
  }
};

// Of a lane's sums of a tile: the row of the k-th, and its column.
__device__ __forceinline__ uint32_t tile_row(uint32_t k, uint32_t lane) { return lane / 4 + k / 2 * kGroups; }
__device__ __forceinline__ uint32_t tile_column(uint32_t k, uint32_t lane) { return lane % 4 * 2 + k % 2; }

// A line of 16 rows of weights, as tiles want it: of each row a quarter of each of its two blocks of 32 channels.
struct TileLine {
  uint4 of[2];  // rows lane / 4 and 8 behind it; 16 bytes of each

  __device__ __forceinline__ void load(const char* from, uint64_t eight_rows) {
    of[0] = stream::load(from);
    of[1] = stream::load(from + eight_rows);
  }
  // Two of four lanes have the first block of the line, two the second: each gives half of what it has away.
  __device__ __forceinline__ void deal(uint32_t lane, uint2 (&blocks)[2][2]) const {
    const bool upper = lane % 4 >= 2;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
      const uint64_t low = static_cast<uint64_t>(of[r].y) << 32 | of[r].x, high = static_cast<uint64_t>(of[r].w) << 32 | of[r].z;
      const uint64_t got = __shfl_xor_sync(kEveryLane, upper ? low : high, 2);
      const uint64_t first = upper ? got : low, second = upper ? high : got;
      blocks[0][r] = make_uint2(static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32));
      blocks[1][r] = make_uint2(static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32));
    }
  }
};

// 1 << shift, of the five lowest bits, which the compiler is not to know for what it is: a product and a sum are one instruction, a shift and a sum two.
__device__ __forceinline__ uint32_t unit_of(uint32_t shift) {
  uint32_t unit = 1u << (shift & 31);
#ifdef __CUDA_ARCH__
  asm("" : "+r"(unit));
#endif
  return unit;
}

// The sums of 16 rows from each of kParts places on, times all columns: sums[part][tile] is a lane's part of that tile. Rows are so many lines. A warp
// calls it.
template <uint32_t kParts>
__device__ __forceinline__ void tiles(int32_t (&sums)[kParts][kTiles][4], const char* const (&from)[kParts], const Vectors& vectors, uint32_t lines,
                                      uint32_t lane) {
  const uint32_t group = lane / 4, quarter = lane % 4, stride = kLine * lines;
  const uint64_t eight_rows = static_cast<uint64_t>(kGroups) * stride;
  // The eighth of a line that `deal` leaves a lane of each block is the same of both.
  const char* const mantissas = vectors.mantissas + 8 * (quarter % 2 * 2 + quarter / 2);
  const unsigned char* shifts = vectors.shifts + 2 * kTiles * quarter;
  const char* rows[kParts];
  uint32_t columns[kTiles];
  TileLine coming[kParts];
#pragma unroll
  for (uint32_t part = 0; part < kParts; part++) {
    rows[part] = from[part] + static_cast<uint64_t>(stride) * group + 16 * quarter;
    coming[part].load(rows[part], eight_rows);
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) sums[part][tile][k] = 0;
    }
  }
#pragma unroll
  for (uint32_t tile = 0; tile < kTiles; tile++) columns[tile] = vectors.stride * min(kTileColumns * tile + group, vectors.columns - 1);
#pragma unroll 1
  for (uint32_t line = 0; line < lines; line++) {
    uint2 weights[kParts][2][2];
#pragma unroll
    for (uint32_t part = 0; part < kParts; part++) {
      coming[part].deal(lane, weights[part]);
      // The last one comes twice: that costs less than a branch.
      coming[part].load(rows[part] + kLine * min(line + 1, lines - 1), eight_rows);
    }
#pragma unroll
    for (uint32_t block = 0; block < 2; block++) {
      const uint2 by = *reinterpret_cast<const uint2*>(shifts + kColumns * (2 * line + block));
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
        const uint2 column = *reinterpret_cast<const uint2*>(mantissas + columns[tile] + kLine * line + kLine / 2 * block);
        const uint32_t both = (tile < 2 ? by.x : by.y) >> (16 * (tile % 2));
        // Without a sign: behind the last column anything may stand, and wrap.
        const uint32_t units[2] = {unit_of(both), unit_of(both >> 8)};
#pragma unroll
        for (uint32_t part = 0; part < kParts; part++) {
          const uint2 upper = weights[part][block][0], lower = weights[part][block][1];
          int32_t sum[4];
          stream::multiply_tile(sum, upper.x, lower.x, upper.y, lower.y, column.x, column.y);
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) sums[part][tile][k] = static_cast<int32_t>(sums[part][tile][k] + sum[k] * units[k % 2]);
        }
      }
    }
  }
}

// The scales of a lane's two rows of a tile.
struct TileScales {
  uint32_t of[2];
  static __device__ __forceinline__ TileScales from(const Matrix& matrix, uint32_t first, uint32_t lane) {
    return TileScales{{matrix.scale(first + tile_row(0, lane)), matrix.scale(first + tile_row(2, lane))}};
  }
};

// `requantise`, apart from the code that seldom needs it.
__device__ __noinline__ int32_t requantise_apart(int32_t sum, uint32_t row_scale, uint32_t scale, int32_t shift) {
  return requantise(sum, row_scale, scale, shift);
}

// What makes numbers of a column's sums: `requantise`, for shifts as they usually are without branches.
struct Requantised {
  uint32_t scale;
  int32_t shift;
  bool is_usual;

  static __device__ __forceinline__ Requantised of(const Matrix& matrix, const Activation& activation) { return of(matrix.exponent, activation); }
  static __device__ __forceinline__ Requantised of(int32_t exponent, const Activation& activation) {
    const int32_t shift = shift_of(exponent, activation.exponent);
    return Requantised{activation.scale, shift, static_cast<uint32_t>(shift) - 1 < 60};
  }
  __device__ __forceinline__ int32_t value(int32_t sum, uint32_t row_scale) const {
    if (UNLIKELY(!is_usual)) return requantise_apart(sum, row_scale, scale, shift);
    return usual(sum, row_scale);
  }
  // The same where the shift is as usual; else any number.
  __device__ __forceinline__ int32_t usual(int32_t sum, uint32_t row_scale) const {
    // Of 56 bits: half of what is shifted out is added first.
    const int64 product = static_cast<int64>(sum) * (row_scale * scale >> 8) + (1ll << ((shift - 1) & 63));
    return clamp(product >> (shift & 63));
  }
};

// All rows of a matrix, a multiple of 16 * kParts, by all warps of a team, times all columns: sink(row, column, value, old) is called by one lane for each,
// `old` being what begin(row, column) gave before, whose latency the product hides. `activations` are the columns'. Behind the last row of a matrix is what
// comes next, up to `end`.
template <typename Team, uint32_t kParts, typename Begin, typename Sink>
__device__ __forceinline__ void multiply(const Matrix& matrix, const Vectors& vectors, const Activation* activations, const char* end, uint32_t warp,
                                         uint32_t lane, Begin begin, Sink sink) {
  constexpr uint32_t kTask = kParts * kTileRows;
#pragma unroll 1
  for (uint32_t first = kTask * warp; first < matrix.rows; first += kTask * Team::kWarps) {
    prefetch(matrix.row(first), kTask * matrix.stride(), end, lane);
    const char* from[kParts];
    TileScales scales[kParts];
    int32_t old[kParts][kTiles][4];
#pragma unroll
    for (uint32_t part = 0; part < kParts; part++) {
      from[part] = matrix.row(first + kTileRows * part);
      scales[part] = TileScales::from(matrix, first + kTileRows * part, lane);
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
          old[part][tile][k] = begin(first + kTileRows * part + tile_row(k, lane), min(kTileColumns * tile + tile_column(k, lane), vectors.columns - 1));
      }
    }
    int32_t sums[kParts][kTiles][4];
    tiles<kParts>(sums, from, vectors, matrix.lines, lane);
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
      for (uint32_t k = 0; k < 2; k++) {
        const uint32_t column = kTileColumns * tile + tile_column(k, lane);
        const Requantised by = Requantised::of(matrix, activations[min(column, vectors.columns - 1)]);
#pragma unroll
        for (uint32_t part = 0; part < kParts; part++) {
#pragma unroll
          for (uint32_t half = 0; half < 2; half++) {
            const uint32_t row = first + kTileRows * part + tile_row(2 * half, lane);
            const int32_t value = by.value(sums[part][tile][2 * half + k], scales[part].of[half]);
            if (column < vectors.columns) sink(row, column, value, old[part][tile][2 * half + k]);
          }
        }
      }
    }
  }
}

}  // namespace language

#endif
