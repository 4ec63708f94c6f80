// Where thresholds come from: a model, a calibration, or the share of blocks to load.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "kernels/attention.h"
#include "kernels/eta/thresholds.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

/// Blocks that reach the thresholds, of all heads.
std::set<std::size_t> united(const std::vector<float>& bounds,
                             const std::vector<float>& thresholds) {
  const std::size_t blocks = bounds.size() / thresholds.size();
  std::set<std::size_t> result;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (bounds[i] >= thresholds[i / blocks]) result.insert(i % blocks);
  }
  return result;
}

std::vector<float> random_bounds(std::size_t count, int levels, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<float> bounds;
  for (std::size_t i = 0; i < count; ++i) {
    const auto word = static_cast<float>(engine() % 1000003);
    bounds.push_back(levels > 0 ? std::floor(word * static_cast<float>(levels) / 1000003) : word);
  }
  return bounds;
}

TEST_CASE("eta: a union's thresholds take the least number of each head's best blocks") {
  for (const int levels : {0, 5}) {  // 5: most bounds have equals
    for (int group = 1; group <= 16; ++group) {
      for (const std::int64_t blocks : {1, 2, 7, 40}) {
        for (const double density : {0.01, 0.1, 0.25, 0.3, 0.7, 1.0}) {
          INFO(group << " heads, " << blocks << " blocks, density " << density);
          const std::vector<float> bounds = random_bounds(
              static_cast<std::size_t>(group * blocks), levels, static_cast<std::uint64_t>(group));
          const std::vector<float> found = eta::union_thresholds(bounds, group, blocks, density);
          const auto needed =
              static_cast<std::size_t>(std::ceil(density * static_cast<double>(blocks) - 1e-9));
          std::set<std::size_t> taken;
          std::vector<float> expected;
          for (std::size_t m = 1; taken.size() < needed; ++m) {
            taken.clear();
            expected.clear();
            for (int g = 0; g < group; ++g) {
              std::vector<std::pair<float, std::size_t>> own;
              for (std::size_t j = 0; j < static_cast<std::size_t>(blocks); ++j) {
                own.emplace_back(-bounds[static_cast<std::size_t>(g * blocks) + j], j);
              }
              std::sort(own.begin(), own.end());
              for (std::size_t i = 0; i < m; ++i) taken.insert(own[i].second);
              const float lowest = -own[m - 1].first;
              const float next = m < own.size() ? -own[m].first : lowest;
              expected.push_back((lowest + next) / 2);
            }
          }
          CHECK(found == expected);
          CHECK(united(bounds, found).size() >= needed);
          if (levels == 0) CHECK(united(bounds, found) == taken);
        }
      }
    }
  }
  CHECK(eta::union_thresholds({}, 2, 0, 0.5) ==
        std::vector<float>(2, -std::numeric_limits<float>::infinity()));
  CHECK(eta::union_blocks(100, 0.07) == 7);
  CHECK(eta::union_blocks(1024, 0.16) == 164);
}

TEST_CASE("eta: the method's thresholds come from bounds alone, less the shift") {
  const std::vector<float> bounds = random_bounds(4 * 50, 0, 3);
  StepView view;  // no keys, no queries
  view.group = 4;
  const auto thresholds = [&](const std::string& spec) {
    return make_method(spec).method->block_thresholds(view, nullptr, bounds);
  };
  std::vector<float> expected = eta::union_thresholds(bounds, 4, 50, 0.3);
  CHECK(thresholds("eta:thresholds=union,density=0.3") == expected);
  for (float& x : expected) x -= 0.5f;
  CHECK(thresholds("eta:thresholds=union,density=0.3,shift=0.5") == expected);
}

TEST_CASE("eta: a calibrated constant has the density asked for, which falls with it") {
  std::mt19937_64 engine(4);
  std::normal_distribution<float> normal(1, 3);
  eta::ScoreHistogram histogram;
  std::vector<std::vector<float>> rows;
  for (int t = 20; t < 220; ++t) {
    std::vector<float>& scores = rows.emplace_back();
    for (int s = 0; s < t; ++s) scores.push_back(normal(engine) * (t > 100 ? 2.0f : 0.5f));
    histogram.add(scores, 1.0 / t);
  }
  for (const double density : {0.01, 0.1, 0.25, 0.5, 0.9, 0.99}) {
    const double threshold = histogram.threshold(density);
    CHECK(std::abs(histogram.density(threshold) - density) < 1e-6);
    double naive = 0;  // each row's mean gate, averaged over rows, without bins
    for (const std::vector<float>& scores : rows) {
      double sum = 0;
      for (const float s : scores) sum += 1 / (1 + std::exp(-5 * (s - threshold)));
      naive += sum / static_cast<double>(scores.size()) / static_cast<double>(rows.size());
    }
    CHECK(naive == Approx(density).margin(1e-4));
  }
  for (double c = -15; c < 15; c += 0.25) CHECK(histogram.density(c) > histogram.density(c + 0.25));
}

