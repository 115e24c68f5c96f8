// Depthwise convolutions: each group has one input channel.
//
// An output needs few products, so bringing windows into lanes takes most of the time. Each input channel is copied
// into planes (see planes.h), in which every kernel element reads consecutive positions with one unaligned load. The
// results of kDepth loads are interleaved into the lanes of a dot product. Sums are exact modulo 2**32.
#pragma once

#include "microkernel.h"
#include "positions.h"
#include "windows.h"

namespace jaxdml::JAXDML_ISA {

struct DepthwisePlan {
  Windows windows;
  int64_t step;  // from a vector's first column to the next vector's, modulo the pitch
  Channels* channels;
  uint8_t* filled;  // planes of one channel, for each worker
};

JAXDML_INLINE DepthwisePlan plan_depthwise(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  const Convolution& one = problems[0];
  DepthwisePlan plan;
  plan.windows = plan_windows(one, arena);
  plan.step = kBytes % plan.windows.planes.pitch;
  plan.channels = take_channels(one.filter, count, arena);
  plan.filled = take<uint8_t>(arena, threads * plan.windows.planes.size);
  return plan;
}

// Adds the products of kBytes windows to `sums`. If the filter has zero points, also adds the windows' elements to
// `window_sums`.
template <bool kAreInside>
JAXDML_INLINE void add_windows(const Windows& all, int64_t taps, const Dword* weights, const uint8_t* planes,
                               int64_t column, I32 padding, I32 top, bool has_zero_points, I32 (&sums)[4],
                               I32 (&window_sums)[4]) {
  const I32 ones = splat(kDepth == 4 ? 0x01010101 : 0x00010001);
  for (int64_t k = 0; k < taps; k += kDepth) {
    I32 seen[kDepth], windows[4];
    for (int i = 0; i < kDepth; i++)  // taps past the last one have weight 0
      seen[i] = k + i < taps ? load_window<kAreInside>(all.taps[k + i], planes, column, padding, top) : I32{};
    interleave_rows(seen, windows);
    const I32 row = splat(weights[k / kDepth]);
    for (int v = 0; v < 4; v++) sums[v] = ActivationLanes::dot(sums[v], windows[v], row);
    if (!has_zero_points) continue;
    for (int v = 0; v < 4; v++) window_sums[v] = ActivationLanes::dot(window_sums[v], windows[v], ones);
  }
}

JAXDML_INLINE void depthwise_channel(const Convolution& one, const DepthwisePlan& plan, const Channels& channels,
                                     const uint8_t* planes, int64_t o, uint8_t* y) {
  const int64_t taps = filter_depth(one.filter), depth = padded_filter_depth(one.filter), size = size_of(one.type);
  const Dword* cells = reinterpret_cast<const Dword*>(packed_filter(one).rows + o * depth);
  const I32 top = splat(int32_t(flip_to_activation(one.x_zero_point.is_signed) * 0x01010101u));
  const I32 padding = splat(int32_t(one.x_zero_point.at[0] * 0x01010101u));
  const I32 offset = splat(channels.offsets[o]), zero_point = splat(channels.zero_points[o]);
  const Planes& of = plan.windows.planes;
  for (int64_t first = 0, column = 0; first < of.positions; first += kBytes) {
    I32 sums[4] = {offset, offset, offset, offset}, window_sums[4] = {};
    if (are_inside(plan.windows, column))
      add_windows<true>(plan.windows, taps, cells, planes + first, column, padding, top, channels.has_zero_points, sums,
                        window_sums);
    else
      add_windows<false>(plan.windows, taps, cells, planes + first, column, padding, top, channels.has_zero_points,
                         sums, window_sums);
    if (channels.has_zero_points)
      for (int v = 0; v < 4; v++) sums[v] = subtract(sums[v], multiply(zero_point, window_sums[v]));
    alignas(64) uint8_t bytes[4 * kBytes];
    store_positions(sums, channels, o, one.type, bytes);
    column += plan.step;
    if (column >= of.pitch) column -= of.pitch;
    store_rows(one, of, bytes, first, at_most(kBytes, of.positions - first), size, y);
  }
}

static void convolve_depthwise(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  DepthwisePlan plan = plan_depthwise(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  for (int64_t i = 0; i < count; i++)
    set_channels(problems[i], as_activation(problems[i].x_zero_point, 0), plan.channels[i]);
  set_windows(problems[0], plan.windows);
  const Planes& of = plan.windows.planes;
  const int64_t channels = problems[0].batch * filter.groups, per_channel = group_outputs(filter);
  const int64_t size = problems[0].height * problems[0].width;
  const int64_t chunk = at_least((16 << 10) / of.size, 1), chunks = ceil_div(channels, chunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t worker) {
    const int64_t problem = item / chunks, from = item % chunks * chunk;
    const Convolution& one = problems[problem];
    uint8_t* planes = plan.filled + worker * of.size;
    memset(planes, one.x_zero_point.at[0], size_t(of.size));
    for (int64_t c = from; c < at_most(channels, from + chunk); c++) {
      fill_planes(one, of, one.x + c * size, planes);
      for (int64_t i = 0; i < per_channel; i++) {
        const int64_t n = c / filter.groups, o = c % filter.groups * per_channel + i;
        depthwise_channel(one, plan, plan.channels[problem], planes, o, y_channel(one, n, o));
      }
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
