// Transposes blocks of bytes and of dwords.
#pragma once

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// Transposes 16 x 16 bytes in each 128-bit part. A round interleaves rows i and i + 8; four rounds transpose the block.
JAXDML_INLINE void transpose_sixteen(I32 (&x)[16]) {
  for (int round = 0; round < 4; round++) {
    I32 y[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      y[2 * i] = low_bytes(x[i], x[i + 8]);
      y[2 * i + 1] = high_bytes(x[i], x[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) x[i] = y[i];
  }
}

// Calls into(column, bytes) with the 16 bytes of each of the first `count` columns, after transpose_sixteen.
template <int kPart = 0, class F>
JAXDML_INLINE void each_column(const I32 (&x)[16], int64_t count, const F& into) {
  if (count <= kPart * 16) return;
  const int64_t some = at_most(16, count - kPart * 16);
  for (int64_t i = 0; i < some; i++) into(kPart * 16 + i, part_of<kPart>(x[i]));
  if constexpr (kPart + 1 < kBytes / 16) each_column<kPart + 1>(x, count, into);
}

}  // namespace jaxdml::JAXDML_ISA
