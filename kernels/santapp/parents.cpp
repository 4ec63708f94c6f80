#include "kernels/santapp/parents.h"

#include <algorithm>

#include "core/error.h"
#include "core/parallel.h"
#include "kernels/lanes.h"
#include "kernels/logit_cap.h"
#include "kernels/santapp/kmeans.h"
#include "kernels/santapp/seeding.h"

namespace kvsim::santapp {
namespace {

Partition spans(std::int64_t keys, int tokens) {
  Partition result;
  for (std::int64_t i = 0; i < keys; ++i) result.members.push_back(static_cast<std::int32_t>(i));
  for (std::int64_t i = 0; i < keys; i += tokens) {
    result.starts.push_back(static_cast<std::int32_t>(i));
  }
  result.starts.push_back(static_cast<std::int32_t>(keys));
  return result;
}

/// What k-means compares, [keys, dim].
struct Features {
  std::vector<float> values;
  int dim = 0;
};

Features keys_of(const CacheView& prompt) {
  Features result{{}, prompt.k.dim};
  result.values.resize(static_cast<std::size_t>(prompt.k.rows * prompt.k.dim));
  load_rows(prompt.k, 0, prompt.k.rows, prompt.k.dim, result.values.data());
  return result;
}

/// The last prompt queries of all heads of the group, head by head, [queries, padded].
std::vector<float> last_queries(const CacheView& prompt, int padded) {
  if (prompt.probes.empty()) {
    fail<RuntimeError>(
        "santapp: the trace has no probe queries to group keys by; grouping=keys does without");
  }
  std::vector<float> queries;
  for (const RowsView& probes : prompt.probes) {
    const std::int64_t used = std::min<std::int64_t>(kGroupingProbes, probes.rows);
    const std::size_t before = queries.size();
    queries.resize(before + static_cast<std::size_t>(used * padded));
    load_rows(probes, probes.rows - used, probes.rows, padded, queries.data() + before);
  }
  return queries;
}

/// What the queries score each key, be it before or after the query's own token: fingerprints have
/// one length.
Features fingerprints_of(const CacheView& prompt) {
  constexpr std::int64_t kRows = 64;
  const int padded = padded_lanes(prompt.k.dim);
  const std::vector<float> queries = last_queries(prompt, padded);
  Features result{{}, static_cast<int>(queries.size()) / padded};
  const std::int64_t keys = prompt.k.rows;
  result.values.resize(static_cast<std::size_t>(keys * result.dim));
  const std::int64_t products = keys * std::int64_t{result.dim} * padded;
  parallel_for((keys + kRows - 1) / kRows, threads_for(products), [&](std::int64_t block) {
    const std::int64_t begin = block * kRows;
    const std::int64_t end = std::min(begin + kRows, keys);
    std::vector<float> rows(static_cast<std::size_t>(kRows * padded));
    load_rows(prompt.k, begin, end, padded, rows.data());
    float scores[kRows];
    for (int q = 0; q < result.dim; ++q) {
      score_rows(rows.data(), queries.data() + std::int64_t{q} * padded, end - begin, padded,
                 prompt.scale, scores);
      for (std::int64_t i = 0; i < end - begin; ++i) {
        result.values[static_cast<std::size_t>((begin + i) * result.dim + q)] =
            prompt.logit_cap > 0 ? capped_logit(scores[i], prompt.logit_cap) : scores[i];
      }
    }
  });
  return result;
}

}  // namespace

std::string_view to_string(Grouping grouping) {
  if (grouping == Grouping::kContiguous) return "contiguous";
  return grouping == Grouping::kProbes ? "probes" : "keys";
}

std::optional<Grouping> parse_grouping(std::string_view word) {
  for (const Grouping each : {Grouping::kKeys, Grouping::kContiguous, Grouping::kProbes}) {
    if (to_string(each) == word) return each;
  }
  return std::nullopt;
}

Partition make_parents(const CacheView& prompt, Grouping grouping, int tokens) {
  const std::int64_t keys = prompt.k.rows;
  if (grouping == Grouping::kContiguous) return spans(keys, tokens);
  const Features features = grouping == Grouping::kKeys ? keys_of(prompt) : fingerprints_of(prompt);
  const std::int64_t clusters = cluster_count(keys, tokens);
  const Points points{features.values.data(), keys, features.dim};
  constexpr std::uint64_t kSeed = 0;  // the published one
  return Partition::of_labels(mini_batch_kmeans(points, clusters, kSeed).labels,
                              static_cast<std::int32_t>(clusters));
}

}  // namespace kvsim::santapp
