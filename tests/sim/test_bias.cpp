// The error of the mean over seeds, and how much of it is bias.

#include <cmath>
#include <random>

#include "models/presets.h"
#include "sim/bias.h"
#include "sim/document.h"
#include "sim/kv_dtype.h"
#include "tests/catch.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::SmallTrace;
using testing::TemporaryFolder;

/// Outputs of a truth of norm 2 with normal noise, all moved by `bias` times that norm.
BiasSummary bias_of(double bias, double noise, int seeds) {
  constexpr int kHeads = 400;
  const std::vector<double> truth(4, 1.0);
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, noise);
  BiasSums sums;
  for (int head = 0; head < kHeads; ++head) {
    ErrorSum sum;
    for (int seed = 0; seed < seeds; ++seed) {
      std::vector<float> output;
      for (const double o : truth) output.push_back(static_cast<float>(o + bias + normal(random)));
      sum.add(truth, output);
    }
    sums.add(sum, seeds);
  }
  CHECK(sums.heads == kHeads);
  return summarize(sums);
}

Json document_of(const std::string& trace, const std::string& method, int repeats) {
  ReplayOptions options;
  options.traces = {trace};
  options.methods = {method};
  options.repeats = repeats;
  options.targets = {gpu_target(Presets().gpu("h200_sxm"), parse_kv_dtype("bf16").format,
                                parse_cache_layout("hnd"), CacheState::kCold)};
  DocumentOptions about;
  about.kv_dtype = "bf16";
  return replay_document(replay(options), about).at("methods").at(0);
}

TEST_CASE("bias: what the noise leaves in a mean is told from what is left of the truth") {
  for (const int seeds : {4, 40}) {
    INFO(seeds);
    const BiasSummary none = bias_of(0, 0.2, seeds);
    // Variance of 4 components over the norm's square, over the seeds.
    CHECK(none.floor == Approx(0.2 / std::sqrt(seeds)).epsilon(0.05));
    CHECK(none.mean_output == Approx(none.floor).epsilon(0.1));
    CHECK(none.bias.low == 0);
    CHECK(none.bias.high < 0.5 * none.floor);
    const BiasSummary some = bias_of(0.1, 0.2, seeds);
    CHECK(some.bias.low < 0.1);
    CHECK(some.bias.high > 0.1);
    CHECK(some.bias.value == Approx(0.1).epsilon(0.1));
  }
  const BiasSummary certain = bias_of(0.1, 0, 5);
  CHECK(certain.bias.value == Approx(0.1));
  CHECK(certain.floor < 1e-6);
}

TEST_CASE("bias: an output of zero counts as without error") {
  ErrorSum sum;
  sum.add(std::vector<double>(3, 0.0), std::vector<float>(3, 1.0F));
  BiasSums sums;
  sums.add(sum, 2);
  CHECK(summarize(sums).mean_output == 0);
}

TEST_CASE("bias: of replays, null for one seed, the error itself where nothing is drawn") {
  const TemporaryFolder folder;
  const std::string trace = folder.file("a.h5");
  SmallTrace{}.write(trace);
  const Json one = document_of(trace, "santa-sys:samples=32", 1);
  CHECK(one.at("error").at("bias").is_null());
  CHECK(one.at("error").contains("bias_reason"));
  const Json kept = document_of(trace, "topk:keys=16", 3).at("error");
  CHECK(kept.at("bias").at("relative_l2").at("value").get<double>() ==
        Approx(kept.at("relative_l2").at("rms").get<double>()));
  CHECK(kept.at("bias").at("floor_l2").get<double>() < 1e-6);
}

TEST_CASE("bias: seeds beyond those replayed at once count, layers pool to the whole") {
  const TemporaryFolder folder;
  const std::string trace = folder.file("a.h5");
  SmallTrace{}.write(trace);
  const Json method = document_of(trace, "santa-sys:samples=32", 40);
  const Json& error = method.at("error");
  const auto number = [](const Json& json, const char* key) { return json.at(key).get<double>(); };
  const double rms = number(error.at("relative_l2"), "rms");
  CHECK(number(error.at("bias"), "floor_l2") == Approx(rms / std::sqrt(40)).epsilon(0.03));
  CHECK(number(error.at("bias"), "mean_output_l2") == Approx(rms / std::sqrt(40)).epsilon(0.15));
  CHECK(number(error.at("bias").at("relative_l2"), "low") < 0.05 * rms);
  double squares = 0;
  for (const Json& layer : method.at("by_layer")) {
    squares += std::pow(number(layer.at("error").at("bias"), "mean_output_l2"), 2) / 2;
  }
  CHECK(std::sqrt(squares) == Approx(number(error.at("bias"), "mean_output_l2")));
}

}  // namespace
}  // namespace kvsim
