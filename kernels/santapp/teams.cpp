#include "kernels/santapp/teams.h"

#include <algorithm>
#include <limits>

#include "kernels/lanes.h"
#include "kernels/santapp/distance.h"

namespace kvsim::santapp {
namespace {

/// A parent's keys in floats, [keys, padded], and the teams they fall into.
class Parent {
 public:
  Parent(const RowsView& keys, std::span<const std::int32_t> members)
      : padded_(padded_lanes(keys.dim)),
        count_(members.size()),
        rows_(count_ * static_cast<std::size_t>(padded_)) {
    for (std::size_t i = 0; i < count_; ++i) {
      load_rows(keys, members[i], members[i] + 1, padded_, rows_.data() + offset(i));
    }
  }

  /// Positions in the parent of up to `most` leaders; afterwards `team()` tells each key's.
  std::vector<std::size_t> elect(std::size_t most) {
    std::vector<std::size_t> leaders;
    distance_.assign(count_, std::numeric_limits<float>::infinity());
    team_.assign(count_, 0);
    leads_.assign(count_, false);
    while (leaders.size() < std::min(most, count_)) {
      const std::size_t next = leaders.empty() ? nearest_to_mean() : farthest();
      const auto number = static_cast<std::int32_t>(leaders.size());
      leaders.push_back(next);
      leads_[next] = true;
      for (std::size_t i = 0; i < count_; ++i) {
        const float distance = distance_squared(row(i), row(next), padded_);
        if (distance < distance_[i]) {
          distance_[i] = distance;
          team_[i] = number;
        }
      }
      team_[next] = number;  // of equal keys, too
    }
    return leaders;
  }

  std::int32_t team(std::size_t key) const { return team_[key]; }

 private:
  std::size_t offset(std::size_t i) const { return i * static_cast<std::size_t>(padded_); }
  const float* row(std::size_t i) const { return rows_.data() + offset(i); }

  std::size_t nearest_to_mean() const {
    std::vector<float> mean(static_cast<std::size_t>(padded_), 0.0f);
    const std::vector<float> equal(count_, 1.0f / static_cast<float>(count_));
    accumulate_rows(rows_.data(), equal.data(), static_cast<std::int64_t>(count_), padded_,
                    mean.data());
    std::size_t best = 0;
    float least = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < count_; ++i) {
      const float distance = distance_squared(row(i), mean.data(), padded_);
      if (distance < least) {
        least = distance;
        best = i;
      }
    }
    return best;
  }

  /// Of the keys that do not lead.
  std::size_t farthest() const {
    std::size_t best = 0;
    float most = -1;
    for (std::size_t i = 0; i < count_; ++i) {
      if (distance_[i] > most && !leads_[i]) {
        most = distance_[i];
        best = i;
      }
    }
    return best;
  }

  int padded_;
  std::size_t count_;
  std::vector<float> rows_;
  std::vector<float> distance_;  // to the nearest leader
  std::vector<std::int32_t> team_;
  std::vector<bool> leads_;
};

}  // namespace

Teams make_teams(const RowsView& keys, const Partition& parents, int representatives) {
  std::vector<std::int32_t> labels(parents.members.size());
  Teams teams;
  for (std::int32_t p = 0; p < parents.parts(); ++p) {
    const std::span<const std::int32_t> members = parents.part(p);
    Parent parent(keys, members);
    const auto before = static_cast<std::int32_t>(teams.leaders.size());
    for (const std::size_t leader : parent.elect(static_cast<std::size_t>(representatives))) {
      teams.leaders.push_back(members[leader]);
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      labels[static_cast<std::size_t>(members[i])] = before + parent.team(i);
    }
  }
  teams.partition = Partition::of_labels(labels, static_cast<std::int32_t>(teams.leaders.size()));
  return teams;
}

}  // namespace kvsim::santapp
