// Reads integers of 4 or 8 bits. Signed integers become unsigned: int4 plus 8, int8 plus 128.
#pragma once

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// Copies `count` elements, beginning at element `first`, to one byte each. A byte holds two 4-bit elements, the low
// nibble first.
JAXDML_INLINE void copy_elements(const Elements& of, int64_t first, int64_t count, uint8_t* to) {
  first += of.first;
  if (of.bits == 8) {
    const uint8_t flip = of.is_signed ? 128 : 0;
    for (int64_t i = 0; i < count; i++) to[i] = uint8_t(of.at[first + i] ^ flip);
    return;
  }
  const uint8_t flip = of.is_signed ? 8 : 0;
  if (first % 2 && count) {
    *to++ = uint8_t(of.at[first / 2] >> 4 ^ flip);
    first++, count--;
  }
  const uint8_t* at = of.at + first / 2;
  for (int64_t i = 0; i < count / 2; i++) {
    to[2 * i] = uint8_t((at[i] & 15) ^ flip);
    to[2 * i + 1] = uint8_t(at[i] >> 4 ^ flip);
  }
  if (count % 2) to[count - 1] = uint8_t((at[count / 2] & 15) ^ flip);
}

}  // namespace jaxdml::JAXDML_ISA
