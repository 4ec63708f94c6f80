#include <omp.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include "kernels/santapp/kmeans.h"
#include "kernels/santapp/seeding.h"
#include "tests/catch.h"
#include "traces/gaussian.h"

namespace kvsim::testing {
namespace {

using santapp::Clusters;
using santapp::mini_batch_kmeans;
using santapp::Points;

/// Points around some centres, in turn: normal numbers times `spread` and `noise`.
std::vector<float> blobs(std::int64_t count, int dim, std::int64_t centres, float spread,
                         float noise) {
  std::vector<float> means(static_cast<std::size_t>(centres * dim));
  std::vector<float> points(static_cast<std::size_t>(count * dim));
  fill_gaussian(RandomStream{.seed = 7}, 0, means);
  fill_gaussian(RandomStream{.seed = 8}, 0, points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i] = noise * points[i] + spread * means[i % means.size()];
  }
  return points;
}

double squared_distance(const float* a, const float* b, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += (double{a[d]} - b[d]) * (double{a[d]} - b[d]);
  return sum;
}

/// In float64: each point's label is its nearest centre, and the inertia is what that gives.
void check_assignment(const Points& points, const Clusters& found) {
  REQUIRE(found.labels.size() == static_cast<std::size_t>(points.count));
  const auto centres = static_cast<std::int64_t>(found.centres.size()) / points.dim;
  double inertia = 0;
  int wrong = 0;
  for (std::int64_t i = 0; i < points.count; ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t c = 0; c < centres; ++c) {
      const float* centre = found.centres.data() + c * points.dim;
      least = std::min(least, squared_distance(points.point(i), centre, points.dim));
    }
    const std::int32_t label = found.labels[static_cast<std::size_t>(i)];
    const double own = squared_distance(
        points.point(i), found.centres.data() + std::int64_t{label} * points.dim, points.dim);
    const double norm = santapp::squared_norm(points.point(i), points.dim);
    wrong += own > least + 4e-6 * norm ? 1 : 0;  // else as near as float32 can tell
    inertia += own;
  }
  CHECK(wrong == 0);
  CHECK(found.inertia == Approx(inertia).epsilon(1e-5));
}

TEST_CASE("santapp k-means: products do not depend on how points lie in panels") {
  for (const int dim : {1, 3, 80}) {
    const std::vector<float> values = blobs(21, dim, 4, 1, 1);
    const Points points{values.data(), 21, dim};
    std::vector<std::int32_t> chosen;
    for (int i = 0; i < 37; ++i) chosen.push_back(i * 5 % 21);
    const santapp::Panels panels(points, chosen);
    REQUIRE(panels.count() == 3);
    for (int count = 1; count <= santapp::kTile; ++count) {
      for (std::size_t i = 0; i < 48; ++i) {
        const auto p = static_cast<std::int64_t>(i / 16);
        float dots[santapp::kTile][santapp::kPanel];
        santapp::panel_dots(panels.panel(p), points.point(2), count, dim, dots);
        const float norm = i < 37 ? santapp::squared_norm(points.point(chosen[i]), dim) : 0.0f;
        CHECK(panels.norms(p)[i % 16] == norm);
        for (int r = 0; r < count; ++r) {
          float sum = 0;  // in the order of the dimensions
          for (int d = 0; d < dim && i < 37; ++d) {
            sum = std::fma(points.point(2 + r)[d], points.point(chosen[i])[d], sum);
          }
          CHECK(dots[r][i % 16] == sum);
        }
      }
    }
  }
}

TEST_CASE("santapp k-means: clusters that lie apart are found") {
  const int dim = 24;
  for (const std::int64_t centres : {2, 7, 30}) {
    for (const std::int64_t count : {300, 900, 5000}) {  // one batch is all of them, or is not
      INFO(centres << " clusters of " << count << " points");
      const std::vector<float> values = blobs(count, dim, centres, 10, 0.1f);
      const Points points{values.data(), count, dim};
      const Clusters found = mini_batch_kmeans(points, centres, 0);
      check_assignment(points, found);
      const std::set<std::int32_t> used(found.labels.begin(), found.labels.end());
      CHECK(used.size() == static_cast<std::size_t>(centres));
      int astray = 0;
      for (std::size_t i = 0; i < found.labels.size(); ++i) {
        astray += found.labels[i] == found.labels[i % static_cast<std::size_t>(centres)] ? 0 : 1;
      }
      CHECK(astray == 0);
    }
  }
}

