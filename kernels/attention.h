#pragma once

#include <span>
#include <vector>

#include "kernels/method.h"

namespace kvsim {

/// Exact logits of a group in float32. Each dot product is a fixed tree over 32 lanes, so the bits
/// depend neither on threads nor on the vector width.
Scores exact_scores(const StepView& view);

/// The same for other queries than the view's: logits of head g = scales[g] * queries[g].k, capped.
/// `queries` [group, head_dim], `scales` [group].
Scores scores_of(const StepView& view, std::span<const float> queries,
                 std::span<const float> scales);

/// scale * Σ weights * V rows per head, in float32, rows in ascending order: [group, v_head_dim].
std::vector<float> weighted_values(const StepView& view, const Selection& selection);

/// Dense attention in float64 from the stored values, the truth that errors are measured against:
/// outputs [group, v_head_dim] and softmax weights [group, rows] (sink mass removed).
struct Float64Attention {
  std::vector<double> outputs;
  std::vector<double> weights;
};
Float64Attention float64_attention(const StepView& view);

}  // namespace kvsim
