// The product of a float matrix and a block-quantized matrix. docs/numerics_products.md has the rule, and block_shape.h
// has the layout.
//
// A pass rounds rows of `a` to int8 planes, and multiplies tiles of rows by panels. A block's accumulator starts at the
// zero point's term: -zero_point times the sum of a plane's integers in the block. This sum fits in int16.
#pragma once

#include "block_shape.h"
#include "common.h"

namespace jaxdml::JAXDML_ISA {

constexpr int64_t kRowsOfPass = 512;  // rows that a pass rounds into scratch memory
// The tiles that multiply one part of a panel before the next part, and the part's size in bytes. Each tile prefetches
// its share of the next part: the hardware prefetches from memory too late.
constexpr int kTilesTogether = 4;
constexpr int64_t kBytesOfPart = 16384;
constexpr int64_t kItemsOfThread = 4;  // of a product; several, so that threads finish at about the same time
// A tile of rows keeps sums in registers. With AVX512 these are int32 and float sums, at most 24 vectors; tiles are two
// or four vectors wide. With NEON they are int32 sums, at most 16 vectors; tiles are four vectors wide. With AVX2 they
// are int16 sums, at most 8 vectors; tiles are one or two vectors wide. Bytes need two vectors per sum, because their
// nibbles are multiplied separately.
constexpr int words_of(int bits) { return bits / 4; }
template <int kPlanes, int kBits>
constexpr int kMostTileRows = kBytes == 64   ? 12 / (kPlanes + 1)
                              : kBytes == 16 ? 4 / kPlanes
                                             : 8 / (kPlanes * words_of(kBits));
constexpr int vectors_of(int rows, int planes, int bits) {
  return kBytes == 16   ? 4
         : kBytes == 64 ? (rows * (planes + 1) <= 6 ? 4 : 2)
                        : (rows * planes * words_of(bits) <= 4 ? 2 : 1);
}

// Subtracted from 8-bit weights before multiplication if the instructions take only signed bytes.
template <int kBits>
constexpr int32_t kMiddle = kBits == 8 && kActivationsAreSigned ? 128 : 0;

// Rounded rows of `a`, tile by tile, in the order in which a product reads them: loads from lines that are a power of
// two apart are slow. The lines of a tile are the planes of all its rows. `stride` is the depth, padded with zeros.
struct RoundedRows {
  int8_t* planes;   // [stride / 4][lines][4]
  float* scales;    // [blocks][rows]
  int32_t* starts;  // [blocks][lines]: a plane's sums times -1; without zero points, times -8 or kMiddle - 128
  int64_t stride, blocks;
};

static int64_t take_rows(const BlockProduct& one, Arena& arena, RoundedRows& rows) {
  const int64_t blocks = blocks_of(one.shape), stride = blocks * one.shape.size;
  const int64_t count = at_most(one.rows, kRowsOfPass);
  rows = {take<int8_t>(arena, count * one.planes * stride), take<float>(arena, count * blocks),
          take<int32_t>(arena, count * one.planes * blocks), stride, blocks};
  return arena.used;
}

static int64_t multiply_blocks_scratch(const BlockProduct& one) {
  Arena arena = {};
  RoundedRows rows;
  return take_rows(one, arena, rows);
}

using LaneBytes = int8_t __attribute__((vector_size(kLanes)));

// Rounds one block of a row to planes. Only the first `count` of its `size` elements exist; the others are 0.
template <int kPlanes>
JAXDML_INLINE void round_block(const float* x, int64_t count, int64_t size, int32_t factor, int64_t lines, int8_t* to,
                               float* scale, int32_t* starts) {
  constexpr float kLargest = kPlanes == 1 ? 127.f : kPlanes == 2 ? 16319.f : 2088895.f;
  constexpr uint32_t kInfinity = 0x7f800000;
  float copy[kMostBlockSize];
  if (count < size) {
    memset(copy, 0, size_t(size) * sizeof(float));
    memcpy(copy, x, size_t(count) * sizeof(float));
    x = copy;
  }
  // The maximum of the bits as integers, because a maximum of floats loses NaN.
  I32 most = {};
  for (int64_t k = 0; k < size; k += kLanes) {
    const I32 bits = load(x + k) & splat(0x7fffffff);
    most = bits > most ? bits : most;
  }
  const int32_t high_bits = largest_of(most);
  float high;
  memcpy(&high, &high_bits, 4);
  const bool is_finite = uint32_t(high_bits) < kInfinity;
  if (!is_finite || !(high >= kLargest * 0x1p-126f)) {
    *scale = is_finite ? 0 : __builtin_nanf("");
    for (int64_t k = 0; k < size; k += 4) memset(to + k * lines, 0, 4 * kPlanes);
    for (int p = 0; p < kPlanes; p++) starts[p] = 0;
    return;
  }
  *scale = high / kLargest;
  const F32 inverse = splat(kLargest / high);
  I32 sums[kPlanes] = {};
  for (int64_t k = 0; k < size; k += kLanes) {
    I32 rest = rounded(load_floats(x + k) * inverse);
#pragma GCC unroll 4
    for (int p = kPlanes - 1; p >= 0; p--) {
      I32 plane = rest;
      if (p) {
        plane = ((rest + 64) & 127) - 64;
        rest = (rest - plane) >> 7;
      }
      sums[p] += plane;
      const LaneBytes bytes = __builtin_convertvector(plane, LaneBytes);
      for (int i = 0; i < kLanes; i += 4)
        memcpy(to + (k + i) * lines + p * 4, reinterpret_cast<const int8_t*>(&bytes) + i, 4);
    }
  }
  for (int p = 0; p < kPlanes; p++) starts[p] = sum_of(sums[p]) * factor;
}

// Rounds the row `row` of a tile that has `count` rows.
template <int kPlanes>
static void round_row(const BlockShape& shape, const float* a, int64_t row, int64_t count, const RoundedRows& to) {
  const int32_t factor = shape.has_zero_points ? -1 : shape.bits == 4 ? -8 : kMiddle<8> - 128;
  const int64_t lines = count * kPlanes, line = row * kPlanes;
  for (int64_t block = 0; block < to.blocks; block++) {
    const int64_t k = block * shape.size;
    round_block<kPlanes>(a + k, at_most(shape.size, shape.depth - k), shape.size, factor, lines,
                         to.planes + k * lines + line * 4, to.scales + block * count + row,
                         to.starts + block * lines + line);
  }
}

JAXDML_INLINE I32 low_nibbles(I32 x) { return x & splat(0x0f0f0f0f); }
JAXDML_INLINE I32 high_nibbles(I32 x) { return (I32)((U32)x >> 4) & splat(0x0f0f0f0f); }
JAXDML_INLINE I32 four_of(const int8_t* at) { return splat(*reinterpret_cast<const Dword*>(at)); }

#ifdef JAXDML_HAS_BYTE_PRODUCTS
// Multiplies a block of weights, which starts at `w`, by a block of kCount lines, which starts at `q`. start(r, v) is
// added to the sums of line r and vector v.
template <int kBits, int kCount, int kVectors, class Start>
JAXDML_INLINE void add_products(const uint8_t* w, int64_t unit, const int8_t* q, int64_t size, const Start& start,
                                I32 (&sums)[kCount][kVectors]) {
  constexpr int kStep = 32 / kBits, kUnitVectors = int(kUnitColumns) / kLanes;
#pragma GCC unroll 9
  for (int r = 0; r < kCount; r++)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) sums[r][v] = start(r, v);
#pragma GCC unroll 2
  for (int64_t k = 0; k < size; k += kStep, w += 64) {
    I32 packed[kVectors], at[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      packed[v] = load(w + v / kUnitVectors * unit + v % kUnitVectors * kBytes);
      at[v] = kBits == 4 ? low_nibbles(packed[v]) : packed[v] ^ splat(int32_t(kMiddle<kBits> * 0x01010101u));
    }
#pragma GCC unroll 9
    for (int r = 0; r < kCount; r++) {
      const I32 row = four_of(q + k * kCount + r * 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = dot_bytes(sums[r][v], at[v], row);
    }
    if (kBits == 8) continue;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) at[v] = high_nibbles(packed[v]);
#pragma GCC unroll 9
    for (int r = 0; r < kCount; r++) {
      const I32 row = four_of(q + (k + 4) * kCount + r * 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = dot_bytes(sums[r][v], at[v], row);
    }
  }
}
#else
constexpr int64_t kPart = 32;  // elements along the depth whose products can be added up in 16 bits

// Adds the products of up to kPart elements. 8-bit weights are multiplied one nibble at a time: a sum of two products
// of whole bytes may not fit in 16 bits.
template <int kBits, int kCount, int kVectors>
JAXDML_INLINE void add_part(const uint8_t* w, const int8_t* q, int64_t size, I32 (&sums)[kCount][kVectors]) {
  constexpr int kStep = 32 / kBits, kWords = words_of(kBits);
  static_assert(kVectors * kLanes <= kUnitColumns);
  I32 words[kWords][kCount][kVectors] = {};
  for (int64_t k = 0; k < size; k += kStep, w += 64, q += kStep * kCount) {
    I32 packed[kVectors], at[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) packed[v] = load(w + v * kBytes);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      for (int v = 0; v < kVectors; v++) at[v] = half ? high_nibbles(packed[v]) : low_nibbles(packed[v]);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; r++) {
        I32 row = four_of(q + ((kBits == 4 ? half : 0) * kCount + r) * 4);
        asm("" : "+x"(row));  // GCC would load all rows first, and spill sums
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; v++) {
          I32& sum = words[kBits == 4 ? 0 : half][r][v];
          sum = add_pairs(sum, at[v], row);
        }
        asm("" : "+x"(words[kBits == 4 ? 0 : half][r][0]));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      sums[r][v] = dot_words(sums[r][v], words[0][r][v], splat(0x00010001));
      if (kBits == 8) sums[r][v] = dot_words(sums[r][v], words[kWords - 1][r][v], splat(0x00100010));
    }
}
// The first part is outside the loop, and the starts are added last: in a block of one part, no sums but those of the
// part take registers.
template <int kBits, int kCount, int kVectors, class Start>
JAXDML_INLINE void add_products(const uint8_t* w, int64_t, const int8_t* q, int64_t size, const Start& start,
                                I32 (&sums)[kCount][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kCount; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) sums[r][v] = I32{};
  add_part<kBits>(w, q, at_most(kPart, size), sums);
  for (int64_t k = kPart; k < size; k += kPart)
    add_part<kBits>(w + k * kBits * 2, q + k * kCount, at_most(kPart, size - k), sums);
#pragma GCC unroll 8
  for (int r = 0; r < kCount; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) sums[r][v] = add(sums[r][v], start(r, v));
}
#endif

