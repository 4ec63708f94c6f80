#include "kernels/dense/cost.h"

#include "kernels/split_plan.h"

namespace kvsim {
namespace {

constexpr int kUnitTokens = 16;

void count_attention(Stage& stage, const Shape& shape, const Statistics& s) {
  const double heads = heads_of(shape);
  count_scores(stage, shape, s.k_requests);
  stage.count(Op::kCompare, Phase::kSoftmax, s.k_requests - heads);
  stage.count(Op::kAdd, Phase::kSoftmax, 2 * s.k_requests - heads);  // subtract maximum, sum
  stage.count(Op::kExp, Phase::kSoftmax, s.k_requests);
  stage.count(Op::kMultiply, Phase::kValue, s.v_requests * shape.v_head_dim);
  stage.count(Op::kAdd, Phase::kValue, (s.v_requests - heads) * shape.v_head_dim);
  stage.count(Op::kMultiply, Phase::kMerge, heads * (shape.v_head_dim + 1));  // times 1 / sum
}

class DenseCost : public Implementation {
 public:
  explicit DenseCost(Boundary merge) : merge_(merge) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    const SplitPlan plan = plan_splits(shape, limits, kUnitTokens);
    Work work;
    Stage& stream = work.add_stage("stream_kv", Boundary::kKernelLaunch);
    stream.launch = plan.launch;
    stream.imbalance = plan.imbalance;
    stream.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
    stream.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
    add_query_and_partials(stream, shape, plan);
    count_attention(stream, shape, s);
    finish_output(work, shape, plan);
    if (plan.partials > 0) work.stages.back().before = merge_;
    return work;
  }

 private:
  Boundary merge_;
};

}  // namespace

std::unique_ptr<Implementation> make_dense_cost(const std::string& implementation) {
  return std::make_unique<DenseCost>(implementation == "ours" ? Boundary::kTicket
                                                              : Boundary::kKernelLaunch);
}

}  // namespace kvsim
