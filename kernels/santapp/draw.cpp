#include "kernels/santapp/draw.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/santapp/rule.h"

namespace kvsim::santapp {

Draw draw_teams(std::span<const float> weights, std::int64_t count, const RandomStream& noise) {
  const auto teams = static_cast<std::int64_t>(weights.size());
  Draw draw;
  draw.threshold = -std::numeric_limits<float>::infinity();
  draw.teams.resize(weights.size());
  std::iota(draw.teams.begin(), draw.teams.end(), 0);
  if (count < teams) {
    std::vector<float> priorities(weights.size());
    RandomWords words{};
    for (std::size_t t = 0; t < weights.size(); ++t) {
      if (t % 4 == 0) words = noise.block(static_cast<std::uint32_t>(t / 4));
      priorities[t] = weights[t] + gumbel(words.word[t % 4]);
    }
    const auto priority = [&](std::int32_t t) { return priorities[static_cast<std::size_t>(t)]; };
    const auto first_out = draw.teams.begin() + count;
    std::ranges::nth_element(draw.teams, first_out, [&](std::int32_t a, std::int32_t b) {
      return goes_before(priority(a), a, priority(b), b);
    });
    draw.threshold = priority(*first_out);
    draw.teams.erase(first_out, draw.teams.end());
    std::ranges::sort(draw.teams);
  }
  for (const std::int32_t t : draw.teams) {
    draw.log_inclusion.push_back(
        log_inclusion(weights[static_cast<std::size_t>(t)] - draw.threshold));
  }
  return draw;
}

std::vector<std::int32_t> draw_members(std::span<const std::int32_t> keys, std::int64_t count,
                                       const RandomStream& words, std::uint32_t first) {
  std::vector<std::int32_t> drawn(keys.begin(), keys.end());
  if (count >= static_cast<std::int64_t>(drawn.size())) return drawn;
  // The first steps of a shuffle.
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const std::uint64_t word = words.word(first + static_cast<std::uint32_t>(i));
    std::swap(drawn[i], drawn[i + (word * (drawn.size() - i) >> 32)]);
  }
  drawn.resize(static_cast<std::size_t>(count));
  std::ranges::sort(drawn);
  return drawn;
}

}  // namespace kvsim::santapp
