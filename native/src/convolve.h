// Which form computes a convolution. All of them give the same integers.
#pragma once

#include "channels_last.h"
#include "depthwise.h"
#include "winograd.h"

namespace jaxdml::JAXDML_ISA {

// Up to kLanes output channels of a merged group, from the first-th on, in their panel.
JAXDML_INLINE void pack_lanes(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t merged_group,
                              int64_t first, uint8_t* panels) {
  const Filter whole = merged(shape);
  const int64_t outputs = group_outputs(whole), depth = filter_depth(shape), area = shape.rows * shape.columns;
  const int64_t panel = first / kTile * kTile, lanes = panel_lanes(outputs, panel), run = run_depth(whole);
  const int64_t step = lanes * kDepth;
  const uint8_t* from = filter + (merged_group * outputs + first) * depth;
  uint8_t* to = panels + (merged_group * padded_outputs(whole) + panel) * whole.rows * run + (first - panel) * kDepth;
  for (int64_t u = 0; u < whole.rows; u++, to += run / kDepth * step) {
    for (int64_t k = 0; k < run; k += kDepth) memset(to + k / kDepth * step, 0, kLanes * kDepth);
    for (int64_t v = 0, k = 0; v < whole.columns; v++)
      for (int64_t group = 0; group < whole.channels / shape.channels; group++) {
        // Only outputs of a channel's own group see it.
        const int64_t own = group * group_outputs(shape) - first;
        const int64_t begin = at_least(own, 0), end = at_most(own + group_outputs(shape), kLanes);
        for (int64_t c = 0; c < shape.channels; c++, k++)
          for (int64_t o = begin; o < end; o++)
            to[k / kDepth * step + o * kDepth + k % kDepth] = from[o * depth + c * area + u * shape.columns + v] ^ flip;
      }
  }
}

JAXDML_INLINE void pack_row(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t o, Packed& packed) {
  const int64_t depth = filter_depth(shape), padded = padded_filter_depth(shape);
  Cell* row = packed.rows + o * padded;
  for (int64_t k = 0; k < padded; k++) row[k] = k < depth ? Cell(int8_t(filter[o * depth + k] ^ flip)) : Cell(0);
}

// Whether a form of Winograd is exact for a filter, and for the row of ones that adds up windows.
JAXDML_INLINE bool is_exact(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t m) {
  const int64_t depth = filter_depth(shape);
  int64_t largest = depth;
  for (int64_t o = 0; o < shape.outputs; o++) {
    int64_t magnitude = 0;
    for (int64_t k = 0; k < depth; k++) {
      const int32_t weight = int8_t(filter[o * depth + k] ^ flip);
      magnitude += weight < 0 ? -weight : weight;
    }
    largest = at_least(largest, magnitude);
  }
  return largest <= largest_exact_sum(m);
}

static void pack_filter(const Pool& pool, const uint8_t* filter, bool is_signed, const Filter& shape, uint8_t* to) {
  Arena arena = {to, 0};
  Packed packed = packed_filter(shape, arena);
  const int64_t depth = filter_depth(shape), m = winograd_form(shape);
  const uint8_t flip = flip_to_signed(is_signed);
  memset(packed.mark, 0, 64);
  memset(packed.flag, 0, 64);
  clear_behind(packed.sums, shape.outputs);
  if (is_depthwise(shape))
    clear_behind(packed.rows, shape.outputs * padded_filter_depth(shape));
  else
    clear_behind(packed.panels, panel_bytes(merged(shape)));
  if (m) clear_behind(packed.winograd, winograd_bytes(shape, m) / 4);
  memset(to + arena.used, 0, 4 * (shape.outputs + depth));
  *packed.mark = kFilterMark;
  parallel(pool, shape.outputs, [&](int64_t o, int64_t) {
    uint32_t sum = 0;
    for (int64_t k = 0; k < depth; k++) sum += uint32_t(int8_t(filter[o * depth + k] ^ flip));
    packed.sums[o] = int32_t(sum);
    if (is_depthwise(shape)) pack_row(filter, flip, shape, o, packed);
    if (m == 4) pack_winograd<4>(filter, flip, shape, o, packed);
    if (m == 2) pack_winograd<2>(filter, flip, shape, o, packed);
  });
  if (!is_depthwise(shape)) {
    const Filter whole = merged(shape);
    const int64_t vectors = padded_outputs(whole) / kLanes;
    parallel(pool, whole.groups * vectors, [&](int64_t item, int64_t) {
      pack_lanes(filter, flip, shape, item / vectors, item % vectors * kLanes, packed.panels);
    });
  }
  if (m) *packed.flag = is_exact(filter, flip, shape, m);
}

// m of the form to compute with; 0 where none is exact, or none is faster.
JAXDML_INLINE int64_t winograd_tiles(const Convolution* problems, int64_t count) {
  const Convolution& one = problems[0];
  const int64_t m = winograd_form(one.filter);
  if (!m) return 0;
  for (int i = 0; i < 2; i++)
    if (one.stride[i] != 1 || one.dilation[i] != 1) return 0;
  for (int64_t i = 0; i < count; i++)
    if (!*packed_filter(problems[i]).flag) return 0;
  const int64_t tiles = one.batch * ceil_div(one.y_height, m) * ceil_div(one.y_width, m), points = (m + 2) * (m + 2);
  // Products of lanes for each pair of an input and an output channel. Transforms take a quarter as long as products;
  // to read a transformed filter takes as long as four products of pairs at each of its points.
  const int64_t by_tiles = round_up(tiles, kBlock) * points / 2 * 5 / 4 + points * 2;
  const int64_t by_pixels = one.batch * one.y_height * one.y_width * 9 / kDepth;
  return by_tiles < by_pixels ? m : 0;
}

static int64_t convolve_scratch(const Convolution* problems, int64_t count, int64_t threads) {
  Arena arena = {nullptr, 0};
  if (is_depthwise(problems[0].filter)) {
    plan_depthwise(problems, count, threads, arena);
  } else if (const int64_t m = winograd_tiles(problems, count)) {
    if (m == 4)
      plan_winograd<4>(problems, count, threads, arena);
    else
      plan_winograd<2>(problems, count, threads, arena);
  } else {
    plan_channels_last(problems, count, threads, arena);
  }
  return arena.used;
}

static void convolve(const Pool& pool, const Convolution* problems, int64_t count, uint8_t* scratch) {
  Arena arena = {scratch, 0};
  if (is_depthwise(problems[0].filter)) return convolve_depthwise(pool, problems, count, arena);
  const int64_t m = winograd_tiles(problems, count);
  if (m == 4) return convolve_winograd<4>(pool, problems, count, arena);
  if (m == 2) return convolve_winograd<2>(pool, problems, count, arena);
  convolve_channels_last(pool, problems, count, arena);
}

}  // namespace jaxdml::JAXDML_ISA
