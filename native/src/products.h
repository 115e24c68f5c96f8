// Elementwise products of quantized tensors, as onnxruntime's QLinearMul computes them on x64: the zero point of the
// output is added before the sum is rounded. Sums of 2**31 and above, and NaN, become the least value.
#pragma once

#include "bytes.h"
#include "epilogue.h"

namespace jaxdml::JAXDML_ISA {

struct ProductNumbers {
  I32 a_zero_point, b_zero_point;
  uint8_t a_flip, b_flip;
  F32 multiplier, offset;
  Output output;
};

JAXDML_INLINE ProductNumbers numbers_of(const Product& one) {
  const uint8_t a_flip = flip_to_unsigned(one.a_is_signed), b_flip = flip_to_unsigned(one.b_is_signed);
  return {splat(one.a_zero_point + a_flip),
          splat(one.b_zero_point + b_flip),
          a_flip,
          b_flip,
          splat(one.multiplier),
          splat(float(one.y_zero_point)),
          output_of(0, one.y_is_signed)};
}

JAXDML_INLINE F32 steps_at(const uint8_t* from, uint8_t flip, I32 zero_point) {
  return floats((from_unsigned_bytes(from) ^ splat(flip)) - zero_point);
}

// kBytes products. Products of integers minus zero points are exact.
template <class B>
JAXDML_INLINE I32 products_at(const uint8_t* a, const ProductNumbers& of, B&& b) {
  I32 rounds[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    const F32 product = steps_at(a + v * kLanes, of.a_flip, of.a_zero_point) * b(v);
    rounds[v] = rounded(product * of.multiplier + of.offset);
  }
  const I32 low = add_words(to_words(rounds[0], rounds[1]), of.output.zero_point);
  const I32 high = add_words(to_words(rounds[2], rounds[3]), of.output.zero_point);
  return gather_firsts(to_bytes(low, high) ^ of.output.flip);
}

// `count` products, at most kBytes; b(v) is the v-th vector of `b` minus its zero point.
template <class B>
JAXDML_INLINE void put_products(const uint8_t* a, const ProductNumbers& of, int64_t count, uint8_t* y, B&& b) {
  alignas(64) uint8_t copy[kBytes];
  if (count < kBytes) store(copy, load_bytes(a, count));
  store_bytes(y, products_at(count < kBytes ? copy : a, of, b), count);
}

// The products of one run, all with one element of b.
JAXDML_INLINE void products_of_run(const Product& one, const ProductNumbers& of, int64_t at) {
  const int32_t value = (one.b[at] ^ of.b_flip) - of.b_zero_point[0];
  const F32 steps = splat(float(value));
  const uint8_t* a = one.a + at * one.run;
  uint8_t* y = one.y + at * one.run;
  for (int64_t i = 0; i < one.run; i += kBytes)
    put_products(a + i, of, at_most(kBytes, one.run - i), y + i, [&](int) { return steps; });
}

JAXDML_INLINE void products_of_pairs(const Product& one, const ProductNumbers& of, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i += kBytes) {
    const int64_t count = at_most(kBytes, last - i);
    alignas(64) uint8_t copy[kBytes];
    const uint8_t* b = one.b + i;
    if (count < kBytes) {
      store(copy, load_bytes(b, count));
      b = copy;
    }
    put_products(one.a + i, of, count, one.y + i,
                 [&](int v) { return steps_at(b + v * kLanes, of.b_flip, of.b_zero_point); });
  }
}

static void products(const Pool& pool, const Product* problems, int64_t count) {
  constexpr int64_t kChunk = 1 << 15;  // elements per item
  const int64_t run = problems[0].run, runs = problems[0].size / run;
  const int64_t block = run == 1 ? kChunk : at_least(kChunk / run, 1), blocks = ceil_div(runs, block);
  parallel(pool, count * blocks, [&](int64_t item, int64_t) {
    const Product& one = problems[item / blocks];
    const ProductNumbers of = numbers_of(one);
    const int64_t first = item % blocks * block, last = at_most(runs, first + block);
    if (run == 1) return products_of_pairs(one, of, first, last);
    for (int64_t at = first; at < last; at++) products_of_run(one, of, at);
  });
}

}  // namespace jaxdml::JAXDML_ISA
