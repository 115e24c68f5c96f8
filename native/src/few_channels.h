// Convolutions of images with few channels, such as a network's first: the filter times the windows of the image.
//
// A worker splits the channels of an image into planes (see planes.h), in which each kernel element of each channel
// reads consecutive positions. These reads take the place of the channels of a 1 x 1 convolution; see pixel_lanes.h.
// Nothing is transposed, and no channel is padded.
#pragma once

#include "amx.h"
#include "pixel_lanes.h"
#include "windows.h"

namespace jaxdml::JAXDML_ISA {

constexpr int64_t kFewChannels = 4;
constexpr int64_t kMostLaneBytes = 16 << 10;  // the lanes of a block, which each tile of output channels reads again

// Whether this form is faster. With more channels, transposing costs less than reading each input once for each kernel
// element. With a stride above 2, rows are split byte by byte. If the depth is that of whole tiles, AMX is faster.
JAXDML_INLINE bool has_few_channels(const Convolution& one) {
  const Filter& filter = one.filter;
  if (!kHasPixelLanes || filter.groups > 1 || filter.channels > kFewChannels || one.stride[1] > 2) return false;
  const int64_t depth = panel_depth(filter);
  if (depth * kBytes > kMostLaneBytes || depth % kTileDepth == 0) return false;
  return fill_lanes(planes_of(one).positions, one.y_height * one.y_width);
}

struct FewChannelsPlan {
  PixelsPlan pixels;
  Windows windows;
  uint8_t* planes;  // of the channels of an image, for each worker
  int64_t* filled;  // the index of the image in each worker's planes
};

JAXDML_INLINE FewChannelsPlan plan_few_channels(const Convolution* problems, int64_t count, int64_t threads,
                                                Arena& arena) {
  const Convolution& one = problems[0];
  FewChannelsPlan plan;
  plan.windows = plan_windows(one, arena);
  plan.pixels = plan_pixels(problems, count, plan.windows.planes.positions, threads, arena);
  plan.planes = take<uint8_t>(arena, threads * one.filter.channels * plan.windows.planes.size);
  plan.filled = take<int64_t>(arena, threads);
  return plan;
}

// Splits all channels of an image.
JAXDML_INLINE void fill_channels(const Convolution& one, const Planes& planes, int64_t image, uint8_t* to) {
  const int64_t channels = one.filter.channels, size = one.height * one.width;
  memset(to, one.x_zero_point.at[0], size_t(channels * planes.size));
  for (int64_t c = 0; c < channels; c++)
    fill_planes(one, planes, one.x + (image * channels + c) * size, to + c * planes.size);
}

// Writes the windows of a block of pixels to lanes [kernel row][columns and channels]. `planes` points to the block's
// first position in the planes of the first channel; `column` is the output column of this position.
template <bool kAreInside>
JAXDML_INLINE void write_windows(const Convolution& one, const Windows& windows, const uint8_t* planes, int64_t column,
                                 LaneWriter& writer) {
  const Filter& filter = one.filter;
  const I32 top = splat(int32_t(flip_to_activation(one.x_zero_point.is_signed) * 0x01010101u));
  const I32 padding = splat(int32_t(one.x_zero_point.at[0] * 0x01010101u));
  for (int64_t u = 0; u < filter.rows; u++) {
    const Tap* tap = windows.taps + u * filter.columns;
    int64_t c = 0;
    for (int64_t k = 0; k < run_depth(filter); k += kDepth) {
      I32 rows[kDepth] = {};  // what follows the last column has weight 0
      for (int64_t i = 0; i < at_most(kDepth, filter.columns * filter.channels - k); i++) {
        rows[i] = load_window<kAreInside>(*tap, planes + c * windows.planes.size, column, padding, top);
        if (++c < filter.channels) continue;
        c = 0;
        tap++;
      }
      writer.put(rows);
    }
  }
}

static void convolve_few_channels(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  FewChannelsPlan plan = plan_few_channels(problems, count, pool.threads, arena);
  const Windows& windows = plan.windows;
  const Planes& planes = windows.planes;
  set_windows(problems[0], plan.windows);
  for (int64_t i = 0; i < pool.threads; i++) plan.filled[i] = -1;
  const auto bring = [&](int64_t worker, int64_t problem, int64_t image, const PixelBlock& pixels, LaneWriter& writer) {
    const Convolution& one = problems[problem];
    uint8_t* const filled = plan.planes + worker * one.filter.channels * planes.size;
    const int64_t images = problem * one.batch + image, column = pixels.first % planes.pitch;
    if (plan.filled[worker] != images) fill_channels(one, planes, image, filled);
    plan.filled[worker] = images;
    if (are_inside(windows, column))
      write_windows<true>(one, windows, filled + pixels.first, column, writer);
    else
      write_windows<false>(one, windows, filled + pixels.first, column, writer);
  };
  convolve_pixels(pool, problems, count, plan.pixels, planes.is_dense(problems[0]) ? nullptr : &planes, bring);
}

}  // namespace jaxdml::JAXDML_ISA
