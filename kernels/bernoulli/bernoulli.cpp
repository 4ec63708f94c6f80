// bernoulli-qk: Bernoulli scores, then dense softmax over all of V (SANTA §5).

#include "kernels/bernoulli/scoring.h"
#include "kernels/bernoulli/sizes.h"
#include "kernels/dense/softmax.h"
#include "kernels/method.h"
#include "kernels/split_plan.h"

namespace kvsim {
namespace {

/// One launch, split and merged as dense attention is. Every CTA draws the few query features
/// again rather than wait for another.
class BernoulliCost : public Implementation {
 public:
  explicit BernoulliCost(const KeyScoring& scoring) : scoring_(scoring) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    const SplitPlan plan = plan_splits(shape, limits, feature_split_unit(shape.head_dim));
    Work work;
    Stage& stream = work.add_stage("stream_kv", Boundary::kKernelLaunch);
    stream.launch = plan.launch;
    stream.imbalance = plan.imbalance;
    const double threads = threads_of(shape, limits);
    scoring_.wait_for_draws(stream, shape, plan.most_teams, threads, threads);
    scoring_.read_keys(stream, shape, s);
    stream.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
    read_query(stream, shape);
    scoring_.count_operations(stream, shape, s);
    count_weighted_values(stream, shape, s.v_requests);
    finish_output(work, shape, plan, {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
    return work;
  }

 private:
  /// Of a CTA.
  static double threads_of(const Shape& shape, const DeviceLimits& limits) {
    const bool large = limits.shared_bytes_per_sm >= kLargeSharedBytes;
    return 32 * device::bernoulli_warps(shape.head_dim, large);
  }

  KeyScoring scoring_;
};

class BernoulliQk : public Method {
 public:
  explicit BernoulliQk(const KeyScoring& scoring) : scoring_(scoring), cost_(scoring) {}

  bool scores_exactly() const override { return false; }
  Scores score(const StepView& view, const State*) const override { return scoring_.score(view); }

  Selection select(const StepView& view, const Scores& scores, State*) const override {
    Selection selection;
    for (int g = 0; g < view.group; ++g) {
      Softmax softmax = softmax_weights(scores.head(g), sink_logit(view, g));
      HeadSelection head;
      head.k_rows = head.v_rows = RowRanges::all(view.rows());
      head.weights = std::move(softmax.weights);
      head.scale = softmax.inverse_sum;
      head.draws = view.rows();
      selection.heads.push_back(std::move(head));
    }
    scoring_.note_features(view, selection.heads);
    selection.finish();
    return selection;
  }

  Bounds bounds(const Shape& shape) const override {
    const double n = shape.total_context();
    Statistics rows;
    rows.k_rows = rows.v_rows = n * shape.kv_heads;
    rows.k_requests = rows.v_requests = rows.draws = n * shape.q_heads;
    Bounds bounds{rows, rows};
    scoring_.add_bounds(shape, bounds);
    return bounds;
  }

  const Implementation& implementation() const override { return cost_; }

 private:
  KeyScoring scoring_;
  BernoulliCost cost_;
};

KVSIM_REGISTER_METHOD(
    "bernoulli-qk",
    MethodInfo{.summary = "scores from randomly drawn query features (unbiased), all V rows",
               .source = "SANTA paper, arXiv 2605.01910 §5",
               .parameters = bernoulli_parameters(),
               .make = [](const Parameters& p) {
                 return std::make_unique<BernoulliQk>(bernoulli_scoring(p));
               }});

}  // namespace
}  // namespace kvsim
