// The handler of matrix products.
#include <vector>

#include "matmul_call.h"
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
  JAXDML_EXPECT(rank >= 2 && (is_type(y) || y.element_type() == ffi::DataType::F32),
                "the product is not a matrix of int8, uint8, int32 or float32");
  const size_t leading = rank - 2;
  const LeftOperand left = {a, a_scale, a_zero_point};
  const RightOperand right = {b, b_scale, b_zero_point, bias, is_packed};
  const Output output = {y_scale, y_zero_point};
  JAXDML_RETURN_IF_WRONG(check_left(left, y));
  JAXDML_RETURN_IF_WRONG(check_output(output, y));
  const int64_t rows = y.dimensions()[leading], columns = y.dimensions()[leading + 1];
  const int64_t depth = a.dimensions()[leading + 1];
  JAXDML_RETURN_IF_WRONG(check_right(kernels, right, y, y.element_type(), depth));
  const Size packed_bytes = matrix_bytes(kernels, depth, columns);
  const int64_t count = product(y.dimensions(), 0, leading);
  if (!count || !rows || !columns) return ffi::Error::Success();
  // The kernels multiply dimensions in int64; this number bounds their products.
  const Size work = work_of_products(count, rows, depth, columns);
  JAXDML_EXPECT(work.is_size(), "the product needs too many multiplications");

  const FloatMode mode;
  // A product is worth a thread from twice the usual work on: what reads its output then finds it in one core's cache.
  const Pool pool = pool_of(threads, work.number() / kernels.pace / 2);
  // An unpacked b stays unpacked if there are few rows and each problem has its own b; otherwise this call packs b.
  const bool is_raw =
      !is_packed && depth && rows <= kernels.most_raw_rows && product(b.dimensions(), 0, leading) == count;
  const int64_t matrices = is_packed || is_raw ? 0 : product(b.dimensions(), 0, leading);
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
    problems.push_back(right_of(right, y, type_of(y), depth, i));
    set_left(left, y, i, problems.back());
    set_output(output, y, i, problems.back());
    problems.back().b = b_at;
    problems.back().is_raw = is_raw;
    problems.back().y = at_problem(y, y, leading, i);
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
