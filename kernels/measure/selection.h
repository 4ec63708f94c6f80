#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/step.h"
#include "kernels/method.h"

namespace kvsim {

/// What a method's rule selects from the scores that its kernel dumped.
struct DumpedSelection {
  Statistics statistics;        // sums over batch and heads
  std::vector<double> weights;  // [batch, q_heads, dump_stride]: what the output weighs V rows with
  std::int64_t differences = 0;  // rows whose count is not the rule's
};

/// `scores` and `counts` are dumps of a launch of `step`, [batch, q_heads, dump_stride]. For
/// methods that keep no state. A kernel that dumped no counts (all zero) differs in nothing.
/// `sink_logits` are the step's, in host memory: [q_heads] or empty.
DumpedSelection select_from_dump(const Method& method, const DeviceStep& step,
                                 std::span<const float> scores,
                                 std::span<const std::uint32_t> counts,
                                 std::span<const float> sink_logits = {});

/// A row that a kernel drew more or less often than the rule.
struct CountDifference {
  std::int64_t row = 0;
  std::uint32_t dumped = 0;
  std::uint32_t expected = 0;
};
/// The first one of a head; `counts` [rows] is its dump, `head` what the rule drew.
std::optional<CountDifference> first_difference(const HeadSelection& head,
                                                std::span<const std::uint32_t> counts);

}  // namespace kvsim
