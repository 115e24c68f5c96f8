// Products of 8-bit tiles in the AMX tile registers. amx.cc is the only file that is compiled with AMX instructions, so
// no other code uses AMX before the processor has been checked. The int32 sums are exact modulo 2**32.
#pragma once

#include <cstdint>

namespace jaxdml {

constexpr int64_t kTileRows = 32, kTileColumns = 32;  // rows and columns of one call's sums
constexpr int64_t kTileDepth = 64;                    // bytes of a row that one tile register holds

// Configures the tile registers of the current thread; the destructor releases them.
class TileRegisters {
 public:
  TileRegisters();
  ~TileRegisters();
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// Multiplies kTileRows rows of uint8 by kTileColumns columns (lanes) of int8.
//
// Rows are `stride` bytes apart. Lanes are packed [depth / 4][kTileColumns][4], where consecutive groups of four bytes
// of one lane are `step` bytes apart. `depth` is a multiple of kTileDepth. Rows of `sums` are `sums_stride` bytes
// apart. If `is_added`, the products are added to the values that `sums` holds.
void multiply_tiles(const uint8_t* rows, int64_t stride, const uint8_t* lanes, int64_t step, int64_t depth,
                    int32_t* sums, int64_t sums_stride, bool is_added);

}  // namespace jaxdml
