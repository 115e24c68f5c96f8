// The instruction set AVX2, with FMA and F16C. simd.h describes each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace jaxdml::JAXDML_ISA {

constexpr int kBytes = 32;      // bytes of a vector
constexpr int kRegisters = 16;  // vectors that a kernel can keep in registers
constexpr int kDepth = 2;       // products that one 32-bit lane adds up in one instruction
using Activation = uint8_t;     // the 8-bit type of an activation in a product; a weight is int8
using Cell = int16_t;           // the type of a product's operands
constexpr int kRows = 6;        // rows of a full tile of the microkernel
constexpr int kVectors = 2;     // vectors per row of a full tile

// A tile needs all registers. A separate function keeps the caller's values out of the registers, so the compiler
// spills no sum.
#define JAXDML_TILE __attribute__((noinline)) static

}  // namespace jaxdml::JAXDML_ISA

#include "vectors.h"

#define JAXDML_IN_REGISTER "+x"  // the `asm` constraint of a vector
#include "simd_copies.h"

namespace jaxdml::JAXDML_ISA {

// Products ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 dot_words(I32 sum, I32 x, I32 y) { return add(sum, (I32)_mm256_madd_epi16((__m256i)x, (__m256i)y)); }
JAXDML_INLINE I32 dot_cells(I32 sum, I32 activations, I32 weights) { return dot_words(sum, weights, activations); }
JAXDML_INLINE I32 weights_at(const uint8_t* from) {
  return (I32)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
}
JAXDML_INLINE I32 multiply_small(I32 x, I32 y) { return dot_words(I32{}, x, y); }
JAXDML_INLINE I32 add_pairs(I32 sum, I32 of_unsigned, I32 of_signed) {
  return (I32)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)of_unsigned, (__m256i)of_signed));
}

// Integers ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 greater(I32 x, I32 y) { return (I32)_mm256_max_epi32((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 lesser(I32 x, I32 y) { return (I32)_mm256_min_epi32((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 greater_bytes(I32 x, I32 y) { return (I32)_mm256_max_epu8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 subtract_bytes(I32 x, I32 y) { return (I32)_mm256_subs_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 add_words(I32 x, I32 y) { return (I32)_mm256_adds_epi16((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 to_words(I32 x, I32 y) { return (I32)_mm256_packs_epi32((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 to_bytes(I32 x, I32 y) { return (I32)_mm256_packs_epi16((__m256i)x, (__m256i)y); }
template <class F>
JAXDML_INLINE int32_t folded(I32 x, const F& f) {
  __m128i y = f(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
  y = f(y, _mm_shuffle_epi32(y, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtsi128_si32(f(y, _mm_shuffle_epi32(y, _MM_SHUFFLE(2, 3, 0, 1))));
}
JAXDML_INLINE int32_t sum_of(I32 x) {
  return folded(x, [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
}
JAXDML_INLINE int32_t largest_of(I32 x) {
  return folded(x, [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
}

// Floats --------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 rounded(F32 x) { return (I32)_mm256_cvtps_epi32((__m256)x); }
JAXDML_INLINE F32 floats(I32 x) { return (F32)_mm256_cvtepi32_ps((__m256i)x); }
JAXDML_INLINE F32 greater(F32 x, F32 y) { return (F32)_mm256_max_ps((__m256)x, (__m256)y); }
JAXDML_INLINE F32 lesser(F32 x, F32 y) { return (F32)_mm256_min_ps((__m256)x, (__m256)y); }
JAXDML_INLINE F32 nearest(F32 x) { return (F32)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
JAXDML_INLINE F32 rounded_down(F32 x) { return (F32)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEG_INF); }
JAXDML_INLINE F32 rounded_up(F32 x) { return (F32)_mm256_round_ps((__m256)x, _MM_FROUND_TO_POS_INF); }
JAXDML_INLINE F32 square_root(F32 x) { return (F32)_mm256_sqrt_ps((__m256)x); }
JAXDML_INLINE F32 multiply_add(F32 x, F32 y, F32 z) { return (F32)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z); }
JAXDML_INLINE F32 subtract_product(F32 z, F32 x, F32 y) {
  return (F32)_mm256_fnmadd_ps((__m256)x, (__m256)y, (__m256)z);
}
JAXDML_INLINE F32 load_halves(const uint8_t* from) {
  return (F32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
}
JAXDML_INLINE void store_past_caches(float* to, F32 x) { _mm256_stream_ps(to, (__m256)x); }
JAXDML_INLINE void finish_stores_past_caches() { _mm_sfence(); }

JAXDML_INLINE F64 multiply_add(F64 x, F64 y, F64 z) { return (F64)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z); }
JAXDML_INLINE F64 doubles(const float* from) { return (F64)_mm256_cvtps_pd(_mm_loadu_ps(from)); }
JAXDML_INLINE F32 floats(F64 x, F64 y) {
  return (F32)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)y), _mm256_cvtpd_ps((__m256d)x));
}
JAXDML_INLINE F64 lower_doubles(F32 x) { return (F64)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)); }
JAXDML_INLINE F64 upper_doubles(F32 x) { return (F64)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1)); }

