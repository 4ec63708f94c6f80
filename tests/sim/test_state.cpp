// Methods that keep something between steps: the replay drives their life cycle.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/presets.h"
#include "sim/document.h"
#include "sim/kv_dtype.h"
#include "sim/replay.h"
#include "sim/summary.h"
#include "tests/catch.h"
#include "tests/sim/small_trace.h"
#include "traces/trace_file.h"

namespace kvsim {
namespace {

using testing::SmallTrace;
using testing::TemporaryFolder;

/// What the learner saw: rows of the cache, and selections made.
struct Seen : State {
  std::int64_t rows = 0;
  std::int64_t selections = 0;
  std::int64_t bytes() const override { return 16; }
  std::string note() const override { return selections > 2 ? "test-learner: made three" : ""; }
};

/// Reads the newest row, and one more with every selection it ever made.
class Learner : public Method {
 public:
  std::unique_ptr<State> prepare(const CacheView& prompt) const override {
    auto seen = std::make_unique<Seen>();
    seen->rows = prompt.k.rows;
    return seen;
  }
  void append(State& state, const CacheView& grown) const override {
    auto& seen = static_cast<Seen&>(state);
    if (grown.k.rows != seen.rows + 1) throw RuntimeError("append skipped a row");
    seen.rows = grown.k.rows;
  }
  bool scores_exactly() const override { return false; }
  Scores score(const StepView& view, const State* state) const override {
    if (static_cast<const Seen*>(state)->rows != view.prompt_tokens + view.random.step + 1) {
      throw RuntimeError("score before append");
    }
    return {view.rows(), std::vector<float>(static_cast<std::size_t>(view.rows() * view.group))};
  }
  Selection select(const StepView& view, const Scores&, State* state) const override {
    const std::int64_t rows = ++static_cast<Seen*>(state)->selections;
    Selection selection;
    for (int g = 0; g < view.group; ++g) {
      HeadSelection head;
      head.k_rows.append(view.rows() - rows, view.rows());
      head.k_features = RowRanges::all(view.k.dim);
      head.v_rows = head.k_rows;
      head.weights.assign(static_cast<std::size_t>(rows), 1.0f);
      head.scale = 1.0f / static_cast<float>(rows);
      head.draws = rows;
      selection.heads.push_back(std::move(head));
    }
    selection.finish();
    selection.statistics.state_bytes_read = 64;
    selection.statistics.routing_vectors = 1;
    return selection;
  }
  Bounds bounds(const Shape&) const override { return {}; }
  const Implementation& implementation() const override { return *dense_.method; }

 private:
  // Any closed form will do.
  struct DenseCost {
    NamedMethod named = make_method("dense");
    const Implementation* method = &named.method->implementation();
  } dense_;
};

KVSIM_REGISTER_METHOD("test-learner",
                      MethodInfo{
                          .summary = "for tests",
                          .source = "tests/sim",
                          .parameters = {},
                          .make = [](const Parameters&) { return std::make_unique<Learner>(); },
                          .hidden = true});

Replay replay_of(const TemporaryFolder& folder, const std::vector<std::string>& methods,
                 int threads, const std::string& steps) {
  ReplayOptions options;
  options.traces = {folder.file("a.h5")};
  options.methods = methods;
  options.threads = threads;
  options.repeats = 2;
  if (!steps.empty()) options.steps = IndexList::parse(steps, "--steps");
  options.targets = {gpu_target(Presets().gpu("h200_sxm"), parse_kv_dtype("bf16").format,
                                parse_cache_layout("hnd"), CacheState::kCold)};
  return replay(std::move(options));
}

TEST_CASE("state: grows with every step, also with those that are not replayed") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const int threads = GENERATE(1, 2);
  for (const std::string steps : {"", "2", "1,3"}) {
    const Replay result = replay_of(folder, {"dense", "test-learner"}, threads, steps);
    for (const StepRecord& record : result.runs[1].records) {
      for (const HeadFigures& head : record.heads) {
        CHECK(head.v_rows == static_cast<double>(record.step + 1));
      }
    }
    CHECK(result.runs[1].state_bytes == 2 * 16);  // two KV heads
    CHECK(result.runs[1].prepare_bytes == 300.0 * 2 * 32 * 2 * 2);
    CHECK(result.runs[0].state_bytes == 0);
    CHECK(result.runs[0].prepare_bytes == 0);
  }
}

TEST_CASE("state: what states say after the last step stands once among the notes") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const DocumentOptions options;
  const auto notes = [&](const std::string& steps) {
    return document_head("", replay_of(folder, {"dense", "test-learner"}, 2, steps), options)
        .at("notes")
        .get<std::vector<std::string>>();
  };
  const std::vector<std::string> all = notes("");
  CHECK(all.back() == "test-learner: made three");
  CHECK(std::count(all.begin(), all.end(), all.back()) == 1);
  CHECK(notes("0").back() != "test-learner: made three");
}

