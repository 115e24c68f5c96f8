// The handler of LSTM with 8-bit weights.
#include <vector>

#include "handler.h"
#include "scratch.h"
#include "seal.h"
#include "threads.h"

namespace jaxdml {
namespace {

constexpr int64_t kUnitWork = 256;  // multiplications that take as long as the gates of a unit

// All buffers but y begin with the leading dimensions and the directions; an operand may have 1 in place of each. In y,
// the steps come before the directions.
ffi::Error lstm(const Kernels& kernels, ffi::ThreadPool threads, Buffer gates, Buffer lengths, Buffer h, Buffer c,
                Buffer bias, Buffer peephole, Buffer weights, Buffer scale, Buffer zero_point,
                ffi::Result<Buffer> result, ffi::Result<Buffer> result_h, ffi::Result<Buffer> result_c,
                Numbers backward, float clip, bool couples_forget, bool is_packed) {
  const Buffer y = *result, last_h = *result_h, last_c = *result_c;
  const Numbers of_last = last_h.dimensions(), of_y = y.dimensions();
  JAXDML_EXPECT(of_last.size() >= 3, "the last hidden states have fewer than three dimensions");
  const size_t leading = of_last.size() - 2;  // includes the directions
  for (const Buffer& x : {lengths, bias, peephole})
    JAXDML_EXPECT(leads(x, last_h, leading, leading + 1), "an operand's leading dimensions differ from the result's");
  for (const Buffer& x : {h, c, weights, scale, zero_point, last_c})
    JAXDML_EXPECT(leads(x, last_h, leading, leading + 2), "an operand's leading dimensions differ from the result's");
  JAXDML_EXPECT(leads(gates, last_h, leading, leading + 3), "the gates' leading dimensions differ from the result's");
  for (const Buffer& x : {gates, h, c, bias, peephole, scale, y, last_h, last_c})
    JAXDML_EXPECT(x.element_type() == ffi::DataType::F32, "an array is not float32");
  JAXDML_EXPECT(lengths.element_type() == ffi::DataType::S32, "the lengths are not int32");
  const int64_t directions = of_last[leading - 1], batch = of_last[leading], units = of_last[leading + 1];
  const int64_t steps = gates.dimensions()[leading], columns = gates.dimensions()[leading + 2];
  JAXDML_EXPECT(steps && directions && batch && units, "there are no steps, directions, items or units");
  const auto has_shape = [&](Buffer x, std::initializer_list<int64_t> wanted) {
    const Numbers dims = x.dimensions();
    size_t i = leading;
    for (const int64_t size : wanted)
      if (dims[i++] != size) return false;
    return true;
  };
  JAXDML_EXPECT(Size(units) * 4 == columns && has_shape(gates, {steps, batch, columns}),
                "the gates' shape does not match the result's");
  JAXDML_EXPECT(has_shape(lengths, {batch}) && has_shape(bias, {columns}),
                "the lengths or the bias have the wrong size");
  for (const Buffer& x : {h, c}) JAXDML_EXPECT(has_shape(x, {batch, units}), "the states' shape is not the result's");
  const bool has_peephole = !has_shape(peephole, {0});
  JAXDML_EXPECT(!has_peephole || has_shape(peephole, {3 * units}), "the peephole needs three elements for each unit");
  for (const Buffer& x : {scale, zero_point})
    JAXDML_EXPECT(has_shape(x, {1, 1}) || has_shape(x, {1, columns}),
                  "a parameter of the weights needs one element, or one per column");
  JAXDML_EXPECT(is_byte(zero_point), "the zero point is not int8 or uint8");
  const Size packed_bytes = matrix_bytes(kernels, units, columns);
  if (is_packed) {
    JAXDML_EXPECT(weights.element_type() == ffi::DataType::S8 && packed_bytes == weights.dimensions()[leading + 1] &&
                      weights.dimensions()[leading] == 1,
                  "the weights were packed for another shape");
  } else {
    JAXDML_EXPECT(is_byte(weights) && is_signed(weights) == is_signed(zero_point),
                  "the weights' type differs from their zero point's");
    JAXDML_EXPECT(has_shape(weights, {units, columns}), "the weights' shape does not match the result's");
  }
  // y has the dimensions of the last states, and the steps before the directions.
  bool is_y = of_y.size() == of_last.size() + 1 && of_y[leading - 1] == steps;
  for (size_t i = 0; i < of_last.size() && is_y; i++) is_y = of_y[i + (i >= leading - 1)] == of_last[i];
  for (size_t i = 0; i < of_last.size(); i++) is_y = is_y && last_c.dimensions()[i] == of_last[i];
  JAXDML_EXPECT(is_y, "the shapes of the results do not match");
  JAXDML_EXPECT(int64_t(backward.size()) == directions, "the orders of steps are not those of the directions");
  const int64_t count = product(of_last, 0, leading);
  if (!count) return ffi::Error::Success();
  const Size work = Size(count) * steps * batch * columns * (Size(units) + kUnitWork);
  JAXDML_EXPECT(work.is_size(), "the LSTM needs too many multiplications");

  const FloatMode mode;
  const Pool pool = pool_of(threads, work.number() / kernels.pace);
  const int64_t matrices = is_packed ? 0 : product(weights.dimensions(), 0, leading), size = units * columns;
  const Scratch packed(Size(matrices) * packed_bytes);
  if (!packed.is_there()) return no_memory();
  const uint8_t* const all_weights = static_cast<const uint8_t*>(weights.untyped_data());
  const auto packed_at = [&](int64_t matrix) { return packed.at() + matrix * packed_bytes.number(); };
  for (int64_t i = 0; i < matrices; i++)
    kernels.pack_matrix(pool, all_weights + i * size, is_signed(weights), units, columns, packed_at(i));
  std::vector<Lstm> problems;
  for (int64_t i = 0; i < count; i++) {
    const auto at = [&](Buffer x) { return reinterpret_cast<float*>(at_problem(x, last_h, leading, i)); };
    const uint8_t* of_weights = at_problem(weights, last_h, leading, i);
    if (is_packed && !is_sealed(of_weights, packed_bytes.number(), kernels.matrix_mark)) return not_packed("R");
    if (matrices) of_weights = packed_at(size ? (of_weights - all_weights) / size : 0);
    const int64_t direction = i % directions, first = (i / directions * steps * directions + direction) * batch * units;
    problems.push_back({steps, batch, units, backward[size_t(direction)] != 0, couples_forget, clip, at(gates),
                        reinterpret_cast<const int32_t*>(at(lengths)), at(h), at(c), at(bias),
                        has_peephole ? at(peephole) : nullptr, of_weights, scales(scale, last_h, leading, i),
                        zero_points(zero_point, last_h, leading, i), static_cast<float*>(y.untyped_data()) + first,
                        directions * batch * units, at(last_h), at(last_c)});
  }
  const Scratch scratch(kernels.lstm_scratch(problems[0], pool.threads));
  if (!scratch.is_there()) return no_memory();
  kernels.lstm(pool, problems.data(), count, scratch.at());
  return ffi::Error::Success();
}

}  // namespace

JAXDML_HANDLER(jaxdml_cpu_lstm, lstm,
               ffi::Ffi::Bind()
                   .Ctx<ffi::ThreadPool>()
                   .Arg<Buffer>()  // gates, lengths
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // h, c
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // bias, and peephole, which may be empty
                   .Arg<Buffer>()
                   .Arg<Buffer>()  // weights, their scale and zero point
                   .Arg<Buffer>()
                   .Arg<Buffer>()
                   .Ret<Buffer>()  // y, last_h, last_c
                   .Ret<Buffer>()
                   .Ret<Buffer>()
                   .Attr<Numbers>("backward")
                   .Attr<float>("clip")
                   .Attr<bool>("couples_forget")
                   .Attr<bool>("is_packed"))

}  // namespace jaxdml
