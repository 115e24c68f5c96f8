// From int32 sums to the output's bytes: float32(sum) * multiplier, rounded, ties to even, plus zero point, clamped.
//
// Floats are computed with the processor's flush-to-zero modes on, which is the library's rule for subnormals.
#pragma once

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// Bounds are whole numbers, so that clamping before the zero point is added clamps the same values.
struct Output {
  F32 low, high;
  I32 zero_point;
};

JAXDML_INLINE Output output_of(int32_t zero_point, bool is_signed) {
  const int32_t lowest = is_signed ? -128 : 0;
  return {splat(float(lowest - zero_point)), splat(float(lowest + 255 - zero_point)), splat(zero_point)};
}

// NaN gives the lowest value.
JAXDML_INLINE I32 saturated(F32 x, const Output& output) {
  return rounded(lesser(greater(x, output.low), output.high)) + output.zero_point;
}

JAXDML_INLINE I32 requantized(I32 sum, F32 multiplier, const Output& output) {
  return saturated(floats(sum) * multiplier, output);
}

}  // namespace jaxdml::JAXDML_ISA
