// Matrix products: multiplies rows of A by panels of B.
//
// Operands and zero points are first shifted to the types that the kernel multiplies. Then sum (a - za)(b - zb) is
//   sum a b  -  za (sum b - depth zb)  -  zb sum a   modulo 2**32,
// so the correction for za needs one constant per column, and rows of a are summed only if some zb is not 0.
//
// In a large product of 16-bit words, Strassen's method multiplies two full row tiles by two panels at a time.
//
// If B is raw (not packed), each item packs its panels of B into the worker's scratch. The item multiplies the panels
// while they are in the cache. For very few rows of A, the item does not pack B; see few_rows.h.
#pragma once

#include "amx.h"
#include "epilogue.h"
#include "few_rows.h"
#include "microkernel.h"
#include "pack_matrix.h"
#include "strassen.h"

namespace jaxdml::JAXDML_ISA {

// The epilogue's parameters of each column.
struct Columns {
  int32_t* sums;  // the sum of the column, minus depth times the column's zero point
  int32_t* zero_points;
  int32_t* biases;      // 0 in products in floats
  float* float_biases;  // in products in floats
  float* scales;        // b's scale if rows have scales of their own, otherwise the sums' multiplier
};

JAXDML_INLINE Columns take_columns(Type type, int64_t width, Arena& arena) {
  return {take<int32_t>(arena, width), take<int32_t>(arena, width), take<int32_t>(arena, width),
          take<float>(arena, type == Type::kFloat32 ? width : 0), take<float>(arena, width)};
}

constexpr int64_t kRowsOfOne = 96;  // an item with more rows may be halved to occupy more threads
// The maximum number of rows of a product with a raw matrix. Each item packs its panels of the matrix, and multiplies
// them from the cache. With more rows, AVX2 is faster if the matrix is packed first.
constexpr int64_t kMostRawRows = 192;
static_assert(kMostRawRows % kTwoTiles == 0 && kMostRawRows % kTileRows == 0);

struct MatmulPlan {
  bool is_copied;                   // workers convert rows of a to cells in scratch
  bool is_by_quarters;              // Strassen's method is used
  bool is_unpacked;                 // items multiply a raw b without packing it
  int64_t rows;                     // rows multiplied at a time
  int64_t row_block, column_block;  // rows and columns of one item
  int64_t row_blocks, column_blocks;
  Columns* columns;  // one for each problem
  Halves halves;
  int64_t pair_bytes;  // bytes of the panel factors of two panels
  // Scratch of each worker: rows of a; and for a raw b, the packed panels of an item, or the sums if is_unpacked.
  uint8_t *copies, *packed;
  // Scratch of each worker, for Strassen's method: the row factors of two row tiles, and the panel factors of an item's
  // panels. strassen.h defines these factors.
  uint8_t *row_factors, *panel_factors;
  int64_t copy_bytes, packed_bytes, row_factor_bytes, panel_factor_bytes;
};

template <bool kHasTiles>
static MatmulPlan plan_by(bool is_by_quarters, const Matmul* problems, int64_t count, int64_t threads, Arena& arena) {
  const Matmul& one = problems[0];
  const int64_t depth = padded_depth(one.depth), width = padded_columns(one.columns);
  MatmulPlan plan = {};
  plan.is_copied = sizeof(Cell) > 1 || flip_to_activation(one.a_zero_point.is_signed) || depth != one.depth;
  plan.is_by_quarters = is_by_quarters;
  plan.is_unpacked = one.is_raw && one.rows <= kFewRows;
  // An item's panels stay in the second-level cache. Items shrink if there are too few for the workers.
  const int64_t least_panels = plan.is_by_quarters ? 2 : 1;
  const int64_t panel_bytes = plan.is_unpacked ? 2 * (kFewRows + 1) * kTile * 4 : at_least(depth, 1) * kTile;
  const int64_t fitting = (256 << 10) / panel_bytes / least_panels * least_panels;
  int64_t panels = at_most(at_least(fitting, least_panels), ceil_div(width, kTile));
  plan.rows = plan.is_by_quarters ? kTwoTiles : kRows;
  if (kHasTiles && one.rows >= kTileRows && one.depth % kTileDepth == 0) plan.rows = kTileRows;
  plan.row_block = round_up(at_least(one.rows, 1), plan.rows);
  const auto items = [&] { return count * ceil_div(one.rows, plan.row_block) * ceil_div(width, panels * kTile); };
  const int64_t enough = threads > 1 ? 4 * threads : 1;
  // A raw matrix has one block of rows, so that no panel is packed twice.
  while (!one.is_raw && items() < enough && plan.row_block > kRowsOfOne)
    plan.row_block = round_up(plan.row_block / 2, plan.rows);
  while (items() < enough && panels > least_panels) panels = round_up((panels + 1) / 2, least_panels);
  plan.column_block = panels * kTile;
  plan.row_blocks = ceil_div(one.rows, plan.row_block);
  plan.column_blocks = ceil_div(width, plan.column_block);
  plan.columns = take<Columns>(arena, count);
  for (int64_t i = 0; i < count; i++) {
    const Columns columns = take_columns(one.type, width, arena);
    if (arena.block) plan.columns[i] = columns;
  }
  plan.copy_bytes = plan.is_copied ? round_up(plan.rows * row_cells(depth) * int64_t(sizeof(Cell)), 64) : 0;
  plan.packed_bytes = one.is_raw ? round_up(at_most(plan.column_block, width) * depth, 64) : 0;
  if (plan.is_unpacked) plan.packed_bytes = 2 * unpacked_bytes(one.rows, at_most(plan.column_block, width));
  plan.copies = take<uint8_t>(arena, plan.copy_bytes * threads);
  plan.packed = take<uint8_t>(arena, plan.packed_bytes * threads);
  if (plan.is_by_quarters) {
    plan.halves = halves_of(one.depth);
    plan.pair_bytes = kPanelFactors * plan.halves.panel_bytes;
    plan.row_factor_bytes = round_up(kRowFactors * plan.halves.row_bytes, 64);
    plan.panel_factor_bytes = panels / 2 * plan.pair_bytes;
    plan.row_factors = take<uint8_t>(arena, plan.row_factor_bytes * threads);
    plan.panel_factors = take<uint8_t>(arena, plan.panel_factor_bytes * threads);
  }
  return plan;
}

template <bool kHasTiles>
static MatmulPlan plan(const Matmul* problems, int64_t count, int64_t threads, Arena& arena) {
  const Matmul& one = problems[0];
  if (is_worth_quarters(one)) {
    // Each thread has scratch for factors. Strassen's method is used if its scratch is at most 4 times as large as the
    // operands and results. A and B count once, because problems may share operands.
    Arena counted = {nullptr, 0};
    plan_by<kHasTiles>(true, problems, count, threads, counted);
    const int64_t operands = (one.rows + one.columns) * one.depth;
    if (counted.used <= 4 * (operands + count * one.rows * one.columns * size_of(one.type)))
      return plan_by<kHasTiles>(true, problems, count, threads, arena);
  }
  return plan_by<kHasTiles>(false, problems, count, threads, arena);
}

template <bool kHasTiles>
static int64_t matmul_scratch(const Matmul* problems, int64_t count, int64_t threads) {
  Arena arena = {nullptr, 0};
  plan<kHasTiles>(problems, count, threads, arena);
  return arena.used;
}

JAXDML_INLINE bool has_row_scales(const Matmul& one) { return one.a_scale.step || one.y_scale.step; }

JAXDML_INLINE bool has_zero_points(const ZeroPoints& b_zero_points, int64_t columns) {
  bool has = false;
  for (int64_t n = 0; n < (b_zero_points.step ? columns : 1); n++) has |= as_weight(b_zero_points, n) != 0;
  return has;
}

// Sets the parameters of columns `first` to `last`. Compilers vectorize the loops because each loop writes one array.
static void set_columns(const Matmul& one, const int32_t* sums, int64_t first, int64_t last, const Columns& columns) {
  const int64_t end = at_most(last, one.columns);
  const ZeroPoints of_b = one.b_zero_point;
  int32_t* const zero_points = columns.zero_points;
  for (int64_t n = first; n < end; n++) zero_points[n] = as_weight(of_b, n);
  for (int64_t n = end; n < last; n++) zero_points[n] = 0;
  int32_t* const biases = columns.biases;
  const bool is_float = one.type == Type::kFloat32;
  for (int64_t n = first; n < end; n++) biases[n] = one.bias && !is_float ? one.bias[n] : 0;
  for (int64_t n = end; n < last; n++) biases[n] = 0;
  float* const float_biases = columns.float_biases;
  if (is_float) {
    for (int64_t n = first; n < last; n++) float_biases[n] = -0.0f;  // adding -0 changes no float
    if (one.bias) memcpy(float_biases + first, one.bias + first, size_t(at_least(end - first, 0) * 4));
  }
  const uint32_t depth = uint32_t(one.depth);
  int32_t* const to = columns.sums;
  for (int64_t n = first; n < last; n++) to[n] = int32_t(uint32_t(sums[n - first]) - depth * uint32_t(zero_points[n]));
  if (one.type == Type::kInt32) return;
  const Scales b_scale = one.b_scale;
  float* const scales = columns.scales;
  for (int64_t n = first; n < end; n++) scales[n] = value(b_scale, n);
  for (int64_t n = end; n < last; n++) scales[n] = 0;
  if (has_row_scales(one)) return;
  const float a_scale = value(one.a_scale, 0), y_scale = value(one.y_scale, 0);
  for (int64_t n = first; n < end; n++) scales[n] = product(a_scale, scales[n]);
  if (one.type == Type::kFloat32) return;
  for (int64_t n = first; n < end; n++) scales[n] = scales[n] / y_scale;
}

constexpr int64_t kMostRows = kTileRows > kTwoTiles ? kTileRows : kTwoTiles;  // the limit of MatmulPlan::rows

// The epilogue's parameters of one row.
struct Row {
  int32_t zero_point, sum;
  float a_scale, y_scale;
  Output output;
};

// The epilogue of row m: converts and stores the sums of V vectors of columns, beginning at column n.
template <int V>
JAXDML_INLINE void store_row(const Matmul& one, const Columns& columns, bool has_zero_points, const Row& row,
                             const I32 (&sums)[V], int64_t m, int64_t n) {
  const int64_t count = at_most(V * kLanes, one.columns - n);
  const bool has_scales = has_row_scales(one);
  I32 totals[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) {
    const int64_t at = n + v * kLanes;
    totals[v] = add(sums[v], load(columns.biases + at));
    totals[v] = subtract(totals[v], multiply(splat(row.zero_point), load(columns.sums + at)));
    if (has_zero_points) totals[v] = subtract(totals[v], multiply(splat(row.sum), load(columns.zero_points + at)));
  }
  alignas(64) uint8_t bytes[V * kLanes * 4];
  if (one.type == Type::kInt32) {
    for (int v = 0; v < V; v++) store(bytes + v * kBytes, totals[v]);
  } else if (one.type == Type::kFloat32) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const int64_t at = n + v * kLanes;
      F32 multiplier = load_floats(columns.scales + at);
      if (has_scales) multiplier = product(splat(row.a_scale), multiplier);
      store(bytes + v * kBytes, (I32)(scaled(totals[v], multiplier) + load_floats(columns.float_biases + at)));
    }
  } else {
    F32 values[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      F32 multiplier = load_floats(columns.scales + n + v * kLanes);
      if (has_scales) multiplier = product(splat(row.a_scale), multiplier) / splat(row.y_scale);
      values[v] = scaled(totals[v], multiplier);
    }
    store_saturated(bytes, values, row.output);
  }
  const int64_t size = size_of(one.type);
  copy_bytes(static_cast<uint8_t*>(one.y) + (m * one.columns + n) * size, bytes, count * size);
}

