// Top-k: the k largest logits of each query head, softmax renormalised over them (biased).
// Baseline of the SANTA paper, appendix H.

#include <algorithm>
#include <numeric>

#include "kernels/dense/softmax.h"
#include "kernels/method.h"
#include "kernels/topk/cost.h"

namespace kvsim {
namespace {

/// The `keys` rows with the largest scores, ties to the lower row, ascending.
std::vector<std::int64_t> largest_rows(std::span<const float> scores, std::int64_t keys) {
  std::vector<std::int64_t> rows(scores.size());
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  const auto kept = rows.begin() + std::min(keys, static_cast<std::int64_t>(rows.size()));
  const auto before = [&](std::int64_t a, std::int64_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::nth_element(rows.begin(), kept, rows.end(), before);
  rows.erase(kept, rows.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

class TopK : public Method {
 public:
  explicit TopK(const Parameters& parameters)
      : keys_(parameters.integer("keys", 1, std::int64_t{1} << 24)),
        cost_(make_topk_cost(parameters.choice("implementation"))) {}

  Selection select(const StepView& view, const Scores& scores, State*) const override {
    Selection selection;
    for (int g = 0; g < view.group; ++g) {
      const std::vector<std::int64_t> rows = largest_rows(scores.head(g), keys_);
      std::vector<float> kept;
      for (const std::int64_t row : rows)
        kept.push_back(scores.head(g)[static_cast<std::size_t>(row)]);
      Softmax softmax = softmax_weights(kept, sink_logit(view, g));
      HeadSelection head;
      head.k_rows = RowRanges::all(view.rows());
      head.k_features = RowRanges::all(view.k.dim);
      head.v_rows = RowRanges::of(rows);
      head.weights = std::move(softmax.weights);
      head.scale = softmax.inverse_sum;
      head.draws = static_cast<std::int64_t>(rows.size());
      selection.heads.push_back(std::move(head));
    }
    selection.finish();
    return selection;
  }

  Bounds bounds(const Shape& shape) const override {
    Bounds bounds{all_key_features(shape), all_key_features(shape)};
    for (const std::int64_t context : shape.contexts) {
      const auto n = static_cast<double>(context);
      const double kept = std::min(n, static_cast<double>(keys_));
      Statistics low;
      low.k_rows = n * shape.kv_heads;
      low.k_requests = n * shape.q_heads;
      low.v_rows = kept * shape.kv_heads;
      low.v_requests = low.draws = kept * shape.q_heads;
      Statistics high = low;
      high.v_rows = std::min(n, kept * shape.group()) * shape.kv_heads;
      bounds.low += low;
      bounds.high += high;
    }
    return bounds;
  }

  const Implementation& implementation() const override { return *cost_; }

 private:
  std::int64_t keys_;
  std::unique_ptr<Implementation> cost_;
};

KVSIM_REGISTER_METHOD("topk",
                      MethodInfo{
                          .summary = "the k largest logits per query head, renormalised (biased)",
                          .source = "SANTA paper (arXiv 2605.01910) appendix H baseline",
                          .parameters = {{"keys", "128", "rows", "rows kept per query head"},
                                         {"implementation", "ours", "ours|published",
                                          "ours: one launch; published: scores, select, gather"}},
                          .make = [](const Parameters& p) { return std::make_unique<TopK>(p); }});

}  // namespace
}  // namespace kvsim
