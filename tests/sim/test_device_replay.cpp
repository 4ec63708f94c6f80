// Replays on the GPU. Without one a stand-in, which computes on the CPU what kernels would, drives
// everything around them; with one the real kernels run ([gpu]).

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "kernels/measure/gpu.h"
#include "models/presets.h"
#include "sim/device_layer.h"
#include "sim/document.h"
#include "sim/kv_dtype.h"
#include "sim/replay.h"
#include "sim/report.h"
#include "tests/catch.h"
#include "tests/sim/program.h"
#include "tests/sim/small_trace.h"
#include "tests/sim/stand_in_gpu.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;
using testing::SmallTrace;
using testing::StandInGpu;
using testing::TemporaryFolder;

const std::vector<std::string> kMethods{"dense", "santa-sys:samples=32", "santa-prop:samples=32"};

ReplayOptions options_for(const std::string& trace, bool on_gpu) {
  ReplayOptions options;
  options.traces = {trace};
  options.methods = kMethods;
  options.repeats = 3;
  options.threads = 2;
  options.targets = {gpu_target(Presets().gpu("h200_sxm"), parse_kv_dtype("bf16").format,
                                parse_cache_layout("hnd"), CacheState::kCold)};
  options.on_gpu = on_gpu;
  return options;
}

Json document_of(const Replay& replay) {
  DocumentOptions about;
  about.gpu = "h200_sxm";
  about.kv_dtype = "bf16";
  return replay_document(replay, about);
}

TEST_CASE("device replay: given the CPU's scores and outputs, all figures are the CPU's") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  SmallTrace{.window_of_second = 100, .logit_cap = 20, .sinks = true}.write(path);
  const Json cpu = document_of(replay(options_for(path, false)));
  const StandInGpu gpu;
  Json cuda = document_of(replay(options_for(path, true)));
  for (std::size_t i = 0; i < kMethods.size(); ++i) {
    Json& method = cuda.at("methods").at(i);
    CHECK(method.at("device") == "cuda");
    CHECK(method.at("time").at("measured_us").is_null());
    CHECK(method.at("time").at("measured_us_reason") == "not timed, for lack of --measure");
    const Json& other = cpu.at("methods").at(i);
    for (const char* key : {"error", "selection", "traffic", "ops", "energy", "empty_heads"}) {
      INFO(kMethods[i] << ": " << key);
      CHECK(method.at(key) == other.at(key));
    }
    CHECK(method.at("by_layer").at(1).at("statistics") ==
          other.at("by_layer").at(1).at("statistics"));
  }
}

/// Sources of thresholds of all kinds: layer 3 has learned ones and a window, which begins its
/// blocks anew in every step.
const SmallTrace kScreenedTrace{.window_of_second = 100,
                                .logit_cap = 20,
                                .sinks = true,
                                .probes = 40,
                                .learned_by_second = true};
const std::vector<std::string> kScreening{
    "dense", "eta:block=16,thresholds=union", "eta:block=8,thresholds=calibrated,gate=none",
    "eta:block=16,chunk=4,pinned=0,gate=additive", "eta:block=4,thresholds=union,density=1"};

TEST_CASE("device replay: a method that screens blocks gets the CPU's thresholds and notes") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  kScreenedTrace.write(path);
  ReplayOptions options = options_for(path, false);
  options.methods = kScreening;
  options.steps = IndexList::parse(GENERATE("0-3", "1,3"), "--steps");
  const Replay on_cpu = replay(options);
  const StandInGpu gpu;
  options.on_gpu = options.measure = true;
  const Replay on_gpu = replay(options);
  const Json cpu = document_of(on_cpu);
  const Json cuda = document_of(on_gpu);
  for (std::size_t i = 0; i < kScreening.size(); ++i) {
    for (const char* key : {"error", "selection", "traffic", "ops", "energy", "empty_heads"}) {
      INFO(kScreening[i] << ": " << key);
      CHECK(cuda.at("methods").at(i).at(key) == cpu.at("methods").at(i).at(key));
    }
    CHECK(on_gpu.runs[i].notes == on_cpu.runs[i].notes);
    CHECK(on_gpu.runs[i].state_bytes == on_cpu.runs[i].state_bytes);
  }
  CHECK(on_gpu.runs[3].notes.size() == 1);  // of the layer without learned thresholds
}

const std::vector<std::string> kOfTeams{"dense", "santapp:samples=16",
                                        "santapp:samples=16,grouping=contiguous"};

