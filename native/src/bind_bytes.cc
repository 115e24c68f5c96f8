// The handlers of pooling, table look-ups, and elementwise products by onnxruntime's formula.
#include <algorithm>
#include <vector>

#include "handler.h"
#include "processor.h"
#include "scratch.h"
#include "threads.h"

namespace jaxdml {
namespace {

// x is [..., height, width]; the output has the same rank.
ffi::Error max_pool(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, ffi::Result<Buffer> result,
                    Numbers window, Numbers strides, Numbers dilations, Numbers start_padding, Numbers end_padding) {
  const Buffer y = *result;
  const Numbers of_x = x.dimensions(), of_y = y.dimensions();
  JAXDML_EXPECT(is_byte(x) && y.element_type() == x.element_type(), "x or the output is not int8 or uint8");
  JAXDML_EXPECT(of_x.size() >= 2 && of_y.size() == of_x.size(), "x or the output is not a batch of images");
  const size_t outer = of_x.size() - 2;
  for (size_t i = 0; i < outer; i++)
    JAXDML_EXPECT(of_x[i] == of_y[i], "x and the output have different numbers of images");
  for (const Numbers& numbers : {window, strides, dilations, start_padding, end_padding})
    JAXDML_EXPECT(numbers.size() == 2, "an option needs two numbers");
  MaxPool one = {};
  one.images = product(of_x, 0, outer);
  one.height = of_x[outer];
  one.width = of_x[outer + 1];
  one.y_height = of_y[outer];
  one.y_width = of_y[outer + 1];
  for (size_t i = 0; i < 2; i++) {
    JAXDML_EXPECT(window[i] > 0 && strides[i] > 0 && dilations[i] > 0,
                  "windows, strides and dilations must be at least 1");
    const Size reach = Size(window[i] - 1) * dilations[i];
    const Size padded = Size(of_x[outer + i]) + start_padding[i] + end_padding[i];
    JAXDML_EXPECT(reach < padded && of_y[outer + i] == (padded.number() - reach.number() - 1) / strides[i] + 1,
                  "the output's size does not follow from x and options");
    one.window[i] = window[i];
    one.stride[i] = strides[i];
    one.dilation[i] = window[i] == 1 ? 1 : dilations[i];
    one.start[i] = start_padding[i];
  }
  if (!one.images) return ffi::Error::Success();
  one.x = static_cast<const uint8_t*>(x.untyped_data());
  one.is_signed = is_signed(x);
  one.y = static_cast<uint8_t*>(y.untyped_data());
  const int64_t elements = one.images * std::max(one.height * one.width, one.y_height * one.y_width);
  const Pool pool = pool_of(threads, elements * 8);
  const Scratch scratch(kernels.max_pool_scratch(one, pool.threads));
  if (!scratch.is_there()) return no_memory();
  kernels.max_pool(pool, one, scratch.at());
  return ffi::Error::Success();
}

// x is [..., rows, depth]; the output is [..., rows].
ffi::Error means(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, Buffer x_scale, Buffer x_zero_point,
                 Buffer y_scale, Buffer y_zero_point, ffi::Result<Buffer> result, int64_t leading_count) {
  const Buffer y = *result;
  const Numbers of_y = y.dimensions();
  const size_t leading = size_t(leading_count);
  JAXDML_EXPECT(leading_count >= 0 && of_y.size() == leading + 1 && leads(x, y, leading, leading + 2) &&
                    x.dimensions()[leading] == of_y[leading],
                "the output needs one mean per row of x");
  JAXDML_EXPECT(is_byte(x) && is_byte(y), "x or the output is not int8 or uint8");
  for (const Buffer& p : {x_scale, y_scale})
    JAXDML_EXPECT(p.element_type() == ffi::DataType::F32 && leads(p, y, leading, leading),
                  "a scale is not one float32 element");
  for (const Buffer& p : {x_zero_point, y_zero_point})
    JAXDML_EXPECT(is_byte(p) && leads(p, y, leading, leading), "a zero point is not one int8 or uint8 element");
  const int64_t count = product(of_y, 0, leading), rows = of_y[leading], depth = x.dimensions()[leading + 1];
  if (!count || !rows) return ffi::Error::Success();
  JAXDML_EXPECT(depth > 0 && depth < int64_t(1) << 27, "a row is empty, or its sum overflows int32");
  const Size work = Size(count) * rows * (depth + 16);
  JAXDML_EXPECT(work.is_size(), "there are too many rows");
  const FloatMode mode;
  std::vector<Means> problems;
  for (int64_t i = 0; i < count; i++) {
    const auto at = [&](Buffer of) { return at_problem(of, y, leading, i); };
    problems.push_back({rows, depth, at(x), *reinterpret_cast<const float*>(at(x_scale)),
                        *reinterpret_cast<const float*>(at(y_scale)), integer_at(at(x_zero_point), x_zero_point),
                        integer_at(at(y_zero_point), y_zero_point), is_signed(x), is_signed(y), at(y)});
  }
  kernels.means(pool_of(threads, work.number()), problems.data(), count);
  return ffi::Error::Success();
}

ffi::Error looked_up(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, Buffer table,
                     ffi::Result<Buffer> result, int64_t leading_count) {
  const Buffer y = *result;
  const Numbers of_y = y.dimensions();
  const size_t rank = of_y.size(), leading = size_t(leading_count);
  JAXDML_EXPECT(leading_count >= 0 && leads(x, y, leading, rank), "x and the output differ in leading dimensions");
  for (size_t i = leading; i < rank; i++)
    JAXDML_EXPECT(x.dimensions()[i] == of_y[i], "the shape of x differs from the output's");
  JAXDML_EXPECT((is_byte(x) || is_word(x)) && (is_byte(y) || is_word(y)) && y.element_type() == table.element_type(),
                "x or the table does not have 8-bit or 16-bit integers, or the output has another type than the table");
  const int64_t x_width = is_byte(x) ? 1 : 2, y_width = is_byte(y) ? 1 : 2;
  JAXDML_EXPECT(leads(table, y, leading, leading + 1) && table.dimensions()[leading] == int64_t(1) << 8 * x_width,
                "a table does not have one entry per integer of x's type, or its leading dimensions differ from the "
                "output's");
  const int64_t count = product(of_y, 0, leading), size = product(of_y, leading, rank);
  if (!count || !size) return ffi::Error::Success();
  static const bool has_vbmi = has_avx512_vbmi();  // CPUID is slow in a virtual machine, where it traps
  std::vector<LookUp> problems;
  for (int64_t i = 0; i < count; i++)
    problems.push_back({size, at_problem(x, y, leading, i), at_problem(table, y, leading, i), x_width, y_width,
                        is_signed(x), has_vbmi, at_problem(y, y, leading, i)});
  kernels.look_up(pool_of(threads, count * size * 4), problems.data(), count);
  return ffi::Error::Success();
}

// Finds the run: the number of elements of `a` for each element of `b`. The first extents of `b` equal the output's,
// and the others are 1.
ffi::Error read_run(Numbers of_b, Numbers of_y, size_t leading, int64_t& run) {
  size_t i = leading;
  while (i < of_y.size() && of_b[i] == of_y[i]) i++;
  run = product(of_y, i, of_y.size());
  for (; i < of_y.size(); i++)
    JAXDML_EXPECT(of_b[i] == 1,
                  "the shape of b is neither the output's, nor the output's first extents followed by ones");
  return ffi::Error::Success();
}

ffi::Error products(const Kernels& kernels, ffi::ThreadPool threads, Buffer a, Buffer a_zero_point, Buffer b,
                    Buffer b_zero_point, Buffer multiplier, Buffer y_zero_point, ffi::Result<Buffer> result,
                    int64_t leading_count) {
  const Buffer y = *result;
  const Numbers of_y = y.dimensions();
  const size_t rank = of_y.size(), leading = size_t(leading_count);
  JAXDML_EXPECT(leading_count >= 0 && leads(a, y, leading, rank) && leads(b, y, leading, rank),
                "an operand's leading dimensions differ from the output's");
  for (size_t i = leading; i < rank; i++)
    JAXDML_EXPECT(a.dimensions()[i] == of_y[i], "the shape of a differs from the output's");
  int64_t run = 1;
  JAXDML_RETURN_IF_WRONG(read_run(b.dimensions(), of_y, leading, run));
  JAXDML_EXPECT(is_byte(a) && is_byte(b) && is_byte(y), "a tensor is not int8 or uint8");
  JAXDML_EXPECT(multiplier.element_type() == ffi::DataType::F32 && leads(multiplier, y, leading, leading),
                "the multiplier is not one float32 element");
  for (const Buffer& p : {a_zero_point, b_zero_point, y_zero_point})
    JAXDML_EXPECT(is_byte(p) && leads(p, y, leading, leading), "a zero point is not one int8 or uint8 element");
  const int64_t count = product(of_y, 0, leading), size = product(of_y, leading, rank);
  if (!count || !size) return ffi::Error::Success();
  const FloatMode mode;
  std::vector<Product> problems;
  for (int64_t i = 0; i < count; i++) {
    const auto at = [&](Buffer of) { return at_problem(of, y, leading, i); };
    const auto zero_point = [&](Buffer of) { return integer_at(at(of), of); };
    problems.push_back({size, run, at(a), at(b), *reinterpret_cast<const float*>(at(multiplier)),
                        zero_point(a_zero_point), zero_point(b_zero_point), zero_point(y_zero_point), is_signed(a),
                        is_signed(b), is_signed(y), at(y)});
  }
  kernels.products(pool_of(threads, count * size * 8), problems.data(), count);
  return ffi::Error::Success();
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_max_pool, max_pool,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<Numbers>("window")
                   .Attr<Numbers>("strides")
                   .Attr<Numbers>("dilations")
                   .Attr<Numbers>("start_padding")
                   .Attr<Numbers>("end_padding"))
JAXDML_HANDLER(jaxdml_cpu_means, means,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // x, its scale and zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // scale and zero point of the mean
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<int64_t>("leading_count"))
JAXDML_HANDLER(
    jaxdml_cpu_looked_up, looked_up,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Arg<Buffer>().Ret<Buffer>().Attr<int64_t>("leading_count"))
JAXDML_HANDLER(jaxdml_cpu_products, products,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // a and its zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // b
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // multiplier
                   .Arg<Buffer>()  // zero point of the product
                   .Ret<Buffer>()
                   .Attr<int64_t>("leading_count"))

}  // namespace jaxdml
