// Reference implementations, one product at a time. Sums are modulo 2**32; floats flush subnormals to zero if the
// calling thread does.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels.h"

// These loops take most of the time, and are not under test.
#define JAXDML_UNCHECKED __attribute__((no_sanitize("address", "undefined", "thread")))

namespace jaxdml::test {

using Output = std::vector<uint8_t>;

inline int32_t number(const uint8_t* at, int64_t i, bool is_signed) { return is_signed ? int8_t(at[i]) : at[i]; }
inline int32_t number_of_width(const uint8_t* at, int64_t i, int64_t width, bool is_signed) {
  if (width == 1) return number(at, i, is_signed);
  const uint32_t word = at[2 * i] + 256u * at[2 * i + 1];
  return is_signed ? int16_t(word) : int32_t(word);
}
inline int32_t number(const ZeroPoints& of, int64_t i) { return number(of.at, i * of.step, of.is_signed); }
inline float number(const Scales& of, int64_t i) { return of.at[i * of.step]; }

// A product is flushed to zero if it lies below 2**-126 after it is rounded to 24 bits. The processor may detect
// underflow before rounding.
inline float product_of(float a, float b) {
  const double exact = double(a) * b;
  if (!(std::fabs(exact) < 0x1p-100)) return float(exact);
  const float far = float(exact * 0x1p64);
  return std::fabs(far) < 0x1p-62f ? std::copysign(0.0f, far) : far * 0x1p-64f;
}

// NaN saturates to the lowest value.
inline uint8_t saturated(float value, int32_t zero_point, bool is_signed) {
  const int32_t lowest = is_signed ? -128 : 0, highest = lowest + 255;
  if (std::isnan(value)) return uint8_t(lowest);
  const double whole = double(std::nearbyintf(value)) + zero_point;
  return uint8_t(whole < lowest ? lowest : whole > highest ? highest : int32_t(whole));
}

inline void put(Output& y, int64_t i, uint32_t sum, Type type, float multiplier, int32_t zero_point) {
  const float value = float(int32_t(sum)) * multiplier;
  if (type == Type::kInt32 || type == Type::kFloat32)
    memcpy(&y[size_t(i * 4)], type == Type::kInt32 ? static_cast<const void*>(&sum) : &value, 4);
  else
    y[size_t(i)] = saturated(value, zero_point, type == Type::kInt8);
}

// Adds a float to another; both are given by the address of their bits.
inline void add_bits(void* to, const void* bits) {
  float x, y;
  memcpy(&x, to, 4);
  memcpy(&y, bits, 4);
  x += y;
  memcpy(to, &x, 4);
}

JAXDML_UNCHECKED inline uint32_t dot(const int32_t* a, const int32_t* b, int64_t step, int64_t count) {
  uint32_t sum = 0;
  for (int64_t k = 0; k < count; k++) sum += uint32_t(a[k]) * uint32_t(b[k * step]);
  return sum;
}

// `b` is not packed.
inline Output expected(const Matmul& one, const uint8_t* b) {
  std::vector<int32_t> of_a(size_t(one.rows * one.depth)), of_b(size_t(one.depth * one.columns));
  for (int64_t i = 0; i < one.rows * one.depth; i++)
    of_a[size_t(i)] = number(one.a, i, one.a_zero_point.is_signed) - number(one.a_zero_point, i / one.depth);
  for (int64_t i = 0; i < one.depth * one.columns; i++)
    of_b[size_t(i)] = number(b, i, one.b_zero_point.is_signed) - number(one.b_zero_point, i % one.columns);
  Output y(size_t(one.rows * one.columns * size_of(one.type)));
  for (int64_t m = 0; m < one.rows; m++)
    for (int64_t n = 0; n < one.columns; n++) {
      const bool is_float = one.type == Type::kFloat32;
      const uint32_t bias = one.bias && !is_float ? uint32_t(one.bias[n]) : 0;
      const uint32_t sum = bias + dot(of_a.data() + m * one.depth, of_b.data() + n, one.columns, one.depth);
      const float scale = product_of(number(one.a_scale, m), number(one.b_scale, n));
      const float multiplier = is_float ? scale : scale / number(one.y_scale, m);
      put(y, m * one.columns + n, sum, one.type, multiplier, number(one.y_zero_point, m));
      if (one.bias && is_float) add_bits(&y[size_t((m * one.columns + n) * 4)], one.bias + n);
    }
  return y;
}

// The sum of products at output pixel (i, j): one output channel's filter times a window of the image. Padding adds 0.
JAXDML_UNCHECKED inline uint32_t window(const Convolution& one, const int32_t* image, const int32_t* of_filter,
                                        int64_t i, int64_t j) {
  const Filter& filter = one.filter;
  uint32_t sum = 0;
  for (int64_t u = 0; u < filter.rows; u++)
    for (int64_t v = 0; v < filter.columns; v++) {
      const int64_t row = i * one.stride[0] + u * one.dilation[0] - one.start[0];
      const int64_t column = j * one.stride[1] + v * one.dilation[1] - one.start[1];
      if (row < 0 || row >= one.height || column < 0 || column >= one.width) continue;
      for (int64_t c = 0; c < filter.channels; c++)
        sum += uint32_t(image[(c * one.height + row) * one.width + column]) *
               uint32_t(of_filter[(c * filter.rows + u) * filter.columns + v]);
    }
  return sum;
}

// `filter` is not packed.
inline Output expected(const Convolution& one, const uint8_t* filter) {
  const Filter& shape = one.filter;
  const int64_t depth = shape.channels * shape.rows * shape.columns, channels = shape.groups * shape.channels;
  std::vector<int32_t> weights(size_t(shape.outputs * depth));
  for (int64_t i = 0; i < shape.outputs * depth; i++)
    weights[size_t(i)] = number(filter, i, one.filter_zero_point.is_signed) - number(one.filter_zero_point, i / depth);
  const int64_t size = one.height * one.width;
  std::vector<int32_t> images(size_t(one.batch * channels * size));
  for (size_t i = 0; i < images.size(); i++)
    images[i] = number(one.x, int64_t(i), one.x_zero_point.is_signed) - number(one.x_zero_point, 0);
  Output y(size_t(one.batch * shape.outputs * one.y_height * one.y_width * size_of(one.type)));
  int64_t at = 0;
  for (int64_t n = 0; n < one.batch; n++)
    for (int64_t o = 0; o < shape.outputs; o++) {
      const int64_t group = o / (shape.outputs / shape.groups);
      const int32_t* image = images.data() + (n * channels + group * shape.channels) * size;
      const float multiplier = product_of(number(one.x_scale, 0), number(one.filter_scale, o)) / number(one.y_scale, 0);
      for (int64_t i = 0; i < one.y_height; i++)
        for (int64_t j = 0; j < one.y_width; j++) {
          const uint32_t sum = window(one, image, weights.data() + o * depth, i, j);
          const uint32_t bias = one.bias ? uint32_t(one.bias[o]) : 0;
          put(y, at++, sum + bias, one.type, multiplier, number(one.y_zero_point, 0));
        }
    }
  return y;
}

inline Output expected(const Sum& one) {
  Output y(size_t(one.size));
  for (int64_t i = 0; i < one.size; i++) {
    const float a = float(number(one.a, i, one.a_is_signed) - one.a_zero_point) * one.a_scale;
    const float b = float(number(one.b, i, one.b_is_signed) - one.b_zero_point) * one.b_scale;
    y[size_t(i)] = saturated((a + b) / one.y_scale, one.y_zero_point, one.y_is_signed);
  }
  return y;
}

inline Output expected(const Quantization& one) {
  Output y(size_t(one.size * one.width));
  for (int64_t i = 0; i < one.size; i++) {
    const float steps = one.x[i] / one.scale;
    if (one.width == 1) {
      y[size_t(i)] = saturated(steps, one.zero_point, one.is_signed);
      continue;
    }
    const double low = one.is_signed ? -0x8000 : 0, value = std::nearbyint(double(steps)) + one.zero_point;
    const auto word = uint16_t(int32_t(value > low ? std::min(value, low + 0xffff) : low));
    memcpy(&y[size_t(i * 2)], &word, 2);
  }
  return y;
}

inline Output expected(const Dequantization& one) {
  Output y(size_t(one.size * 4));
  for (int64_t i = 0; i < one.size; i++) {
    const float value = float(number_of_width(one.x, i, one.width, one.is_signed) - one.zero_point) * one.scale;
    memcpy(&y[size_t(i * 4)], &value, 4);
  }
  return y;
}

inline Output expected(const Range& one) {
  float ends[2] = {0, 0};
  bool has_nan = false;
  for (int64_t i = 0; i < one.size; i++) {
    has_nan |= one.x[i] != one.x[i];
    if (one.x[i] < ends[0]) ends[0] = one.x[i];
    if (one.x[i] > ends[1]) ends[1] = one.x[i];
  }
  if (has_nan) ends[0] = ends[1] = std::numeric_limits<float>::quiet_NaN();
  Output y(8);
  memcpy(y.data(), ends, 8);
  return y;
}

// The rows, then the zero points, then the scales.
inline Output expected(const RowQuantization& one) {
  Output y(size_t(one.rows * (one.depth + 5)));
  for (int64_t m = 0; m < one.rows; m++) {
    const float* const x = one.x + m * one.depth;
    float low = 0, high = 0;
    bool has_nan = false;
    for (int64_t i = 0; i < one.depth; i++) {
      has_nan |= x[i] != x[i];
      low = std::min(low, x[i]);
      high = std::max(high, x[i]);
    }
    const float extent = high - low, scale = has_nan  ? std::numeric_limits<float>::quiet_NaN()
                                             : extent ? extent / 255
                                                      : 1;
    const uint8_t zero_point = saturated(0 - low / scale, 0, false);
    memcpy(y.data() + one.rows * (one.depth + 1) + m * 4, &scale, 4);
    y[size_t(one.rows * one.depth + m)] = zero_point;
    for (int64_t i = 0; i < one.depth; i++) y[size_t(m * one.depth + i)] = saturated(x[i] / scale, zero_point, false);
  }
  return y;
}

inline Output expected(const Rows& one) {
  Output y(size_t(one.rows * 4));
  for (int64_t m = 0; m < one.rows; m++) {
    uint32_t sum = 0;
    for (int64_t k = 0; k < one.depth; k++) sum += uint32_t(number(one.x, m * one.depth + k, one.is_signed));
    memcpy(&y[size_t(m * 4)], &sum, 4);
  }
  return y;
}

inline Output expected(const Means& one) {
  Output y(size_t(one.rows));
  for (int64_t m = 0; m < one.rows; m++) {
    uint32_t sum = 0;
    for (int64_t k = 0; k < one.depth; k++)
      sum += uint32_t(number(one.x, m * one.depth + k, one.x_is_signed) - one.x_zero_point);
    const float mean = float(int32_t(sum)) * one.x_scale / float(one.depth);
    y[size_t(m)] = saturated(mean / one.y_scale, one.y_zero_point, one.y_is_signed);
  }
  return y;
}

inline Output expected(const MaxPool& one) {
  const int32_t lowest = one.is_signed ? -128 : 0;
  Output y(size_t(one.images * one.y_height * one.y_width));
  size_t at = 0;
  for (int64_t n = 0; n < one.images; n++)
    for (int64_t i = 0; i < one.y_height; i++)
      for (int64_t j = 0; j < one.y_width; j++) {
        int32_t greatest = lowest;
        for (int64_t u = 0; u < one.window[0]; u++)
          for (int64_t v = 0; v < one.window[1]; v++) {
            const int64_t row = i * one.stride[0] + u * one.dilation[0] - one.start[0];
            const int64_t column = j * one.stride[1] + v * one.dilation[1] - one.start[1];
            if (row < 0 || row >= one.height || column < 0 || column >= one.width) continue;
            const int32_t value = number(one.x, (n * one.height + row) * one.width + column, one.is_signed);
            greatest = value > greatest ? value : greatest;
          }
        y[at++] = uint8_t(greatest);
      }
  return y;
}

inline Output expected(const LookUp& one) {
  const int32_t least = !one.is_signed ? 0 : one.x_width == 1 ? -128 : -32768;
  Output y;
  for (int64_t i = 0; i < one.size; i++) {
    const uint8_t* entry = one.table + (number_of_width(one.x, i, one.x_width, one.is_signed) - least) * one.y_width;
    y.insert(y.end(), entry, entry + one.y_width);
  }
  return y;
}

// The zero point is added before rounding; NaN and values that int32 cannot hold saturate to the lowest value.
inline Output expected(const Product& one) {
  const int32_t lowest = one.y_is_signed ? -128 : 0, highest = lowest + 255;
  Output y(size_t(one.size));
  for (int64_t i = 0; i < one.size; i++) {
    const int32_t a = number(one.a, i, one.a_is_signed) - one.a_zero_point;
    const int32_t b = number(one.b, i / one.run, one.b_is_signed) - one.b_zero_point;
    const float scaled = float(a * b) * one.multiplier;
    const float value = std::nearbyintf(scaled + float(one.y_zero_point));
    const bool is_in_range = value < 0x1p31f;  // false for NaN
    y[size_t(i)] = uint8_t(!is_in_range || value < float(lowest) ? lowest
                           : value > float(highest)              ? highest
                                                                 : int32_t(value));
  }
  return y;
}

// An element of 4 or 8 bits as an unsigned integer: int4 plus 8, int8 plus 128.
inline int32_t number(const Elements& of, int64_t i) {
  i += of.first;
  const int32_t bits = of.bits == 8 ? of.at[i] : of.at[i / 2] >> (i % 2 * 4) & 15;
  return of.is_signed ? bits ^ (of.bits == 8 ? 128 : 8) : bits;
}

// `half` maps the bits of a float16 to a float.
inline Output expected(const BlockProduct& one, const BlockMatrix& matrix, float (*half)(uint16_t)) {
  const BlockShape& of = one.shape;
  const int64_t blocks = (of.depth + of.size - 1) / of.size, middle = of.bits == 4 ? 8 : 128;
  const float largest = one.planes == 1 ? 127.f : one.planes == 2 ? 16319.f : 2088895.f;
  Output y(size_t(one.rows * of.columns) * 4);
  for (int64_t m = 0; m < one.rows; m++) {
    std::vector<float> totals(size_t(of.columns), -0.0f);
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t first = block * of.size, last = std::min(of.depth, first + of.size);
      float high = 0;
      for (int64_t k = first; k < last; k++) high = std::max(high, std::fabs(one.a[m * of.depth + k]));
      const bool is_live = high >= largest * 0x1p-126f;
      const float a_scale = is_live ? high / largest : 0, inverse = is_live ? largest / high : 0;
      for (int64_t n = 0; n < of.columns; n++) {
        int64_t sums[3] = {};  // the highest plane last
        for (int64_t k = first; k < last; k++) {
          const int64_t at = n * blocks + block,
                        zero_point = of.has_zero_points ? number(matrix.zero_points, at) : middle;
          const int64_t weight = number(matrix.weights, n * of.depth + k) - zero_point;
          int64_t rest = int64_t(std::nearbyintf(one.a[m * of.depth + k] * inverse));
          for (int64_t p = 0; p < one.planes; p++) {
            const int64_t plane = p + 1 < one.planes ? ((rest + 64) & 127) - 64 : rest;
            rest = (rest - plane) / 128;
            sums[p] += plane * weight;
          }
        }
        float product = float(sums[one.planes - 1]), scale;
        for (int64_t p = one.planes - 1; p-- > 0;) product = product * 128 + float(sums[p]);
        const uint8_t* const at = matrix.scales + (n * blocks + block) * of.scale_bytes;
        uint16_t bits;
        memcpy(&bits, at, 2);
        if (of.scale_bytes == 4)
          memcpy(&scale, at, 4);
        else
          scale = half(bits);
        totals[size_t(n)] += product_of(a_scale, scale) * product;
      }
    }
    for (int64_t n = 0; n < of.columns; n++) {
      const float total = one.bias ? totals[size_t(n)] + one.bias[n] : totals[size_t(n)];
      memcpy(&y[size_t(m * of.columns + n) * 4], &total, 4);
    }
  }
  return y;
}

inline Output expected(const BlockDequantization& one) {
  Output y(size_t(one.blocks * one.size) * 4);
  for (int64_t i = 0; i < one.blocks * one.size; i++) {
    const int32_t middle = one.x.bits == 4 ? 8 : 128, block = int32_t(i / one.size);
    const int32_t zero_point = one.zero_points.at ? number(one.zero_points, block) : middle;
    const float value = float(number(one.x, i) - zero_point) * one.scales[block];
    memcpy(&y[size_t(i) * 4], &value, 4);
  }
  return y;
}

}  // namespace jaxdml::test
