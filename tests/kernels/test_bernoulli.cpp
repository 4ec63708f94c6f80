// Bernoulli qKᵀ: the rule's counts, and that scores have the mean and the variance they should.

#include <cmath>
#include <limits>

#include "core/error.h"
#include "kernels/attention.h"
#include "kernels/bernoulli/drawn_query.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

TEST_CASE("draw ratios are compared with p exactly") {
  std::mt19937_64 engine(5);
  std::uniform_real_distribution<double> exponent(-40, 3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int i = 0; i < 200000; ++i) {
    const auto norm = static_cast<float>(std::exp2(exponent(engine)));
    const auto x =
        static_cast<float>(norm * (i % 3 == 0 ? std::exp2(exponent(engine) - 3) : uniform(engine)));
    const auto strata = static_cast<std::uint32_t>(1 + i % kMaxQueryDraws);
    const DrawRatio ratio = DrawRatio::of(i % 2 == 0 ? x : -x, norm, strata);
    // Products of a float and a small number, exact in the 64 bits of a long double.
    const long double share = static_cast<long double>(x) * strata;
    const std::uint32_t whole = ratio.whole();
    REQUIRE(static_cast<long double>(whole) * norm <= share);
    REQUIRE(static_cast<long double>(whole + 1) * norm > share);
    const auto units = static_cast<std::uint32_t>(static_cast<double>(share / norm) * 0x1p24);
    for (const std::uint32_t near : {units > 0 ? units - 1 : 0, units, units + 1, units + 2}) {
      REQUIRE(ratio.reaches(near) == (static_cast<long double>(near) * norm <= share * 0x1p24L));
    }
  }
}

TEST_CASE("draw ratios of zero, one and subnormal numbers") {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  CHECK_FALSE(DrawRatio::of(0.0f, 0.0f, 4).reaches(1));
  CHECK(DrawRatio::of(1.0f, 1.0f, 64).whole() == 64);
  CHECK(DrawRatio::of(kTiny, kTiny, 3).whole() == 3);
  CHECK(DrawRatio::of(kTiny, 4 * kTiny, 1).reaches(1u << 22));
  CHECK_FALSE(DrawRatio::of(kTiny, 4 * kTiny, 1).reaches((1u << 22) + 1));
  CHECK_FALSE(DrawRatio::of(kTiny, 1.0f, 64).reaches(1));
}

TEST_CASE("stratified counts are B p rounded down or up, iid ones at most B") {
  for (const std::uint32_t draws : {1u, 2u, 3u, 4u, 8u, 16u, 64u}) {
    const RandomStep step({.rows = 1, .group = 2, .head_dim = 65, .seed = draws});
    for (const bool stratified : {true, false}) {
      const QueryDraws query{.draws = draws, .stratified = stratified};
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        StepView view = step.view;
        view.random.seed = seed;
        const std::vector<DrawnQuery> drawn = draw_queries(view, query);
        for (int g = 0; g < 2; ++g) {
          const std::span<const float> q = view.query(g);
          float norm = 0;
          for (const float x : q) norm = std::max(norm, std::fabs(x));
          const DrawnQuery& head = drawn[static_cast<std::size_t>(g)];
          std::int64_t hits = 0;
          std::int64_t read = 0;
          for (std::size_t i = 0; i < q.size(); ++i) {
            const double mean = draws * static_cast<double>(std::fabs(q[i])) / norm;
            const double count = std::fabs(head.weights[i]);
            if (stratified) {
              CHECK(count >= std::floor(mean));
              CHECK(count <= std::ceil(mean));
            }
            CHECK((count <= draws && count == std::floor(count)));
            if (count > 0) CHECK(std::signbit(head.weights[i]) == std::signbit(q[i]));
            if (std::fabs(q[i]) == norm) CHECK(count == draws);
            hits += static_cast<std::int64_t>(count);
            read += count > 0 ? 1 : 0;
          }
          CHECK(head.hits == hits);
          CHECK(head.features.size() == read);
          CHECK(head.factor == norm / static_cast<float>(draws));
        }
      }
    }
  }
}

/// Of one score over many draws: mean, variance, and the fourth moment its error needs.
struct Moments {
  double n = 0, sum = 0, square = 0, fourth = 0;  // about the expected value
  void add(double difference) {
    ++n;
    sum += difference;
    square += difference * difference;
    fourth += difference * difference * difference * difference;
  }
  double mean() const { return sum / n; }
  double variance() const { return square / n; }
  double error_of_variance() const {
    return std::sqrt(std::max(0.0, fourth / n - variance() * variance()) / n);
  }
};

