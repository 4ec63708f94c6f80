#pragma once

#include <string>
#include <vector>

#include "kernels/bernoulli/rule.h"
#include "kernels/method.h"

namespace kvsim {

/// How K lies in memory: [tokens][head_dim] of a KV head, where a feature is skipped only together
/// with all others of its sector, or a copy [head_dim][tokens], where it saves its bytes.
enum class KeyLayout { kTokenMajor, kFeatureMajor };

/// Queries that keys are multiplied by in place of a step's own, and what the sums are.
struct WeightedQueries {
  std::vector<float> values;  // [group, head_dim]
  std::vector<float> scales;  // [group]
};

/// How a method scores keys: exactly, or by Bernoulli qKᵀ (SANTA paper, arXiv 2605.01910, §5). A
/// method that holds one scores, counts features and costs its first stage through it.
class KeyScoring {
 public:
  KeyScoring() = default;  // exact
  KeyScoring(const QueryDraws& query, KeyLayout layout)
      : exact_(false), query_(query), layout_(layout) {}

  bool exact() const { return exact_; }
  /// Logits of a group, after scale and cap.
  Scores score(const StepView& view) const;
  /// What Bernoulli scores are products with. Needs the view's queries.
  WeightedQueries queries(const StepView& view) const;
  /// Which features of K the heads [group] read: depends on queries and random words alone, so
  /// scores may have come from elsewhere. Bernoulli needs the view's queries.
  void note_features(const StepView& view, std::vector<HeadSelection>& heads) const;
  /// Adds the least and the most features that a step can read: none for queries of zeros.
  void add_bounds(const Shape& shape, Method::Bounds& bounds) const;

  /// K's read by the stage that scores.
  void read_keys(Stage& stage, const Shape& shape, const Statistics& s) const;
  /// What a CTA waits for before it reads keys of its `teams`: their queries, and what is drawn of
  /// them, by `threads` of the first team's, by `later_threads` of the others'.
  void wait_for_draws(Stage& stage, const Shape& shape, double teams, double threads,
                      double later_threads) const;
  /// Operations of drawing queries (phase select) and of scoring.
  void count_operations(Stage& stage, const Shape& shape, const Statistics& s) const;

 private:
  void read_token_major(Stage& stage, const Shape& shape, const Statistics& s) const;
  void count_draws(Stage& stage, const Shape& shape, const Statistics& s) const;

  bool exact_ = true;
  QueryDraws query_;
  KeyLayout layout_ = KeyLayout::kTokenMajor;
};

/// `draws`, `drawn`, `query` and `k_layout`, and the scoring they say.
std::vector<Parameter> bernoulli_parameters();
QueryDraws query_draws(const Parameters& parameters);
KeyLayout key_layout(const Parameters& parameters);
/// Why no kernel of ours takes k_layout=token.
std::string token_major_refusal();
KeyScoring bernoulli_scoring(const Parameters& parameters);

/// The same after `scores=exact|bernoulli`. Throws UsageError where one of them is given though
/// scores are exact.
std::vector<Parameter> scoring_parameters();
KeyScoring scoring_of(const Parameters& parameters);

}  // namespace kvsim
