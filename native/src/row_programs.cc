// Programs of elementwise functions and reductions of rows. All instructions run on one block of rows before the next
// block begins, so that intermediate results stay in the cache.
//
// A slot holds one value for each element of the block, for each row, for each column, or for the whole block. A true
// value has all bits set. Where rows are short and not reduced, the rows of a block are merged into a single row, which
// fills vectors: values of rows are then repeated for each column, and values of columns for each row. The build
// compiles this file once for each instruction set, as it does isa.cc.
#include "row_programs.h"

#include "divisor.h"
#include "float_sums.h"

namespace jaxdml::JAXDML_ISA {

constexpr int64_t kBlockElements = 2048;
// Vectors that are computed at once: most functions are long dependency chains, which would stall on a single vector.
constexpr int kGroup = 4;
constexpr int64_t kFewColumns = 8 * kLanes;

struct RowBlock {
  int64_t rows, columns;  // rows that are reduced are not split
  bool is_merged;
};
JAXDML_INLINE RowBlock block_of(const RowProgram& one) {
  const int64_t columns = one.has_reductions ? one.columns : at_most(one.columns, kBlockElements);
  bool is_merged = !one.has_reductions && columns < kFewColumns;
  for (int64_t i = 0; i < one.result_count; i++) is_merged &= one.results[i].is_wide;
  const int64_t stride = is_merged ? columns : round_up(columns, kLanes);
  return {at_most(one.rows, at_least(1, kBlockElements / stride)), columns, is_merged};
}
// Loads of a row and stores of bytes access whole vectors, so that they may pass the end of a slot's values.
JAXDML_INLINE int64_t slot_floats(const RowBlock& block) {
  return at_least(round_up(block.rows, kLanes), block.rows * round_up(block.columns, kLanes)) + 4 * kLanes;
}

struct Slot {
  float* at;
  bool is_wide, has_rows;  // whether there is a value for each column; whether there is one for each row
};

// The part of the problem that a block computes.
struct RowPart {
  int64_t first_row, rows, first_column, columns, stride;  // the stride of rows in a slot
};

JAXDML_INLINE I32 splat_bits(const float* of) {
  int32_t bits;
  memcpy(&bits, of, 4);
  return splat(bits);
}

// How an instruction reads a slot, which depends on whether the instruction computes wide values.
struct Source {
  const float* at;
  int64_t row_step;
  bool is_vector;
};
JAXDML_INLINE Source source_of(const Slot& slot, bool is_wide, int64_t stride) {
  if (!is_wide) return {slot.at, 0, slot.has_rows};
  return {slot.at, slot.has_rows ? slot.is_wide ? stride : 1 : 0, slot.is_wide};
}

// Computes kCount vectors of y = f(x...), beginning at vector v. A step of 0 repeats one vector.
template <int kCount, int N, class F>
JAXDML_INLINE void map_vectors(float* y, const float* const (&x)[N], const int64_t (&step)[N], int64_t v, const F& f) {
  F32 results[kCount];
#pragma GCC unroll 4
  for (int64_t k = 0; k < kCount; k++) {
    F32 arguments[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) arguments[i] = load_floats(x[i] + (v + k) * step[i]);
    results[k] = f(arguments);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < kCount; k++) store(y + (v + k) * kLanes, (I32)results[k]);
}

// to = f(from...), for vectors.
template <int N, class F>
JAXDML_INLINE void map(const RowPart& part, Slot& to, const Slot* const (&from)[N], const F& f) {
  bool is_wide = false, are_alike = true;
  for (const Slot* each : from) is_wide |= each->is_wide;
  for (const Slot* each : from) are_alike &= each->is_wide == each->has_rows;
  Source sources[N];
  for (int i = 0; i < N; i++) sources[i] = source_of(*from[i], is_wide, part.stride);
  to.is_wide = is_wide;
  to.has_rows = true;
  // Rows of a slot are adjacent, so all of them can be one: the gaps between rows have values, too.
  const bool is_one_row = !is_wide || are_alike;
  const int64_t rows = is_one_row ? 1 : part.rows;
  const int64_t vectors =
      is_one_row && is_wide ? part.rows * (part.stride / kLanes) : ceil_div(is_wide ? part.columns : part.rows, kLanes);
  for (int64_t r = 0; r < rows; r++) {
    alignas(64) float numbers[N][kLanes];
    const float* x[N];
    int64_t step[N];
    for (int i = 0; i < N; i++) {
      x[i] = sources[i].at + r * sources[i].row_step;
      step[i] = sources[i].is_vector ? kLanes : 0;
      if (step[i]) continue;
      store(numbers[i], splat_bits(x[i]));
      x[i] = numbers[i];
    }
    float* y = to.at + r * part.stride;
    int64_t v = 0;
    for (; v + kGroup <= vectors; v += kGroup) map_vectors<kGroup>(y, x, step, v, f);
    for (; v < vectors; v++) map_vectors<1>(y, x, step, v, f);
  }
}

template <class F>
JAXDML_INLINE void reduce(const RowPart& part, Slot& to, const Slot& from, const F& f) {
  for (int64_t r = 0; r < part.rows; r++) to.at[r] = f(from.at + (from.has_rows ? r * part.stride : 0), part.columns);
  to.is_wide = false;
  to.has_rows = true;
}

JAXDML_INLINE int64_t row_offset(const RowProgram& one, const RowOperand& of, int64_t row) {
  if (!of.has_rows) return 0;
  int64_t offset = 0, step = of.pitch;
  for (int64_t i = one.rank; i-- > 0; row /= one.extents[i])
    if (of.extents[i] != 1) {
      offset += row % one.extents[i] * step;
      step *= of.extents[i];
    }
  return offset;
}

// Loads `count` elements at `offset`, padded with zeros: floats with subnormals flushed, truth values, or integers.
JAXDML_INLINE void load_values(const RowOperand& of, int64_t offset, int64_t count, float* to) {
  if (is_byte(of.type)) {
    const I32 sign = splat(of.type == RowType::kInt8 ? 0x80 : 0);
    each_vector(0, count, [&](int64_t i, int64_t n) {
      uint8_t copy[kLanes] = {};
      const I32 bytes = from_unsigned_bytes(whole(of.at + offset + i, n, copy));
      store(to + i, of.type == RowType::kTruth ? bytes != splat(0) : (bytes ^ sign) - sign);
    });
    return;
  }
  const uint8_t* from = of.at + offset * 4;
  const auto value = [&](I32 x) { return of.type == RowType::kFloat ? (I32)flushed((F32)x) : x; };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, value(load(from + i * 4)));
  if (i < count) store(to + i, value(load_bytes(from + i * 4, (count - i) * 4)));
}

