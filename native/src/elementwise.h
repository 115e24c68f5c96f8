// Elementwise kernels (add, quantize, dequantize) and reductions (range of a tensor, sums of rows).
#pragma once

#include "centered.h"
#include "divisor.h"

namespace jaxdml::JAXDML_ISA {

constexpr int64_t kChunk = 1 << 16;  // elements per item

// Arguments are passed by value: a store of bytes could change a referenced value, so each iteration would reload it.
template <bool kByReciprocal>
static void add_chunk(Sum one, Divisor by, int64_t first, int64_t last) {
  const Output output = output_of(one.y_zero_point, one.y_is_signed);
  const Centering of_a = centering(one.a_zero_point, one.a_is_signed, 1);
  const Centering of_b = centering(one.b_zero_point, one.b_is_signed, 1);
  const F32 a_scale = splat(one.a_scale), b_scale = splat(one.b_scale);
  each_vector<kBytes>(first, last, [&](int64_t i, int64_t count) {
    F32 a[4], b[4], y[4];
    center_bytes(load_bytes(one.a + i, count), of_a, a);
    center_bytes(load_bytes(one.b + i, count), of_b, b);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) y[v] = quotient<kByReciprocal>(a[v] * a_scale + b[v] * b_scale, by);
    store_bytes(one.y + i, saturated<!kByReciprocal>(y, output), count);
  });
}

static void add(const Pool& pool, const Sum* problems, int64_t count) {
  const int64_t chunks = ceil_div(problems[0].size, kChunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t) {
    const Sum& one = problems[item / chunks];
    const int64_t first = item % chunks * kChunk, last = at_most(one.size, first + kChunk);
    const float a = one.a_scale < 0 ? -one.a_scale : one.a_scale, b = one.b_scale < 0 ? -one.b_scale : one.b_scale;
    const float largest = 255 * (a + b), y = one.y_scale < 0 ? -one.y_scale : one.y_scale;
    const Divisor by = divisor_of(one.y_scale, largest);
    if (by.is_exact_by_reciprocal && largest < 0x1p29f * y)
      add_chunk<true>(one, by, first, last);
    else
      add_chunk<false>(one, by, first, last);
  });
}

template <bool kByReciprocal>
static void quantize_chunk(Quantization one, Steps by, int64_t first, int64_t last) {
  const Output output = output_of(one.zero_point, one.is_signed);
  each_vector<kBytes>(first, last, [&](int64_t i, int64_t count) {
    float copy[kBytes] = {};
    const float* from = whole(one.x + i, count, copy);
    F32 y[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) y[v] = steps<kByReciprocal>(load_floats(from + v * kLanes), by);
    put_bytes<!kByReciprocal>(one.y + i, y, output, count);
  });
}

template <bool kByReciprocal>
static void quantize_words(Quantization one, Steps by, int64_t first, int64_t last) {
  const I32 zero_point = splat(one.zero_point), lowest = splat(one.is_signed ? -0x8000 : 0);
  const I32 highest = splat(one.is_signed ? 0x7fff : 0xffff);
  each_vector(first, last, [&](int64_t i, int64_t count) {
    float copy[kLanes] = {};
    const F32 y = steps<kByReciprocal>(load_floats(whole(one.x + i, count, copy)), by);
    // NaN becomes the lowest int32. All other numbers fit, so that the addition of the zero point does not overflow.
    const I32 near = greater(rounded(kByReciprocal ? y : lesser(splat(0x1p30f), y)), splat(-0x40000000));
    const LowWords words = __builtin_convertvector(lesser(greater(near + zero_point, lowest), highest), LowWords);
    memcpy(one.y + i * 2, &words, size_t(count) * 2);
  });
}

// Quantizes the elements `first` to `last`.
static void quantize_elements(const Quantization& one, int64_t first, int64_t last) {
  const Steps by = steps_of(one.scale);
  if (one.width == 2)
    return by.by.is_exact_by_reciprocal ? quantize_words<true>(one, by, first, last)
                                        : quantize_words<false>(one, by, first, last);
  if (by.by.is_exact_by_reciprocal)
    quantize_chunk<true>(one, by, first, last);
  else
    quantize_chunk<false>(one, by, first, last);
}

static void quantize(const Pool& pool, const Quantization* problems, int64_t count) {
  const int64_t chunks = ceil_div(problems[0].size, kChunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t) {
    const Quantization& one = problems[item / chunks];
    const int64_t first = item % chunks * kChunk;
    quantize_elements(one, first, at_most(one.size, first + kChunk));
  });
}

