// Splits a channel of the input into planes, in which each kernel element reads one contiguous run of bytes.
//
// A plane holds the rows and columns of one phase: those whose indices are congruent modulo the stride. For output
// pixel (i, j), kernel element (u, v) reads position i * pitch + j of a plane, plus an offset that depends only on u
// and v. Where output rows are narrower than the pitch, the positions between output rows are computed and discarded.
//
// Planes have padding rows but usually no padding columns: a read beyond a row's end returns another row's bytes, and a
// mask replaces them with padding. A mask takes as much memory as a row. If the kernel has more columns than the output
// has rows, masks would take more memory than padding columns, so planes have padding columns instead.
//
// A plane has only the padding that it needs: the shift of a kernel element that reads only padding is clamped to just
// outside the image. The size of planes therefore depends only on the image and the output, however large padding and
// dilations are.
#pragma once

#include <numeric>

#include "common.h"

namespace jaxdml::JAXDML_ISA {

// The displacement of a kernel row (i = 0) or column (i = 1), in steps of the stride, and its phase modulo the stride.
// Steps are clamped: beyond the bounds, every output reads padding.
struct Shift {
  int64_t steps, phase;
};
JAXDML_INLINE Shift shift_of(const Convolution& one, int i, int64_t element) {
  const int64_t offset = element * one.dilation[i] - one.start[i], stride = one.stride[i];
  const int64_t steps = offset >= 0 ? offset / stride : -ceil_div(-offset, stride);
  const int64_t least = -(i ? one.y_width : one.y_height), most = ceil_div(i ? one.width : one.height, stride);
  return {at_least(least, at_most(steps, most)), offset - steps * stride};
}

struct Planes {
  int64_t phases[2];                      // numbers of row and column phases that a kernel reads; each pair has a plane
  int64_t first_phase[2], next_phase[2];  // phases of the kernel's first row and column; increments per row and column
  int64_t before;                         // bytes before the first plane, which vectors at its left edge may read
  bool has_columns;                       // planes have padding columns
  int64_t above, left;                    // padding rows and columns of a plane
  int64_t height, pitch;                  // rows and columns of a plane
  int64_t size;                           // bytes of all planes
  int64_t positions;

  // Whether positions are outputs without gaps.
  bool is_dense(const Convolution& one) const { return pitch == one.y_width || one.y_height == 1; }
  int64_t at(int64_t plane, int64_t row) const { return before + (plane * height + above + row) * pitch + left; }
};

JAXDML_INLINE Planes planes_of(const Convolution& one) {
  const int64_t first = shift_of(one, 0, 0).steps, last = shift_of(one, 0, one.filter.rows - 1).steps;
  const int64_t first_column = shift_of(one, 1, 0).steps, last_column = shift_of(one, 1, one.filter.columns - 1).steps;
  Planes planes;
  // The phases of kernel elements repeat with this period.
  for (int i = 0; i < 2; i++) {
    planes.phases[i] =
        at_most(i ? one.filter.columns : one.filter.rows, one.stride[i] / std::gcd(one.stride[i], one.dilation[i]));
    planes.first_phase[i] = shift_of(one, i, 0).phase;
    planes.next_phase[i] = one.dilation[i] % one.stride[i];
  }
  planes.has_columns = one.filter.columns > one.y_height;
  planes.before = planes.has_columns ? 0 : round_up(at_least(0, -first_column), 64);
  planes.left = planes.has_columns ? at_least(0, -first_column) : 0;
  planes.above = at_least(0, -first);
  planes.height = planes.above + at_least(ceil_div(one.height, one.stride[0]), one.y_height + last);
  planes.pitch = planes.left + at_least(ceil_div(one.width, one.stride[1]),
                                        one.y_width + (planes.has_columns ? at_least(last_column, 0) : 0));
  planes.positions = (one.y_height - 1) * planes.pitch + one.y_width;
  planes.size = planes.at(planes.phases[0] * planes.phases[1], 0) + (planes.has_columns ? 0 : at_least(last_column, 0));
  planes.size = round_up(planes.size + kBytes, 64);
  return planes;
}

// The offset that kernel element (u, v) adds to a position.
JAXDML_INLINE int64_t plane_offset(const Convolution& one, const Planes& planes, int64_t u, int64_t v) {
  const int64_t plane = u % planes.phases[0] * planes.phases[1] + v % planes.phases[1];
  return planes.at(plane, shift_of(one, 0, u).steps) + shift_of(one, 1, v).steps;
}

// The output columns for which a kernel column reads the image, not padding.
struct Inside {
  int64_t begin, end;
};
JAXDML_INLINE Inside inside_of(const Convolution& one, int64_t v) {
  const Shift shift = shift_of(one, 1, v);
  const int64_t end = ceil_div(one.width - shift.phase, one.stride[1]) - shift.steps;
  const int64_t begin = at_most(at_least(0, -shift.steps), one.y_width);
  return {begin, at_least(begin, at_most(end, one.y_width))};
}

// Sets 255 for columns inside and 0 for all other columns, repeating every `pitch` bytes.
JAXDML_INLINE void set_mask(const Inside& inside, int64_t pitch, int64_t count, uint8_t* mask) {
  memset(mask, 0, size_t(count));
  for (int64_t at = inside.begin; at < count; at += pitch)
    memset(mask + at, 255, size_t(at_most(inside.end - inside.begin, count - at)));
}

// Copies a row of the image to all column phases, whose planes are `plane` bytes apart.
JAXDML_INLINE void fill_row(const Convolution& one, const Planes& planes, const uint8_t* from, int64_t plane,
                            uint8_t* to) {
  const int64_t count = planes.phases[1], stride = one.stride[1];
  if (stride == 1) return copy_bytes(to, from, one.width);
  if (stride == 2) {
    uint8_t* halves[2] = {};
    for (int64_t v = 0; v < count; v++) halves[v ^ planes.first_phase[1]] = to + v * plane;
    return split_bytes(from, one.width, halves[0], halves[1]);
  }
  for (int64_t v = 0, phase = planes.first_phase[1]; v < count; v++, to += plane) {
    for (int64_t j = phase, at = 0; j < one.width; j += stride) to[at++] = from[j];
    phase += planes.next_phase[1];
    if (phase >= stride) phase -= stride;
  }
}

// Copies a channel of the input into its planes, whose padding is already set.
JAXDML_INLINE void fill_planes(const Convolution& one, const Planes& planes, const uint8_t* x, uint8_t* to) {
  const int64_t plane = planes.height * planes.pitch, stride = one.stride[0];
  if (stride == 1 && one.stride[1] == 1 && planes.pitch == one.width)
    return copy_bytes(to + planes.at(0, 0), x, one.height * one.width);
  for (int64_t u = 0, phase = planes.first_phase[0]; u < planes.phases[0]; u++) {
    uint8_t* line = to + planes.at(u * planes.phases[1], 0);
    for (int64_t i = phase; i < one.height; i += stride, line += planes.pitch)
      fill_row(one, planes, x + i * one.width, plane, line);
    phase += planes.next_phase[0];
    if (phase >= stride) phase -= stride;
  }
}

// Copies the outputs of `count` positions, beginning at position `first`, into the rows of an output channel.
JAXDML_INLINE void store_rows(const Convolution& one, const Planes& planes, const uint8_t* values, int64_t first,
                              int64_t count, int64_t size, uint8_t* y) {
  if (planes.is_dense(one)) return copy_bytes(y + first * size, values, count * size);
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
