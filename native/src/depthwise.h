// Convolutions with one channel to a group: a few products for each output, so that what counts is how the windows get
// into the lanes. kBytes positions are taken at once, in the order in which instructions that interleave leave them,
// and those that pack put them back.
#pragma once

#include "channels.h"
#include "microkernel.h"
#include "planes.h"

namespace jaxdml::JAXDML_ISA {

// What kDepth elements of a kernel see; their masks, or null where all of it lies in the image.
struct Windows {
  const uint8_t* rows[kDepth];
  const uint8_t* masks[kDepth];
};

JAXDML_INLINE I32 load_window(const Windows& of, int i, I32 padding, I32 top) {
  const I32 x = load(of.rows[i]);
  return of.masks[i] ? ((x ^ padding) & load(of.masks[i])) ^ padding ^ top : x ^ top;
}

// kBytes positions in four vectors: in each 128 bits positions 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
JAXDML_INLINE void interleave_positions(const Windows& of, I32 padding, I32 top, I32 (&to)[4]) {
  const I32 a = load_window(of, 0, padding, top), b = load_window(of, 1, padding, top);
#ifdef __AVX512VNNI__
  const I32 c = load_window(of, 2, padding, top), d = load_window(of, 3, padding, top);
  const I32 low[2] = {low_bytes(a, b), low_bytes(c, d)}, high[2] = {high_bytes(a, b), high_bytes(c, d)};
  to[0] = low_words(low[0], low[1]);
  to[1] = high_words(low[0], low[1]);
  to[2] = low_words(high[0], high[1]);
  to[3] = high_words(high[0], high[1]);
#else
  const I32 low = low_bytes(a, b), high = high_bytes(a, b), zero = I32{};
  to[0] = low_bytes(low, zero);
  to[1] = high_bytes(low, zero);
  to[2] = low_bytes(high, zero);
  to[3] = high_bytes(high, zero);
#endif
}

struct DepthwisePlan {
  Planes planes;
  int64_t* offsets;       // of each element of the kernel
  const uint8_t** masks;  // of each element
  uint8_t* mask_bytes;    // of each column of the kernel
  int64_t mask_size;
  bool* is_seen;  // of each plane
  Channels* channels;
  uint8_t* filled;  // a channel's planes, of each worker
};

JAXDML_INLINE DepthwisePlan plan_depthwise(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  const Convolution& one = problems[0];
  DepthwisePlan plan;
  plan.planes = planes_of(one);
  plan.offsets = take<int64_t>(arena, padded_filter_depth(one.filter));
  plan.masks = take<const uint8_t*>(arena, padded_filter_depth(one.filter));
  plan.mask_size = plan.planes.pitch + kBytes;
  plan.mask_bytes = take<uint8_t>(arena, one.filter.columns * plan.mask_size);
  plan.is_seen = take<bool>(arena, one.stride[0] * one.stride[1]);
  plan.channels = take_channels(one.filter, count, arena);
  plan.filled = take<uint8_t>(arena, threads * plan.planes.size);
  return plan;
}

JAXDML_INLINE void set_plan(const Convolution& one, const DepthwisePlan& plan) {
  const Filter& filter = one.filter;
  memset(plan.is_seen, 0, size_t(one.stride[0] * one.stride[1]));
  for (int64_t v = 0; v < filter.columns; v++) {
    uint8_t* mask = plan.mask_bytes + v * plan.mask_size;
    const bool is_masked = set_mask(one, plan.planes, v, plan.mask_size, mask);
    for (int64_t u = 0; u < filter.rows; u++) {
      plan.offsets[u * filter.columns + v] = plane_offset(one, plan.planes, u, v);
      plan.masks[u * filter.columns + v] = is_masked ? mask : nullptr;
      plan.is_seen[shift_of(one, 0, u).phase * one.stride[1] + shift_of(one, 1, v).phase] = true;
    }
  }
  for (int64_t k = filter_depth(filter); k < padded_filter_depth(filter); k++) {  // weights of padding are 0
    plan.offsets[k] = plan.offsets[0];
    plan.masks[k] = plan.masks[0];
  }
}

JAXDML_INLINE void depthwise_channel(const Convolution& one, const DepthwisePlan& plan, const Channels& channels,
                                     const uint8_t* planes, int64_t o, uint8_t* y) {
  const int64_t depth = padded_filter_depth(one.filter), size = size_of(one.type);
  const Dword* cells =
      reinterpret_cast<const Dword*>(packed_filter(one).rows + o * row_cells(filter_depth(one.filter)));
  const I32 top = splat(int32_t(flip_to_unsigned(one.x_zero_point.is_signed) * 0x01010101u));
  const I32 padding = splat(int32_t(one.x_zero_point.at[0] * 0x01010101u));
  const I32 ones = splat(kDepth == 4 ? 0x01010101 : 0x00010001);
  const I32 offset = splat(channels.offsets[o]), zero_point = splat(channels.zero_points[o]);
  for (int64_t first = 0, column = 0; first < plan.planes.positions; first += kBytes) {
    I32 sums[4] = {offset, offset, offset, offset}, window_sums[4] = {};
    for (int64_t k = 0; k < depth; k += kDepth) {
      Windows seen;
      for (int i = 0; i < kDepth; i++) {
        seen.rows[i] = planes + plan.offsets[k + i] + first;
        seen.masks[i] = plan.masks[k + i] ? plan.masks[k + i] + column : nullptr;
      }
      I32 windows[4];
      interleave_positions(seen, padding, top, windows);
      const I32 weights = splat(cells[k / kDepth]);
      for (int v = 0; v < 4; v++) sums[v] = UnsignedLanes::dot(sums[v], windows[v], weights);
      if (!channels.has_zero_points) continue;
      // What a padded row repeats does not belong to the window.
      const int64_t real = at_most(kDepth, filter_depth(one.filter) - k);
      const I32 counted = splat(int32_t(uint32_t(ones[0]) & (~0u >> (32 - real * (32 / kDepth)))));
      for (int v = 0; v < 4; v++) window_sums[v] = UnsignedLanes::dot(window_sums[v], windows[v], counted);
    }
    if (channels.has_zero_points)
      for (int v = 0; v < 4; v++) sums[v] = subtract(sums[v], multiply(zero_point, window_sums[v]));
    alignas(64) uint8_t bytes[4 * kBytes];
    if (size == 4) {
      for (int v = 0; v < 4; v++)
        for (int lane = 0; lane < kLanes; lane++) {
          const int32_t sum = sums[v][lane];
          memcpy(bytes + (lane / 4 * 16 + v * 4 + lane % 4) * 4, &sum, 4);
        }
    } else {
      F32 values[4];
      for (int v = 0; v < 4; v++) values[v] = scaled(sums[v], splat(channels.multipliers[o]));
      store(bytes, saturated(values, channels.output));
    }
    column = (column + kBytes) % plan.planes.pitch;
    store_positions(one, plan.planes, bytes, first, at_most(kBytes, plan.planes.positions - first), size, y);
  }
}

static void convolve_depthwise(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const DepthwisePlan plan = plan_depthwise(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  for (int64_t i = 0; i < count; i++) set_channels(problems[i], 0, plan.channels[i]);
  set_plan(problems[0], plan);
  const int64_t channels = problems[0].batch * filter.groups, per_channel = group_outputs(filter);
  const int64_t size = problems[0].height * problems[0].width;
  const int64_t chunk = at_least((16 << 10) / plan.planes.size, 1), chunks = ceil_div(channels, chunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t worker) {
    const int64_t problem = item / chunks, from = item % chunks * chunk;
    const Convolution& one = problems[problem];
    uint8_t* planes = plan.filled + worker * plan.planes.size;
    memset(planes, one.x_zero_point.at[0], size_t(plan.planes.size));
    for (int64_t c = from; c < at_most(channels, from + chunk); c++) {
      for (int64_t i = 0; i < one.stride[0] * one.stride[1]; i++)
        if (plan.is_seen[i]) fill_plane(one, plan.planes, one.x + c * size, i, planes);
      for (int64_t i = 0; i < per_channel; i++) {
        const int64_t n = c / filter.groups, o = c % filter.groups * per_channel + i;
        depthwise_channel(one, plan, plan.channels[problem], planes, o, y_channel(one, n, o));
      }
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
