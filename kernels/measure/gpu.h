#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device_limits.h"
#include "kernels/measure/gpu_layer.h"
#include "kernels/row_ranges.h"
#include "kernels/statistics.h"
#include "traces/rows_view.h"
#include "traces/trace.h"

// Timing of our kernels on the GPU of this machine (docs/timing.md), for code that knows no CUDA:
// builds without CUDA kernels link, and say so when asked.

namespace kvsim {

/// The GPU that kernels run on.
struct GpuInfo {
  std::string name;
  DeviceLimits limits;
  double max_sm_mhz = 0;
  std::string driver;   // "580.95.05"; the CUDA version it supports if there is no NVML
  std::string runtime;  // CUDA runtime of this build, "13.0"
};

/// What the board says of itself; 0 where NVML is absent.
struct BoardReadings {
  double sm_mhz = 0;
  double memory_mhz = 0;
  double temperature_c = 0;
  double power_w = 0;
};

enum class MeasureLayout { kHnd, kNhd, kPaged };

/// One decode step of one layer of a trace.
struct TracedStep {
  std::string trace;                        // its path
  std::shared_ptr<const TraceLayer> layer;  // what no kernel takes (device_refusal) is not here
  std::int64_t step = 0;
  Range rows;                      // that the step sees
  std::int64_t prompt_tokens = 0;  // of those rows
};

/// One layer's attention of one decode step, from a trace or with random data: K and V normal with
/// standard deviation 1, queries with `query_sd` (1 = flat softmax, 4 and more = peaky).
struct MeasureCase {
  std::vector<std::int32_t> contexts;  // one per sequence
  int q_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  ElementType type = ElementType::kBfloat16;
  MeasureLayout layout = MeasureLayout::kHnd;
  int page_tokens = 16;  // of a paged layout; a power of two
  double query_sd = 1;
  std::optional<TracedStep> traced = {};  // shape and type are its own then

  std::int32_t max_context() const;
  std::int64_t prompt_tokens() const { return traced ? traced->prompt_tokens : max_context(); }
  std::int64_t total_context() const;
  int group() const { return q_heads / kv_heads; }
  /// Bytes of one row of K or V of one KV head.
  double row_bytes() const { return 2.0 * head_dim; }
};

struct MeasureRequest {
  MeasureCase shape;
  std::vector<std::string> methods;  // specs; the first is the baseline
  std::uint64_t seed = 0;
  int least_samples = 30;
  double seconds = 2;       // after the least samples: until the noise is below 0.5 %, or this long
  bool check_only = false;  // results are checked, nothing is timed
};

/// Sequential reads of as many bytes as a method must read, timed in turn with it.
struct ReadCeiling {
  std::string reads;  // "k+v", "k", "k+v rows"
  double bytes = 0;
  std::string launch;              // the fastest of the launches tried
  std::vector<double> samples_us;  // as MethodTimes'
};

/// Times per call of one method; sample i of everything in a result was taken in the same round.
struct MethodTimes {
  std::string spec;
  std::vector<double> back_to_back_us;
  std::vector<double> spaced_us;      // a tiny kernel between calls; its own time is subtracted
  std::vector<std::size_t> ceilings;  // indices into MeasureResult; the first is of the floor bytes
  double k_bytes = 0;                 // of K, that must be read
  double floor_bytes = 0;             // K and V rows that must be read, each once
  Statistics statistics;              // sums over batch and heads, of the checked call
  bool statistics_measured = false;   // else the most the method can read
  std::optional<double> relative_l2;  // against float64; empty if the output is not finite
  bool repeatable = false;            // every checked call gave the same bytes
  /// V rows whose count differs from the rule's, given the kernel's own scores; empty where the
  /// kernel dumps none.
  std::optional<std::int64_t> selection_differences;
};

struct MeasureResult {
  std::vector<MethodTimes> methods;  // in the order asked for
  std::vector<ReadCeiling> ceilings;
  double spacer_us = 0;      // what was subtracted from each spaced time
  int copies = 0;            // of K and V, taken in turn
  double rotated_bytes = 0;  // of K in all copies
  bool stream_held = true;   // while a graph was enqueued, so no launch is in a time
  int throttled_samples = 0;
  double sm_mhz = 0;  // median over the samples, counted by the SMs themselves
  BoardReadings board;
};

/// Throws RuntimeError: "this build has no CUDA kernels", "no CUDA device: …".
GpuInfo gpu_info();
/// Throws RuntimeError as above or if CUDA fails, UsageError if a method has no kernel for the
/// shape.
MeasureResult measure_on_gpu(const MeasureRequest& request);

/// How builds with CUDA offer the above.
struct MeasureBackend {
  std::function<GpuInfo()> info;
  std::function<MeasureResult(const MeasureRequest&)> measure;
  std::function<std::unique_ptr<GpuLayer>(const GpuLayerInput&, std::span<const NamedMethod>)>
      layer;
};
/// The one of this build; its members are empty in builds without CUDA.
MeasureBackend& measure_backend();

}  // namespace kvsim