// Subtracts the zero point from a row of cells. Cells have 16 bits here, which suffice for the differences. Then no
// column sums are needed.
JAXDML_INLINE void center(Cell* cells, int64_t depth, Row& row) {
  for (int64_t k = 0; k < depth; k++) cells[k] = Cell(cells[k] - row.zero_point);
  row.sum = int32_t(uint32_t(row.sum) - uint32_t(depth) * uint32_t(row.zero_point));
  row.zero_point = 0;
}

// Multiplies rows by columns `first` to `last` of a raw b, which is not packed.
static void matmul_unpacked(const Matmul& one, const Columns& columns, bool has_zero_points, const Row* rows,
                            const Cell* cells, int64_t stride, int64_t first, int64_t last, uint8_t* scratch) {
  const int64_t bytes = unpacked_bytes(one.rows, last - first), width = bytes / 4 / (one.rows + 1);
  auto* const sums = reinterpret_cast<int32_t*>(scratch + bytes);
  bool has_a_zero_points = false;
  for (int64_t r = 0; r < one.rows; r++) has_a_zero_points |= rows[r].zero_point != 0;
  multiply_few_rows(cells, stride, one.rows, one.b, one.depth, one.columns, first, last,
                    flip_to_signed(one.b_zero_point.is_signed), has_a_zero_points, scratch, sums);
  set_columns(one, sums + one.rows * width, first, last, columns);
  for (int64_t r = 0; r < one.rows; r++)
    for (int64_t n = first; n < last; n += kLanes) {
      const I32 of_row[1] = {load(sums + r * width + n - first)};
      store_row(one, columns, has_zero_points, rows[r], of_row, r, n);
    }
}