// Adds a block's products to the float sums of kRows rows and kVectors vectors of columns.
template <int kPlanes, int kBits, int kRows, int kVectors>
JAXDML_INLINE void multiply_block(const BlockShape& shape, const RoundedRows& rows, int64_t block,
                                  const uint8_t* record, int64_t column, F32 (&totals)[kRows][kVectors]) {
  constexpr int kLines = kRows * kPlanes;
  const int64_t unit = unit_bytes(shape);
  const uint8_t* const w = record + column / kUnitColumns * unit + column % kUnitColumns * 4;
  const uint8_t* const scales = record + weight_bytes(shape);
  const uint8_t* const zero_points = scales + kPanelColumns * shape.scale_bytes + column;
  const auto start = [&](int r, int v) {
    const I32 each = splat(rows.starts[block * kLines + r]);
    if (!shape.has_zero_points) return each;
    return multiply_small(from_unsigned_bytes(zero_points + v * kLanes) - splat(kMiddle<kBits>), each);
  };
  I32 sums[kLines][kVectors];
  add_products<kBits>(w, unit, rows.planes + block * shape.size * kLines, shape.size, start, sums);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) {
    const int64_t at = column + v * kLanes;
    const F32 scale = shape.scale_bytes == 2 ? load_halves(scales + at * 2) : load_floats(scales + at * 4);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      F32 product = floats(sums[r * kPlanes][v]);
#pragma GCC unroll 2
      for (int p = 1; p < kPlanes; p++) product = product * splat(128.f) + floats(sums[r * kPlanes + p][v]);
      const F32 scales = JAXDML_ISA::product(splat(rows.scales[block * kRows + r]), scale);
      totals[r][v] += scales * product;
    }
  }
}

