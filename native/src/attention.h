// Attention of float32 queries. No bit of a query's results depends on other queries, or on keys and values that the
// query does not see. docs/numerics_products.md has the rule.
//
// Queries that share keys and values are computed in blocks: first the scores, one panel of keys after another, then
// the weights of values, then the weighted sums of values. Each block rounds keys and values to integers again: this
// needs memory for one panel only, and takes little time if a block has many queries.
#pragma once

#include <initializer_list>

#include "elementwise.h"
#include "integer_rows.h"

namespace jaxdml::JAXDML_ISA {

constexpr float kFirstOfRows = 0x1p26f, kFirstOfValues = 0x1p22f;  // factors moved from sums to scales
constexpr int64_t kPartKeys = 1 << 15;     // the maximum number of keys in an exact sum; such sums are added as floats
constexpr float kUnseen = -3.4028235e38f;  // the score of a key that a query does not see
constexpr int64_t kLeastBlockRows = 12, kMostBlockRows = 96, kBlockScores = 1 << 16;
static_assert(kLeastBlockRows % kSumRows == 0);

JAXDML_INLINE int64_t queries_of_group(const Attention& one) { return one.heads / one.groups * one.rows; }
JAXDML_INLINE int64_t block_rows(const Attention& one) {
  const int64_t wanted = kBlockScores / one.keys / kLeastBlockRows * kLeastBlockRows;
  return at_most(queries_of_group(one), at_most(kMostBlockRows, at_least(kLeastBlockRows, wanted)));
}

struct KeyRange {
  int64_t begin, end;
};

// Scratch memory of a thread. Row strides are rounded up to whole vectors.
struct AttentionRoom {
  int64_t keys, depth, width;  // strides
  KeyRange* ranges;            // one for every kSumRows queries
  double *queries, *weights;   // rounded: [rows][2][depth], where 2 counts halves; [kSumRows][kTerms]
  float *query_scales, *weight_scales, *weight_inverses, *totals;  // [rows]
  float* scores;                                                   // [rows][keys]; later exp(score - greatest score)
  float *key_scales, *key_inverses;                                // of a panel
  float *value_scales, *value_inverses;                            // [keys]
  float* panels;                                                   // a panel of keys, or all panels of kTerms values
  double *upper, *lower;                                           // [rows][width]: exact sums
  float* sums;                                                     // [rows][width]: sums of parts, added as floats
};

static int64_t take_room(const Attention& one, Arena& arena, AttentionRoom& room) {
  const int64_t rows = block_rows(one);
  room.keys = round_up(one.keys, kLanes);
  room.depth = round_up(one.depth, kLanes);
  room.width = round_up(one.width, kLanes);
  room.ranges = take<KeyRange>(arena, ceil_div(rows, kSumRows));
  room.queries = take<double>(arena, rows * 2 * room.depth);
  room.weights = take<double>(arena, kSumRows * kTerms);
  for (float** each : {&room.query_scales, &room.weight_scales, &room.weight_inverses, &room.totals})
    *each = take<float>(arena, rows);
  room.scores = take<float>(arena, rows * room.keys);
  for (float** each : {&room.key_scales, &room.key_inverses}) *each = take<float>(arena, kLanes);
  for (float** each : {&room.value_scales, &room.value_inverses}) *each = take<float>(arena, room.keys);
  room.panels = take<float>(arena, at_least(room.depth * kLanes, room.width * kTerms));
  for (double** each : {&room.upper, &room.lower}) *each = take<double>(arena, rows * room.width);
  room.sums = take<float>(arena, rows * room.width);
  return arena.used;
}

static int64_t attention_scratch(const Attention& one, int64_t threads) {
  Arena arena = {};
  AttentionRoom room;
  return threads * take_room(one, arena, room);
}

// The queries that a block computes: consecutive queries of a group.
struct AttentionBlock {
  int64_t batch, group, first, rows;
};
struct AttentionQuery {
  int64_t batch, head, row;
};
JAXDML_INLINE AttentionQuery query_of(const Attention& one, const AttentionBlock& block, int64_t i) {
  const int64_t index = block.first + i;
  return {block.batch, one.heads / one.groups * block.group + index / one.rows, index % one.rows};
}
JAXDML_INLINE int64_t offset(const int64_t (&steps)[3], const AttentionQuery& of) {
  return of.batch * steps[0] + of.head * steps[1] + of.row * steps[2];
}
JAXDML_INLINE int64_t index_of(const Attention& one, const AttentionQuery& of) {
  return (of.batch * one.heads + of.head) * one.rows + of.row;
}

JAXDML_INLINE bool has_eight_zeros(const uint8_t* at) {
  uint64_t eight;
  memcpy(&eight, at, 8);
  return !eight;
}

// The range of keys that queries `first` to `last` of a block see; it begins at a multiple of kLanes. Keys outside the
// range have weight 0.
static KeyRange seen_keys(const Attention& one, const AttentionBlock& block, int64_t first, int64_t last) {
  if (!one.seen || one.result != AttentionResult::kOutput) return {0, one.keys};
  KeyRange range = {one.keys, 0};
  for (int64_t i = first; i < last; i++) {
    const uint8_t* const seen = one.seen + offset(one.seen_steps, query_of(one, block, i));
    int64_t begin = 0, end = one.keys;
    while (begin + 8 <= range.begin && has_eight_zeros(seen + begin)) begin += 8;
    while (begin < range.begin && !seen[begin]) begin++;
    while (end - 8 >= range.end && has_eight_zeros(seen + end - 8)) end -= 8;
    while (end > range.end && !seen[end - 1]) end--;
    range = {at_most(range.begin, begin), at_least(range.end, end)};
  }
  return {at_most(range.begin, range.end) / kLanes * kLanes, range.end};
}

// Finds each tile's range of keys, and returns the range that covers them all.
static KeyRange find_ranges(const Attention& one, const AttentionBlock& block, const AttentionRoom& room) {
  KeyRange all = {one.keys, 0};
  for (int64_t row = 0; row < block.rows; row += kSumRows) {
    const KeyRange range = seen_keys(one, block, row, at_most(row + kSumRows, block.rows));
    room.ranges[row / kSumRows] = range;
    all = {at_most(all.begin, range.begin), at_least(all.end, range.end)};
  }
  return all;
}

static void round_queries(const Attention& one, const AttentionBlock& block, const AttentionRoom& room) {
  const F32 scale = splat(one.scale);
  for (int64_t i = 0; i < block.rows; i++) {
    const float* const x = one.query + index_of(one, query_of(one, block, i)) * one.depth;
    const auto scaled = [&](int64_t k) { return load_part(x + k, one.depth - k) * scale; };
    I32 most = splat(0);
    for (int64_t k = 0; k < one.depth; k += kLanes) most = greater(most, (I32)scaled(k) & splat(kMagnitude));
    const Rounding by = rounding_of(splat(largest_of(most)), kOfRows);
    room.query_scales[i] = by.scale[0] * kFirstOfRows;
    double* const to = room.queries + i * 2 * room.depth;
    for (int64_t k = 0; k < one.depth; k += kLanes) {
      const F32 x = integers_of(scaled(k), by.inverse), upper = nearest(x * splat(1.0f / kHalf));
      store_doubles(to + k, upper);
      store_doubles(to + room.depth + k, x - upper * splat(float(kHalf)));
    }
  }
}

// Computes scores, and the scales for rounding values. The rows of values are read here for the first time, so that
// these reads overlap with multiplications.
static void find_scores(const Attention& one, const AttentionBlock& block, const KeyRange& range,
                        const AttentionRoom& room) {
  const int64_t first_key = (block.batch * one.groups + block.group) * one.keys;
  const float *const keys = one.key + first_key * one.depth, *const values = one.value + first_key * one.width;
  for (int64_t key = range.begin; key < range.end; key += kLanes) {
    const float* const at = keys + key * one.depth;
    const int64_t count = at_most(kLanes, one.keys - key);
    find_roundings(at, count, one.depth, kOfRows, room.key_scales, room.key_inverses);
    round_transposed(at, count, one.depth, room.key_inverses, room.panels);
    const F32 key_scales = load_floats(room.key_scales);
    if (one.result == AttentionResult::kOutput) {
      find_roundings(values + key * one.width, count, one.width, kOfValues, room.value_scales + key,
                     room.value_inverses + key);
      store(room.value_scales + key, (I32)(load_floats(room.value_scales + key) * splat(kFirstOfValues)));
    }
    for (int64_t row = 0; row < block.rows; row += kSumRows / 2) {
      const KeyRange& of_tile = room.ranges[row / kSumRows];
      if (key < of_tile.begin || key >= of_tile.end) continue;
      const int64_t some = at_most(kSumRows / 2, block.rows - row);
      F32 sums[kSumRows / 2];
      with_tile<kSumRows, 2>(2 * some, [&](auto rows) {
        multiply_halves<rows>(room.queries + row * 2 * room.depth, room.depth, room.panels, one.depth, sums);
      });
      for (int64_t r = 0; r < some; r++) {
        const F32 scales = product(splat(room.query_scales[row + r]), key_scales);
        store(room.scores + (row + r) * room.keys + key, (I32)product(scales, sums[r] * splat(1 / kFirstOfRows)));
      }
    }
  }
}

// Masks the scores. Scores past the end of the range, up to the end of its last vector, become kUnseen.
static void mask_scores(const Attention& one, const AttentionQuery& of, const KeyRange& range, float* scores) {
  const F32 softcap = splat(one.softcap), unseen = splat(kUnseen);
  const uint8_t* const seen = one.seen ? one.seen + offset(one.seen_steps, of) : nullptr;
  const float* const bias = one.bias ? one.bias + offset(one.bias_steps, of) : nullptr;
  const bool has_more = one.result != AttentionResult::kCapped;
  for (int64_t key = range.begin; key < range.end; key += kLanes) {
    const int64_t count = at_most(kLanes, one.keys - key);
    F32 x = load_floats(scores + key);
    if (one.softcap != 0) x = product(tanh(x / softcap), softcap);
    if (has_more) {
      if (bias) x = without_zero_signs(x + flushed(load_part(bias + key, count)));
      uint8_t copy[kLanes] = {};
      if (seen) x = from_unsigned_bytes(whole(seen + key, count, copy)) != splat(0) ? x : unseen;
      x = (x <= unseen) | ~lanes_below(range.end - key) ? unseen : x;
    }
    store(scores + key, (I32)x);
  }
}

// The weight of a row of rounded values: power times the row's scale; 0 if power is 0, even if the scale is NaN.
JAXDML_INLINE F32 weight_of(F32 power, const float* scales) {
  return power == splat(0.0f) ? splat(0.0f) : power * load_floats(scales);
}

// Turns masked scores into powers of e, and finds their total and the scale for rounding the weights of values.
static void weigh(const Attention& one, const AttentionQuery& of, const KeyRange& range, int64_t row,
                  const AttentionRoom& room) {
  const F32 unseen = splat(kUnseen), zero = splat(0.0f);
  float* const scores = room.scores + row * room.keys;
  float greatest = row_extreme<true>(scores + range.begin, range.end - range.begin);
  if (greatest <= kUnseen) greatest = -__builtin_inff();
  const float sink = one.sink ? flushed(splat(one.sink[of.head]))[0] : 0;
  if (one.sink) greatest = larger(splat(greatest), splat(sink))[0];
  if (greatest == -__builtin_inff()) greatest = 0;
  const F32 top = splat(greatest);
  I32 most = splat(0);
  float total = 0;
  for (int64_t key = range.begin; key < range.end;) {
    const int64_t end = at_most(range.end, (key / kPartKeys + 1) * kPartKeys);
    I32 upper = splat(0), lower = splat(0);  // sums of the bits from bit 15 up, and of the lower 15 bits
    for (; key < end; key += kLanes) {
      const F32 x = load_floats(scores + key), power = x <= unseen ? zero : exp(x - top);
      const I32 steps = rounded(power * splat(0x1p30f));
      upper = add(upper, steps >> 15);
      lower = add(lower, steps & splat((1 << 15) - 1));
      store(scores + key, (I32)power);
      if (one.result == AttentionResult::kOutput)
        most = greater(most, (I32)weight_of(power, room.value_scales + key) & splat(kMagnitude));
    }
    total += float(int64_t(sum_of(upper)) * (1 << 15) + sum_of(lower)) * 0x1p-30f;
  }
  if (one.sink) total += exp(splat(sink) - top)[0];
  const bool is_finite = greatest - greatest == 0;
  room.totals[row] = is_finite ? total : __builtin_nanf("");
  const Rounding by = rounding_of(splat(largest_of(most)), kOfWeights);
  room.weight_scales[row] = by.scale[0];
  room.weight_inverses[row] = by.inverse[0];
}

// Adds the weighted values of `count` keys (at most kTerms), beginning at `key`, to the exact sums of all rows.
static void add_values(const Attention& one, const float* values, int64_t key, int64_t count, int64_t rows,
                       const AttentionRoom& room) {
  round_in_panels(values + key * one.width, count, one.width, room.value_inverses + key, room.panels);
  for (int64_t row = 0; row < rows; row += kSumRows) {
    const KeyRange& range = room.ranges[row / kSumRows];
    const int64_t begin = at_least(key, range.begin), terms = at_most(key + count, range.end) - begin;
    if (terms <= 0) continue;
    const int64_t some = at_most(kSumRows, rows - row);
    for (int64_t r = row; r < row + some; r++) {
      const F32 inverse = splat(room.weight_inverses[r]);
      for (int64_t i = 0; i < terms; i += kLanes) {
        const F32 weight =
            weight_of(load_floats(room.scores + r * room.keys + begin + i), room.value_scales + begin + i);
        store_doubles(room.weights + (r - row) * kTerms + i, integers_of(weight, inverse));
      }
    }
    for (int64_t column = 0; column < one.width; column += kLanes)
      with_tile<kSumRows>(some, [&](auto tile) {
        const int64_t at = row * room.width + column;
        add_tile<tile>(room.weights, kTerms, room.panels + column * kTerms + (begin - key) * kLanes, terms,
                       room.upper + at, room.lower + at, room.width);
      });
  }
}

static void sum_values(const Attention& one, const AttentionBlock& block, const KeyRange& range,
                       const AttentionRoom& room) {
  const float* const values = one.value + (block.batch * one.groups + block.group) * one.keys * one.width;
  const int64_t size = block.rows * room.width;
  memset(room.sums, 0, size_t(size) * sizeof(float));
  for (int64_t key = range.begin; key < range.end;) {
    const int64_t end = at_most(range.end, (key / kPartKeys + 1) * kPartKeys);
    for (double* each : {room.upper, room.lower}) memset(each, 0, size_t(size) * sizeof(double));
    for (; key < end; key += kTerms) add_values(one, values, key, at_most(kTerms, end - key), block.rows, room);
    key = end;
    for (int64_t i = 0; i < size; i += kLanes)
      store(room.sums + i, (I32)(load_floats(room.sums + i) +
                                 nearest_totals(room.upper + i, room.lower + i) * splat(1 / kFirstOfValues)));
  }
}

// x / total, or 0 if the total is 0.
JAXDML_INLINE F32 share_of(F32 x, float total) { return total == 0 ? splat(0.0f) : x / splat(total); }

static void attend(const Attention& one, const AttentionBlock& block, const AttentionRoom& room) {
  const KeyRange range = find_ranges(one, block, room);
  const bool is_output = one.result == AttentionResult::kOutput;
  round_queries(one, block, room);
  find_scores(one, block, range, room);
  const bool has_weights = is_output || one.result == AttentionResult::kWeights;
  for (int64_t i = 0; i < block.rows; i++) {
    const AttentionQuery query = query_of(one, block, i);
    const KeyRange& of_tile = room.ranges[i / kSumRows];
    if (one.result != AttentionResult::kScores) mask_scores(one, query, of_tile, room.scores + i * room.keys);
    if (has_weights) weigh(one, query, of_tile, i, room);
  }
  if (is_output) sum_values(one, block, range, room);
  const int64_t size = is_output ? one.width : one.keys, stride = is_output ? room.width : room.keys;
  for (int64_t i = 0; i < block.rows; i++) {
    float* const y = one.y + index_of(one, query_of(one, block, i)) * size;
    const float* const from = (is_output ? room.sums : room.scores) + i * stride;
    for (int64_t k = 0; k < size; k += kLanes) {
      F32 x = load_floats(from + k);
      if (is_output) x = product(splat(room.weight_scales[i]), x);
      if (has_weights) x = share_of(x, room.totals[i]);
      copy_bytes(y + k, &x, at_most(kLanes, size - k) * int64_t(sizeof(float)));
    }
  }
}

static void attention(const Pool& pool, const Attention* problems, int64_t count, uint8_t* scratch) {
  const Attention& one = problems[0];
  const int64_t rows = block_rows(one), blocks = ceil_div(queries_of_group(one), rows);
  const int64_t bytes = attention_scratch(one, 1);
  parallel(pool, count * one.batch * one.groups * blocks, [&](int64_t item, int64_t worker) {
    Index index = {item};
    const int64_t first = next_of(index, blocks) * rows, group = next_of(index, one.groups);
    const int64_t batch = next_of(index, one.batch);
    Arena arena = {scratch + worker * bytes, 0};
    AttentionRoom room;
    take_room(one, arena, room);
    attend(problems[index.rest], {batch, group, first, at_most(rows, queries_of_group(one) - first)}, room);
  });
}

}  // namespace jaxdml::JAXDML_ISA
