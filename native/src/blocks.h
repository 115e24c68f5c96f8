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
// The prefetch distance of a panel's first tile of rows, in bytes: the hardware prefetches from memory too late.
constexpr int64_t kBytesAhead = 16384;
// A tile of rows keeps sums in registers. With AVX512 these are int32 and float sums, at most 24 vectors; tiles are two
// or four vectors wide. With NEON they are int32 sums, at most 16 vectors; tiles are four vectors wide. With AVX2 they
// are int16 sums, at most 8 vectors, or 12 for bytes and three planes: bytes need two vectors per sum, because their
// nibbles are multiplied separately.
template <int kPlanes, int kBits>
constexpr int kMostTileRows = kBytes == 64                 ? 12 / (kPlanes + 1)
                              : kBytes == 16 || kBits == 4 ? 4 / kPlanes
                              : kPlanes == 1               ? 2
                                                           : 1;
constexpr int vectors_of(int rows, int planes) {
  return kBytes == 16 || (kBytes == 64 && rows * (planes + 1) <= 6) ? 4 : 2;
}

// Subtracted from 8-bit weights before multiplication if the instructions take only signed bytes.
template <int kBits>
constexpr int32_t kMiddle = kBits == 8 && kActivationsAreSigned ? 128 : 0;

// Rounded rows of `a`. The planes of a row are contiguous, each padded with zeros after the depth.
struct RoundedRows {
  int8_t* planes;   // [rows][planes][stride]
  float* scales;    // [rows][blocks]
  int32_t* starts;  // [rows][planes][blocks]: a plane's sums times -1; without zero points, times -8 or kMiddle - 128
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
using LooseLaneBytes __attribute__((aligned(1), may_alias)) = LaneBytes;

// Rounds one block of a row to planes. Only the first `count` of its `size` elements exist; the others are 0.
template <int kPlanes>
JAXDML_INLINE void round_block(const float* x, int64_t count, int64_t size, int32_t factor, int8_t* to, int64_t stride,
                               float* scale, int32_t* starts, int64_t blocks) {
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
  int32_t high_bits = 0;
  for (int i = 0; i < kLanes; i++) high_bits = most[i] > high_bits ? most[i] : high_bits;
  float high;
  memcpy(&high, &high_bits, 4);
  const bool is_finite = uint32_t(high_bits) < kInfinity;
  if (!is_finite || !(high >= kLargest * 0x1p-126f)) {
    *scale = is_finite ? 0 : __builtin_nanf("");
    for (int p = 0; p < kPlanes; p++) {
      memset(to + p * stride, 0, size_t(size));
      starts[p * blocks] = 0;
    }
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
      *reinterpret_cast<LooseLaneBytes*>(to + p * stride + k) = __builtin_convertvector(plane, LaneBytes);
    }
  }
  for (int p = 0; p < kPlanes; p++) {
    int32_t sum = 0;
    for (int i = 0; i < kLanes; i++) sum += sums[p][i];
    starts[p * blocks] = sum * factor;
  }
}

template <int kPlanes>
static void round_rows(const BlockProduct& one, int64_t first, int64_t row, const RoundedRows& to) {
  const BlockShape& shape = one.shape;
  const int32_t factor = shape.has_zero_points ? -1 : shape.bits == 4 ? -8 : kMiddle<8> - 128;
  for (int64_t block = 0; block < to.blocks; block++) {
    const int64_t k = block * shape.size;
    round_block<kPlanes>(one.a + (first + row) * shape.depth + k, at_most(shape.size, shape.depth - k), shape.size,
                         factor, to.planes + row * kPlanes * to.stride + k, to.stride,
                         to.scales + row * to.blocks + block, to.starts + row * kPlanes * to.blocks + block, to.blocks);
  }
}

JAXDML_INLINE I32 low_nibbles(I32 x) { return x & splat(0x0f0f0f0f); }
JAXDML_INLINE I32 high_nibbles(I32 x) { return (I32)((U32)x >> 4) & splat(0x0f0f0f0f); }
JAXDML_INLINE I32 four_of(const int8_t* at) { return splat(*reinterpret_cast<const Dword*>(at)); }

