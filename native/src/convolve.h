// Selects the kernel that computes a convolution. All kernels give the same integers.
#pragma once

#include "channels_last.h"
#include "depthwise.h"
#include "depthwise_channels.h"
#include "depthwise_rows.h"
#include "few_channels.h"
#include "pack_filter.h"
#include "pointwise.h"
#include "winograd.h"

namespace jaxdml::JAXDML_ISA {

// The number of rows (i = 0) or columns (i = 1) of the padded input that the scratch bound counts: the image's plus the
// padding's, the latter capped at twice the rows or columns of all windows together.
JAXDML_INLINE int64_t counted(const Convolution& one, int i) {
  const int64_t size = i ? one.width : one.height, kernel = i ? one.filter.columns : one.filter.rows;
  return size + at_most(one.start[i] + one.end[i], 2 * (i ? one.y_width : one.y_height) * kernel);
}

// The documented bound on scratch memory: four times the size of outputs and of inputs with the counted padding, plus
// 64 KiB, plus small terms for output channels, problems and depthwise kernel elements.
JAXDML_INLINE int64_t most_scratch(const Convolution& one, int64_t count) {
  const int64_t input = one.filter.groups * one.filter.channels * counted(one, 0) * counted(one, 1);
  const int64_t output = one.filter.outputs * one.y_height * one.y_width * size_of(one.type);
  const int64_t elements = is_depthwise(one.filter) ? one.filter.rows * one.filter.columns : 0;
  return count * (4 * one.batch * (input + output) + 12 * one.filter.outputs + 1024) + 32 * elements + (64 << 10);
}

static int64_t winograd_scratch(const Convolution* problems, int64_t count, int64_t threads, int64_t m) {
  Arena arena = {nullptr, 0};
  if (m == 4)
    plan_winograd<4>(problems, count, threads, arena);
  else
    plan_winograd<2>(problems, count, threads, arena);
  return arena.used;
}

// m of the Winograd transform to use; 0 if no transform is exact, faster, and within the scratch bound.
JAXDML_INLINE int64_t winograd_tiles(const Convolution* problems, int64_t count) {
  const Convolution& one = problems[0];
  const int64_t m = winograd_form(one.filter);
  if (!m) return 0;
  for (int i = 0; i < 2; i++)
    if (one.stride[i] != 1 || one.dilation[i] != 1) return 0;
  for (int64_t i = 0; i < count; i++)
    if (!*packed_filter(problems[i]).flag) return 0;
  const int64_t tiles = one.batch * ceil_div(one.y_height, m) * ceil_div(one.y_width, m), points = (m + 2) * (m + 2);
  // The cost, in dot products of one lane, for each pair of an input and an output channel. Transforms add a quarter
  // to the products; reading a transformed filter costs as much as the products of four more tiles.
  const int64_t by_tiles = round_up(tiles, kBlock) * points / 2 * 5 / 4 + points * 2;
  const int64_t by_pixels = one.batch * one.y_height * one.y_width * 9 / kDepth;
  return by_tiles < by_pixels && winograd_scratch(problems, count, 1, m) <= most_scratch(one, count) ? m : 0;
}

static int64_t scratch_of(const Convolution* problems, int64_t count, int64_t threads) {
  Arena arena = {nullptr, 0};
  if (is_depthwise_by_rows(problems[0]))
    plan_depthwise_rows(problems, count, threads, arena);
  else if (is_depthwise_by_channels(problems[0]))
    plan_depthwise_channels(problems, count, threads, arena);
  else if (is_depthwise(problems[0].filter))
    plan_depthwise(problems, count, threads, arena);
  else if (is_pointwise(problems[0]))
    plan_pointwise(problems, count, threads, arena);
  else if (has_few_channels(problems[0]))
    plan_few_channels(problems, count, threads, arena);
  else if (const int64_t m = winograd_tiles(problems, count))
    return winograd_scratch(problems, count, threads, m);
  else
    plan_channels_last(problems, count, threads, arena);
  return arena.used;
}

// The largest number of threads whose scratch fits most_scratch.
JAXDML_INLINE int64_t fitting_threads(const Convolution* problems, int64_t count, int64_t threads) {
  const int64_t most = most_scratch(problems[0], count);
  while (threads > 1 && scratch_of(problems, count, threads) > most) threads--;
  return threads;
}

static int64_t convolve_scratch(const Convolution* problems, int64_t count, int64_t threads) {
  return scratch_of(problems, count, fitting_threads(problems, count, threads));
}

template <bool kHasTiles>
static void convolve(const Pool& pool, const Convolution* problems, int64_t count, uint8_t* scratch) {
  Arena arena = {scratch, 0};
  const Pool fitting = {fitting_threads(problems, count, pool.threads), pool.run, pool.handle};
  if (is_depthwise_by_rows(problems[0])) return convolve_depthwise_by_rows(fitting, problems, count, arena);
  if (is_depthwise_by_channels(problems[0])) return convolve_depthwise_by_channels(fitting, problems, count, arena);
  if (is_depthwise(problems[0].filter)) return convolve_depthwise(fitting, problems, count, arena);
  if (is_pointwise(problems[0])) return convolve_pointwise(fitting, problems, count, arena);
  if (has_few_channels(problems[0])) return convolve_few_channels(fitting, problems, count, arena);
  const int64_t m = winograd_tiles(problems, count);
  if (m == 4) return convolve_winograd<4>(fitting, problems, count, arena);
  if (m == 2) return convolve_winograd<2>(fitting, problems, count, arena);
  convolve_channels_last<kHasTiles>(fitting, problems, count, arena);
}

}  // namespace jaxdml::JAXDML_ISA
