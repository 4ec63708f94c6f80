#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim::eta {

/// How a head takes full blocks, beside its threshold.
struct BlockRule {
  int pinned = 2;          // last blocks that all heads take
  std::int64_t chunk = 0;  // blocks of chunk 1
  bool rescue = true;
};

/// The full blocks that one head takes, ascending (algorithm 4, lines 19 to 31): those that pass
/// and the pinned ones; a head with none of chunk 1 takes the one of the largest bound there, the
/// first of equals.
std::vector<std::int32_t> take_blocks(std::span<const float> bounds, float threshold,
                                      const BlockRule& rule);

/// The same of a rule, which may do without rescue.
bool may_rescue(std::int64_t full_blocks, const BlockRule& rule);

}  // namespace kvsim::eta
