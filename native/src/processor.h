// Detects instruction sets: the processor must have the instructions, and the operating system must save the registers.
#pragma once

#include <cstdint>

#include "kernels.h"

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#else
#ifndef _WIN32
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace jaxdml {

#ifdef __aarch64__
inline bool has_neon() { return true; }
#ifdef __APPLE__
inline bool has(const char* name) {
  int number = 0;
  size_t size = sizeof number;
  return !sysctlbyname(name, &number, &size, nullptr, 0) && number;
}
inline bool has_neon_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
inline bool has_neon_i8mm() { return has_neon_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }
#else
inline bool has_neon_dotprod() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
inline bool has_neon_i8mm() { return has_neon_dotprod() && getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
#endif
inline bool has_avx512_vbmi() { return false; }
#else
#ifdef _WIN32
// On Windows, Clang's __builtin_cpu_supports needs compiler-rt, which is not linked by default.
struct Registers {
  uint32_t a, b, c, d;
};
inline Registers cpuid(uint32_t leaf) {
  Registers of;
  asm volatile("cpuid" : "=a"(of.a), "=b"(of.b), "=c"(of.c), "=d"(of.d) : "a"(leaf), "c"(0));
  return of;
}
inline bool has(uint32_t features, uint32_t bits) { return (features & bits) == bits; }
inline constexpr uint32_t bit(int number) { return uint32_t(1) << number; }

// Returns whether the operating system saves all registers whose bits of XCR0 are set in `registers`.
inline bool saves(uint32_t registers) {
  constexpr uint32_t kOsxsave = bit(27);
  if (!has(cpuid(1).c, kOsxsave)) return false;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has(low, registers);
}

inline bool has_avx2() {
  constexpr uint32_t kFma = bit(12), kF16c = bit(29), kAvx2 = bit(5), kVectors = 0x6;
  return cpuid(0).a >= 7 && saves(kVectors) && has(cpuid(1).c, kFma | kF16c) && has(cpuid(7).b, kAvx2);
}
inline bool has_avx512_vnni() {
  constexpr uint32_t kFoundation = bit(16), kDq = bit(17), kBw = bit(30), kVl = bit(31), kVnni = bit(11);
  constexpr uint32_t kVectors = 0xe6;
  return has_avx2() && saves(kVectors) && has(cpuid(7).b, kFoundation | kDq | kBw | kVl) && has(cpuid(7).c, kVnni);
}
inline bool has_avx512_vbmi() {
  constexpr uint32_t kVbmi = bit(1);
  return has_avx512_vnni() && has(cpuid(7).c, kVbmi);
}
#else
inline bool has_avx2() {
  constexpr unsigned kF16c = 1u << 29;  // which compilers of 2022 do not support in __builtin_cpu_supports
  unsigned a, b, c, d;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
         (c & kF16c);
}
#ifdef JAXDML_EMULATED_AVX512
inline bool has_avx512_vnni() { return has_avx2(); }
inline bool has_avx512_vbmi() { return has_avx2(); }
#else
inline bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
inline bool has_avx512_vbmi() { return has_avx512_vnni() && __builtin_cpu_supports("avx512vbmi"); }
#endif
#endif

// Linux saves the tile registers only after the process has requested permission, once for all threads. The function
// reads CPUID itself because compilers of 2022 do not support AMX in __builtin_cpu_supports. Scalar tiles, which tests
// use, need no tile registers.
inline bool has_amx_int8() {
#if defined(JAXDML_SCALAR_TILES)
  return has_avx512_vnni();
#elif defined(__linux__)
  constexpr unsigned kTilesOfInt8 = 3u << 24;       // AMX-TILE, AMX-INT8
  constexpr long kAskFor = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  return has_avx512_vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTilesOfInt8) == kTilesOfInt8 &&
         syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// The instruction sets that the library has kernels for, the fastest first.
struct InstructionSet {
  const Kernels* kernels;
  bool (*runs_here)();
};
#ifdef __aarch64__
inline constexpr InstructionSet kSets[] = {
    {&kNeonI8mm, has_neon_i8mm}, {&kNeonDotprod, has_neon_dotprod}, {&kNeon, has_neon}};
#elif defined(JAXDML_AVX2_ALONE)
inline constexpr InstructionSet kSets[] = {{&kAvx2, has_avx2}};
#else
inline constexpr InstructionSet kSets[] = {
    {&kAmxInt8, has_amx_int8}, {&kAvx512Vnni, has_avx512_vnni}, {&kAvx2, has_avx2}};
#endif

}  // namespace jaxdml
