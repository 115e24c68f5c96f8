// The instruction sets NEON (every 64-bit ARM processor), NEON with byte dot products (DotProd), and NEON with byte dot
// products and byte matrix products (I8MM). simd.h describes each function.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace jaxdml::JAXDML_ISA {

constexpr int kBytes = 16;
constexpr int kRegisters = 32;
// Products take bytes. With DotProd, an instruction multiplies four times as many bytes as words, which saves more than
// Winograd's and Strassen's methods save with words. Without DotProd, an instruction multiplies as many bytes as words,
// but no measurement on ARM favors the two methods.
constexpr int kDepth = 4;
using Activation = int8_t;  // without I8MM, no instruction multiplies an unsigned by a signed byte
using Cell = int8_t;
#ifdef __ARM_FEATURE_DOTPROD
constexpr int kRows = 6;
#else
constexpr int kRows = 3;  // each sum takes two registers
#endif
constexpr int kVectors = 4;

// A separate function keeps the caller's values out of the registers, so the compiler spills no sum.
#define JAXDML_TILE __attribute__((noinline)) static
#define JAXDML_HAS_BYTE_PRODUCTS

}  // namespace jaxdml::JAXDML_ISA

#include "vectors.h"

#define JAXDML_IN_REGISTER "+w"  // the `asm` constraint of a vector
#include "simd_copies.h"

namespace jaxdml::JAXDML_ISA {

// Products ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 dot_bytes(I32 sum, I32 x, I32 y) {
#ifdef __ARM_FEATURE_DOTPROD
  return (I32)vdotq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)y);
#else
  const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)x), vget_low_s8((int8x16_t)y));
  const int16x8_t high = vmull_high_s8((int8x16_t)x, (int8x16_t)y);
  return add(sum, (I32)vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
#ifdef __ARM_FEATURE_MATMUL_INT8
#define JAXDML_HAS_PRODUCTS_OF_PAIRS
JAXDML_INLINE I32 dot_pairs(I32 sum, I32 x, I32 y) {
  return (I32)vmmlaq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)y);
}
JAXDML_INLINE I32 load_pair(const uint8_t* x, const uint8_t* y) { return (I32)vcombine_u8(vld1_u8(x), vld1_u8(y)); }
JAXDML_INLINE I32 low_dwords(I32 x, I32 y) { return (I32)vzip1q_s32((int32x4_t)x, (int32x4_t)y); }
JAXDML_INLINE I32 high_dwords(I32 x, I32 y) { return (I32)vzip2q_s32((int32x4_t)x, (int32x4_t)y); }
JAXDML_INLINE I32 low_pairs(I32 x, I32 y) { return (I32)vzip1q_s64((int64x2_t)x, (int64x2_t)y); }
JAXDML_INLINE I32 high_pairs(I32 x, I32 y) { return (I32)vzip2q_s64((int64x2_t)x, (int64x2_t)y); }
#elif defined(__ARM_FEATURE_DOTPROD)
#define JAXDML_HAS_DOTS_BY_LANE
template <int kLane>
JAXDML_INLINE I32 dot_lane(I32 sum, I32 x, I32 y) {
  return (I32)vdotq_laneq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)y, kLane);
}
#endif
#ifdef __ARM_FEATURE_DOTPROD
using CellSum = I32;
#else
// Sums of products of the lower and the upper half of a vector, two for each lane.
struct CellSum {
  int32x4_t low, high;
};
JAXDML_INLINE CellSum dot_cells(CellSum sum, I32 x, I32 y) {
  return {vpadalq_s16(sum.low, vmull_s8(vget_low_s8((int8x16_t)x), vget_low_s8((int8x16_t)y))),
          vpadalq_s16(sum.high, vmull_high_s8((int8x16_t)x, (int8x16_t)y))};
}
JAXDML_INLINE I32 total_of(CellSum sum) { return (I32)vpaddq_s32(sum.low, sum.high); }
#endif
JAXDML_INLINE I32 dot_cells(I32 sum, I32 activations, I32 weights) { return dot_bytes(sum, activations, weights); }
JAXDML_INLINE I32 dot_words(I32 sum, I32 x, I32 y) {
  const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)x), vget_low_s16((int16x8_t)y));
  return add(sum, (I32)vpaddq_s32(low, vmull_high_s16((int16x8_t)x, (int16x8_t)y)));
}
JAXDML_INLINE I32 weights_at(const uint8_t* from) { return load(from); }
JAXDML_INLINE I32 multiply_small(I32 x, I32 y) { return multiply(x, y); }

