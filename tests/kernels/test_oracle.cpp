// Every method against an independent float64 oracle: what it selects, what it returns, and that
// the operations the oracle really did are those the closed form counts.

#include <algorithm>
#include <functional>

#include "kernels/attention.h"
#include "tests/catch.h"
#include "tests/kernels/oracle.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

constexpr DeviceLimits kLimits{.sms = 132, .shared_bytes_per_sm = 233472, .l2_bytes = 50 << 20};

struct Case {
  std::string spec;
  std::function<OracleHead(const StepView&, int)> oracle;
  std::int64_t samples;  // draws per head, 0 = weighted rows
  bool all_keys = true;  // are read
  double margin = 2e-5;  // of outputs
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases{
      {"dense", [](const StepView& v, int g) { return oracle_dense(v, g); }, 0},
      {"topk:keys=17", [](const StepView& v, int g) { return oracle_topk(v, g, 17); }, 0},
      {"eta:block=16,thresholds=union,density=0.4",
       [](const StepView& v, int g) { return oracle_eta(v, g, {.block = 16, .density = 0.4}); }, 0,
       false},
      {"eta:block=4,chunk=7,pinned=0,z=2,spread=flat,gate=additive,thresholds=union,density=0.3",
       [](const StepView& v, int g) {
         return oracle_eta(v, g,
                           {.block = 4,
                            .chunk = 7,
                            .pinned = 0,
                            .z = 2,
                            .density = 0.3,
                            .envelope = false,
                            .gate = EtaGate::kAdditive});
       },
       0, false, 1e-4},  // the gate has 125 times the rounding of its threshold
      {"eta:block=32,pinned=1,gate=none,rescue=off,thresholds=union,shift=0.3,density=0.5",
       [](const StepView& v, int g) {
         return oracle_eta(v, g,
                           {.block = 32,
                            .pinned = 1,
                            .shift = 0.3,
                            .density = 0.5,
                            .rescue = false,
                            .gate = EtaGate::kNone});
       },
       0, false},
      {"eta:block=1,chunk=40,thresholds=union,density=0.2",
       [](const StepView& v, int g) {
         return oracle_eta(v, g, {.block = 1, .chunk = 40, .density = 0.2});
       },
       0},
      {"quest:tokens=100",
       [](const StepView& v, int g) {
         return oracle_quest(v, g, {16, 100});
       },
       0, false},
      {"quest:page=7,tokens=40,implementation=published",
       [](const StepView& v, int g) {
         return oracle_quest(v, g, {7, 40});
       },
       0, false},
      {"quest:page=16,tokens=64,mode=evaluation",
       [](const StepView& v, int g) {
         return oracle_quest(v, g, {16, 64, false});
       },
       0, false},
      {"quest:page=8,tokens=1000,mode=evaluation,implementation=published",
       [](const StepView& v, int g) {
         return oracle_quest(v, g, {8, 1000, false});
       },
       0, false},
      {"santa-iid:samples=32",
       [](const StepView& v, int g) { return oracle_santa(v, g, Sampler::kIid, 32); }, 32},
      {"santa-strat:samples=48",
       [](const StepView& v, int g) { return oracle_santa(v, g, Sampler::kStrat, 48); }, 48},
      {"santa-sys:samples=128",
       [](const StepView& v, int g) { return oracle_santa(v, g, Sampler::kSys, 128); }, 128},
      {"santa-prop:samples=64,tile=32",
       [](const StepView& v, int g) { return oracle_prop(v, g, PropRule::kPaper, 64, 32); }, 64},
      {"santa-prop:samples=100,tile=64,mode=unbiased",
       [](const StepView& v, int g) { return oracle_prop(v, g, PropRule::kUnbiased, 100, 64); },
       100},
      {"santa-flash:samples=100,tile=32",
       [](const StepView& v, int g) { return oracle_flash(v, g, 100, 32); }, 100},
      {"santa-flash:samples=3,tile=64",
       [](const StepView& v, int g) { return oracle_flash(v, g, 3, 64); }, 3},
      {"santapp:grouping=contiguous,samples=32",
       [](const StepView& v, int g) { return oracle_santapp(v, g, {.draws = 8}); }, 0, false},
      {"santapp:grouping=contiguous,parent=6,representatives=3,samples=10,routing=mean",
       [](const StepView& v, int g) {
         return oracle_santapp(v, g, {.parent = 6, .representatives = 3, .draws = 5, .mean = true});
       },
       0, false, 1e-3},  // means are rounded, to one side or the other
      {"santapp:grouping=contiguous,parent=1,representatives=1,samples=20",
       [](const StepView& v, int g) {
         return oracle_santapp(v, g, {.parent = 1, .representatives = 1, .draws = 20});
       },
       0, false},
      {"santapp:grouping=contiguous,samples=100000",
       [](const StepView& v, int g) { return oracle_santapp(v, g, {.draws = 25000}); }, 0, false},
      {"bernoulli-qk", [](const StepView& v, int g) { return oracle_dense(v, g, {.draws = 4}); },
       0},
      {"bernoulli-qk:draws=7,drawn=iid,k_layout=feature",
       [](const StepView& v, int g) {
         return oracle_dense(v, g, {.draws = 7, .stratified = false});
       },
       0},
      {"bernoulli-qk:draws=8,query=mean",
       [](const StepView& v, int g) {
         return oracle_dense(v, g, {.draws = 8, .group_mean = true});
       },
       0},
      {"santa-sys:samples=128,scores=bernoulli,draws=4",
       [](const StepView& v, int g) {
         return oracle_santa(v, g, Sampler::kSys, 128, {.draws = 4});
       },
       128},
      {"santa-prop:samples=64,tile=32,scores=bernoulli,draws=3,query=mean,drawn=iid",
       [](const StepView& v, int g) {
         return oracle_prop(v, g, PropRule::kPaper, 64, 32,
                            {.draws = 3, .stratified = false, .group_mean = true});
       },
       64}};
  return kCases;
}

