// Interleaves bytes of several rows, so that each lane holds the operands of one dot product.
#pragma once

#include "common.h"
#include "microkernel.h"

namespace jaxdml::JAXDML_ISA {

// The number of lanes of the panel that begins at column `first`. The last panel may be narrower than a tile.
JAXDML_INLINE int64_t panel_lanes(int64_t columns, int64_t first) {
  return at_most(kTile, round_up(columns, kLanes) - first);
}

// Interleaves 16 bytes of each of kDepth rows: lane p gets byte p of every row, after the flip.
JAXDML_INLINE I32 interleaved(const uint8_t* const (&rows)[kDepth], uint8_t flip) {
  const __m128i top = _mm_set1_epi8(char(flip));
  __m128i x[kDepth];
  for (int i = 0; i < kDepth; i++) x[i] = _mm_xor_si128(_mm_loadu_si128((const __m128i*)rows[i]), top);
#ifdef __AVX512VNNI__
  const __m128i a = _mm_unpacklo_epi8(x[0], x[1]), b = _mm_unpackhi_epi8(x[0], x[1]);
  const __m128i c = _mm_unpacklo_epi8(x[2], x[3]), d = _mm_unpackhi_epi8(x[2], x[3]);
  const __m256i low = _mm256_set_m128i(_mm_unpackhi_epi16(a, c), _mm_unpacklo_epi16(a, c));
  const __m256i high = _mm256_set_m128i(_mm_unpackhi_epi16(b, d), _mm_unpacklo_epi16(b, d));
  return (I32)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
  return (I32)_mm256_set_m128i(_mm_unpackhi_epi8(x[0], x[1]), _mm_unpacklo_epi8(x[0], x[1]));
#endif
}

// Flips `count` bytes to uint8 and widens each byte to a cell.
JAXDML_INLINE void copy_cells(const uint8_t* from, uint8_t flip, int64_t count, Cell* to) {
  for (int64_t i = 0; i < count; i++) to[i] = Cell(uint8_t(from[i] ^ flip));
}

}  // namespace jaxdml::JAXDML_ISA
