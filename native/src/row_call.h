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
  std::vector<RowResult> results;  // the caller sets these
  std::vector<RowOperand> operands;
  std::vector<RowInstruction> instructions;
};

// Appends the remaining arguments of a call.
ffi::Error read_arguments(ffi::RemainingArgs from, std::vector<RowArgument>& arguments);

// The slot that the last instruction writes; 0 if there is none.
int32_t last_slot(Numbers program);

// The arguments and y are [..., columns] and have the same rank; each extent of an argument is 1 or equals y's. The
// last extent of y may also be 1. The call refers to the arguments' extents, and to those of y. If y is empty, the
// program is not read.
ffi::Error read_rows(const std::vector<RowArgument>& arguments, Numbers of_y, Numbers program, RowCall& call);

}  // namespace jaxdml
