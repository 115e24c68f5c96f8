// Convolutions as products of matrices: rows of the filter against panels of the input's windows (im2col), which are
// made a few at a time, and all at once only where there are fewer than work for all threads.
#pragma once

#include "channels.h"
#include "microkernel.h"
#include "packing.h"
#include "planes.h"

namespace jaxdml::JAXDML_ISA {

struct DirectPlan {
  Planes planes;
  int64_t tiles;                                           // of positions
  int64_t tile_block, tile_blocks, row_block, row_blocks;  // of one item
  int64_t* offsets;                                        // of each element of a filter's row
  Channels* channels;                                      // of each problem
  uint8_t* filled;                                         // planes of all problems
  bool are_panels_shared;                                  // by items that differ in their rows
  uint8_t* panels;                                         // of each worker, or of all images and groups
  int64_t panel_bytes;                                     // of a tile
  int64_t dwords;                                          // of a row
  int64_t panel_parts;                                     // in which a shared panel is made
  int32_t* ones;
};

JAXDML_INLINE DirectPlan plan_direct(const Convolution* problems, int64_t count, int64_t threads, Arena& arena) {
  const Convolution& one = problems[0];
  const Filter& filter = one.filter;
  DirectPlan plan;
  plan.planes = planes_of(one);
  const int64_t depth = padded_filter_depth(filter), outputs = group_outputs(filter);
  plan.tiles = ceil_div(plan.planes.positions, kTile);
  plan.dwords = depth / kDepth;
  plan.panel_bytes = depth / kDepth * kTile * 4;
  plan.tile_block = at_most(at_least((192 << 10) / plan.panel_bytes, 1), plan.tiles);
  plan.row_block = round_up(outputs, kRows);
  const auto items = [&] {
    return count * one.batch * filter.groups * ceil_div(plan.tiles, plan.tile_block) *
           ceil_div(outputs, plan.row_block);
  };
  const int64_t enough = threads > 1 ? 8 * threads : 1;
  while (items() < enough && plan.tile_block > 1) plan.tile_block = ceil_div(plan.tile_block, 2);
  while (items() < enough && plan.row_block > 8 * kRows) plan.row_block = round_up(plan.row_block / 2, kRows);
  plan.tile_blocks = ceil_div(plan.tiles, plan.tile_block);
  plan.row_blocks = ceil_div(outputs, plan.row_block);
  plan.offsets = take<int64_t>(arena, depth);
  plan.channels = take<Channels>(arena, count);
  for (int64_t i = 0; i < count; i++) {
    const Channels channels = take_channels(filter, arena);
    if (arena.block) plan.channels[i] = channels;
  }
  const int64_t all_channels = count * one.batch * filter.groups * filter.channels;
  plan.filled = take<uint8_t>(arena, plan.planes.is_input ? 0 : all_channels * plan.planes.channel + kTile);
  plan.are_panels_shared = plan.row_blocks > 1;
  const int64_t panels =
      plan.are_panels_shared ? count * one.batch * filter.groups * plan.tiles : threads * plan.tile_block;
  plan.panels = take<uint8_t>(arena, panels * plan.panel_bytes);
  plan.panel_parts = at_most(at_least(depth / 512, 1), 2 * threads);
  plan.ones = take<int32_t>(arena, depth / kDepth);
  return plan;
}

// The windows of up to kTile positions from `first` on, elements from_k to until_k, in a panel of so many lanes.
JAXDML_INLINE void make_panel(const uint8_t* planes, const int64_t* offsets, int64_t depth, int64_t from_k,
                              int64_t until_k, int64_t first, int64_t count, int64_t lanes, uint8_t flip,
                              uint8_t* panel) {
  for (int64_t k = from_k; k < until_k; k += kDepth) {
    const uint8_t* rows[kDepth];
    for (int i = 0; i < kDepth; i++) rows[i] = k + i < depth ? planes + offsets[k + i] + first : nullptr;
    uint8_t* to = panel + k / kDepth * lanes * 4;
    if (lanes < 16) {  // less than what is made at once
      uint8_t cells[64];
      each_sixteen(rows, count, flip,
                   [&](const uint8_t* const(&at)[kDepth], int64_t) { interleave_cells(at, flip, cells); });
      memcpy(to, cells, lanes * 4);
      continue;
    }
    each_sixteen(rows, count, flip,
                 [&](const uint8_t* const(&at)[kDepth], int64_t p) { interleave_cells(at, flip, to + p * 4); });
  }
}

template <int R, int V>
static void direct_tile(const Convolution& one, const DirectPlan& plan, const Channels& channels, const Dword* cells,
                        int64_t stride, const uint8_t* panel, const int32_t* window_sums, int64_t first, int64_t o,
                        uint8_t* y) {
  I32 sums[R][V];
  multiply_tile<R, V, UnsignedLanes>(cells, stride, panel, plan.dwords, sums);
  const int64_t count = at_most(V * kLanes, plan.planes.positions - first);
  const int64_t size = size_of(one.type), channel = one.y_height * one.y_width * size;
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    alignas(64) uint8_t bytes[V * kLanes * 4];
    const I32 offset = splat(channels.offsets[o + r]), zero_point = splat(channels.zero_points[o + r]);
    I32 values[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      I32 sum = add(sums[r][v], offset);
      if (channels.has_zero_points) sum = subtract(sum, multiply(zero_point, load(window_sums + v * kLanes)));
      if (size == 4)
        store(bytes + v * kBytes, sum);
      else
        values[v] = requantized(sum, splat(channels.multipliers[o + r]), channels.output);
    }
    if (size == 1) store_bytes_of(bytes, values);
    store_positions(one, plan.planes, bytes, first, count, size, y + r * channel);
  }
}

