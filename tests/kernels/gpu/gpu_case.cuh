#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/device/kernel.h"
#include "kernels/measure/gpu.h"
#include "kernels/measure/kv_copies.cuh"
#include "kernels/method.h"

namespace kvsim::testing {

/// A shape that kernels are checked on.
struct GpuCase {
  MeasureCase shape;
  float logit_cap = 0;
  bool sinks = false;
  ElementType output = ElementType::kFloat32;
  Range loud_rows = {};     // whose keys are 16 times as long (HND only)
  std::int64_t suffix = 0;  // rows behind the prompt of the longest sequence

  std::string text() const;  // "2 x 32/8/128 bf16 paged:16, contexts 5000+300, …"
};

// Shapes of random rows, in the three layouts and with what an output may be asked for.
GpuCase hnd(std::vector<std::int32_t> contexts, int q_heads, int kv_heads, int head_dim,
            ElementType type = ElementType::kBfloat16, double query_sd = 1);
GpuCase nhd(GpuCase base);
GpuCase paged(int tokens, GpuCase base);
GpuCase with(GpuCase base, float logit_cap, bool sinks, ElementType output);

/// All shapes (over 60), and a few of them for variants of a method.
std::vector<GpuCase> all_cases();
std::vector<GpuCase> few_cases();
/// Keys of one chunk of 8 x 64 tokens, not the first, are all that bounds of blocks let pass.
GpuCase loud_chunk_case(int group, int head_dim, ElementType type);

/// What a launch gave, beside what it should have.
struct CaseResult {
  std::string refusal;     // of the kernel; empty if it ran
  double score_error = 0;  // largest difference from float64; infinite where a score is missing
  bool scores_dumped = false;
  std::int64_t differences = 0;       // rows whose count is not the rule's
  std::int64_t draws = 0;             // Σ counts
  std::optional<double> relative_l2;  // of the output, given the selection; empty: not finite
  int different_launches = 0;         // later launches whose bytes were not the first's
};

/// Runs a method on a case with dumps, then `repeats` times without over the same workspace, each
/// time into a poisoned output. Throws RuntimeError if CUDA fails.
CaseResult run_case(const NamedMethod& method, const GpuCase& gpu_case, const DeviceLimits& limits,
                    int repeats);

}  // namespace kvsim::testing
