// Rows of floats rounded to integers, and exact sums of their products. docs/numerics_products.md has the rule.
//
// A float holds an integer, and a double holds a product of integers. Sums of products are at most 2**53, so doubles
// add them exactly, in any order and with or without fused multiply-adds. Longer sums are pairs of doubles.
#pragma once

#include <type_traits>

#include "float_sums.h"

namespace jaxdml::JAXDML_ISA {

// The largest integers of queries and keys, of values and of weights; rounding may exceed them by up to 16.
constexpr int64_t kOfRows = 127 << 20, kOfValues = 127 << 16, kOfWeights = 127 << 18;
constexpr int64_t kHalf = 1 << 15;  // an integer of a query is upper * kHalf + lower
constexpr int64_t kTerms = 32;      // the maximum number of products of weights and values summed in one double
static_assert(kMostAttentionDepth * (kOfRows + 16) * (kHalf / 2) <= int64_t(1) << 53);
static_assert(kTerms * (kOfWeights + 16) * (kOfValues + 16) <= int64_t(1) << 53);

JAXDML_INLINE void store_doubles(double* to, F32 x) {
  store(to, lower_doubles(x));
  store(to + kLanes / 2, upper_doubles(x));
}

JAXDML_INLINE void transpose(F32 (&x)[kLanes]) {
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const F32 a = low_floats(x[i], x[i + 1]), b = high_floats(x[i], x[i + 1]);
    const F32 c = low_floats(x[i + 2], x[i + 3]), d = high_floats(x[i + 2], x[i + 3]);
    x[i] = low_pairs(a, c);
    x[i + 1] = high_pairs(a, c);
    x[i + 2] = low_pairs(b, d);
    x[i + 3] = high_pairs(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) transpose_parts(x, i);
}

// Rounding ------------------------------------------------------------------------------------------------------------

// Loads the first `count` floats, at most a vector; the other lanes are 0.
JAXDML_INLINE F32 load_part(const float* from, int64_t count) {
  if (count >= kLanes) return load_floats(from);
  return (F32)load_bytes(reinterpret_cast<const uint8_t*>(from), count * int64_t(sizeof(float)));
}

// The prefetch distance on the first read of rows: the hardware prefetches from memory too late.
constexpr int64_t kFloatsAhead = 1024;

// The bits of the greatest magnitude, compared as integers: the bits of NaN are above those of infinity.
JAXDML_INLINE int32_t high_bits_of(const float* x, int64_t count) {
  I32 most = splat(0);
  for (int64_t i = 0; i < count; i += kLanes) {
    __builtin_prefetch(x + i + kFloatsAhead, 0, 2);
    most = greater(most, (I32)load_part(x + i, count - i) & splat(kMagnitude));
  }
  return largest_of(most);
}

// How a row is rounded: its integers are x times the inverse, and integers times the scale approximate x. The inverse
// is 0 if all integers of the row are 0.
struct Rounding {
  F32 scale, inverse;
};
JAXDML_INLINE Rounding rounding_of(I32 high_bits, int64_t largest) {
  const F32 most = splat(float(largest)), high = (F32)high_bits, zero = splat(0.0f);
  const I32 is_finite = high_bits < splat(kInfinity);
  const I32 is_live = is_finite & (high >= most * splat(0x1p-126f));
  return {is_live ? high / most : is_finite ? zero : splat(__builtin_nanf("")), is_live ? most / high : zero};
}

// Integers of a row; `inverse` is the same in all lanes.
JAXDML_INLINE F32 integers_of(F32 x, F32 inverse) {
  return (F32)((I32)nearest(x * inverse) & (inverse != splat(0.0f)));  // x may be infinite or NaN
}

// Finds the scales and inverses of `count` rows. In the last vector, lanes past the last row count as rows of zeros.
static void find_roundings(const float* x, int64_t count, int64_t size, int64_t largest, float* scales,
                           float* inverses) {
  for (int64_t first = 0; first < count; first += kLanes) {
    I32 bits = splat(0);
    for (int64_t i = 0; i < at_most(kLanes, count - first); i++) bits[i] = high_bits_of(x + (first + i) * size, size);
    const Rounding by = rounding_of(bits, largest);
    store(scales + first, (I32)by.scale);
    store(inverses + first, (I32)by.inverse);
  }
}

// A panel of `count` rows, at most kLanes, rounded and transposed: to[i][j] is element i of row j, 0 beyond the rows.
static void round_transposed(const float* x, int64_t count, int64_t size, const float* inverses, float* to) {
  for (int64_t first = 0; first < size; first += kLanes) {
    const int64_t some = at_most(kLanes, size - first);
    F32 block[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; j++)
      block[j] = j < count ? integers_of(load_part(x + j * size + first, some), splat(inverses[j])) : splat(0.0f);
    transpose(block);
    for (int64_t i = 0; i < some; i++) store(to + (first + i) * kLanes, (I32)block[i]);
  }
}

// `count` rows, rounded, in panels of kLanes columns: to[panel][row][lane]. A panel has room for kTerms rows.
static void round_in_panels(const float* x, int64_t count, int64_t size, const float* inverses, float* to) {
  for (int64_t row = 0; row < count; row++) {
    const F32 inverse = splat(inverses[row]);
    for (int64_t first = 0; first < size; first += kLanes)
      store(to + first * kTerms + row * kLanes,
            (I32)integers_of(load_part(x + row * size + first, size - first), inverse));
  }
}

// Exact sums ----------------------------------------------------------------------------------------------------------

// Rows of a tile; its sums stay in registers.
constexpr int kSumRows = kRegisters == 32 ? 12 : 6;

// Adds the products of a panel of kLanes columns and rows of `a`, which are `stride` apart.
template <int kRows>
JAXDML_INLINE void add_products(const double* a, int64_t stride, const float* panel, int64_t depth,
                                F64 (&sums)[kRows][2]) {
  for (int64_t k = 0; k < depth; k++, panel += kLanes) {
    const F64 left = doubles(panel), right = doubles(panel + kLanes / 2);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      const F64 x = splat(a[r * stride + k]);
      sums[r][0] = multiply_add(x, left, sums[r][0]);
      sums[r][1] = multiply_add(x, right, sums[r][1]);
    }
  }
}

