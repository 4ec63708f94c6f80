#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/buffer.cuh"
#include "kernels/device/kernel.h"
#include "kernels/measure/gpu.h"
#include "kernels/method.h"

namespace kvsim {

/// What a method keeps of a step's prompts, on the host and as its kernel wants it.
class KeptStates {
 public:
  KeptStates() = default;
  /// Prepares all prompts of a step, or of a trace (null: none) those that are kept with it, and
  /// uploads them. Waits for the stream. Throws RuntimeError if the method cannot.
  KeptStates(const Method& method, const Kernel& kernel, const DeviceStep& step,
             const TracedStep* traced, cudaStream_t stream);

  /// Points the step, or one of fewer of its sequences, to it.
  void attach(DeviceStep& step) const;

  std::span<const std::unique_ptr<State>> states() const { return states_; }  // [batch, kv_heads]

 private:
  std::vector<std::unique_ptr<State>> states_;
  DeviceBuffer<std::byte> prepared_;
  std::int64_t prepared_rows_ = 0;
};

}  // namespace kvsim
