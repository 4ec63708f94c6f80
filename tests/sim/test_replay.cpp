// What must hold of every replay, whatever the trace: there are no golden numbers here.

#include <algorithm>
#include <cmath>
#include <set>

#include "models/presets.h"
#include "sim/decode_study.h"
#include "sim/document.h"
#include "sim/kv_dtype.h"
#include "sim/layer_replay.h"
#include "sim/replay.h"
#include "sim/summary.h"
#include "tests/catch.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::SmallTrace;
using testing::TemporaryFolder;

Target h200(const std::string& layout = "hnd") {
  return gpu_target(Presets().gpu("h200_sxm"), parse_kv_dtype("bf16").format,
                    parse_cache_layout(layout), CacheState::kCold);
}

ReplayOptions options_for(const std::vector<std::string>& traces,
                          const std::vector<std::string>& methods) {
  ReplayOptions options;
  options.traces = traces;
  options.methods = methods;
  options.threads = 2;
  options.targets = {h200()};
  for (const std::string name : {"mac_int8", "adder_value"}) {
    options.targets.push_back(accelerator_target(Presets().accelerator(name, "", ""),
                                                 parse_cache_layout("hnd"), CacheState::kCold));
  }
  return options;
}

Json document_of(const Replay& replay) {
  DocumentOptions about;
  about.gpu = "h200_sxm";
  about.kv_dtype = "bf16";
  about.llm = Presets().llm("smollm2-135m");
  return replay_document(replay, about);
}

const std::vector<std::string> kMethods{"dense", "topk:keys=16", "santa-sys:samples=32",
                                        "santa-prop:samples=32"};

TEST_CASE("replay: records cover every sequence, layer, seed, step and head once") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  SmallTrace{.seed = 2}.write(folder.file("b.h5"));
  ReplayOptions options = options_for({folder.file("a.h5"), folder.file("b.h5")}, kMethods);
  options.repeats = 18;  // more than are replayed at once
  options.seed = 5;
  options.steps = IndexList::parse("0,2-3", "--steps");
  const Replay result = replay(options);
  for (const MethodRun& run : result.runs) {
    std::set<std::tuple<int, std::uint64_t, int, std::int64_t>> seen;
    for (const StepRecord& r : run.records) {
      seen.insert({r.sequence, r.seed, r.layer, r.step});
      CHECK(r.heads.size() == 4);
      CHECK(r.unions.size() == 2);
      CHECK(r.targets.size() == 3);
      CHECK(r.context == static_cast<double>(300 + r.step + 1));
    }
    CHECK(seen.size() == 2 * 18 * 2 * 3);
    CHECK(run.records.size() == seen.size());
    CHECK(run.layers.at(1)[0].steps == 2 * 18 * 3);
  }
}

TEST_CASE("replay: dense is nearly exact, reads everything once, and is its own baseline") {
  const TemporaryFolder folder;
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16);
  SmallTrace{.type = type}.write(folder.file("a.h5"));
  const Replay result = replay(options_for({folder.file("a.h5")}, {"dense"}));
  const RunSummary summary = summarize(records_of(result.runs[0]));
  CHECK(summary.error.max < 1e-5);
  CHECK(summary.error.cosine_mean == Approx(1).margin(1e-9));
  CHECK(summary.selection.mass_recall_mean == 1);
  CHECK(summary.selection.union_fraction == 1);
  CHECK(summary.selection.gqa_amplification == 2);
  CHECK(summary.logical_access_fraction == 1);
  CHECK(summary.empty_heads == 0);
  for (const auto& [layer, costs] : result.runs[0].layers) {
    for (std::size_t target = 0; target < costs.size(); ++target) {
      const CostSum& baseline = result.dense_layers.at(layer)[target];
      CHECK(costs[target].us.value == baseline.us.value);
      CHECK(costs[target].total_pj.value == baseline.total_pj.value);
      CHECK(costs[target].dram_bytes() == baseline.dram_bytes());
    }
  }
}

TEST_CASE("replay: sums, ratios and bounds are consistent") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const Replay result = replay(options_for({folder.file("a.h5")}, kMethods));
  for (std::size_t m = 0; m < result.runs.size(); ++m) {
    const MethodRun& run = result.runs[m];
    double heads = 0, unions = 0, contexts = 0;
    for (const StepRecord& r : run.records) {
      double head_rows = 0, union_rows = 0;
      for (const HeadFigures& head : r.heads) {
        head_rows += head.v_rows;
        CHECK(head.v_rows <= r.context);
        CHECK(head.v_rows <= head.k_rows);
        CHECK(head.draws >= head.v_rows);
        CHECK((head.mass_recall >= 0 && head.mass_recall <= 1 + 1e-12));
        CHECK(std::abs(head.cosine) <= 1 + 1e-12);
      }
      for (const UnionFigures& rows : r.unions) union_rows += rows.v_rows;
      CHECK(r.statistics.v_requests == head_rows);
      CHECK(r.statistics.v_rows == union_rows);
      CHECK(union_rows <= head_rows);
      CHECK(union_rows * 2 >= head_rows);  // two heads share a KV head
      heads += head_rows;
      unions += union_rows;
      contexts += r.context * static_cast<double>(r.unions.size());
    }
    const RunSummary summary = summarize(records_of(run));
    CHECK(summary.selection.union_fraction == Approx(unions / contexts));
    CHECK(summary.selection.gqa_amplification == Approx(heads / unions));
    CHECK(summary.error.p50 <= summary.error.p95);
    CHECK(summary.error.p95 <= summary.error.max);
  }
}

