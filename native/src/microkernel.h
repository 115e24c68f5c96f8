// The microkernel computes a tile of int32 sums, R rows by V vectors of lanes, in registers.
//
// A dword of a row has kDepth cells, and is broadcast to all lanes. Lanes are packed as [dwords][V * kLanes][kDepth].
#pragma once

#include <type_traits>

#include "simd.h"

namespace jaxdml::JAXDML_ISA {

struct WeightLanes {                                               // lanes are weights, rows are activations
  static constexpr int kVectorBytes = kBytes / int(sizeof(Cell));  // a weight takes a byte in memory
  JAXDML_INLINE I32 lanes(const uint8_t* from) { return weights_at(from); }
  JAXDML_INLINE I32 dot(I32 sum, I32 lanes, I32 row) { return dot_cells(sum, row, lanes); }
};
struct ActivationLanes {  // lanes are activations, rows are weights
  static constexpr int kVectorBytes = kBytes;
  JAXDML_INLINE I32 lanes(const uint8_t* from) { return load(from); }
  JAXDML_INLINE I32 dot(I32 sum, I32 lanes, I32 row) { return dot_cells(sum, lanes, row); }
};
struct Words {  // lanes and rows are int16
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

// Multiplies R rows by V vectors of lanes. A row has `runs` runs of `dwords` dwords. Runs are `step` bytes apart, and
// the dwords of a run are `next` bytes apart. The packed lanes of all runs are contiguous.
template <int R, int V, class Dot>
JAXDML_TILE void multiply_tile(const uint8_t* const (&starts)[R], int64_t runs, int64_t step, const uint8_t* lanes,
                               int64_t dwords, int64_t next, I32 (&to)[R][V]) {
  const uint8_t* rows[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) rows[r] = starts[r];
  I32 sums[R][V] = {};
  for (int64_t run = 0; run < runs; run++) {
#pragma GCC unroll 2
    for (int64_t k = 0, at_row = 0; k < dwords; k++, at_row += next) {
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
    for (int v = 0; v < V; v++) to[r][v] = sums[r][v];
}

// Multiplies rows of contiguous dwords. The rows are `stride` dwords apart.
template <int R, int V, class Dot>
JAXDML_INLINE void multiply_rows(const Dword* rows, int64_t stride, const uint8_t* lanes, int64_t dwords,
                                 I32 (&sums)[R][V]) {
  const uint8_t* starts[R];
  for (int r = 0; r < R; r++) starts[r] = reinterpret_cast<const uint8_t*>(rows + r * stride);
  multiply_tile<R, V, Dot>(starts, 1, 0, lanes, dwords, 4, sums);
}

}  // namespace jaxdml::JAXDML_ISA
