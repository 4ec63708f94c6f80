// How far from attention a method draws: `routing_kl_nats_mean` of a replay.

#include <cmath>

#include "kernels/attention.h"
#include "sim/head_figures.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"
#include "tests/sim/program.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ProgramResult;
using testing::RandomStep;
using testing::SmallTrace;
using testing::TemporaryFolder;

TEST_CASE("routing: divergence of attention over the prompt from a proposal") {
  const RandomStep step({.rows = 130, .group = 2, .peak = 2, .seed = 3, .prompt_tokens = 100});
  const GroupTruth truth(step.view, "test");
  const Scores scores = exact_scores(step.view);
  for (int g = 0; g < 2; ++g) {
    const std::vector<double> attention = testing::softmax64(scores.head(g).first(100));
    std::vector<double> same;
    double entropy = 0;
    for (const double p : attention) {
      same.push_back(std::log(p));
      entropy -= p * std::log(p);
    }
    CHECK(truth.divergence(g, same) == Approx(0).margin(1e-6));
    const std::vector<double> uniform(100, -std::log(100.0));
    CHECK(truth.divergence(g, uniform) == Approx(std::log(100.0) - entropy).margin(1e-6));
  }
}

TEST_CASE("routing: a replay says how far santapp draws from attention, and of no other method") {
  const TemporaryFolder folder;
  SmallTrace{.window_of_second = 100}.write(folder.file("a.h5"));
  const ProgramResult result = run_program(
      folder,
      "replay a.h5 --json --repeats 3 --method dense santapp:grouping=contiguous,samples=16 "
      "santapp:grouping=contiguous,samples=64 "
      "santapp:grouping=contiguous,samples=16,representatives=16");
  INFO(result.err);
  REQUIRE(result.status == 0);
  const auto methods = result.json().at("methods");
  const auto kl = [&](std::size_t i) {
    return methods[i].at("selection").at("routing_kl_nats_mean").get<double>();
  };
  CHECK_FALSE(methods[0].at("selection").contains("routing_kl_nats_mean"));
  CHECK(kl(1) > 0.01);
  CHECK(kl(2) == kl(1));                   // what routes does not know the budget
  CHECK(kl(3) == Approx(0).margin(1e-6));  // each key is its own team
  // The second layer has a window, where nothing is drawn.
  const auto layers = methods[1].at("by_layer");
  CHECK(layers[0].at("selection").at("routing_kl_nats_mean").get<double>() == Approx(kl(1)));
  CHECK_FALSE(layers[1].at("selection").contains("routing_kl_nats_mean"));
}

TEST_CASE("routing: on the shipped trace teams are nearer attention than guided parents") {
  const TemporaryFolder folder;
  const auto methods =
      document_of(folder, "replay " KVSIM_SOURCE_DIR
                          "/traces/samples/smollm2-135m-2k.h5 --layers 14 --steps 3 "
                          "--method santapp:grouping=contiguous "
                          "santapp:grouping=contiguous,guided=4,routing=mean "
                          "santapp:grouping=contiguous,guided=4")
          .at("methods");
  const auto kl = [&](std::size_t i) {
    return methods[i].at("selection").at("routing_kl_nats_mean").get<double>();
  };
  CHECK(kl(0) > 0);
  CHECK(2 * kl(0) < kl(1));
  CHECK(2 * kl(0) < kl(2));
}

}  // namespace
}  // namespace kvsim
