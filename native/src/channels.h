// Epilogue parameters of each output channel of a convolution, and the address of each output channel.
//
// Let x be the input and w the filter. The sum of (x - x_zero_point) * (w - w_zero_point) over a window is the sum of
// x * w, minus w_zero_point * (sum of x), plus a constant of the output channel. This constant plus the bias is the
// channel's offset. The arithmetic is exact modulo 2**32.
#pragma once

#include "epilogue.h"
#include "filter.h"

namespace jaxdml::JAXDML_ISA {

// Arrays over all output channels of one problem.
struct Channels {
  int32_t* offsets;      // bias plus the input zero point's term
  int32_t* zero_points;  // the filter's zero points, minus 128 if they are uint8
  float* multipliers;
  bool has_zero_points;
  Output output;
};

JAXDML_INLINE Channels* take_channels(const Filter& filter, int64_t problems, Arena& arena) {
  const int64_t count = filter.outputs + kLanes;  // kernels load whole vectors
  auto* channels = take<Channels>(arena, problems);
  for (int64_t i = 0; i < problems; i++) {
    auto* offsets = take<int32_t>(arena, count);
    auto* zero_points = take<int32_t>(arena, count);
    auto* multipliers = take<float>(arena, count);
    if (channels) channels[i] = Channels{offsets, zero_points, multipliers, false, Output{}};
  }
  return channels;
}

// `of_x` is the zero point of the activations after the kernel's conversion; see matmul.h for the formula. Each array
// has its own loop, because compilers vectorize loops that write one array.
JAXDML_INLINE void set_channels(const Convolution& one, int32_t of_x, Channels& channels) {
  const int64_t outputs = one.filter.outputs;
  const ZeroPoints of_filter = one.filter_zero_point;
  int32_t* const zero_points = channels.zero_points;
  for (int64_t o = 0; o < outputs; o++) zero_points[o] = as_weight(of_filter, o);
  int32_t any = 0;
  for (int64_t o = 0; o < outputs; o++) any |= zero_points[o];
  channels.has_zero_points = any != 0;
  const uint32_t x_zero_point = uint32_t(of_x);
  const uint32_t depth = uint32_t(filter_depth(one.filter));
  const int32_t* const sums = packed_filter(one).sums;
  int32_t* const offsets = channels.offsets;
  for (int64_t o = 0; o < outputs; o++)
    offsets[o] = int32_t(0 - x_zero_point * (uint32_t(sums[o]) - depth * uint32_t(zero_points[o])));
  if (const int32_t* const bias = one.bias)
    for (int64_t o = 0; o < outputs; o++) offsets[o] = int32_t(uint32_t(offsets[o]) + uint32_t(bias[o]));
  if (one.type == Type::kInt32) return;
  const float x_scale = value(one.x_scale, 0), y_scale = value(one.y_scale, 0);
  const Scales filter_scale = one.filter_scale;
  float* const multipliers = channels.multipliers;
  for (int64_t o = 0; o < outputs; o++) multipliers[o] = product(x_scale, value(filter_scale, o)) / y_scale;
  channels.output = output_of(value(one.y_zero_point, 0), one.type == Type::kInt8);
  const auto* const bits = reinterpret_cast<const Dword*>(multipliers);
  int32_t largest = 0;  // magnitudes of floats have the order of their bits
  for (int64_t o = 0; o < outputs; o++) {
    const int32_t magnitude = bits[o] & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  channels.output.may_be_large = largest > 0x3f000000;  // 0.5: sums are at most 2**31
}

JAXDML_INLINE uint8_t* y_channel(const Convolution& one, int64_t n, int64_t o) {
  return static_cast<uint8_t*>(one.y) + (n * one.filter.outputs + o) * one.y_height * one.y_width * size_of(one.type);
}

}  // namespace jaxdml::JAXDML_ISA
