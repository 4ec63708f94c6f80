// SANTA++: noise, inclusion, and what the estimator means to be unbiased in.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kernels/attention.h"
#include "kernels/santapp/draw.h"
#include "kernels/santapp/rule.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

using santapp::Draw;
using santapp::draw_members;
using santapp::draw_teams;
using santapp::gumbel;
using santapp::log_inclusion;

RandomStream noise_of(std::uint64_t trial) {
  return {.seed = trial, .purpose = Purpose::kTeamNoise, .layer = 2, .step = 1, .head = 3};
}

TEST_CASE("santapp: noise is Gumbel's to the last of its words") {
  for (const std::uint32_t word : {0u, 1u, 2u, 1000u, 1u << 20, 0x7fffffffu, 0x80000000u,
                                   0xfffffff0u, 0xfffffffeu, 0xffffffffu}) {
    const double tail = (word + 0.5) * 0x1p-32;
    const double expected = -std::log(-std::log1p(-tail));
    CHECK(gumbel(word) == Approx(expected).epsilon(1e-6).margin(1e-6));
  }
  CHECK(gumbel(0) > gumbel(1));
  CHECK(gumbel(1) > gumbel(2));
  float before = INFINITY;
  for (std::uint64_t word = 0; word < 0x100000000; word += 0x10001) {
    const float now = gumbel(static_cast<std::uint32_t>(word));
    CHECK(now <= before);
    before = now;
  }
}

TEST_CASE("santapp: ln c is that of 1 - exp(-exp(x)) at every x") {
  for (float x = -30; x < 30; x += 0.01f) {
    const double expected = std::log(-std::expm1(-std::exp(static_cast<double>(x))));
    CHECK(log_inclusion(x) == Approx(expected).epsilon(2e-6).margin(2e-6));
  }
  CHECK(log_inclusion(INFINITY) == 0.0f);
}

/// Sums over trials of a quantity of which each trial has one value.
struct Mean {
  double sum = 0;
  double squares = 0;
  double count = 0;

  void add(double x) {
    sum += x;
    squares += x * x;
    ++count;
  }
  double mean() const { return sum / count; }
  /// Deviations of the mean from `expected`.
  double off(double expected) const {
    const double variance = squares / count - mean() * mean();
    return (mean() - expected) / std::sqrt(variance / count);
  }
};

std::vector<float> skewed_weights(int teams) {
  std::vector<float> weights;
  for (int t = 0; t < teams; ++t) {
    weights.push_back(3 * std::sin(7.0f * static_cast<float>(t)) - 0.1f * static_cast<float>(t));
  }
  return weights;
}

constexpr int kTrials = 400'000;

TEST_CASE("santapp: 1 / c of drawn teams has mean 1, and of naive weights has not") {
  const bool flat = GENERATE(false, true);
  const std::vector<float> weights = flat ? std::vector<float>(40, 0.5f) : skewed_weights(40);
  constexpr std::int64_t kDraws = 7;
  double sum = 0;
  for (const float w : weights) sum += std::exp(static_cast<double>(w));
  std::vector<Mean> corrected(weights.size());
  std::vector<Mean> naive(weights.size());
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    const Draw draw = draw_teams(weights, kDraws, noise_of(trial));
    REQUIRE(draw.teams.size() == kDraws);
    std::vector<double> inverse(weights.size(), 0);
    for (std::size_t i = 0; i < draw.teams.size(); ++i) {
      inverse[static_cast<std::size_t>(draw.teams[i])] = std::exp(-double{draw.log_inclusion[i]});
    }
    for (std::size_t t = 0; t < weights.size(); ++t) {
      corrected[t].add(inverse[t]);
      const double share = kDraws * std::exp(static_cast<double>(weights[t])) / sum;
      naive[t].add(inverse[t] > 0 ? 1 / share : 0);
    }
  }
  double worst = 0;
  double worst_naive = 0;
  for (std::size_t t = 0; t < weights.size(); ++t) {
    worst = std::max(worst, std::abs(corrected[t].off(1)));
    worst_naive = std::max(worst_naive, std::abs(naive[t].off(1)));
  }
  CHECK(worst < 4);
  // With equal weights any team is as likely as any other, and K softmax(φ) is right.
  if (flat) CHECK(worst_naive < 4);
  if (!flat) CHECK(worst_naive > 40);
}

