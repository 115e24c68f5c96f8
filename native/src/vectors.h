// The vector types of an instruction set, and the functions that GCC's and Clang's vector extensions express for every
// set. The file of the set, simd_*.h, includes this file after its constants.
#pragma once

#include <cstdint>
#include <cstring>

#define JAXDML_INLINE __attribute__((always_inline)) static inline

namespace jaxdml::JAXDML_ISA {

constexpr int kLanes = kBytes / 4;                   // 32-bit lanes of a vector
constexpr int kTile = kVectors * kLanes;             // lanes of a full tile
constexpr int kSixteenLanes = 16 / kLanes;           // vectors that have 16 lanes
constexpr int kSixteenCells = 16 * kDepth / kBytes;  // vectors that have kDepth bytes for each of 16 lanes

using I32 = int32_t __attribute__((vector_size(kBytes)));
using U32 = uint32_t __attribute__((vector_size(kBytes)));
using F32 = float __attribute__((vector_size(kBytes)));
using I16 = int16_t __attribute__((vector_size(kBytes)));
using F64 = double __attribute__((vector_size(kBytes)));
using Sixteen = int64_t __attribute__((vector_size(16)));  // 16 bytes, whatever their type
// The attributes precede the `=`: Clang ignores `aligned` after it.
using LooseI32 __attribute__((aligned(1), may_alias)) = I32;
using LooseF32 __attribute__((aligned(1), may_alias)) = F32;
using LooseF64 __attribute__((aligned(1), may_alias)) = F64;
using LooseSixteen __attribute__((aligned(1), may_alias)) = Sixteen;
using LowWords = int16_t __attribute__((vector_size(kBytes / 2)));  // the low halves of an I32
using Dword __attribute__((aligned(1), may_alias)) = int32_t;
using LooseBytes __attribute__((aligned(1), may_alias)) = uint8_t __attribute__((vector_size(kBytes / 2)));
static_assert(alignof(LooseI32) == 1 && alignof(LooseF32) == 1 && alignof(Dword) == 1);

JAXDML_INLINE I32 load(const void* from) { return *static_cast<const LooseI32*>(from); }
JAXDML_INLINE F32 load_floats(const void* from) { return *static_cast<const LooseF32*>(from); }
JAXDML_INLINE F64 load_doubles(const double* from) { return *reinterpret_cast<const LooseF64*>(from); }
JAXDML_INLINE Sixteen load_sixteen(const void* from) { return *static_cast<const LooseSixteen*>(from); }
JAXDML_INLINE void store(void* to, I32 x) { *static_cast<LooseI32*>(to) = x; }
JAXDML_INLINE void store(double* to, F64 x) { *reinterpret_cast<LooseF64*>(to) = x; }
JAXDML_INLINE void store_sixteen(void* to, Sixteen x) { *static_cast<LooseSixteen*>(to) = x; }
JAXDML_INLINE I32 splat(int32_t x) { return x - I32{}; }
JAXDML_INLINE F32 splat(float x) { return x - F32{}; }
JAXDML_INLINE F64 splat(double x) { return x - F64{}; }

// Flips half a vector of bytes and widens each byte to a 16-bit word.
JAXDML_INLINE I16 words_of_bytes(const uint8_t* from, uint8_t flip) {
  return __builtin_convertvector(*reinterpret_cast<const LooseBytes*>(from) ^ flip, I16);
}

// Arithmetic modulo 2**32: C++ leaves the overflow of signed integers undefined.
JAXDML_INLINE I32 add(I32 x, I32 y) { return (I32)((U32)x + (U32)y); }
JAXDML_INLINE I32 subtract(I32 x, I32 y) { return (I32)((U32)x - (U32)y); }
JAXDML_INLINE I32 multiply(I32 x, I32 y) { return (I32)((U32)x * (U32)y); }

// The total of a sum that has one part.
JAXDML_INLINE I32 total_of(I32 sum) { return sum; }

}  // namespace jaxdml::JAXDML_ISA
