#include "kernels/santapp/preparation.h"

#include <algorithm>

#include "kernels/santapp/kmeans.h"
#include "kernels/santapp/seeding.h"
#include "kernels/santapp/sizes.h"

namespace kvsim::santapp {
namespace {

// Batches until the inertia falls no more: 18 to 51, 33 on average, of 10 heads of 2k real keys, 88
// and 124 of two heads of 32k synthetic ones; taken as 13 passes, at least 32 batches.
constexpr std::int64_t kUsualPasses = 13;
constexpr std::int64_t kUsualBatches = 32;
constexpr std::int64_t kLeastBatches = kPatience + 2;  // the first two set what may not improve

constexpr double kIndexBytes = 4;  // a label, a member, where a team begins, a norm

/// Passes that n points of a batch make.
std::int64_t batches_of(std::int64_t passes, std::int64_t points) {
  return passes * points / std::min(kBatch, points);
}

/// Points of one (sequence, KV head), and how they are clustered.
struct Clustering {
  std::int64_t points;
  std::int64_t centres;
  double dim;
  double row_bytes;

  Clustering(const Shape& shape, const Settings& settings, std::int64_t prompt)
      : points(prompt),
        centres(cluster_count(prompt, settings.teams.parent)),
        dim(shape.head_dim),
        row_bytes(shape.k_row_bytes()) {
    if (settings.teams.grouping != Grouping::kProbes) return;
    dim = 1.0 * kGroupingProbes * shape.group();
    row_bytes = 2 * dim;  // scores in 16 bits
  }
  double batch() const { return static_cast<double>(std::min(kBatch, points)); }
  double sample() const { return static_cast<double>(seeding_sample(points, centres)); }
};

/// All prompts go through each stage together.
class TeamsInTheMaking {
 public:
  TeamsInTheMaking(const Shape& shape, const Settings& settings, const DeviceLimits& limits)
      : shape_(shape), settings_(settings), limits_(limits) {}

  /// `batches` of a prompt of so many points.
  template <typename Batches>
  Work work(const Batches& batches) const {
    Work work;
    if (settings_.teams.grouping == Grouping::kProbes) score_probes(work);
    if (settings_.teams.grouping != Grouping::kContiguous) {
      seed(work);
      cluster(work, batches);
      label(work);
    }
    elect_leaders(work);
    pack(work);
    return work;
  }

 private:
  template <typename Visit>
  void for_prompts(const Visit& visit) const {
    for (const std::int64_t context : shape_.contexts) {
      visit(Clustering(shape_, settings_, context), static_cast<double>(shape_.kv_heads));
    }
  }
  double rows() const { return shape_.total_context() * shape_.kv_heads; }
  double teams() const {
    double sum = 0;
    for (const std::int64_t context : shape_.contexts) {
      sum += static_cast<double>(
          most_teams(context, settings_.teams.parent, settings_.teams.representatives));
    }
    return sum * shape_.kv_heads;
  }
  void read_keys(Stage& stage) const {
    stage.read(Tensor::kK, shape_.k_row_bytes(), rows(), rows(), RowSet::kAll);
  }
  /// Points of which `loads` are loaded in all: from memory once if they stay in the L2.
  void read_points(Stage& stage, double row_bytes, double points, double loads) const {
    const bool stay = points * row_bytes <= static_cast<double>(limits_.l2_bytes);
    stage.read(Tensor::kMetadata, row_bytes, stay ? std::min(points, loads) : loads, loads);
  }
  static void multiply(Stage& stage, double multiply_adds) {
    stage.count(Op::kMultiply, Phase::kScore, multiply_adds);
    stage.count(Op::kAdd, Phase::kScore, multiply_adds);
  }

  void score_probes(Work& work) const {
    Stage& stage = work.add_stage("score_probes", Boundary::kKernelLaunch);
    const double scores = rows() * kGroupingProbes * shape_.group();
    read_keys(stage);
    multiply(stage, scores * shape_.head_dim);
    stage.write(Tensor::kMetadata, 2, scores);
  }

