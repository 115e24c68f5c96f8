// Tables of 256 bytes.
//
// A byte shuffle looks up 16 entries, so the entries are split into 16 tables. Tables 0 and 8 hold entries; each other
// table holds the exclusive or of its entries and those of the table before. The index is x in table 0, x ^ 0x80 in
// table 8, and 16 less in each table after these. A shuffle gives 0 for a negative index, so the exclusive or of all
// shuffles is x's entry.
#pragma once

#include "bytes.h"

namespace jaxdml::JAXDML_ISA {

struct Sixteens {
  I32 of[16];
};
JAXDML_INLINE Sixteens sixteens_of(const uint8_t* table) {
  Sixteens all;
  for (int i = 0; i < 16; i++) {
    all.of[i] = repeat_sixteen(table + 16 * i);
    if (i % 8) all.of[i] ^= repeat_sixteen(table + 16 * (i - 1));
  }
  return all;
}
JAXDML_INLINE I32 entries(const Sixteens& all, I32 x) {
  I32 low = x, high = x ^ splat_byte(0x80), y = {};
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    y ^= shuffle_bytes(all.of[i], low) ^ shuffle_bytes(all.of[i + 8], high);
    low = subtract_bytes(low, splat_byte(16));
    high = subtract_bytes(high, splat_byte(16));
  }
  return y;
}

static void look_up_chunk(const LookUp& one, int64_t first, int64_t last) {
  const Sixteens all = sixteens_of(one.table);
  const I32 flip = splat_byte(flip_to_unsigned(one.is_signed));
  int64_t i = first;
  for (; i + kBytes <= last; i += kBytes) store(one.y + i, entries(all, load(one.x + i) ^ flip));
  if (i < last) store_bytes(one.y + i, entries(all, load_bytes(one.x + i, last - i) ^ flip), last - i);
}

#ifdef __AVX512VNNI__
#define JAXDML_VBMI __attribute__((target("avx512vbmi")))
JAXDML_VBMI static void look_up_chunk_by_vbmi(const LookUp& one, int64_t first, int64_t last) {
  __m512i table[4];
  for (int i = 0; i < 4; i++) table[i] = _mm512_loadu_si512(one.table + 64 * i);
  const __m512i flip = (__m512i)splat_byte(flip_to_unsigned(one.is_signed));
  for (int64_t i = first; i < last; i += kBytes) {
    const int64_t count = at_most(kBytes, last - i);
    const __m512i x = _mm512_xor_si512((__m512i)load_bytes(one.x + i, count), flip);
    const __m512i low = _mm512_permutex2var_epi8(table[0], x, table[1]);
    const __m512i high = _mm512_permutex2var_epi8(table[2], x, table[3]);
    store_bytes(one.y + i, (I32)_mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high), count);
  }
}
#endif

static void look_up(const Pool& pool, const LookUp* problems, int64_t count) {
  constexpr int64_t kChunk = 1 << 16;  // elements of an item
  const int64_t chunks = ceil_div(problems[0].size, kChunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t) {
    const LookUp& one = problems[item / chunks];
    const int64_t first = item % chunks * kChunk, last = at_most(one.size, first + kChunk);
#ifdef __AVX512VNNI__
    if (one.has_vbmi) return look_up_chunk_by_vbmi(one, first, last);
#endif
    look_up_chunk(one, first, last);
  });
}

}  // namespace jaxdml::JAXDML_ISA
