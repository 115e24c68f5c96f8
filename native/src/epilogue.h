// Converts int32 sums to bytes: float32(sum) * multiplier, rounded with ties to even, plus the zero point, saturated.
//
// The handlers turn on the processor's flush-to-zero modes, so subnormals are flushed everywhere in the library.
#pragma once

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// The epilogue computes int8. For uint8, it subtracts 128 from the zero point and flips the top bits at the end.
struct Output {
  I32 zero_point;     // repeated in each 16-bit word
  I32 flip;           // repeated in each byte
  bool may_be_large;  // a float may exceed 2**30
};

JAXDML_INLINE Output output_of(int32_t zero_point, bool is_signed) {
  const uint32_t word = uint16_t(zero_point - (is_signed ? 0 : 128));
  return {splat(int32_t(word * 0x10001u)), splat(is_signed ? 0 : int32_t(0x80808080u)), true};
}

JAXDML_INLINE F32 scaled(I32 sum, F32 multiplier) { return floats(sum) * multiplier; }

// Converts up to four vectors to bytes; each 128 bits of the result hold four bytes of each vector.
//
// The conversion maps floats beyond int32, and NaN, to the lowest int32. That would be wrong for large positive floats,
// so they are clamped first, unless the caller or `output` says that there are none. Every later step saturates.
template <bool kMayBeLarge = true, int V>
JAXDML_INLINE I32 saturated(const F32 (&x)[V], const Output& output) {
  if (kMayBeLarge && !output.may_be_large) return saturated<false>(x, output);
  I32 rounds[4] = {};
#pragma GCC unroll 4
  for (int v = 0; v < V; v++) rounds[v] = rounded(kMayBeLarge ? lesser(splat(0x1p30f), x[v]) : x[v]);
  const I32 low = add_words(to_words(rounds[0], rounds[1]), output.zero_point);
  const I32 high = V > 2 ? add_words(to_words(rounds[2], rounds[3]), output.zero_point) : low;
  return to_bytes(low, high) ^ output.flip;
}

constexpr int stored_bytes(int vectors) { return kBytes == 32 && vectors <= 2 ? 16 : kBytes; }

// Converts the vectors to bytes in the order of their lanes, and stores the first stored_bytes(V) bytes.
template <bool kMayBeLarge = true, int V>
JAXDML_INLINE void store_saturated(uint8_t* to, const F32 (&x)[V], const Output& output) {
  const I32 bytes = gather_firsts(saturated<kMayBeLarge>(x, output));
  if constexpr (stored_bytes(V) == kBytes)
    store(to, bytes);
  else
    memcpy(to, &bytes, stored_bytes(V));
}

}  // namespace jaxdml::JAXDML_ISA
