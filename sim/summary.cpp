#include "sim/summary.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "sim/scaled_statistics.h"

namespace kvsim {
namespace {

double ratio(double numerator, double denominator) {
  return denominator > 0 ? numerator / denominator : 0;
}

ErrorSummary summarize_errors(std::span<const StepRecord* const> records) {
  std::vector<double> errors;
  ErrorSummary summary;
  for (const StepRecord* record : records) {
    for (const HeadFigures& head : record->heads) {
      errors.push_back(head.relative_l2);
      summary.mean += head.relative_l2;
      summary.rms += head.relative_l2 * head.relative_l2;
      summary.cosine_mean += head.cosine;
    }
  }
  const auto count = static_cast<double>(errors.size());
  summary.mean = ratio(summary.mean, count);
  summary.rms = std::sqrt(ratio(summary.rms, count));
  summary.cosine_mean = ratio(summary.cosine_mean, count);
  std::sort(errors.begin(), errors.end());
  summary.p50 = nearest_rank(errors, 50);
  summary.p95 = nearest_rank(errors, 95);
  summary.max = errors.back();
  return summary;
}

struct Sums {
  double heads = 0;
  double head_rows = 0;
  double draws = 0;
  double recall = 0;
  double routing_kl = 0;
  double routed_heads = 0;  // that have one
  double kv_heads = 0;
  double k_rows = 0;
  double v_rows = 0;
  double head_features = 0;
  double group_features = 0;
  double chunks = 0;
  double all_head_features = 0;
  double all_group_features = 0;
  double all_chunks = 0;
  double k_vectors = 0;     // k_rows in vectors of all features
  double context_rows = 0;  // Σ n over KV heads
  double routing_vectors = 0;
};

void add_features(const StepRecord& record, Sums& sums) {
  const Statistics& s = record.statistics;
  const auto heads = static_cast<double>(record.heads.size());
  const auto groups = static_cast<double>(record.unions.size());
  sums.head_features += s.k_feature_requests;
  sums.group_features += s.k_features;
  sums.chunks += s.k_chunks;
  sums.all_head_features += heads * record.head_dim;
  sums.all_group_features += groups * record.head_dim;
  sums.all_chunks += groups * std::ceil(static_cast<double>(record.head_dim) / kChunkFeatures);
}

Sums sum_records(std::span<const StepRecord* const> records) {
  Sums sums;
  for (const StepRecord* record : records) {
    sums.heads += static_cast<double>(record->heads.size());
    for (const HeadFigures& head : record->heads) {
      sums.head_rows += head.v_rows;
      sums.draws += head.draws;
      sums.recall += head.mass_recall;
      sums.routing_kl += head.routing_kl.value_or(0);
      sums.routed_heads += head.routing_kl ? 1 : 0;
    }
    sums.kv_heads += static_cast<double>(record->unions.size());
    for (const UnionFigures& rows : record->unions) {
      sums.k_rows += rows.k_rows;
      sums.k_vectors += rows.k_rows * rows.k_features / record->head_dim;
      sums.v_rows += rows.v_rows;
      sums.context_rows += record->context;
    }
    add_features(*record, sums);
    // A latent row, K and V in one, counts as a read of both.
    sums.routing_vectors += record->statistics.routing_vectors * (record->latent ? 2 : 1);
  }
  return sums;
}

Statistics mean_statistics(std::span<const StepRecord* const> records) {
  Statistics sum;
  for (const StepRecord* record : records) sum += record->statistics;
  return scaled(sum, 1.0 / static_cast<double>(records.size()));
}

}  // namespace

double nearest_rank(std::span<const double> sorted, double percent) {
  KVSIM_CHECK(!sorted.empty());
  const auto count = static_cast<double>(sorted.size());
  const auto rank = static_cast<std::size_t>(std::max(1.0, std::ceil(percent / 100 * count)));
  return sorted[std::min(rank, sorted.size()) - 1];
}

RunSummary summarize(std::span<const StepRecord* const> records) {
  KVSIM_CHECK(!records.empty());
  RunSummary summary;
  summary.error = summarize_errors(records);
  const Sums sums = sum_records(records);
  summary.selection.rows_per_head_mean = ratio(sums.head_rows, sums.heads);
  summary.selection.union_rows_mean = ratio(sums.v_rows, sums.kv_heads);
  summary.selection.union_fraction = ratio(sums.v_rows, sums.context_rows);
  summary.selection.gqa_amplification = ratio(sums.head_rows, sums.v_rows);
  summary.selection.mass_recall_mean = ratio(sums.recall, sums.heads);
  summary.selection.draws_per_head_mean = ratio(sums.draws, sums.heads);
  if (sums.routed_heads > 0) {
    summary.selection.routing_kl_mean = sums.routing_kl / sums.routed_heads;
  }
  summary.selection.k_union_fraction = ratio(sums.k_rows, sums.context_rows);
  summary.selection.k_feature_fraction_head = ratio(sums.head_features, sums.all_head_features);
  summary.selection.k_feature_fraction_group = ratio(sums.group_features, sums.all_group_features);
  summary.selection.k_chunk_fraction_group = ratio(sums.chunks, sums.all_chunks);
  summary.logical_access_fraction =
      ratio(sums.k_vectors + sums.v_rows + sums.routing_vectors, 2 * sums.context_rows);
  for (const StepRecord* record : records) {
    summary.context_mean += record->context / static_cast<double>(records.size());
    for (const HeadFigures& head : record->heads) summary.empty_heads += head.empty ? 1 : 0;
  }
  summary.statistics = mean_statistics(records);
  return summary;
}

std::vector<const StepRecord*> records_of(const MethodRun& run) {
  std::vector<const StepRecord*> records;
  for (const StepRecord& record : run.records) records.push_back(&record);
  return records;
}

std::vector<const StepRecord*> records_of(const MethodRun& run, int layer) {
  std::vector<const StepRecord*> records;
  for (const StepRecord& record : run.records) {
    if (record.layer == layer) records.push_back(&record);
  }
  return records;
}

}  // namespace kvsim
