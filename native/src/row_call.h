// Validates the operands and the program of a call that runs a program on rows.
#pragma once

#include <vector>

#include "handler.h"

namespace jaxdml {

// A buffer, or an intermediate result that has none.
struct RowArgument {
  Numbers extents;
  ffi::DataType type;
  const uint8_t* at;
};

struct RowCall {
  RowProgram program;
  std::vector<RowOperand> operands;
  std::vector<size_t> sources;  // the argument that each operand reads
  std::vector<RowInstruction> instructions;
  std::vector<RowResult> results;  // without addresses and types
};

using RowResults = std::vector<Buffer>;

// Appends the remaining arguments of a call.
ffi::Error read_arguments(ffi::RemainingArgs from, std::vector<RowArgument>& arguments);

// Reads the results of a call: one or more arrays of floats or 8-bit integers.
ffi::Error read_results(ffi::RemainingRets from, RowResults& results);
bool are_empty(const RowResults& results);

// `operands` has an argument and its first column for each operand. Arguments have y's rank, and each extent but the
// last is 1 or equals y's. The last is 1, or there are `columns` from the first column on. y's last extent is not read.
// The call refers to the extents of the arguments and of y.
ffi::Error read_operands(const std::vector<RowArgument>& arguments, Numbers of_y, int64_t columns, Numbers operands,
                         RowCall& call);

// `instructions` has five numbers for each instruction. `results` has two slots for each result: those of its value and
// of its zero point, which floats do not read.
ffi::Error read_program(Numbers instructions, Numbers results, RowCall& call);

// Sets the addresses and types of a program's results. The last extent of each is 1 or the program's columns.
ffi::Error bind_results(const RowResults& results, RowCall& call);

}  // namespace jaxdml
