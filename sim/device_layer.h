#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/measure/gpu_layer.h"
#include "sim/layer_replay.h"

namespace kvsim {

/// Why no kernel takes the layer, "its K is float32, but kernels take float16 or bfloat16"; empty
/// if kernels may.
std::string device_refusal(const TraceLayer& layer);

/// Copies the layer, which must outlive the result, to the GPU. Throws RuntimeError that names
/// trace and layer if its kernels refuse it, and as layer_on_gpu does.
std::unique_ptr<GpuLayer> upload_layer(const LayerJob& job, const TraceLayer& layer);

/// One launch of a method: steps and seeds as a replay on the CPU has them.
GpuLaunch device_launch(const LayerJob& job, const LayerInfo& info, std::size_t method,
                        std::uint64_t seed, std::int64_t step);

/// What a launch gave, and the thresholds [q_heads] it was given, if its method screens blocks.
struct LaunchResult {
  const GpuOutput& output;
  std::span<const float> thresholds;
};

/// What a kernel selected for one KV head. The rows that a sampler's kernel drew must be those that
/// the method's rule draws from the kernel's own scores, and those of blocks that it took the
/// rule's from its own bounds; else it throws RuntimeError that names `where` (trace, layer, step),
/// head and row: a bug of ours. A method that reads everything reads all rows. The state is only
/// told of the selection.
Selection device_selection(const NamedMethod& method, const StepView& view,
                           const LaunchResult& launch, State* state, const std::string& where);

}  // namespace kvsim
