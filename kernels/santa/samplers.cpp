#include "kernels/santa/samplers.h"

#include <algorithm>

namespace kvsim {

std::vector<std::uint64_t> iid_thresholds(const HeadDistribution& head, std::uint32_t samples,
                                          const RandomStream& random) {
  std::vector<std::uint64_t> thresholds(samples);
  const Strata whole = Strata::of(head.total(), 1);
  for (std::uint32_t s = 0; s < samples; ++s) {
    thresholds[s] = whole.threshold(0, random.threshold24(s));
  }
  std::sort(thresholds.begin(), thresholds.end());
  return thresholds;
}

std::vector<std::uint64_t> stratified_thresholds(const HeadDistribution& head,
                                                 std::uint32_t samples,
                                                 const RandomStream& random) {
  std::vector<std::uint64_t> thresholds(samples);
  const Strata strata = Strata::of(head.total(), samples);
  for (std::uint32_t m = 0; m < samples; ++m) {
    thresholds[m] = strata.threshold(m, random.threshold24(m));
  }
  return thresholds;
}

std::vector<std::uint64_t> systematic_thresholds(const HeadDistribution& head,
                                                 std::uint32_t samples,
                                                 const RandomStream& random) {
  const std::uint32_t offset = random.threshold24(0);
  std::vector<std::uint64_t> thresholds(samples);
  const Strata strata = Strata::of(head.total(), samples);
  for (std::uint32_t m = 0; m < samples; ++m) {
    thresholds[m] = strata.threshold(m, offset);
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
    if (budgets[t] == 0) continue;
    const Strata strata = Strata::of(head.tile_units(tile), budgets[t]);
    for (std::uint32_t m = 0; m < budgets[t]; ++m) {
      const std::uint64_t threshold = strata.threshold(m, offset);
      rows.push_back(head.find_in_tile(tile, static_cast<std::uint32_t>(threshold)));
    }
  }
  return rows;
}

}  // namespace kvsim
