#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/measure/gpu.h"
#include "models/machine.h"
#include "sim/json.h"

namespace kvsim {

/// What `kvsim measure` was asked: every method on every case, in several processes.
struct MeasureOptions {
  std::string program_version;
  std::string program_commit;
  std::string date;  // UTC, "2026-01-31T12:00:00Z"
  std::vector<MeasureCase> cases;
  std::vector<std::string> methods;  // specs; the first is the baseline
  std::string gpu;                   // preset of the prediction
  Machine machine;
  std::uint64_t seed = 0;  // process p takes seed + p
  int least_samples = 30;
  double seconds = 2;
  bool check_only = false;  // no times: their keys are missing from the rows
  std::vector<DefaultUsed> defaults;
};

/// What one process measured: one result per case.
struct MeasuredProcess {
  GpuInfo gpu;
  std::vector<MeasureResult> cases;
};

/// Measures all cases in this process. Throws as gpu_info and measure_on_gpu do.
MeasuredProcess measure_cases(const MeasureOptions& options, int process);
/// A process's results with every sample, as its parent reads them.
Json json_of(const MeasuredProcess& process);
/// Throws Json::exception if it is not what json_of gives.
MeasuredProcess measured_process_from(const Json& json);

/// The document "kvsim.measure/1" (docs/formats.md): medians over processes, paired ratios, 95 %
/// intervals, and the model's prediction beside each time.
Json measure_document(const MeasureOptions& options, std::span<const MeasuredProcess> processes);
/// What failed its checks, one line; empty if nothing did.
std::string failed_checks(const Json& document);
/// Its rows as CSV; the first columns are those of public tables of attention timings.
std::string measure_csv(const Json& document);
std::string measure_report(const Json& document);
/// Checks and bytes only, for --check.
std::string measure_check_report(const Json& document);

/// "bf16" or "fp16"; hnd, nhd or paged:TOKENS.
std::string dtype_name(ElementType type);
std::string layout_name(const MeasureCase& shape);

}  // namespace kvsim
