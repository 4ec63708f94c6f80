// Quest (arXiv 2406.10774): each query head attends to the pages of keys whose box, the largest and
// smallest element of every coordinate, reaches furthest along the query (biased).

#include <algorithm>

#include "core/error.h"
#include "kernels/dense/softmax.h"
#include "kernels/method.h"
#include "kernels/quest/cost.h"
#include "kernels/quest/pages.h"
#include "kernels/quest/rule.h"

namespace kvsim::quest {
namespace {

PageRule rule_of(const Parameters& p) {
  const PageRule rule{p.integer("page", 1, 4096), p.integer("tokens", 1, std::int64_t{1} << 24),
                      p.choice("mode") == "kernels" ? Mode::kKernels : Mode::kEvaluation};
  // The last page is one of them, and there must be one to choose.
  if (rule.mode == Mode::kKernels && rule.tokens < 2 * rule.page) {
    fail<UsageError>("{}: tokens={}, expected at least two pages of {} with mode=kernels",
                     p.method(), rule.tokens, rule.page);
  }
  return rule;
}

class QuestState : public State {
 public:
  explicit QuestState(std::int64_t page) : records(page) {}
  std::int64_t bytes() const override { return records.bytes(); }

  PageRecords records;
};

class Quest : public Method {
 public:
  explicit Quest(const Parameters& parameters)
      : rule_(rule_of(parameters)),
        cost_(make_cost(parameters.choice("implementation") == "published", rule_)) {}

  std::unique_ptr<State> prepare(const CacheView& prompt) const override {
    auto state = std::make_unique<QuestState>(rule_.page);
    append(*state, prompt);
    return state;
  }
  void append(State& state, const CacheView& grown) const override {
    static_cast<QuestState&>(state).records.extend(grown.k);
  }

  Selection select(const StepView& view, const Scores& scores, State* state) const override;
  Bounds bounds(const Shape& shape) const override;

  const Implementation& implementation() const override { return *cost_; }

 private:
  std::vector<float> page_scores(const StepView& view, const QuestState* state,
                                 std::int64_t count) const;
  HeadSelection take(const StepView& view, std::span<const float> scores,
                     std::span<const float> page_scores, const PagePlan& plan, float sink) const;
  void add_bounds(std::int64_t context, const Shape& shape, Bounds& bounds) const;

  PageRule rule_;
  std::unique_ptr<Implementation> cost_;
};

std::vector<float> Quest::page_scores(const StepView& view, const QuestState* state,
                                      std::int64_t count) const {
  if (count == 0) return {};
  if (state != nullptr && state->records.tokens() == view.rows()) {
    return state->records.scores(view, count);
  }
  PageRecords records(rule_.page);  // a window begins its pages anew
  records.extend(view.k);
  return records.scores(view, count);
}

HeadSelection Quest::take(const StepView& view, std::span<const float> scores,
                          std::span<const float> page_scores, const PagePlan& plan,
                          float sink) const {
  HeadSelection head;
  head.drawn_tiles = best_pages(page_scores, plan.kept);
  for (std::int64_t page = plan.scored; page < plan.pages; ++page) {
    head.drawn_tiles.push_back(static_cast<std::int32_t>(page));
  }
  for (const std::int64_t page : head.drawn_tiles) {
    head.v_rows.append(page * rule_.page, std::min((page + 1) * rule_.page, view.rows()));
  }
  std::vector<float> logits;
  for (const Range& range : head.v_rows.ranges()) {
    logits.insert(logits.end(), scores.begin() + range.begin, scores.begin() + range.end);
  }
  Softmax softmax = softmax_weights(logits, sink);
  head.k_rows = head.v_rows;
  head.k_features = RowRanges::all(view.k.dim);
  head.weights = std::move(softmax.weights);
  head.scale = softmax.inverse_sum;
  head.draws = head.v_rows.size();
  return head;
}

Selection Quest::select(const StepView& view, const Scores& scores, State* state) const {
  const PagePlan plan = plan_pages(view.rows(), rule_);
  const std::vector<float> all =
      page_scores(view, static_cast<const QuestState*>(state), plan.scored);
  const auto count = static_cast<std::size_t>(plan.scored);
  Selection selection;
  for (int g = 0; g < view.group; ++g) {
    const auto own = std::span(all).subspan(static_cast<std::size_t>(g) * count, count);
    selection.heads.push_back(take(view, scores.head(g), own, plan, sink_logit(view, g)));
  }
  selection.finish();
  const auto scored = static_cast<double>(plan.scored);
  selection.statistics.state_bytes_read = scored * static_cast<double>(record_bytes(view.k.dim));
  selection.statistics.routing_vectors = 2 * scored;
  return selection;
}

/// Adds one sequence. A group's heads take the same pages, or none twice; where the last page
/// competes, it may be one of a head's or not.
void Quest::add_bounds(std::int64_t context, const Shape& shape, Bounds& bounds) const {
  const PagePlan plan = plan_pages(context, rule_);
  const std::int64_t last = context - (plan.pages - 1) * rule_.page;  // rows of the last page
  const auto rows = [&](std::int64_t pages, bool with_last) {
    return static_cast<double>(with_last ? (pages - 1) * rule_.page + last : pages * rule_.page);
  };
  const std::int64_t most =
      std::min(plan.pages, plan.always() + plan.kept * static_cast<std::int64_t>(shape.group()));
  const bool surely_last = plan.always() > 0;
  const auto add = [&](double head_rows, double group_rows, std::int64_t pages, Statistics& sum) {
    Statistics s;
    s.head_tiles = static_cast<double>(plan.taken()) * shape.q_heads;
    s.group_tiles = static_cast<double>(pages) * shape.kv_heads;
    s.v_requests = s.k_requests = s.draws = head_rows * shape.q_heads;
    s.v_rows = s.k_rows = group_rows * shape.kv_heads;
    const double scored = static_cast<double>(plan.scored) * shape.kv_heads;
    s.state_bytes_read = scored * static_cast<double>(record_bytes(shape.head_dim));
    s.routing_vectors = 2 * scored;
    sum += s;
  };
  const double least_rows = rows(plan.taken(), true);
  add(least_rows, least_rows, plan.taken(), bounds.low);
  add(rows(plan.taken(), surely_last), rows(most, surely_last || most == plan.pages), most,
      bounds.high);
}

Method::Bounds Quest::bounds(const Shape& shape) const {
  Bounds bounds{all_key_features(shape), all_key_features(shape)};
  for (const std::int64_t context : shape.contexts) add_bounds(context, shape, bounds);
  return bounds;
}

KVSIM_REGISTER_METHOD(
    "quest",
    MethodInfo{
        .summary = "the pages whose keys could score highest, per query head (biased)",
        .source = "Quest (arXiv 2406.10774), mit-han-lab/Quest",
        .parameters = {{"page", "16", "tokens", "of a page"},
                       {"tokens", "512", "tokens", "budget of a query head, in whole pages"},
                       {"mode", "kernels", "kernels|evaluation",
                        "released rules; kernels: the last page is always attended to; evaluation: "
                        "it competes, at least 3 pages"},
                       {"implementation", "ours", "ours|published",
                        "ours: one launch (planned); published: append, estimate, top-k, "
                        "attention, merge"}},
        .make = [](const Parameters& p) { return std::make_unique<Quest>(p); }});

}  // namespace
}  // namespace kvsim::quest
