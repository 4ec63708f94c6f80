// Replays and predictions of methods whose scores leave out features of K.

#include "models/presets.h"
#include "sim/attention_model.h"
#include "sim/document.h"
#include "sim/kv_dtype.h"
#include "sim/replay.h"
#include "sim/summary.h"
#include "tests/catch.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::Approx;
using testing::SmallTrace;
using testing::TemporaryFolder;

Target h200(const std::string& layout) {
  return gpu_target(Presets().gpu("h200_sxm"), parse_kv_dtype("bf16").format,
                    parse_cache_layout(layout), CacheState::kCold);
}

Replay replay_of(const SmallTrace& trace, const std::vector<std::string>& methods,
                 const std::string& layout = "hnd", int threads = 2) {
  const TemporaryFolder folder;
  trace.write(folder.file("a.h5"));
  ReplayOptions options;
  options.traces = {folder.file("a.h5")};
  options.methods = methods;
  options.threads = threads;
  options.targets = {h200(layout),
                     accelerator_target(Presets().accelerator("adder_value", "", ""),
                                        parse_cache_layout(layout), CacheState::kCold)};
  return replay(options);
}

CostSum sum_of(const Replay& replay, std::size_t method) {
  return total_of(replay.runs[method].layers, 0);
}

double k_bytes(const CostSum& sum) {
  return sum.dram_by_tensor[static_cast<std::size_t>(Tensor::kK)];
}

const std::vector<std::string> kMethods{"dense", "bernoulli-qk:draws=1",
                                        "bernoulli-qk:draws=1,k_layout=feature",
                                        "bernoulli-qk:draws=1,query=mean,k_layout=feature",
                                        "santa-sys:samples=32,scores=bernoulli,draws=1"};

TEST_CASE("bernoulli replay: shares of features are those of the heads' own sets") {
  const Replay result = replay_of({.head_dim = 72}, kMethods);
  for (std::size_t m = 0; m < kMethods.size(); ++m) {
    INFO(kMethods[m]);
    double heads = 0, head_features = 0, groups = 0, group_features = 0, vectors = 0, rows = 0;
    for (const StepRecord& record : result.runs[m].records) {
      for (const HeadFigures& head : record.heads) {
        head_features += head.k_features;
        ++heads;
      }
      for (const UnionFigures& group : record.unions) {
        group_features += group.k_features;
        vectors += group.k_rows * group.k_features / 72 + group.v_rows;
        rows += record.context;
        ++groups;
      }
      CHECK(record.statistics.k_features <= record.statistics.k_feature_requests);
      CHECK(record.statistics.k_features >= record.statistics.k_feature_requests / 2);
    }
    const RunSummary summary = summarize(records_of(result.runs[m]));
    CHECK(summary.selection.k_feature_fraction_head == Approx(head_features / heads / 72));
    CHECK(summary.selection.k_feature_fraction_group == Approx(group_features / groups / 72));
    CHECK(summary.logical_access_fraction == Approx(vectors / (2 * rows)));
    CHECK((summary.selection.k_feature_fraction_group == 1) == (m == 0));
    CHECK((summary.error.max > 0.05) == (m > 0));  // against exact attention
  }
}

TEST_CASE("bernoulli replay: only features stored by themselves save bytes") {
  const Replay result = replay_of({.head_dim = 64}, kMethods);
  const double dense = k_bytes(sum_of(result, 0));
  const RunSummary by_feature = summarize(records_of(result.runs[2]));
  CHECK(k_bytes(sum_of(result, 1)) <= dense);
  CHECK(k_bytes(sum_of(result, 1)) > 0.9 * dense);
  // A feature's 301 to 304 tokens fill their atoms but for the ends.
  CHECK(k_bytes(sum_of(result, 2)) ==
        Approx(by_feature.selection.k_feature_fraction_group * dense).epsilon(0.15));
  CHECK(k_bytes(sum_of(result, 3)) < k_bytes(sum_of(result, 2)));  // the mean query, the union
  CHECK(sum_of(result, 1).requested_bytes < sum_of(result, 0).requested_bytes);
  // Fewer multiplications, and random words.
  const auto ops = [&](std::size_t method, Op op) {
    return sum_of(result, method).ops[static_cast<std::size_t>(op)];
  };
  CHECK(ops(1, Op::kMultiply) < 0.6 * ops(0, Op::kMultiply));
  CHECK(ops(1, Op::kRandomWord) == 2 * 4 * 4 * 64);
  CHECK(ops(3, Op::kRandomWord) == 2 * 4 * 2 * 64);
}

