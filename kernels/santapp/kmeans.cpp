#include "kernels/santapp/kmeans.h"

#include <limits>
#include <numeric>

#include "core/parallel.h"
#include "kernels/santapp/seeding.h"

namespace kvsim::santapp {
namespace {

constexpr std::int64_t kLeastShare = 100;    // 1 / reassignment_ratio
constexpr std::int64_t kReassignEvery = 10;  // points a centre, unless some centre has none

/// Centres with their norms, [centres, dim].
struct Centres {
  std::vector<float> values;
  int dim;

  std::int64_t count() const { return static_cast<std::int64_t>(values.size()) / dim; }
  float* centre(std::int64_t c) { return values.data() + c * dim; }
  const float* centre(std::int64_t c) const { return values.data() + c * dim; }
};

struct Assignment {
  std::vector<std::int32_t> labels;
  std::vector<float> distances;  // squared

  double inertia() const { return std::accumulate(distances.begin(), distances.end(), 0.0); }
};

float squared_distance(const float* a, const float* b, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum = std::fma(a[d] - b[d], a[d] - b[d], sum);
  return sum;
}

/// The nearest centres of a panel's points so far: ‖c‖² - 2 x·c and c.
struct Best {
  float value[kPanel];
  std::int32_t label[kPanel];
};

void meet(const float (*dots)[kPanel], const float* norms, std::int64_t first, int count,
          Best& best) {
  for (int r = 0; r < count; ++r) {
    const auto label = static_cast<std::int32_t>(first + r);
#pragma omp simd
    for (int l = 0; l < kPanel; ++l) {
      const float value = std::fma(-2.0f, dots[r][l], norms[r]);
      const bool nearer = value < best.value[l];
      best.value[l] = nearer ? value : best.value[l];
      best.label[l] = nearer ? label : best.label[l];
    }
  }
}

/// Some centres at a time, which stay in the L1 cache, meet all points of a block.
std::vector<Best> nearest(const Panels& block, const Centres& centres,
                          const std::vector<float>& norms) {
  constexpr std::int64_t kSome = 8 * kTile;
  std::vector<Best> best(static_cast<std::size_t>(block.count()));
  for (Best& each : best) {
    std::fill_n(each.value, kPanel, std::numeric_limits<float>::infinity());
    std::fill_n(each.label, kPanel, 0);
  }
  float dots[kTile][kPanel];
  for (std::int64_t begin = 0; begin < centres.count(); begin += kSome) {
    const std::int64_t end = std::min(begin + kSome, centres.count());
    for (std::int64_t p = 0; p < block.count(); ++p) {
      for (std::int64_t c = begin; c < end; c += kTile) {
        const auto count = static_cast<int>(std::min<std::int64_t>(kTile, end - c));
        panel_dots(block.panel(p), centres.centre(c), count, centres.dim, dots);
        meet(dots, norms.data() + c, c, count, best[static_cast<std::size_t>(p)]);
      }
    }
  }
  return best;
}

/// Of the points that `chosen` names.
Assignment assign(const Points& points, std::span<const std::int32_t> chosen,
                  const Centres& centres) {
  constexpr std::int64_t kBlock = 16 * kPanel;
  std::vector<float> norms;
  for (std::int64_t c = 0; c < centres.count(); ++c) {
    norms.push_back(squared_norm(centres.centre(c), centres.dim));
  }
  const auto count = static_cast<std::int64_t>(chosen.size());
  Assignment result{std::vector<std::int32_t>(chosen.size()), std::vector<float>(chosen.size())};
  const std::int64_t products = count * centres.count() * centres.dim;
  parallel_for((count + kBlock - 1) / kBlock, threads_for(products), [&](std::int64_t b) {
    const auto begin = static_cast<std::size_t>(b * kBlock);
    const std::size_t some = std::min<std::size_t>(kBlock, chosen.size() - begin);
    const Panels block(points, chosen.subspan(begin, some));
    const std::vector<Best> best = nearest(block, centres, norms);
    for (std::size_t i = begin; i < begin + some; ++i) {
      const std::size_t at = i - begin;
      result.labels[i] = best[at / kPanel].label[at % kPanel];
      // Norms less products would lose the digits of clusters that lie far out.
      result.distances[i] =
          squared_distance(points.point(chosen[i]), centres.centre(result.labels[i]), points.dim);
    }
  });
  return result;
}

std::vector<std::int32_t> numbers(std::int64_t count) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

class MiniBatches {
 public:
  MiniBatches(const Points& points, std::int64_t centres, std::uint64_t seed)
      : points_(points),
        batch_(std::min(kBatch, points.count)),
        stream_{.seed = seed, .purpose = Purpose::kClusters},
        centres_{{}, points.dim},
        counts_(static_cast<std::size_t>(centres), 0) {
    const std::int64_t wanted = seeding_sample(points.count, centres);
    const auto sample = wanted < points.count ? draw(wanted) : numbers(points.count);
    centres_.values = seed_centres(points, sample, centres, next_stream());
  }