template <int R, int V>
static void matmul_tile(const Matmul& one, const Columns& columns, bool has_zero_points, const Row* rows,
                        const Dword* cells, int64_t stride, const uint8_t* panel, int64_t m, int64_t n) {
  I32 sums[R][V];
  multiply_rows<R, V, WeightLanes>(cells, stride, panel, padded_depth(one.depth) / kDepth, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) store_row(one, columns, has_zero_points, rows[r], sums[r], m + r, n);
}

// Multiplies `count` rows, beginning with row m, by the panel that begins at column n.
static void matmul_panel(const Matmul& one, const Columns& columns, bool has_zero_points, const Row* rows,
                         int64_t count, const uint8_t* cells, int64_t stride, const uint8_t* panel, int64_t m,
                         int64_t n) {
  with_constant<kVectors>(panel_lanes(one.columns, n) / kLanes, [&](auto vectors) {
    for (int64_t r = 0; r < count; r += kRows)
      with_constant<kRows>(at_most(kRows, count - r), [&](auto some) {
        const auto* from = reinterpret_cast<const Dword*>(cells) + r * stride / kDepth;
        matmul_tile<some, vectors>(one, columns, has_zero_points, rows + r, from, stride / kDepth, panel, m + r, n);
      });
  });
}

// Multiplies two row tiles by two panels with Strassen's method.
static void matmul_by_quarters(const Matmul& one, const Columns& columns, bool has_zero_points, const Row* rows,
                               const uint8_t* row_factors, const uint8_t* panels, const uint8_t* panel_factors,
                               const Halves& halves, int64_t m, int64_t n) {
  I32 sums[2][kRows][2][kVectors];
  multiply_quarters(row_factors, panels, panel_factors, halves, sums);
  for (int64_t r = 0; r < kTwoTiles; r++)
    for (int64_t i = 0; i < 2; i++)
      store_row(one, columns, has_zero_points, rows[r], sums[r / kRows][r % kRows][i], m + r, n + i * kTile);
}

