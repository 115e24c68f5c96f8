// What the output channels of a convolution need after the sums; where its output goes.
#pragma once

#include "epilogue.h"
#include "filter.h"

namespace jaxdml::JAXDML_ISA {

// Of all output channels of a problem.
struct Channels {
  int32_t* offsets;      // bias, and what the input's zero point adds
  int32_t* zero_points;  // of the filter, as int8 weights have them
  float* multipliers;
  bool has_zero_points;
  Output output;
};

JAXDML_INLINE Channels* take_channels(const Filter& filter, int64_t problems, Arena& arena) {
  const int64_t count = filter.outputs + kLanes;  // whole vectors are read
  auto* channels = take<Channels>(arena, problems);
  for (int64_t i = 0; i < problems; i++) {
    auto* offsets = take<int32_t>(arena, count);
    auto* zero_points = take<int32_t>(arena, count);
    auto* multipliers = take<float>(arena, count);
    if (channels) channels[i] = Channels{offsets, zero_points, multipliers, false, Output{}};
  }
  return channels;
}

// x_offset is what the input's values have lost when they are multiplied; see matmul.h for the formula.
JAXDML_INLINE void set_channels(const Convolution& one, int32_t x_offset, Channels& channels) {
  const Packed packed = packed_filter(one);
  const uint32_t zero_point = uint32_t(as_activation(one.x_zero_point, 0) - x_offset);
  channels.has_zero_points = false;
  for (int64_t o = 0; o < one.filter.outputs; o++) {
    const int32_t of_filter = as_weight(one.filter_zero_point, o);
    channels.zero_points[o] = of_filter;
    channels.has_zero_points |= of_filter != 0;
    const uint32_t sum = uint32_t(packed.sums[o]) - uint32_t(filter_depth(one.filter)) * uint32_t(of_filter);
    channels.offsets[o] = int32_t((one.bias ? uint32_t(one.bias[o]) : 0) - zero_point * sum);
    if (one.type != Type::kInt32)
      channels.multipliers[o] = (value(one.x_scale, 0) * value(one.filter_scale, o)) / value(one.y_scale, 0);
  }
  if (one.type != Type::kInt32) channels.output = output_of(value(one.y_zero_point, 0), one.type == Type::kInt8);
}

JAXDML_INLINE uint8_t* y_channel(const Convolution& one, int64_t n, int64_t o) {
  return static_cast<uint8_t*>(one.y) + (n * one.filter.outputs + o) * one.y_height * one.y_width * size_of(one.type);
}

}  // namespace jaxdml::JAXDML_ISA
