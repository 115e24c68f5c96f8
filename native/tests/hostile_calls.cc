// Calls the handlers through XLA's own structs, some of them with errors in one or two places: ranks, extents, types,
// attributes. A valid call must succeed; any other call must succeed or return an error with a text. Buffers are
// exactly as large as their shapes require, so that sanitizers detect every access outside of them.
//
//   hostile_calls [count of calls, or seconds: 60s] [seed; a new one if it is left out] [first call]
//
// The seed and the call's number determine a call. A single call is printed.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "block_shape.h"
#include "call.h"
#include "kernels.h"
#include "processor.h"

#define JAXDML_OPTIONS extern "C" __attribute__((visibility("default"))) const char*
// Sanitizers abort, so that on_signal prints the call. Allocations above 1 GiB fail, as excessive ones do elsewhere.
JAXDML_OPTIONS __asan_default_options() {
  return "abort_on_error=1:handle_segv=2:handle_sigbus=2:handle_sigfpe=2:allocator_may_return_null=1:"
         "max_allocation_size_mb=1024";
}
JAXDML_OPTIONS __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

extern "C" {
XLA_FFI_Handler jaxdml_cpu_matmul, jaxdml_cpu_convolve, jaxdml_cpu_add, jaxdml_cpu_quantized, jaxdml_cpu_dequantized,
    jaxdml_cpu_extremes, jaxdml_cpu_quantized_rows, jaxdml_cpu_row_sums, jaxdml_cpu_pack_matrix, jaxdml_cpu_pack_filter,
    jaxdml_cpu_means, jaxdml_cpu_max_pool, jaxdml_cpu_looked_up, jaxdml_cpu_products, jaxdml_cpu_dequantize_blocks,
    jaxdml_cpu_pack_blocks, jaxdml_cpu_matmul_blocks, jaxdml_cpu_rows, jaxdml_cpu_attention, jaxdml_cpu_lstm,
    jaxdml_cpu_chained, jaxdml_cpu_steps;
const char* jaxdml_cpu_choose(const char*);
int64_t jaxdml_cpu_matrix_bytes(int64_t depth, int64_t columns);
int64_t jaxdml_cpu_filter_bytes(const int64_t* shape, int64_t groups);
}

