// Which blocks a head takes, and what its logits become, at the edges and from given bounds.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/eta/blocks.h"
#include "kernels/eta/rule.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

using eta::BlockRule;
using eta::Gate;
using eta::take_blocks;
using Blocks = std::vector<std::int32_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_CASE("eta: blocks that reach the threshold, and the pinned ones") {
  const std::vector<float> bounds{1, 5, 3, 2, 4, 0};
  const BlockRule none{.pinned = 0, .chunk = 100, .rescue = false};
  CHECK(take_blocks(bounds, 3, none) == Blocks{1, 2, 4});
  CHECK(take_blocks(bounds, std::nextafter(3.0f, 4.0f), none) == Blocks{1, 4});
  CHECK(take_blocks(bounds, -kInfinity, none) == Blocks{0, 1, 2, 3, 4, 5});
  CHECK(take_blocks(bounds, kInfinity, none).empty());
  CHECK(take_blocks(bounds, 5, {.pinned = 2, .chunk = 100, .rescue = false}) == Blocks{1, 4, 5});
  CHECK(take_blocks(bounds, 9, {.pinned = 9, .chunk = 100, .rescue = true}) ==
        Blocks{0, 1, 2, 3, 4, 5});
  CHECK(take_blocks({}, 0, {.pinned = 2, .chunk = 100, .rescue = true}).empty());
}

TEST_CASE("eta: only a head without any block of chunk 1 is rescued, by its first best there") {
  const std::vector<float> bounds{1, 2, 2, 9, 7, 8};
  // Blocks of later chunks do not count, the best of all is not meant.
  CHECK(take_blocks(bounds, 8, {.pinned = 0, .chunk = 3, .rescue = true}) == Blocks{1, 3, 5});
  CHECK(take_blocks(bounds, 8, {.pinned = 0, .chunk = 4, .rescue = true}) == Blocks{3, 5});
  CHECK(take_blocks(bounds, 2, {.pinned = 0, .chunk = 2, .rescue = true}) == Blocks{1, 2, 3, 4, 5});
  CHECK(take_blocks(bounds, 10, {.pinned = 0, .chunk = 3, .rescue = true}) == Blocks{1});
  CHECK(take_blocks(bounds, 10, {.pinned = 0, .chunk = 6, .rescue = true}) == Blocks{3});
  CHECK(take_blocks(bounds, 10, {.pinned = 0, .chunk = 100, .rescue = true}) == Blocks{3});
  CHECK(take_blocks(bounds, 10, {.pinned = 0, .chunk = 1, .rescue = true}) == Blocks{0});
  CHECK(take_blocks(bounds, 10, {.pinned = 2, .chunk = 3, .rescue = true}) == Blocks{1, 4, 5});
  CHECK(take_blocks(bounds, 10, {.pinned = 0, .chunk = 3, .rescue = false}).empty());
  // A pinned block in chunk 1 is attended: nothing to rescue.
  CHECK(take_blocks(bounds, 10, {.pinned = 2, .chunk = 5, .rescue = true}) == Blocks{4, 5});
  CHECK(take_blocks(bounds, 10, {.pinned = 1, .chunk = 100, .rescue = true}) == Blocks{5});
}

TEST_CASE("eta: gates by their formulas") {
  for (float threshold = -4; threshold <= 4; threshold += 0.5f) {
    for (float logit = -12; logit <= 12; logit += 0.37f) {
      const double open =
          1 / (1 + std::exp(-5.0 * (static_cast<double>(logit) - static_cast<double>(threshold))));
      CHECK(eta::gated_logit(logit, threshold, Gate::kMultiplicative) ==
            Approx(logit * open).epsilon(2e-6).margin(1e-8));
      CHECK(eta::gated_logit(logit, threshold, Gate::kAdditive) ==
            Approx(logit + 100 * (open - 1)).epsilon(1e-6).margin(1e-5));
      CHECK(eta::gated_logit(logit, threshold, Gate::kNone) == logit);
    }
  }
  CHECK(eta::gated_logit(3, -kInfinity, Gate::kMultiplicative) == 3);
  CHECK(eta::gated_logit(3, kInfinity, Gate::kMultiplicative) == 0);
  CHECK(eta::gated_logit(3, kInfinity, Gate::kAdditive) == -97);
}

