// Runs kernels on random problems, and compares outputs with reference.h.
//
//   random_shapes [count of cases] [seed] [first case] [instruction sets]
//
// It runs the named sets, or all that this processor supports. The seed and the case's number determine a case. The
// first few cases are large, or at the bounds of a kernel.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "attention_reference.h"
#include "block_shape.h"
#include "float_mode.h"
#include "kernels.h"
#include "lstm_reference.h"
#include "memory.h"
#include "processor.h"
#include "reference.h"
#include "row_reference.h"
#include "threads.h"

// Sanitizers abort, so that on_signal prints the case.
#define JAXDML_OPTIONS extern "C" __attribute__((visibility("default"))) const char*
JAXDML_OPTIONS __asan_default_options() { return "abort_on_error=1:handle_segv=2:handle_sigbus=2:handle_sigfpe=2"; }
JAXDML_OPTIONS __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
JAXDML_OPTIONS __tsan_default_options() {
  return "abort_on_error=1:halt_on_error=1:handle_segv=2:handle_sigbus=2:handle_sigfpe=2";
}

namespace jaxdml::test {
namespace {

struct Case {
  std::string what;
  std::deque<Bytes> inputs;
  int64_t y_alignment = 1;        // of the outputs, in bytes
  bool is_any_nan_right = false;  // whether a NaN may have another sign and payload than the expected one
  std::vector<Output> expected;   // the output of each problem
  std::function<void(const Kernels&, const Pool&, Random&, const std::deque<Bytes>& y)> run;
};

// Returns a function that runs a kernel without scratch memory on all problems.
template <class Problem>
auto run_of(const std::vector<Problem>& problems, void (*Kernels::*kernel)(const Pool&, const Problem*, int64_t)) {
  return [problems, kernel](const Kernels& kernels, const Pool& pool, Random&, const std::deque<Bytes>& y) {
    std::vector<Problem> all = problems;
    for (size_t i = 0; i < all.size(); i++) all[i].y = y[i].as<std::remove_pointer_t<decltype(Problem::y)>>();
    (kernels.*kernel)(pool, all.data(), int64_t(all.size()));
  };
}

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

const char* name_of(Type type) {
  constexpr const char* kNames[] = {"int8", "uint8", "int32", "float32"};
  return kNames[int(type)];
}
const char* name_of(bool is_signed) { return is_signed ? "int8" : "uint8"; }
Type random_type(Random& random) { return Type(random.below(3)); }  // of integers

// Returns a size up to `most`: mostly a small one, and often 1.
int64_t extent(Random& random, int64_t most) {
  const int64_t limit = random.chance(50) && most > 8 ? 8 : most;
  return random.between(1, limit);
}

// Inputs --------------------------------------------------------------------------------------------------------------

enum class Fill { kRandom, kUniform, kSmall, kLowest, kHighest, kExtremes };

const uint8_t* tensor(Case& of, Random& random, int64_t size, bool is_signed, Fill fill = Fill::kRandom) {
  const uint8_t lowest = is_signed ? 0x80 : 0, highest = uint8_t(~lowest), middle = is_signed ? 0 : 0x80;
  if (fill == Fill::kRandom)
    fill = random.chance(60) ? Fill::kUniform : Fill(random.between(int64_t(Fill::kSmall), int64_t(Fill::kExtremes)));
  uint8_t* at = of.inputs.emplace_back(random, size).at();
  if (fill == Fill::kLowest || fill == Fill::kHighest) {
    memset(at, fill == Fill::kLowest ? lowest : highest, size_t(size));
    return at;
  }
  random.fill(at, size);
  for (int64_t i = 0; i < size; i++) {
    if (fill == Fill::kSmall) at[i] = uint8_t(middle + at[i] % 15 - 7);
    if (fill == Fill::kExtremes) at[i] = at[i] & 1 ? highest : lowest;
  }
  return at;
}

// `count` zero points: one for the tensor, or one for each row, column or channel.
ZeroPoints zero_points(Case& of, Random& random, int64_t count, bool is_signed) {
  uint8_t* at = of.inputs.emplace_back(random, count).at();
  if (random.chance(40))
    memset(at, is_signed ? 0 : 0x80, size_t(count));  // becomes 0 in int8 weights, and needs no correction
  else if (random.chance(70))
    random.fill(at, count);
  return {at, count > 1, is_signed};
}

struct Style {  // the kind of a case's scales
  bool are_powers, are_strange;
  bool are_on_edge;  // the product of two scales lies just below 2**-126, and rounds to it
};
Style random_style(Random& random) { return {random.chance(15), random.chance(12), random.chance(4)}; }
constexpr float kOnEdge[] = {0x1.000002p-63f, 0x1.fffffcp-64f};

float scale(Random& random, float near, const Style& style) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float kStrange[] = {0.0f,  -0.0f, 1e-40f,    -1e-39f,    1.3e-38f, 1e-30f,        1e30f,
                            3e38f, -near, kInfinity, -kInfinity, kNan,     0x1.fffffep-6f};
  if (style.are_on_edge) return near;
  if (style.are_strange && random.chance(35)) return kStrange[random.below(std::size(kStrange))];
  if (style.are_powers) return std::exp2(std::round(std::log2(near)) + float(random.between(-1, 1)));
  return near * std::exp2(2 * random.fraction() - 1);
}

Scales scales(Case& of, Random& random, int64_t count, float near, const Style& style) {
  float* at = of.inputs.emplace_back(random, count * 4, 4).as<float>();
  for (int64_t i = 0; i < count; i++) at[i] = scale(random, near, style);
  return {at, count > 1};
}

// The magnitudes of the scales of a, b and their product. Most spread the outputs over the values of a byte; with some,
// a float may exceed int32 where a bias is large.
struct Magnitudes {
  float a, b, y;
};
Magnitudes magnitudes(Random& random, int64_t depth, const Style& style) {
  if (style.are_on_edge) return {kOnEdge[0], kOnEdge[1], 0x1p-126f};
  const float a = std::exp2(8 * random.fraction() - 7), b = std::exp2(8 * random.fraction() - 7);
  const float sum = random.chance(10) ? 1 : 137 * std::sqrt(float(depth + 1));
  return {a, b, a * b * sum * std::exp2(5 * random.fraction() - 2)};
}

// Cases ---------------------------------------------------------------------------------------------------------------

// Packs weights, one for each problem, or one that all problems share. Every byte must be written, because packed
// weights are JAX arrays, which callers may compare.
template <class Pack>
std::vector<const uint8_t*> pack_all(Random& random, const std::vector<const uint8_t*>& weights, int64_t bytes,
                                     std::deque<Bytes>& packed, Pack&& pack) {
  std::vector<const uint8_t*> at;
  for (size_t i = 0; i < weights.size(); i++) {
    if (i && weights[i] == weights[i - 1]) {
      at.push_back(at.back());
      continue;
    }
    uint8_t* to = packed.emplace_back(random, bytes, 4).at();
    pack(weights[i], to);
    at.push_back(to);
    if (bytes > 1 << 20) continue;
    const Bytes again(random, bytes, 4);
    pack(weights[i], again.at());
    if (memcmp(to, again.at(), size_t(bytes))) {
      fprintf(stderr, "packed weights differ from each other\n");
      abort();
    }
  }
  return at;
}

bool is_set(const Kernels& kernels, const char* name) { return !strcmp(kernels.name, name); }

// Aborts if a call's scratch memory violates docs/native_memory.md. A plain product takes 12 bytes for each column of
// each problem. Each thread adds a copy of some rows and, for a raw B, a block of columns. Strassen's method takes at
// least 130 * depth bytes for each thread, and at most four times the size of A, B and the outputs together. Where the
// documented sizes stay below that bound, it must be used.
void check_scratch(const Kernels& kernels, const std::vector<Matmul>& problems) {
  const Matmul& one = problems[0];
  const int64_t count = int64_t(problems.size()), size = size_of(one.type);
  const int64_t operands = (one.rows + one.columns) * one.depth;
  const bool is_by_strassen =
      is_set(kernels, "avx2") && one.rows >= 48 && one.columns >= 64 && one.depth >= 256 && one.depth <= 4096;
  const int64_t rows = is_set(kernels, "amx_int8") ? 32 : 6;
  const int64_t block = one.is_raw ? std::max<int64_t>((256 << 10) + 128, 64 * (one.depth + 3)) : 0;
  for (const int64_t threads : {1, 2, 3, 16, 200}) {
    const int64_t plain = count * (20 * one.columns + 1024) + threads * (rows * 2 * (one.depth + 64) + block);
    const int64_t by_strassen = std::max(plain, 4 * (operands + count * one.rows * one.columns * size));
    const int64_t most = is_by_strassen ? by_strassen : plain;
    const int64_t documented = count * (20 * one.columns + 1024) + threads * (66 * one.depth + (521 << 10));
    const int64_t least = is_by_strassen && documented <= by_strassen ? threads * 130 * one.depth : 0;
    const int64_t bytes = kernels.matmul_scratch(problems.data(), count, threads);
    if (least <= bytes && bytes <= most) continue;
    fprintf(stderr, "%lld bytes of scratch memory for %d threads, not %lld to %lld\n", (long long)bytes, int(threads),
            (long long)least, (long long)most);
    abort();
  }
}

// The bias of `count` columns or output channels; some exceed any sum of `depth` products.
const int32_t* bias_of(Case& of, Random& random, int64_t count, int64_t depth) {
  int32_t* bias = of.inputs.emplace_back(random, count * 4, 4).as<int32_t>();
  const int64_t most = random.chance(20) ? std::numeric_limits<int32_t>::max() : 4000 * depth;
  for (int64_t i = 0; i < count; i++) bias[i] = int32_t(random.between(-most - 1, most));
  return bias;
}

// The bias of the columns of a float32 product, in bits of float32. Some elements are as large as the sums.
const int32_t* float_bias_of(Case& of, Random& random, const Matmul& one, const Style& style) {
  const float near = 100 * one.a_scale.at[0] * one.b_scale.at[0];
  return reinterpret_cast<const int32_t*>(scales(of, random, std::max<int64_t>(one.columns, 2), near, style).at);
}

// `one` gives the shape, signedness and output type.
Case matmul_case(Random& random, Matmul one, int64_t count, Fill fill = Fill::kRandom) {
  Case of;
  one.is_raw = one.is_raw || random.chance(30);
  const bool has_bias = random.chance(40);
  of.what = text("%d matmuls [%d, %d] x [%d, %d]%s, %s x %s -> %s%s", int(count), int(one.rows), int(one.depth),
                 int(one.depth), int(one.columns), one.is_raw ? " raw" : "", name_of(one.a_zero_point.is_signed),
                 name_of(one.b_zero_point.is_signed), name_of(one.type), has_bias ? ", bias" : "");
  of.y_alignment = size_of(one.type);
  of.is_any_nan_right = has_bias && one.type == Type::kFloat32;  // the compiler chooses the order of the sum's operands
  std::vector<Matmul> problems;
  std::vector<const uint8_t*> weights;
  const Style style = random_style(random);
  const Magnitudes near = magnitudes(random, one.depth, style);
  const bool is_shared = random.chance(30);
  const int64_t a_scales = random.chance(50) ? 1 : one.rows, y_scales = random.chance(50) ? 1 : one.rows;
  const int64_t b_scales = random.chance(50) ? 1 : one.columns, b_zero_points = random.chance(50) ? 1 : one.columns;
  const int64_t a_zero_points = random.chance(50) ? 1 : one.rows, y_zero_points = random.chance(50) ? 1 : one.rows;
  for (int64_t i = 0; i < count; i++) {
    one.a = tensor(of, random, one.rows * one.depth, one.a_zero_point.is_signed, fill);
    if (!i || !is_shared)
      weights.push_back(tensor(of, random, one.depth * one.columns, one.b_zero_point.is_signed, fill));
    else
      weights.push_back(weights[0]);
    one.a_scale = scales(of, random, a_scales, near.a, style);
    one.b_scale = scales(of, random, b_scales, near.b, style);
    one.y_scale = scales(of, random, y_scales, near.y, style);
    one.a_zero_point = zero_points(of, random, a_zero_points, one.a_zero_point.is_signed);
    one.b_zero_point = zero_points(of, random, b_zero_points, one.b_zero_point.is_signed);
    one.y_zero_point = zero_points(of, random, y_zero_points, one.type == Type::kInt8);
    one.bias = !has_bias                    ? nullptr
               : one.type == Type::kFloat32 ? float_bias_of(of, random, one, style)
                                            : bias_of(of, random, one.columns, one.depth);
    problems.push_back(one);
    of.expected.push_back(expected(one, weights.back()));
  }
  of.run = [problems, weights](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    std::vector<Matmul> all = problems;
    const Matmul& one = all[0];
    std::deque<Bytes> packed;
    const auto packed_at = [&] {
      return pack_all(random, weights, kernels.matrix_bytes(one.depth, one.columns), packed,
                      [&](const uint8_t* b, uint8_t* to) {
                        kernels.pack_matrix(pool, b, one.b_zero_point.is_signed, one.depth, one.columns, to);
                      });
    };
    const bool is_raw = one.is_raw && one.rows <= kernels.most_raw_rows;
    const auto at = is_raw ? weights : packed_at();
    for (size_t i = 0; i < all.size(); i++) {
      all[i].b = at[i];
      all[i].is_raw = is_raw;
      all[i].y = y[i].at();
    }
    check_scratch(kernels, all);
    const int64_t size = int64_t(all.size());
    const Bytes scratch(random, kernels.matmul_scratch(all.data(), size, pool.threads), 64);
    kernels.matmul(pool, all.data(), size, scratch.at());
  };
  return of;
}

// Sets the filter so that the |weights| of each output channel add up to `total`; aborts if it has too few weights. The
// weights of the first output channel are negative. In each other output channel, all weights are negative, or the
// signs are the same in every input channel, or the signs are random.
void set_total(Random& random, const Filter& shape, int64_t total, bool is_signed, uint8_t* filter) {
  const int64_t area = shape.rows * shape.columns, depth = shape.channels * area;
  for (int64_t o = 0; o < shape.outputs; o++) {
    const int64_t kind = o ? random.below(3) : 0, window = random.below(int64_t(1) << area);
    int64_t rest = total;
    for (int64_t k = 0; k < depth; k++) {
      const bool is_positive = kind == 1 ? window >> k % area & 1 : kind == 2 && random.chance(50);
      const int64_t most = is_positive ? 127 : 128, magnitude = rest < most ? rest : most;
      rest -= magnitude;
      filter[o * depth + k] = uint8_t((is_positive ? magnitude : -magnitude) ^ (is_signed ? 0 : 128));
    }
    if (rest) abort();
  }
}

// Fills x with extremes that repeat every four pixels and are the same in all channels. Such pixels make transformed
// values large.
void set_periodic(Random& random, const Convolution& one, uint8_t* x) {
  const int64_t pattern = random.below(1 << 16), size = one.height * one.width;
  for (int64_t i = 0; i < one.batch * one.filter.groups * one.filter.channels * size; i++) {
    const int64_t row = i % size / one.width % 4, column = i % one.width % 4;
    x[i] = uint8_t((pattern >> (row * 4 + column) & 1 ? 255 : 0) ^ (one.x_zero_point.is_signed ? 128 : 0));
  }
}

// Aborts if a call takes more scratch memory than four times the size of padded inputs and outputs together, plus 12
// bytes for each output channel, 1 KiB for each problem, 32 bytes for each depthwise kernel element, and 64 KiB. Rows
// and columns of padding count up to twice the total over all windows.
void check_scratch(const Kernels& kernels, const std::vector<Convolution>& problems) {
  const Convolution& one = problems[0];
  const int64_t rows = 2 * one.y_height * one.filter.rows, columns = 2 * one.y_width * one.filter.columns;
  const int64_t height = one.height + std::min(one.start[0] + one.end[0], rows);
  const int64_t width = one.width + std::min(one.start[1] + one.end[1], columns);
  const int64_t input = one.filter.groups * one.filter.channels * height * width;
  const int64_t output = one.filter.outputs * one.y_height * one.y_width * (size_of(one.type));
  const int64_t count = int64_t(problems.size());
  const int64_t elements = one.filter.channels == 1 && one.filter.groups > 1 ? one.filter.rows * one.filter.columns : 0;
  const int64_t most =
      count * (4 * one.batch * (input + output) + 12 * one.filter.outputs + 1024) + 32 * elements + 65536;
  for (const int64_t threads : {1, 2, 3, 16, 200}) {
    const int64_t bytes = kernels.convolve_scratch(problems.data(), count, threads);
    if (bytes <= most) continue;
    fprintf(stderr, "%lld bytes of scratch memory for %d threads, not %lld\n", (long long)bytes, int(threads),
            (long long)most);
    abort();
  }
}

// `one` gives the shape, attributes, signedness and output type. If `total` is not 0, it is the sum of |weights| of
// each output channel in the first problem. Each further problem has a larger sum.
Case convolution_case(Random& random, Convolution one, int64_t count, Fill fill = Fill::kRandom, int64_t total = 0) {
  const Filter& shape = one.filter;
  const int64_t kernel[2] = {shape.rows, shape.columns}, size[2] = {one.height, one.width};
  int64_t* const y_size[2] = {&one.y_height, &one.y_width};
  for (int i = 0; i < 2; i++)
    *y_size[i] = (size[i] + one.start[i] + one.end[i] - (kernel[i] - 1) * one.dilation[i] - 1) / one.stride[i] + 1;
  const bool has_bias = random.chance(60);
  const auto far = [](int64_t number) { return static_cast<long long>(number); };
  Case of;
  of.what = text(
      "%d convolutions [%d, %d, %d, %d] with [%d, %d, %d, %d], %d groups, strides %lld %lld, dilations %lld %lld, "
      "padding %lld %lld before and %lld %lld after, %s x %s -> %s%s",
      int(count), int(one.batch), int(shape.groups * shape.channels), int(one.height), int(one.width),
      int(shape.outputs), int(shape.channels), int(shape.rows), int(shape.columns), int(shape.groups),
      far(one.stride[0]), far(one.stride[1]), far(one.dilation[0]), far(one.dilation[1]), far(one.start[0]),
      far(one.start[1]), far(one.end[0]), far(one.end[1]), name_of(one.x_zero_point.is_signed),
      name_of(one.filter_zero_point.is_signed), name_of(one.type), has_bias ? ", bias" : "");
  of.y_alignment = size_of(one.type);
  std::vector<Convolution> problems;
  std::vector<const uint8_t*> weights;
  const int64_t depth = shape.channels * shape.rows * shape.columns;
  const Style style = random_style(random);
  const Magnitudes near = magnitudes(random, depth, style);
  const bool is_shared = !total && random.chance(30);
  const int64_t filter_scales = random.chance(50) ? 1 : shape.outputs;
  const int64_t filter_zero_points = random.chance(50) ? 1 : shape.outputs;
  for (int64_t i = 0; i < count; i++) {
    one.x = tensor(of, random, one.batch * shape.groups * shape.channels * one.height * one.width,
                   one.x_zero_point.is_signed, fill);
    if (total && fill == Fill::kExtremes) set_periodic(random, one, of.inputs.back().at());
    if (!i || !is_shared) {
      weights.push_back(tensor(of, random, shape.outputs * depth, one.filter_zero_point.is_signed, fill));
      if (total) set_total(random, shape, total + 300 * i, one.filter_zero_point.is_signed, of.inputs.back().at());
    } else {
      weights.push_back(weights[0]);
    }
    one.x_scale = scales(of, random, 1, near.a, style);
    one.filter_scale = scales(of, random, filter_scales, near.b, style);
    one.y_scale = scales(of, random, 1, near.y, style);
    one.x_zero_point = zero_points(of, random, 1, one.x_zero_point.is_signed);
    one.filter_zero_point = zero_points(of, random, filter_zero_points, one.filter_zero_point.is_signed);
    one.y_zero_point = zero_points(of, random, 1, one.type == Type::kInt8);
    one.bias = has_bias ? bias_of(of, random, shape.outputs, depth) : nullptr;
    problems.push_back(one);
    of.expected.push_back(expected(one, weights.back()));
  }
  of.run = [problems, weights](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    std::vector<Convolution> all = problems;
    const Convolution& one = all[0];
    std::deque<Bytes> packed;
    const auto at =
        pack_all(random, weights, kernels.filter_bytes(one.filter), packed, [&](const uint8_t* filter, uint8_t* to) {
          kernels.pack_filter(pool, filter, one.filter_zero_point.is_signed, one.filter, to);
        });
    for (size_t i = 0; i < all.size(); i++) {
      all[i].packed = at[i];
      all[i].y = y[i].at();
    }
    check_scratch(kernels, all);
    const int64_t size = int64_t(all.size());
    const Bytes scratch(random, kernels.convolve_scratch(all.data(), size, pool.threads), 64);
    kernels.convolve(pool, all.data(), size, scratch.at());
  };
  return of;
}

int32_t zero_point(Random& random, bool is_signed) { return int32_t(random.below(256)) - (is_signed ? 128 : 0); }

Case sum_case(Random& random, int64_t size, int64_t count) {
  Case of;
  Sum one = {};
  one.size = size;
  one.a_is_signed = random.chance(50);
  one.b_is_signed = random.chance(50);
  one.y_is_signed = random.chance(50);
  of.what = text("%d sums of %d, %s + %s -> %s", int(count), int(size), name_of(one.a_is_signed),
                 name_of(one.b_is_signed), name_of(one.y_is_signed));
  std::vector<Sum> problems;
  const Style style = random_style(random);
  // Includes scales too large or too small for the reciprocal.
  const float near = std::exp2(random.chance(80) ? 10 * random.fraction() - 8 : 120 * random.fraction() - 60);
  for (int64_t i = 0; i < count; i++) {
    one.a = tensor(of, random, size, one.a_is_signed);
    one.b = tensor(of, random, size, one.b_is_signed);
    one.a_scale = scale(random, near, style);
    one.b_scale = scale(random, near, style);
    // Quotients may lie beyond int32.
    const float spread = random.chance(10) ? 80 : 6;
    one.y_scale = scale(random, near * std::exp2(spread * (random.fraction() - 0.5f)), style);
    one.a_zero_point = zero_point(random, one.a_is_signed);
    one.b_zero_point = zero_point(random, one.b_is_signed);
    one.y_zero_point = zero_point(random, one.y_is_signed);
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = run_of(problems, &Kernels::add);
  return of;
}

Case quantization_case(Random& random, int64_t size, int64_t count) {
  Case of;
  Quantization one = {};
  one.size = size;
  one.is_signed = random.chance(50);
  one.width = random.chance(70) ? 1 : 2;
  of.y_alignment = one.width;
  of.what = text("%d quantizations of %d to %d bytes, %s", int(count), int(size), int(one.width),
                 one.is_signed ? "signed" : "unsigned");
  std::vector<Quantization> problems;
  const Style style = random_style(random);
  for (int64_t i = 0; i < count; i++) {
    float* x = of.inputs.emplace_back(random, size * 4, 4).as<float>();
    one.scale = scale(random, std::exp2(12 * random.fraction() - 8), style);
    if (random.chance(10)) one.scale = -one.scale;
    one.zero_point = zero_point(random, one.is_signed);
    for (int64_t k = 0; k < size; k++) {
      const int64_t most = one.width == 1 ? 300 : 1 << 17;
      x[k] = one.scale * float(most) * (random.fraction() - 0.5f);
      if (random.chance(20)) {  // a tie, or close to one
        x[k] = one.scale * (float(random.between(-most, most)) + 0.5f);
        for (int64_t i = random.below(3); i > 0; i--) x[k] = std::nextafter(x[k], random.chance(50) ? 0.0f : 1e30f);
      }
      if (random.chance(5)) random.fill(reinterpret_cast<uint8_t*>(x + k), 4);  // any float
      if (random.chance(1)) x[k] = std::numeric_limits<float>::quiet_NaN();
      if (random.chance(1)) x[k] = std::numeric_limits<float>::infinity() * (random.chance(50) ? 1 : -1);
    }
    one.x = x;
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = run_of(problems, &Kernels::quantize);
  return of;
}

Case dequantization_case(Random& random, int64_t size, int64_t count) {
  Case of;
  of.y_alignment = 4;
  Dequantization one = {};
  one.size = size;
  one.is_signed = random.chance(50);
  one.width = random.chance(50) ? 1 : 2;
  of.what = text("%d dequantizations of %d from %d bytes, %s", int(count), int(size), int(one.width),
                 one.is_signed ? "signed" : "unsigned");
  std::vector<Dequantization> problems;
  const Style style = random_style(random);
  for (int64_t i = 0; i < count; i++) {
    one.x = tensor(of, random, size * one.width, one.is_signed);
    one.scale = scale(random, std::exp2(12 * random.fraction() - 8), style);
    const int32_t range = one.width == 1 ? 256 : 65536;
    one.zero_point = int32_t(random.below(range)) - (one.is_signed ? range / 2 : 0);
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = run_of(problems, &Kernels::dequantize);
  return of;
}

Case range_case(Random& random, int64_t size, int64_t count) {
  Case of;
  of.y_alignment = 4;
  of.what = text("%d ranges of %d", int(count), int(size));
  std::vector<Range> problems;
  for (int64_t i = 0; i < count; i++) {
    float* x = of.inputs.emplace_back(random, size * 4, 4).as<float>();
    const float magnitude = float(std::exp2(40 * random.fraction() - 20)), shift = random.chance(50) ? 0.5f : 1.5f;
    for (int64_t k = 0; k < size; k++) x[k] = magnitude * (random.fraction() - shift) * (random.chance(50) ? 1 : -1);
    if (random.chance(10)) x[random.below(size)] = std::numeric_limits<float>::quiet_NaN();
    if (random.chance(10)) x[random.below(size)] = -std::numeric_limits<float>::infinity();
    problems.push_back({size, x, nullptr});
    of.expected.push_back(expected(problems.back()));
  }
  of.run = run_of(problems, &Kernels::extremes);
  return of;
}

Case row_quantization_case(Random& random, int64_t rows, int64_t depth) {
  Case of;
  of.what = text("%d quantized rows of %d", int(rows), int(depth));
  float* const x = of.inputs.emplace_back(random, rows * depth * 4, 4).as<float>();
  for (int64_t m = 0; m < rows; m++) {
    const float magnitude = float(std::exp2(40 * random.fraction() - 20)), shift = random.chance(50) ? 0.5f : 1.5f;
    for (int64_t k = 0; k < depth; k++)
      x[m * depth + k] = random.chance(5) ? 0 : magnitude * (random.fraction() - shift);
    if (random.chance(5)) x[m * depth + random.below(depth)] = std::numeric_limits<float>::quiet_NaN();
    if (random.chance(5)) x[m * depth + random.below(depth)] = std::numeric_limits<float>::infinity();
    if (random.chance(5)) x[m * depth + random.below(depth)] = -std::numeric_limits<float>::infinity();
    if (random.chance(5)) std::fill_n(x + m * depth, depth, 0.0f);
  }
  const RowQuantization one = {rows, depth, x, nullptr, nullptr, nullptr};
  of.expected.push_back(expected(one));
  of.run = [one](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    const Bytes scales(random, one.rows * 4, 4);
    uint8_t* const zero_points = y[0].at() + one.rows * one.depth;
    kernels.quantize_rows(pool, {one.rows, one.depth, one.x, y[0].at(), scales.as<float>(), zero_points});
    memcpy(zero_points + one.rows, scales.at(), size_t(one.rows * 4));
  };
  return of;
}

Case row_sums_case(Random& random, int64_t size, int64_t count) {
  Case of;
  of.y_alignment = 4;
  Rows one = {};
  one.depth = extent(random, size);
  one.rows = size / one.depth;
  one.is_signed = random.chance(50);
  of.what = text("%d times the sums of %d rows of %d", int(count), int(one.rows), int(one.depth));
  std::vector<Rows> problems;
  for (int64_t i = 0; i < count; i++) {
    one.x = tensor(of, random, one.rows * one.depth, one.is_signed);
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = run_of(problems, &Kernels::row_sums);
  return of;
}

Case means_case(Random& random, int64_t size, int64_t count) {
  Case of;
  Means one = {};
  one.depth = extent(random, size);
  one.rows = size / one.depth;
  one.x_is_signed = random.chance(50);
  one.y_is_signed = random.chance(50);
  of.what = text("%d times the means of %d rows of %d, %s -> %s", int(count), int(one.rows), int(one.depth),
                 name_of(one.x_is_signed), name_of(one.y_is_signed));
  std::vector<Means> problems;
  const Style style = random_style(random);
  const float near = std::exp2(random.chance(80) ? 10 * random.fraction() - 8 : 120 * random.fraction() - 60);
  for (int64_t i = 0; i < count; i++) {
    one.x = tensor(of, random, one.rows * one.depth, one.x_is_signed);
    one.x_scale = scale(random, near, style);
    one.y_scale = scale(random, near * std::exp2(4 * random.fraction() - 3), style);
    if (random.chance(30)) one.y_scale = 2 * one.x_scale / float(one.depth);  // ties, and numbers next to them
    one.x_zero_point = zero_point(random, one.x_is_signed);
    one.y_zero_point = zero_point(random, one.y_is_signed);
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = run_of(problems, &Kernels::means);
  return of;
}

float half(uint16_t bits) {  // no subnormal number, infinity or NaN
  return std::ldexp(float((bits & 0x3ff) + 0x400), (bits >> 10 & 31) - 25) * (bits & 0x8000 ? -1.f : 1.f);
}

Elements elements(Case& of, Random& random, int64_t count, int bits, bool is_signed) {
  const int64_t first = random.chance(30) ? random.below(4) : 0,
                bytes = bits == 8 ? first + count : (first + count + 1) / 2;
  return {tensor(of, random, bytes, is_signed), first, bits, is_signed};
}

// `one` gives the shape, the rows and the planes.
Case blocks_case(Random& random, BlockProduct one) {
  Case of;
  const BlockShape& shape = one.shape;
  const bool is_signed = random.chance(50), has_bias = random.chance(40);
  of.what = text("[%d, %d] in %d planes by [%d, %d] of %d bits in blocks of %d, %d bytes to a scale%s%s", int(one.rows),
                 int(shape.depth), int(one.planes), int(shape.columns), int(shape.depth), shape.bits, int(shape.size),
                 shape.scale_bytes, shape.has_zero_points ? ", zero points" : "", has_bias ? ", bias" : "");
  of.y_alignment = 4;
  const int64_t count = shape.columns * blocks_of(shape), size = one.rows * shape.depth;
  BlockMatrix matrix = {shape, elements(of, random, shape.columns * shape.depth, shape.bits, is_signed),
                        elements(of, random, count, shape.bits, is_signed), nullptr};
  uint8_t* const scales = of.inputs.emplace_back(random, count * shape.scale_bytes, shape.scale_bytes).at();
  matrix.scales = scales;
  const Style style = random_style(random);
  for (int64_t i = 0; i < count; i++) {
    const uint16_t bits = uint16_t(random.between(1, 30) << 10 | random.below(1024) | random.below(2) << 15);
    float value;
    do value = scale(random, 0.01f, style);
    while (!std::isfinite(value) || std::fabs(value) > 1e20f);
    memcpy(scales + i * shape.scale_bytes, shape.scale_bytes == 2 ? static_cast<const void*>(&bits) : &value,
           size_t(shape.scale_bytes));
  }
  float* const a = of.inputs.emplace_back(random, size * 4, 4).as<float>();
  const int kind = int(random.below(5));
  const bool is_on_edge = one.planes == 1 && shape.scale_bytes == 4 && random.chance(10);
  for (int64_t i = 0; i < size; i++) {
    a[i] = 2 * random.fraction() - 1;
    if (kind == 1) a[i] = std::ldexp(a[i], int(random.between(-149, 60)));
    if (kind == 2) a[i] = float(random.between(-254, 254)) / 2;
    if (kind == 3 && random.chance(80)) a[i] = 0;
    if (kind == 4) a[i] = 1;  // the largest integers, of one sign
    if (is_on_edge) a[i] = 127 * kOnEdge[0];
  }
  for (int64_t i = 0; is_on_edge && i < count; i++) memcpy(scales + i * 4, &kOnEdge[1], 4);
  one.a = a;
  if (has_bias) {
    float* const bias = of.inputs.emplace_back(random, shape.columns * 4, 4).as<float>();
    for (int64_t i = 0; i < shape.columns; i++) bias[i] = random.fraction();
    one.bias = bias;
  }
  of.expected.push_back(expected(one, matrix, half));
  of.run = [one, matrix](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    BlockProduct product = one;
    std::deque<Bytes> packed;
    product.packed = pack_all(random, {matrix.weights.at}, packed_bytes(one.shape), packed,
                              [&](const uint8_t*, uint8_t* to) { kernels.pack_blocks(pool, matrix, to); })[0];
    product.y = y[0].as<float>();
    const Bytes scratch(random, kernels.multiply_blocks_scratch(product), 64);
    kernels.multiply_blocks(pool, product, scratch.at());
  };
  return of;
}

// Sets a window in one dimension so that it fits the padded image, which may extend far beyond the image.
void set_windows(Random& random, MaxPool& one, int i, int64_t size) {
  const int64_t far = random.chance(10) ? int64_t(1) << random.between(3, 58) : 4;
  one.window[i] = random.between(1, random.chance(80) ? 3 : 12);
  one.dilation[i] = random.chance(70) ? 1 : random.between(1, far);
  one.start[i] = random.chance(50) ? random.below(far) : random.below(one.window[i]);
  const int64_t reach = (one.window[i] - 1) * one.dilation[i];
  const int64_t end = random.below(random.chance(50) ? far : 4);
  const int64_t rest = std::max(size + one.start[i] + end, reach + 1) - reach - 1;
  one.stride[i] = random.chance(70) ? random.between(1, 2) : random.between(1, 6);
  if (rest / one.stride[i] > 300) one.stride[i] = rest / random.between(1, 20) + random.below(2);
  if (random.chance(far > 4 ? 40 : 5)) one.stride[i] = rest + 1;  // one output
  (i ? one.y_width : one.y_height) = rest / one.stride[i] + 1;
}

Case max_pool_case(Random& random, int64_t images, int64_t height, int64_t width) {
  Case of;
  MaxPool one = {};
  one.images = images;
  one.height = height;
  one.width = width;
  one.is_signed = random.chance(50);
  set_windows(random, one, 0, height);
  set_windows(random, one, 1, width);
  const auto far = [](int64_t number) { return static_cast<long long>(number); };
  of.what = text(
      "max pool of %d images %d x %d, windows %d x %d, strides %lld %lld, dilations %lld %lld, padding %lld "
      "%lld, to %d x %d, %s",
      int(images), int(height), int(width), int(one.window[0]), int(one.window[1]), far(one.stride[0]),
      far(one.stride[1]), far(one.dilation[0]), far(one.dilation[1]), far(one.start[0]), far(one.start[1]),
      int(one.y_height), int(one.y_width), name_of(one.is_signed));
  one.x = tensor(of, random, images * height * width, one.is_signed);
  of.expected.push_back(expected(one));
  of.run = [one](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    MaxPool here = one;
    here.y = y[0].at();
    const int64_t bytes = kernels.max_pool_scratch(here, pool.threads);
    if (bytes > pool.threads * (10 * (one.width + one.y_width) + 1000) + 64) {
      fprintf(stderr, "%lld bytes of scratch memory for a max pool\n", static_cast<long long>(bytes));
      abort();
    }
    const Bytes scratch(random, bytes, 64);
    kernels.max_pool(pool, here, scratch.at());
  };
  return of;
}

Case random_max_pool(Random& random) {
  return max_pool_case(random, extent(random, 20), extent(random, 40), extent(random, random.chance(20) ? 700 : 150));
}

// `one` gives the sizes and the result.
Case attention_case(Random& random, Attention one, int64_t count) {
  Case of;
  of.y_alignment = 4;
  const bool has_seen = random.chance(70), has_bias = random.chance(30), has_sink = random.chance(30);
  of.what = text(
      "%d attentions, batch %d, %d heads in %d groups, %d queries of %d, %d keys, values of %d%s%s%s, result %d",
      int(count), int(one.batch), int(one.heads), int(one.groups), int(one.rows), int(one.depth), int(one.keys),
      int(one.width), has_seen ? ", seen" : "", has_bias ? ", bias" : "", has_sink ? ", sink" : "", int(one.result));
  const auto floats = [&](int64_t size, float magnitude, bool has_strange) {
    float* const at = of.inputs.emplace_back(random, size * 4, 4).as<float>();
    const int64_t outlier = random.between(1, 12);
    for (int64_t i = 0; i < size; i++) {
      at[i] = magnitude * (2 * random.fraction() - 1);
      if (i % outlier == 0 && outlier > 8) at[i] *= 50;
      if (has_strange && random.chance(1))
        at[i] = random.chance(60) ? std::ldexp(at[i], int(random.between(-140, -20)))
                                  : std::numeric_limits<float>::infinity() * (random.chance(50) ? 0 : 1);
    }
    return at;
  };
  // Steps of an array [batch, heads, rows, keys], of which some extents are 1, and its size.
  const auto steps = [&](int64_t (&to)[3]) {
    int64_t size = one.keys;
    for (int i = 3; i-- > 0;) {
      const int64_t extent = random.chance(50) ? 1 : i == 0 ? one.batch : i == 1 ? one.heads : one.rows;
      to[i] = extent == 1 ? 0 : size;
      size *= extent;
    }
    return size;
  };
  const int64_t of_seen = has_seen ? steps(one.seen_steps) : 0, of_bias = has_bias ? steps(one.bias_steps) : 0;
  const bool has_strange = random.chance(15), is_causal = random.chance(50);
  const bool is_on_edge = one.result == AttentionResult::kScores && random.chance(30);
  one.scale = is_on_edge ? 1 : random.fraction() + 0.1f;
  std::vector<Attention> problems;
  for (int64_t i = 0; i < count; i++) {
    one.query = floats(one.batch * one.heads * one.rows * one.depth, 2, has_strange);
    one.key = floats(one.batch * one.groups * one.keys * one.depth, 2, has_strange);
    one.value =
        floats(one.batch * one.groups * one.keys * one.width, std::exp2(float(random.between(-9, 9))), has_strange);
    if (is_on_edge) {  // the scale of a row of queries is 2**26 times its greatest magnitude over 127 * 2**20
      std::fill_n(const_cast<float*>(one.query), one.batch * one.heads * one.rows * one.depth,
                  127 * 0x1p-6f * kOnEdge[0]);
      std::fill_n(const_cast<float*>(one.key), one.batch * one.groups * one.keys * one.depth,
                  127 * 0x1p20f * kOnEdge[1]);
    }
    if (has_seen) {
      uint8_t* const seen = of.inputs.emplace_back(random, of_seen).at();
      for (int64_t k = 0; k < of_seen; k++)
        seen[k] = is_causal ? k % one.keys <= (k / one.keys) % one.rows : random.chance(60);
      one.seen = seen;
    }
    if (has_bias) one.bias = floats(of_bias, 3, false);
    if (has_sink) one.sink = floats(one.heads, 3, false);
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = [problems](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    std::vector<Attention> all = problems;
    for (size_t i = 0; i < all.size(); i++) all[i].y = y[i].as<float>();
    const Attention& one = all[0];
    const int64_t bytes = kernels.attention_scratch(one, pool.threads);
    const int64_t rows = std::min<int64_t>(one.heads / one.groups * one.rows, 96),
                  most_of_rows = std::min<int64_t>(rows, std::max<int64_t>(12, (1 << 16) / one.keys));
    const int64_t most = most_of_rows * (4 * one.keys + 16 * one.depth + 20 * one.width + 1024) + 8 * one.keys +
                         64 * one.depth + 128 * one.width + 16384;
    if (bytes > pool.threads * most) {
      fprintf(stderr, "%lld bytes of scratch memory for attention, not %lld\n", (long long)bytes, (long long)most);
      abort();
    }
    const Bytes scratch(random, bytes, 64);
    kernels.attention(pool, all.data(), int64_t(all.size()), scratch.at());
  };
  return of;
}

Attention attention_of(Random& random, int64_t batch, int64_t groups, int64_t rows, int64_t keys, int64_t depth,
                       int64_t width) {
  Attention one = {};
  one.batch = batch;
  one.groups = groups;
  one.heads = groups * random.between(1, 5);
  one.rows = rows;
  one.keys = keys;
  one.depth = depth;
  one.width = width;
  one.result =
      random.chance(70) ? AttentionResult::kOutput : AttentionResult(random.below(int64_t(AttentionResult::kCount)));
  return one;
}

Case random_attention(Random& random) {
  for (;;) {
    const Attention one =
        attention_of(random, extent(random, 3), extent(random, 4), extent(random, 120),
                     extent(random, random.chance(20) ? 700 : 90), extent(random, 140), extent(random, 140));
    if (one.batch * one.heads * one.rows * one.keys * (one.depth + one.width) < 3000000)
      return attention_case(random, one, extent(random, 3));
  }
}

Case lstm_case(Random& random, int64_t steps, int64_t batch, int64_t units, int64_t count) {
  Case of;
  of.y_alignment = 4;
  Lstm one = {};
  one.steps = steps;
  one.batch = batch;
  one.units = units;
  one.couples_forget = random.chance(30);
  one.clip = random.chance(70) ? std::numeric_limits<float>::infinity() : 2 * random.fraction() + 0.01f;
  one.y_stride = batch * units;
  const bool has_peephole = random.chance(50), is_signed = random.chance(50), has_strange = random.chance(15);
  of.what = text("%d LSTMs, %d steps of %d items, %d units, %s%s%s", int(count), int(steps), int(batch), int(units),
                 name_of(is_signed), one.couples_forget ? ", couples forget" : "", has_peephole ? ", peephole" : "");
  const auto floats = [&](int64_t size, float magnitude) {
    constexpr float kStrange[] = {0.0f, -0.0f, 1e-39f, -2e-38f, 1e30f, -1e38f};
    float* const at = of.inputs.emplace_back(random, size * 4, 4).as<float>();
    for (int64_t i = 0; i < size; i++)
      at[i] = has_strange && random.chance(3) ? kStrange[random.below(std::size(kStrange))]
                                              : magnitude * (2 * random.fraction() - 1);
    return at;
  };
  const int64_t scale_count = random.chance(50) ? 1 : 4 * units, zero_point_count = random.chance(50) ? 1 : 4 * units;
  // Of tiny states the range divided by 255 is subnormal, or the states are. Large scales make the difference visible.
  const float of_h = has_strange || random.chance(80) ? 1 : std::exp2(float(random.between(-135, -1)));
  std::vector<Lstm> problems;
  std::vector<const uint8_t*> weights;
  for (int64_t i = 0; i < count; i++) {
    one.is_backward = random.chance(50);
    one.gates = floats(steps * batch * 4 * units, 4);
    int32_t* const lengths = of.inputs.emplace_back(random, batch * 4, 4).as<int32_t>();
    for (int64_t b = 0; b < batch; b++) lengths[b] = int32_t(random.chance(50) ? steps : random.between(-1, steps + 1));
    one.lengths = lengths;
    one.h = floats(batch * units, of_h);
    one.c = floats(batch * units, 2);
    one.bias = floats(4 * units, 1);
    if (has_peephole) one.peephole = floats(3 * units, 1);
    one.scale = scales(of, random, scale_count, 0.02f / std::sqrt(float(units)) / std::max(of_h, 0x1p-100f), {});
    one.zero_point = zero_points(of, random, zero_point_count, is_signed);
    weights.push_back(tensor(of, random, units * 4 * units, is_signed));
    problems.push_back(one);
    of.expected.push_back(expected(one, weights.back()));
  }
  of.run = [problems, weights](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    std::vector<Lstm> all = problems;
    const Lstm& one = all[0];
    const int64_t size = one.batch * one.units, columns = 4 * one.units;
    std::deque<Bytes> packed;
    const auto at =
        pack_all(random, weights, kernels.matrix_bytes(one.units, columns), packed, [&](const uint8_t* b, uint8_t* to) {
          kernels.pack_matrix(pool, b, one.zero_point.is_signed, one.units, columns, to);
        });
    for (size_t i = 0; i < all.size(); i++) {
      all[i].weights = at[i];
      all[i].y = y[i].as<float>();
      all[i].last_h = all[i].y + one.steps * size;
      all[i].last_c = all[i].last_h + size;
    }
    const int64_t bytes = kernels.lstm_scratch(one, pool.threads);
    if (bytes > pool.threads * (92 * one.units + 21 * size + 2816)) {
      fprintf(stderr, "%lld bytes of scratch memory for LSTM\n", (long long)bytes);
      abort();
    }
    const Bytes scratch(random, bytes, 64);
    kernels.lstm(pool, all.data(), int64_t(all.size()), scratch.at());
  };
  return of;
}

Case random_lstm(Random& random) {
  const int64_t units = extent(random, 90), batch = extent(random, units < 20 ? 40 : 9);
  return lstm_case(random, extent(random, 12), batch, units, extent(random, 3));
}

auto run_of(const std::shared_ptr<RowCase>& rows) {
  return [rows](const Kernels& kernels, const Pool& pool, Random& random, const std::deque<Bytes>& y) {
    RowProgram one = rows->one;
    std::vector<RowResult> results = rows->results;
    for (size_t i = 0; i < results.size(); i++) results[i].y = y[i].at();
    one.results = results.data();
    const Bytes scratch(random, kernels.row_program_scratch(one, pool.threads), 64);
    kernels.run_rows(pool, one, scratch.at());
  };
}

Case rows_case(Random& random, std::vector<int64_t> extents, int64_t columns) {
  Case of;
  const auto rows = std::make_shared<RowCase>(random_rows(random, of.inputs, std::move(extents), columns));
  of.y_alignment = rows->results.back().type == RowType::kFloat ? 4 : 1;  // the memory of all results has one alignment
  bound(*rows);
  of.what = text("a program of %d instructions on %d rows of %d", int(rows->instructions.size()), int(rows->one.rows),
                 int(columns));
  of.expected = expected(*rows);
  of.run = run_of(rows);
  return of;
}

// Products of numbers, some of which lie just below 2**-126 and round to it.
Case row_products_case(Random& random, int64_t columns) {
  Case of;
  of.y_alignment = 4;
  const auto rows = std::make_shared<RowCase>();
  rows->one.rows = 1;
  rows->one.columns = columns;
  for (int i = 0; i < 2; i++) {
    auto* const at = of.inputs.emplace_back(random, columns * 4, 4).as<float>();
    constexpr float kNumbers[] = {kOnEdge[0], kOnEdge[1],  0x1.000002p-126f, 0x1.fffffcp-1f, 0x1p-63f, 0x1.fffffep-64f,
                                  0.0f,       0x1.8p-126f, 0x1.fffffep127f,  1.0f,           1e-40f};
    for (int64_t k = 0; k < columns; k++)
      at[k] = kNumbers[random.below(std::size(kNumbers))] * (random.chance(50) ? 1.0f : -1.0f);
    rows->operand_extents.emplace_back();
    rows->operands.push_back(
        {reinterpret_cast<const uint8_t*>(at), nullptr, columns, 0, RowType::kFloat, true, false, true, true});
  }
  rows->instructions.push_back({RowCode::kMul, 2, {0, 1, 0}});
  rows->results.push_back({nullptr, RowType::kFloat, 2, 2, true});
  rows->one.slots = 3;
  bound(*rows);
  of.what = text("%d products of rows", int(columns));
  of.expected = expected(*rows);
  of.run = run_of(rows);
  return of;
}

Case random_rows_case(Random& random) {
  std::vector<int64_t> extents;
  while (extents.size() < 4 && random.chance(60)) extents.push_back(extent(random, 12));
  return rows_case(random, extents, extent(random, random.chance(10) ? 5000 : 150));
}

Case look_up_case(Random& random, int64_t size, int64_t count) {
  Case of;
  LookUp one = {};
  one.size = size;
  one.is_signed = random.chance(50);
  one.x_width = random.chance(60) ? 1 : 2;
  one.y_width = of.y_alignment = random.chance(60) ? 1 : 2;
  one.has_vbmi = has_avx512_vbmi() && random.chance(50);
  of.what = text("%d look-ups of %d from %d %s bytes to %d%s", int(count), int(size), int(one.x_width),
                 one.is_signed ? "signed" : "unsigned", int(one.y_width), one.has_vbmi ? " by AVX512-VBMI" : "");
  std::vector<LookUp> problems;
  for (int64_t i = 0; i < count; i++) {
    one.x = tensor(of, random, size * one.x_width, one.is_signed);
    one.table = tensor(of, random, (one.x_width == 1 ? 256 : 65536) * one.y_width, false, Fill::kUniform);
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = run_of(problems, &Kernels::look_up);
  return of;
}

Case product_case(Random& random, int64_t size, int64_t count) {
  Case of;
  Product one = {};
  one.run = random.chance(40) ? 1 : extent(random, std::min<int64_t>(size, 400));
  const int64_t runs = std::max<int64_t>(size / one.run, 1);
  one.size = runs * one.run;
  one.a_is_signed = random.chance(50);
  one.b_is_signed = random.chance(50);
  one.y_is_signed = random.chance(50);
  of.what = text("%d products of %d, runs of %d, %s * %s -> %s", int(count), int(one.size), int(one.run),
                 name_of(one.a_is_signed), name_of(one.b_is_signed), name_of(one.y_is_signed));
  std::vector<Product> problems;
  const Style style = random_style(random);
  for (int64_t i = 0; i < count; i++) {
    one.a = tensor(of, random, one.size, one.a_is_signed);
    one.b = tensor(of, random, runs, one.b_is_signed);
    one.multiplier = scale(random, std::exp2(14 * random.fraction() - 14), style);
    if (random.chance(5)) one.multiplier = 0.5f;                                      // ties
    if (random.chance(5)) one.multiplier = std::exp2(float(random.between(14, 34)));  // beyond int32
    one.a_zero_point = zero_point(random, one.a_is_signed);
    one.b_zero_point = zero_point(random, one.b_is_signed);
    one.y_zero_point = zero_point(random, one.y_is_signed);
    problems.push_back(one);
    of.expected.push_back(expected(one));
  }
  of.run = run_of(problems, &Kernels::products);
  return of;
}

Case block_dequantization_case(Random& random, int64_t blocks, int64_t size) {
  Case of;
  const bool is_signed = random.chance(50);
  const int bits = random.chance(60) ? 4 : 8;
  of.what = text("dequantization of %d blocks of %d, %d bits", int(blocks), int(size), bits);
  of.y_alignment = 4;
  BlockDequantization one = {blocks, size, elements(of, random, blocks * size, bits, is_signed), {}, nullptr, nullptr};
  if (random.chance(60)) one.zero_points = elements(of, random, blocks, bits, is_signed);
  one.scales = scales(of, random, blocks, 0.1f, Style{random.chance(50), false, false}).at;
  of.expected.push_back(expected(one));
  of.run = [one](const Kernels& kernels, const Pool& pool, Random&, const std::deque<Bytes>& y) {
    BlockDequantization all = one;
    all.y = y[0].as<float>();
    kernels.dequantize_blocks(pool, all);
  };
  return of;
}

// Shapes --------------------------------------------------------------------------------------------------------------

Case random_blocks(Random& random) {
  const int64_t size = int64_t(16) << random.below(5);
  const BlockShape shape = {extent(random, 150),       random.between(1, 600),    size,
                            random.chance(60) ? 4 : 8, random.chance(50) ? 2 : 4, random.chance(50)};
  return blocks_case(random, {shape, extent(random, 20), random.between(1, 3), nullptr, nullptr, nullptr, nullptr});
}

Matmul matmul_of(Random& random, int64_t rows, int64_t depth, int64_t columns) {
  Matmul one = {};
  one.rows = rows;
  one.depth = depth;
  one.columns = columns;
  one.a_zero_point.is_signed = random.chance(50);
  one.b_zero_point.is_signed = random.chance(50);
  one.type = random.chance(25) ? Type::kFloat32 : random_type(random);
  return one;
}

Filter filter_of(int64_t outputs, int64_t channels, int64_t rows, int64_t columns, int64_t groups = 1) {
  return {outputs, channels, rows, columns, groups, false};
}

Convolution convolution_of(Random& random, const Filter& filter, int64_t batch, int64_t height, int64_t width) {
  Convolution one = {};
  one.filter = filter;
  one.batch = batch;
  one.height = height;
  one.width = width;
  for (int i = 0; i < 2; i++) one.stride[i] = one.dilation[i] = 1;
  one.x_zero_point.is_signed = random.chance(50);
  one.filter_zero_point.is_signed = random.chance(50);
  one.type = random_type(random);
  return one;
}

Case random_matmul(Random& random) {
  const int64_t count = extent(random, 3);
  for (;;) {
    const int64_t rows = extent(random, random.chance(10) ? 400 : 80), columns = extent(random, 200);
    int64_t depth = random.chance(3) ? 0 : extent(random, random.chance(5) ? 3000 : 150);
    if (random.chance(20)) depth = random.between(1, 4) * 64;  // a multiple of an AMX tile's depth
    if (rows * columns * depth < 2000000) return matmul_case(random, matmul_of(random, rows, depth, columns), count);
  }
}

// Products large enough for Strassen's method, with remainders in rows, columns and depth.
Case random_large_matmul(Random& random) {
  for (;;) {
    const int64_t rows = random.between(48, 140), columns = random.between(60, 150), count = extent(random, 2);
    const int64_t depth = random.between(250, 600);
    if (count * rows * columns * depth < 6000000)
      return matmul_case(random, matmul_of(random, rows, depth, columns), count,
                         random.chance(50) ? Fill::kExtremes : Fill::kRandom);
  }
}

// 3 x 3 filters with enough channels and outputs for Winograd, on images of all sizes.
Case random_winograd(Random& random) {
  for (;;) {
    const int64_t groups = random.chance(75) ? 1 : random.between(2, 3), count = extent(random, 2);
    const int64_t outputs = random.chance(90) ? random.between(6, 26) : random.between(90, 150);
    const int64_t channels = random.between(8, 30), batch = extent(random, 4);
    const Filter filter = filter_of(groups * outputs, channels, 3, 3, groups);
    Convolution one = convolution_of(random, filter, batch, random.between(3, 30), random.between(3, 30));
    for (int i = 0; i < 2; i++) {
      one.start[i] = random.below(random.chance(80) ? 3 : 9);
      one.end[i] = random.below(random.chance(80) ? 3 : 9);
    }
    const int64_t pixels = (one.height + one.start[0] + one.end[0]) * (one.width + one.start[1] + one.end[1]);
    one.filter.is_for_one_call = random.chance(15);
    if (count * batch * pixels * groups * outputs * channels * 9 < 6000000) return convolution_case(random, one, count);
  }
}

// Filters with more output channels than a panel, and with windows whose size is a multiple of an AMX tile's depth.
Case random_deep(Random& random) {
  for (;;) {
    const int64_t count = extent(random, 2), groups = random.chance(80) ? 1 : 2, kernel = random.between(1, 3);
    const int64_t channels = 64 * extent(random, 2) / (random.chance(20) ? 2 : 1), outputs = random.between(64, 140);
    const Filter filter = filter_of(groups * outputs, channels, random.between(1, 3), kernel, groups);
    Convolution one = convolution_of(random, filter, 1, random.between(3, 14), random.between(3, 14));
    for (int i = 0; i < 2; i++) {
      one.stride[i] = random.between(1, 2);
      one.start[i] = random.below(3);
      one.end[i] = random.below(3);
    }
    const int64_t pixels = (one.height + 2) * (one.width + 2) / (one.stride[0] * one.stride[1]);
    if (count * pixels * groups * outputs * channels * filter.rows * kernel < 6000000)
      return convolution_case(random, one, count);
  }
}

// 1 x 1 filters on images without padding.
Case random_pointwise(Random& random) {
  for (;;) {
    const int64_t count = extent(random, 3), batch = extent(random, 3), groups = extent(random, 3);
    const int64_t channels = random.between(2, 40), outputs = extent(random, random.chance(30) ? 150 : 24);
    const Filter filter = filter_of(groups * outputs, channels, 1, 1, groups);
    Convolution one = convolution_of(random, filter, batch, extent(random, 30), extent(random, 30));
    one.filter.is_for_one_call = random.chance(50);
    if (count * batch * one.height * one.width * groups * outputs * channels < 3000000)
      return convolution_case(random, one, count);
  }
}

// Images with few channels, most of them with rows that fill vectors.
Case random_few_channels(Random& random) {
  for (;;) {
    const int64_t count = extent(random, 2), batch = extent(random, 3);
    const int64_t channels = random.chance(95) ? random.between(1, 4) : 5;
    const int64_t outputs = extent(random, random.chance(30) ? 150 : 40);
    const bool is_flat = random.chance(15), is_long = random.chance(10);
    const int64_t rows = is_flat ? 1 : extent(random, 7), columns = random.between(2, is_long ? 40 : 7);
    const int64_t height = is_flat ? 1 : random.between(1, 40), width = random.between(8, is_flat ? 300 : 100);
    const Filter filter = filter_of(outputs, channels, rows, columns, 1);
    Convolution one = convolution_of(random, filter, batch, height, width);
    const int64_t size[2] = {height, width}, kernel[2] = {rows, columns};
    int64_t pixels = 1;
    for (int i = 0; i < 2; i++) {
      one.stride[i] = random.between(1, random.chance(90) ? 2 : 4);
      one.dilation[i] = random.chance(80) || kernel[i] == 1 ? 1 : random.between(1, 3);
      const int64_t reach = (kernel[i] - 1) * one.dilation[i];
      one.start[i] = random.chance(70) ? reach / 2 : random.below(reach + 3);
      one.end[i] = random.chance(70) ? reach - reach / 2 : random.below(reach + 3);
      pixels *= std::max<int64_t>((size[i] + one.start[i] + one.end[i] - reach - 1) / one.stride[i] + 1, 0);
    }
    one.filter.is_for_one_call = random.chance(50);
    if (pixels > 0 && count * batch * pixels * outputs * channels * rows * columns < 6000000)
      return convolution_case(random, one, count);
  }
}

Case random_convolution(Random& random) {
  const bool is_depthwise = random.chance(35), is_flat = random.chance(20);
  for (;;) {
    const int64_t count = extent(random, 3), batch = extent(random, 3);
    const int64_t groups = is_depthwise ? extent(random, 30) : random.chance(60) ? 1 : extent(random, 24);
    const int64_t channels = is_depthwise ? 1 : extent(random, 24);
    const int64_t outputs = is_depthwise ? extent(random, 3) : extent(random, random.chance(10) ? 150 : 24);
    const int64_t rows = is_flat ? 1 : extent(random, 5), columns = extent(random, is_flat ? 9 : 5);
    // An image may have no rows or columns other than padding.
    const int64_t height = is_flat ? 1 : random.chance(2) ? 0 : extent(random, 40);
    const int64_t width = random.chance(2) ? 0 : extent(random, is_flat ? 300 : 40);
    Convolution one =
        convolution_of(random, filter_of(groups * outputs, channels, rows, columns, groups), batch, height, width);
    one.filter.is_for_one_call = random.chance(50);
    const int64_t kernel[2] = {rows, columns}, size[2] = {height, width};
    bool fits = true;
    int64_t pixels = 1;
    for (int i = is_flat; i < 2; i++) {
      one.stride[i] = random.chance(50) ? 1 : random.between(1, 4);
      one.dilation[i] = random.chance(60) ? 1 : random.between(1, 4);
      one.start[i] = random.chance(40) ? 0 : random.below(7);
      one.end[i] = random.chance(40) ? 0 : random.below(7);
      const int64_t padded = size[i] + one.start[i] + one.end[i];
      fits &= padded > (kernel[i] - 1) * one.dilation[i];
      pixels *= padded / one.stride[i] + 1;
    }
    if (fits && count * batch * pixels * groups * outputs * channels * rows * columns < 2000000)
      return convolution_case(random, one, count);
  }
}

// Depthwise filters, often with strides or small images, and with more groups than are computed at a time.
Case random_depthwise_by_channels(Random& random) {
  for (;;) {
    const int64_t count = extent(random, 2), batch = extent(random, 2), groups = random.between(2, 50);
    const int64_t outputs = groups * (random.chance(80) ? 1 : random.between(2, 3)), most = random.chance(80) ? 17 : 70;
    const Filter filter = filter_of(outputs, 1, random.between(1, 6), random.between(1, 6), groups);
    Convolution one = convolution_of(random, filter, batch, random.between(1, most), random.between(1, most));
    const int64_t kernel[2] = {filter.rows, filter.columns}, size[2] = {one.height, one.width};
    bool fits = true;
    for (int i = 0; i < 2; i++) {
      one.stride[i] = random.between(1, random.chance(80) ? 2 : 4);
      one.dilation[i] = random.chance(80) ? 1 : random.between(1, 3);
      one.start[i] = random.below(4);
      one.end[i] = random.below(4);
      fits &= size[i] + one.start[i] + one.end[i] > (kernel[i] - 1) * one.dilation[i];
    }
    if (fits) return convolution_case(random, one, count);
  }
}

// Depthwise filters with square kernels, on images with rows long enough for several vectors.
Case random_square_depthwise(Random& random) {
  for (;;) {
    const int64_t count = extent(random, 2), batch = extent(random, 2), groups = random.between(2, 20);
    const int64_t outputs = groups * (random.chance(80) ? 1 : 2), kernel = random.between(1, 3) * 2 + 1;
    const Filter filter = filter_of(outputs, 1, kernel, kernel, groups);
    Convolution one = convolution_of(random, filter, batch, random.between(1, 20), random.between(1, 90));
    bool fits = true;
    const int64_t size[2] = {one.height, one.width}, stride = random.between(1, 2);
    for (int i = 0; i < 2; i++) {
      one.stride[i] = stride;
      one.start[i] = random.below(random.chance(80) ? 4 : 100);
      one.end[i] = random.below(random.chance(80) ? 4 : 100);
      fits &= size[i] + one.start[i] + one.end[i] >= kernel;
    }
    if (fits) return convolution_case(random, one, count);
  }
}

// Padding, dilations and strides far larger than the image. They cost little, because outputs are few.
Case random_far(Random& random) {
  const bool is_depthwise = random.chance(50);
  for (;;) {
    const int64_t groups = extent(random, is_depthwise ? 30 : 3), outputs = groups * extent(random, 24);
    const Filter filter =
        filter_of(outputs, is_depthwise ? 1 : extent(random, 24), extent(random, 5), extent(random, 5), groups);
    Convolution one = convolution_of(random, filter, extent(random, 2), extent(random, 12), extent(random, 12));
    const int64_t kernel[2] = {filter.rows, filter.columns}, size[2] = {one.height, one.width};
    int64_t pixels = 1;
    for (int i = 0; i < 2; i++) {
      const bool is_far = i || random.chance(70);
      const int64_t far = is_far ? int64_t(1) << random.between(8, 40) : 4;
      one.dilation[i] = random.chance(30) ? random.between(1, 3) : random.between(1, far);
      if (kernel[i] == 1) one.dilation[i] = 1;  // as the handler does
      const int64_t reach = (kernel[i] - 1) * one.dilation[i];
      one.start[i] = random.chance(20) ? random.below(4) : random.below(reach + far);
      // Enough padding for one window or more.
      const int64_t least = std::max<int64_t>(0, reach + 1 - size[i] - one.start[i]);
      one.end[i] = least + (random.chance(30) ? 0 : random.below(far));
      const int64_t padded = size[i] + one.start[i] + one.end[i];
      one.stride[i] = std::max<int64_t>(1, (padded - reach) / random.between(1, 20) - random.below(3));
      pixels *= (padded - reach - 1) / one.stride[i] + 1;
    }
    if (one.batch * pixels * outputs * filter.channels * filter.rows * filter.columns < 1000000)
      return convolution_case(random, one, extent(random, 2));
  }
}

// A case for F(m x m, 3 x 3) whose |weights| add up to the bound of exactness plus `more`.
Case at_bound(Random& random, int64_t m, const Filter& filter, Fill fill, int64_t more, int64_t count = 1) {
  Convolution one = m == 4 ? convolution_of(random, filter, 1, 18, 18) : convolution_of(random, filter, 1, 8, 10);
  one.type = Type::kInt32;
  const int64_t bound = (int64_t(1) << (m == 4 ? 25 : 29)) / 128 - 1;
  return convolution_case(random, one, count, fill, bound + more);
}

const std::vector<std::function<Case(Random&)>> kLarge = {
    // Sums of a row and of a column that overflow int32.
    [](Random& random) { return matmul_case(random, matmul_of(random, 1, (1 << 24) + 5, 1), 1, Fill::kLowest); },
    [](Random& random) {
      Matmul one = matmul_of(random, 2, (1 << 23) + (1 << 20), 1);
      one.a_zero_point.is_signed = one.b_zero_point.is_signed = false;
      return matmul_case(random, one, 1, Fill::kHighest);
    },
    // Sums of products that overflow int32.
    [](Random& random) { return matmul_case(random, matmul_of(random, 7, 140001, 3), 2, Fill::kExtremes); },
    [](Random& random) { return matmul_case(random, matmul_of(random, 3, 70003, 19), 1, Fill::kLowest); },
    [](Random& random) { return matmul_case(random, matmul_of(random, 3, 70004, 19), 1, Fill::kHighest); },
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(7, 70001, 1, 1), 1, 3, 3), 1, Fill::kExtremes);
    },
    [](Random& random) { return matmul_case(random, matmul_of(random, 700, 130, 500), 1); },
    [](Random& random) { return matmul_case(random, matmul_of(random, 300, 1024, 300), 1, Fill::kExtremes); },
    [](Random& random) { return matmul_case(random, matmul_of(random, 13, 2500, 700), 1); },
    // Strassen's method at its largest depth, at a larger depth, and with rows that end where the buffer ends.
    [](Random& random) { return matmul_case(random, matmul_of(random, 50, 4096, 70), 1, Fill::kExtremes); },
    [](Random& random) { return matmul_case(random, matmul_of(random, 50, 4097, 70), 1); },
    [](Random& random) { return matmul_case(random, matmul_of(random, 48, 257, 66), 6); },
    // Few rows and wide raw matrices, whose sums would take much memory.
    [](Random& random) {
      Matmul one = matmul_of(random, 2, 3, 30000);
      one.is_raw = true;
      return matmul_case(random, one, 1);
    },
    // F(4, 3) at its bound, past its bound, and one problem of each.
    [](Random& random) { return at_bound(random, 4, filter_of(7, 230, 3, 3), Fill::kLowest, 0); },
    [](Random& random) { return at_bound(random, 4, filter_of(7, 230, 3, 3), Fill::kHighest, 0); },
    [](Random& random) { return at_bound(random, 4, filter_of(13, 500, 3, 3), Fill::kExtremes, 0); },
    [](Random& random) { return at_bound(random, 4, filter_of(6, 230, 3, 3), Fill::kLowest, 1); },
    [](Random& random) { return at_bound(random, 4, filter_of(6, 230, 3, 3), Fill::kLowest, 0, 2); },
    // Small weights, but windows past the bound.
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(6, 29200, 3, 3), 1, 12, 12);
      one.type = Type::kInt32;
      return convolution_case(random, one, 2, Fill::kLowest, 1000);
    },
    // F(2, 3), which AVX2 selects for this many channels and outputs.
    [](Random& random) { return at_bound(random, 2, filter_of(72, 3670, 3, 3), Fill::kLowest, 0); },
    [](Random& random) { return at_bound(random, 2, filter_of(72, 3670, 3, 3), Fill::kExtremes, 0); },
    [](Random& random) { return at_bound(random, 2, filter_of(72, 3670, 3, 3), Fill::kLowest, 1); },
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(128, 2048, 3, 3), 1, 14, 22);
      one.type = Type::kUint8;
      return convolution_case(random, one, 1, Fill::kSmall);
    },
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(290, 905, 3, 3), 1, 8, 10);
      one.type = Type::kInt8;
      one.start[0] = one.start[1] = one.end[0] = one.end[1] = 1;
      return convolution_case(random, one, 1);
    },
    // A filter too large for a Winograd transform.
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(1450, 1447, 3, 3), 1, 4, 4), 1, Fill::kUniform);
    },
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(24, 3, 7, 7), 2, 90, 90);
      one.stride[0] = one.stride[1] = 2;
      one.start[0] = one.start[1] = one.end[0] = one.end[1] = 3;
      return convolution_case(random, one, 1);
    },
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(2, 1, 3, 3, 2), 1, 250, 300), 1);
    },
    // Kernels with more elements than are packed at a time, with odd channels and with merged groups.
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(21, 5, 9, 11), 1, 12, 13), 1, Fill::kUniform);
    },
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(12, 3, 1, 83, 6), 1, 2, 90), 1, Fill::kUniform);
    },
    // Kernels and strides as large as the image, and many tiny problems.
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(1, 1, 128, 128), 1, 128, 128), 1);
    },
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(1, 1, 150, 150), 1, 151, 151);
      one.stride[0] = one.stride[1] = 150;
      one.start[0] = one.start[1] = 1;
      return convolution_case(random, one, 1);
    },
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(1, 1, 1, 5), 1, 1, 16), 2000);
    },
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(2, 2, 3, 3), 1, 4, 4), 2000);
    },
    // A long depthwise kernel over a signal, and a kernel that reads two distant places of a signal.
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(4, 1, 1, 127, 2), 1, 1, 16000);
      one.start[1] = 60;
      one.end[1] = 70;
      return convolution_case(random, one, 1);
    },
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(2, 2, 1, 2), 1, 1, 100000);
      one.dilation[1] = 50000;
      one.type = Type::kInt8;
      return convolution_case(random, one, 1);
    },
    // A thousand channels and seven outputs, where the points of tiles would take most of the memory.
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(7, 1000, 3, 3), 1, 17, 17), 1, Fill::kSmall);
    },
    // Whole AMX tiles, deeper than the part that is copied at a time.
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(70, 384, 3, 3), 1, 9, 12), 1, Fill::kExtremes);
    },
    // Pointwise kernels: several runs of blocks with a partial last block, groups, int32.
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(71, 37, 1, 1), 2, 25, 33), 2, Fill::kUniform);
    },
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(132, 20, 1, 1, 2), 1, 14, 14);
      one.type = Type::kInt32;
      return convolution_case(random, one, 1, Fill::kUniform);
    },
    // An image of one row, copied in parts, and an image too large for one copy.
    [](Random& random) {
      Convolution one = convolution_of(random, filter_of(20, 40, 1, 7), 1, 1, 3000);
      one.dilation[1] = 3;
      one.start[1] = 30;
      return convolution_case(random, one, 1);
    },
    [](Random& random) {
      return convolution_case(random, convolution_of(random, filter_of(3, 3000, 2, 3), 1, 6, 150), 1, Fill::kUniform);
    },
    // Several tiles of rows, which share several parts of a panel.
    [](Random& random) {
      return blocks_case(random, {{130, 2000, 32, 4, 4, true}, 45, 1, nullptr, nullptr, nullptr, nullptr});
    },
    // Runs of panels, of which the last is shorter.
    [](Random& random) {
      return blocks_case(random, {{2600, 40, 16, 4, 4, true}, 7, 1, nullptr, nullptr, nullptr, nullptr});
    },
    // More rows than a pass, and few panels that threads share by rows.
    [](Random& random) {
      return blocks_case(random, {{70, 40, 16, 4, 4, true}, 1100, 3, nullptr, nullptr, nullptr, nullptr});
    },
    [](Random& random) {
      return blocks_case(random, {{10, 300, 256, 8, 2, true}, 130, 1, nullptr, nullptr, nullptr, nullptr});
    },
    [](Random& random) { return block_dequantization_case(random, 5000, 33); },
    // Outputs so large that stores are non-temporal, where these are aligned.
    [](Random& random) { return block_dequantization_case(random, 1 << 17, 32); },
    [](Random& random) {
      Case of = block_dequantization_case(random, 1 << 17, 32);
      of.y_alignment = 64;
      return of;
    },
    [](Random& random) { return block_dequantization_case(random, 1 << 15, 131); },
    [](Random& random) { return attention_case(random, attention_of(random, 1, 2, 30, 300, 64, 64), 1); },
    // The longest keys, and more keys than fit in one exact sum.
    [](Random& random) { return attention_case(random, attention_of(random, 1, 1, 3, 20, 4096, 5), 1); },
    [](Random& random) { return attention_case(random, attention_of(random, 1, 1, 1, 40000, 3, 9), 1); },
    [](Random& random) { return lstm_case(random, 2, 3, 200, 2); },
    [](Random& random) { return sum_case(random, 3 * 65536 + 5, 2); },
    [](Random& random) { return quantization_case(random, 2 * 65536 + 1, 2); },
    [](Random& random) { return dequantization_case(random, 65536 + 7, 2); },
    [](Random& random) { return range_case(random, 3 * 65536 + 7, 2); },
    [](Random& random) { return row_sums_case(random, 3 * 65536 + 7, 2); },
    [](Random& random) { return row_quantization_case(random, 3, 70001); },
    [](Random& random) { return row_quantization_case(random, 4001, 17); },
    [](Random& random) { return means_case(random, 3 * 65536 + 7, 2); },
    [](Random& random) { return max_pool_case(random, 5, 112, 112); },
    [](Random& random) { return max_pool_case(random, 1, 3, 100000); },
    [](Random& random) { return look_up_case(random, 3 * 65536 + 7, 2); },
    [](Random& random) { return product_case(random, 3 * 65536 + 7, 2); },
    [](Random& random) { return rows_case(random, {3, 40}, 700); },
    [](Random& random) { return rows_case(random, {}, 1 << 16); },
    [](Random& random) { return row_products_case(random, 3000); },
};

