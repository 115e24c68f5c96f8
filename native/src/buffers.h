// Reads and validates the buffers of a call: types, shapes, and the address of each problem's elements.
#pragma once

#include <cstring>
#include <string>

#include "kernels.h"
#include "size.h"
#include "xla/ffi/api/ffi.h"

namespace jaxdml {

namespace ffi = xla::ffi;
using Numbers = ffi::Span<const int64_t>;  // extents, or an option's numbers

inline ffi::Error invalid(const std::string& what) { return ffi::Error::InvalidArgument("jaxdml_cpu: " + what); }
inline ffi::Error not_packed(const std::string& name) {
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                    "jaxdml_cpu: the prepared " + name +
                        " is not as these kernels packed it: if a function changed it, apply the function to the " +
                        "attribute `array`, and prepare the result; if it was packed for other kernels or another " +
                        "platform, prepare the attribute `array` again");
}
inline ffi::Error no_memory() {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jaxdml_cpu: no memory for scratch");
}

#define JAXDML_EXPECT(condition, what) \
  if (!(condition)) return invalid(what)

#define JAXDML_RETURN_IF_WRONG(check) \
  if (ffi::Error error = check; error.failure()) return error

// The limit on the elements of a shape. No machine has this much memory, and below it no arithmetic on one shape
// overflows: neither a product of extents, nor the size of a packed or padded form, nor the scratch of all threads.
constexpr Size kMostElements = int64_t(1) << 46;

// Whether no extent is negative (see size.h), and the product of the extents other than 0 is below the limit. Zeros are
// skipped, because products of an empty array's other extents could still overflow.
inline bool is_shape(Numbers extents) {
  Size total = 1;
  for (const int64_t extent : extents) total = total * (extent == 0 ? 1 : extent);
  return total < kMostElements;
}

inline bool is_byte(ffi::AnyBuffer x) {
  return x.element_type() == ffi::DataType::S8 || x.element_type() == ffi::DataType::U8;
}
inline bool is_word(ffi::AnyBuffer x) {
  return x.element_type() == ffi::DataType::S16 || x.element_type() == ffi::DataType::U16;
}
inline bool is_signed(ffi::AnyBuffer x) {
  return x.element_type() == ffi::DataType::S8 || x.element_type() == ffi::DataType::S16;
}
inline bool is_type(ffi::AnyBuffer x) { return is_byte(x) || x.element_type() == ffi::DataType::S32; }
inline Type type_of(ffi::DataType type) {
  if (type == ffi::DataType::S32) return Type::kInt32;
  if (type == ffi::DataType::F32) return Type::kFloat32;
  return type == ffi::DataType::S8 ? Type::kInt8 : Type::kUint8;
}
inline Type type_of(ffi::AnyBuffer x) { return type_of(x.element_type()); }

inline int64_t product(Numbers dims, size_t from, size_t until) {
  int64_t total = 1;
  for (size_t i = from; i < until; i++) total *= dims[i];
  return total;
}

// The extents of a buffer, or of an intermediate result that has no buffer.
struct Shape {
  Shape(Numbers all) : extents(all) {}
  Shape(ffi::AnyBuffer x) : extents(x.dimensions()) {}
  Numbers extents;
};

// Whether x has `rank` dimensions, y has at least `count`, and each of x's first `count` is 1 or equals y's.
inline bool leads(Shape x, Shape y, size_t count, size_t rank) {
  const Numbers dims = x.extents, wanted = y.extents;
  if (dims.size() != rank || rank < count || wanted.size() < count) return false;
  for (size_t i = 0; i < count; i++)
    if (dims[i] != wanted[i] && dims[i] != 1) return false;
  return true;
}

// The operand's elements for one problem. `problem` is its row-major index into the output's leading dimensions.
inline uint8_t* at_problem(ffi::AnyBuffer x, Shape y, size_t count, int64_t problem) {
  const Numbers dims = x.dimensions(), all = y.extents;
  int64_t step = product(dims, count, dims.size()), offset = 0;
  for (size_t i = count; i-- > 0;) {
    const int64_t digit = problem % all[i];
    problem /= all[i];
    if (dims[i] != 1) offset += digit * step;
    step *= dims[i];
  }
  return static_cast<uint8_t*>(x.untyped_data()) + offset * int64_t(ffi::ByteWidth(x.element_type()));
}

struct Values {  // the scales or zero points of one problem
  uint8_t* at;
  int64_t step;
};
inline Values values(ffi::AnyBuffer x, Shape y, size_t count, int64_t problem) {
  const auto dims = x.dimensions();
  return {at_problem(x, y, count, problem), product(dims, count, dims.size()) > 1};
}
inline Scales scales(ffi::AnyBuffer x, Shape y, size_t count, int64_t problem) {
  const Values of = values(x, y, count, problem);
  return {reinterpret_cast<const float*>(of.at), of.step};
}
inline ZeroPoints zero_points(ffi::AnyBuffer x, Shape y, size_t count, int64_t problem) {
  const Values of = values(x, y, count, problem);
  return {of.at, of.step, is_signed(x)};
}

// Whether each dimension of a parameter after the first `count` is 1. Dimension `axis` may be `size` instead.
inline bool is_along(ffi::AnyBuffer x, size_t count, size_t axis, int64_t size) {
  const auto dims = x.dimensions();
  for (size_t i = count; i < dims.size(); i++)
    if (dims[i] != 1 && (i != axis || dims[i] != size)) return false;
  return true;
}

// Reads a filter's shape [outputs, channels of a group, rows, columns].
inline ffi::Error read_filter(Numbers shape, int64_t groups, Filter& filter) {
  JAXDML_EXPECT(shape.size() == 4 && groups > 0, "a filter needs four dimensions and at least one group");
  for (const int64_t extent : shape) JAXDML_EXPECT(extent > 0, "a filter has no elements");
  JAXDML_EXPECT(is_shape(shape) && shape[0] % groups == 0,
                "a filter is too large, or its outputs are not divisible by the groups");
  filter = {shape[0], shape[1], shape[2], shape[3], groups, false};
  return ffi::Error::Success();
}

// The size of a packed matrix in bytes; invalid if the shape is invalid. In a call, depth and columns come from two
// buffers, so no other check bounds their product.
inline Size matrix_bytes(const Kernels& kernels, int64_t depth, int64_t columns) {
  const int64_t shape[2] = {depth, columns};
  return is_shape({shape, 2}) ? kernels.matrix_bytes(depth, columns) : -1;
}

}  // namespace jaxdml