// The blocks `begin` to `end` of the panel whose first column is `column`; `at` is the first block's record. For each
// block, `step` bytes are prefetched, from `ahead` on.
struct PanelPart {
  int64_t column, begin, end;
  const uint8_t *at, *ahead;
  int64_t step;
};

// Adds the products of kRows rows and a part of a panel to totals, and after the last part writes the rows to `y`.
template <int kRows, int kPlanes, int kBits>
static void multiply_tile(const BlockProduct& one, const RoundedRows& rows, const PanelPart& part, float* totals,
                          float* y) {
  constexpr int kVectors = vectors_of(kRows, kPlanes, kBits), kColumns = kVectors * kLanes;
  using Sums = F32[kRows][kVectors];
  Sums* const all = reinterpret_cast<Sums*>(totals);
  const BlockShape& shape = one.shape;
  const int64_t bytes = record_bytes(shape), columns = at_most(kPanelColumns, shape.columns - part.column);
  const uint8_t *record = part.at, *ahead = part.ahead;
  // Many prefetches at once wait for each other.
  constexpr int kColumnsOfStep = kColumns < kUnitColumns ? int(kUnitColumns) : kColumns;
  const int64_t step = ceil_div(part.step, kPanelColumns / kColumnsOfStep);
  const auto prefetch = [&] {
    for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(ahead + i, 0, 2);
    ahead += step;
  };
  if constexpr (kBytes == 64) {
    for (int64_t first = 0; first < columns; first += kColumns, record = part.at) {
      Sums& to = all[first / kColumns];
      Sums sums;  // in registers
      for (int r = 0; r < kRows; r++)
        for (int v = 0; v < kVectors; v++) sums[r][v] = to[r][v];
      for (int64_t block = part.begin; block < part.end; block++, record += bytes) {
        prefetch();
        multiply_block<kPlanes, kBits>(shape, rows, block, record, first, sums);
      }
      for (int r = 0; r < kRows; r++)
        for (int v = 0; v < kVectors; v++) to[r][v] = sums[r][v];
    }
  } else {
    for (int64_t block = part.begin; block < part.end; block++, record += bytes) {
      for (int i = 0; i < kPanelColumns / kColumns; i++) {
        if (i * kColumns % kColumnsOfStep == 0) prefetch();
        multiply_block<kPlanes, kBits>(shape, rows, block, record, i * kColumns, all[i]);
      }
    }
  }
  if (part.end < rows.blocks) return;
  for (int i = 0; i < kPanelColumns / kColumns; i++)
    for (int r = 0; r < kRows; r++)
      for (int v = 0; v < kVectors; v++) {
        const int64_t at = i * kColumns + v * kLanes, some = at_most(kLanes, columns - at) * int64_t(sizeof(float));
        if (some <= 0) continue;
        F32 total = all[i][r][v];
        float bias[kLanes] = {};
        if (one.bias) {
          copy_bytes(bias, one.bias + part.column + at, some);
          total += load_floats(bias);
        }
        copy_bytes(y + r * shape.columns + at, &total, some);
      }
}

