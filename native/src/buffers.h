// Reads and validates the buffers of a call: types, shapes, and the address of each problem's elements.
#pragma once

#include <cstring>
#include <string>

#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace jaxdml {

namespace ffi = xla::ffi;

inline ffi::Error invalid(const std::string& what) { return ffi::Error::InvalidArgument("jaxdml_cpu: " + what); }
inline ffi::Error not_packed(const std::string& name) {
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                    "jaxdml_cpu: the prepared " + name +
                        " was packed by other kernels or for another platform, or an " +
                        "array in it was changed: prepare the weights in its attribute `array` again");
}
inline ffi::Error no_memory() {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jaxdml_cpu: no memory for scratch");
}

#define JAXDML_EXPECT(condition, what) \
  if (!(condition)) return invalid(what)

#define JAXDML_RETURN_IF_WRONG(check) \
  if (ffi::Error error = check; error.failure()) return error

inline bool is_byte(ffi::AnyBuffer x) {
  return x.element_type() == ffi::DataType::S8 || x.element_type() == ffi::DataType::U8;
}
inline bool is_signed(ffi::AnyBuffer x) { return x.element_type() == ffi::DataType::S8; }
inline bool is_type(ffi::AnyBuffer x) { return is_byte(x) || x.element_type() == ffi::DataType::S32; }
inline Type type_of(ffi::AnyBuffer x) {
  if (x.element_type() == ffi::DataType::S32) return Type::kInt32;
  return is_signed(x) ? Type::kInt8 : Type::kUint8;
}

inline int64_t product(ffi::AnyBuffer::Dimensions dims, size_t from, size_t until) {
  int64_t total = 1;
  for (size_t i = from; i < until; i++) total *= dims[i];
  return total;
}

// Returns x * y, or -1 if a factor is negative or the product needs more than 62 bits.
inline int64_t checked_product(int64_t x, int64_t y) {
  int64_t total;
  if (x < 0 || y < 0 || __builtin_mul_overflow(x, y, &total) || total >> 62) return -1;
  return total;
}

// Whether each of the operand's `count` leading dimensions is 1 or equals the output's.
inline bool leads(ffi::AnyBuffer x, ffi::AnyBuffer y, size_t count, size_t rank) {
  const auto dims = x.dimensions(), wanted = y.dimensions();
  if (dims.size() != rank) return false;
  for (size_t i = 0; i < count; i++)
    if (dims[i] != wanted[i] && dims[i] != 1) return false;
  return true;
}

// The operand's elements for one problem. `problem` is its row-major index into the output's leading dimensions.
inline uint8_t* at_problem(ffi::AnyBuffer x, ffi::AnyBuffer y, size_t count, int64_t problem) {
  const auto dims = x.dimensions(), all = y.dimensions();
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
inline Values values(ffi::AnyBuffer x, ffi::AnyBuffer y, size_t count, int64_t problem) {
  const auto dims = x.dimensions();
  return {at_problem(x, y, count, problem), product(dims, count, dims.size()) > 1};
}
inline Scales scales(ffi::AnyBuffer x, ffi::AnyBuffer y, size_t count, int64_t problem) {
  const Values of = values(x, y, count, problem);
  return {reinterpret_cast<const float*>(of.at), of.step};
}
inline ZeroPoints zero_points(ffi::AnyBuffer x, ffi::AnyBuffer y, size_t count, int64_t problem) {
  const Values of = values(x, y, count, problem);
  return {of.at, of.step, is_signed(x)};
}

inline float number(const uint8_t* at) { return *reinterpret_cast<const float*>(at); }
inline int32_t zero_point_number(const uint8_t* at, bool is_signed) { return is_signed ? int8_t(*at) : *at; }

// Whether each dimension of a parameter after the first `count` is 1. Dimension `axis` may be `size` instead.
inline bool is_along(ffi::AnyBuffer x, size_t count, size_t axis, int64_t size) {
  const auto dims = x.dimensions();
  for (size_t i = count; i < dims.size(); i++)
    if (dims[i] != 1 && (i != axis || dims[i] != size)) return false;
  return true;
}

inline bool begins_with(const uint8_t* packed, int32_t mark) { return !std::memcmp(packed, &mark, 4); }

}  // namespace jaxdml
