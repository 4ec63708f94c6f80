// SANTA++'s worked numbers for a group of 16 logits (arXiv 2609.35629, section 2.1 and appendix
// B.1): the mass that its mean key promises against the mass that it has, and the distance of what
// routes from attention (section 2.4). The text that we have prints results, not the logits.

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/attention.h"
#include "kernels/santapp/rule.h"
#include "kernels/santapp/settings.h"
#include "kernels/santapp/table.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

using santapp::Settings;
using santapp::TeamTable;

/// Keys of one dimension that counts, so that a query of 1 scores key i with logits[i].
struct Group {
  explicit Group(std::vector<float> scores) : logits(std::move(scores)) {
    keys.resize(logits.size() * kDim);
    for (std::size_t i = 0; i < logits.size(); ++i) keys[i * kDim] = logits[i];
    query[0] = 1;
    const auto rows = static_cast<std::int64_t>(logits.size());
    view.k = view.v = {reinterpret_cast<const std::byte*>(keys.data()), ElementType::kFloat32, rows,
                       kDim, kDim};
    view.queries = query;
    view.prompt_tokens = rows;
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Σ exp of the logits.
  double mass() const {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    return sum;
  }
  /// Σ exp(φ) over the teams: the mass that what routes promises.
  double promised(const std::string& routing) const {
    const NamedMethod named = make_method("santapp:grouping=contiguous," + routing);
    const TeamTable table(as_prompt(view, view.rows()), Settings(named.parameters));
    double sum = 0;
    for (const float phi : table.weights(view, 0, {view.rows(), logits}))
      sum += std::exp(double{phi});
    return sum;
  }
  double by_mean_key() const { return promised("routing=mean,representatives=1,samples=128"); }
  double by_leaders() const { return promised("routing=leader"); }
  double ratio() const { return mass() / by_mean_key(); }

  static constexpr int kDim = 8;
  std::vector<float> logits;
  std::vector<float> keys;
  std::array<float, kDim> query{};
  StepView view;
};

/// The simplest logits with the printed mass: one key stands out, all others score nothing.
std::vector<float> sparse_logits() {
  std::vector<float> logits(16, 0.0f);
  logits[5] = 10;
  return logits;
}

TEST_CASE("santapp: the printed mass, surrogate and ratio of 16 logits fit together") {
  // 2.20e4, 29 and 760 are rounded to their last digit.
  CHECK(2.195e4 / 29.5 < 760);
  CHECK(2.205e4 / 28.5 > 760);
  // A key with nearly all of the mass has a logit of 10. The surrogate, by the rule's own φ of the
  // mean logit, prints as 29 if the other 15 are 0.014 to 0.05 below zero on average.
  const auto surrogate = [](float others) {
    return std::exp(santapp::team_weight(16, (10 + 15 * others) / 16));
  };
  CHECK(surrogate(-0.050f) == Approx(28.5).margin(0.05));
  CHECK(surrogate(-0.014f) == Approx(29.5).margin(0.05));
}

TEST_CASE("santapp: a mean key hides one key that stands out, leaders do not") {
  const Group group(sparse_logits());
  CHECK(group.mass() == Approx(2.20e4).margin(50));          // printed: 2.20e4
  CHECK(group.by_mean_key() == Approx(29.89).margin(0.01));  // printed: 29
  CHECK(group.ratio() == Approx(737.3).margin(0.5));         // printed: 760
  // The key becomes a leader, and its team is its own: what the four leaders promise is the mass.
  CHECK(group.by_leaders() == Approx(group.mass()).epsilon(1e-6));
}

TEST_CASE("santapp: a mean key's mass is exact only if all logits are equal") {
  const Group equal(std::vector<float>(16, 1.5f));
  CHECK(equal.ratio() == Approx(1).epsilon(1e-6));
  std::vector<float> bimodal(16, 0.0f);
  std::vector<float> heavy(16, 0.0f);
  std::vector<float> mild(16, 0.0f);
  for (std::size_t i = 0; i < 16; ++i) {
    mild[i] = i % 2 == 0 ? 0.25f : -0.25f;
    bimodal[i] = i % 2 == 0 ? 3.0f : -3.0f;
    heavy[i] = 6.0f / static_cast<float>(i + 1);
  }
  // Two equal halves at ± x: the ratio is cosh x. The smallest printed one, 1.03, is that of
  // x = 0.25, or of normal logits of that deviation.
  CHECK(Group(mild).ratio() == Approx(std::cosh(0.25)).epsilon(1e-3));
  CHECK(Group(mild).ratio() == Approx(1.03).margin(0.005));
  CHECK(Group(bimodal).ratio() == Approx(std::cosh(3.0)).epsilon(1e-3));
  CHECK(Group(heavy).ratio() > 5);
  CHECK(Group(sparse_logits()).ratio() > Group(bimodal).ratio());
}

/// The diagnostic of section 2.4 from its words: the attention over prompt rows, and shares of
/// teams spread equally over their keys.
double naive_divergence(const Group& group, const std::vector<double>& log_proposal) {
  double sum = 0;
  for (std::size_t i = 0; i < log_proposal.size(); ++i) {
    const double p = std::exp(double{group.logits[i]}) / group.mass();
    sum += p * (std::log(p) - log_proposal[i]);
  }
  return sum;
}

TEST_CASE("santapp: how far routing is from attention") {
  std::vector<float> logits(64);
  for (std::size_t i = 0; i < 64; ++i) {
    logits[i] = 3 * std::sin(7 * static_cast<float>(i)) + (i == 40 ? 4.0f : 0.0f);
  }
  const Group group(logits);
  const auto divergence = [&](const std::string& options) {
    const NamedMethod named = make_method("santapp:grouping=contiguous," + options);
    const std::unique_ptr<State> state = state_of(*named.method, group.view);
    const auto proposal =
        named.method->log_proposal(group.view, 0, {64, group.logits}, state.get());
    REQUIRE(proposal.size() == 64);
    double chances = 0;
    for (const double chance : proposal) chances += std::exp(chance);
    CHECK(chances == Approx(1).epsilon(1e-6));
    return naive_divergence(group, proposal);
  };
  const double teams = divergence("samples=16");
  const double parents = divergence("samples=16,guided=4,routing=mean");
  CHECK(teams > 0);
  CHECK(teams < parents);
  // A team for each key routes by attention itself.
  CHECK(divergence("samples=16,representatives=16") == Approx(0).margin(1e-6));
}

TEST_CASE("santapp: a window has no proposal, and other methods neither") {
  const RandomStep step({.rows = 300, .group = 2, .seed = 9, .prompt_tokens = 290});
  StepView window = step.view;
  window.k = step.view.k.slice(200, 300);
  window.v = step.view.v.slice(200, 300);
  const Scores scores{100, std::vector<float>(200, 0.0f)};
  const NamedMethod named = make_method("santapp:grouping=contiguous,samples=16");
  const std::unique_ptr<State> state = state_of(*named.method, step.view);
  CHECK(named.method->log_proposal(window, 0, scores, state.get()).empty());
  CHECK(make_method("dense").method->log_proposal(window, 0, scores, nullptr).empty());
}

}  // namespace
}  // namespace kvsim::testing
