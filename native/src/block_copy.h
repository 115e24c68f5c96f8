// Copies the part of the padded input that a block of output pixels reads, from NCHW to NHWC.
#pragma once

#include "filter.h"
#include "packing.h"
#include "transpose.h"

namespace jaxdml::JAXDML_ISA {

// The number of padded input rows (i = 0) or columns (i = 1) that the windows of `outputs` output rows or columns span.
JAXDML_INLINE int64_t extent_of(const Convolution& one, const Filter& filter, int i, int64_t outputs) {
  const int64_t kernel = i ? filter.columns : filter.rows;
  return (outputs - 1) * one.stride[i] + (kernel - 1) * one.dilation[i] + 1;
}

// The layout of the copy: cells [row][column][channel]. The copy has either all input rows of the block, or separate
// input rows for each output row, whichever are fewer; and either all columns, or separate ones for each output column.
// If it has all columns, they are grouped by phase (the column's index modulo the dilation), so that the columns of a
// dilated kernel are adjacent.
struct Copy {
  bool has_all_rows, has_all_columns;
  int64_t output_step, kernel_step;  // copied rows from one output row to the next, and from one kernel row to the next
  int64_t column_step;               // copied columns from one output column to the next
  int64_t dilation, phase;           // the columns' dilation; the number of columns in a phase
  int64_t channels;
  int64_t row_cells, cells;  // cells of a row, and of the whole copy

