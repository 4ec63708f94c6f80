#include "kernels/dense/softmax.h"

#include <algorithm>

#include "core/exact_math.h"
#include "kernels/lanes.h"

namespace kvsim {
namespace {

constexpr std::size_t kTile = 256;

float sum_tile(std::span<const float> values) {
  alignas(64) float lane[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) lane[l] += values[i + static_cast<std::size_t>(l)];
  }
  for (std::size_t l = 0; i < values.size(); ++i, ++l) lane[l] += values[i];
  return sum_lanes(lane);
}

}  // namespace

Softmax softmax_weights(std::span<const float> scores, float sink) {
  float highest = sink;
#pragma omp simd reduction(max : highest)
  for (std::size_t i = 0; i < scores.size(); ++i) highest = std::max(highest, scores[i]);
  Softmax result{std::vector<float>(scores.size()), 0};
#pragma omp simd
  for (std::size_t i = 0; i < scores.size(); ++i) {
    result.weights[i] = exp_nonpositive(scores[i] - highest);
  }
  double sum =
      exp_nonpositive(sink - highest);  // tiles in order: the same bits on any thread count
  const std::span<const float> weights = result.weights;
  for (std::size_t begin = 0; begin < weights.size(); begin += kTile) {
    sum += sum_tile(weights.subspan(begin, std::min(kTile, weights.size() - begin)));
  }
  result.inverse_sum = static_cast<float>(1.0 / sum);
  return result;
}

}  // namespace kvsim