void check_estimate(const Json& estimate) {
  CHECK(estimate.at("low").get<double>() <= estimate.at("value").get<double>());
  CHECK(estimate.at("value").get<double>() <= estimate.at("high").get<double>());
}

double sum_of(const Json& items, const std::string& key) {
  double sum = 0;
  for (const Json& item : items) sum += item.at(key).get<double>();
  return sum;
}

TEST_CASE("replay: parts of the document add up to their totals") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const Json document = document_of(replay(options_for({folder.file("a.h5")}, kMethods)));
  for (const Json& method : document.at("methods")) {
    const Json& traffic = method.at("traffic");
    double by_tensor = 0;
    for (const auto& [tensor, bytes] : traffic.at("by_tensor").items())
      by_tensor += bytes.get<double>();
    const double dram =
        traffic.at("dram_read_bytes").get<double>() + traffic.at("dram_write_bytes").get<double>();
    CHECK(by_tensor == Approx(dram));
    CHECK(traffic.at("dram_bytes").get<double>() == Approx(dram));
    CHECK(traffic.at("dense_bytes").get<double>() == Approx(2 * 302.5 * 2 * 32 * 2));
    const Json& time = method.at("time");
    check_estimate(time.at("predicted_us"));
    CHECK(sum_of(time.at("terms"), "us") ==
          Approx(time.at("predicted_us").at("value").get<double>()));
    const Json& energy = method.at("energy");
    check_estimate(energy.at("total_pj"));
    CHECK(sum_of(energy.at("items"), "pj") ==
          Approx(energy.at("total_pj").at("value").get<double>()));
    REQUIRE(method.at("accelerators").size() == 2);
    for (const Json& accelerator : method.at("accelerators")) {
      check_estimate(accelerator.at("total_pj"));
      check_estimate(accelerator.at("datapath_pj"));
      CHECK(sum_of(accelerator.at("items"), "pj") ==
            Approx(accelerator.at("total_pj").at("value").get<double>()));
      CHECK(accelerator.at("datapath_pj").at("value") < accelerator.at("total_pj").at("value"));
    }
    double layers = 0;
    for (const Json& layer : method.at("by_layer")) {
      layers += layer.at("time").at("predicted_us").at("value").get<double>();
    }
    CHECK(layers / 2 == Approx(time.at("predicted_us").at("value").get<double>()));
    check_estimate(method.at("decode_step").at("speedup"));
    CHECK(method.at("decode_step").at("curve").size() == 11);
  }
}

TEST_CASE("replay: the document does not depend on the number of threads") {
  const TemporaryFolder folder;
  SmallTrace{.q_heads = 16, .sinks = true}.write(folder.file("a.h5"));
  std::vector<std::string> documents;
  for (const int threads : {1, 2, 3}) {
    ReplayOptions options = options_for({folder.file("a.h5")}, kMethods);
    options.threads = threads;
    options.repeats = 2;
    documents.push_back(document_of(replay(options)).dump());
  }
  CHECK(documents[0] == documents[1]);
  CHECK(documents[0] == documents[2]);
}

TEST_CASE("replay: a subset of layers and steps gives the same records as the whole") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const Replay whole = replay(options_for({folder.file("a.h5")}, kMethods));
  ReplayOptions options = options_for({folder.file("a.h5")}, kMethods);
  options.layers = IndexList::parse("3", "--layers");
  options.steps = IndexList::parse("1,3", "--steps");
  const Replay part = replay(options);
  for (std::size_t m = 0; m < part.runs.size(); ++m) {
    REQUIRE(part.runs[m].records.size() == 2);
    for (const StepRecord& r : part.runs[m].records) {
      const auto& all = whole.runs[m].records;
      const auto same = std::find_if(all.begin(), all.end(), [&](const StepRecord& other) {
        return other.layer == r.layer && other.step == r.step;
      });
      REQUIRE(same != all.end());
      CHECK(same->statistics == r.statistics);
      CHECK(same->heads[3].relative_l2 == r.heads[3].relative_l2);
      CHECK(same->targets[0].us.value == r.targets[0].us.value);
    }
  }
}