// Loads an operand for rows that are merged.
static void load_merged(const RowProgram& one, const RowOperand& of, const RowPart& part, Slot& to) {
  to.is_wide = to.has_rows = true;
  if (of.is_wide && of.is_whole && of.pitch == one.columns)
    return load_values(of, part.first_row * one.columns, part.rows * one.columns, to.at);
  for (int64_t r = 0; r < part.rows; r++) {
    const int64_t row = part.first_row + r;
    const int64_t offset = (of.is_whole ? row * of.pitch : row_offset(one, of, row)) + of.first;
    float* const at = to.at + r * one.columns;
    if (of.is_wide) {
      load_values(of, offset, one.columns, at);
      continue;
    }
    float number[kLanes];
    load_values(of, offset, 1, number);
    const I32 repeated = splat_bits(number);
    for (int64_t i = 0; i < one.columns; i += kLanes) store(at + i, repeated);
  }
}

static void load_operand(const RowProgram& one, const RowOperand& of, const RowPart& part, Slot& to) {
  to.is_wide = of.is_wide;
  to.has_rows = of.has_rows;
  const int64_t rows = of.has_rows ? part.rows : 1;
  const int64_t column = of.first + (of.is_wide ? part.first_column : 0), count = of.is_wide ? part.columns : 1;
  if (!of.is_wide && of.is_whole) return load_values(of, part.first_row, part.rows, to.at);
  float number[kLanes];
  for (int64_t r = 0; r < rows; r++) {
    const int64_t row = part.first_row + r;
    const int64_t offset = of.is_whole ? row * of.pitch : row_offset(one, of, row);
    float* at = of.is_wide ? to.at + r * part.stride : number;
    load_values(of, offset + column, count, at);
    if (!of.is_wide) to.at[r] = number[0];
  }
}

