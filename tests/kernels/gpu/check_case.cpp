#include "tests/kernels/gpu/check_case.cuh"

#include <algorithm>

#include "kernels/santa/rule.h"
#include "tests/catch.h"

namespace kvsim::testing {
namespace {

constexpr double kScoreError = 1e-3;
// Weights of all rows are rounded to 16 bits for the tensor cores, the others add up in float32.
constexpr double kDenseError = 4e-3;
constexpr double kSampledError = 1e-4;
constexpr double kStoredError = 4e-3;  // of an output that is stored in 16 bits
constexpr double kHalfError = 1e-3;    // the same two where all 16 bits are fp16

/// Nothing is drawn of V, and weights are rounded to 16 bits for the tensor cores.
bool rounds_weights(const NamedMethod& method) {
  return method.name == "dense" || method.name == "bernoulli-qk" || method.name == "eta" ||
         method.name == "santapp";
}

/// Σ of the counts of all heads: every sample is a row, and every one of the keys of top-k.
std::int64_t draws_of(const NamedMethod& method, const MeasureCase& shape) {
  if (rounds_weights(method)) return 0;
  constexpr std::int64_t kMost = 1 << 20;
  const bool topk = method.name == "topk";
  const std::int64_t asked = method.parameters.integer(topk ? "keys" : "samples", 1, kMost);
  std::int64_t draws = 0;
  for (const std::int64_t context : shape.contexts) {
    std::int64_t of_head = topk ? std::min(asked, context) : asked;
    if (method.name == "santa-flash") {  // at least one in each tile
      const std::int64_t given = method.parameters.integer("tile", 0, 256);
      const std::int64_t tile = given > 0 ? given : budget_tile(shape.prompt_tokens());
      of_head = std::max(asked, (context + tile - 1) / tile);
    }
    draws += shape.q_heads * of_head;
  }
  return draws;
}

}  // namespace

bool check_case(const std::string& spec, const GpuCase& gpu_case, const DeviceLimits& limits,
                int repeats) {
  const NamedMethod method = make_method(spec);
  const CaseResult result = run_case(method, gpu_case, limits, repeats);
  INFO(spec << " on " << gpu_case.text());
  if (!result.refusal.empty()) {
    WARN("refused: " << result.refusal);
    return false;
  }
  double tolerance = rounds_weights(method) ? kDenseError : kSampledError;
  if (gpu_case.output != ElementType::kFloat32) tolerance = kStoredError;
  const bool half =
      gpu_case.shape.type == ElementType::kFloat16 && gpu_case.output != ElementType::kBfloat16;
  if (half) tolerance = std::min(tolerance, kHalfError);
  REQUIRE(result.relative_l2.has_value());
  CHECK(*result.relative_l2 < tolerance);
  CHECK(result.different_launches == 0);
  CHECK(result.score_error < kScoreError);
  CHECK(result.differences == 0);
  CHECK(result.scores_dumped == (method.name != "dense"));
  // How many rows pass a threshold, or are in the teams drawn, only the rule can tell.
  const bool known = method.name != "eta" && method.name != "santapp";
  if (known) CHECK(result.draws == draws_of(method, gpu_case.shape));
  return true;
}

}  // namespace kvsim::testing