TEST_CASE("replay: more samples and more keys mean less error") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  ReplayOptions options =
      options_for({folder.file("a.h5")}, {"topk:keys=8", "topk:keys=64", "topk:keys=304",
                                          "santa-iid:samples=16", "santa-iid:samples=256"});
  options.repeats = 8;
  const Replay result = replay(options);
  std::vector<double> errors;
  for (const MethodRun& run : result.runs) errors.push_back(summarize(records_of(run)).error.mean);
  CHECK(errors[0] > errors[1]);
  CHECK(errors[1] > errors[2]);
  CHECK(errors[2] < 1e-5);
  // An unbiased estimator's error falls with the root of the number of samples: 4 here.
  CHECK(errors[3] / errors[4] == Approx(4).epsilon(0.2));
}

TEST_CASE("replay: a window hides older rows, and its rows lie at the end of the cache") {
  const TemporaryFolder folder;
  SmallTrace{.window_of_second = 50}.write(folder.file("a.h5"));
  const Replay result =
      replay(options_for({folder.file("a.h5")}, {"dense", "santa-sys:samples=16"}));
  for (const MethodRun& run : result.runs) {
    for (const StepRecord& r : run.records) {
      CHECK(r.context == (r.layer == 3 ? 50 : static_cast<double>(301 + r.step)));
      for (const HeadFigures& head : r.heads) CHECK(head.v_rows <= r.context);
    }
  }
  const LayerInfo info{
      .layer = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 32, .v_head_dim = 32, .window = 50};
  CHECK(visible_rows(info, 300, 2) == Range{253, 303});
  CHECK(visible_rows(info, 20, 2) == Range{0, 23});
  CHECK(visible_prompt(info, 300) == 50);
  CHECK(summarize(records_of(result.runs[0])).error.max < 1e-5);
}

TEST_CASE("replay: sinks, logit caps and the latent layout reach dense attention exactly") {
  const TemporaryFolder folder;
  SmallTrace trace;
  SECTION("sinks") { trace.sinks = true; }
  SECTION("logit cap") { trace.logit_cap = 2; }
  SECTION("latent") { trace.latent = true; }
  trace.write(folder.file("a.h5"));
  const Replay result = replay(options_for({folder.file("a.h5")}, {"dense"}));
  CHECK(summarize(records_of(result.runs[0])).error.max < 1e-5);
}

TEST_CASE("replay: a latent row is read once") {
  const TemporaryFolder folder;
  SmallTrace{.latent = true}.write(folder.file("a.h5"));
  const Replay result = replay(options_for({folder.file("a.h5")}, {"dense"}));
  const CostSum& sum = result.runs[0].layers.at(1)[0];
  CHECK(sum.mean(sum.dense_bytes) == Approx(302.5 * 32 * 2));
  CHECK(sum.dram_by_tensor[static_cast<std::size_t>(Tensor::kV)] == 0);
  CHECK(sum.mean(sum.dram_read_bytes) == Approx(302.5 * 32 * 2).epsilon(0.02));
}

TEST_CASE("replay: a paged cache is dearer by its page numbers and its cut runs") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  ReplayOptions options = options_for({folder.file("a.h5")}, kMethods);
  const Replay contiguous = replay(options);
  for (Target& target : options.targets) target.layout = parse_cache_layout("paged");
  const Replay paged = replay(options);
  for (std::size_t i = 0; i < kMethods.size(); ++i) {
    for (std::size_t target = 0; target < options.targets.size(); ++target) {
      INFO(kMethods[i] << " on target " << target);
      const CostSum a = total_of(contiguous.runs[i].layers, target);
      const CostSum b = total_of(paged.runs[i].layers, target);
      CHECK(b.us.value > a.us.value);
      CHECK(b.total_pj.value > a.total_pj.value);
      CHECK(b.dram_read_bytes > a.dram_read_bytes);
      // 301 to 304 tokens lie in 19 pages.
      CHECK(b.dram_by_tensor[static_cast<std::size_t>(Tensor::kPageTable)] >= 19 * 4 * b.steps);
      CHECK(a.dram_by_tensor[static_cast<std::size_t>(Tensor::kPageTable)] == 0);
    }
  }
}

TEST_CASE("replay: the dense baseline stands at the rounded mean context") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  ReplayOptions options = options_for({folder.file("a.h5")}, {"dense"});
  options.steps = IndexList::parse("0,2-3", "--steps");  // 301, 303 and 304 tokens: 302.67
  const Replay result = replay(options);
  for (const MeasuredLayer& layer : measured_dense_layers(result)) {
    CHECK(layer.statistics.k_rows == 303 * 2);
  }
  CHECK(document_of(result).at("methods")[0].at("decode_step").at("context") == 303);
}

TEST_CASE("replay: layers of unlike traces are not pooled") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  SmallTrace{.q_heads = 8}.write(folder.file("b.h5"));
  CHECK_THROWS_WITH(
      replay(options_for({folder.file("a.h5"), folder.file("b.h5")}, {"dense"})),
      testing::ContainsSubstring("b.h5: layer 1: q_heads is 8, but 4 in " + folder.file("a.h5") +
                                 ": replay traces of different models one by one"));
}

}  // namespace
}  // namespace kvsim
