// Vectors of one instruction set. Everything in namespace JAXDML_ISA is compiled once for each set. Each set has its
// own namespace, so that a linker never merges code of two sets.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace jaxdml::JAXDML_ISA {

#ifdef __AVX512VNNI__
constexpr int kBytes = 64;  // bytes of a vector
constexpr int kDepth = 4;   // products that one 32-bit lane adds up in one instruction
using Cell = uint8_t;       // the type of an activation in a product; a weight has the signed type of this size
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
// The attributes precede the `=`: Clang ignores `aligned` after it.
using LooseI32 __attribute__((aligned(1), may_alias)) = I32;
using LooseF32 __attribute__((aligned(1), may_alias)) = F32;
using Dword __attribute__((aligned(1), may_alias)) = int32_t;
using LooseBytes __attribute__((aligned(1), may_alias)) = uint8_t __attribute__((vector_size(kBytes / 2)));
static_assert(alignof(LooseI32) == 1 && alignof(LooseF32) == 1 && alignof(Dword) == 1);

#define JAXDML_INLINE __attribute__((always_inline)) static inline

JAXDML_INLINE I32 load(const void* from) { return *static_cast<const LooseI32*>(from); }
JAXDML_INLINE F32 load_floats(const void* from) { return *static_cast<const LooseF32*>(from); }
JAXDML_INLINE void store(void* to, I32 x) { *static_cast<LooseI32*>(to) = x; }
JAXDML_INLINE I32 splat(int32_t x) { return x - I32{}; }
JAXDML_INLINE F32 splat(float x) { return x - F32{}; }

// Flips half a vector of bytes and widens each byte to a 16-bit word.
JAXDML_INLINE I16 words_of_bytes(const uint8_t* from, uint8_t flip) {
  return __builtin_convertvector(*reinterpret_cast<const LooseBytes*>(from) ^ flip, I16);
}

// Arithmetic modulo 2**32: C++ leaves the overflow of signed integers undefined.
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
// The maximum and the minimum; y where x or y is NaN.
JAXDML_INLINE F32 greater(F32 x, F32 y) { return (F32)_mm512_max_ps((__m512)x, (__m512)y); }
JAXDML_INLINE F32 lesser(F32 x, F32 y) { return (F32)_mm512_min_ps((__m512)x, (__m512)y); }
JAXDML_INLINE I32 from_unsigned_bytes(const uint8_t* from) {
  return (I32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
}
JAXDML_INLINE I32 from_unsigned_words(const uint8_t* from) {
  return (I32)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
}
// memcpy of a few bytes, without a call.
JAXDML_INLINE void copy_bytes(void* to, const void* from, int64_t count) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  for (; count > 64; count -= 64, target += 64, source += 64) _mm512_storeu_si512(target, _mm512_loadu_si512(source));
  if (count <= 0) return;
  const __mmask64 kept = ~uint64_t(0) >> (64 - count);
  _mm512_mask_storeu_epi8(target, kept, _mm512_maskz_loadu_epi8(kept, source));
}
#else
JAXDML_INLINE I32 dot_words(I32 sum, I32 x, I32 y) { return add(sum, (I32)_mm256_madd_epi16((__m256i)x, (__m256i)y)); }
JAXDML_INLINE I32 rounded(F32 x) { return (I32)_mm256_cvtps_epi32((__m256)x); }
JAXDML_INLINE F32 floats(I32 x) { return (F32)_mm256_cvtepi32_ps((__m256i)x); }
JAXDML_INLINE F32 greater(F32 x, F32 y) { return (F32)_mm256_max_ps((__m256)x, (__m256)y); }
JAXDML_INLINE F32 lesser(F32 x, F32 y) { return (F32)_mm256_min_ps((__m256)x, (__m256)y); }
JAXDML_INLINE I32 from_unsigned_bytes(const uint8_t* from) {
  return (I32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
}
JAXDML_INLINE I32 from_unsigned_words(const uint8_t* from) {
  return (I32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
}
// memcpy of a few bytes. Compilers turn memcpy into a call or `rep movs`, which costs more than the copy itself.
JAXDML_INLINE void copy_bytes(void* to, const void* from, int64_t count) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  for (; count >= kBytes; count -= kBytes, target += kBytes, source += kBytes) {
    I32 bytes = load(source);
    asm("" : "+x"(bytes));  // otherwise GCC turns the loop into memcpy
    store(target, bytes);
  }
#pragma GCC unroll 5
  for (int size = kBytes / 2; size; size /= 2)
    if (count & size) {
      memcpy(target, source, size_t(size));
      target += size;
      source += size;
    }
}
#endif

// Instructions that work within each 128 bits of a vector. low_* and high_* interleave the lower or the upper halves of
// x and y. to_* narrow x and then y to half the width, saturated.
#ifdef __AVX512VNNI__
JAXDML_INLINE I32 low_bytes(I32 x, I32 y) { return (I32)_mm512_unpacklo_epi8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 high_bytes(I32 x, I32 y) { return (I32)_mm512_unpackhi_epi8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 low_words(I32 x, I32 y) { return (I32)_mm512_unpacklo_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 high_words(I32 x, I32 y) { return (I32)_mm512_unpackhi_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 to_words(I32 x, I32 y) { return (I32)_mm512_packs_epi32((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 to_bytes(I32 x, I32 y) { return (I32)_mm512_packs_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 add_words(I32 x, I32 y) { return (I32)_mm512_adds_epi16((__m512i)x, (__m512i)y); }
// Transposes the 4 x 4 bytes of four 32-bit lanes.
JAXDML_INLINE I32 transpose_fours(I32 x) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm512_shuffle_epi8((__m512i)x, _mm512_broadcast_i32x4(order));
}
// Gathers the first lane of every 128 bits, then the second lanes, and so on.
JAXDML_INLINE I32 gather_firsts(I32 x) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm512_permutexvar_epi32(order, (__m512i)x);
}
#else
JAXDML_INLINE I32 low_bytes(I32 x, I32 y) { return (I32)_mm256_unpacklo_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 high_bytes(I32 x, I32 y) { return (I32)_mm256_unpackhi_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 to_words(I32 x, I32 y) { return (I32)_mm256_packs_epi32((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 to_bytes(I32 x, I32 y) { return (I32)_mm256_packs_epi16((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 add_words(I32 x, I32 y) { return (I32)_mm256_adds_epi16((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 transpose_fours(I32 x) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm256_shuffle_epi8((__m256i)x, _mm256_broadcastsi128_si256(order));
}
JAXDML_INLINE I32 gather_firsts(I32 x) {
  return (I32)_mm256_permutevar8x32_epi32((__m256i)x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif

}  // namespace jaxdml::JAXDML_ISA