/// Selects by bounds and thresholds that a kernel gave, which leaves no keys to look at.
Selection select_given(const std::string& spec, StepView view, Scores scores,
                       std::vector<float> bounds, std::vector<float> thresholds) {
  view.k.data = nullptr;
  scores.screening = {std::move(bounds), std::move(thresholds)};
  return make_method(spec).method->select(view, scores, nullptr);
}

TEST_CASE("eta: a kernel's bounds and thresholds decide, for each head its own") {
  const RandomStep step({.rows = 38, .group = 2, .peak = 2, .seed = 1});
  const Scores scores = exact_scores(step.view);
  const Selection selection = select_given("eta:block=8,pinned=1,chunk=2,gate=none", step.view,
                                           scores, {0, 3, 0, 0, /* head 1 */ 1, 0, 5, 0}, {2, 4});
  CHECK(selection.heads[0].drawn_tiles == Blocks{1, 3});
  CHECK(selection.heads[0].v_rows.ranges() == std::vector<Range>{{8, 16}, {24, 38}});
  CHECK(selection.heads[1].drawn_tiles == Blocks{0, 2, 3});
  CHECK(selection.heads[1].v_rows.ranges() == std::vector<Range>{{0, 8}, {16, 38}});
  CHECK(selection.heads[0].k_rows == selection.heads[0].v_rows);
  const Statistics& s = selection.statistics;
  CHECK(s.head_tiles == 5);
  CHECK(s.group_tiles == 4);
  CHECK(s.v_requests == 22 + 30);
  CHECK(s.k_rows == 38);
  CHECK(s.state_bytes_read == 4 * (64 * 4 + 4));
  for (const HeadSelection& head : selection.heads) {
    float sum = 0;
    for (const float w : head.weights) sum += w;
    CHECK(sum * head.scale == Approx(1));
  }
}

TEST_CASE("eta: whole blocks, no tail, nothing pinned or rescued: a head may have no row") {
  const RandomStep step({.rows = 32, .group = 1, .seed = 1});
  const Scores scores = exact_scores(step.view);
  const std::string spec = "eta:block=8,pinned=0,rescue=off";
  const Selection none = select_given(spec, step.view, scores, {0, 0, 0, 0}, {1});
  CHECK(none.heads[0].v_rows.empty());
  CHECK(none.heads[0].weights.empty());
  for (const float x : make_method(spec).method->attend(step.view, none)) CHECK(x == 0);
  const Selection tail = select_given(spec, RandomStep({.rows = 33, .group = 1, .seed = 1}).view,
                                      Scores{33, std::vector<float>(33, 0)}, {0, 0, 0, 0}, {1});
  CHECK(tail.heads[0].v_rows.ranges() == std::vector<Range>{{32, 33}});
}

TEST_CASE("eta: fewer tokens than a block are all attended, by an open gate in a union") {
  const RandomStep step({.rows = 63, .group = 3, .peak = 3, .seed = 2});
  const Selection dense = select_with(*make_method("dense").method, step.view);
  const Selection eta = select_with(*make_method("eta:thresholds=union").method, step.view);
  for (std::size_t g = 0; g < 3; ++g) {
    CHECK(eta.heads[g].drawn_tiles.empty());
    CHECK(eta.heads[g].v_rows == RowRanges::all(63));
    CHECK(eta.heads[g].weights == dense.heads[g].weights);
  }
  CHECK(eta.statistics.state_bytes_read == 0);
}

