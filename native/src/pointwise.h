// 1 x 1 convolutions for processors that multiply bytes: the filter times an image's channels, without a transpose.
//
// The lanes of the product are pixels, which are contiguous in each NCHW channel of the input and of the output. The
// rows are output channels, whose weights are broadcast from packed panels. Only kDepth channels at a time are
// interleaved. Sums are exact modulo 2**32.
#pragma once

#include "microkernel.h"
#include "positions.h"
#include "transpose.h"

namespace jaxdml::JAXDML_ISA {

// The number of vectors that interleave_rows fills for up to kBytes pixels.
JAXDML_INLINE int64_t vectors_of(int64_t pixels) { return pixels > 16 ? 4 : ceil_div(pixels, 4); }

// Whether this kernel can compute the convolution with most lanes in use. AVX2 is excluded because it multiplies words,
// and would have to widen the weights again for every block of pixels.
JAXDML_INLINE bool is_pointwise(const Convolution& one) {
  const Filter& filter = one.filter;
  if (kDepth == 2 || filter.rows != 1 || filter.columns != 1 || merged(filter).groups != filter.groups) return false;
  for (int i = 0; i < 2; i++)
    if (one.stride[i] != 1 || one.start[i] || one.end[i]) return false;
  const int64_t pixels = one.height * one.width;
  return (pixels / kBytes * 4 + vectors_of(pixels % kBytes)) * kLanes * 4 <= pixels * 5;
}

struct PointwisePlan {
  int64_t images, pixels;  // batch times groups; pixels of an image
  int64_t blocks;          // blocks of kBytes pixels in an image
  int64_t run, runs;       // blocks in an item; items in an image
  int64_t outputs;         // output channels of an item, in whole panels
  int64_t output_blocks;
  Channels* channels;
  uint8_t *lanes, *sums;  // for each worker, a block's interleaved channels, and their sums
  int64_t lane_bytes;
  int64_t* held;  // the index of the block in each worker's lanes
};

JAXDML_INLINE PointwisePlan plan_pointwise(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  const Convolution& one = problems[0];
  const int64_t outputs = group_outputs(one.filter);
  PointwisePlan plan;
  plan.images = one.batch * one.filter.groups;
  plan.pixels = one.height * one.width;
  plan.blocks = ceil_div(plan.pixels, kBytes);
  // Several items for each worker. An item has consecutive blocks, so that workers rarely write to the same cache line.
  const int64_t items = threads > 1 ? 4 * threads : 1, all = count * plan.images * plan.blocks;
  plan.run = at_most(ceil_div(all, items), plan.blocks);
  plan.runs = ceil_div(plan.blocks, plan.run);
  plan.outputs = round_up(ceil_div(outputs, ceil_div(items, all)), kTile);
  plan.output_blocks = ceil_div(outputs, plan.outputs);
  plan.channels = take_channels(one.filter, count, arena);
  plan.lane_bytes = run_depth(one.filter) * kBytes;
  plan.lanes = take<uint8_t>(arena, threads * plan.lane_bytes);
  plan.sums = take<uint8_t>(arena, threads * 4 * kBytes);
  plan.held = take<int64_t>(arena, threads);
  return plan;
}

// Interleaves `count` pixels of all channels into lanes [channels / kDepth][vectors], and sums each pixel over the
// channels. Channels are `size` bytes apart.
JAXDML_INLINE void bring_to_lanes(const uint8_t* x, int64_t size, int64_t channels, int64_t count, uint8_t flip,
                                  uint8_t* lanes, uint8_t* sums) {
  const I32 top = splat(int32_t(flip * 0x01010101u)), ones = splat(0x01010101);
  const int64_t vectors = vectors_of(count);
  I32 all[4] = {};
  for (int64_t c = 0; c < channels; c += kDepth) {
    I32 rows[kDepth], at[4];
    for (int64_t i = 0; i < kDepth; i++)  // channels past the last one have weight 0
      rows[i] = c + i < channels ? load_some(x + (c + i) * size, count) ^ top : I32{};
    interleave_rows(rows, at);
    for (int v = 0; v < 4; v++) {
      all[v] = ActivationLanes::dot(all[v], at[v], ones);
      if (v < vectors) store(lanes + v * kBytes, at[v]);
    }
    lanes += vectors * kBytes;
  }
  for (int v = 0; v < 4; v++) store(sums + v * kBytes, all[v]);
}

// Computes R output channels, beginning at channel o, for V vectors of pixels. `weights` points to the first dword of
// channel o; the channel's next dword follows `next` bytes later.
template <int R, int V>
static void pointwise_tile(const Convolution& one, const Channels& channels, const uint8_t* weights, int64_t next,
                           const uint8_t* lanes, const uint8_t* sums, int64_t o, int64_t count, uint8_t* y) {
  const uint8_t* starts[R];
  for (int r = 0; r < R; r++) starts[r] = weights + r * 4;
  I32 products[R][V];
  multiply_tile<R, V, ActivationLanes>(starts, 1, 0, lanes, run_depth(one.filter) / kDepth, next, products);
  const int64_t size = size_of(one.type), channel = one.height * one.width * size;
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const I32 offset = splat(channels.offsets[o + r]), zero_point = splat(channels.zero_points[o + r]);
    I32 totals[4] = {};
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      totals[v] = add(products[r][v], offset);
      if (channels.has_zero_points) totals[v] = subtract(totals[v], multiply(zero_point, load(sums + v * kBytes)));
    }
    if (one.type != Type::kInt32) {
      store_bytes(y + r * channel, saturated_positions(totals, channels, o + r), count);
      continue;
    }
    alignas(64) uint8_t bytes[4 * kBytes];
    store_positions(totals, channels, o + r, one.type, bytes);
    copy_bytes(y + r * channel, bytes, count * size);
  }
}

