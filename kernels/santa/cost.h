#pragma once

#include <cstdint>
#include <memory>

#include "kernels/implementation.h"

namespace kvsim {

/// What a sampler spends besides scores and values; the launches are the same for all.
struct SantaCostModel {
  std::uint32_t samples = 128;
  int tile = 256;  // 0 = budget_tile(prompt_tokens)
  double random_words_per_head = 0;
  double random_words_per_tile = 0;
  double threshold_multiplies = 0;  // per head, to scale random words to the head's mass
  bool budgets = false;    // thresholds are per tile, after samples were dealt out to tiles
  bool published = false;  // the released kernels' five launches
};

std::unique_ptr<Implementation> make_santa_cost(const SantaCostModel& model);

}  // namespace kvsim
