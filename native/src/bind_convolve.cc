// The handler of convolutions.
#include <algorithm>
#include <vector>

#include "handler.h"
#include "scratch.h"
#include "seal.h"
#include "threads.h"

namespace jaxdml {
namespace {

// Merges adjacent problems that share all parameters into one batch of images.
void merge_batches(std::vector<Convolution>& problems) {
  const Convolution one = problems[0];
  const int64_t x_size = one.batch * one.filter.groups * one.filter.channels * one.height * one.width;
  const int64_t y_bytes = one.batch * one.filter.outputs * one.y_height * one.y_width * size_of(one.type);
  for (size_t i = 0; i < problems.size(); i++) {
    const Convolution& other = problems[i];
    const bool is_next = other.x - one.x == int64_t(i) * x_size &&
                         static_cast<uint8_t*>(other.y) - static_cast<uint8_t*>(one.y) == int64_t(i) * y_bytes &&
                         other.packed == one.packed && other.bias == one.bias && other.x_scale.at == one.x_scale.at &&
                         other.filter_scale.at == one.filter_scale.at && other.y_scale.at == one.y_scale.at &&
                         other.x_zero_point.at == one.x_zero_point.at &&
                         other.filter_zero_point.at == one.filter_zero_point.at &&
                         other.y_zero_point.at == one.y_zero_point.at;
    if (!is_next) return;
  }
  const int64_t count = int64_t(problems.size());
  problems.resize(1);
  problems[0].batch *= count;
}

struct Options {
  Numbers strides, dilations, start_padding, end_padding;
};

// Reads the images' extents and the options, and checks that the output's extents follow from them.
ffi::Error read_windows(Numbers of_x, Numbers of_y, const Options& options, Convolution& one) {
  JAXDML_EXPECT(
      of_x[0] == of_y[0] && of_x[1] == one.filter.channels * one.filter.groups && of_y[1] == one.filter.outputs,
      "the shapes of x, filter and output do not match");
  for (const Numbers& numbers : {options.strides, options.dilations, options.start_padding, options.end_padding})
    JAXDML_EXPECT(numbers.size() == 2, "an option needs two numbers");
  one.batch = of_x[0];
  one.height = of_x[2];
  one.width = of_x[3];
  one.y_height = of_y[2];
  one.y_width = of_y[3];
  for (size_t i = 0; i < 2; i++) {
    const int64_t stride = options.strides[i], dilation = options.dilations[i], outputs = of_y[2 + i];
    const int64_t elements = i ? one.filter.columns : one.filter.rows;
    JAXDML_EXPECT(stride > 0 && dilation > 0, "strides and dilations must be at least 1");
    const Size reach = Size(elements - 1) * dilation;
    const Size padded = Size(of_x[2 + i]) + options.start_padding[i] + options.end_padding[i];
    JAXDML_EXPECT(reach < padded && outputs == (padded.number() - reach.number() - 1) / stride + 1,
                  "the output's size does not follow from x, filter and options");
    one.start[i] = options.start_padding[i];
    one.end[i] = options.end_padding[i];
    // With one kernel element, dilation has no effect; with one output, all strides above 1 have the same effect. The
    // smallest value takes the least memory, and its product with an extent cannot overflow.
    one.dilation[i] = elements == 1 ? 1 : dilation;
    one.stride[i] = outputs == 1 ? std::min<int64_t>(stride, 2) : stride;
  }
  return ffi::Error::Success();
}

// The number of rows (i = 0) or columns (i = 1) of padded input that the scratch bound counts; see convolve.h.
Size counted(const Convolution& one, int i) {
  const Size windows = Size(i ? one.y_width : one.y_height) * (i ? one.filter.columns : one.filter.rows) * 2;
  const Size padding = Size(one.start[i]) + one.end[i];
  return (windows < padding ? windows : padding) + (i ? one.width : one.height);
}

ffi::Error convolve(const Kernels& kernels, ffi::ThreadPool threads, Buffer x, Buffer x_scale, Buffer x_zero_point,
                    Buffer filter, Buffer filter_scale, Buffer filter_zero_point, Buffer bias, Buffer y_scale,
                    Buffer y_zero_point, ffi::Result<Buffer> result, bool is_packed, Numbers filter_shape,
                    int64_t group_count, Numbers strides, Numbers dilations, Numbers start_padding,
                    Numbers end_padding) {
  const Buffer y = *result;
  JAXDML_EXPECT(y.dimensions().size() >= 4 && is_type(y), "the output is not a batch of int8, uint8 or int32 images");
  const size_t leading = y.dimensions().size() - 4;
  JAXDML_EXPECT(leads(x, y, leading, leading + 4) && is_byte(x),
                "x is not a batch of int8 or uint8 images with the output's leading dimensions");
  for (const Buffer& p : {x_scale, x_zero_point, filter_scale, filter_zero_point, bias, y_scale, y_zero_point})
    JAXDML_EXPECT(leads(p, y, leading, leading + 1), "a parameter's leading dimensions differ from the output's");
  for (const Buffer& p : {x_scale, filter_scale, y_scale})
    JAXDML_EXPECT(p.element_type() == ffi::DataType::F32, "a scale is not float32");
  for (const Buffer& p : {x_zero_point, filter_zero_point, y_zero_point})
    JAXDML_EXPECT(is_byte(p), "a zero point is not int8 or uint8");
  JAXDML_EXPECT(is_signed(x) == is_signed(x_zero_point), "x and its zero point differ in type");
  JAXDML_EXPECT(bias.element_type() == ffi::DataType::S32, "bias is not int32");
  Convolution one = {};
  JAXDML_RETURN_IF_WRONG(read_filter(filter_shape, group_count, one.filter));
  one.filter.is_for_one_call = !is_packed;
  for (const Buffer& p : {x_scale, x_zero_point, y_scale, y_zero_point})
    JAXDML_EXPECT(p.dimensions()[leading] == 1, "a parameter of x or of the output needs one element");
  for (const Buffer& p : {filter_scale, filter_zero_point})
    JAXDML_EXPECT(is_along(p, leading, leading, one.filter.outputs),
                  "a parameter of the filter needs one element, or one per output channel");
  const bool has_bias = bias.dimensions()[leading] == one.filter.outputs;
  JAXDML_EXPECT(has_bias || bias.dimensions()[leading] == 0, "bias needs one element per output channel");
  const Numbers of_x(x.dimensions().begin() + leading, 4), of_y(y.dimensions().begin() + leading, 4);
  JAXDML_RETURN_IF_WRONG(read_windows(of_x, of_y, {strides, dilations, start_padding, end_padding}, one));
  const int64_t packed_bytes = kernels.filter_bytes(one.filter);
  const auto of_filter = filter.dimensions();
  if (is_packed) {
    JAXDML_EXPECT(filter.element_type() == ffi::DataType::S8 && leads(filter, y, leading, leading + 1) &&
                      of_filter[leading] == packed_bytes,
                  "the filter was packed for another shape");
  } else {
    JAXDML_EXPECT(
        leads(filter, y, leading, leading + 4) && is_byte(filter) && is_signed(filter) == is_signed(filter_zero_point),
        "the filter's leading dimensions or type do not match the output or the zero point");
    for (size_t i = 0; i < 4; i++)
      JAXDML_EXPECT(of_filter[leading + i] == filter_shape[i], "the filter's shape differs from filter_shape");
  }
  const int64_t count = product(y.dimensions(), 0, leading), outputs = product(y.dimensions(), 0, leading + 4);
  if (!outputs) return ffi::Error::Success();
  const int64_t weights = one.filter.channels * one.filter.rows * one.filter.columns;
  // 64 and 32 stand for the costs of an output and of an input, which dominate in a depthwise convolution. With strides
  // larger than the kernel, inputs are skipped.
  const Size seen = Size(outputs) * one.filter.rows * one.filter.columns;
  const Size inputs = Size(count) * one.batch * of_x[1] * one.height * one.width;
  const bool is_depthwise = one.filter.channels == 1 && one.filter.groups > 1;
  const Size reads = !is_depthwise ? Size(0) : inputs < seen ? inputs : seen;
  const Size work = Size(outputs) * (weights + 64) + reads * 32;
  JAXDML_EXPECT(work.is_size(), "the convolution needs too many multiplications");
  // Problems may share images, so the images' shape does not bound this product.
  if (!(Size(count) * one.batch * of_x[1] * counted(one, 0) * counted(one, 1) < kMostElements)) return no_memory();

  const FloatMode mode;
  const Pool pool = pool_of(threads, work.number() / kernels.pace);
  const int64_t filters = is_packed ? 0 : product(of_filter, 0, leading), filter_size = weights * one.filter.outputs;
  const Scratch packed(Size(filters) * packed_bytes);
  if (!packed.is_there()) return no_memory();
  const uint8_t* const all_filters = static_cast<const uint8_t*>(filter.untyped_data());
  for (int64_t i = 0; i < filters; i++)
    kernels.pack_filter(pool, all_filters + i * filter_size, is_signed(filter), one.filter,
                        packed.at() + i * packed_bytes);

  std::vector<Convolution> problems(size_t(count), one);
  for (int64_t i = 0; i < count; i++) {
    Convolution& problem = problems[size_t(i)];
    const uint8_t* at = at_problem(filter, y, leading, i);
    if (!is_packed) at = packed.at() + (at - all_filters) / filter_size * packed_bytes;
    if (is_packed && !is_sealed(at, packed_bytes, kernels.filter_mark)) return not_packed("filter");
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
  const Scratch scratch(kernels.convolve_scratch(problems.data(), size, pool.threads));
  if (!scratch.is_there()) return no_memory();
  kernels.convolve(pool, problems.data(), size, scratch.at());
  return ffi::Error::Success();
}

}  // namespace

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
                   .Attr<Numbers>("filter_shape")
                   .Attr<int64_t>("group_count")
                   .Attr<Numbers>("strides")
                   .Attr<Numbers>("dilations")
                   .Attr<Numbers>("start_padding")
                   .Attr<Numbers>("end_padding"))

}  // namespace jaxdml
