#include "kernels/santapp/panels.h"

namespace kvsim::santapp {

Panels::Panels(const Points& points, std::span<const std::int32_t> chosen) : dim_(points.dim) {
  const std::size_t panels = (chosen.size() + kPanel - 1) / kPanel;
  values_.resize(panels * kPanel * static_cast<std::size_t>(dim_));
  norms_.resize(panels * kPanel);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const float* point = points.point(chosen[i]);
    float* column = values_.data() + i / kPanel * kPanel * static_cast<std::size_t>(dim_);
    for (int d = 0; d < dim_; ++d)
      column[static_cast<std::size_t>(d) * kPanel + i % kPanel] = point[d];
    norms_[i] = squared_norm(point, dim_);
  }
}

}  // namespace kvsim::santapp
