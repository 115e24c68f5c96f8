// Max pooling. For each output row, the rows of its windows are reduced to one row; then each window's columns are
// reduced to one output.
//
// int8 is flipped to uint8, so that padding is 0, the least value. The row has padding columns. Window maxima at every
// column are computed, whatever the stride, and every stride-th is stored. Where strides or padding are so large that
// most of such a row lies outside all windows, each output is computed separately, so the cost depends only on the
// image and the output, however large padding, strides and dilations are.
#pragma once

#include "bytes.h"

namespace jaxdml::JAXDML_ISA {

// Elements of a window that lie in the image, for output `at` along rows (i = 0) or columns (i = 1).
struct Seen {
  int64_t first, last;  // elements of the window; `last` is exclusive
};
JAXDML_INLINE Seen seen_of(const MaxPool& one, int i, int64_t at) {
  const int64_t origin = at * one.stride[i] - one.start[i], size = i ? one.width : one.height, d = one.dilation[i];
  const int64_t first = origin < 0 ? ceil_div(-origin, d) : 0, last = origin < size ? ceil_div(size - origin, d) : 0;
  return {first, at_most(last, one.window[i])};
}

struct MaxPoolPlan {
  bool is_dense;       // the row has padding columns
  int64_t span;        // window maxima of a dense row: from the first output's to the last one's
  int64_t left, kept;  // padding columns of the row, and columns of the image in it
  int64_t bytes;       // of the row, and of its window maxima
  uint8_t* rows;       // a row and its window maxima for each worker
};

JAXDML_INLINE MaxPoolPlan plan_max_pool(const MaxPool& one, int64_t threads, Arena& arena) {
  MaxPoolPlan plan;
  const int64_t most = 2 * (one.width + one.y_width) + 64;
  const int64_t reach = (one.window[1] - 1) * one.dilation[1];
  plan.span = (one.y_width - 1) * one.stride[1] + 1;
  plan.is_dense = reach <= most && plan.span <= most && one.start[1] <= most;
  plan.left = plan.is_dense ? one.start[1] : 0;
  plan.kept = plan.is_dense ? at_least(0, at_most(one.width, plan.span + reach - plan.left)) : one.width;
  plan.bytes = (plan.is_dense ? at_least(plan.span + reach, plan.left) : plan.kept) + 4 * kBytes;
  plan.rows = take<uint8_t>(arena, threads * 2 * plan.bytes);
  return plan;
}

static int64_t max_pool_scratch(const MaxPool& one, int64_t threads) {
  Arena arena = {nullptr, 0};
  plan_max_pool(one, threads, arena);
  return arena.used;
}

// Reduces the rows in the windows of output row i to one row. Vectors also read bytes beyond the end of an image's row.
JAXDML_INLINE void reduce_rows(const MaxPool& one, const MaxPoolPlan& plan, const uint8_t* x, int64_t i,
                               const uint8_t* end, I32 flip, uint8_t* row) {
  const Seen seen = seen_of(one, 0, i);
  const int64_t rows = seen.last - seen.first, first = i * one.stride[0] - one.start[0] + seen.first * one.dilation[0];
  const int64_t step = rows > 1 ? one.dilation[0] * one.width : 0;  // for a single row, the product may overflow
  const uint8_t* from = rows > 0 ? x + first * one.width : x;
  for (int64_t j = 0; j < plan.kept; j += kBytes) {
    I32 greatest = {};
    for (int64_t u = 0; u < rows; u++) {
      const uint8_t* at = from + u * step + j;
      const I32 bytes = end - at >= kBytes ? load(at) : load_bytes(at, end - at);
      greatest = greater_bytes(greatest, bytes ^ flip);
    }
    store(row + plan.left + j, greatest);
  }
  store(row + plan.left + plan.kept, I32{});  // restores the padding that vectors overwrote
}

JAXDML_INLINE I32 greatest_of_windows(const MaxPool& one, const uint8_t* row) {
  I32 greatest = load(row);
  for (int64_t v = 1; v < one.window[1]; v++) greatest = greater_bytes(greatest, load(row + v * one.dilation[1]));
  return greatest;
}

JAXDML_INLINE void reduce_columns(const MaxPool& one, const MaxPoolPlan& plan, const uint8_t* row, uint8_t* maxima,
                                  I32 flip, uint8_t* y) {
  const int64_t stride = one.stride[1];
  if (stride <= 2) {
    for (int64_t j = 0; j < one.y_width; j += kBytes) {
      const uint8_t* from = row + j * stride;
      I32 greatest = greatest_of_windows(one, from);
      if (stride == 2) greatest = every_other(greatest, greatest_of_windows(one, from + kBytes));
      store_bytes(y + j, greatest ^ flip, at_most(kBytes, one.y_width - j));
    }
    return;
  }
  for (int64_t j = 0; j < plan.span; j += kBytes) store(maxima + j, greatest_of_windows(one, row + j) ^ flip);
  for (int64_t j = 0; j < one.y_width; j++) y[j] = maxima[j * stride];
}

JAXDML_INLINE void reduce_each_column(const MaxPool& one, const uint8_t* row, uint8_t flip, uint8_t* y) {
  for (int64_t j = 0; j < one.y_width; j++) {
    const Seen seen = seen_of(one, 1, j);
    uint8_t greatest = 0;
    for (int64_t v = seen.first; v < seen.last; v++) {
      const uint8_t x = row[j * one.stride[1] - one.start[1] + v * one.dilation[1]];
      greatest = x > greatest ? x : greatest;
    }
    y[j] = greatest ^ flip;
  }
}

static void max_pool(const Pool& pool, const MaxPool& one, uint8_t* scratch) {
  constexpr int64_t kChunk = 1 << 14;  // elements per item
  Arena arena = {scratch, 0};
  const MaxPoolPlan plan = plan_max_pool(one, pool.threads, arena);
  const int64_t size = one.height * one.width, y_size = one.y_height * one.y_width;
  const int64_t block = at_least(kChunk / at_least(size, y_size), 1);
  const uint8_t* const end = one.x + one.images * size;
  const uint8_t flip = flip_to_unsigned(one.is_signed);
  parallel(pool, ceil_div(one.images, block), [&](int64_t item, int64_t worker) {
    uint8_t* const row = plan.rows + worker * 2 * plan.bytes;
    memset(row, 0, size_t(plan.bytes));
    for (int64_t image = item * block; image < at_most(one.images, (item + 1) * block); image++)
      for (int64_t i = 0; i < one.y_height; i++) {
        uint8_t* const y = one.y + image * y_size + i * one.y_width;
        reduce_rows(one, plan, one.x + image * size, i, end, splat_byte(flip), row);
        if (plan.is_dense)
          reduce_columns(one, plan, row, row + plan.bytes, splat_byte(flip), y);
        else
          reduce_each_column(one, row, flip, y);
      }
  });
}

}  // namespace jaxdml::JAXDML_ISA
