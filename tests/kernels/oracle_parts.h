#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "core/float16.h"
#include "tests/kernels/oracle.h"

// What several oracles do.

namespace kvsim::testing {

inline double element(const RowsView& view, std::int64_t row, int column) {
  return bf16_to_float(reinterpret_cast<const std::uint16_t*>(view.row(row))[column]);
}

inline void enter(Phase phase) { OpTally::current().phase = phase; }

inline Counted largest(const std::vector<Counted>& values) {
  Counted result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (result < values[i]) result = values[i];
  }
  return result;
}

inline std::vector<std::int64_t> all_rows(const StepView& view) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(view.rows()));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  return rows;
}

inline std::vector<Counted> exact_row_scores(const StepView& view, int g,
                                             const std::vector<std::int64_t>& rows) {
  enter(Phase::kScore);
  std::vector<Counted> result;
  for (const std::int64_t row : rows) {
    Counted sum;
    for (int c = 0; c < view.k.dim; ++c) {
      const Counted product =
          Counted(element(view.k, row, c)) * Counted(view.query(g)[static_cast<std::size_t>(c)]);
      sum = c == 0 ? product : sum + product;
    }
    result.push_back(sum * Counted(view.scale));
  }
  return result;
}

/// e^(s - max), unnormalised.
inline std::vector<Counted> exponentials(const std::vector<Counted>& scores) {
  enter(Phase::kSoftmax);
  const Counted highest = largest(scores);
  std::vector<Counted> result;
  for (const Counted s : scores) result.push_back(Counted::exp(s - highest));
  return result;
}

/// Weighted sum over rows that have a weight, normalised by a multiplication each.
inline void weighted_output(const StepView& view, const std::vector<Counted>& weights,
                            const std::vector<std::int64_t>& rows, Counted sum, OracleHead& head) {
  enter(Phase::kValue);
  std::vector<Counted> output(static_cast<std::size_t>(view.v.dim));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    head.weights[rows[i]] = weights[i].value() / sum.value();
    for (int c = 0; c < view.v.dim; ++c) {
      const Counted product = weights[i] * Counted(element(view.v, rows[i], c));
      Counted& out = output[static_cast<std::size_t>(c)];
      out = i == 0 ? product : out + product;
    }
  }
  enter(Phase::kMerge);
  const Counted inverse = Counted::reciprocal(sum);
  for (const Counted out : output) head.output.push_back((out * inverse).value());
}

/// Attention to `rows` by the softmax of their scores.
inline OracleHead softmax_head(const StepView& view, const std::vector<Counted>& scores,
                               const std::vector<std::int64_t>& rows) {
  const std::vector<Counted> weights = exponentials(scores);
  Counted sum = weights[0];
  for (std::size_t i = 1; i < weights.size(); ++i) sum = sum + weights[i];
  OracleHead head;
  weighted_output(view, weights, rows, sum, head);
  return head;
}

}  // namespace kvsim::testing
