// Properties that hold for every registered method at awkward shapes.

#include <omp.h>

#include <cmath>
#include <numeric>

#include "kernels/attention.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

/// Every method with its defaults, and the modes that defaults leave out.
std::vector<std::string> every_spec() {
  std::vector<std::string> specs = method_registry().names();
  for (const char* spec :
       {"santa-prop:mode=unbiased",
        "santa-prop:mode=released",
        "santa-prop:offsets=per-tile",
        "santa-prop:offsets=shared",
        "santa-sys:offsets=shared",
        "santa-prop:tile=64",
        "santa-prop:tile=16",
        "santa-sys:samples=1",
        "santa-iid:samples=1000",
        "santa-flash:samples=1",
        "santa-flash:samples=77,tile=32",
        "santa-flash:mode=released",
        "santa-flash:offsets=per-tile",
        "santa-flash:offsets=shared",
        "topk:keys=1",
        "topk:keys=100000",
        "eta:block=1",
        "eta:block=4,chunk=8,gate=additive",
        "eta:block=16,spread=flat,gate=none,thresholds=calibrated,density=0.5",
        "eta:block=128,rescue=off,implementation=published",
        "eta:thresholds=union",
        "eta:block=2,thresholds=union,pinned=0,chunk=3,density=0.1",
        "eta:block=32,thresholds=union,shift=0.5,implementation=published",
        "santapp:grouping=contiguous",
        "santapp:grouping=contiguous,routing=mean,samples=4,implementation=published",
        "santapp:grouping=contiguous,parent=7,representatives=7,samples=30",
        "santapp:grouping=contiguous,guided=4,routing=mean,samples=64",
        "santapp:grouping=contiguous,samples=1000000",
        "quest:page=1,tokens=2",
        "quest:page=32,tokens=64,implementation=published",
        "quest:tokens=1,mode=evaluation",
        "quest:page=64,tokens=700,mode=evaluation,implementation=published",
        "bernoulli-qk:draws=1,query=mean",
        "bernoulli-qk:draws=64,drawn=iid,k_layout=feature",
        "santa-iid:scores=bernoulli",
        "santa-sys:scores=bernoulli,draws=2,query=mean",
        "santa-strat:scores=bernoulli,draws=16",
        "santa-prop:scores=bernoulli,drawn=iid,k_layout=feature",
        "santa-flash:scores=bernoulli,query=mean,k_layout=feature"}) {
    specs.push_back(spec);
  }
  return specs;
}

void check_selection(const StepView& view, const Selection& selection) {
  REQUIRE(selection.heads.size() == static_cast<std::size_t>(view.group));
  double requests = 0;
  for (const HeadSelection& head : selection.heads) {
    CHECK(head.v_rows.size() > 0);
    CHECK(static_cast<std::size_t>(head.v_rows.size()) == head.weights.size());
    CHECK(head.v_rows.ranges().back().end <= view.rows());
    requests += static_cast<double>(head.v_rows.size());
    for (const float w : head.weights) CHECK((w >= 0 && std::isfinite(w)));
  }
  const Statistics& s = selection.statistics;
  CHECK(s.v_rows <= requests);
  CHECK(s.v_rows * view.group >= requests);
  CHECK(s.v_rows <= static_cast<double>(view.rows()));
}

void check_draws(const std::string& spec, const Selection& selection) {
  const NamedMethod named = make_method(spec);
  const auto& values = named.parameters.values();
  const bool samples_rows = values.contains("samples") && named.name != "santapp";
  if (!samples_rows || spec.find("released") != std::string::npos) return;
  const std::int64_t samples = std::stoll(values.at("samples"));
  for (const HeadSelection& head : selection.heads) {
    const auto tiles = static_cast<std::int64_t>(head.drawn_tiles.size());
    const bool every_tile = named.name == "santa-flash";  // draws at least once
    CHECK(head.draws == (every_tile ? std::max(samples, tiles) : samples));
    CHECK(std::accumulate(head.counts.begin(), head.counts.end(), std::int64_t{0}) == head.draws);
  }
}

