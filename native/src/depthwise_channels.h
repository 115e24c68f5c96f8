// Depthwise convolutions with strides or small images: lanes are channels.
//
// With strides or small images, the planes of planes.h often have short rows, and rows are split one by one. Here a
// worker copies kChannels input channels, padded and in NHWC order, and computes one output pixel of all of them at a
// time. In that copy the inputs of a row of the kernel are adjacent, kChannels cells each; kDepth of them are
// interleaved into the lanes of a dot product. Sums are exact modulo 2**32.
#pragma once

#include "block_copy.h"
#include "channels_last.h"

namespace jaxdml::JAXDML_ISA {

constexpr int64_t kChannels = 16;
constexpr int kChannelVectors = kSixteenLanes;

struct DepthwiseChannelsPlan {
  Copy copy;                   // the layout of a full-sized block's copy
  int64_t rows;                // output rows of a block
  int64_t row_blocks, blocks;  // a channel's blocks of rows; blocks of kChannels groups
  int64_t groups;              // groups of kDepth elements in a row of the kernel
  Channels* channels;
  Cell *cells, *weights;  // of each worker: a block's copy, and its weights [rows][groups][kChannels][kDepth]
  int64_t cell_count, weight_count;
};

// The copied channels as a filter of one group, for `copy_for` and `copy_block`.
JAXDML_INLINE Filter filter_of_channels(const Filter& filter, int64_t channels) {
  return {channels, channels, filter.rows, filter.columns, 1, false};
}

// Whether the copy for `rows` output rows stays in the first-level cache.
JAXDML_INLINE bool fits_copy(const Convolution& one, int64_t rows) {
  constexpr int64_t kMostBytes = 24 << 10;
  const Copy copy = copy_for(one, filter_of_channels(one.filter, kChannels), rows, one.y_width);
  return copy.cells * int64_t(sizeof(Cell)) <= kMostBytes;
}

// Whether planes have rows so long that depthwise.h is faster despite strides. This was measured with AVX2 alone.
JAXDML_INLINE bool has_long_rows(const Convolution& one) {
  return kDepth == 2 && one.y_width >= 24 && one.stride[1] <= 2;  // split_bytes splits rows with a stride of 2
}

// Whether images are so small that the copies of depthwise.h take most of its time. Without strides, this form takes
// 0.4 to 0.9 of its time for images of 3 x 3 to 7 x 7; from 8 x 8 on, the times are equal.
JAXDML_INLINE bool has_small_images(const Convolution& one) { return one.y_height * one.y_width <= 49; }

// Whether this form is faster: there are strides or small images, rows are short, and there are enough channels to fill
// half of the lanes. Its copies and weights for one thread take less memory than convolve.h allows for each call.
JAXDML_INLINE bool is_depthwise_by_channels(const Convolution& one) {
  const Filter& filter = one.filter;
  const bool has_strides = one.stride[0] > 1 || one.stride[1] > 1;
  return is_depthwise(filter) && (has_strides || has_small_images(one)) && !has_long_rows(one) &&
         filter.groups >= kChannels / 2 && filter.rows * filter.columns <= 64 && fits_copy(one, 1);
}

JAXDML_INLINE DepthwiseChannelsPlan plan_depthwise_channels(const Convolution* problems, int64_t count, int64_t threads,
                                                            Arena& arena) {
  const Convolution& one = problems[0];
  DepthwiseChannelsPlan plan;
  plan.rows = one.y_height;
  while (plan.rows > 1 && !fits_copy(one, plan.rows)) plan.rows = ceil_div(plan.rows, 2);
  plan.row_blocks = ceil_div(one.y_height, plan.rows);
  plan.copy = copy_for(one, filter_of_channels(one.filter, kChannels), plan.rows, one.y_width);
  plan.blocks = ceil_div(one.filter.groups, kChannels);
  plan.groups = ceil_div(one.filter.columns, kDepth);
  plan.cell_count = plan.copy.cells + kDepth * kChannels;  // elements past a row's last one are read, too
  plan.weight_count = one.filter.rows * plan.groups * kChannels * kDepth;
  plan.channels = take_channels(one.filter, count, arena);
  plan.cells = take<Cell>(arena, threads * plan.cell_count);
  plan.weights = take<Cell>(arena, threads * plan.weight_count);
  return plan;
}

// The epilogue's parameters for one output channel of each group of a block.
struct BlockChannels {
  int32_t offsets[kChannels], zero_points[kChannels];
  float multipliers[kChannels];
};

// The bits of a lane's kDepth elements that belong to the kernel, in group g of a row.
JAXDML_INLINE int32_t bits_of_kernel(const Filter& filter, int64_t g) {
  const int64_t left = filter.columns - g * kDepth;
  return left < kDepth ? int32_t((1u << (left * (32 / kDepth))) - 1) : -1;
}

// Output channels `first`, `first` + `step`, and so on: their parameters, and their weights as lanes. kDepth weights of
// a row of the kernel are adjacent in the packed filter, and make one lane.
JAXDML_INLINE void read_block(const Convolution& one, const DepthwiseChannelsPlan& plan, const Channels& channels,
                              int64_t first, int64_t step, int64_t count, Cell* weights, BlockChannels& block) {
  const Filter& filter = one.filter;
  const int64_t depth = padded_filter_depth(filter);
  const Cell* rows = packed_filter(one).rows + first * depth;
  auto* lanes = reinterpret_cast<Dword*>(weights);
  // interleave_pixels does not sort the lanes; lane order[c] belongs to channel c.
  I32 lanes_in_order[kChannelVectors];
  for (int i = 0; i < kChannels; i++) lanes_in_order[i / kLanes][i % kLanes] = i;
  put_lanes_in_order(lanes_in_order);
  int32_t order[kChannels];
  for (int v = 0; v < kChannelVectors; v++) store(order + v * kLanes, lanes_in_order[v]);
  for (int64_t c = 0; c < count; c++) {
    const int64_t o = first + c * step;
    block.offsets[c] = channels.offsets[o];
    block.zero_points[c] = channels.zero_points[o];
    block.multipliers[c] = channels.multipliers[o];
  }
  for (int64_t u = 0; u < filter.rows; u++)
    for (int64_t g = 0; g < plan.groups; g++, lanes += kChannels) {
      const Cell* from = rows + u * filter.columns + g * kDepth;
      const Dword kept = bits_of_kernel(filter, g);
      for (int64_t c = 0; c < count; c++)
        lanes[order[c]] = *reinterpret_cast<const Dword*>(from + c * step * depth) & kept;
    }
}

// Sums the products of one output pixel of kChannels channels. Its window begins at `window`, and rows are `step` cells
// apart.
JAXDML_INLINE void sum_depthwise_window(const Filter& filter, int64_t groups, const Cell* window, int64_t step,
                                        const Cell* weights, bool has_zero_points, const BlockChannels& block,
                                        I32* to) {
  constexpr int64_t kCells = kChannels * kDepth, kVectorCells = kBytes / int64_t(sizeof(Cell));
  I32 sums[kChannelVectors] = {}, window_sums[kChannelVectors] = {};
  for (int64_t u = 0; u < filter.rows; u++, window += step)
    for (int64_t g = 0; g < groups; g++, weights += kCells) {
      I32 seen[kChannelVectors];
      interleave_pixels(window + g * kCells, seen);
#pragma GCC unroll 2
      for (int v = 0; v < kChannelVectors; v++)
        sums[v] = ActivationLanes::dot(sums[v], seen[v], load(weights + v * kVectorCells));
      if (!has_zero_points) continue;
      const I32 ones = splat((kDepth == 4 ? 0x01010101 : 0x00010001) & bits_of_kernel(filter, g));
      for (int v = 0; v < kChannelVectors; v++) window_sums[v] = ActivationLanes::dot(window_sums[v], seen[v], ones);
    }
  put_lanes_in_order(sums);
  if (has_zero_points) put_lanes_in_order(window_sums);
#pragma GCC unroll 2
  for (int v = 0; v < kChannelVectors; v++) {
    to[v] = add(sums[v], load(block.offsets + v * kLanes));
    if (has_zero_points) to[v] = subtract(to[v], multiply(load(block.zero_points + v * kLanes), window_sums[v]));
  }
}

// Requantizes up to kBytes pixels, and stores them in the rows of `outputs` channels, which are `channel` bytes apart.
// sum(p, to) computes the sums of a pixel. A vector holds the channels of pixels that are 16 apart, so that the
// transpose of sixteen vectors puts one channel of all pixels, in order, into each vector.
template <class Sum>
JAXDML_INLINE void store_channel_pixels(int64_t count, const Sum& sum, const BlockChannels& block, const Output& output,
                                        int64_t outputs, int64_t channel, uint8_t* y) {
  I32 rows[16];
  for (int64_t i = 0; i < 16; i++) {
    F32 values[4] = {};
#pragma GCC unroll 4
    for (int part = 0; part < kBytes / 16; part++) {
      if (i + part * 16 >= count) break;
      I32 sums[kChannelVectors];
      sum(i + part * 16, sums);
#pragma GCC unroll 2
      for (int v = 0; v < kChannelVectors; v++)
        values[part * kChannelVectors + v] = scaled(sums[v], load_floats(block.multipliers + v * kLanes));
    }
    rows[i] = gather_firsts(saturated(values, output));
  }
  transpose_sixteen(rows);
  for (int64_t o = 0; o < outputs; o++) {
    if (count == kBytes)
      store(y + o * channel, rows[o]);
    else
      copy_bytes(y + o * channel, &rows[o], count);
  }
}

static void convolve_depthwise_by_channels(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const DepthwiseChannelsPlan plan = plan_depthwise_channels(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  const int64_t per_channel = group_outputs(filter);
  for (int64_t i = 0; i < count; i++)
    set_channels(problems[i], as_activation(problems[i].x_zero_point, 0), plan.channels[i]);
  parallel(pool, count * problems[0].batch * plan.blocks * plan.row_blocks, [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t top = next_of(index, plan.row_blocks) * plan.rows;
    const int64_t first = next_of(index, plan.blocks) * kChannels, n = next_of(index, problems[0].batch);
    const Convolution& one = problems[index.rest];
    const Channels& channels = plan.channels[index.rest];
    const Block at = {top, 0, at_most(plan.rows, one.y_height - top), one.y_width};
    const int64_t some = at_most(kChannels, filter.groups - first), pixels = at.rows * one.y_width;
    Cell* cells = plan.cells + worker * plan.cell_count;
    Cell* weights = plan.weights + worker * plan.weight_count;
    copy_block(one, filter_of_channels(filter, some), plan.copy,
               one.x + (n * filter.groups + first) * one.height * one.width, at, cells);
    const int64_t size = size_of(one.type), row = plan.copy.output_step * plan.copy.row_cells;
    const int64_t step = plan.copy.kernel_step * plan.copy.row_cells;
    for (int64_t i = 0; i < per_channel; i++) {
      BlockChannels block = {};
      const int64_t o = first * per_channel + i, channel = per_channel * one.y_height * one.y_width * size;
      read_block(one, plan, channels, o, per_channel, some, weights, block);
      for (int64_t from = 0; from < pixels; from += kBytes) {
        const int64_t count_here = at_most(kBytes, pixels - from);
        Cell* seen[kBytes];
        place(plan.copy, {row, 0, plan.copy.column_step, one.y_width}, cells, from, count_here, seen);
        const auto sum = [&](int64_t p, I32* to) {
          sum_depthwise_window(filter, plan.groups, seen[p], step, weights, channels.has_zero_points, block, to);
        };
        uint8_t* y = y_channel(one, n, o) + (top * one.y_width + from) * size;
        if (one.type != Type::kInt32) {
          store_channel_pixels(count_here, sum, block, channels.output, some, channel, y);
          continue;
        }
        alignas(64) uint8_t collected[kBytes * kBytes * 4];
        for (int64_t p = 0; p < count_here; p++) {
          I32 sums[kChannelVectors];
          sum(p, sums);
          for (int v = 0; v < kChannelVectors; v++) store(collected + p * kBytes * 4 + v * kBytes, sums[v]);
        }
        store_pixels(collected, count_here, some, size, channel, y);
      }
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