TEST_CASE("eta: scores far off the bins leave a density as it is") {
  eta::ScoreHistogram histogram;
  histogram.add(std::vector<float>{-1e30f, 0, 1, 1e30f}, 0.25);
  const double threshold = histogram.threshold(0.5);
  CHECK((threshold > 0 && threshold < 1));
}

/// Mean over a head's last probes of the mean gate of the keys that each saw.
double density_of(const CacheView& prompt, const RowsView& probes, float threshold) {
  const std::int64_t rows = prompt.k.rows;
  const std::int64_t used = std::min<std::int64_t>(probes.rows, 256);
  double density = 0;
  for (std::int64_t i = 0; i < used; ++i) {
    std::vector<float> query(static_cast<std::size_t>(prompt.k.dim));
    const std::int64_t at = probes.rows - used + i;
    load_rows(probes, at, at + 1, prompt.k.dim, query.data());
    StepView view;
    view.k = prompt.k.slice(0, rows - used + i + 1);
    view.queries = query;
    view.scale = prompt.scale;
    view.logit_cap = prompt.logit_cap;
    double sum = 0;
    for (const float s : exact_scores(view).values)
      sum += 1 / (1 + std::exp(-5.0 * (s - threshold)));
    density += sum / static_cast<double>(view.rows() * used);
  }
  return density;
}

TEST_CASE("eta: the prompt's last queries calibrate, each with the keys it saw") {
  for (const std::int64_t rows : {8, 400}) {
    for (const std::int64_t probes : {std::int64_t{5}, rows}) {
      for (const float cap : {0.0f, 2.0f}) {
        INFO(rows << " rows, " << probes << " probes, cap " << cap);
        const RandomStep step({.rows = rows, .group = 3, .head_dim = 80, .seed = 6});
        const RandomStep queries({.rows = probes * 3, .head_dim = 80, .seed = 8});
        CacheView prompt{.k = step.view.k, .v = step.view.v};
        prompt.scale = 0.3f;
        prompt.logit_cap = cap;
        for (int g = 0; g < 3; ++g) {
          prompt.probes.push_back(queries.view.k.slice(g * probes, (g + 1) * probes));
        }
        const std::vector<float> thresholds = eta::calibrated_thresholds(prompt, 0.2);
        REQUIRE(thresholds.size() == 3);
        for (std::size_t g = 0; g < 3; ++g) {
          CHECK(density_of(prompt, prompt.probes[g], thresholds[g]) == Approx(0.2).margin(2e-3));
        }
        const NamedMethod named = make_method("eta:thresholds=calibrated,density=0.2,shift=0.25");
        const std::unique_ptr<State> state = named.method->prepare(prompt);
        const std::vector<float> own = named.method->block_thresholds(step.view, state.get(), {});
        for (std::size_t g = 0; g < 3; ++g) CHECK(own[g] == thresholds[g] - 0.25f);
      }
    }
  }
}

HostTensor tensor(std::int64_t rows, std::int64_t columns, ElementType type, std::uint64_t seed) {
  HostTensor result{type, {1, rows, columns}, {}};
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, 0.1f);
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (float& x : values) x = normal(engine);
  result.data.resize(values.size() * static_cast<std::size_t>(bytes_of(type)));
  store_values(values.data(), rows * columns, type, result.data.data());
  return result;
}

/// A layer of 6 query heads; the view is of the group of heads 2 and 3.
struct LearnedStep {
  LearnedStep() : step({.rows = 200, .group = 2, .head_dim = 16, .seed = 1}), layer(6 * 16) {
    learned["eta_threshold_weight"] = tensor(96, 6, ElementType::kFloat16, 2);
    learned["eta_threshold_bias"] = tensor(1, 6, ElementType::kFloat32, 3);
    std::mt19937_64 engine(9);
    for (float& q : layer) q = std::normal_distribution<float>()(engine);
    std::copy_n(step.queries.begin(), 32, layer.begin() + 32);
    step.view.layer_queries = {reinterpret_cast<const std::byte*>(layer.data()),
                               ElementType::kFloat32, 6, 16, 16};
    step.view.random.head = 2;
    step.view.learned = &learned;
  }
  float at(const std::string& name, std::int64_t row, std::int64_t column) const {
    std::vector<float> values(6);
    load_rows(learned.at(name).rows(0), row, row + 1, 6, values.data());
    return values[static_cast<std::size_t>(column)];
  }