TEST_CASE("awkward contexts and groups") {
  for (const std::string& spec : every_spec()) {
    const NamedMethod named = make_method(spec);
    for (const std::int64_t rows : {1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 640, 1000, 1283}) {
      for (const int group : {1, 3, 4, 7, 8}) {
        INFO(spec << ", rows " << rows << ", group " << group);
        const RandomStep step({.rows = rows,
                               .group = group,
                               .head_dim = 64,
                               .peak = 2,
                               .seed = static_cast<std::uint64_t>(rows)});
        const Selection selection = select_with(*named.method, step.view);
        check_selection(step.view, selection);
        check_draws(spec, selection);
        for (const float x : named.method->attend(step.view, selection)) CHECK(std::isfinite(x));
      }
    }
  }
}

TEST_CASE("head sizes") {
  for (const std::string& spec : every_spec()) {
    const NamedMethod named = make_method(spec);
    for (const int dim : {64, 80, 96, 128, 256}) {
      INFO(spec << ", head size " << dim);
      const RandomStep step({.rows = 300,
                             .group = 4,
                             .head_dim = dim,
                             .v_head_dim = dim == 96 ? 64 : dim,
                             .peak = 2,
                             .seed = 6});
      const Selection selection = select_with(*named.method, step.view);
      check_selection(step.view, selection);
      const std::vector<float> output = named.method->attend(step.view, selection);
      CHECK(output.size() == static_cast<std::size_t>(4 * step.view.v.dim));
      // The output is what the selection says, summed in float64.
      for (int g = 0; g < 4; ++g) {
        const HeadSelection& head = selection.heads[static_cast<std::size_t>(g)];
        if (named.method->scores_exactly()) CHECK(head.k_features == RowRanges::all(dim));
        const std::vector<std::int64_t> rows = list_rows(head.v_rows);
        for (const int d : {0, step.view.v.dim - 1}) {
          double sum = 0;
          for (std::size_t i = 0; i < rows.size(); ++i) {
            const auto* bits = reinterpret_cast<const std::uint16_t*>(step.view.v.row(rows[i]));
            sum += head.weights[i] * static_cast<double>(bf16_to_float(bits[d]));
          }
          CHECK(output[static_cast<std::size_t>(g * step.view.v.dim + d)] ==
                Approx(sum * head.scale).margin(1e-5));
        }
      }
    }
  }
}

TEST_CASE("everything in one token: one row, weight one") {
  for (const std::string& spec : every_spec()) {
    INFO(spec);
    const NamedMethod named = make_method(spec);
    const RandomStep step({.rows = 1, .group = 2, .seed = 4});
    const std::vector<float> output =
        named.method->attend(step.view, select_with(*named.method, step.view));
    for (int d = 0; d < 64; ++d) {
      const float value = bf16_to_float(step.values[static_cast<std::size_t>(d)]);
      CHECK(output[static_cast<std::size_t>(d)] == Approx(value).epsilon(1e-6));
    }
  }
}

TEST_CASE("a huge score takes all draws") {
  for (const std::string spec : {"santa-iid", "santa-strat", "santa-sys", "santa-prop",
                                 "santa-prop:mode=unbiased", "santa-prop:mode=released"}) {
    INFO(spec);
    const RandomStep step({.rows = 700, .group = 1, .seed = 4});
    Scores scores = exact_scores(step.view);
    scores.values[333] = 1000.0f;
    const Selection selection = make_method(spec).method->select(step.view, scores, nullptr);
    CHECK(list_rows(selection.v_rows) == std::vector<std::int64_t>{333});
    CHECK(selection.heads[0].draws == 128);
  }
}

