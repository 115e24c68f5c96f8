// XLA FFI handlers of the kernels. A handler validates each buffer's shape before it computes a pointer into the
// buffer.
//
// A call has one problem for each index of its leading dimensions, which come from vmap and from batched products. An
// operand is broadcast along each leading dimension in which its size is 1.
#include <cstring>
#include <new>
#include <vector>

#include "buffers.h"
#include "kernels.h"
#include "processor.h"
#include "scratch.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jaxdml {
namespace {

const Kernels* chosen = nullptr;

bool runs_here(const Kernels& kernels) {
  if (&kernels == &kAvx2) return has_avx2();
  return &kernels == &kAmxInt8 ? has_amx_int8() : has_avx512_vnni();
}

// Merges adjacent problems that share one matrix b into a single problem with more rows.
void merge_rows(std::vector<Matmul>& problems) {
  const Matmul one = problems[0];
  const int64_t count = int64_t(problems.size()), bytes = one.type == Type::kInt32 ? 4 : 1;
  for (int64_t i = 0; i < count; i++) {
    const Matmul& other = problems[size_t(i)];
    const int64_t rows = i * one.rows;
    const bool is_next = other.a == one.a + rows * one.depth && other.b == one.b &&
                         other.y == static_cast<uint8_t*>(one.y) + rows * one.columns * bytes &&
                         other.a_scale.at == one.a_scale.at + rows * one.a_scale.step &&
                         other.y_scale.at == one.y_scale.at + rows * one.y_scale.step &&
                         other.b_scale.at == one.b_scale.at && other.b_zero_point.at == one.b_zero_point.at &&
                         other.a_zero_point.at == one.a_zero_point.at + rows * one.a_zero_point.step &&
                         other.y_zero_point.at == one.y_zero_point.at + rows * one.y_zero_point.step;
    if (!is_next) return;
  }
  problems.resize(1);
  problems[0].rows *= count;
}

ffi::Error matmul(ffi::ThreadPool threads, ffi::AnyBuffer a, ffi::AnyBuffer a_scale, ffi::AnyBuffer a_zero_point,
                  ffi::AnyBuffer b, ffi::AnyBuffer b_scale, ffi::AnyBuffer b_zero_point, ffi::AnyBuffer y_scale,
                  ffi::AnyBuffer y_zero_point, ffi::Result<ffi::AnyBuffer> result, bool is_packed) {
  const ffi::AnyBuffer y = *result;
  const size_t rank = y.dimensions().size();
  JAXDML_EXPECT(chosen, "no kernels were chosen");
  JAXDML_EXPECT(rank >= 2 && is_type(y), "the product is not a matrix of int8, uint8 or int32");
  const size_t leading = rank - 2;
  for (const ffi::AnyBuffer& x : {a, b, a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point})
    JAXDML_EXPECT(leads(x, y, leading, rank), "an operand's leading dimensions differ from the product's");
  const int64_t rows = y.dimensions()[leading], columns = y.dimensions()[leading + 1];
  const int64_t depth = a.dimensions()[leading + 1];
  JAXDML_EXPECT(is_byte(a) && a.dimensions()[leading] == rows,
                "a is not int8 or uint8, or its rows differ from the product's");
  for (const ffi::AnyBuffer& x : {a_scale, b_scale, y_scale})
    JAXDML_EXPECT(x.element_type() == ffi::DataType::F32, "a scale is not float32");
  for (const ffi::AnyBuffer& x : {a_zero_point, b_zero_point, y_zero_point})
    JAXDML_EXPECT(is_byte(x), "a zero point is not int8 or uint8");
  for (const ffi::AnyBuffer& x : {a_scale, a_zero_point, y_scale, y_zero_point})
    JAXDML_EXPECT(is_along(x, leading, leading, rows),
                  "a parameter of matrix a or of the product needs one element, or one per row");
  for (const ffi::AnyBuffer& x : {b_scale, b_zero_point})
    JAXDML_EXPECT(is_along(x, leading, leading + 1, columns), "a parameter of b needs one element, or one per column");
  JAXDML_EXPECT(is_signed(a) == is_signed(a_zero_point), "a and its zero point differ in type");
  const int64_t packed_bytes = chosen->matrix_bytes(depth, columns);
  const auto of_b = b.dimensions();
  if (is_packed) {
    JAXDML_EXPECT(of_b[leading] == 1 && of_b[leading + 1] == packed_bytes, "b was packed for another shape");
  } else {
    JAXDML_EXPECT(
        is_byte(b) && is_signed(b) == is_signed(b_zero_point) && of_b[leading] == depth && of_b[leading + 1] == columns,
        "b's type differs from its zero point's, or its shape does not match a and the product");
  }
  const int64_t count = product(y.dimensions(), 0, leading);
  if (!count || !rows || !columns) return ffi::Error::Success();

  const FloatMode mode;
  const Pool pool = pool_of(threads, checked_product(count * rows * columns, depth));
  // An unpacked b stays unpacked if there are few rows and each problem has its own b; otherwise this call packs b.
  const bool is_raw = !is_packed && depth && rows <= chosen->most_raw_rows && product(of_b, 0, leading) == count;
  const int64_t matrices = is_packed || is_raw ? 0 : product(of_b, 0, leading);
  const Scratch packed(checked_product(matrices, packed_bytes));
  if (!packed.is_there()) return no_memory();
  for (int64_t i = 0; i < matrices; i++)
    chosen->pack_matrix(pool, static_cast<const uint8_t*>(b.untyped_data()) + i * depth * columns, is_signed(b), depth,
                        columns, packed.at() + i * packed_bytes);

  std::vector<Matmul> problems;
  for (int64_t i = 0; i < count; i++) {
    const uint8_t* b_at = at_problem(b, y, leading, i);
    if (is_packed && !begins_with(b_at, chosen->matrix_mark)) return not_packed("b");
    if (matrices) {
      const int64_t from = b_at - static_cast<const uint8_t*>(b.untyped_data());
      b_at = packed.at() + (depth ? from / (depth * columns) : 0) * packed_bytes;
    }
    problems.push_back({rows, depth, columns, at_problem(a, y, leading, i), b_at, is_raw,
                        scales(a_scale, y, leading, i), scales(b_scale, y, leading, i), scales(y_scale, y, leading, i),
                        zero_points(a_zero_point, y, leading, i), zero_points(b_zero_point, y, leading, i),
                        zero_points(y_zero_point, y, leading, i), at_problem(y, y, leading, i), type_of(y)});
  }
  merge_rows(problems);
  const int64_t size = int64_t(problems.size());
  const Scratch scratch(chosen->matmul_scratch(problems.data(), size, pool.threads));
  if (!scratch.is_there()) return no_memory();
  chosen->matmul(pool, problems.data(), size, scratch.at());
  return ffi::Error::Success();
}

// Merges adjacent problems that share all parameters into one batch of images.
void merge_batches(std::vector<Convolution>& problems) {
  const Convolution one = problems[0];
  const int64_t x_size = one.batch * one.filter.groups * one.filter.channels * one.height * one.width;
  const int64_t y_bytes =
      one.batch * one.filter.outputs * one.y_height * one.y_width * (one.type == Type::kInt32 ? 4 : 1);
  for (size_t i = 0; i < problems.size(); i++) {
    const Convolution& other = problems[i];
    const bool is_next =
        other.x == one.x + int64_t(i) * x_size && other.y == static_cast<uint8_t*>(one.y) + int64_t(i) * y_bytes &&
        other.packed == one.packed && other.bias == one.bias && other.x_scale.at == one.x_scale.at &&
        other.filter_scale.at == one.filter_scale.at && other.y_scale.at == one.y_scale.at &&
        other.x_zero_point.at == one.x_zero_point.at && other.filter_zero_point.at == one.filter_zero_point.at &&
        other.y_zero_point.at == one.y_zero_point.at;
    if (!is_next) return;
  }
  const int64_t count = int64_t(problems.size());
  problems.resize(1);
  problems[0].batch *= count;
}

using Numbers = ffi::Span<const int64_t>;

// Reads a filter's shape [outputs, channels of a group, rows, columns].
ffi::Error read_filter(Numbers shape, int64_t groups, Filter& filter) {
  JAXDML_EXPECT(shape.size() == 4 && groups > 0, "a filter needs four dimensions and at least one group");
  int64_t size = checked_product(4, groups);  // a cell has at most 4 bytes
  for (const int64_t extent : shape) {
    JAXDML_EXPECT(extent > 0, "a filter has no elements");
    size = checked_product(size, extent);
  }
  JAXDML_EXPECT(size >= 0 && shape[0] % groups == 0,
                "a filter is too large, or its outputs are not divisible by the groups");
  filter = {shape[0], shape[1], shape[2], shape[3], groups, false};
  return ffi::Error::Success();
}

ffi::Error convolve(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer x_scale, ffi::AnyBuffer x_zero_point,
                    ffi::AnyBuffer filter, ffi::AnyBuffer filter_scale, ffi::AnyBuffer filter_zero_point,
                    ffi::AnyBuffer bias, ffi::AnyBuffer y_scale, ffi::AnyBuffer y_zero_point,
                    ffi::Result<ffi::AnyBuffer> result, bool is_packed, Numbers filter_shape, int64_t group_count,
                    Numbers strides, Numbers dilations, Numbers start_padding, Numbers end_padding) {
  const ffi::AnyBuffer y = *result;
  JAXDML_EXPECT(chosen, "no kernels were chosen");
  JAXDML_EXPECT(y.dimensions().size() >= 4 && is_type(y), "the output is not a batch of int8, uint8 or int32 images");
  const size_t leading = y.dimensions().size() - 4;
  JAXDML_EXPECT(leads(x, y, leading, leading + 4) && is_byte(x),
                "x is not a batch of int8 or uint8 images with the output's leading dimensions");
  for (const ffi::AnyBuffer& p : {x_scale, x_zero_point, filter_scale, filter_zero_point, bias, y_scale, y_zero_point})
    JAXDML_EXPECT(leads(p, y, leading, leading + 1), "a parameter's leading dimensions differ from the output's");
  for (const ffi::AnyBuffer& p : {x_scale, filter_scale, y_scale})
    JAXDML_EXPECT(p.element_type() == ffi::DataType::F32, "a scale is not float32");
  for (const ffi::AnyBuffer& p : {x_zero_point, filter_zero_point, y_zero_point})
    JAXDML_EXPECT(is_byte(p), "a zero point is not int8 or uint8");
  JAXDML_EXPECT(is_signed(x) == is_signed(x_zero_point), "x and its zero point differ in type");
  JAXDML_EXPECT(bias.element_type() == ffi::DataType::S32, "bias is not int32");
  Convolution one = {};
  JAXDML_RETURN_IF_WRONG(read_filter(filter_shape, group_count, one.filter));
  one.filter.is_for_one_call = !is_packed;
  for (const ffi::AnyBuffer& p : {x_scale, x_zero_point, y_scale, y_zero_point})
    JAXDML_EXPECT(p.dimensions()[leading] == 1, "a parameter of x or of the output needs one element");
  for (const ffi::AnyBuffer& p : {filter_scale, filter_zero_point})
    JAXDML_EXPECT(is_along(p, leading, leading, one.filter.outputs),
                  "a parameter of the filter needs one element, or one per output channel");
  const bool has_bias = bias.dimensions()[leading] == one.filter.outputs;
  JAXDML_EXPECT(has_bias || bias.dimensions()[leading] == 0, "bias needs one element per output channel");

  const int64_t* of_x = x.dimensions().begin() + leading;
  const int64_t* of_y = y.dimensions().begin() + leading;
  JAXDML_EXPECT(of_x[0] == of_y[0] && of_x[1] == one.filter.channels * group_count && of_y[1] == one.filter.outputs,
                "the shapes of x, filter and output do not match");
  one.batch = of_x[0];
  one.height = of_x[2];
  one.width = of_x[3];
  one.y_height = of_y[2];
  one.y_width = of_y[3];
  const int64_t kernel[2] = {one.filter.rows, one.filter.columns};
  int64_t elements = of_x[0] * of_x[1];  // the size of the padded input
  for (const Numbers numbers : {strides, dilations, start_padding, end_padding})
    JAXDML_EXPECT(numbers.size() == 2, "an option needs two numbers");
  for (size_t i = 0; i < 2; i++) {
    one.start[i] = start_padding[i];
    one.end[i] = end_padding[i];
    constexpr int64_t kMost = int64_t(1) << 32;
    for (const int64_t number : {strides[i], dilations[i], one.start[i], one.end[i]})
      JAXDML_EXPECT(number >= 0 && number < kMost, "an option is out of range");
    JAXDML_EXPECT(strides[i] && dilations[i], "strides and dilations must be at least 1");
    const int64_t reach = checked_product(kernel[i] - 1, dilations[i]);
    const int64_t padded = of_x[2 + i] + one.start[i] + one.end[i];
    JAXDML_EXPECT(reach >= 0 && padded > reach && of_y[2 + i] == (padded - reach - 1) / strides[i] + 1,
                  "the output's size does not follow from x, filter and options");
    elements = checked_product(elements, padded);
    one.stride[i] = strides[i];
    // The dilation of a kernel of one element has no effect, and a large dilation would enlarge the scratch memory.
    one.dilation[i] = kernel[i] == 1 ? 1 : dilations[i];
  }
  // No machine has this much memory. Below this limit, the scratch size of all threads cannot overflow.
  if (elements < 0 || elements >> 46) return no_memory();
  const int64_t packed_bytes = chosen->filter_bytes(one.filter);
  const auto of_filter = filter.dimensions();
  if (is_packed) {
    JAXDML_EXPECT(leads(filter, y, leading, leading + 1) && of_filter[leading] == packed_bytes,
                  "the filter was packed for another shape");
  } else {
    JAXDML_EXPECT(
        leads(filter, y, leading, leading + 4) && is_byte(filter) && is_signed(filter) == is_signed(filter_zero_point),
        "the filter's leading dimensions or type do not match the output or the zero point");
    for (size_t i = 0; i < 4; i++)
      JAXDML_EXPECT(of_filter[leading + i] == filter_shape[i], "the filter's shape differs from filter_shape");
  }
  const int64_t count = product(y.dimensions(), 0, leading);
  if (!count || !product(y.dimensions(), leading, leading + 4)) return ffi::Error::Success();

  const FloatMode mode;
  const int64_t weights = one.filter.channels * kernel[0] * kernel[1];
  // 64 stands for the fixed cost of an output, which dominates in a depthwise convolution.
  const Pool pool = pool_of(threads, checked_product(product(y.dimensions(), 0, leading + 4), weights + 64));
  const int64_t filters = is_packed ? 0 : product(of_filter, 0, leading);
  const Scratch packed(checked_product(filters, packed_bytes));
  if (!packed.is_there()) return no_memory();
  const int64_t filter_size = weights * one.filter.outputs;
  for (int64_t i = 0; i < filters; i++)
    chosen->pack_filter(pool, static_cast<const uint8_t*>(filter.untyped_data()) + i * filter_size, is_signed(filter),
                        one.filter, packed.at() + i * packed_bytes);

  std::vector<Convolution> problems(size_t(count), one);
  for (int64_t i = 0; i < count; i++) {
    Convolution& problem = problems[size_t(i)];
    const uint8_t* at = at_problem(filter, y, leading, i);
    if (!is_packed)
      at = packed.at() + (at - static_cast<const uint8_t*>(filter.untyped_data())) / filter_size * packed_bytes;
    if (!begins_with(at, chosen->filter_mark)) return not_packed("filter");
    problem.packed = at;
    problem.x = at_problem(x, y, leading, i);
    problem.x_scale = scales(x_scale, y, leading, i);
    problem.filter_scale = scales(filter_scale, y, leading, i);
    problem.y_scale = scales(y_scale, y, leading, i);
    problem.x_zero_point = zero_points(x_zero_point, y, leading, i);
    problem.filter_zero_point = zero_points(filter_zero_point, y, leading, i);
    problem.y_zero_point = zero_points(y_zero_point, y, leading, i);
    problem.bias = has_bias ? reinterpret_cast<const int32_t*>(at_problem(bias, y, leading, i)) : nullptr;
    problem.y = at_problem(y, y, leading, i);
    problem.type = type_of(y);
  }
  merge_batches(problems);
  const int64_t size = int64_t(problems.size());
  const Scratch scratch(chosen->convolve_scratch(problems.data(), size, pool.threads));
  if (!scratch.is_there()) return no_memory();
  chosen->convolve(pool, problems.data(), size, scratch.at());
  return ffi::Error::Success();
}

// check_tensor expects a tensor of the output's shape; check_numbers expects a scale and a zero point of one element.
ffi::Error check_tensor(ffi::AnyBuffer x, ffi::AnyBuffer y, int64_t leading_count) {
  const size_t rank = y.dimensions().size(), leading = size_t(leading_count);
  JAXDML_EXPECT(chosen, "no kernels were chosen");
  JAXDML_EXPECT(leading_count >= 0 && leading <= rank && leads(x, y, leading, rank),
                "an operand's leading dimensions differ from the output's");
  for (size_t i = leading; i < rank; i++)
    JAXDML_EXPECT(x.dimensions()[i] == y.dimensions()[i], "an operand's shape differs from the output's");
  return ffi::Error::Success();
}
ffi::Error check_numbers(ffi::AnyBuffer scale, ffi::AnyBuffer zero_point, ffi::AnyBuffer y, int64_t leading_count) {
  const size_t leading = size_t(leading_count);
  JAXDML_EXPECT(scale.element_type() == ffi::DataType::F32 && leads(scale, y, leading, leading),
                "a scale is not one float32 element");
  JAXDML_EXPECT(is_byte(zero_point) && leads(zero_point, y, leading, leading),
                "a zero point is not one int8 or uint8 element");
  return ffi::Error::Success();
}

// Runs the kernel on one problem for each index of the leading dimensions; make(index, size) returns the problem.
template <class Problem, class Make>
ffi::Error compute_each(ffi::ThreadPool& threads, ffi::AnyBuffer y, int64_t leading,
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

ffi::Error add(ffi::ThreadPool threads, ffi::AnyBuffer a, ffi::AnyBuffer a_scale, ffi::AnyBuffer a_zero_point,
               ffi::AnyBuffer b, ffi::AnyBuffer b_scale, ffi::AnyBuffer b_zero_point, ffi::AnyBuffer y_scale,
               ffi::AnyBuffer y_zero_point, ffi::Result<ffi::AnyBuffer> result, int64_t leading) {
  const ffi::AnyBuffer y = *result;
  for (const ffi::AnyBuffer& x : {a, b}) JAXDML_RETURN_IF_WRONG(check_tensor(x, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(a_scale, a_zero_point, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(b_scale, b_zero_point, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(y_scale, y_zero_point, y, leading));
  JAXDML_EXPECT(is_byte(a) && is_byte(b) && is_byte(y), "a tensor is not int8 or uint8");
  return compute_each(threads, y, leading, chosen->add, [&](int64_t i, int64_t size) {
    const auto at = [&](ffi::AnyBuffer x) { return at_problem(x, y, size_t(leading), i); };
    return Sum{size,
               at(a),
               at(b),
               number(at(a_scale)),
               number(at(b_scale)),
               number(at(y_scale)),
               zero_point_number(at(a_zero_point), is_signed(a_zero_point)),
               zero_point_number(at(b_zero_point), is_signed(b_zero_point)),
               zero_point_number(at(y_zero_point), is_signed(y_zero_point)),
               is_signed(a),
               is_signed(b),
               is_signed(y),
               at(y)};
  });
}

ffi::Error quantize(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::AnyBuffer zero_point,
                    ffi::Result<ffi::AnyBuffer> result, int64_t leading) {
  const ffi::AnyBuffer y = *result;
  JAXDML_RETURN_IF_WRONG(check_tensor(x, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(scale, zero_point, y, leading));
  JAXDML_EXPECT(x.element_type() == ffi::DataType::F32 && is_byte(y),
                "x is not float32, or the output is neither int8 nor uint8");
  return compute_each(threads, y, leading, chosen->quantize, [&](int64_t i, int64_t size) {
    const auto at = [&](ffi::AnyBuffer of) { return at_problem(of, y, size_t(leading), i); };
    return Quantization{size,
                        reinterpret_cast<const float*>(at(x)),
                        number(at(scale)),
                        zero_point_number(at(zero_point), is_signed(zero_point)),
                        is_signed(y),
                        at(y)};
  });
}

ffi::Error dequantize(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::AnyBuffer zero_point,
                      ffi::Result<ffi::AnyBuffer> result, int64_t leading) {
  const ffi::AnyBuffer y = *result;
  JAXDML_RETURN_IF_WRONG(check_tensor(x, y, leading));
  JAXDML_RETURN_IF_WRONG(check_numbers(scale, zero_point, y, leading));
  JAXDML_EXPECT(is_byte(x) && y.element_type() == ffi::DataType::F32,
                "x is neither int8 nor uint8, or the output is not float32");
  return compute_each(threads, y, leading, chosen->dequantize, [&](int64_t i, int64_t size) {
    const auto at = [&](ffi::AnyBuffer of) { return at_problem(of, y, size_t(leading), i); };
    return Dequantization{size,
                          at(x),
                          number(at(scale)),
                          zero_point_number(at(zero_point), is_signed(zero_point)),
                          is_signed(x),
                          reinterpret_cast<float*>(at(y))};
  });
}

ffi::Error extremes(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> result, int64_t leading) {
  const ffi::AnyBuffer y = *result;
  const size_t rank = x.dimensions().size(), outer = size_t(leading);
  JAXDML_EXPECT(chosen, "no kernels were chosen");
  JAXDML_EXPECT(leading >= 0 && outer <= rank && leads(x, y, outer, rank) && y.dimensions().size() == outer + 1 &&
                    y.dimensions()[outer] == 2,
                "the result needs two elements per tensor");
  JAXDML_EXPECT(x.element_type() == ffi::DataType::F32 && y.element_type() == ffi::DataType::F32, "x is not float32");
  const int64_t count = product(y.dimensions(), 0, outer), size = product(x.dimensions(), outer, rank);
  if (!count) return ffi::Error::Success();
  JAXDML_EXPECT(size, "x has no elements");
  const FloatMode mode;
  std::vector<Range> problems;
  for (int64_t i = 0; i < count; i++)
    problems.push_back({size, reinterpret_cast<const float*>(at_problem(x, y, outer, i)),
                        reinterpret_cast<float*>(at_problem(y, y, outer, i))});
  chosen->extremes(pool_of(threads, count * size * 8), problems.data(), count);
  return ffi::Error::Success();
}

ffi::Error row_sums(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> result) {
  const ffi::AnyBuffer y = *result;
  const size_t rank = y.dimensions().size();
  JAXDML_EXPECT(chosen, "no kernels were chosen");
  JAXDML_EXPECT(rank && x.dimensions().size() == rank + 1 && is_byte(x) && y.element_type() == ffi::DataType::S32,
                "x is not a matrix of int8 or uint8, or the result is not int32");
  for (size_t i = 0; i < rank; i++)
    JAXDML_EXPECT(x.dimensions()[i] == y.dimensions()[i], "the result needs one sum per row");
  const int64_t rows = product(y.dimensions(), 0, rank), depth = x.dimensions()[rank];
  if (!rows) return ffi::Error::Success();
  JAXDML_EXPECT(depth < int64_t(1) << 27, "the sum of a row this long overflows int32");
  const Rows one = {rows, depth, static_cast<const uint8_t*>(x.untyped_data()), is_signed(x),
                    static_cast<int32_t*>(y.untyped_data())};
  chosen->row_sums(pool_of(threads, rows * (depth + 16)), &one, 1);
  return ffi::Error::Success();
}

ffi::Error pack_matrix(ffi::ThreadPool threads, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> result) {
  const auto dims = b.dimensions(), to = result->dimensions();
  JAXDML_EXPECT(chosen, "no kernels were chosen");
  JAXDML_EXPECT(dims.size() >= 2 && to.size() == dims.size() - 1 && is_byte(b), "b is not a matrix of int8 or uint8");
  const size_t leading = dims.size() - 2;
  const int64_t depth = dims[leading], columns = dims[leading + 1], count = product(dims, 0, leading);
  const int64_t bytes = chosen->matrix_bytes(depth, columns);
  JAXDML_EXPECT(to[leading] == bytes && product(to, 0, leading) == count && result->element_type() == ffi::DataType::U8,
                "the result does not have the size of the packed matrix");
  const Pool pool = pool_of(threads, count * depth * columns * 4);
  for (int64_t i = 0; i < count; i++)
    chosen->pack_matrix(pool, static_cast<const uint8_t*>(b.untyped_data()) + i * depth * columns, is_signed(b), depth,
                        columns, static_cast<uint8_t*>(result->untyped_data()) + i * bytes);
  return ffi::Error::Success();
}

ffi::Error pack_filter(ffi::ThreadPool threads, ffi::AnyBuffer filter, ffi::Result<ffi::AnyBuffer> result,
                       int64_t group_count) {
  const auto dims = filter.dimensions(), to = result->dimensions();
  JAXDML_EXPECT(chosen, "no kernels were chosen");
  JAXDML_EXPECT(dims.size() >= 4 && to.size() == dims.size() - 3 && is_byte(filter),
                "the filter is not int8 or uint8 with two spatial dimensions");
  const size_t leading = dims.size() - 4;
  Filter shape;
  JAXDML_RETURN_IF_WRONG(read_filter(Numbers(dims.begin() + leading, 4), group_count, shape));
  const int64_t bytes = chosen->filter_bytes(shape), count = product(dims, 0, leading);
  const int64_t size = product(dims, leading, leading + 4);
  JAXDML_EXPECT(to[leading] == bytes && product(to, 0, leading) == count && result->element_type() == ffi::DataType::U8,
                "the result does not have the size of the packed filter");
  const Pool pool = pool_of(threads, count * size * 16);
  for (int64_t i = 0; i < count; i++)
    chosen->pack_filter(pool, static_cast<const uint8_t*>(filter.untyped_data()) + i * size, is_signed(filter), shape,
                        static_cast<uint8_t*>(result->untyped_data()) + i * bytes);
  return ffi::Error::Success();
}

// Wraps a handler so that a failed allocation becomes an FFI error instead of an exception inside XLA.
template <auto kFunction>
struct Guarded;
template <class... Arguments, ffi::Error (*kFunction)(Arguments...)>
struct Guarded<kFunction> {
  static ffi::Error call(Arguments... arguments) {
    try {
      return kFunction(arguments...);
    } catch (const std::bad_alloc&) {
      return no_memory();
    }
  }
};

}  // namespace
}  // namespace jaxdml

#ifdef _WIN32
#define JAXDML_EXPORT extern "C" __declspec(dllexport)
#else
#define JAXDML_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Chooses kernels by name; an empty name chooses the fastest. Returns the chosen name, or null if none can run here.
JAXDML_EXPORT const char* jaxdml_cpu_choose(const char* name) {
  for (const jaxdml::Kernels* kernels : {&jaxdml::kAmxInt8, &jaxdml::kAvx512Vnni, &jaxdml::kAvx2})
    if ((!*name || !std::strcmp(name, kernels->name)) && jaxdml::runs_here(*kernels)) {
      jaxdml::chosen = kernels;
      return kernels->name;
    }
  return nullptr;
}

// The sizes of packed weights in bytes; -1 if no filter has the shape.
JAXDML_EXPORT int64_t jaxdml_cpu_matrix_bytes(int64_t depth, int64_t columns) {
  return jaxdml::chosen->matrix_bytes(depth, columns);
}
JAXDML_EXPORT int64_t jaxdml_cpu_filter_bytes(const int64_t* shape, int64_t groups) {
  jaxdml::Filter filter;
  if (jaxdml::read_filter({shape, 4}, groups, filter).failure()) return -1;
  return jaxdml::chosen->filter_bytes(filter);
}

JAXDML_EXPORT const char* jaxdml_cpu_built_with() { return JAXDML_JAXLIB_VERSION; }

#define JAXDML_HANDLER(name, function, ...)                                                 \
  JAXDML_EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) {                             \
    XLA_FFI_DEFINE_HANDLER(handler, jaxdml::Guarded<&jaxdml::function>::call, __VA_ARGS__); \
    return (*handler)(frame);                                                               \
  }

using Buffer = ffi::AnyBuffer;
JAXDML_HANDLER(jaxdml_cpu_matmul, matmul,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // a, its scale and zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // b
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // scale and zero point of the product
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<bool>("is_packed"))
JAXDML_HANDLER(jaxdml_cpu_convolve, convolve,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // input, its scale and zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // filter
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // bias
                   .Arg<Buffer>()  // scale and zero point of the output
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<bool>("is_packed")
                   .Attr<ffi::Span<const int64_t>>("filter_shape")
                   .Attr<int64_t>("group_count")
                   .Attr<ffi::Span<const int64_t>>("strides")
                   .Attr<ffi::Span<const int64_t>>("dilations")
                   .Attr<ffi::Span<const int64_t>>("start_padding")
                   .Attr<ffi::Span<const int64_t>>("end_padding"))
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
JAXDML_HANDLER(jaxdml_cpu_extremes, extremes,
               ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>().Attr<int64_t>("leading_count"))
JAXDML_HANDLER(jaxdml_cpu_row_sums, row_sums, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>())
JAXDML_HANDLER(jaxdml_cpu_pack_matrix, pack_matrix, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>())
JAXDML_HANDLER(jaxdml_cpu_pack_filter, pack_filter,
               ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Buffer>().Ret<Buffer>().Attr<int64_t>("group_count"))
