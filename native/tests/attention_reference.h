// Attention, one product at a time, in 64-bit integers. docs/numerics_products.md has the rule, and docs/exact_rules.md
// has the rule of exp. jaxdml's tests compare tanh, the function of a softcap, with NumPy.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference.h"

namespace jaxdml::test {

constexpr float kUnseenScore = -3.4028235e38f;

struct IntegerRow {
  float scale;
  std::vector<int64_t> at;
};
inline IntegerRow integer_row(const std::vector<float>& x, int64_t largest) {
  float high = 0;
  bool is_finite = true;
  for (const float each : x) {
    is_finite = is_finite && std::isfinite(each);
    high = std::max(high, std::fabs(each));
  }
  IntegerRow row = {is_finite ? 0 : std::numeric_limits<float>::quiet_NaN(), std::vector<int64_t>(x.size())};
  if (!is_finite || high < float(largest) * 0x1p-126f) return row;
  row.scale = high / float(largest);
  const float inverse = float(largest) / high;
  for (size_t i = 0; i < x.size(); i++) row.at[i] = int64_t(std::nearbyint(x[i] * inverse));
  return row;
}

inline float exp_by_rule(float x) {
  if (std::isnan(x)) return x;
  if (x < -87.33654f) return 0;
  const float n = std::nearbyint(x * 1.44269504f), lower = n * 1.4286197256296873e-06f;
  const float upper = x - n * 0.693145751953125f, r = upper - lower, rest = (upper - r) - lower;
  float y = 0.0013950539287179708f;
  for (const float each : {0.008368918672204018f, 0.04166620597243309f, 0.166665181517601f, 0.5f}) y = y * r + each;
  const float more = y * (r * r) + rest, p = r + more, p_rest = more - (p - r);
  const float e = 1.0f + p, e_rest = (p - (e - 1.0f)) + p_rest;
  return std::ldexp(e + e_rest, int(n));
}

inline Output expected(const Attention& one) {
  const bool is_output = one.result == AttentionResult::kOutput;
  const int64_t last = is_output ? one.width : one.keys;
  Output y(size_t(one.batch * one.heads * one.rows * last) * 4);
  const auto row = [](const float* at, int64_t size) { return std::vector<float>(at, at + size); };
  for (int64_t q = 0; q < one.batch * one.heads * one.rows; q++) {
    const int64_t batch = q / one.rows / one.heads, head = q / one.rows % one.heads, s = q % one.rows;
    const int64_t first_key = (batch * one.groups + head / (one.heads / one.groups)) * one.keys;
    const auto at = [&](const int64_t (&steps)[3]) { return batch * steps[0] + head * steps[1] + s * steps[2]; };
    std::vector<float> query = row(one.query + q * one.depth, one.depth), x(size_t(one.keys));
    for (float& each : query) each *= one.scale;
    const IntegerRow of_query = integer_row(query, 127 << 20);
    for (int64_t t = 0; t < one.keys; t++) {
      const IntegerRow of_key = integer_row(row(one.key + (first_key + t) * one.depth, one.depth), 127 << 20);
      int64_t upper = 0, lower = 0;
      for (size_t k = 0; k < of_key.at.size(); k++) {
        const int64_t half = int64_t(std::nearbyint(double(of_query.at[k]) / 32768));
        upper += half * of_key.at[k];
        lower += (of_query.at[k] - half * 32768) * of_key.at[k];
      }
      const float sum = float(upper) * 32768 + float(lower);
      float score = product_of(product_of(of_query.scale * 0x1p26f, of_key.scale), sum * 0x1p-26f);
      if (one.result > AttentionResult::kCapped || is_output) {
        if (one.bias) score = score + one.bias[at(one.bias_steps) + t] + 0.0f;
        if ((one.seen && !one.seen[at(one.seen_steps) + t]) || score <= kUnseenScore) score = kUnseenScore;
      }
      x[size_t(t)] = score;
    }
    if (is_output || one.result == AttentionResult::kWeights) {
      float top = -std::numeric_limits<float>::infinity();
      for (const float each : x)
        if (std::isnan(each) || each > top) top = std::isnan(top) ? top : each;
      if (top <= kUnseenScore) top = -std::numeric_limits<float>::infinity();
      const float sink = one.sink ? one.sink[head] : 0;
      if (one.sink && sink > top) top = sink;
      if (top == -std::numeric_limits<float>::infinity()) top = 0;
      float total = 0;
      for (int64_t t = 0, sum = 0; t < one.keys; t++) {
        float& each = x[size_t(t)];
        each = each <= kUnseenScore ? 0 : exp_by_rule(each - top);
        sum += std::isnan(each) ? 0 : int64_t(std::nearbyint(double(each) * 0x1p30));
        if (t + 1 < one.keys && (t + 1) % 32768) continue;
        total += float(sum) * 0x1p-30f;
        sum = 0;
      }
      if (one.sink) total += exp_by_rule(sink - top);
      if (!std::isfinite(top)) total = std::numeric_limits<float>::quiet_NaN();
      if (is_output) {
        std::vector<IntegerRow> values;
        std::vector<float> weights = x;
        for (int64_t t = 0; t < one.keys; t++) {
          values.push_back(integer_row(row(one.value + (first_key + t) * one.width, one.width), 127 << 16));
          if (x[size_t(t)] != 0) weights[size_t(t)] *= values.back().scale * 0x1p22f;
        }
        const IntegerRow of_weights = integer_row(weights, 127 << 18);
        x.assign(size_t(one.width), 0);
        for (int64_t v = 0; v < one.width; v++)
          for (int64_t t = 0, sum = 0; t < one.keys; t++) {
            sum += of_weights.at[size_t(t)] * values[size_t(t)].at[size_t(v)];
            if (t + 1 < one.keys && (t + 1) % 32768) continue;
            x[size_t(v)] += float(sum) * 0x1p-22f;
            sum = 0;
          }
        for (float& each : x) each = product_of(each, of_weights.scale);
      }
      for (float& each : x) each = total == 0 ? 0 : each / total;
    }
    memcpy(&y[size_t(q * last) * 4], x.data(), size_t(last) * 4);
  }
  return y;
}

}  // namespace jaxdml::test
