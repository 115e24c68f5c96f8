// The handlers of elementwise kernels and of reductions.
#include <vector>

#include "handler.h"
#include "threads.h"

namespace jaxdml {
namespace {

float number(const uint8_t* at) { return *reinterpret_cast<const float*>(at); }

// check_tensor expects a tensor of the output's shape; check_numbers expects a scale and a zero point of one element.
ffi::Error check_tensor(Buffer x, Buffer y, int64_t leading_count) {
  const size_t rank = y.dimensions().size(), leading = size_t(leading_count);
  JAXDML_EXPECT(leading_count >= 0 && leads(x, y, leading, rank),
                "an operand's leading dimensions differ from the output's");
  for (size_t i = leading; i < rank; i++)
    JAXDML_EXPECT(x.dimensions()[i] == y.dimensions()[i], "an operand's shape differs from the output's");
  return ffi::Error::Success();
}
ffi::Error check_numbers(Buffer scale, Buffer zero_point, Buffer y, int64_t leading_count) {
  const size_t leading = size_t(leading_count);
  JAXDML_EXPECT(scale.element_type() == ffi::DataType::F32 && leads(scale, y, leading, leading),
                "a scale is not one float32 element");
  JAXDML_EXPECT((is_byte(zero_point) || is_word(zero_point)) && leads(zero_point, y, leading, leading),
                "a zero point is not one element of 8 or 16 bits");
  return ffi::Error::Success();
}

// Runs the kernel on one problem for each index of the leading dimensions; make(index, size) returns the problem.
template <class Problem, class Make>
ffi::Error compute_each(ffi::ThreadPool& threads, Buffer y, int64_t leading,
                        void (*kernel)(const Pool&, const Problem*, int64_t), const Make& make) {
  const auto dims = y.dimensions();
  const int64_t count = product(dims, 0, size_t(leading)), size = product(dims, size_t(leading), dims.size());
  if (!count || !size) return ffi::Error::Success();
  const FloatMode mode;
  std::vector<Problem> problems;
  for (int64_t i = 0; i < count; i++) problems.push_back(make(i, size));
  kernel(pool_of(threads, count * size * 8), problems.data(), count);
  return ffi::Error::Success();
}

ffi::Error add(const Kernels& kernels, ffi::ThreadPool threads, Buffer a, Buffer a_scale, Buffer a_zero_point, Buffer b,
               Buffer b_scale, Buffer b_zero_point, Buffer y_scale, Buffer y_zero_point, ffi::Result<Buffer> result,
               int64_t leading) {
  const Buffer y = *result;
  for (const Buffer& x : {a, b}) JAXDML_RETURN_IF_WRONG(check_tensor(x, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(a_scale, a_zero_point, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(b_scale, b_zero_point, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(y_scale, y_zero_point, y, leading));
  JAXDML_EXPECT(is_byte(a) && is_byte(b) && is_byte(y), "a tensor is not int8 or uint8");
  for (const Buffer& x : {a_zero_point, b_zero_point, y_zero_point})
    JAXDML_EXPECT(is_byte(x), "a zero point is not int8 or uint8");
  return compute_each(threads, y, leading, kernels.add, [&](int64_t i, int64_t size) {
    const auto at = [&](Buffer x) { return at_problem(x, y, size_t(leading), i); };
    return Sum{size,
               at(a),
               at(b),
               number(at(a_scale)),
               number(at(b_scale)),
               number(at(y_scale)),
               integer_at(at(a_zero_point), a_zero_point),
               integer_at(at(b_zero_point), b_zero_point),
               integer_at(at(y_zero_point), y_zero_point),
               is_signed(a),
               is_signed(b),
               is_signed(y),
               at(y)};
  });
}

ffi::Error quantize(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, Buffer scale, Buffer zero_point,
                    ffi::Result<Buffer> result, int64_t leading) {
  const Buffer y = *result;
  JAXDML_RETURN_IF_WRONG(check_tensor(x, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(scale, zero_point, y, leading));
  JAXDML_EXPECT(x.element_type() == ffi::DataType::F32 && (is_byte(y) || is_word(y)),
                "x is not float32, or the output does not hold 8-bit or 16-bit integers");
  JAXDML_EXPECT(is_byte(zero_point) || is_word(y), "the zero point is wider than the output");
  return compute_each(threads, y, leading, kernels.quantize, [&](int64_t i, int64_t size) {
    const auto at = [&](Buffer of) { return at_problem(of, y, size_t(leading), i); };
    return Quantization{size,
                        reinterpret_cast<const float*>(at(x)),
                        number(at(scale)),
                        integer_at(at(zero_point), zero_point),
                        is_signed(y),
                        at(y),
                        int64_t(ffi::ByteWidth(y.element_type()))};
  });
}

ffi::Error dequantize(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, Buffer scale, Buffer zero_point,
                      ffi::Result<Buffer> result, int64_t leading) {
  const Buffer y = *result;
  JAXDML_RETURN_IF_WRONG(check_tensor(x, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(scale, zero_point, y, leading));
  JAXDML_EXPECT((is_byte(x) || is_word(x)) && y.element_type() == ffi::DataType::F32,
                "x does not hold 8-bit or 16-bit integers, or the output is not float32");
  return compute_each(threads, y, leading, kernels.dequantize, [&](int64_t i, int64_t size) {
    const auto at = [&](Buffer of) { return at_problem(of, y, size_t(leading), i); };
    return Dequantization{size,
                          at(x),
                          int64_t(ffi::ByteWidth(x.element_type())),
                          number(at(scale)),
                          integer_at(at(zero_point), zero_point),
                          is_signed(x),
                          reinterpret_cast<float*>(at(y))};
  });
}

ffi::Error quantize_rows(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, ffi::Result<Buffer> result,
                         ffi::Result<Buffer> scale_result, ffi::Result<Buffer> zero_point_result) {
  const Buffer y = *result, scales = *scale_result, zero_points = *zero_point_result;
  const size_t rank = x.dimensions().size();
  JAXDML_EXPECT(rank && x.element_type() == ffi::DataType::F32, "x has no rows, or is not float32");
  JAXDML_EXPECT(
      y.element_type() == ffi::DataType::U8 && leads(y, x, rank, rank) && y.element_count() == x.element_count(),
      "the result is not uint8 of the shape of x");
  const int64_t rows = product(x.dimensions(), 0, rank - 1), depth = x.dimensions().back();
  JAXDML_EXPECT(scales.element_type() == ffi::DataType::F32 && int64_t(scales.element_count()) == rows &&
                    zero_points.element_type() == ffi::DataType::U8 && int64_t(zero_points.element_count()) == rows,
                "a row does not have one float32 scale and one uint8 zero point");
  if (!rows) return ffi::Error::Success();
  JAXDML_EXPECT(depth, "a row has no elements");
  const FloatMode mode;
  kernels.quantize_rows(
      pool_of(threads, rows * depth * 8),
      {rows, depth, static_cast<const float*>(x.untyped_data()), static_cast<uint8_t*>(y.untyped_data()),
       static_cast<float*>(scales.untyped_data()), static_cast<uint8_t*>(zero_points.untyped_data())});
  return ffi::Error::Success();
}

ffi::Error extremes(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, ffi::Result<Buffer> result,
                    int64_t leading) {
  const Buffer y = *result;
  const size_t rank = x.dimensions().size(), outer = size_t(leading);
  JAXDML_EXPECT(
      leading >= 0 && leads(x, y, outer, rank) && y.dimensions().size() == outer + 1 && y.dimensions()[outer] == 2,
      "the result needs two elements per tensor");
  JAXDML_EXPECT(x.element_type() == ffi::DataType::F32 && y.element_type() == ffi::DataType::F32, "x is not float32");
  const int64_t count = product(y.dimensions(), 0, outer), size = product(x.dimensions(), outer, rank);
  if (!count) return ffi::Error::Success();
  JAXDML_EXPECT(size, "x has no elements");
  const Size work = Size(count) * size * 8;
  JAXDML_EXPECT(work.is_size(), "there are too many tensors");
  const FloatMode mode;
  std::vector<Range> problems;
  for (int64_t i = 0; i < count; i++)
    problems.push_back({size, reinterpret_cast<const float*>(at_problem(x, y, outer, i)),
                        reinterpret_cast<float*>(at_problem(y, y, outer, i))});
  kernels.extremes(pool_of(threads, work.number()), problems.data(), count);
  return ffi::Error::Success();
}

ffi::Error row_sums(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, ffi::Result<Buffer> result) {
  const Buffer y = *result;
  const size_t rank = y.dimensions().size();
  JAXDML_EXPECT(rank && x.dimensions().size() == rank + 1 && is_byte(x) && y.element_type() == ffi::DataType::S32,
                "x is not a matrix of int8 or uint8, or the result is not int32");
  for (size_t i = 0; i < rank; i++)
    JAXDML_EXPECT(x.dimensions()[i] == y.dimensions()[i], "the result needs one sum per row");
  const int64_t rows = product(y.dimensions(), 0, rank), depth = x.dimensions()[rank];
  if (!rows) return ffi::Error::Success();
  JAXDML_EXPECT(depth < int64_t(1) << 27, "the sum of a row this long overflows int32");
  const Rows one = {rows, depth, static_cast<const uint8_t*>(x.untyped_data()), is_signed(x),
                    static_cast<int32_t*>(y.untyped_data())};
  kernels.row_sums(pool_of(threads, rows * (depth + 16)), &one, 1);
  return ffi::Error::Success();
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_add, add,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // a, its scale and zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // b
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // scale and zero point of the sum
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<int64_t>("leading_count"))
#define JAXDML_HANDLER_OF_ONE(name, function)                                                                        \
  JAXDML_HANDLER(                                                                                                    \
      name, function,                                                                                                \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Arg<Buffer>().Arg<Buffer>().Ret<Buffer>().Attr<int64_t>( \
          "leading_count"))
JAXDML_HANDLER_OF_ONE(jaxdml_cpu_quantized, quantize)
JAXDML_HANDLER_OF_ONE(jaxdml_cpu_dequantized, dequantize)
JAXDML_HANDLER(jaxdml_cpu_quantized_rows, quantize_rows,
               ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>().Ret<Buffer>().Ret<Buffer>())
JAXDML_HANDLER(jaxdml_cpu_extremes, extremes,
               ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>().Attr<int64_t>("leading_count"))
JAXDML_HANDLER(jaxdml_cpu_row_sums, row_sums, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>())

}  // namespace jaxdml
