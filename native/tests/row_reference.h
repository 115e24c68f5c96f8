// Random programs that run on rows, and their results, computed one element at a time. Sums follow docs/exact_rules.md,
// in 64-bit integers. jaxdml's tests compare the functions of float_functions.h with NumPy.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "memory.h"
#include "reference.h"

namespace jaxdml::test {

struct RowValue {
  bool is_truth = false, is_wide = false;
  std::vector<float> at;  // of one row; truth values are 0 and 1
  float operator[](int64_t column) const { return at[is_wide ? size_t(column) : 0]; }
};

inline float flushed(double x) { return std::abs(x) < 0x1p-126 ? std::copysign(0.0f, float(x)) : float(x); }

inline float row_sum(const std::vector<float>& x) {
  const int k = std::min(22, 29 - std::ilogb(double(x.size())));
  int e = k - 126;
  for (const float each : x)
    if (each != 0) e = std::max(e, std::ilogb(each) + 1);
  int64_t total = 0;
  for (const float each : x) {
    const double scaled = std::ldexp(double(each), k - e), first = std::nearbyint(scaled);
    total += int64_t(first) * (int64_t(1) << k) + int64_t(std::nearbyint(std::ldexp(scaled - first, k)));
  }
  const int64_t size = std::abs(total), low = size & ((int64_t(1) << (k + 8)) - 1);
  const float sum = float(double(size - low) * std::ldexp(1.0, -k)) + float(double(low) * std::ldexp(1.0, -k));
  return total < 0 ? -flushed(std::ldexp(double(sum), e - k)) : flushed(std::ldexp(double(sum), e - k));
}

inline float row_result(RowCode code, const float (&x)[3]) {
  const auto is_less = [](float a, float b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); };
  switch (code) {
    case RowCode::kAbs:
      return std::abs(x[0]);
    case RowCode::kNeg:
      return -x[0];
    case RowCode::kFloor:
      return std::floor(x[0]);
    case RowCode::kSquare:
      return product_of(x[0], x[0]);
    case RowCode::kMul:
      return product_of(x[0], x[1]);
    case RowCode::kNot:
      return 1 - x[0];
    case RowCode::kToFloat:
    case RowCode::kFloatOfInteger:  // integers are below 2**24, and floats here
      return x[0];
    case RowCode::kAddIntegers:
      return x[0] + x[1];
    case RowCode::kSteps:
      return x[0] / x[1];
    case RowCode::kAdd:
      return x[0] + x[1] + 0.0f;
    case RowCode::kSub:
      return x[0] - x[1] + 0.0f;
    case RowCode::kMax:
      return is_less(x[0], x[1]) ? x[1] : x[0];
    case RowCode::kMin:
      return is_less(x[0], x[1]) ? x[0] : x[1];
    case RowCode::kLess:
      return x[0] < x[1];
    case RowCode::kAnd:
      return x[0] * x[1];
    default:
      return x[0] != 0 ? x[2] : x[1];
  }
}

struct RowCase {
  RowProgram one = {};
  std::vector<int64_t> extents;
  std::deque<std::vector<int64_t>> operand_extents;
  std::vector<RowOperand> operands;
  std::vector<RowInstruction> instructions;
  std::vector<RowResult> results;  // without addresses
};

template <class T>
T element(const uint8_t* at, int64_t i) {
  T value;
  memcpy(&value, at + i * int64_t(sizeof(T)), sizeof(T));
  return value;
}

// The values of an operand in the row with the multi-index `index`.
inline RowValue operand_row(const RowCase& of, const RowOperand& x, const std::vector<int64_t>& index) {
  int64_t row = 0;
  for (size_t i = 0; i < index.size(); i++) row = row * x.extents[i] + (x.extents[i] == 1 ? 0 : index[i]);
  RowValue value = {x.type == RowType::kTruth, x.is_wide, {}};
  const int64_t count = x.is_wide ? of.one.columns : 1;
  for (int64_t i = 0; i < count; i++) {
    const int64_t place = row * x.pitch + x.first + i;
    value.at.push_back(x.type == RowType::kFloat   ? flushed(double(element<float>(x.at, place)))
                       : x.type == RowType::kInt32 ? float(element<int32_t>(x.at, place))
                       : x.type == RowType::kInt8  ? float(element<int8_t>(x.at, place))
                                                   : float(element<uint8_t>(x.at, place)));
  }
  return value;
}

