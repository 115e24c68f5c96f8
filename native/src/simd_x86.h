// Functions that AVX2 and AVX512-VNNI share.
#pragma once

namespace jaxdml::JAXDML_ISA {

using CellSum = I32;

// Underflow is detected after rounding; docs/numerics.md has the rule.
JAXDML_INLINE F32 product(F32 x, F32 y) { return x * y; }
JAXDML_INLINE float product(float x, float y) { return x * y; }

// Transposes a block of 4 x 4 dwords.
JAXDML_INLINE void transpose_dwords(Sixteen (&x)[4]) {
  const __m128i a = _mm_unpacklo_epi32((__m128i)x[0], (__m128i)x[1]);
  const __m128i b = _mm_unpackhi_epi32((__m128i)x[0], (__m128i)x[1]);
  const __m128i c = _mm_unpacklo_epi32((__m128i)x[2], (__m128i)x[3]);
  const __m128i d = _mm_unpackhi_epi32((__m128i)x[2], (__m128i)x[3]);
  x[0] = (Sixteen)_mm_unpacklo_epi64(a, c);
  x[1] = (Sixteen)_mm_unpackhi_epi64(a, c);
  x[2] = (Sixteen)_mm_unpacklo_epi64(b, d);
  x[3] = (Sixteen)_mm_unpackhi_epi64(b, d);
}

// A table of 256 bytes. A byte shuffle looks up 16 entries, so the entries are split into 16 tables. Tables 0 and 8
// hold entries; each other table holds the exclusive or of its entries and those of the table before. The index is x in
// table 0, x ^ 0x80 in table 8, and in each other table 16 less than in the table before. A shuffle uses the low four
// bits of an index, and gives 0 for a negative one. So only the tables up to x's contribute, and the exclusive or of
// all shuffles is x's entry.
struct Table {
  I32 of[16];
};
JAXDML_INLINE Table table_of(const uint8_t* entries) {
  Table all;
  for (int i = 0; i < 16; i++) {
    all.of[i] = repeat_sixteen(entries + 16 * i);
    if (i % 8) all.of[i] ^= repeat_sixteen(entries + 16 * (i - 1));
  }
  return all;
}
JAXDML_INLINE I32 entries_at(const Table& all, I32 x) {
  I32 low = x, high = x ^ splat(int32_t(0x80808080u)), y = {};
  const I32 sixteen = splat(0x10101010);
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    y ^= shuffle_bytes(all.of[i], low) ^ shuffle_bytes(all.of[i + 8], high);
    low = subtract_bytes(low, sixteen);
    high = subtract_bytes(high, sixteen);
  }
  return y;
}

}  // namespace jaxdml::JAXDML_ISA
