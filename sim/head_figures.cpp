#include "sim/head_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include "core/error.h"

namespace kvsim {
namespace {

/// Eight interleaved sums: a fixed order, and no chain of dependent additions.
double sum_of(std::span<const double> values) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  const std::size_t whole = values.size() - values.size() % kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] += values[i + l];
  }
  for (std::size_t i = whole; i < values.size(); ++i) lanes[i - whole] += values[i];
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

double ratio_of_norms(double error, double truth) {
  if (truth > 0) return std::sqrt(error / truth);
  return error > 0 ? 1 : 0;
}

}  // namespace

GroupTruth::GroupTruth(const StepView& view, const std::string& where)
    : attention_(float64_attention(view)),
      rows_(static_cast<std::size_t>(view.rows())),
      dim_(static_cast<std::size_t>(view.v.dim)) {
  const auto& outputs = attention_.outputs;
  if (!std::all_of(outputs.begin(), outputs.end(), [](double o) { return std::isfinite(o); })) {
    fail<RuntimeError>("{}: the attention is not finite: NaN or infinity in q, k or v", where);
  }
  const std::span<const double> weights = attention_.weights;
  for (std::size_t g = 0; g < static_cast<std::size_t>(view.group); ++g) {
    mass_.push_back(sum_of(weights.subspan(g * rows_, rows_)));
  }
}

HeadFigures GroupTruth::compare(int head, const HeadSelection& selection,
                                std::span<const float> outputs) const {
  const auto g = static_cast<std::size_t>(head);
  double truth = 0;
  double other = 0;
  double dot = 0;
  double error = 0;
  for (std::size_t i = g * dim_; i < (g + 1) * dim_; ++i) {
    const double o = attention_.outputs[i];
    const double approximation = outputs[i];
    truth += o * o;
    other += approximation * approximation;
    dot += o * approximation;
    error += (o - approximation) * (o - approximation);
  }
  const std::span<const double> weights(attention_.weights.data() + g * rows_, rows_);
  double recalled = 0;
  for (const Range& range : selection.v_rows.ranges()) {
    recalled += sum_of(weights.subspan(static_cast<std::size_t>(range.begin),
                                       static_cast<std::size_t>(range.end - range.begin)));
  }
  HeadFigures figures;
  figures.relative_l2 = ratio_of_norms(error, truth);
  figures.cosine = truth > 0 && other > 0 ? dot / (std::sqrt(truth) * std::sqrt(other)) : 0;
  figures.mass_recall = mass_[g] > 0 ? recalled / mass_[g] : 0;
  figures.k_rows = static_cast<double>(selection.k_rows.size());
  figures.k_features = static_cast<double>(selection.k_features.size());
  figures.v_rows = static_cast<double>(selection.v_rows.size());
  figures.draws = static_cast<double>(selection.draws);
  figures.empty = selection.v_rows.empty();
  return figures;
}

double GroupTruth::divergence(int head, std::span<const double> log_proposal) const {
  const double* weights = attention_.weights.data() + static_cast<std::size_t>(head) * rows_;
  double mass = 0;
  double sum = 0;
  for (std::size_t i = 0; i < log_proposal.size(); ++i) {
    if (weights[i] <= 0) continue;  // underflow
    mass += weights[i];
    sum += weights[i] * (std::log(weights[i]) - log_proposal[i]);
  }
  return mass > 0 ? sum / mass - std::log(mass) : 0;
}

void GroupTruth::add_error(int head, std::span<const float> outputs, ErrorSum& sum) const {
  const std::size_t first = static_cast<std::size_t>(head) * dim_;
  sum.add(std::span<const double>(attention_.outputs).subspan(first, dim_),
          outputs.subspan(first, dim_));
}

}  // namespace kvsim
