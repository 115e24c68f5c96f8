// Vectors of one instruction set. Everything in namespace JAXDML_ISA is compiled once for each set, and is told apart
// by the name of its namespace, so that a linker never merges code of two sets.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace jaxdml::JAXDML_ISA {

#ifdef __AVX512VNNI__
constexpr int kBytes = 64;  // of a vector
constexpr int kDepth = 4;   // products that one 32-bit lane adds up in one instruction
using Cell = uint8_t;       // what a product takes; weights are int8 in it
#else
constexpr int kBytes = 32;
constexpr int kDepth = 2;
using Cell = int16_t;
#endif
constexpr int kLanes = kBytes / 4;  // 32-bit lanes of a vector

using I32 = int32_t __attribute__((vector_size(kBytes)));
using U32 = uint32_t __attribute__((vector_size(kBytes)));
using F32 = float __attribute__((vector_size(kBytes)));
using I16 = int16_t __attribute__((vector_size(kBytes)));
// The attributes stand before the sign of equality: Clang drops `aligned` behind it.
using LooseI32 __attribute__((aligned(1), may_alias)) = I32;
using LooseF32 __attribute__((aligned(1), may_alias)) = F32;
using Dword __attribute__((aligned(1), may_alias)) = int32_t;
static_assert(alignof(LooseI32) == 1 && alignof(LooseF32) == 1 && alignof(Dword) == 1);

#define JAXDML_INLINE __attribute__((always_inline)) static inline

JAXDML_INLINE I32 load(const void* from) { return *static_cast<const LooseI32*>(from); }
JAXDML_INLINE F32 load_floats(const void* from) { return *static_cast<const LooseF32*>(from); }
JAXDML_INLINE void store(void* to, I32 x) { *static_cast<LooseI32*>(to) = x; }
JAXDML_INLINE I32 splat(int32_t x) { return x - I32{}; }
JAXDML_INLINE F32 splat(float x) { return x - F32{}; }

// The same modulo 2**32, where C++ leaves signed overflow undefined.
JAXDML_INLINE I32 add(I32 x, I32 y) { return (I32)((U32)x + (U32)y); }
JAXDML_INLINE I32 subtract(I32 x, I32 y) { return (I32)((U32)x - (U32)y); }
JAXDML_INLINE I32 multiply(I32 x, I32 y) { return (I32)((U32)x * (U32)y); }

#ifdef __AVX512VNNI__
// sum + the four products of unsigned and signed bytes in each lane, modulo 2**32.
JAXDML_INLINE I32 dot_bytes(I32 sum, I32 of_unsigned, I32 of_signed) {
  return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)of_unsigned, (__m512i)of_signed);
}
// sum + the two products of signed 16-bit numbers in each lane, modulo 2**32.
JAXDML_INLINE I32 dot_words(I32 sum, I32 x, I32 y) {
  return (I32)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)y);
}
JAXDML_INLINE I32 rounded(F32 x) { return (I32)_mm512_cvtps_epi32((__m512)x); }
JAXDML_INLINE F32 floats(I32 x) { return (F32)_mm512_cvtepi32_ps((__m512i)x); }
// The greater and the lesser; y where x is NaN.
JAXDML_INLINE F32 greater(F32 x, F32 y) { return (F32)_mm512_max_ps((__m512)x, (__m512)y); }
JAXDML_INLINE F32 lesser(F32 x, F32 y) { return (F32)_mm512_min_ps((__m512)x, (__m512)y); }
// Stores the lowest byte of each lane.
JAXDML_INLINE void store_bytes(uint8_t* to, I32 x) { _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)x)); }
JAXDML_INLINE I32 from_unsigned_bytes(const uint8_t* from) {
  return (I32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
}
// memcpy for a few bytes, without a call.
JAXDML_INLINE void copy_bytes(void* to, const void* from, int64_t count) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  for (; count > 64; count -= 64, target += 64, source += 64) _mm512_storeu_si512(target, _mm512_loadu_si512(source));
  if (count <= 0) return;
  const __mmask64 kept = ~uint64_t(0) >> (64 - count);
  _mm512_mask_storeu_epi8(target, kept, _mm512_maskz_loadu_epi8(kept, source));
}
// Stores the lowest bytes of all lanes of four vectors; lanes hold values of a byte.
JAXDML_INLINE void store_bytes_of_four(uint8_t* to, const I32* x) {
  const __m512i low = _mm512_packs_epi32((__m512i)x[0], (__m512i)x[1]);
  const __m512i high = _mm512_packs_epi32((__m512i)x[2], (__m512i)x[3]);
  const __m512i bytes = _mm512_and_si512(_mm512_set1_epi16(255), low);
  const __m512i all = _mm512_packus_epi16(bytes, _mm512_and_si512(_mm512_set1_epi16(255), high));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, all));
}
#else
JAXDML_INLINE I32 dot_words(I32 sum, I32 x, I32 y) { return add(sum, (I32)_mm256_madd_epi16((__m256i)x, (__m256i)y)); }
JAXDML_INLINE I32 rounded(F32 x) { return (I32)_mm256_cvtps_epi32((__m256)x); }
JAXDML_INLINE F32 floats(I32 x) { return (F32)_mm256_cvtepi32_ps((__m256i)x); }
JAXDML_INLINE F32 greater(F32 x, F32 y) { return (F32)_mm256_max_ps((__m256)x, (__m256)y); }
JAXDML_INLINE F32 lesser(F32 x, F32 y) { return (F32)_mm256_min_ps((__m256)x, (__m256)y); }
JAXDML_INLINE void store_bytes(uint8_t* to, I32 x) {
  const __m256i lowest = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i halves = _mm256_shuffle_epi8((__m256i)x, lowest);
  const __m128i bytes = _mm_unpacklo_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storel_epi64((__m128i*)to, bytes);
}
JAXDML_INLINE I32 from_unsigned_bytes(const uint8_t* from) {
  return (I32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
}
JAXDML_INLINE void copy_bytes(void* to, const void* from, int64_t count) { memcpy(to, from, size_t(count)); }
#endif

// Stores the lowest byte of each lane of several vectors.
template <int V>
JAXDML_INLINE void store_bytes_of(uint8_t* to, const I32 (&x)[V]) {
#ifdef __AVX512VNNI__
  if constexpr (V == 4) return store_bytes_of_four(to, x);
#endif
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) store_bytes(to + v * kLanes, x[v]);
}

}  // namespace jaxdml::JAXDML_ISA
