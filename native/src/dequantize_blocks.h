// Dequantizes blocks of consecutive elements, each with a scale and a zero point of its own.
#pragma once

#include "elements.h"

namespace jaxdml::JAXDML_ISA {

// Outputs of at least this size are evicted from the caches before they are read, so stores to them are non-temporal.
constexpr int64_t kFarBytes = int64_t(16) << 20;

// Dequantizes the blocks `begin` to `end`. A block may be so short that a call for each would take as long as its
// elements. `one` is passed by value: a store of floats could change a referenced value, so each block would reload it.
template <int kBits, bool kIsFar>
static void dequantize_some(BlockDequantization one, int64_t begin, int64_t end) {
  constexpr int kTopBit = 1 << (kBits - 1);
  const uint8_t* const x = one.x.at;
  const I32 flip = splat(one.x.is_signed ? kTopBit : 0);
  float* y = one.y + begin * one.size;
  for (int64_t block = begin; block < end; block++, y += one.size) {
    uint8_t zero_point = kTopBit;
    if (one.zero_points.at) copy_elements(one.zero_points, block, 1, &zero_point);
    const F32 scales = splat(one.scales[block]);
    const I32 zero_points = splat(int32_t(zero_point));
    const int64_t first = block * one.size, at = one.x.first + first;
    int64_t i = 0;
    if (kBits == 8 || at % 2 == 0)
      for (; i + kLanes <= one.size; i += kLanes) {
        const I32 lanes = kBits == 8 ? from_unsigned_bytes(x + at + i) : lanes_of_nibbles(x + (at + i) / 2);
        const F32 values = floats((lanes ^ flip) - zero_points) * scales;
        if (kIsFar)
          store_past_caches(y + i, values);
        else
          store(y + i, (I32)values);
      }
    for (; i < one.size; i += kLanes) {
      const int64_t count = at_most(kLanes, one.size - i);
      uint8_t bytes[kLanes] = {};
      copy_elements(one.x, first + i, count, bytes);
      const F32 values = floats(from_unsigned_bytes(bytes) - zero_points) * scales;
      copy_bytes(y + i, &values, count * int64_t(sizeof(float)));
    }
  }
  if (kIsFar) finish_stores_past_caches();  // before another thread reads what this one wrote
}

static void dequantize_blocks(const Pool& pool, const BlockDequantization& one) {
  constexpr int64_t kElementsOfItem = 1 << 16;
  const int64_t each = at_least(1, kElementsOfItem / one.size);
  const auto is_aligned = [&](int64_t bytes) { return bytes % kBytes == 0; };
  const bool is_far = one.blocks * one.size * int64_t(sizeof(float)) >= kFarBytes &&
                      is_aligned(reinterpret_cast<intptr_t>(one.y)) && is_aligned(one.size * int64_t(sizeof(float)));
  const auto to_caches = one.x.bits == 4 ? dequantize_some<4, false> : dequantize_some<8, false>;
  const auto past_caches = one.x.bits == 4 ? dequantize_some<4, true> : dequantize_some<8, true>;
  const auto dequantize = is_far ? past_caches : to_caches;
  parallel(pool, ceil_div(one.blocks, each),
           [&](int64_t item, int64_t) { dequantize(one, item * each, at_most(one.blocks, (item + 1) * each)); });
}

}  // namespace jaxdml::JAXDML_ISA