double oracle_weight(const OracleHead& oracle, std::int64_t row) {
  const auto found = oracle.weights.find(row);
  return found == oracle.weights.end() ? 0 : found->second;
}

/// Counts may differ where a threshold lies within float32 rounding of a row's edge: then one draw
/// moves to a neighbouring row. Returns how many rows have another weight than they should.
double moved_draws(const OracleHead& oracle, const HeadSelection& head) {
  std::map<std::int64_t, double> difference = oracle.weights;
  const std::vector<std::int64_t> rows = list_rows(head.v_rows);
  for (std::size_t i = 0; i < rows.size(); ++i) difference[rows[i]] -= head.weights[i];
  double moved = 0;
  for (const auto& [row, d] : difference) {
    moved += std::abs(d) > 1e-4 * oracle_weight(oracle, row) + 1e-7 ? 0.5 : 0;
  }
  return moved;
}

TEST_CASE("methods select and return what a float64 oracle does") {
  for (const Case& c : cases()) {
    INFO(c.spec);
    const NamedMethod named = make_method(c.spec);
    double moved = 0;
    double draws = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      const RandomStep step({.rows = 40 + static_cast<std::int64_t>(seed) * 37,
                             .group = 3,
                             .peak = 0.5 * static_cast<double>(seed),
                             .seed = seed});
      const Selection selection = select_with(*named.method, step.view);
      const std::vector<float> output = named.method->attend(step.view, selection);
      for (int g = 0; g < 3; ++g) {
        const OracleHead oracle = c.oracle(step.view, g);
        const HeadSelection& head = selection.heads[static_cast<std::size_t>(g)];
        const double here = c.samples > 0 ? moved_draws(oracle, head) : 0;
        moved += here;
        draws += static_cast<double>(head.draws);
        if (c.samples == 0)
          CHECK(head.v_rows.size() == static_cast<std::int64_t>(oracle.weights.size()));
        if (here > 0) continue;  // another selection, another output
        for (int d = 0; d < 64; ++d) {
          CHECK(output[static_cast<std::size_t>(g * 64 + d)] ==
                Approx(oracle.output[static_cast<std::size_t>(d)]).margin(c.margin));
        }
      }
    }
    CHECK(moved <= 1e-3 * draws);
  }
}

