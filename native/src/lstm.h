// The recurrence of an LSTM with 8-bit weights: all steps of one direction in one item, because each step needs the
// hidden states of the step before it. Formulas and their order are those of jaxdml/onnx/_operators/_recurrence.py.
#pragma once

#include "float_functions.h"
#include "integer_rows.h"
#include "matmul.h"
#include "quantize_rows.h"

namespace jaxdml::JAXDML_ISA {

constexpr int64_t kGates = 4;
enum LstmGate : int64_t { kInputGate, kOutputGate, kForgetGate, kCellGate };

// Scratch memory of a thread.
struct LstmRoom {
  Columns columns;  // of the weights
  float* h;         // [batch][units]: hidden states after the previous step
  uint8_t* bytes;   // [batch][units]: h, quantized
  Cell* cells;      // [kRows]: a tile of bytes
  float* products;  // [batch][4 * units], and one more vector: h times the weights
};

static int64_t take_room(const Lstm& one, Arena& arena, LstmRoom& room) {
  const int64_t size = one.batch * one.units, width = padded_columns(kGates * one.units);
  room.columns = take_columns(Type::kFloat32, width, arena);
  room.h = take<float>(arena, size);
  room.bytes = take<uint8_t>(arena, size);
  room.cells = take<Cell>(arena, kRows * row_cells(padded_depth(one.units)));
  room.products = take<float>(arena, kGates * size + kLanes);
  return arena.used;
}

static int64_t lstm_scratch(const Lstm& one, int64_t threads) {
  Arena arena = {};
  LstmRoom room;
  return threads * take_room(one, arena, room);
}

// The product of the quantized states and the weights, in floats. The epilogue reads the scale of the states from Row.
JAXDML_INLINE Matmul matrices_of(const Lstm& one, const LstmRoom& room) {
  Matmul matrices = {};
  matrices.rows = one.batch;
  matrices.depth = one.units;
  matrices.columns = kGates * one.units;
  matrices.a = room.bytes;
  matrices.b = one.weights;
  matrices.a_scale.step = 1;
  matrices.b_scale = one.scale;
  matrices.b_zero_point = one.zero_point;
  matrices.y = room.products;
  matrices.type = Type::kFloat32;
  return matrices;
}

// Quantizes the hidden states by their range, as dynamic_quantize_linear does, and multiplies them by the weights.
static void multiply_states(const Matmul& one, bool has_zero_points, const LstmRoom& room) {
  const int64_t size = one.rows * one.depth, depth = padded_depth(one.depth), stride = row_cells(depth);
  const Ends range = ends_of(room.h, 0, size);
  float scale = range.has_nan ? __builtin_nanf("") : (range.high - range.low) / 255;
  if (scale == 0) scale = 1;
  const uint8_t zero_point = zero_point_of(range.low, scale);
  quantize_elements({size, room.h, scale, zero_point, false, room.bytes}, 0, size);
  Row row = {};
  row.zero_point = as_activation({&zero_point, 0, false}, 0);
  row.a_scale = scale;
  for (int64_t m = 0; m < one.rows; m += kRows) {
    const int64_t count = at_most(kRows, one.rows - m);
    Row rows[kRows];
    for (int64_t r = 0; r < count; r++) {
      Cell* const cells = room.cells + r * stride;
      copy_cells(one.a + (m + r) * one.depth, flip_to_activation(false), one.depth, cells);
      row.sum = 0;
      for (int64_t k = 0; k < one.depth && has_zero_points; k++) row.sum += cells[k];
      rows[r] = row;
    }
    for (int64_t n = 0; n < one.columns; n += kTile)
      matmul_panel(one, room.columns, has_zero_points, rows, count, reinterpret_cast<const uint8_t*>(room.cells),
                   stride, one.b + panels_at(one.columns) + n * depth, m, n);
  }
}

// Advances the states h and c of one entry of the batch. `of_x` and `of_h` are its x and its h, each multiplied by
// weights.
static void advance(const Lstm& one, const float* of_x, const float* of_h, float* h, float* c) {
  const F32 limit = splat(one.clip);
  for (int64_t n = 0; n < one.units; n += kLanes) {
    const int64_t count = one.units - n;
    const auto ready = [&](LstmGate gate, const F32* state) {  // the input of the gate's activation
      const int64_t at = gate * one.units + n;
      F32 x = load_part(of_x + at, count) + load_floats(of_h + at);
      if (state && one.peephole) x = x + product(*state, load_part(one.peephole + at, count));
      return lesser(limit, greater(-limit, x + load_part(one.bias + at, count)));  // NaN stays NaN
    };
    const F32 old = load_part(c + n, count);
    const F32 input = onnxruntime_logistic(ready(kInputGate, &old));
    const F32 forget = one.couples_forget ? splat(1.0f) - input : onnxruntime_logistic(ready(kForgetGate, &old));
    const F32 now = product(old, forget) + product(input, onnxruntime_tanh(ready(kCellGate, nullptr)));
    const F32 output = onnxruntime_logistic(ready(kOutputGate, &now)), hidden = product(onnxruntime_tanh(now), output);
    copy_bytes(c + n, &now, at_most(kLanes, count) * 4);
    copy_bytes(h + n, &hidden, at_most(kLanes, count) * 4);
  }
}

static void run_lstm(const Lstm& one, const LstmRoom& room) {
  const int64_t units = one.units, size = one.batch * units, bytes = size * int64_t(sizeof(float));
  const Matmul matrices = matrices_of(one, room);
  const bool has_zero_points = JAXDML_ISA::has_zero_points(one.zero_point, matrices.columns);
  set_columns(matrices, reinterpret_cast<const int32_t*>(one.weights + kSumsAt), 0, padded_columns(matrices.columns),
              room.columns);
  memset(room.cells, 0, size_t(kRows * row_cells(padded_depth(units))) * sizeof(Cell));
  memset(room.products, 0, size_t(kGates * size + kLanes) * sizeof(float));
  memcpy(room.h, one.h, size_t(bytes));
  memcpy(one.last_c, one.c, size_t(bytes));
  memset(one.last_h, 0, size_t(bytes));
  for (int64_t step = 0; step < one.steps; step++) {
    multiply_states(matrices, has_zero_points, room);
    for (int64_t b = 0; b < one.batch; b++) {
      const int64_t length = at_most(one.lengths[b], one.steps);
      const int64_t at = one.is_backward && step < length ? length - 1 - step : step;
      float *const h = room.h + b * units, *const y = one.y + at * one.y_stride + b * units;
      if (step < length) {
        const float* const of_x = one.gates + (at * one.batch + b) * kGates * units;
        advance(one, of_x, room.products + b * kGates * units, h, one.last_c + b * units);
        memcpy(one.last_h + b * units, h, size_t(units) * sizeof(float));
      } else {
        memset(h, 0, size_t(units) * sizeof(float));
      }
      memcpy(y, h, size_t(units) * sizeof(float));
    }
  }
}

// An item is a direction of a problem.
static void lstm(const Pool& pool, const Lstm* problems, int64_t count, uint8_t* scratch) {
  const int64_t bytes = lstm_scratch(problems[0], 1);
  parallel(pool, count, [&](int64_t item, int64_t worker) {
    Arena arena = {scratch + worker * bytes, 0};
    LstmRoom room;
    take_room(problems[item], arena, room);
    run_lstm(problems[item], room);
  });
}

}  // namespace jaxdml::JAXDML_ISA
