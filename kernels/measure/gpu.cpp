#include "kernels/measure/gpu.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace kvsim {

std::int32_t MeasureCase::max_context() const {
  return *std::max_element(contexts.begin(), contexts.end());
}

std::int64_t MeasureCase::total_context() const {
  return std::accumulate(contexts.begin(), contexts.end(), std::int64_t{0});
}

MeasureBackend& measure_backend() {
  static MeasureBackend backend;
  return backend;
}

GpuInfo gpu_info() {
  if (!measure_backend().info) throw RuntimeError("this build has no CUDA kernels");
  return measure_backend().info();
}

MeasureResult measure_on_gpu(const MeasureRequest& request) {
  if (!measure_backend().measure) throw RuntimeError("this build has no CUDA kernels");
  return measure_backend().measure(request);
}

std::unique_ptr<GpuLayer> layer_on_gpu(const GpuLayerInput& input,
                                       std::span<const NamedMethod> methods) {
  if (!measure_backend().layer) throw RuntimeError("this build has no CUDA kernels");
  return measure_backend().layer(input, methods);
}

}  // namespace kvsim
