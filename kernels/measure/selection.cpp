#include "kernels/measure/selection.h"

#include <algorithm>

namespace kvsim {
namespace {

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

/// Whether the features that a head drew are other than its rule's.
bool features_differ(const HeadSelection& head, std::span<const std::uint32_t> counts) {
  RowRanges read;
  std::vector<std::uint32_t> hits;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto feature = static_cast<std::int64_t>(i);
    if (counts[i] == 0) continue;
    read.append(feature, feature + 1);
    hits.push_back(counts[i]);
  }
  return !(read == head.k_features) || hits != head.feature_counts;
}

bool any_of(std::span<const std::uint32_t> counts) {
  return std::any_of(counts.begin(), counts.end(), [](std::uint32_t count) { return count > 0; });
}

}  // namespace

StepView view_of_group(const DeviceStep& step, const HostInputs& inputs, int sequence,
                       int kv_head) {
  const auto group = static_cast<std::size_t>(step.group());
  const int first_head = kv_head * step.group();
  StepView view;
  view.k.rows = view.v.rows = step.contexts[static_cast<std::size_t>(sequence)];
  view.k.dim = view.v.dim = step.head_dim;
  view.k.type = view.v.type = step.type;
  view.group = step.group();
  view.scale = step.scale;
  view.logit_cap = step.logit_cap;
  if (!inputs.sink_logits.empty()) {
    view.sink_logits = inputs.sink_logits.subspan(static_cast<std::size_t>(first_head), group);
  }
  if (!inputs.queries.empty()) {
    const std::int64_t first = (std::int64_t{sequence} * step.q_heads + first_head) * step.head_dim;
    view.queries = inputs.queries.subspan(static_cast<std::size_t>(first),
                                          group * static_cast<std::size_t>(step.head_dim));
    const RowsView all{std::as_bytes(inputs.queries).data(), ElementType::kFloat32,
                       std::int64_t{step.batch} * step.q_heads, step.head_dim, step.head_dim};
    view.layer_queries =
        all.slice(std::int64_t{sequence} * step.q_heads, (sequence + 1) * step.q_heads);
  }
  view.prompt_tokens = step.prompt_tokens;
  view.random = step.random;
  view.random.sequence += static_cast<std::uint32_t>(sequence);
  view.random.head += static_cast<std::uint32_t>(first_head);
  return view;
}

Screening screening_of(const StepView& view, std::size_t first_head, const ScreeningDump& dump) {
  Screening result;
  const auto full =
      static_cast<std::size_t>(dump.block > 0 ? view.rows() / dump.block : dump.bound_stride);
  for (int g = 0; g < view.group; ++g) {
    const std::size_t head = first_head + static_cast<std::size_t>(g);
    const auto bounds =
        dump.bounds.subspan(head * static_cast<std::size_t>(dump.bound_stride), full);
    result.bounds.insert(result.bounds.end(), bounds.begin(), bounds.end());
    if (!dump.thresholds.empty()) result.thresholds.push_back(dump.thresholds[head]);
  }
  return result;
}

DumpedSelection select_from_dump(const Method& method, const DeviceStep& step, const Dumps& dumps,
                                 const HostInputs& inputs) {
  DumpedSelection result;
  result.weights.assign(dumps.scores.size(), 0);
  const bool compare = any_of(dumps.counts);
  const auto dim = static_cast<std::size_t>(step.head_dim);
  for (int b = 0; b < step.batch; ++b) {
    for (int h = 0; h < step.kv_heads; ++h) {
      const StepView view = view_of_group(step, inputs, b, h);
      const auto rows = static_cast<std::size_t>(view.rows());
      const auto head_at = [&](int g) {
        return static_cast<std::size_t>(std::int64_t{b} * step.q_heads + h * step.group() + g);
      };
      const auto at = [&](int g) {
        return head_at(g) * static_cast<std::size_t>(step.dump_stride);
      };
      Scores own{view.rows(), {}};
      for (int g = 0; g < step.group(); ++g) {
        const auto head = dumps.scores.subspan(at(g), rows);
        own.values.insert(own.values.end(), head.begin(), head.end());
      }
      if (!dumps.screening.bounds.empty()) {
        own.screening = screening_of(view, head_at(0), dumps.screening);
      }
      const Selection selection = method.select(view, own, inputs.state(step, b, h));
      result.statistics += selection.statistics;
      result.key_elements += static_cast<double>(selection.k_rows.size()) *
                             static_cast<double>(selection.k_features.size());
      for (int g = 0; g < step.group(); ++g) {
        const HeadSelection& head = selection.heads[static_cast<std::size_t>(g)];
        const std::vector<double> weights = by_row(head, rows);
        const std::vector<std::uint32_t> expected = expected_counts(head, rows);
        for (std::size_t r = 0; r < rows; ++r) {
          result.weights[at(g) + r] = weights[r] * head.scale;
          result.differences += compare && expected[r] != dumps.counts[at(g) + r];
        }
        if (dumps.feature_counts.empty()) continue;
        const auto features = dumps.feature_counts.subspan(head_at(g) * dim, dim);
        result.differences += features_differ(head, features);
      }
    }
  }
  return result;
}

Statistics screened_statistics(const Method& method, const DeviceStep& step,
                               const ScreeningDump& dump, const HostInputs& inputs) {
  Statistics sum;
  for (int b = 0; b < step.batch; ++b) {
    for (int h = 0; h < step.kv_heads; ++h) {
      const StepView view = view_of_group(step, inputs, b, h);
      const auto first = static_cast<std::size_t>(b * step.q_heads + h * step.group());
      Scores scores{view.rows(),
                    std::vector<float>(static_cast<std::size_t>(view.rows() * view.group)),
                    screening_of(view, first, dump)};
      sum += method.select(view, scores, inputs.state(step, b, h)).statistics;
    }
  }
  return sum;
}

std::optional<CountDifference> first_difference(const HeadSelection& head,
                                                std::span<const std::uint32_t> counts) {
  const auto rows = static_cast<std::int64_t>(counts.size());
  if (head.counts.empty() && head.v_rows.size() == rows && !any_of(counts)) return std::nullopt;
  const std::vector<std::uint32_t> expected = expected_counts(head, counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] != expected[r]) return {{static_cast<std::int64_t>(r), counts[r], expected[r]}};
  }
  return std::nullopt;
}

}  // namespace kvsim
