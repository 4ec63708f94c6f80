// Estimators against statistics over fixed seeds: unbiasedness, expected rows, their GQA union.

#include <cmath>
#include <functional>

#include "kernels/attention.h"
#include "kernels/santa/distribution.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

constexpr int kSeeds = 3000;

/// Mean and standard error of a running sample.
struct Running {
  double n = 0, mean = 0, squares = 0;
  void add(double x) {
    ++n;
    const double delta = x - mean;
    mean += delta / n;
    squares += delta * (x - mean);
  }
  double standard_error() const { return std::sqrt(squares / (n * (n - 1))); }
};

/// How far a mean is from what it should be, in standard errors; a sampler without variance must
/// be within float32 rounding.
double z_score(const Running& r, double expected) {
  return (r.mean - expected) / (r.standard_error() + 1e-6 * (1 + std::abs(expected)));
}

/// Calls visit(selection, output) for the same step under many seeds.
void over_seeds(const std::string& spec, RandomStep& step,
                const std::function<void(const Selection&, const std::vector<float>&)>& visit) {
  const NamedMethod named = make_method(spec);
  const Scores scores = exact_scores(step.view);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    step.view.random.seed = seed;
    const Selection selection = named.method->select(step.view, scores, nullptr);
    visit(selection, named.method->attend(step.view, selection));
  }
}

TEST_CASE("iid, strat, sys and unbiased prop are unbiased") {
  for (const std::string spec :
       {"santa-iid:samples=16", "santa-strat:samples=16", "santa-sys:samples=16",
        "santa-prop:samples=16,tile=32,mode=unbiased",
        "santa-prop:samples=16,tile=32,mode=unbiased,offsets=per-tile",
        "santa-sys:samples=16,offsets=shared"}) {
    RandomStep step({.rows = 200, .group = 2, .peak = 1.5, .seed = 77});
    const Float64Attention truth = float64_attention(step.view);
    std::vector<Running> outputs(truth.outputs.size());
    // Rows drawn too rarely for a normal approximation share one bin.
    std::vector<Running> counts(truth.weights.size() + 1);
    const auto bin = [&](std::size_t i) {
      return 16 * truth.weights[i] * kSeeds < 50 ? truth.weights.size() : i;
    };
    over_seeds(spec, step, [&](const Selection& selection, const std::vector<float>& output) {
      for (std::size_t i = 0; i < output.size(); ++i) outputs[i].add(output[i]);
      std::vector<double> drawn(counts.size(), 0);
      for (std::size_t g = 0; g < 2; ++g) {
        const auto rows = list_rows(selection.heads[g].v_rows);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          drawn[bin(g * 200 + static_cast<std::size_t>(rows[i]))] += selection.heads[g].weights[i];
        }
      }
      for (std::size_t i = 0; i < drawn.size(); ++i) counts[i].add(drawn[i]);
    });
    INFO(spec);
    // 128 outputs: the largest of as many standard normals passes 4.5 once in 300 sets.
    double worst = 0;
    double chi_square = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      worst = std::max(worst, std::abs(z_score(outputs[i], truth.outputs[i])));
    }
    std::vector<double> expected(counts.size(), 0);
    for (std::size_t i = 0; i < truth.weights.size(); ++i)
      expected[bin(i)] += 16 * truth.weights[i];
    double bins = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (expected[i] == 0) continue;
      const double z = z_score(counts[i], expected[i]);
      chi_square += z * z;
      ++bins;
    }
    CHECK(worst < 4.5);
    CHECK(bins > 200);
    // Counts of one draw are correlated (strongly for sys), so the mean square scatters about 1.
    CHECK(chi_square / bins < 1.6);
  }
}

