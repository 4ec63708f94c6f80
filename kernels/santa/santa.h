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

/// What draws share a random number: all of a query head's, all of its group's (heads then draw
/// more rows in common, and the group reads fewer), or those of a head in one tile.
enum class Offsets { kPerHead, kShared, kPerTile };

/// What all SANTA methods share: scores of all keys (exact or Bernoulli), V rows drawn per query
/// head, output = (1/S) Σ counts * V (SANTA eq. 4). A sampler is one function from scores to drawn
/// rows.
class SantaMethod : public Method {
 public:
  SantaMethod(std::uint32_t samples, Offsets offsets, const KeyScoring& scoring,
              std::unique_ptr<Implementation> cost);

  bool scores_exactly() const override { return scoring_.exact(); }
  Scores score(const StepView& view, const State*) const override { return scoring_.score(view); }
  Selection select(const StepView& view, const Scores& scores, State*) const override;
  const Implementation& implementation() const override { return *cost_; }

 protected:
  /// Draws for query head g of the group.
  struct Draws {
    std::vector<std::int64_t> rows;         // ascending, repeats kept
    std::vector<float> weights;             // of each of them; empty: 1/S
    std::vector<std::int32_t> drawn_tiles;  // ascending
    double mass_of_rows = 1;                // 1 - the sink's share
  };
  virtual Draws draw(const StepView& view, std::span<const float> scores, int g) const = 0;

  std::uint32_t samples() const { return samples_; }
  Offsets offsets() const { return offsets_; }
  /// The random words of a query head, or of its group.
  RandomStream random_of(const StepView& view, int g, Purpose purpose) const {
    return view.random_of(offsets_ == Offsets::kShared ? 0 : g, purpose);
  }
  /// Offsets of samples inside tiles: one per tile, or one for all.
  std::vector<std::uint32_t> tile_offsets(const StepView& view, int g, int tiles) const;

 private:
  std::uint32_t samples_;
  Offsets offsets_;
  KeyScoring scoring_;
  std::unique_ptr<Implementation> cost_;
};

/// Samplers that know the head's whole mass before they draw.
class WholeHeadSanta : public SantaMethod {
 public:
  WholeHeadSanta(const SantaCostModel& model, Offsets offsets);
  Bounds bounds(const Shape& shape) const override;

 private:
  SantaCostModel model_;
};

/// Share of the softmax that belongs to rows, not to the head's sink logit.
double mass_of_rows(const StepView& view, const HeadDistribution& head, int g);

/// The parameters every SANTA method has, before its own, those of scoring_of() among them;
/// `per_tile`: whether its offsets may be per tile.
std::vector<Parameter> santa_parameters(bool per_tile);
Parameter offsets_parameter(bool per_tile);
/// Their `implementation` and `offsets`.
SantaCostModel::Launches launches_of(const Parameters& parameters);
Offsets offsets_of(const Parameters& parameters);

inline constexpr const char* kSantaPaper = "SANTA paper, arXiv 2605.01910";

}  // namespace kvsim
