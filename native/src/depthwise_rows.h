// Depthwise convolutions with small square kernels: lanes are adjacent outputs of a row.
//
// A load and two shuffles bring four adjacent inputs of each of 16 windows into lanes. These lanes serve every output
// row of a block that reads this row of the input. The load replaces elements outside the image by padding, so nothing
// is copied. Sums are exact modulo 2**32.
#pragma once

#include "depthwise_channels.h"

namespace jaxdml::JAXDML_ISA {

#ifdef JAXDML_HAS_WINDOWS

constexpr int kOutputRows = 4;  // rows of a block; a vector holds the bytes of their 16 columns

// Whether this form is faster than its alternatives, which requires that enough lanes hold outputs. The threshold was
// measured. Next to it, this form takes 0.5 to 0.8 of the time for int32, and 0.7 to 1 for bytes, but up to 1.2 if the
// filter has zero points.
JAXDML_INLINE bool is_depthwise_by_rows(const Convolution& one) {
  const Filter& filter = one.filter;
  const int64_t kernel = filter.rows, stride = one.stride[0];
  if (!is_depthwise(filter) || filter.columns != kernel || (kernel != 3 && kernel != 5 && kernel != 7)) return false;
  if (stride > 2 || one.stride[1] != stride || one.dilation[0] != 1 || one.dilation[1] != 1) return false;
  const int64_t computed = round_up(one.y_height, kOutputRows) * round_up(one.y_width, 16);
  return one.y_height * one.y_width * 8 >= computed * 5;
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

// 16 windows, of which the first begins at column `first` of the image. Bit i of inside[g] is set if the image has
// column `first` + g * kDepth + i.
template <int K>
struct Strip {
  int64_t first;
  uint64_t inside[RowWeights<K>::kGroups];
};

template <int K>
JAXDML_INLINE Strip<K> strip_of(const Image& image, int64_t first) {
  Strip<K> strip = {first, {}};
  for (int g = 0; g < RowWeights<K>::kGroups; g++) strip.inside[g] = bits_inside(first + g * kDepth, image.width);
  return strip;
}

// A row of a strip. Four adjacent inputs of each window are in each lane.
template <int K>
struct RowWindows {
  I32 at[RowWeights<K>::kGroups];
};

template <int K, int S>
JAXDML_INLINE RowWindows<K> row_windows(const Image& image, const Strip<K>& strip, int64_t row) {
  const bool is_inside = row >= 0 && row < image.height;
  const uint8_t* from = image.at + (is_inside ? row * image.width + strip.first : 0);
  RowWindows<K> windows;
#pragma GCC unroll 2
  for (int g = 0; g < RowWeights<K>::kGroups; g++)
    windows.at[g] = windows_of<S>(from + g * kDepth, is_inside ? strip.inside[g] : 0, image.padding, image.top);
  return windows;
}

// Adds the products of kOutputRows rows of 16 windows to `sums`, and the windows' elements to `window_sums` if the
// filter has zero points. The first window begins at row `row` of the image. K is the size of the kernel, S the stride.
// `kept` has the block's first rows; afterwards, it has the next block's.
template <int K, int S, bool kHasZeroPoints>
JAXDML_INLINE void add_rows(const RowWeights<K>& weights, const Filter& filter, const Image& image,
                            const Strip<K>& strip, int64_t row, RowWindows<K> (&kept)[K - S], I32 (&sums)[kOutputRows],
                            I32 (&window_sums)[kOutputRows]) {
#pragma GCC unroll 16
  for (int i = 0; i < (kOutputRows - 1) * S + K; i++) {
    const RowWindows<K> windows = i < K - S ? kept[i] : row_windows<K, S>(image, strip, row + i);
    if (i >= kOutputRows * S) kept[i - kOutputRows * S] = windows;
#pragma GCC unroll 2
    for (int g = 0; g < weights.kGroups; g++) {
      const I32 ones = splat(0x01010101 & bits_of_kernel(filter, g));
#pragma GCC unroll 4
      for (int r = 0; r < kOutputRows; r++) {
        const int u = i - r * S;
        if (u < 0 || u >= K) continue;
        sums[r] = dot_bytes(sums[r], windows.at[g], weights.at[u][g]);
        if (kHasZeroPoints) window_sums[r] = dot_bytes(window_sums[r], windows.at[g], ones);
      }
    }
  }
}

// Stores at most `rows` of the kOutputRows rows, `count` outputs each. The rows are `width` outputs apart.
JAXDML_INLINE void store_output_rows(const I32 (&sums)[kOutputRows], const Channels& channels, int64_t o, Type type,
                                     int64_t rows, int64_t count, int64_t width, uint8_t* y) {
  if (type == Type::kInt32) {
    for (int64_t r = 0; r < at_most(rows, kOutputRows); r++) store_bytes(y + r * width * 4, sums[r], count * 4);
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
  const int64_t count = at_most(16, width);
  for (int64_t j = 0; j < width; j += 16) {
    const int64_t column = at_most(j, width - count);  // the last strip overlaps the one before
    const Strip<K> strip = strip_of<K>(image, column * S - one.start[1]);
    RowWindows<K> kept[K - S];
#pragma GCC unroll 8
    for (int i = 0; i < K - S; i++) kept[i] = row_windows<K, S>(image, strip, i - one.start[0]);
    for (int64_t row = 0; row < height; row += kOutputRows) {
      const I32 offset = splat(channels.offsets[o]), zero_point = splat(channels.zero_points[o]);
      I32 sums[kOutputRows] = {offset, offset, offset, offset}, window_sums[kOutputRows] = {};
      add_rows<K, S, kHasZeroPoints>(weights, one.filter, image, strip, row * S - one.start[0], kept, sums,
                                     window_sums);
      if (kHasZeroPoints)
        for (int r = 0; r < kOutputRows; r++) sums[r] = subtract(sums[r], multiply(zero_point, window_sums[r]));
      store_output_rows(sums, channels, o, one.type, height - row, count, width, y + (row * width + column) * size);
    }
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
