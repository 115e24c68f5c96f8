// Elementwise products of quantized tensors, as onnxruntime's QLinearMul computes them on x64: the zero point of the
// output is added before the sum is rounded. Sums of 2**31 and above, and NaN, become the least value.
#pragma once

#include "centered.h"
#include "epilogue.h"

namespace jaxdml::JAXDML_ISA {

struct ProductNumbers {
  Centering of_a, of_b;
  F32 multiplier, offset;
  Output output;
};

JAXDML_INLINE ProductNumbers numbers_of(const Product& one) {
  return {centering(one.a_zero_point, one.a_is_signed, 1), centering(one.b_zero_point, one.b_is_signed, 1),
          splat(one.multiplier), splat(float(one.y_zero_point)), output_of(0, one.y_is_signed)};
}

// `count` products, at most kBytes; `b` is minus its zero point. Products of integers minus zero points are exact.
JAXDML_INLINE void put_products(const uint8_t* a, const ProductNumbers& of, const F32 (&b)[4], int64_t count,
                                uint8_t* y) {
  F32 steps[4];
  center_bytes(load_bytes(a, count), of.of_a, steps);
  I32 rounds[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) rounds[v] = rounded(steps[v] * b[v] * of.multiplier + of.offset);
  const I32 low = add_words(to_words(rounds[0], rounds[1]), of.output.zero_point);
  const I32 high = add_words(to_words(rounds[2], rounds[3]), of.output.zero_point);
  store_bytes(y, to_bytes(low, high) ^ of.output.flip, count);
}

// The products of one run, all with one element of b.
JAXDML_INLINE void products_of_run(Product one, const ProductNumbers& of, int64_t at) {
  F32 b[4];
  center_bytes(splat_byte(one.b[at]), of.of_b, b);
  const uint8_t* a = one.a + at * one.run;
  uint8_t* y = one.y + at * one.run;
  for (int64_t i = 0; i < one.run; i += kBytes) put_products(a + i, of, b, at_most(kBytes, one.run - i), y + i);
}

JAXDML_INLINE void products_of_pairs(Product one, const ProductNumbers& of, int64_t first, int64_t last) {
  each_vector<kBytes>(first, last, [&](int64_t i, int64_t count) {
    F32 b[4];
    center_bytes(load_bytes(one.b + i, count), of.of_b, b);
    put_products(one.a + i, of, b, count, one.y + i);
  });
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