// Multiplies kTileRows rows by a full panel with AMX.
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
  bool has_b_zero_points = false;
  for (int64_t i = 0; i < count; i++) {
    const Matmul& one = problems[i];
    has_b_zero_points |= has_zero_points(one.b_zero_point, one.columns);
    if (!one.is_raw)
      set_columns(one, reinterpret_cast<const int32_t*>(one.b + kSumsAt), 0, padded_columns(one.columns), p.columns[i]);
  }

  const auto item = [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t row_block = next_of(index, p.row_blocks), column_block = next_of(index, p.column_blocks);
    const Matmul& one = problems[index.rest];
    const Columns& columns = p.columns[index.rest];
    const int64_t depth = padded_depth(one.depth), width = padded_columns(one.columns);
    const int64_t first = column_block * p.column_block, last = at_most(width, first + p.column_block);
    const uint8_t* panels = one.b + panels_at(one.columns) + first * depth;
    if (one.is_raw && !p.is_unpacked) {
      uint8_t* packed = p.packed + worker * p.packed_bytes;
      pack_panels(one.b, one.b_zero_point.is_signed, one.depth, one.columns, first, last, packed, columns.sums + first);
      set_columns(one, columns.sums + first, first, last, columns);
      panels = packed;
    }
    Cell* copies = reinterpret_cast<Cell*>(p.copies + worker * p.copy_bytes);
    const int64_t stride = p.is_copied ? row_cells(depth) : depth;
    uint8_t* const row_factors = p.row_factors + worker * p.row_factor_bytes;
    uint8_t* const panel_factors = p.panel_factors + worker * p.panel_factor_bytes;
    const int64_t pairs = p.is_by_quarters ? (last - first) / kTwoPanels : 0;  // pairs of panels
    for (int64_t i = 0; i < pairs; i++)
      combine_panels(panels + i * kTwoPanels * depth, p.halves, panel_factors + i * p.pair_bytes);
    const uint8_t flip = flip_to_activation(one.a_zero_point.is_signed);
    const int64_t last_row = at_most(one.rows, (row_block + 1) * p.row_block);
    for (int64_t m = row_block * p.row_block; m < last_row; m += p.rows) {
      const int64_t row_count = at_most(p.rows, last_row - m);
      Row rows[kMostRows];
      const uint8_t* a = one.a + m * one.depth;
      const int64_t pairs_here = row_count == kTwoTiles ? pairs : 0, rest = first + pairs_here * kTwoPanels;
      for (int64_t r = 0; r < row_count; r++) {
        rows[r].zero_point = as_activation(one.a_zero_point, m + r);
        uint32_t sum = 0;
        if (has_b_zero_points)
          for (int64_t k = 0; k < one.depth; k++) sum += uint32_t(Activation(a[r * one.depth + k] ^ flip));
        rows[r].sum = int32_t(sum);
        if (one.type != Type::kInt32) {
          rows[r].a_scale = value(one.a_scale, m + r);
          rows[r].y_scale = value(one.y_scale, m + r);
          rows[r].output = output_of(value(one.y_zero_point, m + r), one.type == Type::kInt8);
        }
        if (p.is_copied && rest < last) {
          copy_cells(a + r * one.depth, flip, one.depth, copies + r * stride);
          for (int64_t k = one.depth; k < depth; k++) copies[r * stride + k] = 0;
          if (p.is_unpacked && sizeof(Cell) > 1) center(copies + r * stride, one.depth, rows[r]);
        }
      }
      const uint8_t* cells = p.is_copied ? reinterpret_cast<const uint8_t*>(copies) : a;
      if (p.is_unpacked) {
        matmul_unpacked(one, columns, has_b_zero_points, rows, reinterpret_cast<const Cell*>(cells), stride, first,
                        last, p.packed + worker * p.packed_bytes);
        continue;
      }
      if (pairs_here) combine_rows(a, flip, one.depth, p.halves, row_factors);
      for (int64_t i = 0; i < pairs_here; i++)
        matmul_by_quarters(one, columns, has_b_zero_points, rows, row_factors, panels + i * kTwoPanels * depth,
                           panel_factors + i * p.pair_bytes, p.halves, m, first + i * kTwoPanels);
      for (int64_t n = rest; n < last; n += kTile) {
        if constexpr (kHasTiles)
          if (row_count == kTileRows && panel_lanes(one.columns, n) == kTile) {
            matmul_by_tiles(one, columns, has_b_zero_points, rows, cells, stride, panels + (n - first) * depth, m, n);
            continue;
          }
        matmul_panel(one, columns, has_b_zero_points, rows, row_count, cells, stride, panels + (n - first) * depth, m,
                     n);
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
