// Thresholds of a step of a trace that is measured: those of a replay.

#include "kernels/cache_of_layer.h"
#include "kernels/eta/thresholds.h"
#include "kernels/measure/threshold_source.h"
#include "tests/catch.h"
#include "tests/sim/small_trace.h"

namespace kvsim {
namespace {

using testing::ContainsSubstring;
using testing::SmallTrace;

TEST_CASE("threshold source: what a traced step's layer has") {
  const SmallTrace trace{.probes = 40, .learned_by_second = true};
  const std::int64_t step = 2;
  StepView view;
  view.k.dim = trace.head_dim;
  view.group = 2;
  view.random.head = 2;
  for (const int index : {1, 3}) {
    const auto layer = std::make_shared<const TraceLayer>(trace.layer(index));
    const TracedStep traced{"a.h5", layer, step, {200, 303}, 100};  // a window
    view.layer_queries = layer->queries(step);
    const auto thresholds = [&](const std::string& spec) {
      return ThresholdSource(*make_method(spec).method, &traced).thresholds(view, 1, {});
    };
    const std::vector<float> calibrated =
        eta::calibrated_thresholds(cache_of_layer(*layer, 1, 300), 0.25);
    CHECK(thresholds("eta:thresholds=calibrated") == calibrated);
    StepView learning = view;
    learning.learned = &layer->learned;
    CHECK(thresholds("eta") == (index == 3 ? eta::learned_thresholds(learning) : calibrated));
  }
}

TEST_CASE("threshold source: random data have only bounds") {
  StepView view;
  view.group = 1;
  const std::vector<float> bounds{3, 1, 2, 0};
  const auto thresholds = [&](const std::string& spec) {
    return ThresholdSource(*make_method(spec).method).thresholds(view, 0, bounds);
  };
  CHECK(thresholds("eta:thresholds=union,density=0.5").size() == 1);
  CHECK_THROWS_WITH(thresholds("eta"), ContainsSubstring("thresholds=union does without"));
}

}  // namespace
}  // namespace kvsim
