#pragma once

#include <limits>
#include <span>
#include <vector>

#include "kernels/method.h"

namespace kvsim {

/// e^(score - highest) per row, and 1 / (their sum + the sink's).
struct Softmax {
  std::vector<float> weights;
  float inverse_sum = 0;
};

inline constexpr float kNoSink = -std::numeric_limits<float>::infinity();

/// The group's sink logit of head g, -inf where the model has none.
inline float sink_logit(const StepView& view, int g) {
  return view.sink_logits.empty() ? kNoSink : view.sink_logits[static_cast<std::size_t>(g)];
}

/// Softmax over `scores` and a sink that takes mass but has no row.
Softmax softmax_weights(std::span<const float> scores, float sink);

}  // namespace kvsim
