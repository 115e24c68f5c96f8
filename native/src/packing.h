// Interleaves bytes of several rows, so that each lane holds the operands of one dot product.
#pragma once

#include "common.h"
#include "microkernel.h"

namespace jaxdml::JAXDML_ISA {

// The number of lanes of the panel that begins at column `first`. The last panel may be narrower than a tile.
JAXDML_INLINE int64_t panel_lanes(int64_t columns, int64_t first) {
  return at_most(kTile, round_up(columns, kLanes) - first);
}

// Flips `count` bytes to activations and widens each byte to a cell.
JAXDML_INLINE void copy_cells(const uint8_t* from, uint8_t flip, int64_t count, Cell* to) {
  for (int64_t i = 0; i < count; i++) to[i] = Cell(Activation(from[i] ^ flip));
}

}  // namespace jaxdml::JAXDML_ISA