TEST_CASE("santapp k-means: as good as scikit-learn's") {
  // MiniBatchKMeans 1.9.1 with these settings has an inertia of 165776 to 166250 with seeds 0 to 4.
  const std::vector<float> values = blobs(6000, 32, 90, 1, 1);
  const Points points{values.data(), 6000, 32};
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Clusters found = mini_batch_kmeans(points, 6000 / 16, seed);
    check_assignment(points, found);
    CHECK(found.inertia < 1.01 * 166037);
    CHECK(found.batches > 11);  // the first, and ten without a better one
    CHECK(found.batches < 100 * 6000 / 4096);
  }
}

TEST_CASE("santapp k-means: the seed decides, threads do not") {
  const std::vector<float> values = blobs(4000, 64, 50, 1, 1);
  const Points points{values.data(), 4000, 64};
  const auto run = [&](std::uint64_t seed) { return mini_batch_kmeans(points, 250, seed); };
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  REQUIRE(santapp::threads_for(std::int64_t{1} << 40) == 1);
  const Clusters one = run(0);
  const Clusters other = run(1);
  omp_set_num_threads(4);
  REQUIRE(santapp::threads_for(4000 * 250 * 64) > 1);
  const Clusters four = run(0);
  bool nested_alone = false;
  Clusters nested;
#pragma omp parallel num_threads(2)
  {
#pragma omp single
    {
      nested_alone = santapp::threads_for(std::int64_t{1} << 40) == 1;
      nested = run(0);
    }
  }
  omp_set_num_threads(before);
  CHECK(nested_alone);
  CHECK(one.labels == four.labels);
  CHECK(one.centres == four.centres);
  CHECK(one.inertia == four.inertia);
  CHECK(one.labels == nested.labels);
  CHECK(one.centres == nested.centres);
  CHECK(one.labels != other.labels);
}

TEST_CASE("santapp k-means: equal points share a centre, and centres may be left over") {
  const int dim = 5;
  std::vector<float> values;
  for (int i = 0; i < 200; ++i) {
    for (int d = 0; d < dim; ++d) values.push_back(static_cast<float>(i % 3 * (d + 1)) * 0.3f);
  }
  const Points points{values.data(), 200, dim};
  for (const std::int64_t centres : {1, 3, 5, 200}) {
    const Clusters found = mini_batch_kmeans(points, centres, 0);
    check_assignment(points, found);
    const std::set<std::int32_t> used(found.labels.begin(), found.labels.end());
    CHECK(used.size() == static_cast<std::size_t>(std::min<std::int64_t>(centres, 3)));
    for (const std::int32_t label : used) {  // the first of equal centres
      const float* own = found.centres.data() + label * dim;
      for (std::int32_t c = 0; c < label; ++c) {
        CHECK_FALSE(std::equal(own, own + dim, found.centres.data() + c * dim));
      }
    }
  }
}

TEST_CASE("santapp k-means: as many centres as points") {
  const std::vector<float> values = blobs(90, 6, 90, 1, 1);
  for (const std::int64_t count : {1, 2, 90}) {
    const Points points{values.data(), count, 6};
    const Clusters found = mini_batch_kmeans(points, count, 0);
    check_assignment(points, found);
    const Clusters one = mini_batch_kmeans(points, 1, 0);
    CHECK(found.inertia <= one.inertia * 0.2 + 1e-6);
  }
}

TEST_CASE("santapp k-means: centres that hardly any point is near move to where points are") {
  // k-means++ takes each outlier of the sample for a centre; as they stay alone, most of those
  // centres end among the other points.
  const int dim = 8;
  std::vector<float> values = blobs(4000, dim, 1, 0, 1);
  for (std::size_t i = 0; i < 30; ++i) {
    for (std::size_t d = 0; d < dim; ++d) values[i * 130 * dim + d] *= 1e3f;
  }
  const Points points{values.data(), 4000, dim};
  const Clusters found = mini_batch_kmeans(points, 40, 0);
  check_assignment(points, found);
  std::vector<int> sizes(40, 0);
  for (const std::int32_t label : found.labels) ++sizes[static_cast<std::size_t>(label)];
  CHECK(std::ranges::count_if(sizes, [](int size) { return size >= 20; }) > 15);
}

}  // namespace
}  // namespace kvsim::testing
