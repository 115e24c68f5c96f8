// The handler of programs that run on rows.
#include <algorithm>
#include <optional>

#include "row_call.h"
#include "scratch.h"
#include "threads.h"

namespace jaxdml {
namespace {

constexpr int64_t kNumbers = 5;            // numbers of an instruction: code, slot, three operands
constexpr int64_t kMostReduced = 1 << 16;  // the maximum number of columns that reductions sum without overflow

std::optional<RowType> row_type(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return RowType::kFloat;
    case ffi::DataType::PRED:
      return RowType::kTruth;
    case ffi::DataType::S32:
      return RowType::kInt32;
    case ffi::DataType::S8:
      return RowType::kInt8;
    case ffi::DataType::U8:
      return RowType::kUint8;
    default:
      return std::nullopt;
  }
}

bool is_reduction(RowCode code) { return code >= RowCode::kSum; }
int operands_of(RowCode code) {
  if (code < RowCode::kAdd || is_reduction(code)) return 1;
  return code < RowCode::kSelect ? 2 : 3;
}

ffi::Error rows(const Kernels& kernels, ffi::ThreadPool threads, ffi::RemainingArgs given, ffi::RemainingRets returned,
                int64_t columns, Numbers operands, Numbers program, Numbers results) {
  RowResults all;
  JAXDML_RETURN_IF_WRONG(read_results(returned, all));
  std::vector<RowArgument> arguments;
  JAXDML_RETURN_IF_WRONG(read_arguments(given, arguments));
  const Numbers of_y = all[0].dimensions();
  for (const Buffer& y : all)
    JAXDML_EXPECT(
        of_y.size() == y.dimensions().size() && std::equal(of_y.begin(), of_y.end() - 1, y.dimensions().begin()),
        "the rows of two results differ");
  RowCall call;
  JAXDML_RETURN_IF_WRONG(read_operands(arguments, of_y, columns, operands, call));
  if (are_empty(all)) return ffi::Error::Success();
  JAXDML_RETURN_IF_WRONG(read_program(program, results, call));
  JAXDML_RETURN_IF_WRONG(bind_results(all, call));
  RowProgram& one = call.program;
  const Size work = Size(one.rows) * one.columns * one.instruction_count * 4;
  JAXDML_EXPECT(work.is_size(), "there are too many rows");
  const FloatMode mode;
  const Pool pool = pool_of(threads, work.number());
  const Scratch scratch(kernels.row_program_scratch(one, pool.threads));
  if (!scratch.is_there()) return no_memory();
  kernels.run_rows(pool, one, scratch.at());
  return ffi::Error::Success();
}

}  // namespace

ffi::Error read_arguments(ffi::RemainingArgs from, std::vector<RowArgument>& arguments) {
  arguments.reserve(from.size() + 1);
  for (size_t i = 0; i < from.size(); i++) {
    const auto x = from.get<Buffer>(i);
    JAXDML_EXPECT(x.has_value() && is_sound(*x), "an operand is not a buffer, or is too large");
    arguments.push_back({x->dimensions(), x->element_type(), static_cast<const uint8_t*>(x->untyped_data())});
  }
  return ffi::Error::Success();
}

ffi::Error read_results(ffi::RemainingRets from, RowResults& results) {
  results.reserve(from.size());
  for (size_t i = 0; i < from.size(); i++) {
    const auto y = from.get<Buffer>(i);
    JAXDML_EXPECT(y.has_value() && is_sound(*y), "a result is not a buffer, or is too large");
    const Numbers extents = (*y)->dimensions();
    JAXDML_EXPECT(extents.size() && ((*y)->element_type() == ffi::DataType::F32 || is_byte(**y)),
                  "a result has no rows, or neither floats nor 8-bit integers");
    results.push_back(**y);
  }
  JAXDML_EXPECT(!results.empty(), "a program has no results");
  return ffi::Error::Success();
}

bool are_empty(const RowResults& results) {
  return std::all_of(results.begin(), results.end(), [](const Buffer& y) { return y.element_count() == 0; });
}

ffi::Error bind_results(const RowResults& results, RowCall& call) {
  JAXDML_EXPECT(results.size() == call.results.size(), "a program has another number of results");
  for (size_t i = 0; i < results.size(); i++) {
    JAXDML_EXPECT(results[i].dimensions().back() == (call.results[i].is_wide ? call.program.columns : 1),
                  "a result and its slot differ in their number of columns");
    call.results[i].y = static_cast<uint8_t*>(results[i].untyped_data());
    call.results[i].type = *row_type(results[i].element_type());
  }
  return ffi::Error::Success();
}

