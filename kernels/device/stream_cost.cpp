#include "kernels/device/stream_cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/blocks.h"

namespace kvsim {
namespace {

constexpr double kBlockBytes = 4.0 * device::kBlockTokens;  // of one head

}  // namespace

double StreamPlan::most_spilled() const {
  return std::max(0.0, split.most_units() - resident_blocks);
}

double StreamPlan::rows_of_cta(const Shape& shape, double rows) const {
  const double teams = shape.batch() * shape.kv_heads;
  return rows * split.units / (teams * split.team_units);  // over (team, CTA) pairs
}

StreamPlan plan_stream_cost(const Shape& shape, const DeviceLimits& limits, bool fused) {
  const bool large = limits.shared_bytes_per_sm >= kLargeSharedBytes;
  StreamPlan plan;
  plan.warps = device::stream_warps(large);
  plan.ring_bytes = device::stream_ring_bytes(head_class(shape.head_dim), large);
  plan.split = plan_splits(shape, limits, kBlockSplitUnit, fused);
  const double most = plan.split.most_units();
  const std::int64_t resident =
      resident_blocks(static_cast<std::int64_t>(most), shape.group(),
                      static_cast<int>(plan.ring_bytes), limits.shared_bytes_per_sm);
  plan.resident_blocks = fused ? static_cast<double>(std::max<std::int64_t>(resident, 0)) : 0;
  plan.spilled_blocks = plan.split.units_beyond(plan.resident_blocks);
  return plan;
}

Stage& add_stream(Work& work, const Shape& shape, const StreamPlan& plan) {
  Stage& stream = work.add_stage("stream_k", Boundary::kKernelLaunch);
  stream.launch = plan.split.launch;
  stream.imbalance = plan.split.imbalance;
  read_query(stream, shape);
  if (plan.spilled_blocks > 0) {
    stream.write(Tensor::kStash, kBlockBytes, plan.spilled_blocks * shape.group());
  }
  return stream;
}

void read_spilled(Stage& stage, const Shape& shape, const StreamPlan& plan, double times) {
  if (plan.spilled_blocks <= 0) return;
  const double rows = plan.spilled_blocks * shape.group();
  stage.read(Tensor::kStash, kBlockBytes, rows, times * rows);
}

}  // namespace kvsim