Case make_case(uint64_t seed, int64_t number) {
  Random random(seed, uint64_t(number));
  if (number < int64_t(kLarge.size())) return kLarge[size_t(number)](random);
  const int64_t kind = random.below(100);
  if (kind < 9) return random_blocks(random);
  if (kind < 11) return block_dequantization_case(random, extent(random, 300), extent(random, 80));
  if (kind < 14) return random_rows_case(random);
  if (kind < 17) return random_attention(random);
  if (kind < 19) return random_lstm(random);
  if (kind < 27) return random_matmul(random);
  if (kind < 30) return random_large_matmul(random);
  if (kind < 54) return random_convolution(random);
  if (kind < 56) return random_square_depthwise(random);
  if (kind < 59) return random_far(random);
  if (kind < 61) return random_depthwise_by_channels(random);
  if (kind < 65) return random_deep(random);
  if (kind < 70) return random_pointwise(random);
  if (kind < 73) return random_few_channels(random);
  if (kind < 86) return random_winograd(random);
  const int64_t size = extent(random, random.chance(5) ? 140000 : 500), count = extent(random, 3);
  if (kind < 88) return random_max_pool(random);
  if (kind < 89) return random.chance(50) ? look_up_case(random, size, count) : means_case(random, size, count);
  if (kind < 91) return product_case(random, size, count);
  if (kind < 94) return sum_case(random, size, count);
  if (kind < 96) return quantization_case(random, size, count);
  if (kind < 97) return dequantization_case(random, size, count);
  if (kind < 98) return row_quantization_case(random, extent(random, 40), extent(random, 300));
  return kind < 99 ? range_case(random, size, count) : row_sums_case(random, size, count);
}