// The bytes of all results, one result after the other.
inline std::vector<Output> expected(const RowCase& of) {
  std::vector<Output> all(of.results.size());
  std::vector<int64_t> index(of.extents.size());
  for (int64_t row = 0; row < of.one.rows; row++) {
    int64_t rest = row;
    for (size_t i = index.size(); i-- > 0; rest /= of.extents[i]) index[i] = rest % of.extents[i];
    std::vector<RowValue> slots(kMostSlots);
    for (size_t i = 0; i < of.operands.size(); i++) slots[i] = operand_row(of, of.operands[i], index);
    for (const RowInstruction& by : of.instructions) {
      const RowValue x[3] = {slots[size_t(by.from[0])], slots[size_t(by.from[1])], slots[size_t(by.from[2])]};
      RowValue value;
      if (by.code == RowCode::kSum) {
        value.at = {row_sum(x[0].at)};
      } else if (by.code == RowCode::kLargest || by.code == RowCode::kSmallest) {
        const RowCode pick = by.code == RowCode::kLargest ? RowCode::kMax : RowCode::kMin;
        value.at = {x[0].at[0]};
        for (const float each : x[0].at) value.at[0] = row_result(pick, {value.at[0], each, 0});
      } else {
        const int count = by.code < RowCode::kAdd ? 1 : by.code < RowCode::kSelect ? 2 : 3;
        for (int i = 0; i < count; i++) value.is_wide |= x[i].is_wide;
        for (int64_t i = 0; i < (value.is_wide ? of.one.columns : 1); i++)
          value.at.push_back(
              row_result(by.code, {x[0][i], x[1].at.empty() ? 0 : x[1][i], x[2].at.empty() ? 0 : x[2][i]}));
      }
      slots[size_t(by.to)] = value;
    }
    for (size_t i = 0; i < all.size(); i++) {
      const RowResult& result = of.results[i];
      for (const float number : slots[size_t(result.slot)].at) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(&number);
        if (result.type == RowType::kFloat)
          all[i].insert(all[i].end(), bytes, bytes + 4);
        else
          all[i].push_back(
              saturated(number, int32_t(slots[size_t(result.zero_point)].at[0]), result.type == RowType::kInt8));
      }
    }
  }
  return all;
}

// Integers are operands of the instructions for integers alone.
inline bool is_read(const RowOperand& x) { return x.type == RowType::kFloat || x.type == RowType::kTruth; }

// If the program has a zero point, the last operand, and a scale before it: adds a result of steps by this scale.
inline void add_quantized_result(RowCase& of, Random& random) {
  const int32_t zero_point = int32_t(of.operands.size()) - 1;
  if (is_read(of.operands[size_t(zero_point)])) return;
  if (of.one.columns == 1 && !of.results[0].is_wide) return;  // the scale of such rows counts as wide
  const RowType type = of.operands[size_t(zero_point)].type;
  const int32_t steps = 63;
  of.instructions.push_back({RowCode::kSteps, steps, {of.results[0].slot, zero_point - 1, 0}});
  of.results.push_back({nullptr, type, steps, zero_point, of.results[0].is_wide});
  if (random.chance(30)) of.results.erase(of.results.begin());
}