// Computes output channels `first` to `last` of a group for one block of pixels in lanes.
JAXDML_INLINE void multiply_pixels(const Convolution& one, const Channels& channels, int64_t image, int64_t pixel,
                                   int64_t count, int64_t first, int64_t last, const uint8_t* lanes,
                                   const uint8_t* sums) {
  const Filter& filter = one.filter;
  const int64_t outputs = group_outputs(filter), group = image % filter.groups, n = image / filter.groups;
  const uint8_t* panels = packed_filter(one).panels + group * padded_outputs(filter) * run_depth(filter);
  for (int64_t panel = first; panel < last; panel += kTile) {
    const int64_t next = panel_lanes(outputs, panel) * kDepth, some = at_most(kTile, last - panel);
    for (int64_t lane = 0; lane < some; lane += kRows) {
      const uint8_t* weights = panels + panel * run_depth(filter) + lane * kDepth;
      const int64_t o = group * outputs + panel + lane;
      uint8_t* y = y_channel(one, n, o) + pixel * size_of(one.type);
      with_constant<4>(vectors_of(count), [&](auto vectors) {
        with_constant<kRows>(at_most(kRows, some - lane), [&](auto rows) {
          pointwise_tile<rows, vectors>(one, channels, weights, next, lanes, sums, o, count, y);
        });
      });
    }
  }
}

static void convolve_pointwise(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const PointwisePlan plan = plan_pointwise(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  for (int64_t i = 0; i < count; i++)
    set_channels(problems[i], as_activation(problems[i].x_zero_point, 0), plan.channels[i]);
  for (int64_t i = 0; i < pool.threads; i++) plan.held[i] = -1;

  parallel(pool, count * plan.images * plan.runs * plan.output_blocks, [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t first = next_of(index, plan.output_blocks) * plan.outputs;
    const int64_t last = at_most(group_outputs(filter), first + plan.outputs);
    const int64_t run = next_of(index, plan.runs), images = index.rest, image = next_of(index, plan.images);
    const Convolution& one = problems[index.rest];
    uint8_t* lanes = plan.lanes + worker * plan.lane_bytes;
    uint8_t* sums = plan.sums + worker * 4 * kBytes;
    for (int64_t block = run * plan.run; block < at_most(plan.blocks, (run + 1) * plan.run); block++) {
      const int64_t pixel = block * kBytes, pixels = at_most(kBytes, plan.pixels - pixel);
      if (plan.held[worker] != images * plan.blocks + block)
        bring_to_lanes(one.x + image * filter.channels * plan.pixels + pixel, plan.pixels, filter.channels, pixels,
                       flip_to_activation(one.x_zero_point.is_signed), lanes, sums);
      plan.held[worker] = images * plan.blocks + block;
      multiply_pixels(one, plan.channels[index.rest], image, pixel, pixels, first, last, lanes, sums);
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
