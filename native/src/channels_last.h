// Convolution as a matrix product without im2col (indirect convolution, Dukhan 2019).
//
// A worker copies the input of a block of output pixels, padded and in NHWC order. In that copy, each row of the kernel
// covers one contiguous run of cells. The rows of the product are pixels and its lanes are output channels. The
// epilogue requantizes the sums into a buffer in NHWC order, which is transposed into the NCHW output. Sums are exact
// modulo 2**32.
#pragma once

#include "amx.h"
#include "block_copy.h"
#include "channels.h"
#include "microkernel.h"
#include "packing.h"

namespace jaxdml::JAXDML_ISA {

constexpr int kMostPixels = 96;  // capacity of the buffer of requantized pixels
static_assert(kMostPixels % kRows == 0 && kMostPixels % 16 == 0, "computed in tiles, stored in blocks of 16");
constexpr int64_t kFewestPixels = 12;                  // fewer pixels would leave too much of an AMX tile empty
constexpr int64_t kMostBlockBytes = int64_t(1) << 18;  // so that a block's copy stays in the L2 cache

struct ChannelsLastPlan {
  Filter filter;          // with small groups merged
  int64_t rows, columns;  // rows and columns of an output block
  int64_t row_blocks, column_blocks;
  int64_t images, output_blocks;  // a problem's images times groups; blocks of kBytes output channels in a group
  Copy copy;                      // the layout of a full-sized block's copy
  Channels* channels;             // one for each problem
  Cell* cells;                    // one copy for each worker
  int64_t* held;                  // the index of the block in each worker's copy
};

JAXDML_INLINE ChannelsLastPlan plan_channels_last(const Convolution* problems, int64_t count, int64_t threads,
                                                  Arena& arena) {
  const Convolution& one = problems[0];
  ChannelsLastPlan plan;
  plan.filter = merged(one.filter);
  plan.images = one.batch * plan.filter.groups;
  plan.output_blocks = ceil_div(group_outputs(plan.filter), kBytes);
  const int64_t items = count * plan.images * plan.output_blocks;
  const int64_t blocks = threads > 1 ? ceil_div(4 * threads, items) : 1;  // several items for each worker
  plan.rows = ceil_div(one.y_height, blocks);
  plan.columns = ceil_div(one.y_width, at_most(ceil_div(blocks, one.y_height), ceil_div(one.y_width, kMostPixels)));
  const auto is_large = [&] {
    const int64_t bytes = copy_for(one, plan.filter, plan.rows, plan.columns).cells * int64_t(sizeof(Cell));
    const int64_t whole = one.batch * (one.filter.groups * one.filter.channels * one.height * one.width +
                                       one.filter.outputs * one.y_height * one.y_width * size_of(one.type));
    return bytes > kMostBlockBytes || threads * bytes > 2 * whole;
  };
  while (plan.rows > 1 && is_large()) plan.rows = ceil_div(plan.rows, 2);
  while (plan.columns > kMostPixels && is_large()) plan.columns = ceil_div(plan.columns, 2);
  plan.row_blocks = ceil_div(one.y_height, plan.rows);
  plan.column_blocks = ceil_div(one.y_width, plan.columns);
  plan.copy = copy_for(one, plan.filter, plan.rows, plan.columns);
  plan.channels = take_channels(one.filter, count, arena);
  plan.cells = take<Cell>(arena, threads * plan.copy.cells);
  plan.held = take<int64_t>(arena, threads);
  return plan;
}

JAXDML_INLINE Block block_of(const Convolution& one, const ChannelsLastPlan& plan, int64_t number) {
  const int64_t row = number / plan.column_blocks * plan.rows, column = number % plan.column_blocks * plan.columns;
  return {row, column, at_most(plan.rows, one.y_height - row), at_most(plan.columns, one.y_width - column)};
}

JAXDML_INLINE uint32_t sum_cells(const Cell* from, int64_t count) {
  constexpr int64_t kCells = kBytes / int64_t(sizeof(Cell));
  I32 lanes = {};
  int64_t i = 0;
  for (; i + kCells <= count; i += kCells)
    lanes = ActivationLanes::dot(lanes, load(from + i), splat(kDepth == 4 ? 0x01010101 : 0x00010001));
  uint32_t sum = 0;
  for (; i < count; i++) sum += from[i];
  if (count >= kCells)
    for (int lane = 0; lane < kLanes; lane++) sum += uint32_t(lanes[lane]);
  return sum;
}

// Sums a window; the correction for the filter's zero points needs the sum. A lane gets the sum over the channels of
// its own group only, because merged groups share a copy.
template <int V>
JAXDML_INLINE void sum_window(const Convolution& one, const ChannelsLastPlan& plan, const Cell* from,
                              int32_t (&sums)[V * kLanes]) {
  const Filter& filter = plan.filter;
  const int64_t channels = one.filter.channels, step = plan.copy.kernel_step * plan.copy.row_cells;
  if (channels == filter.channels) {
    uint32_t sum = 0;
    for (int64_t u = 0; u < filter.rows; u++) sum += sum_cells(from + u * step, filter.columns * channels);
    for (int v = 0; v < V; v++) store(sums + v * kLanes, splat(int32_t(sum)));
    return;
  }
  const int64_t outputs = group_outputs(one.filter);
  for (int64_t first = 0; first < filter.channels; first += channels) {
    uint32_t sum = 0;
    for (int64_t u = 0; u < filter.rows; u++)
      for (int64_t v = 0; v < filter.columns; v++)
        sum += sum_cells(from + u * step + v * filter.channels + first, channels);
    for (int64_t i = 0; i < outputs; i++) sums[first / channels * outputs + i] = int32_t(sum);
  }
}

// Applies the epilogue to the sums of one pixel, for V vectors of output channels, beginning at channel o. The pixel's
// window begins at `pixel`.
template <int V>
JAXDML_INLINE void finish_pixel(const Convolution& one, const ChannelsLastPlan& plan, const Channels& channels,
                                const I32 (&sums)[V], const Cell* pixel, int64_t o, uint8_t* to) {
  int32_t window_sums[V * kLanes] = {};
  if (channels.has_zero_points) sum_window<V>(one, plan, pixel, window_sums);
  I32 totals[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) {
    const int64_t at = o + v * kLanes;
    totals[v] = add(sums[v], load(channels.offsets + at));
    if (channels.has_zero_points)
      totals[v] = subtract(totals[v], multiply(load(channels.zero_points + at), load(window_sums + v * kLanes)));
  }
  if (one.type == Type::kInt32) {
    for (int v = 0; v < V; v++) store(to + v * kBytes, totals[v]);
    return;
  }
  F32 values[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) values[v] = scaled(totals[v], load_floats(channels.multipliers + o + v * kLanes));
  store_saturated(to, values, channels.output);
}

// Computes R pixels for V vectors of output channels, beginning at channel o. The pixels' windows begin at `pixels`.
template <int R, int V>
static void channels_last_tile(const Convolution& one, const ChannelsLastPlan& plan, const Channels& channels,
                               const Cell* const* pixels, const uint8_t* panel, int64_t o, uint8_t* to) {
  const Filter& filter = plan.filter;
  const int64_t step = plan.copy.kernel_step * plan.copy.row_cells * int64_t(sizeof(Cell));
  const uint8_t* rows[R];
  for (int r = 0; r < R; r++) rows[r] = reinterpret_cast<const uint8_t*>(pixels[r]);
  I32 sums[R][V];
  multiply_runs<R, V, WeightLanes>(rows, filter.rows, step, panel, run_depth(filter) / kDepth, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
    finish_pixel(one, plan, channels, sums[r], pixels[r], o, to + r * kBytes * size_of(one.type));
}

// Computes up to kTileRows pixels for a whole panel with AMX. AMX reads evenly spaced rows, but windows jump where an
// output line ends. Windows are therefore copied next to each other, in parts that fit the L1 cache.
JAXDML_INLINE void channels_last_by_tiles(const Convolution& one, const ChannelsLastPlan& plan,
                                          const Channels& channels, const Cell* const* pixels, int64_t count,
                                          const uint8_t* panel, int64_t o, uint8_t* to) {
  constexpr int64_t kPart = 1024, kStride = kPart + 64;
  const int64_t run = run_depth(plan.filter), depth = panel_depth(plan.filter);
  const int64_t step = plan.copy.kernel_step * plan.copy.row_cells;
  alignas(64) uint8_t rows[kTileRows * kStride];
  alignas(64) int32_t sums[kTileRows][kTile];
  for (int64_t first = 0; first < depth; first += kPart) {
    const int64_t last = at_most(depth, first + kPart);
    for (int64_t k = first, some; k < last; k += some) {
      some = at_most(run - k % run, last - k);
      for (int64_t r = 0; r < count; r++)
        copy_bytes(rows + r * kStride + k - first, pixels[r] + k / run * step + k % run, some);
    }
    for (int64_t column = 0; column < kTile; column += kTileColumns)
      multiply_tiles(rows, kStride, panel + first * kTile + column * kDepth, kTile * kDepth, last - first,
                     &sums[0][column], sizeof(sums[0]), first > 0);
  }
  for (int64_t r = 0; r < count; r++) {
    I32 of_pixel[kVectors];
    for (int v = 0; v < kVectors; v++) of_pixel[v] = load(sums[r] + v * kLanes);
    finish_pixel(one, plan, channels, of_pixel, pixels[r], o, to + r * kBytes * size_of(one.type));
  }
}

// Transposes `count` pixels of up to kBytes channels into the output. Output channels are `channel` bytes apart.
JAXDML_INLINE void store_pixels(const uint8_t* from, int64_t count, int64_t outputs, int64_t size, int64_t channel,
                                uint8_t* y) {
  if (channel == size) return copy_bytes(y, from, outputs * size);  // images of one pixel
  if (size == 4) {
    for (int64_t o = 0; o < outputs; o += 4)
      for (int64_t p = 0; p < count; p += 4) {
        Sixteen squares[4];
        for (int i = 0; i < 4; i++) squares[i] = load_sixteen(from + ((p + i) * kBytes + o) * 4);
        transpose_dwords(squares);
        for (int64_t i = 0; i < at_most(4, outputs - o); i++)
          store_some(y + (o + i) * channel + p * 4, squares[i], at_most(4, count - p) * 4);
      }
    return;
  }
  for (int64_t p = 0; p < count; p += 16) {
    const int64_t some = at_most(16, count - p);
    I32 rows[16];
    for (int i = 0; i < 16; i++) rows[i] = load(from + (p + i) * kBytes);
    transpose_sixteen(rows);
    each_column(rows, outputs, [&](int64_t o, Sixteen bytes) { store_some(y + o * channel + p, bytes, some); });
  }
}

template <bool kHasTiles>
static void convolve_channels_last(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const ChannelsLastPlan plan = plan_channels_last(problems, count, pool.threads, arena);
  const Filter& filter = plan.filter;
  const Convolution& any = problems[0];
  const int64_t outputs = group_outputs(filter), depth = panel_depth(filter);
  for (int64_t i = 0; i < count; i++)
    set_channels(problems[i], as_activation(problems[i].x_zero_point, 0), plan.channels[i]);
  for (int64_t i = 0; i < pool.threads; i++) plan.held[i] = -1;

  const int64_t blocks = plan.row_blocks * plan.column_blocks;
  const bool has_tiles = kHasTiles && depth % kTileDepth == 0;
  const auto item = [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t first_output = next_of(index, plan.output_blocks) * kBytes;
    Cell* cells = plan.cells + worker * plan.copy.cells;
    const bool is_held = plan.held[worker] == index.rest;
    plan.held[worker] = index.rest;
    const Block block = block_of(any, plan, next_of(index, blocks));
    const int64_t image = next_of(index, plan.images), group = image % filter.groups, n = image / filter.groups;
    const Convolution& one = problems[index.rest];
    if (!is_held)
      copy_block(one, filter, plan.copy, one.x + image * filter.channels * one.height * one.width, block, cells);

    const Channels& channels = plan.channels[index.rest];
    const int64_t some = at_most(kBytes, outputs - first_output), o = group * outputs + first_output;
    const uint8_t* panels = packed_filter(one).panels + (group * padded_outputs(filter) + first_output) * depth;
    const int64_t size = size_of(one.type);
    alignas(64) uint8_t collected[kMostPixels * kBytes * 4];
    // Full-width rows of the output are contiguous, and count as one line.
    const bool is_whole = block.columns == one.y_width;
    const int64_t lines = is_whole ? 1 : block.rows, length = is_whole ? block.rows * block.columns : block.columns;
    const int64_t row = plan.copy.output_step * plan.copy.row_cells;
    for (int64_t line = 0; line < lines; line++)
      for (int64_t first = 0; first < length; first += kMostPixels) {
        const int64_t pixels = at_most(kMostPixels, length - first);
        Cell* seen[kMostPixels];
        place(plan.copy, {row, 0, plan.copy.column_step, block.columns}, cells + line * row, first, pixels, seen);
        for (int64_t at = 0; at < some; at += kTile) {
          const int64_t lanes = panel_lanes(outputs, first_output + at);
          int64_t done = 0;
          if constexpr (kHasTiles)
            for (; has_tiles && lanes == kTile && done + kFewestPixels <= pixels; done += kTileRows)
              channels_last_by_tiles(one, plan, channels, seen + done, at_most(kTileRows, pixels - done),
                                     panels + at * depth, o + at, collected + (done * kBytes + at) * size);
          with_constant<kVectors>(lanes / kLanes, [&](auto vectors) {
            for (int64_t p = done; p < pixels; p += kRows)
              with_constant<kRows>(at_most(kRows, pixels - p), [&](auto rows) {
                channels_last_tile<rows, vectors>(one, plan, channels, seen + p, panels + at * depth, o + at,
                                                  collected + (p * kBytes + at) * size);
              });
          });
        }
        const int64_t pixel = (block.row + line) * one.y_width + block.column + first;
        store_pixels(collected, pixels, some, size, one.y_height * one.y_width * size,
                     y_channel(one, n, o) + pixel * size);
      }
  };
  parallel(pool, count * plan.images * blocks * plan.output_blocks, [&](int64_t number, int64_t worker) {
    if constexpr (kHasTiles)
      if (has_tiles) {
        const TileRegisters registers;
        return item(number, worker);
      }
    item(number, worker);
  });
}

}  // namespace jaxdml::JAXDML_ISA
