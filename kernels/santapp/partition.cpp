#include "kernels/santapp/partition.h"

#include <numeric>

namespace kvsim::santapp {

Partition Partition::of_labels(std::span<const std::int32_t> labels, std::int32_t count) {
  std::vector<std::int32_t> next(static_cast<std::size_t>(count) + 1, 0);
  for (const std::int32_t label : labels) ++next[static_cast<std::size_t>(label) + 1];
  Partition result;
  result.starts.push_back(0);
  for (std::size_t l = 1; l < next.size(); ++l) {
    if (next[l] > 0) result.starts.push_back(result.starts.back() + next[l]);
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  result.members.resize(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::int32_t& at = next[static_cast<std::size_t>(labels[i])];
    result.members[static_cast<std::size_t>(at++)] = static_cast<std::int32_t>(i);
  }
  return result;
}

}  // namespace kvsim::santapp