#ifdef JAXDML_HAS_BYTE_PRODUCTS
// Multiplies a block of weights, which starts at `w`, by kCount planes of rows, which are `stride` apart.
template <int kCount, int kVectors, int kBits>
JAXDML_INLINE void add_products(const uint8_t* w, int64_t unit, const int8_t* q, int64_t stride, int64_t size,
                                I32 (&sums)[kCount][kVectors]) {
  constexpr int kStep = 32 / kBits, kUnitVectors = int(kUnitColumns) / kLanes;
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
      const I32 row = four_of(q + r * stride + k);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = dot_bytes(sums[r][v], at[v], row);
    }
    if (kBits == 8) continue;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) at[v] = high_nibbles(packed[v]);
#pragma GCC unroll 9
    for (int r = 0; r < kCount; r++) {
      const I32 row = four_of(q + r * stride + k + 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = dot_bytes(sums[r][v], at[v], row);
    }
  }
}
#else
// 8-bit weights are multiplied one nibble at a time: a sum of two products of whole bytes may not fit in 16 bits.
template <int kCount, int kVectors, int kBits>
JAXDML_INLINE void add_products(const uint8_t* w, int64_t unit, const int8_t* q, int64_t stride, int64_t size,
                                I32 (&sums)[kCount][kVectors]) {
  constexpr int kStep = 32 / kBits, kSums = kBits == 4 ? 1 : 2;
  constexpr int64_t kPart = 32;  // elements along the depth whose products can be added up in 16 bits
  static_assert(kVectors * kLanes == kUnitColumns);
  (void)unit;
  for (int64_t begin = 0; begin < size; begin += kPart) {
    const int64_t end = at_most(begin + kPart, size);
    I32 words[kSums][kCount][kVectors] = {};
    for (int64_t k = begin; k < end; k += kStep, w += 64) {
      I32 packed[kVectors], at[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++) packed[v] = load(w + v * kBytes);
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        for (int v = 0; v < kVectors; v++) at[v] = half ? high_nibbles(packed[v]) : low_nibbles(packed[v]);
#pragma GCC unroll 8
        for (int r = 0; r < kCount; r++) {
          I32 row = four_of(q + r * stride + k + (kBits == 4 ? half * 4 : 0));
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
#pragma GCC unroll 9
    for (int r = 0; r < kCount; r++)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++) {
        sums[r][v] = dot_words(sums[r][v], words[0][r][v], splat(0x00010001));
        if (kBits == 8) sums[r][v] = dot_words(sums[r][v], words[kSums - 1][r][v], splat(0x00100010));
      }
  }
}
#endif

// Adds a block's products to the float sums of kRows rows and kVectors vectors of columns.
template <int kRows, int kVectors, int kPlanes, int kBits>
JAXDML_INLINE void multiply_block(const BlockShape& shape, const RoundedRows& rows, int64_t block,
                                  const uint8_t* record, int64_t column, F32 (&totals)[kRows][kVectors]) {
  constexpr int kCount = kRows * kPlanes;
  const int64_t unit = unit_bytes(shape);
  const uint8_t* const w = record + column / kUnitColumns * unit;
  const uint8_t* const scales = record + weight_bytes(shape);
  const uint8_t* const zero_points = scales + kPanelColumns * shape.scale_bytes + column;
  I32 sums[kCount][kVectors];
#pragma GCC unroll 9
  for (int r = 0; r < kCount; r++) {
    const I32 start = splat(rows.starts[r * rows.blocks + block]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) sums[r][v] = start;
  }
  if (shape.has_zero_points)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const I32 zero_point = from_unsigned_bytes(zero_points + v * kLanes) - splat(kMiddle<kBits>);
#pragma GCC unroll 9
      for (int r = 0; r < kCount; r++) sums[r][v] = multiply_small(zero_point, sums[r][v]);
    }
  add_products<kCount, kVectors, kBits>(w, unit, rows.planes + block * shape.size, rows.stride, shape.size, sums);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) {
    const int64_t at = column + v * kLanes;
    const F32 scale = shape.scale_bytes == 2 ? load_halves(scales + at * 2) : load_floats(scales + at * 4);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) {
      F32 product = floats(sums[r * kPlanes][v]);
#pragma GCC unroll 2
      for (int p = 1; p < kPlanes; p++) product = product * splat(128.f) + floats(sums[r * kPlanes + p][v]);
      const F32 scales = JAXDML_ISA::product(splat(rows.scales[r * rows.blocks + block]), scale);
      totals[r][v] += scales * product;
    }
  }
}

