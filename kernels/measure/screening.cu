#include <algorithm>
#include <limits>

#include "kernels/measure/oracle.cuh"
#include "kernels/measure/screening.cuh"
#include "kernels/measure/selection.h"

namespace kvsim {
namespace {

std::int64_t longest_context(const DeviceStep& step) {
  const std::span<const std::int32_t> contexts = contexts_of(step);
  return *std::max_element(contexts.begin(), contexts.end());
}

}  // namespace

BoundDump::BoundDump(const Kernel& kernel, DeviceStep& step) {
  step.bound_stride = kernel.bound_stride(step);
  if (step.bound_stride == 0) return;
  bounds_ =
      DeviceBuffer<float>(static_cast<std::size_t>(step.batch * step.q_heads * step.bound_stride));
  bounds_.fill_bytes(0xFF);
  check_cuda(cudaDeviceSynchronize(), "poisoning bounds");
  step.bounds = bounds_.data();
}

std::vector<float> BoundDump::download() const {
  std::vector<float> bounds(bounds_.size());
  bounds_.download(bounds);
  return bounds;
}

PreparedScreening::PreparedScreening(const ThresholdSource& source, const Kernel& kernel,
                                     const DeviceLimits& limits, DeviceStep step,
                                     std::byte* workspace, cudaStream_t stream) {
  prepared_rows_ = step.prepared_rows = longest_context(step);
  prepared_ = DeviceBuffer<std::byte>(kernel.prepared_bytes(step));
  kernel.prepare(step, prepared_rows_, prepared_.data(), stream);
  // A launch that takes no block of its own accord tells the bounds.
  host_thresholds_.assign(static_cast<std::size_t>(step.batch * step.q_heads),
                          std::numeric_limits<float>::infinity());
  thresholds_ = DeviceBuffer<float>(host_thresholds_.size());
  thresholds_.upload(host_thresholds_);
  attach(step);
  DeviceStep asked = step;
  const BoundDump dump(kernel, asked);  // waits for the upload
  kernel.launch(asked, limits, workspace, stream);
  check_cuda(cudaStreamSynchronize(stream), "bounding blocks");
  const std::vector<float> bounds = dump.download();
  const std::vector<float> queries = host_queries(step);
  host_thresholds_.clear();
  for (int b = 0; b < step.batch; ++b) {
    for (int h = 0; h < step.kv_heads; ++h) {
      const StepView view = view_of_group(step, {{}, queries}, b, h);
      const auto first = static_cast<std::size_t>(b * step.q_heads + h * step.group());
      const Screening screening =
          screening_of(view, first, {bounds, {}, kernel.screened_block(), asked.bound_stride});
      const std::vector<float> own = source.thresholds(view, h, screening.bounds);
      host_thresholds_.insert(host_thresholds_.end(), own.begin(), own.end());
    }
  }
  thresholds_.upload(host_thresholds_);
  check_cuda(cudaDeviceSynchronize(), "uploading thresholds");  // was on another stream
}

void PreparedScreening::attach(DeviceStep& step) const {
  step.prepared = prepared_.data();
  step.prepared_rows = prepared_rows_;
  step.thresholds = thresholds_.data();
}

}  // namespace kvsim
