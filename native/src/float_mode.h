// The floating-point mode of a thread: MXCSR on x86, FPCR on ARM.
#pragma once

#include <cstdint>

#ifndef __aarch64__
#include <immintrin.h>
#endif

namespace jaxdml {

#ifdef __aarch64__
constexpr uint64_t kFlushes = 1 << 24;                      // subnormal operands and results become zero
constexpr uint64_t kRounding = 3 << 22, kUpward = 1 << 22;  // 0 rounds to nearest
constexpr uint64_t kFlags = 0;                              // exception flags
inline uint64_t float_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
constexpr uint64_t kFlushes = 0x8040;
constexpr uint64_t kRounding = 0x6000, kUpward = 0x4000;
constexpr uint64_t kFlags = 0x003f;
inline uint64_t float_mode() { return _mm_getcsr(); }
inline void set_float_mode(uint64_t mode) { _mm_setcsr(unsigned(mode)); }
#endif

}  // namespace jaxdml
