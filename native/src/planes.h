// The input of a convolution as planes in which each element of the kernel sees one run of memory.
//
// Every channel is padded, and split by the phases of its rows and columns modulo the strides. Output pixel (i, j) then
// sees, through kernel element (u, v), position i * pitch + j of a plane, plus an offset that depends on u and v alone.
// Positions between the end of a row of the output and the next row are computed and thrown away.
#pragma once

#include "common.h"
#include "filter.h"

namespace jaxdml::JAXDML_ISA {

struct Planes {
  bool is_input;          // no padding, no strides: the input is its own planes
  int64_t phases[2];      // that the kernel sees
  int64_t height, pitch;  // of a phase
  int64_t channel;        // bytes
  int64_t positions;
};

JAXDML_INLINE Planes planes_of(const Convolution& one) {
  Planes planes;
  const int64_t kernel[2] = {one.filter.rows, one.filter.columns}, size[2] = {one.height, one.width};
  int64_t padded[2];
  planes.is_input = true;
  for (int i = 0; i < 2; i++) {
    padded[i] = ceil_div(size[i] + one.start[i] + one.end[i], one.stride[i]);
    planes.phases[i] = 1;
    for (int64_t u = 0; u < kernel[i]; u++)
      planes.phases[i] = at_least(planes.phases[i], u * one.dilation[i] % one.stride[i] + 1);
    planes.is_input &= one.stride[i] == 1 && one.start[i] == 0 && one.end[i] == 0;
  }
  planes.height = padded[0];
  planes.pitch = padded[1];
  planes.channel = planes.phases[0] * planes.phases[1] * planes.height * planes.pitch;
  planes.positions = (one.y_height - 1) * planes.pitch + one.y_width;
  return planes;
}

// Of kernel element (u, v).
JAXDML_INLINE int64_t plane_offset(const Convolution& one, const Planes& planes, int64_t u, int64_t v) {
  const int64_t row = u * one.dilation[0], column = v * one.dilation[1];
  const int64_t phase = row % one.stride[0] * planes.phases[1] + column % one.stride[1];
  return (phase * planes.height + row / one.stride[0]) * planes.pitch + column / one.stride[1];
}

// One channel of the input into its planes.
JAXDML_INLINE void fill_planes(const Convolution& one, const Planes& planes, const uint8_t* x, uint8_t* to) {
  memset(to, one.x_zero_point.at[0], planes.channel);
  for (int64_t a = 0; a < planes.phases[0]; a++)
    for (int64_t i = 0; i < planes.height; i++) {
      const int64_t row = i * one.stride[0] + a - one.start[0];
      if (row < 0 || row >= one.height) continue;
      for (int64_t b = 0; b < planes.phases[1]; b++) {
        uint8_t* line = to + ((a * planes.phases[1] + b) * planes.height + i) * planes.pitch;
        const uint8_t* from = x + row * one.width;
        if (one.stride[1] == 1) {
          copy_bytes(line + one.start[1], from, one.width);
          continue;
        }
        const int64_t stride = one.stride[1], first = at_least(ceil_div(one.start[1] - b, stride), 0);
        const int64_t end = at_most(ceil_div(at_least(one.width + one.start[1] - b, 0), stride), planes.pitch);
        const int64_t shift = b - one.start[1];
        if (stride == 2)
          for (int64_t j = first; j < end; j++) line[j] = from[j * 2 + shift];
        else
          for (int64_t j = first; j < end; j++) line[j] = from[j * stride + shift];
      }
    }
}

// Copies what positions first to first + count compute to the rows of an output channel.
JAXDML_INLINE void store_positions(const Convolution& one, const Planes& planes, const uint8_t* values, int64_t first,
                                   int64_t count, int64_t size, uint8_t* y) {
  if (planes.pitch == one.y_width) {
    copy_bytes(y + first * size, values, count * size);
    return;
  }
  int64_t row = first / planes.pitch, column = first % planes.pitch;
  for (int64_t p = 0; p < count;) {
    const int64_t kept = at_most(one.y_width - column, count - p);
    if (kept > 0) copy_bytes(y + (row * one.y_width + column) * size, values + p * size, kept * size);
    p += planes.pitch - column;
    column = 0;
    row++;
  }
}

}  // namespace jaxdml::JAXDML_ISA
