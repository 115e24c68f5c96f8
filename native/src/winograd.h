// 3 x 3 convolutions by Winograd's minimal filtering over integers, exact modulo 2**32; docs/winograd.md proves it.
//
// An image is cut into tiles of m x m output pixels. A block of kBlock tiles is transformed, channel pair by channel
// pair, into (m + 2)**2 points; at each point the block's pairs are multiplied with the filter's; the products of all
// points are transformed back and requantized. Only blocks lie in memory, never a transformed image.
//
// A packed form: int32 dwords [groups][outputs of a group / kRows][points][kRows][channel pairs], two int16 each; the
// last rows of a group may be fewer.
#pragma once

#include "channels.h"
#include "microkernel.h"
#include "transforms.h"

namespace jaxdml::JAXDML_ISA {

constexpr int kBlockVectors = kBlock / kLanes;

// The largest sum of |weights| of an output channel for which results are exact: inputs, less 128, are at most 128 in
// magnitude, and sums of products must be below 2**25 for m = 4, and 2**29 for m = 2.
JAXDML_INLINE int64_t largest_exact_sum(int64_t m) { return (int64_t(1) << (m == 4 ? 25 : 29)) / 128 - 1; }

// The points of one output channel's filter.
template <int M>
JAXDML_INLINE void pack_winograd(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t o, Packed& packed) {
  constexpr int kPoints = (M + 2) * (M + 2), kWords = 2 * kLanes;
  const int64_t outputs = group_outputs(shape), words = channel_pairs(shape) * 2;
  const int64_t row = o % outputs, first_row = row / kRows * kRows, rows = at_most(kRows, outputs - first_row);
  auto* to = reinterpret_cast<int16_t*>(packed.winograd) +
             ((o / outputs * outputs + first_row) * kPoints + row - first_row) * words;
  for (int64_t first = 0; first < words; first += kWords) {
    int16_t weights[9][kWords] = {};
    const int64_t count = at_most(kWords, shape.channels - first);
    for (int64_t c = 0; c < count; c++)
      for (int i = 0; i < 9; i++) weights[i][c] = int8_t(filter[(o * shape.channels + first + c) * 9 + i] ^ flip);
    I16 g[9], points[kPoints];
    memcpy(g, weights, sizeof(g));
    transform_whole_filter<M>(g, points);
    for (int i = 0; i < kPoints; i++)
      memcpy(to + i * rows * words + first, &points[i], size_t(at_most(kWords, words - first)) * 2);
  }
}

struct WinogradPlan {
  int64_t tile_rows, tile_columns, tiles;  // of an image; of all images
  int64_t blocks, row_block, row_blocks;
  Channels* channels;
  uint8_t* memory;  // of each worker: a block's points, and what is on the way to them and from them
  int64_t memory_bytes;
};

template <int M>
JAXDML_INLINE WinogradPlan plan_winograd(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  constexpr int T = M + 2;
  const Convolution& one = problems[0];
  WinogradPlan plan;
  plan.tile_rows = ceil_div(one.y_height, M);
  plan.tile_columns = ceil_div(one.y_width, M);
  plan.tiles = one.batch * plan.tile_rows * plan.tile_columns;
  plan.blocks = ceil_div(plan.tiles, kBlock);
  const int64_t outputs = group_outputs(one.filter);
  plan.row_block = round_up(outputs, kRows);
  const auto items = [&] { return count * one.filter.groups * plan.blocks * ceil_div(outputs, plan.row_block); };
  while (items() < threads && plan.row_block > 8 * kRows) plan.row_block = round_up(plan.row_block / 2, kRows);
  plan.row_blocks = ceil_div(outputs, plan.row_block);
  plan.channels = take_channels(one.filter, count, arena);
  plan.memory_bytes = channel_pairs(one.filter) * T * T * kBlock * 4 + T * T * kBlock * 4 * kRows;
  plan.memory = take<uint8_t>(arena, threads * plan.memory_bytes);
  return plan;
}

// Tiles of a block that lie side by side in one image.
struct Run {
  int64_t image, row, column;  // of the first tile
  int64_t first, count;        // in the block
};

JAXDML_INLINE int64_t runs_of(const WinogradPlan& plan, int64_t block, Run (&runs)[kBlock]) {
  int64_t count = 0, t = block * kBlock;
  const int64_t last = at_most(plan.tiles, t + kBlock);
  while (t < last) {
    Index index = {t};
    Run& run = runs[count++];
    run.column = next_of(index, plan.tile_columns);
    run.row = next_of(index, plan.tile_rows);
    run.image = index.rest;
    run.first = t - block * kBlock;
    run.count = at_most(plan.tile_columns - run.column, last - t);
    t += run.count;
  }
  return count;
}

// The bytes that row i of each tile of a block sees in a channel: dwords of columns 0 to 3, then of 4 to 7.
template <int M>
JAXDML_INLINE void gather(const Convolution& one, const Run* runs, int64_t run_count, int64_t channel,
                          int32_t (&to)[M + 2][2][kBlock]) {
  const int64_t all_channels = one.filter.groups * one.filter.channels;
  const uint8_t padding = one.x_zero_point.at[0];
  uint8_t line[kBlock * M + 16];
  for (int64_t r = 0; r < run_count; r++) {
    const Run& run = runs[r];
    const uint8_t* x = one.x + (run.image * all_channels + channel) * one.height * one.width;
    const int64_t left = run.column * M - one.start[1], length = run.count * M + 2;
    const int64_t from = at_least(0, -left), until = at_most(length, one.width - left);
    for (int i = 0; i < M + 2; i++) {
      const int64_t row = run.row * M + i - one.start[0];
      const uint8_t* seen = line;
      if (row >= 0 && row < one.height && from == 0 && left + length + 8 <= one.width) {
        seen = x + (row * one.width + left);
      } else {
        memset(line, padding, length);
        if (row >= 0 && row < one.height && from < until)
          copy_bytes(line + from, x + (row * one.width + left + from), until - from);
      }
      for (int64_t t = 0; t < run.count; t++) {
        memcpy(&to[i][0][run.first + t], seen + t * M, 4);
        if (M == 4) memcpy(&to[i][1][run.first + t], seen + t * M + 4, 4);
      }
    }
  }
}

// A pair of channels of a block to its points, `stride` bytes apart.
template <int M>
JAXDML_INLINE void transform_block(const int32_t (&first)[M + 2][2][kBlock], const int32_t (&second)[M + 2][2][kBlock],
                                   uint8_t flip, uint8_t* to, int64_t stride) {
  constexpr int T = M + 2;
  const I32 top = splat(int32_t(flip * 0x01010101u)), bytes = splat(0x00ff00ff), lower = splat(0x0000ffff);
  for (int v = 0; v < kBlockVectors; v++) {
    I16 columns[T][T], rows[T], points[T];
    for (int i = 0; i < T; i++) {
      I16 pixels[8];
      for (int half = 0; half < M / 2; half++) {
        const I32 a = load(first[i][half] + v * kLanes) ^ top, b = load(second[i][half] + v * kLanes) ^ top;
        const U32 a_even = (U32)(a & bytes), b_even = (U32)(b & bytes);
        const U32 a_odd = ((U32)a >> 8) & (U32)bytes, b_odd = ((U32)b >> 8) & (U32)bytes;
        pixels[half * 4] = (I16)((a_even & (U32)lower) | (b_even << 16));
        pixels[half * 4 + 1] = (I16)((a_odd & (U32)lower) | (b_odd << 16));
        pixels[half * 4 + 2] = (I16)((a_even >> 16) | (b_even & ~(U32)lower));
        pixels[half * 4 + 3] = (I16)((a_odd >> 16) | (b_odd & ~(U32)lower));
      }
      transform_input<M>(pixels, 1, columns[i], 1);
    }
    for (int j = 0; j < T; j++) {
      for (int i = 0; i < T; i++) rows[i] = columns[i][j];
      transform_input<M>(rows, 1, points, 1);
      // Bytes are taken less 128. Of a constant, all that the transform leaves is at point (1, 1).
      if (j == 1) points[1] -= int16_t(M == 4 ? 36 * 128 : 4 * 128);
      for (int i = 0; i < T; i++) store(to + (i * T + j) * stride + v * kBytes, (I32)points[i]);
    }
  }
}

// The points of one output channel to its pixels, exact sums of (x - 128) * w.
template <int M>
JAXDML_INLINE void transform_back(const uint8_t* products, int64_t stride, U32 (&pixels)[M][M]) {
  constexpr int T = M + 2;
  U32 columns[M][T];
  for (int j = 0; j < T; j++) {
    U32 points[T], column[M];
    for (int i = 0; i < T; i++) points[i] = (U32)load(products + (i * T + j) * stride);
    transform_output<M>(points, 1, column, 1);
    for (int i = 0; i < M; i++) columns[i][j] = column[i];
  }
  constexpr int kExponents[4] = {2, 1, 0, 0};
  for (int i = 0; i < M; i++) {
    transform_output<M>(columns[i], 1, pixels[i], 1);
    for (int j = 0; j < M; j++) {
      if constexpr (M == 4)  // 36 * 2**(e_i + e_j) times the sum; 0x38E38E39 is the inverse of 9
        pixels[i][j] = (U32)((I32)(pixels[i][j] * 0x38E38E39u) >> (2 + kExponents[i] + kExponents[j]));
      else  // 4 times the sum
        pixels[i][j] = (U32)((I32)pixels[i][j] >> 2);
    }
  }
}

// m rows of pixels of a block's tiles to the rows of an output channel; `values` is [m][kBlock][m] of `size` bytes.
template <int M>
JAXDML_INLINE void store_block(const Convolution& one, const Run* runs, int64_t run_count, const uint8_t* values,
                               int64_t size, int64_t o) {
  for (int64_t r = 0; r < run_count; r++) {
    const Run& run = runs[r];
    uint8_t* y = y_channel(one, run.image, o);
    for (int i = 0; i < M && run.row * M + i < one.y_height; i++) {
      const int64_t column = run.column * M, count = at_most(run.count * M, one.y_width - column);
      copy_bytes(y + ((run.row * M + i) * one.y_width + column) * size, values + (i * kBlock + run.first) * M * size,
                 count * size);
    }
  }
}

// A row of M pixels of each tile, of which `bytes` holds, in each 128 bits, four bytes of each pixel, or of two twice.
template <int M>
JAXDML_INLINE void store_row_of_tiles(uint8_t* to, I32 bytes) {
  const I32 tiles = transpose_fours(bytes);
  if constexpr (M == 4) return store(to, tiles);
  for (int lane = 0; lane < kLanes; lane++) {
    const uint16_t two = uint16_t(tiles[lane]);
    memcpy(to + lane * 2, &two, 2);
  }
}

// R rows of products at one point.
template <int R>
JAXDML_INLINE void multiply_points(const Dword* rows, int64_t pairs, const uint8_t* lanes, uint8_t* to,
                                   int64_t stride) {
  I32 sums[R][kBlockVectors];
  multiply_rows<R, kBlockVectors, Words>(rows, pairs, lanes, pairs, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; v++) store(to + r * stride + v * kBytes, sums[r][v]);
}

template <int M>
static void convolve_winograd(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  constexpr int T = M + 2, kLine = kBlock * 4;
  const WinogradPlan plan = plan_winograd<M>(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  const int64_t pairs = channel_pairs(filter), outputs = group_outputs(filter);
  for (int64_t i = 0; i < count; i++) set_channels(problems[i], 128, plan.channels[i]);

  const auto item = [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t row_block = next_of(index, plan.row_blocks), block = next_of(index, plan.blocks);
    const int64_t group = next_of(index, filter.groups);
    const Convolution& one = problems[index.rest];
    const Channels& channels = plan.channels[index.rest];
    const uint8_t flip = flip_to_unsigned(one.x_zero_point.is_signed);
    uint8_t* points = plan.memory + worker * plan.memory_bytes;  // [points][pairs][kBlock]
    uint8_t* products = points + pairs * T * T * kLine;          // [points][kRows][kBlock]
    Run runs[kBlock];
    const int64_t run_count = runs_of(plan, block, runs);
    for (int64_t pair = 0; pair < pairs; pair++) {
      int32_t first[T][2][kBlock] = {}, second[T][2][kBlock] = {};
      const int64_t c = group * filter.channels + pair * 2;
      gather<M>(one, runs, run_count, c, first);
      if (pair * 2 + 1 < filter.channels) gather<M>(one, runs, run_count, c + 1, second);
      transform_block<M>(first, second, flip, points + pair * kLine, pairs * kLine);
    }
    // Where the filter has zero points, windows are added up by a row of ones, which is a filter like any other.
    I32 window_sums[M][M][kBlockVectors];
    if (channels.has_zero_points) {
      const int32_t ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
      int32_t of_ones[T * T];
      transform_whole_filter<M>(ones, of_ones);
      for (int i = 0; i < T * T; i++)
        for (int v = 0; v < kBlockVectors; v++) {
          I32 sum = {};
          for (int64_t pair = 0; pair < pairs; pair++) {
            const bool is_whole = pair * 2 + 1 < filter.channels;
            const I32 weights = splat(int32_t(uint32_t(of_ones[i] & 0xffff) * (is_whole ? 0x10001u : 1u)));
            sum = dot_words(sum, load(points + (i * pairs + pair) * kLine + v * kBytes), weights);
          }
          store(products + i * kLine + v * kBytes, sum);
        }
      for (int v = 0; v < kBlockVectors; v++) {
        U32 pixels[M][M];
        transform_back<M>(products + v * kBytes, kLine, pixels);
        for (int i = 0; i < M; i++)
          for (int j = 0; j < M; j++) window_sums[i][j][v] = (I32)pixels[i][j];
      }
    }
    const Dword* weights = packed_filter(one).winograd + group * T * T * outputs * pairs;
    const int64_t last = at_most(outputs, (row_block + 1) * plan.row_block);
    for (int64_t row = row_block * plan.row_block; row < last; row += kRows) {
      const int64_t rows = at_most(kRows, last - row);
      for (int i = 0; i < T * T; i++) {
        const Dword* from = weights + (row * T * T + i * rows) * pairs;
        uint8_t* to = products + i * kRows * kLine;
        with_constant<kRows>(rows, [&](auto row_count) {
          multiply_points<row_count>(from, pairs, points + i * pairs * kLine, to, kLine);
        });
      }
      for (int64_t r = 0; r < rows; r++) {
        const int64_t o = group * outputs + row + r;
        alignas(64) uint8_t values[M * kBlock * M * 4];
        const I32 offset = splat(channels.offsets[o]), zero_point = splat(channels.zero_points[o]);
        for (int v = 0; v < kBlockVectors; v++) {
          U32 pixels[M][M];
          transform_back<M>(products + r * kLine + v * kBytes, kRows * kLine, pixels);
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
        store_block<M>(one, runs, run_count, values, size_of(one.type), o);
      }
    }
  };
  parallel(pool, count * filter.groups * plan.blocks * plan.row_blocks, item);
}

}  // namespace jaxdml::JAXDML_ISA
