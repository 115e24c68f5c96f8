// Elements minus their zero point, as floats.
#pragma once

#include "bytes.h"

namespace jaxdml::JAXDML_ISA {

// The bits of the float 2**23, XOR an unsigned element n, are the float 2**23 + n. One exact subtraction then converts
// n and subtracts the zero point.
constexpr int32_t kExponent = 0x4b000000;

struct Centering {
  I32 flips;     // of each byte: makes a signed byte unsigned
  I32 exponent;  // includes a flip of the element's top bit, which makes a signed element unsigned
  F32 zero_point;
};
JAXDML_INLINE Centering centering(int32_t zero_point, bool is_signed, int64_t width) {
  const int32_t flip = is_signed ? width == 1 ? 0x80 : 0x8000 : 0;
  return {splat_byte(uint8_t(flip)), splat(kExponent | flip), splat(0x1p23f + float(zero_point + flip))};
}

template <int64_t kWidth = 1>
JAXDML_INLINE F32 centered(const uint8_t* from, const Centering& by) {
  return (F32)((kWidth == 1 ? from_unsigned_bytes(from) : from_unsigned_words(from)) ^ by.exponent) - by.zero_point;
}

// Centers kBytes bytes, permuted so that `saturated` restores their order. Interleaving the bytes with those of the
// exponent widens them within each 128 bits, which takes fewer instructions than from_unsigned_bytes.
JAXDML_INLINE void center_bytes(I32 bytes, const Centering& by, F32 (&x)[4]) {
  const I32 flipped = bytes ^ by.flips, exponent = splat(kExponent | kExponent >> 16);
  const I32 low = low_bytes(flipped, I32{}), high = high_bytes(flipped, I32{});
  const I32 all[4] = {low_bytes(low, exponent), high_bytes(low, exponent), low_bytes(high, exponent),
                      high_bytes(high, exponent)};
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) x[v] = (F32)all[v] - by.zero_point;
}

}  // namespace jaxdml::JAXDML_ISA
