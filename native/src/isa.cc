// The kernels of one instruction set. This file is compiled once for each, with JAXDML_ISA as its name.
#include "convolve.h"
#include "elementwise.h"
#include "matmul.h"

namespace jaxdml {

#define JAXDML_STRING(x) JAXDML_STRING_(x)
#define JAXDML_STRING_(x) #x

// clang-format off
extern const Kernels JAXDML_KERNELS = {
    JAXDML_STRING(JAXDML_ISA),
    JAXDML_ISA::kMatrixMark,
    JAXDML_ISA::kFilterMark,
    JAXDML_ISA::matrix_bytes,
    JAXDML_ISA::pack_matrix,
    JAXDML_ISA::filter_bytes,
    JAXDML_ISA::pack_filter,
    JAXDML_ISA::matmul_scratch,
    JAXDML_ISA::matmul,
    JAXDML_ISA::convolve_scratch,
    JAXDML_ISA::convolve,
    JAXDML_ISA::add,
    JAXDML_ISA::quantize,
    JAXDML_ISA::dequantize,
    JAXDML_ISA::extremes,
    JAXDML_ISA::row_sums,
};
// clang-format on

}  // namespace jaxdml
