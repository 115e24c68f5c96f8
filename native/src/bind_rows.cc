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

// Reads and validates a program: each slot is written before it is read, no instruction reads the slot that it writes,
// and only values that have all columns are reduced.
ffi::Error read_program(Numbers numbers, RowProgram& one, std::vector<RowOperand>& operands,
                        std::vector<RowInstruction>& instructions) {
  JAXDML_EXPECT(numbers.size() % kNumbers == 0, "a program has an incomplete instruction");
  enum Kind { kUnknown, kNarrow, kWide };
  Kind kinds[kMostSlots] = {};
  for (int64_t i = 0; i < one.operand_count; i++) kinds[i] = one.operands[i].is_wide ? kWide : kNarrow;
  one.slots = one.operand_count;
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
    if (to < one.operand_count) operands[size_t(to)].is_kept = false;
    one.slots = std::max(one.slots, to + 1);
    instructions.push_back(by);
  }
  JAXDML_EXPECT(!instructions.empty(), "a program has no instructions");
  for (int64_t i = 0; i < one.result_count; i++) {
    const RowResult& of = one.results[i];
    JAXDML_EXPECT(std::min(of.slot, of.zero_point) >= 0 && std::max(of.slot, of.zero_point) < kMostSlots &&
                      kinds[of.slot] != kUnknown && kinds[of.zero_point] != kUnknown,
                  "a result is in a slot that has no value");
    JAXDML_EXPECT(one.is_wide == (kinds[of.slot] == kWide), "a result and the output differ in their number of columns");
  }
  one.instruction_count = int64_t(instructions.size());
  one.instructions = instructions.data();
  return ffi::Error::Success();
}

// `results` has two slots for each output: those of its value and of its zero point, which floats do not read.
ffi::Error rows(const Kernels& kernels, ffi::ThreadPool threads, ffi::RemainingArgs given, ffi::RemainingRets outputs,
                Numbers program, Numbers results) {
  JAXDML_EXPECT(outputs.size() && int64_t(outputs.size()) <= kMostResults && results.size() == 2 * outputs.size(),
                "there are no outputs, too many, or others than the program's");
  const auto first = outputs.get<Buffer>(0);
  JAXDML_EXPECT(first.has_value() && is_sound(**first), "an output is not a buffer, or is too large");
  const Buffer y = **first;
  RowCall call;
  for (size_t i = 0; i < outputs.size(); i++) {
    const auto output = outputs.get<Buffer>(i);
    JAXDML_EXPECT(output.has_value() && is_sound(**output), "an output is not a buffer, or is too large");
    const Buffer each = **output;
    const size_t rank = y.dimensions().size();
    JAXDML_EXPECT(rank && each.dimensions().size() == rank && leads(each, y, rank, rank) &&
                      each.element_count() == y.element_count(),
                  "an output has no rows, or outputs differ in shape");
    JAXDML_EXPECT(each.element_type() == ffi::DataType::F32 || is_byte(each),
                  "an output has neither floats nor 8-bit integers");
    const int64_t slots[] = {results[2 * i], results[2 * i + 1]};
    JAXDML_EXPECT(std::min(slots[0], slots[1]) >= 0 && std::max(slots[0], slots[1]) < kMostSlots,
                  "a result is in a slot that has no value");
    call.results.push_back({static_cast<uint8_t*>(each.untyped_data()), *row_type(each.element_type()), int32_t(slots[0]),
                            int32_t(slots[1])});
  }
  std::vector<RowArgument> arguments;
  JAXDML_RETURN_IF_WRONG(read_arguments(given, arguments));
  JAXDML_RETURN_IF_WRONG(read_rows(arguments, y.dimensions(), program, call));
  if (!y.element_count()) return ffi::Error::Success();
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

int32_t last_slot(Numbers program) {
  const bool has_slot = program.size() >= kNumbers;
  const int64_t slot = has_slot ? program[program.size() - kNumbers + 1] : 0;
  return slot >= 0 && slot < kMostSlots ? int32_t(slot) : 0;
}

ffi::Error read_arguments(ffi::RemainingArgs from, std::vector<RowArgument>& arguments) {
  for (size_t i = 0; i < from.size(); i++) {
    const auto x = from.get<Buffer>(i);
    JAXDML_EXPECT(x.has_value() && is_sound(*x), "an operand is not a buffer, or is too large");
    arguments.push_back({x->dimensions(), x->element_type(), static_cast<const uint8_t*>(x->untyped_data())});
  }
  return ffi::Error::Success();
}

ffi::Error read_rows(const std::vector<RowArgument>& arguments, Numbers of_y, Numbers program, RowCall& call) {
  JAXDML_EXPECT(arguments.size() <= size_t(kMostSlots), "a program has too many operands");
  RowProgram& one = call.program;
  one = {};
  one.results = call.results.data();
  one.result_count = int64_t(call.results.size());
  one.rank = int64_t(of_y.size()) - 1;
  one.extents = of_y.begin();
  one.rows = product(of_y, 0, size_t(one.rank));
  one.columns = of_y.back();
  for (const RowArgument& x : arguments) {
    JAXDML_EXPECT(row_type(x.type), "an operand has neither floats, truth values, 8-bit nor 32-bit integers");
    JAXDML_EXPECT(leads(x.extents, of_y, size_t(one.rank), of_y.size()), "an operand's rows differ from the output's");
    if (x.extents.back() != 1) one.columns = x.extents.back();
  }
  JAXDML_EXPECT(of_y.back() == one.columns || of_y.back() == 1, "the output's columns differ from an operand's");
  for (const RowArgument& x : arguments) {
    const int64_t columns = x.extents.back(), rows_of_x = product(x.extents, 0, size_t(one.rank));
    JAXDML_EXPECT(columns == one.columns || columns == 1, "an operand's columns differ from another's");
    call.operands.push_back({x.at, x.extents.begin(), *row_type(x.type), columns == one.columns,
                             rows_of_x > 1, rows_of_x == one.rows, rows_of_x == 1});
  }
  one.operand_count = int64_t(call.operands.size());
  one.operands = call.operands.data();
  one.is_wide = of_y.back() == one.columns;
  if (!one.rows || !of_y.back()) return ffi::Error::Success();
  JAXDML_EXPECT(one.columns, "a row has no elements");
  JAXDML_RETURN_IF_WRONG(read_program(program, one, call.operands, call.instructions));
  JAXDML_EXPECT(!one.has_reductions || one.columns <= kMostReduced, "a row is too long to be reduced");
  return ffi::Error::Success();
}

JAXDML_HANDLER(jaxdml_cpu_rows, rows,
               ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attr<Numbers>("program").Attr<Numbers>("results"))

}  // namespace jaxdml
