// Packed filters, and which form of a convolution reads them.
//
// A packed filter: its mark and a flag, int32 sums of each output channel, rows of cells [outputs][row_cells(depth)],
// then Winograd's form where the filter's shape asks for one. All sizes follow from the shape.
#pragma once

#include "common.h"
#include "microkernel.h"

namespace jaxdml::JAXDML_ISA {

constexpr int kBlock = 16;                                 // tiles of the image that Winograd takes at a time
constexpr int64_t kMostWinogradBytes = int64_t(64) << 20;  // of one filter

JAXDML_INLINE int64_t filter_depth(const Filter& filter) { return filter.channels * filter.rows * filter.columns; }
JAXDML_INLINE int64_t padded_filter_depth(const Filter& filter) { return round_up(filter_depth(filter), kDepth); }
JAXDML_INLINE int64_t group_outputs(const Filter& filter) { return filter.outputs / filter.groups; }
JAXDML_INLINE int64_t channel_pairs(const Filter& filter) { return ceil_div(filter.channels, 2); }

// Of F(m x m, 3 x 3), whose tiles have (m + 2)**2 points.
JAXDML_INLINE int64_t winograd_bytes(const Filter& filter, int64_t m) {
  return (m + 2) * (m + 2) * filter.outputs * channel_pairs(filter) * 4;
}

// m of the form that is packed; 0 for none, as where a filter is packed for one call. Many channels come with small
// images, in which large tiles would be mostly empty; byte products are as fast as F(2, 3) there.
JAXDML_INLINE int64_t winograd_form(const Filter& filter) {
  if (filter.is_raw || filter.rows != 3 || filter.columns != 3 || filter.channels < 8 || group_outputs(filter) < kRows)
    return 0;
  const int64_t m = kDepth == 4 || filter.outputs * filter.channels < 1 << 18 ? 4 : 2;
  return winograd_bytes(filter, m) <= kMostWinogradBytes ? m : 0;
}

struct Packed {
  int32_t* mark;
  int32_t* flag;  // whether Winograd's form is exact
  int32_t* sums;
  Cell* rows;
  int32_t* winograd;
};

JAXDML_INLINE Packed packed_filter(const Filter& filter, Arena& arena) {
  Packed packed;
  packed.mark = take<int32_t>(arena, 1);
  packed.flag = take<int32_t>(arena, 1);
  packed.sums = take<int32_t>(arena, filter.outputs);
  packed.rows = take<Cell>(arena, filter.outputs * row_cells(filter_depth(filter)));
  const int64_t m = winograd_form(filter);
  packed.winograd = take<int32_t>(arena, m ? winograd_bytes(filter, m) / 4 : 0);
  return packed;
}

JAXDML_INLINE Packed packed_filter(const Convolution& one) {
  Arena arena = {const_cast<uint8_t*>(one.packed), 0};
  return packed_filter(one.filter, arena);
}

// More for a filter than for a part of it; see matrix_bytes.
static int64_t filter_bytes(const Filter& filter) {
  Arena arena = {nullptr, 0};
  packed_filter(filter, arena);
  return arena.used + 4 * (filter.outputs + filter_depth(filter));
}

}  // namespace jaxdml::JAXDML_ISA
