// Look-ups in tables of 256 or 65,536 entries of 8 or 16 bits.
#pragma once

#include "bytes.h"

namespace jaxdml::JAXDML_ISA {

static void look_up_chunk(LookUp one, int64_t first, int64_t last) {
  const Table all = table_of(one.table);
  const I32 flip = splat_byte(flip_to_unsigned(one.is_signed));
  int64_t i = first;
  for (; i + kBytes <= last; i += kBytes) store(one.y + i, entries_at(all, load(one.x + i) ^ flip));
  if (i < last) store_bytes(one.y + i, entries_at(all, load_bytes(one.x + i, last - i) ^ flip), last - i);
}

// Look-ups of words, or by words, one element at a time.
template <class X, class Y>
static void look_up_each(LookUp one, int64_t first, int64_t last) {
  const X flip = X(one.is_signed ? 1 << (8 * sizeof(X) - 1) : 0);
  for (int64_t i = first; i < last; i++) {
    X x;
    memcpy(&x, one.x + i * int64_t(sizeof(X)), sizeof(X));
    memcpy(one.y + i * int64_t(sizeof(Y)), one.table + X(x ^ flip) * int64_t(sizeof(Y)), sizeof(Y));
  }
}

static void look_up(const Pool& pool, const LookUp* problems, int64_t count) {
  constexpr int64_t kChunk = 1 << 16;  // elements per item
  const int64_t chunks = ceil_div(problems[0].size, kChunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t) {
    const LookUp& one = problems[item / chunks];
    const int64_t first = item % chunks * kChunk, last = at_most(one.size, first + kChunk);
    if (one.x_width == 2)
      return one.y_width == 2 ? look_up_each<uint16_t, uint16_t>(one, first, last)
                              : look_up_each<uint16_t, uint8_t>(one, first, last);
    if (one.y_width == 2) return look_up_each<uint8_t, uint16_t>(one, first, last);
#ifdef JAXDML_HAS_VBMI
    const uint8_t flip = flip_to_unsigned(one.is_signed);
    if (one.has_vbmi) return look_up_by_vbmi(one.table, one.x + first, flip, last - first, one.y + first);
#endif
    look_up_chunk(one, first, last);
  });
}

}  // namespace jaxdml::JAXDML_ISA
