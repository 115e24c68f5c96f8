// The instruction set AVX512-VNNI, whose code AMX shares. simd.h describes each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace jaxdml::JAXDML_ISA {

constexpr int kBytes = 64;      // bytes of a vector
constexpr int kRegisters = 32;  // vectors that a kernel can keep in registers
constexpr int kDepth = 4;       // products that one 32-bit lane adds up in one instruction
using Activation = uint8_t;     // the 8-bit type of an activation in a product; a weight is int8
using Cell = uint8_t;           // the type of a product's operands
constexpr int kRows = 6;        // rows of a full tile of the microkernel
constexpr int kVectors = 4;     // vectors per row of a full tile

// The tile is inlined: it does not use all registers, and the caller reads the sums from registers.
#define JAXDML_TILE JAXDML_INLINE
#define JAXDML_HAS_BYTE_PRODUCTS
#define JAXDML_HAS_TILES
#define JAXDML_HAS_WINDOWS

}  // namespace jaxdml::JAXDML_ISA

#include "vectors.h"

namespace jaxdml::JAXDML_ISA {

// Products ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 dot_bytes(I32 sum, I32 of_unsigned, I32 of_signed) {
  return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)of_unsigned, (__m512i)of_signed);
}
JAXDML_INLINE I32 dot_cells(I32 sum, I32 activations, I32 weights) { return dot_bytes(sum, activations, weights); }
JAXDML_INLINE I32 dot_words(I32 sum, I32 x, I32 y) {
  return (I32)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)y);
}
JAXDML_INLINE I32 weights_at(const uint8_t* from) { return load(from); }
JAXDML_INLINE I32 multiply_small(I32 x, I32 y) { return dot_words(I32{}, x, y); }

// Integers ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 greater(I32 x, I32 y) { return (I32)_mm512_max_epi32((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 lesser(I32 x, I32 y) { return (I32)_mm512_min_epi32((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 greater_bytes(I32 x, I32 y) { return (I32)_mm512_max_epu8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 subtract_bytes(I32 x, I32 y) { return (I32)_mm512_subs_epi8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 add_words(I32 x, I32 y) { return (I32)_mm512_adds_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 to_words(I32 x, I32 y) { return (I32)_mm512_packs_epi32((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 to_bytes(I32 x, I32 y) { return (I32)_mm512_packs_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE int32_t sum_of(I32 x) { return _mm512_reduce_add_epi32((__m512i)x); }
JAXDML_INLINE int32_t largest_of(I32 x) { return _mm512_reduce_max_epi32((__m512i)x); }

// Floats --------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 rounded(F32 x) { return (I32)_mm512_cvtps_epi32((__m512)x); }
JAXDML_INLINE F32 floats(I32 x) { return (F32)_mm512_cvtepi32_ps((__m512i)x); }
JAXDML_INLINE F32 greater(F32 x, F32 y) { return (F32)_mm512_max_ps((__m512)x, (__m512)y); }
JAXDML_INLINE F32 lesser(F32 x, F32 y) { return (F32)_mm512_min_ps((__m512)x, (__m512)y); }
JAXDML_INLINE F32 nearest(F32 x) { return (F32)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
JAXDML_INLINE F32 rounded_down(F32 x) { return (F32)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEG_INF); }
JAXDML_INLINE F32 rounded_up(F32 x) { return (F32)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_POS_INF); }
JAXDML_INLINE F32 square_root(F32 x) { return (F32)_mm512_sqrt_ps((__m512)x); }
JAXDML_INLINE F32 multiply_add(F32 x, F32 y, F32 z) { return (F32)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z); }
JAXDML_INLINE F32 subtract_product(F32 z, F32 x, F32 y) {
  return (F32)_mm512_fnmadd_ps((__m512)x, (__m512)y, (__m512)z);
}
JAXDML_INLINE F32 load_halves(const uint8_t* from) {
  return (F32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
}
JAXDML_INLINE void store_past_caches(float* to, F32 x) { _mm512_stream_ps(to, (__m512)x); }
JAXDML_INLINE void finish_stores_past_caches() { _mm_sfence(); }

JAXDML_INLINE F64 multiply_add(F64 x, F64 y, F64 z) { return (F64)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)z); }
JAXDML_INLINE F64 doubles(const float* from) { return (F64)_mm512_cvtps_pd(_mm256_loadu_ps(from)); }
JAXDML_INLINE F32 floats(F64 x, F64 y) {
  const __m512d low = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)x)));
  return (F32)_mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps((__m512d)y)), 1);
}
JAXDML_INLINE F64 lower_doubles(F32 x) { return (F64)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)); }
JAXDML_INLINE F64 upper_doubles(F32 x) { return (F64)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1)); }

