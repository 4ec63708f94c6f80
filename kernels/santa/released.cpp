#include "kernels/santa/released.h"

#include <algorithm>
#include <cmath>

#include "core/exact_math.h"
#include "core/float16.h"
#include "kernels/santa/budgets.h"

namespace kvsim {
namespace {

constexpr float kJitter = 1e-7f;

struct Tile {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  float highest = 0;
  float sum = 0;     // of unrounded exponentials (fp32)
  float weight = 0;  // e^(m_t - m) * sum
};

/// Pass 1: tile maxima, sums, and the stash rounded to bfloat16.
std::vector<Tile> score_tiles(std::span<const float> scores, int width, std::vector<float>& stash) {
  std::vector<Tile> tiles;
  const auto rows = static_cast<std::int64_t>(scores.size());
  for (std::int64_t begin = 0; begin < rows; begin += width) {
    Tile tile{.begin = begin, .end = std::min(begin + width, rows)};
    tile.highest = *std::max_element(scores.begin() + begin, scores.begin() + tile.end);
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(tile.end); ++i) {
      const float weight = exp_nonpositive(scores[i] - tile.highest);
      tile.sum += weight;
      stash[i] = bf16_to_float(float_to_bf16(weight));
    }
    tiles.push_back(tile);
  }
  return tiles;
}

/// Tiles' masses relative to the head's largest weight; returns their sum.
float weigh_tiles(std::vector<Tile>& tiles) {
  float highest = tiles.front().highest;
  for (const Tile& tile : tiles) highest = std::max(highest, tile.highest);
  float total = 0;
  for (Tile& tile : tiles) {
    tile.weight = exp_nonpositive(tile.highest - highest) * tile.sum;
    total += tile.weight;
  }
  return total;
}

/// The budget kernel: floors, then one more for the first R entries of the faulty sort.
std::vector<std::uint32_t> released_budgets(std::vector<Tile>& tiles, std::uint32_t samples,
                                            std::uint32_t head) {
  const float total = weigh_tiles(tiles);
  std::vector<std::uint32_t> budgets(tiles.size());
  std::vector<float> remainders(tiles.size());
  std::int64_t dealt = 0;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const float share = static_cast<float>(samples) * tiles[t].weight / total;
    budgets[t] = static_cast<std::uint32_t>(share);
    dealt += budgets[t];
    remainders[t] = share - static_cast<float>(budgets[t]) +
                    kJitter * released_offset(kReleasedSeed, head, static_cast<std::uint32_t>(t));
  }
  const std::int64_t left =
      std::clamp<std::int64_t>(samples - dealt, 0, static_cast<std::int64_t>(tiles.size()));
  const std::vector<int> order = released_remainder_order(remainders);
  for (std::int64_t i = 0; i < left; ++i) {
    const int winner = order[static_cast<std::size_t>(i)];
    if (winner >= 0) ++budgets[static_cast<std::size_t>(winner)];
  }
  return budgets;
}

/// Rows of one tile: count(j) = floor(a0 + cum(j)) - floor(a0 + cum(j - 1)).
void draw_tile(const Tile& tile, std::uint32_t budget, float offset, std::span<const float> stash,
               std::vector<std::int64_t>& rows) {
  const float per_unit = static_cast<float>(budget) / tile.sum;
  float cumulative = 0;
  float before = std::floor(offset);
  for (std::int64_t row = tile.begin; row < tile.end; ++row) {
    cumulative += stash[static_cast<std::size_t>(row)] * per_unit;
    const float after = std::floor(offset + cumulative);
    const float count = std::clamp(after - before, 0.0f, 32767.0f);
    before = after;
    rows.insert(rows.end(), static_cast<std::size_t>(count), row);
  }
}

}  // namespace

float released_offset(std::uint64_t seed, std::uint32_t head, std::uint32_t tile) {
  std::uint64_t x = seed ^ ((std::uint64_t{head} << 32) ^ tile);
  x += 0x9e3779b97f4a7c15ull;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-53);
}

ReleasedSelection released_prop(std::span<const float> scores, int tile, std::uint32_t samples,
                                std::uint32_t head) {
  std::vector<float> stash(scores.size());
  std::vector<Tile> tiles = score_tiles(scores, tile, stash);
  ReleasedSelection selection;
  selection.budgets = released_budgets(tiles, samples, head);
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    if (selection.budgets[t] == 0) continue;
    draw_tile(tiles[t], selection.budgets[t],
              released_offset(kReleasedSeed, head, static_cast<std::uint32_t>(t)), stash,
              selection.rows);
  }
  return selection;
}

ReleasedSelection released_flash(std::span<const float> scores, int tile, std::uint32_t samples,
                                 std::uint32_t head) {
  std::vector<float> stash(scores.size());
  std::vector<Tile> tiles = score_tiles(scores, tile, stash);
  const float total = weigh_tiles(tiles);
  const auto budget = std::max(1u, samples / static_cast<std::uint32_t>(tiles.size()));
  ReleasedSelection selection;
  selection.budgets.assign(tiles.size(), budget);
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    draw_tile(tiles[t], budget, released_offset(kReleasedSeed, head, static_cast<std::uint32_t>(t)),
              stash, selection.rows);
    // The kernel divides by S_t, however many rows its tile drew.
    selection.weights.resize(selection.rows.size(),
                             tiles[t].weight / (total * static_cast<float>(budget)));
  }
  return selection;
}

}  // namespace kvsim
