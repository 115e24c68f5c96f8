// From int32 sums to the output's bytes: float32(sum) * multiplier, rounded, ties to even, plus zero point, saturated.
//
// Floats are computed with the processor's flush-to-zero modes on, which is the library's rule for subnormals.
#pragma once

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// Bytes are made as int8: a zero point of uint8 is less 128, and the top bits are flipped at the end.
struct Output {
  I32 zero_point;  // in each 16 bits
  I32 flip;        // in each 8 bits
};

JAXDML_INLINE Output output_of(int32_t zero_point, bool is_signed) {
  const uint32_t word = uint16_t(zero_point - (is_signed ? 0 : 128));
  return {splat(int32_t(word * 0x10001u)), splat(is_signed ? 0 : int32_t(0x80808080u))};
}

JAXDML_INLINE F32 scaled(I32 sum, F32 multiplier) { return floats(sum) * multiplier; }

// The bytes of up to four vectors; in each 128 bits, four bytes of each vector.
//
// Floats beyond int32, and NaN, round to the lowest int32. That saturates rightly except for large positive floats; the
// bound handles those. Every later step saturates too.
template <int V>
JAXDML_INLINE I32 saturated(const F32 (&x)[V], const Output& output) {
  I32 rounds[4] = {};
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) rounds[v] = rounded(lesser(splat(0x1p30f), x[v]));
  const I32 low = add_words(to_words(rounds[0], rounds[1]), output.zero_point);
  const I32 high = V > 2 ? add_words(to_words(rounds[2], rounds[3]), output.zero_point) : low;
  return to_bytes(low, high) ^ output.flip;
}

constexpr int stored_bytes(int vectors) { return kBytes == 32 && vectors <= 2 ? 16 : kBytes; }

// Stores the bytes of all lanes of the vectors, in order, and writes stored_bytes(V) of them.
template <int V>
JAXDML_INLINE void store_saturated(uint8_t* to, const F32 (&x)[V], const Output& output) {
  const I32 bytes = gather_firsts(saturated(x, output));
  if constexpr (stored_bytes(V) == kBytes)
    store(to, bytes);
  else
    memcpy(to, &bytes, stored_bytes(V));
}

}  // namespace jaxdml::JAXDML_ISA