// Quotients that results round to integers.
static void divide(const RowPart& part, Slot& to, const Slot& x, const Slot& scale) {
  const Slot* const one[] = {&x};
  const Slot* const two[] = {&x, &scale};
  if (!scale.is_wide && !scale.has_rows) {
    const Steps of = steps_of(*scale.at);
    if (of.by.is_exact_by_reciprocal) return map(part, to, one, [of](const F32* y) { return steps<true>(y[0], of); });
  }
  map(part, to, two, [](const F32* y) { return y[0] / y[1]; });
}

static void run_instruction(const RowInstruction& by, const RowPart& part, Slot* slots) {
  Slot& to = slots[by.to];
  const Slot* const one[] = {&slots[by.from[0]]};
  const Slot* const two[] = {&slots[by.from[0]], &slots[by.from[1]]};
  const Slot* const three[] = {&slots[by.from[0]], &slots[by.from[1]], &slots[by.from[2]]};
#define JAXDML_MAP(code, from, expression) \
  case RowCode::code:                      \
    return map(part, to, from, [](const F32* x) { return F32(expression); });
  switch (by.code) {
    JAXDML_MAP(kAbs, one, magnitude(x[0]))
    JAXDML_MAP(kNeg, one, -x[0])
    JAXDML_MAP(kSign, one, sign_of(x[0]))
    JAXDML_MAP(kFloor, one, rounded_down(x[0]))
    JAXDML_MAP(kCeil, one, rounded_up(x[0]))
    JAXDML_MAP(kRound, one, nearest(x[0]))
    JAXDML_MAP(kSqrt, one, square_root(x[0]))
    JAXDML_MAP(kRsqrt, one, splat(1.0f) / square_root(x[0]))
    JAXDML_MAP(kExp, one, exp(x[0]))
    JAXDML_MAP(kExp2, one, exp2(x[0]))
    JAXDML_MAP(kExpm1, one, expm1(x[0]))
    JAXDML_MAP(kLogistic, one, logistic(x[0]))
    JAXDML_MAP(kTanh, one, tanh(x[0]))
    JAXDML_MAP(kLog, one, log(x[0]))
    JAXDML_MAP(kLog1p, one, log1p(x[0]))
    JAXDML_MAP(kErf, one, erf(x[0]))
    JAXDML_MAP(kErfc, one, erfc(x[0]))
    JAXDML_MAP(kSquare, one, x[0] * x[0])
    JAXDML_MAP(kIsFinite, one, (magnitude(x[0]) < splat(__builtin_inff())))
    JAXDML_MAP(kNot, one, ~(I32)x[0])
    JAXDML_MAP(kToFloat, one, ((I32)x[0] & (I32)splat(1.0f)))
    JAXDML_MAP(kFloatOfInteger, one, floats((I32)x[0]))
    JAXDML_MAP(kOnnxruntimeLogistic, one, onnxruntime_logistic(x[0]))
    JAXDML_MAP(kOnnxruntimeTanh, one, onnxruntime_tanh(x[0]))
    JAXDML_MAP(kAdd, two, without_zero_signs(x[0] + x[1]))
    JAXDML_MAP(kAddIntegers, two, add((I32)x[0], (I32)x[1]))
    JAXDML_MAP(kSub, two, without_zero_signs(x[0] - x[1]))
    JAXDML_MAP(kMul, two, product(x[0], x[1]))
    JAXDML_MAP(kDiv, two, x[0] / x[1])
    JAXDML_MAP(kMax, two, larger(x[0], x[1]))
    JAXDML_MAP(kMin, two, smaller(x[0], x[1]))
    JAXDML_MAP(kEqual, two, (x[0] == x[1]))
    JAXDML_MAP(kNotEqual, two, (x[0] != x[1]))
    JAXDML_MAP(kLess, two, (x[0] < x[1]))
    JAXDML_MAP(kLessOrEqual, two, (x[0] <= x[1]))
    JAXDML_MAP(kGreater, two, (x[0] > x[1]))
    JAXDML_MAP(kGreaterOrEqual, two, (x[0] >= x[1]))
    JAXDML_MAP(kAnd, two, ((I32)x[0] & (I32)x[1]))
    JAXDML_MAP(kOr, two, ((I32)x[0] | (I32)x[1]))
    JAXDML_MAP(kSelect, three, ((I32)x[0] ? x[2] : x[1]))
    JAXDML_MAP(kClamp, three, smaller(larger(x[1], x[0]), x[2]))
    case RowCode::kSteps:
      return divide(part, to, *two[0], *two[1]);
    case RowCode::kSum:
      return reduce(part, to, *one[0], row_total);
    case RowCode::kLargest:
      return reduce(part, to, *one[0], row_extreme<true>);
    case RowCode::kSmallest:
      return reduce(part, to, *one[0], row_extreme<false>);
    case RowCode::kCount:
      return;
  }
#undef JAXDML_MAP
}

