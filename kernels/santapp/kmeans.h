#pragma once

#include <cstdint>
#include <vector>

#include "kernels/santapp/panels.h"

namespace kvsim::santapp {

/// Points of a batch, at most; passes over as many points as there are, at most (max_iter); batches
/// without improvement after which it ends; and points that are sampled to seed centres.
inline constexpr std::int64_t kBatch = 4096;
inline constexpr std::int64_t kPasses = 100;
inline constexpr int kPatience = 10;
constexpr std::int64_t seeding_sample(std::int64_t points, std::int64_t centres) {
  const std::int64_t batch = points < kBatch ? points : kBatch;
  const std::int64_t wanted = 3 * (centres > 3 * batch ? centres : batch);
  return wanted < points ? wanted : points;
}

struct Clusters {
  std::vector<float> centres;        // [centres, dim]
  std::vector<std::int32_t> labels;  // [points]: the nearest centre; of equals the first
  double inertia = 0;                // Σ of the points' squared distances to it
  std::int64_t batches = 0;          // that were drawn until the inertia fell no more
};

/// Mini-batch k-means (Sculley, WWW 2010) as scikit-learn's MiniBatchKMeans runs it with the
/// published settings (section 2.2): batches of 4096, one k-means++ initialisation, max_iter 100,
/// tol 0, max_no_improvement 10, reassignment_ratio 0.01. Not its random numbers, so not its bits.
/// The result depends on neither threads nor vector width. Centres may end without points.
Clusters mini_batch_kmeans(const Points& points, std::int64_t centres, std::uint64_t seed);

}  // namespace kvsim::santapp
