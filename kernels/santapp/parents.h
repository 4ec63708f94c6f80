#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/method.h"
#include "kernels/santapp/partition.h"

namespace kvsim::santapp {

/// How the prompt's keys come into parents (section 2.2, appendix B.5): by k-means of the keys, as
/// spans of neighbouring tokens, or by k-means of what the last prompt queries score them.
enum class Grouping { kKeys, kContiguous, kProbes };

std::string_view to_string(Grouping grouping);
std::optional<Grouping> parse_grouping(std::string_view word);

/// Queries of a head whose scores group keys, at most.
inline constexpr int kGroupingProbes = 64;

/// Clusters that k-means is asked for, of `tokens` keys on average.
constexpr std::int64_t cluster_count(std::int64_t keys, int tokens) {
  const std::int64_t clusters = keys / tokens < 2 ? 2 : keys / tokens;
  return clusters < keys ? clusters : keys;
}

/// Parents of about `tokens` keys each. A short last span is a parent as others are. Throws
/// RuntimeError if `kProbes` finds no probe queries.
Partition make_parents(const CacheView& prompt, Grouping grouping, int tokens);

}  // namespace kvsim::santapp
