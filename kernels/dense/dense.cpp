// Dense attention: every row of K and V (the baseline all methods are measured against).

#include <algorithm>
#include <cmath>

#include "core/exact_math.h"
#include "kernels/dense/cost.h"
#include "kernels/dense/softmax.h"
#include "kernels/method.h"

namespace kvsim {
namespace {

class Dense : public Method {
 public:
  explicit Dense(const Parameters& parameters)
      : cost_(make_dense_cost(parameters.choice("implementation"))) {}

  Selection select(const StepView& view, const Scores& scores, State*) const override {
    Selection selection;
    for (int g = 0; g < view.group; ++g) {
      const Softmax softmax = softmax_weights(scores.head(g), sink_logit(view, g));
      HeadSelection head;
      head.k_rows = head.v_rows = RowRanges::all(view.rows());
      head.k_features = RowRanges::all(view.k.dim);
      head.weights = softmax.weights;
      head.scale = softmax.inverse_sum;
      head.draws = view.rows();
      selection.heads.push_back(std::move(head));
    }
    selection.finish();
    return selection;
  }

  Bounds bounds(const Shape& shape) const override {
    const double n = shape.total_context();
    Statistics all = all_key_features(shape);
    all.k_rows = all.v_rows = n * shape.kv_heads;
    all.k_requests = all.v_requests = all.draws = n * shape.q_heads;
    return {all, all};
  }

  const Implementation& implementation() const override { return *cost_; }

 private:
  std::unique_ptr<Implementation> cost_;
};

KVSIM_REGISTER_METHOD(
    "dense",
    MethodInfo{.summary = "all rows, softmax-weighted",
               .source = "FlashDecoding (Dao et al. 2023), split over tokens",
               .parameters = {{"implementation", "ours", "ours|published",
                               "ours: one launch and an exchange; published: split and combine"}},
               .make = [](const Parameters& p) { return std::make_unique<Dense>(p); }});

}  // namespace
}  // namespace kvsim
