// Depthwise convolutions with small square kernels: lanes are adjacent outputs of a row.
//
// A load and two shuffles bring four adjacent inputs of each of 16 windows into lanes. These lanes serve every output
// row of a block that reads this row of the input. The load replaces elements outside the image by padding, so nothing
// is copied. Sums are exact modulo 2**32.
#pragma once

#include "strided_depthwise.h"

namespace jaxdml::JAXDML_ISA {

#ifdef JAXDML_HAS_WINDOWS

constexpr int kOutputRows = 4;  // rows of a block; a vector holds the bytes of their 16 columns

// Whether this form is faster than its alternative, which requires that enough lanes hold outputs. The thresholds were
// measured; that of 3 x 3 kernels without strides is higher, because their alternative is faster.
JAXDML_INLINE bool is_depthwise_by_rows(const Convolution& one) {
  const Filter& filter = one.filter;
  const int64_t kernel = filter.rows, stride = one.stride[0];
  if (!is_depthwise(filter) || filter.columns != kernel || (kernel != 3 && kernel != 5 && kernel != 7)) return false;
  if (stride > 2 || one.stride[1] != stride || one.dilation[0] != 1 || one.dilation[1] != 1) return false;
  const int64_t computed = round_up(one.y_height, kOutputRows) * round_up(one.y_width, 16);
  const int64_t wanted = one.y_height * one.y_width;
  return kernel == 3 && stride == 1 ? wanted * 4 >= computed * 3 : wanted * 8 >= computed * 5;
}

struct DepthwiseRowsPlan {
  int64_t chunk, chunks;  // input channels of an item; items of a problem
  Channels* channels;
};

JAXDML_INLINE DepthwiseRowsPlan plan_depthwise_rows(const Convolution* problems, int64_t count, int64_t threads,
                                                    Arena& arena) {
  const Convolution& one = problems[0];
  DepthwiseRowsPlan plan;
  const int64_t channels = one.batch * one.filter.groups;
  plan.chunk = at_least(1, at_most((16 << 10) / (one.height * one.width + 1), ceil_div(count * channels, 8 * threads)));
  plan.chunks = ceil_div(channels, plan.chunk);
  plan.channels = take_channels(one.filter, count, arena);
  return plan;
}

// An input channel.
struct Image {
  const uint8_t* at;
  int64_t height, width;
  I32 padding, top;  // padding takes the place of elements outside; `top` then flips their top bits
};

// Bit i is set if index `first` + i is at least 0 and below `size`.
JAXDML_INLINE uint64_t bits_inside(int64_t first, int64_t size) {
  const int64_t from = at_most(at_least(-first, 0), 64), to = at_most(at_least(size - first, 0), 64);
  const uint64_t below = to == 64 ? ~uint64_t(0) : (uint64_t(1) << to) - 1;
  return from == 64 ? 0 : below >> from << from;
}

// The weights of one output channel. Four adjacent weights of a kernel row are in each lane.
template <int K>
struct RowWeights {
  static constexpr int kGroups = (K + kDepth - 1) / kDepth;
  I32 at[K][kGroups];
};

template <int K>
JAXDML_INLINE RowWeights<K> row_weights(const Filter& filter, const Cell* from) {
  RowWeights<K> weights;
  for (int u = 0; u < K; u++)
    for (int g = 0; g < weights.kGroups; g++)
      weights.at[u][g] = splat(*reinterpret_cast<const Dword*>(from + u * K + g * kDepth) & bits_of_kernel(filter, g));
  return weights;
}

// Adds the products of kOutputRows rows of 16 windows to `sums`, and the windows' elements to `window_sums` if the
// filter has zero points. The first window begins at row `row` and column `column` of the image. K is the size of the
// kernel, S the stride.
template <int K, int S, bool kHasZeroPoints>
JAXDML_INLINE void add_rows(const RowWeights<K>& weights, const Filter& filter, const Image& image, int64_t row,
                            int64_t column, I32 (&sums)[kOutputRows], I32 (&window_sums)[kOutputRows]) {
  uint64_t inside[RowWeights<K>::kGroups];
  for (int g = 0; g < RowWeights<K>::kGroups; g++) inside[g] = bits_inside(column + g * kDepth, image.width);
#pragma GCC unroll 16
  for (int i = 0; i < (kOutputRows - 1) * S + K; i++) {
    const bool is_inside = row + i >= 0 && row + i < image.height;
    const uint8_t* from = image.at + (is_inside ? (row + i) * image.width + column : 0);
#pragma GCC unroll 2
    for (int g = 0; g < weights.kGroups; g++) {
      const I32 x = load_bits(from + g * kDepth, is_inside ? inside[g] : 0, image.padding) ^ image.top;
      const I32 windows = windows_of<S>(x);
      const I32 ones = splat(0x01010101 & bits_of_kernel(filter, g));
#pragma GCC unroll 4
      for (int r = 0; r < kOutputRows; r++) {
        const int u = i - r * S;
        if (u < 0 || u >= K) continue;
        sums[r] = dot_bytes(sums[r], windows, weights.at[u][g]);
        if (kHasZeroPoints) window_sums[r] = dot_bytes(window_sums[r], windows, ones);
      }
    }
  }
}

// Stores `rows` rows of `count` outputs. The rows are `width` outputs apart.
JAXDML_INLINE void store_output_rows(const I32 (&sums)[kOutputRows], const Channels& channels, int64_t o, Type type,
                                     int64_t rows, int64_t count, int64_t width, uint8_t* y) {
  if (type == Type::kInt32) {
    for (int64_t r = 0; r < rows; r++) store_bytes(y + r * width * 4, sums[r], count * 4);
    return;
  }
  F32 values[kOutputRows];
#pragma GCC unroll 4
  for (int r = 0; r < kOutputRows; r++) values[r] = scaled(sums[r], splat(channels.multipliers[o]));
  const I32 bytes = gather_firsts(saturated(values, channels.output));
  const Sixteen parts[] = {part_of<0>(bytes), part_of<1>(bytes), part_of<2>(bytes), part_of<3>(bytes)};
#pragma GCC unroll 4
  for (int r = 0; r < kOutputRows; r++)
    if (r < rows) store_some(y + r * width, parts[r], count);
}

template <int K, int S, bool kHasZeroPoints>
static void depthwise_rows(const Convolution& one, const Channels& channels, const Image& image, int64_t o,
                           uint8_t* y) {
  const int64_t height = one.y_height, width = one.y_width, size = size_of(one.type);
  const RowWeights<K> weights =
      row_weights<K>(one.filter, packed_filter(one).rows + o * padded_filter_depth(one.filter));
  const int64_t rows = at_most(kOutputRows, height), count = at_most(16, width);
  // The last block of rows or columns overlaps the one before.
  for (int64_t i = 0; i < height; i += kOutputRows)
    for (int64_t j = 0; j < width; j += 16) {
      const int64_t row = at_most(i, height - rows), column = at_most(j, width - count);
      const I32 offset = splat(channels.offsets[o]), zero_point = splat(channels.zero_points[o]);
      I32 sums[kOutputRows] = {offset, offset, offset, offset}, window_sums[kOutputRows] = {};
      add_rows<K, S, kHasZeroPoints>(weights, one.filter, image, row * S - one.start[0], column * S - one.start[1],
                                     sums, window_sums);
      if (kHasZeroPoints)
        for (int r = 0; r < kOutputRows; r++) sums[r] = subtract(sums[r], multiply(zero_point, window_sums[r]));
      store_output_rows(sums, channels, o, one.type, rows, count, width, y + (row * width + column) * size);
    }
}

JAXDML_INLINE void depthwise_channel_by_rows(const Convolution& one, const Channels& channels, const Image& image,
                                             int64_t o, uint8_t* y) {
  with_constant<3>(one.filter.rows / 2, [&](auto half) {
    with_constant<2>(one.stride[0], [&](auto stride) {
      constexpr int K = 2 * half + 1;
      if (channels.has_zero_points)
        depthwise_rows<K, stride, true>(one, channels, image, o, y);
      else
        depthwise_rows<K, stride, false>(one, channels, image, o, y);
    });
  });
}

static void convolve_depthwise_by_rows(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const DepthwiseRowsPlan plan = plan_depthwise_rows(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  for (int64_t i = 0; i < count; i++)
    set_channels(problems[i], as_activation(problems[i].x_zero_point, 0), plan.channels[i]);
  const int64_t channels = problems[0].batch * filter.groups, per_channel = group_outputs(filter);
  parallel(pool, count * plan.chunks, [&](int64_t item, int64_t) {
    const int64_t problem = item / plan.chunks, from = item % plan.chunks * plan.chunk;
    const Convolution& one = problems[problem];
    const I32 padding = splat(int32_t(one.x_zero_point.at[0] * 0x01010101u));
    const I32 top = splat(int32_t(flip_to_activation(one.x_zero_point.is_signed) * 0x01010101u));
    for (int64_t c = from; c < at_most(channels, from + plan.chunk); c++) {
      const Image image = {one.x + c * one.height * one.width, one.height, one.width, padding, top};
      for (int64_t i = 0; i < per_channel; i++) {
        const int64_t n = c / filter.groups, o = c % filter.groups * per_channel + i;
        depthwise_channel_by_rows(one, plan.channels[problem], image, o, y_channel(one, n, o));
      }
    }
  });
}

#else  // no windows_of

JAXDML_INLINE bool is_depthwise_by_rows(const Convolution&) { return false; }
JAXDML_INLINE void plan_depthwise_rows(const Convolution*, int64_t, int64_t, Arena&) {}
JAXDML_INLINE void convolve_depthwise_by_rows(const Pool&, const Convolution*, int64_t, Arena&) {}

#endif

}  // namespace jaxdml::JAXDML_ISA
