// Means of rows, requantized: saturate(round(((sum - depth * zero_point) * x_scale / depth) / y_scale) + y_zero_point).
// Each float operation rounds once.
#pragma once

#include "elementwise.h"

namespace jaxdml::JAXDML_ISA {

static void means(const Pool& pool, const Means* problems, int64_t count) {
  const int64_t rows = problems[0].rows, depth = problems[0].depth;
  // A block has whole vectors of outputs, and enough elements to be worth an item.
  const int64_t block = round_up(at_least(1, at_most(rows, (1 << 15) / (depth + 1))), kBytes);
  const int64_t blocks = ceil_div(rows, block);
  parallel(pool, count * blocks, [&](int64_t item, int64_t) {
    const Means& one = problems[item / blocks];
    const int64_t first = item % blocks * block, last = at_most(rows, first + block);
    const Output output = output_of(one.y_zero_point, one.y_is_signed);
    const I32 offset = splat(int32_t(uint32_t(one.x_zero_point) * uint32_t(depth)));
    const F32 x_scale = splat(one.x_scale), y_scale = splat(one.y_scale), elements = splat(float(depth));
    for (int64_t m = first; m < last; m += kBytes) {
      const int64_t some = at_most(kBytes, last - m);
      alignas(64) int32_t sums[kBytes] = {};
      for (int64_t i = 0; i < some; i++) sums[i] = row_sum(one.x + (m + i) * depth, depth, one.x_is_signed);
      F32 y[4];
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++)
        y[v] = floats(subtract(load(sums + v * kLanes), offset)) * x_scale / elements / y_scale;
      put_bytes<true>(one.y + m, y, output, some);
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
