#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/method.h"

namespace kvsim::eta {

enum class Spread { kEnvelope, kFlat };

/// The records of one KV head's full blocks (section 3.1): what a device stores, in floats of the
/// same values.
class Records {
 public:
  /// `block` is a power of two, at least 2.
  Records(int block, Spread spread) : block_(block), spread_(spread) {}

  /// Adds the blocks that `keys` fills and that are not there yet.
  void extend(const RowsView& keys);

  std::int64_t blocks() const { return static_cast<std::int64_t>(norms_.size()); }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t bytes() const;

  /// Rounded to 16 bits: [blocks, padded head size]; of a spread the square, which is exact.
  std::span<const float> centroids() const { return centroids_; }
  std::span<const float> variances() const { return variances_; }
  std::span<const float> norms() const { return norms_; }  // [blocks], of the largest keys

  /// Bounds of all heads (eq. 7), after the view's scale and cap: [group, blocks].
  std::vector<float> bounds(const StepView& view, float z) const;

 private:
  void add_block(const float* keys);  // [block, padded]

  int block_;
  Spread spread_;
  int dim_ = 0;
  int padded_ = 0;
  std::int64_t tokens_ = 0;
  std::vector<float> centroids_;
  std::vector<float> variances_;
  std::vector<float> norms_;
};

}  // namespace kvsim::eta
