#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/estimate.h"
#include "core/philox.h"
#include "kernels/method.h"

// Kernels on one layer of a trace, for code that knows no CUDA (as kernels/measure/gpu.h).

namespace kvsim {

/// One layer of a trace as kernels take it, in host memory that must outlive the GpuLayer.
struct GpuLayerInput {
  std::string where;                          // begins messages: "a.h5: layer 3"
  ElementType type = ElementType::kBfloat16;  // of q, k and v
  int q_heads = 1;
  int kv_heads = 1;
  int head_dim = 0;                    // of K and V
  std::int64_t tokens = 0;             // rows of the cache
  std::int64_t most_rows = 0;          // that a step sees
  std::int64_t steps = 0;              // of q
  const std::byte* k = nullptr;        // [kv_heads, tokens, head_dim]
  const std::byte* v = nullptr;        // the same
  const std::byte* q = nullptr;        // [steps, q_heads, head_dim], not scaled
  std::span<const float> sink_logits;  // [q_heads] or empty
  float scale = 1;
  float logit_cap = 0;             // 0 = none
  std::int64_t prompt_tokens = 0;  // fixes tile widths
  bool windowed = false;           // some step does not see the first rows
};

/// One step under one method.
struct GpuLaunch {
  std::size_t method = 0;                  // index into the layer's methods
  std::int64_t step = 0;                   // whose queries
  Range rows;                              // of the cache
  RandomStream random;                     // of the first head
  std::span<const float> thresholds = {};  // [q_heads]: of methods that screen blocks
};

/// Thresholds of a layer's methods at some steps: [methods] of [steps, q_heads], nothing of those
/// that screen no blocks.
using StepThresholds = std::vector<std::vector<float>>;

/// What a launch gave, in memory that is valid until the second enqueue after its own.
struct GpuOutput {
  std::span<const float> output;          // [q_heads, head_dim]
  std::span<const float> scores;          // [q_heads, rows]; NaN where the kernel dumps none
  std::span<const std::uint32_t> counts;  // [q_heads, rows]: how often each was drawn
  std::span<const float> bounds = {};     // [q_heads, …]: what the kernel dumps beside them
};

/// A layer whose K, V and q are on the GPU or on their way.
class GpuLayer {
 public:
  virtual ~GpuLayer() = default;

  /// What a method keeps of the prompt, of every KV head; before its first launch. Uploaded if its
  /// kernel wants it, once: repeats share it.
  virtual void keep_states(std::size_t method, std::span<const State* const> states) = 0;
  /// Starts a launch and returns. At most two may be under way; `take` waits for the older one.
  virtual void enqueue(const GpuLaunch& launch) = 0;
  virtual GpuOutput take() = 0;
  /// µs of one call per method, median and its 95 % interval: calls take the queries of `steps` in
  /// turn, and those of `thresholds`, over the rows of `launch`. Cold: every call reads another
  /// copy of K and V, as many as keep the rows out of the L2; else always the same. Nothing may be
  /// under way.
  virtual std::vector<Estimate> times(const GpuLaunch& launch, std::span<const std::int64_t> steps,
                                      const StepThresholds& thresholds, bool cold) = 0;
};

/// Copies a layer to the GPU; the last copies may still be under way when it returns, and other
/// layers' kernels run beside them. Throws RuntimeError if the build has no CUDA kernels, there is
/// no GPU, CUDA fails, or a method's kernel refuses the layer.
std::unique_ptr<GpuLayer> layer_on_gpu(const GpuLayerInput& input,
                                       std::span<const NamedMethod> methods);

}  // namespace kvsim
