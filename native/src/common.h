// Helpers that all kernels share: integer arithmetic, quantization parameters, scratch allocation and parallel loops.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace jaxdml::JAXDML_ISA {

JAXDML_INLINE int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }
JAXDML_INLINE int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }
JAXDML_INLINE int64_t at_most(int64_t x, int64_t limit) { return x < limit ? x : limit; }
JAXDML_INLINE int64_t at_least(int64_t x, int64_t limit) { return x > limit ? x : limit; }

JAXDML_INLINE float value(const Scales& scales, int64_t i) { return scales.at[scales.step ? i : 0]; }
JAXDML_INLINE int32_t value(const ZeroPoints& zero_points, int64_t i) {
  const uint8_t byte = zero_points.at[zero_points.step ? i : 0];
  return zero_points.is_signed ? int8_t(byte) : byte;
}

// The kernels multiply activations, uint8 or int8 depending on the instruction set, by int8 weights. Flipping the top
// bit of a byte converts int8 to uint8 and back. The conversion shifts a value and its zero point by 128, so their
// difference stays the same.
constexpr bool kActivationsAreSigned = Activation(-1) < 0;
JAXDML_INLINE uint8_t flip_to_unsigned(bool is_signed) { return is_signed ? 128 : 0; }
JAXDML_INLINE uint8_t flip_to_signed(bool is_signed) { return is_signed ? 0 : 128; }
JAXDML_INLINE uint8_t flip_to_activation(bool is_signed) { return is_signed == kActivationsAreSigned ? 0 : 128; }
JAXDML_INLINE int32_t as_unsigned(const ZeroPoints& x, int64_t i) { return value(x, i) + (x.is_signed ? 128 : 0); }
JAXDML_INLINE int32_t as_weight(const ZeroPoints& x, int64_t i) { return value(x, i) - (x.is_signed ? 0 : 128); }
JAXDML_INLINE int32_t as_activation(const ZeroPoints& x, int64_t i) {
  return kActivationsAreSigned ? as_weight(x, i) : as_unsigned(x, i);
}

// Packed weights begin with a mark, so that a kernel rejects weights in another layout and weights that were never
// packed. If the layout of packed matrices changes, change 0x50 in kMatrixMark, too. If the layout of packed
// filters changes, change 0x54 in kFilterMark.
constexpr int32_t kMatrixMark = 0x4a445000 + kBytes;
constexpr int32_t kFilterMark = 0x4a445400 + kBytes;

// The stride, in cells, of rows that a tile reads in parallel. The stride is not a multiple of a cache line: otherwise
// the same element of every row would lie in one bank of the cache, and the bank would serve the loads one by one.
JAXDML_INLINE int64_t row_cells(int64_t depth) {
  const int64_t bytes = round_up(depth, kDepth) * int64_t(sizeof(Cell));
  return (bytes < 64 ? bytes : round_up(bytes + 24, 64) - 24) / int64_t(sizeof(Cell));
}

// Allocates 64-byte aligned pieces from a block of memory. If the block is null, `used` only counts the bytes needed.
struct Arena {
  uint8_t* block;
  int64_t used;
};
template <class T>
JAXDML_INLINE T* take(Arena& arena, int64_t count) {
  T* piece = arena.block ? reinterpret_cast<T*>(arena.block + arena.used) : nullptr;
  arena.used += round_up(count * int64_t(sizeof(T)), 64);
  return piece;
}

// Clears the padding that aligns the next piece, so that packing the same weights always yields the same bytes.
template <class T>
JAXDML_INLINE void clear_behind(T* piece, int64_t count) {
  const int64_t bytes = count * int64_t(sizeof(T));
  memset(reinterpret_cast<uint8_t*>(piece) + bytes, 0, round_up(bytes, 64) - bytes);
}

// Calls f(item, worker) for every item below `count`, on the threads of the pool.
template <class F>
JAXDML_INLINE void parallel(const Pool& pool, int64_t count, const F& f) {
  const Pool::Task task = [](const void* g, int64_t item, int64_t worker) {
    (*static_cast<const F*>(g))(item, worker);
  };
  pool.run(pool, count, task, &f);
}

// The flat index of an iteration of nested loops. next_of extracts the counter of the innermost remaining loop.
struct Index {
  int64_t rest;
};
JAXDML_INLINE int64_t next_of(Index& index, int64_t count) {
  const int64_t digit = index.rest % count;
  index.rest /= count;
  return digit;
}

}  // namespace jaxdml::JAXDML_ISA
