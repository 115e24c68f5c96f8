// Packs a block-quantized matrix.
#pragma once

#include "block_shape.h"
#include "elements.h"

namespace jaxdml::JAXDML_ISA {

// Writes the `size` weights of one column of a block into the column's lane of a unit.
JAXDML_INLINE void put_column(const uint8_t* weights, int64_t size, int bits, uint8_t* lane) {
  for (int64_t k = 0; k < size; k += 32 / bits, lane += 64) {
    uint32_t four, next = 0;
    memcpy(&four, weights + k, 4);
    if (bits == 4) memcpy(&next, weights + k + 4, 4);
    four |= next << 4;
    memcpy(lane, &four, 4);
  }
}

// Writes the mark into the seal, and the packed matrix after the seal.
static void pack_blocks(const Pool& pool, const BlockMatrix& of, uint8_t* packed) {
  const BlockShape& shape = of.shape;
  const int64_t blocks = blocks_of(shape), record = record_bytes(shape);
  memset(packed, 0, size_t(kSealBytes));
  memcpy(packed, &kBlocksMark, sizeof kBlocksMark);
  parallel(pool, panels_of(shape), [&](int64_t panel, int64_t) {
    uint8_t* to = packed + kSealBytes + panel * blocks * record;
    for (int64_t block = 0; block < blocks; block++, to += record) {
      const int64_t first = block * shape.size, count = at_most(shape.size, shape.depth - first);
      uint8_t* const scales = to + weight_bytes(shape);
      uint8_t* const zero_points = scales + kPanelColumns * shape.scale_bytes;
      for (int64_t c = 0; c < kPanelColumns; c++) {
        const int64_t column = panel * kPanelColumns + c;
        const bool is_there = column < shape.columns;
        alignas(64) uint8_t weights[kMostBlockSize] = {};
        if (is_there) copy_elements(of.weights, column * shape.depth + first, count, weights);
        put_column(weights, shape.size, shape.bits, to + c / kUnitColumns * unit_bytes(shape) + c % kUnitColumns * 4);
        const int64_t index = column * blocks + block;
        if (is_there)
          memcpy(scales + c * shape.scale_bytes, of.scales + index * shape.scale_bytes, size_t(shape.scale_bytes));
        else
          memset(scales + c * shape.scale_bytes, 0, size_t(shape.scale_bytes));
        if (!shape.has_zero_points) continue;
        zero_points[c] = 0;
        if (is_there) copy_elements(of.zero_points, index, 1, zero_points + c);
      }
    }
  });
}

}  // namespace jaxdml::JAXDML_ISA