template <int kMost, int kPlanes, int kBits>
static void multiply_rows_of(int64_t count, const BlockProduct& one, const RoundedRows& rows, const PanelPart& part,
                             float* totals, float* y) {
  if (count >= kMost) return multiply_tile<kMost, kPlanes, kBits>(one, rows, part, totals, y);
  if constexpr (kMost > 1) multiply_rows_of<kMost - 1, kPlanes, kBits>(count, one, rows, part, totals, y);
}

// Multiplies the `count` rows of up to kTilesTogether tiles by a panel; `y` is at the first row and column.
template <int kPlanes, int kBits, class Tiles>
static void multiply_panel(const BlockProduct& one, const Tiles& tile_at, int64_t first, int64_t count, int64_t panel,
                           bool prefetches, float* y) {
  constexpr int64_t kRows = kMostTileRows<kPlanes, kBits>;
  const int64_t blocks = blocks_of(one.shape), bytes = record_bytes(one.shape), tiles = ceil_div(count, kRows);
  const int64_t together = at_least(1, kBytesOfPart / bytes), step = prefetches ? ceil_div(bytes, tiles) : 0;
  const uint8_t* at = one.packed + kSealBytes + panel * blocks * bytes;
  alignas(64) float totals[kTilesTogether][kRows * kPanelColumns];
  for (int64_t tile = 0; tile < tiles; tile++)
    for (float& total : totals[tile]) total = -0.f;  // -0 + x is x, even if x is -0
  for (int64_t begin = 0; begin < blocks; begin += together, at += together * bytes) {
    const int64_t end = at_most(blocks, begin + together);
    for (int64_t tile = 0; tile < tiles; tile++) {
      const int64_t row = tile * kRows;
      const uint8_t* const ahead = at + kBytesOfPart + tile * step * (end - begin);
      multiply_rows_of<kRows, kPlanes, kBits>(at_most(kRows, count - row), one, tile_at(first + row),
                                              {panel * kPanelColumns, begin, end, at, ahead, step}, totals[tile],
                                              y + row * one.shape.columns);
    }
  }
}

