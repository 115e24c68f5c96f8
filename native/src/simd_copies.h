// Loads and stores of the first bytes of a vector, for instruction sets that cannot mask bytes. simd.h describes each
// function. The file of the set defines JAXDML_IN_REGISTER, and includes this file after vectors.h.
#pragma once

namespace jaxdml::JAXDML_ISA {

// memcpy of a few bytes. Compilers turn memcpy into a call or `rep movs`, which costs more than the copy itself.
JAXDML_INLINE void copy_bytes(void* to, const void* from, int64_t count) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  for (; count >= kBytes; count -= kBytes, target += kBytes, source += kBytes) {
    I32 bytes = load(source);
    asm("" : JAXDML_IN_REGISTER(bytes));  // otherwise GCC turns the loop into memcpy
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

}  // namespace jaxdml::JAXDML_ISA