TEST_CASE("operations done equal the closed form, by kind and phase") {
  for (const Case& c : cases()) {
    for (const std::int64_t rows : {1, 31, 64, 200, 321}) {
      INFO(c.spec << ", rows " << rows);
      const NamedMethod named = make_method(c.spec);
      const RandomStep step({.rows = rows, .group = 3, .peak = 2, .seed = 5});
      OpTally::current() = {};
      for (int g = 0; g < 3; ++g) c.oracle(step.view, g);
      OpTally done = OpTally::current();

      const Selection selection = select_with(*named.method, step.view);
      const std::vector<std::int64_t> contexts{rows};
      const Shape shape{.contexts = contexts,
                        .q_heads = 3,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .v_head_dim = 64,
                        .prompt_tokens = rows};
      const Work work = named.method->implementation().work(shape, selection.statistics, kLimits);
      OpTally expected;
      for (const Stage& stage : work.stages) {
        for (const OpCount& ops : stage.ops) expected.of(ops.op, ops.phase) += ops.count;
      }
      for (std::size_t op = 0; op < kOpNames.size(); ++op) {
        for (std::size_t phase = 0; phase < kPhaseNames.size(); ++phase) {
          INFO(kOpNames[op] << " in " << kPhaseNames[phase]);
          CHECK(expected.count[op][phase] == done.count[op][phase]);
        }
      }
    }
  }
}

TEST_CASE("rows counted by a selection are those its heads list, unions exact") {
  for (const Case& c : cases()) {
    INFO(c.spec);
    const NamedMethod named = make_method(c.spec);
    const RandomStep step({.rows = 500, .group = 4, .peak = 3, .seed = 9});
    const Selection selection = select_with(*named.method, step.view);
    std::vector<bool> read(500, false);
    double requests = 0;
    for (const HeadSelection& head : selection.heads) {
      for (const std::int64_t row : list_rows(head.v_rows)) {
        read[static_cast<std::size_t>(row)] = true;
        ++requests;
      }
      CHECK(static_cast<std::size_t>(head.v_rows.size()) == head.weights.size());
    }
    CHECK(selection.statistics.v_requests == requests);
    CHECK(selection.statistics.v_rows ==
          static_cast<double>(std::count(read.begin(), read.end(), true)));
    const Statistics& s = selection.statistics;
    CHECK(s.k_rows == (c.all_keys ? 500 : s.v_rows));
    CHECK(s.k_requests == (c.all_keys ? 4 * 500 : s.v_requests));
  }
}

TEST_CASE("float64 attention is the oracle's dense attention") {
  const RandomStep step(
      {.rows = 333, .group = 7, .head_dim = 80, .v_head_dim = 96, .peak = 2, .seed = 2});
  const Float64Attention truth = float64_attention(step.view);
  for (int g = 0; g < 7; ++g) {
    const OracleHead oracle = oracle_dense(step.view, g);
    for (int d = 0; d < 96; ++d) {
      CHECK(truth.outputs[static_cast<std::size_t>(g * 96 + d)] ==
            Approx(oracle.output[static_cast<std::size_t>(d)]).epsilon(1e-12).margin(1e-14));
    }
  }
}

TEST_CASE("sinks and logit caps enter the softmax") {
  RandomStep step({.rows = 50, .group = 2, .peak = 2, .seed = 3});
  const std::vector<float> sinks{1.5f, -0.5f};
  step.view.sink_logits = sinks;
  step.view.logit_cap = 5;
  const Float64Attention truth = float64_attention(step.view);
  for (int g = 0; g < 2; ++g) {
    double sum = std::exp(static_cast<double>(sinks[static_cast<std::size_t>(g)]));
    std::vector<double> weights;
    for (const double s : oracle_scores(step.view, g)) {
      sum += weights.emplace_back(std::exp(5 * std::tanh(s / 5)));
    }
    for (std::size_t row = 0; row < 50; ++row) {
      CHECK(truth.weights[static_cast<std::size_t>(g) * 50 + row] == Approx(weights[row] / sum));
    }
  }
  const NamedMethod dense = make_method("dense");
  const std::vector<float> output =
      dense.method->attend(step.view, select_with(*dense.method, step.view));
  for (std::size_t i = 0; i < output.size(); ++i) {
    CHECK(output[i] == Approx(truth.outputs[i]).margin(1e-5));
  }
}

}  // namespace
}  // namespace kvsim::testing