  int64_t rows(const Convolution& one, const Filter& filter, int64_t outputs) const {
    return has_all_rows ? extent_of(one, filter, 0, outputs) : outputs * filter.rows;
  }
  // The index of the padded input row that a row of the copy holds, counted from the block's first input row.
  int64_t input_row(const Convolution& one, int64_t row) const {
    return has_all_rows ? row : row / output_step * one.stride[0] + row % output_step * one.dilation[0];
  }
  bool is_as_in_image() const { return channels == 1 && has_all_columns && dilation == 1; }
  int64_t column_at(int64_t column) const { return (column % dilation * phase + column / dilation) * channels; }
};

JAXDML_INLINE Copy copy_for(const Convolution& one, const Filter& filter, int64_t rows, int64_t columns) {
  Copy copy;
  copy.has_all_rows = extent_of(one, filter, 0, rows) <= rows * filter.rows;
  copy.output_step = copy.has_all_rows ? one.stride[0] : filter.rows;
  copy.kernel_step = copy.has_all_rows ? one.dilation[0] : 1;
  const int64_t all_columns = extent_of(one, filter, 1, columns), separate_columns = columns * filter.columns;
  copy.has_all_columns = all_columns <= separate_columns;
  copy.column_step = copy.has_all_columns ? one.stride[1] : filter.columns;
  copy.dilation = copy.has_all_columns ? one.dilation[1] : 1;
  copy.phase = copy.has_all_columns ? ceil_div(all_columns, copy.dilation) : separate_columns;
  copy.channels = filter.channels;
  copy.row_cells = copy.phase * copy.dilation * filter.channels;
  // Kernels read whole dwords, and the last dword may extend past the last cell.
  copy.cells = round_up(copy.rows(one, filter, rows) * copy.row_cells + kDepth, 64);
  return copy;
}

// A rectangle of the output.
struct Block {
  int64_t row, column, rows, columns;
};

// Lines of pixels of a copy. Each line has `width` pixels, from every step-th column, beginning at `begin`. Lines are
// `row` cells apart.
struct Pixels {
  int64_t row, begin, step, width;
};

// Finds the addresses of `count` pixels, beginning at pixel `first`. The first line begins at `image`.
JAXDML_INLINE void place(const Copy& copy, const Pixels& of, Cell* image, int64_t first, int64_t count, Cell** pixels) {
  // The step between columns, and its correction where the phase wraps around.
  const int64_t rest = of.step % copy.dilation, next = (rest * copy.phase + of.step / copy.dilation) * copy.channels;
  const int64_t wrap = (1 - copy.dilation * copy.phase) * copy.channels;
  Cell* line = image + first / of.width * of.row;
  for (int64_t p = 0, column = first % of.width; p < count; line += of.row, column = 0) {
    const int64_t some = at_most(of.width - column, count - p), start = of.begin + column * of.step;
    int64_t phase = start % copy.dilation;
    Cell* at = line + copy.column_at(start);
    for (int64_t i = 0; i < some; i++) {
      pixels[p + i] = at;
      at += next;
      if (!rest) continue;
      phase += rest;
      if (phase < copy.dilation) continue;
      phase -= copy.dilation;
      at += wrap;
    }
    p += some;
  }
}

JAXDML_INLINE void fill_cells(Cell* to, uint8_t value, int64_t count) {
  if constexpr (sizeof(Cell) == 1)
    memset(to, value, size_t(count));
  else
    for (int64_t i = 0; i < count; i++) to[i] = Activation(value);
}

// Transposes up to kBytes adjacent pixels of `channels` channels; skips pixels whose address is null. Channels are
// `size` bytes apart.
JAXDML_INLINE void copy_pixels(const uint8_t* x, int64_t size, int64_t channels, int64_t count, uint8_t flip,
                               Cell* const* pixels) {
  if (size == 1) return copy_cells(x, flip, channels, pixels[0]);  // images of one pixel have no order to change
  const I32 top = splat(int32_t(flip * 0x01010101u));
  for (int64_t c = 0; c < channels; c += 16) {
    const int64_t some = at_most(16, channels - c);
    const uint8_t* from = x + c * size;
    I32 rows[16];
    if (some == 16 && count == kBytes)
      for (int i = 0; i < 16; i++) rows[i] = load(from + i * size) ^ top;
    else  // the last channel stands in for missing channels, which are not stored
      for (int64_t i = 0; i < 16; i++) rows[i] = load_some(from + at_most(i, some - 1) * size, count) ^ top;
    transpose_sixteen(rows);
    each_column(rows, count, [&](int64_t p, Sixteen bytes) {
      if (pixels[p]) store_cells(pixels[p] + c, bytes, some);
    });
  }
}

// Copies an image row to separate columns for each of the windows of `outputs` output columns. The row begins at `x`,
// and the first window at column `left`.
static void copy_separate_columns(const Convolution& one, const Filter& filter, const Copy& copy, const uint8_t* x,
                                  int64_t left, int64_t outputs, uint8_t flip, Cell* cells) {
  const int64_t stride = one.stride[1], at_once = (kBytes - 1) / stride + 1;
  for (int64_t v = 0; v < filter.columns; v++, left += one.dilation[1]) {
    const int64_t last = at_most(outputs, ceil_div(at_least(one.width - left, 0), stride));
    for (int64_t j = ceil_div(at_least(-left, 0), stride); j < last; j += at_once) {
      const int64_t count = (at_most(at_once, last - j) - 1) * stride + 1;
      Cell* pixels[kBytes] = {};
      for (int64_t p = 0; p < count; p += stride)
        pixels[p] = cells + copy.column_at((j + p / stride) * copy.column_step + v);
      copy_pixels(x + left + j * stride, one.height * one.width, filter.channels, count, flip, pixels);
    }
  }
}

// Copies a block's input from one group of an image. The group begins at `x`.
static void copy_block(const Convolution& one, const Filter& filter, const Copy& copy, const uint8_t* x,
                       const Block& block, Cell* cells) {
  const int64_t copied_rows = copy.rows(one, filter, block.rows);
  const int64_t width = extent_of(one, filter, 1, block.columns);  // of all columns
  const uint8_t flip = flip_to_activation(one.x_zero_point.is_signed);
  // The copy's origin in the input, and the copy's columns that lie inside the input.
  const int64_t top = block.row * one.stride[0] - one.start[0], left = block.column * one.stride[1] - one.start[1];
  const int64_t first_column = at_least(0, -left), last_column = at_most(width, one.width - left);
  const int64_t columns = at_least(last_column - first_column, 0);
  for (int64_t row = 0; row < copied_rows;) {
    const int64_t input_row = top + copy.input_row(one, row);
    const bool is_inside = input_row >= 0 && input_row < one.height;
    // Consecutive full rows of the input are copied as one line.
    int64_t rows = 1;
    if (is_inside && copy.has_all_columns && columns == one.width)
      while (row + rows < copied_rows && top + copy.input_row(one, row + rows) == input_row + rows &&
             input_row + rows < one.height)
        rows++;
    if (!is_inside || columns < width)
      fill_cells(cells + row * copy.row_cells, one.x_zero_point.at[0] ^ flip, rows * copy.row_cells);
    if (is_inside && !copy.has_all_columns)
      copy_separate_columns(one, filter, copy, x + input_row * one.width, left, block.columns, flip,
                            cells + row * copy.row_cells);
    // A single channel has the same layout in the copy as in the image.
    if (is_inside && copy.is_as_in_image())
      for (int64_t i = 0; i < rows; i++)
        copy_cells(x + (input_row + i) * one.width + left + first_column, flip, columns,
                   cells + (row + i) * copy.row_cells + first_column);
    const bool is_turned = is_inside && copy.has_all_columns && !copy.is_as_in_image();
    const int64_t all = rows * columns, count = at_most(kBytes, all);
    for (int64_t done = 0; is_turned && done < all; done += kBytes) {
      const int64_t p = at_most(done, all - count);  // the last vector is full, and overlaps the one before
      Cell* pixels[kBytes];
      place(copy, {copy.row_cells, first_column, 1, columns}, cells + row * copy.row_cells, p, count, pixels);
      for (int64_t i = 0; i < done - p; i++) pixels[i] = nullptr;  // stored already
      copy_pixels(x + input_row * one.width + left + first_column + p, one.height * one.width, filter.channels, count,
                  flip, pixels);
    }
    row += rows;
  }
}

}  // namespace jaxdml::JAXDML_ISA
