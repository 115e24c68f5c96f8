// The microkernel computes a tile of int32 sums, R rows by V vectors of lanes, in registers.
//
// A dword of a row has kDepth cells, and is broadcast to all lanes. Lanes are packed as [dwords][V * kLanes][kDepth].
#pragma once

#include <type_traits>

#include "simd.h"

namespace jaxdml::JAXDML_ISA {

// Each struct defines how dot products are accumulated. A Sum is one vector of sums, or several partial sums that
// total_of adds up.
struct WeightLanes {  // lanes are weights, rows are activations
  using Sum = CellSum;
  static constexpr int kVectorBytes = kBytes / int(sizeof(Cell));  // a weight takes a byte in memory
  JAXDML_INLINE I32 lanes(const uint8_t* from) { return weights_at(from); }
  template <class T>
  JAXDML_INLINE T dot(T sum, I32 lanes, I32 row) {
    return dot_cells(sum, row, lanes);
  }
};
struct ActivationLanes {  // lanes are activations, rows are weights
  using Sum = CellSum;
  static constexpr int kVectorBytes = kBytes;
  JAXDML_INLINE I32 lanes(const uint8_t* from) { return load(from); }
  template <class T>
  JAXDML_INLINE T dot(T sum, I32 lanes, I32 row) {
    return dot_cells(sum, lanes, row);
  }
};
struct Words {  // lanes and rows are int16
  using Sum = I32;
  static constexpr int kVectorBytes = kBytes;
  JAXDML_INLINE I32 lanes(const uint8_t* from) { return load(from); }
  JAXDML_INLINE I32 dot(I32 sum, I32 lanes, I32 row) { return dot_words(sum, lanes, row); }
};

// Passes a runtime value from 1 to kMost to f as a std::integral_constant, so that f can use it as a template argument.
template <int kMost, class F>
JAXDML_INLINE void with_constant(int64_t value, const F& f) {
  if constexpr (kMost > 1)
    if (value != kMost) return with_constant<kMost - 1>(value, f);
  f(std::integral_constant<int, kMost>());
}

#ifdef JAXDML_HAS_DOTS_BY_LANE
// `rows` holds the next four dwords of R rows, in registers. Multiplies dwords kLane to 3 of each row by their lanes.
// The instruction multiplies all lanes by one dword of a register, so no dword is broadcast. Besides sums and rows,
// registers hold one vector of lanes.
template <int kLane, int R, int V>
JAXDML_INLINE void multiply_fours(const I32 (&rows)[R], const uint8_t* lanes, I32 (&sums)[R][V]) {
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) {
    const I32 at = load(lanes + v * kBytes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sums[r][v] = dot_lane<kLane>(sums[r][v], at, rows[r]);
  }
  asm("" : : : "memory");  // otherwise GCC loads too far ahead, and spills sums
  if constexpr (kLane < 3) multiply_fours<kLane + 1>(rows, lanes + V * kBytes, sums);
}
#endif

#ifdef JAXDML_HAS_PRODUCTS_OF_PAIRS
template <int kPairs>
JAXDML_INLINE void multiply_lanes(const I32 (&rows)[kPairs], I32 first, I32 second, I32 (&sums)[kPairs][2]) {
  const I32 low = low_dwords(first, second), high = high_dwords(first, second);
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; p++) {
    sums[p][0] = dot_pairs(sums[p][0], rows[p], low);
    sums[p][1] = dot_pairs(sums[p][1], rows[p], high);
  }
  asm("" : : : "memory");  // otherwise GCC loads too far ahead, and spills sums
}