// A program of a few instructions. Values stay finite: there is at most one product, of numbers below 2**20.
inline void add_instructions(RowCase& of, Random& random) {
  struct Kind {
    bool is_known, is_truth, is_wide;
  };
  std::vector<Kind> kinds(kMostSlots);
  for (size_t i = 0; i < of.operands.size(); i++)
    kinds[i] = {is_read(of.operands[i]), of.operands[i].type == RowType::kTruth, of.operands[i].is_wide};
  const auto any = [&](bool is_truth, bool is_wide) {  // a slot of a kind, or -1
    std::vector<int32_t> some;
    for (int32_t i = 0; i < kMostSlots; i++)
      if (kinds[size_t(i)].is_known && kinds[size_t(i)].is_truth == is_truth && (!is_wide || kinds[size_t(i)].is_wide))
        some.push_back(i);
    return some.empty() ? -1 : some[size_t(random.below(int64_t(some.size())))];
  };
  constexpr RowCode kCodes[] = {RowCode::kAbs, RowCode::kNeg,     RowCode::kFloor,   RowCode::kToFloat,
                                RowCode::kNot, RowCode::kAdd,     RowCode::kSub,     RowCode::kMax,
                                RowCode::kMin, RowCode::kLess,    RowCode::kAnd,     RowCode::kSelect,
                                RowCode::kSum, RowCode::kLargest, RowCode::kSmallest};
  if (of.operands[0].type == RowType::kFloat) {  // the product
    of.instructions.push_back({RowCode::kSquare, int32_t(of.operands.size()), {0, 0, 0}});
    kinds[of.operands.size()] = {true, false, of.operands[0].is_wide};
  }
  const int64_t count = random.between(1, 9);
  while (int64_t(of.instructions.size()) < count || kinds[size_t(of.instructions.back().to)].is_truth) {
    const RowCode code = kCodes[random.below(std::size(kCodes))];
    const bool is_reduction = code >= RowCode::kSum;
    const bool is_of_truth = code == RowCode::kNot || code == RowCode::kAnd || code == RowCode::kToFloat;
    RowInstruction by = {code, 0, {any(is_of_truth || code == RowCode::kSelect, is_reduction), 0, 0}};
    const int operands = code < RowCode::kAdd || is_reduction ? 1 : code < RowCode::kSelect ? 2 : 3;
    bool is_wide = false, is_there = true;
    for (int i = 0; i < operands; i++) {
      if (i) by.from[i] = any(is_of_truth, false);
      is_there &= by.from[i] >= 0;
      if (is_there) is_wide |= kinds[size_t(by.from[i])].is_wide;
    }
    const auto is_quantizer = [&](int32_t slot) {  // the quantizer's operands, and its steps
      return slot == kMostSlots - 1 || (!is_read(of.operands.back()) && slot < int32_t(of.operands.size()) &&
                                        slot >= int32_t(of.operands.size()) - 2);
    };
    do by.to = int32_t(random.below(random.chance(80) ? 8 : kMostSlots));
    while (is_quantizer(by.to) || std::find(by.from, by.from + operands, by.to) != by.from + operands);
    if (!is_there) continue;
    const bool is_truth = code == RowCode::kNot || code == RowCode::kAnd || code == RowCode::kLess;
    kinds[size_t(by.to)] = {true, is_truth, is_wide && !is_reduction};
    of.one.has_reductions |= is_reduction;
    of.instructions.push_back(by);
  }
  // The last value is a result, and perhaps other floats that instructions compute.
  for (auto by = of.instructions.rbegin(); by != of.instructions.rend(); by++)
    if (!kinds[size_t(by->to)].is_truth && (of.results.empty() || random.chance(20)))
      of.results.push_back({nullptr, RowType::kFloat, by->to, by->to, kinds[size_t(by->to)].is_wide});
  add_quantized_result(of, random);
  of.one.slots = int64_t(of.operands.size());
  for (const RowInstruction& by : of.instructions) {
    of.one.slots = std::max<int64_t>(of.one.slots, by.to + 1);
    if (size_t(by.to) < of.operands.size()) of.operands[size_t(by.to)].is_kept = false;
  }
}