// Loads and stores ----------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 from_unsigned_bytes(const uint8_t* from) {
  return (I32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
}
JAXDML_INLINE I32 from_unsigned_words(const uint8_t* from) {
  return (I32)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
}
JAXDML_INLINE I32 lanes_of_nibbles(const uint8_t* from) {
  const __m512i pairs = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)from));
  return (I32)_mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28)) & splat(15);
}
JAXDML_INLINE void copy_bytes(void* to, const void* from, int64_t count) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  // Stores with a mask are slower.
  for (; count >= 64; count -= 64, target += 64, source += 64) _mm512_storeu_si512(target, _mm512_loadu_si512(source));
  if (count <= 0) return;
  const __mmask64 kept = ~uint64_t(0) >> (64 - count);
  _mm512_mask_storeu_epi8(target, kept, _mm512_maskz_loadu_epi8(kept, source));
}
JAXDML_INLINE I32 load_bytes(const uint8_t* from, int64_t count) {
  return (I32)_mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - count), from);
}
JAXDML_INLINE void store_bytes(uint8_t* to, I32 x, int64_t count) {
  if (count == kBytes) return store(to, x);
  _mm512_mask_storeu_epi8(to, ~uint64_t(0) >> (64 - count), (__m512i)x);
}
JAXDML_INLINE I32 load_some(const uint8_t* from, int64_t count) {
  if (count >= kBytes) return load(from);
  return (I32)_mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - count), from);
}
JAXDML_INLINE void store_some(uint8_t* to, Sixteen bytes, int64_t count) {
  if (count >= 16) return store_sixteen(to, bytes);
  _mm_mask_storeu_epi8(to, __mmask16(0xffffu >> (16 - count)), (__m128i)bytes);
}
JAXDML_INLINE void store_cells(Cell* to, Sixteen bytes, int64_t count) { store_some(to, bytes, count); }

