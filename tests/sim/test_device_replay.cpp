// Replays on the GPU. Without one a stand-in, which computes on the CPU what kernels would, drives
// everything around them; with one the real kernels run ([gpu]).

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "kernels/attention.h"
#include "kernels/eta/records.h"
#include "kernels/eta/settings.h"
#include "kernels/measure/gpu.h"
#include "kernels/santapp/sizes.h"
#include "kernels/santapp/table.h"
#include "models/presets.h"
#include "sim/device_layer.h"
#include "sim/document.h"
#include "sim/kv_dtype.h"
#include "sim/replay.h"
#include "sim/report.h"
#include "tests/catch.h"
#include "tests/sim/program.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::ContainsSubstring;
using testing::SmallTrace;
using testing::TemporaryFolder;

/// What a stand-in is to do wrong.
struct Fault {
  int head = -1;  // query head one of whose counts is wrong
  std::int64_t row = 0;
  int block = -1;  // of this head, whose bound is dumped as one that passes
};

/// Answers as kernels would, from exact scores and the methods' own rules.
class StandIn : public GpuLayer {
 public:
  StandIn(const GpuLayerInput& input, std::span<const NamedMethod> methods, Fault fault)
      : input_(input), methods_(methods), fault_(fault), states_(methods.size()) {}

  void keep_states(std::size_t method, std::span<const State* const> states) override {
    CHECK(states.size() == static_cast<std::size_t>(input_.kv_heads));
    states_[method].assign(states.begin(), states.end());
  }
  void enqueue(const GpuLaunch& launch) override {
    REQUIRE(enqueued_ - taken_ < 2);
    Slot& slot = slots_[enqueued_++ % 2];
    slot = {};
    for (int h = 0; h < input_.kv_heads; ++h) answer(launch, h, slot);
    if (fault_.block >= 0) {
      const std::size_t blocks = slot.bounds.size() / static_cast<std::size_t>(input_.q_heads);
      slot.bounds[static_cast<std::size_t>(fault_.head) * blocks +
                  static_cast<std::size_t>(fault_.block)] = 1e9f;
    } else if (fault_.head >= 0) {
      slot.counts[static_cast<std::size_t>(fault_.head * (launch.rows.end - launch.rows.begin) +
                                           fault_.row)] += 1;
    }
  }
  GpuOutput take() override {
    REQUIRE(taken_ < enqueued_);
    const Slot& slot = slots_[taken_++ % 2];
    return {slot.output, slot.scores, slot.counts, slot.bounds};
  }
  std::vector<Estimate> times(const GpuLaunch& launch, std::span<const std::int64_t> steps,
                              const StepThresholds& thresholds, bool cold) override {
    REQUIRE(thresholds.size() == methods_.size());
    for (std::size_t i = 0; i < methods_.size(); ++i) {
      const auto heads = static_cast<std::size_t>(input_.q_heads);
      CHECK(thresholds[i].size() == (methods_[i].name == "eta" ? steps.size() * heads : 0));
    }
    CHECK(taken_ == enqueued_);
    CHECK(cold);
    CHECK(launch.step == steps[steps.size() / 2]);
    std::vector<Estimate> result;
    for (std::size_t i = 0; i < methods_.size(); ++i) {
      const auto us = static_cast<double>(i + 1);
      result.push_back({us, us - 0.5, us + 1, Source::kMeasured});
    }
    return result;
  }

 private:
  struct Slot {
    std::vector<float> output;
    std::vector<float> scores;
    std::vector<std::uint32_t> counts;
    std::vector<float> bounds;
  };

  RowsView rows_of(const std::byte* data, int kv_head, const Range& rows) const {
    return RowsView{data + 2 * kv_head * input_.tokens * input_.head_dim, input_.type,
                    input_.tokens, input_.head_dim, input_.head_dim}
        .slice(rows.begin, rows.end);
  }

