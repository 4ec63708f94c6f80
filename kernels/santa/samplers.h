#pragma once

#include <cstdint>
#include <vector>

#include "core/philox.h"
#include "kernels/santa/distribution.h"

namespace kvsim {

// Thresholds of each sampler in units of the head's mass, ascending. SANTA §2, §2.1.

/// S independent thresholds.
std::vector<std::uint64_t> iid_thresholds(const HeadDistribution& head, std::uint32_t samples,
                                          const RandomStream& random);
/// One independent threshold in each of S strata of equal mass.
std::vector<std::uint64_t> stratified_thresholds(const HeadDistribution& head,
                                                 std::uint32_t samples, const RandomStream& random);
/// One offset for all strata.
std::vector<std::uint64_t> systematic_thresholds(const HeadDistribution& head,
                                                 std::uint32_t samples, const RandomStream& random);

/// The row that each threshold falls on, ascending, repeats kept.
std::vector<std::int64_t> rows_of(const HeadDistribution& head,
                                  const std::vector<std::uint64_t>& thresholds);

/// Rows drawn tile by tile, `budgets[t]` systematically in tile t with offset random24[t] (one
/// entry per tile, or one for all). Ascending, repeats kept.
std::vector<std::int64_t> rows_of_budgets(const HeadDistribution& head,
                                          const std::vector<std::uint32_t>& budgets,
                                          const std::vector<std::uint32_t>& random24);

}  // namespace kvsim
