// 3 x 3 convolutions by Winograd's minimal filtering over integers, exact modulo 2**32; docs/winograd.md has the proof.
//
// An image is cut into tiles of m x m output pixels. A block of kBlock tiles is transformed, one pair of channels at a
// time, into (m + 2)**2 points. At each point, a matrix product multiplies the block by the transformed filter; the
// inverse transform and the epilogue follow. To save memory, each thread holds the points of only one block. If there
// are fewer blocks than threads, the threads may share the points of all blocks instead.
//
// The packed filter has int32 dwords [groups][outputs of a group / kRows][points][channel pairs][kRows], each with two
// int16, in the order in which they are read. If kRows does not divide the output channels of a group, the group's last
// part has fewer rows.
#pragma once

#include "channels.h"
#include "microkernel.h"
#include "tiles.h"

namespace jaxdml::JAXDML_ISA {

// The largest sum of |weights| of an output channel for which results are exact. Inputs minus 128 have a magnitude of
// at most 128, and sums of products must stay below 2**25 for m = 4 and below 2**29 for m = 2.
JAXDML_INLINE int64_t largest_exact_sum(int64_t m) { return (int64_t(1) << (m == 4 ? 25 : 29)) / 128 - 1; }

// Transforms and packs one output channel's filter.
template <int M>
JAXDML_INLINE void pack_winograd(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t o, Packed& packed) {
  constexpr int kPoints = (M + 2) * (M + 2), kWords = 2 * kLanes;
  const int64_t outputs = group_outputs(shape), words = channel_pairs(shape) * 2;
  const int64_t row = o % outputs, first_row = row / kRows * kRows, rows = at_most(kRows, outputs - first_row);
  Dword* to = packed.winograd + (o / outputs * outputs + first_row) * kPoints * (words / 2) + row - first_row;
  for (int64_t first = 0; first < words; first += kWords) {
    int16_t weights[9][kWords] = {};
    const int64_t count = at_most(kWords, shape.channels - first);
    for (int64_t c = 0; c < count; c++)
      for (int i = 0; i < 9; i++) weights[i][c] = int8_t(filter[(o * shape.channels + first + c) * 9 + i] ^ flip);
    I16 g[9], points[kPoints];
    memcpy(g, weights, sizeof(g));
    transform_whole_filter<M>(g, points);
    for (int i = 0; i < kPoints; i++)
      for (int64_t c = 0; c < at_most(kWords, words - first); c += 2)
        memcpy(to + (i * (words / 2) + (first + c) / 2) * rows, reinterpret_cast<int16_t*>(&points[i]) + c, 4);
  }
}

constexpr int kLine = kBlock * 4;  // bytes of a channel pair at one point of a block

// Bytes from one point of a block to the next. A power of two would put all points of a channel pair into one set of
// the cache.
JAXDML_INLINE int64_t point_stride(const Filter& filter) { return channel_pairs(filter) * kLine + 64; }

struct WinogradPlan {
  Tiles tiles;
  int64_t blocks, row_block, row_blocks;  // blocks of tiles in a group; output channels per work item; items per block
  int64_t items;                          // blocks of all problems and groups
  bool is_shared;                         // several items read the points of a block
  Channels* channels;
  uint8_t *points, *products;  // points for each block or worker; products for each worker
  int64_t block_bytes, products_bytes;
};

template <int M>
JAXDML_INLINE WinogradPlan plan_winograd(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  constexpr int kPoints = (M + 2) * (M + 2);
  const Convolution& one = problems[0];
  WinogradPlan plan;
  plan.tiles = {ceil_div(one.y_height, M), ceil_div(one.y_width, M), 0};
  plan.tiles.all = one.batch * plan.tiles.rows * plan.tiles.columns;
  plan.blocks = ceil_div(plan.tiles.all, kBlock);
  plan.items = count * one.filter.groups * plan.blocks;
  const int64_t outputs = group_outputs(one.filter);
  plan.row_block = round_up(outputs, kRows);
  while (plan.items * ceil_div(outputs, plan.row_block) < threads && plan.row_block > 8 * kRows)
    plan.row_block = round_up(plan.row_block / 2, kRows);
  plan.row_blocks = ceil_div(outputs, plan.row_block);
  plan.is_shared = plan.row_blocks > 1;
  plan.channels = take_channels(one.filter, count, arena);
  plan.block_bytes = kPoints * point_stride(one.filter);
  plan.points = take<uint8_t>(arena, plan.block_bytes * (plan.is_shared ? plan.items : threads));
  plan.products_bytes = kPoints * kBlock * 4 * kRows;
  plan.products = take<uint8_t>(arena, threads * plan.products_bytes);
  return plan;
}

// Multiplies R rows of the filter by a block at one point. `rows` holds the rows' dwords of each channel pair together.
template <int R>
JAXDML_INLINE void multiply_points(const Dword* rows, int64_t pairs, const uint8_t* lanes, uint8_t* to,
                                   int64_t stride) {
  I32 sums[R][kBlockVectors] = {};
#pragma GCC unroll 2
  for (int64_t pair = 0; pair < pairs; pair++, rows += R, lanes += kLine) {
    I32 at[kBlockVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; v++) at[v] = load(lanes + v * kBytes);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const I32 row = splat(rows[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kBlockVectors; v++) sums[r][v] = dot_words(sums[r][v], at[v], row);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; v++) store(to + r * stride + v * kBytes, sums[r][v]);
}

// One block of tiles, in one group of one problem.
struct TileBlock {
  const Convolution* one;
  const Channels* channels;
  int64_t group, run_count;
  Run runs[kBlock];
};

JAXDML_INLINE TileBlock tile_block(const WinogradPlan& plan, const Convolution* problems, int64_t number) {
  Index index = {number};
  TileBlock block;
  const int64_t tiles = next_of(index, plan.blocks);
  block.group = next_of(index, problems[0].filter.groups);
  block.one = problems + index.rest;
  block.channels = plan.channels + index.rest;
  block.run_count = runs_of(plan.tiles, tiles, block.runs);
  return block;
}

// Transforms channel pairs of a block into `points`, [points][pairs][kBlock]. Points are point_stride bytes apart.
template <int M>
static void transform_pairs(const TileBlock& block, int64_t first_pair, int64_t last_pair, uint8_t* points) {
  const Filter& filter = block.one->filter;
  const uint8_t flip = flip_to_unsigned(block.one->x_zero_point.is_signed);
  Gathered<M> first = {}, second = {};
  for (int64_t pair = first_pair; pair < last_pair; pair++) {
    const int64_t c = block.group * filter.channels + pair * 2;
    gather<M>(*block.one, block.runs, block.run_count, c, first);
    if (pair * 2 + 1 < filter.channels)
      gather<M>(*block.one, block.runs, block.run_count, c + 1, second);
    else
      memset(second, 0, sizeof second);
    transform_block<M>(first, second, flip, points + pair * kLine, point_stride(filter));
  }
}

// Sums each window; the correction for the filter's zero points needs these sums. They are a convolution with a filter
// of ones, which goes through the same transforms.
template <int M>
static void sum_windows(const Filter& filter, const uint8_t* points, uint8_t* products,
                        I32 (&sums)[M][M][kBlockVectors]) {
  constexpr int kPoints = (M + 2) * (M + 2);
  const int64_t pairs = channel_pairs(filter);
  const int32_t ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  int32_t of_ones[kPoints];
  transform_whole_filter<M>(ones, of_ones);
  for (int i = 0; i < kPoints; i++)
    for (int v = 0; v < kBlockVectors; v++) {
      I32 sum = {};
      for (int64_t pair = 0; pair < pairs; pair++) {
        const bool is_whole = pair * 2 + 1 < filter.channels;
        const I32 weights = splat(int32_t(uint32_t(of_ones[i] & 0xffff) * (is_whole ? 0x10001u : 1u)));
        sum = dot_words(sum, load(points + i * point_stride(filter) + pair * kLine + v * kBytes), weights);
      }
      store(products + i * kLine + v * kBytes, sum);
    }
  for (int v = 0; v < kBlockVectors; v++) {
    U32 pixels[M][M];
    transform_back<M>(products + v * kBytes, kLine, pixels);
    for (int i = 0; i < M; i++)
      for (int j = 0; j < M; j++) sums[i][j][v] = (I32)pixels[i][j];
  }
}

// Transforms back and stores output channel o of a block. Products at successive points are `stride` bytes apart.
template <int M>
JAXDML_INLINE void store_channel(const TileBlock& block, const uint8_t* products, int64_t stride, int64_t o,
                                 const I32 (&window_sums)[M][M][kBlockVectors]) {
  const Convolution& one = *block.one;
  const Channels& channels = *block.channels;
  alignas(64) uint8_t values[M * kBlock * M * 4];
  const I32 offset = splat(channels.offsets[o]), zero_point = splat(channels.zero_points[o]);
  for (int v = 0; v < kBlockVectors; v++) {
    U32 pixels[M][M];
    transform_back<M>(products + v * kBytes, stride, pixels);
    for (int i = 0; i < M; i++) {
      I32 totals[M];
      for (int j = 0; j < M; j++) {
        totals[j] = add((I32)pixels[i][j], offset);
        if (channels.has_zero_points) totals[j] = subtract(totals[j], multiply(zero_point, window_sums[i][j][v]));
      }
      uint8_t* to = values + (i * kBlock + v * kLanes) * M * size_of(one.type);
      if (one.type == Type::kInt32) {
        for (int lane = 0; lane < kLanes; lane++)
          for (int j = 0; j < M; j++) {
            const int32_t total = totals[j][lane];
            memcpy(to + (lane * M + j) * 4, &total, 4);
          }
        continue;
      }
      F32 row[M];
      for (int j = 0; j < M; j++) row[j] = scaled(totals[j], splat(channels.multipliers[o]));
      store_row_of_tiles<M>(to, saturated(row, channels.output));
    }
  }
  store_block<M>(one, block.runs, block.run_count, values, size_of(one.type), o);
}

// Computes output channels `first` to `last` of a block; `products` is [points][kRows][kBlock].
template <int M>
static void multiply_block(const TileBlock& block, int64_t first, int64_t last, const uint8_t* points,
                           uint8_t* products) {
  constexpr int kPoints = (M + 2) * (M + 2);
  const Filter& filter = block.one->filter;
  const int64_t pairs = channel_pairs(filter), outputs = group_outputs(filter);
  I32 window_sums[M][M][kBlockVectors];
  if (block.channels->has_zero_points) sum_windows<M>(filter, points, products, window_sums);
  const Dword* weights = packed_filter(*block.one).winograd + block.group * kPoints * outputs * pairs;
  for (int64_t row = first; row < last; row += kRows) {
    const int64_t rows = at_most(kRows, last - row);
    for (int i = 0; i < kPoints; i++) {
      const Dword* from = weights + (row * kPoints + i * rows) * pairs;
      uint8_t* to = products + i * kRows * kLine;
      with_constant<kRows>(rows, [&](auto row_count) {
        multiply_points<row_count>(from, pairs, points + i * point_stride(filter), to, kLine);
      });
    }
    for (int64_t r = 0; r < rows; r++)
      store_channel<M>(block, products + r * kLine, kRows * kLine, block.group * outputs + row + r, window_sums);
  }
}

template <int M>
static void convolve_winograd(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const WinogradPlan plan = plan_winograd<M>(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  const int64_t pairs = channel_pairs(filter), outputs = group_outputs(filter);
  for (int64_t i = 0; i < count; i++)
    set_channels(problems[i], as_weight(problems[i].x_zero_point, 0), plan.channels[i]);
  const auto points_at = [&](int64_t number) { return plan.points + number * plan.block_bytes; };
  if (plan.is_shared) {
    constexpr int64_t kPairs = 16;  // channel pairs per item of the shared transform
    const int64_t parts = ceil_div(pairs, kPairs);
    parallel(pool, plan.items * parts, [&](int64_t item, int64_t) {
      const int64_t number = item / parts, first = item % parts * kPairs;
      transform_pairs<M>(tile_block(plan, problems, number), first, at_most(pairs, first + kPairs), points_at(number));
    });
  }
  parallel(pool, plan.items * plan.row_blocks, [&](int64_t item, int64_t worker) {
    const int64_t number = item / plan.row_blocks, first = item % plan.row_blocks * plan.row_block;
    const TileBlock block = tile_block(plan, problems, number);
    uint8_t* points = points_at(plan.is_shared ? number : worker);
    if (!plan.is_shared) transform_pairs<M>(block, 0, pairs, points);
    multiply_block<M>(block, first, at_most(outputs, first + plan.row_block), points,
                      plan.products + worker * plan.products_bytes);
  });
}

}  // namespace jaxdml::JAXDML_ISA
