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
    JAXDML_ISA::kMostRawRows,
    JAXDML_ISA::matmul_scratch<false>,
    JAXDML_ISA::matmul<false>,
    JAXDML_ISA::convolve_scratch,
    JAXDML_ISA::convolve<false>,
    JAXDML_ISA::add,
    JAXDML_ISA::quantize,
    JAXDML_ISA::dequantize,
    JAXDML_ISA::extremes,
    JAXDML_ISA::row_sums,
};
// clang-format on

#ifdef __AVX512VNNI__
// Processors that have AMX have AVX512-VNNI, and packed weights are the same.
static Kernels with_tiles(Kernels kernels) {
  kernels.name = "amx_int8";
  kernels.matmul_scratch = JAXDML_ISA::matmul_scratch<true>;
  kernels.matmul = JAXDML_ISA::matmul<true>;
  kernels.convolve = JAXDML_ISA::convolve<true>;
  return kernels;
}
extern const Kernels kAmxInt8 = with_tiles(JAXDML_KERNELS);
#endif

}  // namespace jaxdml
