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

/// Chunks of neighbouring features that hold one of the set.
std::int64_t chunks_of(const RowRanges& features) {
  std::int64_t chunks = 0;
  std::int64_t next = 0;  // the first chunk not yet counted
  for (const Range& range : features.ranges()) {
    const std::int64_t end = (range.end + kChunkFeatures - 1) / kChunkFeatures;
    chunks += std::max<std::int64_t>(0, end - std::max(next, range.begin / kChunkFeatures));
    next = end;
  }
  return chunks;
}

}  // namespace

void Selection::finish() {
  std::vector<const RowRanges*> k_sets;
  std::vector<const RowRanges*> feature_sets;
  std::vector<const RowRanges*> v_sets;
  for (const HeadSelection& head : heads) {
    k_sets.push_back(&head.k_rows);
    feature_sets.push_back(&head.k_features);
    v_sets.push_back(&head.v_rows);
    statistics.k_requests += static_cast<double>(head.k_rows.size());
    statistics.v_requests += static_cast<double>(head.v_rows.size());
    statistics.k_feature_requests += static_cast<double>(head.k_features.size());
    statistics.query_hits += static_cast<double>(head.query_hits);
    statistics.draws += static_cast<double>(head.draws);
    statistics.head_tiles += static_cast<double>(head.drawn_tiles.size());
  }
  k_rows = RowRanges::unite(k_sets);
  k_features = RowRanges::unite(feature_sets);
  v_rows = RowRanges::unite(v_sets);
  statistics.k_rows = static_cast<double>(k_rows.size());
  statistics.k_features = static_cast<double>(k_features.size());
  statistics.k_chunks = static_cast<double>(chunks_of(k_features));
  statistics.v_rows = static_cast<double>(v_rows.size());
  statistics.group_tiles = static_cast<double>(united_tiles(heads));
}

Scores Method::score(const StepView& view, const State*) const { return exact_scores(view); }

std::vector<float> Method::attend(const StepView& view, const Selection& selection) const {
  return weighted_values(view, selection);
}

Statistics all_key_features(const Shape& shape) {
  const int chunks = (shape.head_dim + kChunkFeatures - 1) / kChunkFeatures;
  Statistics all;
  all.k_features = shape.batch() * shape.kv_heads * shape.head_dim;
  all.k_feature_requests = shape.batch() * shape.q_heads * shape.head_dim;
  all.k_chunks = shape.batch() * shape.kv_heads * chunks;
  return all;
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
