// Validates the operands of matrix products, and reads the problems of a call.
#pragma once

#include "handler.h"

namespace jaxdml {

// The rows that a product multiplies: a, its scale and its zero point. Arrays have the product's leading dimensions.
struct LeftOperand {
  Buffer a, scale, zero_point;
};
// The matrix by which a product multiplies, and the bias.
struct RightOperand {
  Buffer b, scale, zero_point, bias;
  bool is_packed;
};
// The product's scale and zero point, which products in int32 and in floats do not read.
struct Output {
  Buffer scale, zero_point;
};

// The work of `count` products, in multiplications. Each weight that is read counts as 8 more, because products of few
// rows are limited by reading the weights; a product in a loop finds them in the caches.
inline Size work_of_products(int64_t count, int64_t rows, int64_t depth, int64_t columns, bool is_in_loop = false) {
  return Size(count) * columns * depth * (Size(rows) + (is_in_loop ? 0 : 8));
}

// Whether x is a parameter with one element, or with one for each row.
inline bool is_of_rows(Buffer x, Shape y, int64_t rows) {
  const size_t rank = y.extents.size(), leading = rank - 2;
  return leads(x, y, leading, rank) && is_along(x, leading, leading, rows);
}

inline ffi::Error check_left(const LeftOperand& of, Shape y) {
  const size_t rank = y.extents.size(), leading = rank - 2;
  const int64_t rows = y.extents[leading];
  JAXDML_EXPECT(leads(of.a, y, leading, rank) && is_byte(of.a) && of.a.dimensions()[leading] == rows,
                "a is not int8 or uint8, or its rows or leading dimensions differ from the product's");
  JAXDML_EXPECT(of.scale.element_type() == ffi::DataType::F32 && is_byte(of.zero_point),
                "a's scale is not float32, or its zero point is not int8 or uint8");
  JAXDML_EXPECT(is_of_rows(of.scale, y, rows) && is_of_rows(of.zero_point, y, rows),
                "a parameter of matrix a needs one element, or one per row");
  JAXDML_EXPECT(is_signed(of.a) == is_signed(of.zero_point), "a and its zero point differ in type");
  return ffi::Error::Success();
}

inline ffi::Error check_output(const Output& of, Shape y) {
  JAXDML_EXPECT(of.scale.element_type() == ffi::DataType::F32 && is_byte(of.zero_point),
                "the product's scale is not float32, or its zero point is not int8 or uint8");
  const int64_t rows = y.extents[y.extents.size() - 2];
  JAXDML_EXPECT(is_of_rows(of.scale, y, rows) && is_of_rows(of.zero_point, y, rows),
                "a parameter of the product needs one element, or one per row");
  return ffi::Error::Success();
}

// y is the shape of the product, and depth the number of columns of a.
inline ffi::Error check_right(const Kernels& kernels, const RightOperand& of, Shape y, ffi::DataType type,
                              int64_t depth) {
  const size_t rank = y.extents.size(), leading = rank - 2;
  const int64_t columns = y.extents[leading + 1];
  for (const Buffer& x : {of.b, of.scale, of.zero_point})
    JAXDML_EXPECT(leads(x, y, leading, rank), "an operand's leading dimensions differ from the product's");
  JAXDML_EXPECT(of.scale.element_type() == ffi::DataType::F32 && is_byte(of.zero_point),
                "b's scale is not float32, or its zero point is not int8 or uint8");
  for (const Buffer& x : {of.scale, of.zero_point})
    JAXDML_EXPECT(is_along(x, leading, leading + 1, columns), "a parameter of b needs one element, or one per column");
  JAXDML_EXPECT(
      of.bias.element_type() == (type == ffi::DataType::F32 ? ffi::DataType::F32 : ffi::DataType::S32) &&
          leads(of.bias, y, leading, leading + 1),
      "the bias is not int32, or float32 if the product is, or its leading dimensions differ from the product's");
  const int64_t biases = of.bias.dimensions()[leading];
  JAXDML_EXPECT(biases == columns || biases == 0, "the bias needs one element per column");
  const auto of_b = of.b.dimensions();
  if (of.is_packed) {
    JAXDML_EXPECT(of.b.element_type() == ffi::DataType::S8 && of_b[leading] == 1 &&
                      matrix_bytes(kernels, depth, columns) == of_b[leading + 1],
                  "b was packed for another shape");
  } else {
    JAXDML_EXPECT(is_byte(of.b) && is_signed(of.b) == is_signed(of.zero_point) && of_b[leading] == depth &&
                      of_b[leading + 1] == columns,
                  "b's type differs from its zero point's, or its shape does not match a and the product");
  }
  return ffi::Error::Success();
}

// One problem of a checked call. The caller sets a and its parameters, a packed or raw b, and y and its parameters.
inline Matmul right_of(const RightOperand& of, Shape y, Type type, int64_t depth, int64_t problem) {
  const size_t leading = y.extents.size() - 2;
  Matmul one = {};
  one.rows = y.extents[leading];
  one.depth = depth;
  one.columns = y.extents[leading + 1];
  one.b_scale = scales(of.scale, y, leading, problem);
  one.b_zero_point = zero_points(of.zero_point, y, leading, problem);
  if (of.bias.dimensions()[leading] == one.columns)
    one.bias = reinterpret_cast<const int32_t*>(at_problem(of.bias, y, leading, problem));
  one.type = type;
  return one;
}

inline void set_left(const LeftOperand& of, Shape y, int64_t problem, Matmul& one) {
  const size_t leading = y.extents.size() - 2;
  one.a = at_problem(of.a, y, leading, problem);
  one.a_scale = scales(of.scale, y, leading, problem);
  one.a_zero_point = zero_points(of.zero_point, y, leading, problem);
}

inline void set_output(const Output& of, Shape y, int64_t problem, Matmul& one) {
  const size_t leading = y.extents.size() - 2;
  one.y_scale = scales(of.scale, y, leading, problem);
  one.y_zero_point = zero_points(of.zero_point, y, leading, problem);
}

}  // namespace jaxdml
