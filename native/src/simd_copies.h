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
// The first `count` of 16 bytes, from 0 to 16. Two loads that overlap replace a copy in memory, whose bytes a processor
// could not forward to a load of the whole.
JAXDML_INLINE Sixteen load_part(const uint8_t* from, int64_t count) {
  if (count == 16) return load_sixteen(from);
  const auto overlapping = [&](auto type, const uint8_t* at, int64_t bytes) {  // from one to two times the type's size
    decltype(type) first, last;
    memcpy(&first, at, sizeof first);
    memcpy(&last, at + bytes - int64_t(sizeof last), sizeof last);
    return uint64_t(first) | uint64_t(last) << (8 * (bytes - int64_t(sizeof last)));
  };
  const auto few = [&](const uint8_t* at, int64_t bytes) -> uint64_t {  // from 0 to 7
    if (bytes >= 4) return overlapping(uint32_t(), at, bytes);
    if (bytes >= 2) return overlapping(uint16_t(), at, bytes);
    return bytes ? *at : 0;
  };
  if (count < 8) return Sixteen{int64_t(few(from, count)), 0};
  uint64_t first;
  memcpy(&first, from, 8);
  return Sixteen{int64_t(first), int64_t(few(from + 8, count - 8))};
}
JAXDML_INLINE I32 load_bytes(const uint8_t* from, int64_t count) {
  if (count == kBytes) return load(from);
  Sixteen parts[kBytes / 16];
  for (int i = 0; i < kBytes / 16; i++) {
    const int64_t some = count - i * 16;
    parts[i] = some > 0 ? load_part(from + i * 16, some < 16 ? some : 16) : Sixteen{};
  }
  I32 all;
  memcpy(&all, parts, sizeof all);
  return all;
}
JAXDML_INLINE I32 load_some(const uint8_t* from, int64_t count) {
  return load_bytes(from, count < kBytes ? count : kBytes);
}
JAXDML_INLINE void store_bytes(uint8_t* to, I32 x, int64_t count) {
  if (count == kBytes) return store(to, x);
  alignas(kBytes) uint8_t copy[kBytes];
  store(copy, x);
  copy_bytes(to, copy, count);
}

}  // namespace jaxdml::JAXDML_ISA
