// Packs matrix b into panels of columns, one column per lane, and sums each column.
//
// A packed matrix consists of a seal, the int32 sums of the columns, and panels of kTile columns. Each panel is an
// array of int8 [depth / kDepth][columns][kDepth]. The last panel may have fewer columns.
#pragma once

#include "packing.h"
#include "positions.h"

namespace jaxdml::JAXDML_ISA {

JAXDML_INLINE int64_t padded_depth(int64_t depth) { return round_up(depth, kDepth); }
JAXDML_INLINE int64_t padded_columns(int64_t columns) { return round_up(columns, kLanes); }
constexpr int64_t kSumsAt = kSealBytes;
JAXDML_INLINE int64_t panels_at(int64_t columns) { return kSumsAt + round_up(padded_columns(columns) * 4, 64); }

JAXDML_INLINE int64_t end_of_panels(int64_t depth, int64_t columns) {
  return panels_at(columns) + padded_columns(columns) * padded_depth(depth);
}

// Padding after the panels grows with depth and columns. A shard of a matrix therefore needs fewer bytes than the whole
// matrix, and a check of the size detects that a device holds only a shard of the packed matrix.
static int64_t matrix_bytes(int64_t depth, int64_t columns) {
  return end_of_panels(depth, columns) + 4 * (depth + columns);
}

constexpr int64_t kRowsAhead = 64;  // prefetch distance

// Packs and sums the columns from `first`, the start of a panel, up to `last`.
static void pack_panels(const uint8_t* b, bool is_signed, int64_t depth, int64_t columns, int64_t first, int64_t last,
                        uint8_t* panels, int32_t* sums) {
  const uint8_t flip = flip_to_signed(is_signed);
  for (int64_t k = 0; k < depth; k += kDepth)
    for (int64_t n = first; n < last; n += kTile) {
      const int64_t lanes = panel_lanes(columns, n);
      uint8_t* to = panels + (n - first) * padded_depth(depth) + k * lanes;
      const uint8_t* rows[kDepth];
      for (int i = 0; i < kDepth; i++) {
        rows[i] = k + i < depth ? b + (k + i) * columns + n : nullptr;
        // Hardware does not prefetch across rows. The target is L2: in L1, rows of 4096 bytes would evict each other.
        __builtin_prefetch(b + at_most(k + i + kRowsAhead, depth - 1) * columns + n, 0, 2);
      }
      if (k + kDepth <= depth && n + kTile <= columns) {
        pack_whole_tile(rows, flip, to);
        continue;
      }
      // Padding starts as `flip`, so that the flip turns the padding into 0.
      for (int64_t p = 0; p < lanes; p += 16) {
        uint8_t copies[kDepth][16];
        const uint8_t* at[kDepth];
        for (int i = 0; i < kDepth; i++) {
          memset(copies[i], flip, 16);
          if (rows[i]) copy_bytes(copies[i], rows[i] + p, at_most(16, columns - n - p));
          at[i] = copies[i];
        }
        I32 weights[kSixteenCells];
        interleaved(at, flip, weights);
        copy_bytes(to + p * kDepth, weights, at_most(16, lanes - p) * kDepth);
      }
    }
  const I32 ones = splat(kDepth == 4 ? 0x01010101 : 0x00010001);
  for (int64_t n = first; n < last; n += kLanes) {
    const int64_t panel = (n - first) / kTile * kTile, lanes = panel_lanes(columns, first + panel);
    const uint8_t* from = panels + panel * padded_depth(depth) + (n - first - panel) * kDepth;
    I32 sum = {};
    for (int64_t k = 0; k < padded_depth(depth); k += kDepth)
      sum = WeightLanes::dot(sum, WeightLanes::lanes(from + k * lanes), ones);
    store(sums + n - first, sum);
  }
}

static void pack_matrix(const Pool& pool, const uint8_t* b, bool is_signed, int64_t depth, int64_t columns,
                        uint8_t* packed) {
  memset(packed, 0, panels_at(columns));
  memset(packed + end_of_panels(depth, columns), 0, 4 * (depth + columns));
  memcpy(packed, &kMatrixMark, 4);
  constexpr int64_t kAtOnce = 8 * kTile;  // columns per item, enough to read long runs of each row
  parallel(pool, ceil_div(columns, kAtOnce), [&](int64_t item, int64_t) {
    const int64_t first = item * kAtOnce, last = at_most(padded_columns(columns), first + kAtOnce);
    pack_panels(b, is_signed, depth, columns, first, last, packed + panels_at(columns) + first * padded_depth(depth),
                reinterpret_cast<int32_t*>(packed + kSumsAt) + first);
  });
}

}  // namespace jaxdml::JAXDML_ISA
