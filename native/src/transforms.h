// The transforms of Winograd's F(m x m, 3 x 3) over integers, for one dimension of a tile; docs/winograd.md proves them.
//
// T is a vector of 16-bit or 32-bit lanes. Points are 0, 1, -1 and, for m = 4, 2, -2; then infinity.
#pragma once

#include "simd.h"

namespace jaxdml::JAXDML_ISA {

// Of the input, m + 2 values from `x`, `step` apart, to m + 2 values from `to`, `to_step` apart.
template <int M, class T>
JAXDML_INLINE void transform_input(const T* x, int step, T* to, int to_step) {
  const T x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step];
  if constexpr (M == 2) {
    to[0] = x0 - x2;
    to[to_step] = x1 + x2;
    to[2 * to_step] = x2 - x1;
    to[3 * to_step] = x3 - x1;
  } else {
    const T x4 = x[4 * step], x5 = x[5 * step];
    const T even = x4 - (x2 << 2), odd = x3 - (x1 << 2), even2 = x4 - x2, odd2 = (x3 - x1) << 1;
    to[0] = ((x0 - x2) << 2) + even2;
    to[to_step] = even + odd;
    to[2 * to_step] = even - odd;
    to[3 * to_step] = even2 + odd2;
    to[4 * to_step] = even2 - odd2;
    to[5 * to_step] = ((x1 - x3) << 2) + (x5 - x3);
  }
}

// Of the filter, three values to m + 2, without the fractions that would make them smaller.
template <int M>
JAXDML_INLINE void transform_filter(const int32_t* g, int step, int32_t* to, int to_step) {
  const int32_t g0 = g[0], g1 = g[step], g2 = g[2 * step];
  to[0] = g0;
  to[to_step] = g0 + g1 + g2;
  to[2 * to_step] = g0 - g1 + g2;
  if constexpr (M == 2) {
    to[3 * to_step] = g2;
  } else {
    to[3 * to_step] = g0 + 2 * g1 + 4 * g2;
    to[4 * to_step] = g0 - 2 * g1 + 4 * g2;
    to[5 * to_step] = g2;
  }
}

// Of the products, m + 2 values to m outputs, each times 2 for m = 2, and times 24, 12, 6, 6 for m = 4.
template <int M, class T>
JAXDML_INLINE void transform_output(const T* x, int step, T* to, int to_step) {
  const T sum = x[step] + x[2 * step], difference = x[step] - x[2 * step];
  if constexpr (M == 2) {
    to[0] = (x[0] << 1) + sum;
    to[to_step] = difference + (x[3 * step] << 1);
  } else {
    const T first = x[0] << 1, last = x[5 * step] << 1;
    const T sum2 = x[3 * step] + x[4 * step], difference2 = x[3 * step] - x[4 * step];
    to[0] = first + (first << 1) + sum2 - (sum << 2);
    to[to_step] = difference2 - (difference << 1);
    to[2 * to_step] = sum2 - sum;
    to[3 * to_step] = (difference2 << 1) - difference + last + (last << 1);
  }
}

}  // namespace jaxdml::JAXDML_ISA
