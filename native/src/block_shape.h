// The sizes of a block-quantized matrix and of its packed form. jaxdml/_arithmetic/block_panels.py has the same layout.
//
// Panels of 64 columns follow each other. A panel has a record for each block of the depth:
//   - the weights in four units of 16 columns. A 32-bit lane holds consecutive weights of one column: four bytes, or
//     eight nibbles, the first four in the low halves of the bytes. 16 lanes, one for each column, make 64 bytes; the
//     next 64 bytes hold the next weights along the depth. Weights are unsigned: int4 plus 8, int8 plus 128.
//   - 64 scales, float32 or float16
//   - 64 zero points, one byte each and unsigned like the weights, if there are any; otherwise each is 8 or 128
// No sum crosses lanes, a product reads memory in ascending order, and every instruction set can use this layout.
#pragma once

#include "kernels.h"

namespace jaxdml {

constexpr int64_t kPanelColumns = 64, kUnitColumns = 16, kMostBlockSize = 256;
// If the layout changes, change 0x53 in the mark, too.
constexpr int32_t kBlocksMark = 0x4a445300;

// The functions are static, so that a linker never merges code of two instruction sets.
static inline int64_t blocks_of(const BlockShape& of) { return (of.depth + of.size - 1) / of.size; }
static inline int64_t panels_of(const BlockShape& of) { return (of.columns + kPanelColumns - 1) / kPanelColumns; }
static inline int64_t unit_bytes(const BlockShape& of) { return of.size * of.bits * kUnitColumns / 8; }
static inline int64_t weight_bytes(const BlockShape& of) { return unit_bytes(of) * (kPanelColumns / kUnitColumns); }
static inline int64_t record_bytes(const BlockShape& of) {
  return weight_bytes(of) + kPanelColumns * (of.scale_bytes + of.has_zero_points);
}
static inline int64_t packed_bytes(const BlockShape& of) {
  return kSealBytes + panels_of(of) * blocks_of(of) * record_bytes(of);
}

}  // namespace jaxdml
