// The handlers for block-quantized matrices: products, packing, and dequantization.
#include "block_shape.h"
#include "handler.h"
#include "scratch.h"
#include "seal.h"
#include "threads.h"

namespace jaxdml {
namespace {

bool is_nibble(Buffer x) { return x.element_type() == ffi::DataType::S4 || x.element_type() == ffi::DataType::U4; }

// The operand's elements for one problem; two 4-bit elements share a byte.
Elements elements(Buffer x, Buffer y, size_t count, int64_t problem) {
  const bool is_signed = x.element_type() == ffi::DataType::S4 || x.element_type() == ffi::DataType::S8;
  auto* const start = static_cast<uint8_t*>(x.untyped_data());
  const int64_t first = at_problem(x, y, count, problem) - start;  // counted as if each element took a byte
  return {start, first, is_nibble(x) ? 4 : 8, is_signed};
}

ffi::Error check_shape(const BlockShape& shape) {
  const int64_t extents[2] = {shape.columns, shape.depth};
  JAXDML_EXPECT(shape.columns > 0 && shape.depth > 0 && is_shape({extents, 2}), "a matrix is empty or too large");
  JAXDML_EXPECT(shape.size >= 16 && shape.size <= kMostBlockSize && !(shape.size & (shape.size - 1)),
                "blocks do not have 16, 32, 64, 128 or 256 elements");
  return ffi::Error::Success();
}

ffi::Error dequantize_blocks(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, Buffer scales,
                             Buffer zero_points, ffi::Result<Buffer> result) {
  const Buffer y = *result;
  const auto of_y = y.dimensions();
  JAXDML_EXPECT(of_y.size() >= 2 && y.element_type() == ffi::DataType::F32,
                "the output is not float32 [..., blocks, size]");
  const size_t leading = of_y.size() - 2;
  JAXDML_EXPECT(leads(x, y, leading, leading + 2) && leads(scales, y, leading, leading + 1) &&
                    leads(zero_points, y, leading, leading + 1),
                "an operand's leading dimensions differ from the output's");
  const int64_t blocks = of_y[leading], size = of_y[leading + 1], of_zero_points = zero_points.dimensions()[leading];
  JAXDML_EXPECT(
      (is_nibble(x) || is_byte(x)) && x.dimensions()[leading] == blocks && x.dimensions()[leading + 1] == size,
      "x has neither 4 nor 8 bits, or its shape differs from the output's");
  JAXDML_EXPECT(scales.element_type() == ffi::DataType::F32 && scales.dimensions()[leading] == blocks,
                "the scales are not float32, or not one for each block");
  JAXDML_EXPECT(zero_points.element_type() == x.element_type() && (of_zero_points == blocks || of_zero_points == 0),
                "the zero points differ from x in type, or are not one for each block");
  const int64_t count = product(of_y, 0, leading);
  if (!count || !blocks || !size) return ffi::Error::Success();
  const FloatMode mode;
  const Pool pool = pool_of(threads, blocks * size * 8);
  for (int64_t i = 0; i < count; i++) {
    Elements zeros = elements(zero_points, y, leading, i);
    if (!of_zero_points) zeros.at = nullptr;
    const auto at = [&](Buffer of) { return reinterpret_cast<float*>(at_problem(of, y, leading, i)); };
    kernels.dequantize_blocks(pool, {blocks, size, elements(x, y, leading, i), zeros, at(scales), at(y)});
  }
  return ffi::Error::Success();
}

ffi::Error pack_blocks(const Kernels& kernels, ffi::ThreadPool threads, Buffer b, Buffer scales, Buffer zero_points,
                       ffi::Result<Buffer> result, int64_t block_size) {
  const Buffer y = *result;
  const auto to = y.dimensions();
  JAXDML_EXPECT(to.size() >= 1 && y.element_type() == ffi::DataType::S8, "the result is not int8");
  const size_t leading = to.size() - 1;
  for (const Buffer& x : {b, scales, zero_points})
    JAXDML_EXPECT(leads(x, y, leading, leading + 2), "an operand's leading dimensions differ from the result's");
  JAXDML_EXPECT(is_nibble(b) || is_byte(b), "b has neither 4 nor 8 bits");
  const bool are_halves = scales.element_type() == ffi::DataType::F16;
  JAXDML_EXPECT(are_halves || scales.element_type() == ffi::DataType::F32, "the scales are not float32 or float16");
  const auto of_b = b.dimensions(), of_scales = scales.dimensions(), of_zero_points = zero_points.dimensions();
  const BlockShape shape = {of_b[leading],        of_b[leading + 1],  block_size,
                            is_nibble(b) ? 4 : 8, are_halves ? 2 : 4, of_zero_points[leading + 1] != 0};
  JAXDML_RETURN_IF_WRONG(check_shape(shape));
  JAXDML_EXPECT(of_scales[leading] == shape.columns && of_scales[leading + 1] == blocks_of(shape),
                "the scales need one element for each block");
  JAXDML_EXPECT(zero_points.element_type() == b.element_type(), "b and its zero points differ in type");
  JAXDML_EXPECT(!shape.has_zero_points ||
                    (of_zero_points[leading] == shape.columns && of_zero_points[leading + 1] == blocks_of(shape)),
                "the zero points need one element for each block");
  const int64_t bytes = packed_bytes(shape), count = product(to, 0, leading);
  JAXDML_EXPECT(to[leading] == bytes, "the result does not have the size of the packed matrix");
  if (!count) return ffi::Error::Success();
  const Size work = Size(count) * shape.columns * shape.depth;
  JAXDML_EXPECT(work.is_size(), "there are too many matrices");
  const Pool pool = pool_of(threads, work.number());
  for (int64_t i = 0; i < count; i++) {
    auto* const packed = static_cast<uint8_t*>(y.untyped_data()) + i * bytes;
    kernels.pack_blocks(
        pool,
        {shape, elements(b, y, leading, i), elements(zero_points, y, leading, i), at_problem(scales, y, leading, i)},
        packed);
    seal(packed, bytes);
  }
  return ffi::Error::Success();
}

ffi::Error multiply_blocks(const Kernels& kernels, ffi::ThreadPool threads, Buffer a, Buffer b, Buffer bias,
                           ffi::Result<Buffer> result, int64_t columns, int64_t depth, int64_t block_size, int64_t bits,
                           int64_t scale_bytes, int64_t planes, bool has_zero_points) {
  const Buffer y = *result;
  const auto of_y = y.dimensions();
  JAXDML_EXPECT(of_y.size() >= 2 && y.element_type() == ffi::DataType::F32, "the product is not a matrix of float32");
  const size_t leading = of_y.size() - 2;
  JAXDML_EXPECT(
      leads(a, y, leading, leading + 2) && leads(b, y, leading, leading + 1) && leads(bias, y, leading, leading + 1),
      "an operand's leading dimensions differ from the product's");
  JAXDML_EXPECT((bits == 4 || bits == 8) && (scale_bytes == 2 || scale_bytes == 4) && planes >= 1 && planes <= 3,
                "bits is not 4 or 8, scale_bytes is not 2 or 4, or planes is not 1, 2 or 3");
  const BlockShape shape = {columns, depth, block_size, int(bits), int(scale_bytes), has_zero_points};
  JAXDML_RETURN_IF_WRONG(check_shape(shape));
  const int64_t rows = of_y[leading], bytes = packed_bytes(shape);
  JAXDML_EXPECT(of_y[leading + 1] == columns, "the product's columns differ from b's");
  JAXDML_EXPECT(
      a.element_type() == ffi::DataType::F32 && a.dimensions()[leading] == rows && a.dimensions()[leading + 1] == depth,
      "a is not float32, or its shape does not match b and the product");
  JAXDML_EXPECT(b.element_type() == ffi::DataType::S8 && b.dimensions()[leading] == bytes,
                "b was packed for another shape");
  const int64_t bias_size = bias.dimensions()[leading];
  JAXDML_EXPECT(bias.element_type() == ffi::DataType::F32 && (bias_size == columns || bias_size == 0),
                "the bias is not float32, or not one for each column");
  const int64_t count = product(of_y, 0, leading);
  if (!count || !rows) return ffi::Error::Success();
  const Size multiplications = Size(count * rows * columns) * depth * planes;
  JAXDML_EXPECT(multiplications.is_size(), "the product needs too many multiplications");

  const FloatMode mode;
  const Pool pool = pool_of(threads, multiplications.number());
  const auto is_shared = [&](Buffer x) { return product(x.dimensions(), 0, leading) == 1; };
  // Problems that share b and the bias are merged into one.
  const bool is_one = is_shared(b) && is_shared(bias) && product(a.dimensions(), 0, leading) == count;
  for (int64_t i = 0; i < (is_one ? 1 : count); i++) {
    const auto at = [&](Buffer x) { return at_problem(x, y, leading, i); };
    if (!is_sealed(at(b), bytes, kBlocksMark)) return not_packed("b");
    const BlockProduct one = {shape,
                              is_one ? count * rows : rows,
                              planes,
                              reinterpret_cast<const float*>(at(a)),
                              at(b),
                              bias_size ? reinterpret_cast<const float*>(at(bias)) : nullptr,
                              reinterpret_cast<float*>(at(y))};
    const Scratch scratch(kernels.multiply_blocks_scratch(one));
    if (!scratch.is_there()) return no_memory();
    kernels.multiply_blocks(pool, one, scratch.at());
  }
  return ffi::Error::Success();
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_dequantize_blocks, dequantize_blocks,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // x, its scales and zero points
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Ret<Buffer>())
JAXDML_HANDLER(jaxdml_cpu_pack_blocks, pack_blocks,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // b, its scales and zero points
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<int64_t>("block_size"))
JAXDML_HANDLER(jaxdml_cpu_matmul_blocks, multiply_blocks,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // a, b, bias
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<int64_t>("columns")
                   .Attr<int64_t>("depth")
                   .Attr<int64_t>("block_size")
                   .Attr<int64_t>("bits")
                   .Attr<int64_t>("scale_bytes")
                   .Attr<int64_t>("planes")
                   .Attr<bool>("has_zero_points"))

}  // namespace jaxdml
