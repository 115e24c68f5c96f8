// The handler of two products with a program on rows between them, such as those of attention: scores, softmax, and the
// weighted sums of values.
//
// A block of rows passes through all steps before the next block begins, so that scores need memory for one block of
// each thread only.
#include <algorithm>
#include <vector>

#include "matmul_call.h"
#include "row_call.h"
#include "scratch.h"
#include "seal.h"
#include "threads.h"

namespace jaxdml {
namespace {

constexpr int64_t kMostRows = 96, kLeastRows = 16;  // rows of a block; multiples of the kernels' tiles
constexpr int64_t kBlockElements = 1 << 16;         // elements of a block that stay in the second-level cache
constexpr int64_t kItems = 4;                       // parts of the work, for each thread

constexpr float kUnread = 1;  // a scale and zero point of products of floats, which have none

// How the results of the program become the second product's left operand: each row by its own range, or all rows by a
// given scale and zero point. `left_scale` and `left_zero_point` are those by which the second product reads it.
struct Quantizer {
  bool is_by_rows;
  Buffer scale, zero_point, left_scale, left_zero_point;
};

struct Chain {
  const Kernels& kernels;
  LeftOperand left;
  RightOperand first, second;
  Output output;  // of the second product
  Quantizer by;
  Shape middle, y;  // the shapes of both products
  Type type;        // of the second product; the first one is of floats
  int64_t depth;    // of the first product
  size_t place;     // of the first product among the operands of the program
  const RowCall& rows;
  uint8_t* result;

  size_t leading() const { return y.extents.size() - 2; }
  int64_t row_count() const { return y.extents[leading()]; }
  int64_t columns() const { return middle.extents.back(); }
};

// The memory of a thread.
struct Room {
  float *floats, *scales;        // the first product and the program's results; the scale of each row
  uint8_t *bytes, *zero_points;  // the second product's left operand; the zero point of each row
  uint8_t *first, *second;       // matrices that are packed for this call
  uint8_t* scratch;              // of a kernel
};

Room room_of(const Chain& chain, int64_t rows, Size scratch, Parts& parts) {
  const int64_t columns = chain.columns(), y_columns = chain.y.extents.back();
  const auto packed = [&](const RightOperand& of, int64_t depth, int64_t count) {
    return parts.take<uint8_t>(of.is_packed ? Size(0) : matrix_bytes(chain.kernels, depth, count));
  };
  Room room;
  room.floats = parts.take<float>(Size(rows) * columns);
  room.scales = parts.take<float>(rows);
  room.bytes = parts.take<uint8_t>(Size(rows) * columns);
  room.zero_points = parts.take<uint8_t>(rows);
  room.first = packed(chain.first, chain.depth, columns);
  room.second = packed(chain.second, columns, y_columns);
  room.scratch = parts.take<uint8_t>(scratch);
  return room;
}

// Rows of a problem: an index of the leading dimensions.
struct Block {
  int64_t problem, first, rows;
};

Matmul first_product(const Chain& chain, const Block& block, const uint8_t* b, const Room& room) {
  Matmul one = right_of(chain.first, chain.middle, Type::kFloat32, chain.depth, block.problem);
  set_left(chain.left, chain.middle, block.problem, one);
  one.rows = block.rows;
  one.a += block.first * chain.depth;
  one.a_scale.at += block.first * one.a_scale.step;
  one.a_zero_point.at += block.first * one.a_zero_point.step;
  one.b = b;
  one.y_scale = {&kUnread, 0};
  one.y_zero_point = {reinterpret_cast<const uint8_t*>(&kUnread), 0, false};
  one.y = room.floats;
  return one;
}

Matmul second_product(const Chain& chain, const Block& block, const uint8_t* b, const Room& room) {
  Matmul one = right_of(chain.second, chain.y, chain.type, chain.columns(), block.problem);
  const Quantizer& by = chain.by;
  one.rows = block.rows;
  one.a = room.bytes;
  one.a_scale = by.is_by_rows ? Scales{room.scales, 1} : scales(by.left_scale, chain.y, chain.leading(), block.problem);
  one.a_zero_point = by.is_by_rows ? ZeroPoints{room.zero_points, 1, false}
                                   : zero_points(by.left_zero_point, chain.y, chain.leading(), block.problem);
  one.b = b;
  set_output(chain.output, chain.y, block.problem, one);
  one.y_scale.at += block.first * one.y_scale.step;
  one.y_zero_point.at += block.first * one.y_zero_point.step;
  one.y = chain.result + (block.problem * chain.row_count() + block.first) * one.columns * size_of(chain.type);
  return one;
}

// The program on the rows of a block. Its operands are parts of those of the call.
struct BlockProgram {
  RowProgram one;
  int64_t extents[kMostSlots];
  RowOperand operands[kMostSlots];
  RowResult result;