template <int kPlanes, int kBits>
static void multiply_pass(const Pool& pool, const BlockProduct& one, int64_t first, int64_t count,
                          const RoundedRows& rows) {
  constexpr int kRows = kMostTileRows<kPlanes, kBits>;
  const BlockShape& shape = one.shape;
  const auto tile_at = [&](int64_t row) {
    return RoundedRows{rows.planes + row * kPlanes * rows.stride, rows.scales + row * rows.blocks,
                       rows.starts + row * kPlanes * rows.blocks, rows.stride, rows.blocks};
  };
  // Rounding a few rows takes less time than waking a thread.
  const int64_t together = 8, panels = panels_of(shape);
  parallel(pool, ceil_div(count, together), [&](int64_t item, int64_t) {
    const int64_t last = at_most(count, (item + 1) * together);
    for (int64_t row = item * together; row < last; row++) {
      const int64_t tile = row / kRows * kRows;
      round_row<kPlanes>(shape, one.a + (first + row) * shape.depth, row - tile, at_most(kRows, count - tile),
                         tile_at(tile));
    }
  });
  // An item is a run of adjacent panels, because each panel prefetches the first part of the next one. If there are few
  // panels, the rows of `a` are split among threads, too.
  const int64_t items = kItemsOfThread * pool.threads, run = at_least(1, panels / items), runs = ceil_div(panels, run);
  const int64_t parts = panels >= items ? 1 : at_most(ceil_div(items, panels), ceil_div(count, 16));
  const int64_t rows_of_part = round_up(ceil_div(count, parts), kRows);
  parallel(pool, runs * parts, [&](int64_t item, int64_t) {
    Index index = {item};
    const int64_t part = next_of(index, parts), first_panel = index.rest * run;
    const int64_t begin = part * rows_of_part, end = at_most(count, begin + rows_of_part);
    for (int64_t panel = first_panel; panel < at_most(panels, first_panel + run); panel++)
      for (int64_t row = begin; row < end; row += kTilesTogether * kRows)
        multiply_panel<kPlanes, kBits>(one, tile_at, row, at_most(kTilesTogether * kRows, end - row), panel,
                                       row == begin, one.y + (first + row) * shape.columns + panel * kPanelColumns);
  });
}

template <int kPlanes>
static void multiply_planes(const Pool& pool, const BlockProduct& one, const RoundedRows& rows) {
  for (int64_t first = 0; first < one.rows; first += kRowsOfPass) {
    const int64_t count = at_most(kRowsOfPass, one.rows - first);
    if (one.shape.bits == 4)
      multiply_pass<kPlanes, 4>(pool, one, first, count, rows);
    else
      multiply_pass<kPlanes, 8>(pool, one, first, count, rows);
  }
}

static void multiply_blocks(const Pool& pool, const BlockProduct& one, uint8_t* scratch) {
  Arena arena = {scratch, 0};
  RoundedRows rows;
  take_rows(one, arena, rows);
  if (one.planes == 1) return multiply_planes<1>(pool, one, rows);
  if (one.planes == 2) return multiply_planes<2>(pool, one, rows);
  multiply_planes<3>(pool, one, rows);
}

}  // namespace jaxdml::JAXDML_ISA
