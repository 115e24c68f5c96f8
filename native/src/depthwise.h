// Convolutions with one channel to a group: a few products for each output, so that what counts is how the windows get
// into the lanes. kBytes positions are taken at once, in the order in which instructions that interleave leave them,
// and those that pack put them back.
#pragma once

#include "channels.h"
#include "direct.h"
#include "planes.h"

namespace jaxdml::JAXDML_ISA {

#ifdef __AVX512VNNI__
JAXDML_INLINE I32 low_bytes(I32 x, I32 y) { return (I32)_mm512_unpacklo_epi8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 high_bytes(I32 x, I32 y) { return (I32)_mm512_unpackhi_epi8((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 low_words(I32 x, I32 y) { return (I32)_mm512_unpacklo_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 high_words(I32 x, I32 y) { return (I32)_mm512_unpackhi_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 words(I32 x, I32 y) { return (I32)_mm512_packs_epi32((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 signed_bytes(I32 x, I32 y) { return (I32)_mm512_packs_epi16((__m512i)x, (__m512i)y); }
JAXDML_INLINE I32 unsigned_bytes(I32 x, I32 y) { return (I32)_mm512_packus_epi16((__m512i)x, (__m512i)y); }
#else
JAXDML_INLINE I32 low_bytes(I32 x, I32 y) { return (I32)_mm256_unpacklo_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 high_bytes(I32 x, I32 y) { return (I32)_mm256_unpackhi_epi8((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 words(I32 x, I32 y) { return (I32)_mm256_packs_epi32((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 signed_bytes(I32 x, I32 y) { return (I32)_mm256_packs_epi16((__m256i)x, (__m256i)y); }
JAXDML_INLINE I32 unsigned_bytes(I32 x, I32 y) { return (I32)_mm256_packus_epi16((__m256i)x, (__m256i)y); }
#endif

// kBytes positions of kDepth rows in four vectors: in each 128 bits positions 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
JAXDML_INLINE void interleave_positions(const uint8_t* const (&rows)[kDepth], uint8_t flip, I32 (&to)[4]) {
  const I32 top = splat(int32_t(flip * 0x01010101u));
#ifdef __AVX512VNNI__
  const I32 a = load(rows[0]) ^ top, b = load(rows[1]) ^ top, c = load(rows[2]) ^ top, d = load(rows[3]) ^ top;
  const I32 low[2] = {low_bytes(a, b), low_bytes(c, d)}, high[2] = {high_bytes(a, b), high_bytes(c, d)};
  to[0] = low_words(low[0], low[1]);
  to[1] = high_words(low[0], low[1]);
  to[2] = low_words(high[0], high[1]);
  to[3] = high_words(high[0], high[1]);
#else
  const I32 a = load(rows[0]) ^ top, b = load(rows[1]) ^ top, zero = I32{};
  const I32 low = low_bytes(a, b), high = high_bytes(a, b);
  to[0] = low_bytes(low, zero);
  to[1] = high_bytes(low, zero);
  to[2] = low_bytes(high, zero);
  to[3] = high_bytes(high, zero);
#endif
}

struct DepthwisePlan {
  Planes planes;
  int64_t* offsets;
  Channels* channels;
  uint8_t* filled;  // a channel's planes, of each worker
  int64_t filled_bytes;
};

JAXDML_INLINE DepthwisePlan plan_depthwise(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  const Convolution& one = problems[0];
  DepthwisePlan plan;
  plan.planes = planes_of(one);
  plan.offsets = take<int64_t>(arena, padded_filter_depth(one.filter));
  plan.channels = take<Channels>(arena, count);
  for (int64_t i = 0; i < count; i++) {
    const Channels channels = take_channels(one.filter, arena);
    if (arena.block) plan.channels[i] = channels;
  }
  plan.filled_bytes = round_up(plan.planes.channel + kBytes, 64);  // whole vectors are read
  plan.filled = take<uint8_t>(arena, threads * plan.filled_bytes);
  return plan;
}

JAXDML_INLINE void depthwise_channel(const Convolution& one, const DepthwisePlan& plan, const Channels& channels,
                                     const uint8_t* plane, int64_t o, uint8_t* y) {
  const int64_t depth = padded_filter_depth(one.filter), size = size_of(one.type);
  const Dword* cells =
      reinterpret_cast<const Dword*>(packed_filter(one).rows + o * row_cells(filter_depth(one.filter)));
  const uint8_t flip = flip_to_unsigned(one.x_zero_point.is_signed);
  const I32 ones = splat(kDepth == 4 ? 0x01010101 : 0x00010001);
  const I32 offset = splat(channels.offsets[o]), zero_point = splat(channels.zero_points[o]);
  for (int64_t first = 0; first < plan.planes.positions; first += kBytes) {
    I32 sums[4] = {offset, offset, offset, offset}, window_sums[4] = {};
    for (int64_t k = 0; k < depth; k += kDepth) {
      const uint8_t* rows[kDepth];
      for (int i = 0; i < kDepth; i++) rows[i] = plane + plan.offsets[k + i] + first;
      I32 windows[4];
      interleave_positions(rows, flip, windows);
      const I32 weights = splat(cells[k / kDepth]);
      for (int v = 0; v < 4; v++) sums[v] = UnsignedLanes::dot(sums[v], windows[v], weights);
      if (!channels.has_zero_points) continue;
      // What a padded row repeats does not belong to the window.
      const int64_t real = at_most(kDepth, filter_depth(one.filter) - k);
      const I32 counted = splat(int32_t(uint32_t(ones[0]) & (~0u >> (32 - real * (32 / kDepth)))));
      for (int v = 0; v < 4; v++) window_sums[v] = UnsignedLanes::dot(window_sums[v], windows[v], counted);
    }
    if (channels.has_zero_points)
      for (int v = 0; v < 4; v++) sums[v] = subtract(sums[v], multiply(zero_point, window_sums[v]));
    alignas(64) uint8_t bytes[4 * kBytes];
    if (size == 4) {
      for (int v = 0; v < 4; v++)
        for (int lane = 0; lane < kLanes; lane++) {
          const int32_t sum = sums[v][lane];
          memcpy(bytes + (lane / 4 * 16 + v * 4 + lane % 4) * 4, &sum, 4);
        }
    } else {
      for (int v = 0; v < 4; v++) sums[v] = requantized(sums[v], splat(channels.multipliers[o]), channels.output);
      const I32 low = words(sums[0], sums[1]), high = words(sums[2], sums[3]);
      store(bytes, one.type == Type::kInt8 ? signed_bytes(low, high) : unsigned_bytes(low, high));
    }
    store_positions(one, plan.planes, bytes, first, at_most(kBytes, plan.planes.positions - first), size, y);
  }
}

static void convolve_depthwise(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const DepthwisePlan plan = plan_depthwise(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  for (int64_t i = 0; i < count; i++) set_channels(problems[i], 0, plan.channels[i]);
  for (int64_t k = 0; k < padded_filter_depth(filter); k++) {
    const int64_t real = at_most(k, filter_depth(filter) - 1);  // weights of padding are 0
    plan.offsets[k] = plane_offset(problems[0], plan.planes, real / filter.columns, real % filter.columns);
  }
  const int64_t channels = problems[0].batch * filter.groups, per_channel = group_outputs(filter);
  const int64_t size = problems[0].height * problems[0].width;
  const int64_t chunk = at_least((16 << 10) / plan.planes.channel, 1), chunks = ceil_div(channels, chunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t worker) {
    const int64_t problem = item / chunks, from = item % chunks * chunk;
    const Convolution& one = problems[problem];
    uint8_t* plane = plan.filled + worker * plan.filled_bytes;
    for (int64_t c = from; c < at_most(channels, from + chunk); c++) {
      fill_planes(one, plan.planes, one.x + c * size, plane);
      for (int64_t i = 0; i < per_channel; i++) {
        const int64_t n = c / filter.groups, o = c % filter.groups * per_channel + i;
        depthwise_channel(one, plan, plan.channels[problem], plane, o, y_channel(one, n, o));
      }
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