struct Expected {
  double score = 0;
  double variance = 0;
};

/// scale * q.k and the variance of its estimate: scale² norm² Σ Var(c_i / B) (q_i / m_i)² k_i².
Expected expected_score(const StepView& view, int g, std::int64_t row, const QueryDraws& query) {
  const auto dim = static_cast<std::size_t>(view.k.dim);
  const auto* key = reinterpret_cast<const std::uint16_t*>(view.k.row(row));
  std::vector<double> m(dim, 0.0);
  for (int other = 0; other < view.group; ++other) {
    if (!query.group_mean && other != g) continue;
    for (std::size_t i = 0; i < dim; ++i) m[i] += std::fabs(view.query(other)[i]);
  }
  const double norm = *std::max_element(m.begin(), m.end());
  const double draws = query.draws;
  Expected expected;
  for (std::size_t i = 0; i < dim; ++i) {
    const double q = view.query(g)[i];
    const double k = bf16_to_float(key[i]);
    const double p = m[i] / norm;
    const double rest = draws * p - std::floor(draws * p);
    const double of_count = query.stratified ? rest * (1 - rest) / draws : p * (1 - p);
    expected.score += view.scale * q * k;
    if (q == 0) continue;
    expected.variance += std::pow(view.scale * norm * k * q / m[i], 2) * of_count / draws;
  }
  return expected;
}

double drawn_score(const StepView& view, const DrawnQuery& drawn, std::int64_t row) {
  const auto* key = reinterpret_cast<const std::uint16_t*>(view.k.row(row));
  double sum = 0;
  for (std::size_t i = 0; i < drawn.weights.size(); ++i) {
    sum += static_cast<double>(drawn.weights[i]) * bf16_to_float(key[i]);
  }
  return sum * drawn.factor * view.scale;
}

TEST_CASE("scores are unbiased and have the variance of their draws") {
  constexpr int kDraws = 100000;
  constexpr std::int64_t kRows = 5;
  for (const bool group_mean : {false, true}) {
    for (const bool stratified : {true, false}) {
      for (const std::uint32_t draws : {1u, 3u, 4u}) {
        const QueryDraws query{draws, stratified, group_mean};
        RandomStep step({.rows = kRows, .group = 3, .head_dim = 20, .peak = 2, .seed = 21});
        step.queries[7] = 0;  // of one head only
        for (std::size_t g = 0; g < 3; ++g) step.queries[g * 20 + 11] = 0;
        std::vector<Moments> moments(3 * kRows);
        std::vector<Expected> expected;
        for (int g = 0; g < 3; ++g) {
          for (std::int64_t row = 0; row < kRows; ++row) {
            expected.push_back(expected_score(step.view, g, row, query));
          }
        }
        for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
          step.view.random.seed = seed;
          const std::vector<DrawnQuery> drawn = draw_queries(step.view, query);
          for (std::size_t i = 0; i < moments.size(); ++i) {
            const auto row = static_cast<std::int64_t>(i) % kRows;
            moments[i].add(drawn_score(step.view, drawn[i / kRows], row) - expected[i].score);
          }
        }
        INFO("draws " << draws << ", stratified " << stratified << ", mean " << group_mean);
        for (std::size_t i = 0; i < moments.size(); ++i) {
          const Moments& found = moments[i];
          CHECK(std::fabs(found.mean()) < 4 * std::sqrt(expected[i].variance / kDraws));
          CHECK(std::fabs(found.variance() - expected[i].variance) < 4 * found.error_of_variance());
        }
      }
    }
  }
}

