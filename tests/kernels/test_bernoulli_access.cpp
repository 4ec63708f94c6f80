// How many features of K Bernoulli qKᵀ reads, against what the SANTA paper publishes, and the
// accesses that follow from it.

#include <cmath>
#include <random>

#include "kernels/bernoulli/drawn_query.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

constexpr DeviceLimits kLimits{.sms = 132, .shared_bytes_per_sm = 233472, .l2_bytes = 50 << 20};

/// Expected share of the features of `head_dim` that queries read whose elements are independent
/// with density ∝ exp(-|x|^shape): |x|^shape then has a gamma distribution. The scale cancels.
double share_of_generalised_normal(double shape, const QueryDraws& query, int head_dim = 128) {
  constexpr int kQueries = 4000;
  std::mt19937_64 engine(99);
  std::gamma_distribution<double> gamma(1 / shape);
  double sum = 0;
  for (int n = 0; n < kQueries; ++n) {
    std::vector<float> magnitudes(static_cast<std::size_t>(head_dim));
    for (float& x : magnitudes) x = static_cast<float>(std::pow(gamma(engine), 1 / shape));
    sum += expected_feature_share(magnitudes, query);
  }
  return sum / kQueries;
}

TEST_CASE("one query distribution gives the published shares of features, stratified") {
  // SANTA paper, Table 7 (BitNet 2B, heads of 128): 25.6, 46.3, 67.5, 82.6, 91.1 % for B = 1 … 16.
  // The shape is fitted to B = 1 alone.
  double low = 1;
  double high = 3;
  for (int i = 0; i < 12; ++i) {
    const double middle = (low + high) / 2;
    const double share = share_of_generalised_normal(middle, {.draws = 1});
    (share < 0.256 ? low : high) = middle;
  }
  CHECK(low == Approx(1.60).margin(0.02));
  struct Point {
    std::uint32_t draws;
    double predicted;
    double published;
    double iid;
  };
  for (const Point& point : {Point{2, 0.466, 0.463, 0.402}, Point{4, 0.682, 0.675, 0.571},
                             Point{8, 0.830, 0.826, 0.727}, Point{16, 0.913, 0.911, 0.844}}) {
    INFO("B = " << point.draws);
    const double share = share_of_generalised_normal(low, {.draws = point.draws});
    CHECK(share == Approx(point.predicted).margin(0.0015));
    CHECK(share == Approx(point.published).margin(0.01));
    const double iid =
        share_of_generalised_normal(low, {.draws = point.draws, .stratified = false});
    CHECK(iid == Approx(point.iid).margin(0.0015));  // not what the paper drew
  }
}

TEST_CASE("drawn features are as many as expected, per head and for a group's mean query") {
  constexpr int kSeeds = 20000;
  for (const bool stratified : {true, false}) {
    for (const bool group_mean : {false, true}) {
      const QueryDraws query{3, stratified, group_mean};
      RandomStep step({.rows = 1, .group = 2, .head_dim = 40, .seed = 11});
      std::vector<float> magnitudes(40, 0.0f);
      for (int g = 0; g < (group_mean ? 2 : 1); ++g) {
        for (std::size_t i = 0; i < 40; ++i) magnitudes[i] += std::fabs(step.view.query(g)[i]);
      }
      const double expected = expected_feature_share(magnitudes, query);
      double sum = 0;
      double squares = 0;
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        step.view.random.seed = seed;
        const auto share =
            static_cast<double>(draw_queries(step.view, query)[0].features.size()) / 40;
        sum += share;
        squares += share * share;
      }
      const double mean = sum / kSeeds;
      const double error = std::sqrt((squares / kSeeds - mean * mean) / kSeeds);
      CHECK(std::fabs(mean - expected) < 4 * error);
    }
  }
}

/// K's access in the work of one selection.
Access key_access(const std::string& spec, const RandomStep& step, int head_dim,
                  Statistics& statistics) {
  const NamedMethod named = make_method(spec);
  statistics = select_with(*named.method, step.view).statistics;
  const std::vector<std::int64_t> contexts{step.view.rows()};
  const Shape shape{.contexts = contexts,
                    .q_heads = step.view.group,
                    .kv_heads = 1,
                    .head_dim = head_dim,
                    .v_head_dim = head_dim};
  const Work work = named.method->implementation().work(shape, statistics, kLimits);
  for (const Access& access : work.stages[0].accesses) {
    if (access.tensor == Tensor::kK) return access;
  }
  return {};
}

TEST_CASE("the work reads the features drawn, in either layout of K") {
  const RandomStep step({.rows = 200, .group = 4, .head_dim = 72, .seed = 12});
  Statistics s;
  for (const std::string method : {"bernoulli-qk:draws=1", "santa-sys:scores=bernoulli,draws=1",
                                   "santa-sys:scores=bernoulli,draws=1,implementation=published"}) {
    INFO(method);
    const Access token = key_access(method, step, 72, s);
    CHECK(token.row_set == RowSet::kKRows);
    CHECK(token.rows == 200);
    CHECK(token.row_bytes == Approx(2 * s.k_features));
    CHECK(token.requests * token.row_bytes == Approx(200 * 2 * s.k_feature_requests));
    CHECK(token.chunk_share == s.k_chunks / 5);
    const Access feature = key_access(method + ",k_layout=feature", step, 72, s);
    CHECK(feature.row_set == RowSet::kKFeatures);
    CHECK(feature.rows == s.k_features);
    CHECK(feature.requests == s.k_feature_requests);
    CHECK(feature.row_bytes == Approx(2 * 200));
  }
  const Access exact = key_access("santa-sys", step, 72, s);
  CHECK((exact.row_bytes == 144 && exact.rows == 200 && exact.requests == 800));
  CHECK((s.k_features == 72 && s.k_feature_requests == 288 && s.k_chunks == 5));
}

}  // namespace
}  // namespace kvsim::testing