// The products of a panel and pairs of rows (upper and lower halves): y[pair] = f(f(upper) * kHalf + f(lower)), where f
// rounds to float32. The tile functions are not inlined: GCC would keep the caller's constants in registers, and spill
// sums.
template <int kRows>
__attribute__((noinline)) static void multiply_halves(const double* a, int64_t stride, const float* panel,
                                                      int64_t depth, F32* y) {
  F64 sums[kRows][2] = {};
  add_products(a, stride, panel, depth, sums);
#pragma GCC unroll 6
  for (int r = 0; r < kRows / 2; r++)
    y[r] =
        floats(sums[2 * r][0], sums[2 * r][1]) * splat(float(kHalf)) + floats(sums[2 * r + 1][0], sums[2 * r + 1][1]);
}

// Adds x, an integer up to 2**53, to upper + lower, where `upper` holds multiples of 2**24.
JAXDML_INLINE void add_exactly(F64 x, double* upper, double* lower) {
  const F64 far = splat(0x1.8p76), high = (x + far) - far;
  store(upper, load_doubles(upper) + high);
  store(lower, load_doubles(lower) + (x - high));
}

// Adds the products of kRows rows and a panel to upper + lower, whose rows are `width` apart.
template <int kRows>
__attribute__((noinline)) static void add_tile(const double* a, int64_t stride, const float* panel, int64_t depth,
                                               double* upper, double* lower, int64_t width) {
  F64 sums[kRows][2] = {};
  add_products(a, stride, panel, depth, sums);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
      add_exactly(sums[r][half], upper + r * width + half * (kLanes / 2), lower + r * width + half * (kLanes / 2));
}

// The floats nearest to kLanes sums.
JAXDML_INLINE F32 nearest_totals(const double* upper, const double* lower) {
  float totals[kLanes];
  for (int i = 0; i < kLanes; i++) totals[i] = float(int64_t(upper[i]) + int64_t(lower[i]));
  return load_floats(totals);
}

// Calls f with the number of rows of a tile as a compile-time constant: kMost, or `count` where that is less.
template <int kMost, int kStep = 1, class F>
JAXDML_INLINE void with_tile(int64_t count, const F& f) {
  if (count >= kMost) return f(std::integral_constant<int, kMost>());
  if constexpr (kMost > kStep) with_tile<kMost - kStep, kStep>(count, f);
}

}  // namespace jaxdml::JAXDML_ISA
