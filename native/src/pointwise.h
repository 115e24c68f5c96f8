// 1 x 1 convolutions for processors that multiply bytes: the filter times an image's channels.
#pragma once

#include "pixel_lanes.h"

namespace jaxdml::JAXDML_ISA {

// Whether this kernel can compute the convolution with most lanes in use.
JAXDML_INLINE bool is_pointwise(const Convolution& one) {
  const Filter& filter = one.filter;
  if (!kHasPixelLanes || filter.rows != 1 || filter.columns != 1 || merged(filter).groups != filter.groups)
    return false;
  for (int i = 0; i < 2; i++)
    if (one.stride[i] != 1 || one.start[i] || one.end[i]) return false;
  const int64_t pixels = one.height * one.width;
  return fill_lanes(pixels, pixels);
}

JAXDML_INLINE PixelsPlan plan_pointwise(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  return plan_pixels(problems, count, problems[0].height * problems[0].width, threads, arena);
}

static void convolve_pointwise(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const PixelsPlan plan = plan_pointwise(problems, count, pool.threads, arena);
  const auto bring = [&](int64_t, int64_t problem, int64_t image, const PixelBlock& pixels, LaneWriter& writer) {
    const Convolution& one = problems[problem];
    const int64_t channels = one.filter.channels;
    const uint8_t* x = one.x + image * channels * plan.pixels + pixels.first;
    const I32 top = splat(int32_t(flip_to_activation(one.x_zero_point.is_signed) * 0x01010101u));
    for (int64_t c = 0; c < channels; c += kDepth) {
      I32 rows[kDepth];
      for (int64_t i = 0; i < kDepth; i++)  // channels past the last one have weight 0
        rows[i] = c + i < channels ? load_some(x + (c + i) * plan.pixels, pixels.count) ^ top : I32{};
      writer.put(rows);
    }
  };
  convolve_pixels(pool, problems, count, plan, nullptr, bring);
}

}  // namespace jaxdml::JAXDML_ISA