// Like multiply_tile. An instruction multiplies two dwords of each of two rows by those of two lanes.
template <int R, int V>
JAXDML_TILE void multiply_in_pairs(const uint8_t* const (&starts)[R], int64_t runs, int64_t step, const uint8_t* lanes,
                                   int64_t dwords, I32 (&to)[R][V]) {
  constexpr int kPairs = (R + 1) / 2;
  const uint8_t* rows[2 * kPairs];  // the last row makes a pair with itself if R is odd
#pragma GCC unroll 8
  for (int r = 0; r < 2 * kPairs; r++) rows[r] = starts[r < R ? r : R - 1];
  I32 sums[V][kPairs][2] = {};  // each of two rows and two lanes
  for (int64_t run = 0; run < runs; run++) {
    int64_t k = 0;
    I32 pairs[kPairs];
    for (; k + 2 <= dwords; k += 2, lanes += 2 * V * kBytes) {
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; p++) pairs[p] = load_pair(rows[2 * p] + k * 4, rows[2 * p + 1] + k * 4);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++)
        multiply_lanes(pairs, load(lanes + v * kBytes), load(lanes + (V + v) * kBytes), sums[v]);
    }
    if (k < dwords) {  // a last dword
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; p++)
        pairs[p] = low_pairs(splat(*reinterpret_cast<const Dword*>(rows[2 * p] + k * 4)),
                             splat(*reinterpret_cast<const Dword*>(rows[2 * p + 1] + k * 4)));
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) multiply_lanes(pairs, load(lanes + v * kBytes), I32{}, sums[v]);
      lanes += V * kBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < 2 * kPairs; r++) rows[r] += step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
      to[r][v] =
          r % 2 ? high_pairs(sums[v][r / 2][0], sums[v][r / 2][1]) : low_pairs(sums[v][r / 2][0], sums[v][r / 2][1]);
}
#endif

// Multiplies R rows by V vectors of lanes. A row has `runs` runs of `dwords` dwords. Runs are `step` bytes apart, and
// the dwords of a run are `next` bytes apart. The packed lanes of all runs are contiguous.
template <int R, int V, class Dot>
JAXDML_TILE void multiply_tile(const uint8_t* const (&starts)[R], int64_t runs, int64_t step, const uint8_t* lanes,
                               int64_t dwords, int64_t next, I32 (&to)[R][V]) {
  const uint8_t* rows[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) rows[r] = starts[r];
  typename Dot::Sum sums[R][V] = {};
  for (int64_t run = 0; run < runs; run++) {
    int64_t k = 0, at_row = 0;
#ifdef JAXDML_HAS_DOTS_BY_LANE
    if (next == 4 && std::is_same_v<Dot, WeightLanes>)
      for (; k + 4 <= dwords; k += 4, at_row += 16, lanes += 4 * V * kBytes) {
        I32 fours[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) fours[r] = load(rows[r] + at_row);
        multiply_fours<0>(fours, lanes, sums);
      }
#endif
#pragma GCC unroll 2
    for (; k < dwords; k++, at_row += next) {
      I32 at[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) at[v] = Dot::lanes(lanes + v * Dot::kVectorBytes);
      lanes += V * Dot::kVectorBytes;
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const I32 row = splat(*reinterpret_cast<const Dword*>(rows[r] + at_row));
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sums[r][v] = Dot::dot(sums[r][v], at[v], row);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) rows[r] += step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) to[r][v] = total_of(sums[r][v]);
}

// Multiplies rows whose runs have contiguous dwords.
template <int R, int V, class Dot>
JAXDML_INLINE void multiply_runs(const uint8_t* const (&starts)[R], int64_t runs, int64_t step, const uint8_t* lanes,
                                 int64_t dwords, I32 (&to)[R][V]) {
#ifdef JAXDML_HAS_PRODUCTS_OF_PAIRS
  if constexpr (std::is_same_v<Dot, WeightLanes>) return multiply_in_pairs<R, V>(starts, runs, step, lanes, dwords, to);
#endif
  multiply_tile<R, V, Dot>(starts, runs, step, lanes, dwords, 4, to);
}

// Multiplies rows of contiguous dwords. The rows are `stride` dwords apart.
template <int R, int V, class Dot>
JAXDML_INLINE void multiply_rows(const Dword* rows, int64_t stride, const uint8_t* lanes, int64_t dwords,
                                 I32 (&sums)[R][V]) {
  const uint8_t* starts[R];
  for (int r = 0; r < R; r++) starts[r] = reinterpret_cast<const uint8_t*>(rows + r * stride);
  multiply_runs<R, V, Dot>(starts, 1, 0, lanes, dwords, sums);
}

}  // namespace jaxdml::JAXDML_ISA