TEST_CASE("flash is unbiased, with one offset, one per tile, or one for the group") {
  for (const std::string offsets : {"per-head", "per-tile", "shared"}) {
    RandomStep step({.rows = 200, .group = 2, .peak = 1.5, .seed = 83});
    const Float64Attention truth = float64_attention(step.view);
    std::vector<Running> outputs(truth.outputs.size());
    over_seeds("santa-flash:samples=16,tile=32,offsets=" + offsets, step,
               [&](const Selection&, const std::vector<float>& output) {
                 for (std::size_t i = 0; i < output.size(); ++i) outputs[i].add(output[i]);
               });
    double worst = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      worst = std::max(worst, std::abs(z_score(outputs[i], truth.outputs[i])));
    }
    INFO(offsets);
    CHECK(worst < 4.5);
  }
}

TEST_CASE("a shared offset makes heads draw the same rows where they weigh them alike") {
  // Twice the same query: the union is one head's rows; with offsets of their own it is more.
  RandomStep step({.rows = 400, .group = 2, .peak = 1, .seed = 84});
  std::copy_n(step.queries.begin(), step.queries.size() / 2,
              step.queries.begin() + static_cast<std::ptrdiff_t>(step.queries.size() / 2));
  for (const std::string method : {"santa-sys", "santa-strat", "santa-iid", "santa-prop:tile=32",
                                   "santa-flash:samples=64,tile=32"}) {
    const std::string separator = method.find(':') == std::string::npos ? ":" : ",";
    over_seeds(method + separator + "offsets=shared", step,
               [&](const Selection& selection, const std::vector<float>&) {
                 CHECK(selection.statistics.v_rows == selection.statistics.v_requests / 2);
               });
    Running own;
    over_seeds(method, step, [&](const Selection& selection, const std::vector<float>&) {
      own.add(selection.statistics.v_rows / selection.statistics.v_requests);
    });
    INFO(method);
    CHECK(own.mean > 0.6);
  }
}

TEST_CASE("prop with largest remainders is biased, as stated") {
  RandomStep step({.rows = 2000, .group = 1, .peak = 1, .seed = 78});
  const Float64Attention truth = float64_attention(step.view);
  std::vector<Running> outputs(truth.outputs.size());
  over_seeds("santa-prop:samples=16,tile=32", step,
             [&](const Selection&, const std::vector<float>& output) {
               for (std::size_t i = 0; i < output.size(); ++i) outputs[i].add(output[i]);
             });
  double worst = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    worst = std::max(worst, std::abs(z_score(outputs[i], truth.outputs[i])));
  }
  CHECK(worst > 10);
}

TEST_CASE("expected distinct rows and their GQA union") {
  constexpr double kSamples = 32;
  constexpr int kGroup = 3;
  struct Sampler {
    std::string spec;
    std::function<double(double)> hit;  // probability that a row of probability p is drawn
  };
  const std::vector<Sampler> samplers{
      {"santa-iid:samples=32", [](double p) { return 1 - std::pow(1 - p, kSamples); }},
      {"santa-sys:samples=32", [](double p) { return std::min(1.0, kSamples * p); }}};
  for (const Sampler& sampler : samplers) {
    RandomStep step({.rows = 400, .group = kGroup, .peak = 2, .seed = 79});
    const Float64Attention truth = float64_attention(step.view);
    double expected_rows = 0;
    double expected_union = 0;
    for (std::size_t row = 0; row < 400; ++row) {
      double missed = 1;
      for (std::size_t g = 0; g < kGroup; ++g) {
        const double hit = sampler.hit(truth.weights[g * 400 + row]);
        expected_rows += hit;
        missed *= 1 - hit;
      }
      expected_union += 1 - missed;
    }
    Running rows, united;
    over_seeds(sampler.spec, step, [&](const Selection& selection, const std::vector<float>&) {
      rows.add(selection.statistics.v_requests);
      united.add(selection.statistics.v_rows);
    });
    INFO(sampler.spec);
    CHECK(std::abs(z_score(rows, expected_rows)) < 4);
    CHECK(std::abs(z_score(united, expected_union)) < 4);
  }
}

