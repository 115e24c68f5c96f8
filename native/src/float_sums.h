// Sums, maxima and minima of rows of floats, by the rules of docs/exact_rules.md.
#pragma once

#include "float_functions.h"

namespace jaxdml::JAXDML_ISA {

// A mask with all bits set in the first `count` lanes.
JAXDML_INLINE I32 lanes_below(int64_t count) {
  I32 lanes;
  for (int i = 0; i < kLanes; i++) lanes[i] = i;
  return lanes < splat(int32_t(count));
}

// Calls f(vector, mask) for a row's vectors. The mask selects the lanes of the row; x is readable up to a whole vector.
template <class F>
JAXDML_INLINE void each_of_row(const float* x, int64_t count, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(load(x + i), splat(-1));
  if (i < count) f(load(x + i), lanes_below(count - i));
}

// An addend is split into two integers of this many bits.
JAXDML_INLINE int32_t digits_of(int64_t count) {
  const int32_t digits = 29 - (63 - __builtin_clzll(uint64_t(count)));
  return digits < 22 ? digits : 22;
}

JAXDML_INLINE float float_of(int32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// (first + second * 2**-k) * 2**(e - k), rounded once; +0 where it is a zero.
JAXDML_INLINE float joined(int32_t first, int32_t second, int32_t k, int32_t e) {
  const int64_t total = int64_t(first) * (int64_t(1) << k) + second, size = total < 0 ? -total : total;
  const int64_t low = size & ((int64_t(1) << (k + 8)) - 1);
  const float upper = float(int32_t(size >> (k + 8))) * 256.0f;
  // `low` has up to 30 bits. Its upper 8 and lower k bits make two exact floats, whose sum rounds once.
  const float lower = float(int32_t(low >> k)) + float(int32_t(low & ((1 << k) - 1))) * float_of((127 - k) << 23);
  const float sum = upper + lower;
  const int32_t exponent = k - 126 - e;
  if (sum < float_of((127 + (exponent < -126 ? -126 : exponent)) << 23)) return 0;
  const float result = sum * float_of((127 + e - k) << 23);
  return total < 0 ? -result : result;
}

// The sum of a row with an infinity or NaN.
static float special_sum(const float* x, int64_t count) {
  bool has_positive = false, has_negative = false;
  for (int64_t i = 0; i < count; i++) {
    const bool is_nan = x[i] != x[i];
    has_positive |= is_nan || x[i] == __builtin_inff();
    has_negative |= is_nan || x[i] == -__builtin_inff();
  }
  return has_positive && has_negative ? __builtin_nanf("") : has_positive ? __builtin_inff() : -__builtin_inff();
}

static inline float row_total(const float* x, int64_t count) {
  I32 top = splat(0);
  each_of_row(x, count, [&](I32 v, I32 mask) { top = greater(top, v & mask & splat(kMagnitude)); });
  const int32_t largest = largest_of(top);
  if (largest >= kInfinity) return special_sum(x, count);
  const int32_t k = digits_of(count), e = (largest >> 23) - 126 < k - 126 ? k - 126 : (largest >> 23) - 126;
  const F32 scale = splat(float_of((127 + k - e) << 23)), more = splat(float_of((127 + k) << 23));
  I32 first = splat(0), second = splat(0);
  each_of_row(x, count, [&](I32 v, I32 mask) {
    const F32 y = (F32)(v & mask) * scale;
    const I32 whole = rounded(y);
    first = add(first, whole);
    second = add(second, rounded((y - floats(whole)) * more));
  });
  return joined(sum_of(first), sum_of(second), k, e);
}

// The largest or the smallest of a row, where -0 < +0 and NaN wins.
template <bool kIsLargest>
static float row_extreme(const float* x, int64_t count) {
  // The smallest is the largest of the keys with all bits inverted.
  const I32 flip = splat(kIsLargest ? 0 : -1);
  constexpr int32_t kLeast = ~kInfinity;
  I32 best = splat(kLeast);
  each_of_row(x, count, [&](I32 v, I32 mask) {
    const I32 key = (F32)v != (F32)v ? splat(INT32_MAX) : turned(v) ^ flip;
    best = greater(best, mask ? key : splat(kLeast));
  });
  const int32_t found = largest_of(best);
  if (found > kInfinity) return __builtin_nanf("");
  const int32_t key = kIsLargest ? found : ~found;
  return float_of(key ^ ((key >> 31) & kMagnitude));
}

}  // namespace jaxdml::JAXDML_ISA