// Integers ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 greater(I32 x, I32 y) { return (I32)vmaxq_s32((int32x4_t)x, (int32x4_t)y); }
JAXDML_INLINE I32 lesser(I32 x, I32 y) { return (I32)vminq_s32((int32x4_t)x, (int32x4_t)y); }
JAXDML_INLINE I32 greater_bytes(I32 x, I32 y) { return (I32)vmaxq_u8((uint8x16_t)x, (uint8x16_t)y); }
JAXDML_INLINE I32 add_words(I32 x, I32 y) { return (I32)vqaddq_s16((int16x8_t)x, (int16x8_t)y); }
JAXDML_INLINE I32 to_words(I32 x, I32 y) { return (I32)vqmovn_high_s32(vqmovn_s32((int32x4_t)x), (int32x4_t)y); }
JAXDML_INLINE I32 to_bytes(I32 x, I32 y) { return (I32)vqmovn_high_s16(vqmovn_s16((int16x8_t)x), (int16x8_t)y); }
JAXDML_INLINE int32_t sum_of(I32 x) { return vaddvq_s32((int32x4_t)x); }
JAXDML_INLINE int32_t largest_of(I32 x) { return vmaxvq_s32((int32x4_t)x); }

// Floats --------------------------------------------------------------------------------------------------------------

// The instruction gives 0 for NaN, and INT_MAX for large numbers.
JAXDML_INLINE I32 rounded(F32 x) { return x < splat(0x1p31f) ? (I32)vcvtnq_s32_f32((float32x4_t)x) : splat(INT32_MIN); }
JAXDML_INLINE F32 floats(I32 x) { return (F32)vcvtq_f32_s32((int32x4_t)x); }
// NaN where x or y is NaN.
JAXDML_INLINE F32 greater(F32 x, F32 y) { return (F32)vmaxq_f32((float32x4_t)x, (float32x4_t)y); }
JAXDML_INLINE F32 lesser(F32 x, F32 y) { return (F32)vminq_f32((float32x4_t)x, (float32x4_t)y); }
JAXDML_INLINE F32 nearest(F32 x) { return (F32)vrndnq_f32((float32x4_t)x); }
JAXDML_INLINE F32 rounded_down(F32 x) { return (F32)vrndmq_f32((float32x4_t)x); }
JAXDML_INLINE F32 rounded_up(F32 x) { return (F32)vrndpq_f32((float32x4_t)x); }
JAXDML_INLINE F32 square_root(F32 x) { return (F32)vsqrtq_f32((float32x4_t)x); }
JAXDML_INLINE F32 multiply_add(F32 x, F32 y, F32 z) {
  return (F32)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
}
JAXDML_INLINE F32 subtract_product(F32 z, F32 x, F32 y) {
  return (F32)vfmsq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
}
// ARM detects underflow before rounding: a product just below 2**-126, which rounds to it, becomes a zero. The product
// times 2**32 does not underflow, and shows whether this is such a product.
JAXDML_INLINE F32 product(F32 x, F32 y) {
  const F32 far = (x * splat(0x1p32f)) * y;
  const I32 is_smallest = ((I32)far & splat(INT32_MAX)) == (I32)splat(0x1p-94f);
  return (F32)((I32)(x * y) | (is_smallest & (I32)splat(0x1p-126f)));
}
JAXDML_INLINE float product(float x, float y) {
  const float far = (x * 0x1p32f) * y;
  return far == 0x1p-94f || far == -0x1p-94f ? far * 0x1p-32f : x * y;
}
JAXDML_INLINE F32 load_halves(const uint8_t* from) { return (F32)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from))); }
JAXDML_INLINE void store_past_caches(float* to, F32 x) { store(to, (I32)x); }
JAXDML_INLINE void finish_stores_past_caches() {}