// Runs ----------------------------------------------------------------------------------------------------------------

std::string current;  // the running case, for on_signal

void on_signal(int number) {
  fprintf(stderr, "random_shapes died of signal %d in %s\n", number, current.c_str());
  std::signal(number, SIG_DFL);
  std::raise(number);
}

// Whether the float that has byte `at` is NaN.
bool is_nan(const uint8_t* floats, size_t at) {
  float value;
  memcpy(&value, floats + at / 4 * 4, 4);
  return std::isnan(value);
}

// Returns the number of output bytes, or -1 if an output is wrong.
int64_t run(const Case& one, const Kernels& kernels, const Pool& pool, Random& random) {
  std::deque<Bytes> y;
  for (const Output& expected : one.expected) y.emplace_back(random, int64_t(expected.size()), one.y_alignment);
  one.run(kernels, pool, random, y);
  int64_t count = 0;
  for (size_t i = 0; i < y.size(); i++) {
    const Output& expected = one.expected[i];
    count += int64_t(expected.size());
    if (expected.empty() || !memcmp(y[i].at(), expected.data(), expected.size())) continue;
    const auto is_right = [&](size_t at) {
      return y[i].at()[at] == expected[at] ||
             (one.is_any_nan_right && is_nan(y[i].at(), at) && is_nan(expected.data(), at));
    };
    size_t at = 0;
    while (at < expected.size() && is_right(at)) at++;
    if (at == expected.size()) continue;
    fprintf(stderr, "byte %zu of %zu of output %zu is %d, not %d, in %s\n", at, expected.size(), i, y[i].at()[at],
            expected[at], current.c_str());
    return -1;
  }
  return count;
}

