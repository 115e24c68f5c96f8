// The filter times columns of activations: the lanes of the product are pixels, the rows are output channels.
//
// Pixels are contiguous in each NCHW channel of the output, so nothing is transposed. A worker interleaves the
// activations of a block of kBytes pixels, kDepth at a time, and multiplies them by the weights, which are broadcast
// from packed panels. Sums are exact modulo 2**32.
#pragma once

#include "microkernel.h"
#include "planes.h"
#include "positions.h"

namespace jaxdml::JAXDML_ISA {

// The number of vectors that interleave_rows fills for up to kBytes pixels.
JAXDML_INLINE int64_t vectors_of(int64_t pixels) { return pixels > 16 ? 4 : ceil_div(pixels, 4); }

// Whether `wanted` outputs fill most lanes of `pixels` computed pixels.
JAXDML_INLINE bool fill_lanes(int64_t pixels, int64_t wanted) {
  return (pixels / kBytes * 4 + vectors_of(pixels % kBytes)) * kLanes * 4 <= wanted * 5;
}

// AVX2 and NEON without dot products multiply words, and would have to widen the weights again for every block.
constexpr bool kHasPixelLanes = kDepth == 4;

struct PixelsPlan {
  int64_t images, pixels;  // batch times groups; pixels that are computed for an image
  int64_t blocks;          // blocks of kBytes pixels in an image
  int64_t run, runs;       // blocks in an item; items in an image
  int64_t outputs;         // output channels of an item, in whole panels
  int64_t output_blocks;
  Channels* channels;
  uint8_t *lanes, *sums;  // for each worker, a block's interleaved activations, and each pixel's sum
  int64_t lane_bytes;
  int64_t* held;  // the index of the block in each worker's lanes
};

JAXDML_INLINE PixelsPlan plan_pixels(const Convolution* problems, int64_t count, int64_t pixels, int64_t threads,
                                     Arena& arena) {
  const Convolution& one = problems[0];
  const int64_t outputs = group_outputs(one.filter);
  PixelsPlan plan;
  plan.images = one.batch * one.filter.groups;
  plan.pixels = pixels;
  plan.blocks = ceil_div(plan.pixels, kBytes);
  // Eight items for each worker. An item has consecutive blocks, so that workers rarely write to the same cache line.
  // Four are enough if more would repeat work: each worker that computes a part of an image may fill planes for it, and
  // each worker that computes a part of a block's outputs interleaves the block's activations.
  const int64_t items = threads > 1 ? 8 * threads : 1, enough = ceil_div(items, 2);
  const int64_t images = count * plan.images, all = images * plan.blocks;
  plan.run = images < enough ? ceil_div(plan.blocks, ceil_div(items, images)) : plan.blocks;
  plan.runs = ceil_div(plan.blocks, plan.run);
  plan.outputs = round_up(ceil_div(outputs, ceil_div(enough, all)), kTile);
  plan.output_blocks = ceil_div(outputs, plan.outputs);
  plan.channels = take_channels(one.filter, count, arena);
  plan.lane_bytes = panel_depth(one.filter) * kBytes;
  plan.lanes = take<uint8_t>(arena, threads * plan.lane_bytes);
  plan.sums = take<uint8_t>(arena, threads * 4 * kBytes);
  plan.held = take<int64_t>(arena, threads);
  return plan;
}

// The pixels of a block. Pixels between the output rows of `planes` are discarded; `planes` is null if there are no
// such pixels.
struct PixelBlock {
  int64_t first, count;
  const Planes* planes;
};

// Writes kDepth rows of a block's pixels at a time, interleaved, to lanes [rows / kDepth][vectors], and sums each
// pixel.
struct LaneWriter {
  const int64_t vectors;
  uint8_t* lanes;
  I32 totals[4] = {};