JAXDML_INLINE F64 multiply_add(F64 x, F64 y, F64 z) {
  return (F64)vfmaq_f64((float64x2_t)z, (float64x2_t)x, (float64x2_t)y);
}
JAXDML_INLINE F64 doubles(const float* from) { return (F64)vcvt_f64_f32(vld1_f32(from)); }
JAXDML_INLINE F32 floats(F64 x, F64 y) { return (F32)vcvt_high_f32_f64(vcvt_f32_f64((float64x2_t)x), (float64x2_t)y); }
JAXDML_INLINE F64 lower_doubles(F32 x) { return (F64)vcvt_f64_f32(vget_low_f32((float32x4_t)x)); }
JAXDML_INLINE F64 upper_doubles(F32 x) { return (F64)vcvt_high_f64_f32((float32x4_t)x); }

// Loads and stores ----------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 from_unsigned_bytes(const uint8_t* from) {
  uint32_t four;
  memcpy(&four, from, 4);
  return (I32)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
JAXDML_INLINE I32 from_unsigned_words(const uint8_t* from) {
  return (I32)vmovl_u16(vreinterpret_u16_u8(vld1_u8(from)));
}
JAXDML_INLINE I32 lanes_of_nibbles(const uint8_t* from) {
  uint16_t four;
  memcpy(&four, from, 2);
  return (I32)((U32)splat(int32_t(four)) >> U32{0, 4, 8, 12}) & splat(15);
}
JAXDML_INLINE void store_some(uint8_t* to, Sixteen bytes, int64_t count) {
  store_bytes(to, (I32)bytes, count < kBytes ? count : kBytes);
}
JAXDML_INLINE void store_cells(Cell* to, Sixteen bytes, int64_t count) {
  store_some(reinterpret_cast<uint8_t*>(to), bytes, count);
}

// Shuffles ------------------------------------------------------------------------------------------------------------

JAXDML_INLINE I32 low_bytes(I32 x, I32 y) { return (I32)vzip1q_u8((uint8x16_t)x, (uint8x16_t)y); }
JAXDML_INLINE I32 high_bytes(I32 x, I32 y) { return (I32)vzip2q_u8((uint8x16_t)x, (uint8x16_t)y); }
JAXDML_INLINE I32 low_words(I32 x, I32 y) { return (I32)vzip1q_u16((uint16x8_t)x, (uint16x8_t)y); }
JAXDML_INLINE I32 high_words(I32 x, I32 y) { return (I32)vzip2q_u16((uint16x8_t)x, (uint16x8_t)y); }
JAXDML_INLINE F32 low_floats(F32 x, F32 y) { return (F32)vzip1q_f32((float32x4_t)x, (float32x4_t)y); }
JAXDML_INLINE F32 high_floats(F32 x, F32 y) { return (F32)vzip2q_f32((float32x4_t)x, (float32x4_t)y); }
JAXDML_INLINE F32 low_pairs(F32 x, F32 y) { return (F32)vzip1q_f64((float64x2_t)x, (float64x2_t)y); }
JAXDML_INLINE F32 high_pairs(F32 x, F32 y) { return (F32)vzip2q_f64((float64x2_t)x, (float64x2_t)y); }
JAXDML_INLINE I32 transpose_fours(I32 x) {
  const uint8x16_t order = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return (I32)vqtbl1q_u8((uint8x16_t)x, order);
}
JAXDML_INLINE I32 gather_firsts(I32 x) { return x; }
JAXDML_INLINE I32 every_other(I32 x, I32 y) { return (I32)vuzp1q_u8((uint8x16_t)x, (uint8x16_t)y); }
template <int kPart>
JAXDML_INLINE Sixteen part_of(I32 x) {
  return (Sixteen)x;
}
JAXDML_INLINE void transpose_parts(F32 (&)[kLanes], int) {}
JAXDML_INLINE void transpose_dwords(Sixteen (&x)[4]) {
  const F32 a = low_floats((F32)x[0], (F32)x[1]), b = high_floats((F32)x[0], (F32)x[1]);
  const F32 c = low_floats((F32)x[2], (F32)x[3]), d = high_floats((F32)x[2], (F32)x[3]);
  x[0] = (Sixteen)low_pairs(a, c);
  x[1] = (Sixteen)high_pairs(a, c);
  x[2] = (Sixteen)low_pairs(b, d);
  x[3] = (Sixteen)high_pairs(b, d);
}