  RandomStep step;
  std::vector<float> layer;
  LearnedParameters learned;
};

TEST_CASE("eta: learned thresholds are eq. 1 over all heads of the layer") {
  const LearnedStep l;
  const std::vector<float> found = eta::learned_thresholds(l.step.view);
  REQUIRE(found.size() == 2);
  for (int g = 0; g < 2; ++g) {
    double expected = l.at("eta_threshold_bias", 0, 2 + g);
    for (std::size_t i = 0; i < 96; ++i) {
      expected += l.layer[i] * l.at("eta_threshold_weight", static_cast<std::int64_t>(i), 2 + g);
    }
    CHECK(found[static_cast<std::size_t>(g)] == Approx(expected).epsilon(1e-6));
  }
  const auto thresholds = [&](const std::string& spec) {
    return make_method(spec).method->block_thresholds(l.step.view, nullptr, {});
  };
  CHECK(thresholds("eta") == found);
  CHECK(thresholds("eta:thresholds=learned") == found);
}

TEST_CASE("eta: missing or misshapen sources are said") {
  const auto fails_with = [](const StepView& view, const std::string& spec,
                             const std::string& text) {
    CHECK_THROWS_WITH(make_method(spec).method->block_thresholds(view, nullptr, {}),
                      ContainsSubstring(text));
  };
  LearnedStep l;
  l.learned["eta_threshold_bias"] = tensor(1, 5, ElementType::kFloat32, 3);
  fails_with(l.step.view, "eta", "'eta_threshold_bias' has shape [5], expected [6]");
  l.learned.erase("eta_threshold_bias");
  fails_with(l.step.view, "eta", "no dataset 'eta_threshold_bias'");
  l.learned["eta_threshold_weight"] = tensor(6, 96, ElementType::kFloat32, 3);
  fails_with(l.step.view, "eta", "'eta_threshold_weight' has shape [6, 96], expected [96, 6]");
  l.step.view.layer_queries = {};
  fails_with(l.step.view, "eta", "need the queries of the whole layer");
  const RandomStep plain({.rows = 10});
  fails_with(plain.view, "eta:thresholds=learned", "no learned thresholds");
  fails_with(plain.view, "eta:thresholds=learned", "thresholds=union");
  fails_with(plain.view, "eta:thresholds=calibrated", "no probe queries");
  fails_with(plain.view, "eta", "no learned thresholds and no probe queries");
  fails_with(plain.view, "eta", "thresholds=union");
  CHECK_THROWS_WITH(make_method("eta:block=48"), ContainsSubstring("a power of two"));
}

TEST_CASE("eta: a state says where thresholds came from") {
  LearnedStep l;
  const auto note_after_a_step = [&](const std::string& spec) {
    const NamedMethod named = make_method(spec);
    const std::unique_ptr<State> state =
        named.method->prepare(as_prompt(l.step.view, l.step.view.rows()));
    named.method->select(l.step.view, exact_scores(l.step.view), state.get());
    return state->note();
  };
  CHECK(note_after_a_step("eta").empty());
  CHECK(note_after_a_step("eta:thresholds=learned").empty());
  const std::string calibrated =
      "eta: thresholds calibrated for density 0.25 on the last 1 prompt queries";
  CHECK(note_after_a_step("eta:thresholds=calibrated") == calibrated);
  const std::string united = "eta: thresholds chosen so that a group loads 0.5 of its full blocks";
  CHECK(note_after_a_step("eta:thresholds=union,density=0.5") == united);
  l.step.view.learned = nullptr;
  const std::string none = "; the trace has no learned ones";
  CHECK(note_after_a_step("eta:gate=none") == calibrated + none);
  CHECK_THAT(note_after_a_step("eta"),
             ContainsSubstring(calibrated + none) && ContainsSubstring("gate=none leaves it"));
  CHECK_THAT(note_after_a_step("eta:thresholds=union,density=0.5"),
             ContainsSubstring(united + none) && ContainsSubstring("the gate changes"));
}

}  // namespace
}  // namespace kvsim::testing
