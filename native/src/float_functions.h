// Functions of float32 by the rules of docs/exact_rules.md: each operation rounds once, and none is contracted.
//
// The processor's mode flushes subnormals. If a product, rounded to 24 bits with an unbounded exponent, is below the
// smallest normal number, it becomes a zero of the same sign: x86 detects underflow after rounding. For quotients,
// detection before rounding gives the same results: none is close enough to the smallest normal number.
#pragma once

#include "bytes.h"

namespace jaxdml::JAXDML_ISA {

constexpr int32_t kSign = INT32_MIN, kMagnitude = INT32_MAX, kInfinity = 0x7f800000, kSmallestNormal = 0x00800000;

JAXDML_INLINE F32 magnitude(F32 x) { return (F32)((I32)x & splat(kMagnitude)); }
JAXDML_INLINE F32 with_sign(F32 size, F32 x) { return (F32)((I32)size | ((I32)x & splat(kSign))); }
JAXDML_INLINE F32 nan_where(I32 is_nan, F32 x) { return is_nan ? splat(__builtin_nanf("")) : x; }
JAXDML_INLINE I32 at_exponent(I32 exponent) { return (I32)((U32)exponent << 23); }
JAXDML_INLINE F32 power_of_two(I32 exponent) { return (F32)at_exponent(exponent + 127); }
JAXDML_INLINE F32 scaled_by(F32 x, F32 exponent) { return (F32)add((I32)x, at_exponent(rounded(exponent))); }
JAXDML_INLINE F32 flushed(F32 x) {
  const I32 size = (I32)x & splat(kMagnitude);
  return (F32)(size < splat(kSmallestNormal) ? (I32)x & splat(kSign) : (I32)x);
}

// Arithmetic ----------------------------------------------------------------------------------------------------------

// x, or +0 where x is a zero.
JAXDML_INLINE F32 without_zero_signs(F32 x) { return x + splat(0.0f); }

// Maps the bits of floats to integers in the same order, with -0 < +0. The function is its own inverse.
JAXDML_INLINE I32 turned(I32 bits) { return bits ^ ((bits >> 31) & splat(kMagnitude)); }
JAXDML_INLINE F32 larger(F32 x, F32 y) {
  return nan_where((x != x) | (y != y), (F32)turned(greater(turned((I32)x), turned((I32)y))));
}
JAXDML_INLINE F32 smaller(F32 x, F32 y) {
  return nan_where((x != x) | (y != y), (F32)turned(lesser(turned((I32)x), turned((I32)y))));
}
JAXDML_INLINE F32 sign_of(F32 x) { return ((x == splat(0.0f)) | (x != x)) ? x : with_sign(splat(1.0f), x); }

// Pairs ---------------------------------------------------------------------------------------------------------------

// A float and a much smaller float, the rounding error of the first.
struct Pair {
  F32 upper, lower;
};
// Exact where |x| >= |y| or x is 0.
JAXDML_INLINE Pair fast_sum(F32 x, F32 y) {
  const F32 total = x + y;
  return {total, y - (total - x)};
}
JAXDML_INLINE Pair exact_sum(F32 x, F32 y) {
  const F32 total = x + y, back = total - x;
  return {total, (x - (total - back)) + (y - back)};
}
JAXDML_INLINE Pair halves(F32 x) {
  const F32 upper = (F32)((I32)x & splat(-(1 << 12)));
  return {upper, x - upper};
}
template <int N>
JAXDML_INLINE F32 horner(const float (&coefficients)[N], F32 x) {
  F32 y = splat(coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < N; i++) y = y * x + splat(coefficients[i]);
  return y;
}

// Exponentials --------------------------------------------------------------------------------------------------------

constexpr float kLn2Upper = 0.693145751953125f, kLn2Lower = 1.4286197256296873e-06f;
constexpr float kLowest = -87.33654f, kHighest = 88.72283f;  // exp is normal between them
constexpr float kExp[] = {0.0013950539287179708f, 0.008368918672204018f, 0.04166620597243309f, 0.166665181517601f,
                          0.5f};
constexpr float kTanh[] = {-0.006179809104651213f, 0.021007457748055458f, -0.053837429732084274f, 0.1333245187997818f,
                           -0.3333331346511841f};

// x = n * ln 2 + r; n is computed from `near`, a number near x.
struct Reduced {
  F32 n;
  Pair r;
};
JAXDML_INLINE Reduced reduced(F32 x, F32 near) {
  const F32 n = nearest(near * splat(1.44269504f)), lower = n * splat(kLn2Lower);
  const F32 upper = x - n * splat(kLn2Upper), r = upper - lower;
  return {n, {r, (upper - r) - lower}};
}
// e**r - 1.
JAXDML_INLINE Pair grown(const Pair& r) {
  return fast_sum(r.upper, horner(kExp, r.upper) * (r.upper * r.upper) + r.lower);
}
JAXDML_INLINE Pair one_more(const Pair& p) {
  const Pair sum = fast_sum(splat(1.0f), p.upper);
  return {sum.upper, sum.lower + p.lower};
}
JAXDML_INLINE F32 clamped(float low, F32 x, float high) { return lesser(greater(x, splat(low)), splat(high)); }
JAXDML_INLINE F32 in_range(F32 y, F32 x, float lowest, float highest) {
  y = x > splat(highest) ? splat(__builtin_inff()) : y;
  return nan_where(x != x, x < splat(lowest) ? splat(0.0f) : y);
}

JAXDML_INLINE F32 exp(F32 x) {
  const F32 near = clamped(kLowest, x, kHighest);
  const Reduced by = reduced(near, near);
  const Pair e = one_more(grown(by.r));
  return in_range(scaled_by(e.upper + e.lower, by.n), x, kLowest, kHighest);
}

JAXDML_INLINE F32 exp2(F32 x) {
  constexpr float kFirst = -126, kLast = 127.99999f;
  const F32 near = clamped(kFirst, x, kLast), n = nearest(near);
  const Pair parts = halves(near - n);
  const F32 product = parts.upper * splat(0.693115234375f);
  const F32 rest = parts.upper * splat(3.1946183e-05f) + parts.lower * splat(0.6931472f);
  const Pair e = one_more(grown(fast_sum(product, rest)));
  return in_range(scaled_by(e.upper + e.lower, n), x, kFirst, kLast);
}

JAXDML_INLINE F32 expm1(F32 x) {
  const F32 near = clamped(-18, x, kHighest);
  const Reduced by = reduced(near, near);
  const Pair p = grown(by.r);
  const F32 one_less = splat(1.0f) - power_of_two(-rounded(lesser(by.n, splat(126.0f))));
  const Pair sum = fast_sum(one_less, p.upper);
  const F32 y = magnitude(scaled_by(sum.upper + (sum.lower + p.lower), by.n));
  return nan_where(x != x, x > splat(kHighest) ? splat(__builtin_inff()) : with_sign(y, x));
}

JAXDML_INLINE F32 logistic(F32 x) {
  const F32 near = clamped(kLowest, -magnitude(x), 0), one = splat(1.0f), zero = splat(0.0f);
  const Reduced by = reduced(near, near);
  const Pair e = one_more(grown(by.r));
  const F32 factor = power_of_two(rounded(greater(by.n, splat(-60.0f))));
  Pair divisor = fast_sum(one, e.upper * factor);
  divisor.lower = divisor.lower + e.lower * factor;
  const I32 is_negative = x < zero;
  const F32 inverse = one / divisor.upper;
  const F32 first = (is_negative ? e.upper : one) / divisor.upper;
  const F32 error = (is_negative ? e.lower : zero) - first * divisor.lower;
  const F32 y = first + error * inverse;
  const F32 result = is_negative ? scaled_by(y, by.n) : y;
  return nan_where(x != x, x < splat(kLowest) ? zero : result);
}

JAXDML_INLINE F32 tanh(F32 x) {
  const F32 one = splat(1.0f), edge = splat(0.5625f);
  const F32 size = lesser(magnitude(x), splat(9.5f)), small = lesser(size, edge), square = small * small;
  const F32 near = size + (horner(kTanh, square) * square) * small;
  const Reduced by = reduced(size + size, size + size);
  const Pair e = one_more(grown(by.r));
  const F32 factor = power_of_two(rounded(by.n));
  const Pair divisor = fast_sum(e.upper * factor, one);
  const F32 t = splat(2.0f) / divisor.upper;
  const Pair total = fast_sum(one, -t);
  const F32 rest = (t * (t * splat(0.5f))) * (divisor.lower + e.lower * factor);
  const F32 far = total.upper + (total.lower + rest);
  return nan_where(x != x, with_sign(size < edge ? near : far, x));
}

// Logarithms ----------------------------------------------------------------------------------------------------------

constexpr float kLargest = 3.4028235e38f;
constexpr float kLog[] = {0.0674661248922348f,   -0.11675660312175751f, 0.11888179928064346f,
                          -0.1240558922290802f,  0.14219549298286438f,  -0.1666799634695053f,
                          0.2000211924314499f,   -0.25000008940696716f, 0.3333331346511841f};

// x = (1 + f) * 2**n.
struct Split {
  F32 n, f;
};
JAXDML_INLINE Split split_of(F32 x) {
  const I32 exponent = subtract((I32)x, splat(0x3f3504f3)) >> 23;
  return {floats(exponent), (F32)subtract((I32)x, at_exponent(exponent)) - splat(1.0f)};
}
JAXDML_INLINE F32 logarithm(const Split& x, F32 more) {
  const F32 square = x.f * x.f, cubic = (horner(kLog, x.f) * x.f) * square;
  const F32 rest = ((cubic + x.n * splat(kLn2Lower)) + more) - square * splat(0.5f);
  return (x.f + rest) + x.n * splat(kLn2Upper);
}
// y where x > lowest, -inf where x == lowest, NaN where x is less or NaN, and x where x is inf.
JAXDML_INLINE F32 above(float lowest, F32 x, F32 y) {
  y = x > splat(kLargest) ? x : y;
  y = x > splat(lowest) ? y : splat(__builtin_nanf(""));
  return x == splat(lowest) ? splat(-__builtin_inff()) : y;
}

JAXDML_INLINE F32 log(F32 x) {
  const I32 is_inside = (x > splat(0.0f)) & (x <= splat(kLargest));
  return above(0, x, logarithm(split_of(is_inside ? x : splat(1.0f)), splat(0.0f)));
}

JAXDML_INLINE F32 log1p(F32 x) {
  const I32 is_inside = (x > splat(-1.0f)) & (x <= splat(kLargest));
  const F32 zero = splat(0.0f), inside = is_inside ? x : zero;
  const Pair sum = exact_sum(splat(1.0f), inside);
  Split parts = split_of(sum.upper);
  const I32 is_near = parts.n == zero;
  const F32 more = is_near ? zero : sum.lower / sum.upper;
  parts.f = is_near ? inside : parts.f;
  return above(-1, x, with_sign(magnitude(logarithm(parts, more)), x));
}

// Error function ------------------------------------------------------------------------------------------------------

constexpr float kNear = 0.46875f, kLast = 9.194548606872559f;  // the range of far_erfc
constexpr float kErfNear = 0.875f, kErfLast = 4.0f;             // erf rounds to 1 above kErfLast
constexpr float kErf[] = {-0.000602048123255372f, 0.004998927470296621f, -0.026770485565066338f,
                          0.11281921714544296f,   -0.3761250376701355f,  0.12837915122509003f};
constexpr float kLogErfc[] = {0.00020099460380151868f, -0.003092276630923152f, 0.022420158609747887f,
                              -0.10432738810777664f,   -0.6367373466491699f,   -1.1279361248016357f,
                              -0.00013353305985219777f};
constexpr float kCenter = 0.1875f, kSlope = 1.283203125f, kSlopeRest = 4.285782324586762e-06f;
constexpr float kLastG = 0.16248995065689087f, kLastGRest = 1.0255090998612104e-08f;
constexpr float kG[] = {-38.99070739746094f, 26.01943016052246f, 8.420798301696777f, -9.22256851196289f,
                        -4.677236557006836f, 2.862753391265869f, 4.560981750488281f, 2.957573890686035f};

// erfc of a magnitude from kNear to kLast, as `of` times 2**n.
struct Far {
  F32 n;
  Pair of;
};
JAXDML_INLINE Far far_erfc(F32 size) {
  const F32 one = splat(1.0f);
  const Pair parts = halves(size);
  const F32 square = parts.upper * parts.upper, more = parts.lower * (size + parts.upper);
  const Reduced by = reduced(-square, -(square + more));
  const Pair e = one_more(grown(fast_sum(by.r.upper, by.r.lower - more))), e_parts = halves(e.upper);
  // u + w = 1 / (size + 2), where u has 12 bits. The first sum is exact: 2 is a multiple of its last bit.
  const Pair divisor = fast_sum(splat(2.0f), size), d = halves(divisor.upper);
  const F32 u = halves(one / divisor.upper).upper;
  const F32 rest = ((one - u * d.upper) - u * d.lower) - u * divisor.lower, w = (rest * rest + rest) * u;
  const F32 v_upper = u - splat(kCenter), v = v_upper + w;
  const Pair line = fast_sum(splat(kLastG), v_upper * splat(kSlope));
  const Pair g = fast_sum(line.upper, (horner(kG, v) * v + splat(kSlopeRest)) * v + w * splat(kSlope));
  const Pair g_parts = halves(g.upper);
  const F32 g_lower = g_parts.lower + (g.lower + (line.lower + splat(kLastGRest)));
  return {by.n, {e_parts.upper * g_parts.upper,
                 (e_parts.lower * g_parts.upper + e.upper * g_lower) + e.lower * g_parts.upper}};
}
JAXDML_INLINE F32 below(float base, const Far& y) {
  const F32 factor = power_of_two(rounded(greater(y.n, splat(-60.0f))));
  const Pair sum = fast_sum(splat(base), -(y.of.upper * factor));
  return sum.upper + (sum.lower - y.of.lower * factor);
}

JAXDML_INLINE F32 erf(F32 x) {
  const F32 size = magnitude(x), small = lesser(size, splat(kErfNear)), one = splat(1.0f);
  const I32 is_tiny = small < splat(0x1p-64f);
  F32 near = is_tiny ? small * splat(0x1p64f) : small;
  near = near + horner(kErf, small * small) * near;
  near = is_tiny ? near * splat(0x1p-64f) : near;
  const F32 q = horner(kLogErfc, clamped(kErfNear, size, kErfLast));
  const Reduced by = reduced(q, q);
  const F32 r = by.r.upper, factor = power_of_two(rounded(by.n));
  const F32 far = (one - factor) - (horner(kExp, r) * (r * r) + r) * factor;
  return nan_where(x != x, with_sign(size < splat(kErfNear) ? near : far, x));
}

JAXDML_INLINE F32 erfc(F32 x) {
  const F32 size = magnitude(x), small = with_sign(lesser(size, splat(kNear)), x);
  const Pair sum = fast_sum(splat(1.0f), -small);
  const F32 near = sum.upper + (sum.lower - horner(kErf, small * small) * small);
  const Far y = far_erfc(clamped(kNear, size, kLast));
  const F32 positive = x > splat(kLast) ? splat(0.0f) : scaled_by(y.of.upper + y.of.lower, y.n);
  const F32 far = x < splat(0.0f) ? below(2, y) : positive;
  return nan_where(x != x, size < splat(kNear) ? near : far);
}

// ONNX Runtime's functions --------------------------------------------------------------------------------------------

// Numerators and denominators: polynomials of x**2, computed with fused multiply-adds. For their origin, see
// jaxdml/_quantized/onnxruntime/sigmoids.py.
constexpr float kLogisticAbove[] = {4.37031e-11f, 1.1562732e-07f, 6.085749e-05f, 8.513771e-03f, 2.4828795e-01f};
constexpr float kLogisticBelow[] = {6.1024737e-13f, 5.7610214e-09f, 6.291068e-06f,
                                    1.7019882e-03f, 1.1681765e-01f, 9.931519e-01f};
constexpr float kTanhAbove[] = {-2.7607684e-16f, 2.000188e-13f,  -8.604672e-11f, 5.1222973e-08f,
                                1.48572235e-05f, 6.3726195e-04f, 4.8935246e-03f};
constexpr float kTanhBelow[] = {1.1982584e-06f, 1.1853471e-04f, 2.2684347e-03f, 4.893525e-03f};

template <int N>
JAXDML_INLINE F32 fused_horner(const float (&coefficients)[N], F32 x) {
  F32 y = splat(coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < N; i++) y = multiply_add(y, x, splat(coefficients[i]));
  return y;
}
template <int N, int M>
JAXDML_INLINE F32 ratio(F32 x, float limit, const float (&above)[N], const float (&below)[M]) {
  const F32 near = clamped(-limit, x, limit), square = product(near, near);
  return product(fused_horner(above, square), near) / fused_horner(below, square);
}
JAXDML_INLINE F32 onnxruntime_logistic(F32 x) {
  const F32 y = ratio(x, 18, kLogisticAbove, kLogisticBelow) + splat(0.5f);
  return nan_where(x != x, greater(y, splat(0.0f)));
}
JAXDML_INLINE F32 onnxruntime_tanh(F32 x) { return nan_where(x != x, ratio(x, 9, kTanhAbove, kTanhBelow)); }

}  // namespace jaxdml::JAXDML_ISA
