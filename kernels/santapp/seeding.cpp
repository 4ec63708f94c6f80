#include "kernels/santapp/seeding.h"

#include <omp.h>

#include <limits>
#include <numeric>
#include <utility>

#include "core/parallel.h"

namespace kvsim::santapp {
namespace {

constexpr std::int64_t kPanelsOfBlock = 16;

/// Squared distances of all sampled points to the nearest centre, and their sums: by block of
/// points, so that the total does not depend on threads.
struct Distances {
  std::vector<float> of_points;
  std::vector<double> of_blocks;

  double total() const { return std::accumulate(of_blocks.begin(), of_blocks.end(), 0.0); }
};

class Seeding {
 public:
  Seeding(const Points& points, std::span<const std::int32_t> sample, int trials)
      : points_(points),
        sample_(sample),
        panels_(points, sample),
        blocks_((panels_.count() + kPanelsOfBlock - 1) / kPanelsOfBlock),
        now_(empty()),
        tried_(static_cast<std::size_t>(trials), empty()) {
    // What pads the last panel is at no distance, and so never drawn.
    std::fill_n(now_.of_points.begin(), sample.size(), std::numeric_limits<float>::infinity());
  }

  /// Of the sampled points named, that which brings the sum down most becomes a centre.
  void add_best(const std::vector<std::size_t>& candidates, std::vector<float>& centres) {
    try_candidates(candidates);
    std::size_t best = 0;
    for (std::size_t t = 1; t < candidates.size(); ++t) {
      if (tried_[t].total() < tried_[best].total()) best = t;
    }
    std::swap(now_, tried_[best]);
    const float* centre = point(candidates[best]);
    centres.insert(centres.end(), centre, centre + points_.dim);
  }

  /// The sampled point at a share of the summed distances.
  std::size_t at(double share) const {
    double rest = share * now_.total();
    std::size_t block = 0;
    while (block + 1 < now_.of_blocks.size() && now_.of_blocks[block] <= rest) {
      rest -= now_.of_blocks[block++];
    }
    std::size_t found = block * kPanelsOfBlock * kPanel;
    const std::size_t end = std::min(sample_.size(), found + kPanelsOfBlock * kPanel);
    for (std::size_t i = found; i < end && rest >= 0; ++i) {
      if (now_.of_points[i] > 0) found = i;  // rounding may lead beyond the last one
      rest -= static_cast<double>(now_.of_points[i]);
    }
    return found;
  }

 private:
  Distances empty() const {
    return {std::vector<float>(static_cast<std::size_t>(panels_.count() * kPanel), 0.0f),
            std::vector<double>(static_cast<std::size_t>(blocks_), 0.0)};
  }
  const float* point(std::size_t i) const { return points_.point(sample_[i]); }

  void try_candidates(const std::vector<std::size_t>& candidates) {
    rows_.clear();
    norms_.clear();
    for (const std::size_t candidate : candidates) {
      rows_.insert(rows_.end(), point(candidate), point(candidate) + points_.dim);
      norms_.push_back(squared_norm(point(candidate), points_.dim));
    }
    const std::int64_t products =
        panels_.count() * kPanel * static_cast<std::int64_t>(rows_.size());
    parallel_for(blocks_, threads_for(products), [&](std::int64_t block) {
      for (std::size_t t = 0; t < norms_.size(); t += kTile) {
        try_tile(block, t, std::min<std::size_t>(kTile, norms_.size() - t));
      }
    });
  }

  void try_tile(std::int64_t block, std::size_t first, std::size_t count) {
    double sums[kTile][kPanel] = {};
    float dots[kTile][kPanel];
    const std::int64_t end = std::min(panels_.count(), (block + 1) * kPanelsOfBlock);
    for (std::int64_t p = block * kPanelsOfBlock; p < end; ++p) {
      panel_dots(panels_.panel(p), rows_.data() + first * static_cast<std::size_t>(points_.dim),
                 static_cast<int>(count), points_.dim, dots);
      const float* now = now_.of_points.data() + p * kPanel;
      const float* point_norms = panels_.norms(p);
      for (std::size_t t = 0; t < count; ++t) {
        float* then = tried_[first + t].of_points.data() + p * kPanel;
        const float norm = norms_[first + t];
#pragma omp simd
        for (int l = 0; l < kPanel; ++l) {
          // Exactly 0 for a point itself.
          const float distance = std::fma(-2.0f, dots[t][l], point_norms[l]) + norm;
          const float nearest = std::min(now[l], std::max(distance, 0.0f));
          then[l] = nearest;
          sums[t][l] += static_cast<double>(nearest);
        }
      }
    }
    for (std::size_t t = 0; t < count; ++t) {
      tried_[first + t].of_blocks[static_cast<std::size_t>(block)] =
          std::accumulate(sums[t], sums[t] + kPanel, 0.0);
    }
  }

  Points points_;
  std::span<const std::int32_t> sample_;
  Panels panels_;
  std::int64_t blocks_;
  Distances now_;
  std::vector<Distances> tried_;  // were a candidate a centre
  std::vector<float> rows_;       // [candidates, dim]
  std::vector<float> norms_;      // of candidates
};

}  // namespace

int threads_for(std::int64_t multiplications) {
  constexpr std::int64_t kWorthwhile = std::int64_t{1} << 25;  // about 1 ms
  if (omp_in_parallel() != 0) return 1;
  return static_cast<int>(
      std::min<std::int64_t>(omp_get_max_threads(), 1 + multiplications / kWorthwhile));
}

std::vector<float> seed_centres(const Points& points, std::span<const std::int32_t> sample,
                                std::int64_t centres, const RandomStream& stream) {
  const int trials = seeding_trials(centres);
  Seeding seeding(points, sample, trials);
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(centres * points.dim));
  const auto count = static_cast<std::int64_t>(sample.size());
  std::uint32_t word = 0;
  seeding.add_best({static_cast<std::size_t>(draw_below(stream, word++, count))}, result);
  std::vector<std::size_t> candidates(static_cast<std::size_t>(trials));
  for (std::int64_t c = 1; c < centres; ++c) {
    for (std::size_t& each : candidates) each = seeding.at(stream.word(word++) * 0x1p-32);
    seeding.add_best(candidates, result);
  }
  return result;
}

}  // namespace kvsim::santapp
