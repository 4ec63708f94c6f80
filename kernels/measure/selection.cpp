#include "kernels/measure/selection.h"

#include <algorithm>

namespace kvsim {
namespace {

/// One KV head of one sequence in the dumps.
struct Group {
  int sequence = 0;
  int kv_head = 0;
};

StepView view_of(const DeviceStep& step, std::span<const float> sink_logits, const Group& group) {
  StepView view;
  // Rules look at scores only, so the rows need no data.
  view.k.rows = view.v.rows = step.contexts[static_cast<std::size_t>(group.sequence)];
  view.k.dim = view.v.dim = step.head_dim;
  view.k.type = view.v.type = step.type;
  view.group = step.group();
  view.scale = step.scale;
  view.logit_cap = step.logit_cap;
  if (!sink_logits.empty()) {
    view.sink_logits = sink_logits.subspan(static_cast<std::size_t>(group.kv_head * step.group()),
                                           static_cast<std::size_t>(step.group()));
  }
  view.prompt_tokens = step.prompt_tokens;
  view.random = step.random;
  view.random.sequence += static_cast<std::uint32_t>(group.sequence);
  view.random.head += static_cast<std::uint32_t>(group.kv_head * step.group());
  return view;
}

/// A head's weights as one number per row, zero where it reads nothing.
std::vector<double> by_row(const HeadSelection& head, std::size_t rows) {
  std::vector<double> weights(rows, 0);
  std::size_t next = 0;
  for (const Range& range : head.v_rows.ranges()) {
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      weights[static_cast<std::size_t>(r)] = head.weights[next++];
    }
  }
  return weights;
}

/// How often a kernel should have counted each row: once where nothing is drawn (top-k).
std::vector<std::uint32_t> expected_counts(const HeadSelection& head, std::size_t rows) {
  std::vector<std::uint32_t> counts(rows, 0);
  std::size_t next = 0;
  for (const Range& range : head.v_rows.ranges()) {
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      counts[static_cast<std::size_t>(r)] = head.counts.empty() ? 1 : head.counts[next++];
    }
  }
  return counts;
}

}  // namespace

DumpedSelection select_from_dump(const Method& method, const DeviceStep& step,
                                 std::span<const float> scores,
                                 std::span<const std::uint32_t> counts,
                                 std::span<const float> sink_logits) {
  DumpedSelection result;
  result.weights.assign(scores.size(), 0);
  const bool compare =
      std::any_of(counts.begin(), counts.end(), [](std::uint32_t count) { return count > 0; });
  for (int b = 0; b < step.batch; ++b) {
    for (int h = 0; h < step.kv_heads; ++h) {
      const StepView view = view_of(step, sink_logits, {b, h});
      const auto rows = static_cast<std::size_t>(view.rows());
      const auto at = [&](int g) {
        return static_cast<std::size_t>((std::int64_t{b} * step.q_heads + h * step.group() + g) *
                                        step.dump_stride);
      };
      Scores own{view.rows(), {}};
      for (int g = 0; g < step.group(); ++g) {
        const auto head = scores.subspan(at(g), rows);
        own.values.insert(own.values.end(), head.begin(), head.end());
      }
      const Selection selection = method.select(view, own, nullptr);
      result.statistics += selection.statistics;
      for (int g = 0; g < step.group(); ++g) {
        const HeadSelection& head = selection.heads[static_cast<std::size_t>(g)];
        const std::vector<double> weights = by_row(head, rows);
        const std::vector<std::uint32_t> expected = expected_counts(head, rows);
        for (std::size_t r = 0; r < rows; ++r) {
          result.weights[at(g) + r] = weights[r] * head.scale;
          result.differences += compare && expected[r] != counts[at(g) + r];
        }
      }
    }
  }
  return result;
}

std::optional<CountDifference> first_difference(const HeadSelection& head,
                                                std::span<const std::uint32_t> counts) {
  const std::vector<std::uint32_t> expected = expected_counts(head, counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] != expected[r]) return {{static_cast<std::int64_t>(r), counts[r], expected[r]}};
  }
  return std::nullopt;
}

}  // namespace kvsim
