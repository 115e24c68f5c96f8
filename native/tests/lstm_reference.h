// All steps of one direction of an LSTM, one number at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference.h"

namespace jaxdml::test {

// x * p(x**2) / q(x**2) for x in [-limit, limit], by fused multiply-adds, as in onnxruntime.
inline float quotient_by_rule(float x, float limit, std::initializer_list<float> p, std::initializer_list<float> q) {
  x = std::min(std::max(x, -limit), limit);
  const float square = product_of(x, x);
  float above = 0, below = 0;
  for (const float each : p) above = std::fma(above, square, each);
  for (const float each : q) below = std::fma(below, square, each);
  return product_of(above, x) / below;
}
inline float logistic_by_rule(float x) {
  const float y = quotient_by_rule(x, 18,
                                   {4.37031012579801e-11f, 1.15627324459942e-07f, 6.08574864600143e-05f,
                                    8.51377133304701e-03f, 2.48287947061529e-01f},
                                   {6.10247389755681e-13f, 5.76102136993427e-09f, 6.29106785017040e-06f,
                                    1.70198817374094e-03f, 1.16817656904453e-01f, 9.93151921023180e-01f});
  return std::max(y + 0.5f, 0.0f);
}
inline float tanh_by_rule(float x) {
  return quotient_by_rule(x, 9,
                          {-2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f, 5.12229709037114e-08f,
                           1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f},
                          {1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f});
}

// h times the weights, which are not packed.
inline std::vector<float> products_of_states(const Lstm& one, const std::vector<float>& h, const uint8_t* weights) {
  float low = 0, high = 0;
  for (const float each : h) {
    low = std::min(low, each);
    high = std::max(high, each);
  }
  float scale = (high - low) / 255;
  if (scale == 0) scale = 1;
  const uint8_t zero_point = saturated(-(low / scale), 0, false);
  std::vector<uint8_t> bytes;
  for (const float each : h) bytes.push_back(saturated(each / scale, zero_point, false));
  Matmul product = {};
  product.rows = one.batch;
  product.depth = one.units;
  product.columns = 4 * one.units;
  product.a = bytes.data();
  product.a_scale = product.y_scale = {&scale, 0};
  product.b_scale = one.scale;
  product.a_zero_point = product.y_zero_point = {&zero_point, 0, false};
  product.b_zero_point = one.zero_point;
  product.type = Type::kFloat32;
  const Output y = expected(product, weights);
  std::vector<float> floats(y.size() / 4);
  memcpy(floats.data(), y.data(), y.size());
  return floats;
}

// y, last_h and last_c; `weights` are not packed.
inline Output expected(const Lstm& one, const uint8_t* weights) {
  const int64_t units = one.units, size = one.batch * units;
  std::vector<float> y(size_t(one.steps * size)), last_h(size_t(size), 0.0f), h(one.h, one.h + size),
      c(one.c, one.c + size);
  for (int64_t step = 0; step < one.steps; step++) {
    const std::vector<float> of_h = products_of_states(one, h, weights);
    for (int64_t i = 0; i < size; i++) {
      const int64_t b = i / units, n = i % units, length = one.lengths[b];
      const bool goes_on = step < length;
      const int64_t at = one.is_backward && goes_on ? std::min(length, one.steps) - 1 - step : step;
      float state = c[size_t(i)];
      const auto ready = [&](int64_t gate) {
        const int64_t column = gate * units + n;
        float x = one.gates[(at * one.batch + b) * 4 * units + column] + of_h[size_t(b * 4 * units + column)];
        if (one.peephole && gate < 3) x += product_of(state, one.peephole[column]);
        return std::min(std::max(x + one.bias[column], -one.clip), one.clip);
      };
      const float input = logistic_by_rule(ready(0));
      const float forget = one.couples_forget ? 1 - input : logistic_by_rule(ready(2));
      state = product_of(state, forget) + product_of(input, tanh_by_rule(ready(3)));
      const float hidden = product_of(tanh_by_rule(state), logistic_by_rule(ready(1)));
      if (goes_on) {
        c[size_t(i)] = state;
        last_h[size_t(i)] = hidden;
      }
      h[size_t(i)] = y[size_t(at * size + i)] = goes_on ? hidden : 0;
    }
  }
  Output all;
  for (const std::vector<float>& each : {y, last_h, c}) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(each.data());
    all.insert(all.end(), bytes, bytes + each.size() * 4);
  }
  return all;
}

}  // namespace jaxdml::test
