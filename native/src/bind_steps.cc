// The handler of steps that each quantize an array, multiply it by a matrix, and run a program on the product's rows. A
// step may read the results of the step before it, as in an RNN. As several calls, a small step would take longer to
// check than to compute.
#include <algorithm>
#include <vector>

#include "matmul_call.h"
#include "row_call.h"
#include "scratch.h"
#include "seal.h"
#include "threads.h"

namespace jaxdml {
namespace {

// What an array is: the same in all steps, an element of a sequence for each step, or, from 0 on, in all steps but the
// first, the result of this number.
constexpr int64_t kConstant = -1, kSequence = -2;

// The extents of an array in one step.
Numbers of_step(Numbers extents, bool is_sequence) {
  return is_sequence ? Numbers{extents.begin() + 1, extents.size() - 1} : extents;
}

// Checks the first extents of sequences.
ffi::Error check_sequence(Numbers extents, int64_t steps) {
  JAXDML_EXPECT(extents.size() && extents[0] == steps, "a sequence has another number of steps");
  return ffi::Error::Success();
}

int64_t bytes_of_step(Buffer x, int64_t steps) {
  return int64_t(x.element_count()) / steps * int64_t(ffi::ByteWidth(x.element_type()));
}

// The product of a step is float32 [rows, width], and argument `place` of the program; `given` has the other arguments.
// a is float32. If it is quantized by rows, the four parameters after it are not read. `arguments` says what a is, and
// then what each argument but the product is; `sequences` has the numbers of the results that are sequences.
ffi::Error steps(const Kernels& kernels, ffi::ThreadPool threads, Buffer a, Buffer by_scale, Buffer by_zero_point,
                 Buffer a_scale, Buffer a_zero_point, Buffer b, Buffer b_scale, Buffer b_zero_point, Buffer bias,
                 ffi::RemainingArgs given, ffi::RemainingRets returned, Numbers arguments, int64_t columns,
                 int64_t count, bool is_by_rows, bool is_reversed, Numbers operands, int64_t place, Numbers program,
                 Numbers results, Numbers sequences, int64_t width) {
  JAXDML_EXPECT(count > 0, "there are no steps");
  JAXDML_EXPECT(a.dimensions().size() == 2 && a.element_type() == ffi::DataType::F32, "a is not a float32 matrix");
  const int64_t rows = a.dimensions()[0], depth = a.dimensions()[1];
  const int64_t extents[] = {rows, width};
  const Numbers y = {extents, 2};
  JAXDML_EXPECT(width > 0 && is_shape(y), "the product has no columns, or too many");
  JAXDML_EXPECT(depth > 0, "a has no columns");
  if (!is_by_rows) {
    for (const Buffer& x : {by_scale, a_scale})
      JAXDML_EXPECT(x.element_type() == ffi::DataType::F32 && is_of_rows(x, y, 1),
                    "a scale is not one float32 element");
    for (const Buffer& x : {by_zero_point, a_zero_point})
      JAXDML_EXPECT(is_byte(x) && is_of_rows(x, y, 1), "a zero point is not one int8 or uint8 element");
    JAXDML_EXPECT(is_signed(by_zero_point) == is_signed(a_zero_point), "two zero points differ in type");
  }
  const RightOperand right = {b, b_scale, b_zero_point, bias, true};
  JAXDML_RETURN_IF_WRONG(check_right(kernels, right, y, ffi::DataType::F32, depth));
  RowResults all;
  JAXDML_RETURN_IF_WRONG(read_results(returned, all));
  std::vector<bool> is_sequence(all.size());
  for (const int64_t i : sequences) {
    JAXDML_EXPECT(i >= 0 && i < int64_t(all.size()), "a sequence is not a result");
    JAXDML_RETURN_IF_WRONG(check_sequence(all[size_t(i)].dimensions(), count));
    is_sequence[size_t(i)] = true;
  }
  const auto of_result = [&](size_t i) { return of_step(all[i].dimensions(), is_sequence[i]); };
  for (size_t i = 0; i < all.size(); i++)
    JAXDML_EXPECT(all[i].element_type() == ffi::DataType::F32 && of_result(i).size() == 2 && of_result(i)[0] == rows,
                  "a result is not float32, or has other rows than the product");
  JAXDML_EXPECT(arguments.size() == given.size() + 1, "not each argument is a constant, a sequence or a result");
  std::vector<RowArgument> all_arguments;
  JAXDML_RETURN_IF_WRONG(read_arguments(given, all_arguments));
  std::vector<Buffer> others;
  for (size_t i = 0; i < given.size(); i++) others.push_back(*given.get<Buffer>(i));
  for (size_t i = 0; i <= others.size(); i++) {
    const int64_t kind = arguments[i];
    JAXDML_EXPECT(kind >= kSequence && kind < int64_t(all.size()), "an argument is not a result");
    if (kind == kSequence) {
      JAXDML_EXPECT(i, "a is a sequence");
      JAXDML_RETURN_IF_WRONG(check_sequence(others[i - 1].dimensions(), count));
      all_arguments[i - 1].extents = of_step(others[i - 1].dimensions(), true);
    } else if (kind >= 0) {
      const Buffer x = i ? others[i - 1] : a;
      const Numbers state = all[size_t(kind)].dimensions(), extents = x.dimensions();
      JAXDML_EXPECT(x.element_type() == ffi::DataType::F32 && !is_sequence[size_t(kind)] &&
                        std::equal(state.begin(), state.end(), extents.begin(), extents.end()),
                    "an argument and the result that replaces it differ in shape or type");
      // Results that steps read are written in place, and a block of columns would overwrite what the next one reads.
      JAXDML_EXPECT(state.back() == columns, "a result that replaces an argument has other columns than the program");
    }
  }
  JAXDML_EXPECT(place >= 0 && size_t(place) <= others.size(), "the program has no operand for the product");
  all_arguments.insert(all_arguments.begin() + place, {y, ffi::DataType::F32, nullptr});
  RowCall call;
  JAXDML_RETURN_IF_WRONG(read_operands(all_arguments, y, columns, operands, call));
  if (are_empty(all)) return ffi::Error::Success();
  // The memory of a sequence bounds the number of steps.
  bool has_sequence = false;
  for (size_t i = 0; i < all.size(); i++) has_sequence |= is_sequence[i] && all[i].element_count();
  for (size_t i = 0; i < others.size(); i++) has_sequence |= arguments[i + 1] == kSequence && others[i].element_count();
  JAXDML_EXPECT(count == 1 || has_sequence, "several steps have no sequence");
  JAXDML_RETURN_IF_WRONG(read_program(program, results, call));
  JAXDML_RETURN_IF_WRONG(bind_results(all, call));
  RowProgram& one = call.program;
  const Size work =
      work_of_products(1, rows, depth, width, count > 1) + Size(rows) * columns * one.instruction_count * 4;
  JAXDML_EXPECT(work.is_size(), "the product needs too many multiplications");
  const uint8_t* const matrix = static_cast<const uint8_t*>(b.untyped_data());
  const Size packed_bytes = matrix_bytes(kernels, depth, width);
  if (!is_sealed(matrix, packed_bytes.number(), kernels.matrix_mark)) return not_packed("b");

  const FloatMode mode;
  const Pool pool = pool_of(threads, work.number() / kernels.pace);
  Matmul by = right_of(right, y, Type::kFloat32, depth, 0);
  by.b = matrix;
  const float unread = 1;
  by.y_scale = {&unread, 0};
  by.y_zero_point = {reinterpret_cast<const uint8_t*>(&unread), 0, false};
  float *floats = nullptr, *scales_of_rows = nullptr;
  uint8_t *bytes = nullptr, *zero_points_of_rows = nullptr, *rest = nullptr;
  const auto take_all = [&](Parts& parts) {
    floats = parts.take<float>(Size(rows) * width);
    bytes = parts.take<uint8_t>(Size(rows) * depth);
    scales_of_rows = parts.take<float>(rows);
    zero_points_of_rows = parts.take<uint8_t>(rows);
    by.a = bytes;
    by.a_scale = is_by_rows ? Scales{scales_of_rows, 1} : scales(a_scale, y, 0, 0);
    by.a_zero_point = is_by_rows ? ZeroPoints{zero_points_of_rows, 1, false} : zero_points(a_zero_point, y, 0, 0);
    by.y = floats;
    const int64_t scratch =
        std::max(kernels.matmul_scratch(&by, 1, pool.threads), kernels.row_program_scratch(one, pool.threads));
    rest = parts.take<uint8_t>(scratch);
  };
  Parts sizes = {nullptr, 0};
  take_all(sizes);
  const Scratch memory(sizes.used);
  if (!memory.is_there()) return no_memory();
  Parts own = {memory.at(), 0};
  take_all(own);

  Quantization quantization = {rows * depth, nullptr, 1, 0, false, bytes};
  if (!is_by_rows) {
    quantization.scale = *static_cast<const float*>(by_scale.untyped_data());
    quantization.zero_point = integer_at(static_cast<const uint8_t*>(by_zero_point.untyped_data()), by_zero_point);
    quantization.is_signed = is_signed(by_zero_point);
  }
  // Results that steps read are written in place: a block of rows is read before it is written.
  const auto result_at = [&](int64_t i) { return static_cast<uint8_t*>(all[size_t(i)].untyped_data()); };
  std::vector<int64_t> argument_bytes, result_bytes;  // of a step, in sequences
  for (const Buffer& x : others) argument_bytes.push_back(bytes_of_step(x, count));
  for (const Buffer& y : all) result_bytes.push_back(bytes_of_step(y, count));
  for (int64_t i = 0; i < count; i++) {
    const int64_t step = is_reversed ? count - 1 - i : i;
    const void* const at = i && arguments[0] >= 0 ? result_at(arguments[0]) : a.untyped_data();
    const float* const x = static_cast<const float*>(at);
    if (is_by_rows) {
      kernels.quantize_rows(pool, {rows, depth, x, bytes, scales_of_rows, zero_points_of_rows});
    } else {
      quantization.x = x;
      kernels.quantize(pool, &quantization, 1);
    }
    kernels.matmul(pool, &by, 1, rest);
    for (size_t j = 0; j < call.operands.size(); j++) {
      const size_t source = call.sources[j], other = source - (source > size_t(place));
      RowOperand& operand = call.operands[j];
      if (source == size_t(place)) {
        operand.at = reinterpret_cast<const uint8_t*>(floats);
        continue;
      }
      const int64_t kind = arguments[other + 1];
      if (kind == kSequence)
        operand.at = all_arguments[source].at + step * argument_bytes[other];
      else if (kind >= 0 && i)
        operand.at = result_at(kind);
    }
    for (size_t j = 0; j < all.size(); j++)
      if (is_sequence[j]) call.results[j].y = result_at(int64_t(j)) + step * result_bytes[j];
    kernels.run_rows(pool, one, rest);
  }
  return ffi::Error::Success();
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_steps, steps,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // a, the quantizer's scale and zero point, then those of the product's operand
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // b, its scale and zero point, and the bias, which may be empty
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .RemainingArgs()
                   .RemainingRets()
                   .Attr<Numbers>("arguments")
                   .Attr<int64_t>("columns")
                   .Attr<int64_t>("count")
                   .Attr<bool>("is_by_rows")
                   .Attr<bool>("is_reversed")
                   .Attr<Numbers>("operands")
                   .Attr<int64_t>("place")
                   .Attr<Numbers>("program")
                   .Attr<Numbers>("results")
                   .Attr<Numbers>("sequences")
                   .Attr<int64_t>("width"))

}  // namespace jaxdml
