// Runs programs of elementwise functions and reductions of rows.
#pragma once

#include "kernels.h"

namespace jaxdml::JAXDML_ISA {

int64_t row_program_scratch(const RowProgram& one, int64_t threads);
void run_rows(const Pool& pool, const RowProgram& one, uint8_t* scratch);

}  // namespace jaxdml::JAXDML_ISA
