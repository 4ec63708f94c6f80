#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/buffer.cuh"
#include "kernels/device/step.h"
#include "kernels/measure/feature_copy.cuh"
#include "kernels/measure/gpu.h"

namespace kvsim {

/// Enough copies of K (`k_bytes` are read of each) to keep every call's rows out of the L2, if the
/// memory has room for so many of `stored_bytes` (K and V). Throws RuntimeError if not for one.
int cold_copies(double k_bytes, double stored_bytes, std::int64_t l2_bytes);

/// Copies of one case's K, V, queries and output in device memory, all with the trace's data or all
/// with random data of their own that depend on the seed alone (not on the layout nor on a launch).
/// What lies between and behind the rows is 0xFF: NaN. Outputs begin as 0xFF too.
class KvCopies {
 public:
  /// Throws RuntimeError if the memory does not suffice.
  KvCopies(const MeasureCase& shape, std::uint64_t seed, int copies, cudaStream_t stream);

  /// Gives every step a copy of its K feature by feature.
  void add_feature_copies(cudaStream_t stream);

  int copies() const { return copies_; }
  /// The step that reads copy `index`.
  const DeviceStep& step(int index) const { return steps_[static_cast<std::size_t>(index)]; }
  std::int64_t bytes_per_tensor() const { return copy_elements_ * 2; }
  std::int64_t output_bytes() const { return query_elements_ * 2; }
  /// Fills the output with 0xFF; done when it returns, as is all other work of the device.
  void poison_output(int index);
  std::vector<std::byte> output(int index) const;

 private:
  KvTensor tensor(const std::uint16_t* data) const;
  void shuffle_pages(std::uint64_t seed);
  void fill_random(std::uint64_t seed, cudaStream_t stream);
  void fill_from_trace(cudaStream_t stream);
  DeviceStep make_step(std::uint64_t seed, int index) const;

  MeasureCase shape_;
  int copies_ = 0;
  std::int64_t pages_per_sequence_ = 0;
  std::int64_t copy_elements_ = 0;
  std::int64_t query_elements_ = 0;
  DeviceBuffer<std::uint16_t> k_;
  DeviceBuffer<std::uint16_t> v_;
  DeviceBuffer<std::uint16_t> q_;
  DeviceBuffer<std::uint16_t> output_;
  DeviceBuffer<float> sinks_;          // [q_heads], or nothing
  DeviceBuffer<std::int32_t> pages_;   // [copies, batch, pages_per_sequence]
  std::vector<FeatureCopy> features_;  // of each copy, or nothing
  std::vector<DeviceStep> steps_;
};

}  // namespace kvsim