// Whether the threads of the pool have the given mode, and a FloatMode restores the earlier mode of this thread.
bool are_set_back(xla::ffi::ThreadPool& threads, uint64_t mode) {
  constexpr int kTasks = 64;
  std::atomic<int> done{0}, right{0};
  for (int i = 0; i < kTasks; i++)
    threads.Schedule([&] {
      right += (float_mode() & ~kFlags) == (mode & ~kFlags);
      done++;
    });
  while (done < kTasks) std::this_thread::yield();
  const uint64_t before = float_mode();
  set_float_mode(before | kUpward);
  {
    const FloatMode nearest;
  }
  const bool is_upward = float_mode() == (before | kUpward);
  set_float_mode(before);
  return right == kTasks && is_upward;
}

// The kernels of the named sets, or of all that run here if none is named; empty if a named set does not run here.
std::vector<const Kernels*> chosen(const std::vector<std::string>& names) {
  std::vector<const Kernels*> all, named;
  for (const InstructionSet& each : kSets)
    if (each.runs_here()) all.push_back(each.kernels);
  if (names.empty()) return all;
  for (const std::string& name : names) {
    const auto has_name = [&](const Kernels* kernels) { return name == kernels->name; };
    const auto found = std::find_if(all.begin(), all.end(), has_name);
    if (found == all.end()) {
      fprintf(stderr, "%s does not run on this processor\n", name.c_str());
      return {};
    }
    named.push_back(*found);
  }
  return named;
}

