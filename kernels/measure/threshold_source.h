#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/measure/gpu.h"
#include "kernels/method.h"

namespace kvsim {

/// Sets the thresholds of a step that is measured: from a kernel's bounds, or from what its trace
/// has, as a replay does.
class ThresholdSource {
 public:
  /// `traced` is null for random data. The arguments must outlive the source.
  explicit ThresholdSource(const Method& method, const TracedStep* traced = nullptr);

  /// Of a KV head's group. Throws RuntimeError if the method needs what is not there.
  std::vector<float> thresholds(StepView view, int kv_head, std::span<const float> bounds) const;

 private:
  const Method& method_;
  const LearnedParameters* learned_ = nullptr;
  std::vector<std::unique_ptr<State>> states_;  // [kv_heads], after the prompt; empty: no trace
};

}  // namespace kvsim