// Loads and stores ----------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 from_unsigned_bytes(const uint8_t* from) {
  return (I32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
}
JAXDML_INLINE I32 from_unsigned_words(const uint8_t* from) {
  return (I32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
}
JAXDML_INLINE I32 lanes_of_nibbles(const uint8_t* from) {
  return (I32)((U32)splat(*reinterpret_cast<const Dword*>(from)) >> U32{0, 4, 8, 12, 16, 20, 24, 28}) & splat(15);
}
JAXDML_INLINE void store_some(uint8_t* to, Sixteen bytes, int64_t count) {
  if (count >= 16) return store_sixteen(to, bytes);
  uint8_t all[16];
  store_sixteen(all, bytes);
  memcpy(to, all, size_t(count));
}
JAXDML_INLINE void store_cells(Cell* to, Sixteen bytes, int64_t count) {
  const __m256i cells = _mm256_cvtepu8_epi16((__m128i)bytes);
  if (count >= 16) return _mm256_storeu_si256((__m256i*)to, cells);
  Cell all[16];
  _mm256_storeu_si256((__m256i*)all, cells);
  memcpy(to, all, size_t(count) * sizeof(Cell));
}

// Shuffles ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 low_bytes(I32 x, I32 y) { return (I32)_mm256_unpacklo_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 high_bytes(I32 x, I32 y) { return (I32)_mm256_unpackhi_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE F32 low_floats(F32 x, F32 y) { return (F32)_mm256_unpacklo_ps((__m256)x, (__m256)y); }
JAXDML_INLINE F32 high_floats(F32 x, F32 y) { return (F32)_mm256_unpackhi_ps((__m256)x, (__m256)y); }
JAXDML_INLINE F32 low_pairs(F32 x, F32 y) { return (F32)_mm256_unpacklo_pd((__m256d)x, (__m256d)y); }
JAXDML_INLINE F32 high_pairs(F32 x, F32 y) { return (F32)_mm256_unpackhi_pd((__m256d)x, (__m256d)y); }
JAXDML_INLINE I32 transpose_fours(I32 x) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm256_shuffle_epi8((__m256i)x, _mm256_broadcastsi128_si256(order));
}
JAXDML_INLINE I32 gather_firsts(I32 x) {
  return (I32)_mm256_permutevar8x32_epi32((__m256i)x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
JAXDML_INLINE I32 shuffle_bytes(I32 table, I32 x) { return (I32)_mm256_shuffle_epi8((__m256i)table, (__m256i)x); }
JAXDML_INLINE I32 repeat_sixteen(const uint8_t* from) {
  return (I32)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)from));
}
JAXDML_INLINE I32 every_other(I32 x, I32 y) {
  const __m256i even = _mm256_set1_epi16(0xff);
  const __m256i both = _mm256_packus_epi16(_mm256_and_si256((__m256i)x, even), _mm256_and_si256((__m256i)y, even));
  return (I32)_mm256_permute4x64_epi64(both, _MM_SHUFFLE(3, 1, 2, 0));
}
template <int kPart>
JAXDML_INLINE Sixteen part_of(I32 x) {
  return (Sixteen)_mm256_extracti128_si256((__m256i)x, kPart);
}
// Transposes 2 x 2 parts of 128 bits.
JAXDML_INLINE void transpose_parts(F32 (&x)[kLanes], int i) {
  const __m256 a = (__m256)x[i], b = (__m256)x[4 + i];
  x[i] = (F32)_mm256_permute2f128_ps(a, b, 0x20);
  x[4 + i] = (F32)_mm256_permute2f128_ps(a, b, 0x31);
}

