#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "kernels/attention.h"

namespace kvsim {
namespace {

using MatrixD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::int64_t kBlockRows = 32;  // in float64 a block stays in the L1 cache

/// Calls visit(begin, block) with float64 copies of `view`'s rows, a block at a time.
template <typename Visit>
void for_each_block(const RowsView& view, Visit visit) {
  MatrixF block(kBlockRows, view.dim);
  MatrixD wide(kBlockRows, view.dim);
  for (std::int64_t begin = 0; begin < view.rows; begin += kBlockRows) {
    const std::int64_t end = std::min(begin + kBlockRows, view.rows);
    load_rows(view, begin, end, view.dim, block.data());
    wide = block.cast<double>();
    visit(begin, wide.topRows(end - begin));
  }
}

/// Softmax of each row, the mass of a sink logit removed.
void softmax_rows(MatrixD& logits, std::span<const float> sink_logits) {
  for (Eigen::Index g = 0; g < logits.rows(); ++g) {
    auto row = logits.row(g).array();
    double highest = row.maxCoeff();
    double sink = 0;
    if (!sink_logits.empty()) {
      const double logit = sink_logits[static_cast<std::size_t>(g)];
      highest = std::max(highest, logit);
      sink = std::exp(logit - highest);
    }
    row = (row - highest).exp();
    row /= row.sum() + sink;
  }
}

}  // namespace

Float64Attention float64_attention(const StepView& view) {
  const Eigen::Index group = view.group;
  const MatrixD queries =
      Eigen::Map<const MatrixF>(view.queries.data(), group, view.k.dim).cast<double>() *
      static_cast<double>(view.scale);
  MatrixD weights(group, view.rows());
  for_each_block(view.k, [&](std::int64_t begin, const auto& keys) {
    for (Eigen::Index g = 0; g < group; ++g) {
      weights.row(g).segment(begin, keys.rows()).transpose().noalias() =
          keys * queries.row(g).transpose();
    }
  });
  if (view.logit_cap > 0) {
    const double cap = view.logit_cap;
    weights = cap * (weights.array() / cap).tanh();
  }
  softmax_rows(weights, view.sink_logits);
  MatrixD outputs = MatrixD::Zero(group, view.v.dim);
  for_each_block(view.v, [&](std::int64_t begin, const auto& values) {
    for (Eigen::Index g = 0; g < group; ++g) {
      outputs.row(g).noalias() += weights.row(g).segment(begin, values.rows()) * values;
    }
  });
  Float64Attention result;
  result.outputs.assign(outputs.data(), outputs.data() + outputs.size());
  result.weights.assign(weights.data(), weights.data() + weights.size());
  return result;
}

}  // namespace kvsim
