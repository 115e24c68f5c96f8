// Gathers tiles of an image, transforms them to Winograd points and back, and stores them; docs/winograd.md has the
// bounds that keep each step exact.
#pragma once

#include "channels.h"
#include "transforms.h"

namespace jaxdml::JAXDML_ISA {

constexpr int kBlockVectors = kBlock / kLanes;

// Tiles of m x m output pixels: rows and columns in an image, and the total over the batch.
struct Tiles {
  int64_t rows, columns, all;
};

// Tiles of a block that are adjacent in a row of one image.
struct Run {
  int64_t image, row, column;  // the first tile's place
  int64_t first, count;        // the first tile's index in the block; the number of tiles
};

JAXDML_INLINE int64_t runs_of(const Tiles& tiles, int64_t block, Run (&runs)[kBlock]) {
  int64_t count = 0, t = block * kBlock;
  const int64_t last = at_most(tiles.all, t + kBlock);
  while (t < last) {
    Index index = {t};
    Run& run = runs[count++];
    run.column = next_of(index, tiles.columns);
    run.row = next_of(index, tiles.rows);
    run.image = index.rest;
    run.first = t - block * kBlock;
    run.count = at_most(tiles.columns - run.column, last - t);
    t += run.count;
  }
  return count;
}

// The input of a block's tiles in one channel: for each row of a tile, dwords of columns 0 to 3, then of 4 to 7.
// Each run is copied with the length of a whole block, so there is room for a second block.
template <int M>
using Gathered = int32_t[M + 2][2][2 * kBlock];

// Gathers each tile's input in one channel.
template <int M>
JAXDML_INLINE void gather(const Convolution& one, const Run* runs, int64_t run_count, int64_t channel,
                          Gathered<M>& to) {
  const int64_t all_channels = one.filter.groups * one.filter.channels;
  const uint8_t padding = one.x_zero_point.at[0];
  uint8_t line[kBlock * M + 16];
  for (int64_t r = 0; r < run_count; r++) {
    const Run& run = runs[r];
    const uint8_t* x = one.x + (run.image * all_channels + channel) * one.height * one.width;
    const int64_t left = run.column * M - one.start[1], length = run.count * M + 2;
    const int64_t from = at_least(0, -left), until = at_most(length, one.width - left);
    const bool is_inside = from == 0 && left + int64_t(sizeof line) <= one.width;
    for (int i = 0; i < M + 2; i++) {
      const int64_t row = run.row * M + i - one.start[0];
      const uint8_t* seen = line;
      if (row >= 0 && row < one.height && is_inside) {
        seen = x + (row * one.width + left);
      } else {
        memset(line, padding, sizeof line);
        if (row >= 0 && row < one.height && from < until)
          copy_bytes(line + from, x + (row * one.width + left + from), until - from);
      }
      if (M == 4) {  // the dwords of adjacent tiles are adjacent
        memcpy(&to[i][0][run.first], seen, kBlock * 4);
        memcpy(&to[i][1][run.first], seen + 4, kBlock * 4);
      } else {
        for (int64_t t = 0; t < run.count; t++) memcpy(&to[i][0][run.first + t], seen + t * M, 4);
      }
    }
  }
}

// Transforms a channel pair of a block to points, which are `stride` bytes apart.
template <int M>
JAXDML_INLINE void transform_block(const Gathered<M>& first, const Gathered<M>& second, uint8_t flip, uint8_t* to,
                                   int64_t stride) {
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
      // This subtracts 128 from all pixels. The transform of the constant 128 is zero except at point (1, 1).
      if (j == 1) points[1] -= int16_t(M == 4 ? 36 * 128 : 4 * 128);
      for (int i = 0; i < T; i++) store(to + (i * T + j) * stride + v * kBytes, (I32)points[i]);
    }
  }
}

// Transforms the points of one output channel back to pixels: exact sums of (x - 128) * w.
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
      if constexpr (M == 4)  // 36 * 2**(e_i + e_j) times the sum; 0x38E38E39 is the inverse of 9 modulo 2**32
        pixels[i][j] = (U32)((I32)(pixels[i][j] * 0x38E38E39u) >> (2 + kExponents[i] + kExponents[j]));
      else  // 4 times the sum
        pixels[i][j] = (U32)((I32)pixels[i][j] >> 2);
    }
  }
}

// Stores the m pixel rows of a block's tiles in an output channel; `values` is [m][kBlock][m] of `size` bytes each.
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

// Stores one row of M pixels of each tile. Each 128 bits of `bytes` hold the rows of four tiles: the first pixel of all
// four, then the second pixel of all four, and so on. For M = 2, the two pixels appear twice.
template <int M>
JAXDML_INLINE void store_row_of_tiles(uint8_t* to, I32 bytes) {
  const I32 tiles = transpose_fours(bytes);
  if constexpr (M == 4) return store(to, tiles);
  for (int lane = 0; lane < kLanes; lane++) {
    const uint16_t two = uint16_t(tiles[lane]);
    memcpy(to + lane * 2, &two, 2);
  }
}

}  // namespace jaxdml::JAXDML_ISA