  BlockProgram(const Chain& chain, const Block& block, float* floats)
      : one(chain.rows.program), result(chain.rows.results[0]) {
    const RowProgram all = one;
    for (int64_t i = 0; i < all.operand_count; i++) {
      const RowOperand& of = all.operands[i];
      const bool is_product = chain.rows.sources[size_t(i)] == chain.place;
      int64_t offset = 0, step = of.pitch, row = block.problem * chain.row_count() + block.first;
      for (int64_t k = all.rank; k-- > 0; row /= all.extents[k])
        if (of.extents[k] != 1) {
          offset += row % all.extents[k] * step;
          step *= of.extents[k];
        }
      extents[i] = of.extents[all.rank - 1] == 1 ? 1 : block.rows;
      const uint8_t* const at =
          is_product ? reinterpret_cast<const uint8_t*>(floats) : of.at + offset * width_of(of.type);
      operands[i] = of;
      operands[i].at = at;
      operands[i].extents = &extents[i];
      operands[i].has_rows = extents[i] > 1;
      operands[i].is_whole = extents[i] == block.rows;
    }
    one.rows = block.rows;
    one.rank = 1;
    one.extents = &one.rows;
    one.operands = operands;
    result.y = reinterpret_cast<uint8_t*>(floats);
    one.results = &result;
  }
  BlockProgram(const BlockProgram&) = delete;
  BlockProgram& operator=(const BlockProgram&) = delete;
};

void quantize(const Chain& chain, const Pool& alone, const Block& block, const Room& room) {
  const Quantizer& by = chain.by;
  const int64_t columns = chain.columns();
  if (by.is_by_rows)
    return chain.kernels.quantize_rows(alone,
                                       {block.rows, columns, room.floats, room.bytes, room.scales, room.zero_points});
  const auto at = [&](Buffer of) { return at_problem(of, chain.y, chain.leading(), block.problem); };
  const Quantization one = {block.rows * columns,
                            room.floats,
                            *reinterpret_cast<const float*>(at(by.scale)),
                            integer_at(at(by.zero_point), by.zero_point),
                            is_signed(by.zero_point),
                            room.bytes};
  chain.kernels.quantize(alone, &one, 1);
}

void run_block(const Chain& chain, const Pool& alone, const Block& block, const uint8_t* first, const uint8_t* second,
               const Room& room) {
  const Matmul of_left = first_product(chain, block, first, room);
  chain.kernels.matmul(alone, &of_left, 1, room.scratch);
  const BlockProgram program(chain, block, room.floats);
  chain.kernels.run_rows(alone, program.one, room.scratch);
  quantize(chain, alone, block, room);
  const Matmul of_bytes = second_product(chain, block, second, room);
  chain.kernels.matmul(alone, &of_bytes, 1, room.scratch);
}

// The most scratch memory that a kernel needs for a block of so many rows.
int64_t scratch_of(const Chain& chain, int64_t rows) {
  const Block block = {0, 0, rows};
  const Room room = {};
  const Matmul products[] = {first_product(chain, block, nullptr, room), second_product(chain, block, nullptr, room)};
  const BlockProgram program(chain, block, nullptr);
  int64_t most = chain.kernels.row_program_scratch(program.one, 1);
  for (const Matmul& one : products) most = std::max(most, chain.kernels.matmul_scratch(&one, 1, 1));
  return most;
}

ffi::Error check_seals(const Chain& chain, const RightOperand& of, Shape shape, int64_t depth) {
  const Size bytes = matrix_bytes(chain.kernels, depth, shape.extents.back());
  const int64_t count = product(shape.extents, 0, chain.leading());
  for (int64_t i = 0; of.is_packed && i < count; i++)
    if (!is_sealed(at_problem(of.b, shape, chain.leading(), i), bytes.number(), chain.kernels.matrix_mark))
      return not_packed("b");
  return ffi::Error::Success();
}

ffi::Error run(const Chain& chain, ffi::ThreadPool& threads) {
  const Kernels& kernels = chain.kernels;
  const int64_t rows = chain.row_count(), columns = chain.columns(), y_columns = chain.y.extents.back();
  const int64_t count = product(chain.y.extents, 0, chain.leading());
  JAXDML_RETURN_IF_WRONG(check_seals(chain, chain.first, chain.middle, chain.depth));
  JAXDML_RETURN_IF_WRONG(check_seals(chain, chain.second, chain.y, columns));
  const Size elements = Size(count * rows) * columns;
  const Size multiplications = elements * (Size(chain.depth) + y_columns);
  const Size work = elements * chain.rows.program.instruction_count * 4 + multiplications;
  JAXDML_EXPECT(work.is_size(), "the products need too many multiplications");
  const Pool pool = pool_of(threads, work.number() / kernels.pace), alone = pool_of(threads, 0);
  const int64_t fitting = std::clamp(kBlockElements / columns / kLeastRows * kLeastRows, kLeastRows, kMostRows);
  const int64_t block = std::min(rows, fitting), blocks = (rows + block - 1) / block;
  // Each part packs the matrices that it multiplies by. A problem has several parts only if there are few problems.
  const int64_t parts = std::min(blocks, (kItems * pool.threads + count - 1) / count);
  const int64_t scratch = std::max(scratch_of(chain, block), scratch_of(chain, rows - (blocks - 1) * block));
  Parts sizes = {nullptr, 0};
  room_of(chain, block, scratch, sizes);
  const Scratch memory(sizes.used * pool.threads);
  if (!memory.is_there()) return no_memory();
  const auto run_part = [&](int64_t item, int64_t worker) {
    const int64_t problem = item / parts, part = item % parts;
    Parts own = {memory.at() + worker * sizes.used.number(), 0};
    const Room room = room_of(chain, block, scratch, own);
    const auto matrix = [&](const RightOperand& of, Shape shape, int64_t depth, uint8_t* packed) {
      const uint8_t* const b = at_problem(of.b, shape, chain.leading(), problem);
      if (of.is_packed) return b;
      kernels.pack_matrix(alone, b, is_signed(of.b), depth, shape.extents.back(), packed);
      return static_cast<const uint8_t*>(packed);
    };
    const uint8_t* const first = matrix(chain.first, chain.middle, chain.depth, room.first);
    const uint8_t* const second = matrix(chain.second, chain.y, columns, room.second);
    for (int64_t i = blocks * part / parts; i < blocks * (part + 1) / parts; i++)
      run_block(chain, alone, {problem, i * block, std::min(block, rows - i * block)}, first, second, room);
  };
  const auto task = [](const void* context, int64_t item, int64_t worker) {
    (*static_cast<const decltype(run_part)*>(context))(item, worker);
  };
  const FloatMode mode;
  pool.run(pool, count * parts, task, &run_part);
  return ffi::Error::Success();
}

// Validates the scales and zero points of a quantizer for all rows: each problem has one.
ffi::Error check_quantizer(const Quantizer& by, Shape y) {
  for (const Buffer& x : {by.scale, by.left_scale})
    JAXDML_EXPECT(x.element_type() == ffi::DataType::F32 && is_of_rows(x, y, 1), "a scale is not one float32 element");
  for (const Buffer& x : {by.zero_point, by.left_zero_point})
    JAXDML_EXPECT(is_byte(x) && is_of_rows(x, y, 1), "a zero point is not one int8 or uint8 element");
  JAXDML_EXPECT(is_signed(by.zero_point) == is_signed(by.left_zero_point), "two zero points differ in type");
  return ffi::Error::Success();
}

// `given` has the operands of the program, without the first product. `by_scale` to `left_zero_point` are not read if
// rows have ranges of their own.
ffi::Error chained(const Kernels& kernels, ffi::ThreadPool threads, Buffer a, Buffer a_scale, Buffer a_zero_point,
                   Buffer b, Buffer b_scale, Buffer b_zero_point, Buffer b_bias, Buffer by_scale, Buffer by_zero_point,
                   Buffer left_scale, Buffer left_zero_point, Buffer c, Buffer c_scale, Buffer c_zero_point,
                   Buffer c_bias, Buffer y_scale, Buffer y_zero_point, ffi::RemainingArgs given,
                   ffi::Result<Buffer> result, bool b_is_packed, bool c_is_packed, int64_t columns, bool is_by_rows,
                   Numbers operands, int64_t place, Numbers program, Numbers results) {
  const Buffer y = *result;
  JAXDML_EXPECT(y.dimensions().size() >= 2 && (is_type(y) || y.element_type() == ffi::DataType::F32),
                "the product is not a matrix of int8, uint8, int32 or float32");
  std::vector<int64_t> extents(y.dimensions().begin(), y.dimensions().end());
  extents.back() = columns;
  const Numbers middle = {extents.data(), extents.size()};
  JAXDML_EXPECT(columns > 0 && is_shape(middle), "the first product has no columns, or too many");
  const LeftOperand left = {a, a_scale, a_zero_point};
  const RightOperand first = {b, b_scale, b_zero_point, b_bias, b_is_packed};
  const RightOperand second = {c, c_scale, c_zero_point, c_bias, c_is_packed};
  const Output output = {y_scale, y_zero_point};
  const Quantizer by = {is_by_rows, by_scale, by_zero_point, left_scale, left_zero_point};
  JAXDML_RETURN_IF_WRONG(check_left(left, middle));
  const int64_t depth = a.dimensions().back();
  JAXDML_RETURN_IF_WRONG(check_right(kernels, first, middle, ffi::DataType::F32, depth));
  JAXDML_RETURN_IF_WRONG(check_right(kernels, second, y, y.element_type(), columns));
  JAXDML_RETURN_IF_WRONG(check_output(output, y));
  if (!is_by_rows) JAXDML_RETURN_IF_WRONG(check_quantizer(by, y));
  std::vector<RowArgument> arguments;
  JAXDML_RETURN_IF_WRONG(read_arguments(given, arguments));
  JAXDML_EXPECT(place >= 0 && size_t(place) <= arguments.size(), "the program has no operand for the first product");
  arguments.insert(arguments.begin() + place, {middle, ffi::DataType::F32, nullptr});
  RowCall rows;
  JAXDML_RETURN_IF_WRONG(read_operands(arguments, middle, columns, operands, rows));
  if (!y.element_count()) return ffi::Error::Success();
  JAXDML_RETURN_IF_WRONG(read_program(program, results, rows));
  JAXDML_EXPECT(rows.results.size() == 1 && rows.results[0].is_wide,
                "the program has no result for the second product");
  return run({kernels, left, first, second, output, by, middle, y, type_of(y), depth, size_t(place), rows,
              static_cast<uint8_t*>(y.untyped_data())},
             threads);
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_chained, chained,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // a, its scale and zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // the matrix of the first product, its scale and zero point, and the bias
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // the quantizer's scale and zero point, then those of the second product's operand
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // the matrix of the second product, its scale and zero point, and the bias
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // scale and zero point of the second product
                   .Arg<Buffer>()
                   .RemainingArgs()
                   .Ret<Buffer>()
                   .Attr<bool>("b_is_packed")
                   .Attr<bool>("c_is_packed")
                   .Attr<int64_t>("columns")
                   .Attr<bool>("is_by_rows")
                   .Attr<Numbers>("operands")
                   .Attr<int64_t>("place")
                   .Attr<Numbers>("program")
                   .Attr<Numbers>("results"))

}  // namespace jaxdml
