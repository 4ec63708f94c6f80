#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/step.h"
#include "kernels/method.h"

namespace kvsim {

/// Of a method that screens blocks or routes to teams: what its kernel dumped, [batch, q_heads,
/// bound_stride], and the thresholds [batch, q_heads] that the launch was given.
struct ScreeningDump {
  std::span<const float> bounds = {};  // empty: it does neither
  std::span<const float> thresholds = {};
  int block = 0;  // tokens; 0: no blocks are screened
  std::int64_t bound_stride = 0;
};

/// Dumps of a launch of a step, [batch, q_heads, dump_stride] each. All counts are zero where a
/// kernel dumps none.
struct Dumps {
  std::span<const float> scores;
  std::span<const std::uint32_t> counts;
  std::span<const std::uint32_t> feature_counts = {};  // [batch, q_heads, head_dim], or nothing
  ScreeningDump screening = {};
};

/// Of a step, in host memory.
struct HostInputs {
  std::span<const float> sink_logits = {};  // [q_heads] or empty
  std::span<const float> queries = {};      // [batch, q_heads, head_dim]; exact scores need none
  std::span<const std::unique_ptr<State>> states = {};  // [batch, kv_heads]; empty: none are kept

  State* state(const DeviceStep& step, int sequence, int kv_head) const {
    const auto number = static_cast<std::size_t>(sequence * step.kv_heads + kv_head);
    return states.empty() ? nullptr : states[number].get();
  }
};

/// What a method's rule selects from the scores that its kernel dumped.
struct DumpedSelection {
  Statistics statistics;        // sums over batch and heads
  double key_elements = 0;      // of K, that are read
  std::vector<double> weights;  // [batch, q_heads, dump_stride]: what the output weighs V rows with
  std::int64_t differences = 0;  // rows whose count is not the rule's, and heads' features
};

/// A kernel that dumped no counts differs in nothing.
DumpedSelection select_from_dump(const Method& method, const DeviceStep& step, const Dumps& dumps,
                                 const HostInputs& inputs = {});

/// KV head `kv_head` of a sequence, as a method's rule sees it; its rows have no data.
StepView view_of_group(const DeviceStep& step, const HostInputs& inputs, int sequence, int kv_head);

/// The part of a dump that belongs to a view's group, whose first query head in the batch is
/// `first_head`; bounds of full blocks only, where it is of blocks.
Screening screening_of(const StepView& view, std::size_t first_head, const ScreeningDump& dump);

/// Statistics of what a method takes given bounds and thresholds, whatever the scores.
Statistics screened_statistics(const Method& method, const DeviceStep& step,
                               const ScreeningDump& dump, const HostInputs& inputs = {});

/// A row that a kernel drew more or less often than the rule.
struct CountDifference {
  std::int64_t row = 0;
  std::uint32_t dumped = 0;
  std::uint32_t expected = 0;
};
/// The first one of a head; `counts` [rows] is its dump, `head` what the rule drew. A head that
/// draws nothing but reads all rows may have dumped none.
std::optional<CountDifference> first_difference(const HeadSelection& head,
                                                std::span<const std::uint32_t> counts);

}  // namespace kvsim
