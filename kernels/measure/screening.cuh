#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/device/buffer.cuh"
#include "kernels/device/kernel.h"
#include "kernels/measure/threshold_source.h"

namespace kvsim {

/// What a kernel that screens blocks needs beside a step's cache: what it prepares, and thresholds
/// that the method sets, if need be from the kernel's own bounds.
class PreparedScreening {
 public:
  PreparedScreening() = default;
  /// Prepares it for a step. Waits for the stream.
  PreparedScreening(const ThresholdSource& source, const Kernel& kernel, const DeviceLimits& limits,
                    DeviceStep step, std::byte* workspace, cudaStream_t stream);

  /// Points the step, or one of as many sequences and rows, to it.
  void attach(DeviceStep& step) const;

  std::span<const float> thresholds() const { return host_thresholds_; }  // [batch, q_heads]

 private:
  DeviceBuffer<std::byte> prepared_;
  std::int64_t prepared_rows_ = 0;
  DeviceBuffer<float> thresholds_;
  std::vector<float> host_thresholds_;
};

/// Room for what a kernel dumps in DeviceStep::bounds, NaN as long as nobody has written it.
class BoundDump {
 public:
  /// Points the step to it; nothing if the kernel dumps no such.
  BoundDump(const Kernel& kernel, DeviceStep& step);

  std::vector<float> download() const;  // [batch, q_heads, bound_stride]

 private:
  DeviceBuffer<float> bounds_;
};

}  // namespace kvsim