JAXDML_INLINE void interleave_rows(const I32 (&x)[kDepth], I32 (&to)[4]) {
  const I32 low[2] = {low_bytes(x[0], x[1]), low_bytes(x[2], x[3])};
  const I32 high[2] = {high_bytes(x[0], x[1]), high_bytes(x[2], x[3])};
  to[0] = low_words(low[0], low[1]);
  to[1] = high_words(low[0], low[1]);
  to[2] = low_words(high[0], high[1]);
  to[3] = high_words(high[0], high[1]);
}
JAXDML_INLINE void interleave_weights(const I32 (&x)[kDepth], I32 (&to)[4]) { interleave_rows(x, to); }
JAXDML_INLINE void interleaved(const uint8_t* const (&rows)[kDepth], uint8_t flip, I32 (&to)[kSixteenCells]) {
  const I32 top = splat(int32_t(flip * 0x01010101u));
  I32 x[kDepth];
  for (int i = 0; i < kDepth; i++) x[i] = load(rows[i]) ^ top;
  interleave_rows(x, to);
}
JAXDML_INLINE void pack_whole_tile(const uint8_t* const (&rows)[kDepth], uint8_t flip, uint8_t* to) {
  static_assert(kTile == 16, "one call interleaves a tile");
  I32 tile[kSixteenCells];
  interleaved(rows, flip, tile);
  for (int v = 0; v < kSixteenCells; v++) store(to + v * kBytes, tile[v]);
}
JAXDML_INLINE void interleave_pixels(const Cell* from, I32 (&to)[kSixteenLanes]) {
  I32 x[kDepth];
  for (int i = 0; i < kDepth; i++) x[i] = load(from + i * 16);
  interleave_rows(x, to);
}
JAXDML_INLINE void put_lanes_in_order(I32 (&)[kSixteenLanes]) {}
JAXDML_INLINE void split_bytes(const uint8_t* from, int64_t count, uint8_t* even, uint8_t* odd) {
  int64_t i = 0;
  for (; count - i >= 16; i += 16) {
    const uint8x8_t x = vld1_u8(from + i), y = vld1_u8(from + i + 8);
    if (even) vst1_u8(even + i / 2, vuzp1_u8(x, y));
    if (odd) vst1_u8(odd + i / 2, vuzp2_u8(x, y));
  }
  for (; i < count; i++)
    if (uint8_t* const to = i % 2 ? odd : even) to[i / 2] = from[i];
}

// An instruction looks up 64 entries. Where the index is out of range, it leaves the byte unchanged.
struct Table {
  uint8x16x4_t of[4];
};
JAXDML_INLINE Table table_of(const uint8_t* entries) {
  Table all;
  for (int i = 0; i < 16; i++) all.of[i / 4].val[i % 4] = vld1q_u8(entries + 16 * i);
  return all;
}
JAXDML_INLINE I32 entries_at(const Table& all, I32 x) {
  uint8x16_t at = (uint8x16_t)x, y = vqtbl4q_u8(all.of[0], at);
#pragma GCC unroll 4
  for (int i = 1; i < 4; i++) {
    at = vsubq_u8(at, vdupq_n_u8(64));
    y = vqtbx4q_u8(y, all.of[i], at);
  }
  return (I32)y;
}

}  // namespace jaxdml::JAXDML_ISA
