// The method to copy (docs/adding.md): attends to the rows whose keys have the largest norms. Not a
// published method; it is here because it shows every part a method can have, and tests build it.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/dense/softmax.h"
#include "kernels/method.h"
#include "kernels/split_plan.h"

namespace kvsim {
namespace {

// 1. Rule: what is selected, in terms of numbers the reference and a kernel would share.

/// The `keep` rows with the largest norms, ties to the lower row, ascending.
std::vector<std::int64_t> largest_norms(std::span<const float> norms, std::int64_t keep) {
  std::vector<std::int64_t> rows(norms.size());
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  const auto kept = rows.begin() + std::min(keep, static_cast<std::int64_t>(rows.size()));
  std::partial_sort(rows.begin(), kept, rows.end(), [&](std::int64_t a, std::int64_t b) {
    const float x = norms[static_cast<std::size_t>(a)];
    const float y = norms[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  });
  rows.erase(kept, rows.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

// 2. State: kept per KV head between steps; most methods have none.

class KeyNorms : public State {
 public:
  /// Adds the rows that `cache` has and the state has not.
  void extend(const CacheView& cache) {
    std::vector<float> row(static_cast<std::size_t>(cache.k.dim));
    for (auto i = static_cast<std::int64_t>(norms_.size()); i < cache.k.rows; ++i) {
      load_rows(cache.k, i, i + 1, cache.k.dim, row.data());
      norms_.push_back(std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0f)));
    }
  }
  std::span<const float> norms() const { return norms_; }
  std::int64_t bytes() const override { return 4 * static_cast<std::int64_t>(norms_.size()); }

 private:
  std::vector<float> norms_;
};

// 3. Cost: launches, bytes and operations in closed form.

class SkeletonCost : public Implementation {
 public:
  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    const SplitPlan plan = plan_splits(shape, limits, {64, 1});
    Work work;
    Stage& gather = work.add_stage("gather_kv", Boundary::kKernelLaunch);
    gather.launch = plan.launch;
    gather.dependent_trips = 1;  // norms, then rows
    gather.read(Tensor::kMetadata, 1, s.state_bytes_read, s.state_bytes_read);
    gather.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
    gather.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
    read_query(gather, shape);
    count_scores(gather, shape, s.k_requests);
    count_weighted_values(gather, shape, s.v_requests);
    finish_output(work, shape, plan, {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
    return work;
  }
};

// 4. Reference: ties the parts together.

class Skeleton : public Method {
 public:
  explicit Skeleton(std::int64_t keep) : keep_(keep) {}

  std::unique_ptr<State> prepare(const CacheView& prompt) const override {
    auto state = std::make_unique<KeyNorms>();
    state->extend(prompt);
    return state;
  }
  void append(State& state, const CacheView& grown) const override {
    static_cast<KeyNorms&>(state).extend(grown);
  }

  Selection select(const StepView& view, const Scores& scores, State* state) const override {
    const std::span<const float> norms = static_cast<const KeyNorms&>(*state).norms();
    // A window hides the oldest rows of the cache from the step.
    const std::span<const float> seen = norms.last(static_cast<std::size_t>(view.rows()));
    const std::vector<std::int64_t> rows = largest_norms(seen, keep_);
    Selection selection;
    for (int g = 0; g < view.group; ++g) {
      std::vector<float> kept;
      for (const std::int64_t row : rows)
        kept.push_back(scores.head(g)[static_cast<std::size_t>(row)]);
      const Softmax softmax = softmax_weights(kept, sink_logit(view, g));
      HeadSelection head;
      head.k_rows = head.v_rows = RowRanges::of(rows);
      head.k_features = RowRanges::all(view.k.dim);
      head.weights = softmax.weights;
      head.scale = softmax.inverse_sum;
      head.draws = static_cast<std::int64_t>(rows.size());
      selection.heads.push_back(std::move(head));
    }
    selection.finish();
    const auto read = static_cast<double>(seen.size());
    selection.statistics.state_bytes_read = 4 * read;
    selection.statistics.routing_vectors = read / view.k.dim;
    return selection;
  }

  Bounds bounds(const Shape& shape) const override {
    Statistics exact = all_key_features(shape);
    for (const std::int64_t context : shape.contexts) {
      const double kept = std::min(static_cast<double>(context), static_cast<double>(keep_));
      exact.k_rows += kept * shape.kv_heads;
      exact.k_requests += kept * shape.q_heads;
      const double norms = static_cast<double>(context) * shape.kv_heads;
      exact.state_bytes_read += 4 * norms;
      exact.routing_vectors += norms / shape.head_dim;
    }
    exact.v_rows = exact.k_rows;
    exact.v_requests = exact.draws = exact.k_requests;
    return {exact, exact};
  }

  const Implementation& implementation() const override { return cost_; }

 private:
  std::int64_t keep_;
  SkeletonCost cost_;
};

// 5. Registration: the one line that makes the command line know it.

KVSIM_REGISTER_METHOD(
    "skeleton",
    MethodInfo{.summary = "the rows whose keys have the largest norms (to copy, not to use)",
               .source = "docs/adding.md",
               .parameters = {{"keep", "64", "rows", "rows attended to"}},
               .make =
                   [](const Parameters& p) {
                     return std::make_unique<Skeleton>(p.integer("keep", 1, std::int64_t{1} << 24));
                   },
               .hidden = true});

}  // namespace
}  // namespace kvsim
