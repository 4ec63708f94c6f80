#include "kernels/measure/selection.h"

#include <algorithm>

namespace kvsim {
namespace {

/// One KV head of one sequence in the dumps.
struct Group {
  int sequence = 0;
  int kv_head = 0;
};

StepView view_of(const DeviceStep& step, const Group& group) {
  StepView view;
  // Rules look at scores only, so the rows need no data.
  view.k.rows = view.v.rows = step.contexts[static_cast<std::size_t>(group.sequence)];
  view.k.dim = view.v.dim = step.head_dim;
  view.k.type = view.v.type = step.type;
  view.group = step.group();
  view.scale = step.scale;
  view.logit_cap = step.logit_cap;
  view.prompt_tokens = step.prompt_tokens;
  view.random = step.random;
  view.random.sequence += static_cast<std::uint32_t>(group.sequence);
  view.random.head += static_cast<std::uint32_t>(group.kv_head * step.group());
  return view;
}

/// The rule's weights of one head as one number per row; returns how many rows `counts` disagrees
/// on.
std::int64_t spread(const HeadSelection& head, std::span<const std::uint32_t> counts, bool compare,
                    std::span<double> weights) {
  std::vector<std::uint32_t> expected(compare ? counts.size() : 0);
  // Where draws are as many as rows, every row counts once, whatever it weighs (top-k).
  const bool once = head.draws == head.v_rows.size();
  std::size_t next = 0;
  for (const Range& range : head.v_rows.ranges()) {
    for (auto r = static_cast<std::size_t>(range.begin); r < static_cast<std::size_t>(range.end);
         ++r) {
      const double weight = head.weights[next++];
      weights[r] = weight * head.scale;
      if (compare) expected[r] = once ? 1 : static_cast<std::uint32_t>(weight);
    }
  }
  std::int64_t differences = 0;
  for (std::size_t r = 0; r < expected.size(); ++r) differences += expected[r] != counts[r];
  return differences;
}

}  // namespace

DumpedSelection select_from_dump(const Method& method, const DeviceStep& step,
                                 std::span<const float> scores,
                                 std::span<const std::uint32_t> counts) {
  DumpedSelection result;
  result.weights.assign(scores.size(), 0);
  const bool compare =
      std::any_of(counts.begin(), counts.end(), [](std::uint32_t count) { return count > 0; });
  for (int b = 0; b < step.batch; ++b) {
    for (int h = 0; h < step.kv_heads; ++h) {
      const StepView view = view_of(step, {b, h});
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
        result.differences +=
            spread(selection.heads[static_cast<std::size_t>(g)], counts.subspan(at(g), rows),
                   compare, std::span(result.weights).subspan(at(g), rows));
      }
    }
  }
  return result;
}

}  // namespace kvsim
