#include "kernels/santa/samplers.h"

#include <algorithm>

namespace kvsim {

std::vector<std::uint64_t> iid_thresholds(const HeadDistribution& head, std::uint32_t samples,
                                          const RandomStream& random) {
  std::vector<std::uint64_t> thresholds(samples);
  for (std::uint32_t s = 0; s < samples; ++s) {
    thresholds[s] = mass_threshold(0, random.threshold24(s), 1, head.total());
  }
  std::sort(thresholds.begin(), thresholds.end());
  return thresholds;
}

std::vector<std::uint64_t> stratified_thresholds(const HeadDistribution& head,
                                                 std::uint32_t samples,
                                                 const RandomStream& random) {
  std::vector<std::uint64_t> thresholds(samples);
  for (std::uint32_t m = 0; m < samples; ++m) {
    thresholds[m] = mass_threshold(m, random.threshold24(m), samples, head.total());
  }
  return thresholds;
}

std::vector<std::uint64_t> systematic_thresholds(const HeadDistribution& head,
                                                 std::uint32_t samples,
                                                 const RandomStream& random) {
  const std::uint32_t offset = random.threshold24(0);
  std::vector<std::uint64_t> thresholds(samples);
  for (std::uint32_t m = 0; m < samples; ++m) {
    thresholds[m] = mass_threshold(m, offset, samples, head.total());
  }
  return thresholds;
}

std::vector<std::int64_t> rows_of(const HeadDistribution& head,
                                  const std::vector<std::uint64_t>& thresholds) {
  std::vector<std::int64_t> rows;
  rows.reserve(thresholds.size());
  for (const std::uint64_t threshold : thresholds) rows.push_back(head.find(threshold));
  return rows;
}

std::vector<std::int64_t> rows_of_budgets(const HeadDistribution& head,
                                          const std::vector<std::uint32_t>& budgets,
                                          const std::vector<std::uint32_t>& random24) {
  std::vector<std::int64_t> rows;
  for (std::size_t t = 0; t < budgets.size(); ++t) {
    const std::uint32_t offset = random24[random24.size() == 1 ? 0 : t];
    const auto tile = static_cast<int>(t);
    for (std::uint32_t m = 0; m < budgets[t]; ++m) {
      const std::uint64_t threshold = mass_threshold(m, offset, budgets[t], head.tile_units(tile));
      rows.push_back(head.find_in_tile(tile, static_cast<std::uint32_t>(threshold)));
    }
  }
  return rows;
}

}  // namespace kvsim
