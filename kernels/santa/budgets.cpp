#include "kernels/santa/budgets.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

namespace kvsim {

std::vector<std::uint32_t> largest_remainder_budgets(const HeadDistribution& head,
                                                     std::uint32_t samples) {
  const auto tiles = static_cast<std::size_t>(head.tiles());
  std::vector<std::uint32_t> budgets(tiles);
  std::vector<std::uint64_t> remainders(tiles);
  std::uint32_t dealt = 0;
  for (std::size_t t = 0; t < tiles; ++t) {
    const Share share = budget_share(head.tile_mass(static_cast<int>(t)), samples, head.total());
    budgets[t] = share.whole;
    remainders[t] = share.remainder;
    dealt += share.whole;
  }
  std::vector<std::size_t> order(tiles);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; i < samples - dealt; ++i) ++budgets[order[i]];
  return budgets;
}

std::vector<std::uint32_t> systematic_budgets(const HeadDistribution& head, std::uint32_t samples,
                                              std::uint32_t random24) {
  std::vector<std::uint32_t> budgets(static_cast<std::size_t>(head.tiles()));
  std::size_t t = 0;
  std::uint64_t end = head.tile_mass(0);
  const Strata strata = Strata::of(head.total(), samples);
  for (std::uint32_t m = 0; m < samples; ++m) {
    const std::uint64_t threshold = strata.threshold(m, random24);
    while (end <= threshold) end += head.tile_mass(static_cast<int>(++t));
    ++budgets[t];
  }
  return budgets;
}

std::vector<std::uint32_t> even_budgets(int tiles, std::uint32_t samples) {
  std::vector<std::uint32_t> budgets(static_cast<std::size_t>(tiles));
  for (std::uint32_t t = 0; t < budgets.size(); ++t) {
    budgets[t] = even_budget(t, static_cast<std::uint32_t>(tiles), samples);
  }
  return budgets;
}

std::vector<std::int32_t> tiles_with(const std::vector<std::uint32_t>& budgets) {
  std::vector<std::int32_t> tiles;
  for (std::size_t t = 0; t < budgets.size(); ++t) {
    if (budgets[t] > 0) tiles.push_back(static_cast<std::int32_t>(t));
  }
  return tiles;
}

std::vector<int> released_remainder_order(std::span<const float> remainders) {
  const std::size_t tiles = remainders.size();
  std::vector<float> keys(remainders.begin(), remainders.end());
  std::vector<int> indices(tiles);
  std::iota(indices.begin(), indices.end(), 0);
  const auto slot = [&](std::size_t i) {
    return i < tiles ? std::pair(keys[i], indices[i])
                     : std::pair(-std::numeric_limits<float>::infinity(), -1);
  };
  const auto write_back = [&](std::size_t i, std::pair<float, int> entry) {
    if (i >= tiles) return;
    keys[i] = entry.first;
    indices[i] = entry.second;
  };
  const std::size_t slots = std::bit_ceil(tiles);
  for (std::size_t k = 2; k <= slots; k *= 2) {
    for (std::size_t j = k / 2; j > 0; j /= 2) {
      for (std::size_t i = 0; i < slots; ++i) {
        const std::size_t partner = i ^ j;
        if (partner <= i) continue;
        auto a = slot(i);
        auto b = slot(partner);
        if ((a.first > b.first) == ((i & k) != 0)) std::swap(a, b);
        write_back(i, a);
        write_back(partner, b);
      }
    }
  }
  return indices;
}

}  // namespace kvsim
