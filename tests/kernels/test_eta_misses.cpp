// How often a block's bound is below what it should bound, on random keys and on a model's.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "kernels/attention.h"
#include "kernels/eta/records.h"
#include "kernels/eta/thresholds.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"
#include "traces/trace_file.h"

namespace kvsim::testing {
namespace {

using eta::Records;
using eta::Spread;

struct Misses {
  double blocks = 0;       // with all query heads and steps
  double below = 0;        // whose largest score is above the bound
  double significant = 0;  // with a key that reaches the threshold
  double missed = 0;       // of these, whose bound does not
  double needless = 0;     // the others whose bound does
  double tokens = 0;       // that reach it
  double lost = 0;         // of these, in missed blocks

  double rate() const { return below / blocks; }
  double false_negatives() const { return missed / significant; }
  double false_positives() const { return needless / std::max(1.0, blocks - significant); }
  double lost_tokens() const { return lost / tokens; }
};

/// The threshold of a head is the score that a share `density` of its full blocks' tokens reaches.
void count_misses(const StepView& view, const Records& records, int block, float z, double density,
                  Misses& misses) {
  const std::vector<float> bounds = records.bounds(view, z);
  const Scores scores = exact_scores(view);
  const auto blocks = static_cast<std::size_t>(records.blocks());
  const auto width = static_cast<std::size_t>(block);
  for (int g = 0; g < view.group; ++g) {
    const std::span<const float> own = scores.head(g).first(blocks * width);
    std::vector<float> sorted(own.begin(), own.end());
    const auto at = static_cast<std::ptrdiff_t>(density * static_cast<double>(sorted.size()));
    std::ranges::nth_element(sorted, sorted.begin() + at, std::ranges::greater{});
    const float threshold = sorted[static_cast<std::size_t>(at)];
    for (std::size_t j = 0; j < blocks; ++j) {
      const std::span<const float> keys = own.subspan(j * width, width);
      const float bound = bounds[static_cast<std::size_t>(g) * blocks + j];
      const float largest = *std::ranges::max_element(keys);
      const auto reach = static_cast<double>(
          std::ranges::count_if(keys, [&](float score) { return score >= threshold; }));
      misses.blocks += 1;
      misses.below += largest > bound ? 1 : 0;
      misses.tokens += reach;
      misses.significant += reach > 0 ? 1 : 0;
      misses.missed += reach > 0 && bound < threshold ? 1 : 0;
      misses.needless += reach == 0 && bound >= threshold ? 1 : 0;
      misses.lost += bound < threshold ? reach : 0;
    }
  }
}

void print(const char* keys, int block, float z, const char* spread, const Misses& m) {
  std::printf(
      "%s, block %d, z %.1f, %s: bound below the largest score in %.2f %% of %.0f blocks; with a "
      "token above the threshold %.1f %%, missed of these %.2f %%, and %.2f %% of the tokens; "
      "needless of the others %.1f %%\n",
      keys, block, static_cast<double>(z), spread, 100 * m.rate(), m.blocks,
      100 * m.significant / m.blocks, 100 * m.false_negatives(), 100 * m.lost_tokens(),
      100 * m.false_positives());
}

Misses on_random_keys(int block, float z, Spread spread) {
  Misses misses;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const RandomStep step({.rows = 4096, .group = 4, .peak = 2, .seed = seed});
    Records records(block, spread);
    records.extend(step.view.k);
    count_misses(step.view, records, block, z, 0.25, misses);
  }
  return misses;
}

/// Calls visit(layer, first query head, view) for every KV head of the sample and some steps.
void for_each_group(const std::function<void(const TraceLayer&, int, const StepView&)>& visit) {
  const TraceReader trace(std::string(KVSIM_SOURCE_DIR) + "/traces/samples/smollm2-135m-2k.h5");
  for (std::size_t index = 0; index < trace.info().layers.size(); ++index) {
    const TraceLayer layer = trace.read_layer(index);
    const int group = layer.info.group();
    std::vector<float> queries(static_cast<std::size_t>(group * layer.info.head_dim));
    for (int head = 0; head < layer.info.kv_heads; ++head) {
      for (const std::int64_t step : {0, 7, 15}) {
        load_rows(layer.queries(step), head * group, (head + 1) * group, layer.info.head_dim,
                  queries.data());
        StepView view;
        view.k = layer.keys(head).slice(0, trace.info().prompt_tokens + step + 1);
        view.queries = queries;
        view.group = group;
        view.scale = static_cast<float>(layer.info.scale);
        view.prompt_tokens = trace.info().prompt_tokens;
        visit(layer, head * group, view);
      }
    }
  }
}

Misses on_sample(int block, float z, Spread spread) {
  Misses misses;
  for_each_group([&](const TraceLayer&, int, const StepView& view) {
    Records records(block, spread);
    records.extend(view.k);
    count_misses(view, records, block, z, 0.25, misses);
  });
  return misses;
}

/// The probe queries of some heads.
CacheView prompt_of(const TraceLayer& layer, int first_head, const StepView& view) {
  CacheView prompt;
  prompt.k = view.k.slice(0, view.prompt_tokens);
  prompt.scale = view.scale;
  for (int head = first_head; head < first_head + view.group; ++head) {
    prompt.probes.push_back(layer.probe_queries(head));
  }
  return prompt;
}

TEST_CASE("eta: constants calibrated on a prompt have about their density at later steps") {
  for (const double density : {0.1, 0.25, 0.5}) {
    double sum = 0;
    double heads = 0;
    for_each_group([&](const TraceLayer& layer, int first_head, const StepView& view) {
      const std::vector<float> thresholds =
          eta::calibrated_thresholds(prompt_of(layer, first_head, view), density);
      const Scores scores = exact_scores(view);
      for (int g = 0; g < view.group; ++g, ++heads) {
        double open = 0;
        for (const float score : scores.head(g)) {
          open += 1 / (1 + std::exp(-5.0 * (score - thresholds[static_cast<std::size_t>(g)])));
        }
        sum += open / static_cast<double>(view.rows());
      }
    });
    std::printf("SmolLM2-135M, calibrated for density %.2f: %.3f at decode steps\n", density,
                sum / heads);
    CHECK(sum / heads == Approx(density).margin(0.05));
  }
}

TEST_CASE("eta: miss rates on random keys") {
  const Misses fine = on_random_keys(4, 2, Spread::kFlat);
  print("random", 4, 2, "flat", fine);
  CHECK(fine.rate() < 0.12);
  CHECK(fine.false_negatives() < 0.01);
  const Misses coarse = on_random_keys(64, 2, Spread::kFlat);
  print("random", 64, 2, "flat", coarse);
  CHECK(coarse.rate() > fine.rate());  // no certificate above 4 tokens
}

TEST_CASE("eta: miss rates on a model's keys") {
  const Misses fine = on_sample(4, 2, Spread::kFlat);
  print("SmolLM2-135M", 4, 2, "flat", fine);
  CHECK(fine.rate() < 0.2);
  CHECK(fine.false_negatives() < 0.04);  // the paper's model: 3.4 % (table 16)
  for (const float z : {1.5f, 2.0f}) {
    for (const int block : {16, 64}) {
      const Misses flat = on_sample(block, z, Spread::kFlat);
      const Misses envelope = on_sample(block, z, Spread::kEnvelope);
      print("SmolLM2-135M", block, z, "flat", flat);
      print("SmolLM2-135M", block, z, "envelope", envelope);
      CHECK(envelope.below < flat.below);  // at least as large in every coordinate
      CHECK(envelope.missed < flat.missed);
    }
  }
}

}  // namespace
}  // namespace kvsim::testing