TEST_CASE("device replay: a method of teams gets the CPU's states and is asked by its own logits") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  SmallTrace{.logit_cap = 20, .sinks = true}.write(path);
  ReplayOptions options = options_for(path, false);
  options.methods = kOfTeams;
  options.steps = IndexList::parse(GENERATE("0-3", "1,3"), "--steps");
  const Json cpu = document_of(replay(options));
  const StandInGpu gpu;
  options.on_gpu = options.measure = true;
  const Json cuda = document_of(replay(options));
  for (std::size_t i = 0; i < kOfTeams.size(); ++i) {
    for (const char* key : {"error", "traffic", "ops", "prepare", "empty_heads"}) {
      INFO(kOfTeams[i] << ": " << key);
      CHECK(cuda.at("methods").at(i).at(key) == cpu.at("methods").at(i).at(key));
    }
  }
  const Json& selection = cuda.at("methods").at(1).at("selection");
  CHECK(selection.at("union_rows_mean") ==
        cpu.at("methods").at(1).at("selection").at("union_rows_mean"));
}

TEST_CASE("device replay: a team that the rule does not draw is an error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  SmallTrace{}.write(path);
  ReplayOptions options = options_for(path, true);
  options.methods = {"santapp:samples=16"};
  options.threads = 1;
  const StandInGpu gpu({.head = 3, .block = 5});  // the logit of the team's leader
  CHECK_THROWS_WITH(replay(options), ContainsSubstring("a.h5: layer 1, step 0, KV head 1: santapp: "
                                                       "head 3, row "));
}

TEST_CASE("device replay: a bound by which the rule takes other blocks is an error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  kScreenedTrace.write(path);
  ReplayOptions options = options_for(path, true);
  options.methods = {"eta:block=16,thresholds=union,density=0.01,pinned=0"};
  options.threads = 1;
  const StandInGpu gpu({.head = 3, .block = 5});
  CHECK_THROWS_WITH(
      replay(options),
      ContainsSubstring("a.h5: layer 1, step 0, KV head 1: eta: head 3, row 80: the "
                        "kernel drew it 0 times, its rule 1 times from the same bounds"));
}

TEST_CASE("device replay: thresholds that a trace has no source for are said") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  ReplayOptions options = options_for(folder.file("a.h5"), true);
  options.methods = {"eta:block=16"};
  const StandInGpu gpu;
  CHECK_THROWS_WITH(replay(options), ContainsSubstring("thresholds=union does without"));
}

TEST_CASE("device replay: a draw that is not the rule's is an error that names the row") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  SmallTrace{}.write(path);
  const StandInGpu gpu({.head = 3, .row = 17});
  CHECK_THROWS_WITH(
      replay(options_for(path, true)),
      ContainsSubstring("a.h5: layer 1, step 0, KV head 1: santa-sys: head 3, row 17"));
}

TEST_CASE("device replay: measured times stand beside the predicted ones") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  SmallTrace{}.write(path);
  const StandInGpu gpu;
  ReplayOptions options = options_for(path, true);
  options.measure = true;
  const Json document = document_of(replay(options));
  const Json& time = document.at("methods").at(1).at("time");
  CHECK(time.at("measured_us").at("value").get<double>() == Approx(2));
  CHECK(time.at("measured_us").at("low").get<double>() == Approx(1.5));
  CHECK(time.at("measured_us").at("high").get<double>() == Approx(3));
  CHECK(time.at("measured_us").at("source") == "measured");
  CHECK(!time.contains("measured_us_reason"));
  const Json& layer = document.at("methods").at(2).at("by_layer").at(1).at("time");
  CHECK(layer.at("measured_us").at("value").get<double>() == Approx(3));
  CHECK_THAT(replay_report(document), ContainsSubstring("measured"));
  CHECK_THAT(document.at("notes").dump(), ContainsSubstring("Stand-in, driver 1.2"));
}

TEST_CASE("device replay: what no kernel takes is refused by name") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  const StandInGpu gpu;
  SmallTrace{.type = ElementType::kFloat32}.write(path);
  CHECK_THROWS_WITH(
      replay(options_for(path, true)),
      ContainsSubstring("a.h5: layer 1: its k is float32, but kernels take float16 or bfloat16"));
  const std::string latent = folder.file("latent.h5");
  SmallTrace{.latent = true}.write(latent);
  CHECK_THROWS_WITH(replay(options_for(latent, true)), ContainsSubstring("its cache is latent"));
}

