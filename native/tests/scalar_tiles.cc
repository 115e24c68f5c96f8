// A scalar version of amx.cc. It runs on processors without AMX, and sanitizers can check its memory accesses.
#include <cstdlib>

#include "amx.h"

namespace jaxdml {
namespace {

thread_local bool are_set_up = false;

}  // namespace

TileRegisters::TileRegisters() {
  if (are_set_up) abort();
  are_set_up = true;
}
TileRegisters::~TileRegisters() { are_set_up = false; }

void multiply_tiles(const uint8_t* rows, int64_t stride, const uint8_t* lanes, int64_t step, int64_t depth,
                    int32_t* sums, int64_t sums_stride, bool is_added) {
  if (!are_set_up || depth % kTileDepth) abort();
  for (int64_t r = 0; r < kTileRows; r++) {
    auto* to = reinterpret_cast<int32_t*>(reinterpret_cast<uint8_t*>(sums) + r * sums_stride);
    for (int64_t n = 0; n < kTileColumns; n++) {
      uint32_t sum = is_added ? uint32_t(to[n]) : 0;
      for (int64_t k = 0; k < depth; k++)
        sum += uint32_t(int32_t(rows[r * stride + k]) * int8_t(lanes[k / 4 * step + n * 4 + k % 4]));
      to[n] = int32_t(sum);
    }
  }
}

}  // namespace jaxdml