  void put(const I32 (&rows)[kDepth]) {
    I32 at[4];
    interleave_rows(rows, at);
    for (int v = 0; v < 4; v++) {
      totals[v] = ActivationLanes::dot(totals[v], at[v], splat(0x01010101));
      if (v < vectors) store(lanes + v * kBytes, at[v]);
    }
    lanes += vectors * kBytes;
  }
  void store_sums(uint8_t* sums) const {
    for (int v = 0; v < 4; v++) store(sums + v * kBytes, totals[v]);
  }
};

// Stores the sums of one output channel, which begins at `y`: int32, or bytes of which some are discarded.
JAXDML_INLINE void store_by_rows(const Convolution& one, const Channels& channels, int64_t o, const PixelBlock& pixels,
                                 const I32 (&totals)[4], uint8_t* y) {
  const int64_t size = size_of(one.type);
  if (one.type == Type::kInt32 && !pixels.planes && pixels.count == kBytes)
    return put_in_order(reinterpret_cast<const uint8_t*>(totals), y + pixels.first * size);
  alignas(64) uint8_t bytes[4 * kBytes];
  store_positions(totals, channels, o, one.type, bytes);
  if (pixels.planes)
    store_rows(one, *pixels.planes, bytes, pixels.first, pixels.count, size, y);
  else
    copy_bytes(y + pixels.first * size, bytes, pixels.count * size);
}

// Computes R output channels, beginning at channel o, for V vectors of pixels. `weights` points to the first dword of
// channel o; the channel's next dword follows `next` bytes later. Channel o begins at `y`.
//
// The loops for bytes in place and for all other outputs are apart, and the latter copies its sums: if both were one
// loop, or shared the array, compilers would keep most sums in memory.
template <int R, int V>
static void pixels_tile(const Convolution& one, const Channels& channels, const uint8_t* weights, int64_t next,
                        const uint8_t* lanes, const uint8_t* sums, int64_t o, const PixelBlock& pixels, uint8_t* y) {
  const uint8_t* starts[R];
  for (int r = 0; r < R; r++) starts[r] = weights + r * 4;
  I32 products[R][V];
  multiply_tile<R, V, ActivationLanes>(starts, 1, 0, lanes, panel_depth(one.filter) / kDepth, next, products);
  const auto set_totals = [&](int r, I32(&totals)[4]) {
    const I32 offset = splat(channels.offsets[o + r]), zero_point = splat(channels.zero_points[o + r]);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      totals[v] = add(products[r][v], offset);
      if (channels.has_zero_points) totals[v] = subtract(totals[v], multiply(zero_point, load(sums + v * kBytes)));
    }
  };
  const int64_t channel = one.y_height * one.y_width * size_of(one.type);
  if (one.type != Type::kInt32 && !pixels.planes) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      I32 totals[4] = {};
      set_totals(r, totals);
      store_bytes(y + r * channel + pixels.first, saturated_positions(totals, channels, o + r), pixels.count);
    }
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    I32 totals[4] = {};
    set_totals(r, totals);
    store_by_rows(one, channels, o + r, pixels, totals, y + r * channel);
  }
}

// Computes output channels `first` to `last` of a group for a block of pixels in lanes.
JAXDML_INLINE void multiply_pixels(const Convolution& one, const Channels& channels, int64_t image,
                                   const PixelBlock& pixels, int64_t first, int64_t last, const uint8_t* lanes,
                                   const uint8_t* sums) {
  const Filter& filter = one.filter;
  const int64_t outputs = group_outputs(filter), group = image % filter.groups, n = image / filter.groups;
  const int64_t depth = panel_depth(filter);
  const uint8_t* panels = packed_filter(one).panels + group * padded_outputs(filter) * depth;
  for (int64_t panel = first; panel < last; panel += kTile) {
    const int64_t next = panel_lanes(outputs, panel) * kDepth, some = at_most(kTile, last - panel);
    for (int64_t lane = 0; lane < some; lane += kRows) {
      const uint8_t* weights = panels + panel * depth + lane * kDepth;
      const int64_t o = group * outputs + panel + lane;
      uint8_t* y = y_channel(one, n, o);
      with_constant<4>(vectors_of(pixels.count), [&](auto vectors) {
        with_constant<kRows>(at_most(kRows, some - lane), [&](auto rows) {
          pixels_tile<rows, vectors>(one, channels, weights, next, lanes, sums, o, pixels, y);
        });
      });
    }
  }
}

// Computes all problems. bring(worker, problem, image, pixels, writer) writes a block's activations.
template <class Bring>
JAXDML_INLINE void convolve_pixels(const Pool& pool, const Convolution* problems, int64_t count, const PixelsPlan& plan,
                                   const Planes* planes, const Bring& bring) {
  const Filter& filter = problems[0].filter;
  for (int64_t i = 0; i < count; i++)
    set_channels(problems[i], as_activation(problems[i].x_zero_point, 0), plan.channels[i]);
  for (int64_t i = 0; i < pool.threads; i++) plan.held[i] = -1;

  parallel(pool, count * plan.images * plan.runs * plan.output_blocks, [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t first = next_of(index, plan.output_blocks) * plan.outputs;
    const int64_t last = at_most(group_outputs(filter), first + plan.outputs);
    const int64_t run = next_of(index, plan.runs), images = index.rest, image = next_of(index, plan.images);
    uint8_t* lanes = plan.lanes + worker * plan.lane_bytes;
    uint8_t* sums = plan.sums + worker * 4 * kBytes;
    for (int64_t block = run * plan.run; block < at_most(plan.blocks, (run + 1) * plan.run); block++) {
      const int64_t at = block * kBytes;
      const PixelBlock pixels = {at, at_most(kBytes, plan.pixels - at), planes};
      if (plan.held[worker] != images * plan.blocks + block) {
        LaneWriter writer = {vectors_of(pixels.count), lanes};
        bring(worker, index.rest, image, pixels, writer);
        writer.store_sums(sums);
      }
      plan.held[worker] = images * plan.blocks + block;
      multiply_pixels(problems[index.rest], plan.channels[index.rest], image, pixels, first, last, lanes, sums);
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