TEST_CASE("a stratified draw hits a row as the strata it covers say") {
  // methods: 1 - Π_m (1 - S |[F(j-1), F(j)) ∩ I_m|)
  constexpr int kSamples = 16;
  RandomStep step({.rows = 150, .group = 1, .peak = 2, .seed = 80});
  const Float64Attention truth = float64_attention(step.view);
  double expected = 0;
  double begin = 0;
  for (const double p : truth.weights) {
    double missed = 1;
    for (int m = 0; m < kSamples; ++m) {
      const double low = std::max(begin, static_cast<double>(m) / kSamples);
      const double high = std::min(begin + p, static_cast<double>(m + 1) / kSamples);
      missed *= 1 - kSamples * std::max(0.0, high - low);
    }
    expected += 1 - missed;
    begin += p;
  }
  Running rows;
  over_seeds("santa-strat:samples=16", step,
             [&](const Selection& selection, const std::vector<float>&) {
               rows.add(selection.statistics.v_requests);
             });
  CHECK(std::abs(z_score(rows, expected)) < 4);
}

TEST_CASE("variance falls from iid to strat, as the paper proves") {
  const auto variance = [](const std::string& spec) {
    RandomStep step({.rows = 256, .group = 1, .peak = 1, .seed = 81});
    std::vector<Running> outputs(64);
    over_seeds(spec, step, [&](const Selection&, const std::vector<float>& output) {
      for (std::size_t i = 0; i < 64; ++i) outputs[i].add(output[i]);
    });
    double sum = 0;
    for (const Running& r : outputs) sum += r.squares / (r.n - 1);
    return sum;
  };
  const double iid = variance("santa-iid:samples=64");
  CHECK(variance("santa-strat:samples=64") < 0.8 * iid);
  CHECK(variance("santa-sys:samples=64") < 0.8 * iid);
  CHECK(variance("santa-iid:samples=16") == Approx(4 * iid).epsilon(0.1));  // Σ / S
}

TEST_CASE("prefill coverage of iid SANTA over Gaussian inputs is S / (S + 1)") {
  // SANTA v1, appendices F and G: the share of V rows that a causal prefill touches, 50.0, 80.0 and
  // 94.1 % for S = 1, 4, 16. Flat attention: a row at position j is missed with probability
  // Π_{t >= j} (1 - 1/t)^S -> (j/n)^S, whose mean over j is 1 / (S + 1).
  constexpr std::int64_t kTokens = 1500;
  for (const int samples : {1, 4, 16}) {
    std::vector<bool> touched(kTokens, false);
    const std::vector<float> flat(kTokens, 0.0f);
    for (std::int64_t t = 1; t <= kTokens; ++t) {
      const HeadDistribution head(std::span<const float>(flat).first(static_cast<std::size_t>(t)),
                                  256);
      const RandomStream random{.seed = 5, .step = static_cast<std::uint32_t>(t)};
      for (int s = 0; s < samples; ++s) {
        const std::uint64_t threshold =
            Strata::of(head.total(), 1)
                .threshold(0, random.threshold24(static_cast<std::uint32_t>(s)));
        touched[static_cast<std::size_t>(head.find(threshold))] = true;
      }
    }
    const double covered = static_cast<double>(std::count(touched.begin(), touched.end(), true));
    CHECK(covered / kTokens == Approx(samples / (samples + 1.0)).margin(0.02));
  }
}

TEST_CASE("unique-row bounds of the paper: S G / n") {
  const auto bound = [](const std::string& spec, std::int64_t n) {
    const std::vector<std::int64_t> contexts{n};
    const Shape shape{
        .contexts = contexts, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .v_head_dim = 128};
    const NamedMethod named = make_method(spec);
    return named.method->bounds(shape).high.v_rows / (static_cast<double>(n) * 8);
  };
  CHECK(bound("santa-sys:samples=128", 32768) == 0.015625);  // 1.56 %
  CHECK(bound("santa-sys:samples=256", 8192) == 0.125);      // 12.5 %
}

}  // namespace
}  // namespace kvsim::testing