TEST_CASE("eta: thresholds that take everything leave dense attention, or only its gate") {
  RandomStep step({.rows = 200, .group = 2, .peak = 3, .seed = 2});
  const std::vector<float> sinks{1, -2};
  step.view.sink_logits = sinks;
  const Scores scores = exact_scores(step.view);
  const Selection dense = select_with(*make_method("dense").method, step.view);
  const std::vector<float> bounds(2 * 12, 0.0f);
  const Selection open =
      select_given("eta:block=16,gate=none", step.view, scores, bounds, {-9, -9});
  const Selection gated = select_given("eta:block=16", step.view, scores, bounds, {-0.5f, -0.25f});
  for (std::size_t g = 0; g < 2; ++g) {
    CHECK(open.heads[g].weights == dense.heads[g].weights);
    CHECK(open.heads[g].scale == dense.heads[g].scale);
    const double threshold = g == 0 ? -0.5 : -0.25;
    double sum = std::exp(static_cast<double>(sinks[g]));
    std::vector<double> weights;
    for (std::size_t row = 0; row < 200; ++row) {
      const double s = scores.head(static_cast<int>(g))[row];
      // The current token bypasses the gate; the sink is no token.
      const double logit = row == 199 ? s : s / (1 + std::exp(-5 * (s - threshold)));
      sum += weights.emplace_back(std::exp(logit));
    }
    for (std::size_t row = 0; row < 200; ++row) {
      CHECK(gated.heads[g].weights[row] * gated.heads[g].scale == Approx(weights[row] / sum));
    }
  }
}

TEST_CASE("eta: blocks of one token are the tokens whose scores reach the threshold") {
  for (int group = 1; group <= 16; ++group) {
    const RandomStep step({.rows = 300, .group = group, .peak = 2, .seed = 9});
    const NamedMethod named = make_method("eta:block=1,pinned=3,chunk=50,thresholds=union");
    const Scores scores = exact_scores(step.view);
    const std::vector<float> thresholds =
        named.method->block_thresholds(step.view, nullptr, scores.values);
    const Selection selection = named.method->select(step.view, scores, nullptr);
    CHECK(selection.statistics.state_bytes_read == 0);
    CHECK(selection.statistics.k_rows == 300);  // every key was scored
    for (int g = 0; g < group; ++g) {
      const auto at = static_cast<std::size_t>(g);
      std::vector<std::int64_t> expected;
      for (std::int64_t row = 0; row < 300; ++row) {
        const float score = scores.head(g)[static_cast<std::size_t>(row)];
        if (score >= thresholds[at] || row >= 297) expected.push_back(row);
      }
      if (expected.front() >= 50) {
        const auto chunk = scores.head(g).first(50);
        expected.insert(expected.begin(), std::ranges::max_element(chunk) - chunk.begin());
      }
      CHECK(list_rows(selection.heads[at].v_rows) == expected);
    }
  }
}

TEST_CASE("eta: a state that has seen other rows is not used, and none is needed") {
  const RandomStep step({.rows = 330, .group = 4, .peak = 2, .seed = 3});
  const NamedMethod named = make_method("eta:block=16,thresholds=union");
  const std::unique_ptr<State> grown = named.method->prepare({step.view.k.slice(0, 100), {}});
  named.method->append(*grown, {step.view.k, {}});
  CHECK(grown->bytes() == 20 * (64 * 4 + 4));
  StepView window = step.view;  // hides the oldest rows
  window.k = step.view.k.slice(30, 330);
  window.v = step.view.v.slice(30, 330);
  for (const StepView& view : {step.view, window}) {
    const Scores scores = exact_scores(view);
    const Selection with = named.method->select(view, scores, grown.get());
    const Selection without = named.method->select(view, scores, nullptr);
    CHECK(with.v_rows == without.v_rows);
    CHECK(with.heads[3].weights == without.heads[3].weights);
    CHECK(with.statistics == without.statistics);
    CHECK(with.v_rows.size() < view.rows());
  }
}

}  // namespace
}  // namespace kvsim::testing