// Multiplies kRows rows by a panel of columns: with AVX512 tile by tile, otherwise record by record.
template <int kRows, int kPlanes, int kBits>
static void multiply_tile(const BlockProduct& one, const RoundedRows& rows, const uint8_t* panel, bool is_first,
                          int64_t column, float* y) {
  constexpr int kVectors = vectors_of(kRows, kPlanes), kColumns = kVectors * kLanes;
  constexpr int kTogether = kBytes == 64 ? 1 : int(kPanelColumns) / kColumns;
  const BlockShape& shape = one.shape;
  const int64_t bytes = record_bytes(shape), columns = at_most(kPanelColumns, shape.columns - column);
  for (int64_t first = 0; first < columns; first += kTogether * kColumns) {
    F32 totals[kTogether][kRows][kVectors];
    for (auto& each : totals)
      for (auto& row : each)
        for (F32& total : row) total = splat(-0.0f);  // -0 + x is x, even if x is -0
    const uint8_t* record = panel;
    for (int64_t block = 0; block < rows.blocks; block++, record += bytes) {
      if (is_first && !first)
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(record + kBytesAhead + i, 0, 2);
      for (int i = 0; i < kTogether; i++)
        multiply_block<kRows, kVectors, kPlanes, kBits>(shape, rows, block, record, first + i * kColumns, totals[i]);
    }
    for (int i = 0; i < kTogether; i++)
      for (int r = 0; r < kRows; r++)
        for (int v = 0; v < kVectors; v++) {
          const int64_t at = first + i * kColumns + v * kLanes, count = at_most(kLanes, columns - at);
          if (count <= 0) continue;
          float bias[kLanes] = {};
          if (one.bias) {
            copy_bytes(bias, one.bias + column + at, count * int64_t(sizeof(float)));
            totals[i][r][v] += load_floats(bias);
          }
          copy_bytes(y + r * shape.columns + at, &totals[i][r][v], count * int64_t(sizeof(float)));
        }
  }
}

template <int kMost, int kPlanes, int kBits>
static void multiply_rows_of(int64_t count, const BlockProduct& one, const RoundedRows& rows, const uint8_t* panel,
                             bool is_first, int64_t column, float* y) {
  if (count >= kMost) return multiply_tile<kMost, kPlanes, kBits>(one, rows, panel, is_first, column, y);
  if constexpr (kMost > 1) multiply_rows_of<kMost - 1, kPlanes, kBits>(count, one, rows, panel, is_first, column, y);
}

template <int kPlanes, int kBits>
static void multiply_pass(const Pool& pool, const BlockProduct& one, int64_t first, int64_t count,
                          const RoundedRows& rows) {
  constexpr int kRows = kMostTileRows<kPlanes, kBits>;
  const BlockShape& shape = one.shape;
  // Rounding a few rows takes less time than waking a thread.
  const int64_t together = count < 8 ? count : 8, panels = panels_of(shape);
  parallel(pool, ceil_div(count, together), [&](int64_t item, int64_t) {
    const int64_t last = at_most(count, (item + 1) * together);
    for (int64_t row = item * together; row < last; row++) round_rows<kPlanes>(one, first, row, rows);
  });
  // If there are few panels, the rows of `a` are split among threads, too.
  const int64_t parts =
      panels >= 4 * pool.threads ? 1 : at_most(ceil_div(4 * pool.threads, panels), ceil_div(count, 16));
  const int64_t rows_of_part = round_up(ceil_div(count, parts), kRows);
  parallel(pool, panels * parts, [&](int64_t item, int64_t) {
    Index index = {item};
    const int64_t part = next_of(index, parts), panel = index.rest, column = panel * kPanelColumns;
    const uint8_t* const panel_at = one.packed + kSealBytes + panel * rows.blocks * record_bytes(shape);
    const int64_t begin = part * rows_of_part, end = at_most(count, begin + rows_of_part);
    for (int64_t row = begin; row < end; row += kRows) {
      const RoundedRows here = {rows.planes + row * kPlanes * rows.stride, rows.scales + row * rows.blocks,
                                rows.starts + row * kPlanes * rows.blocks, rows.stride, rows.blocks};
      multiply_rows_of<kRows, kPlanes, kBits>(at_most(kRows, end - row), one, here, panel_at, row == begin, column,
                                              one.y + (first + row) * shape.columns + column);
    }
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