static void store_values(const RowResult& of, int64_t offset, int64_t count, const float* from,
                         const float* zero_point_at) {
  if (of.type == RowType::kFloat) {
    copy_bytes(of.y + offset * 4, from, count * 4);
    return;
  }
  int32_t zero_point;
  memcpy(&zero_point, zero_point_at, 4);
  const Output output = output_of(zero_point, of.type == RowType::kInt8);
  each_vector<kBytes>(0, count, [&](int64_t i, int64_t n) {
    F32 steps[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) steps[v] = load_floats(from + i + v * kLanes);
    put_bytes<true>(of.y + offset + i, steps, output, n);
  });
}

static void store_result(const RowProgram& one, const RowPart& part, bool is_merged, const RowResult& of,
                         const Slot* slots) {
  const Slot &from = slots[of.slot], &zero_point = slots[of.zero_point];
  if (!of.is_wide && part.first_column) return;  // each block of columns computes the same value
  const int64_t pitch = of.is_wide ? one.columns : 1, count = of.is_wide ? part.columns : 1;
  const int64_t stride = is_merged ? one.columns : of.is_wide ? part.stride : 1;
  const int64_t first = part.first_row * pitch + (of.is_wide ? part.first_column : 0);
  const bool is_shared =
      of.type == RowType::kFloat || (of.zero_point < one.operand_count && one.operands[of.zero_point].is_kept);
  if (is_shared && (is_merged || !of.is_wide))
    return store_values(of, first, part.rows * pitch, from.at, zero_point.at);
  const int64_t zero_step = is_shared ? 0 : !zero_point.is_wide ? 1 : is_merged ? one.columns : part.stride;
  for (int64_t r = 0; r < part.rows; r++)
    store_values(of, first + r * pitch, count, from.at + r * stride, zero_point.at + r * zero_step);
}

int64_t row_program_scratch(const RowProgram& one, int64_t threads) {
  return threads * one.slots * round_up(slot_floats(block_of(one)) * 4, 64);
}

// An item is a run of consecutive blocks, so that threads write far apart: threads that write to neighboring pages of a
// newly allocated output wait for each other.
void run_rows(const Pool& pool, const RowProgram& one, uint8_t* scratch) {
  constexpr int64_t kItems = 4;  // for each thread
  const RowBlock block = block_of(one);
  const int64_t in_columns = ceil_div(one.columns, block.columns);
  const int64_t blocks = ceil_div(one.rows, block.rows) * in_columns;
  const int64_t items = at_most(blocks, pool.threads * kItems), slot_bytes = round_up(slot_floats(block) * 4, 64);
  parallel(pool, items, [&](int64_t item, int64_t worker) {
    Slot slots[kMostSlots];
    for (int64_t i = 0; i < one.slots; i++)
      slots[i] = {reinterpret_cast<float*>(scratch + (worker * one.slots + i) * slot_bytes), false, false};
    const int64_t first = blocks * item / items, last = blocks * (item + 1) / items;
    for (int64_t i = first; i < last; i++) {
      RowPart part = {i / in_columns * block.rows, 0, i % in_columns * block.columns, 0, 0};
      part.rows = at_most(block.rows, one.rows - part.first_row);
      part.columns = at_most(block.columns, one.columns - part.first_column);
      part.stride = round_up(part.columns, kLanes);
      for (int64_t j = 0; j < one.operand_count; j++) {
        const RowOperand& of = one.operands[j];
        if (i != first && in_columns == 1 && of.is_kept) continue;
        if (block.is_merged && (of.is_wide || of.has_rows))
          load_merged(one, of, part, slots[j]);
        else
          load_operand(one, of, part, slots[j]);
      }
      const int64_t elements = part.rows * part.columns;
      const RowPart all = {0, 1, 0, elements, round_up(elements, kLanes)};
      for (int64_t j = 0; j < one.instruction_count; j++)
        run_instruction(one.instructions[j], block.is_merged ? all : part, slots);
      for (int64_t j = 0; j < one.result_count; j++) store_result(one, part, block.is_merged, one.results[j], slots);
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
