// Products of 8-bit tiles in AMX's registers. What is declared here is compiled by itself, for processors that have it.
#pragma once

#include <cstdint>

namespace jaxdml {

constexpr int64_t kTileRows = 32, kTileColumns = 32;  // of a product
constexpr int64_t kTileDepth = 64;                    // bytes of a row that are multiplied at a time

// Sets the thread's tile registers up while it lives.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// The sums of kTileRows rows of uint8, `stride` bytes apart, with kTileColumns lanes of int8, four of a lane side by
// side, `step` bytes from four to the next four. `depth` is a multiple of kTileDepth; `sums` are `sums_stride` bytes
// apart from row to row, and may be added to.
void multiply_tiles(const uint8_t* rows, int64_t stride, const uint8_t* lanes, int64_t step, int64_t depth,
                    int32_t* sums, int64_t sums_stride, bool is_added);

}  // namespace jaxdml
