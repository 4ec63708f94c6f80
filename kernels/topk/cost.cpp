#include "kernels/topk/cost.h"

#include "kernels/split_plan.h"

namespace kvsim {
namespace {

constexpr int kUnitTokens = 64;
constexpr int kRadixPasses = 4;  // 8 bits of a 32-bit key each
constexpr int kHistogramBytes = 2048 * 4;

void count_select(Stage& stage, const Statistics& s) {
  stage.count(Op::kCompare, Phase::kSelect, kRadixPasses * s.k_requests);
  stage.count(Op::kAdd, Phase::kSelect, kRadixPasses * s.k_requests);
}

class TopKCost : public Implementation {
 public:
  explicit TopKCost(bool published) : published_(published) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    const SplitPlan plan = plan_splits(shape, limits, kUnitTokens);
    const double heads = query_heads(shape);
    const double scores = s.k_requests;
    Work work;
    Stage& stream = work.add_stage("stream_k", Boundary::kKernelLaunch);
    stream.launch = plan.launch;
    stream.imbalance = plan.imbalance;
    read_query(stream, shape);
    stream.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
    count_scores(stream, shape, s.k_requests);
    const bool stashed = published_ || scores_spill(limits, scores);
    if (stashed) stream.write(Tensor::kStash, kScoreBytes, scores);
    if (!published_) stream.write(Tensor::kMetadata, kHistogramBytes, heads);

    Stage& select =
        work.add_stage("select", published_ ? Boundary::kKernelLaunch : Boundary::kTeamExchange);
    select.launch = plan.launch;
    count_select(select, s);
    if (stashed) {
      select.read(Tensor::kStash, kScoreBytes, scores, published_ ? kRadixPasses * scores : scores);
    }
    if (published_) {
      select.write(Tensor::kMetadata, 8, s.v_requests);  // index and score
    } else {
      select.read(Tensor::kMetadata, kHistogramBytes, heads, heads);
    }

    Stage& gather =
        work.add_stage("gather_v", published_ ? Boundary::kKernelLaunch : Boundary::kTeamExchange);
    gather.launch = plan.launch;
    gather.dependent_trips = 1;
    if (published_) gather.read(Tensor::kMetadata, 8, s.v_requests, s.v_requests);
    gather.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
    gather.heads_gather = true;
    count_weighted_values(gather, shape, s.v_requests);
    write_partials(gather, shape, plan);
    finish_output(work, shape, plan);
    return work;
  }

 private:
  bool published_;
};

}  // namespace

std::unique_ptr<Implementation> make_topk_cost(const std::string& implementation) {
  return std::make_unique<TopKCost>(implementation == "published");
}

}  // namespace kvsim