TEST_CASE("santapp: numerator and mass are unbiased, guided or not") {
  const std::string spec = GENERATE(as<std::string>{}, "santapp:grouping=contiguous,samples=16",
                                    "santapp:grouping=contiguous,samples=16,routing=mean",
                                    "santapp:grouping=contiguous,samples=16,guided=4,routing=mean");
  const NamedMethod named = make_method(spec);
  RandomStep step({.rows = 203, .group = 1, .peak = 1.5, .seed = 4, .prompt_tokens = 200});
  const Scores scores = exact_scores(step.view);
  const std::unique_ptr<State> state = state_of(*named.method, step.view);
  Mean mass;
  Mean numerator;
  double true_mass = 0;
  double true_numerator = 0;
  std::vector<float> first(203);
  for (std::int64_t row = 0; row < 203; ++row) {
    const auto value =
        static_cast<double>(bf16_to_float(step.values[static_cast<std::size_t>(row * 64)]));
    first[static_cast<std::size_t>(row)] = static_cast<float>(value);
    const double term = std::exp(double{scores.values[static_cast<std::size_t>(row)]});
    true_mass += term;
    true_numerator += term * value;
  }
  for (std::uint64_t trial = 0; trial < 20'000; ++trial) {
    step.view.random.seed = trial;
    const Selection selection = named.method->select(step.view, scores, state.get());
    const HeadSelection& head = selection.heads[0];
    // Weights are in units of the largest; the last row is exact and tells which.
    const double unit =
        std::exp(double{scores.values.back()}) / static_cast<double>(head.weights.back());
    double of_mass = 0;
    double of_numerator = 0;
    const std::vector<std::int64_t> rows = list_rows(head.v_rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      of_mass += head.weights[i] * unit;
      of_numerator += head.weights[i] * unit * first[static_cast<std::size_t>(rows[i])];
    }
    mass.add(of_mass);
    numerator.add(of_numerator);
  }
  INFO(spec);
  CHECK(std::abs(mass.off(true_mass)) < 4);
  CHECK(std::abs(numerator.off(true_numerator)) < 4);
}