  /// A centre after the other: its candidates' products with the sample, then the best one and the
  /// next candidates, a launch each.
  void seed(Work& work) const {
    Stage& stage = work.add_stage("seed", Boundary::kKernelLaunch);
    double rounds = 0;
    double products = 0;
    double points = 0;
    double loads = 0;
    double row_bytes = 0;
    for_prompts([&](const Clustering& c, double heads) {
      const auto centres = static_cast<double>(c.centres);
      rounds = std::max(rounds, centres);
      products += heads * centres * seeding_trials(c.centres) * c.sample() * c.dim;
      points += heads * c.sample();
      loads += heads * centres * c.sample();
      row_bytes = c.row_bytes;
    });
    stage.boundaries = 2 * rounds;
    read_points(stage, row_bytes, points, loads);
    multiply(stage, products);
  }

  /// A batch after the other: its points' products with all centres, then centres that move.
  template <typename Batches>
  void cluster(Work& work, const Batches& batches) const {
    Stage& stage = work.add_stage("cluster", Boundary::kKernelLaunch);
    double rounds = 0;
    double products = 0;
    double loads = 0;
    double moved = 0;
    double centre_bytes = 0;
    double row_bytes = 0;
    for_prompts([&](const Clustering& c, double heads) {
      const auto own = static_cast<double>(batches(c.points));
      rounds = std::max(rounds, own);
      loads += heads * own * c.batch();
      products += heads * own * c.batch() * static_cast<double>(c.centres) * c.dim;
      moved += heads * own * c.batch() * c.dim;
      centre_bytes += heads * static_cast<double>(c.centres) * 4 * c.dim;
      row_bytes = c.row_bytes;
    });
    stage.boundaries = 2 * rounds;
    read_points(stage, row_bytes, rows(), loads);
    stage.write(Tensor::kStash, 1, centre_bytes);
    stage.read(Tensor::kStash, 1, centre_bytes, centre_bytes * rounds);
    multiply(stage, products);
    stage.count(Op::kAdd, Phase::kSelect, moved);
  }

  /// All points meet all centres once more.
  void label(Work& work) const {
    Stage& stage = work.add_stage("label", Boundary::kKernelLaunch);
    double products = 0;
    double row_bytes = 0;
    for_prompts([&](const Clustering& c, double heads) {
      products += heads * static_cast<double>(c.points * c.centres) * c.dim;
      row_bytes = c.row_bytes;
    });
    read_points(stage, row_bytes, rows(), rows());
    multiply(stage, products);
    stage.write(Tensor::kPartial, kIndexBytes, rows());
  }

  /// Means, and every key's distance to its parent's mean and leaders, in float32.
  void elect_leaders(Work& work) const {
    Stage& stage = work.add_stage("leaders", Boundary::kKernelLaunch);
    const double d = shape_.head_dim;
    const double distances = rows() * (1 + settings_.teams.representatives);
    if (settings_.teams.grouping != Grouping::kContiguous) {
      stage.read(Tensor::kPartial, kIndexBytes, rows(), rows());
    }
    read_keys(stage);
    stage.count(Op::kMultiply, Phase::kSelect, distances * d);
    stage.count(Op::kAdd, Phase::kSelect, rows() * d + distances * (2 * d - 1));
    stage.write(Tensor::kMetadata, kIndexBytes, rows() + 2 * teams());
  }

  /// pack.cu: rows team by team, and what routes to teams.
  void pack(Work& work) const {
    Stage& stage = work.add_stage("pack", Boundary::kKernelLaunch);
    read_keys(stage);
    stage.write(Tensor::kK, shape_.k_row_bytes(), rows());
    if (!shape_.latent) {
      stage.read(Tensor::kV, shape_.v_row_bytes(), rows(), rows(), RowSet::kAll);
      stage.write(Tensor::kV, shape_.v_row_bytes(), rows());
    }
    stage.write(Tensor::kMetadata, 2.0 * shape_.head_dim, teams());
  }

  const Shape& shape_;
  const Settings& settings_;
  const DeviceLimits& limits_;
};

}  // namespace

Preparation prepare_teams(const Shape& shape, const Settings& settings,
                          const DeviceLimits& limits) {
  const TeamsInTheMaking teams(shape, settings, limits);
  const auto most = [](std::int64_t points) { return batches_of(kPasses, points); };
  const auto usual = [&](std::int64_t points) {
    return std::min(most(points), std::max(kUsualBatches, batches_of(kUsualPasses, points)));
  };
  const auto least = [&](std::int64_t points) { return std::min(most(points), kLeastBatches); };
  return {teams.work(least), teams.work(usual), teams.work(most)};
}

}  // namespace kvsim::santapp
