// Dequantizes blocks of consecutive elements, each with a scale and a zero point of its own.
#pragma once

#include "elements.h"

namespace jaxdml::JAXDML_ISA {

// Outputs of at least this size are evicted from the caches before they are read, so stores to them are non-temporal.
constexpr int64_t kFarBytes = int64_t(16) << 20;

template <bool kIsFar>
static void dequantize_block(const Elements& x, int64_t first, int64_t size, float scale, int32_t zero_point,
                             float* y) {
  const F32 scales = splat(scale);
  const I32 zero_points = splat(zero_point);
  const int64_t at = x.first + first;
  int64_t i = 0;
  const auto put = [&](I32 lanes) {
    const F32 values = floats(lanes - zero_points) * scales;
    if (kIsFar)
      store_past_caches(y + i, values);
    else
      *reinterpret_cast<LooseF32*>(y + i) = values;
  };
  if (x.bits == 8) {
    const I32 flip = splat(x.is_signed ? 128 : 0);
    for (; i + kLanes <= size; i += kLanes) put(from_unsigned_bytes(x.at + at + i) ^ flip);
  } else if (at % 2 == 0) {
    const I32 flip = splat(x.is_signed ? 8 : 0);
    for (; i + kLanes <= size; i += kLanes) put(lanes_of_nibbles(x.at + (at + i) / 2) ^ flip);
  }
  for (; i < size; i += kLanes) {
    const int64_t count = at_most(kLanes, size - i);
    uint8_t bytes[kLanes] = {};
    copy_elements(x, first + i, count, bytes);
    const F32 values = floats(from_unsigned_bytes(bytes) - zero_points) * scales;
    copy_bytes(y + i, &values, count * int64_t(sizeof(float)));
  }
}

static void dequantize_blocks(const Pool& pool, const BlockDequantization& one) {
  constexpr int64_t kElementsOfItem = 1 << 16;
  const int64_t each = at_least(1, kElementsOfItem / one.size), middle = one.x.bits == 4 ? 8 : 128;
  const auto is_aligned = [&](int64_t bytes) { return bytes % kBytes == 0; };
  const bool is_far = one.blocks * one.size * int64_t(sizeof(float)) >= kFarBytes &&
                      is_aligned(reinterpret_cast<intptr_t>(one.y)) && is_aligned(one.size * int64_t(sizeof(float)));
  const auto dequantize = is_far ? dequantize_block<true> : dequantize_block<false>;
  parallel(pool, ceil_div(one.blocks, each), [&](int64_t item, int64_t) {
    const int64_t last = at_most(one.blocks, (item + 1) * each);
    for (int64_t block = item * each; block < last; block++) {
      uint8_t zero_point = uint8_t(middle);
      if (one.zero_points.at) copy_elements(one.zero_points, block, 1, &zero_point);
      dequantize(one.x, block * one.size, one.size, one.scales[block], zero_point, one.y + block * one.size);
    }
    if (is_far) finish_stores_past_caches();  // before another thread reads what this one wrote
  });
}

}  // namespace jaxdml::JAXDML_ISA