// Points the program to the case's own arrays.
inline const RowProgram& bound(RowCase& of) {
  for (size_t i = 0; i < of.operands.size(); i++) of.operands[i].extents = of.operand_extents[i].data();
  of.one.rank = int64_t(of.extents.size());
  of.one.extents = of.extents.data();
  of.one.operand_count = int64_t(of.operands.size());
  of.one.operands = of.operands.data();
  of.one.instruction_count = int64_t(of.instructions.size());
  of.one.instructions = of.instructions.data();
  of.one.result_count = int64_t(of.results.size());
  of.one.results = of.results.data();
  return of.one;
}

// Sets the rows of an operand: all rows of the problem, except that sizes may be 1. Returns their number.
inline int64_t add_extents(RowCase& of, RowOperand& x, Random& random, int chance_of_one) {
  std::vector<int64_t>& own = of.operand_extents.emplace_back(of.extents);
  int64_t rows = 1;
  for (int64_t& size : own) {
    if (random.chance(chance_of_one)) size = 1;
    rows *= size;
  }
  x.has_rows = rows > 1;
  x.is_whole = rows == of.one.rows;
  x.is_kept = rows == 1;
  return rows;
}

// Appends a scale and a zero point, which all rows share, or which rows have of their own, as under vmap.
inline void add_quantizer(RowCase& of, Random& random, std::deque<Bytes>& inputs) {
  const int chance_of_one = random.chance(60) ? 100 : 50;
  for (const RowType type : {RowType::kFloat, random.chance(50) ? RowType::kInt8 : RowType::kUint8}) {
    RowOperand x = {};
    x.type = type;
    x.pitch = 1;
    x.is_wide = of.one.columns == 1;
    const int64_t rows = add_extents(of, x, random, chance_of_one);
    uint8_t* at = inputs.emplace_back(random, rows * width_of(type), width_of(type)).at();
    for (int64_t i = 0; i < rows; i++) {
      const float scale = std::exp2(float(random.between(-10, 10))) * (random.fraction() + 1);
      if (type == RowType::kFloat)
        memcpy(at + i * 4, &scale, 4);
      else
        at[i] = uint8_t(random.below(256));
    }
    x.at = at;
    of.operands.push_back(x);
  }
}

inline RowCase random_rows(Random& random, std::deque<Bytes>& inputs, std::vector<int64_t> extents, int64_t columns) {
  RowCase of;
  of.extents = std::move(extents);
  of.one.columns = columns;
  of.one.rows = 1;
  for (const int64_t size : of.extents) of.one.rows *= size;
  const int64_t count = random.between(1, 3);
  for (int64_t i = 0; i < count; i++) {
    RowOperand x = {};
    x.type = i && random.chance(30) ? RowType::kTruth : RowType::kFloat;
    x.is_wide = i == 0 || columns == 1 || random.chance(60);
    const int64_t rows = add_extents(of, x, random, i ? 40 : 0);
    x.pitch = x.is_wide ? columns : 1;
    if (x.is_wide && columns > 1 && random.chance(30)) {  // some columns of longer rows
      x.first = random.below(20);
      x.pitch = x.first + columns + random.below(20);
    }
    const int64_t size = rows * x.pitch;
    uint8_t* at = inputs.emplace_back(random, size * width_of(x.type), width_of(x.type)).at();
    for (int64_t k = 0; k < size; k++) {
      const float power = std::exp2(float(random.between(random.chance(5) ? -140 : -20, 19)));
      const float number = random.chance(5) ? 0.0f : (random.chance(50) ? -power : power) * (random.fraction() + 1) / 2;
      if (x.type == RowType::kFloat)
        memcpy(at + k * 4, &number, 4);
      else
        at[k] = random.chance(50);
    }
    x.at = at;
    of.operands.push_back(x);
  }
  if (random.chance(50)) add_quantizer(of, random, inputs);
  add_instructions(of, random);
  return of;
}

}  // namespace jaxdml::test
