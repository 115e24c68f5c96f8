// Quantizes each row of a matrix of floats to uint8, by a scale and a zero point that follow from the row's range.
#pragma once

#include "elementwise.h"

namespace jaxdml::JAXDML_ISA {

// The zero point of uint8 for a range that includes 0; 0 if the scale is NaN.
JAXDML_INLINE uint8_t zero_point_of(float low, float scale) {
  const float offset = __builtin_rintf(-(low / scale));
  return uint8_t(offset > 0 ? offset < 255 ? offset : 255 : 0);
}

// The scale and zero point with which uint8 covers a range that includes 0, as jaxdml.ptq.scale_and_zero_point has
// them.
JAXDML_INLINE void cover(Ends range, float& scale, uint8_t& zero_point) {
  constexpr float kSmallestNormal = 0x1p-126f;
  const float low = range.low > -kSmallestNormal ? 0 : range.low, extent = range.high - low;
  scale = range.has_nan ? __builtin_nanf("") : extent < kSmallestNormal ? 1 : extent / 255;
  if (scale < kSmallestNormal) scale = kSmallestNormal;
  zero_point = zero_point_of(low, scale);
}

static void quantize_rows(const Pool& pool, const RowQuantization& one) {
  const int64_t block = 1 + kChunk / 4 / (one.depth + 1), blocks = ceil_div(one.rows, block);
  parallel(pool, blocks, [&](int64_t item, int64_t) {
    const int64_t first = item * block, last = at_most(one.rows, first + block);
    for (int64_t m = first; m < last; m++) {
      const float* const x = one.x + m * one.depth;
      cover(ends_of(x, 0, one.depth), one.scales[m], one.zero_points[m]);
      const Quantization row = {one.depth, x, one.scales[m], one.zero_points[m], false, one.y + m * one.depth};
      quantize_elements(row, 0, one.depth);
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
