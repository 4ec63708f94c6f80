#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/statistics.h"
#include "traces/trace.h"

namespace kvsim {

/// What `trace check` says of a file.
struct TraceCheck {
  std::vector<std::string> problems;  // the file is refused
  std::vector<std::string> warnings;  // it can be used, but looks wrong
  std::string summary;                // one line; empty if not even the attributes can be read

  bool good() const { return problems.empty(); }
};

/// Finds all problems of a file, not only the first, and what is implausible: constant or repeated
/// rows, attention that is uniform or saturated, outputs that do not follow from Q, K and V. Never
/// throws for a bad file. Memory is bounded by one layer.
TraceCheck check_trace(const std::string& path);

/// A learned parameter without its values.
struct ParameterReport {
  std::string name;
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> shape;
};

/// What a method prepared, without its arrays.
struct PreparedReport {
  std::string method;
  std::string settings;
  std::int64_t bytes = 0;  // of all KV heads
};

/// What `trace info` says of a layer.
struct LayerReport {
  LayerInfo info;
  LayerStatistics statistics;
  ElementType q_type = ElementType::kFloat32;
  std::int64_t kv_bytes = 0;  // K and V in memory
  std::int64_t probe_steps = 0;
  bool has_output = false;
  bool has_attention_sum = false;
  bool has_sink_logits = false;
  std::vector<ParameterReport> parameters;
  std::vector<PreparedReport> prepared;
  /// Largest relative L2 distance over heads and steps between the stored output and the attention
  /// recomputed in float64; none without output.
  std::optional<double> output_error;
};

struct TraceReport {
  TraceInfo info;
  std::int64_t file_bytes = 0;
  bool has_tokens = false;
  std::vector<LayerReport> layers;
};

/// Reads the whole file layer by layer and measures it. Throws RuntimeError for a bad file.
TraceReport describe_trace(const std::string& path, const StatisticsOptions& options = {});

/// "SmolLM2-135M-Instruct, 5 layers, 2048 + 16 tokens, 9/3 heads of 64, bfloat16".
std::string summarize(const TraceInfo& info);

/// Largest relative L2 distance over heads and steps between `layer.output` and attention in
/// float64.
std::optional<double> output_error(const TraceLayer& layer, std::int64_t prompt_tokens);

}  // namespace kvsim