ffi::Error read_operands(const std::vector<RowArgument>& arguments, Numbers of_y, int64_t columns, Numbers operands,
                         RowCall& call) {
  JAXDML_EXPECT(operands.size() % 2 == 0 && operands.size() / 2 <= size_t(kMostSlots),
                "a program has too many operands, or an incomplete one");
  JAXDML_EXPECT(columns >= 0, "a program has a negative number of columns");
  RowProgram& one = call.program;
  one = {};
  one.results = call.results.data();
  one.result_count = int64_t(call.results.size());
  one.rank = int64_t(of_y.size()) - 1;
  one.extents = of_y.begin();
  one.rows = product(of_y, 0, size_t(one.rank));
  one.columns = columns;
  call.operands.reserve(operands.size() / 2);
  call.sources.reserve(operands.size() / 2);
  bool has_wide = false;
  for (size_t i = 0; i < operands.size(); i += 2) {
    const int64_t source = operands[i], first = operands[i + 1];
    JAXDML_EXPECT(source >= 0 && source < int64_t(arguments.size()), "a program reads an argument that is not there");
    const RowArgument& x = arguments[size_t(source)];
    JAXDML_EXPECT(row_type(x.type), "an operand has neither floats, truth values, 8-bit nor 32-bit integers");
    JAXDML_EXPECT(leads(x.extents, of_y, size_t(one.rank), of_y.size()), "an operand's rows differ from the results'");
    const int64_t pitch = x.extents.back(), rows_of_x = product(x.extents, 0, size_t(one.rank));
    const bool is_wide = pitch != 1 || columns == 1;
    JAXDML_EXPECT(first >= 0 && (is_wide ? columns <= pitch && first <= pitch - columns : first == 0),
                  "an operand has fewer columns than the program reads");
    has_wide |= is_wide;
    call.operands.push_back({x.at, x.extents.begin(), pitch, first, *row_type(x.type), is_wide, rows_of_x > 1,
                             rows_of_x == one.rows, rows_of_x == 1});
    call.sources.push_back(size_t(source));
  }
  JAXDML_EXPECT(has_wide || columns == 1, "no operand has the columns of the program");
  one.operand_count = int64_t(call.operands.size());
  one.operands = call.operands.data();
  return ffi::Error::Success();
}

// Each slot is written before it is read, no instruction reads the slot that it writes, and only values that have all
// columns are reduced.
ffi::Error read_program(Numbers numbers, Numbers results, RowCall& call) {
  RowProgram& one = call.program;
  JAXDML_EXPECT(one.columns, "a row has no elements");
  JAXDML_EXPECT(numbers.size() && numbers.size() % kNumbers == 0,
                "a program has no instructions, or an incomplete one");
  enum Kind { kUnknown, kNarrow, kWide };
  Kind kinds[kMostSlots] = {};
  bool is_computed[kMostSlots] = {};
  for (int64_t i = 0; i < one.operand_count; i++) kinds[i] = one.operands[i].is_wide ? kWide : kNarrow;
  one.slots = one.operand_count;
  call.instructions.reserve(numbers.size() / kNumbers);
  for (size_t i = 0; i < numbers.size(); i += kNumbers) {
    const int64_t code = numbers[i], to = numbers[i + 1];
    JAXDML_EXPECT(code >= 0 && code < int64_t(RowCode::kCount), "a program has an unknown instruction");
    JAXDML_EXPECT(to >= 0 && to < kMostSlots, "a program has too many slots");
    RowInstruction by = {RowCode(code), int32_t(to), {}};
    Kind kind = kNarrow;
    for (int j = 0; j < operands_of(by.code); j++) {
      const int64_t from = numbers[i + 2 + size_t(j)];
      JAXDML_EXPECT(from >= 0 && from < kMostSlots && kinds[from] != kUnknown && from != to,
                    "an instruction reads a slot that has no value, or that it writes");
      by.from[j] = int32_t(from);
      kind = std::max(kind, kinds[from]);
    }
    if (is_reduction(by.code)) {
      JAXDML_EXPECT(kind == kWide, "a reduction's operand has one column");
      one.has_reductions = true;
      kind = kNarrow;
    }
    kinds[to] = kind;
    is_computed[to] = true;
    if (to < one.operand_count) call.operands[size_t(to)].is_kept = false;
    one.slots = std::max(one.slots, to + 1);
    call.instructions.push_back(by);
  }
  JAXDML_EXPECT(!one.has_reductions || one.columns <= kMostReduced, "a row is too long to be reduced");
  JAXDML_EXPECT(results.size() % 2 == 0, "a result has no slot for its zero point");
  call.results.reserve(results.size() / 2);
  for (size_t i = 0; i < results.size(); i += 2) {
    const int64_t slot = results[i], zero_point = results[i + 1];
    JAXDML_EXPECT(slot >= 0 && slot < kMostSlots && is_computed[slot], "a result is a slot that no instruction writes");
    JAXDML_EXPECT(zero_point >= 0 && zero_point < kMostSlots &&
                      (kinds[zero_point] == kNarrow || one.columns == 1 || slot == zero_point),
                  "a zero point is a slot that has no value, or one for each column");
    call.results.push_back({nullptr, RowType::kFloat, int32_t(slot), int32_t(zero_point), kinds[slot] == kWide});
  }
  one.instruction_count = int64_t(call.instructions.size());
  one.instructions = call.instructions.data();
  one.result_count = int64_t(call.results.size());
  one.results = call.results.data();
  return ffi::Error::Success();
}

JAXDML_HANDLER(jaxdml_cpu_rows, rows,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .RemainingArgs()
                   .RemainingRets()
                   .Attr<int64_t>("columns")
                   .Attr<Numbers>("operands")
                   .Attr<Numbers>("program")
                   .Attr<Numbers>("results"))

}  // namespace jaxdml
