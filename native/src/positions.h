// Interleaves rows of bytes into dword lanes, and stores the sums of those lanes in order.
//
// A kernel computes kBytes positions at a time, in four vectors of sums. The unpack instructions that interleave bytes
// permute positions within 128-bit parts; the pack instructions that narrow sums to bytes undo the permutation.
#pragma once

#include "channels.h"

namespace jaxdml::JAXDML_ISA {

// Stores the dwords of four vectors that interleave_rows permuted, in the order of their positions.
JAXDML_INLINE void put_in_order(const uint8_t* vectors, uint8_t* to) {
  for (int v = 0; v < 4; v++)
    for (int i = 0; i < kBytes; i += 16) memcpy(to + i * 4 + v * 16, vectors + v * kBytes + i, 16);
}

// Converts the sums of one output channel at kBytes positions to bytes, in order.
JAXDML_INLINE I32 saturated_positions(const I32 (&sums)[4], const Channels& channels, int64_t o) {
  F32 values[4];
  for (int v = 0; v < 4; v++) values[v] = scaled(sums[v], splat(channels.multipliers[o]));
  return saturated(values, channels.output);
}

// Stores one output channel at kBytes positions in order: kBytes bytes, or 4 * kBytes bytes for int32 output.
JAXDML_INLINE void store_positions(const I32 (&sums)[4], const Channels& channels, int64_t o, Type type,
                                   uint8_t* bytes) {
  if (type != Type::kInt32) return store(bytes, saturated_positions(sums, channels, o));
  uint8_t parts[4 * kBytes];
  for (int v = 0; v < 4; v++) store(parts + v * kBytes, sums[v]);
  put_in_order(parts, bytes);
}

}  // namespace jaxdml::JAXDML_ISA
