// AVX-512 on processors that have only AVX2. The build includes this file before simd_avx512_vnni.h. Its intrinsics are
// then SIMDe's functions, or those of this file where SIMDe 0.7.4 has none or its name differs from Intel's.
#pragma once

#include <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cstdint>

#define __AVX512VNNI__ 1
// Otherwise, a function with a target attribute would be compiled to real instructions of that target.
#define target(instructions) target("avx2")

namespace jaxdml::emulated {

#define JAXDML_EMULATED __attribute__((always_inline)) static inline

// A vector of AVX-512 as two of AVX2.
template <class Half>
struct Halves {
  Half low, high;
};
template <class Half, class Whole>
JAXDML_EMULATED Halves<Half> halves(Whole x) {
  return __builtin_bit_cast(Halves<Half>, x);
}
template <class Whole, class Half>
JAXDML_EMULATED Whole whole(Half low, Half high) {
  return __builtin_bit_cast(Whole, (Halves<Half>{low, high}));
}

// Conversions ---------------------------------------------------------------------------------------------------------

JAXDML_EMULATED __m512 cvtepi32_ps(__m512i x) {
  const auto of = halves<__m256i>(x);
  return whole<__m512>(_mm256_cvtepi32_ps(of.low), _mm256_cvtepi32_ps(of.high));
}
JAXDML_EMULATED __m512i cvtps_epi32(__m512 x) {
  const auto of = halves<__m256>(x);
  return whole<__m512i>(_mm256_cvtps_epi32(of.low), _mm256_cvtps_epi32(of.high));
}
JAXDML_EMULATED __m512d cvtps_pd(__m256 x) {
  return whole<__m512d>(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}
JAXDML_EMULATED __m256 cvtpd_ps(__m512d x) {
  const auto of = halves<__m256d>(x);
  return _mm256_set_m128(_mm256_cvtpd_ps(of.high), _mm256_cvtpd_ps(of.low));
}
JAXDML_EMULATED __m512 cvtph_ps(__m256i x) {
  return whole<__m512>(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
JAXDML_EMULATED __m512i cvtepu8_epi32(__m128i x) {
  return whole<__m512i>(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)));
}
JAXDML_EMULATED __m512i cvtepu8_epi64(__m128i x) {
  return whole<__m512i>(_mm256_cvtepu8_epi64(x), _mm256_cvtepu8_epi64(_mm_srli_si128(x, 4)));
}
JAXDML_EMULATED __m512i cvtepu16_epi32(__m256i x) {
  return whole<__m512i>(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                        _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}

JAXDML_EMULATED __m256 extractf32x8_ps(__m512 x, int half) {
  const auto of = halves<__m256>(x);
  return half ? of.high : of.low;
}

// Reductions ----------------------------------------------------------------------------------------------------------

struct Dwords {
  int32_t of[16];
};
JAXDML_EMULATED int32_t reduce_add_epi32(__m512i x) {
  uint32_t sum = 0;
  for (const int32_t lane : __builtin_bit_cast(Dwords, x).of) sum += uint32_t(lane);
  return int32_t(sum);
}
JAXDML_EMULATED int32_t reduce_max_epi32(__m512i x) {
  int32_t most = INT32_MIN;
  for (const int32_t lane : __builtin_bit_cast(Dwords, x).of) most = lane > most ? lane : most;
  return most;
}

// Memory: an instruction does not access bytes that are masked out. ---------------------------------------------------

template <class Vector>
struct BytesOf {
  uint8_t at[sizeof(Vector)];
};
template <class Vector>
JAXDML_EMULATED void store_masked(void* to, uint64_t mask, Vector x) {
  const auto bytes = __builtin_bit_cast(BytesOf<Vector>, x);
  for (; mask; mask &= mask - 1) static_cast<uint8_t*>(to)[__builtin_ctzll(mask)] = bytes.at[__builtin_ctzll(mask)];
}
template <class Vector>
JAXDML_EMULATED Vector load_masked(Vector otherwise, uint64_t mask, const void* from) {
  auto bytes = __builtin_bit_cast(BytesOf<Vector>, otherwise);
  for (; mask; mask &= mask - 1)
    bytes.at[__builtin_ctzll(mask)] = static_cast<const uint8_t*>(from)[__builtin_ctzll(mask)];
  return __builtin_bit_cast(Vector, bytes);
}
JAXDML_EMULATED void stream_ps(float* to, __m512 x) {
  if (reinterpret_cast<uintptr_t>(to) % 64) __builtin_trap();  // as the instruction does
  __builtin_memcpy(to, &x, sizeof x);
}

}  // namespace jaxdml::emulated

// GCC has functions with these names, which it compiles only for AVX-512.
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtps_pd
#undef _mm512_cvtpd_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepu8_epi64
#undef _mm512_cvtepu16_epi32
#undef _mm512_extractf32x8_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_reduce_add_epi32
#undef _mm512_reduce_max_epi32
#undef _mm512_mask_loadu_epi8
#undef _mm256_mask_loadu_epi8
#undef _mm512_maskz_loadu_epi8
#undef _mm512_mask_storeu_epi8
#undef _mm256_mask_storeu_epi8
#undef _mm_mask_storeu_epi8
#undef _mm512_stream_ps
#define _mm512_cvtepi32_ps(x) jaxdml::emulated::cvtepi32_ps(x)
#define _mm512_cvtps_epi32(x) jaxdml::emulated::cvtps_epi32(x)
#define _mm512_cvtps_pd(x) jaxdml::emulated::cvtps_pd(x)
#define _mm512_cvtpd_ps(x) jaxdml::emulated::cvtpd_ps(x)
#define _mm512_cvtph_ps(x) jaxdml::emulated::cvtph_ps(x)
#define _mm512_cvtepu8_epi32(x) jaxdml::emulated::cvtepu8_epi32(x)
#define _mm512_cvtepu8_epi64(x) jaxdml::emulated::cvtepu8_epi64(x)
#define _mm512_cvtepu16_epi32(x) jaxdml::emulated::cvtepu16_epi32(x)
#define _mm512_extractf32x8_ps(x, half) jaxdml::emulated::extractf32x8_ps(x, half)
#define _mm512_shuffle_f32x4(x, y, order) simde_mm512_shuffle_f32x4(x, y, order)
#define _mm512_reduce_add_epi32(x) jaxdml::emulated::reduce_add_epi32(x)
#define _mm512_reduce_max_epi32(x) jaxdml::emulated::reduce_max_epi32(x)
#define _mm512_mask_loadu_epi8(otherwise, mask, from) jaxdml::emulated::load_masked(otherwise, mask, from)
#define _mm256_mask_loadu_epi8(otherwise, mask, from) jaxdml::emulated::load_masked(otherwise, mask, from)
#define _mm512_maskz_loadu_epi8(mask, from) jaxdml::emulated::load_masked(__m512i{}, mask, from)
#define _mm512_mask_storeu_epi8(to, mask, x) jaxdml::emulated::store_masked(to, mask, x)
#define _mm256_mask_storeu_epi8(to, mask, x) jaxdml::emulated::store_masked(to, mask, x)
#define _mm_mask_storeu_epi8(to, mask, x) jaxdml::emulated::store_masked(to, mask, x)
#define _mm512_stream_ps(to, x) jaxdml::emulated::stream_ps(to, x)