/// Fails unless it gets what the trace has.
class Reader : public Learner {
 public:
  std::unique_ptr<State> prepare(const CacheView& prompt) const override {
    check(prompt);
    return Learner::prepare(prompt);
  }
  void append(State& state, const CacheView& grown) const override {
    check(grown);
    Learner::append(state, grown);
  }
  Selection select(const StepView& view, const Scores& scores, State* state) const override {
    const int dim = view.k.dim;
    std::vector<float> own(view.queries.size());
    const std::int64_t first = view.random.head;
    load_rows(view.layer_queries, first, first + view.group, dim, own.data());
    if (!std::equal(own.begin(), own.end(), view.queries.begin())) {
      throw RuntimeError("other queries of the layer");
    }
    const bool parameters = view.random.layer == 1;  // see the test
    if ((view.learned != nullptr) != parameters) throw RuntimeError("other learned parameters");
    if (parameters && view.learned->at("bias").shape[2] != 4) throw RuntimeError("other shape");
    return Learner::select(view, scores, state);
  }

 private:
  /// Probe i of head h is 10 i + h in its first element.
  static void check(const CacheView& cache) {
    const bool sound = cache.probes.size() == 2 && cache.scale == 0.25f && cache.logit_cap == 30;
    if (!sound) throw RuntimeError("no probes, or another scale");
    std::vector<float> row(32);
    load_rows(cache.probes[0], 1, 2, 32, row.data());
    const float head = row[0] - 10;
    load_rows(cache.probes[1], 2, 3, 32, row.data());
    if (row[0] != 20 + head + 1) throw RuntimeError("other probes");
    if (head != 0 && head != 2) throw RuntimeError("probes of another group");
  }
};

KVSIM_REGISTER_METHOD("test-reader",
                      MethodInfo{
                          .summary = "for tests",
                          .source = "tests/sim",
                          .parameters = {},
                          .make = [](const Parameters&) { return std::make_unique<Reader>(); },
                          .hidden = true});

TEST_CASE("state: methods get the prompt's queries, all heads' and learned parameters") {
  const TemporaryFolder folder;
  SmallTrace small;
  small.logit_cap = 30;
  TraceWriter writer(folder.file("a.h5"), small.info(), {});
  for (const int index : {1, 3}) {
    TraceLayer layer = small.layer(index);
    layer.probe = HostTensor{ElementType::kFloat32, {3, 4, 32}, {}};
    std::vector<float> values(static_cast<std::size_t>(layer.probe->elements()));
    for (std::size_t i = 0; i < 12; ++i) values[32 * i] = static_cast<float>(i / 4 * 10 + i % 4);
    const auto bytes = std::as_bytes(std::span(values));
    layer.probe->data.assign(bytes.begin(), bytes.end());
    if (index == 1) {
      layer.learned["bias"] = {ElementType::kFloat32, {1, 1, 4}, std::vector<std::byte>(16)};
    }
    writer.write_layer(layer);
  }
  writer.commit();
  CHECK(replay_of(folder, {"test-reader"}, 2, "0,2").runs[0].records.size() == 8);
}

TEST_CASE("state: routing reads count as logical access in units of a key") {
  const TemporaryFolder folder;
  SmallTrace{}.write(folder.file("a.h5"));
  const Replay result = replay_of(folder, {"test-learner"}, 2, "0");
  const RunSummary summary = summarize(records_of(result.runs[0]));
  // One K row, one V row and one vector of the state, of 2 x 301 rows.
  CHECK(summary.logical_access_fraction == testing::Approx(3.0 / (2 * 301)));
}

TEST_CASE("state: the skeleton method replays, with and without a window") {
  const TemporaryFolder folder;
  SmallTrace trace;
  trace.window_of_second = GENERATE(std::int64_t{0}, std::int64_t{40});
  trace.write(folder.file("a.h5"));
  const Replay one = replay_of(folder, {"skeleton", "santa-sys"}, 1, "1-3");
  const Replay two = replay_of(folder, {"skeleton", "santa-sys"}, 2, "1-3");
  REQUIRE(one.runs[0].records.size() == two.runs[0].records.size());
  for (std::size_t i = 0; i < one.runs[0].records.size(); ++i) {
    CHECK(one.runs[0].records[i].statistics == two.runs[0].records[i].statistics);
    CHECK(one.runs[0].records[i].heads[0].relative_l2 ==
          two.runs[0].records[i].heads[0].relative_l2);
  }
}

}  // namespace
}  // namespace kvsim
