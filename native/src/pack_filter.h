// Packs filters into the layout of filter.h. Integers are rearranged or, for Winograd, transformed exactly.
#pragma once

#include "filter.h"
#include "packing.h"
#include "transpose.h"
#include "winograd.h"

namespace jaxdml::JAXDML_ISA {

// The part of a panel that belongs to up to 16 output channels.
struct Lanes {
  uint8_t* to;
  int64_t step;   // bytes from one group of kDepth weights to the next
  int64_t bytes;  // kDepth for each lane

  // ORs `count` (at most kDepth) weights per lane into zeroed bytes, beginning at each lane's k-th weight. All other
  // bytes are kept, because two writes share a group of kDepth weights if k is not a multiple of kDepth.
  void put(int64_t k, int64_t count, const I32 (&weights)[kSixteenCells]) const {
    using Lane = std::conditional_t<kDepth == 4, uint32_t, uint16_t> __attribute__((vector_size(kBytes)));
    const int at = int(k % kDepth);
    uint8_t* const first = to + k / kDepth * step;
    for (int v = 0; v < kSixteenCells; v++) {
      const int64_t left = bytes - v * kBytes;
      if (left <= 0) return;
      merge(first + v * kBytes, left, (I32)((Lane)weights[v] << (at * 8)));
      if (at + count > kDepth) merge(first + step + v * kBytes, left, (I32)((Lane)weights[v] >> ((kDepth - at) * 8)));
    }
  }