TEST_CASE("float32 scores are those of the drawn queries, scaled and capped") {
  for (const int dim : {1, 20, 64, 72, 128}) {
    for (const char* spec : {"bernoulli-qk", "bernoulli-qk:query=mean,drawn=iid,draws=9"}) {
      RandomStep step({.rows = 70, .group = 3, .head_dim = dim, .peak = 2, .seed = 3});
      const NamedMethod named = make_method(spec);
      const bool mean = named.parameters.choice("query") == "mean";
      const QueryDraws query{mean ? 9u : 4u, !mean, mean};
      const std::vector<DrawnQuery> drawn = draw_queries(step.view, query);
      for (const float cap : {0.0f, 3.0f}) {
        step.view.logit_cap = cap;
        const Scores scores = named.method->score(step.view, nullptr);
        for (int g = 0; g < 3; ++g) {
          for (std::int64_t row = 0; row < 70; ++row) {
            const double sum = drawn_score(step.view, drawn[static_cast<std::size_t>(g)], row);
            const double logit = cap > 0 ? cap * std::tanh(sum / cap) : sum;
            CHECK(scores.head(g)[static_cast<std::size_t>(row)] == Approx(logit).margin(1e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("one feature is always drawn, so its score is exact") {
  const RandomStep step({.rows = 40, .group = 2, .head_dim = 1, .seed = 6});
  const Scores exact = exact_scores(step.view);
  for (const char* spec : {"bernoulli-qk:draws=1", "bernoulli-qk:draws=16,drawn=iid"}) {
    const Scores scores = make_method(spec).method->score(step.view, nullptr);
    for (std::size_t i = 0; i < exact.values.size(); ++i) {
      CHECK(scores.values[i] == Approx(exact.values[i]));
    }
  }
}

TEST_CASE("queries of zeros read no features and weigh all rows alike") {
  RandomStep step({.rows = 30, .group = 2, .head_dim = 64, .seed = 7});
  std::fill(step.queries.begin(), step.queries.end(), 0.0f);
  for (const char* spec : {"bernoulli-qk", "bernoulli-qk:query=mean", "bernoulli-qk:drawn=iid"}) {
    const NamedMethod named = make_method(spec);
    const Selection selection = select_with(*named.method, step.view);
    CHECK(selection.statistics.k_features == 0);
    CHECK(selection.statistics.k_chunks == 0);
    CHECK(selection.statistics.query_hits == 0);
    for (const float w : selection.heads[1].weights) CHECK(w == 1);
  }
}

TEST_CASE("a group of one head draws the same from its mean query") {
  const RandomStep step({.rows = 50, .group = 1, .head_dim = 80, .seed = 8});
  const Scores head = make_method("bernoulli-qk").method->score(step.view, nullptr);
  const Scores mean = make_method("bernoulli-qk:query=mean").method->score(step.view, nullptr);
  CHECK(head.values == mean.values);
}

TEST_CASE("heads of a mean query read the same features, others their union") {
  const RandomStep step({.rows = 50, .group = 4, .head_dim = 72, .seed = 9});
  for (const char* spec : {"bernoulli-qk:draws=2", "bernoulli-qk:draws=2,query=mean"}) {
    const NamedMethod named = make_method(spec);
    const Selection selection = select_with(*named.method, step.view);
    std::vector<bool> read(72, false);
    std::vector<bool> chunk(5, false);
    double requests = 0;
    for (const HeadSelection& head : selection.heads) {
      for (const std::int64_t i : list_rows(head.k_features)) {
        read[static_cast<std::size_t>(i)] = chunk[static_cast<std::size_t>(i) / 16] = true;
        ++requests;
      }
    }
    const auto count = [](const std::vector<bool>& set) {
      return static_cast<double>(std::count(set.begin(), set.end(), true));
    };
    const Statistics& s = selection.statistics;
    CHECK(s.k_feature_requests == requests);
    CHECK(s.k_features == count(read));
    CHECK(s.k_chunks == count(chunk));
    const bool mean = named.parameters.choice("query") == "mean";
    CHECK((s.k_feature_requests == 4 * s.k_features) == mean);
  }
}

TEST_CASE("features do not depend on the scores that a selection is given") {
  const RandomStep step({.rows = 300, .group = 4, .seed = 10});
  const NamedMethod named = make_method("santa-sys:samples=32,scores=bernoulli");
  CHECK_FALSE(named.method->scores_exactly());
  const Selection own = select_with(*named.method, step.view);
  const Selection other = named.method->select(step.view, exact_scores(step.view), nullptr);
  CHECK(own.k_features == other.k_features);
  CHECK(own.statistics.k_chunks == other.statistics.k_chunks);
  // The sampler is the exact one's, fed other scores.
  const Selection exact =
      make_method("santa-sys:samples=32")
          .method->select(step.view, named.method->score(step.view, nullptr), nullptr);
  CHECK(exact.v_rows == own.v_rows);
  CHECK(exact.statistics.k_features == 64);
}

TEST_CASE("what Bernoulli parameters refuse") {
  for (const char* spec :
       {"bernoulli-qk:draws=0", "bernoulli-qk:draws=65", "bernoulli-qk:drawn=systematic",
        "bernoulli-qk:query=group", "bernoulli-qk:k_layout=hnd", "bernoulli-qk:scores=exact",
        "santa-sys:draws=8", "santa-sys:scores=exact,k_layout=feature", "santa-prop:query=mean"}) {
    INFO(spec);
    CHECK_THROWS_AS(make_method(spec), UsageError);
  }
}

}  // namespace
}  // namespace kvsim::testing
