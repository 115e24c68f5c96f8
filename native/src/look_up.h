// Look-ups in tables of 256 bytes.
#pragma once

#include "bytes.h"

namespace jaxdml::JAXDML_ISA {

static void look_up_chunk(const LookUp& one, int64_t first, int64_t last) {
  const Table all = table_of(one.table);
  const I32 flip = splat_byte(flip_to_unsigned(one.is_signed));
  int64_t i = first;
  for (; i + kBytes <= last; i += kBytes) store(one.y + i, entries_at(all, load(one.x + i) ^ flip));
  if (i < last) store_bytes(one.y + i, entries_at(all, load_bytes(one.x + i, last - i) ^ flip), last - i);
}

static void look_up(const Pool& pool, const LookUp* problems, int64_t count) {
  constexpr int64_t kChunk = 1 << 16;  // elements per item
  const int64_t chunks = ceil_div(problems[0].size, kChunk);
  parallel(pool, count * chunks, [&](int64_t item, int64_t) {
    const LookUp& one = problems[item / chunks];
    const int64_t first = item % chunks * kChunk, last = at_most(one.size, first + kChunk);
#ifdef JAXDML_HAS_VBMI
    const uint8_t flip = flip_to_unsigned(one.is_signed);
    if (one.has_vbmi) return look_up_by_vbmi(one.table, one.x + first, flip, last - first, one.y + first);
#endif
    look_up_chunk(one, first, last);
  });
}

}  // namespace jaxdml::JAXDML_ISA