 private:
  // Lanes are whole vectors, or half of one.
  static void merge(uint8_t* at, int64_t left, I32 weights) {
    if (left >= kBytes) return store(at, load(at) | weights);
    const I32 merged = load_some(at, kBytes / 2) | weights;
    memcpy(at, &merged, kBytes / 2);
  }
};

// Packs sixteen lanes of a zeroed panel. A transpose brings the corresponding weights of 16 output channels into 16
// adjacent bytes. One transpose covers several channels of a small kernel, or several elements of a large kernel.
static void pack_lanes(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t group, int64_t panel,
                       int64_t lane, uint8_t* to) {
  const Filter whole = merged(shape);
  const int64_t outputs = group_outputs(whole), own_outputs = group_outputs(shape), depth = filter_depth(shape);
  const int64_t lanes = panel_lanes(outputs, panel), first = panel + lane, area = shape.rows * shape.columns;
  const uint8_t* from = filter + (group * outputs + first) * depth;
  const Lanes into = {to + lane * kDepth, lanes * kDepth, at_most(16, lanes - lane) * kDepth};
  const I32 top = splat(int32_t(flip * 0x01010101u));
  const int64_t elements = at_most(area, kBytes), channels = at_least(kBytes / elements / kDepth, 1) * kDepth;
  uint8_t turned[kDepth * kBytes][16];

  for (int64_t part = 0; part < whole.channels / shape.channels; part++) {  // one of the merged groups
    // Weights between different merged groups are 0.
    const int64_t begin = at_least(part * own_outputs - first, 0), end = at_most((part + 1) * own_outputs - first, 16);
    const auto turn = [&](int64_t at, int64_t count, int64_t row) {
      for (int64_t i = 0; i < count; i += kBytes) {
        const int64_t some = at_most(kBytes, count - i);
        I32 rows[16];
        for (int64_t o = 0; o < 16; o++)
          rows[o] = o >= begin && o < end ? load_some(from + o * depth + at + i, some) ^ top : I32{};
        transpose_sixteen(rows);
        each_column(rows, some, [&](int64_t p, Sixteen x) { store_sixteen(turned[row + i + p], x); });
      }
    };
    for (int64_t t = 0; t < area; t += elements)
      for (int64_t c = 0; c < shape.channels; c += channels) {
        const int64_t some = at_most(channels, shape.channels - c), elements_left = at_most(elements, area - t);
        if (elements == area)
          turn(c * area, some * area, 0);
        else
          for (int64_t i = 0; i < some; i++) turn((c + i) * area + t, elements_left, i * elements);
        memset(turned[some * elements], 0, size_t((round_up(some, kDepth) - some) * elements * 16));
        Index next = {t};
        int64_t v = next_of(next, shape.columns), u = next.rest;
        for (int64_t e = 0; e < elements_left; e++) {
          const int64_t k = u * run_depth(whole) + v * whole.channels + part * shape.channels + c;
          for (int64_t i = 0; i < some; i += kDepth) {
            const uint8_t* rows[kDepth];
            for (int j = 0; j < kDepth; j++) rows[j] = turned[(i + j) * elements + e];
            I32 weights[kSixteenCells];
            interleaved(rows, 0, weights);
            into.put(k + i, at_most(kDepth, some - i), weights);
          }
          if (++v < shape.columns) continue;
          v = 0;
          u++;
        }
      }
  }
}

JAXDML_INLINE int32_t sum_of_weights(const uint8_t* weights, uint8_t flip, int64_t count) {
  uint32_t sum = 0;
  for (int64_t k = 0; k < count; k++) sum += uint32_t(int8_t(weights[k] ^ flip));
  return int32_t(sum);
}

JAXDML_INLINE void pack_row(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t o, Packed& packed) {
  const int64_t depth = filter_depth(shape), padded = padded_filter_depth(shape);
  Cell* row = packed.rows + o * padded;
  for (int64_t k = 0; k < padded; k++) row[k] = k < depth ? Cell(int8_t(filter[o * depth + k] ^ flip)) : Cell(0);
}

// Whether F(m x m, 3 x 3) is exact for the filter and for the filter of ones that sums windows.
JAXDML_INLINE bool is_exact(const uint8_t* filter, uint8_t flip, const Filter& shape, int64_t m) {
  const int64_t depth = filter_depth(shape);
  int64_t largest = depth;
  for (int64_t o = 0; o < shape.outputs; o++) {
    int64_t magnitude = 0;
    for (int64_t k = 0; k < depth; k++) {
      const int32_t weight = int8_t(filter[o * depth + k] ^ flip);
      magnitude += weight < 0 ? -weight : weight;
    }
    largest = at_least(largest, magnitude);
  }
  return largest <= largest_exact_sum(m);
}

static void pack_filter(const Pool& pool, const uint8_t* filter, bool is_signed, const Filter& shape, uint8_t* to) {
  Arena arena = {to, 0};
  Packed packed = packed_filter(shape, arena);
  const int64_t depth = filter_depth(shape), m = winograd_form(shape);
  const uint8_t flip = flip_to_signed(is_signed);
  memset(packed.seal, 0, kSealBytes);
  memset(packed.flag, 0, 64);
  clear_behind(packed.sums, shape.outputs);
  if (is_depthwise(shape))
    clear_behind(packed.rows, shape.outputs * padded_filter_depth(shape));
  else
    clear_behind(packed.panels, panel_bytes(merged(shape)));
  if (m) clear_behind(packed.winograd, winograd_bytes(shape, m) / 4);
  memset(to + arena.used, 0, 4 * (shape.outputs + depth));
  memcpy(packed.seal, &kFilterMark, sizeof kFilterMark);
  parallel(pool, ceil_div(shape.outputs, 16), [&](int64_t item, int64_t) {
    for (int64_t o = item * 16; o < at_most(shape.outputs, (item + 1) * 16); o++) {
      packed.sums[o] = sum_of_weights(filter + o * depth, flip, depth);
      if (is_depthwise(shape)) pack_row(filter, flip, shape, o, packed);
      if (m == 4) pack_winograd<4>(filter, flip, shape, o, packed);
      if (m == 2) pack_winograd<2>(filter, flip, shape, o, packed);
    }
  });
  if (!is_depthwise(shape)) {
    // One worker packs a whole panel, because the lanes of a panel are interleaved.
    const Filter whole = merged(shape);
    const int64_t outputs = group_outputs(whole), count = ceil_div(outputs, kTile), run = panel_depth(whole);
    parallel(pool, whole.groups * count, [&](int64_t item, int64_t) {
      const int64_t group = item / count, first = item % count * kTile;
      uint8_t* panel = packed.panels + (group * padded_outputs(whole) + first) * run;
      memset(panel, 0, size_t(panel_lanes(outputs, first) * run));
      for (int64_t lane = 0; lane < at_most(kTile, outputs - first); lane += 16)
        pack_lanes(filter, flip, shape, group, first, lane, panel);
    });
  }
  if (m) *packed.flag = is_exact(filter, flip, shape, m);
}

}  // namespace jaxdml::JAXDML_ISA
