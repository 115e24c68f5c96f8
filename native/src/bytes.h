// Vectors of bytes for kernels that move or compare bytes, and loads and stores of parts of a vector.
#pragma once

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// Calls f(i, count) for consecutive vectors of kStep outputs; the last vector may be shorter.
template <int64_t kStep = kLanes, class F>
JAXDML_INLINE void each_vector(int64_t first, int64_t last, F&& f) {
  int64_t i = first;
  for (; i + kStep <= last; i += kStep) f(i, kStep);
  if (i < last) f(i, last - i);
}

// Returns a pointer from which kCount elements can be read. If `from` has fewer, the function copies them to `copy` and
// returns `copy`.
template <int64_t kCount, class T>
JAXDML_INLINE const T* whole(const T* from, int64_t count, T (&copy)[kCount]) {
  if (count == kCount) return from;
  memcpy(copy, from, size_t(count) * sizeof(T));
  return copy;
}

JAXDML_INLINE I32 splat_byte(uint8_t x) { return splat(int32_t(x * 0x01010101u)); }

#ifdef __AVX512VNNI__
JAXDML_INLINE I32 greater_bytes(I32 x, I32 y) { return (I32)_mm512_max_epu8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 subtract_bytes(I32 x, I32 y) { return (I32)_mm512_subs_epi8((__m512i)x, (__m512i)y); }
// For each byte of x, the byte of `table` (16 bytes, repeated) at index x & 15; 0 where x is negative.
JAXDML_INLINE I32 shuffle_bytes(I32 table, I32 x) { return (I32)_mm512_shuffle_epi8((__m512i)table, (__m512i)x); }
JAXDML_INLINE I32 repeat_sixteen(const uint8_t* from) {
  return (I32)_mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i*)from));
}
// The bytes of x with even indices, then those of y.
JAXDML_INLINE I32 every_other(I32 x, I32 y) {
  const __m512i even = _mm512_set1_epi16(0xff), order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return (I32)_mm512_permutexvar_epi64(
      order, _mm512_packus_epi16(_mm512_and_si512((__m512i)x, even), _mm512_and_si512((__m512i)y, even)));
}
// The first bytes of a vector, and zeros; reads `count` bytes, 1 to kBytes.
JAXDML_INLINE I32 load_bytes(const uint8_t* from, int64_t count) {
  return (I32)_mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - count), from);
}
JAXDML_INLINE void store_bytes(uint8_t* to, I32 x, int64_t count) {
  _mm512_mask_storeu_epi8(to, ~uint64_t(0) >> (64 - count), (__m512i)x);
}
#else
JAXDML_INLINE I32 greater_bytes(I32 x, I32 y) { return (I32)_mm256_max_epu8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 subtract_bytes(I32 x, I32 y) { return (I32)_mm256_subs_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 shuffle_bytes(I32 table, I32 x) { return (I32)_mm256_shuffle_epi8((__m256i)table, (__m256i)x); }
JAXDML_INLINE I32 repeat_sixteen(const uint8_t* from) {
  return (I32)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)from));
}
JAXDML_INLINE I32 every_other(I32 x, I32 y) {
  const __m256i even = _mm256_set1_epi16(0xff);
  const __m256i both = _mm256_packus_epi16(_mm256_and_si256((__m256i)x, even), _mm256_and_si256((__m256i)y, even));
  return (I32)_mm256_permute4x64_epi64(both, _MM_SHUFFLE(3, 1, 2, 0));
}
JAXDML_INLINE I32 load_bytes(const uint8_t* from, int64_t count) {
  if (count == kBytes) return load(from);
  alignas(kBytes) uint8_t copy[kBytes] = {};
  copy_bytes(copy, from, count);
  return load(copy);
}
JAXDML_INLINE void store_bytes(uint8_t* to, I32 x, int64_t count) {
  if (count == kBytes) return store(to, x);
  alignas(kBytes) uint8_t copy[kBytes];
  store(copy, x);
  copy_bytes(to, copy, count);
}
#endif

}  // namespace jaxdml::JAXDML_ISA
