#pragma once

#include <cstdint>
#include <memory>

#include "kernels/bernoulli/scoring.h"
#include "kernels/implementation.h"

namespace kvsim {

/// What a sampler spends besides scores and values; the launches are the same for all.
struct SantaCostModel {
  enum class Budgets { kNone, kLargestRemainder, kSystematic };
  /// One launch; two, with all prefix sums in global memory between them; the released kernels'
  /// five.
  enum class Launches { kOurs, kFallback, kPublished };

  std::uint32_t samples = 128;
  int tile = 256;  // 0 = budget_tile(prompt_tokens)
  double random_words_per_head = 0;
  double random_words_per_tile = 0;
  bool shared_random_words = false;  // those of a head serve its whole group
  double threshold_multiplies = 0;   // per head, to scale random words to the head's mass
  double threshold_adds = 0;         // per head, to step from stratum to stratum
  bool independent = false;          // samples in no order: any may lie in any tile
  Budgets budgets = Budgets::kNone;  // how samples are dealt out to tiles before they are drawn
  Launches launches = Launches::kOurs;
  KeyScoring scoring = {};
};

/// Tokens of a tile whose draws or budget are counted.
int tile_of(const SantaCostModel& model, const Shape& shape);

std::unique_ptr<Implementation> make_santa_cost(const SantaCostModel& model);

}  // namespace kvsim
