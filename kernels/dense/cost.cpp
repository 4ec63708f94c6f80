#include "kernels/dense/cost.h"

#include "kernels/split_plan.h"

namespace kvsim {
namespace {

class DenseCost : public Implementation {
 public:
  explicit DenseCost(bool published) : published_(published) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    const SplitPlan plan = plan_splits(shape, limits, dense_split_unit(shape.head_dim));
    Work work;
    Stage& stream = work.add_stage("stream_kv", Boundary::kKernelLaunch);
    stream.launch = plan.launch;
    stream.imbalance = plan.imbalance;
    stream.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
    stream.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
    read_query(stream, shape);
    count_scores(stream, shape, s.k_requests);
    count_weighted_values(stream, shape, s.v_requests);
    finish_output(work, shape, plan,
                  published_ ? Merge{Boundary::kKernelLaunch, partial_row_bytes(shape)}
                             : Merge{Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
    return work;
  }

 private:
  bool published_;
};

}  // namespace

std::unique_ptr<Implementation> make_dense_cost(const std::string& implementation) {
  return std::make_unique<DenseCost>(implementation == "published");
}

}  // namespace kvsim
