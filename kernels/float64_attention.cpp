#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "kernels/attention.h"

namespace kvsim {
namespace {

using MatrixD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::int64_t kBlockRows = 128;

/// Calls visit(begin, block) with float64 copies of `view`'s rows, 128 at a time.
template <typename Visit>
void for_each_block(const RowsView& view, Visit visit) {
  MatrixF block(kBlockRows, view.dim);
  for (std::int64_t begin = 0; begin < view.rows; begin += kBlockRows) {
    const std::int64_t end = std::min(begin + kBlockRows, view.rows);
    load_rows(view, begin, end, view.dim, block.data());
    visit(begin, block.topRows(end - begin).cast<double>().eval());
  }
}

/// Softmax of each column, the mass of a sink logit removed.
void softmax_columns(MatrixD& logits, std::span<const float> sink_logits) {
  for (Eigen::Index g = 0; g < logits.cols(); ++g) {
    auto column = logits.col(g).array();
    double highest = column.maxCoeff();
    double sink = 0;
    if (!sink_logits.empty()) {
      const double logit = sink_logits[static_cast<std::size_t>(g)];
      highest = std::max(highest, logit);
      sink = std::exp(logit - highest);
    }
    column = (column - highest).exp();
    column /= column.sum() + sink;
  }
}

}  // namespace

Float64Attention float64_attention(const StepView& view) {
  const MatrixD queries =
      Eigen::Map<const MatrixF>(view.queries.data(), view.group, view.k.dim).cast<double>() *
      static_cast<double>(view.scale);
  const MatrixD queries_t = queries.transpose();
  MatrixD weights(view.rows(), view.group);
  for_each_block(view.k, [&](std::int64_t begin, const MatrixD& keys) {
    weights.middleRows(begin, keys.rows()).noalias() = keys * queries_t;
  });
  if (view.logit_cap > 0) {
    const double cap = view.logit_cap;
    weights = cap * (weights.array() / cap).tanh();
  }
  softmax_columns(weights, view.sink_logits);
  MatrixD outputs = MatrixD::Zero(view.group, view.v.dim);
  for_each_block(view.v, [&](std::int64_t begin, const MatrixD& values) {
    outputs.noalias() += weights.middleRows(begin, values.rows()).transpose() * values;
  });
  Float64Attention result;
  result.outputs.assign(outputs.data(), outputs.data() + outputs.size());
  const MatrixD by_head = weights.transpose();
  result.weights.assign(by_head.data(), by_head.data() + by_head.size());
  return result;
}

}  // namespace kvsim