template <int V>
static void sum_windows(const int32_t* ones, const uint8_t* panel, int64_t depth, int32_t* window_sums) {
  I32 sums[1][V];
  multiply_tile<1, V, UnsignedLanes>(ones, 0, panel, depth, sums);
  for (int v = 0; v < V; v++) store(window_sums + v * kLanes, sums[0][v]);
}

// The planes of a chunk of channels of all problems.
struct PlaneChunks {
  int64_t channels, size, count;  // of one problem; of a chunk; of chunks in all
};

JAXDML_INLINE PlaneChunks plane_chunks(const Convolution* problems, int64_t count, const Planes& planes) {
  const int64_t channels = problems[0].batch * problems[0].filter.groups * problems[0].filter.channels;
  const int64_t size = at_least((16 << 10) / at_least(planes.channel, 1), 1);
  return {channels, size, planes.is_input ? 0 : count * ceil_div(channels, size)};
}

JAXDML_INLINE void fill_chunk(const Convolution* problems, const PlaneChunks& chunks, const Planes& planes,
                              int64_t item, uint8_t* filled) {
  const int64_t of_problem = ceil_div(chunks.channels, chunks.size);
  const int64_t problem = item / of_problem, first = item % of_problem * chunks.size;
  const Convolution& one = problems[problem];
  for (int64_t c = first; c < at_most(chunks.channels, first + chunks.size); c++)
    fill_planes(one, planes, one.x + c * one.height * one.width,
                filled + (problem * chunks.channels + c) * planes.channel);
}

JAXDML_INLINE const uint8_t* planes_at(const Convolution* problems, int64_t problem, const Planes& planes,
                                       const uint8_t* filled, int64_t channel) {
  const Convolution& one = problems[problem];
  if (planes.is_input) return one.x + channel * one.height * one.width;
  return filled + (problem * one.batch * one.filter.groups * one.filter.channels + channel) * planes.channel;
}

