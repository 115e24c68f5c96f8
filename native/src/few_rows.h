// Products of few rows and a raw matrix, which is read once and never packed.
//
// Packing writes every weight and reads it again, which takes longer than it saves for few rows. Here kDepth rows of B
// are interleaved in registers and multiplied at once, kBytes columns at a time. The column sums, which only zero
// points of A need, are products with a row of ones. Sums are exact modulo 2**32.
#pragma once

#include "positions.h"
#include "transpose.h"

namespace jaxdml::JAXDML_ISA {

constexpr int kFewRows = 4;

constexpr int64_t kStrip = 4 * kLanes;  // columns whose sums are in registers

// Rows of B that are read in a strip before moving to the next strip. Where a strip is narrower than a cache line, the
// next strip reads the same lines, and they must still be in the first-level cache: if the size of rows is a power of
// two, few sets of the cache hold all lines of a strip.
constexpr int64_t kAtOnce = kBytes < 64 ? 16 : 64;

// Multiplies R rows of cells by the first kAtOnce of `depth` rows of B, at up to kStrip columns, and adds the products
// to sums [R + 1][kStrip]; the last row has the column sums of B if kHasSums. Rows of cells are `stride` cells apart,
// and rows of B `columns` bytes. The same columns of the next kAtOnce rows are prefetched, because the hardware does
// not prefetch them.
template <int R, bool kHasSums>
static void add_strip(const Cell* cells, int64_t stride, const uint8_t* b, int64_t columns, int64_t depth,
                      int64_t count, uint8_t flip, uint8_t* to) {
  constexpr int kAll = R + kHasSums;
  I32 sums[kAll][4];
#pragma GCC unroll 8
  for (int r = 0; r < kAll; r++)
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) sums[r][v] = load(to + (r * 4 + v) * kBytes);
  const I32 top = splat(int32_t(flip * 0x01010101u)), ones = splat(kDepth == 4 ? 0x01010101 : 0x00010001);
  for (int64_t k = 0; k < at_most(depth, kAtOnce); k += kDepth, b += kDepth * columns) {
    I32 rows[kDepth], weights[4];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kDepth; i++) {
      rows[i] = k + i < depth ? load_some(b + i * columns, count) ^ top : I32{};
      if (k + i + kAtOnce < depth) __builtin_prefetch(b + (i + kAtOnce) * columns, 0, 2);
    }
    interleave_weights(rows, weights);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const I32 row = splat(*reinterpret_cast<const Dword*>(cells + r * stride + k));
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++) sums[r][v] = WeightLanes::dot(sums[r][v], weights[v], row);
    }
    if constexpr (kHasSums)
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++) sums[R][v] = WeightLanes::dot(sums[R][v], weights[v], ones);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kAll; r++)
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) store(to + (r * 4 + v) * kBytes, sums[r][v]);
}

// The size in bytes of the sums of `rows` rows and `columns` columns, including the column sums.
JAXDML_INLINE int64_t unpacked_bytes(int64_t rows, int64_t columns) {
  return (rows + 1) * round_up(columns, kStrip) * 4;
}

// The sums of `rows` rows of cells and columns `first` to `last` of B: [rows + 1][columns, in whole strips]. The last
// row has the column sums, or zeros unless has_sums. `parts` is as large as `sums`.
JAXDML_INLINE void multiply_few_rows(const Cell* cells, int64_t stride, int64_t rows, const uint8_t* b, int64_t depth,
                                     int64_t columns, int64_t first, int64_t last, uint8_t flip, bool has_sums,
                                     uint8_t* parts, int32_t* sums) {
  const int64_t strips = ceil_div(last - first, kStrip), strip_bytes = (rows + 1) * kStrip * 4;
  memset(parts, 0, size_t(strips * strip_bytes));
  for (int64_t k = 0; k < depth; k += kAtOnce)
    for (int64_t strip = 0; strip < strips; strip++) {
      const int64_t n = first + strip * kStrip, count = at_most(kStrip, columns - n);
      if (count <= 0) continue;
      with_constant<kFewRows>(rows, [&](auto some) {
        const auto add = has_sums ? add_strip<some, true> : add_strip<some, false>;
        add(cells + k, stride, b + k * columns + n, columns, depth - k, count, flip, parts + strip * strip_bytes);
      });
    }
  for (int64_t strip = 0; strip < strips; strip++)
    for (int64_t r = 0; r <= rows; r++)
      put_in_order(parts + strip * strip_bytes + r * kStrip * 4,
                   reinterpret_cast<uint8_t*>(sums + (r * strips + strip) * kStrip));
}

}  // namespace jaxdml::JAXDML_ISA
