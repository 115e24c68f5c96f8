// Which form computes a convolution. All of them give the same integers.
#pragma once

#include "depthwise.h"
#include "direct.h"
#include "winograd.h"

namespace jaxdml::JAXDML_ISA {

static void pack_filter(const Pool& pool, const uint8_t* filter, bool is_signed, const Filter& shape, uint8_t* to) {
  Arena arena = {to, 0};
  Packed packed = packed_filter(shape, arena);
  const int64_t depth = filter_depth(shape), padded = row_cells(depth), m = winograd_form(shape);
  const uint8_t flip = flip_to_signed(is_signed);
  memset(packed.mark, 0, 64);
  memset(packed.flag, 0, 64);
  clear_behind(packed.sums, shape.outputs);
  clear_behind(packed.rows, shape.outputs * padded);
  if (m) clear_behind(packed.winograd, winograd_bytes(shape, m) / 4);
  memset(to + arena.used, 0, 4 * (shape.outputs + depth));
  *packed.mark = kFilterMark;
  parallel(pool, shape.outputs, [&](int64_t o, int64_t) {
    const uint8_t* from = filter + o * depth;
    Cell* row = packed.rows + o * padded;
    int32_t sum = 0;
    for (int64_t k = 0; k < depth; k++) {
      const int8_t weight = int8_t(from[k] ^ flip);
      row[k] = Cell(weight);
      sum = int32_t(uint32_t(sum) + uint32_t(weight));
    }
    for (int64_t k = depth; k < padded; k++) row[k] = 0;
    packed.sums[o] = sum;
    if (m == 4) pack_winograd<4>(filter, flip, shape, o, packed);
    if (m == 2) pack_winograd<2>(filter, flip, shape, o, packed);
  });
  if (!m) return;
  int64_t largest = depth;  // a row of ones adds up windows
  for (int64_t o = 0; o < shape.outputs; o++) {
    int64_t magnitude = 0;
    for (int64_t k = 0; k < depth; k++) {
      const int32_t weight = int8_t(filter[o * depth + k] ^ flip);
      magnitude += weight < 0 ? -weight : weight;
    }
    largest = at_least(largest, magnitude);
  }
  *packed.flag = largest <= largest_exact_sum(m);
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
  // to read a transformed filter takes as long as eight products of pairs at each of its points.
  const int64_t by_tiles = round_up(tiles, kBlock) * points / 2 * 5 / 4 + points * 4;
  const int64_t directly = one.batch * round_up(planes_of(one).positions, kLanes) * 9 / kDepth;
  return by_tiles < directly ? m : 0;
}

JAXDML_INLINE bool is_depthwise(const Convolution& one) { return one.filter.channels == 1; }

static int64_t convolve_scratch(const Convolution* problems, int64_t count, int64_t threads) {
  Arena arena = {nullptr, 0};
  if (is_depthwise(problems[0])) {
    plan_depthwise(problems, count, threads, arena);
  } else if (const int64_t m = winograd_tiles(problems, count)) {
    if (m == 4)
      plan_winograd<4>(problems, count, threads, arena);
    else
      plan_winograd<2>(problems, count, threads, arena);
  } else {
    plan_direct(problems, count, threads, arena);
  }
  return arena.used;
}

static void convolve(const Pool& pool, const Convolution* problems, int64_t count, uint8_t* scratch) {
  Arena arena = {scratch, 0};
  if (is_depthwise(problems[0])) return convolve_depthwise(pool, problems, count, arena);
  const int64_t m = winograd_tiles(problems, count);
  if (m == 4) return convolve_winograd<4>(pool, problems, count, arena);
  if (m == 2) return convolve_winograd<2>(pool, problems, count, arena);
  convolve_directly(pool, problems, count, arena);
}

}  // namespace jaxdml::JAXDML_ISA
