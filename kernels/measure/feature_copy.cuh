#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/buffer.cuh"
#include "kernels/device/step.h"

namespace kvsim {

/// Room for one copy of a step's K feature by feature, for kernels that want one.
class FeatureCopy {
 public:
  FeatureCopy() = default;
  /// For steps with at most `most_tokens` in a sequence.
  FeatureCopy(int batch, int kv_heads, int head_dim, std::int64_t most_tokens);

  const FeatureMajorKeys& keys() const { return keys_; }
  /// Starts to copy the step's K, for itself to use on the same stream.
  void fill(DeviceStep& step, cudaStream_t stream) const;

 private:
  FeatureMajorKeys keys_;
  DeviceBuffer<std::uint16_t> data_;
};

}  // namespace kvsim