  void answer(const GpuLaunch& launch, int kv_head, Slot& slot) const {
    const int group = input_.q_heads / input_.kv_heads;
    const std::int64_t first = launch.step * input_.q_heads + kv_head * group;
    std::vector<float> queries(static_cast<std::size_t>(group * input_.head_dim));
    load_rows(
        {input_.q, input_.type, input_.steps * input_.q_heads, input_.head_dim, input_.head_dim},
        first, first + group, input_.head_dim, queries.data());
    StepView view;
    view.k = rows_of(input_.k, kv_head, launch.rows);
    view.v = rows_of(input_.v, kv_head, launch.rows);
    view.queries = queries;
    view.group = group;
    view.scale = input_.scale;
    view.logit_cap = input_.logit_cap;
    if (!input_.sink_logits.empty()) {
      view.sink_logits = input_.sink_logits.subspan(static_cast<std::size_t>(kv_head * group),
                                                    static_cast<std::size_t>(group));
    }
    view.prompt_tokens = input_.prompt_tokens;
    view.random = launch.random;
    view.random.head = static_cast<std::uint32_t>(kv_head * group);
    const NamedMethod& named = methods_[launch.method];
    Scores scores = exact_scores(view);
    if (named.name == "eta") {
      const eta::Settings settings(named.parameters);
      eta::Records records(settings.block, settings.spread);
      records.extend(view.k);
      const auto own = launch.thresholds.subspan(view.random.head, static_cast<std::size_t>(group));
      scores.screening = {records.bounds(view, settings.z), {own.begin(), own.end()}};
      append(scores.screening.bounds, slot.bounds);
    }
    std::unique_ptr<santapp::TeamTable> teams;
    if (named.name == "santapp") {
      const State* kept = states_[launch.method].at(static_cast<std::size_t>(kv_head));
      teams = std::make_unique<santapp::TeamTable>(dynamic_cast<const santapp::TeamTable&>(*kept));
      teams->rows = view.rows();
      scores.screening.bounds = leader_logits(*teams, scores, group);
      append(scores.screening.bounds, slot.bounds);
    }
    const Selection selection = named.method->select(view, scores, teams.get());
    append(named.method->attend(view, selection), slot.output);
    const std::size_t begin = slot.counts.size();
    for (const HeadSelection& head : selection.heads) count(head, view.rows(), slot.counts);
    const bool partly = named.name == "eta" || named.name == "santapp";
    for (std::size_t i = 0; i < scores.values.size() && partly; ++i) {
      slot.counts[begin + i] = attends(selection, view, i) ? 1 : 0;
      if (slot.counts[begin + i] == 0) scores.values[i] = NAN;
    }
    append(scores.values, slot.scores);
  }

  /// Of each head as a kernel dumps them: room for as many teams as there may be, and for ln c.
  std::vector<float> leader_logits(const santapp::TeamTable& teams, const Scores& scores,
                                   int group) const {
    const std::int64_t room = 2 * santapp::most_teams(input_.prompt_tokens, 16, 4);
    std::vector<float> logits(static_cast<std::size_t>(room * group), NAN);
    for (int g = 0; g < group; ++g) {
      for (std::int32_t t = 0; t < teams.teams(); ++t) {
        const std::int32_t leader = teams.grouped().leaders[static_cast<std::size_t>(t)];
        logits[static_cast<std::size_t>(g * room + t)] =
            scores.head(g)[static_cast<std::size_t>(leader)];
      }
    }
    return logits;
  }

  /// Whether a group attends to the row at place `i` of a dump.
  static bool attends(const Selection& selection, const StepView& view, std::size_t i) {
    const auto rows = static_cast<std::size_t>(view.rows());
    const auto row = static_cast<std::int64_t>(i % rows);
    const auto ranges = selection.heads[i / rows].v_rows.ranges();
    return std::any_of(ranges.begin(), ranges.end(),
                       [row](const Range& range) { return range.begin <= row && row < range.end; });
  }

  static void append(const std::vector<float>& values, std::vector<float>& to) {
    to.insert(to.end(), values.begin(), values.end());
  }
  static void count(const HeadSelection& head, std::int64_t rows, std::vector<std::uint32_t>& to) {
    const std::size_t begin = to.size();
    to.resize(begin + static_cast<std::size_t>(rows), 0);
    std::size_t next = 0;
    for (const Range& range : head.v_rows.ranges()) {
      for (std::int64_t r = range.begin; r < range.end; ++r) {
        to[begin + static_cast<std::size_t>(r)] = static_cast<std::uint32_t>(head.weights[next++]);
      }
    }
  }

  GpuLayerInput input_;
  std::span<const NamedMethod> methods_;
  Fault fault_;
  std::vector<std::vector<const State*>> states_;  // [methods] of [kv_heads]
  Slot slots_[2];
  std::size_t enqueued_ = 0;
  std::size_t taken_ = 0;
};

/// Puts stand-ins in the place of the GPU while it lives.
class StandInGpu {
 public:
  explicit StandInGpu(Fault fault = {}) : real_(measure_backend()) {
    measure_backend().info = [] {
      GpuInfo info;
      info.name = "Stand-in";
      info.driver = "1.2";
      return info;
    };
    measure_backend().layer = [fault](const GpuLayerInput& input,
                                      std::span<const NamedMethod> methods) {
      return std::unique_ptr<GpuLayer>(std::make_unique<StandIn>(input, methods, fault));
    };
  }
  ~StandInGpu() { measure_backend() = real_; }
  StandInGpu(const StandInGpu&) = delete;
  StandInGpu& operator=(const StandInGpu&) = delete;

 private:
  MeasureBackend real_;
};

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
