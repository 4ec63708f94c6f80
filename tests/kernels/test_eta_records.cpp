// Records of blocks against naive sums, and what their bounds promise.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/float16.h"
#include "kernels/attention.h"
#include "kernels/eta/records.h"
#include "kernels/eta/rule.h"
#include "kernels/lanes.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

using eta::Records;
using eta::Spread;

double key(const StepView& view, std::int64_t row, int c) {
  return bf16_to_float(reinterpret_cast<const std::uint16_t*>(view.k.row(row))[c]);
}

/// Whether `stored` is `value` rounded to float16: float32 sums may move a tie.
bool rounds_to(float stored, double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  const double ulp = std::max(std::ldexp(1.0, exponent - 11), 0x1p-24);
  return fp16_to_float(float_to_fp16(stored)) == stored &&
         std::abs(stored - value) <= 0.5001 * ulp + 2e-6 * std::abs(value);
}

double naive_spread(const StepView& view, std::int64_t begin, int block, int part, int c) {
  double mean = 0;
  for (int t = 0; t < block; ++t) mean += key(view, begin + t, c) / block;
  double largest = 0;
  for (int first = 0; first < block; first += part) {
    double sum = 0;
    for (int t = first; t < first + part; ++t) {
      sum += (key(view, begin + t, c) - mean) * (key(view, begin + t, c) - mean);
    }
    largest = std::max(largest, std::sqrt(sum / part));
  }
  return largest;
}

