// What making a state costs, and after how many tokens that is repaid.

#include "kernels/method.h"
#include "models/presets.h"
#include "sim/kv_dtype.h"
#include "sim/prepare_cost.h"
#include "tests/catch.h"
#include "tests/sim/program.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::SmallTrace;
using testing::TemporaryFolder;

Target h200() {
  return gpu_target(Presets().gpu("h200_sxm"), parse_kv_dtype("bf16").format,
                    parse_cache_layout("hnd"), CacheState::kCold);
}

std::optional<StepCost> cost_of(const std::string& spec, const std::vector<std::int64_t>& prompts) {
  const Target target = h200();
  const Shape shape = shape_on(target, {28, 4, 128, 128, false}, prompts, 0);
  return prepare_cost(make_method(spec).method->implementation(), shape, target);
}

TEST_CASE("prepare: records are a launch that reads K and writes them") {
  const StepCost cost = cost_of("eta:block=64,thresholds=union", {32768}).value();
  const double bytes = 4 * (32768 * 256 + 512 * 516);
  CHECK(cost.traffic.dram_read_bytes + cost.traffic.dram_write_bytes == bytes);
  CHECK(cost.time.total_us.value == Approx(0.6 + 2.0 + bytes / 4.6e6));
  CHECK(!cost_of("dense", {32768}));
}

TEST_CASE("prepare: clusters take products at the tensor cores' rate, and a launch a round") {
  const StepCost cost = cost_of("santapp", {32768}).value();
  const auto term = [&](const std::string& stage) {
    double us = 0;
    for (const TimeTerm& each : cost.time.terms) us += each.stage == stage ? each.us.value : 0;
    return us;
  };
  const double flop_per_us = 989.5e6 / 2;  // half of the peak
  CHECK(term("cluster") == Approx(2 * 4 * 104.0 * 4096 * 2048 * 128 / flop_per_us));
  CHECK(term("cluster: kernel_launch") == Approx(2 * 104 * 0.6));
  CHECK(term("seed: kernel_launch") == Approx(2 * 2048 * 0.6));
  CHECK(term("label") == Approx(2 * 4 * 32768.0 * 2048 * 128 / flop_per_us));
  const Estimate& us = cost.time.total_us;
  CHECK(us.high - us.value > (800 - 104) * 2 * 0.5);  // up to 100 passes
  double sum = 0;
  for (const TimeTerm& each : cost.time.terms) sum += each.us.value;
  CHECK(us.value == Approx(sum));
}

TEST_CASE("prepare: repaid once dense attention would have taken as much longer") {
  CostSum cost;
  cost.steps = 2;
  cost.us = {600, 400, 1000, Source::kDerived};
  const Json json = prepare_json(
      {.keeps_state = true, .bytes = 7, .cost = &cost, .dense_us = 20, .method_us = 8});
  CHECK(json.at("bytes") == 7);
  CHECK(json.at("predicted_us").at("value") == 300);
  CHECK(json.at("repaid_after_tokens") == 25);
  const auto reason = [](const PrepareFigures& figures) {
    const Json none = prepare_json(figures);
    CHECK(none.at("repaid_after_tokens").is_null());
    return none.at("repaid_after_tokens_reason").get<std::string>();
  };
  CHECK(reason({.keeps_state = true, .cost = &cost, .dense_us = 8, .method_us = 8}) ==
        "its attention takes no less time than dense attention");
  CHECK(reason({.keeps_state = true, .dense_us = 9, .method_us = 8}) ==
        "no model of building this method's state");
  CHECK(reason({.dense_us = 9, .method_us = 8}) == "nothing is prepared");
}

TEST_CASE("prepare: replays and predictions say it") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const auto prepare = [&](const std::string& arguments) {
    const testing::ProgramResult result = run_program(folder, arguments + " --json");
    INFO(result.err);
    REQUIRE(result.status == 0);
    return Json::parse(result.out).at("methods").at(0).at("prepare");
  };
  const Json replayed = prepare("replay a.h5 --method santapp:grouping=contiguous --gpu h200_sxm");
  CHECK(replayed.at("predicted_us").at("value") > 0);
  CHECK(replayed.at("terms").size() > 1);
  CHECK(replayed.at("state_bytes") > 0);
  const Json predicted = prepare(
      "predict --method santapp:grouping=contiguous --gpu h200_sxm --llm qwen2.5-7b "
      "--context 65536");
  CHECK(predicted.at("bytes") > 0);
  const double us = predicted.at("predicted_us").at("value");
  CHECK(predicted.at("repaid_after_tokens").get<double>() > 0);
  CHECK(us > 0);
  const Json dense =
      prepare("predict --method dense --gpu h200_sxm --llm smollm2-135m --context 999");
  CHECK(dense.at("predicted_us").at("value") == 0);
  CHECK(dense.at("repaid_after_tokens").is_null());
}

}  // namespace
}  // namespace kvsim
