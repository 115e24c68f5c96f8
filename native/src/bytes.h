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

}  // namespace jaxdml::JAXDML_ISA