JAXDML_INLINE void interleave_rows(const I32 (&x)[kDepth], I32 (&to)[4]) {
  const I32 low = low_bytes(x[0], x[1]), high = high_bytes(x[0], x[1]), zero = I32{};
  to[0] = low_bytes(low, zero);
  to[1] = high_bytes(low, zero);
  to[2] = low_bytes(high, zero);
  to[3] = high_bytes(high, zero);
}
// Weights become signed words.
JAXDML_INLINE void interleave_weights(const I32 (&x)[kDepth], I32 (&to)[4]) {
  const I32 low = low_bytes(x[0], x[1]), high = high_bytes(x[0], x[1]);
  to[0] = (I32)_mm256_srai_epi16((__m256i)low_bytes(I32{}, low), 8);
  to[1] = (I32)_mm256_srai_epi16((__m256i)high_bytes(I32{}, low), 8);
  to[2] = (I32)_mm256_srai_epi16((__m256i)low_bytes(I32{}, high), 8);
  to[3] = (I32)_mm256_srai_epi16((__m256i)high_bytes(I32{}, high), 8);
}
JAXDML_INLINE void interleaved(const uint8_t* const (&rows)[kDepth], uint8_t flip, I32 (&to)[kSixteenCells]) {
  const __m128i top = _mm_set1_epi8(char(flip));
  __m128i x[kDepth];
  for (int i = 0; i < kDepth; i++) x[i] = _mm_xor_si128(_mm_loadu_si128((const __m128i*)rows[i]), top);
  to[0] = (I32)_mm256_set_m128i(_mm_unpackhi_epi8(x[0], x[1]), _mm_unpacklo_epi8(x[0], x[1]));
}
JAXDML_INLINE void pack_whole_tile(const uint8_t* const (&rows)[kDepth], uint8_t flip, uint8_t* to) {
  static_assert(kTile == 16, "one call interleaves a tile");
  I32 tile[kSixteenCells];
  interleaved(rows, flip, tile);
  store(to, tile[0]);
}
// The second and the third four lanes are swapped.
JAXDML_INLINE void interleave_pixels(const Cell* from, I32 (&to)[kSixteenLanes]) {
  const __m256i x = (__m256i)load(from), y = (__m256i)load(from + 16);
  to[0] = (I32)_mm256_unpacklo_epi16(x, y);
  to[1] = (I32)_mm256_unpackhi_epi16(x, y);
}
JAXDML_INLINE void put_lanes_in_order(I32 (&x)[kSixteenLanes]) {
  const __m256i low = (__m256i)x[0], high = (__m256i)x[1];
  x[0] = (I32)_mm256_permute2x128_si256(low, high, 0x20);
  x[1] = (I32)_mm256_permute2x128_si256(low, high, 0x31);
}
JAXDML_INLINE void split_bytes(const uint8_t* from, int64_t count, uint8_t* even, uint8_t* odd) {
  int64_t i = 0;
  const auto split = [](__m128i pairs) {  // even bytes in the lower half, odd bytes in the upper
    return _mm_packus_epi16(_mm_and_si128(pairs, _mm_set1_epi16(255)), _mm_srli_epi16(pairs, 8));
  };
  for (; count - i >= 16; i += 16) {
    const __m128i bytes = split(_mm_loadu_si128((const __m128i*)(from + i)));
    if (even) _mm_storel_epi64((__m128i*)(even + i / 2), bytes);
    if (odd) _mm_storel_epi64((__m128i*)(odd + i / 2), _mm_unpackhi_epi64(bytes, bytes));
  }
  if (count - i >= 8) {
    const __m128i bytes = split(_mm_loadl_epi64((const __m128i*)(from + i)));
    const int32_t first = _mm_cvtsi128_si32(bytes), second = _mm_extract_epi32(bytes, 2);
    if (even) memcpy(even + i / 2, &first, 4);
    if (odd) memcpy(odd + i / 2, &second, 4);
    i += 8;
  }
  for (; i < count; i++)
    if (uint8_t* const to = i % 2 ? odd : even) to[i / 2] = from[i];
}

}  // namespace jaxdml::JAXDML_ISA

#include "simd_x86.h"
