// Products of matrices: rows of A against panels of B, which lie packed.
//
// With a and b as uint8 and int8, and zero points to match, sum (a - za)(b - zb) is
//   sum a b  -  za (sum b - depth zb)  -  zb sum a   modulo 2**32,
// so that a whole column shares what the first correction needs, and rows are added up only where some zb is not 0.
//
// A packed matrix: its mark, int32 sums of each column, then panels of kTile columns, the last one narrower, of bytes
// [depth / kDepth][columns][kDepth] each.
#pragma once

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

struct MatmulPlan {
  bool is_copied;                   // rows of a are copied to a worker's memory
  int64_t row_block, column_block;  // of one item
  int64_t row_blocks, column_blocks;
  Columns* columns;  // of each problem
  uint8_t* copies;   // of each worker
  int64_t copy_bytes;
};

static MatmulPlan plan(const Matmul* problems, int64_t count, int64_t threads, Arena& arena) {
  const Matmul& one = problems[0];
  const int64_t depth = padded_depth(one.depth), width = padded_columns(one.columns);
  MatmulPlan plan;
  plan.is_copied = sizeof(Cell) > 1 || one.a_zero_point.is_signed || depth != one.depth;
  // Panels that stay in the second cache while the rows go by; enough items for all workers.
  int64_t panels = at_most(at_least((256 << 10) / (at_least(depth, 1) * kTile), 1), ceil_div(width, kTile));
  plan.row_block = round_up(at_least(one.rows, 1), kRows);
  const auto items = [&] { return count * ceil_div(one.rows, plan.row_block) * ceil_div(width, panels * kTile); };
  const int64_t enough = threads > 1 ? 4 * threads : 1;
  while (items() < enough && plan.row_block > 16 * kRows) plan.row_block = round_up(plan.row_block / 2, kRows);
  while (items() < enough && panels > 1) panels = (panels + 1) / 2;
  plan.column_block = panels * kTile;
  plan.row_blocks = ceil_div(one.rows, plan.row_block);
  plan.column_blocks = ceil_div(width, plan.column_block);
  plan.columns = take<Columns>(arena, count);
  for (int64_t i = 0; i < count; i++) {
    const Columns columns = {take<int32_t>(arena, width), take<int32_t>(arena, width), take<float>(arena, width)};
    if (arena.block) plan.columns[i] = columns;
  }
  plan.copy_bytes = plan.is_copied ? round_up(kRows * row_cells(depth) * int64_t(sizeof(Cell)), 64) : 0;
  plan.copies = take<uint8_t>(arena, plan.copy_bytes * threads);
  return plan;
}

static int64_t matmul_scratch(const Matmul* problems, int64_t count, int64_t threads) {
  Arena arena = {nullptr, 0};
  plan(problems, count, threads, arena);
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

// What one row needs after its sums.
struct Row {
  int32_t zero_point, sum;
  float a_scale, y_scale;
  Output output;
};

template <int R, int V>
static void matmul_tile(const Matmul& one, const Columns& columns, bool has_zero_points, const Row* rows,
                        const Dword* cells, int64_t stride, const uint8_t* panel, int64_t m, int64_t n) {
  I32 sums[R][V];
  multiply_rows<R, V, SignedLanes>(cells, stride, panel, padded_depth(one.depth) / kDepth, sums);
  const int64_t count = at_most(V * kLanes, one.columns - n);
  const bool has_scales = has_row_scales(one);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const Row& row = rows[r];
    I32 totals[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const int64_t at = n + v * kLanes;
      totals[v] = subtract(sums[r][v], multiply(splat(row.zero_point), load(columns.sums + at)));
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
    copy_bytes(static_cast<uint8_t*>(one.y) + ((m + r) * one.columns + n) * size, bytes, count * size);
  }
}

static void matmul(const Pool& pool, const Matmul* problems, int64_t count, uint8_t* scratch) {
  Arena arena = {scratch, 0};
  const MatmulPlan p = plan(problems, count, pool.threads, arena);
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
    for (int64_t m = row_block * p.row_block; m < last_row; m += kRows) {
      const int64_t tile_rows = at_most(kRows, last_row - m);
      Row rows[kRows];
      const uint8_t* a = one.a + m * one.depth;
      for (int64_t r = 0; r < tile_rows; r++) {
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
      const Dword* cells = reinterpret_cast<const Dword*>(p.is_copied ? reinterpret_cast<const uint8_t*>(copies) : a);
      const int64_t last = at_most(width, (column_block + 1) * p.column_block);
      for (int64_t n = column_block * p.column_block; n < last; n += kTile) {
        with_constant<kVectors>(panel_lanes(one.columns, n) / kLanes, [&](auto vectors) {
          with_constant<kRows>(tile_rows, [&](auto row_count) {
            matmul_tile<row_count, vectors>(one, columns, has_zero_points, rows, cells, stride / kDepth,
                                            panels + n * depth, m, n);
          });
        });
      }
    }
  };
  parallel(pool, count * p.row_blocks * p.column_blocks, item);
}

}  // namespace jaxdml::JAXDML_ISA
