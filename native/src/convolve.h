// Which form computes a convolution. All of them give the same integers.
#pragma once

#include "channels_last.h"
#include "depthwise.h"
#include "pack_filter.h"
#include "winograd.h"

namespace jaxdml::JAXDML_ISA {

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
