#pragma once

#include "core/device_limits.h"
#include "kernels/shape.h"
#include "kernels/work.h"

namespace kvsim {

/// How a persistent kernel deals the tokens of all (sequence, KV head) teams out over its CTAs, one
/// per SM: whole CTAs per team while there are fewer teams than SMs, contiguous ranges over the
/// team boundaries when there are more.
struct SplitPlan {
  LaunchShape launch;
  double imbalance = 1;  // units of the longest CTA over the mean
  double partials = 0;   // partial results per query head of a group that must be merged; 0 = none
};

/// `unit_tokens` is the smallest piece a CTA takes.
SplitPlan plan_splits(const Shape& shape, const DeviceLimits& limits, int unit_tokens);

/// Bytes of one head's partial result: output, maximum and sum in float32.
inline double partial_row_bytes(const Shape& shape) { return 4.0 * (shape.v_head_dim + 2); }

/// The queries of the whole batch, read once.
void read_query(Stage& stage, const Shape& shape);

/// When the plan splits teams: one partial result per CTA and query head.
void write_partials(Stage& stage, const Shape& shape, const SplitPlan& plan);

/// The last stage: the CTA that arrives last merges a team's partials and writes the output;
/// without partials the output is written by `stage` itself.
void finish_output(Work& work, const Shape& shape, const SplitPlan& plan);

/// Σ ceil(context / tile) over the batch.
double tiles_of(const Shape& shape, int tile);

/// Query heads over the whole batch.
inline double query_heads(const Shape& shape) { return shape.batch() * shape.q_heads; }

/// Whether a step's scores (float32, `rows` of them over all heads) outgrow the half of shared
/// memory that streaming leaves them, and wait in global memory instead.
inline constexpr int kScoreBytes = 4;
inline bool scores_spill(const DeviceLimits& limits, double rows) {
  return kScoreBytes * rows > 0.5 * static_cast<double>(limits.shared_bytes_per_sm) * limits.sms;
}

/// Operations of `rows` dot products (summed over heads), scale included.
void count_scores(Stage& stage, const Shape& shape, double rows);

/// Operations of a softmax over `rows` scores (summed over heads) and the weighted sum of as many V
/// rows, normalised at the end.
void count_weighted_values(Stage& stage, const Shape& shape, double rows);

}  // namespace kvsim
