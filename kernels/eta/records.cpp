#include "kernels/eta/records.h"

#include <algorithm>
#include <cmath>

#include "core/float16.h"
#include "kernels/eta/rule.h"
#include "kernels/lanes.h"
#include "kernels/logit_cap.h"

namespace kvsim::eta {
namespace {

float in_16_bits(float value) { return fp16_to_float(float_to_fp16(value)); }

}  // namespace

void Records::extend(const RowsView& keys) {
  dim_ = keys.dim;
  padded_ = padded_lanes(dim_);
  tokens_ = keys.rows;
  std::vector<float> rows(static_cast<std::size_t>(block_ * padded_));
  for (std::int64_t j = blocks(); j < tokens_ / block_; ++j) {
    load_rows(keys, j * block_, (j + 1) * block_, padded_, rows.data());
    add_block(rows.data());
  }
}

void Records::add_block(const float* keys) {
  for (int i = 0; i < padded_; ++i) {
    const auto key = [&](int t) { return keys[t * padded_ + i]; };
    const float mean = centroid(key, block_);
    const float spread = in_16_bits(spread_ == Spread::kFlat ? flat_spread(key, block_, mean)
                                                             : envelope_spread(key, block_, mean));
    centroids_.push_back(in_16_bits(mean));
    variances_.push_back(spread * spread);
  }
  float largest = 0;
  for (int t = 0; t < block_; ++t) {
    largest = std::max(largest, norm_squared(keys + t * padded_, padded_));
  }
  norms_.push_back(stored_norm(largest));
}

std::int64_t Records::bytes() const { return blocks() * record_bytes(dim_); }

std::vector<float> Records::bounds(const StepView& view, float z) const {
  const auto count = static_cast<std::size_t>(blocks());
  std::vector<float> result(static_cast<std::size_t>(view.group) * count);
  if (count == 0) return result;
  std::vector<float> query(static_cast<std::size_t>(padded_), 0.0f);
  std::vector<float> squares(query.size());
  std::vector<float> variances(count);
  for (int g = 0; g < view.group; ++g) {
    std::ranges::copy(view.query(g), query.begin());
    std::ranges::transform(query, squares.begin(), [](float q) { return q * q; });
    float* bounds = result.data() + static_cast<std::size_t>(g) * count;  // at first the products
    score_rows(centroids_.data(), query.data(), blocks(), padded_, 1, bounds);
    score_rows(variances_.data(), squares.data(), blocks(), padded_, 1, variances.data());
    const float norm = std::sqrt(norm_squared(query.data(), padded_));
#pragma omp simd
    for (std::size_t j = 0; j < count; ++j) {
      bounds[j] = block_bound(bounds[j], std::sqrt(variances[j]), norm, norms_[j], z, view.scale);
    }
  }
  if (view.logit_cap > 0) {  // monotonic, so a bound stays one
    for (float& bound : result) bound = capped_logit(bound, view.logit_cap);
  }
  return result;
}

}  // namespace kvsim::eta
