#pragma once

#include <cstdint>
#include <memory>

#include "kernels/bernoulli/scoring.h"
#include "kernels/implementation.h"

namespace kvsim {

/// What santa-flash spends.
struct FlashCostModel {
  enum class RandomWords { kPerHead, kPerGroup, kPerTile };

  std::uint32_t samples = 2048;
  int tile = 0;       // 0 = budget_tile(prompt_tokens)
  bool even = false;  // max(1, S / tiles) in every tile, not S in all
  RandomWords random_words = RandomWords::kPerHead;
  bool published = false;  // the released kernels' two launches, not our one
  KeyScoring scoring = {};
};

/// Tokens of a tile that draws by itself.
int tile_of(const FlashCostModel& model, const Shape& shape);
/// Samples of one query head that sees `context` tokens.
double draws_of(const FlashCostModel& model, const Shape& shape, std::int64_t context);

std::unique_ptr<Implementation> make_flash_cost(const FlashCostModel& model);

}  // namespace kvsim
