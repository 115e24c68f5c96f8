// Products of matrices: rows of A against panels of B, which lie packed.
//
// With a and b as uint8 and int8, and zero points to match, sum (a - za)(b - zb) is
//   sum a b  -  za (sum b - depth zb)  -  zb sum a   modulo 2**32,
// so that a whole column shares what the first correction needs, and rows are added up only where some zb is not 0.
//
// A packed matrix: its mark, int32 sums of each column, then panels of kTile columns, the last one narrower, of bytes
// [depth / kDepth][columns][kDepth] each.
#pragma once

#include "amx.h"
#include "epilogue.h"
#include "microkernel.h"
#include "packing.h"

namespace jaxdml::JAXDML_ISA {

JAXDML_INLINE int64_t padded_depth(int64_t depth) { return round_up(depth, kDepth); }
JAXDML_INLINE int64_t padded_columns(int64_t columns) { return round_up(columns, kLanes); }
constexpr int64_t kSumsAt = 64;
JAXDML_INLINE int64_t panels_at(int64_t columns) { return kSumsAt + round_up(padded_columns(columns) * 4, 64); }

JAXDML_INLINE int64_t end_of_panels(int64_t depth, int64_t columns) {
  return panels_at(columns) + padded_columns(columns) * padded_depth(depth);
}

// A part of a matrix takes fewer bytes than the whole, by what is added behind the panels: the size alone then tells
// whether a matrix is what was packed, or a device's part of it.
static int64_t matrix_bytes(int64_t depth, int64_t columns) {
  return end_of_panels(depth, columns) + 4 * (depth + columns);
}

static void pack_matrix(const Pool& pool, const uint8_t* b, bool is_signed, int64_t depth, int64_t columns,
                        uint8_t* packed) {
  const uint8_t flip = flip_to_signed(is_signed);
  memset(packed, 0, panels_at(columns));
  memset(packed + end_of_panels(depth, columns), 0, 4 * (depth + columns));
  memcpy(packed, &kMatrixMark, 4);
  constexpr int64_t kAtOnce = 8 * kTile;  // columns, so that runs of B's rows are read
  parallel(pool, ceil_div(columns, kAtOnce), [&](int64_t item, int64_t) {
    const int64_t last = at_most(padded_columns(columns), (item + 1) * kAtOnce);
    for (int64_t k = 0; k < depth; k += kDepth)
      for (int64_t first = item * kAtOnce; first < last; first += kTile) {
        const int64_t lanes = panel_lanes(columns, first);
        uint8_t* to = packed + panels_at(columns) + first * padded_depth(depth) + k * lanes;
        memset(to, 0, lanes * kDepth);
        const uint8_t* rows[kDepth];
        for (int i = 0; i < kDepth; i++) rows[i] = k + i < depth ? b + (k + i) * columns + first : nullptr;
        // A lane past the last column or row is 0 after the flip.
        each_sixteen(rows, at_most(lanes, columns - first), flip, [&](const uint8_t* const(&at)[kDepth], int64_t p) {
          const I32 weights = interleaved(at, flip);
          memcpy(to + p * kDepth, &weights, at_most(16, lanes - p) * kDepth);
        });
      }
    const I32 ones = splat(kDepth == 4 ? 0x01010101 : 0x00010001);
    for (int64_t first = item * kAtOnce; first < last; first += kLanes) {
      const int64_t panel = first / kTile * kTile, lanes = panel_lanes(columns, panel);
      const uint8_t* from = packed + panels_at(columns) + panel * padded_depth(depth) + (first - panel) * kDepth;
      I32 sum = {};
      for (int64_t k = 0; k < padded_depth(depth); k += kDepth)
        sum = SignedLanes::dot(sum, SignedLanes::lanes(from + k * lanes), ones);
      store(packed + kSumsAt + first * 4, sum);
    }
  });
}

// What a product's columns need after the sums.
struct Columns {
  int32_t* sums;  // of the column, less depth times its zero point
  int32_t* zero_points;
  float* scales;  // the multiplier where no row has a scale of its own, else b's scale
};

constexpr int64_t kFewestRows = 96;  // that items are made of for the sake of more threads; whole tiles of each kind
static_assert(kFewestRows % kRows == 0 && kFewestRows % kTileRows == 0);

struct MatmulPlan {
  bool is_copied;                   // rows of a are copied to a worker's memory
  int64_t rows;                     // that are multiplied at a time, by tiles if there are enough of them
  int64_t row_block, column_block;  // of one item
  int64_t row_blocks, column_blocks;
  Columns* columns;  // of each problem
  uint8_t* copies;   // of each worker
  int64_t copy_bytes;
};

template <bool kHasTiles>
static MatmulPlan plan(const Matmul* problems, int64_t count, int64_t threads, Arena& arena) {
  const Matmul& one = problems[0];
  const int64_t depth = padded_depth(one.depth), width = padded_columns(one.columns);
  MatmulPlan plan;
  plan.is_copied = sizeof(Cell) > 1 || one.a_zero_point.is_signed || depth != one.depth;
  // Panels that stay in the second cache while the rows go by; enough items for all workers.
  int64_t panels = at_most(at_least((256 << 10) / (at_least(depth, 1) * kTile), 1), ceil_div(width, kTile));
  plan.rows = kHasTiles && one.rows >= kTileRows && one.depth % kTileDepth == 0 ? kTileRows : kRows;
  plan.row_block = round_up(at_least(one.rows, 1), plan.rows);
  const auto items = [&] { return count * ceil_div(one.rows, plan.row_block) * ceil_div(width, panels * kTile); };
  const int64_t enough = threads > 1 ? 4 * threads : 1;
  while (items() < enough && plan.row_block > kFewestRows) plan.row_block = round_up(plan.row_block / 2, plan.rows);
  while (items() < enough && panels > 1) panels = (panels + 1) / 2;
  plan.column_block = panels * kTile;
  plan.row_blocks = ceil_div(one.rows, plan.row_block);
  plan.column_blocks = ceil_div(width, plan.column_block);
  plan.columns = take<Columns>(arena, count);
  for (int64_t i = 0; i < count; i++) {
    const Columns columns = {take<int32_t>(arena, width), take<int32_t>(arena, width), take<float>(arena, width)};
    if (arena.block) plan.columns[i] = columns;
  }
  plan.copy_bytes = plan.is_copied ? round_up(plan.rows * row_cells(depth) * int64_t(sizeof(Cell)), 64) : 0;
  plan.copies = take<uint8_t>(arena, plan.copy_bytes * threads);
  return plan;
}

template <bool kHasTiles>
static int64_t matmul_scratch(const Matmul* problems, int64_t count, int64_t threads) {
  Arena arena = {nullptr, 0};
  plan<kHasTiles>(problems, count, threads, arena);
  return arena.used;
}

JAXDML_INLINE bool has_row_scales(const Matmul& one) { return one.a_scale.step || one.y_scale.step; }

static bool set_columns(const Matmul& one, Columns& columns) {
  const int32_t* sums = reinterpret_cast<const int32_t*>(one.b + kSumsAt);
  bool has_zero_points = false;
  for (int64_t n = 0; n < padded_columns(one.columns); n++) {
    const bool is_one = n < one.columns;
    const int32_t zero_point = is_one ? as_weight(one.b_zero_point, n) : 0;
    has_zero_points |= zero_point != 0;
    columns.zero_points[n] = zero_point;
    columns.sums[n] = int32_t(uint32_t(sums[n]) - uint32_t(one.depth) * uint32_t(zero_point));
    const float scale = is_one && one.type != Type::kInt32 ? value(one.b_scale, n) : 0;
    columns.scales[n] =
        has_row_scales(one) || !is_one ? scale : (value(one.a_scale, 0) * scale) / value(one.y_scale, 0);
  }
  return has_zero_points;
}

constexpr int64_t kMostRows = kTileRows > kRows ? kTileRows : kRows;  // at a time

// What one row needs after its sums.
struct Row {
  int32_t zero_point, sum;
  float a_scale, y_scale;
  Output output;
};

// From the sums of one row with V vectors of columns, n the first, to the output's m-th row.
template <int V>
JAXDML_INLINE void store_row(const Matmul& one, const Columns& columns, bool has_zero_points, const Row& row,
                             const I32 (&sums)[V], int64_t m, int64_t n) {
  const int64_t count = at_most(V * kLanes, one.columns - n);
  const bool has_scales = has_row_scales(one);
  I32 totals[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) {
    const int64_t at = n + v * kLanes;
    totals[v] = subtract(sums[v], multiply(splat(row.zero_point), load(columns.sums + at)));
    if (has_zero_points) totals[v] = subtract(totals[v], multiply(splat(row.sum), load(columns.zero_points + at)));
  }
  alignas(64) uint8_t bytes[V * kLanes * 4];
  if (one.type == Type::kInt32) {
    for (int v = 0; v < V; v++) store(bytes + v * kBytes, totals[v]);
  } else {
    F32 values[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      F32 multiplier = load_floats(columns.scales + n + v * kLanes);
      if (has_scales) multiplier = (splat(row.a_scale) * multiplier) / splat(row.y_scale);
      values[v] = scaled(totals[v], multiplier);
    }
    store_saturated(bytes, values, row.output);
  }
  const int64_t size = size_of(one.type);
  copy_bytes(static_cast<uint8_t*>(one.y) + (m * one.columns + n) * size, bytes, count * size);
}

template <int R, int V>
static void matmul_tile(const Matmul& one, const Columns& columns, bool has_zero_points, const Row* rows,
                        const Dword* cells, int64_t stride, const uint8_t* panel, int64_t m, int64_t n) {
  I32 sums[R][V];
  multiply_rows<R, V, SignedLanes>(cells, stride, panel, padded_depth(one.depth) / kDepth, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) store_row(one, columns, has_zero_points, rows[r], sums[r], m + r, n);
}

// kTileRows rows with a whole panel, by AMX.
JAXDML_INLINE void matmul_by_tiles(const Matmul& one, const Columns& columns, bool has_zero_points, const Row* rows,
                                   const uint8_t* cells, int64_t stride, const uint8_t* panel, int64_t m, int64_t n) {
  alignas(64) int32_t sums[kTileRows][kTile];
  for (int64_t column = 0; column < kTile; column += kTileColumns)
    multiply_tiles(cells, stride, panel + column * kDepth, kTile * kDepth, one.depth, &sums[0][column], sizeof(sums[0]),
                   false);
  for (int64_t r = 0; r < kTileRows; r++) {
    I32 of_row[kVectors];
    for (int v = 0; v < kVectors; v++) of_row[v] = load(sums[r] + v * kLanes);
    store_row(one, columns, has_zero_points, rows[r], of_row, m + r, n);
  }
}

template <bool kHasTiles>
static void matmul(const Pool& pool, const Matmul* problems, int64_t count, uint8_t* scratch) {
  Arena arena = {scratch, 0};
  const MatmulPlan p = plan<kHasTiles>(problems, count, pool.threads, arena);
  bool has_zero_points = false;
  for (int64_t i = 0; i < count; i++) has_zero_points |= set_columns(problems[i], p.columns[i]);

  const auto item = [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t row_block = next_of(index, p.row_blocks), column_block = next_of(index, p.column_blocks);
    const Matmul& one = problems[index.rest];
    const Columns& columns = p.columns[index.rest];
    const int64_t depth = padded_depth(one.depth), width = padded_columns(one.columns);
    const uint8_t* panels = one.b + panels_at(one.columns);
    Cell* copies = reinterpret_cast<Cell*>(p.copies + worker * p.copy_bytes);
    const int64_t stride = p.is_copied ? row_cells(depth) : depth;
    const int64_t last_row = at_most(one.rows, (row_block + 1) * p.row_block);
    for (int64_t m = row_block * p.row_block; m < last_row; m += p.rows) {
      const int64_t row_count = at_most(p.rows, last_row - m);
      Row rows[kMostRows];
      const uint8_t* a = one.a + m * one.depth;
      for (int64_t r = 0; r < row_count; r++) {
        const uint8_t flip = flip_to_unsigned(one.a_zero_point.is_signed);
        rows[r].zero_point = as_activation(one.a_zero_point, m + r);
        uint32_t sum = 0;
        if (has_zero_points)
          for (int64_t k = 0; k < one.depth; k++) sum += uint8_t(a[r * one.depth + k] ^ flip);
        rows[r].sum = int32_t(sum);
        if (one.type != Type::kInt32) {
          rows[r].a_scale = value(one.a_scale, m + r);
          rows[r].y_scale = value(one.y_scale, m + r);
          rows[r].output = output_of(value(one.y_zero_point, m + r), one.type == Type::kInt8);
        }
        if (p.is_copied) {
          copy_cells(a + r * one.depth, flip, one.depth, copies + r * stride);
          for (int64_t k = one.depth; k < depth; k++) copies[r * stride + k] = 0;
        }
      }
      const uint8_t* cells = p.is_copied ? reinterpret_cast<const uint8_t*>(copies) : a;
      const int64_t last = at_most(width, (column_block + 1) * p.column_block);
      for (int64_t n = column_block * p.column_block; n < last; n += kTile) {
        const int64_t lanes = panel_lanes(one.columns, n);
        if constexpr (kHasTiles)
          if (row_count == kTileRows && lanes == kTile) {
            matmul_by_tiles(one, columns, has_zero_points, rows, cells, stride, panels + n * depth, m, n);
            continue;
          }
        with_constant<kVectors>(lanes / kLanes, [&](auto vectors) {
          for (int64_t r = 0; r < row_count; r += kRows)
            with_constant<kRows>(at_most(kRows, row_count - r), [&](auto some) {
              const auto* from = reinterpret_cast<const Dword*>(cells) + r * stride / kDepth;
              matmul_tile<some, vectors>(one, columns, has_zero_points, rows + r, from, stride / kDepth,
                                         panels + n * depth, m + r, n);
            });
        });
      }
    }
  };
  parallel(pool, count * p.row_blocks * p.column_blocks, [&](int64_t number, int64_t worker) {
    if constexpr (kHasTiles)
      if (p.rows == kTileRows) {
        const TileRegisters registers;
        return item(number, worker);
      }
    item(number, worker);
  });
}

}  // namespace jaxdml::JAXDML_ISA
