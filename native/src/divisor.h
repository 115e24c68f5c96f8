// Quotients by a scale, and their rounding to integers.
//
// x / scale must be rounded once. A division rounds once, but is slow. Multiplying by the reciprocal and correcting the
// result by its residual (Markstein) gives the same float if scale and dividend are far from the ends of float32's
// range and the scale's significand is not all ones.
#pragma once

#include "epilogue.h"

namespace jaxdml::JAXDML_ISA {

// The reciprocal needs a bounded dividend, so x is clamped to kMostSteps * scale. Beyond that, the quotient exceeds all
// integers of 16 bits by more than any zero point.
constexpr float kMostSteps = 0x1p18f;

struct Divisor {
  F32 value, reciprocal;
  bool is_exact_by_reciprocal;
};

// Dividends must have a magnitude of at most max(largest, kMostSteps * |scale|).
JAXDML_INLINE Divisor divisor_of(float scale, float largest) {
  uint32_t bits;
  memcpy(&bits, &scale, 4);
  const float magnitude = scale < 0 ? -scale : scale;
  const bool is_middling = magnitude > 0x1p-40f && magnitude < 0x1p40f && largest < 0x1p40f;
  return {splat(scale), splat(1.0f / scale), is_middling && (bits & 0x7fffff) != 0x7fffff};
}

template <bool kByReciprocal>
JAXDML_INLINE F32 quotient(F32 x, const Divisor& by) {
  if (!kByReciprocal) return x / by.value;
  const F32 near = x * by.reciprocal;
  return multiply_add(subtract_product(x, near, by.value), by.reciprocal, near);
}

template <bool kMayBeLarge>
JAXDML_INLINE void put_bytes(uint8_t* to, const F32 (&x)[4], const Output& output, int64_t count) {
  if (count == kBytes) return store_saturated<kMayBeLarge>(to, x, output);
  uint8_t copy[kBytes];
  store_saturated<kMayBeLarge>(copy, x, output);
  memcpy(to, copy, size_t(count));
}

// The quotients of numbers by the divisor, or what rounds to the same integers of 8 or 16 bits.
struct Steps {
  Divisor by;
  F32 limit;
};
JAXDML_INLINE Steps steps_of(float scale) {
  const float far = scale * kMostSteps;
  return {divisor_of(scale, 0), splat(far < 0 ? -far : far)};
}
template <bool kByReciprocal>
JAXDML_INLINE F32 steps(F32 x, const Steps& of) {
  // lesser and greater give NaN if the second operand is NaN, so the clamp preserves NaN.
  return quotient<kByReciprocal>(kByReciprocal ? lesser(of.limit, greater(-of.limit, x)) : x, of.by);
}

}  // namespace jaxdml::JAXDML_ISA
