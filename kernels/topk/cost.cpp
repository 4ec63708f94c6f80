#include "kernels/topk/cost.h"

#include <cmath>

#include "kernels/device/blocks.h"
#include "kernels/device/stream_cost.h"
#include "kernels/topk/radix.h"

namespace kvsim {
namespace {

using device::kRounds;

constexpr double kHistogramBytes = 8.0 * device::kBins;  // a launch number with every count

void count_select(Stage& stage, const Statistics& s) {
  stage.count(Op::kCompare, Phase::kSelect, kRounds * s.k_requests);
  stage.count(Op::kAdd, Phase::kSelect, kRounds * s.k_requests);
}

void gather_rows(Stage& stage, const Shape& shape, const Statistics& s) {
  stage.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
  stage.heads_gather = true;
  count_weighted_values(stage, shape, s.v_requests);
}

class TopKCost : public Implementation {
 public:
  explicit TopKCost(bool published) : published_(published) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    return published_ ? published(shape, s, limits) : ours(shape, s, limits);
  }

 private:
  static Work ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits);
  static Work published(const Shape& shape, const Statistics& s, const DeviceLimits& limits);

  bool published_;
};

/// One launch. A round of the radix select is two exchanges: histograms to the CTA that adds them
/// up, and its digit back. All rounds count: one head of the layer whose scores near the k-th agree
/// in their first digits holds up its team. The last digit comes with the gather's boundary.
Work TopKCost::ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) {
  const StreamPlan plan = plan_stream_cost(shape, limits);
  const int group = static_cast<int>(shape.group());
  const int parts = 1 << device::gather_parts_log2(group, plan.warps);  // warps to a head
  const double turns =
      std::ceil(static_cast<double>(group) * parts / plan.warps);  // heads to a warp
  Work work;
  Stage& stream = add_stream(work, shape, plan);
  stream.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
  count_scores(stream, shape, s.k_requests);

  const double histograms = kRounds * plan.split.partials * shape.group();
  Stage& select = work.add_stage("select", Boundary::kTeamExchange);
  select.boundaries = histograms > 0 ? 2 * kRounds - 1 : plan.split.waits;
  select.launch = plan.split.launch;
  select.cache_trips = kRounds * turns * std::ceil(plan.most_spilled() / parts);
  select.write(Tensor::kPartial, kHistogramBytes, histograms);
  select.read(Tensor::kPartial, kHistogramBytes, histograms, histograms);
  read_spilled(select, shape, plan, kRounds);
  count_select(select, s);

  Stage& gather = work.add_stage("gather_v", Boundary::kTeamExchange);
  gather.boundaries = plan.split.waits;
  gather.launch = plan.split.launch;
  gather.cache_trips = turns * plan.most_spilled();
  const double rows_of_warp = plan.rows_of_cta(shape, s.v_requests) / (group * parts);  // of a head
  gather.load_rounds =
      plan.split.most_teams * turns * std::ceil(rows_of_warp / device::kSelectedRowsAtOnce);
  read_spilled(gather, shape, plan, parts);
  gather_rows(gather, shape, s);
  finish_output(work, shape, plan.split,
                {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
  return work;
}

/// Scores, selection and gather in launches of their own.
Work TopKCost::published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) {
  constexpr double kSelectedBytes = 8;  // index and score
  const SplitPlan plan = plan_splits(shape, limits, kBlockSplitUnit);
  const double scores = s.k_requests;
  Work work;
  Stage& stream = work.add_stage("stream_k", Boundary::kKernelLaunch);
  stream.launch = plan.launch;
  stream.imbalance = plan.imbalance;
  read_query(stream, shape);
  stream.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
  stream.write(Tensor::kStash, kScoreBytes, scores);
  count_scores(stream, shape, s.k_requests);

  Stage& select = work.add_stage("select", Boundary::kKernelLaunch);
  select.launch = plan.launch;
  select.read(Tensor::kStash, kScoreBytes, scores, kRounds * scores);
  select.write(Tensor::kMetadata, kSelectedBytes, s.v_requests);
  count_select(select, s);

  Stage& gather = work.add_stage("gather_v", Boundary::kKernelLaunch);
  gather.launch = plan.launch;
  gather.dependent_trips = 1;
  gather.read(Tensor::kMetadata, kSelectedBytes, s.v_requests, s.v_requests);
  gather_rows(gather, shape, s);
  finish_output(work, shape, plan, {Boundary::kTicket, partial_row_bytes(shape)});
  return work;
}

}  // namespace

std::unique_ptr<Implementation> make_topk_cost(const std::string& implementation) {
  return std::make_unique<TopKCost>(implementation == "published");
}

}  // namespace kvsim
