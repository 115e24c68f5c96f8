#include "amx.h"

#include <immintrin.h>

namespace jaxdml {
namespace {

// The operand of LDTILECFG. Each of the eight tile registers has 16 rows of 64 bytes.
struct Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// This is a constant, because GCC assumes that _tile_loadconfig reads only eight bytes, and would drop the stores to
// all other bytes of a local variable.
alignas(64) constexpr Configuration kConfiguration;

}  // namespace

TileRegisters::TileRegisters() { _tile_loadconfig(&kConfiguration); }
TileRegisters::~TileRegisters() { _tile_release(); }

// Registers 0 to 3 hold 2 x 2 tiles of sums, registers 4 and 5 hold rows, registers 6 and 7 hold lanes.
void multiply_tiles(const uint8_t* rows, int64_t stride, const uint8_t* lanes, int64_t step, int64_t depth,
                    int32_t* sums, int64_t sums_stride, bool is_added) {
  auto* to = reinterpret_cast<uint8_t*>(sums);
  if (is_added) {
    _tile_loadd(0, to, sums_stride);
    _tile_loadd(1, to + 64, sums_stride);
    _tile_loadd(2, to + 16 * sums_stride, sums_stride);
    _tile_loadd(3, to + 16 * sums_stride + 64, sums_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    const uint8_t* at = lanes + k / 4 * step;
    _tile_loadd(6, at, step);
    _tile_loadd(4, rows + k, stride);
    _tile_dpbusd(0, 4, 6);
    _tile_loadd(7, at + 64, step);
    _tile_dpbusd(1, 4, 7);
    _tile_loadd(5, rows + 16 * stride + k, stride);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_stored(0, to, sums_stride);
  _tile_stored(1, to + 64, sums_stride);
  _tile_stored(2, to + 16 * sums_stride, sums_stride);
  _tile_stored(3, to + 16 * sums_stride + 64, sums_stride);
}

}  // namespace jaxdml
