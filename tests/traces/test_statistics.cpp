#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/statistics.h"

namespace kvsim::testing {
namespace {

/// Attention of one head at one step, written out; zeros outside the window.
std::vector<double> brute_force(const TraceLayer& layer, std::int64_t prompt_tokens,
                                std::int64_t step, int head, double* sink_share) {
  const LayerInfo& info = layer.info;
  const std::vector<float> keys = values_of(layer.k);
  const std::vector<float> queries = values_of(layer.q);
  const std::int64_t tokens = layer.k.shape[1];
  const std::int64_t context = prompt_tokens + step + 1;
  const std::int64_t first = info.window > 0 ? std::max<std::int64_t>(0, context - info.window) : 0;
  const int kv_head = info.layout == KvLayout::kLatent ? 0 : head / info.group();
  std::vector<double> weights(static_cast<std::size_t>(context));
  double sum = 0;
  for (std::int64_t token = first; token < context; ++token) {
    double logit = 0;
    for (int j = 0; j < info.head_dim; ++j) {
      const auto q = static_cast<std::size_t>((step * info.q_heads + head) * info.head_dim + j);
      const auto k = static_cast<std::size_t>((kv_head * tokens + token) * info.head_dim + j);
      logit += static_cast<double>(queries[q]) * keys[k];
    }
    logit *= info.scale;
    if (info.logit_cap > 0) logit = info.logit_cap * std::tanh(logit / info.logit_cap);
    weights[static_cast<std::size_t>(token)] = std::exp(logit);
    sum += std::exp(logit);
  }
  for (double& weight : weights) weight /= sum;
  *sink_share = 0;
  if (!layer.sink_logits.empty()) {
    const double sink_logit = layer.sink_logits[static_cast<std::size_t>(head)];
    const double sink = std::exp(sink_logit);
    *sink_share = sink / (sink + sum);
  }
  return weights;
}

double entropy(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum -= weight > 0 ? weight * std::log(weight) : 0;
  return sum;
}

SmallShape shape_of(bool latent) {
  SmallShape shape;
  shape.latent = latent;
  if (latent) shape.kv_heads = 1;
  return shape;
}

}  // namespace

TEST_CASE("statistics equal those of attention written out") {
  const bool latent = GENERATE(false, true);
  const std::int64_t window = GENERATE(0, 13);
  const SmallShape shape = shape_of(latent);
  TraceLayer layer = small_layer(shape, 1);
  layer.info.window = window;
  layer.info.logit_cap = window > 0 ? 4.0 : 0.0;
  if (window == 0) layer.sink_logits.clear();
  const StatisticsOptions options{3, 10, 0};
  const LayerStatistics found = attention_statistics(layer, shape.prompt_tokens, options);
  REQUIRE(found.heads.size() == 6);
  CHECK(found.measured_steps == 3);
  double sinks = 0;
  for (int head = 0; head < 6; ++head) {
    HeadStatistics expected;
    for (std::int64_t step = 0; step < 3; ++step) {
      double share = 0;
      const auto weights = brute_force(layer, shape.prompt_tokens, step, head, &share);
      expected.entropy_nats += entropy(weights) / 3;
      expected.top1_probability += *std::max_element(weights.begin(), weights.end()) / 3;
      expected.sink_mass += (weights[0] + weights[1] + weights[2]) / 3;
      expected.window_mass += std::accumulate(weights.end() - 10, weights.end(), 0.0) / 3;
      sinks += share / 18;
    }
    const HeadStatistics& measured = found.heads[static_cast<std::size_t>(head)];
    CHECK(measured.entropy_nats == Approx(expected.entropy_nats).epsilon(1e-10));
    CHECK(measured.top1_probability == Approx(expected.top1_probability).epsilon(1e-10));
    CHECK(measured.sink_mass == Approx(expected.sink_mass).epsilon(1e-10).margin(1e-15));
    CHECK(measured.window_mass == Approx(expected.window_mass).epsilon(1e-10));
  }
  CHECK(found.sink_share == Approx(sinks).epsilon(1e-10).margin(1e-15));
}

TEST_CASE("overlap, cosine and drift equal their definitions") {
  const SmallShape shape = shape_of(false);
  TraceLayer layer = small_layer(shape, 2);
  layer.info.window = 0;
  const LayerStatistics found = attention_statistics(layer, shape.prompt_tokens);
  double overlap = 0;
  for (std::int64_t step = 0; step < 3; ++step) {
    for (const int head : {1, 2, 4, 5}) {  // neighbours within groups of three
      double share = 0;
      const auto a = brute_force(layer, shape.prompt_tokens, step, head - 1, &share);
      const auto b = brute_force(layer, shape.prompt_tokens, step, head, &share);
      for (std::size_t i = 0; i < a.size(); ++i) overlap += std::min(a[i], b[i]) / 12;
    }
  }
  CHECK(found.group_overlap.value() == Approx(overlap).epsilon(1e-10));
  const std::vector<float> q = values_of(layer.q);
  const auto cosine = [&](std::size_t a, std::size_t b) {  // rows of q
    const auto row = [&](std::size_t i) { return q.begin() + static_cast<std::ptrdiff_t>(16 * i); };
    const double ab = std::inner_product(row(a), row(a + 1), row(b), 0.0);
    const double aa = std::inner_product(row(a), row(a + 1), row(a), 0.0);
    const double bb = std::inner_product(row(b), row(b + 1), row(b), 0.0);
    return ab / std::sqrt(aa * bb);
  };
  double drift = 0;
  for (std::size_t i = 0; i < 12; ++i) drift += (1 - cosine(i, i + 6)) / 12;
  CHECK(found.drift.value() == Approx(drift).epsilon(1e-9));
  double between = 0;
  for (std::size_t step = 0; step < 3; ++step) {
    for (std::size_t group = 0; group < 2; ++group) {
      const std::size_t h = step * 6 + group * 3;
      between += (cosine(h, h + 1) + cosine(h, h + 2) + cosine(h + 1, h + 2)) / 18;
    }
  }
  CHECK(found.group_cosine.value() == Approx(between).epsilon(1e-9).margin(1e-12));
}

TEST_CASE("what cannot be measured is absent") {
  SmallShape shape;
  shape.kv_heads = shape.q_heads;
  shape.decode_steps = 1;
  const LayerStatistics found = attention_statistics(small_layer(shape, 0), shape.prompt_tokens);
  CHECK_FALSE(found.group_cosine.has_value());
  CHECK_FALSE(found.group_overlap.has_value());
  CHECK_FALSE(found.drift.has_value());
}

TEST_CASE("uniform attention has the entropy of its context") {
  SmallShape shape;
  shape.decode_steps = 1;
  TraceLayer layer = small_layer(shape, 0);
  layer.info.window = 0;
  std::fill(layer.q.data.begin(), layer.q.data.end(), std::byte{0});
  const LayerStatistics found = attention_statistics(layer, shape.prompt_tokens, {4, 10, 0});
  CHECK(found.mean.entropy_nats == Approx(std::log(41.0)));
  CHECK(found.mean.top1_probability == Approx(1 / 41.0));
  CHECK(found.mean.sink_mass == Approx(4 / 41.0));
  CHECK(found.mean.window_mass == Approx(10 / 41.0));
  CHECK(found.largest_logit == 0);
}

TEST_CASE("huge logits give neither NaN nor infinity") {
  SmallShape shape;
  TraceLayer layer = small_layer(shape, 0);
  layer.info.window = 0;
  layer.info.logit_cap = 0;
  layer.info.scale = 1e4;
  const LayerStatistics found = attention_statistics(layer, shape.prompt_tokens);
  CHECK(found.mean.top1_probability > 0.99);
  CHECK(found.mean.entropy_nats >= 0);
  CHECK(found.mean.entropy_nats < 0.1);
}

TEST_CASE("a part of the steps is measured on request, and threads change nothing") {
  SmallShape shape;
  shape.decode_steps = 9;
  const TraceLayer layer = small_layer(shape, 0);
  CHECK(attention_statistics(layer, shape.prompt_tokens, {4, 10, 4}).measured_steps == 4);
  CHECK(attention_statistics(layer, shape.prompt_tokens, {4, 10, 20}).measured_steps == 9);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const LayerStatistics one = attention_statistics(layer, shape.prompt_tokens);
  omp_set_num_threads(4);
  const LayerStatistics four = attention_statistics(layer, shape.prompt_tokens);
  omp_set_num_threads(threads);
  CHECK(one.mean.entropy_nats == four.mean.entropy_nats);
  CHECK(one.group_overlap.value() == four.group_overlap.value());
}

}  // namespace kvsim::testing
