#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/replay.h"

namespace kvsim {

/// Of the relative L2 errors of all heads and steps; percentiles are nearest-rank.
struct ErrorSummary {
  double mean = 0;
  double p50 = 0;
  double p95 = 0;
  double max = 0;
  double rms = 0;
  double cosine_mean = 0;
};

/// Rows whose V is read. Means are over steps and heads, ratios are ratios of sums.
struct SelectionSummary {
  double rows_per_head_mean = 0;
  double union_rows_mean = 0;
  double union_fraction = 0;     // union rows / rows of the context
  double gqa_amplification = 0;  // per-head sum / union
  double mass_recall_mean = 0;
  double draws_per_head_mean = 0;
  std::optional<double> routing_kl_mean;  // nats; only of methods that draw by a proposal
  double k_union_fraction = 0;            // the same share for K
  // Of the features of K rows, the share that is read; 1 if scores are exact.
  double k_feature_fraction_head = 0;
  double k_feature_fraction_group = 0;  // by some head of the group
  double k_chunk_fraction_group = 0;    // of chunks of kChunkFeatures, those with one of these
};

struct RunSummary {
  ErrorSummary error;
  SelectionSummary selection;
  double logical_access_fraction = 0;  // (K + V + routing vectors) / 2n, the papers' counter
  std::int64_t empty_heads = 0;
  double context_mean = 0;
  Statistics statistics;  // means per layer and step
};

/// Smallest value that at least `percent` % of the values do not exceed. `values` must not be
/// empty.
double nearest_rank(std::span<const double> sorted, double percent);

RunSummary summarize(std::span<const StepRecord* const> records);
/// All records of a run, or those of one layer.
std::vector<const StepRecord*> records_of(const MethodRun& run);
std::vector<const StepRecord*> records_of(const MethodRun& run, int layer);

}  // namespace kvsim