TEST_CASE("eta: records are what naive sums give") {
  for (const int dim : {8, 64, 80, 256}) {
    for (const int block : {2, 4, 16, 64, 128}) {
      for (const Spread spread : {Spread::kEnvelope, Spread::kFlat}) {
        INFO("head size " << dim << ", block " << block);
        const RandomStep step({.rows = 300, .head_dim = dim, .seed = 3});
        Records records(block, spread);
        records.extend(step.view.k);
        REQUIRE(records.blocks() == 300 / block);
        CHECK(records.bytes() == records.blocks() * (4 * dim + 4));
        const int part = spread == Spread::kFlat ? block : std::min(block, 4);
        std::int64_t wrong = 0;
        for (std::int64_t j = 0; j < records.blocks(); ++j) {
          double norm = 0;
          for (int t = 0; t < block; ++t) {
            double square = 0;
            for (int c = 0; c < dim; ++c) square += std::pow(key(step.view, j * block + t, c), 2);
            norm = std::max(norm, std::sqrt(square));
          }
          const double stored = records.norms()[static_cast<std::size_t>(j)];
          CHECK((stored > norm && stored < norm * (1 + 0x1p-17)));
          for (int c = 0; c < dim; ++c) {
            const auto at = static_cast<std::size_t>(j * padded_lanes(dim) + c);
            double mean = 0;
            for (int t = 0; t < block; ++t) mean += key(step.view, j * block + t, c) / block;
            const float deviation = std::sqrt(records.variances()[at]);
            wrong += rounds_to(records.centroids()[at], mean) ? 0 : 1;
            wrong +=
                rounds_to(deviation, naive_spread(step.view, j * block, block, part, c)) ? 0 : 1;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("eta: a cache that grows has the records of one read at once, bit for bit") {
  const RandomStep step({.rows = 131, .head_dim = 80, .seed = 4});
  for (const int block : {2, 16, 64}) {
    Records whole(block, Spread::kEnvelope);
    whole.extend(step.view.k);
    for (std::int64_t split = 0; split <= 131; ++split) {
      Records grown(block, Spread::kEnvelope);
      grown.extend(step.view.k.slice(0, split));
      for (std::int64_t rows = split; rows <= 131; rows += split % 5 + 1) {
        grown.extend(step.view.k.slice(0, rows));
      }
      grown.extend(step.view.k);
      REQUIRE(grown.tokens() == 131);
      REQUIRE(std::ranges::equal(grown.centroids(), whole.centroids()));
      REQUIRE(std::ranges::equal(grown.variances(), whole.variances()));
      REQUIRE(std::ranges::equal(grown.norms(), whole.norms()));
    }
  }
}

TEST_CASE("eta: bounds are eq. 7 of the stored values, scaled and capped") {
  for (const float cap : {0.0f, 3.0f}) {
    RandomStep step({.rows = 200, .group = 5, .head_dim = 96, .peak = 3, .seed = 7});
    step.view.logit_cap = cap;
    Records records(8, Spread::kFlat);
    records.extend(step.view.k);
    const std::vector<float> bounds = records.bounds(step.view, 1.25f);
    REQUIRE(bounds.size() == 5 * 25);
    for (int g = 0; g < 5; ++g) {
      double norm = 0;
      for (const float q : step.view.query(g)) norm += static_cast<double>(q) * q;
      for (std::size_t j = 0; j < 25; ++j) {
        double dot = 0;
        double variance = 0;
        for (std::size_t c = 0; c < 96; ++c) {
          const double q = step.view.query(g)[c];
          dot += q * records.centroids()[j * 96 + c];
          variance += q * q * records.variances()[j * 96 + c];
        }
        const double bound = step.view.scale * std::min(dot + 1.25 * std::sqrt(variance),
                                                        std::sqrt(norm) * records.norms()[j]);
        const double expected = cap > 0 ? cap * std::tanh(bound / cap) : bound;
        CHECK(bounds[static_cast<std::size_t>(g) * 25 + j] == Approx(expected).margin(1e-5));
      }
    }
  }
}

/// A step whose keys' coordinates move together by `correlation`; queries of odd heads are keys, so
/// that ‖q‖ ‖k‖ is reached.
void correlate(RandomStep& step, float correlation, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  const auto dim = static_cast<std::size_t>(step.view.k.dim);
  for (std::size_t row = 0; row < step.keys.size() / dim; ++row) {
    const float common = correlation * normal(engine);
    for (std::size_t c = 0; c < dim; ++c) {
      std::uint16_t& element = step.keys[row * dim + c];
      element = float_to_bf16(common + (1 - correlation) * bf16_to_float(element));
    }
  }
  for (std::size_t g = 1; g < static_cast<std::size_t>(step.view.group); g += 2) {
    for (std::size_t c = 0; c < dim; ++c) {
      step.queries[g * dim + c] = 1.7f * bf16_to_float(step.keys[g * 37 * dim + c]);
    }
  }
}

TEST_CASE("eta: the geometric part is never below a block's largest score") {
  constexpr float kNever = std::numeric_limits<float>::infinity();  // leaves the other part
  std::int64_t blocks = 0;
  std::int64_t below = 0;
  std::int64_t reached = 0;  // by a key along the query: the test has cases that could fail
  for (const int dim : {8, 16, 40, 64, 128, 256}) {
    for (const int block : {2, 4, 16}) {
      for (const float correlation : {0.0f, 0.3f, 0.9f}) {
        RandomStep step({.rows = 4096, .group = 4, .head_dim = dim, .seed = 11});
        correlate(step, correlation, static_cast<std::uint64_t>(dim + block));
        Records records(block, Spread::kFlat);
        records.extend(step.view.k);
        const Scores scores = exact_scores(step.view);
        for (int g = 0; g < 4; ++g) {
          std::vector<float> query(static_cast<std::size_t>(padded_lanes(dim)), 0.0f);
          std::ranges::copy(step.view.query(g), query.begin());
          const float norm = std::sqrt(eta::norm_squared(query.data(), padded_lanes(dim)));
          for (std::int64_t j = 0; j < records.blocks(); ++j, ++blocks) {
            const float bound = eta::block_bound(
                kNever, 1, norm, records.norms()[static_cast<std::size_t>(j)], 1, step.view.scale);
            const auto keys = scores.head(g).subspan(static_cast<std::size_t>(j * block),
                                                     static_cast<std::size_t>(block));
            const float largest = *std::ranges::max_element(keys);
            below += largest > bound ? 1 : 0;
            reached += largest > bound * (1 - 1e-5f) ? 1 : 0;
          }
        }
      }
    }
  }
  CHECK(blocks >= 100000);
  CHECK(below == 0);
  CHECK(reached >= 20);
}

TEST_CASE("eta: where one coordinate is all there is, z above sqrt(b - 1) is certain (eq. 24)") {
  RandomStep step({.rows = 40000, .group = 2, .head_dim = 8, .peak = 3, .seed = 5});
  for (std::size_t i = 0; i < step.keys.size(); ++i) {
    if (i % 8 != 2) step.keys[i] = 0;
  }
  const Scores scores = exact_scores(step.view);
  const auto misses = [&](float z) {
    Records records(4, Spread::kFlat);
    records.extend(step.view.k);
    const std::vector<float> bounds = records.bounds(step.view, z);
    std::int64_t count = 0;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      const auto keys = std::span<const float>(scores.values).subspan(4 * i, 4);
      // Records are rounded to 11 bits.
      count += *std::ranges::max_element(keys) > bounds[i] + 2e-3f * std::abs(bounds[i]) ? 1 : 0;
    }
    return count;
  };
  CHECK(misses(2) == 0);
  CHECK(misses(1.2f) > 1000);
}

}  // namespace
}  // namespace kvsim::testing