TEST_CASE("bernoulli replay: layouts, windows and latent caches") {
  for (const std::string layout : {"hnd", "nhd", "paged", "paged:64"}) {
    INFO(layout);
    const Replay result = replay_of({.head_dim = 64, .window_of_second = 50}, kMethods, layout);
    const double dense = k_bytes(sum_of(result, 0));
    for (std::size_t m = 1; m < kMethods.size(); ++m) {
      CHECK(k_bytes(sum_of(result, m)) > 0);
      // Ends of features, and of their pieces in a page, are atoms of their own.
      CHECK(k_bytes(sum_of(result, m)) <= (layout == "paged" ? 2 : 1.4) * dense);
    }
  }
  // V lies in the latent rows, but what is read of them is not all of V.
  const Replay latent = replay_of({.head_dim = 64, .latent = true}, kMethods);
  const auto v_bytes = [&](std::size_t method) {
    return sum_of(latent, method).dram_by_tensor[static_cast<std::size_t>(Tensor::kV)];
  };
  CHECK(v_bytes(0) == 0);
  CHECK(v_bytes(2) > 0);
}

TEST_CASE("bernoulli replay: nothing depends on the number of threads") {
  const auto figures = [](int threads) {
    const Replay result = replay_of({}, kMethods, "hnd", threads);
    std::vector<double> values;
    for (const MethodRun& run : result.runs) {
      for (const StepRecord& record : run.records) {
        values.push_back(record.statistics.k_features + record.statistics.query_hits);
        for (const HeadFigures& head : record.heads) values.push_back(head.relative_l2);
      }
    }
    return values;
  };
  CHECK(figures(1) == figures(3));
}

TEST_CASE("bernoulli predict: bounds without statistics, the measured share with them") {
  const Llm llm = Presets().llm("llama-3.1-8b");
  const Target target = h200("hnd");
  const Serving serving{llm, target, 1};
  const NamedMethod named = make_method("bernoulli-qk:draws=2,query=mean,k_layout=feature");
  const LayerPrediction bounds = predict_layer(serving, {32, 0, nullptr}, *named.method, 32768);
  CHECK(bounds.attention_us.low < 0.7 * bounds.attention_us.value);
  CHECK(bounds.statistics.k_features == 8 * 128);
  MeasuredLayer measured;
  measured.heads = {8, 2, 64, 64, false};
  measured.context_mean = measured.context_max = 40000;
  measured.prompt_tokens = 40000;
  Statistics& s = measured.statistics;
  s.k_rows = s.v_rows = 80000;
  s.k_requests = s.v_requests = s.draws = 320000;
  s.k_features = 2 * 16;  // a quarter
  s.k_feature_requests = 8 * 16;
  s.k_chunks = 2 * 4;
  s.query_hits = 8 * 32;
  const LayerPrediction known = predict_layer(serving, {32, 0, &measured}, *named.method, 32768);
  CHECK(known.statistics.k_features == 8 * 32);
  CHECK(known.cost.traffic.dram_by_tensor[static_cast<std::size_t>(Tensor::kK)] ==
        Approx(8.0 * 32 * 32768 * 2));
  CHECK(known.attention_us.value < bounds.attention_us.value);
}

}  // namespace
}  // namespace kvsim
