// The layout of packed filters, which depends only on the filter's shape.
//
// A packed filter has a seal, a flag, an int32 sum for each output channel, and the weights. A depthwise filter, with
// several groups of one channel, has rows of cells [outputs][depth, padded]. Other filters have panels with a lane for
// each output channel: int8 [groups][outputs of a group / kTile][rows of the kernel][columns and channels /
// kDepth][lanes][kDepth]. If winograd_form selects a Winograd transform, the transformed filter follows.
#pragma once

#include "common.h"
#include "microkernel.h"

namespace jaxdml::JAXDML_ISA {

constexpr int kBlock = 16;                                 // tiles in a block of the Winograd kernels
constexpr int64_t kMostWinogradBytes = int64_t(64) << 20;  // limit of one transformed filter

JAXDML_INLINE int64_t filter_depth(const Filter& filter) { return filter.channels * filter.rows * filter.columns; }
JAXDML_INLINE int64_t padded_filter_depth(const Filter& filter) { return round_up(filter_depth(filter), kDepth); }
JAXDML_INLINE int64_t group_outputs(const Filter& filter) { return filter.outputs / filter.groups; }
JAXDML_INLINE int64_t channel_pairs(const Filter& filter) { return ceil_div(filter.channels, 2); }

// Bytes of a filter transformed for F(m x m, 3 x 3), whose tiles have (m + 2)**2 points.
JAXDML_INLINE int64_t winograd_bytes(const Filter& filter, int64_t m) {
  return (m + 2) * (m + 2) * filter.outputs * channel_pairs(filter) * 4;
}

// m of the transformed filter to pack; 0 for no transform. Transforming a filter for one call would cost more than it
// saves. Instructions that multiply bytes compute twice as many products as those for int16, and so beat a transform.
// Filters with many channels usually see small images, in which large tiles would be mostly empty.
JAXDML_INLINE int64_t winograd_form(const Filter& filter) {
  if (kDepth == 4 || filter.is_for_one_call) return 0;
  if (filter.rows != 3 || filter.columns != 3 || filter.channels < 8 || group_outputs(filter) < kRows) return 0;
  const int64_t m = filter.outputs * filter.channels < 1 << 18 ? 4 : 2;
  return winograd_bytes(filter, m) <= kMostWinogradBytes ? m : 0;
}

// A filter of one group is not depthwise even if it has one input channel: the output channels fill the lanes.
JAXDML_INLINE bool is_depthwise(const Filter& filter) { return filter.channels == 1 && filter.groups > 1; }

// Merges groups with few output channels into one group, with zero weights between the groups. The extra products fill
// lanes that would otherwise be idle.
JAXDML_INLINE Filter merged(Filter filter) {
  const int64_t outputs = group_outputs(filter);
  int64_t together = 1;
  for (int64_t i = 2; i <= filter.groups && i * outputs <= kLanes; i++)
    if (filter.groups % i == 0) together = i;
  filter.groups /= together;
  filter.channels *= together;
  return filter;
}

// The depth of one row of a merged kernel: its columns and channels, padded.
JAXDML_INLINE int64_t run_depth(const Filter& filter) { return round_up(filter.columns * filter.channels, kDepth); }
// The depth of an output channel's weights in a panel.
JAXDML_INLINE int64_t panel_depth(const Filter& filter) { return filter.rows * run_depth(filter); }
JAXDML_INLINE int64_t padded_outputs(const Filter& filter) { return round_up(group_outputs(filter), kLanes); }
JAXDML_INLINE int64_t panel_bytes(const Filter& filter) {
  return filter.groups * padded_outputs(filter) * panel_depth(filter);
}

struct Packed {
  uint8_t* seal;  // it begins with the mark
  int32_t* flag;  // whether the Winograd transform is exact
  int32_t* sums;
  Cell* rows;
  uint8_t* panels;
  int32_t* winograd;
};

JAXDML_INLINE Packed packed_filter(const Filter& filter, Arena& arena) {
  Packed packed;
  packed.seal = take<uint8_t>(arena, kSealBytes);
  packed.flag = take<int32_t>(arena, 1);
  packed.sums = take<int32_t>(arena, filter.outputs);
  packed.rows = take<Cell>(arena, is_depthwise(filter) ? filter.outputs * padded_filter_depth(filter) : 0);
  packed.panels = take<uint8_t>(arena, is_depthwise(filter) ? 0 : panel_bytes(merged(filter)));
  const int64_t m = winograd_form(filter);
  packed.winograd = take<int32_t>(arena, m ? winograd_bytes(filter, m) / 4 : 0);
  return packed;
}

JAXDML_INLINE Packed packed_filter(const Convolution& one) {
  Arena arena = {const_cast<uint8_t*>(one.packed), 0};
  return packed_filter(one.filter, arena);
}

// Padding at the end makes a whole packed filter larger than the packed form of any shard; see matrix_bytes.
static int64_t filter_bytes(const Filter& filter) {
  Arena arena = {nullptr, 0};
  packed_filter(filter, arena);
  return arena.used + 4 * (filter.outputs + filter_depth(filter));
}

}  // namespace jaxdml::JAXDML_ISA