TEST_CASE("selections do not depend on threads") {
  for (const std::string& spec : every_spec()) {
    INFO(spec);
    const NamedMethod named = make_method(spec);
    const RandomStep step({.rows = 777, .group = 4, .peak = 3, .seed = 8});
    const Selection alone = select_with(*named.method, step.view);
    bool same = true;
#pragma omp parallel num_threads(4) reduction(&& : same)
    {
      const Selection here = select_with(*named.method, step.view);
      for (std::size_t g = 0; g < 4; ++g) {
        same = same && here.heads[g].v_rows == alone.heads[g].v_rows &&
               here.heads[g].weights == alone.heads[g].weights;
      }
    }
    CHECK(same);
  }
}

TEST_CASE("bounds hold what a step reads") {
  for (const std::string& spec : every_spec()) {
    for (const std::int64_t rows : {1, 100, 3000}) {
      INFO(spec << ", rows " << rows);
      const NamedMethod named = make_method(spec);
      const RandomStep step({.rows = rows, .group = 4, .peak = 2, .seed = 10});
      const Statistics s = select_with(*named.method, step.view).statistics;
      const std::vector<std::int64_t> contexts{rows};
      const Shape shape{.contexts = contexts,
                        .q_heads = 4,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .v_head_dim = 64,
                        .prompt_tokens = rows - 1};
      const auto [low, high] = named.method->bounds(shape);
      CHECK((low.k_rows <= s.k_rows && s.k_rows <= high.k_rows));
      CHECK((low.v_rows <= s.v_rows && s.v_rows <= high.v_rows));
      CHECK((low.v_requests <= s.v_requests && s.v_requests <= high.v_requests));
      CHECK((low.head_tiles <= s.head_tiles && s.head_tiles <= high.head_tiles));
      CHECK((low.group_tiles <= s.group_tiles && s.group_tiles <= high.group_tiles));
      CHECK((low.k_features <= s.k_features && s.k_features <= high.k_features));
      CHECK((low.k_feature_requests <= s.k_feature_requests &&
             s.k_feature_requests <= high.k_feature_requests));
      CHECK((low.k_chunks <= s.k_chunks && s.k_chunks <= high.k_chunks));
      CHECK((low.query_hits <= s.query_hits && s.query_hits <= high.query_hits));
      CHECK((low.state_bytes_read <= s.state_bytes_read &&
             s.state_bytes_read <= high.state_bytes_read));
      CHECK(
          (low.routing_vectors <= s.routing_vectors && s.routing_vectors <= high.routing_vectors));
      // A released tile may draw one more or less than its budget.
      const double slack = spec.find("released") == std::string::npos ? 0 : s.head_tiles;
      CHECK((low.draws - slack <= s.draws && s.draws <= high.draws + slack));
    }
  }
}

TEST_CASE("the registry holds the methods of this build") {
  const std::vector<std::string> names = method_registry().names();
  for (const char* name : {"bernoulli-qk", "dense", "eta", "quest", "santa-iid", "santa-prop",
                           "santa-strat", "santa-sys", "santapp", "skeleton", "topk"}) {
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
  }
}

TEST_CASE("every method has room for its work, however it is split") {
  for (const std::string& spec : every_spec()) {
    const NamedMethod named = make_method(spec);
    for (const std::int64_t context : {1, 200, 4097}) {
      for (const std::size_t batch : {1u, 16u}) {
        const std::vector<std::int64_t> contexts(batch, context);
        Shape shape;
        shape.contexts = contexts;
        shape.q_heads = 32;
        shape.kv_heads = 8;
        shape.head_dim = shape.v_head_dim = 128;
        const Method::Bounds bounds = named.method->bounds(shape);
        for (const int sms : {1, 132}) {
          DeviceLimits limits;
          limits.sms = sms;
          limits.shared_bytes_per_sm = 233472;  // H200
          INFO(spec << ", " << batch << " x " << context << ", " << sms << " SMs");
          CHECK_NOTHROW(named.method->implementation().work(shape, bounds.high, limits));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvsim::testing
