#include "kernels/eta/blocks.h"

#include <algorithm>

#include "kernels/eta/rule.h"

namespace kvsim::eta {

bool may_rescue(std::int64_t full_blocks, const BlockRule& rule) {
  return rule.rescue && may_rescue(full_blocks, rule.chunk, rule.pinned);
}

std::vector<std::int32_t> take_blocks(std::span<const float> bounds, float threshold,
                                      const BlockRule& rule) {
  const auto full = static_cast<std::int64_t>(bounds.size());
  std::vector<std::int32_t> blocks;
  for (std::int64_t j = 0; j < full; ++j) {
    if (passes(bounds[static_cast<std::size_t>(j)], threshold) || is_pinned(j, full, rule.pinned)) {
      blocks.push_back(static_cast<std::int32_t>(j));
    }
  }
  const bool empty = blocks.empty() || blocks.front() >= rule.chunk;
  if (empty && may_rescue(full, rule)) {
    const auto chunk = bounds.first(static_cast<std::size_t>(std::min(rule.chunk, full)));
    const auto best = std::ranges::max_element(chunk);  // the first of equals
    blocks.insert(blocks.begin(), static_cast<std::int32_t>(best - chunk.begin()));
  }
  return blocks;
}

}  // namespace kvsim::eta
