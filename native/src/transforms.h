// One-dimensional transforms of Winograd's F(m x m, 3 x 3) over integers; docs/winograd.md proves them exact.
//
// T is a vector of 16-bit or 32-bit lanes. The points are 0, 1, -1, for m = 4 also 2, -2, then infinity.
#pragma once

#include "simd.h"

namespace jaxdml::JAXDML_ISA {

// Transforms m + 2 input values, `step` apart, to m + 2 values, `to_step` apart.
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

// Transforms three filter values to m + 2 values, scaled up so that no fraction appears.
template <int M, class T>
JAXDML_INLINE void transform_filter(const T* g, int step, T* to, int to_step) {
  const T outer = g[0] + g[2 * step], middle = g[step];
  to[0] = g[0];
  to[to_step] = outer + middle;
  to[2 * to_step] = outer - middle;
  if constexpr (M == 4) {
    const T outer2 = g[0] + (g[2 * step] << 2), middle2 = middle << 1;
    to[3 * to_step] = outer2 + middle2;
    to[4 * to_step] = outer2 - middle2;
  }
  to[(M + 1) * to_step] = g[2 * step];
}

// Transforms a 3 x 3 filter to (m + 2)**2 points.
template <int M, class T>
JAXDML_INLINE void transform_whole_filter(const T (&g)[9], T (&points)[(M + 2) * (M + 2)]) {
  T rows[(M + 2) * 3];
  for (int j = 0; j < 3; j++) transform_filter<M>(g + j, 3, rows + j, 3);
  for (int i = 0; i < M + 2; i++) transform_filter<M>(rows + i * 3, 1, points + i * (M + 2), 1);
}

// Transforms m + 2 products to m outputs, scaled by 2 for m = 2, and by 24, 12, 6, 6 for m = 4.
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