TEST_CASE("device replay: without a GPU it says so and exits with 1") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // hides the GPU of a machine that has one
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const testing::ProgramResult result =
      run_program(folder, "replay a.h5 --method dense --device cuda -o run.h5");
  unsetenv("CUDA_VISIBLE_DEVICES");
  INFO(result.err);
  CHECK(result.status == 1);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK((result.err.find("this build has no CUDA kernels") != std::string::npos ||
         result.err.find("no CUDA device") != std::string::npos));
  CHECK(!std::filesystem::exists(folder.file("run.h5")));
}

TEST_CASE("device replay: methods without a kernel are refused by name") {
  if (!measure_backend().info) {
    WARN("GPU-TEST-SKIPPED: this build has no CUDA kernels");
    return;
  }
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const std::string base = "replay a.h5 --device cuda --method dense --method ";
  const auto check = [&](const std::string& spec, const std::string& culprit) {
    const testing::ProgramResult result = run_program(folder, base + spec);
    INFO(result.err);
    CHECK(result.status == 2);
    CHECK_THAT(result.err, ContainsSubstring(culprit));
  };
  check("skeleton", "method with a CUDA kernel 'skeleton', expected one of: dense");
  check("dense:implementation=published", "implementation=published is a cost model only");
}

bool has_gpu() {
  try {
    gpu_info();
  } catch (const RuntimeError& error) {
    WARN("GPU-TEST-SKIPPED: " << error.what());
    return false;
  }
  return true;
}

/// Replays on both, with times. Throws where a kernel's selection is not its rule's.
void check_kernels(ReplayOptions options) {
  options.on_gpu = false;
  const Json cpu = document_of(replay(options));
  options.on_gpu = options.measure = true;
  const Json cuda = document_of(replay(options));
  for (std::size_t i = 0; i < options.methods.size(); ++i) {
    INFO(options.methods[i]);
    const Json& here = cuda.at("methods").at(i);
    const Json& there = cpu.at("methods").at(i);
    // Scores differ in their last bits, so few rows do.
    const auto rows = [](const Json& method) {
      return method.at("selection").at("rows_per_head_mean").get<double>();
    };
    const auto error = [](const Json& method) {
      return method.at("error").at("relative_l2").at("mean").get<double>();
    };
    CHECK(rows(here) == Approx(rows(there)).epsilon(0.01));
    CHECK(std::abs(error(here) - error(there)) < 0.005 + 0.02 * error(there));
    CHECK(here.at("time").at("measured_us").at("value").get<double>() > 0);
  }
}

TEST_CASE("device replay: kernels on the GPU agree with the CPU", "[gpu]") {
  if (!has_gpu()) return;
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  SmallTrace{.prompt_tokens = 1000,
             .q_heads = 8,
             .head_dim = 64,
             .window_of_second = 300,
             .logit_cap = 20,
             .sinks = true,
             .probes = 200,
             .learned_by_second = true,
             .type = GENERATE(ElementType::kBfloat16, ElementType::kFloat16)}
      .write(path);
  ReplayOptions options = options_for(path, false);
  options.methods.push_back("bernoulli-qk:k_layout=feature");
  options.methods.push_back("santa-sys:samples=32,scores=bernoulli,k_layout=feature");
  options.methods.push_back("eta:block=16,thresholds=union");
  options.methods.push_back("eta:block=16,thresholds=calibrated,gate=none");
  options.methods.push_back("eta:block=16,chunk=8,pinned=0,gate=additive");
  check_kernels(options);
}

TEST_CASE("device replay: SANTA++ on the GPU agrees with the CPU, but for windows", "[gpu]") {
  if (!has_gpu()) return;
  const TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  SmallTrace trace{.prompt_tokens = 1000,
                   .q_heads = 8,
                   .head_dim = 64,
                   .logit_cap = 20,
                   .sinks = true,
                   .type = GENERATE(ElementType::kBfloat16, ElementType::kFloat16)};
  trace.write(path);
  ReplayOptions options = options_for(path, true);
  options.methods = {"dense", "santapp:samples=64", "santapp:samples=64,routing=mean",
                     "santapp:samples=32,grouping=contiguous,parent=8,representatives=2"};
  check_kernels(options);
  trace.window_of_second = 300;
  trace.write(folder.file("window.h5"));
  options.traces = {folder.file("window.h5")};
  CHECK_THROWS_WITH(replay(options), ContainsSubstring("window.h5: layer 3: santapp: the layer has "
                                                       "a window"));
}

}  // namespace
}  // namespace kvsim