// Shuffles ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 low_bytes(I32 x, I32 y) { return (I32)_mm512_unpacklo_epi8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 high_bytes(I32 x, I32 y) { return (I32)_mm512_unpackhi_epi8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 low_words(I32 x, I32 y) { return (I32)_mm512_unpacklo_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 high_words(I32 x, I32 y) { return (I32)_mm512_unpackhi_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE F32 low_floats(F32 x, F32 y) { return (F32)_mm512_unpacklo_ps((__m512)x, (__m512)y); }
JAXDML_INLINE F32 high_floats(F32 x, F32 y) { return (F32)_mm512_unpackhi_ps((__m512)x, (__m512)y); }
JAXDML_INLINE F32 low_pairs(F32 x, F32 y) { return (F32)_mm512_unpacklo_pd((__m512d)x, (__m512d)y); }
JAXDML_INLINE F32 high_pairs(F32 x, F32 y) { return (F32)_mm512_unpackhi_pd((__m512d)x, (__m512d)y); }
JAXDML_INLINE I32 transpose_fours(I32 x) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm512_shuffle_epi8((__m512i)x, _mm512_broadcast_i32x4(order));
}
JAXDML_INLINE I32 gather_firsts(I32 x) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm512_permutexvar_epi32(order, (__m512i)x);
}
JAXDML_INLINE I32 shuffle_bytes(I32 table, I32 x) { return (I32)_mm512_shuffle_epi8((__m512i)table, (__m512i)x); }
JAXDML_INLINE I32 repeat_sixteen(const uint8_t* from) {
  return (I32)_mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i*)from));
}
template <int kStride>
JAXDML_INLINE I32 windows_of(const uint8_t* from, uint64_t bits, I32 otherwise, I32 flip) {
  static_assert(kStride == 1 || kStride == 2);
  __m512i x;
  if (kStride == 1) {  // the windows have 19 bytes, so 32 are loaded
    const __m256i half = _mm256_mask_loadu_epi8(_mm512_castsi512_si256((__m512i)otherwise), __mmask32(bits), from);
    x = _mm512_castsi256_si512(_mm256_xor_si256(half, _mm512_castsi512_si256((__m512i)flip)));
  } else {
    x = _mm512_xor_si512(_mm512_mask_loadu_epi8((__m512i)otherwise, bits, from), (__m512i)flip);
  }
  const __m512i parts = kStride == 1 ? _mm512_setr_epi32(0, 1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3, 4, 0, 0)
                                     : _mm512_setr_epi32(0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9);
  const __m128i order = kStride == 1 ? _mm_setr_epi8(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6)
                                     : _mm_setr_epi8(0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9);
  return (I32)_mm512_shuffle_epi8(_mm512_permutexvar_epi32(parts, x), _mm512_broadcast_i32x4(order));
}
JAXDML_INLINE I32 every_other(I32 x, I32 y) {
  const __m512i even = _mm512_set1_epi16(0xff), order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return (I32)_mm512_permutexvar_epi64(
      order, _mm512_packus_epi16(_mm512_and_si512((__m512i)x, even), _mm512_and_si512((__m512i)y, even)));
}
template <int kPart>
JAXDML_INLINE Sixteen part_of(I32 x) {
  return (Sixteen)_mm512_extracti32x4_epi32((__m512i)x, kPart);
}
// Transposes 4 x 4 parts of 128 bits.
JAXDML_INLINE void transpose_parts(F32 (&x)[kLanes], int i) {
  const __m512 a = (__m512)x[i], b = (__m512)x[4 + i], c = (__m512)x[8 + i], d = (__m512)x[12 + i];
  const __m512 low = _mm512_shuffle_f32x4(a, b, 0x44), high = _mm512_shuffle_f32x4(a, b, 0xee);
  const __m512 next_low = _mm512_shuffle_f32x4(c, d, 0x44), next_high = _mm512_shuffle_f32x4(c, d, 0xee);
  x[i] = (F32)_mm512_shuffle_f32x4(low, next_low, 0x88);
  x[4 + i] = (F32)_mm512_shuffle_f32x4(low, next_low, 0xdd);
  x[8 + i] = (F32)_mm512_shuffle_f32x4(high, next_high, 0x88);
  x[12 + i] = (F32)_mm512_shuffle_f32x4(high, next_high, 0xdd);
}

