// The handler of matrix products.
#include <vector>

#include "handler.h"
#include "scratch.h"
#include "seal.h"
#include "threads.h"

namespace jaxdml {
namespace {

// Merges adjacent problems that share one matrix b into a single problem with more rows.
void merge_rows(std::vector<Matmul>& problems) {
  const Matmul one = problems[0];
  const int64_t count = int64_t(problems.size()), bytes = size_of(one.type);
  for (int64_t i = 0; i < count; i++) {
    const Matmul& other = problems[size_t(i)];
    const int64_t rows = i * one.rows;
    const bool is_next = other.a - one.a == rows * one.depth && other.b == one.b &&
                         static_cast<uint8_t*>(other.y) - static_cast<uint8_t*>(one.y) == rows * one.columns * bytes &&
                         other.a_scale.at - one.a_scale.at == rows * one.a_scale.step &&
                         other.y_scale.at - one.y_scale.at == rows * one.y_scale.step &&
                         other.b_scale.at == one.b_scale.at && other.b_zero_point.at == one.b_zero_point.at &&
                         other.bias == one.bias &&
                         other.a_zero_point.at - one.a_zero_point.at == rows * one.a_zero_point.step &&
                         other.y_zero_point.at - one.y_zero_point.at == rows * one.y_zero_point.step;
    if (!is_next) return;
  }
  problems.resize(1);
  problems[0].rows *= count;
}

ffi::Error matmul(const Kernels& kernels, ffi::ThreadPool threads, Buffer a, Buffer a_scale, Buffer a_zero_point,
                  Buffer b, Buffer b_scale, Buffer b_zero_point, Buffer bias, Buffer y_scale, Buffer y_zero_point,
                  ffi::Result<Buffer> result, bool is_packed) {
  const Buffer y = *result;
  const size_t rank = y.dimensions().size();
  const bool is_float = y.element_type() == ffi::DataType::F32;
  JAXDML_EXPECT(rank >= 2 && (is_type(y) || is_float), "the product is not a matrix of int8, uint8, int32 or float32");
  const size_t leading = rank - 2;
  for (const Buffer& x : {a, b, a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point})
    JAXDML_EXPECT(leads(x, y, leading, rank), "an operand's leading dimensions differ from the product's");
  const int64_t rows = y.dimensions()[leading], columns = y.dimensions()[leading + 1];
  const int64_t depth = a.dimensions()[leading + 1];
  JAXDML_EXPECT(is_byte(a) && a.dimensions()[leading] == rows,
                "a is not int8 or uint8, or its rows differ from the product's");
  for (const Buffer& x : {a_scale, b_scale, y_scale})
    JAXDML_EXPECT(x.element_type() == ffi::DataType::F32, "a scale is not float32");
  for (const Buffer& x : {a_zero_point, b_zero_point, y_zero_point})
    JAXDML_EXPECT(is_byte(x), "a zero point is not int8 or uint8");
  for (const Buffer& x : {a_scale, a_zero_point, y_scale, y_zero_point})
    JAXDML_EXPECT(is_along(x, leading, leading, rows),
                  "a parameter of matrix a or of the product needs one element, or one per row");
  for (const Buffer& x : {b_scale, b_zero_point})
    JAXDML_EXPECT(is_along(x, leading, leading + 1, columns), "a parameter of b needs one element, or one per column");
  JAXDML_EXPECT(is_signed(a) == is_signed(a_zero_point), "a and its zero point differ in type");
  JAXDML_EXPECT(
      bias.element_type() == (is_float ? ffi::DataType::F32 : ffi::DataType::S32) &&
          leads(bias, y, leading, leading + 1),
      "the bias is not int32, or float32 if the product is, or its leading dimensions differ from the product's");
  const bool has_bias = bias.dimensions()[leading] == columns;
  JAXDML_EXPECT(has_bias || bias.dimensions()[leading] == 0, "the bias needs one element per column");
  const Size packed_bytes = matrix_bytes(kernels, depth, columns);
  const auto of_b = b.dimensions();
  if (is_packed) {
    JAXDML_EXPECT(b.element_type() == ffi::DataType::S8 && of_b[leading] == 1 && packed_bytes == of_b[leading + 1],
                  "b was packed for another shape");
  } else {
    JAXDML_EXPECT(
        is_byte(b) && is_signed(b) == is_signed(b_zero_point) && of_b[leading] == depth && of_b[leading + 1] == columns,
        "b's type differs from its zero point's, or its shape does not match a and the product");
  }
  const int64_t count = product(y.dimensions(), 0, leading);
  if (!count || !rows || !columns) return ffi::Error::Success();
  // The kernels multiply dimensions in int64; this number bounds their products.
  const Size multiplications = Size(count * rows * columns) * depth;
  JAXDML_EXPECT(multiplications.is_size(), "the product needs too many multiplications");

  const FloatMode mode;
  // Each weight counts as 8 more multiplications, because products of few rows are limited by reading the weights.
  const Size work = multiplications + Size(count * columns) * depth * 8;
  JAXDML_EXPECT(work.is_size(), "the product needs too many multiplications");
  const Pool pool = pool_of(threads, work.number() / kernels.pace);
  // An unpacked b stays unpacked if there are few rows and each problem has its own b; otherwise this call packs b.
  const bool is_raw = !is_packed && depth && rows <= kernels.most_raw_rows && product(of_b, 0, leading) == count;
  const int64_t matrices = is_packed || is_raw ? 0 : product(of_b, 0, leading);
  const Scratch packed(matrices * packed_bytes);
  if (!packed.is_there()) return no_memory();
  const uint8_t* const all_b = static_cast<const uint8_t*>(b.untyped_data());
  const auto packed_at = [&](int64_t matrix) { return packed.at() + matrix * packed_bytes.number(); };
  for (int64_t i = 0; i < matrices; i++)
    kernels.pack_matrix(pool, all_b + i * depth * columns, is_signed(b), depth, columns, packed_at(i));

  std::vector<Matmul> problems;
  for (int64_t i = 0; i < count; i++) {
    const uint8_t* b_at = at_problem(b, y, leading, i);
    if (is_packed && !is_sealed(b_at, packed_bytes.number(), kernels.matrix_mark)) return not_packed("b");
    if (matrices) b_at = packed_at(depth ? (b_at - all_b) / (depth * columns) : 0);
    problems.push_back({rows, depth, columns, at_problem(a, y, leading, i), b_at, is_raw,
                        scales(a_scale, y, leading, i), scales(b_scale, y, leading, i), scales(y_scale, y, leading, i),
                        zero_points(a_zero_point, y, leading, i), zero_points(b_zero_point, y, leading, i),
                        zero_points(y_zero_point, y, leading, i),
                        has_bias ? reinterpret_cast<const int32_t*>(at_problem(bias, y, leading, i)) : nullptr,
                        at_problem(y, y, leading, i), type_of(y)});
  }
  merge_rows(problems);
  const int64_t size = int64_t(problems.size());
  const Scratch scratch(kernels.matmul_scratch(problems.data(), size, pool.threads));
  if (!scratch.is_there()) return no_memory();
  kernels.matmul(pool, problems.data(), size, scratch.at());
  return ffi::Error::Success();
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_matmul, matmul,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // a, its scale and zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // b
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // bias, which may be empty
                   .Arg<Buffer>()  // scale and zero point of the product
                   .Arg<Buffer>()
                   .Ret<Buffer>()
                   .Attr<bool>("is_packed"))

}  // namespace jaxdml