template <int64_t kWidth>
static void dequantize_chunk(const Dequantization& one, int64_t first, int64_t last) {
  const Centering by = centering(one.zero_point, one.is_signed, kWidth);
  const F32 scale = splat(one.scale);
  each_vector(first, last, [&](int64_t i, int64_t n) {
    uint8_t copy[kLanes * kWidth] = {};
    const F32 y = centered<kWidth>(whole(one.x + i * kWidth, n * kWidth, copy), by) * scale;
    if (n == kLanes)
      store(one.y + i, (I32)y);
    else
      memcpy(one.y + i, &y, size_t(n) * 4);
  });
}

static void dequantize(const Pool& pool, const Dequantization* problems, int64_t count) {
  const int64_t chunks = ceil_div(problems[0].size, kChunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t) {
    const Dequantization& one = problems[item / chunks];
    const int64_t first = item % chunks * kChunk, last = at_most(one.size, first + kChunk);
    if (one.width == 1)
      dequantize_chunk<1>(one, first, last);
    else
      dequantize_chunk<2>(one, first, last);
  });
}

// The minimum and maximum of 0 and all elements except NaN, and whether any element is NaN.
struct Ends {
  float low, high;
  bool has_nan;
};

static Ends ends_of(const float* x, int64_t first, int64_t last) {
  F32 low = splat(0.0f), high = splat(0.0f);
  I32 nan = splat(0);
  each_vector(first, last, [&](int64_t i, int64_t count) {
    float copy[kLanes] = {};
    const F32 values = load_floats(whole(x + i, count, copy));
    low = lesser(values, low);
    high = greater(values, high);
    nan |= (I32)(values != values);
  });
  Ends ends = {0, 0, false};
  for (int lane = 0; lane < kLanes; lane++) {
    ends.low = low[lane] < ends.low ? low[lane] : ends.low;
    ends.high = high[lane] > ends.high ? high[lane] : ends.high;
    ends.has_nan |= nan[lane] != 0;
  }
  return ends;
}

static void extremes(const Pool& pool, const Range* problems, int64_t count) {
  constexpr int64_t kMostParts = 64;
  const int64_t size = problems[0].size, parts = at_most(ceil_div(size, kChunk), kMostParts);
  const auto put = [](const Range& one, const Ends* ends, int64_t n) {
    Ends all = ends[0];
    for (int64_t i = 1; i < n; i++) {
      all.low = ends[i].low < all.low ? ends[i].low : all.low;
      all.high = ends[i].high > all.high ? ends[i].high : all.high;
      all.has_nan |= ends[i].has_nan;
    }
    one.y[0] = all.has_nan ? __builtin_nanf("") : all.low;
    one.y[1] = all.has_nan ? __builtin_nanf("") : all.high;
  };
  if (parts == 1) {
    parallel(pool, count, [&](int64_t item, int64_t) {
      const Ends ends = ends_of(problems[item].x, 0, size);
      put(problems[item], &ends, 1);
    });
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    Ends ends[kMostParts];
    parallel(pool, parts, [&](int64_t part, int64_t) {
      ends[part] = ends_of(problems[i].x, size * part / parts, size * (part + 1) / parts);
    });
    put(problems[i], ends, parts);
  }
}

static int32_t row_sum(const uint8_t* x, int64_t depth, bool is_signed) {
  const uint8_t flip = flip_to_unsigned(is_signed);
  I32 lanes = splat(0);
  int64_t i = 0;
  for (; i + kLanes <= depth; i += kLanes) lanes += from_unsigned_bytes(x + i) ^ splat(flip);
  uint32_t sum = 0;
  for (; i < depth; i++) sum += x[i] ^ flip;
  for (int lane = 0; lane < kLanes; lane++) sum += uint32_t(lanes[lane]);
  return int32_t(sum - uint32_t(flip) * uint32_t(depth));
}

static void row_sums(const Pool& pool, const Rows* problems, int64_t count) {
  const int64_t rows = problems[0].rows, depth = problems[0].depth;
  const int64_t block = at_most(rows, 1 + kChunk / (depth + 1)), blocks = ceil_div(rows, block);
  parallel(pool, count * blocks, [&](int64_t item, int64_t) {
    const Rows& one = problems[item / blocks];
    const int64_t first = item % blocks * block, last = at_most(rows, first + block);
    for (int64_t m = first; m < last; m++) one.y[m] = row_sum(one.x + m * depth, depth, one.is_signed);
  });
}

}  // namespace jaxdml::JAXDML_ISA
