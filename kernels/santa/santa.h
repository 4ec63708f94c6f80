#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bernoulli/scoring.h"
#include "kernels/method.h"
#include "kernels/santa/cost.h"
#include "kernels/santa/distribution.h"

namespace kvsim {

/// What all SANTA methods share: scores of all keys (exact or Bernoulli), V rows drawn per query
/// head, output = (1/S) Σ counts * V (SANTA eq. 4). A sampler is one function from scores to drawn
/// rows.
class SantaMethod : public Method {
 public:
  /// `scoring` is scoring_of(parameters) for every sampler.
  SantaMethod(SantaCostModel model, const KeyScoring& scoring);

  bool scores_exactly() const override { return model_.scoring.exact(); }
  Scores score(const StepView& view, const State*) const override {
    return model_.scoring.score(view);
  }
  Selection select(const StepView& view, const Scores& scores, State*) const override;
  Bounds bounds(const Shape& shape) const override;
  const Implementation& implementation() const override { return *cost_; }

 protected:
  /// Draws for query head g of the group.
  struct Draws {
    std::vector<std::int64_t> rows;         // ascending, repeats kept
    std::vector<std::int32_t> drawn_tiles;  // ascending
    double mass_of_rows = 1;                // 1 - the sink's share
  };
  virtual Draws draw(const StepView& view, std::span<const float> scores, int g) const = 0;

  std::uint32_t samples() const { return model_.samples; }

 private:
  SantaCostModel model_;
  std::unique_ptr<Implementation> cost_;
};

/// Share of the softmax that belongs to rows, not to the head's sink logit.
double mass_of_rows(const StepView& view, const HeadDistribution& head, int g);

/// The parameters every SANTA method has, before its own: those of scoring_of() among them.
std::vector<Parameter> santa_parameters();
/// Their `implementation`.
SantaCostModel::Launches launches_of(const Parameters& parameters);

inline constexpr const char* kSantaPaper = "SANTA paper, arXiv 2605.01910";

}  // namespace kvsim
