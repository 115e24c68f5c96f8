// The kernel table of one instruction set. The build compiles this file once for each set, whose name is JAXDML_ISA.
//
// The tables are constant-initialized. A dynamic initializer would be compiled for the instruction set, and would run
// when the library is loaded, even on processors that lack the instructions.
#include "attention.h"
#include "blocks.h"
#include "convolve.h"
#include "dequantize_blocks.h"
#include "elementwise.h"
#include "look_up.h"
#include "lstm.h"
#include "matmul.h"
#include "max_pool.h"
#include "means.h"
#include "pack_blocks.h"
#include "products.h"
#include "quantize_rows.h"
#include "row_programs.h"

namespace jaxdml {

#define JAXDML_STRING(x) JAXDML_STRING_(x)
#define JAXDML_STRING_(x) #x

template <bool kHasTiles>
constexpr Kernels kernels(const char* name) {
  Kernels table = {};
  table.name = name;
  table.matrix_mark = JAXDML_ISA::kMatrixMark;
  table.filter_mark = JAXDML_ISA::kFilterMark;
  table.matrix_bytes = JAXDML_ISA::matrix_bytes;
  table.pack_matrix = JAXDML_ISA::pack_matrix;
  table.filter_bytes = JAXDML_ISA::filter_bytes;
  table.pack_filter = JAXDML_ISA::pack_filter;
  table.pace = JAXDML_ISA::kDepth;
  table.most_raw_rows = JAXDML_ISA::kMostRawRows;
  table.matmul_scratch = JAXDML_ISA::matmul_scratch<kHasTiles>;
  table.matmul = JAXDML_ISA::matmul<kHasTiles>;
  table.convolve_scratch = JAXDML_ISA::convolve_scratch;
  table.convolve = JAXDML_ISA::convolve<kHasTiles>;
  table.add = JAXDML_ISA::add;
  table.quantize = JAXDML_ISA::quantize;
  table.dequantize = JAXDML_ISA::dequantize;
  table.quantize_rows = JAXDML_ISA::quantize_rows;
  table.extremes = JAXDML_ISA::extremes;
  table.row_sums = JAXDML_ISA::row_sums;
  table.means = JAXDML_ISA::means;
  table.max_pool_scratch = JAXDML_ISA::max_pool_scratch;
  table.max_pool = JAXDML_ISA::max_pool;
  table.look_up = JAXDML_ISA::look_up;
  table.products = JAXDML_ISA::products;
  table.row_program_scratch = JAXDML_ISA::row_program_scratch;
  table.run_rows = JAXDML_ISA::run_rows;
  table.attention_scratch = JAXDML_ISA::attention_scratch;
  table.attention = JAXDML_ISA::attention;
  table.lstm_scratch = JAXDML_ISA::lstm_scratch;
  table.lstm = JAXDML_ISA::lstm;
  table.dequantize_blocks = JAXDML_ISA::dequantize_blocks;
  table.pack_blocks = JAXDML_ISA::pack_blocks;
  table.multiply_blocks_scratch = JAXDML_ISA::multiply_blocks_scratch;
  table.multiply_blocks = JAXDML_ISA::multiply_blocks;
  return table;
}

extern constexpr Kernels JAXDML_KERNELS = kernels<false>(JAXDML_STRING(JAXDML_ISA));
#ifdef JAXDML_HAS_TILES
// AMX kernels share the AVX512-VNNI code and its layout of packed weights: every processor with AMX has AVX512-VNNI.
extern constexpr Kernels kAmxInt8 = kernels<true>("amx_int8");
#endif

}  // namespace jaxdml