TEST_CASE("santapp: noise of 262 144 teams is fine enough to draw each as often") {
  const std::vector<float> weights(262'144, 0.0f);
  constexpr std::int64_t kDraws = 1024;
  std::vector<double> drawn(64, 0);  // by neighbouring teams
  constexpr int kRepeats = 40;
  for (std::uint64_t trial = 0; trial < kRepeats; ++trial) {
    const Draw draw = draw_teams(weights, kDraws, noise_of(trial));
    CHECK(std::set<std::int32_t>(draw.teams.begin(), draw.teams.end()).size() == kDraws);
    for (const std::int32_t t : draw.teams) ++drawn[static_cast<std::size_t>(t) / 4096];
    // All are as likely, so 1 / c is M / K, but for the noise of κ.
    CHECK(std::exp(-draw.log_inclusion[0]) == Approx(256.0).epsilon(0.15));
  }
  const double expected = kRepeats * kDraws / 64.0;
  double chi_squared = 0;
  for (const double n : drawn) chi_squared += (n - expected) * (n - expected) / expected;
  CHECK(chi_squared < 114);  // 63 degrees of freedom: 1e-4
}

TEST_CASE("santapp: members are drawn uniformly") {
  const std::vector<std::int32_t> keys{3, 4, 8, 9, 15};
  std::vector<double> drawn(16, 0);
  for (std::uint64_t trial = 0; trial < 50'000; ++trial) {
    const std::vector<std::int32_t> some = draw_members(keys, 2, noise_of(trial), 77);
    REQUIRE(some.size() == 2);
    CHECK(some[0] < some[1]);
    for (const std::int32_t key : some) ++drawn[static_cast<std::size_t>(key)];
  }
  for (const std::int32_t key : keys) {
    CHECK(std::abs(drawn[static_cast<std::size_t>(key)] - 20'000) < 4 * std::sqrt(12'000));
  }
  CHECK(draw_members(keys, 5, noise_of(0), 0) == keys);
  CHECK(draw_members(keys, 9, noise_of(0), 0) == keys);
}

TEST_CASE("santapp: all teams give dense attention") {
  for (const int group : {1, 3, 16}) {
    for (const std::int64_t prompt : {1, 5, 15, 16, 333}) {
      for (const std::int64_t suffix : {0, 1, 40}) {
        const NamedMethod named = make_method("santapp:grouping=contiguous,samples=100000");
        const RandomStep step({.rows = prompt + suffix,
                               .group = group,
                               .peak = 2,
                               .seed = 6,
                               .prompt_tokens = prompt});
        const Selection selection = select_with(*named.method, step.view);
        const std::vector<float> output = named.method->attend(step.view, selection);
        const Float64Attention truth = float64_attention(step.view);
        for (std::size_t i = 0; i < output.size(); ++i) {
          CHECK(output[i] == Approx(truth.outputs[i]).margin(1e-6));
        }
      }
    }
  }
}

TEST_CASE("santapp: the suffix is exact and heads draw on their own") {
  const NamedMethod named = make_method("santapp:grouping=contiguous,samples=32");
  const RandomStep step({.rows = 900, .group = 4, .peak = 1, .seed = 8, .prompt_tokens = 640});
  const Selection selection = select_with(*named.method, step.view);
  std::set<std::vector<std::int32_t>> draws;
  for (const HeadSelection& head : selection.heads) {
    CHECK(head.drawn_tiles.size() == 8);
    draws.insert(head.drawn_tiles);
    CHECK(head.v_rows.ranges().back().begin <= 640);
    CHECK(head.v_rows.ranges().back().end == 900);
    // Rows of the suffix weigh what softmax gives them, relative to each other.
    const std::vector<std::int64_t> rows = list_rows(head.v_rows);
    const auto g = static_cast<int>(&head - selection.heads.data());
    const Scores scores = exact_scores(step.view);
    const std::size_t last = rows.size() - 1;
    CHECK(std::log(head.weights[last - 1] / head.weights[last]) ==
          Approx(scores.head(g)[898] - scores.head(g)[899]).margin(1e-5));
  }
  CHECK(draws.size() == 4);
  CHECK(selection.statistics.routing_vectors == 640 / 4);
  CHECK(selection.statistics.state_bytes_read == 640 / 4 * (64 * 2 + 4));
  CHECK(selection.statistics.head_tiles == 32);
}

TEST_CASE("santapp: a window is attended to densely, and says so") {
  const NamedMethod named = make_method("santapp:grouping=contiguous,samples=16");
  const RandomStep step({.rows = 300, .group = 2, .seed = 9, .prompt_tokens = 290});
  const std::unique_ptr<State> state = state_of(*named.method, step.view);
  named.method->select(step.view, exact_scores(step.view), state.get());
  CHECK(state->note().empty());
  StepView window = step.view;
  window.k = step.view.k.slice(200, 300);
  window.v = step.view.v.slice(200, 300);
  const Selection selection = named.method->select(window, exact_scores(window), state.get());
  CHECK(selection.v_rows == RowRanges::all(100));
  CHECK(selection.statistics.routing_vectors == 0);
  CHECK(state->note().find("window") != std::string::npos);
}

TEST_CASE("santapp: budgets that do not divide are refused") {
  CHECK_THROWS_WITH(make_method("santapp:samples=126"),
                    "santapp: samples=126, expected a multiple of parent / representatives=4");
  CHECK_THROWS_WITH(make_method("santapp:parent=10"),
                    "santapp: representatives=4, expected a divisor of parent=10");
  CHECK_THROWS_WITH(make_method("santapp:guided=5"),
                    "santapp: samples=128, expected a multiple of guided=5");
}

}  // namespace
}  // namespace kvsim::testing
