#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "core/float16.h"
#include "kernels/method.h"

namespace kvsim::testing {

/// A random bfloat16 cache of one KV head and the queries of its group, owned here.
struct RandomStep {
  struct Spec {
    std::int64_t rows = 100;
    int group = 4;
    int head_dim = 64;
    int v_head_dim = 0;  // 0 = head_dim
    double peak = 1;     // standard deviation of the logits
    std::uint64_t seed = 1;
    std::int64_t prompt_tokens = 0;  // 0 = rows - 1, but one at least
  };

  explicit RandomStep(const Spec& spec) {
    const int v_dim = spec.v_head_dim > 0 ? spec.v_head_dim : spec.head_dim;
    std::mt19937_64 engine(spec.seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<std::uint16_t>& data, std::int64_t count) {
      data.resize(static_cast<std::size_t>(count));
      for (auto& x : data) x = float_to_bf16(normal(engine));
    };
    fill(keys, spec.rows * spec.head_dim);
    fill(values, spec.rows * v_dim);
    queries.resize(static_cast<std::size_t>(spec.group * spec.head_dim));
    for (float& x : queries) {
      x = bf16_to_float(float_to_bf16(static_cast<float>(spec.peak) * normal(engine)));
    }
    view.k = rows_view(keys, spec.rows, spec.head_dim);
    view.v = rows_view(values, spec.rows, v_dim);
    view.queries = queries;
    view.group = spec.group;
    view.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_dim)));
    view.prompt_tokens =
        spec.prompt_tokens > 0 ? spec.prompt_tokens : std::max<std::int64_t>(1, spec.rows - 1);
    view.random = {.seed = spec.seed, .layer = 3, .step = 5, .head = 8};
  }
  RandomStep(const RandomStep&) = delete;
  RandomStep& operator=(const RandomStep&) = delete;

  static RowsView rows_view(const std::vector<std::uint16_t>& data, std::int64_t rows, int dim) {
    return {reinterpret_cast<const std::byte*>(data.data()), ElementType::kBfloat16, rows, dim,
            dim};
  }

  std::vector<std::uint16_t> keys;
  std::vector<std::uint16_t> values;
  std::vector<float> queries;
  StepView view;
};

/// The first rows of a step's cache as a prompt, with the step's own queries as its last ones.
inline CacheView as_prompt(const StepView& view, std::int64_t rows) {
  CacheView prompt{.k = view.k.slice(0, rows),
                   .v = view.v.slice(0, rows),
                   .scale = view.scale,
                   .logit_cap = view.logit_cap};
  for (int g = 0; g < view.group; ++g) {
    prompt.probes.push_back({reinterpret_cast<const std::byte*>(view.query(g).data()),
                             ElementType::kFloat32, 1, view.k.dim, view.k.dim});
  }
  return prompt;
}

/// The state a method wants: prepared on the prompt, grown to the step.
inline std::unique_ptr<State> state_of(const Method& method, const StepView& view) {
  std::unique_ptr<State> state = method.prepare(as_prompt(view, view.prompt_tokens));
  if (state) method.append(*state, as_prompt(view, view.rows()));
  return state;
}

/// Selects with exact scores.
inline Selection select_with(const Method& method, const StepView& view) {
  const std::unique_ptr<State> state = state_of(method, view);
  return method.select(view, method.score(view, state.get()), state.get());
}

/// The rows of a set, one by one.
inline std::vector<std::int64_t> list_rows(const RowRanges& ranges) {
  std::vector<std::int64_t> rows;
  for (const Range& range : ranges.ranges()) {
    for (std::int64_t row = range.begin; row < range.end; ++row) rows.push_back(row);
  }
  return rows;
}

/// Softmax of a head's float32 scores in float64: the oracle's probabilities.
inline std::vector<double> softmax64(std::span<const float> scores) {
  double highest = scores[0];
  for (const float s : scores) highest = std::max<double>(highest, s);
  std::vector<double> p;
  double sum = 0;
  for (const float s : scores) sum += p.emplace_back(std::exp(s - highest));
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace kvsim::testing