JAXDML_INLINE void interleave_rows(const I32 (&x)[kDepth], I32 (&to)[4]) {
  const I32 low[2] = {low_bytes(x[0], x[1]), low_bytes(x[2], x[3])};
  const I32 high[2] = {high_bytes(x[0], x[1]), high_bytes(x[2], x[3])};
  to[0] = low_words(low[0], low[1]);
  to[1] = high_words(low[0], low[1]);
  to[2] = low_words(high[0], high[1]);
  to[3] = high_words(high[0], high[1]);
}
JAXDML_INLINE void interleave_weights(const I32 (&x)[kDepth], I32 (&to)[4]) { interleave_rows(x, to); }
JAXDML_INLINE void interleaved(const uint8_t* const (&rows)[kDepth], uint8_t flip, I32 (&to)[kSixteenCells]) {
  const __m128i top = _mm_set1_epi8(char(flip));
  __m128i x[kDepth];
  for (int i = 0; i < kDepth; i++) x[i] = _mm_xor_si128(_mm_loadu_si128((const __m128i*)rows[i]), top);
  const __m128i a = _mm_unpacklo_epi8(x[0], x[1]), b = _mm_unpackhi_epi8(x[0], x[1]);
  const __m128i c = _mm_unpacklo_epi8(x[2], x[3]), d = _mm_unpackhi_epi8(x[2], x[3]);
  const __m256i low = _mm256_set_m128i(_mm_unpackhi_epi16(a, c), _mm_unpacklo_epi16(a, c));
  const __m256i high = _mm256_set_m128i(_mm_unpackhi_epi16(b, d), _mm_unpacklo_epi16(b, d));
  to[0] = (I32)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
JAXDML_INLINE void pack_whole_tile(const uint8_t* const (&rows)[kDepth], uint8_t flip, uint8_t* to) {
  const I32 top = splat(int32_t(flip * 0x01010101u));
  I32 x[kDepth], y[4];
  for (int i = 0; i < kDepth; i++) x[i] = load(rows[i]) ^ top;
  interleave_rows(x, y);
  // Each vector has four consecutive lanes of each 128-bit part of the rows. The shuffles bring consecutive lanes
  // into one vector.
  const __m512i a = _mm512_shuffle_i32x4((__m512i)y[0], (__m512i)y[1], 0x44);
  const __m512i b = _mm512_shuffle_i32x4((__m512i)y[2], (__m512i)y[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4((__m512i)y[0], (__m512i)y[1], 0xee);
  const __m512i d = _mm512_shuffle_i32x4((__m512i)y[2], (__m512i)y[3], 0xee);
  store(to, (I32)_mm512_shuffle_i32x4(a, b, 0x88));
  store(to + kBytes, (I32)_mm512_shuffle_i32x4(a, b, 0xdd));
  store(to + 2 * kBytes, (I32)_mm512_shuffle_i32x4(c, d, 0x88));
  store(to + 3 * kBytes, (I32)_mm512_shuffle_i32x4(c, d, 0xdd));
}
JAXDML_INLINE void interleave_pixels(const Cell* from, I32 (&to)[kSixteenLanes]) {
  to[0] = transpose_fours(gather_firsts(load(from)));
}
JAXDML_INLINE void put_lanes_in_order(I32 (&)[kSixteenLanes]) {}
JAXDML_INLINE void split_bytes(const uint8_t* from, int64_t count, uint8_t* even, uint8_t* odd) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t some = count - i < 64 ? count - i : 64;
    const __m512i pairs = _mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - some), from + i);
    const auto keep = [&](uint8_t* to, int64_t kept, __m512i words) {
      if (to) _mm256_mask_storeu_epi8(to + i / 2, __mmask32((uint64_t(1) << kept) - 1), _mm512_cvtepi16_epi8(words));
    };
    keep(even, (some + 1) / 2, pairs);
    keep(odd, some / 2, _mm512_srli_epi16(pairs, 8));
  }
}

// Looks up `count` bytes, after the flip, with AVX512-VBMI, which not every processor with AVX512-VNNI has.
#define JAXDML_HAS_VBMI
[[maybe_unused]] __attribute__((target("avx512vbmi"))) static void look_up_by_vbmi(const uint8_t* entries,
                                                                                   const uint8_t* x, uint8_t flip,
                                                                                   int64_t count, uint8_t* y) {
  __m512i table[4];
  for (int i = 0; i < 4; i++) table[i] = _mm512_loadu_si512(entries + 64 * i);
  const __m512i flips = (__m512i)splat(int32_t(flip * 0x01010101u));
  for (int64_t i = 0; i < count; i += kBytes) {
    const int64_t some = count - i < kBytes ? count - i : kBytes;
    const __m512i at = _mm512_xor_si512((__m512i)load_bytes(x + i, some), flips);
    const __m512i low = _mm512_permutex2var_epi8(table[0], at, table[1]);
    const __m512i high = _mm512_permutex2var_epi8(table[2], at, table[3]);
    store_bytes(y + i, (I32)_mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high), some);
  }
}

}  // namespace jaxdml::JAXDML_ISA

#include "simd_x86.h"
