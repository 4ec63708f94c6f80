#include "kernels/eta/thresholds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "core/error.h"

namespace kvsim::eta {
namespace {

constexpr std::string_view kWeight = "eta_threshold_weight";
constexpr std::string_view kBias = "eta_threshold_bias";

const HostTensor& parameter(const LearnedParameters& learned, std::string_view name,
                            std::int64_t rows, std::int64_t columns) {
  const auto found = learned.find(name);
  if (found == learned.end()) {
    fail<RuntimeError>("eta: the trace has learned parameters, but no dataset '{}'", name);
  }
  const std::array<std::int64_t, 3>& shape = found->second.shape;
  if (shape != std::array<std::int64_t, 3>{1, rows, columns}) {
    const auto begin =  // leading ones are not stored
        std::find_if(shape.begin(), shape.end() - 1, [](std::int64_t n) { return n != 1; });
    const std::string expected =
        rows == 1 ? fmt::format("[{}]", columns) : fmt::format("[{}, {}]", rows, columns);
    fail<RuntimeError>("eta: dataset '{}' has shape [{}], expected {}", name,
                       fmt::join(begin, shape.end(), ", "), expected);
  }
  return found->second;
}

/// Columns [first, first + count) of a tensor's rows.
RowsView columns(const HostTensor& tensor, std::int64_t first, int count) {
  RowsView view = tensor.rows(0);
  view.data += first * bytes_of(tensor.type);
  view.dim = count;
  return view;
}

}  // namespace

bool has_learned(const LearnedParameters* learned) {
  return learned != nullptr && (learned->contains(kWeight) || learned->contains(kBias));
}

std::vector<float> learned_thresholds(const StepView& view) {
  if (!has_learned(view.learned)) {
    fail<RuntimeError>(
        "eta: the trace has no learned thresholds (datasets '{}' and '{}'); thresholds=calibrated "
        "or thresholds=union do without",
        kWeight, kBias);
  }
  const RowsView& queries = view.layer_queries;
  const auto heads = static_cast<std::int64_t>(queries.rows);
  if (heads == 0) fail<RuntimeError>("eta: learned thresholds need the queries of the whole layer");
  const HostTensor& weight = parameter(*view.learned, kWeight, heads * queries.dim, heads);
  const HostTensor& bias = parameter(*view.learned, kBias, 1, heads);

  const auto group = static_cast<std::size_t>(view.group);
  std::vector<float> row(group);
  load_rows(columns(bias, view.random.head, view.group), 0, 1, view.group, row.data());
  std::vector<double> sums(row.begin(), row.end());
  std::vector<float> query(static_cast<std::size_t>(queries.dim));
  const RowsView weights = columns(weight, view.random.head, view.group);
  for (std::int64_t head = 0; head < heads; ++head) {
    load_rows(queries, head, head + 1, queries.dim, query.data());
    for (std::size_t i = 0; i < query.size(); ++i) {
      const std::int64_t at = head * queries.dim + static_cast<std::int64_t>(i);
      load_rows(weights, at, at + 1, view.group, row.data());
      for (std::size_t g = 0; g < group; ++g) sums[g] += static_cast<double>(query[i]) * row[g];
    }
  }
  return {sums.begin(), sums.end()};
}

std::int64_t union_blocks(std::int64_t blocks, double density) {
  // Products such as 0.07 * 100 are a little above the whole number that is meant.
  return static_cast<std::int64_t>(std::ceil(density * static_cast<double>(blocks) - 1e-9));
}

std::vector<float> union_thresholds(std::span<const float> bounds, int group, std::int64_t blocks,
                                    double density) {
  const auto n = static_cast<std::size_t>(blocks);
  std::vector<float> thresholds(static_cast<std::size_t>(group),
                                -std::numeric_limits<float>::infinity());
  if (blocks == 0) return thresholds;
  std::vector<std::vector<std::size_t>> orders;  // of each head, largest bound first
  std::vector<std::size_t> best(n, n);           // a block's best place among all heads
  for (std::size_t g = 0; g < thresholds.size(); ++g) {
    const std::span<const float> own = bounds.subspan(g * n, n);
    std::vector<std::size_t>& order = orders.emplace_back(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t j) { return own[j]; });
    for (std::size_t place = 0; place < n; ++place) {
      best[order[place]] = std::min(best[order[place]], place);
    }
  }
  const std::int64_t needed = std::max<std::int64_t>(1, union_blocks(blocks, density));
  const auto last = best.begin() + (needed - 1);
  std::ranges::nth_element(best, last);
  for (std::size_t g = 0; g < thresholds.size(); ++g) {
    const auto bound = [&](std::size_t place) { return bounds[g * n + orders[g][place]]; };
    const float lowest = bound(*last);
    const float next = *last + 1 < n ? bound(*last + 1) : lowest;
    const float middle = next + (lowest - next) / 2;
    thresholds[g] = middle > next ? middle : lowest;  // floats may have nothing in between
  }
  return thresholds;
}

}  // namespace kvsim::eta
