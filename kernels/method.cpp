#include "kernels/method.h"

#include <algorithm>

#include "kernels/attention.h"

namespace kvsim {
namespace {

/// Distinct tiles drawn by any head of the group.
std::size_t united_tiles(const std::vector<HeadSelection>& heads) {
  std::vector<std::int32_t> tiles;
  for (const HeadSelection& head : heads) {
    tiles.insert(tiles.end(), head.drawn_tiles.begin(), head.drawn_tiles.end());
  }
  std::sort(tiles.begin(), tiles.end());
  return static_cast<std::size_t>(std::unique(tiles.begin(), tiles.end()) - tiles.begin());
}

}  // namespace

void Selection::finish() {
  std::vector<const RowRanges*> k_sets;
  std::vector<const RowRanges*> v_sets;
  for (const HeadSelection& head : heads) {
    k_sets.push_back(&head.k_rows);
    v_sets.push_back(&head.v_rows);
    statistics.k_requests += static_cast<double>(head.k_rows.size());
    statistics.v_requests += static_cast<double>(head.v_rows.size());
    statistics.draws += static_cast<double>(head.draws);
    statistics.head_tiles += static_cast<double>(head.drawn_tiles.size());
  }
  k_rows = RowRanges::unite(k_sets);
  v_rows = RowRanges::unite(v_sets);
  statistics.k_rows = static_cast<double>(k_rows.size());
  statistics.v_rows = static_cast<double>(v_rows.size());
  statistics.group_tiles = static_cast<double>(united_tiles(heads));
}

Scores Method::score(const StepView& view, const State*) const { return exact_scores(view); }

std::vector<float> Method::attend(const StepView& view, const Selection& selection) const {
  return weighted_values(view, selection);
}

Registry<MethodInfo>& method_registry() {
  static Registry<MethodInfo> registry("method", [](const MethodInfo& m) { return !m.hidden; });
  return registry;
}

NamedMethod make_method(std::string_view text) {
  const MethodSpec spec = parse_method_spec(text);
  const MethodInfo& info = method_registry().at(spec.name);
  Parameters parameters(spec, info.parameters);
  auto method = info.make(parameters);
  return {spec.name, std::move(parameters), std::move(method)};
}

}  // namespace kvsim