  Clusters run() {
    Clusters result;
    const std::int64_t most = kPasses * points_.count / batch_;
    while (result.batches < most) {
      ++result.batches;
      const double inertia = step();
      // The first is that of the initial centres.
      if (result.batches > 1 && settled(inertia / static_cast<double>(batch_))) break;
    }
    Assignment all = assign(points_, numbers(points_.count), centres_);
    result.inertia = all.inertia();
    result.labels = std::move(all.labels);
    result.centres = std::move(centres_.values);
    return result;
  }

 private:
  RandomStream next_stream() {
    ++stream_.step;
    return stream_;
  }

  /// Any points, some perhaps several times.
  std::vector<std::int32_t> draw(std::int64_t count) {
    const RandomStream stream = next_stream();
    std::vector<std::int32_t> result;
    for (std::int64_t i = 0; i < count; ++i) {
      result.push_back(static_cast<std::int32_t>(
          draw_below(stream, static_cast<std::uint32_t>(i), points_.count)));
    }
    return result;
  }

  /// The inertia of the batch before centres moved.
  double step() {
    const bool reassigns = is_due();
    const std::vector<std::int32_t> batch = draw(batch_);
    const Assignment assignment = assign(points_, batch, centres_);
    move_centres(batch, assignment.labels);
    if (reassigns) reassign(batch);
    return assignment.inertia();
  }

  bool is_due() {
    seen_ += batch_;
    const bool due = seen_ >= kReassignEvery * centres_.count() ||
                     std::ranges::find(counts_, 0) != counts_.end();
    if (due) seen_ = 0;
    return due;
  }

  /// Centres become the means of all points they ever met.
  void move_centres(const std::vector<std::int32_t>& batch,
                    const std::vector<std::int32_t>& labels) {
    std::vector<std::int32_t> order = numbers(batch_);
    std::ranges::stable_sort(order, {},
                             [&](std::int32_t i) { return labels[static_cast<std::size_t>(i)]; });
    for (auto first = order.begin(); first != order.end();) {
      const std::int32_t label = labels[static_cast<std::size_t>(*first)];
      const auto last = std::find_if(first, order.end(), [&](std::int32_t i) {
        return labels[static_cast<std::size_t>(i)] != label;
      });
      std::int64_t& count = counts_[static_cast<std::size_t>(label)];
      float* centre = centres_.centre(label);
      for (int d = 0; d < points_.dim; ++d) centre[d] *= static_cast<float>(count);
      for (; first != last; ++first, ++count) {
        const float* point = points_.point(batch[static_cast<std::size_t>(*first)]);
        for (int d = 0; d < points_.dim; ++d) centre[d] += point[d];
      }
      const float share = 1 / static_cast<float>(count);
      for (int d = 0; d < points_.dim; ++d) centre[d] *= share;
    }
  }

  /// Centres with few points move to points of the batch, and count as the least of the others.
  void reassign(std::vector<std::int32_t> batch) {
    const std::int64_t most = *std::ranges::max_element(counts_);
    std::vector<std::int32_t> by_count = numbers(centres_.count());
    const auto count_of = [&](std::int32_t c) { return counts_[static_cast<std::size_t>(c)]; };
    std::ranges::stable_sort(by_count, {}, count_of);
    std::size_t few = 0;
    while (count_of(by_count[few]) * kLeastShare < most) ++few;
    few = std::min(few, static_cast<std::size_t>(batch_ / 2));
    const std::int64_t least = count_of(by_count[few]);
    std::sort(by_count.begin(), by_count.begin() + static_cast<std::ptrdiff_t>(few));
    const RandomStream stream = next_stream();
    for (std::size_t i = 0; i < few; ++i) {  // each takes another place of the batch
      const auto left = static_cast<std::int64_t>(batch.size() - i);
      const std::int64_t other = draw_below(stream, static_cast<std::uint32_t>(i), left);
      std::swap(batch[i], batch[i + static_cast<std::size_t>(other)]);
      std::copy_n(points_.point(batch[i]), points_.dim, centres_.centre(by_count[i]));
      counts_[static_cast<std::size_t>(by_count[i])] = least;
    }
  }

  /// True once a moving average of the inertia has not fallen for some batches.
  bool settled(double inertia) {
    const double weight =
        std::min(1.0, 2 * static_cast<double>(batch_) / static_cast<double>(points_.count + 1));
    average_ = average_ < 0 ? inertia : average_ * (1 - weight) + inertia * weight;
    if (average_ < least_average_) {
      least_average_ = average_;
      unimproved_ = 0;
      return false;
    }
    return ++unimproved_ >= kPatience;
  }

  Points points_;
  std::int64_t batch_;
  RandomStream stream_;
  Centres centres_;
  std::vector<std::int64_t> counts_;  // of points a centre met
  std::int64_t seen_ = 0;             // points since centres were last reassigned
  double average_ = -1;
  double least_average_ = std::numeric_limits<double>::infinity();
  int unimproved_ = 0;
};

}  // namespace

Clusters mini_batch_kmeans(const Points& points, std::int64_t centres, std::uint64_t seed) {
  return MiniBatches(points, centres, seed).run();
}

}  // namespace kvsim::santapp