static void convolve_directly(const Pool& pool, const Convolution* problems, int64_t count, Arena& arena) {
  const DirectPlan plan = plan_direct(problems, count, pool.threads, arena);
  const Filter& filter = problems[0].filter;
  const int64_t depth = filter_depth(filter), dwords = plan.dwords, stride = row_cells(depth) / kDepth;
  for (int64_t i = 0; i < count; i++) set_channels(problems[i], 0, plan.channels[i]);
  for (int64_t k = 0; k < depth; k++) {
    const int64_t v = k % filter.columns, u = k / filter.columns % filter.rows;
    const int64_t c = k / filter.columns / filter.rows;
    plan.offsets[k] = c * plan.planes.channel + plane_offset(problems[0], plan.planes, u, v);
  }
  for (int64_t k = 0; k < dwords; k++) plan.ones[k] = kDepth == 4 ? 0x01010101 : 0x00010001;

  const auto lanes_of = [&](int64_t tile) {
    return at_most(kTile, round_up(plan.planes.positions - tile * kTile, kLanes));
  };
  // Part `part` of so many of a panel.
  const auto make = [&](int64_t problem, int64_t image_group, int64_t tile, int64_t part, int64_t parts,
                        uint8_t* panel) {
    const uint8_t* planes = planes_at(problems, problem, plan.planes, plan.filled, image_group * filter.channels);
    const uint8_t flip = flip_to_unsigned(problems[problem].x_zero_point.is_signed);
    const int64_t from = dwords * part / parts * kDepth, until = dwords * (part + 1) / parts * kDepth;
    // Planes have room behind their end for whole vectors; the caller's input has none.
    const int64_t count = plan.planes.is_input ? at_most(kTile, plan.planes.positions - tile * kTile) : lanes_of(tile);
    make_panel(planes, plan.offsets, depth, from, until, tile * kTile, count, lanes_of(tile), flip, panel);
  };
  const int64_t images = problems[0].batch * filter.groups;
  const auto make_part = [&](int64_t number) {
    Index index = {number};
    const int64_t part = next_of(index, plan.panel_parts), at = index.rest;
    const int64_t tile = next_of(index, plan.tiles), image_group = next_of(index, images);
    make(index.rest, image_group, tile, part, plan.panel_parts, plan.panels + at * plan.panel_bytes);
  };

  const auto multiply = [&](int64_t number, int64_t worker) {
    Index index = {number};
    const int64_t row_block = next_of(index, plan.row_blocks), tile_block = next_of(index, plan.tile_blocks);
    const int64_t image_group = next_of(index, images), group = image_group % filter.groups;
    const int64_t n = image_group / filter.groups;
    const Convolution& one = problems[index.rest];
    const Channels& channels = plan.channels[index.rest];
    const int64_t first_tile = tile_block * plan.tile_block;
    const int64_t last_tile = at_most(plan.tiles, first_tile + plan.tile_block);
    uint8_t* panels = plan.panels;
    if (plan.are_panels_shared) {
      panels += ((index.rest * images + image_group) * plan.tiles + first_tile) * plan.panel_bytes;
    } else {
      panels += worker * plan.tile_block * plan.panel_bytes;
      for (int64_t tile = first_tile; tile < last_tile; tile++)
        make(index.rest, image_group, tile, 0, 1, panels + (tile - first_tile) * plan.panel_bytes);
    }
    const Packed packed = packed_filter(one);
    const int64_t first_row = group * group_outputs(filter) + row_block * plan.row_block;
    const int64_t last_row = at_most((group + 1) * group_outputs(filter), first_row + plan.row_block);
    alignas(64) int32_t window_sums[kTile] = {};
    for (int64_t o = first_row; o < last_row; o += kRows)
      for (int64_t tile = first_tile; tile < last_tile; tile++) {
        const uint8_t* panel = panels + (tile - first_tile) * plan.panel_bytes;
        with_constant<kVectors>(lanes_of(tile) / kLanes, [&](auto vectors) {
          if (channels.has_zero_points) sum_windows<vectors>(plan.ones, panel, dwords, window_sums);
          with_constant<kRows>(at_most(kRows, last_row - o), [&](auto rows) {
            direct_tile<rows, vectors>(one, plan, channels, reinterpret_cast<const Dword*>(packed.rows) + o * stride,
                                       stride, panel, window_sums, tile * kTile, o, y_channel(one, n, o));
          });
        });
      }
  };
  const PlaneChunks chunks = plane_chunks(problems, count, plan.planes);
  const int64_t parts = plan.are_panels_shared ? count * images * plan.tiles * plan.panel_parts : 0;
  in_phases(pool, {chunks.count, parts, count * images * plan.tile_blocks * plan.row_blocks},
            [&](int64_t phase, int64_t item, int64_t worker) {
              if (phase == 0) return fill_chunk(problems, chunks, plan.planes, item, plan.filled);
              if (phase == 1) return make_part(item);
              multiply(item, worker);
            });
}

}  // namespace jaxdml::JAXDML_ISA