int run_all(int64_t cases, uint64_t seed, int64_t first, const std::vector<std::string>& names) {
  const std::vector<const Kernels*> all = chosen(names);
  if (all.empty()) return 1;
  for (const Kernels* kernels : all) printf("runs %s, seed %llu\n", kernels->name, (unsigned long long)seed);

  // The threads keep subnormals and round upward unless threads.cc changes that.
  const uint64_t own = float_mode(), of_threads = own | kUpward;
  set_float_mode(of_threads);
  xla::ffi::ThreadPool threads(4);
  set_float_mode(own | kFlushes);
  const auto start = std::chrono::steady_clock::now();
  int64_t bytes = 0, calls = 0;
  for (int64_t number = first; number < first + cases; number++) {
    current = text("case %lld of seed %llu", (long long)number, (unsigned long long)seed);
    Case one = make_case(seed, number);
    Random random(~seed, uint64_t(number));
    for (const Kernels* kernels : all)
      for (const int64_t count : {int64_t(1), random.between(2, 4)}) {
        const Pool pool = pool_of(threads, (count - 1) << 20);
        current = text("case %lld of seed %llu, by %s with %d threads: ", (long long)number, (unsigned long long)seed,
                       kernels->name, int(pool.threads)) +
                  one.what;
        const int64_t compared = run(one, *kernels, pool, random);
        if (compared < 0) return 1;
        bytes += compared;
        calls++;
      }
  }
  if (!are_set_back(threads, of_threads)) {
    printf("the rounding or subnormal mode of a thread was not restored\n");
    return 1;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  printf("%lld cases, %lld calls, %lld bytes of output, all of them right; %.1f s\n", (long long)cases,
         (long long)calls, (long long)bytes, seconds);
  return 0;
}

}  // namespace
}  // namespace jaxdml::test

int main(int argc, char** argv) {
  using namespace jaxdml::test;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(number, on_signal);
  const auto argument = [&](int i, const char* otherwise) { return std::stoll(i < argc ? argv[i] : otherwise); };
  const std::vector<std::string> names(argv + std::min(argc, 4), argv + argc);
  return run_all(argument(1, "6000"), uint64_t(argument(2, "1")), argument(3, "0"), names);
}