namespace jaxdml::test {
namespace {

using Extents = std::vector<int64_t>;

constexpr int64_t kMostBytes = 1 << 18;  // of a buffer

// Valid calls ---------------------------------------------------------------------------------------------------------

// Returns a size up to `most`: mostly a small one, and sometimes 0.
int64_t extent(Random& random, int64_t most) {
  if (random.chance(3)) return 0;
  return random.between(1, random.chance(70) && most > 6 ? 6 : most);
}

// The leading dimensions of a call. An operand's extent is 1 in some of them.
Extents random_leading(Random& random) {
  Extents leading;
  while (random.chance(30) && leading.size() < 3) leading.push_back(random.chance(4) ? 0 : random.between(1, 3));
  return leading;
}
Extents operator+(Extents x, const Extents& y) {
  x.insert(x.end(), y.begin(), y.end());
  return x;
}
Extents some(Random& random, Extents leading) {
  for (int64_t& size : leading)
    if (random.chance(25)) size = 1;
  return leading;
}

XLA_FFI_DataType word(Random& random) { return random.chance(50) ? XLA_FFI_DataType_S16 : XLA_FFI_DataType_U16; }
XLA_FFI_DataType byte(Random& random) { return random.chance(50) ? XLA_FFI_DataType_S8 : XLA_FFI_DataType_U8; }
XLA_FFI_DataType output(Random& random) { return random.chance(30) ? XLA_FFI_DataType_S32 : byte(random); }
XLA_FFI_DataType zero_point_of(XLA_FFI_DataType type, Random& random) {
  return type == XLA_FFI_DataType_S32 || type == XLA_FFI_DataType_F32 ? byte(random) : type;
}
constexpr XLA_FFI_DataType kFloat = XLA_FFI_DataType_F32;

Call matmul(Random& random, const Kernels& kernels) {
  const bool is_large = random.chance(3);  // enough for two threads
  const Extents leading = is_large ? Extents{} : random_leading(random);
  const int64_t rows = is_large ? random.between(60, 120) : extent(random, 40);
  const int64_t depth = is_large ? random.between(130, 300) : extent(random, 80);
  const int64_t columns = is_large ? random.between(140, 200) : extent(random, 70);
  const XLA_FFI_DataType a = byte(random), b = byte(random), y = random.chance(25) ? kFloat : output(random);
  const bool is_packed = random.chance(40);
  const auto along = [&](int64_t size, bool is_row) {
    const int64_t count = random.chance(50) ? 1 : size;
    return some(random, leading) + (is_row ? Extents{count, 1} : Extents{1, count});
  };
  Call call = {&jaxdml_cpu_matmul};
  call.arguments = {
      {a, some(random, leading) + Extents{rows, depth}},
      {kFloat, along(rows, true)},
      {a, along(rows, true)},
      {b, some(random, leading) + Extents{depth, columns}},
      {kFloat, along(columns, false)},
      {b, along(columns, false)},
      {y == kFloat ? kFloat : XLA_FFI_DataType_S32, some(random, leading) + Extents{random.chance(50) ? 0 : columns}},
      {kFloat, along(rows, true)},
      {zero_point_of(y, random), along(rows, true)}};
  if (is_packed)
    call.arguments[3] = {XLA_FFI_DataType_S8,
                         some(random, leading) + Extents{1, jaxdml_cpu_matrix_bytes(depth, columns)},
                         kernels.matrix_mark};
  call.results = {{y, leading + Extents{rows, columns}}};
  call.attributes = {{"is_packed", XLA_FFI_DataType_PRED, false, {is_packed}}};
  return call;
}

// One spatial dimension of a convolution.
struct Axis {
  int64_t size, kernel, stride, dilation, start, end, outputs;
};
Axis random_axis(Random& random) {
  Axis of = {
      extent(random, 12), random.between(1, random.chance(80) ? 3 : 7), 1, 1, random.below(4), random.below(4), 0};
  // If there are few outputs, padding, strides and dilations may have any size.
  const int64_t far = random.chance(15) ? int64_t(1) << random.between(3, 40) : 4;
  if (random.chance(50)) of.dilation = random.between(1, far);
  const int64_t reach = (of.kernel - 1) * of.dilation;
  if (random.chance(30)) of.start = random.below(reach + far);
  if (random.chance(30)) of.end = random.below(far);
  of.end += std::max<int64_t>(0, reach + 1 - of.size - of.start - of.end);
  const int64_t rest = of.size + of.start + of.end - reach - 1;
  of.stride = random.chance(50) ? 1 : random.between(1, 4);
  if (rest / of.stride >= 16) of.stride = rest / random.between(1, 15);
  of.outputs = rest / of.stride + 1;
  return of;
}

Call convolve(Random& random, const Kernels& kernels) {
  const Extents leading = random_leading(random);
  const Axis rows = random_axis(random), columns = random_axis(random);
  const bool is_depthwise = random.chance(30);
  const int64_t batch = extent(random, 3), groups = random.chance(50) && !is_depthwise ? 1 : random.between(1, 12);
  const int64_t channels = is_depthwise ? 1 : random.between(1, random.chance(80) ? 8 : 30);
  const int64_t outputs = groups * random.between(1, random.chance(80) ? 8 : 40);
  const XLA_FFI_DataType x = byte(random), f = byte(random), y = output(random);
  const Extents filter = {outputs, channels, rows.kernel, columns.kernel};
  const bool is_packed = random.chance(40);
  const auto one = [&] { return some(random, leading) + Extents{1}; };
  const auto each = [&] { return some(random, leading) + Extents{random.chance(50) ? 1 : outputs}; };
  Call call = {&jaxdml_cpu_convolve};
  call.arguments = {{x, some(random, leading) + Extents{batch, groups * channels, rows.size, columns.size}},
                    {kFloat, one()},
                    {x, one()},
                    {f, some(random, leading) + filter},
                    {kFloat, each()},
                    {f, each()},
                    {XLA_FFI_DataType_S32, some(random, leading) + Extents{random.chance(50) ? 0 : outputs}},
                    {kFloat, one()},
                    {zero_point_of(y, random), one()}};
  if (is_packed)
    call.arguments[3] = {XLA_FFI_DataType_S8,
                         some(random, leading) + Extents{jaxdml_cpu_filter_bytes(filter.data(), groups)},
                         kernels.filter_mark};
  call.results = {{y, leading + Extents{batch, outputs, rows.outputs, columns.outputs}}};
  constexpr XLA_FFI_DataType kInteger = XLA_FFI_DataType_S64;
  call.attributes = {{"dilations", kInteger, true, {rows.dilation, columns.dilation}},
                     {"end_padding", kInteger, true, {rows.end, columns.end}},
                     {"filter_shape", kInteger, true, filter},
                     {"group_count", kInteger, false, {groups}},
                     {"is_packed", XLA_FFI_DataType_PRED, false, {is_packed}},
                     {"start_padding", kInteger, true, {rows.start, columns.start}},
                     {"strides", kInteger, true, {rows.stride, columns.stride}}};
  return call;
}

Attribute leading_count(const Extents& leading) {
  return {"leading_count", XLA_FFI_DataType_S64, false, {int64_t(leading.size())}};
}
Extents random_tensor(Random& random) {
  Extents shape;
  while (random.chance(60) && shape.size() < 4) shape.push_back(extent(random, 30));
  return shape;
}

Call elementwise(Random& random, XLA_FFI_Handler* handler, XLA_FFI_DataType x, XLA_FFI_DataType y, int operands) {
  const Extents leading = random_leading(random), shape = random_tensor(random);
  Call call = {handler};
  for (int i = 0; i < operands; i++) {
    call.arguments.push_back({x == kFloat ? x : byte(random), some(random, leading) + shape});
    call.arguments.push_back({kFloat, some(random, leading)});
    call.arguments.push_back({byte(random), some(random, leading)});
  }
  if (operands == 2) {
    call.arguments.push_back({kFloat, some(random, leading)});
    call.arguments.push_back({byte(random), some(random, leading)});
  }
  call.results = {{y, leading + shape}};
  call.attributes = {leading_count(leading)};
  return call;
}
Call add(Random& random, const Kernels&) { return elementwise(random, &jaxdml_cpu_add, byte(random), byte(random), 2); }
Call quantized(Random& random, const Kernels&) {
  Call call = elementwise(random, &jaxdml_cpu_quantized, kFloat, byte(random), 1);
  if (random.chance(40)) call.results[0].type = random.chance(50) ? XLA_FFI_DataType_S16 : XLA_FFI_DataType_U16;
  return call;
}
Call dequantized(Random& random, const Kernels&) {
  Call call = elementwise(random, &jaxdml_cpu_dequantized, byte(random), kFloat, 1);
  for (Array& array : {std::ref(call.arguments[0]), std::ref(call.arguments[2])})
    if (random.chance(40)) array.type = random.chance(50) ? XLA_FFI_DataType_S16 : XLA_FFI_DataType_U16;
  return call;
}

Call extremes(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  Extents shape = random_tensor(random);
  for (int64_t& size : shape) size = std::max<int64_t>(size, 1);  // a range needs an element
  Call call = {&jaxdml_cpu_extremes};
  call.arguments = {{kFloat, some(random, leading) + shape}};
  call.results = {{kFloat, leading + Extents{2}}};
  call.attributes = {leading_count(leading)};
  return call;
}

Call quantized_rows(Random& random, const Kernels&) {
  const Extents rows = Extents{extent(random, 9)} + random_leading(random);
  const int64_t depth = 1 + extent(random, 200);
  Call call = {&jaxdml_cpu_quantized_rows};
  call.arguments = {{kFloat, rows + Extents{depth}}};
  call.results = {{XLA_FFI_DataType_U8, rows + Extents{depth}},
                  {kFloat, rows + Extents{1}},
                  {XLA_FFI_DataType_U8, rows + Extents{1}}};
  return call;
}

Call row_sums(Random& random, const Kernels&) {
  const Extents rows = Extents{extent(random, 9)} + random_leading(random);
  Call call = {&jaxdml_cpu_row_sums};
  call.arguments = {{byte(random), rows + Extents{extent(random, 200)}}};
  call.results = {{XLA_FFI_DataType_S32, rows}};
  return call;
}

Call means(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  const int64_t rows = extent(random, 200), depth = random.between(1, 100);
  const auto one = [&](XLA_FFI_DataType type) { return Array{type, some(random, leading)}; };
  Call call = {&jaxdml_cpu_means};
  call.arguments = {{byte(random), some(random, leading) + Extents{rows, depth}},
                    one(kFloat),
                    one(byte(random)),
                    one(kFloat),
                    one(byte(random))};
  call.results = {{byte(random), leading + Extents{rows}}};
  call.attributes = {leading_count(leading)};
  return call;
}

Call max_pool(Random& random, const Kernels&) {
  const Axis rows = random_axis(random), columns = random_axis(random);
  const Extents outer = random_leading(random) + Extents{extent(random, 9)};
  const XLA_FFI_DataType type = byte(random);
  Call call = {&jaxdml_cpu_max_pool};
  call.arguments = {{type, outer + Extents{rows.size, columns.size}}};
  call.results = {{type, outer + Extents{rows.outputs, columns.outputs}}};
  constexpr XLA_FFI_DataType kInteger = XLA_FFI_DataType_S64;
  call.attributes = {{"dilations", kInteger, true, {rows.dilation, columns.dilation}},
                     {"end_padding", kInteger, true, {rows.end, columns.end}},
                     {"start_padding", kInteger, true, {rows.start, columns.start}},
                     {"strides", kInteger, true, {rows.stride, columns.stride}},
                     {"window", kInteger, true, {rows.kernel, columns.kernel}}};
  return call;
}

Call looked_up(Random& random, const Kernels&) {
  const Extents leading = random_leading(random), shape = random_tensor(random);
  const bool is_word = random.chance(50);
  const XLA_FFI_DataType x = is_word ? word(random) : byte(random);
  const XLA_FFI_DataType type = random.chance(50) ? word(random) : byte(random);
  Call call = {&jaxdml_cpu_looked_up};
  call.arguments = {{x, some(random, leading) + shape}, {type, some(random, leading) + Extents{is_word ? 65536 : 256}}};
  call.results = {{type, leading + shape}};
  call.attributes = {leading_count(leading)};
  return call;
}

Call products(Random& random, const Kernels&) {
  const Extents leading = random_leading(random), shape = random_tensor(random);
  Extents of_b = shape;
  for (size_t i = size_t(random.below(5)); i < of_b.size(); i++) of_b[i] = 1;
  Call call = {&jaxdml_cpu_products};
  call.arguments = {{byte(random), some(random, leading) + shape},
                    {byte(random), some(random, leading)},
                    {byte(random), some(random, leading) + of_b},
                    {byte(random), some(random, leading)},
                    {kFloat, some(random, leading)},
                    {byte(random), some(random, leading)}};
  call.results = {{byte(random), leading + shape}};
  call.attributes = {leading_count(leading)};
  return call;
}

Call pack_matrix(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  const int64_t depth = extent(random, 80), columns = extent(random, 150);
  Call call = {&jaxdml_cpu_pack_matrix};
  call.arguments = {{byte(random), leading + Extents{depth, columns}}};
  call.results = {{XLA_FFI_DataType_S8, leading + Extents{jaxdml_cpu_matrix_bytes(depth, columns)}}};
  return call;
}

Call pack_filter(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  const int64_t groups = random.chance(50) ? 1 : random.between(1, 12);
  const int64_t kernel = random.chance(40) ? 3 : random.between(1, 9), channels = random.between(1, 12);
  const Extents filter = {groups * random.between(1, 40), random.chance(30) ? 1 : channels, kernel,
                          random.chance(70) ? kernel : random.between(1, 9)};
  Call call = {&jaxdml_cpu_pack_filter};
  call.arguments = {{byte(random), leading + filter}};
  call.results = {{XLA_FFI_DataType_S8, leading + Extents{jaxdml_cpu_filter_bytes(filter.data(), groups)}}};
  call.attributes = {{"group_count", XLA_FFI_DataType_S64, false, {groups}}};
  return call;
}

XLA_FFI_DataType few_bits(Random& random) {
  if (random.chance(50)) return byte(random);
  return random.chance(50) ? XLA_FFI_DataType_S4 : XLA_FFI_DataType_U4;
}
BlockShape random_blocks(Random& random, XLA_FFI_DataType b) {
  const bool is_byte = b == XLA_FFI_DataType_S8 || b == XLA_FFI_DataType_U8;
  return {random.between(1, 90), random.between(1, 200),    int64_t(16) << random.below(5),
          is_byte ? 8 : 4,       random.chance(50) ? 2 : 4, random.chance(50)};
}

Call dequantize_blocks(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  const int64_t blocks = extent(random, 40), size = extent(random, 70);
  const XLA_FFI_DataType x = few_bits(random);
  Call call = {&jaxdml_cpu_dequantize_blocks};
  call.arguments = {{x, some(random, leading) + Extents{blocks, size}},
                    {kFloat, some(random, leading) + Extents{blocks}},
                    {x, some(random, leading) + Extents{random.chance(50) ? 0 : blocks}}};
  call.results = {{kFloat, leading + Extents{blocks, size}}};
  return call;
}

Call pack_blocks(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  const XLA_FFI_DataType b = few_bits(random);
  const BlockShape of = random_blocks(random, b);
  const Extents counts = {of.columns, blocks_of(of)}, none = {0, 0};
  Call call = {&jaxdml_cpu_pack_blocks};
  call.arguments = {{b, some(random, leading) + Extents{of.columns, of.depth}},
                    {of.scale_bytes == 2 ? XLA_FFI_DataType_F16 : kFloat, some(random, leading) + counts},
                    {b, some(random, leading) + (of.has_zero_points ? counts : none)}};
  call.results = {{XLA_FFI_DataType_S8, leading + Extents{packed_bytes(of)}}};
  call.attributes = {{"block_size", XLA_FFI_DataType_S64, false, {of.size}}};
  return call;
}

Call matmul_blocks(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  const BlockShape of = random_blocks(random, few_bits(random));
  const int64_t rows = extent(random, 30);
  Call call = {&jaxdml_cpu_matmul_blocks};
  call.arguments = {{kFloat, some(random, leading) + Extents{rows, of.depth}},
                    {XLA_FFI_DataType_S8, some(random, leading) + Extents{packed_bytes(of)}, kBlocksMark},
                    {kFloat, some(random, leading) + Extents{random.chance(50) ? 0 : of.columns}}};
  call.results = {{kFloat, leading + Extents{rows, of.columns}}};
  const auto number = [](const char* name, int64_t value) {
    return Attribute{name, XLA_FFI_DataType_S64, false, {value}};
  };
  call.attributes = {number("bits", of.bits),
                     number("block_size", of.size),
                     number("columns", of.columns),
                     number("depth", of.depth),
                     {"has_zero_points", XLA_FFI_DataType_PRED, false, {of.has_zero_points}},
                     number("planes", random.between(1, 3)),
                     number("scale_bytes", of.scale_bytes)};
  return call;
}

// A program of `instructions` elementwise functions. Each reads a value that depends on operand `first`, so each value
// is wide, and writes its own slot.
Attribute row_program(Random& random, int64_t operands, int64_t first, int64_t instructions) {
  Attribute program = {"program", XLA_FFI_DataType_S64, true, {}};
  for (int64_t i = 0; i < instructions; i++) {
    const auto from = [&] { return i ? random.chance(70) ? operands + i - 1 : random.below(operands + i) : first; };
    const auto code = random.below(int64_t(RowCode::kSum));
    for (const int64_t number : {code, operands + i, i ? operands + i - 1 : first, from(), from()})
      program.numbers.push_back(number);
  }
  return program;
}

Attribute integers(const char* name, std::vector<int64_t> numbers) {
  return {name, XLA_FFI_DataType_S64, true, std::move(numbers)};
}

// Adds an operand of a program, which may read some columns of an array with longer rows.
void add_row_operand(Random& random, const Extents& leading, int64_t columns, Call& call, Attribute& operands) {
  const int64_t first = random.chance(30) ? random.between(1, 9) : 0,
                more = random.chance(30) ? random.between(1, 9) : 0;
  const bool is_narrow = random.chance(30);
  const XLA_FFI_DataType types[] = {XLA_FFI_DataType_PRED, XLA_FFI_DataType_S32, byte(random)};
  operands.numbers.push_back(int64_t(operands.numbers.size()) / 2);
  operands.numbers.push_back(is_narrow ? 0 : first);
  call.arguments.push_back({random.chance(30) ? types[random.below(3)] : kFloat,
                            some(random, leading) + Extents{is_narrow ? 1 : first + columns + more}});
}

Call rows(Random& random, const Kernels&) {
  Extents leading = random_leading(random) + Extents{extent(random, 9)};
  const int64_t columns = 2 + extent(random, 60), count = random.between(2, 5);
  Call call = {&jaxdml_cpu_rows};
  call.arguments = {{kFloat, leading + Extents{columns}}};
  Attribute operands = integers("operands", {0, 0});
  for (int64_t i = 1; i < count - 1; i++) add_row_operand(random, leading, columns, call, operands);
  call.arguments.push_back({byte(random), some(random, leading) + Extents{1}});  // the zero point of results
  operands.numbers.insert(operands.numbers.end(), {count - 1, 0});
  const int64_t instructions = random.between(1, 12);
  Attribute program = row_program(random, count, 0, instructions);
  const bool is_reduced = random.chance(40);
  if (is_reduced)
    for (const int64_t number : {random.between(int64_t(RowCode::kSum), int64_t(RowCode::kSmallest)),
                                 count + instructions, count + instructions - 1, int64_t(0), int64_t(0)})
      program.numbers.push_back(number);
  const int64_t last = count + instructions - 1;
  Attribute results = integers("results", {});
  const auto add_result = [&](int64_t slot, int64_t size) {
    const XLA_FFI_DataType type = random.chance(50) ? kFloat : byte(random);
    results.numbers.insert(results.numbers.end(), {slot, type == kFloat ? slot : count - 1});
    call.results.push_back({type, leading + Extents{size}});
  };
  add_result(last + is_reduced, is_reduced ? 1 : columns);
  while (random.chance(30)) add_result(random.between(count, last), columns);
  call.attributes = {{"columns", XLA_FFI_DataType_S64, false, {columns}}, operands, program, results};
  return call;
}

Call chained(Random& random, const Kernels& kernels) {
  const Extents leading = random_leading(random);
  const int64_t rows = random.chance(10) ? random.between(90, 220) : extent(random, 30), depth = extent(random, 40);
  const int64_t columns = 2 + extent(random, 60), y_columns = extent(random, 40), count = random.between(1, 4);
  const XLA_FFI_DataType a = byte(random), q = byte(random), y = random.chance(40) ? kFloat : output(random);
  const auto numbers = [&](XLA_FFI_DataType type, int64_t size, bool is_row) -> Array {
    const int64_t each = random.chance(50) ? 1 : size;
    return {type, some(random, leading) + (is_row ? Extents{each, 1} : Extents{1, each})};
  };
  Call call = {&jaxdml_cpu_chained};
  call.arguments = {
      {a, some(random, leading) + Extents{rows, depth}}, numbers(kFloat, rows, true), numbers(a, rows, true)};
  bool are_packed[2];
  const auto add_matrix = [&](bool& is_packed, int64_t height, int64_t width, XLA_FFI_DataType bias) {
    const XLA_FFI_DataType b = byte(random);
    is_packed = random.chance(40);
    if (is_packed)
      call.arguments.push_back({XLA_FFI_DataType_S8,
                                some(random, leading) + Extents{1, jaxdml_cpu_matrix_bytes(height, width)},
                                kernels.matrix_mark});
    else
      call.arguments.push_back({b, some(random, leading) + Extents{height, width}});
    call.arguments.push_back(numbers(kFloat, width, false));
    call.arguments.push_back(numbers(b, width, false));
    call.arguments.push_back({bias, some(random, leading) + Extents{random.chance(50) ? 0 : width}});
  };
  add_matrix(are_packed[0], depth, columns, kFloat);
  for (const auto type : {kFloat, q, kFloat, q}) call.arguments.push_back(numbers(type, 1, true));
  add_matrix(are_packed[1], columns, y_columns, y == kFloat ? kFloat : XLA_FFI_DataType_S32);
  call.arguments.push_back(numbers(kFloat, rows, true));
  call.arguments.push_back(numbers(zero_point_of(y, random), rows, true));
  const int64_t place = random.below(count), instructions = random.between(1, 12);
  Attribute operands = integers("operands", {});
  for (int64_t i = 0; i < count; i++)
    if (i == place)
      operands.numbers.insert(operands.numbers.end(), {place, 0});
    else
      add_row_operand(random, leading + Extents{rows}, columns, call, operands);
  call.results = {{y, leading + Extents{rows, y_columns}}};
  call.attributes = {{"b_is_packed", XLA_FFI_DataType_PRED, false, {are_packed[0]}},
                     {"c_is_packed", XLA_FFI_DataType_PRED, false, {are_packed[1]}},
                     {"columns", XLA_FFI_DataType_S64, false, {columns}},
                     {"is_by_rows", XLA_FFI_DataType_PRED, false, {random.chance(50)}},
                     operands,
                     {"place", XLA_FFI_DataType_S64, false, {place}},
                     row_program(random, count, place, instructions),
                     integers("results", {count + instructions - 1, count + instructions - 1})};
  return call;
}

Call steps(Random& random, const Kernels& kernels) {
  const int64_t rows = extent(random, 20), columns = 2 + extent(random, 30), steps = random.between(1, 4);
  const int64_t first = random.chance(50) ? 0 : random.between(1, 40), count = random.between(1, 4);
  const int64_t width = first + columns + (random.chance(50) ? 0 : random.between(1, 40));
  const int64_t depth = random.chance(50) ? columns : random.between(1, 40);
  const XLA_FFI_DataType q = byte(random), b = byte(random);
  Call call = {&jaxdml_cpu_steps};
  call.arguments = {{kFloat, {rows, depth}}, {kFloat, {1, 1}}, {q, {1, 1}}, {kFloat, {1, 1}}, {q, {1, 1}}};
  call.arguments.push_back({XLA_FFI_DataType_S8, {1, jaxdml_cpu_matrix_bytes(depth, width)}, kernels.matrix_mark});
  call.arguments.push_back({kFloat, {1, random.chance(50) ? 1 : width}});
  call.arguments.push_back({b, {1, random.chance(50) ? 1 : width}});
  call.arguments.push_back({kFloat, {random.chance(50) ? 0 : width}});
  const int64_t place = random.below(count), instructions = random.between(1, 12);
  Attribute results = integers("results", {count + instructions - 1, count + instructions - 1});
  Attribute sequences = integers("sequences", {});
  while (random.chance(40)) {
    const int64_t slot = count + random.below(instructions);
    results.numbers.insert(results.numbers.end(), {slot, slot});
  }
  std::vector<int64_t> states;  // the results that may replace arguments
  for (int64_t i = 0; i < int64_t(results.numbers.size()) / 2; i++) {
    const bool is_state = random.chance(60);
    (is_state ? states : sequences.numbers).push_back(i);
    call.results.push_back({kFloat, is_state ? Extents{rows, columns} : Extents{steps, rows, columns}});
  }
  const auto any_state = [&] { return states[size_t(random.below(int64_t(states.size())))]; };
  Attribute kinds = integers("arguments", {depth == columns && !states.empty() ? any_state() : -1});
  Attribute operands = integers("operands", {});
  for (int64_t i = 0; i < count; i++) {
    if (i == place) {
      operands.numbers.insert(operands.numbers.end(), {place, first});
      continue;
    }
    add_row_operand(random, {rows}, columns, call, operands);
    Array& array = call.arguments.back();
    if (random.chance(30)) {
      array.dims.insert(array.dims.begin(), steps);
      kinds.numbers.push_back(-2);
    } else if (random.chance(40) && !states.empty()) {
      array = {kFloat, {rows, columns}};
      operands.numbers.back() = 0;
      kinds.numbers.push_back(any_state());
    } else {
      kinds.numbers.push_back(-1);
    }
  }
  const bool has_sequence = !sequences.numbers.empty() || std::count(kinds.numbers.begin(), kinds.numbers.end(), -2);
  call.attributes = {kinds,
                     {"columns", XLA_FFI_DataType_S64, false, {columns}},
                     {"count", XLA_FFI_DataType_S64, false, {has_sequence ? steps : 1}},
                     {"is_by_rows", XLA_FFI_DataType_PRED, false, {random.chance(50)}},
                     {"is_reversed", XLA_FFI_DataType_PRED, false, {random.chance(50)}},
                     operands,
                     {"place", XLA_FFI_DataType_S64, false, {place}},
                     row_program(random, count, place, instructions),
                     results,
                     sequences,
                     {"width", XLA_FFI_DataType_S64, false, {width}}};
  return call;
}

Call attention(Random& random, const Kernels&) {
  const Extents leading = random_leading(random);
  const int64_t groups = random.between(1, 3), heads = groups * extent(random, 3), batch = extent(random, 3);
  const int64_t rows = extent(random, 12), keys = random.between(1, 40);
  const int64_t depth = random.between(1, 40), width = random.between(1, 40);
  const auto for_scores = [&] {
    return some(random, leading) + some(random, Extents{batch, heads, rows}) + Extents{random.chance(30) ? 0 : keys};
  };
  const int64_t which = random.below(int64_t(AttentionResult::kCount));
  Call call = {&jaxdml_cpu_attention};
  call.arguments = {{kFloat, some(random, leading) + Extents{batch, heads, rows, depth}},
                    {kFloat, some(random, leading) + Extents{batch, groups, keys, depth}},
                    {kFloat, some(random, leading) + Extents{batch, groups, keys, width}},
                    {XLA_FFI_DataType_PRED, for_scores()},
                    {kFloat, for_scores()},
                    {kFloat, some(random, leading) + Extents{random.chance(50) ? 0 : heads}}};
  call.results = {{kFloat, leading + Extents{batch, heads, rows, which ? keys : width}}};
  call.attributes = {{"scale", kFloat, false, {0x3f000000}},  // the bits of 0.5
                     {"softcap", kFloat, false, {random.chance(50) ? 0x3f000000 : 0}},
                     {"which", XLA_FFI_DataType_S64, false, {which}}};
  return call;
}

Call lstm(Random& random, const Kernels& kernels) {
  const Extents leading = random_leading(random);
  const int64_t directions = random.between(1, 2), steps = random.between(1, 6), batch = random.between(1, 9);
  const int64_t units = random.between(1, 40), columns = 4 * units;
  const bool is_packed = random.chance(50);
  const XLA_FFI_DataType type = byte(random);
  const auto operand = [&](const Extents& size) { return some(random, leading + Extents{directions}) + size; };
  const auto of_columns = [&] { return operand({1, random.chance(50) ? 1 : columns}); };
  Call call = {&jaxdml_cpu_lstm};
  call.arguments = {{kFloat, operand({steps, batch, columns})},
                    {XLA_FFI_DataType_S32, operand({batch})},
                    {kFloat, operand({batch, units})},
                    {kFloat, operand({batch, units})},
                    {kFloat, operand({columns})},
                    {kFloat, operand({random.chance(50) ? 0 : 3 * units})},
                    {type, operand({units, columns})},
                    {kFloat, of_columns()},
                    {type, of_columns()}};
  if (is_packed)
    call.arguments[6] = {XLA_FFI_DataType_S8, operand({1, jaxdml_cpu_matrix_bytes(units, columns)}),
                         kernels.matrix_mark};
  const Extents states = leading + Extents{directions, batch, units};
  call.results = {{kFloat, leading + Extents{steps, directions, batch, units}}, {kFloat, states}, {kFloat, states}};
  call.attributes = {{"backward", XLA_FFI_DataType_S64, true, Extents(size_t(directions), random.below(2))},
                     {"clip", kFloat, false, {0x3f000000}},  // the bits of 0.5
                     {"couples_forget", XLA_FFI_DataType_PRED, false, {random.below(2)}},
                     {"is_packed", XLA_FFI_DataType_PRED, false, {is_packed}}};
  return call;
}

// Wrong calls ---------------------------------------------------------------------------------------------------------

// A number that may break arithmetic on sizes.
int64_t strange(Random& random) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t power = int64_t(1) << random.below(63);
  switch (random.below(8)) {
    case 0:
      return 0;
    case 1:
      return power;
    case 2:
      return power + random.between(-2, 2);
    case 3:
      return -power;
    case 4:
      return kMost - random.below(70);
    case 5:
      return -1 - kMost;
    case 6:
      return int64_t(1) << random.between(44, 62);
    default:
      return random.between(-3, 9);
  }
}
int64_t another(Random& random, int64_t number) {
  if (random.chance(60)) return strange(random);
  const uint64_t wrapped = uint64_t(number);
  return int64_t(random.chance(30) ? wrapped * uint64_t(random.between(2, 3))
                                   : wrapped + uint64_t(random.between(-1, 1)));
}

Array& any_array(Random& random, Call& call) {
  const int64_t i = random.below(int64_t(call.arguments.size() + call.results.size()));
  return i < int64_t(call.results.size()) ? call.results[size_t(i)] : call.arguments[size_t(i) - call.results.size()];
}

void mutate(Random& random, Call& call) {
  const int64_t kind = random.below(100);
  if (call.arguments.empty() && call.results.empty()) return;
  Array& array = any_array(random, call);
  Extents& dims = array.dims;
  Attribute* attribute =
      call.attributes.empty() ? nullptr : &call.attributes[size_t(random.below(int64_t(call.attributes.size())))];
  int64_t* number = attribute && !attribute->numbers.empty()
                        ? &attribute->numbers[size_t(random.below(int64_t(attribute->numbers.size())))]
                        : nullptr;
  if (kind < 25) {  // one extent
    if (!dims.empty()) {
      int64_t& size = dims[size_t(random.below(int64_t(dims.size())))];
      size = another(random, size);
    }
  } else if (kind < 45) {  // an extent wherever it occurs, so that the shapes still match each other
    if (dims.empty()) return;
    const int64_t from = dims[size_t(random.below(int64_t(dims.size())))], to = another(random, from);
    const auto replace = [&](Extents& in) { std::replace(in.begin(), in.end(), from, to); };
    for (Array& each : call.arguments) replace(each.dims);
    for (Array& each : call.results) replace(each.dims);
    for (Attribute& each : call.attributes) replace(each.numbers);
  } else if (kind < 60) {  // the rank
    if (random.chance(30)) {
      dims.resize(size_t(random.below(7)));
      for (int64_t& size : dims) size = random.chance(15) ? strange(random) : random.between(0, 3);
    } else if (random.chance(50) && !dims.empty()) {
      dims.erase(dims.begin() + random.below(int64_t(dims.size())));
    } else {
      dims.insert(dims.begin() + random.below(int64_t(dims.size()) + 1), random.chance(80) ? 1 : strange(random));
    }
  } else if (kind < 68) {
    array.type = random.chance(40) ? byte(random) : XLA_FFI_DataType(random.below(34));
  } else if (kind < 72) {
    array.mark = 0;
  } else if (kind < 92) {
    if (number) *number = another(random, *number);
  } else if (kind < 94) {
    if (attribute) attribute->numbers.resize(size_t(random.below(6)), 1);
  } else if (kind < 96) {
    if (!attribute) return;
    attribute->is_array ^= random.chance(50);
    attribute->type = XLA_FFI_DataType(random.below(12));
  } else if (kind < 97) {
    if (attribute) attribute->name += "s";
  } else if (kind < 98) {
    if (attribute) call.attributes.erase(call.attributes.begin() + (attribute - call.attributes.data()));
  } else if (kind < 99) {
    if (random.chance(50) && !call.arguments.empty())
      call.arguments.pop_back();
    else
      call.arguments.push_back({kFloat, {1}});
  } else if (random.chance(50)) {
    call.results.push_back({kFloat, {1}});
  } else {
    call.stage = XLA_FFI_ExecutionStage(random.below(5));
  }
}

// Empties arrays that are too large to allocate, by setting extents to 0. Returns whether any array was too large.
bool fit(Random& random, Call& call) {
  bool is_too_large = false;
  for (std::vector<Array>* arrays : {&call.arguments, &call.results})
    for (Array& array : *arrays)
      while (array.bytes() > kMostBytes) {
        array.dims[size_t(random.below(int64_t(array.dims.size())))] = 0;
        is_too_large = true;
      }
  return is_too_large;
}

// Runs ----------------------------------------------------------------------------------------------------------------

struct Kind {
  const char* name;
  Call (*make)(Random&, const Kernels&);
  int64_t calls, successes;
};
Kind kinds[] = {{"matmul", matmul, 0, 0},
                {"convolve", convolve, 0, 0},
                {"add", add, 0, 0},
                {"quantized", quantized, 0, 0},
                {"dequantized", dequantized, 0, 0},
                {"extremes", extremes, 0, 0},
                {"quantized_rows", quantized_rows, 0, 0},
                {"row_sums", row_sums, 0, 0},
                {"pack_matrix", pack_matrix, 0, 0},
                {"pack_filter", pack_filter, 0, 0},
                {"dequantize_blocks", dequantize_blocks, 0, 0},
                {"pack_blocks", pack_blocks, 0, 0},
                {"matmul_blocks", matmul_blocks, 0, 0},
                {"max_pool", max_pool, 0, 0},
                {"looked_up", looked_up, 0, 0},
                {"products", products, 0, 0},
                {"rows", rows, 0, 0},
                {"chained", chained, 0, 0},
                {"steps", steps, 0, 0},
                {"attention", attention, 0, 0},
                {"lstm", lstm, 0, 0},
                {"means", means, 0, 0}};

unsigned long long seed = 0;
long long number = 0;
const char* kernels_name = "no kernels";
const char* kind_name = "";

void on_signal(int signal_number) {
  char line[200];
  const int size = snprintf(line, sizeof line, "hostile_calls died of signal %d in call %lld of seed %llu, %s by %s\n",
                            signal_number, number, seed, kind_name, kernels_name);
  if (write(2, line, size_t(size)) < 0) _exit(2);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

// Requests sizes of packed weights, and checks that small weights have one.
bool are_sizes_right(Random& random) {
  const auto any = [&] { return random.chance(50) ? random.between(1, 20) : strange(random); };
  const int64_t depth = any(), columns = any(), groups = any(), shape[4] = {any(), any(), any(), any()};
  const int64_t bytes = jaxdml_cpu_matrix_bytes(depth, columns), of_filter = jaxdml_cpu_filter_bytes(shape, groups);
  bool is_right = bytes >= -1 && of_filter >= -1;
  if (depth >= 0 && columns >= 0 && depth <= 20 && columns <= 20) is_right &= bytes >= 4;
  for (const int64_t size : {depth, columns}) is_right &= size >= 0 || bytes == -1;
  for (const int64_t size : {groups, shape[0], shape[1], shape[2], shape[3]}) is_right &= size > 0 || of_filter == -1;
  if (!is_right)
    fprintf(stderr, "%lld bytes for [%lld, %lld], %lld for a filter\n", (long long)bytes, (long long)depth,
            (long long)columns, (long long)of_filter);
  return is_right;
}

// Makes one call, and returns whether its outcome is allowed.
bool run_one(const std::vector<const Kernels*>& sets, ThreadPool& threads, bool is_printed) {
  Random random(seed, uint64_t(number));
  const Kernels& kernels = *sets[size_t(random.below(int64_t(sets.size())))];
  Kind& kind = kinds[random.chance(55) ? random.below(2) : random.below(int64_t(std::size(kinds)))];
  kernels_name = kernels.name;
  kind_name = kind.name;
  jaxdml_cpu_choose(kernels.name);
  if (random.chance(5)) {
    if (jaxdml_cpu_choose("no such kernels") || !are_sizes_right(random)) return false;
  }
  Call call = kind.make(random, kernels);
  const int64_t mutations = random.chance(40) ? 0 : random.chance(70) ? 1 : random.between(2, 4);
  for (int64_t i = 0; i < mutations; i++) mutate(random, call);
  const bool is_right = !fit(random, call) && !mutations;
  if (is_printed) printf("%s by %s, %s\n", kind.name, kernels.name, described(call).c_str());
  fflush(stdout);
  std::string error;
  const bool is_success = called(call, random, threads, error);
  if (is_printed) printf("%s\n", is_success ? "success" : error.c_str());
  kind.calls++;
  kind.successes += is_success;
  if (is_success || (!is_right && !error.empty())) return true;
  fprintf(stderr, "%s by %s, %s\n%s\n", kind.name, kernels.name, described(call).c_str(),
          error.empty() ? "an error without a text" : ("a right call failed: " + error).c_str());
  return false;
}

// Whether all calls are refused until kernels are chosen.
bool is_refused_at_first(ThreadPool& threads) {
  const int64_t filter[4] = {1, 1, 1, 1};
  if (jaxdml_cpu_matrix_bytes(1, 1) != -1 || jaxdml_cpu_filter_bytes(filter, 1) != -1) return false;
  for (const Kind& kind : kinds) {
    Random random(seed, 0);
    std::string error;
    Call call = kind.make(random, *std::end(kSets)[-1].kernels);
    fit(random, call);
    if (called(call, random, threads, error) || error.empty()) return false;
  }
  return true;
}

int run_all(const std::string& amount, long long first) {
  ThreadPool threads(2);
  if (!is_refused_at_first(threads)) {
    fprintf(stderr, "something worked before kernels were chosen\n");
    return 1;
  }
  std::vector<const Kernels*> sets;
  for (const InstructionSet& each : kSets)
    if (jaxdml_cpu_choose(each.kernels->name)) sets.push_back(each.kernels);
  for (const Kernels* kernels : sets) printf("calls %s, seed %llu\n", kernels->name, seed);
  const bool is_by_time = amount.back() == 's';
  const int64_t most = std::stoll(amount);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  for (number = first; is_by_time ? seconds() < double(most) : number < first + most; number++) {
    alarm(60);  // in case the call hangs
    if (!run_one(sets, threads, !is_by_time && most == 1)) {
      fprintf(stderr, "call %lld of seed %llu was wrong\n", number, seed);
      return 1;
    }
  }
  alarm(0);
  printf("seed %llu: %lld calls, none of them harmful; %.1f s\n", seed, number - first, seconds());
  bool are_deep = true;
  for (const Kind& kind : kinds) {
    const double share = 100 * double(kind.successes) / double(std::max<int64_t>(kind.calls, 1));
    printf("%17s %9lld calls, %5.1f %% succeeded\n", kind.name, (long long)kind.calls, share);
    are_deep &= share >= 20 || kind.calls < 1000;
  }
  if (!are_deep) fprintf(stderr, "too few calls reached a kernel\n");
  return !are_deep;
}

}  // namespace
}  // namespace jaxdml::test

int main(int argc, char** argv) {
  using namespace jaxdml::test;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) signal(number, on_signal);
  seed = argc > 2 ? std::stoull(argv[2]) : std::random_device()();
  return run_all(argc > 1 ? argv[1] : "100000", argc > 3 ? std::stoll(argv[3]) : 0);
}
