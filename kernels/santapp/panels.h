#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace kvsim::santapp {

/// `count` points of `dim` numbers, one after the other; does not own them.
struct Points {
  const float* values = nullptr;
  std::int64_t count = 0;
  int dim = 0;

  const float* point(std::int64_t i) const { return values + i * dim; }
};

inline constexpr int kPanel = 16;

/// Points in panels of 16 that lie side by side, [panel][dim][16], with zeros for what a last panel
/// lacks: vector lanes are points, so each product is summed in the order of the dimensions, and
/// the bits do not depend on the vector width.
class Panels {
 public:
  /// The points that `chosen` names.
  Panels(const Points& points, std::span<const std::int32_t> chosen);

  std::int64_t count() const { return static_cast<std::int64_t>(norms_.size()) / kPanel; }
  int dim() const { return dim_; }
  const float* panel(std::int64_t p) const { return values_.data() + p * dim_ * kPanel; }
  /// ‖x‖² of a panel's 16 points.
  const float* norms(std::int64_t p) const { return norms_.data() + p * kPanel; }

 private:
  int dim_;
  std::vector<float> values_;
  std::vector<float> norms_;
};

/// ‖x‖², of the same bits as the product of x with itself that `panel_dots` has.
inline float squared_norm(const float* x, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum = std::fma(x[d], x[d], sum);
  return sum;
}

inline constexpr int kTile = 6;  // 12 of the 16 vector registers add up

template <int kRows>
void panel_dots_of(const float* panel, const float* rows, int dim, float (*dots)[kPanel]) {
  float sums[kRows][kPanel] = {};
  for (int d = 0; d < dim; ++d) {
    for (int r = 0; r < kRows; ++r) {
      const float value = rows[r * dim + d];
#pragma omp simd
      for (int l = 0; l < kPanel; ++l) {
        sums[r][l] = std::fma(value, panel[d * kPanel + l], sums[r][l]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) std::copy_n(sums[r], kPanel, dots[r]);
}

/// dots[r][l] = row r · point l of a panel, for up to kTile rows of `dim` numbers.
inline void panel_dots(const float* panel, const float* rows, int count, int dim,
                       float (*dots)[kPanel]) {
  switch (count) {
    case 6:
      return panel_dots_of<6>(panel, rows, dim, dots);
    case 5:
      return panel_dots_of<5>(panel, rows, dim, dots);
    case 4:
      return panel_dots_of<4>(panel, rows, dim, dots);
    case 3:
      return panel_dots_of<3>(panel, rows, dim, dots);
    case 2:
      return panel_dots_of<2>(panel, rows, dim, dots);
    default:
      return panel_dots_of<1>(panel, rows, dim, dots);
  }
}

}  // namespace kvsim::santapp
