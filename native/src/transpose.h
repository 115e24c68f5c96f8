// Transposes blocks of bytes and of dwords.
#pragma once

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// Loads `count` bytes without reading past them, because the buffer may end there. The other bytes become 0.
JAXDML_INLINE I32 load_some(const uint8_t* from, int64_t count) {
  if (count >= kBytes) return load(from);
#ifdef __AVX512VNNI__
  return (I32)_mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - count), from);
#else
  alignas(32) uint8_t bytes[kBytes] = {};
  memcpy(bytes, from, size_t(count));
  return load(bytes);
#endif
}

JAXDML_INLINE void store_some(uint8_t* to, __m128i bytes, int64_t count) {
  if (count >= 16) return _mm_storeu_si128((__m128i*)to, bytes);
#ifdef __AVX512VNNI__
  _mm_mask_storeu_epi8(to, __mmask16(0xffffu >> (16 - count)), bytes);
#else
  uint8_t all[16];
  _mm_storeu_si128((__m128i*)all, bytes);
  memcpy(to, all, size_t(count));
#endif
}

// Stores the first `count` bytes, each widened to a cell.
JAXDML_INLINE void store_cells(Cell* to, __m128i bytes, int64_t count) {
#ifdef __AVX512VNNI__
  store_some(to, bytes, count);
#else
  const __m256i cells = _mm256_cvtepu8_epi16(bytes);
  if (count >= 16) return _mm256_storeu_si256((__m256i*)to, cells);
  Cell all[16];
  _mm256_storeu_si256((__m256i*)all, cells);
  memcpy(to, all, size_t(count) * sizeof(Cell));
#endif
}

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

// Transposes a block of 4 x 4 dwords.
JAXDML_INLINE void transpose_dwords(__m128i (&x)[4]) {
  const __m128i a = _mm_unpacklo_epi32(x[0], x[1]), b = _mm_unpackhi_epi32(x[0], x[1]);
  const __m128i c = _mm_unpacklo_epi32(x[2], x[3]), d = _mm_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm_unpacklo_epi64(a, c);
  x[1] = _mm_unpackhi_epi64(a, c);
  x[2] = _mm_unpacklo_epi64(b, d);
  x[3] = _mm_unpackhi_epi64(b, d);
}

// Calls into(column, bytes) with the 16 bytes of each of the first `count` columns, after transpose_sixteen.
template <int kPart = 0, class F>
JAXDML_INLINE void each_column(const I32 (&x)[16], int64_t count, const F& into) {
  if (count <= kPart * 16) return;
  const int64_t some = at_most(16, count - kPart * 16);
  for (int64_t i = 0; i < some; i++) {
#ifdef __AVX512VNNI__
    into(kPart * 16 + i, _mm512_extracti32x4_epi32((__m512i)x[i], kPart));
#else
    into(kPart * 16 + i, _mm256_extracti128_si256((__m256i)x[i], kPart));
#endif
  }
  if constexpr (kPart + 1 < kBytes / 16) each_column<kPart + 1>(x, count, into);
}

}  // namespace jaxdml::JAXDML_ISA
